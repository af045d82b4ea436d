//! A simulated cluster: one partition, replicated over nodes with disks, clocks and a network that
//! all follow from a seed. Time stands still unless everybody waits.

#![allow(dead_code, reason = "each test uses its part")]

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ephemeris_raft::testing::{MemoryDisk, MemoryNetwork};
use ephemeris_raft::wal::{Wal, WalOptions};
use ephemeris_raft::{
    Executor, Group, GroupOptions, ProposeError, ReadError, Router, Storage, seed_randomness,
};
use ephemeris_store::codec;
use ephemeris_store::command::{
    Action, Command, CommandEffect, ItemWrite, Outcome, Precondition, Proposal,
};
use ephemeris_store::document::DocumentRules;
use ephemeris_store::engine::MemoryEngine;
use ephemeris_store::ids::{ContainerNumber, DatabaseNumber, GroupId, ItemId, NodeId, ReplicaId};
use ephemeris_store::indexing::{self, IndexRules};
use ephemeris_store::item::ItemKey;
use ephemeris_store::partition::{Partition, PartitionSpec};
use ephemeris_store::partition_key::{KeyDefinition, KeyKind, PartitionKey, SlotRange};
use ephemeris_store::time::{ClockInterval, Millis};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

pub(crate) const GROUP: GroupId = GroupId(1);
/// How long a batch takes on the simulated disk.
const SYNC_TIME: Duration = Duration::from_millis(1);
/// The date on which simulations begin.
const EPOCH_MS: u64 = 1_700_000_000_000;

/// Runs a simulation on one thread with paused time; every choice follows from the seed.
pub(crate) fn simulate<T>(seed: u64, test: impl AsyncFnOnce() -> T) -> T {
    // `RUST_LOG=debug` shows what happens inside.
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    seed_randomness(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_be_bytes()))
        .build()
        .expect("a runtime on one thread");
    runtime.block_on(test())
}

/// What survives a crash, and what runs.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) log_disk: MemoryDisk,
    pub(crate) snapshot_disk: MemoryDisk,
    pub(crate) engine: MemoryEngine,
    running: Option<Running>,
}

struct Running {
    group: Group<Partition>,
    storage: Storage,
    writer: JoinHandle<std::io::Result<()>>,
}

pub(crate) struct Cluster {
    pub(crate) network: MemoryNetwork,
    pub(crate) nodes: BTreeMap<u32, Node>,
    pub(crate) options: GroupOptions,
    rules: DocumentRules,
    started: Instant,
}

pub(crate) fn replica(node: u32) -> ReplicaId {
    ReplicaId { node: NodeId(node), incarnation: 0 }
}

fn spec() -> PartitionSpec {
    let container = ContainerNumber { database: DatabaseNumber(1), number: 1 };
    PartitionSpec { group: GROUP, container, slots: SlotRange::ALL }
}

fn rules() -> DocumentRules {
    let key = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
    let policy = indexing::complete(None).expect("the default policy is valid");
    DocumentRules::new(key, IndexRules::new(&policy).expect("it compiles"))
}

impl Node {
    fn new(id: u32) -> Self {
        Self {
            id: NodeId(id),
            log_disk: MemoryDisk::new(),
            snapshot_disk: MemoryDisk::new(),
            engine: MemoryEngine::new(),
            running: None,
        }
    }

    pub(crate) fn group(&self) -> &Group<Partition> {
        &self.running.as_ref().expect("the node runs").group
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }
}

impl Cluster {
    /// Starts `count` nodes and forms the group of them.
    pub(crate) async fn start(count: u32, seed: u64) -> Self {
        let mut cluster = Self::empty(seed);
        for id in 1..=count {
            cluster.add(id).await;
        }
        let members: Vec<ReplicaId> = (1..=count).map(replica).collect();
        for id in 1..=count {
            cluster.node(id).group().form(&members).await.expect("the group forms");
        }
        cluster
    }

    pub(crate) fn empty(seed: u64) -> Self {
        let options = GroupOptions {
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(300),
            election_max: Duration::from_millis(600),
            log_entries_kept: 20,
        };
        Self {
            network: MemoryNetwork::new(seed),
            nodes: BTreeMap::new(),
            options,
            rules: rules(),
            started: Instant::now(),
        }
    }

    pub(crate) fn node(&self, id: u32) -> &Node {
        &self.nodes[&id]
    }

    fn node_mut(&mut self, id: u32) -> &mut Node {
        self.nodes.get_mut(&id).expect("the node exists")
    }

    pub(crate) async fn add(&mut self, id: u32) {
        self.nodes.insert(id, Node::new(id));
        self.restart(id).await;
    }

    /// Starts a node over what its disks hold.
    pub(crate) async fn restart(&mut self, id: u32) {
        let (network, options) = (self.network.clone(), self.options.clone());
        let node = self.node_mut(id);
        assert!(node.running.is_none(), "the node does not run yet");
        let disk = Arc::new(node.log_disk.clone());
        let wal_options =
            WalOptions { segment_bytes: 64 << 10, cache_bytes: 4096, segments_max: 4 };
        let (wal, writer) = Wal::open(disk, wal_options).expect("the log opens");
        let writer = tokio::spawn(writer.run_as_task(SYNC_TIME));
        let engine = Arc::new(node.engine.clone());
        let storage = Storage {
            engine: engine.clone(),
            wal,
            snapshots: Arc::new(node.snapshot_disk.clone()),
            executor: Executor::Inline,
        };
        let router = Router::new();
        let transport = network.connect(node.id, router.clone());
        let machine = Partition::open(engine, spec()).expect("the partition opens");
        let group =
            Group::start(GROUP, replica(id), machine, storage.clone(), transport, router, &options)
                .await
                .expect("the group starts");
        node.running = Some(Running { group, storage, writer });
    }

    /// Stops a node as a power loss would: nothing that was not synced survives.
    pub(crate) async fn crash(&mut self, id: u32) {
        self.network.disconnect(NodeId(id));
        let node = self.node_mut(id);
        let Some(running) = node.running.take() else { return };
        running.writer.abort();
        running.group.stop().await;
        node.log_disk.lose_power();
        node.snapshot_disk.lose_power();
        node.engine.crash();
    }

    /// Flushes a node's engine and lets its log go up to there.
    pub(crate) async fn checkpoint(&self, id: u32) {
        let Some(running) = &self.node(id).running else { return };
        let progress = running.group.progress();
        running.storage.flush().await.expect("memory flushes");
        running.group.mark_durable(progress).await;
    }

    /// What the perfect clock of this world says.
    pub(crate) fn now(&self) -> ClockInterval {
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).expect("short runs");
        ClockInterval::exact(Millis(EPOCH_MS + elapsed))
    }

    pub(crate) fn key(&self, id: &str) -> ItemKey {
        let value = PartitionKey::parse("[\"p\"]").expect("a valid key");
        let id = ItemId::try_from(id.to_string()).expect("a valid id");
        ItemKey::new(&self.rules.key().place(&value), &value, &id)
    }

    /// Upserts an item with a serial number through one node.
    pub(crate) async fn upsert(
        &self,
        node: u32,
        id: &str,
        serial: u64,
    ) -> Result<Outcome, ProposeError> {
        let body = format!("{{\"id\":\"{id}\",\"pk\":\"p\",\"serial\":{serial}}}");
        let document = self.rules.parse(body.as_bytes()).expect("a valid body").document;
        let write = ItemWrite {
            key: self.key(id),
            precondition: Precondition::None,
            action: Action::Upsert(document),
        };
        self.propose(node, Command::Write(vec![write])).await
    }

    pub(crate) async fn propose(
        &self,
        node: u32,
        command: Command,
    ) -> Result<Outcome, ProposeError> {
        let proposal = Proposal { now: self.now(), vouchers: None, command };
        self.node(node).group().propose(codec::encode(&proposal)).await
    }

    /// Reads an item's serial number with a read barrier.
    pub(crate) async fn read(&self, node: u32, id: &str) -> Result<Option<u64>, ReadError> {
        let group = self.node(node).group();
        group.read_barrier().await?;
        Ok(self.peek(node, id))
    }

    /// Reads an item's serial number as the replica has it.
    pub(crate) fn peek(&self, node: u32, id: &str) -> Option<u64> {
        let machine = self.node(node).group().machine();
        let item = machine.fetch(&self.key(id)).expect("memory reads").into_item()?;
        let body: serde_json::Value = serde_json::from_slice(&item.body).expect("stored JSON");
        body["serial"].as_u64()
    }

    /// The node that leads, as it sees it itself.
    pub(crate) fn leader(&self) -> Option<u32> {
        let running = self.nodes.values().filter(|node| node.is_running());
        running
            .filter(|node| node.group().leadership().is_me)
            .max_by_key(|node| node.group().leadership().term)
            .map(|node| node.id.0)
    }

    /// Waits for a leader that can commit.
    pub(crate) async fn wait_for_leader(&self) -> u32 {
        let found = self.wait_until("a leader", || async {
            let leader = self.leader()?;
            self.node(leader).group().settle().await.ok()?;
            Some(leader)
        });
        found.await
    }

    /// Polls a condition until it holds; panics after a minute of simulated time.
    pub(crate) async fn wait_until<T, F: Future<Output = Option<T>>>(
        &self,
        what: &str,
        mut condition: impl FnMut() -> F,
    ) -> T {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            if let Some(value) = condition().await {
                return value;
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}\n{}", self.describe());
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until all running replicas have applied the same entries, and checks that they agree.
    pub(crate) async fn wait_for_agreement(&self) {
        self.wait_for_leader().await;
        self.wait_until("agreement", || async {
            let mut states = self
                .nodes
                .values()
                .filter(|node| node.is_running())
                .map(|node| node.group().machine().state());
            let first = states.next()?;
            states.all(|state| state.applied() == first.applied()).then_some(())
        })
        .await;
        let mut rows = Vec::new();
        for node in self.nodes.values().filter(|node| node.is_running()) {
            rows.push((node.id, node.group().machine().state(), all_rows(node)));
        }
        for pair in rows.windows(2) {
            assert_eq!(pair[0].1, pair[1].1, "{} and {}", pair[0].0, pair[1].0);
            assert!(pair[0].2 == pair[1].2, "{} and {} differ", pair[0].0, pair[1].0);
        }
    }

    /// What every replica says of itself, for failures.
    fn describe(&self) -> String {
        let describe = |node: &Node| match &node.running {
            Some(running) => format!("{:?}\n", running.group.status()),
            None => format!("node {} is down\n", node.id),
        };
        self.nodes.values().map(describe).collect()
    }
}

fn all_rows(node: &Node) -> Vec<(Vec<u8>, Vec<u8>)> {
    use ephemeris_store::machine::Machine as _;
    let machine = node.group().machine();
    let view = machine.snapshot();
    machine.ranges().iter().flat_map(|range| view.rows(range).expect("memory")).collect()
}

/// The policy epoch or effect of an outcome, for assertions.
pub(crate) fn effect(outcome: &Outcome) -> &CommandEffect {
    &outcome.effect
}
