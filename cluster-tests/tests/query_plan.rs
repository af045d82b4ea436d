//! Query plans over HTTP: what a client is told, what it is refused, and that a client which follows
//! a plan by itself gets the rows the gateway gives.

use ephemeris_cluster_tests::client::{Answer, Call, Client, Container};
use ephemeris_cluster_tests::cluster::Cluster;
use serde_json::{Value, json};

/// What the SDKs for .NET and JavaScript say they can do.
const ALL_FEATURES: &str = "Aggregate, CompositeAggregate, Distinct, GroupBy, MultipleAggregates, \
                            MultipleOrderBy, NonValueAggregate, OffsetAndLimit, OrderBy, Top, \
                            ListAndSetAggregate, CountIf, DCount, NonStreamingOrderBy";
/// The place of a filter by which a client goes on.
const FILTER: &str = "{documentdb-formattableorderbyquery-filter}";

/// A container of several ranges with some items in it.
struct World {
    _cluster: Cluster,
    client: Client,
    carts: Container,
}

impl World {
    async fn new() -> Self {
        let cluster = Cluster::single().await;
        let client = cluster.client(1);
        let carts = Container::new("shop", "carts");
        client.create_database("shop").await.expect(201);
        let definition = json!({
            "id": "carts",
            "partitionKey": { "paths": ["/pk"], "kind": "Hash", "version": 2 },
        });
        let call = Call::post("/dbs/shop/colls", definition.to_string());
        client.ask(call.header("x-ms-offer-throughput", "30000")).await.expect(201);
        for number in 0..40 {
            let item = json!({
                "id": number.to_string(),
                "pk": format!("key {number}"),
                "total": (number * 7) % 40,
                "even": number % 2 == 0,
            });
            client.create_item(&carts, &item).await.expect(201);
        }
        Self { _cluster: cluster, client, carts }
    }

    async fn plan(&self, query: &str, features: Option<&str>) -> Answer {
        let body = json!({ "query": query, "parameters": [] }).to_string();
        let call = Call::post(self.carts.items(), body)
            .header("content-type", "application/query+json")
            .header("x-ms-cosmos-is-query-plan-request", "True")
            .header("x-ms-cosmos-query-version", "1.4");
        let call = match features {
            Some(features) => call.header("x-ms-cosmos-supported-query-features", features),
            None => call,
        };
        self.client.ask(call).await
    }

    /// The ids of the ranges that a plan names.
    async fn ranges(&self, plan: &Value) -> Vec<String> {
        let answer = self.client.ask(Call::get(self.carts.path() + "/pkranges")).await.expect(200);
        let text = |value: &Value| value.as_str().expect("an end of a range").to_string();
        let asked = plan["queryRanges"].as_array().expect("ranges");
        let overlaps = |range: &&Value| {
            let (start, end) = (text(&range["minInclusive"]), text(&range["maxExclusive"]));
            asked.iter().any(|asked| {
                let (min, max) = (text(&asked["min"]), text(&asked["max"]));
                min < end && (start < max || (asked["isMaxInclusive"] == true && start == max))
            })
        };
        let ranges = answer.json()["PartitionKeyRanges"].as_array().expect("ranges").clone();
        ranges.iter().filter(overlaps).map(|range| text(&range["id"])).collect()
    }

    /// All rows of a query over one range.
    async fn rows_of(&self, range: &str, query: &str) -> Vec<Value> {
        let body = json!({ "query": query }).to_string();
        let (mut rows, mut next) = (Vec::new(), None::<String>);
        loop {
            let call = Call::post(self.carts.items(), body.clone())
                .header("x-ms-documentdb-isquery", "True")
                .header("x-ms-documentdb-partitionkeyrangeid", range);
            let call = match &next {
                Some(token) => call.header("x-ms-continuation", token.clone()),
                None => call,
            };
            let answer = self.client.ask(call).await.expect(200);
            rows.extend(answer.json()["Documents"].as_array().expect("rows").clone());
            next = answer.header("x-ms-continuation").map(str::to_string);
            if next.is_none() {
                return rows;
            }
        }
    }

    /// Follows the plan of a sorted query as SDKs do.
    async fn merged(&self, query: &str) -> (usize, Vec<Value>) {
        let plan = self.plan(query, Some(ALL_FEATURES)).await.expect(200).json();
        let info = &plan["queryInfo"];
        let sent = info["rewrittenQuery"].as_str().expect("a query").replace(FILTER, "true");
        let ranges = self.ranges(&plan).await;
        let mut rows = Vec::new();
        for range in &ranges {
            rows.extend(self.rows_of(range, &sent).await);
        }
        let key = |row: &Value| row["orderByItems"][0]["item"].as_i64().expect("a number");
        rows.sort_by_key(key);
        if info["orderBy"][0] == "Descending" {
            rows.reverse();
        }
        assert!(rows.iter().all(|row| row["_rid"].is_string()), "rows have their _rid: {rows:?}");
        (ranges.len(), rows.iter().map(|row| row["payload"].clone()).collect())
    }
}

#[tokio::test]
async fn a_client_that_follows_the_plan_gets_the_same_rows() {
    let world = World::new().await;
    for query in [
        "SELECT * FROM c ORDER BY c.total",
        "SELECT c.id, c.total AS sum FROM c WHERE c.even ORDER BY c.total DESC",
    ] {
        let (ranges, merged) = world.merged(query).await;
        assert_eq!(ranges, 5, "the container has several ranges");
        assert_eq!(merged, world.client.query(&world.carts, query, json!([])).await, "{query}");
    }
    let pinned = "SELECT * FROM c WHERE c.pk IN ('key 3', 'key 4') ORDER BY c.total";
    let (ranges, merged) = world.merged(pinned).await;
    assert!(ranges <= 2, "only where the keys lie: {ranges}");
    let ids: Vec<_> = merged.iter().map(|item| item["id"].clone()).collect();
    assert_eq!(ids, ["3", "4"]);
}

#[tokio::test]
async fn a_plan_costs_nothing_and_says_what_it_takes() {
    let world = World::new().await;
    let answer = world.plan("SELECT * FROM c", None).await.expect(200);
    assert_eq!(answer.header("x-ms-request-charge"), Some("0"));
    let plan = answer.json();
    assert_eq!(plan["partitionedQueryExecutionInfoVersion"], 2);
    assert_eq!(plan["queryInfo"]["rewrittenQuery"], "");
    let everything =
        json!([{ "min": "", "max": "FF", "isMinInclusive": true, "isMaxInclusive": false }]);
    assert_eq!(plan["queryRanges"], everything);
    let count = world.plan("SELECT VALUE COUNT(1) FROM c", Some(ALL_FEATURES)).await.expect(200);
    assert_eq!(count.json()["queryInfo"]["aggregates"], json!(["Count"]));
}

#[tokio::test]
async fn what_a_client_cannot_merge_it_is_not_told() {
    let world = World::new().await;
    for (features, query, missing) in [
        (None, "SELECT * FROM c ORDER BY c.total", "OrderBy"),
        (Some("Top, Distinct"), "SELECT * FROM c ORDER BY c.total", "OrderBy"),
        (Some("OrderBy"), "SELECT VALUE COUNT(1) FROM c", "Aggregate"),
    ] {
        let answer = world.plan(query, features).await;
        assert_eq!((answer.status, answer.substatus()), (400, 1004), "{}", answer.describe());
        let message = answer.json()["message"].as_str().expect("a message").to_string();
        let expected = format!("Query contained {missing}, which the calling client does not");
        assert!(message.contains(&expected), "{message}");
    }
}

#[tokio::test]
async fn what_is_no_query_has_no_plan() {
    let world = World::new().await;
    for query in ["SELEKT", "SELECT * FROM c WHERE d.a = 1", "SELECT * FROM c ORDER BY c.a + 1"] {
        let answer = world.plan(query, Some(ALL_FEATURES)).await;
        assert_eq!((answer.status, answer.substatus()), (400, 0), "{}", answer.describe());
    }
    let nowhere = Container::new("shop", "nowhere");
    let call = Call::post(nowhere.items(), json!({ "query": "SELECT * FROM c" }).to_string())
        .header("x-ms-cosmos-is-query-plan-request", "True");
    assert_eq!(world.client.ask(call).await.status, 404);
}

#[tokio::test]
async fn a_client_goes_on_where_it_says() {
    let world = World::new().await;
    let ask = async |order: &str, filter: Value| {
        let text = format!("SELECT c.total, c._rid FROM c ORDER BY c.total {order}");
        let body = json!({ "query": text, "resumeFilter": filter });
        let call = Call::post(world.carts.items(), body.to_string())
            .header("x-ms-documentdb-isquery", "True")
            .header("x-ms-documentdb-query-enablecrosspartition", "True");
        world.client.ask(call).await
    };
    let totals = async |order: &str, filter: Value| -> Vec<u64> {
        let rows = ask(order, filter).await.expect(200).json()["Documents"].clone();
        let rows = rows.as_array().expect("rows").clone();
        rows.iter().map(|row| row["total"].as_u64().expect("a total")).collect()
    };
    let after = |total: u64, exclude: bool| json!({ "value": [total], "exclude": exclude });
    assert_eq!(totals("", after(30, false)).await, (30..40).collect::<Vec<_>>());
    assert_eq!(totals("", after(30, true)).await, (31..40).collect::<Vec<_>>());
    assert_eq!(totals("DESC", after(5, false)).await, (0..=5).rev().collect::<Vec<_>>());
    assert_eq!(totals("DESC", after(5, true)).await, (0..5).rev().collect::<Vec<_>>());

    let rows = ask("", after(38, false)).await.expect(200).json()["Documents"].clone();
    let rid = &rows[0]["_rid"];
    let at = |exclude: bool| json!({ "value": [38], "rid": rid, "exclude": exclude });
    assert_eq!(totals("", at(false)).await, [38, 39]);
    assert_eq!(totals("", at(true)).await, [39]);

    // As the SDK for .NET does: the token is of a page that was asked for without the filter.
    let page = |body: Value| {
        let page = Call::post(world.carts.items(), body.to_string());
        let page = page.header("x-ms-documentdb-isquery", "True");
        let page = page.header("x-ms-documentdb-query-enablecrosspartition", "True");
        page.header("x-ms-max-item-count", "10")
    };
    let text = "SELECT c.total, c._rid FROM c ORDER BY c.total";
    let first = world.client.ask(page(json!({ "query": text }))).await.expect(200);
    let token = first.continuation().expect("there is more");
    let again = page(json!({ "query": text, "resumeFilter": after(9, true) }));
    let again = again.header("x-ms-continuation", token);
    let next = world.client.ask(again).await.expect(200).json();
    assert_eq!(next["Documents"][0]["total"], 10, "{next}");

    for filter in [json!({ "value": [] }), json!({ "value": [1, 2] }), json!(5)] {
        let answer = ask("", filter).await;
        assert_eq!(answer.status, 400, "{}", answer.describe());
        assert!(answer.json()["message"].to_string().contains("resumeFilter"));
    }
}
