//! What the cluster looks like: nodes, groups, leaders, lag.

use std::collections::BTreeMap;

use ephemeris_store::catalog::{CatalogState, PartitionRecord};
use ephemeris_store::ids::{GroupId, NodeId};
use serde_json::{Value, json};

use crate::clock::ClockStatus;
use crate::node::Node;
use crate::placement::describe_nodes;
use crate::requests::{NodeDescription, ReplicaDescription, Stored};

/// Asks every node, and puts together what those that answer say.
pub(crate) async fn cluster(node: &Node) -> Value {
    let descriptions = describe_nodes(node).await;
    let directory = node.directory().current();
    let state = directory.state();
    let cluster = state.cluster().map(|cluster| format!("{:032x}", cluster.0));
    let mut groups = vec![group(GroupId::CATALOG, &json!("catalog"), &descriptions)];
    for partition in state.partitions() {
        groups.push(group(partition.group, &of_partition(state, partition), &descriptions));
    }
    json!({
        "cluster": cluster,
        "answeredBy": node.node_id().0,
        "nodes": state.nodes().map(|record| {
            let described = descriptions.get(&record.node);
            json!({
                "node": record.node.0,
                "url": record.url,
                "peer": record.peer,
                "reachable": described.is_some(),
                "version": described.map(|description| &description.version),
                "replicas": described.map(|description| description.replicas.len()),
                "clock": described.and_then(|description| description.clock.as_ref()).map(clock),
            })
        }).collect::<Vec<_>>(),
        "groups": groups,
    })
}

/// Milliseconds, of which the clocks know fractions.
#[expect(clippy::cast_precision_loss, reason = "shown to people")]
fn clock(status: &ClockStatus) -> Value {
    let millis = |micros: i64| micros as f64 / 1000.0;
    let offsets: BTreeMap<String, f64> =
        status.offsets.iter().map(|(node, offset)| (node.to_string(), millis(*offset))).collect();
    json!({
        "widthMs": status.width_micros.map(millis),
        "agreedMsAgo": status.agreed_micros_ago.map(millis),
        "othersAheadMs": offsets,
    })
}

fn of_partition(state: &CatalogState, partition: &PartitionRecord) -> Value {
    let container = state.container(partition.container);
    let database = state.database(partition.container.database);
    json!({
        "database": database.map(|database| database.name.as_str()),
        "container": container.map(|container| container.definition.name().as_str()),
        "range": partition.range.to_string(),
    })
}

fn group(group: GroupId, name: &Value, descriptions: &BTreeMap<NodeId, NodeDescription>) -> Value {
    let replicas: Vec<(&NodeId, &ReplicaDescription)> = descriptions
        .iter()
        .flat_map(|(node, description)| {
            description.replicas.iter().map(move |replica| (node, replica))
        })
        .filter(|(_, replica)| replica.group == group)
        .collect();
    let leader = replicas.iter().find(|(_, replica)| replica.leader == Some(replica.replica));
    let last = leader.and_then(|(_, leader)| leader.last);
    let replicas: Vec<Value> = replicas
        .iter()
        .map(|(node, replica)| {
            json!({
                "node": node.0,
                "replica": replica.replica.to_string(),
                "applied": replica.applied,
                "lag": last.map(|last| last.saturating_sub(replica.applied.unwrap_or(0))),
                "items": replica.stored.map(|stored| stored.items),
                "digest": replica.stored.map(|Stored { entry, digest, .. }| json!({
                    "entry": entry,
                    "crc32c": format!("{digest:08x}"),
                })),
                "stopped": replica.stopped,
            })
        })
        .collect();
    json!({
        "group": group.0,
        "of": name,
        "leader": leader.map(|(node, _)| node.0),
        "term": leader.map(|(_, leader)| leader.term),
        "last": last,
        "voters": leader.map(|(_, leader)| leader.voters.iter().map(|voter| voter.node.0).collect::<Vec<_>>()),
        "changingVoters": leader.map(|(_, leader)| leader.is_joint),
        "replicas": replicas,
    })
}
