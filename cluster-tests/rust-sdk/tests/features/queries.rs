//! Queries, over one partition and over two, whose answers the SDK merges.

use anyhow::Result;
use azure_data_cosmos::Query;
use azure_data_cosmos::clients::ContainerClient;
use azure_data_cosmos::feed::{ContinuationToken, FeedScope};
use azure_data_cosmos::models::ThroughputProperties;
use azure_data_cosmos::options::QueryOptions;
use ephemeris_rust_sdk_tests::{
    TWO_PARTITIONS_RU, definition, find, refused, rows_max, with_database,
};
use futures_util::{StreamExt, TryStreamExt};
use serde_json::{Value, json};

const ITEMS: u64 = 40;

/// Runs a test on forty items in four logical partitions: over one partition, then over two.
async fn with_forty(test: impl AsyncFn(&ContainerClient) -> Result<()>) -> Result<()> {
    with_database(async |database| {
        let throughputs = [None, Some(ThroughputProperties::manual(TWO_PARTITIONS_RU))];
        for (name, throughput) in ["one", "two"].into_iter().zip(throughputs) {
            let items = database.create_with(definition(name), throughput).await?;
            for n in 0..ITEMS {
                let (id, pk) = (format!("{n:02}"), format!("p{}", n % 4));
                let body = json!({"id": id, "pk": pk, "n": n, "even": n % 2 == 0});
                items.create_item(pk, &id, body, None).await?;
            }
            println!("{name}");
            test(&items).await?;
        }
        Ok(())
    })
    .await
}

/// The `n` of rows, in the order in which they came.
fn numbers(rows: &[Value]) -> Vec<u64> {
    rows.iter().filter_map(|row| row["n"].as_u64()).collect()
}

fn sorted(mut numbers: Vec<u64>) -> Vec<u64> {
    numbers.sort_unstable();
    numbers
}

#[tokio::test]
async fn a_query_finds_what_it_asks_for() -> Result<()> {
    with_forty(async |items| {
        let everything = find(items, "SELECT * FROM c", FeedScope::full_container()).await?;
        assert_eq!(sorted(numbers(&everything)), (0..ITEMS).collect::<Vec<_>>());

        let text = "SELECT * FROM c WHERE c.n >= @least AND c.n < @most AND c.even = @even";
        let some = Query::from(text)
            .with_parameter("@least", 10)?
            .with_parameter("@most", 20)?
            .with_parameter("@even", true)?;
        let found = find(items, some, FeedScope::full_container()).await?;
        assert_eq!(sorted(numbers(&found)), [10, 12, 14, 16, 18]);

        let listed = Query::from("SELECT c.n FROM c WHERE ARRAY_CONTAINS(@ids, c.id) OR c.n = 7")
            .with_parameter("@ids", ["01", "none"])?;
        let found = find(items, listed, FeedScope::full_container()).await?;
        assert_eq!(sorted(numbers(&found)), [1, 7]);

        let found = find(items, "SELECT * FROM c", FeedScope::partition("p3")).await?;
        assert_eq!(sorted(numbers(&found)), [3, 7, 11, 15, 19, 23, 27, 31, 35, 39]);
        let found = find(items, "SELECT * FROM c", FeedScope::partition("none")).await?;
        assert!(found.is_empty());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn order_by_sorts_over_pages() -> Result<()> {
    with_forty(async |items| {
        for (direction, ordered) in
            [("ASC", (0..ITEMS).collect::<Vec<_>>()), ("DESC", (0..ITEMS).rev().collect())]
        {
            let text = format!("SELECT * FROM c ORDER BY c.n {direction}");
            let options = QueryOptions::default().with_max_item_count(rows_max(7));
            let scope = FeedScope::full_container();
            let found: Vec<Value> =
                items.query_items(text, scope, Some(options)).await?.try_collect().await?;
            assert_eq!(numbers(&found), ordered, "{direction}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_sdk_merges_distinct_top_and_offset() -> Result<()> {
    with_forty(async |items| {
        let all = FeedScope::full_container;
        // Without an order, the SDK wants an end to what it must remember.
        let mut keys = find(items, "SELECT DISTINCT TOP 100 VALUE c.pk FROM c", all()).await?;
        keys.sort_by_key(ToString::to_string);
        assert_eq!(keys, ["p0", "p1", "p2", "p3"]);
        assert_eq!(find(items, "SELECT TOP 5 * FROM c", all()).await?.len(), 5);
        assert_eq!(find(items, "SELECT * FROM c OFFSET 35 LIMIT 10", all()).await?.len(), 5);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn aggregates_are_those_of_a_logical_partition() -> Result<()> {
    with_forty(async |items| {
        for (aggregate, expected) in [
            ("COUNT(1)", json!(10)),
            ("SUM(c.n)", json!(200)),
            ("AVG(c.n)", json!(20)),
            ("MIN(c.n)", json!(2)),
            ("MAX(c.id)", json!("38")),
        ] {
            let text = format!("SELECT VALUE {aggregate} FROM c");
            assert_eq!(find(items, text, FeedScope::partition("p2")).await?, [expected]);
        }
        // Over the whole container, the SDK does not merge them.
        let text = "SELECT VALUE COUNT(1) FROM c";
        assert_eq!(refused(find(items, text, FeedScope::full_container()).await), 400);
        let text = "SELECT c.even, COUNT(1) AS number FROM c GROUP BY c.even";
        let groups = find(items, text, FeedScope::partition("p2")).await?;
        assert_eq!(groups, [json!({"even": true, "number": 10})]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_continuation_goes_on_where_the_page_ended() -> Result<()> {
    with_forty(async |items| {
        for (text, scope, rows) in [
            ("SELECT * FROM c", FeedScope::full_container(), 40),
            ("SELECT * FROM c ORDER BY c.n", FeedScope::full_container(), 40),
            ("SELECT * FROM c", FeedScope::partition("p1"), 10),
        ] {
            let mut found = Vec::new();
            let mut options = QueryOptions::default().with_max_item_count(rows_max(3));
            loop {
                let query = items.query_items(text, scope.clone(), Some(options.clone()));
                let mut pages = query.await?.into_pages();
                let Some(page) = pages.next().await else { break };
                let page: Vec<Value> = page?.into_items();
                assert!(page.len() <= 3, "{text}");
                found.extend(numbers(&page));
                // As text, it can be kept for another day.
                let token = pages.to_continuation_token()?.as_str().to_owned();
                options = options.with_continuation_token(ContinuationToken::from_string(token));
            }
            assert_eq!(found.len(), rows, "{text}");
            found.dedup();
            assert_eq!(sorted(found).len(), rows, "{text} told something twice");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn feed_ranges_add_up_to_the_container() -> Result<()> {
    with_forty(async |items| {
        let ranges = items.read_feed_ranges(None).await?;
        let mut found = Vec::new();
        for range in ranges.clone() {
            let rows = find(items, "SELECT * FROM c", FeedScope::range(range)).await?;
            found.extend(numbers(&rows));
        }
        assert_eq!(sorted(found), (0..ITEMS).collect::<Vec<_>>());
        let of_key = items.feed_range_from_partition_key("p1", None).await?;
        let [of_key] = &*of_key else { panic!("a key is in one range, not in {of_key:?}") };
        assert!(ranges.contains(of_key));
        let found = find(items, "SELECT * FROM c", FeedScope::range(of_key.clone())).await?;
        assert_eq!(found.iter().filter(|row| row["pk"] == "p1").count(), 10);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_query_tells_what_it_has_cost() -> Result<()> {
    with_forty(async |items| {
        let options = QueryOptions::default()
            .with_populate_query_metrics(true)
            .with_populate_index_metrics(true);
        let text = "SELECT * FROM c WHERE c.n > 30";
        let query = items.query_items::<Value>(text, FeedScope::partition("p1"), Some(options));
        let page = query.await?.into_pages().next().await.expect("there is a first page")?;
        assert_eq!(sorted(numbers(page.items())), [33, 37]);
        let charge = page.headers().request_charge().expect("every answer tells its charge");
        assert!(charge.value() > 0.0);
        let metrics = page.query_metrics().expect("they were asked for");
        assert!(metrics.contains("outputDocumentCount=2"), "{metrics}");
        assert!(page.index_metrics().is_some());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_query_with_an_error_is_400() -> Result<()> {
    with_forty(async |items| {
        for scope in [FeedScope::full_container(), FeedScope::partition("p1")] {
            assert_eq!(refused(find(items, "SELEC * FROM c", scope.clone()).await), 400);
            let unknown = "SELECT VALUE NO_SUCH_FUNCTION(c.n) FROM c";
            assert_eq!(refused(find(items, unknown, scope).await), 400);
        }
        Ok(())
    })
    .await
}
