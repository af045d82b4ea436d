//! Who is speaking: the first frame of a connection, and whether it is believed.

use std::sync::{Arc, PoisonError, RwLock};

use ephemeris_store::catalog::ClusterId;
use ephemeris_store::ids::NodeId;
use ephemeris_raft::Lane;
use serde::{Deserialize, Serialize};

use super::Channel;

/// Version of what nodes say to each other; others are refused.
const PROTOCOL: u32 = 1;

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Version of the protocol.
    pub(crate) protocol: u32,
    /// The cluster it belongs to, if it knows.
    pub(crate) cluster: Option<ClusterId>,
    /// Its number.
    pub(crate) node: NodeId,
    /// Its data directory.
    pub(crate) directory: u128,
    /// What the connection is for: 0 append, 1 control, 2 snapshot, 3 requests.
    channel: u8,
}

/// Why a connection was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Refused {
    /// Another version of the protocol.
    #[error("node speaks protocol {theirs}, we speak {ours}")]
    Protocol {
        /// Ours.
        ours: u32,
        /// Theirs.
        theirs: u32,
    },
    /// Another cluster.
    #[error("the nodes belong to different clusters; check --cluster and --data-dir")]
    Cluster,
    /// The node is known with other data: it lost its disk.
    #[error(
        "node {node} is known with another data directory: its data was lost or replaced. \
         Run `ephemeris forget-node {node} --http URL` at a healthy node, then start it again"
    )]
    LostData {
        /// The node.
        node: NodeId,
    },
    /// The first frame was no greeting.
    #[error("the greeting is malformed")]
    Malformed,
}

impl Hello {
    /// What the connection is for.
    pub(super) fn channel(&self) -> Option<Channel> {
        match self.channel {
            0 => Some(Channel::Raft(Lane::Append)),
            1 => Some(Channel::Raft(Lane::Control)),
            2 => Some(Channel::Raft(Lane::Snapshot)),
            3 => Some(Channel::Requests),
            _ => None,
        }
    }
}

/// What this node says of itself; the cluster becomes known later. Clones share it.
#[derive(Clone)]
pub(crate) struct LocalIdentity {
    node: NodeId,
    directory: u128,
    cluster: Arc<RwLock<Option<ClusterId>>>,
}

impl LocalIdentity {
    /// The identity of this node.
    pub(crate) fn new(node: NodeId, directory: u128, cluster: Option<ClusterId>) -> Self {
        Self { node, directory, cluster: Arc::new(RwLock::new(cluster)) }
    }

    /// Learns which cluster this is.
    pub(crate) fn set_cluster(&self, cluster: ClusterId) {
        *self.cluster.write().unwrap_or_else(PoisonError::into_inner) = Some(cluster);
    }

    /// The cluster, if it is known.
    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        *self.cluster.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// This node.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// The greeting for a channel.
    pub(super) fn hello(&self, channel: Channel) -> HelloMaker {
        let channel = match channel {
            Channel::Raft(Lane::Append) => 0,
            Channel::Raft(Lane::Control) => 1,
            Channel::Raft(Lane::Snapshot) => 2,
            Channel::Requests => 3,
        };
        HelloMaker { identity: self.clone(), channel }
    }

    /// Whether to believe another node's greeting, given what the catalog knows.
    pub(super) fn check(&self, hello: &Hello, policy: &dyn PeerPolicy) -> Result<(), Refused> {
        if hello.protocol != PROTOCOL {
            return Err(Refused::Protocol { ours: PROTOCOL, theirs: hello.protocol });
        }
        let clusters = (self.cluster(), hello.cluster);
        if let (Some(ours), Some(theirs)) = clusters
            && ours != theirs
        {
            return Err(Refused::Cluster);
        }
        match policy.known_directory(hello.node) {
            Some(known) if known != hello.directory => {
                Err(Refused::LostData { node: hello.node })
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Makes greetings as of the moment they are sent.
#[derive(Clone)]
pub(super) struct HelloMaker {
    identity: LocalIdentity,
    channel: u8,
}

impl HelloMaker {
    pub(super) fn make(&self) -> Hello {
        let LocalIdentity { node, directory, .. } = self.identity;
        let cluster = self.identity.cluster();
        Hello { protocol: PROTOCOL, cluster, node, directory, channel: self.channel }
    }
}

/// What the catalog knows of nodes.
pub(crate) trait PeerPolicy: Send + Sync + 'static {
    /// The data directory a node is known with.
    fn known_directory(&self, node: NodeId) -> Option<u128>;
}
