//! Stores the items that queries and change feeds are asked about, in batches of one partition key each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::bail;
use ephemeris_cluster_tests::client::{Call, Client, Container};
use indicatif::ProgressBar;
use serde_json::json;
use tokio::task::JoinSet;

use crate::sources::item;

/// Items of one batch: the most there may be.
const BATCH_ITEMS: u32 = 100;
/// Batches under way at the same time.
const WORKERS: u32 = 8;
/// Different values of `bucket` and `plain`.
const BUCKETS: u32 = 1000;
/// Times a batch is sent before it is given up.
const ATTEMPTS_MAX: u32 = 10;

/// Items to be stored.
#[derive(Clone)]
pub(crate) struct Fill {
    pub(crate) container: Container,
    pub(crate) items: u32,
    pub(crate) progress: ProgressBar,
}

/// An item's id.
pub(crate) fn id(number: u32) -> String {
    format!("item-{number}")
}

/// An item's partition key.
pub(crate) fn key(number: u32) -> String {
    format!("key-{}", number / BATCH_ITEMS)
}

impl Fill {
    /// Stores all of them.
    pub(crate) async fn run(&self, client: &Client) -> anyhow::Result<()> {
        let stored = Arc::new(AtomicU32::new(0));
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            let (this, client, stored) = (self.clone(), client.clone(), stored.clone());
            workers.spawn(async move {
                for first in (0..this.items).step_by(BATCH_ITEMS as usize) {
                    if (first / BATCH_ITEMS) % WORKERS == worker {
                        this.store_batch(&client, first).await?;
                        let stored = stored.fetch_add(BATCH_ITEMS, Ordering::Relaxed);
                        this.progress.set_message(format!("storing: {stored} of {}", this.items));
                        this.progress.tick();
                    }
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = workers.join_next().await {
            done.expect("workers do not panic")?;
        }
        Ok(())
    }

    async fn store_batch(&self, client: &Client, first: u32) -> anyhow::Result<()> {
        let numbers = first..(first + BATCH_ITEMS).min(self.items);
        let operations: Vec<String> = numbers
            .map(|n| {
                let bucket = n % BUCKETS;
                let more = format!("\"n\":{n},\"bucket\":{bucket},\"plain\":{bucket},");
                let item = item(&id(n), &key(n), &more);
                format!("{{\"operationType\":\"Upsert\",\"resourceBody\":{item}}}")
            })
            .collect();
        let call = Call::post(self.container.items(), format!("[{}]", operations.join(",")))
            .header("content-type", "application/json")
            .header("x-ms-cosmos-is-batch-request", "True")
            .header("x-ms-cosmos-batch-atomic", "True")
            .key(&json!(key(first)));
        let mut seen = String::new();
        for _ in 0..ATTEMPTS_MAX {
            match client.send(&call).await {
                Ok(answer) if answer.status == 200 => return Ok(()),
                Ok(answer) => seen = answer.describe(),
                Err(error) => seen = error.to_string(),
            }
        }
        bail!("the batch at {first} was not stored: {seen}")
    }
}
