//! What the Rust SDK relies on: binary bodies, HTTP/2 from the first byte, answers without content.

use std::time::Duration;

use ephemeris_cluster_tests::client::{AccountKey, Answer, Call, Client, Container, binary_json};
use ephemeris_cluster_tests::cluster::Cluster;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

struct World {
    cluster: Cluster,
    client: Client,
    carts: Container,
}

impl World {
    /// A node with a container; its client speaks HTTP/2, as the SDK does.
    async fn new() -> Self {
        let cluster = Cluster::single().await;
        let client = Client::over_http2(cluster.url(1), AccountKey::emulator());
        let carts = Container::new("shop", "carts");
        client.create_database("shop").await.expect(201);
        client.create_container(&carts, json!({ "defaultTtl": -1 })).await.expect(201);
        Self { cluster, client, carts }
    }

    fn post(&self, body: Vec<u8>) -> Call {
        Call::post(self.carts.items(), body)
            .header("content-type", "application/json")
            .header("x-ms-cosmos-supported-serialization-formats", "CosmosBinary")
    }

    async fn stored(&self, id: &str) -> Value {
        let mut item = self.client.read_item(&self.carts, &json!("k"), id).await.expect(200).json();
        let item = item.as_object_mut().expect("items are objects");
        item.retain(|name, _| !name.starts_with('_'));
        Value::Object(std::mem::take(item))
    }
}

#[tokio::test]
async fn binary_bodies_store_the_items_they_stand_for() {
    let world = World::new().await;
    let item = json!({
        "id": "a", "pk": "k", "text": "é\"\n".repeat(100), "none": null, "yes": true,
        "numbers": [0, 31, 32, -1, 9_007_199_254_740_993_i64, u64::MAX, 0.5, 1e300],
        "nested": { "list": [[], {}, [["x"]]] }, "": "",
    });
    let create = world.post(binary_json(&item)).key(&json!("k"));
    let created = world.client.ask(create.clone()).await.expect(201);
    assert_eq!(created.header("content-type"), Some("application/json"));
    assert_eq!(created.json()["numbers"], item["numbers"]);
    assert_eq!(world.stored("a").await, item);
    world.client.ask(create).await.expect(409);

    let second = json!({ "id": "a", "pk": "k", "version": 2 });
    let upsert = world.post(binary_json(&second)).header("x-ms-documentdb-is-upsert", "True");
    world.client.ask(upsert).await.expect(200);
    assert_eq!(world.stored("a").await, second);

    let third = json!({ "id": "a", "pk": "k", "version": 3, "ttl": -1 });
    let replace = Call::put(world.carts.item("a"), binary_json(&third)).key(&json!("k"));
    world.client.ask(replace).await.expect(200);
    assert_eq!(world.stored("a").await, third);
    let rows = world.client.query(&world.carts, "SELECT VALUE c.version FROM c", json!([])).await;
    assert_eq!(rows, [json!(3)]);
}

#[tokio::test]
async fn a_binary_body_is_checked_like_text() {
    let world = World::new().await;
    let refused = async |what: &str, body: Vec<u8>, status: u16| {
        let answer = world.client.ask(world.post(body).key(&json!("k"))).await;
        assert_eq!(answer.status, status, "{what}: {}", answer.describe());
        assert!(answer.json()["message"].is_string(), "{what}");
    };
    let good = binary_json(&json!({ "id": "a", "pk": "k" }));
    for length in 1..good.len() {
        refused("a body cut short", good[..length].to_vec(), 400).await;
    }
    refused("a body with a tail", [&good[..], b"\0"].concat(), 400).await;
    refused("a string", binary_json(&json!("a")), 400).await;
    refused("an array", binary_json(&json!([{ "id": "a", "pk": "k" }])), 400).await;
    refused("no id", binary_json(&json!({ "pk": "k" })), 400).await;
    refused("another key", binary_json(&json!({ "id": "a", "pk": "l" })), 400).await;
    refused("an id that is none", binary_json(&json!({ "id": "a/b", "pk": "k" })), 400).await;
    refused("a wrong ttl", binary_json(&json!({ "id": "a", "pk": "k", "ttl": 0 })), 400).await;
    refused("HybridRow", b"\x81\0\0".to_vec(), 400).await;
    let deep = [&[0x80][..], &[0xE1; 10_000], &[0]].concat();
    refused("a deep array", deep, 400).await;
    // A string of 64 KiB and a hundred references to it: 6 MiB of text in a body of 66 KiB.
    let string = [&[0xC1, 0xFF, 0xFF][..], &vec![b'x'; 0xFFFF]].concat();
    let content = [string, [0xC4, 0x06, 0x00].repeat(100)].concat();
    let length = u32::try_from(content.len()).expect("it is small").to_le_bytes();
    refused("a blown-up body", [&[0x80, 0xE4][..], &length, &content].concat(), 413).await;
    let log = world.cluster.log(1);
    assert!(!log.contains("panic"), "the node has panicked:\n{log}");
}

#[tokio::test]
async fn one_http2_connection_serves_many_requests_at_once() {
    let world = World::new().await;
    let mut requests = JoinSet::new();
    for number in 0..200 {
        let (client, carts) = (world.client.clone(), world.carts.clone());
        requests.spawn(async move {
            let item = json!({ "id": number.to_string(), "pk": "k", "number": number });
            client.create_item(&carts, &item).await.expect(201);
            client.read_item(&carts, &json!("k"), &number.to_string()).await.expect(200).json()
        });
    }
    let read = tokio::time::timeout(Duration::from_secs(30), requests.join_all()).await;
    assert_eq!(read.expect("200 requests take less").len(), 200);
    assert_eq!(world.client.read_feed(&world.carts).await.len(), 200);
    // Other clients are served as before.
    world.cluster.client(1).ask(Call::get("/dbs/shop")).await.expect(200);
}

#[tokio::test]
async fn the_account_names_the_host_a_client_used_in_either_version_of_http() {
    let world = World::new().await;
    for client in [&world.client, &world.cluster.client(1)] {
        let account = client.ask(Call::get("/")).await.expect(200).json();
        let location = &account["writableLocations"][0]["databaseAccountEndpoint"];
        assert_eq!(location, &json!(format!("{}/", client.base())));
    }
}

/// Checks an answer without content; returns the tag in it.
fn minimal(answer: Answer, status: u16) -> String {
    let answer = answer.expect(status);
    assert!(answer.body.is_empty(), "{}", answer.describe());
    for header in ["x-ms-request-charge", "x-ms-session-token", "x-ms-item-lsn"] {
        assert!(answer.header(header).is_some(), "no {header}");
    }
    answer.header("etag").expect("the item has a tag").to_string()
}

#[tokio::test]
async fn a_write_that_wants_no_content_is_answered_with_the_tag_alone() {
    let world = World::new().await;
    let key = json!("k");
    let quiet = |call: Call| call.key(&key).header("prefer", "return=minimal");
    let item = binary_json(&json!({ "id": "a", "pk": "k", "n": 1 }));
    let created = minimal(world.client.ask(quiet(world.post(item.clone()))).await, 201);
    let upsert = world.post(item.clone()).header("x-ms-documentdb-is-upsert", "True");
    let upserted = minimal(world.client.ask(quiet(upsert)).await, 200);
    let replace = Call::put(world.carts.item("a"), item);
    let replaced = minimal(world.client.ask(quiet(replace)).await, 200);
    let operations = json!({ "operations": [{ "op": "incr", "path": "/n", "value": 4 }] });
    let patch = Call::new(Method::PATCH, world.carts.item("a")).body(operations.to_string());
    let patch = patch.header("content-type", "application/json_patch+json");
    let patched = minimal(world.client.ask(quiet(patch)).await, 200);
    let read = world.client.read_item(&world.carts, &key, "a").await.expect(200);
    assert_eq!((read.json()["n"].as_i64(), read.header("etag")), (Some(5), Some(patched.as_str())));
    let mut tags = vec![created, upserted, replaced, patched];
    tags.dedup();
    assert_eq!(tags.len(), 4, "every write has a tag of its own");

    // What is refused says why, and a read is asked for to see the item.
    let missing = Call::put(world.carts.item("b"), r#"{"id":"b","pk":"k"}"#);
    let refused = world.client.ask(quiet(missing)).await.expect(404);
    assert!(refused.json()["message"].is_string());
    let read = world.client.ask(quiet(Call::get(world.carts.item("a")))).await.expect(200);
    assert_eq!(read.json()["n"], 5);
}

#[tokio::test]
async fn a_batch_that_wants_no_content_keeps_its_rows() {
    let world = World::new().await;
    let operations = json!([
        { "operationType": "Create", "resourceBody": { "id": "a", "pk": "k", "n": 1 } },
        { "operationType": "Upsert", "resourceBody": { "id": "b", "pk": "k" } },
        { "operationType": "Replace", "id": "b", "resourceBody": { "id": "b", "pk": "k", "n": 2 } },
        { "operationType": "Patch", "id": "a", "resourceBody": {
            "operations": [{ "op": "set", "path": "/n", "value": 3 }] } },
        { "operationType": "Read", "id": "a" },
        { "operationType": "Delete", "id": "b" },
    ]);
    let batch = Call::post(world.carts.items(), operations.to_string())
        .key(&json!("k"))
        .header("x-ms-cosmos-is-batch-request", "True")
        .header("x-ms-cosmos-batch-atomic", "True")
        .header("prefer", "return=minimal");
    let rows = world.client.ask(batch).await.expect(200).json();
    let statuses: Vec<_> = (0..6).map(|row| rows[row]["statusCode"].as_u64()).collect();
    assert_eq!(statuses, [201, 201, 200, 200, 200, 204].map(Some));
    for row in 0..5 {
        assert!(rows[row]["eTag"].is_string(), "row {row}");
        assert_eq!(rows[row].get("resourceBody").is_some(), row == 4, "row {row}");
    }
    assert_eq!(rows[4]["resourceBody"]["n"], 3);
}
