//! One node: its catalog, its replicas, and everything that runs beside them.
//!
//! 1. `start` opens storage, starts the catalog's replica, joins or forms the cluster.
//! 2. `follow` starts and stops replicas as the catalog says, and makes the cluster know this node.
//! 3. `stop` hands leadership away before the process ends.

mod clocks;
mod describe;
mod follow;
mod start;
mod stop;

pub(crate) use start::StartupError;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use ephemeris_raft::{Group, ProposeError, Storage, wait_aligned};
use ephemeris_store::catalog::{
    Catalog, CatalogCommand, CatalogOutcome, CatalogProposal, ClusterId,
};
use ephemeris_store::codec;
use ephemeris_store::ids::{GroupId, Lsn, NodeId, ReplicaId};
use ephemeris_store::machine::Machine as _;

use crate::clock::{self, Instant, QuorumClock, Reading, SharedClock, TimeSource};
use crate::config::NodeConfig;
use crate::identity::DataDirectory;
use crate::partition::{LocalReplica, PartitionError, ReplicaContext};
use crate::placement::Directory;
use crate::supervisor::{self, Tasks};
use crate::transport::{LocalIdentity, PeerTransport};

/// The engine is flushed at least this often, so that the log can be purged.
const FLUSH_EVERY: Duration = Duration::from_secs(30);
/// So many segments of the log, or a part of the write buffer in use (`flush_bytes`), flush the engine at once.
/// It flushes by itself, too, a little later, but then nobody knows how far the log may go.
const FLUSH_SEGMENTS: u64 = 6;
/// How often the node looks whether it is time.
const FLUSH_LOOK_EVERY: Duration = Duration::from_millis(250);

/// How much of the write buffer is in use when a node flushes: from 0.55 to 0.8 of it, and another part on each.
///
/// Replicas of a partition grow alike. If their nodes flushed at the same size, and so compacted, all of them
/// would be slow at the same time, and each answer would wait for two that are.
fn flush_bytes(node: NodeId, buffer_bytes: u64) -> u64 {
    // The golden ratio, of 256: numbers that are near come out far apart, and 256 in a row all different.
    let spread = u64::from(node.0) * 159 % 256;
    buffer_bytes / 1024 * (820 - spread)
}

/// A running node. Clones share it.
#[derive(Clone)]
pub(crate) struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    config: NodeConfig,
    time: Arc<dyn TimeSource>,
    clock: SharedClock,
    /// The same clock, if this is a node of a cluster.
    quorum: Option<Arc<QuorumClock>>,
    /// What follows the catalog and looks after the node; ended before the replicas are.
    background: Tasks,
    identity: LocalIdentity,
    directory_id: u128,
    /// The last entry of the catalog that was in the log when this process started.
    known_at_start: Option<u64>,
    storage: Storage,
    transport: PeerTransport,
    catalog: Group<Catalog>,
    /// Notices when the catalog's replica stops; ended before it is told to.
    catalog_watch: Tasks,
    directory: Directory,
    replicas: RwLock<BTreeMap<GroupId, Arc<LocalReplica>>>,
    context: ReplicaContext,
    /// Who led when we last heard.
    leaders: Mutex<BTreeMap<GroupId, NodeId>>,
    data: Mutex<DataDirectory>,
    /// True once this node has learnt what the catalog decided before it started.
    is_caught_up: AtomicBool,
    /// When this node last began to ask whether its copy of the catalog is the newest, and it was, or became it.
    catalog_as_of: Mutex<Option<Instant>>,
    draining: AtomicBool,
    /// Where clients reach this node.
    url: String,
}

impl Node {
    /// This node.
    pub(crate) fn node_id(&self) -> NodeId {
        self.inner.config.node
    }

    /// The node's settings.
    pub(crate) fn config(&self) -> &NodeConfig {
        &self.inner.config
    }

    /// The catalog at hand.
    pub(crate) fn directory(&self) -> &Directory {
        &self.inner.directory
    }

    /// True once the catalog at hand holds what was decided while this node was away.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.inner.is_caught_up.load(Ordering::Acquire)
    }

    /// True if the catalog at hand was surely the newest at some moment not longer ago than this.
    pub(crate) fn has_catalog_since(&self, age: Duration) -> bool {
        let as_of = *self.inner.catalog_as_of.lock().unwrap_or_else(PoisonError::into_inner);
        as_of.is_some_and(|as_of| as_of.elapsed() <= age)
    }

    /// The copy of the catalog holds all that was decided before this moment.
    pub(crate) fn note_catalog_as_of(&self, moment: Instant) {
        let mut as_of = self.inner.catalog_as_of.lock().unwrap_or_else(PoisonError::into_inner);
        *as_of = (*as_of).max(Some(moment));
    }

    /// The catalog's group.
    pub(crate) fn catalog(&self) -> &Group<Catalog> {
        &self.inner.catalog
    }

    /// The way to other nodes.
    pub(crate) fn transport(&self) -> &PeerTransport {
        &self.inner.transport
    }

    /// What the machine's wall clock says, right or wrong.
    pub(crate) fn date(&self) -> SystemTime {
        self.inner.time.date()
    }

    /// The same, in microseconds since 1970.
    pub(crate) fn wall_micros(&self) -> i64 {
        self.inner.time.wall_micros()
    }

    /// Where clients reach this node.
    pub(crate) fn url(&self) -> &str {
        &self.inner.url
    }

    /// What this node's clock says.
    pub(crate) fn now(&self) -> Reading {
        self.inner.clock.now()
    }

    /// The cluster, once it is known: whoever sees the catalog of a cluster knows which one it is, even
    /// before it has been written down here.
    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.inner.identity.cluster().or_else(|| self.inner.directory.current().state().cluster())
    }

    /// A replica on this node.
    pub(crate) fn local_partition(&self, group: GroupId) -> Option<Arc<LocalReplica>> {
        self.inner.replicas.read().unwrap_or_else(PoisonError::into_inner).get(&group).cloned()
    }

    /// All replicas on this node.
    pub(crate) fn local_partitions(&self) -> Vec<Arc<LocalReplica>> {
        let replicas = self.inner.replicas.read().unwrap_or_else(PoisonError::into_inner);
        replicas.values().cloned().collect()
    }

    /// Proposes a change of the catalog, if this node leads it.
    pub(crate) async fn propose_to_catalog(
        &self,
        command: CatalogCommand,
    ) -> Result<CatalogOutcome, PartitionError> {
        let proposal = CatalogProposal { now: self.inner.clock.now().interval, command };
        match self.inner.catalog.propose(codec::encode(&proposal)).await {
            Ok(outcome) => Ok(outcome),
            Err(ProposeError::NotLeader { leader }) => Err(PartitionError::NotLeader { leader }),
            Err(ProposeError::Unknown(reason)) => Err(PartitionError::Unknown(reason)),
        }
    }

    /// The entry a copy of the catalog must have applied, if this node leads it.
    pub(crate) async fn read_catalog_barrier(&self) -> Result<Lsn, PartitionError> {
        self.inner.catalog.read_barrier().await?;
        Ok(self.inner.catalog.machine().lsn())
    }

    /// The data directory that the catalog knows a node with, if this node leads the catalog.
    pub(crate) async fn known_directory(
        &self,
        node: NodeId,
    ) -> Result<Option<u128>, PartitionError> {
        self.inner.catalog.read_barrier().await?;
        Ok(self.inner.directory.current().state().node(node).map(|record| record.directory))
    }

    /// Waits until this node's copy of the catalog has an entry; false if it does not come in time.
    pub(crate) async fn wait_for_catalog(&self, lsn: Lsn, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(clock::monotonic());
        self.inner.catalog.await_applied(lsn.0, left).await
    }

    /// The node to ask for a group's leader.
    pub(crate) fn leader_candidate(&self, group: GroupId) -> Option<NodeId> {
        if let Some(leader) = self.local_leadership(group) {
            return Some(leader);
        }
        let hint = self.leaders().get(&group).copied();
        hint.or_else(|| self.nodes_of(group).first().copied())
    }

    /// The nodes that have a replica of a group, as the catalog here knows it.
    fn nodes_of(&self, group: GroupId) -> Vec<NodeId> {
        if group == GroupId::CATALOG {
            return self.catalog_nodes();
        }
        let directory = self.inner.directory.current();
        let replicas = directory.state().partition(group).map(|record| record.replicas.iter());
        replicas.into_iter().flatten().map(|replica| replica.node).collect()
    }

    fn catalog_nodes(&self) -> Vec<NodeId> {
        let known: Vec<NodeId> =
            self.inner.directory.current().state().nodes().map(|record| record.node).collect();
        if known.is_empty() { self.inner.config.founders.keys().copied().collect() } else { known }
    }

    /// The leader of a group that has a replica here, as that replica knows it.
    fn local_leadership(&self, group: GroupId) -> Option<NodeId> {
        let leadership = if group == GroupId::CATALOG {
            self.inner.catalog.leadership()
        } else {
            self.local_partition(group)?.group().leadership()
        };
        leadership.leader.map(|leader| leader.node)
    }

    fn leaders(&self) -> MutexGuard<'_, BTreeMap<GroupId, NodeId>> {
        self.inner.leaders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers who leads.
    pub(crate) fn hint_leader(&self, group: GroupId, node: NodeId) {
        self.leaders().insert(group, node);
    }

    /// Asks another node of a group first from now on: this one does not lead it, or does not answer.
    pub(crate) fn pass_over(&self, group: GroupId, node: NodeId) {
        let nodes = self.nodes_of(group);
        let at = nodes.iter().position(|other| *other == node);
        let next = at.map_or(0, |at| (at + 1) % nodes.len());
        let mut leaders = self.leaders();
        // Whoever was told meanwhile who leads knows better.
        if leaders.get(&group).is_none_or(|hint| *hint == node)
            && let Some(next) = nodes.get(next)
        {
            leaders.insert(group, *next);
        }
    }

    /// Forgets who leads a group that is no more.
    pub(crate) fn forget_leader(&self, group: GroupId) {
        self.leaders().remove(&group);
    }

    /// Flushes the engine from time to time, and lets the log go up to there, so that it stays short.
    pub(super) async fn run_flushes(&self) {
        let (mut flushed_at, mut segments_left) = (clock::monotonic(), 0);
        loop {
            wait_aligned(FLUSH_LOOK_EVERY).await;
            let segments = self.inner.storage.wal.stats().segments;
            // What a flush lets go goes a little later.
            segments_left = segments_left.min(segments);
            if flushed_at.elapsed() >= FLUSH_EVERY || self.must_flush(segments, segments_left) {
                self.flush().await;
                (flushed_at, segments_left) = (clock::monotonic(), segments);
            }
            self.purge_overdue().await;
        }
    }

    /// True if there is too much that stands in the log alone. Segments that the last flush has left are no
    /// reason for another: a group that nobody writes to may need them.
    fn must_flush(&self, segments: u64, segments_left: u64) -> bool {
        let Inner { config, storage, .. } = &*self.inner;
        segments >= FLUSH_SEGMENTS.max(segments_left + 1)
            || storage.engine.usage().unflushed_bytes
                >= flush_bytes(config.node, config.write_buffer_bytes as u64)
    }

    /// Makes everything applied so far durable in the engine.
    pub(crate) async fn flush(&self) {
        let partitions = self.local_partitions();
        let progress: Vec<_> = partitions.iter().map(|local| local.group().progress()).collect();
        let catalog = self.inner.catalog.machine().progress();
        if let Err(fault) = self.inner.storage.flush().await {
            supervisor::fault(&fault.to_string());
        }
        self.inner.catalog.mark_durable(catalog).await;
        for (local, progress) in partitions.iter().zip(progress) {
            local.group().mark_durable(progress).await;
        }
    }

    /// Keeps the log short: entries that groups keep for replicas that lag go, too, where they are too old, and
    /// flushed.
    async fn purge_overdue(&self) {
        for (group, upto) in self.inner.storage.wal.overdue() {
            if group == GroupId::CATALOG {
                self.inner.catalog.purge(upto).await;
            } else if let Some(local) = self.local_partition(group) {
                local.group().purge(upto).await;
            }
        }
    }

    /// The members of a group this node leads.
    pub(crate) fn members(&self, group: GroupId) -> Result<BTreeSet<ReplicaId>, PartitionError> {
        let local = self.local_partition(group).ok_or(PartitionError::NotHere)?;
        let leadership = local.group().leadership();
        if !leadership.is_me {
            return Err(PartitionError::NotLeader { leader: leadership.leader });
        }
        Ok(local.group().members())
    }

    /// Hands leadership of a group over, if this node has it and the other one's disk keeps up: what a replica has
    /// applied it may not have synced.
    pub(crate) async fn transfer_leadership(&self, group: GroupId, to: ReplicaId) {
        if group == GroupId::CATALOG {
            if self.inner.catalog.status().has_caught_up(to) {
                self.inner.catalog.transfer_leadership(to).await;
            }
        } else if let Some(local) = self.local_partition(group)
            && local.group().status().has_caught_up(to)
        {
            local.group().transfer_leadership(to).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_flush_at_sizes_that_are_far_apart() {
        const BUFFER: u64 = 1 << 20;
        let mut sizes: Vec<_> = (1..=256).map(|node| flush_bytes(NodeId(node), BUFFER)).collect();
        for nodes in sizes.windows(3) {
            let apart = |one: usize, other: usize| nodes[one].abs_diff(nodes[other]);
            let nearest = apart(0, 1).min(apart(0, 2)).min(apart(1, 2));
            assert!(nearest > BUFFER / 20, "{nodes:?}");
        }
        sizes.sort_unstable();
        assert!(sizes[0] > BUFFER / 2 && sizes[255] < BUFFER / 5 * 4 + BUFFER / 100, "{sizes:?}");
        sizes.dedup();
        assert_eq!(sizes.len(), 256);
    }
}
