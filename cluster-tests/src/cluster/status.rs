//! What `GET /admin/status` says.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::client::{Call, Client, Container};

/// Replicas of a partition, if there are enough nodes.
const REPLICAS_MAX: usize = 3;
/// Clocks that agree, and whose questions take a while on a busy machine, seem to be no farther apart.
const CLOCKS_APART_MS_MAX: f64 = 100.0;

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
    /// What it knows of the time, if it answered.
    clock: Option<ClockStatus>,
}

/// A node's clock.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClockStatus {
    /// How long ago a majority of the clocks agreed with what it goes by; none if one never did.
    agreed_ms_ago: Option<f64>,
    /// How far the other nodes' clocks are ahead of its own, as they told last.
    others_ahead_ms: BTreeMap<String, f64>,
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
    #[serde(rename = "changingVoters")]
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
    /// A checksum of all that ever changed in it; none of the catalog.
    pub digest: Option<Digest>,
    /// Why it stopped, if it has.
    pub stopped: Option<String>,
}

/// A checksum of all that ever changed in a replica, as of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Digest {
    /// The entry.
    pub entry: u64,
    /// The checksum, in hexadecimal digits.
    pub crc32c: String,
}

impl Status {
    /// Asks a node; none if it does not answer.
    pub async fn of(node: &Client) -> Option<Self> {
        let answer = node.send(&Call::get("/admin/status")).await.ok()?;
        serde_json::from_slice(&answer.body).ok()
    }

    /// True if the clocks of all nodes agree, and went by what they agree on no longer ago than this.
    pub fn clocks_have_agreed(&self, within: Duration) -> bool {
        let agrees = |clock: &ClockStatus| clock.agrees(within);
        self.nodes.iter().all(|node| node.clock.as_ref().is_some_and(agrees))
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

impl ClockStatus {
    fn agrees(&self, within: Duration) -> bool {
        let is_near = |ahead: &f64| ahead.abs() <= CLOCKS_APART_MS_MAX;
        self.agreed_ms_ago.is_some_and(|ago| ago <= within.as_secs_f64() * 1000.0)
            && self.others_ahead_ms.values().all(is_near)
    }
}

impl GroupStatus {
    /// Replicas it should have on so many nodes: the catalog is on each of them.
    pub fn copies(&self, nodes: usize) -> usize {
        if self.of == "catalog" { nodes } else { nodes.min(REPLICAS_MAX) }
    }

    /// True if replicas do not hold the same after the same entry; none if they were not asked after the
    /// same.
    pub fn differs(&self) -> Option<bool> {
        let entry = |replica: &ReplicaStatus| replica.digest.as_ref().map(|digest| digest.entry);
        let holds = |replica: &ReplicaStatus| (replica.items, replica.digest.clone());
        let mut pairs = self.replicas.windows(2);
        let is_level = pairs.clone().all(|pair| entry(&pair[0]) == entry(&pair[1]));
        is_level.then(|| pairs.any(|pair| holds(&pair[0]) != holds(&pair[1])))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Whether nodes agree within a second if one agreed so many milliseconds ago, when another's clock
    /// was so far ahead.
    fn agree(ago: Option<f64>, ahead: f64) -> bool {
        let others = json!({ "2": ahead });
        let clock = json!({ "widthMs": 20.0, "agreedMsAgo": ago, "othersAheadMs": others });
        let node = json!({ "node": 1, "url": "", "reachable": true, "clock": clock });
        let status = json!({ "cluster": null, "nodes": [node], "groups": [] });
        let status: Status = serde_json::from_value(status).unwrap();
        status.clocks_have_agreed(Duration::from_secs(1))
    }

    #[test]
    fn clocks_agree_if_they_did_since_and_are_near() {
        assert!(agree(Some(999.0), -0.2));
        assert!(!agree(Some(1001.0), -0.2), "before");
        assert!(!agree(None, -0.2), "never");
        assert!(!agree(Some(3.0), 300.0), "another is far ahead");
    }
}
