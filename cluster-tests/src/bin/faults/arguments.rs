//! The command line of the fault tests.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::nemesis::Mode;
use crate::workload::Kind;

/// How long faults happen in a run: so long that every mode has its turn.
const MINUTES: f64 = 6.0;
/// The same where nobody is there to say that it was not enough.
const MINUTES_OF_SOAK: f64 = 8.0;

/// Breaks a cluster while clients work, and judges what they saw.
#[derive(Parser)]
#[command(
    name = "faults",
    max_term_width = 100,
    after_help = "Build the nodes first: cargo build --workspace, or .ci/image for compose. A \
                  binary elsewhere is named by EPHEMERIS_BIN. docs/TESTING.md tells how to read \
                  what a run leaves behind."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Processes of this machine, with a proxy on every link between them. Needs no root.
    Local {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        nodes: Nodes,
        #[command(flatten)]
        count: Count,
    },
    /// The containers of docker-compose.yml, under a project name of their own. Needs Docker, the image
    /// that .ci/image builds and ports 8081 to 8083; root for faults of links and disks.
    Compose {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        count: Count,
    },
    /// Runs of `local` for hours, each with the next seed, until one is not Ok.
    Soak {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        nodes: Nodes,
        /// For how many hours new runs begin.
        #[arg(long, default_value_t = 8.0)]
        hours: f64,
        /// The most runs; without it as many as there is time for.
        #[arg(long)]
        count: Option<u64>,
    },
}

#[derive(Args)]
pub(crate) struct Options {
    /// Decides everything random: which faults happen when, and what clients do. How processes are
    /// scheduled differs from run to run all the same.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// What clients do, all at the same time; without it everything.
    #[arg(long, value_delimiter = ',')]
    workload: Vec<Kind>,
    /// What goes wrong, one after the other in random order; without it everything that can be done here,
    /// except what makes the judge less strict: clocks of a majority.
    #[arg(long, value_delimiter = ',')]
    pub(crate) nemesis: Vec<Mode>,
    /// How long faults happen in a run [default: 6, or 8 of soak].
    #[arg(long)]
    minutes: Option<f64>,
    /// Longest pause of a client between two requests, in milliseconds.
    #[arg(long, default_value_t = 30)]
    pub(crate) pause_ms: u64,
    /// Where results go, each run to a directory of its own.
    #[arg(long, default_value = "target/faults", value_name = "DIR")]
    pub(crate) output: PathBuf,
}

#[derive(Args)]
struct Nodes {
    /// Nodes; without it the seed chooses three or five.
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..=9))]
    nodes: Option<u32>,
    /// Use the default timings and number of nodes; otherwise the seed chooses them.
    #[arg(long)]
    defaults: bool,
}

#[derive(Args)]
struct Count {
    /// Runs, each with the next seed and a new cluster.
    #[arg(long, default_value_t = 1)]
    count: u64,
}

impl Nodes {
    fn place(&self) -> Place {
        Place::Local { nodes: self.nodes, chosen: !self.defaults }
    }
}

impl Options {
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        if self.workload.is_empty() { Kind::all() } else { self.workload.clone() }
    }

    pub(crate) fn modes(&self) -> Vec<Mode> {
        let by_default = || Mode::all().into_iter().filter(|mode| mode.skew().is_zero()).collect();
        if self.nemesis.is_empty() { by_default() } else { self.nemesis.clone() }
    }
}

/// What nodes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Processes.
    Local {
        /// If it was said how many.
        nodes: Option<u32>,
        /// True if the seed chooses what was not said.
        chosen: bool,
    },
    /// Three containers.
    Compose,
}

/// When there is no further run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ends {
    /// After so many.
    Count(u64),
    /// After so long, or so many, or one that is not Ok.
    Soak { time: Duration, count: u64 },
}

/// What is to be done.
pub(crate) struct Plan {
    pub(crate) options: Options,
    pub(crate) place: Place,
    pub(crate) ends: Ends,
    /// How long faults happen in a run.
    pub(crate) minutes: f64,
}

impl Plan {
    pub(crate) fn of(arguments: Arguments) -> Self {
        let (options, place, ends, minutes) = match arguments.command {
            Command::Local { options, nodes, count: Count { count } } => {
                (options, nodes.place(), Ends::Count(count), MINUTES)
            }
            Command::Compose { options, count: Count { count } } => {
                (options, Place::Compose, Ends::Count(count), MINUTES)
            }
            Command::Soak { options, nodes, hours, count } => {
                let time = Duration::from_secs_f64(hours * 3600.0);
                let ends = Ends::Soak { time, count: count.unwrap_or(u64::MAX) };
                (options, nodes.place(), ends, MINUTES_OF_SOAK)
            }
        };
        let minutes = options.minutes.unwrap_or(minutes);
        Self { options, place, ends, minutes }
    }
}

impl Place {
    /// The subcommand that runs it once.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Place::Local { .. } => "local",
            Place::Compose => "compose",
        }
    }
}

impl Ends {
    /// True if there is one more run, after some of which all or not all were Ok.
    pub(crate) fn go_on(self, runs: u64, elapsed: Duration, is_ok: bool) -> bool {
        match self {
            Ends::Count(count) => runs < count,
            Ends::Soak { time, count } => runs == 0 || is_ok && elapsed < time && runs < count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &str) -> Plan {
        Plan::of(Arguments::try_parse_from(line.split(' ')).unwrap())
    }

    #[test]
    fn counted_runs_go_on_after_a_failure_and_a_soak_does_not() {
        let hour = Duration::from_hours(1);
        let counted = plan("faults compose --count 2").ends;
        assert!(counted.go_on(1, hour, false) && !counted.go_on(2, Duration::ZERO, true));
        let soak = plan("faults soak --hours 1").ends;
        assert!(soak.go_on(9, hour / 2, true) && !soak.go_on(9, hour, true));
        assert!(!soak.go_on(1, Duration::ZERO, false));
        let twice = plan("faults soak --count 2").ends;
        assert!(twice.go_on(1, hour, true) && !twice.go_on(2, hour, true));
    }

    #[test]
    fn containers_are_three() {
        let five = Place::Local { nodes: Some(5), chosen: true };
        assert_eq!(plan("faults local --nodes 5").place, five);
        assert!(Arguments::try_parse_from(["faults", "compose", "--nodes", "5"]).is_err());
    }
}
