//! How long it took after faults of a mode until something was answered.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::FaultWindow;

/// Faults of a mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Gaps {
    faults: u64,
    /// To the first write of each that was acknowledged, in milliseconds; shortest first.
    writes_ms: Vec<u64>,
    /// The same of reads.
    reads_ms: Vec<u64>,
}

impl Gaps {
    /// Sorts faults by their modes.
    pub(super) fn by_mode(faults: &[FaultWindow]) -> BTreeMap<String, Self> {
        let mut modes: BTreeMap<String, Self> = BTreeMap::new();
        for fault in faults {
            modes.entry(fault.mode.clone()).or_default().add(&Self {
                faults: 1,
                writes_ms: fault.write_gap_ms.into_iter().collect(),
                reads_ms: fault.read_gap_ms.into_iter().collect(),
            });
        }
        modes
    }

    /// Adds those of other faults.
    pub(super) fn add(&mut self, others: &Self) {
        self.faults += others.faults;
        for (own, other) in
            [(&mut self.writes_ms, &others.writes_ms), (&mut self.reads_ms, &others.reads_ms)]
        {
            own.extend(other);
            own.sort_unstable();
        }
    }
}

impl fmt::Display for Gaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |gaps: &[u64]| match (gaps.get(gaps.len().saturating_sub(1) / 2), gaps.last()) {
            (Some(median), Some(worst)) => format!("{median} ms, worst {worst} ms"),
            _ => "none".to_string(),
        };
        let Self { faults, writes_ms, reads_ms } = self;
        let (writes, reads) = (shown(writes_ms), shown(reads_ms));
        write!(f, "{faults:>4} ×   writes resume after {writes:<28} reads after {reads}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(mode: &str, write_gap_ms: Option<u64>) -> FaultWindow {
        FaultWindow { write_gap_ms, ..FaultWindow::example(mode, 0, 0) }
    }

    #[test]
    fn gaps_have_a_median_and_a_worst() {
        let faults =
            [fault("a", Some(5)), fault("b", None), fault("a", Some(1)), fault("a", Some(3))];
        let modes = Gaps::by_mode(&faults);
        assert!(modes["a"].to_string().contains("3 ×   writes resume after 3 ms, worst 5 ms"));
        assert!(modes["b"].to_string().contains("1 ×   writes resume after none"));
        let mut both = modes["a"].clone();
        both.add(&Gaps::by_mode(&[fault("a", Some(9))])["a"]);
        assert!(both.to_string().contains("4 ×   writes resume after 3 ms, worst 9 ms"));
    }
}
