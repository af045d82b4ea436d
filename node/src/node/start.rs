//! Starting: storage, the catalog's replica, and a place in the cluster.
//!
//! A node with an empty directory may be one of the founders of a new cluster, or one that lost its
//! disk. It takes part in nothing until every other founder has told it that there is no cluster
//! yet: a vote of a node that forgot its earlier votes could undo what was committed.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use ephemeris_raft::{Group, GroupOptions, Quiescence, Router, StartError, Storage};
use ephemeris_store::catalog::{Catalog, CatalogCommand, CatalogOutcome, CatalogRefusal, Created};
use ephemeris_store::codec;
use ephemeris_store::engine::Fault;
use ephemeris_store::ids::{GroupId, NodeId, ReplicaId};
use rand::RngExt as _;
use thiserror::Error;
use tracing::{info, warn};

use super::{Inner, Node};
use crate::clock::{self, QuorumClock, SharedClock, SystemClock, TimeSource};
use crate::config::NodeConfig;
use crate::identity::{DataDirectory, IdentityError};
use crate::partition::{PartitionError, ReplicaContext};
use crate::placement::{Balancer, Directory};
use crate::platform::{Network, Platform, StorageError};
use crate::requests::{NodeRequest, NodeResponse, Probed};
use crate::supervisor::{self, Tasks};
use crate::transport::{Channel, LocalIdentity, PeerTransport, RequestHandler};

/// How long founders wait for the first of them to form the catalog's group.
const FORM_DELAY: Duration = Duration::from_millis(2500);
/// How long another node may take to say whether there is a cluster.
const PROBE_DEADLINE: Duration = Duration::from_millis(500);
/// Pause between questions.
const PROBE_PAUSE: Duration = Duration::from_millis(50);
/// How often a node that waits for others says so.
const WAIT_NOTICE_EVERY: Duration = Duration::from_secs(5);
/// How long a node tries to be taken in by an existing cluster.
const JOIN_DEADLINE: Duration = Duration::from_mins(1);
/// How long one attempt may take.
const JOIN_ATTEMPT_DEADLINE: Duration = Duration::from_secs(2);
const JOIN_PAUSE: Duration = Duration::from_millis(200);

/// Why a node could not start.
#[derive(Debug, Error)]
pub(crate) enum StartupError {
    /// The data directory is not usable.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Engine, log or snapshots are not usable.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The catalog cannot be read.
    #[error("the catalog cannot be read: {0}")]
    Catalog(#[from] Fault),
    /// The log is not there, though the node was a member.
    #[error(
        "node {node} is a member of the cluster, but its log is gone from {directory}. Restore the \
         data directory as a whole; or run `ephemeris rebuild-node {node} --data-dir {directory} \
         --http URL`, with the URL of a healthy node, and start again"
    )]
    LostLog {
        /// The node.
        node: NodeId,
        /// Its data directory.
        directory: String,
    },
    /// A replica could not be started.
    #[error(transparent)]
    Group(#[from] StartError),
    /// The address for other nodes cannot be used.
    #[error("--peer {address} cannot be listened on: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The cluster knows this node with other data.
    #[error(
        "node {node} is known to the cluster with another data directory: its data was lost or \
         replaced. Run `ephemeris rebuild-node {node} --data-dir {directory} --http URL`, with the URL \
         of a healthy node, and start it again as a new one"
    )]
    LostData {
        /// The node.
        node: NodeId,
        /// Its data directory.
        directory: String,
    },
    /// The cluster does not take this node in.
    #[error(transparent)]
    NotAdmitted(#[from] CatalogRefusal),
    /// There is a cluster, and nobody who could take this node in.
    #[error(
        "the cluster exists, but its catalog has no leader that would let node {node} join: start its other nodes, \
         a majority at least, then this one again"
    )]
    NoLeader {
        /// The node.
        node: NodeId,
    },
    /// A node that would run alone has others, by the data it has.
    #[error(
        "{directory} is of a node whose cluster has others, {others}, and a node alone cannot be reached by them: run \
         it by `ephemeris start`"
    )]
    HasOthers {
        /// Its data directory.
        directory: String,
        /// Their numbers.
        others: String,
    },
}

type Result<T> = std::result::Result<T, StartupError>;

/// Answers other nodes, also before this one is whole.
struct Reception {
    /// Set once the node can answer for itself.
    node: OnceLock<Node>,
    /// True while the node waits to found a cluster.
    founding: AtomicBool,
    /// Founders that are known to wait, too: only such send probes.
    heard: Mutex<BTreeSet<NodeId>>,
}

impl Reception {
    fn new() -> Self {
        let (node, founding) = (OnceLock::new(), AtomicBool::new(false));
        Self { node, founding, heard: Mutex::default() }
    }

    fn note(&self, node: NodeId) {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).insert(node);
    }

    fn has_heard(&self, node: NodeId) -> bool {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).contains(&node)
    }

    fn answer_early(&self, from: NodeId, request: &[u8]) -> std::result::Result<Bytes, String> {
        let request = codec::decode(request).map_err(|error| error.to_string())?;
        let founding = self.founding.load(std::sync::atomic::Ordering::SeqCst);
        if !(founding && matches!(request, NodeRequest::Probe)) {
            return Err("the node is starting".to_string());
        }
        self.note(from);
        let probed = Probed { formed: false, known_directory: None };
        Ok(Bytes::from(codec::encode(&NodeResponse::Probe(probed))))
    }
}

impl RequestHandler for Reception {
    fn handle(
        &self,
        from: NodeId,
        request: Bytes,
    ) -> Pin<Box<dyn Future<Output = std::result::Result<Bytes, String>> + Send>> {
        match self.node.get() {
            Some(node) => node.handle(from, request),
            None => Box::pin(std::future::ready(self.answer_early(from, &request))),
        }
    }
}

/// The parts of a node that must exist before its catalog can start.
struct Foundation {
    config: NodeConfig,
    /// Where clients reach this node.
    url: String,
    network: Arc<dyn Network>,
    time: Arc<dyn TimeSource>,
    clock: SharedClock,
    quorum: Option<Arc<QuorumClock>>,
    tasks: Tasks,
    data: DataDirectory,
    identity: LocalIdentity,
    storage: Storage,
    transport: PeerTransport,
    router: Router,
    options: GroupOptions,
    reception: Arc<Reception>,
}

impl Foundation {
    fn lay(
        platform: &dyn Platform,
        config: NodeConfig,
        http: SocketAddr,
        tasks: Tasks,
    ) -> Result<Self> {
        let random = ephemeris_raft::random().random();
        let data = DataDirectory::open(platform.data(), config.node, random)?;
        let known = data.identity();
        let identity = LocalIdentity::new(config.node, known.directory(), known.cluster());
        let nodes = config.founders.len();
        let (time, width_max) = (platform.time(), config.clock_width_max);
        // A cluster of one may grow.
        let is_alone = config.peer.is_none();
        let quorum =
            (!is_alone).then(|| Arc::new(QuorumClock::new(nodes, width_max, time.clone())));
        let clock: SharedClock = match &quorum {
            Some(quorum) => quorum.clone(),
            None => Arc::new(SystemClock::new(time.clone())),
        };
        let (storage, network) =
            (platform.open_storage(known.catalog_replica().is_some())?, platform.network());
        let addresses = (config.founders.clone(), config.dial.clone());
        let transport =
            PeerTransport::new(tasks.clone(), network.clone(), identity.clone(), addresses);
        let options = GroupOptions {
            heartbeat: config.heartbeat,
            election_min: config.election_timeout,
            election_max: config.election_timeout + config.heartbeat,
            log_entries_kept: config.log_entries_kept,
            ..GroupOptions::default()
        };
        Ok(Self {
            url: config
                .advertise
                .clone()
                .unwrap_or_else(|| format!("{}://{http}/", config.scheme())),
            config,
            network,
            time,
            clock,
            quorum,
            tasks,
            data,
            identity,
            storage,
            transport,
            router: Router::new(),
            options,
            reception: Arc::new(Reception::new()),
        })
    }

    async fn listen(&self) -> Result<()> {
        let Some(address) = self.config.peer else { return Ok(()) };
        let listener = self.network.listen(address).await;
        let listener = listener.map_err(|source| StartupError::Listen { address, source })?;
        let identity = self.identity.clone();
        let (router, reception) = (self.router.clone(), self.reception.clone());
        crate::transport::serve(&self.tasks, listener, identity, router, reception);
        Ok(())
    }

    /// The node's replica of the catalog: the one it has, the one a founder gets, or the one an
    /// existing cluster gives it.
    async fn catalog_replica(&self) -> Result<ReplicaId> {
        let node = self.config.node;
        let has_log = self.storage.wal.groups().contains(&GroupId::CATALOG);
        if let Some(replica) = self.data.identity().catalog_replica() {
            if self.data.identity().cluster().is_some() && !has_log {
                let directory = self.config.data_dir.display().to_string();
                return Err(StartupError::LostLog { node, directory });
            }
            return Ok(replica);
        }
        match self.find_cluster().await? {
            None => Ok(ReplicaId { node, incarnation: 0 }),
            Some(helper) => {
                info!(%helper, "the cluster exists already; joining it");
                self.join(helper).await
            }
        }
    }

    /// A node of the cluster, if there is one; none once all other founders wait like this one.
    async fn find_cluster(&self) -> Result<Option<NodeId>> {
        let founding = &self.reception.founding;
        founding.store(true, std::sync::atomic::Ordering::SeqCst);
        let others = || self.config.founders.keys().filter(|node| **node != self.config.node);
        let mut noticed = clock::monotonic();
        loop {
            for other in others().filter(|node| !self.reception.has_heard(**node)) {
                match self.probe(*other).await {
                    Some(Probed { formed: true, known_directory }) => {
                        let mine = self.data.identity().directory();
                        if known_directory.is_some_and(|known| known != mine) {
                            let directory = self.config.data_dir.display().to_string();
                            let node = self.config.node;
                            return Err(StartupError::LostData { node, directory });
                        }
                        return Ok(Some(*other));
                    }
                    Some(Probed { formed: false, .. }) => self.reception.note(*other),
                    None => {}
                }
            }
            let missing: Vec<String> = others()
                .filter(|node| !self.reception.has_heard(**node))
                .map(ToString::to_string)
                .collect();
            if missing.is_empty() {
                return Ok(None);
            }
            if noticed.elapsed() >= WAIT_NOTICE_EVERY {
                noticed = clock::monotonic();
                warn!(
                    missing = missing.join(","),
                    "waiting for nodes, to form the cluster with them"
                );
            }
            tokio::time::sleep(PROBE_PAUSE).await;
        }
    }

    async fn probe(&self, node: NodeId) -> Option<Probed> {
        let answer = self.ask(node, &NodeRequest::Probe, PROBE_DEADLINE).await?;
        let NodeResponse::Probe(probed) = answer else { return None };
        Some(probed)
    }

    async fn ask(
        &self,
        node: NodeId,
        request: &NodeRequest,
        deadline: Duration,
    ) -> Option<NodeResponse> {
        let message = codec::encode(request).into();
        let answer = self.transport.send(node, Channel::Requests, message, deadline).await.ok()?;
        codec::decode(&answer).ok()
    }

    /// Registers with the cluster, asking one node after the other for the catalog's leader.
    async fn join(&self, first: NodeId) -> Result<ReplicaId> {
        let node = self.config.node;
        let request = NodeRequest::Catalog(CatalogCommand::RegisterNode {
            node,
            directory: self.data.identity().directory(),
            peer: self.config.founders[&node].clone(),
            url: self.url.clone(),
            founder: false,
        });
        let deadline = clock::monotonic() + JOIN_DEADLINE;
        let others: Vec<NodeId> =
            self.config.founders.keys().copied().filter(|other| *other != node).collect();
        let mut others = others.iter().copied().cycle();
        let mut target = first;
        while clock::monotonic() < deadline {
            match self.ask(target, &request, JOIN_ATTEMPT_DEADLINE).await {
                // The catalog's own word: an earlier attempt may have been carried out, too.
                Some(NodeResponse::Catalog(Ok(CatalogOutcome {
                    result: Ok(Created::Node(replica)),
                    ..
                }))) => return Ok(replica),
                Some(NodeResponse::Catalog(Ok(CatalogOutcome {
                    result: Err(refusal), ..
                }))) => return Err(refusal.into()),
                Some(NodeResponse::Catalog(Err(PartitionError::NotLeader {
                    leader: Some(leader),
                }))) => target = leader.node,
                // Who was named leader may have died, or be somewhere that nobody has told.
                _ => target = others.next().unwrap_or(first),
            }
            tokio::time::sleep(JOIN_PAUSE).await;
        }
        Err(StartupError::NoLeader { node })
    }
}

impl Node {
    /// Starts a node over its data directory; `http` is where its gateway listens.
    pub(crate) async fn start(
        platform: &dyn Platform,
        config: NodeConfig,
        http: SocketAddr,
        tasks: Tasks,
    ) -> Result<Self> {
        let mut foundation = Foundation::lay(platform, config, http, tasks)?;
        foundation.listen().await?;
        let replica = foundation.catalog_replica().await?;
        foundation.data.set_catalog_replica(replica)?;
        let reception = foundation.reception.clone();
        let node = Self::assemble(foundation, replica).await?;
        assert!(reception.node.set(node.clone()).is_ok(), "a node is assembled once");
        if replica.incarnation == 0 {
            node.form_catalog().await?;
        }
        if node.inner.config.peer.is_none() {
            node.refuse_others().await?;
        }
        node.run_background();
        Ok(node)
    }

    async fn assemble(foundation: Foundation, replica: ReplicaId) -> Result<Self> {
        let Foundation { storage, transport, router, options, .. } = &foundation;
        let logged = storage.wal.bounds(GroupId::CATALOG).last.map(|last| last.index);
        // What was decided before a node joined is no news to it either.
        let joined = (replica.incarnation > 0).then_some(u64::from(replica.incarnation));
        let known_at_start = logged.max(joined);
        let catalog = Group::start(
            GroupId::CATALOG,
            replica,
            Catalog::open(storage.engine.clone())?,
            storage.clone(),
            Arc::new(transport.clone()),
            router.clone(),
            options,
        )
        .await?;
        let directory = Directory::new(catalog.machine().clone());
        let context = ReplicaContext {
            storage: storage.clone(),
            transport: Arc::new(transport.clone()),
            router: router.clone(),
            options: options.clone(),
            clock: foundation.clock.clone(),
            purge_grace: foundation.config.purge_grace,
            burst: foundation.config.burst,
            directory: directory.clone(),
            tasks: foundation.tasks.clone(),
        };
        let Foundation { config, url, time, clock, quorum, tasks, data, identity, storage, .. } =
            foundation;
        let transport = foundation.transport;
        let (background, catalog_watch) = (tasks.child(), tasks.child());
        let inner = Inner {
            known_at_start,
            directory_id: data.identity().directory(),
            config,
            time,
            clock,
            quorum,
            background,
            identity,
            storage,
            transport,
            catalog,
            catalog_watch,
            directory,
            replicas: RwLock::default(),
            context,
            leaders: Mutex::default(),
            data: Mutex::new(data),
            is_caught_up: AtomicBool::new(false),
            catalog_as_of: Mutex::default(),
            draining: AtomicBool::new(false),
            url,
        };
        let node = Self { inner: Arc::new(inner) };
        // A node alone has nobody to ask. Others begin once they have heard a majority.
        if let Some(quorum) = &node.inner.quorum
            && node.others_with_clocks().is_empty()
        {
            quorum.settle(&[]);
        }
        Ok(node)
    }

    /// Forms the catalog's group, unless it is formed: the founder with the lowest number at once, so
    /// that nobody has to wait for an election; the others only if it does not come.
    async fn form_catalog(&self) -> Result<()> {
        let founder = |node: &NodeId| ReplicaId { node: *node, incarnation: 0 };
        let founders: Vec<ReplicaId> = self.inner.config.founders.keys().map(founder).collect();
        let first = founders.first().map(|replica| replica.node);
        if first == Some(self.inner.config.node) {
            self.inner.catalog.form(&founders).await?;
            return Ok(());
        }
        let catalog = self.inner.catalog.clone();
        self.inner.background.spawn("form catalog", async move {
            tokio::time::sleep(FORM_DELAY).await;
            if !catalog.is_formed().await
                && let Err(error) = catalog.form(&founders).await
            {
                warn!(%error, "the catalog's group could not be formed");
            }
        });
        Ok(())
    }

    /// Refuses to run without the others of a cluster. They would not hear of this node, and what it does by its
    /// own clock would be wrong for them.
    async fn refuse_others(&self) -> Result<()> {
        // The members are known once the replica has answered anything.
        self.inner.catalog.is_formed().await;
        let others: Vec<String> =
            self.others_with_clocks().iter().map(ToString::to_string).collect();
        if others.is_empty() {
            return Ok(());
        }
        let directory = self.inner.config.data_dir.display().to_string();
        Err(StartupError::HasOthers { directory, others: others.join(", ") })
    }

    fn run_background(&self) {
        let tasks = &self.inner.background;
        let catalog = self.inner.catalog.clone();
        self.inner.catalog_watch.spawn("catalog replica", async move {
            let reason = catalog.stopped().await;
            supervisor::replica_fault(GroupId::CATALOG, catalog.replica(), &reason);
        });
        let node = self.clone();
        tasks.spawn("follow catalog", async move { node.run_follow_catalog().await });
        let node = self.clone();
        tasks.spawn("announce", async move { node.run_announcements().await });
        if let Some(clock) = self.inner.quorum.clone() {
            let node = self.clone();
            tasks.spawn("clocks", async move { node.run_clock_samples(clock).await });
        }
        let context = &self.inner.context;
        let quiescence = Quiescence {
            router: context.router.clone(),
            transport: context.transport.clone(),
            options: context.options.clone(),
        };
        tasks.spawn("quiescence", quiescence.run());
        let node = self.clone();
        tasks.spawn("flush", async move { node.run_flushes().await });
        if self.inner.config.peer.is_some() {
            let balancer = Balancer::new(self.clone());
            tasks.spawn("balancer", balancer.run());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;
    use crate::platform::OperatingSystem;

    #[tokio::test]
    async fn a_node_of_a_cluster_does_not_run_alone() {
        let directory = tempfile::tempdir().unwrap();
        let data_dir = directory.path().join("data");
        let config = NodeConfig::single(&Settings { data_dir, ..Settings::default() }).unwrap();
        let start = async |tasks: &Tasks| {
            let machine = OperatingSystem::take(&config).unwrap();
            Node::start(&machine, config.clone(), config.http, tasks.clone()).await
        };
        let tasks = Tasks::new();
        let node = start(&tasks).await.expect("a node alone runs alone");
        let other = CatalogCommand::RegisterNode {
            node: NodeId(2),
            directory: 2,
            peer: "n2:7000".to_string(),
            url: "http://n2:8081/".to_string(),
            founder: false,
        };
        // Until it leads, it is refused.
        while node.propose_to_catalog(other.clone()).await.is_err() {
            tokio::task::yield_now().await;
        }
        node.stop().await;
        tasks.stop().await;
        drop(node);
        let refused = start(&Tasks::new()).await.err().expect("it has another");
        assert!(matches!(&refused, StartupError::HasOthers { others, .. } if others == "2"));
        assert!(refused.to_string().contains("`ephemeris start`"), "{refused}");
    }
}
