//! What `GET /admin/status` says.

use serde::Deserialize;
use serde_json::Value;

use crate::client::{Call, Client, Container};

/// Replicas of a partition, if there are enough nodes.
const REPLICAS_MAX: usize = 3;

/// The cluster as one node sees it.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// The cluster's identity.
    pub cluster: Option<String>,
    /// The nodes.
    pub nodes: Vec<NodeStatus>,
    /// The catalog and every partition.
    pub groups: Vec<GroupStatus>,
}

/// A node.
#[derive(Clone, Debug, Deserialize)]
pub struct NodeStatus {
    /// Its number.
    pub node: u32,
    /// Where clients reach it.
    pub url: String,
    /// True if it answered.
    pub reachable: bool,
}

/// The catalog or a partition.
#[derive(Clone, Debug, Deserialize)]
pub struct GroupStatus {
    /// Its number.
    pub group: u64,
    /// What it holds: text for the catalog, database and container of a partition.
    of: Value,
    /// The node that leads it.
    pub leader: Option<u32>,
    /// The nodes that vote, as the leader says, and whether it still needs those that voted before.
    voters: Option<Vec<u32>>,
    changing_voters: Option<bool>,
    /// Its replicas on nodes that answered.
    pub replicas: Vec<ReplicaStatus>,
}

/// A replica.
#[derive(Clone, Debug, Deserialize)]
pub struct ReplicaStatus {
    /// Its node.
    pub node: u32,
    /// Entries it has not applied yet.
    pub lag: Option<u64>,
    /// Items it stores.
    pub items: Option<u64>,
    /// Why it stopped, if it has.
    pub stopped: Option<String>,
}

impl Status {
    /// Asks a node; none if it does not answer.
    pub async fn of(node: &Client) -> Option<Self> {
        let answer = node.send(&Call::get("/admin/status")).await.ok()?;
        serde_json::from_slice(&answer.body).ok()
    }

    /// The partitions of a container.
    pub fn partitions(&self, container: &Container) -> Vec<&GroupStatus> {
        self.groups.iter().filter(|group| group.is_of(container)).collect()
    }

    /// True if every group has a leader, and as many replicas as it should have on so many nodes, which
    /// have applied all of its entries.
    pub fn is_settled(&self, nodes: usize) -> bool {
        self.has_copies(nodes, 0)
    }

    /// The same of replicas that lack no more entries than this.
    pub fn has_copies(&self, nodes: usize, lag_max: u64) -> bool {
        self.groups.iter().all(|group| {
            let near = |replica: &&ReplicaStatus| replica.lag.is_some_and(|lag| lag <= lag_max);
            let copies = group.replicas.iter().filter(near).count();
            group.leader.is_some() && copies == group.copies(nodes) && group.can_lose_one(nodes)
        })
    }
}

impl GroupStatus {
    /// Replicas it should have on so many nodes: the catalog is on each of them.
    pub fn copies(&self, nodes: usize) -> usize {
        if self.of == "catalog" { nodes } else { nodes.min(REPLICAS_MAX) }
    }

    /// True if all copies vote, as far as they should: of the catalog's an odd number does.
    fn can_lose_one(&self, nodes: usize) -> bool {
        let voters = self.voters.as_ref().map_or(0, Vec::len);
        self.changing_voters == Some(false)
            && (self.of == "catalog" || voters == self.copies(nodes))
    }

    fn is_of(&self, container: &Container) -> bool {
        self.of["database"] == container.database() && self.of["container"] == container.name()
    }
}
