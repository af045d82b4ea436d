//! A node whose data are damaged or gone serves none of them, says what to do, and one command later
//! has everything again.

use std::collections::BTreeSet;
use std::time::Duration;

use ephemeris_cluster_tests::client::{Call, Container};
use ephemeris_cluster_tests::cluster::Cluster;
use ephemeris_cluster_tests::load::Writers;
use ephemeris_cluster_tests::wait;
use serde_json::{Value, json};

/// Clients that write at the same time, and what they write before something breaks.
const WRITERS: usize = 4;
const WRITES: u64 = 300;
/// When a node is given up that lacks what the others acknowledged.
const DEADLINE: Duration = Duration::from_secs(30);
/// The node that is broken.
const BROKEN: u32 = 3;

async fn three_nodes() -> (Cluster, Container, Writers) {
    let (cluster, container) = Cluster::start_with_container(3).await;
    let writers = Writers::start(&cluster.clients(&[1, 2]), &container, WRITERS);
    writers.await_more(WRITES).await;
    (cluster, container, writers)
}

/// A read that a follower answers with what it has itself.
fn reading(container: &Container, id: &str) -> Call {
    let call = Call::get(container.item(id)).key(&json!("k"));
    call.header("x-ms-consistency-level", "Eventual")
}

/// Creates an item, and waits until the node that is to be broken holds it, and so all before it.
async fn create_and_await(cluster: &Cluster, container: &Container, id: &str, text: &str) {
    cluster.await_copies().await;
    let item = json!({ "id": id, "pk": "k", "text": text });
    cluster.client(1).create_item(container, &item).await.expect(201);
    let reader = cluster.client(BROKEN);
    wait::until("the node to hold the item", DEADLINE, async || {
        let answer = reader.send(&reading(container, id)).await.ok();
        answer.filter(|answer| answer.status == 200)
    })
    .await;
}

/// The command that the refusal names is all it takes; what the node then holds counts.
async fn rebuild_and_check(mut cluster: Cluster, container: &Container, writers: Writers) {
    writers.await_more(WRITES).await;
    assert!(cluster.log(BROKEN).contains("ephemeris rebuild-node 3 --data-dir"), "what to do");
    let rebuilt = cluster.rebuild(BROKEN);
    assert!(rebuilt.status.success(), "{}", String::from_utf8_lossy(&rebuilt.stderr));
    cluster.restart(BROKEN).await;
    writers.await_more(WRITES).await;
    let journal = writers.stop().await;
    assert!(journal.failed.is_empty(), "writes that failed: {:#?}", journal.failed);
    cluster.await_settled().await;
    // With node 1 gone, it is one half of the majority.
    cluster.kill(1);
    cluster.leader(container).await;
    let ids = |items: &[Value]| -> BTreeSet<String> {
        items.iter().map(|item| item["id"].as_str().expect("an id").to_string()).collect()
    };
    let found = ids(&cluster.client(BROKEN).read_feed(container).await);
    for id in journal.acknowledged.keys() {
        assert!(found.contains(id), "{id} was acknowledged and is gone");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_damaged_log_is_refused_and_rebuilt_by_one_command() {
    let (mut cluster, container, writers) = three_nodes().await;
    let refused = cluster.rebuild(BROKEN);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && message.contains("in use"), "it runs: {message}");

    // What is damaged must not be the last batch of the log: that counts as torn.
    create_and_await(&cluster, &container, "mark", "").await;
    writers.await_more(WRITES).await;
    cluster.kill(BROKEN);
    cluster.damage_log(BROKEN);
    cluster.spawn(BROKEN);
    assert_eq!(cluster.await_exit(BROKEN).await.code(), Some(1));
    assert!(cluster.log(BROKEN).contains("the write-ahead log is damaged"));
    rebuild_and_check(cluster, &container, writers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_damaged_row_shows_it_to_nobody_and_is_rebuilt_by_one_command() {
    let (mut cluster, container, writers) = three_nodes().await;
    create_and_await(&cluster, &container, "odd", "colourless green ideas").await;
    // An orderly end flushes.
    cluster.terminate(BROKEN);
    cluster.await_exit(BROKEN).await;
    // With its quotes, as only the item has it: the index holds the text, too.
    cluster.damage_row(BROKEN, "\"colourless green ideas\"");

    cluster.spawn(BROKEN);
    let reader = cluster.client(BROKEN);
    let read = reading(&container, "odd");
    let reads = async {
        loop {
            let answer = reader.send(&read).await;
            if let Some(answer) = answer.ok().filter(|answer| answer.status == 200) {
                assert_eq!(answer.json()["text"], "colourless green ideas");
            }
            tokio::task::yield_now().await;
        }
    };
    let status = tokio::select! {
        status = cluster.await_exit(BROKEN) => status,
        () = reads => unreachable!("it reads for ever"),
    };
    assert_eq!(status.code(), Some(70), "the one who reads it ends the process");
    // The next start does not wait for somebody to read it.
    cluster.spawn(BROKEN);
    assert_eq!(cluster.await_exit(BROKEN).await.code(), Some(1));
    rebuild_and_check(cluster, &container, writers).await;
}
