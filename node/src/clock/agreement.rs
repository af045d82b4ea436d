//! What a majority of clocks agree on: Marzullo's algorithm, and what to do when they do not.
//!
//! Every clock, this node's own included, is known as an offset from the time since boot, which no
//! administrator sets and which runs on through suspension. (1) Each clock is right within some
//! error. (2) At least a majority of the nodes' clocks are. So (3) the true offset lies where at
//! least a majority of the intervals do; an interval that is not known may lie anywhere. (4) Between
//! agreements the last one is carried on, widening by the drift of a quartz.
//!
//! Nothing here reads a clock: tests pass the time in. All times are microseconds.

use std::collections::BTreeMap;

use ephemeris_store::ids::NodeId;
use ephemeris_store::ttl::clocks_needed;

/// How far a quartz may drift: 200 microseconds a second.
const DRIFT_PER_MILLION: i64 = 200;
/// A sample is good for this long.
const SAMPLE_MICROS_MAX: i64 = 60_000_000;
/// What contradicts the last agreement is believed if a majority of samples no older than this says
/// so for as long: a clock that was wrong a moment ago must not vouch for another that is wrong now.
const STEP_MICROS: i64 = 5_000_000;
/// A sample is replaced by any other after this long.
const KEPT_MICROS_MAX: i64 = STEP_MICROS / 2;
/// How wrong a clock that counts as right may be: the first of these with which a majority agrees.
const ERRORS_MICROS: [i64; 3] = [10_000, 50_000, 250_000];
/// The same for a step: clocks that were set by the same hand agree well.
const STEP_ERRORS_MICROS: [i64; 2] = [10_000, 50_000];

/// Microseconds of time since boot, or of an offset from it.
pub(super) type Micros = i64;

/// An interval of offsets from the time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) lo: Micros,
    pub(super) hi: Micros,
}

impl Bounds {
    pub(super) fn width(self) -> Micros {
        self.hi - self.lo
    }

    fn widened(self, by: Micros) -> Self {
        Self { lo: self.lo - by, hi: self.hi + by }
    }

    fn meet(self, other: Self) -> Option<Self> {
        let both = Self { lo: self.lo.max(other.lo), hi: self.hi.min(other.hi) };
        (both.lo <= both.hi).then_some(both)
    }
}

/// Bounds as of a moment; they widen as it recedes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    bounds: Bounds,
    at: Micros,
}

impl Known {
    fn as_of(self, now: Micros) -> Bounds {
        let age = (now - self.at).max(0);
        // Rounded up: bounds never shrink by waiting.
        self.bounds.widened((age * DRIFT_PER_MILLION + 999_999) / 1_000_000)
    }
}

/// The clocks of a cluster as one node sees them.
#[derive(Clone, Debug, Default)]
pub(super) struct Agreement {
    others: BTreeMap<NodeId, Known>,
    settled: Option<Known>,
    contradicted: Option<Contradiction>,
}

/// The clocks contradict what was settled on.
#[derive(Clone, Copy, Debug)]
struct Contradiction {
    since: Micros,
    /// What they say.
    said: Known,
}

/// How an attempt to settle ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// A majority agrees.
    Agreed,
    /// None does, or too few answer: the last agreement is carried on.
    CarriedOn,
    /// There never was one.
    Never,
}

impl Agreement {
    /// Takes a sample of another clock.
    ///
    /// A narrow sample is better than a fresh one until drift has made it as wide, or it is so old that the clock
    /// would soon not count as known; one that contradicts the old says that the clock was set.
    pub(super) fn observe(&mut self, node: NodeId, bounds: Bounds, now: Micros) {
        let better = self.others.get(&node).is_none_or(|known| {
            let old = known.as_of(now);
            now - known.at > KEPT_MICROS_MAX
                || bounds.width() <= old.width()
                || old.meet(bounds).is_none()
        });
        if better {
            self.others.insert(node, Known { bounds, at: now });
        }
    }

    /// Forgets clocks of nodes that are not there any more.
    pub(super) fn retain(&mut self, nodes: impl Fn(NodeId) -> bool) {
        self.others.retain(|node, _| nodes(*node));
    }

    /// The samples that are still good.
    pub(super) fn samples(&self, now: Micros) -> impl Iterator<Item = (NodeId, Bounds)> + '_ {
        let fresh = move |known: &Known| now - known.at <= SAMPLE_MICROS_MAX;
        self.others
            .iter()
            .filter(move |(_, known)| fresh(known))
            .map(move |(node, known)| (*node, known.as_of(now)))
    }

    /// Settles on what a majority of `nodes` clocks allows, this node's own being `own`.
    pub(super) fn settle(
        &mut self,
        own: Bounds,
        nodes: usize,
        width_max: Micros,
        now: Micros,
    ) -> Settled {
        let carried = self.settled.map(|settled| settled.as_of(now));
        // With nothing to hold an old sample against, only fresh ones count.
        let clocks: Vec<Bounds> = match carried {
            Some(_) => self.samples(now).map(|(_, bounds)| bounds).chain([own]).collect(),
            None => self.fresh(now).chain([own]).collect(),
        };
        let majority = nodes / 2 + 1;
        let unknown = nodes.saturating_sub(clocks.len());
        let least = majority.saturating_sub(unknown);
        let region = within_errors(&clocks, least, &ERRORS_MICROS);
        let agreed = match (region, carried) {
            (Some(region), Some(carried)) => match region.meet(carried) {
                Some(both) => {
                    self.contradicted = None;
                    Some(both)
                }
                None => self.step(own, region, nodes, now),
            },
            (region, None) => region,
            (None, Some(_)) => None,
        };
        match agreed.filter(|agreed| agreed.width() <= width_max) {
            Some(bounds) => {
                self.settled = Some(Known { bounds, at: now });
                Settled::Agreed
            }
            None if self.settled.is_some() => Settled::CarriedOn,
            None => Settled::Never,
        }
    }

    /// Bounds by samples of the last seconds.
    fn fresh(&self, now: Micros) -> impl Iterator<Item = Bounds> + '_ {
        let fresh = self.others.values().filter(move |known| now - known.at <= STEP_MICROS);
        fresh.map(move |known| known.as_of(now))
    }

    /// Where the clocks were set to, if that can be believed by now.
    fn step(&mut self, own: Bounds, region: Bounds, nodes: usize, now: Micros) -> Option<Bounds> {
        let since = self.contradicted.map_or(now, |contradiction| contradiction.since);
        let said = Known { bounds: region, at: now };
        self.contradicted = Some(Contradiction { since, said });
        if now - since < STEP_MICROS {
            return None;
        }
        let clocks: Vec<Bounds> = self.fresh(now).chain([own]).collect();
        let needed = clocks_needed(nodes, clocks.len());
        let region = within_errors(&clocks, needed, &STEP_ERRORS_MICROS)?;
        self.contradicted = None;
        Some(region)
    }

    /// Where the true offset lies now, if it was ever known.
    pub(super) fn read(&self, now: Micros) -> Option<Bounds> {
        self.settled.map(|settled| settled.as_of(now))
    }

    /// Where a majority may say that the true offset lies, while that is elsewhere and not believed yet.
    pub(super) fn contradiction(&self, now: Micros) -> Option<Bounds> {
        self.contradicted.map(|contradiction| contradiction.said.as_of(now))
    }

    /// Begins with what this node alone went by.
    pub(super) fn adopt(&mut self, bounds: Bounds, now: Micros) {
        self.settled = Some(Known { bounds, at: now });
    }

    /// How long the last agreement is ago.
    pub(super) fn age(&self, now: Micros) -> Option<Micros> {
        self.settled.map(|settled| now - settled.at)
    }
}

/// Where at least so many clocks agree, each being as wrong as it takes, but no more.
fn within_errors(clocks: &[Bounds], least: usize, errors: &[Micros]) -> Option<Bounds> {
    errors.iter().find_map(|error| {
        let widened: Vec<Bounds> = clocks.iter().map(|clock| clock.widened(*error)).collect();
        covered(&widened, least)
    })
}

/// The hull of all points that lie in at least `least` of the intervals; none if `least` is 0, when
/// any point would do, or if there is no such point.
fn covered(intervals: &[Bounds], least: usize) -> Option<Bounds> {
    if least == 0 || least > intervals.len() {
        return None;
    }
    let mut starts: Vec<Micros> = intervals.iter().map(|interval| interval.lo).collect();
    let mut ends: Vec<Micros> = intervals.iter().map(|interval| interval.hi).collect();
    starts.sort_unstable();
    ends.sort_unstable();
    let depth = |point: Micros| {
        intervals.iter().filter(|interval| interval.lo <= point && point <= interval.hi).count()
    };
    // The hull begins where an interval begins and ends where one ends.
    let lo = starts.into_iter().find(|point| depth(*point) >= least)?;
    let hi = ends.into_iter().rev().find(|point| depth(*point) >= least)?;
    Some(Bounds { lo, hi })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Micros = 1000;
    const SECOND: Micros = 1_000_000;
    const WIDTH_MAX: Micros = 2 * SECOND;

    fn exact(at: Micros) -> Bounds {
        Bounds { lo: at, hi: at }
    }

    fn node(number: u32) -> NodeId {
        NodeId(number)
    }

    /// An agreement of three nodes with the two others at these offsets.
    fn three(b: Micros, c: Micros) -> Agreement {
        let mut agreement = Agreement::default();
        agreement.observe(node(2), exact(b), 0);
        agreement.observe(node(3), exact(c), 0);
        agreement
    }

    #[test]
    fn three_clocks_that_agree_leave_twice_the_error() {
        let mut agreement = three(1000, -1000);
        assert_eq!(agreement.settle(exact(0), 3, WIDTH_MAX, 0), Settled::Agreed);
        let bounds = agreement.read(0).unwrap();
        assert!(bounds.lo >= -11 * MS && bounds.hi <= 11 * MS, "{bounds:?}");
        assert!(bounds.lo <= 0 && 0 <= bounds.hi);
    }

    #[test]
    fn t5_one_wrong_clock_has_no_effect_whosever_it_is() {
        let year = 365 * 24 * 3600 * SECOND;
        for wrong in [3 * SECOND, -3 * SECOND, 3600 * SECOND, year, -year] {
            let mut other_wrong = three(0, wrong);
            assert_eq!(other_wrong.settle(exact(0), 3, WIDTH_MAX, 0), Settled::Agreed);
            assert!(other_wrong.read(0).unwrap().width() <= 20 * MS);
            let mut own_wrong = three(0, 0);
            assert_eq!(own_wrong.settle(exact(wrong), 3, WIDTH_MAX, 0), Settled::Agreed);
            let bounds = own_wrong.read(0).unwrap();
            assert!(bounds.lo.abs() <= 10 * MS && bounds.hi.abs() <= 10 * MS, "{bounds:?}");
        }
    }

    #[test]
    fn t5_three_clocks_of_which_no_two_agree_settle_nothing() {
        let mut agreement = three(10 * SECOND, -10 * SECOND);
        assert_eq!(agreement.settle(exact(0), 3, WIDTH_MAX, 0), Settled::Never);
        assert_eq!(agreement.read(0), None);
    }

    #[test]
    fn without_a_majority_the_last_agreement_is_carried_on_and_widens() {
        let mut agreement = three(0, 0);
        agreement.settle(exact(0), 3, WIDTH_MAX, 0);
        let before = agreement.read(0).unwrap();
        let later = 100 * SECOND;
        // The samples are too old, and this node's own clock was set: neither counts.
        assert_eq!(agreement.settle(exact(3600 * SECOND), 3, WIDTH_MAX, later), Settled::CarriedOn);
        let after = agreement.read(later).unwrap();
        assert_eq!(after, before.widened(20 * MS));
    }

    #[test]
    fn a_wrong_clock_and_a_missing_one_do_not_move_what_was_agreed() {
        let mut agreement = three(0, 0);
        agreement.settle(exact(0), 3, WIDTH_MAX, 0);
        let later = 70 * SECOND;
        agreement.observe(node(3), exact(3600 * SECOND), later);
        agreement.settle(exact(0), 3, WIDTH_MAX, later);
        let bounds = agreement.read(later).unwrap();
        assert!(bounds.lo.abs() <= 30 * MS && bounds.hi.abs() <= 30 * MS, "{bounds:?}");
    }

    #[test]
    fn a_majority_that_was_set_is_believed_after_a_while() {
        let mut agreement = three(0, 0);
        agreement.settle(exact(0), 3, WIDTH_MAX, 0);
        let step = 3600 * SECOND;
        let mut settled = Settled::CarriedOn;
        for second in 1..=6 {
            assert_eq!(settled, Settled::CarriedOn, "not at once");
            agreement.observe(node(2), exact(step), second * SECOND);
            settled = agreement.settle(exact(step), 3, WIDTH_MAX, second * SECOND);
        }
        assert_eq!(settled, Settled::Agreed);
        assert!(agreement.read(6 * SECOND).unwrap().lo >= step - 11 * MS);
    }

    #[test]
    fn a_clock_that_was_wrong_does_not_vouch_for_one_that_is_wrong_now() {
        let wrong = -3600 * SECOND;
        let mut agreement = three(wrong, 0);
        agreement.settle(exact(0), 3, WIDTH_MAX, 0);
        // Node 2 is set right, but does not say so any more; this node's clock goes just as wrong.
        for second in 1..=20 {
            agreement.observe(node(3), exact(0), second * SECOND);
            agreement.settle(exact(wrong), 3, WIDTH_MAX, second * SECOND);
        }
        let bounds = agreement.read(20 * SECOND).unwrap();
        assert!(bounds.lo.abs() <= 20 * MS && bounds.hi.abs() <= 20 * MS, "{bounds:?}");
    }

    #[test]
    fn a_slow_answer_does_not_replace_a_quick_one_but_a_set_clock_does() {
        let mut agreement = Agreement::default();
        agreement.observe(node(2), Bounds { lo: 0, hi: 100 }, 0);
        agreement.observe(node(2), Bounds { lo: -5000, hi: 5000 }, SECOND);
        assert!(agreement.samples(SECOND).next().unwrap().1.width() < 1000);
        agreement.observe(node(2), Bounds { lo: 9 * SECOND, hi: 10 * SECOND }, SECOND);
        assert_eq!(agreement.samples(SECOND).next().unwrap().1.lo, 9 * SECOND);
    }

    #[test]
    fn a_node_whose_answers_become_slow_stays_known() {
        let mut agreement = Agreement::default();
        agreement.observe(node(2), exact(0), 0);
        for second in 1..=100 {
            agreement.observe(node(2), Bounds { lo: -50 * MS, hi: 50 * MS }, second * SECOND);
            assert_eq!(agreement.fresh(second * SECOND).count(), 1, "after {second} s");
        }
    }

    #[test]
    fn half_of_four_clocks_are_believed_to_have_been_set_where_the_others_are_gone() {
        let mut agreement = Agreement::default();
        (2..=4).for_each(|other| agreement.observe(node(other), exact(0), 0));
        agreement.settle(exact(0), 4, WIDTH_MAX, 0);
        // The time since boot stood still for 3 s, on this machine alone; two nodes end.
        let (gap, mut settled) = (3 * SECOND, Settled::CarriedOn);
        for second in 61..=67 {
            agreement.observe(node(2), exact(gap), second * SECOND);
            settled = agreement.settle(exact(gap), 4, WIDTH_MAX, second * SECOND);
        }
        assert_eq!(settled, Settled::Agreed);
        assert!(agreement.read(67 * SECOND).unwrap().lo >= gap - 11 * MS);
    }

    proptest! {
        /// Whoever of the others is silent: as long as a minority of all clocks is wrong, the truth
        /// lies in what is settled on.
        #[test]
        fn i8_the_truth_is_inside_while_a_majority_is_right(
            nodes in 1_usize..8,
            errors in proptest::collection::vec(-9_000_i64..9_000, 8),
            delays in proptest::collection::vec((0_i64..5_000, 0_i64..5_000), 8),
            lies in proptest::collection::vec(-10_000_000_i64..10_000_000, 8),
            lies_there: [bool; 8],
            silent: [bool; 8],
        ) {
            let (mut agreement, mut liars) = (Agreement::default(), nodes - (nodes / 2 + 1));
            let mut own = exact(0);
            for n in 0..nodes {
                let mut offset = errors[n];
                if lies_there[n] && liars > 0 {
                    liars -= 1;
                    offset = lies[n];
                }
                let bounds = Bounds { lo: offset - delays[n].0, hi: offset + delays[n].1 };
                if n == 0 {
                    own = exact(offset);
                } else if !silent[n] {
                    agreement.observe(node(u32::try_from(n).unwrap()), bounds, 0);
                }
            }
            agreement.settle(own, nodes, i64::MAX, 0);
            if let Some(bounds) = agreement.read(0) {
                prop_assert!(bounds.lo <= 0 && 0 <= bounds.hi, "{:?}", bounds);
            }
        }
    }
}
