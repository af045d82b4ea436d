//! The rounds of a peak of expiry: stored, due, drained.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::bail;
use ephemeris_cluster_tests::checker::Due;
use ephemeris_cluster_tests::client::{AccountKey, Client, Container};
use ephemeris_cluster_tests::load::{ClosedLoop, Connection, Measured, Seen, Source};
use ephemeris_cluster_tests::measure::Usage;
use indicatif::ProgressBar;
use serde_json::json;

use super::drain::Replicas;
use super::fill::DueItems;
use super::outcome::{Drains, Expiry};
use super::readers;
use crate::arguments::Arguments;
use crate::plan::summarise;
use crate::report::{Run, Server};
use crate::servers::{Reading, Servers};
use crate::sources::Creates;
use crate::subject::WORKERS_MAX;

/// Creates under way at the same time, unless the command line says how many.
const CONCURRENCY: [usize; 1] = [16];
/// Pause between the last item stored and whatever is measured.
const SETTLE_SECONDS: u64 = 2;
/// Runs of one round, which give their creates ids of their own.
const RUNS_A_ROUND: u64 = 2;

/// What was found.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) runs: Vec<Run>,
    pub(crate) expiry: Vec<Expiry>,
}

/// A container of items that expire, on nodes of its own.
struct Scenario<'a> {
    arguments: &'a Arguments,
    container: Container,
    key: AccountKey,
    servers: Servers,
    progress: ProgressBar,
    rounds_begun: u64,
}

/// A round under load, measured.
struct Loaded {
    steady: Run,
    drain: Run,
    seen: Seen,
    drained_after: Option<Duration>,
    /// What is dead is gone by now, if not while creates went on.
    is_clean: bool,
}

/// Has items expire at each concurrency, under load and without.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Found> {
    let key = arguments.account_key();
    let container = Container::new("bench", &format!("expiry-{:08x}", rand::random::<u32>()));
    let definition = json!({ "defaultTtl": -1 });
    let servers = Servers::nodes(arguments, &key, &container, definition).await?;
    let progress = ProgressBar::new_spinner();
    let mut scenario = Scenario { arguments, container, key, servers, progress, rounds_begun: 0 };
    let mut found = Found::default();
    for concurrency in arguments.concurrency_or(&CONCURRENCY) {
        scenario.measure(*concurrency, &mut found).await?;
    }
    scenario.progress.finish_and_clear();
    Ok(found)
}

impl Scenario<'_> {
    async fn measure(&mut self, concurrency: usize, found: &mut Found) -> anyhow::Result<()> {
        let loaded = self.loaded_round(concurrency).await?;
        let Loaded { steady, drain, seen, drained_after, is_clean } = loaded;
        let idle = if is_clean { self.idle_round().await? } else { None };
        let drains = Drains { idle, loaded: drained_after };
        let items = self.arguments.expiry_items();
        found.expiry.push(Expiry::new(items, seen, drains, &steady, &drain));
        found.runs.extend([steady, drain]);
        Ok(())
    }

    async fn loaded_round(&mut self, concurrency: usize) -> anyhow::Result<Loaded> {
        let replicas = Replicas::of(self.servers.any_node(), &self.container).await;
        let (sent, seconds) = (Arc::new(AtomicU64::new(0)), self.arguments.seconds);
        let items = self.store(&replicas, seconds).await?;
        let steady_in = items.due.remaining().saturating_sub(self.arguments.duration());
        tokio::time::sleep(steady_in).await;

        self.progress.set_message(format!("expiry: creates with {concurrency}, steady"));
        let readers = readers::start(&self.servers.addresses()?, &self.key, &items);
        let begun = self.look().await;
        let sources = self.creates(items.round * RUNS_A_ROUND, concurrency, &sent);
        let steady = ClosedLoop::lasting(items.due.remaining()).run(sources).await;
        let due = self.look().await;
        self.progress.set_message(format!("expiry: creates with {concurrency}, drain"));
        let sources = self.creates(items.round * RUNS_A_ROUND + 1, concurrency, &sent);
        let (drain, drained_after) = self.drain(&replicas, items.due, sources, &sent).await;
        let done = self.look().await;
        let seen = readers.stop().await;

        let is_clean = replicas.await_drained(items.due, self.drain_limit(), &sent).await.is_some();
        if is_clean {
            check_rest(&replicas, &[&steady, &drain]).await?;
        }
        let run = |what, measured, before, after| {
            summarise(Server::Ephemeris, what, concurrency, measured, before, after)
        };
        let (steady, drain) = (run("steady", &steady, begun, due), run("drain", &drain, due, done));
        Ok(Loaded { steady, drain, seen, drained_after, is_clean })
    }

    /// How long removing takes while nobody asks for anything.
    async fn idle_round(&mut self) -> anyhow::Result<Option<Duration>> {
        let replicas = Replicas::of(self.servers.any_node(), &self.container).await;
        let items = self.store(&replicas, 0).await?;
        self.progress.set_message("expiry: idle");
        let none = AtomicU64::new(0);
        Ok(replicas.await_drained(items.due, self.drain_limit(), &none).await)
    }

    /// Creates go on until the due items are gone; how long after the due second that was, unless
    /// it takes too long.
    async fn drain(
        &self,
        replicas: &Replicas,
        due: Due,
        sources: Vec<(SocketAddr, Counted)>,
        sent: &AtomicU64,
    ) -> (Measured, Option<Duration>) {
        let stop = Arc::new(AtomicBool::new(false));
        let load = ClosedLoop::until(stop.clone()).run(sources);
        let watch = async {
            let drained_after = replicas.await_drained(due, self.drain_limit(), sent).await;
            stop.store(true, Ordering::SeqCst);
            drained_after
        };
        tokio::join!(load, watch)
    }

    fn drain_limit(&self) -> Duration {
        Duration::from_secs(self.arguments.drain_seconds)
    }

    /// Stores the items of the next round, which are due so many seconds after that at least.
    async fn store(
        &mut self,
        replicas: &Replicas,
        due_after_seconds: u64,
    ) -> anyhow::Result<DueItems> {
        self.progress.set_message("expiry: storing the items");
        let (round, count) = (self.rounds_begun, self.arguments.expiry_items());
        self.rounds_begun += 1;
        let settled_seconds = due_after_seconds + SETTLE_SECONDS;
        let due = Due::after(self.arguments.load_seconds() + settled_seconds);
        let items = DueItems { container: self.container.clone(), round, count, due };
        let client = Client::new(format!("http://{}", self.servers.targets[0]), self.key.clone());
        items.store(&client).await?;
        replicas.await_level(u64::from(count)).await?;
        if due.remaining() < Duration::from_secs(settled_seconds) {
            bail!("storing the items took too long; give it more --load-seconds");
        }
        Ok(items)
    }

    fn creates(
        &self,
        run: u64,
        concurrency: usize,
        sent: &Arc<AtomicU64>,
    ) -> Vec<(SocketAddr, Counted)> {
        let workers = (0..concurrency as u64).zip(self.servers.targets.iter().cycle());
        let source = |(worker, target): (u64, &SocketAddr)| {
            let number = run * WORKERS_MAX + worker;
            let creates = Creates::new(*target, &self.container, &self.key, number);
            (*target, Counted { creates, sent: sent.clone() })
        };
        workers.map(source).collect()
    }

    async fn look(&self) -> (Reading, Usage) {
        (self.servers.read().await, Usage::of_self())
    }
}

/// Nothing but the due items was removed. Creates with an unknown end leave that open.
async fn check_rest(replicas: &Replicas, runs: &[&Measured]) -> anyhow::Result<()> {
    if runs.iter().any(|run| !run.unexpected.is_empty()) {
        return Ok(());
    }
    replicas.await_level(runs.iter().map(|run| run.latencies.count()).sum()).await
}

/// Creates that are counted when they are sent.
struct Counted {
    creates: Creates,
    sent: Arc<AtomicU64>,
}

impl Source for Counted {
    type Wire = Connection;

    fn next(&mut self) -> (&[u8], u16) {
        self.sent.fetch_add(1, Ordering::SeqCst);
        self.creates.next()
    }
}
