//! Throughput: read, replaced, and held to.

use anyhow::Result;
use azure_data_cosmos::CosmosError;
use azure_data_cosmos::clients::ContainerClient;
use azure_data_cosmos::models::{ItemResponse, ThroughputProperties};
use azure_data_cosmos::options::{
    BinaryEncodingOptions, ContentResponseOnWrite, ItemWriteOptions, OperationOptionsBuilder,
    ThrottlingRetryOptionsBuilder,
};
use ephemeris_rust_sdk_tests::{definition, refused, with_database};
use futures_util::future::join_all;
use serde_json::json;

#[tokio::test]
async fn an_offer_is_read_and_replaced() -> Result<()> {
    with_database(async |database| {
        let manual = ThroughputProperties::manual(600);
        let items = database.create_with(definition("manual"), Some(manual)).await?;
        let read = items.read_throughput(None).await?.expect("it has one");
        assert_eq!(read.throughput(), Some(600));
        let replaced =
            items.begin_replace_throughput(ThroughputProperties::manual(800), None).await?.await?;
        assert_eq!(replaced.into_model()?.throughput(), Some(800));
        let read = items.read_throughput(None).await?.expect("it has one");
        assert_eq!(read.throughput(), Some(800));
        let odd = ThroughputProperties::manual(401);
        assert_eq!(refused(items.begin_replace_throughput(odd, None).await), 400);

        let auto = ThroughputProperties::autoscale(4000, None);
        let items = database.create_with(definition("auto"), Some(auto)).await?;
        let read = items.read_throughput(None).await?.expect("it has one");
        assert_eq!(read.autoscale_maximum(), Some(4000));

        let items = database.create(definition("none")).await?;
        assert!(items.read_throughput(None).await?.is_none());
        assert!(database.here().read_throughput(None).await?.is_none());
        Ok(())
    })
    .await
}

/// Creates items at once that cost some 690 request units each.
async fn create_large(
    items: &ContainerClient,
    ids: &[&str],
    retries_max: u32,
) -> Vec<Result<ItemResponse, CosmosError>> {
    let retries = ThrottlingRetryOptionsBuilder::new().with_max_retry_count(retries_max).build();
    // Nothing that takes this client long: who is slow is not throttled.
    let operation = OperationOptionsBuilder::new()
        .with_throttling_retry_options(retries)
        .with_binary_encoding(BinaryEncodingOptions::new().with_enabled(false))
        .with_content_response_on_write(ContentResponseOnWrite::Disabled)
        .build();
    let create = async |id: &str| {
        let options = ItemWriteOptions::default().with_operation_options(operation.clone());
        let body = json!({"id": id, "pk": "a", "text": "x".repeat(1_500_000)});
        items.create_item("a", id, body, Some(options)).await
    };
    join_all(ids.iter().map(|id| create(id))).await
}

#[tokio::test]
async fn the_sdk_rides_through_throttling() -> Result<()> {
    with_database(async |database| {
        let slow = ThroughputProperties::manual(400);
        let items = &database.create_with(definition("c"), Some(slow)).await?;
        let at_once = create_large(items, &["1", "2", "3", "4"], 0).await;
        let (done, throttled): (Vec<_>, Vec<_>) = at_once.into_iter().partition(Result::is_ok);
        assert!(!done.is_empty() && !throttled.is_empty());
        for one in throttled {
            assert_eq!(refused(one), 429);
        }

        let patient = create_large(items, &["5", "6", "7"], 9).await;
        let patient: Vec<_> = patient.into_iter().collect::<Result<_, _>>()?;
        let requests: usize = patient.iter().map(|one| one.diagnostics().request_count()).sum();
        assert!(requests > patient.len(), "none of them had to wait");
        Ok(())
    })
    .await
}
