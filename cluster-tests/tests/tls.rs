//! HTTPS: with certificates made by the node, with the operator's own, and while they change.

use std::fs;
use std::path::Path;
use std::time::Duration;

use ephemeris_cluster_tests::client::{AccountKey, Call, Client, Container, NoAnswer};
use ephemeris_cluster_tests::cluster::Cluster;
use ephemeris_cluster_tests::wait;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

/// How long a node may take to be ready, and to see that a file has changed.
const DEADLINE: Duration = Duration::from_secs(30);

/// A client that trusts the authority in a file, and speaks HTTP/2 if the node does.
fn client(cluster: &Cluster, authority: &[u8]) -> Client {
    let url = format!("https://127.0.0.1:{}", cluster.address(1).port());
    Client::over_tls(url, AccountKey::emulator(), authority)
}

async fn await_ready(client: &Client) {
    wait::until("the node to be ready", DEADLINE, async || {
        let answer = client.send_unsigned(&Call::get("/readyz")).await.ok()?;
        (answer.status == 200).then_some(())
    })
    .await;
}

/// Starts a node with a certificate of its own making; answers its authority.
async fn start_with_made_certificate(cluster: &mut Cluster) -> Vec<u8> {
    cluster.spawn(1);
    let file = cluster.data_directory(1).join("tls/ca.pem");
    wait::until("the authority", DEADLINE, async || fs::read(&file).ok()).await
}

#[tokio::test]
async fn a_node_makes_a_certificate_that_clients_can_trust() {
    let mut cluster = Cluster::alone_with(&["--tls"]);
    let authority = start_with_made_certificate(&mut cluster).await;
    let client = client(&cluster, &authority);
    await_ready(&client).await;
    let carts = Container::new("shop", "carts");
    client.create_database("shop").await.expect(201);
    client.create_container(&carts, json!({})).await.expect(201);
    client.create_item(&carts, &json!({ "id": "a", "pk": "k" })).await.expect(201);
    let account = client.ask(Call::get("/")).await.expect(200).json();
    let location = &account["writableLocations"][0]["databaseAccountEndpoint"];
    assert_eq!(location, &json!(format!("{}/", client.base())));

    // The address is good for nothing else: neither for strangers nor without encryption.
    let stranger = Client::new(client.base(), AccountKey::emulator());
    let refused = stranger.send(&Call::get("/")).await;
    assert!(matches!(refused, Err(NoAnswer::NotSent(_))), "{refused:?}");
    let plain = cluster.client(1).send(&Call::get("/")).await;
    assert!(plain.is_err(), "{plain:?}");

    let url = client.base();
    let file = cluster.data_directory(1).join("tls/ca.pem");
    let file = file.to_str().expect("it is text");
    let check = |arguments: &[&str]| cluster.command(arguments).status.success();
    assert!(check(&["healthcheck", "--http", url, "--ca-file", file]));
    assert!(!check(&["healthcheck", "--http", url]));
    assert!(check(&["status", "--http", url, "--ca-file", file]));
    let log = cluster.log(1);
    assert!(log.contains("Clients trust it by") && log.contains(file), "{log}");

    // A restart changes the certificate, and not whom to trust.
    cluster.terminate(1);
    cluster.await_exit(1).await;
    assert_eq!(start_with_made_certificate(&mut cluster).await, authority);
    await_ready(&client).await;
    client.read_item(&carts, &json!("k"), "a").await.expect(200);
}

#[tokio::test]
async fn who_is_slow_to_shake_hands_holds_up_nobody() {
    let mut cluster = Cluster::alone_with(&["--tls"]);
    let authority = start_with_made_certificate(&mut cluster).await;
    await_ready(&client(&cluster, &authority)).await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(cluster.address(1)).await.expect("the node listens"));
    }
    let newcomer = client(&cluster, &authority);
    let asked = tokio::time::timeout(Duration::from_secs(5), newcomer.ask(Call::get("/dbs")));
    asked.await.expect("others are served meanwhile").expect(200);
    // Who says nothing is sent away.
    let mut buffer = [0; 1];
    let first = silent.first_mut().expect("there are some").read(&mut buffer);
    let closed = tokio::time::timeout(DEADLINE, first).await.expect("in time");
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}

/// Writes a certificate for 127.0.0.1 and its key to files; answers the authority's.
fn write_certificate(certificate: &Path, key: &Path) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let own_key = || KeyPair::generate().expect("a key can be made");
    let authority = CertifiedIssuer::self_signed(params, own_key()).expect("it can be signed");
    let params = CertificateParams::new(["127.0.0.1".to_string()]).expect("it is an address");
    let node_key = own_key();
    let signed = params.signed_by(&node_key, &authority).expect("it can be signed");
    fs::write(certificate, signed.pem()).expect("the file can be written");
    fs::write(key, node_key.serialize_pem()).expect("the file can be written");
    authority.pem().into_bytes()
}

#[tokio::test]
async fn the_operators_certificate_is_changed_without_a_pause() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let files = ["node.pem", "key.pem"].map(|name| directory.path().join(name));
    let [certificate, key] = files.each_ref().map(|file| file.to_str().expect("it is text"));
    let authority = write_certificate(&files[0], &files[1]);
    let arguments = ["--tls-cert-file", certificate, "--tls-key-file", key];
    let mut cluster = Cluster::alone_with(&arguments);
    cluster.spawn(1);
    let old = client(&cluster, &authority);
    await_ready(&old).await;
    old.create_database("shop").await.expect(201);

    // A key that is not the certificate's changes nothing.
    let good_key = fs::read(&files[1]).expect("it was written");
    let other = KeyPair::generate().expect("a key can be made").serialize_pem();
    fs::write(&files[1], other).expect("the file can be written");
    cluster.hang_up(1);
    let complaint = async || cluster.log(1).contains("cannot be used").then_some(());
    wait::until("the node to complain", DEADLINE, complaint).await;
    client(&cluster, &authority).ask(Call::get("/dbs/shop")).await.expect(200);
    fs::write(&files[1], good_key).expect("the file can be written");

    let authority = write_certificate(&files[0], &files[1]);
    cluster.hang_up(1);
    wait::until("the new certificate", DEADLINE, async || {
        client(&cluster, &authority).send(&Call::get("/dbs/shop")).await.ok()
    })
    .await
    .expect(200);
    // Connections that are open stay open.
    old.ask(Call::get("/dbs/shop")).await.expect(200);
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_stops_the_start() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let files = ["node.pem", "key.pem"].map(|name| directory.path().join(name));
    let [certificate, key] = files.each_ref().map(|file| file.to_str().expect("it is text"));
    let cluster = Cluster::alone();
    let start = |files: &[&str]| {
        let data = directory.path().join("data");
        let data = data.to_str().expect("it is text");
        let mut arguments = vec!["start-single-node", "--http", "127.0.0.1:0", "--data-dir", data];
        arguments.extend(files);
        let output = cluster.command(&arguments);
        assert!(!output.status.success(), "it started");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let both = ["--tls-cert-file", certificate, "--tls-key-file", key];
    assert!(start(&both).contains("node.pem"));
    fs::write(&files[0], "no certificate").expect("the file can be written");
    fs::write(&files[1], "no key").expect("the file can be written");
    assert!(start(&both).contains("holds no usable certificate"));
    write_certificate(&files[0], &files[1]);
    assert!(start(&both[..2]).contains("go together"));
}
