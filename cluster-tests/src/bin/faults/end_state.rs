//! What the nodes hold once all is over: the same on each of them, and nothing that nobody is shown.

use std::collections::BTreeMap;
use std::time::Duration;

use ephemeris_cluster_tests::client::{Call, Container};
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::cluster::{Cluster, Status};

use crate::hand::Hand;
use crate::workload::drain;

/// How long it may take until what has expired is removed, once all is well.
const SWEPT_WITHIN: Duration = Duration::from_mins(1);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Notes processes that ended by themselves, or panicked.
pub(crate) fn note_fallen(cluster: &mut Cluster, wrong: &mut Vec<String>) {
    let ended = cluster.ended_by_themselves().into_iter();
    wrong.extend(ended.map(|(node, status)| format!("node {node} has ended by itself: {status}")));
    for node in cluster.ids() {
        let panicked = format!("node {node} has panicked: see its log");
        if cluster.log(node).contains("panicked at") && !wrong.contains(&panicked) {
            wrong.push(panicked);
        }
    }
}

/// Notes replicas that differ, items that have expired and are not removed, items without rows and rows
/// without items.
pub(crate) async fn note_differences(
    cluster: &Cluster,
    hand: &mut Hand,
    wrong: &mut Vec<String>,
) -> anyhow::Result<()> {
    wrong.extend(not_swept(cluster, hand).await?);
    for group in &level(cluster).await.groups {
        if group.differs() != Some(false) {
            wrong.push(format!("replicas differ: {group:?}"));
        }
        let stopped = group.replicas.iter().filter_map(|replica| replica.stopped.as_ref());
        wrong.extend(
            stopped.map(|why| format!("a replica of group {} stopped: {why}", group.group)),
        );
    }
    Ok(())
}

/// The state of all replicas after the same entries, if there is such a moment.
async fn level(cluster: &Cluster) -> Status {
    let begun = clock::monotonic();
    loop {
        cluster.await_settled().await;
        let status = cluster.status().await;
        // Of all of them: who says nothing just now is not alike.
        let is_level = status.is_settled(cluster.running().len())
            && status.groups.iter().all(|group| group.differs().is_some());
        if is_level || begun.elapsed() > SWEPT_WITHIN {
            return status;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Containers that go on storing what they do not show, or show what they do not store.
async fn not_swept(cluster: &Cluster, hand: &mut Hand) -> anyhow::Result<Vec<String>> {
    let begun = clock::monotonic();
    loop {
        let mut wrong = Vec::new();
        let containers = stored(cluster).await.unwrap_or_else(|why| {
            wrong.push(format!("nobody says what is stored: {why}"));
            Vec::new()
        });
        for (container, stored) in containers {
            let shown = drain(hand, &container).await?.map_or(0, |rows| rows.len() as u64);
            if shown != stored {
                wrong.push(format!("{} stores {stored} items, shows {shown}", container.path()));
            }
        }
        if wrong.is_empty() || begun.elapsed() > SWEPT_WITHIN {
            return Ok(wrong);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// How many items each container stores, as the leaders of its partitions say; not of those that keep what
/// has expired for a while, because a clock has jumped. An error if one of them says nothing.
async fn stored(cluster: &Cluster) -> Result<Vec<(Container, u64)>, String> {
    let answer = cluster.client(cluster.ids()[0]).send(&Call::get("/admin/ttl")).await;
    let answer = answer.map_err(|error| error.to_string())?;
    let status = answer.json();
    let partitions = status["partitions"].as_array().filter(|all| !all.is_empty());
    let mut containers: BTreeMap<(&str, &str), Option<u64>> = BTreeMap::new();
    for partition in partitions.ok_or_else(|| answer.describe())? {
        let text = |name: &str| partition[name].as_str().unwrap_or_default();
        let is_kept = partition["keptAfterJump"].as_bool().ok_or_else(|| partition.to_string())?;
        let items = partition["items"].as_u64().filter(|_| !is_kept);
        let sum = containers.entry((text("database"), text("container"))).or_insert(Some(0));
        *sum = sum.zip(items).map(|(sum, items)| sum + items);
    }
    let known = containers.into_iter();
    Ok(known
        .filter_map(|((database, name), items)| Some((Container::new(database, name), items?)))
        .collect())
}
