//! TLS between nodes, while their key changes.

use std::fs;
use std::time::Duration;

use ephemeris_cluster_tests::client::Container;
use ephemeris_cluster_tests::cluster::Cluster;
use ephemeris_cluster_tests::load::Writers;
use ephemeris_cluster_tests::wait;
use rcgen::KeyPair;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long a node may take to see that a file has changed.
const DEADLINE: Duration = Duration::from_secs(30);

fn new_key() -> String {
    KeyPair::generate().expect("a key can be made").serialize_pem()
}

/// How many lines of a node's log hold all of some words.
fn count_lines(cluster: &Cluster, node: u32, words: &[&str]) -> usize {
    let log = cluster.log(node);
    log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_share_a_key_take_nobody_else_and_change_it_without_a_pause() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let file = directory.path().join("peer-key.pem");
    let [old, new] = [new_key(), new_key()];
    fs::write(&file, &old).expect("the file can be written");
    let path = file.to_str().expect("it is text");
    let arguments = ["--consistency", "Strong", "--peer-key-file", path];
    let mut cluster = Cluster::formable_with(3, &arguments);
    cluster.start_all().await;
    let carts = Container::new("shop", "carts");
    cluster.client(1).create_database("shop").await.expect(201);
    cluster.client(1).create_container(&carts, json!({})).await.expect(201);
    let writers = Writers::start(&cluster.clients(&[1, 2]), &carts, 4);
    writers.await_more(100).await;

    // Whoever speaks plain text is told nothing, and the node says what to do.
    let mut stranger = TcpStream::connect(cluster.peer(1)).await.expect("the node listens");
    stranger.write_all(&[0; 64]).await.expect("it is taken");
    // It ends the connection, or breaks it off.
    let reading = tokio::time::timeout(DEADLINE, stranger.read_to_end(&mut Vec::new())).await;
    let _ = reading.expect("in time");
    let refusal = ["no connection with a peer", "no TLS with 127.0.0.1", "--peer-key-file"];
    let told = async || (count_lines(&cluster, 1, &refusal) == 1).then_some(());
    wait::until("the node to say who was refused", DEADLINE, told).await;

    let steps = [format!("{old}{new}"), format!("{new}{old}"), new];
    for (done, content) in steps.iter().enumerate() {
        fs::write(&file, content).expect("the file can be written");
        for node in cluster.ids() {
            cluster.hang_up(node);
            let has_seen = async || {
                let seen = count_lines(&cluster, node, &["files were changed", "peer keys"]);
                (seen > done).then_some(())
            };
            wait::until("the node to see the new file", DEADLINE, has_seen).await;
        }
        // What starts anew connects to everybody.
        cluster.terminate(3);
        cluster.await_exit(3).await;
        cluster.spawn(3);
        cluster.await_ready(3).await;
        writers.await_more(100).await;
    }
    writers.stop().await.check_everywhere(&cluster, &carts).await;
    // Only the stranger was refused.
    for node in cluster.ids() {
        let refused = count_lines(&cluster, node, &["no connection with a peer"]);
        assert_eq!(refused, usize::from(node == 1), "{}", cluster.log(node));
    }
}

#[tokio::test]
async fn a_key_that_cannot_be_used_stops_the_start() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let file = directory.path().join("peer-key.pem");
    fs::write(&file, "nothing").expect("the file can be written");
    let path = file.to_str().expect("it is text");
    let mut cluster = Cluster::formable_with(3, &["--peer-key-file", path]);
    cluster.spawn(1);
    assert!(!cluster.await_exit(1).await.success());
    let log = cluster.log(1);
    assert!(log.contains(path) && log.contains("openssl genpkey"), "{log}");
}
