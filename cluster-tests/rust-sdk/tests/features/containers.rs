//! Containers and their definitions.

use anyhow::Result;
use azure_data_cosmos::Query;
use azure_data_cosmos::models::{
    CompositeIndex, CompositeIndexOrder, CompositeIndexProperty, ConflictResolutionMode,
    ConflictResolutionPolicy, ContainerProperties, IndexingMode, IndexingPolicy, SpatialIndex,
    SpatialType, TimeToLive, UniqueKey, UniqueKeyPolicy,
};
use ephemeris_rust_sdk_tests::{connect, definition, refused, with_database};
use futures_util::TryStreamExt;
use serde_json::json;

/// Everything that a definition may say and this version serves.
fn rich_definition() -> ContainerProperties {
    let indexing = IndexingPolicy::default()
        .with_indexing_mode(IndexingMode::Consistent)
        .with_included_path("/*")
        .with_excluded_path("/secret/*")
        .with_excluded_path("/\"_etag\"/?")
        .with_composite_index(
            CompositeIndex::default()
                .with_property(CompositeIndexProperty::new("/a", CompositeIndexOrder::Ascending))
                .with_property(CompositeIndexProperty::new("/b", CompositeIndexOrder::Descending)),
        )
        .with_spatial_index(SpatialIndex::new("/place/*").with_type(SpatialType::Point));
    let unique = UniqueKeyPolicy::default()
        .with_unique_key(UniqueKey::default().with_path("/name/first").with_path("/name/last"));
    ContainerProperties::new("rich", "/deep/key".into())
        .with_default_ttl(1000)
        .with_indexing_policy(indexing)
        .with_unique_key_policy(unique)
        .with_conflict_resolution_policy(
            ConflictResolutionPolicy::new(ConflictResolutionMode::LastWriterWins)
                .with_resolution_path("/_ts"),
        )
}

#[tokio::test]
async fn a_container_keeps_its_definition() -> Result<()> {
    with_database(async |database| {
        let wanted = rich_definition();
        let container = database.create(wanted.clone()).await?;
        let kept = container.read(None).await?.into_model()?;
        assert_eq!(kept.partition_key, wanted.partition_key);
        assert_eq!(kept.default_ttl, TimeToLive::Seconds(1000));
        assert_eq!(kept.unique_key_policy, wanted.unique_key_policy);
        let kept = kept.indexing_policy.expect("every container has one");
        let wanted = wanted.indexing_policy.expect("it was given");
        assert_eq!(kept.indexing_mode, wanted.indexing_mode);
        assert_eq!(kept.included_paths, wanted.included_paths);
        assert_eq!(kept.excluded_paths, wanted.excluded_paths);
        assert_eq!(kept.composite_indexes, wanted.composite_indexes);
        assert_eq!(kept.spatial_indexes.len(), 1);
        assert_eq!(kept.spatial_indexes[0].path, "/place/*");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_container_changes_its_indexes_and_its_default_ttl() -> Result<()> {
    with_database(async |database| {
        let container = database.create(definition("c")).await?;
        let before = container.read(None).await?.into_model()?;
        let indexing = IndexingPolicy::default()
            .with_indexing_mode(IndexingMode::Consistent)
            .with_included_path("/a/?")
            .with_excluded_path("/*");
        let changed = before.clone().with_default_ttl(60).with_indexing_policy(indexing);
        let answered = container.replace(changed, None).await?.into_model()?;
        let after = container.read(None).await?.into_model()?;
        assert_eq!(after, answered);
        assert_eq!(after.default_ttl, TimeToLive::Seconds(60));
        assert_eq!(after.system_properties.resource_id, before.system_properties.resource_id);
        assert_ne!(after.system_properties.etag, before.system_properties.etag);
        let paths = after.indexing_policy.expect("it was given").included_paths;
        assert!(paths.iter().any(|path| path.path == "/a/?"), "{paths:?}");

        let moved = ContainerProperties::new("c", "/another".into());
        assert_eq!(refused(container.replace(moved, None).await), 400);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn containers_are_listed_and_deleted() -> Result<()> {
    with_database(async |database| {
        let kept = database.create(definition("kept")).await?;
        let doomed = database.create(definition("doomed")).await?;
        assert_eq!(refused(database.here().create_container(definition("kept"), None).await), 409);
        doomed.delete(None).await?;
        assert_eq!(refused(doomed.read(None).await), 404);
        // A client that has not known it does not find it.
        let stranger = connect().await?.database_client(&database.name);
        assert_eq!(refused(stranger.container_client("doomed", None).await), 404);
        let query = Query::from("SELECT * FROM c");
        let listed: Vec<_> =
            database.here().query_containers(query, None).await?.try_collect().await?;
        assert_eq!(listed, [kept.read(None).await?.into_model()?]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_container_made_anew_is_empty() -> Result<()> {
    with_database(async |database| {
        let first = database.create(definition("again")).await?;
        first.create_item("a", "1", json!({"id": "1", "pk": "a"}), None).await?;
        first.delete(None).await?;
        let second = database.create(definition("again")).await?;
        assert_eq!(refused(second.read_item("a", "1", None).await), 404);
        // Nor does who knew the first one find its items.
        assert_eq!(refused(first.read_item("a", "1", None).await), 404);
        second.create_item("a", "1", json!({"id": "1", "pk": "a"}), None).await?;
        Ok(())
    })
    .await
}
