//! What many runs have shown together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use clap::ValueEnum as _;
use serde::Serialize;

use super::Results;
use super::gaps::Gaps;
use crate::nemesis::Mode;
use crate::workload::{Finding, Outcome};

/// Runs, one after the other.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) runs: u64,
    seconds: f64,
    /// Requests that were answered.
    done: u64,
    modes: BTreeMap<String, Gaps>,
    /// What was hit by each mode.
    roles: BTreeMap<String, BTreeSet<&'static str>>,
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
        for fault in &results.faults {
            self.roles.entry(fault.mode.clone()).or_default().insert(fault.role);
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

    /// True if every run was Ok, and together they have hit whom they should.
    pub(crate) fn is_ok(&self) -> bool {
        self.failed.is_empty() && self.one_sided().is_empty()
    }

    /// Modes that hit a leader and others in turns, and in all of several runs have hit only one of them.
    fn one_sided(&self) -> Vec<&String> {
        let alternates = |name: &str| Mode::from_str(name, false).is_ok_and(Mode::alternates);
        let is_one_sided = |(mode, roles): &(&String, &BTreeSet<&str>)| {
            self.runs > 1 && roles.len() == 1 && alternates(mode)
        };
        self.roles.iter().filter(is_one_sided).map(|(mode, _)| mode).collect()
    }

    /// The table that ends all runs.
    pub(crate) fn print(&self) {
        let Self { runs, seconds, done, modes, roles, properties, failed } = self;
        println!("\n=== {runs} runs in {seconds:.0} s, {done} requests answered\n");
        for (mode, gaps) in modes {
            println!("{mode:<18} {gaps}");
        }
        println!();
        for (property, Property { checked, ok, illegal, unknown }) in properties {
            println!("{property}, of {checked}: {ok} Ok, {illegal} ILLEGAL, {unknown} UNKNOWN");
        }
        for mode in self.one_sided() {
            println!("NOT OK: {mode} has hit nobody but a {:?}", roles[mode]);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_turns_has_hit_a_leader_and_another_in_several_runs() {
        let roles = |all: &[&'static str]| all.iter().copied().collect::<BTreeSet<_>>();
        let mut summary = Summary { runs: 1, ..Summary::default() };
        summary.roles.insert(Mode::KillLeader.name(), roles(&["leader"]));
        summary.roles.insert(Mode::SlowSync.name(), roles(&["leader"]));
        assert!(summary.is_ok(), "one run may have had no time");
        summary.runs = 2;
        assert_eq!(summary.one_sided(), [&Mode::SlowSync.name()]);
        assert!(!summary.is_ok());
        summary.roles.insert(Mode::SlowSync.name(), roles(&["leader", "follower"]));
        assert!(summary.is_ok());
    }
}
