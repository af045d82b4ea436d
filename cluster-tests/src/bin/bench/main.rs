//! The benchmark: a closed loop of signed requests against three nodes, next to a bare echo server.
//!
//! 1. Nodes are started, or given by `--urls`; items of 1 KB are stored for reads.
//! 2. Each workload runs at each concurrency for `--seconds`, then the same requests go to an echo
//!    server: what HTTP alone costs on this machine.
//! 3. Other stores, if wanted, with the same requests in their own words: `peers`.
//! 4. Items that expire all at once, if wanted: `expiry`.
//! 5. Queries, if wanted: `query`.
//! 6. Containers with and without a time to live next to each other, if wanted: `ttl`.
//! 7. Transactional batches, change feeds, throttled containers, idle connections, if wanted: `batch`,
//!    `change_feed`, `throttle`, `idle`; many partitions, nodes that do not lead, and how cost
//!    grows: `partitions`, `forwarded`, `scaling`.
//! 8. An earlier run next to this one, or another build in turns with this one: `compare`, `against`.
//! 9. Each run tells operations a second, latencies, and what servers and generator have used;
//!    `others` says how many processors something else kept busy: near 0, or the run is void.

mod against;
mod arguments;
mod batch;
mod change_feed;
mod compare;
mod echo;
mod expiry;
mod forwarded;
mod idle;
mod partitions;
mod peers;
mod plan;
mod query;
mod report;
mod scaling;
mod servers;
mod sources;
mod spread;
mod subject;
mod throttle;
mod ttl;
mod turns;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Parser as _;
use ephemeris_cluster_tests::client::Call;
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::cluster::Cluster;

use arguments::{Arguments, Command, Workload};
use compare::Baseline;

/// Starts of an empty node that are measured.
const STARTS: usize = 3;
/// How long a start may take.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// Pause between two looks whether a node is ready.
const START_LOOK_EVERY: Duration = Duration::from_millis(2);

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    if !arguments.peers.is_empty() {
        // What is compared is what promises as much.
        arguments = arguments.at_consistency("Strong");
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(Command::Echo) = arguments.command {
        // As many threads as a node has.
        return tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?
            .block_on(echo::run());
    }
    let mut runtime = match arguments.threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        threads => {
            let mut several = tokio::runtime::Builder::new_multi_thread();
            several.worker_threads(threads);
            several
        }
    };
    runtime.enable_all().build()?.block_on(bench(arguments))
}

async fn bench(arguments: &Arguments) -> anyhow::Result<()> {
    let baseline = arguments.compare.as_deref().map(Baseline::read).transpose()?;
    let mut report = report::Report::default();
    if let Some(other) = &arguments.against {
        report.against = against::run(arguments, other).await?;
    } else {
        report = measure(arguments).await?;
    }
    report.compared = baseline.map_or_else(Vec::new, |baseline| baseline.compare(&report.runs));
    println!("{report}");
    if let Some(file) = &arguments.json {
        std::fs::write(file, serde_json::to_vec_pretty(&report)?)?;
    }
    if report.expiry.iter().any(expiry::Expiry::is_violated) {
        bail!("items were visible after they expired, or gone before");
    }
    Ok(())
}

/// Everything the command line names.
async fn measure(arguments: &Arguments) -> anyhow::Result<report::Report> {
    let starts_ms = if arguments.urls.is_empty() { measure_starts().await } else { Vec::new() };
    let mut runs = plan::run(arguments).await?;
    let peers = peers::run(arguments, &plan::cells(arguments)?).await?;
    runs.extend(peers.runs);
    let mut report =
        report::Report { starts_ms, runs, peers: peers.notes, ..report::Report::default() };
    for workload in &arguments.workload {
        match workload {
            // These are requests of one kind, or a mix: the plan's.
            Workload::Create | Workload::Read | Workload::Mixed => {}
            Workload::Expiry => {
                let found = expiry::run(arguments).await?;
                report.runs.extend(found.runs);
                report.expiry = found.expiry;
            }
            Workload::Query => report.queries = query::run(arguments).await?,
            Workload::Ttl => report.ttl = ttl::run(arguments).await?,
            Workload::Batch => {
                let found = batch::run(arguments).await?;
                report.runs.extend(found.runs);
                report.batches = found.gains;
            }
            Workload::ChangeFeed => report.change_feeds = change_feed::run(arguments).await?,
            Workload::Throttle => report.throttled = throttle::run(arguments).await?,
            Workload::Idle => report.idle = idle::run(arguments).await?,
            Workload::Partitions => {
                let found = partitions::run(arguments).await?;
                report.partitions = found.active;
                report.idle_partitions = Some(found.idle);
            }
            Workload::Forwarded => report.forwarded = forwarded::run(arguments).await?,
            Workload::Scaling => report.scaling = scaling::run(arguments).await?,
        }
    }
    Ok(report)
}

/// How long a node alone takes from its start on an empty directory until it is ready.
async fn measure_starts() -> Vec<u64> {
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        let mut cluster = Cluster::alone();
        let (client, probe) = (cluster.client(1), Call::get("/readyz"));
        let started = clock::monotonic();
        cluster.spawn(1);
        while !client.send_unsigned(&probe).await.is_ok_and(|answer| answer.status == 200) {
            assert!(started.elapsed() < START_DEADLINE, "the node becomes ready");
            tokio::time::sleep(START_LOOK_EVERY).await;
        }
        starts.push(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
    }
    starts
}
