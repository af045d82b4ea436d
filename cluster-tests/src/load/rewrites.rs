//! One large item, written again and again: it fills the log's segments and leaves little state.

use serde_json::{Value, json};

use crate::client::{Client, Container};

/// Nearly as large as an item may be.
const LARGE_BYTES: usize = 1_900_000;

/// An item of 1.9 MB, whose partition key value is `large`.
pub fn large_item(id: &str, version: usize) -> Value {
    json!({ "id": id, "pk": "large", "version": version, "filler": "x".repeat(LARGE_BYTES) })
}

/// Upserts the item `large` so many times; its `version` counts from 0.
pub async fn rewrite_large(client: &Client, container: &Container, writes: usize) {
    for version in 0..writes {
        let answer = client.upsert_item(container, &large_item("large", version)).await;
        assert!(matches!(answer.status, 200 | 201), "{}", answer.describe());
    }
}
