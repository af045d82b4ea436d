//! Where replicas should live: pure functions from what is to what should be.

use std::collections::BTreeMap;

use ephemeris_store::catalog::{CatalogState, PartitionRecord, ReplicaPlan};
use ephemeris_store::ids::NodeId;

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

/// Plans the partitions of a new container: replicas on the nodes that have the fewest, the first
/// one, which will lead, where the fewest lead.
pub(crate) fn plan_container(state: &CatalogState, partitions: u16) -> Vec<ReplicaPlan> {
    let mut loads = loads(state);
    let mut plans = Vec::with_capacity(usize::from(partitions));
    for _ in 0..partitions {
        let mut nodes: Vec<NodeId> = loads.keys().copied().collect();
        nodes.sort_by_key(|node| (loads[node].0, *node));
        nodes.truncate(REPLICATION_FACTOR);
        nodes.sort_by_key(|node| (loads[node].1, *node));
        for (at, node) in nodes.iter().enumerate() {
            let load = loads.get_mut(node).expect("the node was just listed");
            load.0 += 1;
            load.1 += usize::from(at == 0);
        }
        plans.push(ReplicaPlan(nodes));
    }
    plans
}

/// A better plan for a partition: replicas on nodes that are gone move to others, and missing ones
/// are added. None if the partition is fine, or nothing can be done.
pub(crate) fn repair(state: &CatalogState, partition: &PartitionRecord) -> Option<ReplicaPlan> {
    let loads = loads(state);
    let wanted = REPLICATION_FACTOR.min(loads.len());
    let mut nodes: Vec<NodeId> = partition
        .replicas
        .iter()
        .map(|replica| replica.node)
        .filter(|node| loads.contains_key(node))
        .collect();
    if nodes.len() == partition.replicas.len() && nodes.len() >= wanted {
        return None;
    }
    let mut others: Vec<NodeId> =
        loads.keys().copied().filter(|node| !nodes.contains(node)).collect();
    others.sort_by_key(|node| (loads[node].0, *node));
    nodes.extend(others.into_iter().take(wanted.saturating_sub(nodes.len())));
    if nodes.is_empty() { None } else { Some(ReplicaPlan(nodes)) }
}
