//! Unique keys, and partition keys of several levels.

use anyhow::Result;
use azure_data_cosmos::clients::ContainerClient;
use azure_data_cosmos::feed::FeedScope;
use azure_data_cosmos::models::{
    ContainerProperties, PatchInstructions, PatchOperation, UniqueKey, UniqueKeyPolicy,
};
use azure_data_cosmos::options::{PatchItemOptions, PatchStrategy};
use azure_data_cosmos::{PartitionKey, TransactionalBatch};
use ephemeris_rust_sdk_tests::{
    all_done, await_expiry, definition, due, find, refused, text, with_database,
};
use serde_json::{Value, json};

fn person(id: &str, email: &str) -> Value {
    json!({"id": id, "pk": "a", "email": email, "name": {"first": "Ada", "last": id}})
}

#[tokio::test]
async fn unique_keys_are_unique_in_a_logical_partition() -> Result<()> {
    with_database(async |database| {
        let policy = UniqueKeyPolicy::default()
            .with_unique_key(UniqueKey::default().with_path("/email"))
            .with_unique_key(UniqueKey::default().with_path("/name/first").with_path("/name/last"));
        let people = database.create(definition("c").with_unique_key_policy(policy)).await?;
        people.create_item("a", "1", person("1", "1@x"), None).await?;
        people.create_item("a", "2", person("2", "2@x"), None).await?;
        let mut elsewhere = person("1", "1@x");
        elsewhere["pk"] = json!("b");
        people.create_item("b", "1", elsewhere, None).await?;

        let taken = || person("3", "1@x");
        assert_eq!(refused(people.create_item("a", "3", taken(), None).await), 409);
        assert_eq!(refused(people.upsert_item("a", "3", taken(), None).await), 409);
        assert_eq!(refused(people.replace_item("a", "2", person("2", "1@x"), None).await), 409);
        let patch = PatchInstructions::from(vec![PatchOperation::set("/email", json!("1@x"))]);
        let at_server = PatchItemOptions::default().with_strategy(PatchStrategy::ServerSide);
        assert_eq!(refused(people.patch_item("a", "2", patch, Some(at_server)).await), 409);
        let mut namesake = person("3", "3@x");
        namesake["name"]["last"] = json!("1");
        assert_eq!(refused(people.create_item("a", "3", namesake, None).await), 409);
        people.upsert_item("a", "1", person("1", "1@x"), None).await?;

        // A batch sees what it has freed.
        let swap = TransactionalBatch::new("a").delete_item("1", None).replace_item(
            "2",
            person("2", "1@x"),
            None,
        )?;
        let done = people.execute_transactional_batch(swap, None).await?.into_model()?;
        assert!(all_done(&done));

        // What has expired holds nothing any more.
        let mut brief = person("5", "5@x");
        brief["ttl"] = json!(1);
        let brief: Value = people.create_item("a", "5", brief, None).await?.into_model()?;
        assert_eq!(refused(people.create_item("a", "6", person("6", "5@x"), None).await), 409);
        await_expiry(&people, "5", due(&brief)).await?;
        people.create_item("a", "6", person("6", "5@x"), None).await?;
        Ok(())
    })
    .await
}

/// Creates the item `1` of every tenant, user and session.
async fn fill(items: &ContainerClient) -> Result<()> {
    for tenant in ["t1", "t2"] {
        for (user, session) in [("u1", 1), ("u1", 2), ("u2", 1)] {
            let body = json!({"id": "1", "tenant": tenant, "user": user, "session": session});
            items.create_item((tenant, user, session), "1", body, None).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_hierarchical_key_has_levels() -> Result<()> {
    with_database(async |database| {
        let levels = ("/tenant", "/user", "/session").into();
        let items = &database.create(ContainerProperties::new("c", levels)).await?;
        fill(items).await?;
        let read: Value = items.read_item(("t1", "u1", 2), "1", None).await?.into_model()?;
        assert_eq!((text(&read, "user"), &read["session"]), ("u1", &json!(2)));
        assert_eq!(refused(items.read_item(("t1", "u2", 2), "1", None).await), 404);
        assert_eq!(refused(items.read_item(("t1", "u1"), "1", None).await), 400);

        let whole: PartitionKey = ("t1", "u1", 1).into();
        for (key, found) in [(whole, 1), (("t1", "u1").into(), 2), ("t1".into(), 3)] {
            let text = "SELECT * FROM c WHERE c.session < 10";
            let rows = find(items, text, FeedScope::partition(key)).await?;
            assert_eq!(rows.len(), found);
            assert!(rows.iter().all(|row| row["tenant"] == "t1"), "{rows:?}");
        }
        assert_eq!(find(items, "SELECT * FROM c", FeedScope::full_container()).await?.len(), 6);

        items.delete_item(("t1", "u1", 1), "1", None).await?;
        let rows = find(items, "SELECT * FROM c", FeedScope::partition("t1")).await?;
        assert_eq!(rows.len(), 2);
        Ok(())
    })
    .await
}
