//! What many runs have shown together.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Serialize;

use super::Results;
use super::gaps::Gaps;
use crate::workload::{Finding, Outcome};

/// Runs, one after the other.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) runs: u64,
    seconds: f64,
    /// Requests that were answered.
    done: u64,
    modes: BTreeMap<String, Gaps>,
    properties: BTreeMap<String, Property>,
    /// What repeats the runs that were not Ok.
    failed: Vec<String>,
}

/// What was found out about a property.
#[derive(Debug, Default, Serialize)]
struct Property {
    /// Of how many operations it was asked.
    checked: u64,
    /// Runs by their verdict.
    ok: u64,
    illegal: u64,
    unknown: u64,
}

impl Summary {
    pub(crate) fn add(&mut self, results: &Results) {
        self.runs += 1;
        self.seconds += results.seconds;
        self.done += results.done;
        for (mode, gaps) in Gaps::by_mode(&results.faults) {
            self.modes.entry(mode).or_default().add(&gaps);
        }
        for Finding { property, checked, verdict } in &results.findings {
            let all = self.properties.entry(property.clone()).or_default();
            all.checked += checked;
            match verdict {
                Outcome::Ok => all.ok += 1,
                Outcome::Illegal(_) => all.illegal += 1,
                Outcome::Unknown(_) => all.unknown += 1,
            }
        }
        if !results.is_ok() {
            self.failed.push(results.again.clone());
        }
    }

    /// True if every run was Ok.
    pub(crate) fn is_ok(&self) -> bool {
        self.failed.is_empty()
    }

    /// The table that ends all runs.
    pub(crate) fn print(&self) {
        let Self { runs, seconds, done, modes, properties, failed } = self;
        println!("\n=== {runs} runs in {seconds:.0} s, {done} requests answered\n");
        for (mode, gaps) in modes {
            println!("{mode:<18} {gaps}");
        }
        println!();
        for (property, Property { checked, ok, illegal, unknown }) in properties {
            println!("{property}, of {checked}: {ok} Ok, {illegal} ILLEGAL, {unknown} UNKNOWN");
        }
        for again in failed {
            println!("NOT OK: {again}");
        }
        println!("faults: {} of {runs} runs are Ok", runs - failed.len() as u64);
    }

    pub(crate) fn write(&self, file: &Path) -> anyhow::Result<()> {
        Ok(fs::write(file, serde_json::to_vec_pretty(self)?)?)
    }
}
