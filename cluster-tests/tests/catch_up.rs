//! A follower that was away while the log moved on catches up by snapshot, and then serves.

use std::time::Duration;

use ephemeris_cluster_tests::client::Container;
use ephemeris_cluster_tests::cluster::Cluster;
use ephemeris_cluster_tests::load::{Writers, rewrite_large};
use ephemeris_cluster_tests::measure::Metrics;
use ephemeris_cluster_tests::wait;
use serde_json::json;

/// Rewrites of a large item: more segments than there should be, so that even those with old entries are freed.
const LARGE_WRITES: usize = 170;
/// Writes after the large ones: more than the 2000 entries a log keeps behind its last flush.
const SMALL_WRITES: u64 = 2600;
/// Segments that are left once the large writes were purged.
const SEGMENTS_LEFT: u64 = 4;
const PURGE_DEADLINE: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_whose_log_was_purged_elsewhere_catches_up_by_snapshot_and_leads() {
    let mut cluster = Cluster::start(3).await;
    let container = Container::new("shop", "orders");
    cluster.client(1).create_database("shop").await.expect(201);
    cluster.client(1).create_container(&container, json!({})).await.expect(201);

    // The first leader is the one leadership comes back to once it has caught up.
    let away = cluster.leader(&container).await;
    cluster.kill(away);
    let staying = cluster.running();
    cluster.leader(&container).await;
    // The catalog has its leader, too, and writes nothing meanwhile: an entry of its own in the middle would
    // keep the log from there on.
    cluster.client(staying[0]).create_database("before").await.expect(201);
    rewrite_large(&cluster.client(staying[0]), &container, LARGE_WRITES).await;
    let writers = Writers::start(&cluster.clients(&staying), &container, 8);
    writers.await_more(SMALL_WRITES).await;
    let journal = writers.stop().await;
    for node in &staying {
        await_purge(&cluster, *node).await;
    }

    cluster.restart(away).await;
    cluster.await_settled().await;
    assert!(
        cluster.log(away).contains("installed a snapshot"),
        "the follower was to install a snapshot"
    );

    cluster.await_leader(&container, away).await;
    assert!(journal.failed.is_empty(), "writes that failed: {:#?}", journal.failed);
    let reader = cluster.client(away);
    let large = reader.read_item(&container, &json!("large"), "large").await.expect(200);
    assert_eq!(large.json()["version"], LARGE_WRITES - 1);
    reader.delete_item(&container, &json!("large"), "large").await.expect(204);
    journal.check(&reader, &container).await;

    // One of the others ends: now nothing is committed without the one that was away.
    cluster.kill(staying[0]);
    reader.create_item(&container, &json!({ "id": "last", "pk": "k" })).await.expect(201);
    reader.read_item(&container, &json!("k"), "last").await.expect(200);
}

/// Waits until a node has purged the large entries from its log.
async fn await_purge(cluster: &Cluster, node: u32) {
    let client = cluster.client(node);
    wait::until_seen("the log to be purged", PURGE_DEADLINE, async || {
        let segments = Metrics::of(&client).await.count("log_segments");
        if segments <= SEGMENTS_LEFT {
            return Ok(());
        }
        let log = cluster.log(node);
        let last: Vec<&str> = log.lines().rev().take(20).collect();
        Err(format!("on node {node}: {segments} segments, {:?}\n{last:#?}", cluster.status().await))
    })
    .await;
}
