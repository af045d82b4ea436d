//! Where replicas should live: pure functions from what is to what should be.

use std::collections::{BTreeMap, BTreeSet};

use ephemeris_store::catalog::{CatalogState, PartitionRecord, ReplicaPlan};
use ephemeris_store::ids::{GroupId, NodeId};

use crate::requests::{NodeDescription, ReplicaDescription};

/// Copies of every partition, if there are as many nodes.
pub(crate) const REPLICATION_FACTOR: usize = 3;

/// How many replicas, and how many first replicas, each node has.
fn loads(state: &CatalogState) -> BTreeMap<NodeId, (usize, usize)> {
    let mut loads: BTreeMap<NodeId, (usize, usize)> =
        state.nodes().map(|record| (record.node, (0, 0))).collect();
    for partition in state.partitions() {
        for (at, replica) in partition.replicas.iter().enumerate() {
            if let Some((replicas, firsts)) = loads.get_mut(&replica.node) {
                *replicas += 1;
                *firsts += usize::from(at == 0);
            }
        }
    }
    loads
}

/// The nodes that take new replicas: those that answered, are not about to stop, and whose disks are well.
pub(crate) fn able(nodes: &BTreeMap<NodeId, NodeDescription>) -> BTreeSet<NodeId> {
    nodes.values().filter(|node| node.is_able()).map(|node| node.node).collect()
}

/// Plans the partitions of a new container: replicas on the able nodes that have the fewest, the first
/// one, which will lead, where the fewest lead. Others are taken only if there are too few.
pub(crate) fn plan_container(
    state: &CatalogState,
    able: &BTreeSet<NodeId>,
    partitions: u16,
) -> Vec<ReplicaPlan> {
    let mut loads = loads(state);
    let mut plans = Vec::with_capacity(usize::from(partitions));
    for _ in 0..partitions {
        let mut nodes: Vec<NodeId> = loads.keys().copied().collect();
        nodes.sort_by_key(|node| (!able.contains(node), loads[node].0, *node));
        nodes.truncate(REPLICATION_FACTOR);
        nodes.sort_by_key(|node| (!able.contains(node), loads[node].1, *node));
        for (at, node) in nodes.iter().enumerate() {
            let load = loads.get_mut(node).expect("the node was just listed");
            load.0 += 1;
            load.1 += usize::from(at == 0);
        }
        plans.push(ReplicaPlan(nodes));
    }
    plans
}

/// A better plan for a partition: replicas on nodes that are gone move to able ones, and missing ones
/// are added. None if the partition is fine, or nothing can be done: with no old replica left to copy
/// from, new ones would form an empty group over lost data.
pub(crate) fn repair(
    state: &CatalogState,
    able: &BTreeSet<NodeId>,
    partition: &PartitionRecord,
) -> Option<ReplicaPlan> {
    let wanted = REPLICATION_FACTOR.min(state.nodes().count());
    let mut nodes: Vec<NodeId> = partition
        .replicas
        .iter()
        .map(|replica| replica.node)
        .filter(|node| state.node(*node).is_some())
        .collect();
    let are_gone = nodes.len() < partition.replicas.len();
    let staying = nodes.len();
    if staying == 0 {
        return None;
    }
    let loads = loads(state);
    let takes = |node: &NodeId| able.contains(node) && !nodes.contains(node);
    let mut others: Vec<NodeId> = loads.keys().copied().filter(takes).collect();
    others.sort_by_key(|node| (loads[node].0, *node));
    nodes.extend(others.into_iter().take(wanted.saturating_sub(staying)));
    (are_gone || nodes.len() > staying).then_some(ReplicaPlan(nodes))
}

/// The groups that cannot spare a node: without it no majority of their voters would be left that
/// answer, or nobody leads them now, so that nobody can say who votes.
pub(crate) fn groups_that_need(
    state: &CatalogState,
    nodes: &BTreeMap<NodeId, NodeDescription>,
    node: NodeId,
) -> Vec<GroupId> {
    let catalog = state.node(node).map(|_| GroupId::CATALOG);
    let partitions = state.partitions();
    let partitions = partitions.filter(|partition| partition.replica_on(node).is_some());
    catalog
        .into_iter()
        .chain(partitions.map(|partition| partition.group))
        .filter(|group| !spares(*group, nodes, node))
        .collect()
}

fn spares(group: GroupId, nodes: &BTreeMap<NodeId, NodeDescription>, node: NodeId) -> bool {
    let replicas =
        || nodes.values().flat_map(|node| &node.replicas).filter(|replica| replica.group == group);
    let leads = |replica: &&ReplicaDescription| replica.leader == Some(replica.replica);
    let Some(leader) = replicas().filter(leads).max_by_key(|leader| leader.term) else {
        return false;
    };
    let well = replicas().filter(|replica| {
        let votes = leader.voters.contains(&replica.replica);
        votes && replica.replica.node != node && replica.stopped.is_none()
    });
    // While voters change, a majority of those of before is needed, too.
    !leader.is_joint && 2 * well.count() > leader.voters.len()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use ephemeris_store::catalog::{Catalog, CatalogCommand, CatalogProposal, ContainerDefinition};
    use ephemeris_store::codec;
    use ephemeris_store::engine::MemoryEngine;
    use ephemeris_store::ids::{DatabaseNumber, ReplicaId, ResourceName};
    use ephemeris_store::machine::{Entry, LogId, Machine as _};
    use ephemeris_store::time::{ClockInterval, Millis};

    use super::*;

    const PARTITION: GroupId = GroupId(1);

    fn apply(catalog: &Catalog, command: CatalogCommand) {
        let proposal = CatalogProposal { now: ClockInterval::exact(Millis(1000)), command };
        let index = catalog.progress().applied.map_or(0, |applied| applied.index + 1);
        let bytes = codec::encode(&proposal);
        let outcome = catalog.apply(LogId { term: 1, index }, Entry::Command(&bytes));
        outcome.unwrap().unwrap().result.unwrap();
    }

    /// A catalog with three nodes and one partition on some of them.
    fn catalog(replicas: &[u32]) -> Arc<CatalogState> {
        catalog_of(3, replicas)
    }

    fn catalog_of(nodes: u32, replicas: &[u32]) -> Arc<CatalogState> {
        let catalog = Catalog::open(Arc::new(MemoryEngine::new())).unwrap();
        for node in 1..=nodes {
            let (peer, url) = (String::new(), String::new());
            let (node, directory) = (NodeId(node), u128::from(node));
            let founder = true;
            apply(&catalog, CatalogCommand::RegisterNode { node, directory, peer, url, founder });
        }
        let name = ResourceName::try_from("db".to_string()).unwrap();
        apply(&catalog, CatalogCommand::CreateDatabase { name, throughput: None });
        let body = serde_json::json!({ "id": "c", "partitionKey": { "paths": ["/pk"] } });
        let definition = ContainerDefinition::parse(&body).unwrap();
        let create = CatalogCommand::CreateContainer {
            database: DatabaseNumber(1),
            definition: serde_json::to_string(definition.json()).unwrap(),
            throughput: None,
            placement: vec![ReplicaPlan(replicas.iter().copied().map(NodeId).collect())],
        };
        apply(&catalog, create);
        catalog.state()
    }

    fn replica(node: u32) -> ReplicaId {
        ReplicaId { node: NodeId(node), incarnation: 0 }
    }

    /// What nodes say that answer, of a group with these voters.
    fn answers(group: GroupId, nodes: &[u32], voters: &[u32], leader: Option<u32>) -> Vec<Answer> {
        let voters: BTreeSet<ReplicaId> = voters.iter().copied().map(replica).collect();
        let describe = |node: &u32| ReplicaDescription {
            group,
            replica: replica(*node),
            leader: leader.map(replica),
            term: 1,
            last: None,
            applied: None,
            stored: None,
            voters: voters.clone(),
            is_joint: false,
            stopped: None,
        };
        nodes.iter().map(|node| (NodeId(*node), describe(node))).collect()
    }

    type Answer = (NodeId, ReplicaDescription);

    fn described(answers: Vec<Answer>) -> BTreeMap<NodeId, NodeDescription> {
        let mut nodes = BTreeMap::new();
        for (node, replica) in answers {
            let version = String::new();
            let (clock, draining, hung, replicas) = (None, false, false, Vec::new());
            let empty = NodeDescription { node, version, clock, draining, hung, replicas };
            nodes.entry(node).or_insert(empty).replicas.push(replica);
        }
        nodes
    }

    fn needing(partition: Vec<Answer>, node: u32) -> Vec<GroupId> {
        let catalog_answers = answers(GroupId::CATALOG, &[1, 2, 3], &[1, 2, 3], Some(1));
        let nodes = described([catalog_answers, partition].concat());
        groups_that_need(&catalog(&[1, 2, 3]), &nodes, NodeId(node))
    }

    #[test]
    fn a_node_can_be_spared_if_a_majority_of_voters_elsewhere_is_well() {
        let whole = answers(PARTITION, &[1, 2, 3], &[1, 2, 3], Some(1));
        assert_eq!(needing(whole, 3), []);
        let without = answers(PARTITION, &[1, 2], &[1, 2, 3], Some(1));
        assert_eq!(needing(without.clone(), 3), []);
        assert_eq!(needing(without, 2), [PARTITION], "only one of three would be left");
        let no_vote = answers(PARTITION, &[1, 2, 3], &[1], Some(1));
        assert_eq!(needing(no_vote.clone(), 3), []);
        assert_eq!(needing(no_vote, 1), [PARTITION]);
    }

    #[test]
    fn a_group_without_a_leader_or_with_a_stopped_replica_spares_nobody() {
        let leaderless = answers(PARTITION, &[1, 2], &[1, 2, 3], None);
        assert_eq!(needing(leaderless, 3), [PARTITION]);
        let mut stopped = answers(PARTITION, &[1, 2, 3], &[1, 2, 3], Some(1));
        stopped[1].1.stopped = Some("a fault".to_string());
        assert_eq!(needing(stopped, 3), [PARTITION]);
    }

    #[test]
    fn a_group_whose_voters_change_spares_nobody() {
        let mut changing = answers(PARTITION, &[1, 2, 3], &[1, 2, 3], Some(1));
        changing[0].1.is_joint = true;
        assert_eq!(needing(changing, 3), [PARTITION]);
    }

    #[test]
    fn the_catalog_is_a_group_like_the_others() {
        let nodes = described(answers(GroupId::CATALOG, &[1, 2], &[1, 2], Some(1)));
        let needing = groups_that_need(&catalog(&[1]), &nodes, NodeId(2));
        assert_eq!(needing, [GroupId::CATALOG]);
    }

    #[test]
    fn a_partition_without_any_old_replica_is_not_made_anew() {
        let state = catalog(&[1, 2]);
        let mut partition = (**state.partition(PARTITION).unwrap()).clone();
        let able = nodes([1, 2, 3]);
        let plan = repair(&state, &able, &partition).unwrap();
        assert_eq!(plan, ReplicaPlan([1, 2, 3].map(NodeId).to_vec()));
        partition.replicas = vec![replica(8), replica(9)];
        assert_eq!(repair(&state, &able, &partition), None);
        partition.replicas.push(replica(2));
        assert!(repair(&state, &able, &partition).is_some());
    }
    fn nodes<const N: usize>(numbers: [u32; N]) -> BTreeSet<NodeId> {
        numbers.map(NodeId).into()
    }

    #[test]
    fn new_partitions_go_to_nodes_that_are_able_and_to_others_only_if_those_are_too_few() {
        let state = catalog_of(5, &[3, 4, 5]);
        let placed = |able: &BTreeSet<NodeId>| -> Vec<NodeId> {
            let [ReplicaPlan(nodes)] = &plan_container(&state, able, 1)[..] else {
                panic!("one partition")
            };
            nodes.clone()
        };
        let all = nodes([1, 2, 3, 4, 5]);
        assert_eq!(placed(&all), [1, 2, 3].map(NodeId), "they have the fewest");
        assert_eq!(placed(&nodes([3, 4, 5])), [4, 5, 3].map(NodeId), "one leads already");
        assert_eq!(placed(&nodes([4, 5])), [4, 5, 1].map(NodeId), "one who is able leads");
    }

    #[test]
    fn a_missing_replica_waits_for_a_node_that_is_able() {
        let state = catalog_of(5, &[1, 2]);
        let partition = state.partition(PARTITION).unwrap();
        let repaired = |able| repair(&state, &able, partition);
        assert_eq!(repaired(nodes([1, 2])), None);
        let plan = repaired(nodes([1, 2, 5])).unwrap();
        assert_eq!(plan, ReplicaPlan([1, 2, 5].map(NodeId).to_vec()));
    }
}
