//! Clients that create one item after the other, and remember what became of each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::{Client, Container, Created, Retrying};
use crate::cluster::Cluster;
use crate::{clock, wait};

/// How long a writer tries to get one item stored.
const CREATE_DEADLINE: Duration = Duration::from_secs(30);
/// How long it may take until so many writes are acknowledged.
const ACKNOWLEDGED_DEADLINE: Duration = Duration::from_secs(30);
/// Bytes of each item that carry nothing.
const FILLER_BYTES: usize = 200;

/// Writers at work.
pub struct Writers {
    tasks: JoinSet<Journal>,
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

/// A write that a client was told is stored.
#[derive(Clone, Debug)]
pub struct Acknowledged {
    /// When it was sent for the first time.
    pub started: Instant,
    /// When it was acknowledged.
    pub finished: Instant,
    /// The item.
    pub item: Value,
}

/// What became of all writes.
#[derive(Debug, Default)]
pub struct Journal {
    /// Those that must be there, by id.
    pub acknowledged: BTreeMap<String, Acknowledged>,
    /// Ids of those that may be there, or not.
    pub open: Vec<String>,
    /// Attempts whose outcome was unknown, and was found out by sending again.
    pub unknown: Vec<String>,
    /// Writes nobody executed within the deadline, and answers that must not be.
    pub failed: Vec<String>,
}

impl Writers {
    /// Starts `count` writers, spread over the nodes.
    pub fn start(clients: &[Client], container: &Container, count: usize) -> Self {
        let acknowledged = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for number in 0..count {
            tasks.spawn(write(Writer {
                number,
                client: Retrying::new(clients.to_vec(), number, CREATE_DEADLINE),
                container: container.clone(),
                acknowledged: acknowledged.clone(),
                stop: stop.clone(),
            }));
        }
        Self { tasks, acknowledged, stop }
    }

    /// Waits until so many more writes are acknowledged.
    pub async fn await_more(&self, count: u64) {
        let goal = self.acknowledged.load(Ordering::SeqCst) + count;
        wait::until(&format!("{count} more writes"), ACKNOWLEDGED_DEADLINE, async || {
            (self.acknowledged.load(Ordering::SeqCst) >= goal).then_some(())
        })
        .await;
    }

    /// Lets every writer finish what it is at; answers what they remember.
    pub async fn stop(mut self) -> Journal {
        self.stop.store(true, Ordering::SeqCst);
        let mut all = Journal::default();
        while let Some(journal) = self.tasks.join_next().await {
            all.add(journal.expect("writers do not panic"));
        }
        all
    }
}

struct Writer {
    number: usize,
    client: Retrying,
    container: Container,
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

async fn write(mut writer: Writer) -> Journal {
    let mut journal = Journal::default();
    let mut serial = 0;
    while !writer.stop.load(Ordering::SeqCst) {
        let item = item(writer.number, serial);
        serial += 1;
        let started = clock::monotonic();
        let created = writer.client.create(&writer.container, &item).await;
        let finished = clock::monotonic();
        let id = item["id"].as_str().expect("it was just given one").to_string();
        match created {
            Created::Acknowledged { unknown } => {
                journal.unknown.extend(unknown);
                journal.acknowledged.insert(id, Acknowledged { started, finished, item });
                writer.acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            Created::Open { unknown } => {
                journal.open.push(id);
                journal.failed.extend(unknown);
            }
            Created::NotExecuted { reason } => journal.failed.push(reason),
            Created::Wrong { answer } => journal.failed.push(format!("{id}: {answer}")),
        }
    }
    journal
}

fn item(writer: usize, serial: u64) -> Value {
    json!({
        "id": format!("w{writer}-{serial}"),
        "pk": format!("key{}", serial % 17),
        "serial": serial,
        "filler": "x".repeat(FILLER_BYTES),
    })
}

impl Journal {
    fn add(&mut self, other: Journal) {
        let Journal { acknowledged, open, unknown, failed } = other;
        self.acknowledged.extend(acknowledged);
        self.open.extend(open);
        self.unknown.extend(unknown);
        self.failed.extend(failed);
    }

    /// How long after `fault` the first write that was begun after it was acknowledged.
    pub fn resumed_after(&self, fault: Instant) -> Option<Duration> {
        let later = self.acknowledged.values().filter(|write| write.started >= fault);
        later.map(|write| write.finished - fault).min()
    }

    /// Panics unless every write succeeded, and every node that runs shows what [`Journal::check`] wants.
    pub async fn check_everywhere(&self, cluster: &Cluster, container: &Container) {
        assert!(self.failed.is_empty(), "writes that failed: {:#?}", self.failed);
        for node in cluster.running() {
            self.check(&cluster.client(node), container).await;
        }
    }

    /// Panics unless a node shows every acknowledged item as it was written, and nothing that was
    /// never written.
    pub async fn check(&self, client: &Client, container: &Container) {
        let mut found = BTreeMap::new();
        for item in client.read_feed(container).await {
            let id = item["id"].as_str().expect("items have an id").to_string();
            assert!(found.insert(id.clone(), item).is_none(), "{id} is there twice");
        }
        for (id, write) in &self.acknowledged {
            let Some(item) = found.remove(id) else {
                panic!("{id} was acknowledged, and is lost at {}", client.base());
            };
            for (name, value) in write.item.as_object().expect("items are objects") {
                assert_eq!(&item[name], value, "{name} of {id} at {}", client.base());
            }
        }
        for id in found.keys() {
            let attempted = self.open.contains(id) || !self.failed.is_empty();
            assert!(attempted, "{id} is there, though it was never acknowledged nor left open");
        }
    }
}
