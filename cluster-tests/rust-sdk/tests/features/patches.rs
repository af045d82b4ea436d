//! Patches, which the SDK sends to the server, or makes itself of a read and a replace.

use anyhow::Result;
use azure_data_cosmos::clients::ContainerClient;
use azure_data_cosmos::models::{PatchInstructions, PatchOperation};
use azure_data_cosmos::options::{PatchItemOptions, PatchStrategy};
use ephemeris_rust_sdk_tests::{refused, unchanged, with_container};
use serde_json::{Value, json};

const STRATEGIES: [PatchStrategy; 3] =
    [PatchStrategy::ServerSide, PatchStrategy::ClientSide, PatchStrategy::Auto];

fn by(strategy: PatchStrategy) -> PatchItemOptions {
    PatchItemOptions::default().with_strategy(strategy)
}

/// Creates the item `1` anew.
async fn fresh(items: &ContainerClient) -> Result<Value> {
    let body = json!({
        "id": "1", "pk": "a", "n": 1, "half": 0.5, "old": true, "here": "it",
        "list": ["x", "z"], "deep": {"a": 1},
    });
    Ok(items.upsert_item("a", "1", body, None).await?.into_model()?)
}

#[tokio::test]
async fn every_operation_changes_its_part() -> Result<()> {
    with_container(async |items| {
        for strategy in STRATEGIES {
            fresh(items).await?;
            let patch = PatchInstructions::from(vec![
                PatchOperation::add("/new", json!([1])),
                PatchOperation::add("/list/1", json!("y")),
                PatchOperation::set("/deep/b", json!({"c": null})),
                PatchOperation::replace("/deep/a", json!("replaced")),
                PatchOperation::remove("/old"),
                PatchOperation::increment("/n", 2_i64),
                PatchOperation::increment("/half", -1.5),
                PatchOperation::move_value("/here", "/there"),
            ]);
            let patched = items.patch_item("a", "1", patch, Some(by(strategy))).await?;
            let patched: Value = patched.into_model()?;
            let read: Value = items.read_item("a", "1", None).await?.into_model()?;
            assert_eq!(read, patched, "{strategy}");
            assert_eq!(read["new"], json!([1]), "{strategy}");
            assert_eq!(read["list"], json!(["x", "y", "z"]), "{strategy}");
            assert_eq!(read["deep"], json!({"a": "replaced", "b": {"c": null}}), "{strategy}");
            assert_eq!((&read["n"], &read["there"]), (&json!(3), &json!("it")), "{strategy}");
            assert_eq!(read["half"].as_f64(), Some(-1.0), "{strategy}");
            assert_eq!((read.get("old"), read.get("here")), (None, None), "{strategy}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_patch_of_a_stale_etag_changes_nothing() -> Result<()> {
    with_container(async |items| {
        for strategy in STRATEGIES {
            let first = fresh(items).await?;
            let second = fresh(items).await?;
            let patch = || PatchInstructions::from(vec![PatchOperation::set("/n", json!(7))]);
            let of = |item: &Value| Some(by(strategy).with_precondition(unchanged(item)));
            let stale = items.patch_item("a", "1", patch(), of(&first)).await;
            assert_eq!(refused(stale), 412, "{strategy}");
            let read: Value = items.read_item("a", "1", None).await?.into_model()?;
            assert_eq!(read, second, "{strategy}");
            let patched = items.patch_item("a", "1", patch(), of(&second)).await?;
            let patched: Value = patched.into_model()?;
            assert_eq!(patched["n"], 7, "{strategy}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_patch_that_cannot_be_done_changes_nothing() -> Result<()> {
    with_container(async |items| {
        for strategy in STRATEGIES {
            let before = fresh(items).await?;
            for impossible in [
                PatchOperation::replace("/none", json!(1)),
                PatchOperation::remove("/none"),
                PatchOperation::increment("/here", 1_i64),
            ] {
                let patch =
                    PatchInstructions::from(vec![PatchOperation::set("/n", json!(7)), impossible]);
                let status = refused(items.patch_item("a", "1", patch, Some(by(strategy))).await);
                assert_eq!(status, 400, "{strategy}");
            }
            let read: Value = items.read_item("a", "1", None).await?.into_model()?;
            assert_eq!(read, before, "{strategy}");
            let patch = PatchInstructions::from(vec![PatchOperation::set("/n", json!(7))]);
            let missing = items.patch_item("a", "none", patch, Some(by(strategy))).await;
            assert_eq!(refused(missing), 404, "{strategy}");
        }
        Ok(())
    })
    .await
}
