//! The change feed of all versions and deletes: what a partition remembers of what happened to its
//! items, in the order in which it did.
//!
//! A reader keeps the place up to which it has read. A page does not end inside a transaction, unless
//! the versions of one are more than a page may hold.

use std::fmt;
use std::io::Write as _;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::FeedPage;
use crate::charge::QueryWork;
use crate::engine::Fault;
use crate::ids::ContainerNumber;
use crate::json::{self, Scalar};
use crate::partition::{Change, ChangeRecord, Image, PartitionView};
use crate::partition_key::{Component, KeyDefinition, PartitionKey};
use crate::query::{PageLimits, Scope};
use crate::timeline::FeedPosition;

/// So many bytes of images a page reads at most for each that it may send.
const READ_PER_SENT: usize = 16;

/// Where a reader begins: the past is told only to those who have seen its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HistoryStart {
    /// With what happens from now on.
    Now,
    /// Behind this place.
    After(FeedPosition),
}

/// Why there is no page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum FeedRefusal {
    /// The container does not remember.
    #[error(
        "The change feed mode All Versions and Deletes must be enabled: set retentionDuration in the \
         container's changeFeedPolicy, in minutes."
    )]
    NotEnabled,
    /// What the reader has not seen yet is not remembered any more.
    #[error(
        "The continuation lies before what is retained by the container's changeFeedPolicy: changes \
         behind it are lost. Start from now."
    )]
    Forgotten,
}

/// Reads one page of what happened.
pub fn read_history(
    view: &PartitionView,
    key: &KeyDefinition,
    start: HistoryStart,
    scope: &Scope,
    limits: PageLimits,
) -> Result<Result<FeedPage, FeedRefusal>, Fault> {
    let state = view.state();
    let now = FeedPosition::end_of(state.lsn());
    let after = match start {
        HistoryStart::Now => now,
        HistoryStart::After(place) => place,
    };
    if !state.remembers() {
        return Ok(Err(FeedRefusal::NotEnabled));
    }
    if after < state.history_start() {
        return Ok(Err(FeedRefusal::Forgotten));
    }
    let work = QueryWork::default();
    let mut page = FeedPage { rows: Vec::new(), through: now, more: false, work };
    let (mut bytes, mut looked_at, mut bytes_read, mut last) = (0, 0, 0, None);
    for record in view.history(after) {
        let (position, record) = record?;
        let is_full = page.rows.len() >= limits.rows
            || looked_at >= limits.items
            || bytes_read >= limits.bytes.saturating_mul(READ_PER_SENT);
        let is_between = last.is_some_and(|last: FeedPosition| last.lsn != position.lsn);
        if let Some(last) = last.filter(|_| bytes >= limits.bytes || (is_full && is_between)) {
            (page.more, page.through) = (true, last);
            break;
        }
        (looked_at, last) = (looked_at + 1, Some(position));
        bytes_read += record.change.bytes();
        if !scope.admits(&record.key, key)? {
            continue;
        }
        page.work.items_loaded += 1;
        page.work.bytes_loaded += record.change.bytes() as u64;
        let row = to_json(position, &record, key, view.container())?;
        bytes += row.len();
        page.rows.push(row.into());
    }
    page.work.rows = page.rows.len() as u64;
    Ok(Ok(page))
}

/// `{"current", "previous", "metadata"}`, as the wire format of 2021-09-15 has it.
fn to_json(
    position: FeedPosition,
    record: &ChangeRecord,
    key: &KeyDefinition,
    container: ContainerNumber,
) -> Result<Vec<u8>, Fault> {
    let (operation, current, previous) = match &record.change {
        Change::Created { current } => ("create", Some(current), None),
        Change::Replaced { current, previous } => ("replace", Some(current), Some(previous)),
        Change::Deleted { previous } | Change::Expired { previous } => {
            ("delete", None, Some(previous))
        }
    };
    let mut row = b"{\"current\":".to_vec();
    match current {
        Some(current) => row.extend(current.decode()?.to_json(container)),
        None => row.extend_from_slice(b"{}"),
    }
    let previous = previous.map(Image::decode).transpose()?;
    if let Some(previous) = &previous {
        row.extend_from_slice(b",\"previous\":");
        row.extend(previous.to_json(container));
    }
    row.extend_from_slice(b",\"metadata\":{");
    let FeedPosition { lsn, .. } = position;
    put(
        &mut row,
        format_args!("\"operationType\":\"{operation}\",\"lsn\":{lsn},\"crts\":{}", record.at),
    );
    if let Some(previous) = &previous {
        put(&mut row, format_args!(",\"previousImageLSN\":{}", previous.stamp.lsn));
    }
    if current.is_none() {
        let parts = record.key.parts(key.paths.len());
        let parts = parts.map_err(|error| Fault::corrupt("history", error))?;
        let is_expired = matches!(record.change, Change::Expired { .. });
        put(&mut row, format_args!(",\"timeToLiveExpired\":{is_expired},\"id\":"));
        json::write_text(&mut row, &parts.id);
        row.extend_from_slice(b",\"partitionKey\":");
        put_key(&mut row, key, &parts.key);
    }
    row.extend_from_slice(b"}}");
    Ok(row)
}

fn put(row: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    row.write_fmt(text).expect("a Vec takes every write");
}

/// The partition key as an object: for each path, without its first slash, the value.
fn put_key(row: &mut Vec<u8>, definition: &KeyDefinition, key: &PartitionKey) {
    let mut separator = b'{';
    for (path, component) in definition.paths.iter().zip(&key.0) {
        row.push(separator);
        separator = b',';
        json::write_text(row, &path.join("/"));
        row.push(b':');
        match component {
            Component::Undefined => row.extend_from_slice(b"{}"),
            Component::Null => Scalar::Null.write(row),
            Component::Bool(truth) => Scalar::Bool(*truth).write(row),
            Component::Number(number) => Scalar::Float(*number).write(row),
            Component::Text(text) => Scalar::Text(text).write(row),
        }
    }
    row.push(b'}');
}
