//! What became of a peak of expiry, as a line of a table and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ephemeris_cluster_tests::load::Seen;
use serde::Serialize;

use crate::report::{Run, shown};

/// A peak of expiry: one round under load and one without.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Expiry {
    /// Creates under way at the same time.
    concurrency: usize,
    /// Items that fell due in the same second, in each round.
    items: u32,
    /// Point reads of due items, before and after.
    reads: u64,
    /// Reads that began after the due second and saw an item.
    visible: u64,
    /// Reads that ended before it and saw none.
    early: u64,
    /// Reads with another answer, by status; 0 stands for a broken connection.
    unexpected: BTreeMap<u16, u64>,
    /// Seconds from the due second until no replica stores a due item, with nobody asking for
    /// anything; none if it was not watched for so long.
    drain_idle_seconds: Option<f64>,
    /// The same while creates go on.
    drain_loaded_seconds: Option<f64>,
    /// Creates a second while due items are removed, next to before.
    creates_ratio: f64,
    /// The same of the latency that 99 of 100 creates do not exceed.
    p99_ratio: f64,
}

/// How long removing the due items took, if it was seen to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drains {
    pub(super) idle: Option<Duration>,
    pub(super) loaded: Option<Duration>,
}

impl Expiry {
    /// The outcome of a round with the runs `steady` and `drain`, and of one without load.
    pub(super) fn new(items: u32, seen: Seen, drains: Drains, steady: &Run, drain: &Run) -> Self {
        let Seen { reads, visible, early, unexpected, told: _ } = seen;
        let ratio = |of: f64, to: f64| of / to.max(f64::MIN_POSITIVE);
        Self {
            concurrency: drain.concurrency,
            items,
            reads,
            visible,
            early,
            unexpected,
            drain_idle_seconds: drains.idle.map(|took| took.as_secs_f64()),
            drain_loaded_seconds: drains.loaded.map(|took| took.as_secs_f64()),
            creates_ratio: ratio(drain.per_second, steady.per_second),
            p99_ratio: ratio(drain.p99.as_secs_f64(), steady.p99.as_secs_f64()),
        }
    }

    /// True if a client saw an item it must not see, or missed one it must.
    pub(crate) fn is_violated(&self) -> bool {
        self.visible + self.early > 0
    }

    /// The line above all outcomes.
    pub(crate) fn write_head(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<9} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "expiry",
            "conc",
            "items",
            "reads",
            "visible",
            "early",
            "idle s",
            "loaded s",
            "of ops/s",
            "of p99",
        )
    }
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<9} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9.2} {:>9.2}",
            "",
            self.concurrency,
            self.items,
            self.reads,
            self.visible,
            self.early,
            shown(self.drain_idle_seconds, 2),
            shown(self.drain_loaded_seconds, 2),
            self.creates_ratio,
            self.p99_ratio,
        )?;
        if !self.unexpected.is_empty() {
            writeln!(f, "    unexpected answers to reads, by status: {:?}", self.unexpected)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Server, tests::run};

    fn outcome(seen: Seen) -> Expiry {
        let drains = Drains { idle: None, loaded: Some(Duration::from_millis(8500)) };
        let steady = run(Server::Ephemeris, 1000.0, 40);
        let drain = Run { p99: 2 * steady.p99, ..run(Server::Ephemeris, 900.0, 40) };
        Expiry::new(70, seen, drains, &steady, &drain)
    }

    #[test]
    fn an_outcome_tells_what_the_peak_cost() {
        let outcome = outcome(Seen { reads: 9, ..Seen::default() });
        let line = outcome.to_string();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["4", "70", "9", "0", "0", "-", "8.50", "0.90", "2.00"]);
        let json = serde_json::to_value(&outcome).unwrap();
        assert_eq!(json["drain_loaded_seconds"], 8.5);
        assert!(json["drain_idle_seconds"].is_null());
        assert_eq!(json["creates_ratio"], 0.9);
    }

    #[test]
    fn one_read_that_saw_what_it_must_not_is_enough() {
        assert!(!outcome(Seen { reads: 9, ..Seen::default() }).is_violated());
        assert!(outcome(Seen { visible: 1, ..Seen::default() }).is_violated());
        assert!(outcome(Seen { early: 1, ..Seen::default() }).is_violated());
    }
}
