//! Queries and read feeds over items: fanned out, merged and paged at the gateway, so that clients
//! need no plan of their own.
//!
//! Without ORDER BY partitions are walked one after the other, in the order of the hash space. With
//! it every partition sends its next rows, and as many are taken as are surely in order. Either way a
//! page asks each partition at most once, so that it sees each at one instant.

use std::sync::Arc;

use axum::http::StatusCode;
use ephemeris_store::catalog::PartitionRecord;
use ephemeris_store::charge::Charge;
use ephemeris_store::ids::{ContainerNumber, ResourceId};
use ephemeris_store::partition_key::{Epk, PartitionKey, SLOTS};
use ephemeris_store::query::{
    CompiledQuery, Page, PageLimits, Paging, Parameters, QUERY_BYTES_MAX, QueryRow, Resume, Scope,
    Value, compare_rows,
};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::continuation::{Position, Tokens, Walk};
use super::error::{ApiError, Failure};
use super::path::ContainerPath;
use super::reply::{DataHeaders, Reply, envelope};
use super::resolve::Resolved;
use super::session::Freshness;
use super::{Call, Gateway};
use crate::clock;
use crate::partition::{PartitionRequest, PartitionResponse, QueryRequest};
use crate::requests::RequestError;

/// Bytes of rows in a page.
pub(crate) const PAGE_BYTES_MAX: usize = 4 << 20;
/// Least bytes of rows one of many partitions may send for a sorted page.
const SHARE_BYTES_MIN: usize = 64 << 10;
/// Items a partition looks at for one page.
pub(crate) const ITEMS_MAX: usize = 100_000;
/// Partitions asked at the same time.
const FAN_OUT_MAX: usize = 8;
/// A page ends when this part of the request's time is over.
const TIME_PART: u32 = 2;

/// A query as it stands in a request's body.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct QuerySpec {
    /// The text.
    pub(crate) text: String,
    /// Values for its parameters.
    pub(crate) parameters: Parameters,
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
    #[serde(default)]
    value: serde_json::Value,
}

impl QuerySpec {
    /// Reads the body of a query request.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let body: QueryBody = serde_json::from_slice(body).map_err(|error| {
            ApiError::BadRequest(format!("The query body is not valid: {error}."))
        })?;
        if body.query.len() > QUERY_BYTES_MAX {
            return Err(ApiError::BadRequest(format!(
                "The query text is longer than {QUERY_BYTES_MAX} bytes."
            )));
        }
        if body.resume_filter.is_some() {
            let message = "A resumeFilter in a query is not supported by this version of \
                           Ephemeris.";
            return Err(ApiError::BadRequest(message.to_string()));
        }
        let mut parameters = Parameters::default();
        for parameter in body.parameters.unwrap_or_default() {
            let json = parameter.value.to_string();
            let value = Value::from_json(json.as_bytes()).map_err(|error| {
                ApiError::BadRequest(format!("A query parameter is not valid: {error}."))
            })?;
            parameters.add(&parameter.name, value)?;
        }
        Ok(Self { text: body.query, parameters })
    }
}

/// What one request asks for: everything that makes a result this one and no other.
#[derive(Serialize)]
struct Question {
    container: ContainerNumber,
    query: Option<QuerySpec>,
    key: Option<PartitionKey>,
    epks: Option<(Epk, Epk)>,
    range: Option<String>,
}

impl Question {
    /// True if it is about all items of the container.
    fn is_unscoped(&self) -> bool {
        self.key.is_none() && self.epks.is_none() && self.range.is_none()
    }
}

/// A query under way.
struct Run<'a> {
    gateway: &'a Gateway,
    call: &'a Call,
    question: Question,
    freshness: Freshness,
    targets: Vec<Arc<PartitionRecord>>,
    limit: usize,
    charge: Charge,
    headers: DataHeaders,
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
    let (index, computed) = (definition.rules().index(), definition.computed());
    let compiled = CompiledQuery::new(&spec.text, &spec.parameters, index, computed)?;
    run(gateway, call, &resolved, Some(spec), &compiled).await
}

/// `GET /dbs/d/colls/c/docs`
pub(crate) async fn read_feed(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Reply, Failure> {
    let resolved = gateway.container(call, path).await?;
    run(gateway, call, &resolved, None, &CompiledQuery::everything()).await
}

async fn run(
    gateway: &Gateway,
    call: &Call,
    resolved: &Resolved,
    query: Option<QuerySpec>,
    compiled: &CompiledQuery,
) -> Result<Reply, Failure> {
    let mut question = Question {
        container: resolved.container.number,
        query,
        key: key_scope(call, resolved)?,
        epks: call.headers.epk_range()?,
        range: call.headers.text("x-ms-documentdb-partitionkeyrangeid")?.map(String::from),
    };
    if question.query.is_some() && question.is_unscoped() {
        question.key = compiled.pinned_key(resolved.container.definition.key());
        if question.key.is_none() && !call.headers.crosses_partitions() {
            return Err(ApiError::CrossPartition.into());
        }
    }
    let tokens = Tokens::new(gateway.node.cluster(), &question);
    let position = call.headers.continuation()?.map(|token| tokens.read(token)).transpose()?;
    let mut run = Run {
        gateway,
        call,
        targets: targets(resolved, &question)?,
        question,
        freshness: Freshness::of(call)?,
        limit: call.headers.page_rows()?,
        charge: Charge::ZERO,
        headers: resolved.headers(),
    };
    if compiled.paging() == Paging::Whole && run.targets.len() > 1 {
        let message = "This query is answered within a single partition only: aggregates other \
                       than VALUE COUNT, GROUP BY, DISTINCT, TOP, OFFSET LIMIT, ORDER BY several \
                       keys or with JOIN, and queries without FROM.";
        return Err(ApiError::BadRequest(message.to_string()).into());
    }
    let order = compiled.order.first().filter(|_| compiled.paging() == Paging::Sorted);
    let (rows, next) = match (order, position) {
        (None, None) => run.walk(Walk::Slot(0), 0, compiled).await?,
        (None, Some(Position::Walk { at, counted })) => run.walk(at, counted, compiled).await?,
        (Some(order), None) => run.sorted(None, order.descending).await?,
        (Some(order), Some(Position::Sorted(key, number))) => {
            run.sorted(Some(Resume::AfterRow(key, number)), order.descending).await?
        }
        (_, Some(Position::Listed(_) | Position::Walk { .. } | Position::Sorted(..))) => {
            unreachable!("a token is sealed for one query")
        }
    };
    let next = next.map(|position| tokens.write(&position)).transpose()?;
    let rid = ResourceId::Container(resolved.container.number).to_string();
    let Run { charge, headers, .. } = run;
    let reply = Reply::json(StatusCode::OK, envelope(&rid, "Documents", &rows));
    Ok(reply.charge(charge).data(headers).page(rows.len(), next.as_deref()))
}

/// The partition key the query is about; a hierarchical one may be a prefix.
pub(crate) fn key_scope(
    call: &Call,
    resolved: &Resolved,
) -> Result<Option<PartitionKey>, ApiError> {
    let Some(key) = call.headers.partition_key()? else { return Ok(None) };
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

type Rows = (Vec<Vec<u8>>, Option<Position>);

impl Run<'_> {
    /// Asks one partition for a page.
    async fn ask(
        &self,
        partition: &PartitionRecord,
        resume: Option<Resume>,
        limits: PageLimits,
    ) -> Result<PartitionResponse, Failure> {
        let query = self.question.query.clone().map(|spec| (spec.text, spec.parameters));
        let scope = Scope { key: self.question.key.clone(), epks: self.question.epks.clone() };
        let request = QueryRequest { query, scope, resume, limits };
        let request = PartitionRequest::Query(Box::new(request));
        let node = &self.gateway.node;
        let level = self.freshness.at(node, partition);
        Ok(node.read_partition(partition.group, request, level, self.call.deadline).await?)
    }

    /// Takes up what a partition answered.
    fn take(
        &mut self,
        partition: &PartitionRecord,
        first_page: bool,
        response: PartitionResponse,
    ) -> Result<Page, Failure> {
        match response {
            PartitionResponse::Page { lsn, page } => {
                self.headers.sessions.push((partition.range, lsn));
                let mut work = page.work;
                work.first_page = first_page;
                self.charge += Charge::query_page(&work);
                Ok(page)
            }
            PartitionResponse::QueryRefused(error) => Err(error.into()),
            PartitionResponse::Written { .. }
            | PartitionResponse::Read { .. }
            | PartitionResponse::Found(_)
            | PartitionResponse::Changes { .. }
            | PartitionResponse::Cleared(_)
            | PartitionResponse::PolicySet(_)
            | PartitionResponse::Statistics(_)
            | PartitionResponse::TtlStatus(_) => {
                unreachable!("`ask_partition` checks what is answered")
            }
        }
    }

    /// Goes on with a walk until the page is full, time is up, or everything was seen.
    async fn walk(
        &mut self,
        from: Walk,
        counted: u64,
        query: &CompiledQuery,
    ) -> Result<Rows, Failure> {
        let time_is_up = clock::monotonic() + self.gateway.timeout() / TIME_PART;
        let (mut rows, mut bytes, mut counted) = (Vec::new(), 0, counted);
        let mut at = from.clone();
        let targets: Vec<_> = self
            .targets
            .iter()
            .filter(|partition| partition.slots.end > at.slot())
            .cloned()
            .collect();
        let mut left = targets.iter().peekable();
        while let Some(partition) = left.next() {
            let resume = match &at {
                Walk::After(key) if partition.slots.contains(key.slot()) => {
                    Some(Resume::AfterItem(key.clone()))
                }
                Walk::After(_) | Walk::Slot(_) => None,
            };
            let first_page = resume.is_none();
            let limits = PageLimits {
                rows: self.limit - rows.len(),
                bytes: PAGE_BYTES_MAX - bytes,
                items: ITEMS_MAX,
            };
            let response = match self.ask(partition, resume, limits).await {
                // What other partitions were charged for is not thrown away: the page ends here.
                Err(Failure { error: ApiError::Throttled { .. }, .. }) if at != from => {
                    return Ok((rows, Some(Position::Walk { at, counted })));
                }
                response => response?,
            };
            let page = self.take(partition, first_page, response)?;
            counted += page.count;
            bytes += page.rows.iter().map(|row| row.json.len()).sum::<usize>();
            rows.extend(page.rows.into_iter().map(|row| row.json));
            at = match page.next {
                Some(Resume::AfterItem(key)) => Walk::After(key),
                Some(Resume::AfterRow(..)) => {
                    let reason = "a partition sorted what nobody asked it to sort";
                    return Err(RequestError::Fault(reason.to_string()).into());
                }
                None => Walk::Slot(partition.slots.end),
            };
            let full = rows.len() >= self.limit
                || bytes >= PAGE_BYTES_MAX
                || clock::monotonic() >= time_is_up;
            let ended_early = matches!(at, Walk::After(_));
            if ended_early || (full && left.peek().is_some()) {
                return Ok((rows, Some(Position::Walk { at, counted })));
            }
        }
        assert!(at.slot() <= SLOTS, "the hash space ends at the last slot");
        if query.is_plain_count() {
            rows.push(counted.to_string().into_bytes());
        }
        Ok((rows, None))
    }

    /// Merges the partitions' next rows. Nothing is taken that comes after the last row of a
    /// partition that has more.
    async fn sorted(&mut self, resume: Option<Resume>, descending: bool) -> Result<Rows, Failure> {
        let targets = self.targets.clone();
        let share = (PAGE_BYTES_MAX / targets.len().max(1)).max(SHARE_BYTES_MIN);
        let limits = PageLimits { rows: self.limit, bytes: share, items: ITEMS_MAX };
        let mut responses = Vec::with_capacity(targets.len());
        for some in targets.chunks(FAN_OUT_MAX) {
            let asked: Vec<_> =
                some.iter().map(|partition| self.ask(partition, resume.clone(), limits)).collect();
            responses.extend(join_all(asked).await);
        }
        let compare = |a: &QueryRow, b: &QueryRow| {
            let key = |row: &QueryRow| row.key.clone().expect("sorted rows have keys");
            compare_rows(&key(a), a.number, &key(b), b.number, descending)
        };
        let mut rows: Vec<QueryRow> = Vec::new();
        let mut surely_in_order_to: Option<QueryRow> = None;
        for (partition, response) in targets.iter().zip(responses) {
            let page = self.take(partition, resume.is_none(), response?)?;
            if let (Some(_), Some(last)) = (&page.next, page.rows.last())
                && surely_in_order_to.as_ref().is_none_or(|to| compare(last, to).is_lt())
            {
                surely_in_order_to = Some(last.clone());
            }
            rows.extend(page.rows);
        }
        rows.sort_by(compare);
        let available = rows.len();
        if let Some(to) = &surely_in_order_to {
            rows.retain(|row| compare(row, to).is_le());
        }
        rows.truncate(self.limit);
        let has_more = surely_in_order_to.is_some() || rows.len() < available;
        let next = rows.last().filter(|_| has_more).map(|last| {
            let key = last.key.clone().expect("sorted rows have keys");
            Position::Sorted(key, last.number)
        });
        Ok((rows.into_iter().map(|row| row.json).collect(), next))
    }
}
