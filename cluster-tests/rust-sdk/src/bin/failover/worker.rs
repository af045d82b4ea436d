//! What every worker has: a client, a logical partition of its own, and a count of its calls.

use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Result, bail};
use azure_data_cosmos::CosmosError;
use azure_data_cosmos::clients::ContainerClient;
use azure_data_cosmos::feed::FeedScope;
use azure_data_cosmos::options::QueryOptions;
use ephemeris_rust_sdk_tests::{NODES, through};
use futures_util::TryStreamExt;
use serde_json::{Value, json};

/// What a call may end with at any time: timeouts, throttling, nobody there.
const STATUSES_OF_A_BUSY_CLUSTER: [u16; 4] = [408, 429, 449, 503];
/// What it may end with, too, from the kill on, since the SDK repeats calls whose answers were lost: refusals of what
/// has been done already.
const STATUSES_OF_FAILOVER: [u16; 3] = [404, 409, 412];

/// How far a worker is, and whether it is to end.
pub(crate) struct Progress {
    key: String,
    acknowledged: AtomicU64,
    calls: Mutex<Calls>,
    /// From now on the leader may be dead.
    pub(crate) fails_over: AtomicBool,
    pub(crate) ended: AtomicBool,
}

/// What calls have failed with, and when the last call ended, whatever with.
struct Calls {
    failures: Vec<u16>,
    last: Instant,
}

impl Progress {
    pub(crate) fn new(key: String) -> Self {
        let calls = Mutex::new(Calls { failures: Vec::new(), last: Instant::now() });
        let (fails_over, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { key, acknowledged: AtomicU64::new(0), calls, fails_over, ended }
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Display for Progress {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (key, acknowledged) = (&self.key, self.acknowledged());
        let Calls { failures, last } = &*self.calls();
        let ago = last.elapsed();
        write!(f, "{key}: {acknowledged} acknowledged, failed {failures:?}, the last {ago:.1?} ago")
    }
}

/// Somebody who calls, turn by turn, and has a logical partition to itself.
pub(crate) struct Worker {
    pub(crate) items: ContainerClient,
    /// What it does and through which node; also the partition key of its items.
    pub(crate) key: String,
    progress: Arc<Progress>,
    turn: u64,
}

impl Worker {
    pub(crate) fn new(items: ContainerClient, progress: Arc<Progress>) -> Self {
        Self { items, key: progress.key.clone(), progress, turn: 0 }
    }

    /// The number of the next turn, until it is time to judge.
    pub(crate) fn next_turn(&mut self) -> Option<u64> {
        if self.progress.ended.load(Ordering::Relaxed) {
            println!("{}", self.progress);
            return None;
        }
        self.turn += 1;
        Some(self.turn)
    }

    /// The answer of a call that was acknowledged. Whether one that failed was carried out, nobody
    /// knows: the SDK repeats calls by itself.
    pub(crate) fn note<T>(&self, call: Result<T, CosmosError>) -> Result<Option<T>> {
        let mut calls = self.progress.calls();
        calls.last = Instant::now();
        match call {
            Ok(answer) => {
                self.progress.acknowledged.fetch_add(1, Ordering::Relaxed);
                Ok(Some(answer))
            }
            Err(error) => {
                let status = error.status().into();
                // Nobody knows what became of a call that failed: it explains refusals, too.
                let is_shaken =
                    self.progress.fails_over.load(Ordering::SeqCst) || !calls.failures.is_empty();
                let is_explained = STATUSES_OF_A_BUSY_CLUSTER.contains(&status)
                    || is_shaken && STATUSES_OF_FAILOVER.contains(&status);
                if !is_explained {
                    bail!("an answer that no failover explains: {error}");
                }
                calls.failures.push(status);
                Ok(None)
            }
        }
    }

    /// An item of this worker. What must be unique is its id, unless the item says otherwise.
    pub(crate) fn item(&self, id: &str, more: &Value) -> Value {
        let mut item = json!({"id": id, "pk": self.key, "unique": id});
        for (name, value) in more.as_object().into_iter().flatten() {
            item[name] = value.clone();
        }
        item
    }

    /// What there is in the end, as each node tells it.
    pub(crate) async fn found(&self) -> Result<Vec<Vec<Value>>> {
        let mut found = Vec::new();
        for node in NODES {
            let options = QueryOptions::default().with_operation_options(through(node));
            let scope = FeedScope::partition(self.key.clone());
            let rows = self.items.query_items("SELECT * FROM c", scope, Some(options)).await?;
            found.push(rows.try_collect().await?);
        }
        Ok(found)
    }
}
