//! Works on a container while the leader of its partition dies, and judges what became of the calls.
//!
//! `test_rust_sdk.py` kills and starts the leader, and the two talk in lines:
//!
//! 1. Every worker has had [`CALLS`] calls acknowledged: `loaded` is printed, and a line awaited.
//! 2. The leader is dead. Every worker has had as many more acknowledged: `survived`, and a line.
//! 3. The leader is back. Once more as many, then every worker judges what it finds through every
//!    node: nothing acknowledged is lost, nothing surely refused is there. The exit code tells.

mod laws;
mod worker;

use std::env;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use azure_data_cosmos::clients::{ContainerClient, DatabaseClient};
use azure_data_cosmos::options::PatchStrategy;
use ephemeris_rust_sdk_tests::{NODES, POLL, connect_to};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin, stdin};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::worker::{Progress, Worker};

/// Calls of each worker that must be acknowledged in each phase.
const CALLS: u64 = 10;
/// What a phase may take: the SDK gives up a request that concerns a container after 65 s, and while a node is
/// dead each new container takes one of the workers 3 to 4 s.
const PHASE_MAX: Duration = Duration::from_mins(2);

#[tokio::main]
async fn main() -> Result<()> {
    let names: Vec<String> = env::args().skip(1).collect();
    let [database, container] = &*names else { bail!("usage: failover DATABASE CONTAINER") };
    let mut load = Load::default();
    for (node, name) in NODES.into_iter().enumerate() {
        let client = connect_to(node).await?;
        load.start_all(name, client.database_client(database), container).await?;
    }
    let mut orders = BufReader::new(stdin()).lines();
    load.more().await?;
    load.expect_failover();
    tell_and_await("loaded", &mut orders).await?;
    load.more().await?;
    tell_and_await("survived", &mut orders).await?;
    load.more().await?;
    load.end().await
}

async fn tell_and_await(phase: &str, orders: &mut Lines<BufReader<Stdin>>) -> Result<()> {
    println!("{phase}");
    orders.next_line().await?.context("whoever kills the leader is gone")?;
    Ok(())
}

/// All workers, which go on until they are told to end.
#[derive(Default)]
struct Load {
    workers: JoinSet<Result<()>>,
    progress: Vec<Arc<Progress>>,
}

impl Load {
    /// One worker for each law, through a client that asks a certain node first.
    async fn start_all(&mut self, node: &str, database: DatabaseClient, name: &str) -> Result<()> {
        let items = &database.container_client(name, None).await?;
        let key = |what: &str| format!("{what} through {node}");
        self.start(key("creates"), items, laws::creates);
        self.start(key("upserts"), items, laws::upserts);
        self.start(key("replaces"), items, laws::replaces);
        for strategy in [PatchStrategy::Auto, PatchStrategy::ServerSide] {
            let patches = |worker| laws::patches(worker, strategy);
            self.start(key(&format!("{strategy} patches")), items, patches);
        }
        self.start(key("batches"), items, laws::batches);
        self.start(key("deletes"), items, laws::deletes);
        self.start(key("expiries"), items, laws::expiries);
        self.start(key("unique keys"), items, laws::unique_keys);
        self.start(key("queries"), items, laws::queries);
        self.start(key("change feed"), items, laws::change_feed);
        self.start(key("containers"), items, |worker| laws::containers(worker, database));
        Ok(())
    }

    fn start<F>(&mut self, key: String, items: &ContainerClient, law: impl FnOnce(Worker) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let progress = Arc::new(Progress::new(key.clone()));
        self.progress.push(Arc::clone(&progress));
        let judged = law(Worker::new(items.clone(), progress));
        self.workers.spawn(async move { judged.await.context(key) });
    }

    /// From now on the leader may be dead.
    fn expect_failover(&self) {
        self.progress.iter().for_each(|one| one.fails_over.store(true, Ordering::SeqCst));
    }

    /// Waits until every worker has had more calls acknowledged, beside the one that is under way.
    async fn more(&mut self) -> Result<()> {
        let goals: Vec<u64> =
            self.progress.iter().map(|one| one.acknowledged() + 1 + CALLS).collect();
        let begun = Instant::now();
        while let Some(late) = self.behind(&goals) {
            ensure!(begun.elapsed() < PHASE_MAX, "{PHASE_MAX:?} were not enough for:\n{late}");
            tokio::select! {
                Some(ended) = self.workers.join_next() => {
                    ended??;
                    bail!("a worker has ended before it was told to");
                }
                () = sleep(POLL) => {}
            }
        }
        Ok(())
    }

    /// The workers that have not reached their goals, if there are any.
    fn behind(&self, goals: &[u64]) -> Option<String> {
        let behind = self.progress.iter().zip(goals);
        let behind = behind.filter(|(one, goal)| one.acknowledged() < **goal);
        let behind: Vec<_> = behind.map(|(one, goal)| format!("{one}, goal {goal}")).collect();
        (!behind.is_empty()).then(|| behind.join("\n"))
    }

    /// Ends all workers, each of which judges what it has done.
    async fn end(mut self) -> Result<()> {
        self.progress.iter().for_each(|one| one.ended.store(true, Ordering::Relaxed));
        while let Some(judged) = self.workers.join_next().await {
            judged??;
        }
        Ok(())
    }
}
