//! The command line of the benchmark.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use ephemeris_cluster_tests::client::AccountKey;

use crate::peers::Peer;
use crate::scaling::Axis;
use crate::servers::Way;

/// Requests under way at the same time, unless the command line says how many.
const CONCURRENCY: [usize; 4] = [1, 16, 64, 256];
/// How fresh reads are, unless the command line says.
const CONSISTENCY: &str = "Session";
/// How often everything is measured that is put next to an earlier run, unless the command line says.
const COMPARE_ROUNDS: u32 = 5;
/// How often what is measured in turns is measured, unless the command line says.
const TURNS: u32 = 6;
/// Items stored beforehand, unless the command line says how many.
const READ_ITEMS: u32 = 10_000;
const EXPIRY_ITEMS: u32 = 100_000;
/// Items that expire together are stored at least this fast, unless the command line gives time.
const LOAD_ITEMS_PER_SECOND: u32 = 5000;

/// Measures Ephemeris: operations a second, latency, processor time, memory, syncs.
#[derive(Clone, Parser)]
#[command(
    name = "bench",
    max_term_width = 100,
    after_help = "Build what is measured first: cargo build -p ephemeris-node. A binary elsewhere is \
                  named by EPHEMERIS_BIN."
)]
pub(crate) struct Arguments {
    /// Nodes of the cluster that is started.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=9))]
    pub(crate) nodes: u32,
    /// How fresh reads are: Session without it, Strong for forwarded.
    #[arg(long, value_name = "LEVEL")]
    consistency: Option<String>,
    /// Nodes that run already; nothing is started then.
    #[arg(long, value_delimiter = ',', value_name = "http://HOST:PORT,…")]
    pub(crate) urls: Vec<String>,
    /// Process numbers of those nodes, if they run on this machine: their usage is measured.
    #[arg(long, value_delimiter = ',', requires = "urls")]
    pub(crate) pids: Vec<u32>,
    /// The account key, base64; the emulator key without it.
    #[arg(long, env = "EPHEMERIS_KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,
    /// How long each run takes.
    #[arg(long, default_value_t = 5)]
    pub(crate) seconds: u64,
    /// Requests under way at the same time, one run for each; without it what the workload usually
    /// has.
    #[arg(long, value_delimiter = ',')]
    pub(crate) concurrency: Vec<usize>,
    /// What is done, one run for each.
    #[arg(long, value_delimiter = ',', default_values_t = Workload::USUAL)]
    pub(crate) workload: Vec<Workload>,
    /// How often everything is measured [default: 1; 5 with --compare; 6 for what is measured in turns].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Items stored beforehand: 10000 for reads, 100000 for expiry, 200000 for change-feed, 1000000 for
    /// query; for scaling the most.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) items: Option<u32>,
    /// Time to store the items that expire together, in seconds; 1 for 5000 items without it.
    #[arg(long)]
    pub(crate) load_seconds: Option<u64>,
    /// How long removing expired items is watched, in seconds; what takes longer has no time in the table.
    #[arg(long, default_value_t = 300)]
    pub(crate) drain_seconds: u64,
    /// What the throttled container is given, in request units a second.
    #[arg(long, default_value_t = 5000, value_name = "RU/S")]
    pub(crate) request_units: u32,
    /// Idle connections.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) connections: u32,
    /// What scaling varies.
    #[arg(long, value_delimiter = ',', default_values_t = Axis::ALL)]
    pub(crate) axis: Vec<Axis>,
    /// Active partitions, next to one.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) partitions: u32,
    /// Idle partitions.
    #[arg(long, default_value_t = 100)]
    pub(crate) idle_partitions: u32,
    /// How long nodes are watched while nobody asks them for anything.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) idle_seconds: u64,
    /// Send to nodes that do not lead, which forward.
    #[arg(long)]
    forwarded: bool,
    /// Measure other stores, too, with the same workloads; reads of ours are Strong then.
    #[arg(long, value_delimiter = ',')]
    pub(crate) peers: Vec<Peer>,
    /// Leave the echo server out.
    #[arg(long)]
    pub(crate) no_echo: bool,
    /// Threads of the load generator.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// Write the results to a file, too.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Compare this run with an earlier one, which --json wrote; five rounds without --rounds.
    #[arg(long, value_name = "FILE")]
    pub(crate) compare: Option<PathBuf>,
    /// Measure another build of ephemeris in turns with this one.
    #[arg(long, value_name = "BINARY", conflicts_with = "compare")]
    pub(crate) against: Option<PathBuf>,
    /// What is measured, if it is not what was built beside this.
    #[arg(skip)]
    pub(crate) binary: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

impl Arguments {
    /// How long each run takes.
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// The account's key.
    pub(crate) fn account_key(&self) -> AccountKey {
        self.key.as_deref().map_or_else(AccountKey::emulator, AccountKey::parse)
    }

    /// How fresh reads are.
    pub(crate) fn consistency(&self) -> &str {
        self.consistency.as_deref().unwrap_or(CONSISTENCY)
    }

    /// The same for a workload that usually has other reads.
    pub(crate) fn at_consistency(&self, usual: &str) -> Self {
        let consistency = self.consistency.clone().or_else(|| Some(usual.to_string()));
        Self { consistency, ..self.clone() }
    }

    /// The same for another number of nodes.
    pub(crate) fn of_nodes(&self, nodes: u32) -> Self {
        Self { nodes, ..self.clone() }
    }

    /// How often everything is measured that is not measured in turns.
    pub(crate) fn rounds(&self) -> u32 {
        let usual = if self.compare.is_some() { COMPARE_ROUNDS } else { 1 };
        self.rounds.unwrap_or(usual)
    }

    /// The same for another build of the program.
    pub(crate) fn of_binary(&self, binary: &Path) -> Self {
        Self { binary: Some(binary.to_path_buf()), ..self.clone() }
    }

    /// How often everything is measured that is measured in turns.
    pub(crate) fn turns(&self) -> u32 {
        self.rounds.unwrap_or(TURNS)
    }

    /// Which nodes requests go to.
    pub(crate) fn way(&self) -> Way {
        if self.forwarded { Way::Forwarded } else { Way::Direct }
    }

    /// Workloads that are requests of one kind or a mix.
    pub(crate) fn requests(&self) -> impl Iterator<Item = Workload> {
        self.workload.iter().copied().filter(|workload| workload.creates_share().is_some())
    }

    /// Requests under way at the same time, one run for each.
    pub(crate) fn request_concurrency(&self) -> &[usize] {
        self.concurrency_or(&CONCURRENCY)
    }

    /// The same for a workload that usually has others.
    pub(crate) fn concurrency_or<'a>(&'a self, usual: &'a [usize]) -> &'a [usize] {
        if self.concurrency.is_empty() { usual } else { &self.concurrency }
    }

    /// Items stored beforehand, for reads.
    pub(crate) fn read_items(&self) -> u32 {
        self.items_or(READ_ITEMS)
    }

    /// Items that expire together.
    pub(crate) fn expiry_items(&self) -> u32 {
        self.items_or(EXPIRY_ITEMS)
    }

    /// Items stored beforehand, for a workload that usually has so many.
    pub(crate) fn items_or(&self, usual: u32) -> u32 {
        self.items.unwrap_or(usual)
    }

    /// Time to store those that expire, in seconds.
    pub(crate) fn load_seconds(&self) -> u64 {
        let needed = self.expiry_items().div_ceil(LOAD_ITEMS_PER_SECOND);
        self.load_seconds.unwrap_or(u64::from(needed))
    }
}

/// What the benchmark starts itself as, beside the benchmark.
#[derive(Clone, Subcommand)]
pub(crate) enum Command {
    /// Answers every request with its own body.
    #[command(hide = true)]
    Echo,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// New items of 1 KB.
    Create,
    /// Point reads of random items.
    Read,
    /// Either, half of the time.
    Mixed,
    /// Items that all fall due in one second, while creates go on.
    Expiry,
    /// Queries over many items, one query at a time.
    Query,
    /// Creates and reads in containers that differ in their time to live alone.
    Ttl,
    /// Transactional batches of creates, next to single creates.
    Batch,
    /// The change feed of many items, from the beginning.
    ChangeFeed,
    /// More creates than a container's request units pay for.
    Throttle,
    /// Connections on which nothing happens.
    Idle,
    /// Many partitions, active ones next to one, and idle ones.
    Partitions,
    /// Requests to nodes that do not lead, next to those that do.
    Forwarded,
    /// Creates and reads while nodes, partitions, items or their size are varied.
    Scaling,
}

impl Workload {
    const USUAL: [Self; 3] = [Self::Create, Self::Read, Self::Mixed];

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::Create => "create",
            Workload::Read => "read",
            Workload::Mixed => "mixed",
            Workload::Expiry => "expiry",
            Workload::Query => "query",
            Workload::Ttl => "ttl",
            Workload::Batch => "batch",
            Workload::ChangeFeed => "change-feed",
            Workload::Throttle => "throttle",
            Workload::Idle => "idle",
            Workload::Partitions => "partitions",
            Workload::Forwarded => "forwarded",
            Workload::Scaling => "scaling",
        }
    }

    /// The part of creates among its requests; none if it is more than requests.
    pub(crate) fn creates_share(self) -> Option<f64> {
        match self {
            Workload::Create => Some(1.0),
            Workload::Read => Some(0.0),
            Workload::Mixed => Some(0.5),
            Workload::Expiry
            | Workload::Query
            | Workload::Ttl
            | Workload::Batch
            | Workload::ChangeFeed
            | Workload::Throttle
            | Workload::Idle
            | Workload::Partitions
            | Workload::Forwarded
            | Workload::Scaling => None,
        }
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn expiry_has_numbers_of_its_own_unless_they_are_given() {
        let arguments = Arguments::parse_from(["bench"]);
        assert_eq!((arguments.read_items(), arguments.expiry_items()), (10_000, 100_000));
        assert_eq!(arguments.concurrency_or(&[16]), [16]);
        assert_eq!(arguments.load_seconds(), 20);
        assert_eq!(arguments.requests().count(), 3);
        let given = ["bench", "--items=5001", "--concurrency=7", "--workload=expiry"];
        let arguments = Arguments::parse_from(given);
        assert_eq!((arguments.read_items(), arguments.expiry_items()), (5001, 5001));
        assert_eq!(arguments.concurrency_or(&[16]), [7]);
        assert_eq!(arguments.load_seconds(), 2);
        assert_eq!(arguments.requests().count(), 0);
    }
}
