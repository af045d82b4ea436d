//! The command line of the benchmark.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use ephemeris_cluster_tests::client::AccountKey;

/// Requests under way at the same time, unless the command line says how many.
const CONCURRENCY: [usize; 4] = [1, 16, 64, 256];
/// Items stored beforehand, unless the command line says how many.
const READ_ITEMS: u32 = 10_000;
const EXPIRY_ITEMS: u32 = 100_000;
/// Items that expire together are stored at least this fast, unless the command line gives time.
const LOAD_ITEMS_PER_SECOND: u32 = 5000;

/// Measures Ephemeris: operations a second, latency, processor time, memory, syncs.
#[derive(Parser)]
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
    /// How fresh reads are.
    #[arg(long, default_value = "Session", value_name = "LEVEL")]
    pub(crate) consistency: String,
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
    /// Items stored beforehand: 10000 for reads, 100000 for expiry, 200000 for change-feed, 1000000 for
    /// query.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) items: Option<u32>,
    /// Time to store the items that expire together, in seconds; 1 for 5000 items without it.
    #[arg(long)]
    pub(crate) load_seconds: Option<u64>,
    /// How long removing expired items is watched, in seconds; longer ones are not told.
    #[arg(long, default_value_t = 300)]
    pub(crate) drain_seconds: u64,
    /// What the throttled container is given, in request units a second.
    #[arg(long, default_value_t = 5000, value_name = "RU/S")]
    pub(crate) request_units: u32,
    /// Idle connections.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) connections: u32,
    /// Send to nodes that do not lead, which forward.
    #[arg(long)]
    pub(crate) forwarded: bool,
    /// Leave the echo server out.
    #[arg(long)]
    pub(crate) no_echo: bool,
    /// Threads of the load generator.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// Write the results to a file, too.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
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

    /// Workloads that are requests of one kind or a mix, and the part of creates among them.
    pub(crate) fn requests(&self) -> impl Iterator<Item = (Workload, f64)> {
        let with_share = |workload: &Workload| Some((*workload, workload.creates_share()?));
        self.workload.iter().filter_map(with_share)
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
#[derive(Subcommand)]
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
        }
    }

    /// The part of creates among its requests; none if it is more than requests.
    fn creates_share(self) -> Option<f64> {
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
            | Workload::Idle => None,
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
