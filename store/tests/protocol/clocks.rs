//! Clocks of three nodes, one of them wrong, and the interval each node makes of them.
//!
//! A stand-in for `node/src/clock/agreement.rs`: a clock is known as an interval, and the true time
//! lies where at least two of the three do.

use ephemeris_store::time::{ClockInterval, Millis};

/// Half a second: what the true time moves by.
pub(crate) const TICK: u64 = 500;
/// Where every history begins.
const START: u64 = 100_000;
/// How wrong a clock is that counts as right, in ticks.
const ERROR: i64 = 1;
/// How much less a node knows of another's clock than of its own, in ticks.
const DISTANCE: i64 = 1;
/// How far behind the true time an interval of a majority may begin, in ticks.
pub(crate) const LAG_MAX: u64 = (2 * ERROR + DISTANCE).unsigned_abs();

/// How many nodes there are.
pub(crate) const NODES: u8 = 3;

/// How far each clock is from the true time, in ticks.
pub(crate) type Skews = [i64; 3];

/// The true time after so many ticks.
pub(crate) fn truth(ticks: u8) -> Millis {
    Millis(START + u64::from(ticks) * TICK)
}

/// What a node takes the time to be: where most of what it knows of the clocks lies.
pub(crate) fn quorum(skews: Skews, node: u8, ticks: u8) -> ClockInterval {
    let node = usize::from(node);
    let bounds = |clock: usize| {
        let error = if clock == node { ERROR } else { ERROR + DISTANCE };
        (skews[clock] - error, skews[clock] + error)
    };
    let known = [bounds(0), bounds(1), bounds(2)];
    let is_shared = |at: &i64| known.iter().filter(|(lo, hi)| (lo..=hi).contains(&at)).count() >= 2;
    let ends = known.iter().flat_map(|(lo, hi)| [*lo, *hi]).filter(is_shared);
    let (lo, hi) = ends.fold((i64::MAX, i64::MIN), |(lo, hi), end| (lo.min(end), hi.max(end)));
    interval(ticks, lo, hi)
}

/// What a node would take the time to be that trusts its own clock.
pub(crate) fn own(skews: Skews, node: u8, ticks: u8) -> ClockInterval {
    let skew = skews[usize::from(node)];
    interval(ticks, skew - ERROR, skew + ERROR)
}

fn interval(ticks: u8, lo: i64, hi: i64) -> ClockInterval {
    let shifted = |by: i64| {
        let by = by * i64::try_from(TICK).expect("half a second");
        Millis(truth(ticks).0.checked_add_signed(by).expect("far from 1970"))
    };
    ClockInterval::new(shifted(lo), shifted(hi))
}

#[test]
fn i8_the_truth_is_inside_while_two_clocks_are_right() {
    for wrong in -20..=20 {
        for (a, b) in [(-1, -1), (-1, 0), (-1, 1), (0, 0), (0, 1), (1, 1)] {
            for node in 0..NODES {
                let now = quorum([a, b, wrong], node, 50);
                assert!(now.lo() <= truth(50) && truth(50) <= now.hi());
                assert!(truth(50).0 - now.lo().0 <= LAG_MAX * TICK);
            }
        }
    }
}
