//! Following the catalog: replicas start and stop as it says, and it learns where this node is.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use ephemeris_raft::StartError;
use ephemeris_store::catalog::{CatalogCommand, CatalogState, ClusterId, Created, PartitionRecord};
use ephemeris_store::ids::{GroupId, ReplicaId};
use ephemeris_store::partition::{Partition, PartitionSpec};
use rand::RngExt as _;
use tokio::time::timeout;
use tracing::{debug, error, info};

use super::Node;
use crate::clock::{self, Instant};
use crate::identity::DataDirectory;
use crate::partition::{LocalReplica, start_replica};
use crate::requests::{NodeRequest, NodeResponse};
use crate::supervisor;

/// How long news of the catalog are waited for at a time.
const NEWS_WAIT: Duration = Duration::from_secs(1);
/// Pause after that, after news, and between attempts to announce this node.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Pause while something is left to do.
const RETRY_EVERY: Duration = Duration::from_millis(200);
/// The same for a replica that could not be started.
const START_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often a node that is known looks whether its copy of the catalog still says so …
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);
/// … and asks the catalog's leader: the copy of a node that was forgotten may get no entry any more.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// How long one attempt to announce this node may take.
const ANNOUNCE_DEADLINE: Duration = Duration::from_secs(5);
/// How long a leader may take to say who its group's members are, or which nodes it knows.
const MEMBERS_DEADLINE: Duration = Duration::from_secs(1);

/// What a node is to the cluster, as its copy of the catalog tells.
enum Standing {
    /// Known as it is.
    Known,
    /// Not known, or not as it is, or there is no cluster yet.
    Unannounced,
    /// Known once, and not shown: the copy is behind, or the node was forgotten.
    Missing,
}

impl Node {
    /// Starts and stops replicas as the catalog says, for ever.
    pub(super) async fn run_follow_catalog(&self) {
        let mut followed = None;
        let mut leftovers = true;
        loop {
            let directory = self.inner.directory.current();
            let lsn = directory.lsn();
            if followed == Some(lsn) && !leftovers {
                if !self.inner.catalog.await_applied(lsn.0 + 1, NEWS_WAIT).await {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                continue;
            }
            self.learn_nodes(directory.state());
            let done = self.follow_partitions(directory.state()).await;
            leftovers = leftovers && self.remove_leftovers(directory.state()).await;
            followed = done.then_some(lsn);
            tokio::time::sleep(if done && !leftovers { LOOK_EVERY } else { RETRY_EVERY }).await;
        }
    }

    /// Takes over addresses, data directories and the cluster's identity.
    fn learn_nodes(&self, state: &CatalogState) {
        let founders = &self.inner.config.founders;
        for record in state.nodes() {
            // What was known before this start may be out of date: then its `--cluster` says better. All nodes may
            // have moved, or these be a copy of nodes that run elsewhere.
            let is_news = Some(record.registered.0) > self.inner.known_at_start;
            match founders.get(&record.node) {
                Some(listed) if !is_news && *listed != record.peer => {
                    info!(node = %record.node, %listed, known = %record.peer, "the address in --cluster counts");
                }
                Some(_) | None => self.inner.transport.set_address(record.node, &record.peer),
            }
        }
        let directories: BTreeMap<_, _> =
            state.nodes().map(|record| (record.node, record.directory)).collect();
        self.inner.identity.set_directories(directories);
        if let Some(cluster) = state.cluster()
            && self.inner.identity.cluster().is_none()
        {
            self.inner.identity.set_cluster(cluster);
            if let Err(error) = self.data().set_cluster(cluster) {
                supervisor::fault(&format!("the identity cannot be saved: {error}"));
            }
        }
    }

    /// Starts, updates and ends replicas; false if something is left to do.
    async fn follow_partitions(&self, state: &CatalogState) -> bool {
        let (mut done, mut all_started) = (true, true);
        for record in state.partitions() {
            match (self.own_replica(record), self.local_partition(record.group)) {
                (Some(replica), Some(local)) if local.group().replica() == replica => {
                    local.update(record.clone());
                }
                (Some(replica), None) => {
                    all_started &= self.start_partition(replica, record).await;
                }
                // The replica must go, or make room for its successor: once its group says so.
                (_, Some(local)) => done &= self.retire(record, &local).await,
                (None, None) => {}
            }
        }
        for local in self.local_partitions() {
            let group = local.group().group();
            if state.partition(group).is_none() {
                self.take_out(group);
                local.remove().await;
                debug!(%group, "partition removed");
            }
        }
        if !all_started {
            // What they have applied counts as durable when they are started anew.
            if let Err(fault) = self.inner.storage.flush().await {
                supervisor::fault(&fault.to_string());
            }
            tokio::time::sleep(START_AGAIN_AFTER).await;
        }
        done && all_started
    }

    /// This node's replica of a partition, if there is one.
    ///
    /// A node that was made anew under its old number learns the catalog from its beginning, and so comes by
    /// replicas of its former life: they have voted and acknowledged, and must not be started empty.
    fn own_replica(&self, record: &PartitionRecord) -> Option<ReplicaId> {
        let replica = record.replica_on(self.node_id());
        replica.filter(|replica| replica.incarnation >= self.since())
    }

    /// The entry of the catalog with which this node's life began, in which it has had its data directory; 0 for
    /// a founder.
    pub(crate) fn since(&self) -> u32 {
        self.inner.catalog.replica().incarnation
    }

    fn data(&self) -> MutexGuard<'_, DataDirectory> {
        self.inner.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take_out(&self, group: GroupId) {
        self.inner.replicas.write().unwrap_or_else(PoisonError::into_inner).remove(&group);
    }

    async fn start_partition(&self, replica: ReplicaId, record: &Arc<PartitionRecord>) -> bool {
        match start_replica(&self.inner.context, replica, record.clone()).await {
            Ok(local) => {
                let mut replicas =
                    self.inner.replicas.write().unwrap_or_else(PoisonError::into_inner);
                replicas.insert(record.group, Arc::new(local));
                true
            }
            // It will not start tomorrow either, and meanwhile nothing of the log that all share could go.
            Err(error @ StartError::LostSnapshot { .. }) => supervisor::fault(&error.to_string()),
            Err(error) => {
                error!(group = %record.group, %error, "a replica could not be started");
                false
            }
        }
    }

    /// Removes a replica that is no longer wanted, once its group has removed it; false until then,
    /// and once more, so that its successor is started.
    async fn retire(&self, record: &PartitionRecord, local: &LocalReplica) -> bool {
        let (group, replica) = (record.group, local.group().replica());
        if self.is_member(record, |member| *member == replica).await {
            return false;
        }
        info!(%group, %replica, "removing a replica that moved away");
        self.take_out(group);
        local.remove().await;
        false
    }

    /// Asks the group's leader about its members; true if it cannot be asked.
    async fn is_member(
        &self,
        record: &PartitionRecord,
        is_it: impl Fn(&ReplicaId) -> bool,
    ) -> bool {
        for replica in &record.replicas {
            let request = NodeRequest::Members(record.group);
            let answer = self.send(replica.node, &request, MEMBERS_DEADLINE).await;
            if let Ok(NodeResponse::Members(Ok(members))) = answer {
                return members.iter().any(&is_it);
            }
        }
        true
    }

    /// Removes what is here of replicas whose removal was interrupted; true if some may be left.
    ///
    /// What this copy of the catalog has never heard of is kept: the copy may just be behind.
    async fn remove_leftovers(&self, state: &CatalogState) -> bool {
        let specs = match Partition::stored(self.inner.storage.engine.as_ref()) {
            Ok(specs) => specs,
            Err(fault) => supervisor::fault(&fault.to_string()),
        };
        let mut groups: BTreeSet<GroupId> = self.inner.storage.wal.groups().into_iter().collect();
        groups.extend(specs.iter().map(|spec| spec.group));
        groups.remove(&GroupId::CATALOG);
        let mut left = false;
        for group in groups {
            if self.local_partition(group).is_some() {
                continue;
            }
            let here = self.node_id();
            let keep = match state.partition(group) {
                None => !state.has_created(group),
                Some(record) if record.replica_on(here).is_some() => true,
                Some(record) => self.is_member(record, |member| member.node == here).await,
            };
            left |= keep;
            if !keep {
                let spec = specs.iter().find(|spec| spec.group == group).copied();
                if let Err(error) = self.remove_leftover(group, spec).await {
                    supervisor::fault(&format!("a replica could not be removed: {error}"));
                }
            }
        }
        left
    }

    async fn remove_leftover(&self, group: GroupId, spec: Option<PartitionSpec>) -> io::Result<()> {
        info!(%group, "removing what is left of a replica");
        let ranges = spec.map_or_else(Vec::new, |spec| Partition::ranges_of(&spec));
        self.inner.storage.remove_leftover(group, ranges).await
    }

    /// Makes the cluster know this node as it is, and gives a new cluster its identity; then this node
    /// learns what was decided while it was away.
    ///
    /// A node that the cluster has forgotten does not register anew: its process ends, for its replicas are void.
    pub(super) async fn run_announcements(&self) {
        let mut asked = None;
        loop {
            let pause = match self.standing() {
                Standing::Known => {
                    self.note_registered();
                    let caught_up = self.catch_up().await;
                    if asked.is_none_or(|asked: Instant| asked.elapsed() >= ASK_EVERY) {
                        self.end_if_forgotten().await;
                        asked = Some(clock::monotonic());
                    }
                    if caught_up { ANNOUNCE_EVERY } else { LOOK_EVERY }
                }
                Standing::Missing => {
                    self.end_if_forgotten().await;
                    RETRY_EVERY
                }
                Standing::Unannounced => {
                    if self.inner.directory.current().state().cluster().is_none() {
                        let cluster = ClusterId(ephemeris_raft::random().random());
                        let founders = self.inner.config.founders.keys().copied().collect();
                        self.announce(CatalogCommand::FormCluster { cluster, founders }).await;
                    }
                    self.announce(self.registration()).await;
                    LOOK_EVERY
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    fn standing(&self) -> Standing {
        let directory = self.inner.directory.current();
        let state = directory.state();
        let record = state.node(self.node_id());
        match record.filter(|record| record.directory == self.inner.directory_id) {
            None if self.data().identity().was_registered() => Standing::Missing,
            Some(record)
                if record.url == self.inner.url
                    && record.peer == self.peer_address()
                    && state.cluster().is_some() =>
            {
                Standing::Known
            }
            Some(_) | None => Standing::Unannounced,
        }
    }

    /// Writes down that this node was registered.
    fn note_registered(&self) {
        let mut data = self.data();
        if !data.identity().was_registered()
            && let Err(error) = data.set_registered()
        {
            supervisor::fault(&format!("the identity cannot be saved: {error}"));
        }
    }

    /// Ends the process if the catalog, as its leader has it, does not know this node any more.
    async fn end_if_forgotten(&self) {
        let me = self.node_id();
        // The leader is asked first, if it is this node: it may be forgotten, and lead until it ends.
        if let Ok(Ok(known)) = timeout(MEMBERS_DEADLINE, self.known_directory(me)).await {
            return self.end_unless_known(known);
        }
        for node in self.catalog_nodes().into_iter().filter(|node| *node != me) {
            let answer = self.send(node, &NodeRequest::KnownDirectory, MEMBERS_DEADLINE).await;
            if let Ok(NodeResponse::KnownDirectory(Ok(known))) = answer {
                return self.end_unless_known(known);
            }
        }
    }

    fn end_unless_known(&self, known: Option<u128>) {
        if known != Some(self.inner.directory_id) {
            self.end_forgotten();
        }
    }

    fn end_forgotten(&self) -> ! {
        let (node, directory) = (self.node_id(), self.inner.config.data_dir.display());
        supervisor::fault(&format!(
            "the cluster has forgotten node {node}, and its data is void. Do not start it again; or run \
             `ephemeris rebuild-node {node} --data-dir {directory} --http URL`, with the URL of a healthy \
             node, and start it as a new one"
        ))
    }

    /// Waits once for everything the catalog holds; false if that is still to come.
    async fn catch_up(&self) -> bool {
        if self.is_caught_up() {
            return true;
        }
        let deadline = clock::monotonic() + ANNOUNCE_DEADLINE;
        let caught_up = self.catalog_barrier(deadline).await.is_ok();
        // Whoever sees this sees what was waited for.
        self.inner.is_caught_up.store(caught_up, Ordering::Release);
        caught_up
    }

    fn peer_address(&self) -> &str {
        self.inner.config.founders.get(&self.node_id()).map_or("", String::as_str)
    }

    fn registration(&self) -> CatalogCommand {
        CatalogCommand::RegisterNode {
            node: self.node_id(),
            directory: self.inner.directory_id,
            peer: self.peer_address().to_string(),
            url: self.inner.url.clone(),
            founder: self.inner.catalog.replica().incarnation == 0,
        }
    }

    async fn announce(&self, command: CatalogCommand) {
        let deadline = clock::monotonic() + ANNOUNCE_DEADLINE;
        match self.change_catalog(command, deadline).await {
            Ok(outcome) => match outcome.result {
                // Forgotten a moment ago, and registered anew: what runs here is not that replica.
                Ok(Created::Node(replica)) if replica != self.inner.catalog.replica() => {
                    self.end_forgotten();
                }
                Ok(_) => {}
                Err(refusal) => supervisor::fault(&refusal.to_string()),
            },
            Err(error) => debug!(%error, "not announced yet"),
        }
    }
}
