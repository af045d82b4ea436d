//! This run next to an earlier one, which `--json` has kept: each cell's rounds next to what the earlier
//! rounds had in the middle.
//!
//! The machine may have been in another mood: the echo server tells. What is left after dividing by its
//! rate is ours. Ratios within what the earlier rounds themselves differed by are chance.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::report::{Run, Server, float, shown};
use crate::spread::Spread;

/// What an earlier run has kept, as far as it is compared.
#[derive(Debug, Deserialize)]
pub(crate) struct Baseline {
    runs: Vec<Kept>,
}

/// One run of one cell.
#[derive(Clone, Debug, Deserialize)]
struct Kept {
    server: String,
    workload: String,
    concurrency: usize,
    operations: u64,
    per_second: f64,
    p99_us: f64,
    server_cpu_us: Option<f64>,
}

impl Kept {
    fn is_of(&self, server: Server, run: &Run) -> bool {
        let (workload, concurrency) = (self.workload.as_str(), self.concurrency);
        self.server == server.name() && (workload, concurrency) == (run.workload, run.concurrency)
    }

    fn cpu_us(&self) -> Option<f64> {
        self.server_cpu_us.map(|cpu| cpu / float(self.operations.max(1)))
    }
}

/// A cell of this run next to the same cell of the earlier one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Compared {
    server: Server,
    workload: &'static str,
    concurrency: usize,
    rounds: usize,
    /// Operations a second, next to the earlier median.
    rate: Spread,
    /// The earlier rounds, next to their own median: what chance does.
    chance: Spread,
    p99: Spread,
    cpu: Option<Spread>,
    /// The medians' ratio over the echo server's; none if one of them had none.
    rate_by_echo: Option<f64>,
}

impl Baseline {
    /// Reads one.
    pub(crate) fn read(file: &Path) -> anyhow::Result<Self> {
        let json =
            std::fs::read(file).with_context(|| format!("{} cannot be read", file.display()))?;
        serde_json::from_slice(&json)
            .with_context(|| format!("{} was not written by --json", file.display()))
    }

    /// Every cell that is in both.
    pub(crate) fn compare(&self, runs: &[Run]) -> Vec<Compared> {
        let mut compared: Vec<Compared> = Vec::new();
        for run in runs {
            let known = |c: &Compared| {
                (c.server, c.workload, c.concurrency) == (run.server, run.workload, run.concurrency)
            };
            if !compared.iter().any(known) {
                compared.extend(self.compare_cell(run, runs));
            }
        }
        compared
    }

    fn compare_cell(&self, cell: &Run, runs: &[Run]) -> Option<Compared> {
        let now: Vec<&Run> = runs.iter().filter(|run| run.is_like(cell.server, cell)).collect();
        let then: Vec<&Kept> = self.of(cell.server, cell);
        let rates = |kept: &[&Kept]| Spread::of(kept.iter().map(|kept| kept.per_second));
        let earlier = rates(&then)?;
        let p99 = Spread::of(then.iter().map(|kept| kept.p99_us))?;
        let cpu = Spread::of(then.iter().filter_map(|kept| kept.cpu_us()));
        let cpu_now = Spread::of(now.iter().filter_map(|run| run.server_cpu_per_operation()));
        let rate = Spread::of(now.iter().map(|run| run.per_second))?.over(earlier.median);
        let echo_now = runs.iter().filter(|run| run.is_like(Server::Echo, cell));
        let echo_now = Spread::of(echo_now.map(|run| run.per_second));
        let echo = echo_now.zip(rates(&self.of(Server::Echo, cell)));
        let micros = |duration: Duration| duration.as_secs_f64() * 1e6;
        Some(Compared {
            server: cell.server,
            workload: cell.workload,
            concurrency: cell.concurrency,
            rounds: now.len(),
            rate,
            chance: earlier.over(earlier.median),
            p99: Spread::of(now.iter().map(|run| micros(run.p99)))?.over(p99.median),
            cpu: cpu_now.zip(cpu).map(|(now, then)| now.over(then.median)),
            rate_by_echo: echo.map(|(now, then)| rate.median / (now.median / then.median)),
        })
    }

    fn of(&self, server: Server, cell: &Run) -> Vec<&Kept> {
        self.runs.iter().filter(|kept| kept.is_of(server, cell)).collect()
    }
}

impl Compared {
    /// The line above all of these.
    pub(crate) fn write_head(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<9} {:<7} {:>5} {:>6} {:>22} {:>15} {:>7} {:>22} {:>22}",
            "compared", "what", "conc", "rounds", "ops/s", "chance", "by echo", "p99", "CPU",
        )
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<9} {:<7} {:>5} {:>6} {:>22} {:>15} {:>7} {:>22} {:>22}",
            self.server.name(),
            self.workload,
            self.concurrency,
            self.rounds,
            self.rate,
            format!("({:.3}–{:.3})", self.chance.min, self.chance.max),
            shown(self.rate_by_echo, 3),
            self.p99,
            Spread::shown(self.cpu),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;
    use crate::report::tests::run;

    #[test]
    fn a_run_is_put_next_to_the_middle_of_the_earlier_rounds() {
        let runs = |rates: [f64; 3], cpu_ms, echo| {
            let mut runs: Vec<Run> =
                rates.iter().map(|rate| run(Server::Ephemeris, *rate, cpu_ms)).collect();
            runs.push(run(Server::Echo, echo, 1));
            runs
        };
        let earlier = Report { runs: runs([90.0, 100.0, 110.0], 40, 1000.0), ..Report::default() };
        let earlier: Baseline =
            serde_json::from_str(&serde_json::to_string(&earlier).unwrap()).unwrap();
        let compared = earlier.compare(&runs([220.0, 180.0, 200.0], 60, 2000.0));
        let cells: Vec<String> =
            compared[0].to_string().split_whitespace().map(String::from).collect();
        assert_eq!(compared.len(), 2, "ephemeris and the echo server");
        assert_eq!(cells[..6], ["ephemeris", "read", "4", "3", "2.000", "(1.800–2.200)"]);
        // Twice as fast, and so was the machine.
        assert_eq!(cells[6..8], ["(0.900–1.100)", "1.000"]);
        assert_eq!(cells[10..], ["1.500", "(1.500–1.500)"]);
    }

    #[test]
    fn what_was_not_measured_earlier_is_left_out() {
        let none: Baseline = serde_json::from_str(r#"{ "runs": [] }"#).unwrap();
        assert!(none.compare(&[run(Server::Ephemeris, 1.0, 1)]).is_empty());
    }
}
