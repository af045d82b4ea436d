//! Databases, and who may see them.

use anyhow::Result;
use azure_data_cosmos::Query;
use ephemeris_rust_sdk_tests::{connect, connect_with, refused, with_database};
use futures_util::TryStreamExt;
use uuid::Uuid;

#[tokio::test]
async fn a_database_is_created_read_listed_and_deleted() -> Result<()> {
    let client = connect().await?;
    let name = format!("rust-{}", Uuid::new_v4());
    let created = client.create_database(&name, None).await?.into_model()?;
    assert_eq!(created.id.as_deref(), Some(&*name));

    let database = client.database_client(&name);
    assert_eq!(database.read(None).await?.into_model()?, created);
    let by_name = Query::from("SELECT * FROM c WHERE c.id = @id").with_parameter("@id", &name)?;
    let listed: Vec<_> = client.query_databases(by_name, None).await?.try_collect().await?;
    assert_eq!(listed, [created]);

    database.delete(None).await?;
    assert_eq!(refused(database.read(None).await), 404);
    assert_eq!(refused(database.delete(None).await), 404);
    Ok(())
}

#[tokio::test]
async fn a_name_is_taken_once() -> Result<()> {
    with_database(async |database| {
        assert_eq!(refused(database.client.create_database(&database.name, None).await), 409);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_wrong_key_is_401() -> Result<()> {
    let wrong = "d3Jvbmcga2V5IHRoYXQgbm9ib2R5IGhhcyBldmVyIHNldA==";
    let status = match connect_with(0, wrong).await {
        // The SDK may have asked for nothing yet.
        Ok(client) => refused(client.database_client("any").read(None).await),
        Err(error) => refused::<()>(Err(error.downcast()?)),
    };
    assert_eq!(status, 401);
    Ok(())
}
