//! Sessions and consistency: what was written is read through every node.

use anyhow::Result;
use azure_data_cosmos::clients::ContainerClient;
use azure_data_cosmos::options::{
    ItemReadOptions, OperationOptionsBuilder, ReadConsistencyStrategy,
};
use ephemeris_rust_sdk_tests::{
    Database, NODES, await_that, connect_to, definition, with_database,
};
use serde_json::{Value, json};

/// The container `c`, as clients see it that ask another node first each.
async fn through_every_node(database: &Database) -> Result<Vec<ContainerClient>> {
    let mut views = Vec::new();
    for node in 0..NODES.len() {
        let client = connect_to(node).await?;
        views.push(client.database_client(&database.name).container_client("c", None).await?);
    }
    Ok(views)
}

fn at(strategy: ReadConsistencyStrategy) -> ItemReadOptions {
    let operation = OperationOptionsBuilder::new().with_read_consistency_strategy(strategy).build();
    ItemReadOptions::default().with_operation_options(operation)
}

#[tokio::test]
async fn a_session_token_leads_to_the_write() -> Result<()> {
    with_database(async |database| {
        let items = database.create(definition("c")).await?;
        let views = through_every_node(database).await?;
        for n in 0..20 {
            let written = items.upsert_item("a", "1", json!({"id": "1", "pk": "a", "n": n}), None);
            let written = written.await?;
            let token = written.headers().session_token().expect("every write has one").clone();
            for view in &views {
                let options =
                    at(ReadConsistencyStrategy::Session).with_session_token(token.clone());
                let read: Value = view.read_item("a", "1", Some(options)).await?.into_model()?;
                assert_eq!(read["n"], n);
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_client_reads_what_it_has_written() -> Result<()> {
    with_database(async |database| {
        database.create(definition("c")).await?;
        for view in through_every_node(database).await? {
            for n in 0..20 {
                let body = json!({"id": "1", "pk": "a", "n": n});
                view.upsert_item("a", "1", body, None).await?;
                let read: Value = view.read_item("a", "1", None).await?.into_model()?;
                assert_eq!(read["n"], n);
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn weaker_reads_see_the_write_in_the_end() -> Result<()> {
    with_database(async |database| {
        let items = database.create(definition("c")).await?;
        let views = through_every_node(database).await?;
        items.create_item("a", "1", json!({"id": "1", "pk": "a"}), None).await?;
        for view in &views {
            await_that("an eventual read finds the item", async || {
                match view.read_item("a", "1", Some(at(ReadConsistencyStrategy::Eventual))).await {
                    Ok(_) => Ok(true),
                    Err(error) if error.status().is_not_found() => Ok(false),
                    Err(error) => Err(error.into()),
                }
            })
            .await?;
        }
        Ok(())
    })
    .await
}
