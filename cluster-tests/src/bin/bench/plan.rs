//! Which runs there are, and how one is measured.

use std::net::SocketAddr;

use anyhow::ensure;
use ephemeris_cluster_tests::load::{ClosedLoop, Measured, Source};
use ephemeris_cluster_tests::measure::Usage;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::arguments::{Arguments, Workload};
use crate::report::{Run, Server};
use crate::servers::{Reading, Servers};
use crate::subject::{Numbers, Stock, Subject, WORKERS_MAX, unique_container};

/// One workload at one concurrency.
#[derive(Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) workload: Workload,
    /// The part of creates among its requests, from 0 to 1.
    pub(crate) creates_share: f64,
    pub(crate) concurrency: usize,
}

impl Cell {
    pub(crate) fn new(workload: Workload, concurrency: usize) -> Self {
        let creates_share = workload.creates_share().expect("it is requests of one kind or a mix");
        Self { workload, creates_share, concurrency }
    }
}

/// All cells the command line asks for.
pub(crate) fn cells(arguments: &Arguments) -> anyhow::Result<Vec<Cell>> {
    let possible = |workers: &usize| (1..WORKERS_MAX).contains(&(*workers as u64));
    let given = arguments.concurrency.iter();
    ensure!(given.clone().all(possible), "--concurrency is between 1 and {}", WORKERS_MAX - 1);
    let mut cells = Vec::new();
    for workload in arguments.requests() {
        for concurrency in arguments.request_concurrency() {
            cells.push(Cell::new(workload, *concurrency));
        }
    }
    Ok(cells)
}

/// Runs every cell on the nodes and then on the echo server, for as many rounds as are wanted.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Vec<Run>> {
    let cells = cells(arguments)?;
    if cells.is_empty() {
        return Ok(Vec::new());
    }
    let (key, container) = (arguments.account_key(), unique_container("items"));
    let nodes = Servers::nodes(arguments, &key, &container, json!({})).await?;
    let echo = if arguments.no_echo { None } else { Some(Servers::echo()?) };
    let rounds = arguments.rounds();
    let servers = if echo.is_some() { 2 } else { 1 };
    let mut plan =
        Plan { arguments, progress: progress(cells.len() * servers * rounds as usize), cells };
    let (stock, mut numbers) = (Stock::of(arguments.read_items()), Numbers::default());
    plan.progress.set_message("items for reads");
    let subject = Subject::new(&container, &key, &nodes.targets, stock, &mut numbers);
    subject.store().await?;
    let mut runs = Vec::new();
    for _ in 0..rounds {
        runs.extend(plan.run(Server::Ephemeris, &nodes, &subject, &mut numbers).await);
        if let Some(echo) = &echo {
            // What the nodes still do would be taken from the echo server.
            nodes.rest().await;
            let subject = subject.through(&echo.targets);
            runs.extend(plan.run(Server::Echo, echo, &subject, &mut numbers).await);
        }
    }
    plan.progress.finish_and_clear();
    Ok(runs)
}

struct Plan<'a> {
    arguments: &'a Arguments,
    cells: Vec<Cell>,
    progress: ProgressBar,
}

fn progress(runs: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg} ({eta} left)");
    let progress = ProgressBar::new(runs as u64);
    progress.set_style(style.expect("the template is valid"));
    progress
}

impl Plan<'_> {
    async fn run(
        &mut self,
        server: Server,
        servers: &Servers,
        subject: &Subject,
        numbers: &mut Numbers,
    ) -> Vec<Run> {
        let mut runs = Vec::new();
        for cell in &self.cells {
            let Cell { workload, creates_share, concurrency } = *cell;
            self.progress.set_message(format!("{} {workload} with {concurrency}", server.name()));
            let workers = (numbers.next_run()..).take(concurrency);
            let sources = subject.sources(creates_share, workers);
            runs.push(measure(self.arguments, servers, server, workload.name(), sources).await);
            self.progress.inc(1);
        }
        runs
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
