//! Queries and read feeds over items: fanned out, merged and paged at the gateway, so that clients
//! need no plan of their own.

mod metrics;
mod run;

use std::sync::Arc;

use ephemeris_store::catalog::PartitionRecord;
use ephemeris_store::ids::ContainerNumber;
use ephemeris_store::partition_key::{Epk, PartitionKey};
use ephemeris_store::query::{CompiledQuery, Course, Parameters, Place, Position, Value};
use serde::{Deserialize, Deserializer, Serialize};

use super::error::{ApiError, Failure};
use super::items::header_key;
use super::path::ContainerPath;
use super::reply::Reply;
use super::resolve::Resolved;
use super::resume_filter::ResumeFilter;
use super::{Call, Gateway};

/// Bytes of rows in a page.
pub(crate) const PAGE_BYTES_MAX: usize = 4 << 20;
/// Items a partition looks at for one page.
pub(crate) const ITEMS_MAX: usize = 100_000;
/// A page ends when this part of the request's time is over.
pub(crate) const TIME_PART: u32 = 2;

/// A query as it stands in a request's body.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct QuerySpec {
    /// The text.
    pub(crate) text: String,
    /// Values for its parameters.
    pub(crate) parameters: Parameters,
    /// Where to begin, for clients that merge by themselves. A continuation goes on from where it is whatever this
    /// says: clients send the token of a result that began elsewhere.
    #[serde(skip)]
    pub(crate) resume: Option<ResumeFilter>,
}

#[derive(Deserialize)]
struct QueryBody {
    query: String,
    #[serde(default)]
    parameters: Option<Vec<QueryParameter>>,
    #[serde(rename = "resumeFilter")]
    resume_filter: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct QueryParameter {
    name: String,
    /// None is undefined, and not null.
    #[serde(default, deserialize_with = "given")]
    value: Option<serde_json::Value>,
}

/// What stands there, null included.
fn given<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<serde_json::Value>, D::Error> {
    serde_json::Value::deserialize(deserializer).map(Some)
}

impl QuerySpec {
    /// Reads the body of a query request.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let body: QueryBody = serde_json::from_slice(body).map_err(|error| {
            ApiError::BadRequest(format!("The query body is not valid: {error}."))
        })?;
        let mut parameters = Parameters::default();
        for parameter in body.parameters.unwrap_or_default() {
            let value = match parameter.value {
                Some(json) => Value::from_json(json.to_string().as_bytes()).map_err(|error| {
                    ApiError::BadRequest(format!("A query parameter is not valid: {error}."))
                })?,
                None => Value::Undefined,
            };
            parameters.add(&parameter.name, value)?;
        }
        let resume = body.resume_filter.map(ResumeFilter::parse).transpose()?;
        Ok(Self { text: body.query, parameters, resume })
    }
}

/// What one request asks for.
struct Question {
    container: ContainerNumber,
    query: Option<QuerySpec>,
    key: Option<PartitionKey>,
    epks: Option<(Epk, Epk)>,
    range: Option<String>,
}

impl Question {
    /// What a request asks for, beside its query.
    fn new(
        call: &Call,
        resolved: &Resolved,
        query: Option<QuerySpec>,
        compiled: &CompiledQuery,
    ) -> Result<Self, ApiError> {
        let range = call.headers.range_id(resolved.container.number)?.map(String::from);
        let mut question = Self {
            container: resolved.container.number,
            query,
            key: key_scope(call, resolved)?,
            epks: call.headers.epk_range()?,
            range,
        };
        if question.query.is_some() && question.is_unscoped() && compiled.has_source() {
            question.key = compiled.pinned_key(resolved.container.definition.key());
            if question.key.is_none() {
                compiled.check_spanning()?;
                if !call.headers.crosses_partitions() {
                    return Err(ApiError::CrossPartition);
                }
            }
        }
        Ok(question)
    }

    /// What makes a result this one and no other, for tokens. Which part of the container it is about
    /// does not: a place is one in the whole result, and clients may go on by a feed range where they
    /// began by a key.
    fn result(&self) -> (ContainerNumber, Option<&QuerySpec>) {
        (self.container, self.query.as_ref())
    }

    /// Where a client that merges by itself wants the result to begin.
    fn resumed(&self, compiled: &CompiledQuery) -> Result<Option<Position>, ApiError> {
        let Some(filter) = self.query.as_ref().and_then(|spec| spec.resume.as_ref()) else {
            return Ok(None);
        };
        if compiled.course() != Course::Sorted || compiled.order.len() != filter.keys.len() {
            let message = "A resumeFilter needs as many values as the query has sort keys.";
            return Err(ApiError::BadRequest(message.to_string()));
        }
        let (keys, directions) = (filter.keys.clone(), compiled.directions());
        let place = Place::of_item(keys, filter.item, filter.exclude, &directions);
        let position = if filter.exclude { Position::Behind } else { Position::From };
        Ok(Some(position(place)))
    }

    /// True if it is about all items of the container.
    fn is_unscoped(&self) -> bool {
        self.key.is_none() && self.epks.is_none() && self.range.is_none()
    }
}

/// `POST /dbs/d/colls/c/docs` with a query
pub(crate) async fn query(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Reply, Failure> {
    let spec = QuerySpec::parse(&call.body)?;
    let resolved = gateway.container(call, path).await?;
    let definition = &resolved.container.definition;
    let compiled = definition.compile(&spec.text, &spec.parameters)?;
    run::run(gateway, call, &resolved, Some(spec), &compiled).await
}

/// `GET /dbs/d/colls/c/docs`
pub(crate) async fn read_feed(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Reply, Failure> {
    let resolved = gateway.container(call, path).await?;
    run::run(gateway, call, &resolved, None, &CompiledQuery::everything()).await
}

/// The partition key the query is about; a hierarchical one may be a prefix.
pub(crate) fn key_scope(
    call: &Call,
    resolved: &Resolved,
) -> Result<Option<PartitionKey>, ApiError> {
    let Some(key) = header_key(call, resolved)? else { return Ok(None) };
    let paths = resolved.container.definition.key().paths.len();
    if key.0.len() > paths {
        key.check_complete(resolved.container.definition.key())?;
    }
    Ok(Some(key).filter(|key| !key.0.is_empty()))
}

/// The partitions that can hold what is asked for, in the order of the hash space.
fn targets(
    resolved: &Resolved,
    question: &Question,
) -> Result<Vec<Arc<PartitionRecord>>, ApiError> {
    let definition = resolved.container.definition.key();
    let mut targets = resolved.partitions().to_vec();
    if let Some(range) = &question.range {
        targets.retain(|partition| partition.range.to_string() == *range);
        if targets.is_empty() {
            return Err(ApiError::RangeGone(range.clone()));
        }
    }
    if let Some(key) = &question.key {
        let slot = definition.place(key).slot;
        targets.retain(|partition| partition.slots.contains(slot));
    }
    if let Some((start, end)) = &question.epks {
        targets.retain(|partition| {
            definition.slot_start(partition.slots.start) < *end
                && *start < definition.slot_start(partition.slots.end)
        });
    }
    Ok(targets)
}
