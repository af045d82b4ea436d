//! The results, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::batch::BatchGain;
use crate::change_feed::FeedRate;
use crate::compare::Compared;
use crate::expiry::Expiry;
use crate::idle::IdleCost;
use crate::partitions::IdlePartitions;
use crate::peers::PeerNote;
use crate::query::QueryCost;
use crate::scaling::Scaled;
use crate::throttle::Throttled;
use crate::turns::Beside;

/// Whose run it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Server {
    /// The nodes.
    Ephemeris,
    /// The bare echo server.
    Echo,
    Etcd,
    Nats,
    Redis,
    Postgres,
}

impl Server {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Server::Ephemeris => "ephemeris",
            Server::Echo => "echo",
            Server::Etcd => "etcd",
            Server::Nats => "nats",
            Server::Redis => "redis",
            Server::Postgres => "postgres",
        }
    }
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) server: Server,
    pub(crate) workload: &'static str,
    pub(crate) concurrency: usize,
    pub(crate) operations: u64,
    pub(crate) per_second: f64,
    #[serde(rename = "p50_us", serialize_with = "as_micros")]
    pub(crate) p50: Duration,
    #[serde(rename = "p99_us", serialize_with = "as_micros")]
    pub(crate) p99: Duration,
    #[serde(rename = "max_us", serialize_with = "as_micros")]
    pub(crate) max: Duration,
    /// Of all servers together; none if they are not on this machine.
    #[serde(rename = "server_cpu_us", serialize_with = "as_some_micros")]
    pub(crate) server_cpu: Option<Duration>,
    #[serde(rename = "generator_cpu_us", serialize_with = "as_micros")]
    pub(crate) generator_cpu: Duration,
    /// Of everything on this machine.
    #[serde(rename = "machine_cpu_us", serialize_with = "as_micros")]
    pub(crate) machine_cpu: Duration,
    #[serde(rename = "elapsed_us", serialize_with = "as_micros")]
    pub(crate) elapsed: Duration,
    /// Of all servers together, after the run.
    pub(crate) resident_bytes: Option<u64>,
    /// Of all logs.
    pub(crate) syncs: u64,
    /// Answers that were not good, by status; 0 stands for a broken connection.
    pub(crate) unexpected: BTreeMap<u16, u64>,
}

fn as_micros<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(micros(*duration))
}

#[expect(clippy::ref_option, reason = "serde calls it so")]
fn as_some_micros<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    duration.map(micros).serialize(serializer)
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

#[expect(clippy::cast_precision_loss, reason = "counts stay below 2^52")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

impl Run {
    /// Processor time of all servers for one operation, in microseconds.
    pub(crate) fn server_cpu_per_operation(&self) -> Option<f64> {
        self.server_cpu.map(|cpu| micros(cpu) / float(self.operations.max(1)))
    }

    /// True if it is a run of this server, and of another run's cell.
    pub(crate) fn is_like(&self, server: Server, run: &Run) -> bool {
        let cell = |run: &Run| (run.workload, run.concurrency);
        self.server == server && cell(self) == cell(run)
    }

    /// Processors that something else kept busy meanwhile: results count only if it is near 0.
    fn disturbance(&self) -> Option<f64> {
        let ours = self.server_cpu? + self.generator_cpu;
        let others = self.machine_cpu.saturating_sub(ours);
        Some(others.as_secs_f64() / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE))
    }

    /// The generator's part of the processor time that was used, in percent.
    fn generator_share(&self) -> Option<f64> {
        let server = micros(self.server_cpu?);
        let generator = micros(self.generator_cpu);
        Some(100.0 * generator / (server + generator).max(1.0))
    }
}

/// All results.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// From the start of a node alone on an empty directory until it was ready, in milliseconds.
    pub(crate) starts_ms: Vec<u64>,
    pub(crate) runs: Vec<Run>,
    /// Peaks of expiry; their runs are `steady` and `drain`.
    pub(crate) expiry: Vec<Expiry>,
    /// What queries cost.
    pub(crate) queries: Vec<QueryCost>,
    /// What a time to live costs where nothing expires.
    pub(crate) ttl: Vec<Beside>,
    /// What transactional batches gain; their runs are `single` and `batch`.
    pub(crate) batches: Vec<BatchGain>,
    /// How fast change feeds are read.
    pub(crate) change_feeds: Vec<FeedRate>,
    /// What a container with an offer serves.
    pub(crate) throttled: Vec<Throttled>,
    /// What connections cost on which nothing happens.
    pub(crate) idle: Vec<IdleCost>,
    /// The same load on one partition and on many.
    pub(crate) partitions: Vec<Beside>,
    /// What partitions cost of which nobody wants anything.
    pub(crate) idle_partitions: Option<IdlePartitions>,
    /// The same load on the leader and on the others.
    pub(crate) forwarded: Vec<Beside>,
    /// How cost grows.
    pub(crate) scaling: Vec<Scaled>,
    /// What the other stores promise that were measured.
    pub(crate) peers: Vec<PeerNote>,
    /// This run next to an earlier one.
    pub(crate) compared: Vec<Compared>,
    /// This build next to another one.
    pub(crate) against: Vec<Beside>,
}

impl Report {
    /// Of each cell's rounds the one with the median rate, in the order of the first round.
    fn median_runs(&self) -> Vec<&Run> {
        let first = |(at, run): &(usize, &Run)| {
            !self.runs[..*at].iter().any(|earlier| earlier.is_like(run.server, run))
        };
        let firsts = self.runs.iter().enumerate().filter(first);
        firsts.filter_map(|(_, run)| self.median_run(run.server, run)).collect()
    }

    /// The median of a server's runs of another run's cell.
    fn median_run(&self, server: Server, run: &Run) -> Option<&Run> {
        let mut rounds: Vec<&Run> =
            self.runs.iter().filter(|other| other.is_like(server, run)).collect();
        rounds.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
        rounds.get(rounds.len() / 2).copied()
    }
}

/// A number, or a dash if there is none.
pub(crate) fn shown(number: Option<f64>, digits: usize) -> String {
    number.map_or_else(|| "-".to_string(), |number| format!("{number:.digits$}"))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.starts_ms.is_empty() {
            writeln!(f, "start to ready, a node alone, empty directory: {:?} ms", self.starts_ms)?;
        }
        if self.runs.is_empty() {
            return self.write_others(f);
        }
        writeln!(
            f,
            "{:<9} {:<7} {:>5} {:>9} {:>9} {:>9} {:>9} {:>6} {:>6} {:>6} {:>7} {:>8} {:>7} {:>8}",
            "server",
            "what",
            "conc",
            "ops/s",
            "p50 µs",
            "p99 µs",
            "CPU µs/op",
            "gen %",
            "others",
            "MB",
            "fsyncs",
            "fsync/op",
            "of echo",
            "CPU×echo",
        )?;
        for run in self.median_runs() {
            self.write_run(f, run)?;
        }
        self.peers.iter().try_for_each(|note| write!(f, "{note}"))?;
        self.write_others(f)
    }
}

impl Report {
    /// The tables of workloads that have one of their own.
    fn write_others(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_lines(f, Expiry::write_head, &self.expiry)?;
        if !self.queries.is_empty() {
            QueryCost::write_table(&self.queries, f)?;
        }
        Beside::write_table(f, "ttl", &self.ttl)?;
        write_lines(f, BatchGain::write_head, &self.batches)?;
        write_lines(f, FeedRate::write_head, &self.change_feeds)?;
        write_lines(f, Throttled::write_head, &self.throttled)?;
        write_lines(f, IdleCost::write_head, &self.idle)?;
        Beside::write_table(f, "partitions", &self.partitions)?;
        write_lines(f, IdlePartitions::write_head, self.idle_partitions.as_slice())?;
        Beside::write_table(f, "forwarded", &self.forwarded)?;
        write_lines(f, Scaled::write_head, &self.scaling)?;
        write_lines(f, Compared::write_head, &self.compared)?;
        Beside::write_table(f, "build", &self.against)
    }
}

/// A table, unless it has no lines.
fn write_lines<L: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    write_head: fn(&mut fmt::Formatter<'_>) -> fmt::Result,
    lines: &[L],
) -> fmt::Result {
    if !lines.is_empty() {
        write_head(f)?;
    }
    lines.iter().try_for_each(|line| write!(f, "{line}"))
}

impl Report {
    fn write_run(&self, f: &mut fmt::Formatter<'_>, run: &Run) -> fmt::Result {
        let echo = self.median_run(Server::Echo, run).filter(|_| run.server != Server::Echo);
        let of_echo = echo.map(|echo| run.per_second / echo.per_second.max(1.0));
        let cpu = run.server_cpu_per_operation();
        let cpu_of_echo = echo
            .and_then(Run::server_cpu_per_operation)
            .zip(cpu)
            .map(|(echo, cpu)| cpu / echo.max(f64::MIN_POSITIVE));
        let megabytes = run.resident_bytes.map(|bytes| float(bytes) / 1e6);
        // Only our nodes tell.
        let syncs = (run.server == Server::Ephemeris).then(|| float(run.syncs));
        let syncs_each = syncs.map(|syncs| syncs / float(run.operations.max(1)));
        writeln!(
            f,
            "{:<9} {:<7} {:>5} {:>9.0} {:>9.0} {:>9.0} {:>9} {:>6} {:>6} {:>6} {:>7} {:>8} {:>7} {:>8}",
            run.server.name(),
            run.workload,
            run.concurrency,
            run.per_second,
            micros(run.p50),
            micros(run.p99),
            shown(cpu, 1),
            shown(run.generator_share(), 0),
            shown(run.disturbance(), 2),
            shown(megabytes, 0),
            shown(syncs, 0),
            shown(syncs_each, 3),
            shown(of_echo, 2),
            shown(cpu_of_echo, 1),
        )?;
        let rounds = self.runs.iter().filter(|other| other.is_like(run.server, run));
        for unexpected in rounds.map(|run| &run.unexpected).filter(|all| !all.is_empty()) {
            writeln!(f, "    unexpected answers, by status: {unexpected:?}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A run with these numbers, among others.
    pub(crate) fn run(server: Server, per_second: f64, cpu_ms: u64) -> Run {
        Run {
            server,
            workload: "read",
            concurrency: 4,
            operations: 1000,
            per_second,
            p50: Duration::from_micros(10),
            p99: Duration::from_micros(99),
            max: Duration::from_micros(100),
            server_cpu: Some(Duration::from_millis(cpu_ms)),
            generator_cpu: Duration::from_millis(10),
            machine_cpu: Duration::from_millis(cpu_ms + 510),
            elapsed: Duration::from_secs(1),
            resident_bytes: Some(5_000_000),
            syncs: 500,
            unexpected: BTreeMap::new(),
        }
    }

    #[test]
    fn costs_are_told_for_one_operation_and_next_to_the_echo() {
        let runs = vec![run(Server::Ephemeris, 500.0, 40), run(Server::Echo, 2000.0, 10)];
        assert_eq!(runs[0].server_cpu_per_operation(), Some(40.0));
        assert_eq!(runs[0].generator_share(), Some(20.0));
        let table = Report { starts_ms: vec![7], runs, ..Report::default() };
        let table = table.to_string();
        let line = table.lines().find(|line| line.starts_with("ephemeris")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        let expected = [
            "read", "4", "500", "10", "99", "40.0", "20", "0.50", "5", "500", "0.500", "0.25",
            "4.0",
        ];
        assert_eq!(cells[1..], expected, "{table}");
    }

    #[test]
    fn servers_elsewhere_have_no_costs() {
        let run = Run { server_cpu: None, resident_bytes: None, ..run(Server::Ephemeris, 1.0, 1) };
        let table = Report { runs: vec![run], ..Report::default() };
        let table = table.to_string();
        let cells: Vec<&str> = table.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(cells[6..], ["-", "-", "-", "-", "500", "0.500", "-", "-"], "{table}");
    }
}
