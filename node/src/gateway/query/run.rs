//! A query under way: asks the partitions, a bounded number at a time, and makes one page of what they
//! found.
//!
//! A walk asks one partition after the other until the page is full. All other courses ask every
//! partition at once, and `store::query::merge` takes what is surely in order. A page asks each
//! partition at most once, so that it sees each at one instant.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use ephemeris_store::catalog::PartitionRecord;
use ephemeris_store::charge::{Charge, QueryWork};
use ephemeris_store::ids::{ItemNumber, ResourceId};
use ephemeris_store::item::client_json;
use ephemeris_store::partition_key::SlotRange;
use ephemeris_store::query::{
    Anchored, CompiledQuery, Course, Merged, Moment, Page, PageLimits, Place, Position, Progress,
    Resume, Run, Scope, Value, Walk, Window, merge_distinct_groups, merge_keyed, merge_sorted,
    merge_unique, rows_wanted,
};
use ephemeris_store::time::Millis;
use futures_util::future::join_all;

use super::metrics::PageMetrics;
use super::{ITEMS_MAX, PAGE_BYTES_MAX, QuerySpec, Question, TIME_PART, targets};
use crate::clock;
use crate::gateway::continuation::Tokens;
use crate::gateway::error::{ApiError, Failure};
use crate::gateway::reply::{DataHeaders, Reply, envelope};
use crate::gateway::resolve::Resolved;
use crate::gateway::session::Freshness;
use crate::gateway::{Call, Gateway};
use crate::partition::{PartitionRequest, PartitionResponse, QueryRequest};
use crate::requests::RequestError;

/// Least bytes of rows one of many partitions may send for a page.
const SHARE_BYTES_MIN: usize = 64 << 10;
/// Rows a partition sends at most, if OFFSET leaves some of them out.
const ROWS_SKIPPED_MAX: usize = 10_000;
/// Partitions asked at the same time.
const FAN_OUT_MAX: usize = 8;
/// Most time kept for a partition's answer to come back and be merged: a page that takes too long is
/// told so, and not taken for one that nobody answered.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(250);

/// Answers a query, or a read feed if there is none, with a page.
pub(super) async fn run(
    gateway: &Gateway,
    call: &Call,
    resolved: &Resolved,
    query: Option<QuerySpec>,
    compiled: &CompiledQuery,
) -> Result<Reply, Failure> {
    let begun = clock::monotonic();
    let question = Question::new(call, resolved, query, compiled)?;
    let tokens = Tokens::new(gateway.cluster()?, &question.result());
    let progress: Option<Progress> =
        call.headers.continuation()?.map(|token| tokens.read(token)).transpose()?;
    let mut targets = targets(resolved, &question)?;
    if !compiled.has_source() {
        targets.truncate(1);
    }
    let now = gateway.node.now().interval.hi();
    let resumed = question.resumed(compiled)?;
    let (position, left, first) = match progress {
        None => (resumed, compiled.window, now),
        Some(Progress { at, left, first }) => (Some(at), left, first),
    };
    let mut run = QueryRun {
        gateway,
        call,
        resolved,
        compiled,
        question,
        freshness: Freshness::of(call)?,
        targets,
        left,
        first,
        limit: call.headers.page_rows()?,
        work: Vec::new(),
        followed: BTreeSet::new(),
        headers: resolved.headers(),
        now,
    };
    let merged = run.page(position).await?;
    let next = merged.next.map(|(at, left)| tokens.write(&Progress { at, left, first }));
    let next = next.transpose()?;
    let rid = ResourceId::Container(resolved.container.number).to_string();
    let QueryRun { work, followed, headers, .. } = run;
    let charge: Charge = work.iter().map(Charge::query_page).sum();
    let bytes = merged.rows.iter().map(Vec::len).sum();
    let (rows, took) = ((bytes, merged.rows.len()), begun.elapsed());
    let followed = followed.into_iter().collect::<Vec<_>>();
    let metrics = PageMetrics { work: &work, took, rows, followed: &followed };
    let reply = Reply::json(StatusCode::OK, envelope(&rid, "Documents", &merged.rows));
    let reply = metrics.tell(&call.headers, reply);
    Ok(reply.charge(charge).data(headers).page(merged.rows.len(), next.as_deref()))
}

/// A query under way.
struct QueryRun<'a> {
    gateway: &'a Gateway,
    call: &'a Call,
    resolved: &'a Resolved,
    compiled: &'a CompiledQuery,
    question: Question,
    freshness: Freshness,
    targets: Vec<Arc<PartitionRecord>>,
    left: Window,
    first: Millis,
    limit: usize,
    work: Vec<QueryWork>,
    /// Index paths that were followed.
    followed: BTreeSet<String>,
    headers: DataHeaders,
    now: Millis,
}

impl QueryRun<'_> {
    async fn page(&mut self, mut position: Option<Position>) -> Result<Merged, Failure> {
        if self.left.take == Some(0) {
            return Ok(Merged { rows: Vec::new(), next: None });
        }
        if position.as_ref().is_some_and(|position| !position.suits(self.compiled)) {
            return Err(Tokens::refusal().into());
        }
        if let Some(Position::Anchored(anchored)) = position {
            position = self.found(anchored).await?;
        }
        match (self.compiled.course(), position) {
            (Course::Walk, position @ (None | Some(Position::Walk { .. }))) => {
                self.walk(position, 1).await
            }
            (Course::Sums, position @ (None | Some(Position::Walk { .. }))) => {
                self.walk(position, FAN_OUT_MAX).await
            }
            (Course::Unique, None) => self.unique(None).await,
            (Course::Unique, Some(Position::Behind(place) | Position::From(place))) => {
                self.unique(Some(&place)).await
            }
            (Course::Sorted | Course::Keyed, None) => self.at_once(None).await,
            (Course::Sorted, Some(Position::Behind(place))) => {
                self.at_once(Some(Resume::Behind(place))).await
            }
            (Course::Sorted, Some(Position::From(place))) => {
                self.at_once(Some(Resume::From(place))).await
            }
            (Course::Keyed, Some(Position::Digest(digest))) => {
                self.at_once(Some(Resume::Digest(digest))).await
            }
            (
                Course::Walk | Course::Sums | Course::Sorted | Course::Unique | Course::Keyed,
                Some(_),
            ) => unreachable!("the position suits the query"),
        }
    }

    /// Where a result goes on whose place is told by items.
    async fn found(&self, anchored: Anchored) -> Result<Option<Position>, Failure> {
        for anchor in &anchored.anchors {
            let item = self.item(anchor.number).await?;
            let behind = item.map(|item| {
                self.finish(|run| Anchored::behind(self.compiled, *anchor, &item, run))
            });
            if let Some(position) = behind.transpose()?.flatten() {
                return Ok(Some(position));
            }
        }
        Ok(anchored.start())
    }

    /// An item by its number, if it is there.
    async fn item(&self, number: ItemNumber) -> Result<Option<Value>, Failure> {
        let (node, deadline) = (&self.gateway.node, self.call.deadline);
        let Ok(partition) = self.resolved.partition(number.slot()) else { return Ok(None) };
        let find = PartitionRequest::Find(number);
        let found = node.ask_partition(partition.group, find, deadline).await?;
        let PartitionResponse::Found(Some(key)) = found else { return Ok(None) };
        let read = PartitionRequest::Read(key);
        let read = node.ask_partition(partition.group, read, deadline).await?;
        let PartitionResponse::Read { item: Some(item), .. } = read else { return Ok(None) };
        // Another one may have its id by now.
        if item.stamp.number != number {
            return Ok(None);
        }
        let json = client_json(&item.body, &item.stamp, self.resolved.container.number);
        Ok(Value::from_json(&json).ok())
    }

    /// Asks one partition for a page.
    async fn ask(
        &self,
        partition: &PartitionRecord,
        resume: Option<Resume>,
        limits: PageLimits,
    ) -> Result<PartitionResponse, RequestError> {
        let query = self.question.query.clone().map(|spec| (spec.text, spec.parameters));
        let scope = Scope { key: self.question.key.clone(), epks: self.question.epks.clone() };
        let (first, seed) = (self.first, rand::random());
        let left = self.call.deadline.saturating_duration_since(clock::monotonic());
        let patience = left.saturating_sub(ANSWER_TIME_MAX.min(left / 10));
        let request = QueryRequest { query, scope, resume, limits, first, seed, patience };
        let request = PartitionRequest::Query(Box::new(request));
        let node = &self.gateway.node;
        let level = self.freshness.at(node, partition);
        node.read_partition(partition.group, request, level, self.call.deadline).await
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
                if !page.suits(self.compiled) {
                    let reason = "a partition answered another query than it was asked";
                    return Err(RequestError::Fault(reason.to_string()).into());
                }
                self.headers.sessions.push((partition.range, lsn));
                self.work.push(QueryWork { first_page, ..page.work });
                self.followed.extend(page.followed.iter().cloned());
                Ok(page)
            }
            PartitionResponse::QueryRefused(error) => Err(error.into()),
            PartitionResponse::QueryStopped => Err(ApiError::QueryTimeout.into()),
            PartitionResponse::Written { .. }
            | PartitionResponse::Read { .. }
            | PartitionResponse::Found(_)
            | PartitionResponse::Changes { .. }
            | PartitionResponse::Cleared(_)
            | PartitionResponse::PolicySet(_)
            | PartitionResponse::ChangesRefused(_)
            | PartitionResponse::Statistics(_)
            | PartitionResponse::TtlStatus(_) => {
                unreachable!("`ask_partition` checks what is answered")
            }
        }
    }

    /// Goes on with a walk until the page is full, time is up, or everything was seen.
    async fn walk(
        &mut self,
        position: Option<Position>,
        at_once: usize,
    ) -> Result<Merged, Failure> {
        let time_is_up = clock::monotonic() + self.gateway.timeout() / TIME_PART;
        let limits = PageLimits { rows: self.limit, bytes: PAGE_BYTES_MAX, items: ITEMS_MAX };
        let mut walk = Walk::new(self.compiled, position, self.left, limits);
        let mut targets = self.targets.clone();
        let end = targets.last().map_or(SlotRange::NONE, |partition| partition.slots);
        targets.retain(|partition| walk.awaits(partition.slots));
        'pages: for some in targets.chunks(at_once) {
            let asked: Vec<_> = some
                .iter()
                .map(|partition| {
                    let resume = walk.resume(partition.slots);
                    self.ask(partition, resume, walk.limits(ROWS_SKIPPED_MAX))
                })
                .collect();
            let responses = join_all(asked).await;
            let mut is_full = false;
            for (at, (partition, mut response)) in some.iter().zip(responses).enumerate() {
                let is_begun = partition.group != targets[0].group || at > 0;
                loop {
                    let first_page = walk.resume(partition.slots).is_none();
                    let answered = match response {
                        // What other partitions were charged for is not thrown away: the page ends here.
                        Err(RequestError::Throttled { .. }) if is_begun && walk.may_end() => {
                            break 'pages;
                        }
                        response => response?,
                    };
                    let page = self.take(partition, first_page, answered)?;
                    is_full |= walk.take(partition.slots, page);
                    if is_full && !walk.adds_up() && walk.may_end() {
                        break 'pages;
                    }
                    if !walk.awaits(partition.slots) {
                        break;
                    }
                    let resume = walk.resume(partition.slots);
                    response = self.ask(partition, resume, walk.limits(ROWS_SKIPPED_MAX)).await;
                }
            }
            if (is_full || clock::monotonic() >= time_is_up) && walk.may_end() {
                break;
            }
        }
        self.finish(|run| walk.end(end, run))
    }

    /// Asks every partition for its next rows and merges them.
    async fn at_once(&mut self, resume: Option<Resume>) -> Result<Merged, Failure> {
        let rows = rows_wanted(self.left, self.limit, ROWS_SKIPPED_MAX);
        let after = match resume {
            Some(Resume::Digest(after)) => Some(after),
            _ => None,
        };
        if self.compiled.needs_all_groups() {
            let pages = self.ask_all(None, usize::MAX).await?;
            let (query, left, limit) = (self.compiled, self.left, self.limit);
            return self
                .finish(|run| merge_distinct_groups(query, pages, after, left, limit, run))?
                .map_err(Failure::from);
        }
        let pages = self.ask_all(resume, rows).await?;
        let (query, left, limit) = (self.compiled, self.left, self.limit);
        match query.course() {
            Course::Keyed => self.finish(|run| merge_keyed(query, pages, after, left, limit, run)),
            Course::Sorted => Ok(merge_sorted(query, pages, left, limit)),
            Course::Walk | Course::Sums | Course::Unique => unreachable!("these have other ways"),
        }
    }

    /// Finishes groups and sums, which may go over a limit: together, for nothing else runs
    /// meanwhile.
    fn finish<T>(&self, merge: impl FnOnce(&Run) -> T) -> Result<T, Failure> {
        let run = Run::undivided(Moment::new(self.now, self.first, rand::random()));
        let merged = merge(&run);
        match run.exceeded() {
            Some(error) => Err(error.into()),
            None => Ok(merged),
        }
    }

    /// Asks every partition for all of its rows.
    async fn unique(&mut self, after: Option<&Place>) -> Result<Merged, Failure> {
        let pages = self.ask_all(None, usize::MAX).await?;
        Ok(merge_unique(self.compiled, pages, after, self.left, self.limit))
    }

    async fn ask_all(&mut self, resume: Option<Resume>, rows: usize) -> Result<Vec<Page>, Failure> {
        let targets = self.targets.clone();
        let bytes = (PAGE_BYTES_MAX / targets.len().max(1)).max(SHARE_BYTES_MIN);
        let limits = PageLimits { rows, bytes, items: ITEMS_MAX };
        let mut pages = Vec::with_capacity(targets.len());
        for some in targets.chunks(FAN_OUT_MAX) {
            let asked: Vec<_> =
                some.iter().map(|partition| self.ask(partition, resume.clone(), limits)).collect();
            for (partition, response) in some.iter().zip(join_all(asked).await) {
                pages.push(self.take(partition, resume.is_none(), response?)?);
            }
        }
        Ok(pages)
    }
}
