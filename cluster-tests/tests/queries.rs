//! Queries over HTTP: what a page tells of itself, how many partitions it may reach, and what is too
//! much of it.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ephemeris_cluster_tests::client::{Answer, Call, Client, Container};
use ephemeris_cluster_tests::cluster::Cluster;
use serde_json::{Value, json};

/// Longest query text, in bytes.
const QUERY_BYTES_MAX: usize = 512 << 10;
/// More partitions than a query asks at the same time.
const PARTITIONS: usize = 10;
const ITEMS: usize = 40;

/// A container with some items in it.
struct World {
    _cluster: Cluster,
    client: Client,
    carts: Container,
}

impl World {
    /// With so many request units there are several partitions.
    async fn new(definition: Value, request_units: usize) -> Self {
        Self::on(Cluster::single().await, definition, request_units).await
    }

    async fn on(cluster: Cluster, definition: Value, request_units: usize) -> Self {
        let client = cluster.client(1);
        let carts = Container::new("shop", "carts");
        client.create_database("shop").await.expect(201);
        let key = json!({ "paths": ["/pk"], "kind": "Hash", "version": 2 });
        let mut body = json!({ "id": "carts", "partitionKey": key });
        for (name, value) in definition.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let call = Call::post("/dbs/shop/colls", body.to_string())
            .header("x-ms-offer-throughput", request_units.to_string());
        client.ask(call).await.expect(201);
        for n in 0..ITEMS {
            let pk = format!("key {n}");
            let item = json!({ "id": n.to_string(), "pk": pk, "n": n, "third": n % 3 });
            client.create_item(&carts, &item).await.expect(201);
        }
        Self { _cluster: cluster, client, carts }
    }

    async fn ask(&self, text: &str, headers: &[(&str, &str)]) -> Answer {
        let body = json!({ "query": text }).to_string();
        let call = Call::post(self.carts.items(), body)
            .header("content-type", "application/query+json")
            .header("x-ms-documentdb-isquery", "True")
            .header("x-ms-documentdb-query-enablecrosspartition", "True");
        let call = headers.iter().fold(call, |call, (name, value)| call.header(name, *value));
        self.client.ask(call).await
    }
}

#[tokio::test]
async fn a_page_tells_what_it_took_and_which_indexes_it_followed_if_it_is_asked() {
    let definition = json!({
        "computedProperties": [{ "name": "half", "query": "SELECT VALUE c.n / 2 FROM c" }],
        "indexingPolicy": {
            "includedPaths": [{ "path": "/*" }, { "path": "/half/?" }],
            "excludedPaths": [{ "path": "/third/?" }],
            "compositeIndexes": [[{ "path": "/half" }, { "path": "/n", "order": "descending" }]],
        },
    });
    let world = World::new(definition, 400).await;
    let asking = [
        ("x-ms-documentdb-populatequerymetrics", "True"),
        ("x-ms-cosmos-populateindexmetrics", "True"),
    ];
    let (metrics, indexes) = ("x-ms-documentdb-query-metrics", "x-ms-cosmos-index-utilization");
    for (query, loaded, rows, single, composite) in [
        ("SELECT * FROM c WHERE c.n < 5", 5, 5, json!(["/n/?"]), json!([])),
        ("SELECT * FROM c WHERE c.n < 5 AND c.third = 0", 5, 2, json!(["/n/?"]), json!([])),
        ("SELECT VALUE COUNT(1) FROM c WHERE c.n < 5", 0, 1, json!(["/n/?"]), json!([])),
        ("SELECT * FROM c WHERE c.third = 0", ITEMS, 14, json!([]), json!([])),
        ("SELECT * FROM c WHERE c.half = 1.5", 1, 1, json!(["/half/?"]), json!([])),
        ("SELECT * FROM c ORDER BY c.half", ITEMS, ITEMS, json!(["/half/?"]), json!([])),
        (
            "SELECT * FROM c ORDER BY c.half DESC, c.n",
            ITEMS,
            ITEMS,
            json!([]),
            json!([["/half DESC", "/n ASC"]]),
        ),
    ] {
        let answer = world.ask(query, &asking).await.expect(200);
        let told: HashMap<&str, &str> = answer
            .header(metrics)
            .expect("metrics were asked for")
            .split(';')
            .map(|pair| pair.split_once('=').expect("a name and a value"))
            .collect();
        let number = |name: &str| told[name].parse::<f64>().expect("a number");
        assert_eq!(told["retrievedDocumentCount"], loaded.to_string(), "{query}");
        assert_eq!(told["outputDocumentCount"], rows.to_string(), "{query}");
        assert_eq!(number("retrievedDocumentSize") > 0.0, loaded > 0, "{query}");
        assert!(number("outputDocumentSize") > 0.0, "{query}");
        assert!(number("totalExecutionTimeInMs") > 0.0, "{query}");
        let json = STANDARD.decode(answer.header(indexes).expect("it was asked for"));
        let told: Value = serde_json::from_slice(&json.expect("base64")).expect("JSON");
        let specs = |list: &str, spec: &str| -> Value {
            let list = told[list].as_array().expect("a list");
            list.iter().map(|index| index[spec].clone()).collect()
        };
        assert_eq!(specs("UtilizedSingleIndexes", "IndexSpec"), single, "{query}");
        assert_eq!(specs("UtilizedCompositeIndexes", "IndexSpecs"), composite, "{query}");
    }
    let unasked = world.ask("SELECT * FROM c", &[]).await.expect(200);
    assert_eq!((unasked.header(metrics), unasked.header(indexes)), (None, None));
}

#[tokio::test]
async fn a_query_reaches_more_partitions_than_it_asks_at_once() {
    let world = World::new(json!({}), 6000 * PARTITIONS).await;
    let ranges = world.client.ask(Call::get(world.carts.path() + "/pkranges")).await.expect(200);
    assert_eq!(ranges.json()["PartitionKeyRanges"].as_array().map(Vec::len), Some(PARTITIONS));
    let all: Vec<Value> = (0..ITEMS).map(Value::from).collect();
    let backward: Vec<Value> = all.iter().rev().cloned().collect();
    for (query, is_ordered, expected) in [
        ("SELECT VALUE c.n FROM c", false, all.clone()),
        ("SELECT VALUE c.n FROM c ORDER BY c.n", true, all.clone()),
        ("SELECT VALUE c.n FROM c ORDER BY c.n DESC", true, backward),
        ("SELECT VALUE c.n FROM c ORDER BY c.n OFFSET 7 LIMIT 5", true, all[7..12].to_vec()),
        ("SELECT VALUE COUNT(1) FROM c", true, vec![json!(ITEMS)]),
        ("SELECT VALUE SUM(c.n) FROM c", true, vec![json!(ITEMS * (ITEMS - 1) / 2)]),
        ("SELECT DISTINCT VALUE c.third FROM c", false, vec![json!(0), json!(1), json!(2)]),
        (
            "SELECT c.third, COUNT(1) AS count FROM c GROUP BY c.third",
            false,
            [14, 13, 13].iter().zip(0..).map(|(n, k)| json!({ "third": k, "count": n })).collect(),
        ),
    ] {
        let mut rows = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let size = ("x-ms-max-item-count", "3");
            let token = next.as_deref().map(|token| ("x-ms-continuation", token));
            let headers: Vec<_> = [size].into_iter().chain(token).collect();
            let answer = world.ask(query, &headers).await.expect(200);
            rows.extend(answer.json()["Documents"].as_array().expect("rows").clone());
            next = answer.continuation().map(String::from);
            if next.is_none() {
                break;
            }
        }
        if !is_ordered {
            rows.sort_by_key(|row| row.as_u64().or(row["third"].as_u64()));
        }
        assert_eq!(rows, expected, "{query}");
    }
}

#[tokio::test]
async fn a_key_outside_the_range_that_is_asked_has_no_rows_and_no_next_page() {
    let world = World::new(json!({}), 12_000).await;
    let ranges = world.client.ask(Call::get(world.carts.path() + "/pkranges")).await.expect(200);
    let middle = ranges.json()["PartitionKeyRanges"][0]["maxExclusive"].clone();
    let middle = middle.as_str().expect("a range ends at text");
    let key = ("x-ms-documentdb-partitionkey", r#"["key 7"]"#);
    for (query, there, elsewhere) in [
        ("SELECT VALUE c.n FROM c", json!([7]), json!([])),
        ("SELECT VALUE c.n FROM c ORDER BY c.n", json!([7]), json!([])),
        ("SELECT VALUE COUNT(1) FROM c", json!([1]), json!([0])),
    ] {
        let mut found = Vec::new();
        for range in [("x-ms-start-epk", middle), ("x-ms-end-epk", middle)] {
            let answer = world.ask(query, &[key, range]).await.expect(200);
            assert_eq!(answer.continuation(), None, "{query}");
            found.push(answer.json()["Documents"].clone());
        }
        found.sort_by_key(|rows| *rows == elsewhere);
        assert_eq!(found, [there, elsewhere], "{query}");
    }
}

#[tokio::test]
async fn a_text_that_is_too_long_is_refused() {
    let world = World::new(json!({}), 400).await;
    let text = |bytes: usize| {
        let query = "SELECT VALUE COUNT(1) FROM c --";
        format!("{query}{}", " ".repeat(bytes - query.len()))
    };
    let longest = world.ask(&text(QUERY_BYTES_MAX), &[]).await.expect(200);
    assert_eq!(longest.json()["Documents"], json!([ITEMS]));
    let refused = world.ask(&text(QUERY_BYTES_MAX + 1), &[]).await.expect(400).json();
    let message = refused["message"].as_str().expect("a message");
    assert!(message.contains("524288 bytes"), "{message}");
}

/// The service ends so what it says about a query, and SDKs show it.
#[tokio::test]
async fn what_is_wrong_with_a_query_ends_with_the_name_of_the_request() {
    let world = World::new(json!({}), 400).await;
    let named = [("x-ms-activity-id", "11111111-2222-4333-8444-555555555555")];
    let refused = world.ask("SELEKT", &named).await.expect(400).json();
    let message = refused["message"].as_str().expect("a message");
    assert!(message.starts_with("Message: {\"errors\":[{"), "{message}");
    let end = format!("]}}\r\nActivityId: {}", named[0].1);
    assert!(message.ends_with(&end), "{message}");
}

/// Told so, and not 429: whoever is told to try again does.
#[tokio::test]
async fn a_page_that_takes_too_long_is_refused_for_good() {
    let mut cluster = Cluster::alone_with(&["--request-timeout-ms", "1000"]);
    cluster.start_all().await;
    let world = World::on(cluster, json!({}), 6000).await;
    for n in 0..60 {
        let item =
            json!({ "id": format!("large {n}"), "pk": "k", "t": (0..95).collect::<Vec<_>>() });
        world.client.create_item(&world.carts, &item).await.expect(201);
    }
    // About a million rows of each item, and nothing to go on with.
    let query = "SELECT c.id, COUNT(1) AS count FROM c JOIN a IN c.t JOIN b IN c.t JOIN d IN c.t \
                 WHERE a + b + d > 0 GROUP BY c.id";
    let refused = world.ask(query, &[]).await.expect(408).json();
    assert_eq!(refused["code"], "RequestTimeout");
    // What can be gone on with ends its page in time.
    let all = "SELECT VALUE 1 FROM c JOIN a IN c.t JOIN b IN c.t JOIN d IN c.t WHERE a + b + d < 0";
    let page = world.ask(all, &[]).await.expect(200);
    assert_eq!(page.json()["Documents"], json!([]));
    assert!(page.continuation().is_some(), "there is more to look at");
}
