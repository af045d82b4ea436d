//! Databases: create, read, list, query, delete.

use std::sync::Arc;

use axum::http::StatusCode;
use ephemeris_store::catalog::{CatalogCommand, Database};
use ephemeris_store::charge::Charge;
use ephemeris_store::ids::{ResourceId, ResourceName, database_link};
use serde_json::{Map, Value, json};

use super::error::{ApiError, Failure};
use super::reply::{Reply, with_system_properties};
use super::resolve::Purpose;
use super::{Call, Gateway, feed};

/// A database as clients see it.
fn to_json(database: &Database) -> Map<String, Value> {
    let rid = ResourceId::Database(database.number).to_string();
    let id = Map::from_iter([("id".to_string(), json!(database.name.as_str()))]);
    let resource = database.resource;
    let link = database_link(database.number);
    let mut json = with_system_properties(id, &rid, &link, resource.etag, resource.ts.0);
    json.insert("_colls".into(), json!("colls/"));
    json.insert("_users".into(), json!("users/"));
    json
}

fn reply(status: StatusCode, database: &Database) -> Reply {
    let body = Value::Object(to_json(database)).to_string();
    Reply::json(status, body).etag(database.resource.etag)
}

/// The name in a body that creates something.
pub(crate) fn name_in(body: &Value) -> Result<ResourceName, ApiError> {
    match body.get("id") {
        Some(Value::String(name)) => Ok(ResourceName::try_from(name.clone())?),
        Some(_) => Err(ApiError::BadRequest("The 'id' must be a string.".to_string())),
        None => Err(ApiError::BadRequest("The 'id' is missing.".to_string())),
    }
}

/// `POST /dbs`
pub(crate) async fn create(gateway: &Gateway, call: &Call) -> Result<Reply, Failure> {
    let body = call.json()?;
    let name = name_in(&body).map_err(Failure::in_body)?;
    let throughput = call.headers.throughput()?;
    let command = CatalogCommand::CreateDatabase { name: name.clone(), throughput };
    gateway.change_catalog(call, command).await?;
    let view = gateway.node.directory().current();
    let database = view.database_named(name.as_str());
    let deleted = || ApiError::Timeout("The database was deleted again meanwhile.".to_string());
    let database = database.ok_or_else(deleted)?;
    Ok(reply(StatusCode::CREATED, database).charge(Charge::METADATA_WRITE))
}

/// `GET /dbs/d`
pub(crate) async fn read(gateway: &Gateway, call: &Call, database: &str) -> Result<Reply, Failure> {
    let (_, database) = gateway.database(call, database, Purpose::Target).await?;
    let reply = reply(StatusCode::OK, &database).charge(Charge::METADATA_READ);
    Ok(reply.unless_known(call.headers.read_condition()?, database.resource.etag))
}

/// `DELETE /dbs/d`
pub(crate) async fn delete(
    gateway: &Gateway,
    call: &Call,
    database: &str,
) -> Result<Reply, Failure> {
    let (_, database) = gateway.database(call, database, Purpose::Target).await?;
    let precondition = call.headers.precondition()?;
    let command = CatalogCommand::DeleteDatabase { database: database.number, precondition };
    gateway.change_catalog(call, command).await?;
    Ok(Reply::empty(StatusCode::NO_CONTENT).charge(Charge::METADATA_WRITE))
}

/// `GET /dbs`, or `POST` with a query
pub(crate) async fn list(gateway: &Gateway, call: &Call) -> Result<Reply, Failure> {
    let view = gateway.fresh_view(call).await?;
    let listed = |database: &Arc<Database>| (u64::from(database.number.0), to_json(database));
    feed::answer(gateway, call, ("", "Databases"), view.state().databases().map(listed))
}
