//! The command line of the benchmark.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

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
    /// Requests under way at the same time, one run for each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64, 256])]
    pub(crate) concurrency: Vec<usize>,
    /// What is done, one run for each.
    #[arg(long, value_delimiter = ',', default_values_t = Workload::ALL)]
    pub(crate) workload: Vec<Workload>,
    /// Items stored beforehand, for reads.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) items: u32,
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
}

impl Workload {
    const ALL: [Self; 3] = [Self::Create, Self::Read, Self::Mixed];

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::Create => "create",
            Workload::Read => "read",
            Workload::Mixed => "mixed",
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
}
