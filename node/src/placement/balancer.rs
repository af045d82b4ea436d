//! Keeps every group at its replication factor and spreads the leaders; one bounded step at a time.
//!
//! Runs on every node, works on the one that leads the catalog.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ephemeris_store::catalog::CatalogCommand;
use ephemeris_store::ids::{GroupId, NodeId, ReplicaId};
use tracing::{debug, info, warn};

use super::plan::{self, REPLICATION_FACTOR};
use crate::clock;
use crate::node::Node;
use crate::requests::{NodeDescription, NodeRequest, NodeResponse};

/// How often the balancer looks.
const ROUND_EVERY: Duration = Duration::from_secs(2);
/// How long a node may take to describe itself.
const DESCRIBE_DEADLINE: Duration = Duration::from_secs(1);
/// Steps of each kind in one round.
const STEPS_MAX: usize = 4;
/// Most nodes that vote on the catalog; the others follow.
const CATALOG_VOTERS_MAX: usize = 5;
/// A replica this far behind its leader does not take over from it.
const LAG_ENTRIES_MAX: u64 = 200;

/// The balancer of one node.
pub(crate) struct Balancer {
    node: Node,
}

impl Balancer {
    /// A balancer that works through `node`.
    pub(crate) fn new(node: Node) -> Self {
        Self { node }
    }

    /// Runs for ever.
    pub(crate) async fn run(self) {
        loop {
            tokio::time::sleep(ROUND_EVERY).await;
            if self.node.catalog().leadership().is_me {
                self.balance_catalog().await;
                self.repair_partitions().await;
                self.spread_leaders().await;
            }
        }
    }

    /// Every known node has a copy of the catalog; an odd number of them votes, or two of two. Should there be
    /// too many voters, those leave first that do not answer.
    async fn balance_catalog(&self) {
        let directory = self.node.directory().current();
        let registered = directory.state().nodes().map(|record| record.catalog_replica);
        // Without them those who were registered first would be the majority, for a write and for the time.
        let awaited = directory.state().awaited().map(|node| ReplicaId { node, incarnation: 0 });
        let members: BTreeSet<ReplicaId> = registered.chain(awaited).collect();
        let group = self.node.catalog();
        let status = group.status();
        let known: BTreeSet<ReplicaId> = status.voters.union(&status.learners).copied().collect();
        if directory.state().cluster().is_none() || !members.contains(&group.replica()) {
            return;
        }
        if let Some(missing) = members.difference(&known).next() {
            info!(replica = %missing, "adding a copy of the catalog");
            if let Err(error) = group.add_learner(*missing).await {
                warn!(replica = %missing, %error, "the copy was not added");
            }
            return;
        }
        // Who has to catch up first votes in a later round.
        let able = status.able_to_vote(&members);
        let mut wanted = catalog_voters(&able, &status.voters);
        if status.voters.intersection(&able).count() > wanted.len() {
            let well = self.describe_nodes().await;
            let answers = |replica: &&ReplicaId| well.contains_key(&replica.node);
            let voters: BTreeSet<_> = status.voters.iter().filter(answers).copied().collect();
            wanted = catalog_voters(&able, &voters);
        }
        let result = if status.are_voters(&wanted) {
            let gone: BTreeSet<_> = status.learners.difference(&members).copied().collect();
            if gone.is_empty() {
                return;
            }
            group.remove_learners(gone).await
        } else {
            info!(?wanted, "changing who votes on the catalog");
            group.change_voters(wanted).await
        };
        if let Err(error) = result {
            warn!(%error, "the catalog's members were not changed");
        }
    }

    /// Moves replicas away from nodes that are gone.
    ///
    /// A group that nobody leads waits: it may not have been formed yet, and who forms it would no
    /// longer find that all replicas were placed together.
    async fn repair_partitions(&self) {
        let directory = self.node.directory().current();
        let state = directory.state();
        let all: BTreeSet<NodeId> = state.nodes().map(|record| record.node).collect();
        if state.partitions().all(|partition| plan::repair(state, &all, partition).is_none()) {
            return;
        }
        let nodes = self.describe_nodes().await;
        let able = plan::able(&nodes);
        let repairs = state.partitions().filter_map(|partition| {
            let plan = plan::repair(state, &able, partition)?;
            is_led(&nodes, partition.group).then_some((partition.group, plan))
        });
        for (group, plan) in repairs.take(STEPS_MAX) {
            info!(%group, ?plan, "moving replicas");
            let deadline = clock::monotonic() + DESCRIBE_DEADLINE * 5;
            let command = CatalogCommand::SetReplicas { group, plan };
            if let Err(error) = self.node.change_catalog(command, deadline).await {
                debug!(%group, %error, "replicas were not moved yet");
            }
        }
    }

    /// Brings leadership back to each partition's first replica, which placement spread evenly.
    async fn spread_leaders(&self) {
        let nodes = self.describe_nodes().await;
        let directory = self.node.directory().current();
        let mut steps = 0;
        for partition in directory.state().partitions() {
            let Some(preferred) = partition.replicas.first().copied() else { continue };
            let Some(leader) = transfer_from(&nodes, partition.group, preferred) else { continue };
            if steps == STEPS_MAX {
                return;
            }
            steps += 1;
            let request = NodeRequest::Transfer(partition.group, preferred);
            if leader == self.node.node_id() {
                self.node.transfer_leadership(partition.group, preferred).await;
            } else if let Err(error) = self.node.send(leader, &request, DESCRIBE_DEADLINE).await {
                debug!(group = %partition.group, %error, "no handover");
            }
        }
    }

    /// What every node that answers says of itself.
    pub(crate) async fn describe_nodes(&self) -> BTreeMap<NodeId, NodeDescription> {
        describe_nodes(&self.node).await
    }
}

/// The nodes that can take replicas of a new container. Who that is matters only if not all get one.
pub(crate) async fn able_nodes(node: &Node) -> BTreeSet<NodeId> {
    let directory = node.directory().current();
    if directory.state().nodes().count() <= REPLICATION_FACTOR {
        return directory.state().nodes().map(|record| record.node).collect();
    }
    plan::able(&describe_nodes(node).await)
}

/// What every node that answers says of itself.
pub(crate) async fn describe_nodes(node: &Node) -> BTreeMap<NodeId, NodeDescription> {
    let directory = node.directory().current();
    let others: Vec<NodeId> = directory
        .state()
        .nodes()
        .map(|record| record.node)
        .filter(|other| *other != node.node_id())
        .collect();
    let questions = others.iter().map(|other| async {
        match node.send(*other, &NodeRequest::Describe, DESCRIBE_DEADLINE).await {
            Ok(NodeResponse::Describe(description)) => Some((*other, *description)),
            Ok(_) | Err(_) => None,
        }
    });
    let answers = futures_util::future::join_all(questions).await;
    let mut nodes: BTreeMap<_, _> = answers.into_iter().flatten().collect();
    nodes.insert(node.node_id(), node.describe());
    nodes
}

/// Who of those that are able to should vote on the catalog: those who do, and are well; then the lowest numbers;
/// an odd count. Of two nodes both vote: a write is on two disks before it is acknowledged.
fn catalog_voters(able: &BTreeSet<ReplicaId>, voters: &BTreeSet<ReplicaId>) -> BTreeSet<ReplicaId> {
    let count = able.len().min(CATALOG_VOTERS_MAX);
    let count = if count > 2 && count.is_multiple_of(2) { count - 1 } else { count };
    let staying = voters.intersection(able);
    let joining = able.difference(voters);
    staying.chain(joining).take(count).copied().collect()
}

/// True if a replica says that it leads the group, which then is formed.
fn is_led(nodes: &BTreeMap<NodeId, NodeDescription>, group: GroupId) -> bool {
    let mut replicas = nodes.values().flat_map(|node| &node.replicas);
    replicas.any(|replica| replica.group == group && replica.leader == Some(replica.replica))
}

/// The node that leads a group while a healthy, up-to-date preferred replica does not, whose node stays.
fn transfer_from(
    nodes: &BTreeMap<NodeId, NodeDescription>,
    group: GroupId,
    preferred: ReplicaId,
) -> Option<NodeId> {
    let replicas =
        || nodes.values().flat_map(|node| &node.replicas).filter(|replica| replica.group == group);
    let leader = replicas().find(|replica| replica.leader == Some(replica.replica))?;
    let candidate = replicas().find(|replica| replica.replica == preferred)?;
    let stays = nodes.get(&preferred.node).is_some_and(NodeDescription::is_able);
    let agrees = candidate.leader == Some(leader.replica) && candidate.stopped.is_none();
    let lag = leader.last.unwrap_or(0).saturating_sub(candidate.applied.unwrap_or(0));
    let votes = leader.voters.contains(&preferred);
    let can_lead = agrees && votes && lag <= LAG_ENTRIES_MAX;
    (leader.replica != preferred && stays && can_lead).then_some(leader.replica.node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::ReplicaDescription;

    fn replica(node: u32) -> ReplicaId {
        ReplicaId { node: NodeId(node), incarnation: 0 }
    }

    fn set(nodes: &[u32]) -> BTreeSet<ReplicaId> {
        nodes.iter().copied().map(replica).collect()
    }

    /// Two nodes with a replica each of a group that node 1 leads.
    fn led_by_the_first() -> BTreeMap<NodeId, NodeDescription> {
        let describe = |number: u32| ReplicaDescription {
            group: GroupId(1),
            replica: replica(number),
            leader: Some(replica(1)),
            term: 1,
            last: Some(7),
            applied: Some(7),
            stored: None,
            voters: set(&[1, 2]),
            is_joint: false,
            stopped: None,
        };
        let nodes = [1, 2].map(|number| {
            let description = NodeDescription {
                node: NodeId(number),
                version: String::new(),
                clock: None,
                draining: false,
                hung: false,
                replicas: vec![describe(number)],
            };
            (NodeId(number), description)
        });
        nodes.into()
    }

    #[test]
    fn leadership_goes_to_the_preferred_replica_unless_its_node_is_about_to_stop() {
        let mut nodes = led_by_the_first();
        assert_eq!(transfer_from(&nodes, GroupId(1), replica(2)), Some(NodeId(1)));
        assert_eq!(transfer_from(&nodes, GroupId(1), replica(1)), None, "it leads already");
        nodes.get_mut(&NodeId(2)).unwrap().hung = true;
        assert_eq!(transfer_from(&nodes, GroupId(1), replica(2)), None);
        nodes.get_mut(&NodeId(2)).unwrap().hung = false;
        nodes.get_mut(&NodeId(2)).unwrap().draining = true;
        assert_eq!(transfer_from(&nodes, GroupId(1), replica(2)), None);
    }

    #[test]
    fn of_two_nodes_both_vote() {
        assert_eq!(catalog_voters(&set(&[1, 2]), &set(&[1, 2, 3])), set(&[1, 2]));
        assert_eq!(catalog_voters(&set(&[1, 2]), &set(&[2])), set(&[1, 2]));
    }

    #[test]
    fn an_odd_number_votes_and_voters_stay() {
        assert_eq!(catalog_voters(&set(&[1]), &set(&[1])), set(&[1]));
        assert_eq!(catalog_voters(&set(&[1, 2, 3, 4]), &set(&[2, 3, 4])), set(&[2, 3, 4]));
        assert_eq!(catalog_voters(&set(&[1, 3, 4]), &set(&[1, 2, 3])), set(&[1, 3, 4]));
        let seven = set(&[1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(catalog_voters(&seven, &set(&[3, 6, 7])).len(), 5);
    }
}
