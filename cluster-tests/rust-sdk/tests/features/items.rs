//! Items one by one, and the preconditions of writes and reads.

use anyhow::Result;
use azure_data_cosmos::PartitionKey;
use azure_data_cosmos::feed::FeedScope;
use azure_data_cosmos::options::{
    BinaryEncodingOptions, ContentResponseOnWrite, ItemReadOptions, ItemWriteOptions,
    OperationOptionsBuilder, Precondition,
};
use ephemeris_rust_sdk_tests::{find, if_unchanged, number, refused, with_container};
use serde_json::{Value, json};

#[tokio::test]
async fn an_item_is_created_read_replaced_and_deleted() -> Result<()> {
    with_container(async |items| {
        let first = json!({"id": "1", "pk": "a", "count": 1, "big": 9_007_199_254_740_991_i64});
        let created: Value = items.create_item("a", "1", &first, None).await?.into_model()?;
        assert_eq!(created["big"], first["big"]);
        let read: Value = items.read_item("a", "1", None).await?.into_model()?;
        assert_eq!(read, created);

        let second = json!({"id": "1", "pk": "a", "count": 2});
        let replaced: Value = items.replace_item("a", "1", &second, None).await?.into_model()?;
        assert_eq!((&replaced["count"], replaced.get("big")), (&json!(2), None));
        assert_ne!(replaced["_etag"], created["_etag"]);
        assert_eq!(replaced["_rid"], created["_rid"]);
        assert!(number(&replaced, "_ts") >= number(&created, "_ts"));

        items.delete_item("a", "1", None).await?;
        assert_eq!(refused(items.read_item("a", "1", None).await), 404);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_is_not_there_is_404() -> Result<()> {
    with_container(async |items| {
        let body = json!({"id": "no", "pk": "a"});
        assert_eq!(refused(items.read_item("a", "no", None).await), 404);
        assert_eq!(refused(items.replace_item("a", "no", &body, None).await), 404);
        assert_eq!(refused(items.delete_item("a", "no", None).await), 404);
        assert!(find(items, "SELECT * FROM c", FeedScope::full_container()).await?.is_empty());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_id_is_taken_once_per_logical_partition() -> Result<()> {
    with_container(async |items| {
        items.create_item("a", "1", json!({"id": "1", "pk": "a"}), None).await?;
        let again = items.create_item("a", "1", json!({"id": "1", "pk": "a", "n": 2}), None).await;
        assert_eq!(refused(again), 409);
        items.create_item("b", "1", json!({"id": "1", "pk": "b"}), None).await?;
        let read: Value = items.read_item("a", "1", None).await?.into_model()?;
        assert_eq!(read.get("n"), None);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_key_of_the_request_is_that_of_the_item() -> Result<()> {
    with_container(async |items| {
        let stray = items.create_item("b", "1", json!({"id": "1", "pk": "a"}), None).await;
        assert_eq!(refused(stray), 400);
        assert!(find(items, "SELECT * FROM c", FeedScope::full_container()).await?.is_empty());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn upsert_creates_and_replaces() -> Result<()> {
    with_container(async |items| {
        let created = items.upsert_item("a", "1", json!({"id": "1", "pk": "a", "n": 1}), None);
        assert_eq!(u16::from(created.await?.status()), 201);
        let replaced = items.upsert_item("a", "1", json!({"id": "1", "pk": "a", "n": 2}), None);
        assert_eq!(u16::from(replaced.await?.status()), 200);
        let read: Value = items.read_item("a", "1", None).await?.into_model()?;
        assert_eq!(read["n"], 2);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_stale_etag_is_412() -> Result<()> {
    with_container(async |items| {
        let body = |n| json!({"id": "1", "pk": "a", "n": n});
        let first: Value = items.create_item("a", "1", body(1), None).await?.into_model()?;
        let second: Value = items.upsert_item("a", "1", body(2), None).await?.into_model()?;
        let stale = || Some(if_unchanged(&first));
        assert_eq!(refused(items.replace_item("a", "1", body(3), stale()).await), 412);
        assert_eq!(refused(items.upsert_item("a", "1", body(3), stale()).await), 412);
        assert_eq!(refused(items.delete_item("a", "1", stale()).await), 412);
        let read: Value = items.read_item("a", "1", None).await?.into_model()?;
        assert_eq!(read, second);

        let third = items.replace_item("a", "1", body(3), Some(if_unchanged(&second))).await?;
        let third: Value = third.into_model()?;
        let fourth = items.upsert_item("a", "1", body(4), Some(if_unchanged(&third))).await?;
        let fourth: Value = fourth.into_model()?;
        assert_eq!(fourth["n"], 4);
        items.delete_item("a", "1", Some(if_unchanged(&fourth))).await?;
        assert_eq!(refused(items.read_item("a", "1", None).await), 404);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_read_tells_only_what_has_changed() -> Result<()> {
    with_container(async |items| {
        let known = items.create_item("a", "1", json!({"id": "1", "pk": "a"}), None).await?;
        let etag = known.headers().etag().expect("every item has one").clone();
        let if_changed = || {
            let changed = Precondition::if_none_match(etag.clone());
            Some(ItemReadOptions::default().with_precondition(changed))
        };
        let status = match items.read_item("a", "1", if_changed()).await {
            Ok(answer) => u16::from(answer.status()),
            Err(error) => u16::from(error.status()),
        };
        assert_eq!(status, 304);
        items.upsert_item("a", "1", json!({"id": "1", "pk": "a", "n": 2}), None).await?;
        let read: Value = items.read_item("a", "1", if_changed()).await?.into_model()?;
        assert_eq!(read["n"], 2);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn every_json_value_comes_back_as_it_went() -> Result<()> {
    with_container(async |items| {
        let value = json!({
            "text": "tab\t, quote \", slash /, 漢字, 🌖, \u{1}",
            "numbers": [0, -1, 9_007_199_254_740_992_i64, -9_007_199_254_740_992_i64,
                0.1, 1e-7, 1.797_693_134_862_315_7e308],
            "nested": [{"a": [null, true, false, {}, []]}],
            "": "an empty name",
        });
        for (id, binary) in [("ünï-cødé", true), ("as text", false)] {
            let encoding = BinaryEncodingOptions::new().with_enabled(binary);
            let encoded = OperationOptionsBuilder::new().with_binary_encoding(encoding).build();
            let options = ItemWriteOptions::default().with_operation_options(encoded);
            let body = json!({"id": id, "pk": "ключ", "value": value});
            items.create_item("ключ", id, &body, Some(options)).await?;
            let read: Value = items.read_item("ключ", id, None).await?.into_model()?;
            assert_eq!(read["value"], value, "binary: {binary}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn partition_keys_of_every_type() -> Result<()> {
    with_container(async |items| {
        let keys: [(PartitionKey, Value); 7] = [
            ("text".into(), json!("text")),
            ("".into(), json!("")),
            (5.into(), json!(5)),
            (5.5.try_into()?, json!(5.5)),
            (true.into(), json!(true)),
            (false.into(), json!(false)),
            (PartitionKey::NULL.into(), json!(null)),
        ];
        for (key, value) in keys {
            items.create_item(key.clone(), "1", json!({"id": "1", "pk": value}), None).await?;
            let read: Value = items.read_item(key.clone(), "1", None).await?.into_model()?;
            assert_eq!(read["pk"], value);
            let found = find(items, "SELECT * FROM c", FeedScope::partition(key)).await?;
            assert_eq!(found, [read]);
        }
        let none = PartitionKey::UNDEFINED;
        items.create_item(none.clone(), "1", json!({"id": "1"}), None).await?;
        let read: Value = items.read_item(none, "1", None).await?.into_model()?;
        assert_eq!(read.get("pk"), None);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_answer_tells_its_charge_and_nothing_unasked() -> Result<()> {
    with_container(async |items| {
        let silent = OperationOptionsBuilder::new()
            .with_content_response_on_write(ContentResponseOnWrite::Disabled)
            .build();
        let options = ItemWriteOptions::default().with_operation_options(silent);
        let body = json!({"id": "1", "pk": "a"});
        let answer = items.create_item("a", "1", body, Some(options)).await?;
        let headers = answer.headers();
        assert!(headers.request_charge().is_some_and(|charge| charge.value() > 0.0));
        assert!(headers.session_token().is_some() && headers.activity_id().is_some());
        let etag = headers.etag().expect("every item has one").to_string();
        assert!(answer.into_body().is_empty());
        let read: Value = items.read_item("a", "1", None).await?.into_model()?;
        assert_eq!(read["_etag"], *etag);
        Ok(())
    })
    .await
}
