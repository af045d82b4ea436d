//! Delete by partition key: at once for everybody, while the rows go in the background.

use std::time::Duration;

use ephemeris_cluster_tests::client::{Answer, Call, Client, Container};
use ephemeris_cluster_tests::cluster::Cluster;
use ephemeris_cluster_tests::wait;
use serde_json::{Value, json};

const ITEMS: u64 = 5000;
const OPERATIONS_MAX: u64 = 100;
const DEADLINE: Duration = Duration::from_secs(40);

/// A cluster with a container that has a logical partition of many items, and one of one.
async fn filled() -> (Cluster, Container) {
    let cluster = Cluster::start(3).await;
    let (client, carts) = (cluster.client(1), Container::new("shop", "carts"));
    client.create_database("shop").await.expect(201);
    let unique = json!({ "uniqueKeys": [{ "paths": ["/n"] }] });
    client.create_container(&carts, json!({ "uniqueKeyPolicy": unique })).await.expect(201);
    for first in (0..ITEMS).step_by(OPERATIONS_MAX.try_into().expect("a few")) {
        let create = |n: u64| json!({ "operationType": "Create", "resourceBody": item("full", n) });
        let operations: Vec<Value> = (first..first + OPERATIONS_MAX).map(create).collect();
        let batch = Call::post(carts.items(), json!(operations).to_string())
            .key(&json!("full"))
            .header("x-ms-cosmos-is-batch-request", "True")
            .header("x-ms-cosmos-batch-atomic", "True");
        client.ask(batch).await.expect(200);
    }
    client.create_item(&carts, &item("other", 0)).await.expect(201);
    (cluster, carts)
}

fn item(pk: &str, n: u64) -> Value {
    json!({ "id": format!("i{n}"), "pk": pk, "n": n })
}

async fn clear(client: &Client, container: &Container, pk: &str) -> Answer {
    let path = container.path() + "/operations/partitionkeydelete";
    client.ask(Call::post(path, "").key(&json!(pk))).await
}

async fn count(client: &Client, container: &Container, filter: &str) -> Value {
    let query = format!("SELECT VALUE COUNT(1) FROM c WHERE {filter}");
    client.query(container, &query, json!([])).await[0].clone()
}

/// How many items each replica stores.
async fn stored(cluster: &Cluster, container: &Container) -> Vec<Option<u64>> {
    let status = cluster.status().await;
    let replicas = status.partitions(container).into_iter().flat_map(|group| &group.replicas);
    replicas.map(|replica| replica.items).collect()
}

/// Waits until a node answers again.
async fn await_answers(client: &Client, container: &Container) {
    let read = Call::get(container.item("i0")).key(&json!("other"));
    wait::until("a leader that answers", DEADLINE, async || {
        client.send(&read).await.ok().filter(|answer| answer.status == 200).map(|_| ())
    })
    .await;
}

/// Nobody sees any of what was deleted, and everybody the rest.
async fn check_gone(client: &Client, container: &Container) {
    for n in [0, ITEMS / 2, ITEMS - 1] {
        client.read_item(container, &json!("full"), &format!("i{n}")).await.expect(404);
    }
    assert_eq!(count(client, container, "true").await, 1);
    assert_eq!(count(client, container, "c.n >= 0").await, 1);
    assert_eq!(count(client, container, "c.pk = 'full'").await, 0);
    assert_eq!(client.read_feed(container).await.len(), 1);
    let changes = Call::get(container.items()).header("a-im", "Incremental Feed");
    let changes = client.ask(changes).await.expect(200).json();
    assert_eq!(changes["_count"], 1, "the change feed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_logical_partition_is_gone_at_once_and_its_rows_later() {
    let (cluster, carts) = filled().await;
    clear(&cluster.client(2), &carts, "full").await.expect(200);
    for node in cluster.ids() {
        check_gone(&cluster.client(node), &carts).await;
    }
    // Ids and unique values are free, whether the rows are there or not.
    let (client, new) = (cluster.client(3), json!({ "id": "i7", "pk": "full", "n": 8 }));
    client.create_item(&carts, &new).await.expect(201);
    wait::until_seen("the rows to go", DEADLINE, async || {
        let stored = stored(&cluster, &carts).await;
        if stored == [Some(2); 3] { Ok(()) } else { Err(format!("{stored:?}")) }
    })
    .await;
    let found = client.read_item(&carts, &json!("full"), "i7").await.expect(200).json();
    assert_eq!(found["n"], 8, "what is written afterwards stays");
    clear(&client, &carts, "empty").await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_killed_in_between_changes_nothing() {
    let (mut cluster, carts) = filled().await;
    let leader = cluster.leader(&carts).await;
    clear(&cluster.client(leader), &carts, "full").await.expect(200);
    cluster.kill(leader);
    for node in cluster.running() {
        let client = cluster.client(node);
        await_answers(&client, &carts).await;
        check_gone(&client, &carts).await;
    }
    cluster.restart(leader).await;
    check_gone(&cluster.client(leader), &carts).await;
    wait::until_seen("the rows to go", DEADLINE, async || {
        let stored = stored(&cluster, &carts).await;
        if stored == [Some(1); 3] { Ok(()) } else { Err(format!("{stored:?}")) }
    })
    .await;
    for node in cluster.ids() {
        check_gone(&cluster.client(node), &carts).await;
    }
}
