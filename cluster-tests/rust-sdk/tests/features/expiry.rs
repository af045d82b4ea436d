//! Time to live: items are gone at their second, for good.

use anyhow::Result;
use azure_data_cosmos::clients::ContainerClient;
use azure_data_cosmos::feed::FeedScope;
use azure_data_cosmos::models::TimeToLive;
use ephemeris_rust_sdk_tests::{
    await_expiry, await_second, definition, due, find, if_unchanged, number, refused, text,
    with_container, with_database,
};
use serde_json::{Value, json};

async fn create(items: &ContainerClient, body: Value) -> Result<Value> {
    let id = text(&body, "id").to_owned();
    Ok(items.create_item("a", &id, body, None).await?.into_model()?)
}

async fn ids(items: &ContainerClient) -> Result<Vec<Value>> {
    let text = "SELECT VALUE c.id FROM c ORDER BY c.id";
    Ok(find(items, text, FeedScope::full_container()).await?)
}

#[tokio::test]
async fn items_expire_at_their_second() -> Result<()> {
    with_database(async |database| {
        let items = &database.create(definition("c").with_default_ttl(2)).await?;
        let inherits = create(items, json!({"id": "inherits", "pk": "a"})).await?;
        let own = create(items, json!({"id": "own", "pk": "a", "ttl": 3})).await?;
        let kept = create(items, json!({"id": "kept", "pk": "a", "ttl": -1})).await?;
        await_expiry(items, "inherits", number(&inherits, "_ts") + 2).await?;
        await_expiry(items, "own", due(&own)).await?;
        let read: Value = items.read_item("a", "kept", None).await?.into_model()?;
        assert_eq!(read, kept);
        assert_eq!(ids(items).await?, ["kept"]);
        let count = find(items, "SELECT VALUE COUNT(1) FROM c", FeedScope::partition("a")).await?;
        assert_eq!(count, [1]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_expired_item_is_as_if_it_had_never_been() -> Result<()> {
    with_container(async |items| {
        let body = json!({"id": "1", "pk": "a"});
        let made = create(items, json!({"id": "1", "pk": "a", "ttl": 1, "old": true})).await?;
        await_expiry(items, "1", due(&made)).await?;
        let same = || Some(if_unchanged(&made));
        assert_eq!(refused(items.replace_item("a", "1", &body, None).await), 404);
        assert_eq!(refused(items.replace_item("a", "1", &body, same()).await), 404);
        assert_eq!(refused(items.delete_item("a", "1", same()).await), 404);
        let again = create(items, body).await?;
        assert_eq!(again.get("old"), None);
        assert_ne!(again["_etag"], made["_etag"]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_write_restarts_the_countdown() -> Result<()> {
    with_container(async |items| {
        let body = json!({"id": "1", "pk": "a", "ttl": 2});
        let first = create(items, body.clone()).await?;
        await_second(due(&first) - 1).await;
        let second: Value = items.upsert_item("a", "1", body, None).await?.into_model()?;
        assert!(number(&second, "_ts") > number(&first, "_ts"));
        await_second(due(&first)).await;
        let read: Value = items.read_item("a", "1", None).await?.into_model()?;
        assert_eq!(read, second);
        await_expiry(items, "1", due(&second)).await
    })
    .await
}

#[tokio::test]
async fn a_container_changes_its_default() -> Result<()> {
    with_database(async |database| {
        let items = &database.create(definition("c").with_default_ttl(1)).await?;
        let change = async |default_ttl: TimeToLive| {
            let definition = items.read(None).await?.into_model()?.with_default_ttl(default_ttl);
            items.replace(definition, None).await
        };
        let early = create(items, json!({"id": "early", "pk": "a"})).await?;
        await_expiry(items, "early", number(&early, "_ts") + 1).await?;
        change(TimeToLive::Seconds(1000)).await?;
        let late = create(items, json!({"id": "late", "pk": "a"})).await?;
        await_second(number(&late, "_ts") + 2).await;
        assert_eq!(ids(items).await?, ["late"]);
        // Lowered, the new default hides older items at once; the expired never come back.
        change(TimeToLive::Seconds(1)).await?;
        assert!(ids(items).await?.is_empty());
        change(TimeToLive::Forever).await?;
        assert_eq!(items.read(None).await?.into_model()?.default_ttl, TimeToLive::Forever);
        assert!(ids(items).await?.is_empty());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_invalid_ttl_is_400() -> Result<()> {
    with_container(async |items| {
        for ttl in [json!(0), json!(-2), json!(1.5), json!("10"), json!(true), json!(1_i64 << 31)] {
            let body = json!({"id": "1", "pk": "a", "ttl": ttl});
            assert_eq!(refused(items.create_item("a", "1", body, None).await), 400, "{ttl}");
        }
        assert!(ids(items).await?.is_empty());
        Ok(())
    })
    .await
}
