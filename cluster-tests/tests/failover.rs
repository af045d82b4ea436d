//! Crashes, pauses and orderly ends of leaders: nothing acknowledged is lost, and writes resume.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use ephemeris_cluster_tests::client::{AccountKey, Call, Container, Created, Retrying};
use ephemeris_cluster_tests::cluster::Cluster;
use ephemeris_cluster_tests::load::{Connection, Request, Signed, Writers};
use ephemeris_cluster_tests::measure::Metrics;
use ephemeris_cluster_tests::{clock, wait};
use serde_json::{Value, json};

/// Clients that write at the same time.
const WRITERS: usize = 8;
/// Writes before a fault, and after it.
const WRITES: u64 = 400;
/// By when after a leader's death writes must be acknowledged again, on a machine that is busy with other tests. How
/// soon they usually are is measured by fault runs.
const RESUME_DEADLINE: Duration = Duration::from_secs(30);
/// How long replicas may take until they rest, or do not.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a node may live on whose log hangs: half a minute, and what a busy machine adds.
const HANGS_MAX: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_loses_no_acknowledged_write_and_writes_resume() {
    let (mut cluster, container) = Cluster::start_with_container(3).await;
    let writers = Writers::start(&cluster.clients(&[1, 2, 3]), &container, WRITERS);
    writers.await_more(WRITES).await;

    let leader = cluster.leader(&container).await;
    let killed = clock::monotonic();
    cluster.kill(leader);
    writers.await_more(WRITES).await;
    let journal = writers.stop().await;

    let resumed = journal.resumed_after(killed).expect("writes were begun after the kill");
    println!("writes resumed {resumed:?} after the kill; unknown: {}", journal.unknown.len());
    assert!(resumed <= RESUME_DEADLINE, "writes resumed only {resumed:?} after the kill");
    journal.check_everywhere(&cluster, &container).await;

    cluster.restart(leader).await;
    cluster.await_settled().await;
    journal.check_everywhere(&cluster, &container).await;
    // The catalog, too, was led by somebody who may be dead now.
    cluster.client(leader).create_database("afterwards").await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_in_which_nothing_happens_rest_and_fail_over_all_the_same() {
    let (mut cluster, container) = Cluster::start_with_container(3).await;
    let (item, key) = (|id: &str| json!({ "id": id, "pk": "k" }), json!("k"));
    cluster.client(1).create_item(&container, &item("before")).await.expect(201);
    await_rest(&cluster, true).await;

    let leader = cluster.leader(&container).await;
    for node in cluster.ids() {
        let client = cluster.client(node);
        client.read_item(&container, &key, "before").await.expect(200);
        client.create_item(&container, &item(&format!("of {node}"))).await.expect(201);
        await_rest(&cluster, true).await;
    }

    cluster.kill(leader);
    let mut retrying = Retrying::new(cluster.clients(&cluster.running()), 0, RESUME_DEADLINE);
    let after = retrying.create(&container, &item("after")).await;
    assert!(matches!(after, Created::Acknowledged { .. }), "{after:?}");
    await_rest(&cluster, false).await;
    cluster.restart(leader).await;
    await_rest(&cluster, true).await;
    cluster.client(leader).read_item(&container, &key, "after").await.expect(200);
}

/// Waits until all replicas rest, or none does.
async fn await_rest(cluster: &Cluster, rest: bool) {
    wait::until("every replica rests, or none", PATIENCE, async || {
        for client in cluster.clients(&cluster.running()) {
            let metrics = Metrics::of(&client).await;
            let all = metrics.count("partition_replicas");
            let resting = metrics.count("partition_replicas_resting");
            if all == 0 || resting != if rest { all } else { 0 } {
                return None;
            }
        }
        Some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_every_node_at_once_loses_no_acknowledged_write() {
    let (mut cluster, container) = Cluster::start_with_container(3).await;
    let writers = Writers::start(&cluster.clients(&[1, 2, 3]), &container, WRITERS);
    writers.await_more(WRITES).await;

    for node in cluster.ids() {
        cluster.kill(node);
    }
    cluster.start_all().await;
    writers.await_more(WRITES).await;
    let journal = writers.stop().await;
    journal.check_everywhere(&cluster, &container).await;
    cluster.await_settled().await;
    journal.check_everywhere(&cluster, &container).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminated_leader_drains_and_no_write_fails() {
    let (mut cluster, container) = Cluster::start_with_container(3).await;
    let writers = Writers::start(&cluster.clients(&[1, 2, 3]), &container, WRITERS);
    writers.await_more(WRITES).await;

    let leader = cluster.leader(&container).await;
    cluster.terminate(leader);
    let status = cluster.await_exit(leader).await;
    assert_eq!(status.code(), Some(0), "a drained node ends with exit code 0");
    let log = cluster.log(leader);
    let (_, while_stopping) = log.split_once("server: stopping").expect("it logs that it stops");
    assert!(while_stopping.contains("group: handing leadership over"), "{while_stopping}");
    assert!(!while_stopping.contains("could not be handed over in time"), "{while_stopping}");
    writers.await_more(WRITES).await;
    let journal = writers.stop().await;

    // A client that sends on a connection that is being closed cannot know. It may come back while the leader drains.
    let unknown = &journal.unknown;
    assert!(unknown.len() <= 2 * WRITERS, "unknown outcomes while draining: {unknown:#?}");
    let is_answered = |attempt: &String| attempt.starts_with("408");
    assert!(!unknown.iter().any(is_answered), "requests that were dropped: {unknown:#?}");
    journal.check_everywhere(&cluster, &container).await;
    cluster.restart(leader).await;
    cluster.await_settled().await;
    journal.check_everywhere(&cluster, &container).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_majority_answers_nothing_and_comes_back_with_one() {
    let (mut cluster, container) = Cluster::start_with_container(3).await;
    let (item, key) = (|id: &str| json!({ "id": id, "pk": "k" }), json!("k"));
    cluster.client(1).create_item(&container, &item("before")).await.expect(201);
    let leader = cluster.leader(&container).await;
    let others: Vec<u32> = cluster.ids().into_iter().filter(|node| *node != leader).collect();
    for node in &others {
        cluster.kill(*node);
    }

    let alone = cluster.client(leader);
    let created = item("alone");
    let (write, read) = tokio::join!(
        alone.create_item(&container, &created),
        alone.read_item(&container, &key, "before"),
    );
    assert!(matches!(write.status, 408 | 429 | 503), "a write: {}", write.describe());
    assert!(matches!(read.status, 429 | 503), "a read: {}", read.describe());

    cluster.restart(others[0]).await;
    let clients = cluster.clients(&cluster.running());
    let mut retrying = Retrying::new(clients.clone(), 0, Duration::from_secs(30));
    let after = retrying.create(&container, &item("after")).await;
    assert!(matches!(after, Created::Acknowledged { .. }), "{after:?}");
    for client in clients {
        client.read_item(&container, &key, "before").await.expect(200);
        client.read_item(&container, &key, "after").await.expect(200);
        // A write of unknown outcome may have been executed; one that was refused must not be.
        let maybe = client.read_item(&container, &key, "alone").await.status;
        assert!(maybe == 404 || (maybe == 200 && write.status == 408), "{maybe}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_slept_through_its_deposition_never_answers_with_old_state() {
    let (cluster, container) = Cluster::start_with_container(3).await;
    let client = cluster.client(1);
    let item = |version: u32| json!({ "id": "a", "pk": "k", "version": version });
    client.create_item(&container, &item(1)).await.expect(201);

    let leader = cluster.leader(&container).await;
    let key = json!("k");
    let mut sleeper = Connection::open(cluster.address(leader)).await.expect("the leader listens");
    let read = signed_read(&cluster, leader, &container);
    assert_eq!(sleeper.exchange(read.bytes()).await.expect("the leader answers"), 200);
    cluster.pause(leader);
    let awake = cluster.ids().into_iter().find(|node| *node != leader).expect("three nodes");
    wait::until("the others to take over", Duration::from_secs(30), async || {
        let call = Call::put(container.item("a"), item(2).to_string()).key(&key);
        let answer = cluster.client(awake).send(&call).await.ok()?;
        (answer.status == 200).then_some(())
    })
    .await;

    // Sent before it wakes up, so that it is among the first things the old leader sees.
    sleeper.send(read.bytes()).await.expect("the kernel takes it");
    cluster.resume(leader);
    let status = sleeper.receive().await.expect("the old leader answers");
    assert!(matches!(status, 200 | 429 | 503), "an answer, or a plea to come again: {status}");
    let shown: Value = serde_json::from_slice(sleeper.body()).expect("answers are JSON");
    assert!(status != 200 || shown["version"] == 2, "the old leader answered with old state");
    let after = cluster.client(leader).read_item(&container, &key, "a").await.expect(200);
    assert_eq!(after.json()["version"], 2);
}

/// The bytes of a read of item `a`.
fn signed_read(cluster: &Cluster, node: u32, container: &Container) -> Request {
    let path = container.item("a");
    let signed = Signed::new(&AccountKey::emulator(), "GET", &path, clock::wall());
    let headers = [
        ("x-ms-date", signed.date.as_str()),
        ("authorization", &signed.authorization),
        ("x-ms-documentdb-partitionkey", r#"["k"]"#),
    ];
    Request::new(&format!("GET {path}"), cluster.address(node), &headers, b"")
}

/// Its disk takes what it is given and never says that it is durable: nothing fails, so nobody but the others
/// and its own watch can tell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_log_hangs_gives_way_and_ends() {
    let mut cluster = Cluster::formable(3);
    cluster.make_faulty();
    cluster.start_all().await;
    let container = Container::new("shop", "orders");
    cluster.client(1).create_database("shop").await.expect(201);
    cluster.client(1).create_container(&container, json!({})).await.expect(201);
    let leader = cluster.leader(&container).await;
    let others: Vec<u32> = cluster.ids().into_iter().filter(|node| *node != leader).collect();
    let writers = Writers::start(&cluster.clients(&others), &container, WRITERS);
    writers.await_more(WRITES).await;

    let hung = clock::monotonic();
    cluster.set_faults(leader, r#"{ "log": { "slow": 3600000 } }"#).await;
    wait::until("another to lead", PATIENCE, async || {
        (cluster.leader(&container).await != leader).then_some(())
    })
    .await;
    assert!(cluster.try_exit(leader).is_none(), "it gives way before it ends");
    wait::until("the node to end by itself", HANGS_MAX, async || {
        cluster.try_exit(leader).map(|status| {
            // Its state may be compacted still: then it is killed.
            let is_fault = status.code() == Some(70) || status.signal() == Some(9);
            assert!(is_fault, "it ended with {status}");
        })
    })
    .await;
    writers.await_more(WRITES).await;
    let journal = writers.stop().await;
    let resumed = journal.resumed_after(hung).expect("writes were begun after its disk hung");
    assert!(resumed <= RESUME_DEADLINE, "writes resumed only after {resumed:?}");
    journal.check_everywhere(&cluster, &container).await;

    cluster.set_faults(leader, "{}").await;
    cluster.restart(leader).await;
    cluster.await_settled().await;
    journal.check_everywhere(&cluster, &container).await;
}
