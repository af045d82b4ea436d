//! Subjects that are measured in turns: a machine's moods come over all of them, so that ratios within a
//! round say more than any number.
//!
//! 1. In each round every subject gets the same run, one after the other, in an order that turns.
//! 2. Each run is put next to the first subject's of the same round.
//! 3. Of all rounds the median is told, with the lowest and the highest.

use std::fmt;
use std::net::SocketAddr;
use std::ptr;

use anyhow::ensure;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::arguments::{Arguments, Workload};
use crate::plan::{Cell, measure};
use crate::report::{Run, Server, shown};
use crate::servers::Servers;
use crate::sources::Mix;
use crate::spread::Spread;
use crate::subject::{Numbers, Subject};

/// Who is measured in turns.
pub(crate) struct Entrant<'a> {
    pub(crate) name: String,
    pub(crate) servers: &'a Servers,
    /// Requests are dealt to these.
    pub(crate) subjects: Vec<Subject>,
}

impl Entrant<'_> {
    /// What new workers send, and where to.
    pub(crate) fn sources(&self, cell: Cell, numbers: &mut Numbers) -> Vec<(SocketAddr, Mix)> {
        let begin = numbers.next_run();
        let workers = begin..begin + cell.concurrency as u64;
        let dealt = (0..).zip(&self.subjects).flat_map(|(at, subject)| {
            subject
                .sources(cell.creates_share, workers.clone().skip(at).step_by(self.subjects.len()))
        });
        dealt.collect()
    }
}

/// Creates and reads in turns, at each concurrency.
pub(crate) async fn creates_and_reads(
    arguments: &Arguments,
    usual_concurrency: &[usize],
    entrants: &[Entrant<'_>],
    numbers: &mut Numbers,
) -> anyhow::Result<Vec<Beside>> {
    let mut lines = Vec::new();
    for concurrency in arguments.concurrency_or(usual_concurrency) {
        for workload in [Workload::Create, Workload::Read] {
            let cell = Cell::new(workload, *concurrency);
            lines.extend(measure_in_turns(arguments, cell, entrants, numbers).await?);
        }
    }
    Ok(lines)
}

/// One cell in turns.
pub(crate) async fn measure_in_turns(
    arguments: &Arguments,
    cell: Cell,
    entrants: &[Entrant<'_>],
    numbers: &mut Numbers,
) -> anyhow::Result<Vec<Beside>> {
    let (progress, what) = (ProgressBar::new_spinner(), cell.workload.name());
    let names: Vec<&str> = entrants.iter().map(|entrant| entrant.name.as_str()).collect();
    let mut all_servers: Vec<&Servers> = entrants.iter().map(|entrant| entrant.servers).collect();
    all_servers.dedup_by(|a, b| ptr::eq(*a, *b));
    let lines = in_turns(arguments.turns(), &names, async |at| {
        let entrant = &entrants[at];
        // What others still do would be taken from this one.
        for servers in &all_servers {
            servers.rest().await;
        }
        progress.set_message(format!("{what} with {}: {}", cell.concurrency, entrant.name));
        progress.tick();
        let sources = entrant.sources(cell, numbers);
        Ok(measure(arguments, entrant.servers, Server::Ephemeris, what, sources).await)
    });
    let lines = lines.await?;
    progress.finish_and_clear();
    Ok(lines)
}

/// What requests to one subject got and cost, next to the same requests to the first one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Beside {
    subject: String,
    workload: &'static str,
    concurrency: usize,
    rounds: usize,
    /// Operations a second, in the middle.
    per_second: f64,
    /// Processor time of all nodes for one operation, in microseconds, in the middle; none if they
    /// are not on this machine.
    cpu_micros: Option<f64>,
    /// The same and the 99th percentile, next to the first subject.
    rate: Option<Spread>,
    p99: Option<Spread>,
    cpu: Option<Spread>,
}

/// Measures all subjects for so many rounds; `run` does it with one of them, by its place.
async fn in_turns(
    rounds: u32,
    subjects: &[&str],
    mut run: impl AsyncFnMut(usize) -> anyhow::Result<Run>,
) -> anyhow::Result<Vec<Beside>> {
    let mut runs: Vec<Vec<Run>> = subjects.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds as usize {
        for turn in 0..subjects.len() {
            let at = (turn + round) % subjects.len();
            let run = run(at).await?;
            let (subject, unexpected) = (&subjects[at], &run.unexpected);
            ensure!(unexpected.is_empty(), "{subject} was answered badly: {unexpected:?}");
            runs[at].push(run);
        }
    }
    let each = subjects.iter().zip(&runs);
    Ok(each.map(|(subject, of_it)| Beside::new(subject, of_it, &runs[0])).collect())
}

impl Beside {
    /// A subject's `runs`, and the first subject's of the same rounds.
    fn new(subject: &str, runs: &[Run], first: &[Run]) -> Self {
        let cpu = Run::server_cpu_per_operation;
        let ratios = |of: fn(&Run) -> Option<f64>| {
            let pairs = runs.iter().zip(first);
            let ratio =
                |(run, first): (&Run, &Run)| Some(of(run)? / of(first)?.max(f64::MIN_POSITIVE));
            Spread::of(pairs.filter_map(ratio))
        };
        let middle = |numbers: Option<Spread>| numbers.map(|spread| spread.median);
        Self {
            subject: subject.to_string(),
            workload: runs.first().map_or("", |run| run.workload),
            concurrency: runs.first().map_or(0, |run| run.concurrency),
            rounds: runs.len(),
            per_second: middle(Spread::of(runs.iter().map(|run| run.per_second))).unwrap_or(0.0),
            cpu_micros: middle(Spread::of(runs.iter().filter_map(cpu))),
            rate: ratios(|run| Some(run.per_second)),
            p99: ratios(|run| Some(run.p99.as_secs_f64())),
            cpu: ratios(cpu),
        }
    }

    /// The table of these lines; `what` says what differs.
    pub(crate) fn write_table(
        f: &mut fmt::Formatter<'_>,
        what: &str,
        lines: &[Self],
    ) -> fmt::Result {
        if lines.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "{what:<14} {:<7} {:>5} {:>9} {:>9} {:>22} {:>22} {:>22}",
            "what", "conc", "ops/s", "CPU µs/op", "of ops/s", "of p99", "of CPU",
        )?;
        lines.iter().try_for_each(|line| write!(f, "{line}"))
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<14} {:<7} {:>5} {:>9.0} {:>9} {:>22} {:>22} {:>22}",
            self.subject,
            self.workload,
            self.concurrency,
            self.per_second,
            shown(self.cpu_micros, 1),
            Spread::shown(self.rate),
            Spread::shown(self.p99),
            Spread::shown(self.cpu),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;

    #[test]
    fn a_subject_is_put_next_to_the_first_one_of_the_same_rounds() {
        let rounds = |rates: [f64; 3], cpu_ms| -> Vec<Run> {
            rates.into_iter().map(|rate| run(Server::Ephemeris, rate, cpu_ms)).collect()
        };
        let first = rounds([100.0, 200.0, 400.0], 40);
        let line = Beside::new("far", &rounds([110.0, 180.0, 400.0], 50), &first).to_string();
        let cells: Vec<&str> = line.split_whitespace().collect();
        let ratios =
            [["1.000", "(0.900–1.100)"], ["1.000", "(1.000–1.000)"], ["1.250", "(1.250–1.250)"]];
        assert_eq!(cells[..5], ["far", "read", "4", "180", "50.0"]);
        assert_eq!(cells[5..], ratios.concat());
    }

    #[test]
    fn nodes_elsewhere_have_rates_and_no_costs() {
        let elsewhere = [Run { server_cpu: None, ..run(Server::Ephemeris, 100.0, 1) }];
        let line = Beside::new("on", &elsewhere, &elsewhere);
        assert!(line.cpu.is_none() && line.cpu_micros.is_none() && line.rate.is_some());
    }

    #[tokio::test]
    async fn every_subject_begins_a_round_in_its_turn() {
        let mut order = Vec::new();
        let lines = in_turns(2, &["a", "b"], async |at| {
            order.push(at);
            Ok(run(Server::Ephemeris, 1.0, 1))
        });
        assert_eq!(lines.await.unwrap().len(), 2);
        assert_eq!(order, [0, 1, 1, 0]);
    }

    #[tokio::test]
    async fn a_bad_answer_ends_it() {
        let bad = async |_| {
            let unexpected = [(500, 1)].into();
            Ok(Run { unexpected, ..run(Server::Ephemeris, 1.0, 1) })
        };
        assert!(in_turns(1, &["a"], bad).await.is_err());
    }
}
