//! What a run leaves behind: results for machines, pictures for people.

mod gaps;
mod latency;
mod summary;
mod timeline;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use ephemeris_cluster_tests::history::{Nanos, Operation};
use serde::Serialize;

use crate::workload::{Finding, Outcome};
use gaps::Gaps;
use latency::latency_svg;
use timeline::timeline_html;

pub(crate) use summary::Summary;

/// The file with every request of `register` that may have been carried out, and every fault.
pub(crate) const HISTORY: &str = "history.jsonl";
/// The smallest part of it that is wrong.
const FAILING: &str = "failing.jsonl";

/// The harness may be late by so much: if it is later, it has measured itself.
const LATE_MS_MAX: u64 = 200;

/// Within so long of a fault's end a write should be acknowledged; what takes longer is told.
const HEALED_GAP_MS: u64 = 10_000;

/// A request, as graphs show it.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) is_write: bool,
    /// True if it was answered by the partition whose leader is broken.
    pub(crate) is_of_broken: bool,
    /// Before the first byte was sent, in nanoseconds since 1970.
    pub(crate) call: Nanos,
    /// After the answer had come, or was given up.
    pub(crate) ret: Nanos,
    pub(crate) end: End,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Answered as it should be.
    Done,
    /// Surely not done.
    Refused,
    /// Not done, because the container's request units were used up: that is how it should be.
    Throttled,
    /// Nobody knows.
    Unknown,
}

/// A fault while it lasted.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FaultWindow {
    /// As `kill-leader`.
    pub(crate) mode: String,
    /// As `n1` or `n1>n3`.
    pub(crate) targets: Vec<String>,
    /// What they were: `leader`, `follower` or `several`.
    pub(crate) role: &'static str,
    /// Before anything was done, when something first was, and after all was put right.
    pub(crate) start: Nanos,
    pub(crate) installed: Nanos,
    pub(crate) stop: Nanos,
    /// From its start to the first write that was sent once it was there and acknowledged, in
    /// milliseconds.
    pub(crate) write_gap_ms: Option<u64>,
    /// The same of reads.
    pub(crate) read_gap_ms: Option<u64>,
    /// When everything was told to go on, and from then to the first write that was sent since and acknowledged,
    /// in milliseconds, if that was before the next fault. Nodes start meanwhile, so a busy machine shows here.
    pub(crate) healed: Nanos,
    pub(crate) healed_gap_ms: Option<u64>,
    /// How often the nodes that it hit logged what it is for, until the next one.
    pub(crate) logged: BTreeMap<&'static str, u64>,
    /// Why it does not count, if so.
    pub(crate) in_vain: Option<String>,
}

#[cfg(test)]
impl FaultWindow {
    /// One that happened from then to then.
    pub(crate) fn example(mode: &str, start: Nanos, stop: Nanos) -> Self {
        Self {
            mode: mode.to_string(),
            targets: Vec::new(),
            role: "leader",
            start,
            installed: start,
            stop,
            write_gap_ms: None,
            read_gap_ms: None,
            healed: stop,
            healed_gap_ms: None,
            logged: BTreeMap::new(),
            in_vain: None,
        }
    }
}

/// What a run has shown.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    pub(crate) mode: &'static str,
    pub(crate) seed: u64,
    pub(crate) revision: String,
    pub(crate) nodes: u32,
    /// What the seed has chosen for them.
    pub(crate) settings: String,
    pub(crate) workloads: Vec<&'static str>,
    pub(crate) seconds: f64,
    /// Requests by how they ended.
    pub(crate) done: u64,
    pub(crate) refused: u64,
    pub(crate) throttled: u64,
    pub(crate) unknown: u64,
    /// Requests answered in a second before the first fault.
    pub(crate) rate_before_faults: f64,
    /// How long it took after the last fault until every request was answered, in milliseconds.
    pub(crate) recovery_ms: Option<u64>,
    /// How late the harness itself was at worst: beyond 200 ms its latencies say nothing.
    pub(crate) late_ms_max: u64,
    /// For how long a write may see what has expired, by what the nodes' clocks left in doubt.
    pub(crate) write_tolerance_ms: u64,
    /// How often each mode was installed, and not in vain.
    pub(crate) coverage: BTreeMap<String, u64>,
    /// Modes that cannot be done here, and why.
    pub(crate) skipped: BTreeMap<String, String>,
    pub(crate) faults: Vec<FaultWindow>,
    pub(crate) findings: Vec<Finding>,
    /// What the harness itself could not do.
    pub(crate) harness: Vec<String>,
    /// Answers that nobody should get.
    pub(crate) unexpected: BTreeMap<String, u64>,
    /// What should happen sometimes.
    pub(crate) sometimes: BTreeMap<&'static str, u64>,
    /// Why the run does not count; empty if it does.
    pub(crate) rejected: Vec<String>,
    /// What repeats the schedule.
    pub(crate) again: String,
}

impl Results {
    /// True if the run counts, and everything that was judged holds.
    pub(crate) fn is_ok(&self) -> bool {
        self.rejected.is_empty()
            && self.harness.is_empty()
            && self.unexpected.is_empty()
            && self.findings.iter().all(|one| one.verdict == Outcome::Ok)
    }

    /// The table that ends a run.
    pub(crate) fn print(&self) {
        println!("\n{}\n", self.settings);
        for (mode, gaps) in Gaps::by_mode(&self.faults) {
            println!("{mode:<18} {gaps}");
        }
        for (mode, why) in &self.skipped {
            println!("skipped: {mode}: {why}");
        }
        let healed = self.faults.iter().filter_map(|one| Some((one.healed_gap_ms?, &one.mode)));
        if let Some((worst, mode)) = healed.clone().max() {
            println!(
                "writes went on within {worst} ms of the end of each fault, the worst: {mode}"
            );
        }
        for (gap, mode) in healed.filter(|(gap, _)| *gap > HEALED_GAP_MS) {
            println!("SLOW: after {mode} the first write was acknowledged {gap} ms after its end");
        }
        for FaultWindow { mode, in_vain, .. } in &self.faults {
            if let Some(why) = in_vain {
                println!("in vain: {mode}: {why}");
            }
        }
        println!("a write may see what has expired for {} ms", self.write_tolerance_ms);
        println!();
        for Finding { property, checked, verdict } in &self.findings {
            let word = match verdict {
                Outcome::Ok => "Ok",
                Outcome::Illegal(_) => "ILLEGAL",
                Outcome::Unknown(_) => "UNKNOWN",
            };
            println!("{word:<8} {property}, of {checked}");
            if let Outcome::Illegal(reasons) | Outcome::Unknown(reasons) = verdict {
                reasons.iter().take(5).for_each(|reason| println!("    {reason}"));
            }
        }
        for (what, times) in &self.unexpected {
            println!("UNEXPECTED {times} × {what}");
        }
        for (what, times) in &self.sometimes {
            println!("sometimes: {what}: {times}");
        }
        for why in &self.rejected {
            println!("REJECTED: {why}");
        }
        for why in &self.harness {
            println!("HARNESS: {why}");
        }
        let Self { done, refused, throttled, unknown, .. } = self;
        let Self { rate_before_faults, late_ms_max, .. } = self;
        println!(
            "\n{done} requests answered, {refused} refused, {throttled} throttled, {unknown} unknown; \
             {rate_before_faults:.0} a second before the first fault; the harness was late by \
             {late_ms_max} ms at most"
        );
        if *late_ms_max > LATE_MS_MAX {
            println!("the machine was too busy: latencies and gaps say nothing");
        }
        println!("again: {}", self.again);
        println!("faults: {}", if self.is_ok() { "Ok" } else { "NOT OK" });
    }

    /// Writes everything into a directory of its own.
    pub(crate) fn write(
        &self,
        directory: &Path,
        samples: &[Sample],
        histories: &[Vec<Operation>],
        failing: Option<&[Operation]>,
    ) -> anyhow::Result<()> {
        fs::create_dir_all(directory)
            .with_context(|| format!("{} cannot be made", directory.display()))?;
        let results = serde_json::to_vec_pretty(self)?;
        fs::write(directory.join("results.json"), results)?;
        fs::write(directory.join("latency.svg"), latency_svg(samples, &self.faults))?;
        let shown = failing.or(histories.first().map(Vec::as_slice)).unwrap_or_default();
        let key = shown.first().map_or("", |one| one.key.as_str());
        fs::write(directory.join("timeline.html"), timeline_html(key, shown, &self.faults))?;
        if let Some(failing) = failing {
            write_lines(&directory.join(FAILING), failing)?;
        }
        let operations = histories.iter().flatten().map(Line::Operation);
        let faults = self.faults.iter().map(Line::Fault);
        write_lines(&directory.join(HISTORY), operations.chain(faults))
    }
}

/// A line of a history.
#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Operation(&'a Operation),
    Fault(&'a FaultWindow),
}

fn write_lines(file: &Path, all: impl IntoIterator<Item = impl Serialize>) -> anyhow::Result<()> {
    let mut lines = std::io::BufWriter::new(fs::File::create(file)?);
    for one in all {
        serde_json::to_writer(&mut lines, &one)?;
        lines.write_all(b"\n")?;
    }
    Ok(lines.flush()?)
}
