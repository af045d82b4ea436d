//! The benchmark: a closed loop of signed requests against three nodes, next to a bare echo server.
//!
//! 1. Nodes are started, or given by `--urls`; items of 1 KB are stored for reads.
//! 2. Each workload runs at each concurrency for `--seconds`, then the same requests go to an echo
//!    server: what HTTP alone costs on this machine.
//! 3. Items that expire all at once, if wanted: `expiry`.
//! 4. Queries, if wanted: `query`.
//! 5. Containers with and without a time to live next to each other, if wanted: `ttl`.
//! 6. Transactional batches, change feeds, throttled containers, idle connections, if wanted: `batch`,
//!    `change_feed`, `throttle`, `idle`.
//! 7. Each run tells operations a second, latencies, and what servers and generator have used;
//!    `others` says how many processors something else kept busy: near 0, or the run is void.

mod arguments;
mod batch;
mod change_feed;
mod echo;
mod expiry;
mod idle;
mod plan;
mod query;
mod report;
mod servers;
mod sources;
mod throttle;
mod ttl;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Parser as _;
use ephemeris_cluster_tests::client::Call;
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::cluster::Cluster;

use arguments::{Arguments, Command, Workload};

/// Starts of an empty node that are measured.
const STARTS: usize = 3;
/// How long a start may take.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// Pause between two looks whether a node is ready.
const START_LOOK_EVERY: Duration = Duration::from_millis(2);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
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
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(arguments.threads)
        .enable_all()
        .build()?;
    runtime.block_on(bench(arguments))
}

async fn bench(arguments: &Arguments) -> anyhow::Result<()> {
    let starts_ms = if arguments.urls.is_empty() { measure_starts().await } else { Vec::new() };
    let runs = plan::run(arguments).await?;
    let mut report = report::Report { starts_ms, runs, ..report::Report::default() };
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
        }
    }
    println!("{report}");
    if let Some(file) = &arguments.json {
        std::fs::write(file, serde_json::to_vec_pretty(&report)?)?;
    }
    if report.expiry.iter().any(expiry::Expiry::is_violated) {
        bail!("items were visible after they expired, or gone before");
    }
    Ok(())
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
