//! Which runs there are, and how one is measured.

use std::net::SocketAddr;

use anyhow::bail;
use ephemeris_cluster_tests::client::{AccountKey, Container};
use ephemeris_cluster_tests::load::{ClosedLoop, Measured, Source};
use ephemeris_cluster_tests::measure::Usage;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::arguments::Arguments;
use crate::report::{Run, Server};
use crate::servers::{Reading, Servers};
use crate::sources::{Creates, Mix, Reads};

/// Requests under way while items for reads are stored.
const STORE_CONCURRENCY: usize = 64;
/// Runs of one benchmark, stores included, and workers of one run: each has a number of its own.
const RUNS_MAX: u64 = 1 << 8;
pub(crate) const WORKERS_MAX: u64 = 1 << 16;

/// Everything runs need to know.
struct Bench<'a> {
    arguments: &'a Arguments,
    container: Container,
    key: AccountKey,
    progress: ProgressBar,
    runs_begun: u64,
}

/// Runs every workload at every concurrency, on the nodes and then on the echo server.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Vec<Run>> {
    if arguments.concurrency.iter().any(|workers| *workers == 0 || *workers as u64 >= WORKERS_MAX) {
        bail!("--concurrency is between 1 and {WORKERS_MAX}");
    }
    let cells = arguments.requests().count() * arguments.request_concurrency().len();
    if cells == 0 {
        return Ok(Vec::new());
    }
    let cells = if arguments.no_echo { cells } else { 2 * cells };
    let key = arguments.account_key();
    // A name of its own, so that ids are new even on nodes that were measured before.
    let name = format!("items-{:08x}", rand::random::<u32>());
    let mut bench = Bench {
        arguments,
        container: Container::new("bench", &name),
        key,
        progress: progress(cells),
        runs_begun: 0,
    };
    let nodes = Servers::nodes(arguments, &bench.key, &bench.container, json!({})).await?;
    let mut runs = bench.run_all(&nodes, Server::Ephemeris).await?;
    drop(nodes);
    if !arguments.no_echo {
        let echo = Servers::echo()?;
        runs.extend(bench.run_all(&echo, Server::Echo).await?);
    }
    bench.progress.finish_and_clear();
    Ok(runs)
}

fn progress(cells: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg} ({eta} left)");
    let progress = ProgressBar::new(cells as u64);
    progress.set_style(style.expect("the template is valid"));
    progress
}

impl Bench<'_> {
    async fn run_all(&mut self, servers: &Servers, server: Server) -> anyhow::Result<Vec<Run>> {
        let ids = self.store_items(servers, server).await?;
        let reads: Vec<(SocketAddr, Reads)> = servers
            .targets
            .iter()
            .map(|target| (*target, Reads::new(*target, &self.container, &self.key, &ids)))
            .collect();
        let mut runs = Vec::new();
        let arguments = self.arguments;
        for (workload, creates_share) in arguments.requests() {
            for concurrency in arguments.request_concurrency() {
                let what = format!("{} {workload} with {concurrency}", server.name());
                self.progress.set_message(what);
                let sources = self.sources(&reads, creates_share, *concurrency);
                runs.push(measure(arguments, servers, server, workload.name(), sources).await);
                self.progress.inc(1);
            }
        }
        Ok(runs)
    }

    /// Stores the items that are read; the echo server needs none, only their ids.
    async fn store_items(
        &mut self,
        servers: &Servers,
        server: Server,
    ) -> anyhow::Result<Vec<String>> {
        self.progress.set_message("items for reads");
        let each = u64::from(self.arguments.read_items()).div_ceil(STORE_CONCURRENCY as u64);
        let base = self.next_run();
        let workers = (0..STORE_CONCURRENCY as u64).map(|worker| base + worker);
        let ids = workers.clone().flat_map(|run| (0..each).map(move |n| Creates::id(run, n)));
        let ids: Vec<String> = ids.collect();
        if server == Server::Echo {
            return Ok(ids);
        }
        let sources = workers.map(|run| {
            let target = servers.targets[0];
            (target, Creates::new(target, &self.container, &self.key, run))
        });
        let measured = ClosedLoop::requests(each).run(sources.collect()).await;
        if measured.latencies.count() != ids.len() as u64 {
            bail!("items were not stored: {:?}", measured.unexpected);
        }
        Ok(ids)
    }

    /// The first of `WORKERS_MAX` numbers nobody else has.
    fn next_run(&mut self) -> u64 {
        assert!(self.runs_begun < RUNS_MAX, "there are fewer than {RUNS_MAX} runs");
        self.runs_begun += 1;
        (self.runs_begun - 1) * WORKERS_MAX
    }

    /// What the workers of the next run send, and where to.
    fn sources(
        &mut self,
        reads: &[(SocketAddr, Reads)],
        creates_share: f64,
        concurrency: usize,
    ) -> Vec<(SocketAddr, Mix)> {
        let base = self.next_run();
        let sources = (0..concurrency as u64).zip(reads.iter().cycle()).map(|(worker, reads)| {
            let (target, reads) = reads;
            let creates = Creates::new(*target, &self.container, &self.key, base + worker);
            let mix = Mix::new(creates_share, creates, reads.seeded(base + worker), base + worker);
            (*target, mix)
        });
        sources.collect()
    }
}

/// Runs a closed loop, and tells what servers and generator have used for it.
pub(crate) async fn measure<S: Source>(
    arguments: &Arguments,
    servers: &Servers,
    server: Server,
    what: &'static str,
    sources: Vec<(SocketAddr, S)>,
) -> Run {
    let concurrency = sources.len();
    let before = (servers.read().await, Usage::of_self());
    let measured = ClosedLoop::lasting(arguments.duration()).run(sources).await;
    let after = (servers.read().await, Usage::of_self());
    summarise(server, what, concurrency, &measured, before, after)
}

/// A run by what it measured, and what was used before and after it.
pub(crate) fn summarise(
    server: Server,
    workload: &'static str,
    concurrency: usize,
    measured: &Measured,
    before: (Reading, Usage),
    after: (Reading, Usage),
) -> Run {
    let used = after.0.usage.zip(before.0.usage).map(|(after, before)| after - before);
    Run {
        server,
        workload,
        concurrency,
        operations: measured.latencies.count(),
        per_second: measured.per_second(),
        p50: measured.latencies.percentile(50.0),
        p99: measured.latencies.percentile(99.0),
        max: measured.latencies.max(),
        server_cpu: used.map(|used| used.cpu),
        generator_cpu: (after.1 - before.1).cpu,
        machine_cpu: after.0.machine_cpu.saturating_sub(before.0.machine_cpu),
        elapsed: measured.elapsed,
        resident_bytes: used.map(|used| used.resident_bytes),
        syncs: after.0.syncs - before.0.syncs,
        unexpected: measured.unexpected.clone(),
    }
}
