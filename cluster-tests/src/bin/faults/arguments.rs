//! The command line of the fault tests.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::nemesis::Mode;
use crate::workload::Kind;

/// Breaks a cluster while clients work, and judges what they saw.
#[derive(Parser)]
#[command(
    name = "faults",
    max_term_width = 100,
    after_help = "Build the nodes first: cargo build --workspace. A binary elsewhere is named by \
                  EPHEMERIS_BIN. docs/TESTING.md tells how to read what a run leaves behind."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Processes of this machine, with a proxy on every link between them. Needs no root.
    Local(Options),
}

#[derive(Args, Clone)]
pub(crate) struct Options {
    /// Where everything random comes from: which faults happen when, and what clients do. Times differ
    /// from run to run none the less.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// What clients do, all at the same time; without it everything.
    #[arg(long, value_delimiter = ',')]
    pub(crate) workload: Vec<Kind>,
    /// What goes wrong, one after the other in random order; without it everything.
    #[arg(long, value_delimiter = ',')]
    pub(crate) nemesis: Vec<Mode>,
    /// How long faults happen.
    #[arg(long, default_value_t = 3.0)]
    pub(crate) minutes: f64,
    /// Runs, each with the next seed and a new cluster.
    #[arg(long, default_value_t = 1)]
    pub(crate) count: u64,
    /// Nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..=9))]
    pub(crate) nodes: u32,
    /// Longest pause of a client between two requests, in milliseconds.
    #[arg(long, default_value_t = 30)]
    pub(crate) pause_ms: u64,
    /// Where results go, each run to a directory of its own.
    #[arg(long, default_value = "target/faults", value_name = "DIR")]
    pub(crate) output: PathBuf,
}

impl Options {
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        if self.workload.is_empty() { Kind::all() } else { self.workload.clone() }
    }

    pub(crate) fn modes(&self) -> Vec<Mode> {
        if self.nemesis.is_empty() { Mode::all() } else { self.nemesis.clone() }
    }
}
