//! Who is speaking: the first frame of a connection, and whether it is believed.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use ephemeris_raft::Lane;
use ephemeris_store::catalog::ClusterId;
use ephemeris_store::ids::NodeId;
use serde::{Deserialize, Serialize};

use super::Channel;

/// Version of what nodes say to each other; others are refused.
pub(crate) const PROTOCOL: u32 = 20;

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Version of the protocol: the first part in every version, so that it can be read by itself.
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
    // Both sides log it.
    #[error(
        "the nodes speak different protocols, {ours} and {theirs}: they run different versions of Ephemeris. Stop \
         all nodes, and start all of them with the same version"
    )]
    Protocol {
        /// That of whoever refuses.
        ours: u32,
        /// That of whoever is refused.
        theirs: u32,
    },
    /// Another cluster.
    #[error("the nodes belong to different clusters; check --cluster and --data-dir")]
    Cluster,
    /// The node is known with other data: it lost its disk.
    #[error(
        "node {node} is known with another data directory: its data was lost or replaced. \
         Run `ephemeris rebuild-node {node} --data-dir DIR --http URL`, with its data directory and the URL of \
         a healthy node, then start it again as a new one"
    )]
    LostData {
        /// The node.
        node: NodeId,
    },
    /// Another node than the address list says.
    #[error("node {found} answers where node {wanted} should be; check --cluster")]
    AnotherNode {
        /// Who was called.
        wanted: NodeId,
        /// Who answered.
        found: NodeId,
    },
    /// The first frame was no greeting.
    #[error("the greeting is malformed")]
    Malformed,
}

impl Hello {
    fn channel(&self) -> Option<Channel> {
        match self.channel {
            0 => Some(Channel::Raft(Lane::Append)),
            1 => Some(Channel::Raft(Lane::Control)),
            2 => Some(Channel::Raft(Lane::Snapshot)),
            3 => Some(Channel::Requests),
            _ => None,
        }
    }
}

/// Whether a node speaks as this one does.
pub(super) fn check_protocol(theirs: u32) -> Result<(), Refused> {
    if theirs == PROTOCOL { Ok(()) } else { Err(Refused::Protocol { ours: PROTOCOL, theirs }) }
}

/// Who this node is, and what it knows of others. Clones share it.
#[derive(Clone)]
pub(crate) struct LocalIdentity {
    node: NodeId,
    directory: u128,
    known: Arc<RwLock<Known>>,
}

/// What the catalog told so far.
#[derive(Default)]
struct Known {
    cluster: Option<ClusterId>,
    directories: BTreeMap<NodeId, u128>,
}

impl LocalIdentity {
    /// The identity of this node.
    pub(crate) fn new(node: NodeId, directory: u128, cluster: Option<ClusterId>) -> Self {
        let known = Known { cluster, directories: BTreeMap::new() };
        Self { node, directory, known: Arc::new(RwLock::new(known)) }
    }

    /// Learns which cluster this is.
    pub(crate) fn set_cluster(&self, cluster: ClusterId) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).cluster = Some(cluster);
    }

    /// Learns with which data directories nodes are known.
    pub(crate) fn set_directories(&self, directories: BTreeMap<NodeId, u128>) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).directories = directories;
    }

    /// The cluster, if it is known.
    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).cluster
    }

    /// What this node says of itself on a channel, as of now.
    pub(super) fn hello(&self, channel: Channel) -> Hello {
        let channel = match channel {
            Channel::Raft(Lane::Append) => 0,
            Channel::Raft(Lane::Control) => 1,
            Channel::Raft(Lane::Snapshot) => 2,
            Channel::Requests => 3,
        };
        let Self { node, directory, .. } = *self;
        Hello { protocol: PROTOCOL, cluster: self.cluster(), node, directory, channel }
    }

    /// Whether to believe another node's greeting; returns what the connection is for.
    ///
    /// A node that lost its data may still ask what to do about it, but takes no part in any group.
    pub(super) fn check(&self, hello: &Hello) -> Result<Channel, Refused> {
        check_protocol(hello.protocol)?;
        let channel = hello.channel().ok_or(Refused::Malformed)?;
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let (Some(ours), Some(theirs)) = (known.cluster, hello.cluster)
            && ours != theirs
        {
            return Err(Refused::Cluster);
        }
        let directory = known.directories.get(&hello.node);
        match channel {
            Channel::Raft(_) if directory.is_some_and(|known| *known != hello.directory) => {
                Err(Refused::LostData { node: hello.node })
            }
            Channel::Raft(_) | Channel::Requests => Ok(channel),
        }
    }

    /// True if a refusal shows that this node has lost the data it is known for. Who refuses may have an old copy
    /// of the catalog: it is so if our own shows this directory, for none is registered again after another.
    pub(super) fn has_lost_data(&self, refused: &Refused) -> bool {
        match refused {
            Refused::LostData { node } if *node == self.node => {
                let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
                known.directories.get(node) != Some(&self.directory)
            }
            Refused::LostData { .. }
            | Refused::Protocol { .. }
            | Refused::Cluster
            | Refused::AnotherNode { .. }
            | Refused::Malformed => false,
        }
    }

    /// Whether to believe the node that answers a call to `wanted`.
    pub(super) fn check_answer(&self, wanted: NodeId, hello: &Hello) -> Result<(), Refused> {
        if hello.node != wanted {
            return Err(Refused::AnotherNode { wanted, found: hello.node });
        }
        self.check(hello).map(|_| ())
    }
}
