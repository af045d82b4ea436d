//! Bulk requests, as the JavaScript SDK sends them: each operation for itself.

use ephemeris_cluster_tests::client::{Answer, Call, Client, Container};
use ephemeris_cluster_tests::cluster::Cluster;
use serde_json::{Value, json};

struct World {
    _cluster: Cluster,
    client: Client,
    carts: Container,
}

impl World {
    /// A node with a container of two partitions.
    async fn new() -> Self {
        let cluster = Cluster::single().await;
        let client = cluster.client(1);
        let carts = Container::new("shop", "carts");
        client.create_database("shop").await.expect(201);
        let key = json!({ "paths": ["/pk"], "kind": "Hash", "version": 2 });
        let definition = json!({ "id": "carts", "partitionKey": key }).to_string();
        let create = Call::post("/dbs/shop/colls", definition);
        client.ask(create.header("x-ms-offer-throughput", "12000")).await.expect(201);
        Self { _cluster: cluster, client, carts }
    }

    fn call(&self, operations: &Value) -> Call {
        Call::post(self.carts.items(), operations.to_string())
            .header("x-ms-cosmos-is-batch-request", "True")
            .header("x-ms-cosmos-batch-atomic", "False")
    }

    async fn bulk(&self, operations: &Value) -> Answer {
        self.client.ask(self.call(operations)).await
    }

    async fn ids(&self) -> Vec<Value> {
        self.client.query(&self.carts, "SELECT VALUE c.id FROM c ORDER BY c.id", json!([])).await
    }
}

fn key(key: &str) -> String {
    json!([key]).to_string()
}

fn create(id: &str, pk: &str) -> Value {
    let body = json!({ "id": id, "pk": pk });
    json!({ "operationType": "Create", "partitionKey": key(pk), "resourceBody": body })
}

fn statuses(answer: &Answer) -> Vec<u64> {
    let rows = answer.json();
    let rows = rows.as_array().expect("an answer has rows");
    rows.iter().map(|row| row["statusCode"].as_u64().expect("a status")).collect()
}

#[tokio::test]
async fn every_operation_of_a_bulk_request_answers_for_itself() {
    let world = World::new().await;
    let all: Vec<Value> = (0..100).map(|n| create(&format!("i{n:02}"), &format!("k{n}"))).collect();
    let created = world.bulk(&json!(all)).await.expect(200);
    assert_eq!(statuses(&created), [201; 100]);
    assert_eq!(world.ids().await.len(), 100);
    let session = created.header("x-ms-session-token").expect("items were written");
    assert_eq!(session.split(',').count(), 2, "both partitions are told: {session}");
    let single = world.client.create_item(&world.carts, &json!({ "id": "x", "pk": "x" })).await;
    let charge = |answer: &Answer| answer.header("x-ms-request-charge").unwrap().parse::<f64>();
    assert!(charge(&created).unwrap() > 90.0 * charge(&single).unwrap());

    let replaced = json!({ "id": "i01", "pk": "k1", "n": 1 });
    let incremented = json!({ "operations": [{ "op": "incr", "path": "/n", "value": 2 }] });
    let answer = world
        .bulk(&json!([
            create("i00", "k0"),
            { "operationType": "Replace", "id": "i01", "partitionKey": key("k1"), "resourceBody": replaced },
            { "operationType": "Patch", "id": "i01", "partitionKey": key("k1"), "resourceBody": incremented },
            { "operationType": "Read", "id": "i01", "partitionKey": key("k1") },
            { "operationType": "Delete", "id": "i02", "partitionKey": key("k2") },
            { "operationType": "Delete", "id": "i03", "partitionKey": key("k2") },
            { "operationType": "Upsert", "partitionKey": key("k9"), "resourceBody": { "id": "new", "pk": "k9" } },
            { "operationType": "Upsert", "partitionKey": key("k9"), "resourceBody": { "id": "other", "pk": "k8" } },
            { "operationType": "Delete", "id": "i04", "partitionKey": key("k4"), "ifMatch": "\"old\"" },
            { "operationType": "Merge", "id": "i04", "partitionKey": key("k4") },
            { "operationType": "Read", "id": "i04", "partitionKey": "k4" },
            { "operationType": "Read", "id": "i04" },
        ]))
        .await
        .expect(207);
    let expected = [409, 200, 200, 200, 204, 404, 201, 400, 412, 400, 400, 400];
    assert_eq!(statuses(&answer), expected);
    let rows = answer.json();
    assert_eq!(rows[3]["resourceBody"]["n"], 3, "operations on one item come in order");
    assert!(rows[0]["message"].is_string() && rows[0]["eTag"].is_null());
    assert_eq!(rows[7]["subStatusCode"], 1001);
}

#[tokio::test]
async fn a_bulk_request_may_be_about_one_range_and_may_stop() {
    let world = World::new().await;
    let operations: Vec<Value> =
        (0..20).map(|n| create(&format!("i{n:02}"), &format!("k{n}"))).collect();
    let range = |range: &str| {
        world.call(&json!(operations)).header("x-ms-documentdb-partitionkeyrangeid", range)
    };
    world.client.ask(range("77")).await.expect(410);
    let first = statuses(&world.client.ask(range("0")).await.expect(207));
    let second = statuses(&world.client.ask(range("1")).await.expect(207));
    for pair in first.iter().zip(&second) {
        assert!(matches!(pair, (201, 410) | (410, 201)), "{pair:?}");
    }
    assert_eq!(world.ids().await.len(), 20);

    let operations = json!([create("new", "k"), create("i07", "k7"), create("late", "k")]);
    let stopping = world.call(&operations).header("x-ms-cosmos-batch-continue-on-error", "False");
    assert_eq!(statuses(&world.client.ask(stopping).await.expect(207)), [201, 409, 424]);
    assert!(!world.ids().await.contains(&json!("late")));
}

#[tokio::test]
async fn bad_bulk_requests_are_refused() {
    let world = World::new().await;
    for body in [json!([]), json!({}), json!([5]), json!(vec![create("a", "k"); 101])] {
        world.bulk(&body).await.expect(400);
    }
    assert!(world.ids().await.is_empty());
}
