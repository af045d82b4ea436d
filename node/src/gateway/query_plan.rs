//! Tells clients that merge by themselves how they would carry out a query.
//!
//! It costs nothing: no item is looked at.

use axum::http::StatusCode;
use ephemeris_store::query::client_plan::{ClientPlan, Features};

use super::error::Failure;
use super::path::ContainerPath;
use super::query::QuerySpec;
use super::reply::Reply;
use super::{Call, Gateway};

/// `POST /dbs/d/colls/c/docs` with `x-ms-cosmos-is-query-plan-request`
pub(crate) async fn plan(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Reply, Failure> {
    let QuerySpec { text, parameters, resume: _ } = QuerySpec::parse(&call.body)?;
    let resolved = gateway.container(call, path).await?;
    let definition = &resolved.container.definition;
    // A client that names nothing can merge nothing.
    let features = call.headers.text("x-ms-cosmos-supported-query-features")?.unwrap_or_default();
    let plan = ClientPlan::new(
        &text,
        &parameters,
        definition.rules().index(),
        definition.computed(),
        definition.key(),
        &Features::parse(features),
    )?;
    let body = serde_json::to_vec(&plan).expect("a plan is made of text and numbers");
    Ok(Reply::json(StatusCode::OK, body).data(resolved.headers()))
}
