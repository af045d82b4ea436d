//! Bulk requests: up to a hundred operations, each for itself, on items of any partition key.
//!
//! Operations on one item happen in the order in which they stand, others side by side. Every operation
//! answers for itself; the answer is 207 if one was not carried out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::StatusCode;
use bytes::Bytes;
use ephemeris_store::charge::Charge;
use ephemeris_store::command::Effect;
use ephemeris_store::ids::{Lsn, RangeId};
use ephemeris_store::item::ItemKey;
use ephemeris_store::partition_key::PartitionKey;
use ephemeris_store::patch::ConditionBudget;
use futures_util::StreamExt as _;
use futures_util::stream;

use super::operation::{self, Operation, Prepared, array, dependent_row, refused_row, row};
use crate::gateway::error::{ApiError, Failure};
use crate::gateway::headers::Content;
use crate::gateway::items;
use crate::gateway::reply::Reply;
use crate::gateway::resolve::Resolved;
use crate::gateway::{Call, Gateway};

/// Operations under way at the same time.
const AT_ONCE: usize = 16;

/// Most bytes of the bodies that an answer shows: it is held in memory.
const SHOWN_BYTES_MAX: usize = 16 << 20;

/// A request under way.
struct Bulk<'a> {
    gateway: &'a Gateway,
    call: &'a Call,
    resolved: &'a Resolved,
    /// The only range whose items may be meant.
    range: Option<&'a str>,
    /// Bytes of the bodies that were read or patched so far.
    shown: AtomicUsize,
}

/// What became of an operation.
struct Outcome {
    row: Vec<u8>,
    is_done: bool,
    charge: Charge,
    session: Option<(RangeId, Lsn)>,
}

impl Outcome {
    fn refused(error: &ApiError, charge: Charge) -> Self {
        Self { row: refused_row(error, charge), is_done: false, charge, session: None }
    }
}

/// Carries out a bulk request.
pub(super) async fn execute(
    gateway: &Gateway,
    call: &Call,
    resolved: &Resolved,
) -> Result<Reply, Failure> {
    let operations = operation::parse(&call.body).map_err(Failure::in_body)?;
    let range = call.headers.range_id(resolved.container.number)?;
    if let Some(range) = range
        && !resolved.partitions().iter().any(|known| known.range.to_string() == range)
    {
        return Err(ApiError::RangeGone(range.to_string()).into());
    }
    let bulk = Bulk { gateway, call, resolved, range, shown: AtomicUsize::new(0) };
    let goes_on = call.headers.text("x-ms-cosmos-batch-continue-on-error")?;
    let stops = goes_on.is_some_and(|goes_on| goes_on.eq_ignore_ascii_case("false"));
    let outcomes = if stops {
        bulk.one_by_one(&operations).await
    } else {
        bulk.side_by_side(&operations).await
    };
    let is_done = outcomes.iter().all(|outcome| outcome.is_done);
    let status = if is_done { StatusCode::OK } else { StatusCode::MULTI_STATUS };
    let charge = outcomes.iter().map(|outcome| outcome.charge).sum();
    let mut sessions = BTreeMap::new();
    for (range, lsn) in outcomes.iter().filter_map(|outcome| outcome.session) {
        let known = sessions.entry(range).or_insert(lsn);
        *known = lsn.max(*known);
    }
    let mut headers = resolved.headers();
    headers.sessions.extend(sessions);
    let body = array(outcomes.into_iter().map(|outcome| outcome.row));
    Ok(Reply::json(status, body).charge(charge).data(headers))
}

impl Bulk<'_> {
    /// Carries out operations until one cannot be.
    async fn one_by_one(&self, operations: &[Operation<'_>]) -> Vec<Outcome> {
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(operations.len());
        let mut budget = ConditionBudget::REQUEST;
        for operation in operations {
            let outcome = if outcomes.last().is_none_or(|last| last.is_done) {
                match self.prepare(operation, &mut budget) {
                    Ok(prepared) => self.carry_out(prepared).await,
                    Err(error) => Outcome::refused(&error, Charge::REFUSED_BODY),
                }
            } else {
                let row = dependent_row();
                Outcome { row, is_done: false, charge: Charge::ZERO, session: None }
            };
            outcomes.push(outcome);
        }
        outcomes
    }

    /// Carries out all operations that can be.
    async fn side_by_side(&self, operations: &[Operation<'_>]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(operations.len());
        let mut budget = ConditionBudget::REQUEST;
        let mut by_item: BTreeMap<ItemKey, Vec<(usize, Prepared)>> = BTreeMap::new();
        for (at, operation) in operations.iter().enumerate() {
            match self.prepare(operation, &mut budget) {
                Ok(prepared) => {
                    let key = prepared.write.key.clone();
                    by_item.entry(key).or_default().push((at, prepared));
                }
                Err(error) => {
                    outcomes.push((at, Outcome::refused(&error, Charge::REFUSED_BODY)));
                }
            }
        }
        let of_one_item = |operations: Vec<(usize, Prepared)>| async move {
            let mut outcomes = Vec::with_capacity(operations.len());
            for (at, prepared) in operations {
                outcomes.push((at, self.carry_out(prepared).await));
            }
            outcomes
        };
        let mut items = stream::iter(by_item.into_values().map(of_one_item));
        let mut under_way = items.by_ref().buffer_unordered(AT_ONCE);
        while let Some(more) = under_way.next().await {
            outcomes.extend(more);
        }
        outcomes.sort_unstable_by_key(|(at, _)| *at);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    fn prepare(
        &self,
        operation: &Operation<'_>,
        budget: &mut ConditionBudget,
    ) -> Result<Prepared, ApiError> {
        let key = match &operation.partition_key {
            Some(text) => {
                let definition = self.resolved.container.definition.key();
                let key = definition.meant(PartitionKey::parse(text)?);
                let complete = key.check_complete(definition);
                complete.map(|()| key).map_err(|_| ApiError::KeyShape)?
            }
            None => items::named_key(self.call, self.resolved)?,
        };
        let prepared = operation.prepare(self.resolved, &key, budget)?;
        let definition = self.resolved.container.definition.key();
        self.call.access.check_item(&prepared.write.key, definition)?;
        if let Some(range) = self.range
            && self.resolved.partition(prepared.write.key.slot())?.range.to_string() != range
        {
            return Err(ApiError::RangeGone(range.to_string()));
        }
        Ok(prepared)
    }

    async fn carry_out(&self, Prepared { write, body, content }: Prepared) -> Outcome {
        let Self { gateway, call, resolved, .. } = self;
        let executed = match items::execute(gateway, call, resolved, vec![write]).await {
            Ok(executed) => executed,
            Err(failure) => return Outcome::refused(&failure.error, failure.charge),
        };
        let session = executed.headers(resolved).sessions.pop();
        match executed.result {
            Ok(mut written) => {
                let written = written.pop().expect("one write has one result");
                let (charge, content) = (written.charge, content.and(call.headers.content()));
                let is_read = written.effect == Effect::Read;
                let shown = written.body.as_ref().filter(|_| is_read || content == Content::Full);
                let fits = self.fits(shown.map_or(0, Bytes::len));
                if !fits && is_read {
                    let reason = format!(
                        "The items that the request reads and patches have more than {SHOWN_BYTES_MAX} bytes. Ask \
                         for them in several requests."
                    );
                    let outcome = Outcome::refused(&ApiError::TooLarge(reason), charge);
                    return Outcome { session, ..outcome };
                }
                let content = if fits { content } else { Content::Minimal };
                let row = row(written, body, content, resolved.container.number);
                Outcome { row, is_done: true, charge, session }
            }
            Err(refused) => {
                let outcome = Outcome::refused(&ApiError::from(refused.refusal), refused.charge);
                Outcome { session, ..outcome }
            }
        }
    }

    /// Whether so much more can be shown.
    fn fits(&self, bytes: usize) -> bool {
        self.shown.fetch_add(bytes, Ordering::Relaxed) + bytes <= SHOWN_BYTES_MAX
    }
}
