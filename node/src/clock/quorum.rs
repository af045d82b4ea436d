//! The clock of a node in a cluster: right while a majority of the nodes' clocks are.
//!
//! 1. Once a second every other node is asked for its wall clock (`node::clocks`).  2. `observe`
//!    turns question and answer into bounds of its offset from our time since boot.  3. `settle`
//!    finds what a majority agrees on.  4. `now` adds the time since boot, which nobody sets.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ephemeris_store::ids::NodeId;
use ephemeris_store::time::{ClockInterval, Millis};
use ephemeris_store::ttl::Vouchers;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::agreement::{Agreement, Bounds, Micros, Settled};
use super::{Clock, Reading, Trust, boot_micros, wall_micros};

/// Above this width the clock is worth an operator's attention.
const WIDTH_ALARM: Duration = Duration::from_millis(250);

/// A question put to another node, on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    asked: Micros,
}

/// What is known of the clocks, for people.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClockStatus {
    /// Width of the interval, in microseconds; none if the clocks never agreed.
    pub(crate) width_micros: Option<i64>,
    /// How long the last agreement is ago, in microseconds.
    pub(crate) agreed_micros_ago: Option<i64>,
    /// How far each other node's clock is ahead of this one's, in microseconds, about.
    pub(crate) offsets: BTreeMap<NodeId, i64>,
}

/// A clock that a majority of the nodes agrees on. Share it by `Arc`.
pub(crate) struct QuorumClock {
    width_max: Micros,
    state: Mutex<State>,
}

struct State {
    agreement: Agreement,
    nodes: usize,
    last: Settled,
    alarmed: bool,
}

impl QuorumClock {
    /// A clock of a cluster of so many nodes; wider than `width_max`, nothing expires by it.
    pub(crate) fn new(nodes: usize, width_max: Duration) -> Self {
        let state =
            State { agreement: Agreement::default(), nodes, last: Settled::Never, alarmed: false };
        Self { width_max: micros(width_max), state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What this node answers when it is asked for its clock.
    pub(crate) fn wall_micros() -> u64 {
        wall_micros()
    }

    /// Begins to ask another node.
    pub(crate) fn ask() -> Sample {
        Sample { asked: boot() }
    }

    /// Takes its answer: its wall clock was read after the question left and before this call.
    pub(crate) fn observe(&self, node: NodeId, sample: Sample, answered: u64) {
        let Ok(answered) = Micros::try_from(answered) else { return };
        let now = boot();
        let bounds = Bounds { lo: answered - now, hi: answered - sample.asked };
        self.lock().agreement.observe(node, bounds, now);
    }

    /// Settles on what the samples say, the cluster consisting of these nodes and this one.
    pub(crate) fn settle(&self, others: &[NodeId]) {
        let (now, own) = (boot(), own_offset());
        let mut state = self.lock();
        state.nodes = others.len() + 1;
        state.agreement.retain(|node| others.contains(&node));
        let nodes = state.nodes;
        let settled = state.agreement.settle(own, nodes, self.width_max, now);
        let width = state.agreement.read(now).map(Bounds::width);
        if settled != state.last {
            match settled {
                Settled::Agreed => info!(width_micros = width, "a majority of clocks agrees"),
                Settled::CarriedOn => warn!("no majority of clocks agrees; carrying on"),
                Settled::Never => warn!("no majority of clocks agrees yet"),
            }
            state.last = settled;
        }
        let wide = width.is_some_and(|width| width > micros(WIDTH_ALARM));
        if wide && !state.alarmed {
            warn!(width_micros = width, "the clocks of the nodes are far apart, or unreachable");
        }
        state.alarmed = wide;
        drop(state);
        self.record();
    }

    #[expect(clippy::cast_precision_loss, reason = "gauges are doubles")]
    fn record(&self) {
        let status = self.status();
        let seconds = |micros: i64| micros as f64 / 1e6;
        if let Some(width) = status.width_micros {
            metrics::gauge!("clock_width_seconds").set(seconds(width));
        }
        if let Some(ago) = status.agreed_micros_ago {
            metrics::gauge!("clock_agreed_seconds_ago").set(seconds(ago));
        }
        for (node, offset) in status.offsets {
            let node = node.to_string();
            metrics::gauge!("clock_offset_seconds", "node" => node).set(seconds(offset));
        }
    }

    /// What is known.
    pub(crate) fn status(&self) -> ClockStatus {
        let (now, own) = (boot(), own_offset());
        let state = self.lock();
        let middle = |bounds: Bounds| bounds.lo + bounds.width() / 2;
        let samples = state.agreement.samples(now);
        ClockStatus {
            width_micros: state.agreement.read(now).map(Bounds::width),
            agreed_micros_ago: state.agreement.age(now),
            offsets: samples.map(|(node, bounds)| (node, middle(bounds) - own.lo)).collect(),
        }
    }
}

impl Clock for QuorumClock {
    fn now(&self) -> Reading {
        let now = boot();
        let Some(bounds) = self.lock().agreement.read(now) else {
            return Reading::until(Millis(wall_micros().div_ceil(1000)), Trust::Unsettled);
        };
        let (lo, hi) = (now + bounds.lo, now + bounds.hi);
        if bounds.width() > self.width_max {
            return Reading::until(ceil_millis(hi), Trust::Wide);
        }
        Reading::sure(ClockInterval::new(floor_millis(lo), ceil_millis(hi)))
    }

    fn vouching(&self) -> Vouchers {
        let (now, own) = (boot(), own_offset());
        let state = self.lock();
        let readings = state.agreement.samples(now).map(|(_, bounds)| bounds).chain([own]);
        let readings = readings.map(|bounds| floor_millis(now + bounds.lo)).collect();
        let nodes = u32::try_from(state.nodes).expect("nodes are numbered by 32 bits");
        Vouchers { readings, nodes }
    }
}

fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_micros()).expect("a setting is no longer than a few centuries")
}

fn boot() -> Micros {
    Micros::try_from(boot_micros()).expect("a machine has not run for millennia")
}

/// This node's own wall clock: read between two looks at the time since boot.
fn own_offset() -> Bounds {
    let before = boot();
    let wall = Micros::try_from(wall_micros()).expect("the wall clock reads a date");
    let after = boot();
    Bounds { lo: wall - after, hi: wall - before }
}

fn floor_millis(micros: Micros) -> Millis {
    Millis(u64::try_from(micros.div_euclid(1000)).unwrap_or(0))
}

fn ceil_millis(micros: Micros) -> Millis {
    Millis(floor_millis(micros).0 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH_MAX: Duration = Duration::from_secs(2);

    fn observe(clock: &QuorumClock, node: u32, ahead: i64) {
        let sample = QuorumClock::ask();
        let wall = i64::try_from(wall_micros()).unwrap() + ahead;
        clock.observe(NodeId(node), sample, u64::try_from(wall).unwrap());
    }

    #[test]
    fn a_clock_that_was_never_settled_moves_nothing() {
        let clock = QuorumClock::new(3, WIDTH_MAX);
        let now = clock.now();
        assert_eq!((now.trust, now.interval.lo()), (Trust::Unsettled, Millis(0)));
        assert!(now.interval.hi() > Millis(1_600_000_000_000));
    }

    #[test]
    fn an_agreement_of_two_of_three_is_enough() {
        let clock = QuorumClock::new(3, WIDTH_MAX);
        observe(&clock, 2, 0);
        clock.settle(&[NodeId(2), NodeId(3)]);
        let now = clock.now();
        assert_eq!(now.trust, Trust::Sure);
        assert!(now.interval.width_ms() < 250, "{now:?}");
        let vouching = clock.vouching();
        assert_eq!((vouching.readings.len(), vouching.nodes), (2, 3));
    }

    #[test]
    fn a_node_that_is_an_hour_off_follows_the_others() {
        let clock = QuorumClock::new(3, WIDTH_MAX);
        let hour = 3_600_000_000;
        observe(&clock, 2, hour);
        observe(&clock, 3, hour);
        clock.settle(&[NodeId(2), NodeId(3)]);
        let ahead = clock.now().interval.lo().0 - wall_micros() / 1000;
        assert!((3_599_900..3_600_100).contains(&ahead), "{ahead}");
        assert!(clock.status().offsets.values().all(|offset| (offset - hour).abs() < 100_000));
    }
}
