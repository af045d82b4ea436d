//! Garbage by seed: signed requests with wrong parts, and bytes that are no HTTP at all.
//!
//! `SEED=n cargo nextest run -p ephemeris-cluster-tests --test garbage` repeats a run.

use std::time::Duration;

use ephemeris_cluster_tests::client::{Call, Client, Container};
use ephemeris_cluster_tests::cluster::Cluster;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const REQUESTS: u32 = 3000;
const RAW_CONNECTIONS: u32 = 300;
/// How long a connection full of garbage is listened to.
const RAW_DEADLINE: Duration = Duration::from_millis(50);

const SEGMENTS: &[&str] = &[
    "dbs",
    "colls",
    "docs",
    "shop",
    "carts",
    "a",
    "pkranges",
    "offers",
    "sprocs",
    "triggers",
    "udfs",
    "users",
    "conflicts",
    "operations",
    "partitionkeydelete",
    "admin",
    "status",
    "x",
    "%20",
    "%00",
    "%E6%97%A5",
    "SnxPAA==",
    "",
    ".",
    "..",
    "AAAAAIAAAAE=",
];
const HEADERS: &[&str] = &[
    "x-ms-documentdb-partitionkey",
    "x-ms-documentdb-isquery",
    "x-ms-documentdb-is-upsert",
    "x-ms-cosmos-is-batch-request",
    "x-ms-cosmos-batch-atomic",
    "x-ms-max-item-count",
    "x-ms-continuation",
    "x-ms-session-token",
    "if-match",
    "if-none-match",
    "a-im",
    "prefer",
    "x-ms-start-epk",
    "x-ms-end-epk",
    "x-ms-documentdb-partitionkeyrangeid",
    "content-type",
    "x-ms-cosmos-intended-collection-rid",
    "x-ms-offer-throughput",
    "x-ms-consistency-level",
    "x-ms-cosmos-offer-autopilot-settings",
    "x-ms-cosmos-is-query-plan-request",
    "x-ms-version",
    "if-modified-since",
    "accept",
    "x-ms-activity-id",
];
const VALUES: &[&str] = &[
    "",
    "true",
    "True",
    "1",
    "-1",
    "0",
    "99999999999999999999",
    "*",
    "\"x\"",
    "[]",
    "[\"k\"]",
    "[{}]",
    "[null]",
    "[\"k\",\"l\"]",
    "{",
    "0",
    "0:-1#5",
    "FF",
    "3FFF",
    "application/query+json",
    "é",
    "\t",
    "Incremental Feed",
    "return=minimal",
    "{\"maxThroughput\":4000}",
    "application/json",
];
const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"id\"",
    "\"a\"",
    "\"pk\"",
    "\"k\"",
    "\"query\"",
    "\"parameters\"",
    "\"name\"",
    "\"value\"",
    "\"ttl\"",
    "\"SELECT * FROM c WHERE c.id = @x\"",
    "\"operations\"",
    "\"op\"",
    "\"set\"",
    "\"path\"",
    "\"/a/b\"",
    "\"operationType\"",
    "\"Create\"",
    "\"resourceBody\"",
    "1",
    "-1",
    "1e400",
    "0.5",
    "null",
    "true",
    "\\u0000",
    "\"\\ud800\"",
    " ",
    "\u{0}",
    "é",
];

fn seed() -> u64 {
    std::env::var("SEED").ok().map_or_else(rand::random, |text| text.parse().expect("a number"))
}

fn pick<'a>(rng: &mut SmallRng, words: &[&'a str]) -> &'a str {
    words.choose(rng).expect("there are words")
}

fn path(rng: &mut SmallRng) -> String {
    let known = ["/dbs", "/dbs/shop/colls", "/dbs/shop/colls/carts", "/dbs/shop/colls/carts/docs"];
    let mut path = match rng.random_range(0..4) {
        0 => String::new(),
        _ => pick(rng, &known).to_string(),
    };
    for _ in 0..rng.random_range(0..3) {
        path.push('/');
        path.push_str(pick(rng, SEGMENTS));
    }
    if path.is_empty() { "/".to_string() } else { path }
}

fn body(rng: &mut SmallRng) -> Vec<u8> {
    match rng.random_range(0..4) {
        0 => Vec::new(),
        1 => {
            let mut bytes = vec![0; rng.random_range(0..200)];
            rng.fill(&mut bytes[..]);
            bytes
        }
        2 => {
            let whole = json!({ "id": "b", "pk": "k", "query": "SELECT * FROM c", "ttl": 5 });
            let mut bytes = whole.to_string().into_bytes();
            let at = rng.random_range(0..bytes.len());
            bytes[at] = rng.random();
            bytes
        }
        _ => {
            let words = (0..rng.random_range(1..30)).map(|_| pick(rng, WORDS));
            words.collect::<String>().into_bytes()
        }
    }
}

fn call(rng: &mut SmallRng) -> Call {
    let methods = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::POST];
    let method = methods.choose(rng).expect("there are methods").clone();
    let mut call = Call::new(method, path(rng)).body(body(rng));
    for _ in 0..rng.random_range(0..4) {
        call = call.header(pick(rng, HEADERS), pick(rng, VALUES));
    }
    call
}

async fn node_with_an_item() -> (Cluster, Client, Container) {
    let cluster = Cluster::single().await;
    let client = cluster.client(1);
    let container = Container::new("shop", "carts");
    client.create_database("shop").await.expect(201);
    client.create_container(&container, json!({ "defaultTtl": -1 })).await.expect(201);
    client.create_item(&container, &json!({ "id": "kept", "pk": "kept" })).await.expect(201);
    (cluster, client, container)
}

async fn check_health(cluster: &Cluster, client: &Client, container: &Container) {
    client.read_item(container, &json!("kept"), "kept").await.expect(200);
    let item = json!({ "id": "after", "pk": "after" });
    client.upsert_item(container, &item).await.expect(201);
    let log = cluster.log(1);
    assert!(!log.contains("panic"), "the node has panicked:\n{log}");
}

#[tokio::test]
async fn no_signed_request_is_a_server_error() {
    let seed = seed();
    println!("SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let (cluster, client, container) = node_with_an_item().await;
    for _ in 0..REQUESTS {
        let call = call(&mut rng);
        let answer = match client.send(&call).await {
            Ok(answer) => answer,
            Err(error) => panic!("{call:?}: {error}"),
        };
        // 501 is what a part of the API that is not served answers.
        assert!(answer.status < 500 || answer.status == 501, "{call:?}: {}", answer.describe());
    }
    check_health(&cluster, &client, &container).await;
}

fn raw(rng: &mut SmallRng) -> Vec<u8> {
    let heads: [&[u8]; 12] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\nhost: x\r\n\r\n",
        b"POST /dbs HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /dbs HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"POST /dbs HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"POST /dbs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /dbs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
        b"POST /dbs HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\nhalf",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /%00%ff?%%%= HTTP/1.1\r\nhost: \xff\xfe\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nhost: x\r\n\r\n",
    ];
    let mut bytes = heads.choose(rng).expect("there are heads").to_vec();
    match rng.random_range(0..4) {
        0 => {
            bytes = vec![0; rng.random_range(1..2000)];
            rng.fill(&mut bytes[..]);
        }
        1 => {
            let at = rng.random_range(0..bytes.len());
            bytes[at] = rng.random();
        }
        2 => {
            let filler = "y".repeat(rng.random_range(1..200_000));
            let head = format!("GET / HTTP/1.1\r\nhost: x\r\nx-filler: {filler}\r\n\r\n");
            bytes = head.into_bytes();
        }
        _ => {}
    }
    bytes
}

#[tokio::test]
async fn no_bytes_at_all_harm_the_node() {
    let seed = seed();
    println!("SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let (cluster, client, container) = node_with_an_item().await;
    for _ in 0..RAW_CONNECTIONS {
        let bytes = raw(&mut rng);
        let mut stream = TcpStream::connect(cluster.address(1)).await.expect("the node listens");
        // The node may close before it has read everything.
        let _ = stream.write_all(&bytes).await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(RAW_DEADLINE, stream.read_to_end(&mut answer)).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(!answer.starts_with("HTTP/1.1 5"), "{answer} to {}", bytes.escape_ascii());
    }
    check_health(&cluster, &client, &container).await;
}
