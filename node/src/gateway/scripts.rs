//! Stored procedures, triggers and user-defined functions: kept and listed, never run.

use std::sync::Arc;

use axum::http::StatusCode;
use ephemeris_store::catalog::{CatalogCommand, Script, ScriptKind};
use ephemeris_store::charge::Charge;
use ephemeris_store::ids::{ChildKind, ResourceId, ResourceName, container_link};
use serde_json::{Map, Value};

use super::databases::name_in;
use super::error::{ApiError, Failure};
use super::path::ContainerPath;
use super::reply::{Reply, with_system_properties};
use super::resolve::Resolved;
use super::{Call, Gateway, feed};

/// The path segment of a kind.
fn segment(kind: ScriptKind) -> &'static str {
    match kind {
        ScriptKind::StoredProcedure => "sprocs",
        ScriptKind::Trigger => "triggers",
        ScriptKind::UserDefinedFunction => "udfs",
    }
}

/// The name of a feed of this kind.
fn feed_name(kind: ScriptKind) -> &'static str {
    match kind {
        ScriptKind::StoredProcedure => "StoredProcedures",
        ScriptKind::Trigger => "Triggers",
        ScriptKind::UserDefinedFunction => "UserDefinedFunctions",
    }
}

fn rid(script: &Script) -> ResourceId {
    ResourceId::child(script.container, ChildKind::Script, u64::from(script.number))
}

fn to_json(script: &Script) -> Map<String, Value> {
    let rid = rid(script).to_string();
    let link = format!("{}{}/{rid}/", container_link(script.container), segment(script.kind));
    let body: Value = serde_json::from_str(&script.body).expect("it was checked when it came");
    let body = body.as_object().cloned().unwrap_or_default();
    with_system_properties(body, &rid, &link, script.resource.etag, script.resource.ts.0)
}

fn reply(status: StatusCode, script: &Script) -> Reply {
    Reply::json(status, Value::Object(to_json(script)).to_string()).etag(script.resource.etag)
}

/// Longest body of a script: every node keeps all of them in memory.
const SCRIPT_BYTES_MAX: usize = 256 << 10;

/// The definition in a body: everything but system properties is kept.
fn definition(call: &Call) -> Result<(ResourceName, String), Failure> {
    let body = call.json()?;
    let name = name_in(&body).map_err(Failure::in_body)?;
    let Value::Object(mut body) = body else { unreachable!("a body with an id is an object") };
    body.retain(|property, _| !property.starts_with('_'));
    if !body.get("body").is_some_and(Value::is_string) {
        let error = ApiError::BadRequest("The 'body' must be a string.".to_string());
        return Err(Failure::in_body(error));
    }
    let body = Value::Object(body).to_string();
    if body.len() > SCRIPT_BYTES_MAX {
        let message = format!("A script has at most {SCRIPT_BYTES_MAX} bytes.");
        return Err(Failure::in_body(ApiError::TooLarge(message)));
    }
    Ok((name, body))
}

fn find<'r>(
    resolved: &'r Resolved,
    kind: ScriptKind,
    name: &str,
) -> Result<&'r Arc<Script>, ApiError> {
    let container = resolved.container.number;
    let mut scripts = resolved.view.state().scripts(container, kind);
    let by_rid = resolved.child(name);
    let found = scripts.find(|script| match by_rid {
        Some(wanted) => rid(script) == wanted,
        None => script.name.as_str() == name,
    });
    found.ok_or_else(|| ApiError::NotFound("Resource Not Found.".to_string()))
}

async fn fresh(gateway: &Gateway, call: &Call, path: &ContainerPath) -> Result<Resolved, Failure> {
    gateway.node.catalog_barrier(call.deadline).await?;
    gateway.container(call, path).await
}

/// The script a change just made or replaced.
async fn changed(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
    kind: ScriptKind,
    (status, name): (StatusCode, &str),
) -> Result<Reply, Failure> {
    let resolved = gateway.container(call, path).await?;
    let script = resolved.view.state().script_named(resolved.container.number, kind, name);
    let script = script
        .ok_or_else(|| ApiError::Timeout("The script was deleted again meanwhile.".to_string()))?;
    Ok(reply(status, script).charge(Charge::METADATA_WRITE))
}

/// `POST …/sprocs`
pub(crate) async fn create(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
    kind: ScriptKind,
) -> Result<Reply, Failure> {
    let (name, body) = definition(call)?;
    let container = gateway.container(call, path).await?.container.number;
    let created = name.to_string();
    let command = CatalogCommand::CreateScript { container, kind, name, body };
    gateway.change_catalog(call, command).await?;
    changed(gateway, call, path, kind, (StatusCode::CREATED, &created)).await
}

/// `GET …/sprocs/s`
pub(crate) async fn read(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
    kind: ScriptKind,
    name: &str,
) -> Result<Reply, Failure> {
    let resolved = fresh(gateway, call, path).await?;
    let script = find(&resolved, kind, name)?;
    let reply = reply(StatusCode::OK, script).charge(Charge::METADATA_READ);
    Ok(reply.unless_known(call.headers.read_condition()?, script.resource.etag))
}

/// `PUT …/sprocs/s`
pub(crate) async fn replace(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
    kind: ScriptKind,
    name: &str,
) -> Result<Reply, Failure> {
    let (new_name, body) = definition(call)?;
    let resolved = fresh(gateway, call, path).await?;
    let name = find(&resolved, kind, name)?.name.clone();
    if new_name != name {
        let error = ApiError::BadRequest("The 'id' of a script cannot be changed.".to_string());
        return Err(Failure::in_body(error));
    }
    let (container, replaced) = (resolved.container.number, name.to_string());
    let precondition = call.headers.precondition()?;
    let command = CatalogCommand::ReplaceScript { container, kind, name, body, precondition };
    gateway.change_catalog(call, command).await?;
    changed(gateway, call, path, kind, (StatusCode::OK, &replaced)).await
}

/// `DELETE …/sprocs/s`
pub(crate) async fn delete(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
    kind: ScriptKind,
    name: &str,
) -> Result<Reply, Failure> {
    let resolved = fresh(gateway, call, path).await?;
    let name = find(&resolved, kind, name)?.name.clone();
    let container = resolved.container.number;
    let precondition = call.headers.precondition()?;
    let command = CatalogCommand::DeleteScript { container, kind, name, precondition };
    gateway.change_catalog(call, command).await?;
    Ok(Reply::empty(StatusCode::NO_CONTENT).charge(Charge::METADATA_WRITE))
}

/// `GET …/sprocs`, or `POST` with a query
pub(crate) async fn list(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
    kind: ScriptKind,
) -> Result<Reply, Failure> {
    let resolved = fresh(gateway, call, path).await?;
    let container = resolved.container.number;
    let listed = |script: &Arc<Script>| (u64::from(script.number), to_json(script));
    let scripts = resolved.view.state().scripts(container, kind).map(listed);
    let rid = ResourceId::Container(container).to_string();
    feed::answer(gateway, call, (&rid, feed_name(kind)), scripts)
}
