//! The clock of a node in a cluster: right while a majority of the nodes' clocks are.
//!
//! As long as the cluster consists of this node, it is the clock of a node alone.
//!
//! 1. Once a second every other node is asked for its wall clock (`node::clocks`).  2. `observe`
//!    turns question and answer into bounds of its offset from our time since boot.  3. `settle`
//!    finds what a majority agrees on.  4. `now` adds the time since boot, which nobody sets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ephemeris_store::ids::NodeId;
use ephemeris_store::time::{ClockInterval, Millis};
use ephemeris_store::ttl::Vouchers;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::agreement::{Agreement, Bounds, Micros, Settled};
use super::{Clock, Reading, SystemClock, TimeSource, Trust};

/// Above this width the clock is worth an operator's attention.
const WIDTH_ALARM: Duration = Duration::from_millis(250);
/// What a clock may say, in microseconds since 1970: until the year 75,000, far from where sums would overflow.
const ANSWER_MICROS_MAX: i64 = i64::MAX / 4;
/// A node that has not answered for so long counts as silent. It is asked every second.
const HEARD_MICROS_MAX: i64 = 10_000_000;

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
    time: Arc<dyn TimeSource>,
    width_max: Micros,
    state: Mutex<State>,
    /// The nodes whose clocks the metrics show.
    shown: Mutex<BTreeSet<NodeId>>,
}

struct State {
    /// The clock once it is known that there are no other nodes.
    alone: Option<SystemClock>,
    agreement: Agreement,
    /// When each node answered last.
    heard: BTreeMap<NodeId, Micros>,
    nodes: usize,
    last: Settled,
    alarmed: bool,
}

impl State {
    /// Goes on from what a node alone went by, until a majority says otherwise.
    fn begin_with(&mut self, alone: &SystemClock, now: Micros) {
        let interval = alone.now().interval;
        let offset = |at: Millis| micros(Duration::from_millis(at.0)) - now;
        self.agreement.adopt(Bounds { lo: offset(interval.lo()), hi: offset(interval.hi()) }, now);
    }
}

impl QuorumClock {
    /// A clock of a cluster of so many nodes, as far as is known; wider than `width_max`, nothing expires by it.
    pub(crate) fn new(nodes: usize, width_max: Duration, time: Arc<dyn TimeSource>) -> Self {
        let state = State {
            alone: None,
            agreement: Agreement::default(),
            heard: BTreeMap::new(),
            nodes,
            last: Settled::Never,
            alarmed: false,
        };
        let (width_max, state) = (micros(width_max), Mutex::new(state));
        Self { time, width_max, state, shown: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to ask another node.
    pub(crate) fn ask(&self) -> Sample {
        Sample { asked: self.time.boot_micros() }
    }

    /// Takes its answer: its wall clock was read after the question left and before this call.
    pub(crate) fn observe(&self, node: NodeId, sample: Sample, answered: i64) {
        let now = self.time.boot_micros();
        // A peer may send anything.
        if !(0..=ANSWER_MICROS_MAX).contains(&answered) {
            return;
        }
        let bounds = Bounds { lo: answered - now, hi: answered - sample.asked };
        let mut state = self.lock();
        state.agreement.observe(node, bounds, now);
        state.heard.insert(node, now);
    }

    /// Settles on what the samples say, the cluster consisting of these nodes and this one.
    pub(crate) fn settle(&self, others: &[NodeId]) {
        if others.is_empty() {
            return self.settle_alone();
        }
        let (now, own) = (self.time.boot_micros(), self.own_offset());
        let mut state = self.lock();
        if let Some(alone) = state.alone.take() {
            state.begin_with(&alone, now);
        }
        state.nodes = others.len() + 1;
        state.agreement.retain(|node| others.contains(&node));
        state.heard.retain(|node, _| others.contains(node));
        let nodes = state.nodes;
        let settled = state.agreement.settle(own, nodes, self.width_max, now);
        let width = state.agreement.read(now).map(Bounds::width);
        if settled != state.last {
            match settled {
                Settled::Agreed => {
                    info!(nodes, width_micros = width, "a majority of clocks agrees");
                }
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

    /// The other nodes are gone, or were never there: this node's clock is believed as at a start, and what
    /// was agreed on is forgotten.
    fn settle_alone(&self) {
        let mut state = self.lock();
        if state.alone.is_none() {
            *state = State {
                alone: Some(SystemClock::new(self.time.clone())),
                agreement: Agreement::default(),
                heard: BTreeMap::new(),
                nodes: 1,
                last: Settled::Never,
                alarmed: false,
            };
            drop(state);
            metrics::gauge!("clock_width_alarm").set(0.0);
            self.record_offsets(&BTreeMap::new());
        }
    }

    /// True if this node and those that have answered lately are a majority.
    pub(crate) fn hears_majority(&self) -> bool {
        let (now, state) = (self.time.boot_micros(), self.lock());
        let lately = |at: &&Micros| now - **at <= HEARD_MICROS_MAX;
        let heard = state.heard.values().filter(lately).count() + 1;
        state.alone.is_some() || 2 * heard > state.nodes
    }

    /// This node's own wall clock: read between two looks at the time since boot.
    fn own_offset(&self) -> Bounds {
        let before = self.time.boot_micros();
        let wall = self.time.wall_micros();
        let after = self.time.boot_micros();
        Bounds { lo: wall - after, hi: wall - before }
    }

    #[expect(clippy::cast_precision_loss, reason = "gauges are doubles")]
    fn record(&self) {
        let Some(status) = self.status() else {
            return;
        };
        let seconds = |micros: i64| micros as f64 / 1e6;
        let exact = status.width_micros.is_some_and(|width| width <= micros(WIDTH_ALARM));
        metrics::gauge!("clock_width_alarm").set(if exact { 0.0 } else { 1.0 });
        if let Some(width) = status.width_micros {
            metrics::gauge!("clock_width_seconds").set(seconds(width));
        }
        if let Some(ago) = status.agreed_micros_ago {
            metrics::gauge!("clock_agreed_seconds_ago").set(seconds(ago));
        }
        self.record_offsets(&status.offsets);
    }

    /// Shows how far other clocks are ahead, and no number any more of nodes that are gone.
    #[expect(clippy::cast_precision_loss, reason = "gauges are doubles")]
    fn record_offsets(&self, offsets: &BTreeMap<NodeId, i64>) {
        let gauge = |node: &NodeId| {
            let node = node.to_string();
            metrics::gauge!("clock_offset_seconds", "node" => node)
        };
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in shown.iter().filter(|node| !offsets.contains_key(node)) {
            gauge(gone).set(f64::NAN);
        }
        for (node, offset) in offsets {
            gauge(node).set(*offset as f64 / 1e6);
        }
        *shown = offsets.keys().copied().collect();
    }

    /// What is known of the nodes' clocks; none while there are no other nodes.
    pub(crate) fn status(&self) -> Option<ClockStatus> {
        let (now, own) = (self.time.boot_micros(), self.own_offset());
        let state = self.lock();
        if state.alone.is_some() {
            return None;
        }
        let middle = |bounds: Bounds| bounds.lo + bounds.width() / 2;
        let samples = state.agreement.samples(now);
        Some(ClockStatus {
            width_micros: state.agreement.read(now).map(Bounds::width),
            agreed_micros_ago: state.agreement.age(now),
            offsets: samples.map(|(node, bounds)| (node, middle(bounds) - own.lo)).collect(),
        })
    }
}

impl Clock for QuorumClock {
    fn now(&self) -> Reading {
        let now = self.time.boot_micros();
        let state = self.lock();
        if let Some(alone) = &state.alone {
            return alone.now();
        }
        let Some(bounds) = state.agreement.read(now) else {
            return Reading::until(ceil_millis(self.time.wall_micros()), Trust::Unsettled);
        };
        let contradiction = state.agreement.contradiction(now);
        drop(state);
        let (lo, hi) = (now + bounds.lo, now + bounds.hi);
        if let Some(said) = contradiction {
            let is_behind = said.lo > bounds.hi;
            let trust = if is_behind { Trust::Behind } else { Trust::Contradicted };
            return Reading::until(ceil_millis(hi), trust);
        }
        if bounds.width() > self.width_max {
            return Reading::until(ceil_millis(hi), Trust::Wide);
        }
        Reading::sure(ClockInterval::new(floor_millis(lo), ceil_millis(hi)))
    }

    fn vouching(&self) -> Vouchers {
        let (now, own) = (self.time.boot_micros(), self.own_offset());
        let state = self.lock();
        if let Some(alone) = &state.alone {
            return alone.vouching();
        }
        let readings = state.agreement.samples(now).map(|(_, bounds)| bounds).chain([own]);
        let readings = readings.map(|bounds| floor_millis(now + bounds.lo)).collect();
        let nodes = u32::try_from(state.nodes).expect("nodes are numbered by 32 bits");
        Vouchers { readings, nodes }
    }

    fn width_ms(&self) -> Option<u64> {
        let now = self.time.boot_micros();
        let state = self.lock();
        if let Some(alone) = &state.alone {
            return alone.width_ms();
        }
        Some(ceil_millis(state.agreement.read(now)?.width()).0)
    }
}

fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_micros()).expect("a setting is no longer than a few centuries")
}

fn floor_millis(micros: Micros) -> Millis {
    Millis(u64::try_from(micros.div_euclid(1000)).unwrap_or(0))
}

fn ceil_millis(micros: Micros) -> Millis {
    Millis(floor_millis(micros).0 + 1)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::clock::MachineTime;

    fn clock() -> QuorumClock {
        QuorumClock::new(3, Duration::from_secs(2), Arc::new(MachineTime))
    }

    fn observe(clock: &QuorumClock, node: u32, ahead: i64) {
        let sample = clock.ask();
        clock.observe(NodeId(node), sample, MachineTime.wall_micros() + ahead);
    }

    #[test]
    fn a_clock_that_was_never_settled_moves_nothing() {
        let now = clock().now();
        assert_eq!((now.trust, now.interval.lo()), (Trust::Unsettled, Millis(0)));
        assert!(now.interval.hi() > Millis(1_600_000_000_000));
        assert_eq!(clock().width_ms(), None);
    }

    /// Time that stands where it is put.
    #[derive(Default)]
    struct Stopped(AtomicI64);

    impl TimeSource for Stopped {
        fn wall_micros(&self) -> i64 {
            self.boot_micros()
        }

        fn boot_micros(&self) -> i64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_majority_is_heard_as_long_as_it_answers() {
        let time = Arc::new(Stopped::default());
        let clock = QuorumClock::new(3, Duration::from_secs(2), time.clone());
        let (others, alone) = ([NodeId(2), NodeId(3)], []);
        clock.settle(&others);
        assert!(!clock.hears_majority(), "nobody has answered yet");
        clock.observe(NodeId(3), clock.ask(), 0);
        assert!(clock.hears_majority(), "two of three");
        time.0.store(HEARD_MICROS_MAX + 1, Ordering::Relaxed);
        assert!(!clock.hears_majority(), "it has fallen silent");
        clock.settle(&alone);
        assert!(clock.hears_majority(), "a node alone is all there is");
    }

    #[test]
    fn the_alarm_is_raised_until_the_clocks_agree_well() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let shown = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            let (clock, others) = (clock(), [NodeId(2), NodeId(3)]);
            clock.settle(&others);
            assert!(shown.render().contains("\nclock_width_alarm 1\n"), "they never agreed");
            // The third, who says nothing, may agree with either.
            observe(&clock, 2, 300_000);
            clock.settle(&others);
            assert!(shown.render().contains("\nclock_width_alarm 1\n"), "{:?}", clock.status());
            observe(&clock, 2, 0);
            clock.settle(&others);
            assert!(shown.render().contains("\nclock_width_alarm 0\n"), "{:?}", clock.status());
        });
    }

    #[test]
    fn the_clock_of_a_node_that_is_gone_is_not_shown_any_more() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let shown = recorder.handle();
        let gone = |node: u32| {
            shown.render().contains(&format!("\nclock_offset_seconds{{node=\"{node}\"}} NaN\n"))
        };
        metrics::with_local_recorder(&recorder, || {
            let clock = clock();
            observe(&clock, 2, 0);
            observe(&clock, 3, 0);
            clock.settle(&[NodeId(2), NodeId(3)]);
            assert!(!gone(2) && !gone(3), "{}", shown.render());
            clock.settle(&[NodeId(2)]);
            assert!(!gone(2) && gone(3), "{}", shown.render());
            clock.settle(&[]);
            assert!(gone(2), "{}", shown.render());
        });
    }

    #[test]
    fn an_agreement_of_two_of_three_is_enough() {
        let clock = clock();
        observe(&clock, 2, 0);
        clock.settle(&[NodeId(2), NodeId(3)]);
        let now = clock.now();
        assert_eq!(now.trust, Trust::Sure);
        assert!(now.interval.width_ms() < 250, "{now:?}");
        let vouchers = clock.vouching();
        assert_eq!((vouchers.readings.len(), vouchers.nodes), (2, 3));
    }

    #[test]
    fn a_node_that_is_an_hour_off_follows_the_others() {
        let clock = clock();
        let hour = 3_600_000_000;
        observe(&clock, 2, hour);
        observe(&clock, 3, hour);
        clock.settle(&[NodeId(2), NodeId(3)]);
        let lo = i64::try_from(clock.now().interval.lo().0).unwrap();
        let ahead = lo - MachineTime.wall_micros() / 1000;
        assert!((3_599_900..3_600_100).contains(&ahead), "{ahead}");
        assert!(
            clock.status().unwrap().offsets.values().all(|offset| (offset - hour).abs() < 100_000)
        );
    }

    /// A cluster that began as one node goes by a majority once there are others, whatever the first one's
    /// clock said; and by that clock again when they are gone.
    #[test]
    fn a_node_alone_goes_by_its_own_clock_until_there_are_others() {
        let clock = QuorumClock::new(1, Duration::from_secs(2), Arc::new(MachineTime));
        clock.settle(&[]);
        assert!(clock.now().is_sure());
        assert_eq!((clock.status(), clock.width_ms()), (None, Some(1)));
        assert_eq!((clock.vouching().readings.len(), clock.vouching().nodes), (1, 1));

        clock.settle(&[NodeId(2), NodeId(3)]);
        assert!(clock.now().is_sure(), "the others were not heard: it goes on as before");
        assert_eq!(clock.vouching().nodes, 3);
        let hour = 3_600_000_000;
        observe(&clock, 2, -hour);
        observe(&clock, 3, -hour);
        clock.settle(&[NodeId(2), NodeId(3)]);
        assert_eq!(clock.now().trust, Trust::Contradicted, "a majority says otherwise");

        clock.settle(&[]);
        let lo = i64::try_from(clock.now().interval.lo().0).unwrap();
        assert!((lo - MachineTime.wall_micros() / 1000).abs() < 1000);
        assert_eq!(clock.status(), None);
    }

    /// The machine stood still for a while, its time since boot as well: what it reads is not trusted from the
    /// moment that the others are heard.
    #[test]
    fn a_clock_that_a_majority_contradicts_is_not_trusted() {
        let clock = clock();
        observe(&clock, 2, 0);
        observe(&clock, 3, 0);
        clock.settle(&[NodeId(2), NodeId(3)]);
        assert!(clock.now().is_sure());
        observe(&clock, 2, 3_000_000);
        observe(&clock, 3, 3_000_000);
        clock.settle(&[NodeId(2), NodeId(3)]);
        let now = clock.now();
        assert_eq!((now.trust, now.interval.lo()), (Trust::Behind, Millis(0)));
        assert_eq!(now.latest(), Millis(u64::MAX), "what may have expired is in doubt");
        observe(&clock, 2, -3_000_000);
        observe(&clock, 3, -3_000_000);
        clock.settle(&[NodeId(2), NodeId(3)]);
        let now = clock.now();
        assert_eq!((now.trust, now.latest()), (Trust::Contradicted, Millis(u64::MAX)));
        assert!(now.interval.hi() > Millis(1_600_000_000_000), "items get stamps");
        observe(&clock, 2, 0);
        observe(&clock, 3, 0);
        clock.settle(&[NodeId(2), NodeId(3)]);
        assert!(clock.now().is_sure());
    }

    #[test]
    fn nonsense_from_a_peer_is_ignored() {
        let clock = clock();
        for nonsense in [i64::MIN, i64::MAX] {
            clock.observe(NodeId(2), clock.ask(), nonsense);
            observe(&clock, 3, 0);
            clock.settle(&[NodeId(2), NodeId(3)]);
            assert_eq!(clock.now().trust, Trust::Sure);
        }
    }
}
