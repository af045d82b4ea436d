//! More clients than usual, and fewer descriptors: who cannot be served waits, and nothing is lost.

use std::net::SocketAddr;
use std::time::Duration;

use ephemeris_cluster_tests::client::{Call, Container};
use ephemeris_cluster_tests::cluster::{Cluster, Resource};
use ephemeris_cluster_tests::load::{Crowd, Writers, storm};
use ephemeris_cluster_tests::wait;
use serde_json::json;

const WRITERS: usize = 4;
const WRITES: u64 = 200;
/// Clients that come back at once after a restart, and how soon all of them are served.
const RETURNING: usize = 500;
const SERVED_WITHIN: Duration = Duration::from_secs(20);
/// Clients that are connected and say nothing.
const IDLE: usize = 10_000;
const GATHERED_WITHIN: Duration = Duration::from_mins(1);
/// Fewer descriptors than the crowd needs, and enough for a node's own.
const DESCRIPTORS: u64 = 1024;
/// Clients of a node with so few: more than it has room for.
const CROWD: usize = 300;

fn addresses(cluster: &Cluster, nodes: &[u32]) -> Vec<SocketAddr> {
    nodes.iter().map(|node| cluster.address(*node)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_clients_that_come_back_at_once_after_a_restart_are_all_served() {
    let (mut cluster, container) = Cluster::start_with_container(3).await;
    let all = addresses(&cluster, &cluster.ids());
    let crowd = Crowd::gather(&all, RETURNING, GATHERED_WITHIN).await;
    let writers = Writers::start(&cluster.clients(&[1, 2, 3]), &container, WRITERS);
    writers.await_more(WRITES).await;

    cluster.kill_at_once(&[1, 2, 3]);
    drop(crowd);
    for node in cluster.ids() {
        cluster.spawn(node);
    }
    let served = storm(&all, &container, RETURNING, SERVED_WITHIN).await;
    println!("all {RETURNING} were served {served:?} after the nodes were started again");
    writers.await_more(WRITES).await;
    let journal = writers.stop().await;
    journal.check_everywhere(&cluster, &container).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_clients_hold_up_nobody_while_a_leader_is_killed() {
    let (mut cluster, container) = Cluster::start_with_container(3).await;
    assert_eq!(Crowd::most(IDLE), IDLE, "`ulimit -Hn` lets this test open too few connections");
    let mut crowd = Crowd::gather(&addresses(&cluster, &[1, 2, 3]), IDLE, GATHERED_WITHIN).await;
    let writers = Writers::start(&cluster.clients(&[1, 2, 3]), &container, WRITERS);
    writers.await_more(WRITES).await;

    let leader = cluster.leader(&container).await;
    cluster.kill(leader);
    writers.await_more(WRITES).await;
    let journal = writers.stop().await;
    journal.check_everywhere(&cluster, &container).await;
    let others = addresses(&cluster, &cluster.running());
    assert_eq!(crowd.count_answered(&others).await, crowd.count(&others), "they are still served");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_takes_no_descriptors_that_a_node_needs_for_itself() {
    let mut cluster = Cluster::formable(3);
    cluster.set_descriptors_max(1, DESCRIPTORS);
    cluster.start_all().await;
    let container = Container::new("shop", "orders");
    cluster.client(2).create_database("shop").await.expect(201);
    cluster.client(2).create_container(&container, json!({})).await.expect(201);
    let crowded = cluster.address(1);
    let mut opened = Vec::new();
    for _ in 0..CROWD {
        opened.push(tokio::net::TcpStream::connect(crowded).await.expect("the kernel takes it"));
    }

    // What it needs files and connections for: entries of others, flushes, elections.
    let writers = Writers::start(&cluster.clients(&[2, 3]), &container, WRITERS);
    writers.await_more(WRITES).await;
    cluster.kill(2);
    writers.await_more(WRITES).await;
    let journal = writers.stop().await;
    drop(opened);
    wait::until("the crowded node to answer", SERVED_WITHIN, async || {
        let answer = cluster.client(1).send(&Call::get("/dbs")).await.ok()?;
        (answer.status == 200).then_some(())
    })
    .await;
    journal.check_everywhere(&cluster, &container).await;
    assert!(cluster.ended_by_themselves().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_descriptors_loses_nothing_and_comes_back_with_them() {
    let (mut cluster, container) = Cluster::start_with_container(3).await;
    let writers = Writers::start(&cluster.clients(&[1, 2, 3]), &container, WRITERS);
    writers.await_more(WRITES).await;
    let leader = cluster.leader(&container).await;
    // Who is connected stays so.
    let operator = cluster.client(leader);
    operator.ask(Call::get("/dbs")).await.expect(200);
    cluster.exhaust(leader, Resource::Descriptors);
    // There is no file for the next part of its state.
    let flushed = operator.send(&Call::post("/admin/flush", "")).await;
    assert!(!flushed.is_ok_and(|answer| answer.status == 200), "nothing was flushed");
    assert_eq!(cluster.await_exit(leader).await.code(), Some(70), "a fault is told as such");
    writers.await_more(WRITES).await;

    cluster.restart(leader).await;
    cluster.await_settled().await;
    writers.await_more(WRITES).await;
    let journal = writers.stop().await;
    journal.check_everywhere(&cluster, &container).await;
}
