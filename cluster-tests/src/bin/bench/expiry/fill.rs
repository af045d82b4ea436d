//! Stores many items so that all of them fall due in one second.
//!
//! An item expires at `_ts` + `ttl`, and `_ts` is known only afterwards: the time of the commit,
//! rounded up. So a batch is sent in the middle of a second, with the `ttl` that fits the `_ts` it
//! should get; if it got another one, it is stored again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ephemeris_cluster_tests::checker::Due;
use ephemeris_cluster_tests::client::{Call, Client, Container};
use ephemeris_cluster_tests::clock;
use serde::Deserialize;
use serde_json::json;
use tokio::task::JoinSet;

use crate::sources::item;

/// Items of one batch: the most there may be.
const BATCH_ITEMS: u32 = 100;
/// Batches under way at the same time.
const WORKERS: u32 = 4;
/// Times a batch is sent before it is given up.
const ATTEMPTS_MAX: u32 = 10;
/// Batches are sent in this part of a second, away from its borders: clocks differ a little, and a
/// commit takes a while.
const SEND_FROM_MS: u64 = 20;
const SEND_UNTIL_MS: u64 = 800;

/// Items of one round: they have the names and the due second in common.
#[derive(Clone, Debug)]
pub(super) struct DueItems {
    pub(super) container: Container,
    pub(super) round: u64,
    pub(super) count: u32,
    pub(super) due: Due,
}

/// One operation's part of a batch's answer.
#[derive(Deserialize)]
struct Row {
    #[serde(rename = "resourceBody")]
    body: Option<Stamped>,
}

/// What an item tells of its write.
#[derive(Deserialize)]
struct Stamped {
    #[serde(rename = "_ts")]
    stamp: u64,
}

impl DueItems {
    /// An item's id.
    pub(super) fn id(&self, number: u32) -> String {
        format!("due{}-{number}", self.round)
    }

    /// An item's partition key: each batch has its own.
    pub(super) fn key(&self, number: u32) -> String {
        format!("due{}-{}", self.round, number / BATCH_ITEMS)
    }

    /// Stores all of them.
    pub(super) async fn store(&self, client: &Client) -> anyhow::Result<()> {
        let batches = self.count.div_ceil(BATCH_ITEMS);
        let items = Arc::new(self.clone());
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            let (items, client) = (items.clone(), client.clone());
            workers.spawn(async move {
                for batch in (worker..batches).step_by(WORKERS as usize) {
                    items.store_batch(&client, batch).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(stored) = workers.join_next().await {
            stored.expect("workers do not panic")?;
        }
        Ok(())
    }

    async fn store_batch(&self, client: &Client, batch: u32) -> anyhow::Result<()> {
        // The first attempt meets nothing; later ones may.
        let mut operation = "Create";
        let mut seen = String::new();
        for _ in 0..ATTEMPTS_MAX {
            let stamp = expected_stamp().await;
            let ttl = self.due.ttl_from(stamp).context(
                "the items were not stored before they were due; give it more --load-seconds",
            )?;
            match client.send(&self.batch(batch, operation, ttl)).await {
                Ok(answer) if answer.status == 200 => {
                    let stamps = stamps(&answer.body)?;
                    if stamps.iter().all(|found| *found == stamp) {
                        return Ok(());
                    }
                    seen = format!("_ts {stamps:?} instead of {stamp}");
                }
                Ok(answer) => seen = answer.describe(),
                Err(error) => seen = error.to_string(),
            }
            operation = "Upsert";
        }
        bail!("batch {batch} was not stored as it should be: {seen}")
    }

    /// The request that stores a batch.
    fn batch(&self, batch: u32, operation: &str, ttl: u64) -> Call {
        let first = batch * BATCH_ITEMS;
        let numbers = first..(first + BATCH_ITEMS).min(self.count);
        let key = self.key(first);
        let operations: Vec<String> = numbers
            .map(|number| {
                let item = item(&self.id(number), &key, &format!("\"ttl\":{ttl},"));
                format!("{{\"operationType\":\"{operation}\",\"resourceBody\":{item}}}")
            })
            .collect();
        Call::post(self.container.items(), format!("[{}]", operations.join(",")))
            .header("content-type", "application/json")
            .header("x-ms-cosmos-is-batch-request", "True")
            .header("x-ms-cosmos-batch-atomic", "True")
            .key(&json!(key))
    }
}

/// The `_ts` of what is written now, once that is sure enough.
async fn expected_stamp() -> u64 {
    loop {
        let now_ms = clock::wall_ms();
        let within = now_ms % 1000;
        if (SEND_FROM_MS..SEND_UNTIL_MS).contains(&within) {
            return now_ms / 1000 + 1;
        }
        let wait_ms = (1000 + SEND_FROM_MS - within) % 1000;
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
    }
}

/// The `_ts` of every item of a batch's answer.
fn stamps(body: &[u8]) -> anyhow::Result<Vec<u64>> {
    let rows: Vec<Row> = serde_json::from_slice(body)?;
    let stamps = rows.into_iter().map(|row| row.body.map(|body| body.stamp));
    stamps.collect::<Option<_>>().context("a batch's answer shows its items")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_batch_has_its_share_of_the_items_under_one_key() {
        let container = Container::new("bench", "items");
        let items = DueItems { container, round: 3, count: 250, due: Due(10) };
        let call = items.batch(2, "Create", 7);
        let operations: Vec<Value> = serde_json::from_slice(call.body_bytes()).unwrap();
        assert_eq!(operations.len(), 50);
        for (number, operation) in (200..).zip(&operations) {
            assert_eq!(operation["operationType"], "Create");
            let item = &operation["resourceBody"];
            assert_eq!(item["id"], items.id(number));
            assert_eq!((&item["pk"], &item["ttl"]), (&json!(items.key(number)), &json!(7)));
            assert_eq!(items.key(number), items.key(200));
        }
    }

    #[test]
    fn an_answer_tells_the_stamp_of_every_item() {
        let answer = br#"[{"statusCode":201,"resourceBody":{"id":"a","_ts":5}},
                          {"statusCode":201,"resourceBody":{"id":"b","_ts":6}}]"#;
        assert_eq!(stamps(answer).unwrap(), [5, 6]);
        assert!(stamps(br#"[{"statusCode":424}]"#).is_err());
    }
}
