//! Transactional batches.

use anyhow::Result;
use azure_core::http::Etag;
use azure_data_cosmos::TransactionalBatch;
use azure_data_cosmos::clients::ContainerClient;
use azure_data_cosmos::feed::FeedScope;
use azure_data_cosmos::models::{TransactionalBatchOperationResult, TransactionalBatchResponse};
use azure_data_cosmos::options::{BatchReplaceOptions, Precondition};
use ephemeris_rust_sdk_tests::{all_done, find, refused, unchanged, with_container};
use serde_json::{Value, json};

async fn execute(
    items: &ContainerClient,
    batch: TransactionalBatch,
) -> Result<TransactionalBatchResponse> {
    Ok(items.execute_transactional_batch(batch, None).await?.into_model()?)
}

fn statuses(done: &TransactionalBatchResponse) -> Vec<u16> {
    done.results().iter().map(TransactionalBatchOperationResult::status_code).collect()
}

fn item(id: &str, n: i32) -> Value {
    json!({"id": id, "pk": "a", "n": n})
}

#[tokio::test]
async fn a_batch_does_everything() -> Result<()> {
    with_container(async |items| {
        for id in ["replaced", "deleted", "read"] {
            items.create_item("a", id, item(id, 0), None).await?;
        }
        let batch = TransactionalBatch::new("a")
            .create_item(item("created", 1))?
            .upsert_item(item("upserted", 1), None)?
            .replace_item("replaced", item("replaced", 1), None)?
            .delete_item("deleted", None)
            .read_item("read", None)
            .read_item("created", None);
        let done = execute(items, batch).await?;
        assert_eq!(statuses(&done), [201, 201, 200, 204, 200, 200]);
        assert!(all_done(&done));
        let created: Value = items.read_item("a", "created", None).await?.into_model()?;
        assert_eq!(done.results()[5].into_model()?, Some(created));
        let query = "SELECT VALUE c.id FROM c WHERE c.n = 1 ORDER BY c.id";
        let found = find(items, query, FeedScope::partition("a")).await?;
        assert_eq!(found, ["created", "replaced", "upserted"]);
        assert_eq!(refused(items.read_item("a", "deleted", None).await), 404);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_batch_that_fails_changes_nothing() -> Result<()> {
    with_container(async |items| {
        let kept = items.create_item("a", "kept", item("kept", 0), None).await?;
        let kept: Value = kept.into_model()?;
        let stale = Precondition::if_match(Etag::from("\"stale\""));
        let stale = BatchReplaceOptions::default().with_precondition(stale);
        let failing = |status| -> Result<(TransactionalBatch, u16)> {
            let batch = TransactionalBatch::new("a").create_item(item("new", 1))?;
            let batch = match status {
                409 => batch.create_item(item("kept", 1))?,
                404 => batch.replace_item("none", item("none", 1), None)?,
                _ => batch.replace_item("kept", item("kept", 1), Some(stale.clone()))?,
            };
            Ok((batch.delete_item("kept", None), status))
        };
        for (batch, status) in [failing(409)?, failing(404)?, failing(412)?] {
            let done = execute(items, batch).await?;
            assert_eq!(statuses(&done), [424, status, 424]);
            let found = find(items, "SELECT * FROM c", FeedScope::partition("a")).await?;
            assert_eq!(found, std::slice::from_ref(&kept), "after {status}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_precondition_holds_within_a_batch() -> Result<()> {
    with_container(async |items| {
        let first = items.create_item("a", "1", item("1", 0), None).await?;
        let first: Value = first.into_model()?;
        let fresh = BatchReplaceOptions::default().with_precondition(unchanged(&first));
        let batch =
            TransactionalBatch::new("a").replace_item("1", item("1", 1), Some(fresh.clone()))?;
        assert_eq!(statuses(&execute(items, batch).await?), [200]);
        let batch = TransactionalBatch::new("a").replace_item("1", item("1", 2), Some(fresh))?;
        assert_eq!(statuses(&execute(items, batch).await?), [412]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_batch_has_a_hundred_operations_at_most() -> Result<()> {
    with_container(async |items| {
        let of = |operations| {
            (0..operations).try_fold(TransactionalBatch::new("a"), |batch, id: i32| {
                batch.upsert_item(item(&id.to_string(), id), None)
            })
        };
        let done = execute(items, of(100)?).await?;
        assert_eq!(statuses(&done), [201; 100]);
        assert_eq!(refused(items.execute_transactional_batch(of(101)?, None).await), 400);
        let found = find(items, "SELECT * FROM c", FeedScope::partition("a")).await?;
        assert_eq!(found.len(), 100);
        Ok(())
    })
    .await
}
