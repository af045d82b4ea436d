//! A simulated cluster: one partition, replicated over nodes with disks, clocks and a network that
//! all follow from a seed. Time stands still unless everybody waits.

#![allow(dead_code, reason = "each test uses its part")]

#[cfg(not(tokio_unstable))]
compile_error!(
    "simulations need `--cfg tokio_unstable`, which .cargo/config.toml sets: unset RUSTFLAGS, which \
     silently replaces it"
);

mod client;
pub(crate) mod demon;
mod node;
pub(crate) mod world;

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use ephemeris_raft::testing::MemoryNetwork;
use ephemeris_raft::{GroupOptions, ProposeError, ReadError, StartError};
use ephemeris_store::command::{Command, Outcome};
use ephemeris_store::document::DocumentRules;
use ephemeris_store::engine::Table;
use ephemeris_store::ids::{ContainerNumber, DatabaseNumber, GroupId, NodeId, ReplicaId};
use ephemeris_store::indexing::{self, IndexRules};
use ephemeris_store::partition::PartitionSpec;
use ephemeris_store::partition_key::{KeyDefinition, KeyKind, SlotRange};
use tokio::time::{Instant, sleep};

pub(crate) use client::Client;
pub(crate) use node::{Loss, Node, NodeOptions};

pub(crate) const GROUP: GroupId = GroupId(1);

/// Runs a simulation on one thread with paused time; every choice follows from the seed.
pub(crate) fn simulate<T>(seed: u64, future: impl Future<Output = T>) -> T {
    // `RUST_LOG=debug` shows what happens inside; without it nothing, for errors are expected.
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    }
    ephemeris_raft::testing::simulate(seed, future)
}

pub(crate) struct Cluster {
    pub(crate) network: MemoryNetwork,
    pub(crate) nodes: BTreeMap<u32, Node>,
    pub(crate) options: NodeOptions,
    founders: Vec<ReplicaId>,
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

impl Default for NodeOptions {
    fn default() -> Self {
        let group = GroupOptions {
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(300),
            election_max: Duration::from_millis(600),
            log_entries_kept: 20,
            quiet_after: Duration::from_millis(200),
        };
        Self { group, segment_bytes: 64 << 10 }
    }
}

impl Cluster {
    /// Starts `count` nodes and forms the group of them.
    pub(crate) async fn start(count: u32, seed: u64) -> Self {
        Self::start_with(count, seed, NodeOptions::default()).await
    }

    pub(crate) async fn start_with(count: u32, seed: u64, options: NodeOptions) -> Self {
        let mut cluster = Self {
            network: MemoryNetwork::new(seed),
            nodes: BTreeMap::new(),
            options,
            founders: Vec::new(),
            rules: rules(),
            started: Instant::now(),
        };
        for id in 1..=count {
            cluster.add(id).await;
        }
        cluster.founders = (1..=count).map(replica).collect();
        for id in 1..=count {
            cluster.form(id).await.expect("the group forms");
        }
        cluster
    }

    pub(crate) fn node(&self, id: u32) -> &Node {
        &self.nodes[&id]
    }

    pub(crate) fn node_mut(&mut self, id: u32) -> &mut Node {
        self.nodes.get_mut(&id).expect("the node exists")
    }

    /// The nodes that run.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values().filter(|node| node.is_running())
    }

    /// Adds a node that belongs to nothing yet.
    pub(crate) async fn add(&mut self, id: u32) {
        self.nodes.insert(id, Node::new(id));
        self.restart(id).await;
    }

    /// Starts a node over what its disks hold.
    pub(crate) async fn restart(&mut self, id: u32) {
        self.try_restart(id).await.expect("the group starts");
    }

    /// The same, but a disk may be in the way.
    pub(crate) async fn try_restart(&mut self, id: u32) -> Result<(), String> {
        let (network, options) = (self.network.clone(), self.options.clone());
        self.node_mut(id).start(&network, &options).await?;
        // The power may have gone before the group's first entry was durable.
        self.form(id).await.map_err(|error| error.to_string())
    }

    async fn form(&self, id: u32) -> Result<(), StartError> {
        if !self.founders.contains(&replica(id)) {
            return Ok(());
        }
        let node = self.node(id);
        node.host().run(node.group().form(&self.founders)).await
    }

    /// Stops a node as a power loss would: nothing that was not synced survives.
    pub(crate) async fn crash(&mut self, id: u32) {
        self.lose(id, Loss::Everything);
        // Connections to it break before anything else happens.
        tokio::task::yield_now().await;
    }

    /// Ends a node at once.
    pub(crate) fn lose(&mut self, id: u32, loss: Loss) {
        self.network.disconnect(NodeId(id));
        self.node_mut(id).lose(loss);
    }

    /// Flushes a node's engine and lets its log go up to there.
    pub(crate) async fn checkpoint(&self, id: u32) {
        let node = self.node(id);
        if node.is_running() {
            node.checkpoint(Duration::ZERO).await.expect("memory flushes");
        }
    }

    /// What a client of one node needs.
    pub(crate) fn client(&self, node: u32) -> Client {
        Client::new(self.node(node), self.rules.clone(), self.started)
    }

    /// Upserts an item with a serial number through one node.
    pub(crate) async fn upsert(
        &self,
        node: u32,
        id: &str,
        serial: u64,
    ) -> Result<Outcome, ProposeError> {
        self.client(node).upsert(id, serial, None).await
    }

    pub(crate) async fn propose(
        &self,
        node: u32,
        command: Command,
    ) -> Result<Outcome, ProposeError> {
        self.client(node).propose(command).await
    }

    /// Reads an item's serial number with a read barrier.
    pub(crate) async fn read(&self, node: u32, id: &str) -> Result<Option<u64>, ReadError> {
        self.client(node).read(id).await
    }

    /// Reads an item's serial number at a follower, as of what its leader says is committed.
    pub(crate) async fn read_following(
        &self,
        node: u32,
        id: &str,
    ) -> Result<Option<u64>, ReadError> {
        self.client(node).read_following(id).await
    }

    /// Reads an item's serial number as the replica has it.
    pub(crate) fn peek(&self, node: u32, id: &str) -> Option<u64> {
        self.client(node).peek(id)
    }

    /// The node that leads, as it sees it itself.
    pub(crate) fn leader(&self) -> Option<u32> {
        self.running()
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

    /// True if no replica ticks.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.running().all(|node| node.group().status().is_resting)
    }

    /// Waits until no replica ticks.
    pub(crate) async fn wait_for_rest(&self) {
        self.wait_until("rest", || async { self.is_at_rest().then_some(()) }).await;
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

    /// Waits until a node's log has let go more than this.
    pub(crate) async fn wait_until_purged(&self, id: u32, beyond: u64) {
        let purged = || async {
            let purged = self.node(id).group().status().purged;
            purged.filter(|purged| *purged > beyond)
        };
        self.wait_until("the log to be purged", purged).await;
    }

    /// Waits until all running replicas have applied the same entries, and checks that they agree.
    pub(crate) async fn wait_for_agreement(&self) {
        self.wait_for_leader().await;
        self.wait_until("agreement", || async {
            let mut states = self.running().map(|node| node.group().machine().state());
            let first = states.next()?;
            states.all(|state| state.applied() == first.applied()).then_some(())
        })
        .await;
        let describe = |node: &Node| (node.id, node.group().machine().state(), node.rows());
        let replicas: Vec<_> = self.running().map(describe).collect();
        for pair in replicas.windows(2) {
            assert_eq!(pair[0].1, pair[1].1, "{} and {}", pair[0].0, pair[1].0);
            for table in Table::ALL {
                let rows = |at: usize| pair[at].2.iter().filter(|(found, ..)| *found == table);
                let equal = rows(0).eq(rows(1));
                assert!(equal, "{} and {} differ in {}", pair[0].0, pair[1].0, table.name());
            }
        }
    }

    /// What every replica says of itself, for failures.
    pub(crate) fn describe(&self) -> String {
        self.nodes.values().map(Node::describe).collect()
    }
}
