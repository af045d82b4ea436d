//! Change feeds: the latest version of every item, and all versions and deletes.

use anyhow::Result;
use azure_data_cosmos::clients::ContainerClient;
use azure_data_cosmos::feed::{ChangeFeedPageIterator, ContinuationToken, FeedScope};
use azure_data_cosmos::models::{
    ChangeFeedItem,
    ChangeFeedOperationType::{Create, Delete, Replace},
    ChangeFeedPolicy, ThroughputProperties,
};
use azure_data_cosmos::options::{ChangeFeedMode, ChangeFeedOptions, ChangeFeedStartFrom};
use ephemeris_rust_sdk_tests::{
    TWO_PARTITIONS_RU, await_expiry, await_that, definition, due, number, refused, rows_max, text,
    with_container, with_database,
};
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::time::Duration;

type Feed = ChangeFeedPageIterator<ChangeFeedItem<Value>>;

/// So many pages in a row that tell nothing: the feed asks its ranges in turn.
const EMPTY_PAGES: usize = 4;

/// Everything there is to tell now.
async fn drain(feed: &mut Feed) -> Result<Vec<ChangeFeedItem<Value>>> {
    let mut told = Vec::new();
    let mut empty_pages = 0;
    while empty_pages < EMPTY_PAGES {
        let page = feed.next().await.expect("a change feed has no end")?;
        empty_pages = if page.items().is_empty() { empty_pages + 1 } else { 0 };
        told.extend(page.into_items());
    }
    Ok(told)
}

/// The ids that are told now, sorted.
async fn ids(feed: &mut Feed) -> Result<Vec<String>> {
    let told = drain(feed).await?;
    let current = told.iter().map(|change| change.current().expect("it tells no deletes"));
    let mut ids: Vec<String> = current.map(|item| text(item, "id").to_owned()).collect();
    ids.sort();
    Ok(ids)
}

async fn create(items: &ContainerClient, ids: &[&str]) -> Result<()> {
    for (id, pk) in ids.iter().zip(["a", "b", "c", "d"].into_iter().cycle()) {
        items.create_item(pk, id, json!({"id": id, "pk": pk}), None).await?;
    }
    Ok(())
}

fn after(feed: &Feed) -> Result<ChangeFeedOptions> {
    // As text, it can be kept for another day.
    let token = feed.to_continuation_token()?.as_str().to_owned();
    let token = ContinuationToken::from_string(token);
    Ok(ChangeFeedOptions::default().with_continuation_token(token))
}

#[tokio::test]
async fn a_feed_tells_every_item_once_and_goes_on() -> Result<()> {
    with_database(async |database| {
        let throughputs = [None, Some(ThroughputProperties::manual(TWO_PARTITIONS_RU))];
        for (name, throughput) in ["one", "two"].into_iter().zip(throughputs) {
            let items = database.create_with(definition(name), throughput).await?;
            create(&items, &["1", "2", "3", "4"]).await?;
            items.upsert_item("a", "1", json!({"id": "1", "pk": "a", "n": 2}), None).await?;
            let beginning = ChangeFeedStartFrom::Beginning;
            let all = FeedScope::full_container;
            let mut feed: Feed = items.query_change_feed(all(), beginning.clone(), None).await?;
            assert_eq!(ids(&mut feed).await?, ["1", "2", "3", "4"], "{name}");

            create(&items, &["5", "6", "7", "8"]).await?;
            items.delete_item("b", "6", None).await?;
            let options = after(&feed)?;
            assert_eq!(ids(&mut feed).await?, ["5", "7", "8"], "{name}");
            let mut resumed: Feed =
                items.query_change_feed(all(), beginning.clone(), Some(options)).await?;
            assert_eq!(ids(&mut resumed).await?, ["5", "7", "8"], "{name}");

            let of_key = FeedScope::partition("c");
            let mut feed: Feed = items.query_change_feed(of_key, beginning, None).await?;
            assert_eq!(ids(&mut feed).await?, ["3", "7"], "{name}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_feed_tells_the_latest_version_in_pages() -> Result<()> {
    with_container(async |items| {
        for n in 0..10 {
            let id = (n % 5).to_string();
            items.upsert_item("a", &id, json!({"id": id, "pk": "a", "n": n}), None).await?;
        }
        let options = ChangeFeedOptions::default().with_max_item_count(rows_max(2));
        let beginning = ChangeFeedStartFrom::Beginning;
        let mut feed: Feed =
            items.query_change_feed(FeedScope::partition("a"), beginning, Some(options)).await?;
        let mut told = Vec::new();
        for _ in 0..3 {
            let page = feed.next().await.expect("a change feed has no end")?;
            assert!((1..=2).contains(&page.items().len()));
            told.extend(page.into_items());
        }
        let told: Vec<u64> =
            told.iter().filter_map(|change| Some(number(change.current()?, "n"))).collect();
        assert_eq!(told, [5, 6, 7, 8, 9]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_feed_from_now_tells_what_comes() -> Result<()> {
    with_container(async |items| {
        create(items, &["1", "2"]).await?;
        let now = ChangeFeedStartFrom::Now;
        let mut feed: Feed =
            items.query_change_feed(FeedScope::full_container(), now, None).await?;
        assert!(ids(&mut feed).await?.is_empty());
        create(items, &["3", "4"]).await?;
        assert_eq!(ids(&mut feed).await?, ["3", "4"]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn all_versions_and_deletes_are_told() -> Result<()> {
    with_database(async |database| {
        let policy = ChangeFeedPolicy::default().with_retention_duration(Duration::from_mins(10));
        let definition = definition("c").with_change_feed_policy(policy);
        let items = &database.create(definition).await?;
        create(items, &["early"]).await?;
        let every = ChangeFeedOptions::default().with_mode(ChangeFeedMode::AllVersionsAndDeletes);
        let (all, now) = (FeedScope::full_container(), ChangeFeedStartFrom::Now);
        let mut feed: Feed = items.query_change_feed(all, now, Some(every)).await?;
        assert!(drain(&mut feed).await?.is_empty());

        let body = |n| json!({"id": "1", "pk": "a", "n": n});
        let made: Value = items.create_item("a", "1", body(1), None).await?.into_model()?;
        let kept: Value = items.upsert_item("a", "1", body(2), None).await?.into_model()?;
        items.delete_item("a", "1", None).await?;
        let brief = json!({"id": "2", "pk": "a", "ttl": 1});
        let brief: Value = items.create_item("a", "2", brief, None).await?.into_model()?;
        await_expiry(items, "2", due(&brief)).await?;

        let mut told = Vec::new();
        await_that("the expiry is told", async || {
            told.extend(drain(&mut feed).await?);
            Ok(told.len() >= 5)
        })
        .await?;
        let operations: Vec<_> = told.iter().filter_map(ChangeFeedItem::operation_type).collect();
        assert_eq!(operations, [Create, Replace, Delete, Create, Delete]);
        let previous: Vec<_> = told.iter().map(ChangeFeedItem::previous).collect();
        assert_eq!(previous, [None, Some(&made), Some(&kept), None, Some(&brief)]);
        assert_eq!(told[1].current(), Some(&kept));
        let metadata = |change: usize| told[change].metadata().expect("every change has it");
        let lsns: Vec<_> = (0..5).map(|change| metadata(change).lsn()).collect();
        assert!(lsns.is_sorted(), "{lsns:?}");
        assert_eq!(metadata(1).previous_image_lsn(), lsns[0]);
        assert_eq!(metadata(2).time_to_live_expired(), Some(false));
        assert_eq!(metadata(4).time_to_live_expired(), Some(true));
        assert_eq!(metadata(4).id(), Some("2"));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn all_versions_are_400_without_the_policy() -> Result<()> {
    with_container(async |items| {
        let every = ChangeFeedOptions::default().with_mode(ChangeFeedMode::AllVersionsAndDeletes);
        let (all, now) = (FeedScope::full_container(), ChangeFeedStartFrom::Now);
        let mut feed: Feed = items.query_change_feed(all, now, Some(every)).await?;
        assert_eq!(refused(feed.next().await.expect("a change feed has no end")), 400);
        Ok(())
    })
    .await
}
