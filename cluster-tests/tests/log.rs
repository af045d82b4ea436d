//! The write-ahead log of a node stays short, whatever its groups keep in it.

use std::time::Duration;

use ephemeris_cluster_tests::client::Container;
use ephemeris_cluster_tests::cluster::Cluster;
use ephemeris_cluster_tests::load::{large_item, rewrite_large};
use ephemeris_cluster_tests::measure::Metrics;
use ephemeris_cluster_tests::wait;
use serde_json::json;

/// More in one container than is moved from segment to segment.
const RESTING_ITEMS: usize = 5;
/// Writes in the other one: a dozen segments.
const WRITES: usize = 100;
/// Segments that may be left.
const SEGMENTS_MAX: u64 = 5;
const DEADLINE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_nobody_writes_to_does_not_keep_the_log_of_all_others() {
    let (mut cluster, resting) = Cluster::start_with_container(1).await;
    let client = cluster.client(1);
    for number in 0..RESTING_ITEMS {
        let item = large_item(&format!("rests-{number}"), 0);
        client.create_item(&resting, &item).await.expect(201);
    }
    let busy = Container::new(resting.database(), "busy");
    client.create_container(&busy, json!({})).await.expect(201);
    rewrite_large(&client, &busy, WRITES).await;
    wait::until_seen("the log to be short", DEADLINE, async || {
        let segments = Metrics::of(&client).await.count("log_segments");
        if segments <= SEGMENTS_MAX { Ok(()) } else { Err(format!("{segments} segments")) }
    })
    .await;

    cluster.kill(1);
    cluster.restart(1).await;
    let client = cluster.client(1);
    let found = client.read_item(&busy, &json!("large"), "large").await.expect(200);
    assert_eq!(found.json()["version"], WRITES - 1);
    assert_eq!(client.read_feed(&resting).await.len(), RESTING_ITEMS);
}
