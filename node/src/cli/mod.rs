//! The command line.

mod client;
mod query;
mod rebuild;
mod status;
mod ttl;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use tracing::{error, warn};

use crate::config::{self, NodeConfig, Settings};
use crate::consistency::ConsistencyLevel;
use crate::identity::FORMAT;
use crate::platform::{OperatingSystem, TakeMachine};
use crate::scheduling;
use crate::telemetry::{self, LogFormat};
use crate::transport::PROTOCOL;
use client::Client;

/// The program's version, and what must be the same wherever it is replaced by another.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let version = env!("CARGO_PKG_VERSION");
    format!("{version} (protocol {PROTOCOL}, format {FORMAT})")
});

/// A replicated document store that speaks the Azure Cosmos DB NoSQL API.
#[derive(Parser)]
#[command(
    name = "ephemeris",
    version = VERSION.as_str(),
    max_term_width = 100,
    after_help = "Every setting can also be given by the environment (EPHEMERIS_DATA_DIR for \
                  --data-dir and so on) or in a file (--config). Flags win over the environment, \
                  which wins over the file.\n\nFirst steps:\n  ephemeris start-single-node\n  \
                  ephemeris request POST /dbs --body '{\"id\":\"shop\"}'\n  \
                  ephemeris status\n  ephemeris query --help"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one node with its data on this machine's disk: nothing else is needed.
    StartSingleNode(Box<StartFlags>),
    /// Run one node of a cluster.
    ///
    /// Start every node with the same --cluster list. The nodes form the cluster once all of them
    /// have been started for the first time; from then on a majority is enough.
    #[command(
        after_help = "Example, on each of three machines with N = 1, 2, 3:\n  ephemeris start \
                            --node-id N --data-dir /var/lib/ephemeris --http 0.0.0.0:8081 \\\n    \
                            --peer 10.0.0.N:7000 --cluster 1=n1:7000,2=n2:7000,3=n3:7000 \\\n    \
                            --advertise http://nN:8081 --key-file /etc/ephemeris/key"
    )]
    Start(Box<ClusterFlags>),
    /// Show nodes, groups, leaders and lag.
    Status {
        #[command(flatten)]
        connection: Connection,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show what expires where; pause or resume the removal of what has expired.
    #[command(subcommand)]
    Ttl(TtlCommand),
    /// Exit with 0 if a node is ready, with 1 if it is not.
    Healthcheck {
        /// The node's URL.
        #[arg(long, default_value = client::URL_DEFAULT, env = "EPHEMERIS_URL")]
        http: String,
        #[command(flatten)]
        trust: Trust,
    },
    /// Give up a node that will not come back: its replicas are made anew on others.
    ForgetNode {
        /// The number of the node to forget; not the one that `--http` asks.
        node: u32,
        #[command(flatten)]
        connection: Connection,
    },
    /// Throw away the damaged data of a node that does not run, so that it copies everything from the others.
    ///
    /// A healthy node forgets it, then its data directory is emptied. The command refuses if some group
    /// would be left without a majority.
    #[command(
        after_help = "Example, on the machine of node 3, node 1 being healthy:\n  ephemeris \
                            rebuild-node 3 --data-dir /var/lib/ephemeris --http http://n1:8081"
    )]
    RebuildNode(rebuild::RebuildArgs),
    /// Run queries: in an interactive shell, or from the command line or standard input.
    #[command(after_help = query::EXAMPLES)]
    Query(Box<query::QueryArgs>),
    /// Send one signed request and print the answer.
    #[command(after_help = "Examples:\n  ephemeris request GET /\n  ephemeris request POST /dbs \
                            --body '{\"id\":\"shop\"}'\n  ephemeris request POST \
                            /dbs/shop/colls/carts/docs --body '{\"id\":\"1\",\"customer\":\"a\"}' \
                            \\\n    --header 'x-ms-documentdb-partitionkey: [\"a\"]'")]
    Request {
        /// GET, POST, PUT, PATCH or DELETE.
        method: String,
        /// The path, as /dbs/shop/colls.
        path: String,
        /// The body.
        #[arg(long)]
        body: Option<String>,
        /// A header, as 'name: value'; may be repeated.
        #[arg(long = "header", short = 'H')]
        headers: Vec<String>,
        /// Print status and headers, too.
        #[arg(long, short)]
        include: bool,
        #[command(flatten)]
        connection: Connection,
    },
}

#[derive(Subcommand)]
enum TtlCommand {
    /// Show policy, backlog and next expiry of every partition.
    Status {
        #[command(flatten)]
        connection: Connection,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Keep what has expired on disk, in the whole cluster. It stays invisible to clients.
    Pause {
        #[command(flatten)]
        connection: Connection,
    },
    /// Go on removing what has expired.
    Resume {
        #[command(flatten)]
        connection: Connection,
    },
}

/// Where a node is, and the key to its account.
#[derive(Args)]
pub(crate) struct Connection {
    /// URL of the node to ask; for forget-node and rebuild-node a healthy one, never the one named.
    #[arg(long, default_value = client::URL_DEFAULT, env = "EPHEMERIS_URL")]
    http: String,
    // Without `env`: a flag would be refused beside the other's variable.
    #[arg(long, help = "The account key [env: EPHEMERIS_KEY]; the emulator key if there is none")]
    key: Option<String>,
    #[arg(
        long,
        conflicts_with = "key",
        help = "A file that holds the account key [env: EPHEMERIS_KEY_FILE]"
    )]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    trust: Trust,
}

/// Whom to trust that answers over HTTPS.
#[derive(Args)]
pub(crate) struct Trust {
    /// A file with an authority's certificate, in PEM, to trust beside those the system trusts.
    #[arg(long, env = "EPHEMERIS_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

#[derive(Args, Serialize)]
struct StartFlags {
    /// A file with settings, in TOML: `data_dir = "…"` for --data-dir and so on.
    #[arg(long, env = "EPHEMERIS_CONFIG")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Where everything is kept [default: ephemeris-data].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    data_dir: Option<PathBuf>,
    /// Where clients connect [default: 127.0.0.1:8081].
    #[arg(long, value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<String>,
    /// The URL clients are told to use for this node. Without it, the one they used themselves, and those of
    /// other nodes --http.
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    advertise: Option<String>,
    /// The one URL clients are told to use for the whole account, instead of every node's: that of a
    /// load balancer. Same on all nodes.
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    account_endpoint: Option<String>,
    /// The account key, base64. Better by environment or file: others can see command lines.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// A second key that works too, for changing keys without a pause.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    secondary_key: Option<String>,
    /// A file that holds the account key.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    key_file: Option<PathBuf>,
    /// A file that holds the second key.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    secondary_key_file: Option<PathBuf>,
    /// A key that may look at everything but permissions, base64.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    read_only_key: Option<String>,
    /// A second such key.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    secondary_read_only_key: Option<String>,
    /// A file that holds the read-only key.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    read_only_key_file: Option<PathBuf>,
    /// A file that holds the second read-only key.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    secondary_read_only_key_file: Option<PathBuf>,
    /// Use the emulator key, which everybody knows, although others can reach this node.
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    allow_emulator_key: bool,
    /// Serve HTTPS, with a certificate made here if no files are named.
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tls: bool,
    /// A file with the certificate for HTTPS, and those that vouch for it, in PEM.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_cert_file: Option<PathBuf>,
    /// A file with the certificate's key, in PEM.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_key_file: Option<PathBuf>,
    /// How fresh reads are unless a client asks for less; the same on every node [default: Session].
    #[arg(long, value_name = "LEVEL", ignore_case = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    consistency: Option<ConsistencyLevel>,
    /// What is logged: error, warn, info, debug, trace, or module=level,… [default: info].
    #[arg(long, value_name = "FILTER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<String>,
    /// How log lines look [default: text].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    log_format: Option<LogFormat>,
    /// How long a request may take, in milliseconds [default: 5000].
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    request_timeout_ms: Option<u64>,
    /// How long expired items are kept after a jump of the clock, in seconds [default: 3600].
    #[arg(long, value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    purge_grace_s: Option<u64>,
    /// Save request units that are not used for up to five minutes, and spend them in bursts, where
    /// a partition has less than 3000 a second [default: true].
    #[arg(long, value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<bool>,
    /// Memory for uncompressed blocks, in MiB [default: 32].
    #[arg(long, value_name = "MIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    block_cache_mib: Option<usize>,
    /// Memory for writes that are not flushed yet, in MiB [default: 32].
    #[arg(long, value_name = "MIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    write_buffer_mib: Option<usize>,
}

#[derive(Args, Serialize)]
struct ClusterFlags {
    /// This node's number, from 1.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    node_id: Option<u32>,
    /// The address to listen on for other nodes, as 10.0.0.1:7000. Without a --peer-key-file whoever reaches it can act
    /// as a node: let it be one of a network that only they can reach.
    #[arg(long, value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    /// All nodes with their peer addresses, this one included: the same list on every node.
    #[arg(long, value_name = "N=HOST:PORT,…")]
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    /// Where this node reaches other nodes, if not at their own addresses: behind NAT, or through a
    /// proxy.
    #[arg(long, value_name = "N=HOST:PORT,…")]
    #[serde(skip_serializing_if = "Option::is_none")]
    dial: Option<String>,
    /// A file with the private key that all nodes share, in PEM, as `openssl genpkey -algorithm ed25519` makes one:
    /// nodes then talk over TLS, and with nobody who does not hold it. Of several keys the first is ours, and all are
    /// taken.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_key_file: Option<PathBuf>,
    /// Nothing expires while the nodes' clocks leave more doubt than this [default: 2000].
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_width_ms_max: Option<u64>,
    /// How often a leader shows that it lives, in milliseconds [default: 150].
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    heartbeat_ms: Option<u64>,
    /// Added to the leader's lease before a follower stands for election; with the default, elections
    /// start 1.05 to 1.2 s after the last sign of a leader [default: 450].
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    election_timeout_ms: Option<u64>,
    /// Entries of each partition kept behind the last flushed one, as long as the log is short; a follower that
    /// was away for longer gets a snapshot [default: 2000].
    #[arg(long, value_name = "ENTRIES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    log_entries_kept: Option<u64>,
    #[command(flatten)]
    #[serde(flatten)]
    node: StartFlags,
}

/// Runs the program.
pub fn main() -> ExitCode {
    main_on(|config| Ok(Box::new(OperatingSystem::take(config)?)))
}

/// Runs the program, a node of it on a machine that may be another than this one.
pub(crate) fn main_on(take: TakeMachine) -> ExitCode {
    match run(Cli::parse().command, take) {
        Ok(code) => code,
        // Whoever reads has enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ephemeris: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// An error and what caused it. Our own errors tell their cause themselves; it is not told again.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(|cause| cause.to_string().replace('\n', "; ")) {
        if line.contains(&cause) {
            continue;
        }
        let separator = if line.is_empty() { "" } else { ": " };
        line = line + separator + &cause;
    }
    line
}

fn set_sweeping(connection: &Connection, sweeping: &str) -> anyhow::Result<ExitCode> {
    let body = serde_json::json!({ "sweeping": sweeping }).to_string();
    let answer = block_on(async {
        Client::new(connection)?.send("POST", "/admin/ttl", Some(body), &[]).await
    })?;
    answer.json()?;
    println!("Sweeping is {sweeping}.");
    Ok(ExitCode::SUCCESS)
}

async fn forget_node(client: &Client, node: u32) -> anyhow::Result<()> {
    let body = serde_json::json!({ "node": node }).to_string();
    client.send("POST", "/admin/forget-node", Some(body), &[]).await?.json()?;
    Ok(())
}

fn run(command: Command, take: TakeMachine) -> anyhow::Result<ExitCode> {
    match command {
        Command::StartSingleNode(flags) => {
            let settings = Settings::load(flags.config.as_deref(), &flags)?;
            serve(&settings, NodeConfig::single(&settings)?, take)
        }
        Command::Start(flags) => {
            let settings = Settings::load(flags.node.config.as_deref(), &flags)?;
            serve(&settings, NodeConfig::clustered(&settings)?, take)
        }
        Command::Status { connection, json } => {
            let answer = block_on(async {
                Client::new(&connection)?.send("GET", "/admin/status", None, &[]).await
            })?;
            status::print(&answer.json()?, json)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Ttl(TtlCommand::Status { connection, json }) => {
            let answer = block_on(async {
                Client::new(&connection)?.send("GET", "/admin/ttl", None, &[]).await
            })?;
            ttl::print(&answer.json()?, json)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Ttl(TtlCommand::Pause { connection }) => set_sweeping(&connection, "paused"),
        Command::Ttl(TtlCommand::Resume { connection }) => set_sweeping(&connection, "running"),
        Command::Healthcheck { http, trust } => block_on(client::healthcheck(&http, &trust)),
        Command::ForgetNode { node, connection } => {
            block_on(async { forget_node(&Client::new(&connection)?, node).await })?;
            println!(
                "Node {node} is forgotten. It can be started again with an empty data directory."
            );
            Ok(ExitCode::SUCCESS)
        }
        Command::RebuildNode(args) => {
            block_on(rebuild::run(args))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Query(args) => query::run(*args),
        Command::Request { method, path, body, headers, include, connection } => {
            let answer = block_on(async {
                Client::new(&connection)?.send(&method, &path, body, &headers).await
            })?;
            answer.print(include)
        }
    }
}

/// Runs a node on all cores.
fn serve(settings: &Settings, config: NodeConfig, take: TakeMachine) -> anyhow::Result<ExitCode> {
    telemetry::start_logging(&settings.log, settings.log_format)?;
    for name in config::unknown_variables() {
        warn!(name, "an environment variable that is no setting: is it misspelt?");
    }
    let metrics = telemetry::start_metrics()?;
    // All threads are started by this one, or by those it starts.
    scheduling::interrupt_nobody();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(crate::server::run(config, metrics, take));
    match ended.map_err(anyhow::Error::new) {
        // Whoever reads JSON reads nothing else.
        Err(error) if settings.log_format == LogFormat::Json => {
            error!("{}", one_line(&error));
            Ok(ExitCode::FAILURE)
        }
        ended => ended.map(|()| ExitCode::SUCCESS),
    }
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_version_tells_what_an_upgrade_has_to_know() {
        let shown = Cli::command().render_version();
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(shown, format!("ephemeris {version} (protocol {PROTOCOL}, format {FORMAT})\n"));
        let mut versions = include_str!("../../../CHANGELOG.md").split("\n## ");
        let of_this = versions.find(|told| told.starts_with(version)).expect("it is listed");
        let told = format!("\n\nProtocol {PROTOCOL}, format {FORMAT}.\n");
        assert!(of_this.contains(&told), "CHANGELOG.md says:\n{of_this}");
    }

    #[test]
    fn an_error_is_told_in_one_line_and_every_cause_once() {
        let cause = || std::io::Error::other("the disk is gone\nfor good");
        assert_eq!(one_line(&anyhow::Error::new(cause())), "the disk is gone; for good");
        let silent = anyhow::Error::new(cause()).context("no start");
        assert_eq!(one_line(&silent), "no start: the disk is gone; for good");
        let told = anyhow::Error::new(cause()).context("no start: the disk is gone; for good");
        assert_eq!(one_line(&told), "no start: the disk is gone; for good");
    }

    #[test]
    fn every_setting_has_a_flag() {
        let flags = Cli::command();
        let start = flags.find_subcommand("start").unwrap();
        for name in crate::config::setting_names() {
            let found = start.get_arguments().any(|arg| arg.get_id() == name.as_str());
            assert!(found, "{name} has no flag");
        }
    }
}
