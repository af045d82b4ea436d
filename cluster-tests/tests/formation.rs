//! Forming a cluster, coming back with one's data, and what happens to a node that lost it.

use std::time::Duration;

use ephemeris_cluster_tests::client::{AccountKey, Call, Container};
use ephemeris_cluster_tests::cluster::Cluster;
use ephemeris_cluster_tests::{clock, wait};
use serde_json::json;

/// How long a process may take to listen.
const FOUNDER_DEADLINE: Duration = Duration::from_secs(30);

/// A key nobody uses.
const OTHER_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn founders_form_one_cluster_and_find_it_again_with_their_data() {
    let mut cluster = Cluster::start(3).await;
    let container = Container::new("shop", "orders");
    cluster.client(3).create_database("shop").await.expect(201);
    cluster.client(2).create_container(&container, json!({ "defaultTtl": -1 })).await.expect(201);
    let item = json!({ "id": "a", "pk": "k", "n": 1 });
    cluster.client(1).create_item(&container, &item).await.expect(201);
    let founded = cluster.status().await;
    assert_eq!(founded.nodes.iter().map(|node| node.node).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(founded.cluster.is_some(), "a cluster has an identity");

    for node in cluster.ids() {
        let account = cluster.client(node).ask(Call::get("/")).await.expect(200).json();
        let regions = account["readableLocations"].as_array().expect("regions are listed");
        assert_eq!(regions.len(), 3, "every node is a region to clients");
    }
    for node in cluster.ids() {
        cluster.terminate(node);
    }
    for node in cluster.ids() {
        assert_eq!(cluster.await_exit(node).await.code(), Some(0), "node {node}");
    }
    cluster.start_all().await;

    for node in cluster.ids() {
        let client = cluster.client(node);
        let definition = client.read_container(&container).await.expect(200).json();
        assert_eq!(definition["defaultTtl"], -1);
        let read = client.read_item(&container, &json!("k"), "a").await.expect(200);
        assert_eq!(read.json()["n"], 1);
    }
    assert_eq!(cluster.status().await.cluster, founded.cluster, "it is the same cluster");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_key_opens_no_node() {
    let cluster = Cluster::start(3).await;
    for node in cluster.ids() {
        let stranger = cluster.client(node).with_key(AccountKey::parse(OTHER_KEY));
        for path in ["/", "/dbs", "/admin/status"] {
            let answer = stranger.ask(Call::get(path)).await.expect(401);
            assert_eq!(answer.json()["code"], "Unauthorized", "{path}");
        }
        stranger.create_database("shop").await.expect(401);
        cluster.client(node).ask(Call::get("/dbs/shop")).await.expect(404);
    }
    let url = cluster.url(1);
    let refused = cluster.command(&["status", "--http", &url, "--key", OTHER_KEY]);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && told.contains("--key-file"), "{told}");
    let refused = cluster.command(&["forget-node", "9", "--http", &url]);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && told.contains("no node 9"), "{told}");
    assert!(cluster.command(&["status", "--http", &url]).status.success());
    assert!(cluster.command(&["healthcheck", "--http", &url]).status.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_node_is_refused_until_it_is_rebuilt_as_a_new_one() {
    let mut cluster = Cluster::start(3).await;
    let container = Container::new("shop", "orders");
    let client = cluster.client(1);
    client.create_database("shop").await.expect(201);
    client.create_container(&container, json!({})).await.expect(201);
    for n in 0..50 {
        let item = json!({ "id": format!("{n}"), "pk": "k" });
        client.create_item(&container, &item).await.expect(201);
    }

    cluster.kill(3);
    cluster.wipe(3);
    cluster.spawn(3);
    let status = cluster.await_exit(3).await;
    assert!(!status.success(), "a node without its data does not come back by itself");
    assert!(
        cluster.log(3).contains("ephemeris rebuild-node 3 --data-dir"),
        "the message names the command that repairs it"
    );
    let item = json!({ "id": "meanwhile", "pk": "k" });
    client.create_item(&container, &item).await.expect(201);

    let rebuilt = cluster.rebuild(3);
    assert!(rebuilt.status.success(), "{}", String::from_utf8_lossy(&rebuilt.stderr));
    cluster.restart(3).await;
    cluster.await_settled().await;
    let status = cluster.status().await;
    for group in status.partitions(&container) {
        let replica = group.replicas.iter().find(|replica| replica.node == 3);
        assert_eq!(replica.expect("node 3 has a replica again").items, Some(51));
    }
    // Whatever it holds counts: with node 1 gone, it is one half of the majority.
    cluster.kill(1);
    cluster.leader(&container).await;
    assert_eq!(cluster.client(3).read_feed(&container).await.len(), 51);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_node_keeps_its_data_over_crash_and_orderly_end() {
    let started = clock::monotonic();
    let mut cluster = Cluster::single().await;
    println!("a node alone is ready after {:?}", started.elapsed());
    let container = Container::new("shop", "orders");
    let client = cluster.client(1);
    client.create_database("shop").await.expect(201);
    client.create_container(&container, json!({})).await.expect(201);
    let item = |n: u32| json!({ "id": format!("{n}"), "pk": "k" });
    client.create_item(&container, &item(0)).await.expect(201);

    cluster.kill(1);
    cluster.restart(1).await;
    assert_eq!(client.read_feed(&container).await.len(), 1);
    client.create_item(&container, &item(1)).await.expect(201);

    cluster.terminate(1);
    assert_eq!(cluster.await_exit(1).await.code(), Some(0));
    cluster.restart(1).await;
    assert_eq!(client.read_feed(&container).await.len(), 2);
    client.create_item(&container, &item(1)).await.expect(409);
}

/// It may wait for long: whoever looks after it must be able to tell that from a node that hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_founder_that_waits_for_the_others_is_alive_and_not_ready() {
    let mut cluster = Cluster::formable_with(3, &["--request-timeout-ms", "500"]);
    cluster.spawn(1);
    let client = cluster.client(1);
    wait::until("the first founder to be alive", FOUNDER_DEADLINE, async || {
        let alive = client.send_unsigned(&Call::get("/livez")).await.ok()?;
        (alive.status == 200).then_some(())
    })
    .await;
    let probe =
        async |path: &str| client.send_unsigned(&Call::get(path)).await.expect("it answers");
    let ready = probe("/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.describe().contains("the node is starting"), "{}", ready.describe());
    assert_eq!(probe("/metrics").await.status, 503);
    let refused = client.ask(Call::get("/dbs")).await.expect(429);
    assert_eq!(refused.json()["code"], "TooManyRequests", "clients come again");
    let status = cluster.command(&["status", "--http", &cluster.url(1)]);
    let told = String::from_utf8_lossy(&status.stderr).into_owned();
    assert!(told.contains("the node is starting"), "{told}");

    cluster.spawn(2);
    cluster.spawn(3);
    for node in cluster.ids() {
        cluster.await_ready(node).await;
    }
    client.ask(Call::get("/dbs")).await.expect(200);
}

/// As when the disk of the log lines is full, or whoever collects them has gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_log_lines_nobody_takes_goes_on() {
    let mut cluster = Cluster::alone();
    let log = cluster.data_directory(1).with_file_name("log.txt");
    std::os::unix::fs::symlink("/dev/full", &log).expect("a link can be made");
    cluster.start_all().await;
    cluster.client(1).create_database("shop").await.expect(201);
    cluster.terminate(1);
    assert_eq!(cluster.await_exit(1).await.code(), Some(0), "it ends in order");
    cluster.spawn(1);
    cluster.await_ready(1).await;
    cluster.client(1).ask(Call::get("/dbs/shop")).await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_does_not_begin_anew_where_its_state_is_gone() {
    let mut cluster = Cluster::single().await;
    cluster.client(1).create_database("shop").await.expect(201);
    cluster.terminate(1);
    assert_eq!(cluster.await_exit(1).await.code(), Some(0));
    let state = cluster.data_directory(1).join("state");
    let kept = cluster.data_directory(1).with_file_name("kept");
    std::fs::rename(&state, &kept).expect("a directory can be moved");
    cluster.spawn(1);
    assert_eq!(cluster.await_exit(1).await.code(), Some(1));
    assert!(cluster.log(1).contains("its state is gone"), "{}", cluster.log(1));
    assert!(!state.exists(), "none was made");
    std::fs::rename(&kept, &state).expect("it can be moved back");
    cluster.restart(1).await;
    cluster.client(1).ask(Call::get("/dbs/shop")).await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_directory_serves_one_process_at_a_time() {
    let cluster = Cluster::single().await;
    let directory = cluster.data_directory(1).display().to_string();
    let second = ["start-single-node", "--http", "127.0.0.1:0", "--data-dir", &directory];
    let second = cluster.command(&second);
    assert!(!second.status.success());
    let message = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(message.contains("in use by another process"), "{message}");
    cluster.client(1).ask(Call::get("/dbs")).await.expect(200);
}
