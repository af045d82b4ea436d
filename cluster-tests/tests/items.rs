//! What writing items does that is easily got wrong: other ids, missing parts of keys.

use ephemeris_cluster_tests::client::{Call, Client, Container};
use ephemeris_cluster_tests::cluster::Cluster;
use serde_json::{Value, json};

async fn world(container: &Container, extra: Value) -> (Cluster, Client) {
    let cluster = Cluster::single().await;
    let client = cluster.client(1);
    client.create_database(container.database()).await.expect(201);
    client.create_container(container, extra).await.expect(201);
    (cluster, client)
}

#[tokio::test]
async fn a_replacement_may_give_an_item_another_id() {
    let carts = Container::new("shop", "carts");
    let (_cluster, client) = world(&carts, json!({})).await;
    let created =
        client.create_item(&carts, &json!({ "id": "a", "pk": "k" })).await.expect(201).json();
    client.create_item(&carts, &json!({ "id": "taken", "pk": "k" })).await.expect(201);
    let replace = |path: String, id: &str| {
        Call::put(path, json!({ "id": id, "pk": "k", "n": 1 }).to_string()).key(&json!("k"))
    };
    let renamed = client.ask(replace(carts.item("a"), "b")).await.expect(200).json();
    assert_eq!((&renamed["id"], &renamed["n"]), (&json!("b"), &json!(1)));
    assert_eq!(renamed["_rid"], created["_rid"], "it is the same item");
    client.read_item(&carts, &json!("k"), "a").await.expect(404);
    let read = client.read_item(&carts, &json!("k"), "b").await.expect(200).json();
    assert_eq!(read, renamed);

    // By its `_rid`, too; but not over another item, nor where there is none.
    let by_rid = format!("/{}", renamed["_self"].as_str().expect("a link"));
    client.ask(replace(by_rid.clone(), "c")).await.expect(200);
    client.ask(replace(by_rid.clone(), "taken")).await.expect(409);
    client.ask(replace(carts.item("none"), "d")).await.expect(404);
    let stale =
        replace(by_rid.clone(), "d").header("if-match", created["_etag"].as_str().expect("a tag"));
    client.ask(stale).await.expect(412);
    let elsewhere = Call::put(by_rid, r#"{"id":"c","pk":"l"}"#).key(&json!("l"));
    assert_eq!(client.ask(elsewhere).await.expect(400).substatus(), 1001);
    let items = client.read_feed(&carts).await;
    let mut ids: Vec<_> = items.iter().map(|item| item["id"].as_str().expect("an id")).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["c", "taken"]);
}

#[tokio::test]
async fn a_missing_part_of_a_hierarchical_key_is_not_null() {
    let carts = Container::new("shop", "carts");
    let key = json!({ "paths": ["/pk", "/city"], "kind": "MultiHash", "version": 2 });
    let (_cluster, client) = world(&carts, json!({ "partitionKey": key })).await;
    let create = |id: &str, body: Value, key: &str| {
        let mut item = body;
        item["id"] = json!(id);
        Call::post(carts.items(), item.to_string()).header("x-ms-documentdb-partitionkey", key)
    };
    let partly = || json!({ "pk": "k" });
    // The Python SDK says null for what is missing; the service does not take it for the same.
    let refused = client.ask(create("a", partly(), r#"["k",null]"#)).await.expect(400);
    assert_eq!(refused.substatus(), 1001);
    let created = client.ask(create("a", partly(), r#"["k",{}]"#)).await.expect(201).json();
    client.ask(create("b", json!({ "pk": "k", "city": null }), r#"["k",null]"#)).await.expect(201);
    let prefix = client.ask(create("c", partly(), r#"["k"]"#)).await.expect(400);
    assert_eq!(prefix.substatus(), 1001);
    // A `_rid` needs no key beside it, but takes no half of one.
    let by_rid = format!("/{}", created["_self"].as_str().expect("a link"));
    client.ask(Call::get(by_rid.clone())).await.expect(200);
    let prefix = Call::get(by_rid).header("x-ms-documentdb-partitionkey", r#"["k"]"#);
    assert_eq!(client.ask(prefix).await.expect(400).substatus(), 1001);
}

#[tokio::test]
async fn where_users_named_no_partition_key_items_need_none() {
    const KEY: &str = "x-ms-documentdb-partitionkey";
    let cluster = Cluster::single().await;
    let (client, notes) = (cluster.client(1), Container::new("shop", "notes"));
    client.create_database("shop").await.expect(201);
    let key = json!({ "paths": ["/_partitionKey"], "kind": "Hash", "systemKey": true });
    let definition = json!({ "id": "notes", "partitionKey": key }).to_string();
    let create = Call::post("/dbs/shop/colls", definition);
    // Two partitions.
    let made = client.ask(create.header("x-ms-offer-throughput", "12000")).await.expect(201).json();
    assert_eq!(made["partitionKey"]["systemKey"], true);

    // SDKs say `[]`; `[{}]` is no other key, and neither is none.
    let create = |id: &str| Call::post(notes.items(), json!({ "id": id, "n": 1 }).to_string());
    client.ask(create("a").header(KEY, "[]")).await.expect(201);
    client.ask(create("b").header(KEY, "[{}]")).await.expect(201);
    client.ask(create("c")).await.expect(201);
    let refused = client.ask(create("d").header(KEY, "[null]")).await.expect(400);
    assert_eq!(refused.substatus(), 1001);
    // Who gives items a key has logical partitions.
    let own = json!({ "id": "a", "_partitionKey": "x" }).to_string();
    client.ask(Call::post(notes.items(), own).header(KEY, "[\"x\"]")).await.expect(201);

    for id in ["a", "b", "c"] {
        for key in ["[]", "[{}]"] {
            let read = client.ask(Call::get(notes.item(id)).header(KEY, key)).await.expect(200);
            assert_eq!(read.json()["n"], 1);
        }
    }
    let replaced = Call::put(notes.item("a"), json!({ "id": "a", "n": 2 }).to_string());
    client.ask(replaced.header(KEY, "[]")).await.expect(200);
    client.ask(Call::delete(notes.item("b")).header(KEY, "[]")).await.expect(204);
    let batch = json!([{ "operationType": "Create", "resourceBody": { "id": "e" } }]).to_string();
    let batch = Call::post(notes.items(), batch).header("x-ms-cosmos-is-batch-request", "True");
    client
        .ask(batch.header("x-ms-cosmos-batch-atomic", "True").header(KEY, "[]"))
        .await
        .expect(200);
    let query = json!({ "query": "SELECT VALUE c.id FROM c ORDER BY c.id" }).to_string();
    let query = Call::post(notes.items(), query).header("x-ms-documentdb-isquery", "True");
    let found = client.ask(query.header(KEY, "[]")).await.expect(200).json();
    assert_eq!(found["Documents"], json!(["a", "c", "e"]));
    let feed = Call::get(notes.items()).header("a-im", "Incremental Feed").header(KEY, "[]");
    assert_eq!(client.ask(feed).await.expect(200).json()["_count"], 3);
    let clear = Call::post(notes.path() + "/operations/partitionkeydelete", "");
    client.ask(clear.header(KEY, "[]")).await.expect(200);
    let left = client.query(&notes, "SELECT VALUE c._partitionKey FROM c", json!([])).await;
    assert_eq!(left, ["x"]);
}

#[tokio::test]
async fn a_change_feed_tells_the_place_of_a_write_once_and_where_the_client_wants_it() {
    let notes = Container::new("shop", "notes");
    let (_cluster, client) = world(&notes, json!({})).await;
    let written = client.create_item(&notes, &json!({ "id": "a", "pk": "k" })).await.expect(201);
    let feed = || Call::get(notes.items()).header("a-im", "Incremental Feed");
    let page = client.ask(feed()).await.expect(200);
    let row = page.json()["Documents"][0].clone();
    assert_eq!(row["_lsn"].to_string(), written.header("x-ms-item-lsn").expect("its place"));
    let apart = "x-ms-cosmos-changefeed-wire-format-version";
    let rows = client.ask(feed().header(apart, "2021-09-15")).await.expect(200).json();
    let metadata = json!({ "lsn": row["_lsn"], "crts": row["_ts"] });
    let expected = json!([{ "current": written.json(), "metadata": metadata }]);
    assert_eq!(rows["Documents"], expected);
    client.ask(feed().header(apart, "2020-01-01")).await.expect(400);

    // A copy of a row is an item with an `_lsn`, which hides no other.
    let mut copy = row;
    copy["id"] = json!("b");
    let copied = client.create_item(&notes, &copy).await.expect(201);
    assert_eq!(copied.json()["_lsn"], copy["_lsn"], "it is the item's own");
    let behind = page.header("etag").expect("pages have etags");
    let page = client.ask(feed().header("if-none-match", behind)).await.expect(200);
    let text = String::from_utf8_lossy(&page.body);
    assert_eq!(text.matches("\"_lsn\"").count(), 1, "{text}");
    let told = page.json()["Documents"][0]["_lsn"].to_string();
    assert_eq!(told, copied.header("x-ms-item-lsn").expect("its place"));
}
