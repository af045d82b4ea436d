//! Feeds of resources that are not items: listed, paged, and queried by the same engine as items.

use axum::http::StatusCode;
use ephemeris_store::charge::Charge;
use ephemeris_store::indexing::{self, IndexRules};
use ephemeris_store::query::{CompiledQuery, Value};
use serde_json::Map;

use super::continuation::{Position, Tokens};
use super::error::{ApiError, Failure};
use super::query::QuerySpec;
use super::reply::{Reply, envelope};
use super::{Call, Gateway};

/// A resource of a feed: its number, by which the feed is ordered, and its JSON.
pub(crate) type Listed = (u64, Map<String, serde_json::Value>);

/// Answers with a feed as it is.
pub(crate) fn list(
    gateway: &Gateway,
    call: &Call,
    (rid, name): (&str, &str),
    resources: Vec<Listed>,
) -> Result<Reply, Failure> {
    answer(gateway, call, (rid, name), resources, None)
}

/// Answers a query over a feed.
pub(crate) fn query(
    gateway: &Gateway,
    call: &Call,
    (rid, name): (&str, &str),
    resources: Vec<Listed>,
) -> Result<Reply, Failure> {
    let spec = QuerySpec::parse(&call.body)?;
    answer(gateway, call, (rid, name), resources, Some(&spec))
}

fn answer(
    gateway: &Gateway,
    call: &Call,
    (rid, name): (&str, &str),
    mut resources: Vec<Listed>,
    spec: Option<&QuerySpec>,
) -> Result<Reply, Failure> {
    let tokens = Tokens::new(gateway.node.cluster(), &(rid, name, spec));
    if let Some(token) = call.headers.text("x-ms-continuation")? {
        match tokens.read(token)? {
            Position::Listed(after) => resources.retain(|(number, _)| *number > after),
            Position::Walk { .. } | Position::Sorted(..) => {
                return Err(ApiError::BadRequest(
                    "The continuation token is of another kind.".into(),
                )
                .into());
            }
        }
    }
    let limit = call.headers.page_rows()?;
    let next = resources.get(limit).map(|_| resources[limit - 1].0);
    resources.truncate(limit);
    let resources = resources
        .into_iter()
        .map(|(_, resource)| serde_json::to_vec(&resource).expect("JSON serialises"));
    let rows = match spec {
        None => resources.collect(),
        Some(spec) => select(spec, resources)?,
    };
    let next = next.map(|after| tokens.write(&Position::Listed(after))).transpose()?;
    let reply = Reply::json(StatusCode::OK, envelope(rid, name, &rows));
    Ok(reply.charge(Charge::METADATA_READ).page(rows.len(), next.as_deref()))
}

/// Runs a query over resources at hand.
fn select(
    spec: &QuerySpec,
    resources: impl Iterator<Item = Vec<u8>>,
) -> Result<Vec<Vec<u8>>, Failure> {
    let policy = indexing::complete(None).expect("the default policy is valid");
    let index = IndexRules::new(&policy).expect("the default policy is valid");
    let query = CompiledQuery::new(&spec.text, &spec.parameters, &index)?;
    let values = resources.map(|json| Value::from_json(&json).expect("it was just written"));
    Ok(query.select(values))
}
