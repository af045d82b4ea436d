//! The storage engine: ordered tables with atomic batches, behind a trait as narrow as we can use.
//!
//! Two implementations: `memory` for tests and simulation, `rocks` for disks. Neither keeps a
//! journal of its own, because the Raft log is the journal: a crash returns an engine to a prefix of
//! the batches written to it, and `flush` moves that prefix forward.

mod batch;
mod memory;
#[cfg(feature = "rocksdb")]
mod rocks;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use batch::{Batch, Change, Changes};
pub use memory::MemoryEngine;
#[cfg(feature = "rocksdb")]
pub use rocks::{OnDamage, RocksEngine, RocksOptions};

/// A table: an ordered map from bytes to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Table {
    /// Items by container, slot, effective partition key, partition key value, id.
    Items,
    /// Keys of items that were written more than once, by container, slot, item number. The feed leads to all others.
    Numbers,
    /// Item keys by feed and LSN: the order of last writes.
    Feed,
    /// Keys of items with a `ttl` of their own, by feed, expiry second, item number.
    Expiry,
    /// What a group replicates beside its rows: applied position, clock, cursors.
    Meta,
    /// The catalog's rows.
    Catalog,
    /// What happened to items, where it is remembered, by feed and LSN.
    History,
    /// Values of items by feed, generation, path, value, item number; the feed stands for some of `_ts`.
    Index,
    /// Item keys by feed, unique key, logical partition, values, item number.
    Unique,
}

impl Table {
    /// Every table, in a fixed order.
    pub const ALL: [Table; 9] = [
        Table::Items,
        Table::Numbers,
        Table::Feed,
        Table::Expiry,
        Table::Meta,
        Table::Catalog,
        Table::History,
        Table::Index,
        Table::Unique,
    ];

    /// The table's name on disk.
    pub fn name(self) -> &'static str {
        match self {
            Table::Items => "items",
            Table::Numbers => "numbers",
            Table::Feed => "feed",
            Table::Expiry => "expiry",
            Table::Meta => "meta",
            Table::Catalog => "catalog",
            Table::History => "history",
            Table::Index => "index",
            Table::Unique => "unique",
        }
    }
}

/// This machine failed: never an answer, never applied past.
#[derive(Debug, Error)]
pub enum Fault {
    /// The engine could not read or write.
    #[error("storage engine: {0}")]
    Engine(String),
    /// Stored bytes are not what was written, or a replica would leave the common history.
    #[error("corrupt data in {place}: {detail}")]
    Corrupt {
        /// Where.
        place: &'static str,
        /// What is wrong.
        detail: String,
    },
}

impl Fault {
    /// A fault of corruption.
    #[expect(clippy::needless_pass_by_value, reason = "callers hand over the error they got")]
    pub fn corrupt(place: &'static str, detail: impl ToString) -> Self {
        Fault::Corrupt { place, detail: detail.to_string() }
    }
}

/// Keys `[start, end)` of one table; no end means to the last key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The table.
    pub table: Table,
    /// First key inside.
    pub start: Vec<u8>,
    /// First key outside.
    pub end: Option<Vec<u8>>,
}

impl KeyRange {
    /// All keys that start with `prefix`.
    pub fn prefix(table: Table, prefix: Vec<u8>) -> Self {
        let end = crate::keycode::prefix_end(&prefix);
        Self { table, start: prefix, end }
    }

    /// The part of this range behind `key`.
    #[must_use]
    pub fn after(mut self, key: &[u8]) -> Self {
        let mut next = key.to_vec();
        next.push(0);
        self.start = self.start.max(next);
        self
    }

    /// The part of this range from `key` on.
    #[must_use]
    pub fn from(mut self, key: Vec<u8>) -> Self {
        self.start = self.start.max(key);
        self
    }

    /// The part of this range up to and with `key`.
    #[must_use]
    pub fn through(self, key: &[u8]) -> Self {
        let mut next = key.to_vec();
        next.push(0);
        self.before(next)
    }

    /// The part of this range before `key`.
    #[must_use]
    pub fn before(mut self, key: Vec<u8>) -> Self {
        self.end = Some(match self.end {
            Some(end) => end.min(key),
            None => key,
        });
        self
    }

    /// True if the key lies inside.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.start.as_slice() <= key && self.end.as_ref().is_none_or(|end| key < end.as_slice())
    }

    /// True if nothing can lie inside.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }
}

/// A key and its value.
pub type Row = (Vec<u8>, Vec<u8>);
/// A key and its value, lent.
pub type RowRef<'a> = (&'a [u8], &'a [u8]);
/// Rows, one after the other.
pub type Rows<'a> = Box<dyn Iterator<Item = Result<Row, Fault>> + Send + 'a>;

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// In key order.
    Forward,
    /// Against it.
    Backward,
}

/// Rows between two keys that are stepped over rather than searched.
const STEPS_MAX: usize = 8;
/// Searches that begin a run of steps: so many, and one more for so many keys that were found. Keys that
/// are too far apart to step are looked up one by one.
const SEEKS: usize = 4;
const KEYS_PER_SEEK: usize = 8;

/// Steps through rows without copying them.
pub trait Cursor: Send {
    /// The next key and value; none behind the last row.
    fn next_row(&mut self) -> Result<Option<RowRef<'_>>, Fault>;
}

/// What can be read from: the engine as it is now, or a view of it as it was.
pub trait Read: Send + Sync {
    /// The value of a key.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Fault>;

    /// The values of keys that are looked up together, which may cost less than one by one.
    fn get_each(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        keys.iter().map(|key| self.get(table, key)).collect()
    }

    /// A cursor before the first row of a range, or behind its last.
    fn cursor(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor + '_>;

    /// The rows of a range, in key order.
    fn scan(&self, range: &KeyRange) -> Rows<'_> {
        copied(self.cursor(range, Direction::Forward))
    }

    /// The rows of a range, against key order.
    fn scan_reverse(&self, range: &KeyRange) -> Rows<'_> {
        copied(self.cursor(range, Direction::Backward))
    }
}

/// Shows the values of keys that are in order. Stepping from one to the next costs a fraction of looking
/// each up, as long as they are close together.
pub fn visit(
    read: &dyn Read,
    table: Table,
    keys: &[Vec<u8>],
    mut show: impl FnMut(usize, Option<&[u8]>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let Some(last) = keys.last() else { return Ok(()) };
    let mut seeks = 0;
    let mut at = 0;
    while at < keys.len() {
        if seeks == SEEKS + at / KEYS_PER_SEEK {
            show(at, read.get(table, &keys[at])?.as_deref())?;
            at += 1;
            continue;
        }
        seeks += 1;
        let range = KeyRange { table, start: keys[at].clone(), end: None }.through(last);
        let mut cursor = read.cursor(&range, Direction::Forward);
        let mut steps = 0;
        while at < keys.len() && steps < STEPS_MAX {
            let row = cursor.next_row()?;
            // Keys that were passed have no value.
            while at < keys.len() && row.is_none_or(|(key, _)| keys[at][..] < *key) {
                show(at, None)?;
                at += 1;
            }
            steps += 1;
            if let Some((key, value)) = row
                && keys.get(at).is_some_and(|wanted| wanted[..] == *key)
            {
                show(at, Some(value))?;
                (at, steps) = (at + 1, 0);
            }
        }
    }
    Ok(())
}

fn copied<'a>(mut cursor: Box<dyn Cursor + 'a>) -> Rows<'a> {
    Box::new(std::iter::from_fn(move || {
        let row = cursor.next_row().transpose()?;
        Some(row.map(|(key, value)| (key.to_vec(), value.to_vec())))
    }))
}

/// Ordered tables with atomic batches.
pub trait Engine: Read + 'static {
    /// Writes a batch: all of it, visible at once, or nothing.
    fn write(&self, batch: Batch) -> Result<(), Fault>;

    /// A consistent view that later writes do not change.
    fn view(&self) -> Arc<dyn Read>;

    /// Returns when everything written before the call survives a crash.
    fn flush(&self) -> Result<(), Fault>;

    /// Bytes the engine holds in memory and on disk, for metrics.
    fn usage(&self) -> Usage;
}

/// What an engine occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in files.
    pub disk_bytes: u64,
    /// Bytes written but not yet flushed.
    pub unflushed_bytes: u64,
}
