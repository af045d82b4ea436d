//! The change feed of a partition: the last version of every item, in the order of the writes.
//!
//! Every item has one row in `Table::Feed`, keyed by the entry that wrote its version. A reader keeps
//! the LSN up to which it has read; a page never ends inside a transaction, so the LSN is enough.
//! `all_versions` is the other mode.

mod all_versions;

use serde::{Deserialize, Serialize};

use crate::charge::QueryWork;
use crate::engine::{Fault, KeyRange};
use crate::ids::Lsn;
use crate::item::{Item, Stamp};
use crate::json::{self, Container, Scalar};
use crate::partition::{PageOutcome, PartitionSpec, PartitionView};
use crate::partition_key::KeyDefinition;
use crate::query::{PageLimits, Scope};
use crate::time::{Millis, Seconds};
use crate::timeline::{FeedPosition, VersionRow, feed_key, feed_position, feed_rows};
use crate::ttl::Life;

pub use all_versions::{FeedRefusal, HistoryStart, read_history};

/// Where a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FeedStart {
    /// With the oldest row.
    Beginning,
    /// With what is written from now on.
    Now,
    /// With the first write stamped at or after this second.
    At(Seconds),
    /// Behind this entry.
    After(Lsn),
}

/// What a row looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowForm {
    /// The item, with `_lsn` as one more of its system properties.
    Flat,
    /// The item as `current`, and `metadata` beside it, as in the feed of all versions.
    Apart,
}

/// A page of changes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FeedPage {
    /// JSON: items, in the form that was asked for, or what happened to them.
    pub rows: Vec<serde_bytes::ByteBuf>,
    /// Everything up to here was read.
    pub through: FeedPosition,
    /// True if there are rows behind.
    pub more: bool,
    /// What it took.
    pub work: QueryWork,
}

/// Reads one page of changes from a partition's view, judging life at `hi`.
pub fn read_changes(
    view: &PartitionView,
    spec: &PartitionSpec,
    key: &KeyDefinition,
    (start, form): (FeedStart, RowForm),
    scope: &Scope,
    limits: PageLimits,
    hi: Millis,
) -> Result<PageOutcome<FeedPage>, Fault> {
    let first = match start {
        FeedStart::Beginning => Lsn(0),
        FeedStart::Now => Lsn(view.state().lsn().0 + 1),
        FeedStart::At(second) => view.first_stamped(second)?,
        FeedStart::After(lsn) => Lsn(lsn.0.saturating_add(1)),
    };
    let work = QueryWork::default();
    let mut page =
        FeedPage { rows: Vec::new(), through: FeedPosition::default(), more: false, work };
    let (mut bytes, mut looked_at, mut last) = (0, 0, None);
    for row in view.scan(&range_from(spec, first)) {
        let (row_key, row) = row?;
        let (position, row) = (feed_position(&row_key)?, VersionRow::decode(&row)?);
        let full = page.rows.len() >= limits.rows || bytes >= limits.bytes;
        // A page ends between transactions, and not before it has looked at one.
        let may_end = last.is_some_and(|last| last != position.lsn);
        if may_end && (full || looked_at >= limits.items) {
            page.more = true;
            break;
        }
        (looked_at, last) = (looked_at + 1, Some(position.lsn));
        match view.judge(row.item.as_bytes(), &row.stamp, hi) {
            Life::Dead => continue,
            Life::InDoubt(expiry) => return Ok(PageOutcome::InDoubt(expiry)),
            Life::Alive => {}
        }
        if !scope.admits(&row.item, key)? {
            continue;
        }
        let item = view.item(&row.item)?;
        let item = item.ok_or_else(|| Fault::corrupt("feed", "a row without its item"))?;
        assert_eq!(FeedPosition::of(&item.stamp), position, "a row leads to the last version");
        page.work.items_loaded += 1;
        page.work.bytes_loaded += item.body.len() as u64;
        let json = match form {
            RowForm::Flat => flat(item, spec)?,
            RowForm::Apart => apart(&item, spec),
        };
        bytes += json.len();
        page.rows.push(json.into());
    }
    // A token from a partition that was rolled back would skip what is written next.
    let through = last.filter(|_| page.more).unwrap_or(view.state().lsn());
    page.through = FeedPosition::end_of(through);
    page.work.rows = page.rows.len() as u64;
    Ok(PageOutcome::Page(page))
}

/// The item with the place of its write. A body may have an `_lsn` of its own, copied from such a row,
/// and no name may stand there twice.
fn flat(mut item: Item, spec: &PartitionSpec) -> Result<Vec<u8>, Fault> {
    let text = std::str::from_utf8(&item.body).map_err(|error| Fault::corrupt("items", error))?;
    if text.contains("\"_lsn\"") {
        let (body, _) = json::normalise(&item.body, || WithoutLsn { depth: 0 })
            .map_err(|error| Fault::corrupt("items", error))?;
        item.body = body.into();
    }
    let mut row = item.to_json(spec.container);
    assert_eq!(row.pop(), Some(b'}'), "an item is a JSON object");
    row.extend_from_slice(format!(",\"_lsn\":{}}}", item.stamp.lsn).as_bytes());
    Ok(row)
}

/// `{"current", "metadata"}`, as the wire format of 2021-09-15 has it.
fn apart(item: &Item, spec: &PartitionSpec) -> Vec<u8> {
    let mut row = b"{\"current\":".to_vec();
    row.extend(item.to_json(spec.container));
    let Stamp { lsn, ts, .. } = item.stamp;
    row.extend_from_slice(format!(",\"metadata\":{{\"lsn\":{lsn},\"crts\":{ts}}}}}").as_bytes());
    row
}

/// Leaves the `_lsn` at the top of a body out.
struct WithoutLsn {
    depth: usize,
}

impl json::Visitor for WithoutLsn {
    fn member(&mut self, name: &str) -> bool {
        self.depth += 1;
        self.depth > 1 || name != "_lsn"
    }

    fn element(&mut self) {
        self.depth += 1;
    }

    fn done(&mut self) {
        self.depth -= 1;
    }

    fn scalar(&mut self, _: Scalar<'_>) {}

    fn container(&mut self, _: Container) {}
}

fn range_from(spec: &PartitionSpec, first: Lsn) -> KeyRange {
    let start = feed_key(spec.group, FeedPosition::start_of(first)).to_vec();
    KeyRange { start, ..feed_rows(spec.group) }
}
