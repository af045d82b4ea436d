//! The engine of tests and simulation: ordered maps in memory that know what a crash would lose.

use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use imbl::OrdMap;

use super::{
    Batch, Change, Cursor, Direction, Engine, Fault, KeyRange, Read, Row, RowRef, Table, Usage,
};
use crate::partition::{Garbage, LITTERED};

type Tables = [OrdMap<Vec<u8>, Vec<u8>>; Table::ALL.len()];

/// Tables in memory. Clones share them.
#[derive(Clone, Default)]
pub struct MemoryEngine {
    shared: Arc<RwLock<Shared>>,
}

#[derive(Default)]
struct Shared {
    now: State,
    /// The prefix a crash returns to.
    durable: State,
    /// What there was after each write since the last flush.
    unflushed: Vec<State>,
    unflushed_bytes: u64,
    /// Writes and flushes left until the disk fails.
    writes_left: Option<u64>,
}

#[derive(Clone, Default)]
struct State {
    tables: Tables,
}

impl MemoryEngine {
    /// An empty engine.
    pub fn new() -> Self {
        Self::default()
    }

    /// Loses everything that was not flushed, as a crash of the process would.
    pub fn crash(&self) {
        self.crash_after(0);
    }

    /// Crashes after this many of the writes since the last flush reached the disk by themselves, as
    /// they do when a write buffer is full.
    pub fn crash_after(&self, writes: usize) {
        let mut shared = self.lock();
        if let Some(reached) = writes.checked_sub(1) {
            shared.durable = shared.unflushed[reached].clone();
        }
        shared.now = shared.durable.clone();
        shared.unflushed.clear();
        shared.unflushed_bytes = 0;
        shared.writes_left = None;
    }

    /// How many writes there were since the last flush.
    pub fn unflushed_writes(&self) -> usize {
        self.shared.read().unwrap_or_else(PoisonError::into_inner).unflushed.len()
    }

    /// Lets this many more writes and flushes succeed; then all fail, until the next crash.
    pub fn fail_after(&self, writes: u64) {
        self.lock().writes_left = Some(writes);
    }

    /// A copy that shares nothing.
    #[must_use]
    pub fn fork(&self) -> Self {
        let shared = self.shared.read().unwrap_or_else(PoisonError::into_inner);
        let (now, durable) = (shared.now.clone(), shared.durable.clone());
        let (unflushed, unflushed_bytes) = (shared.unflushed.clone(), shared.unflushed_bytes);
        let fork = Shared { now, durable, unflushed, unflushed_bytes, writes_left: None };
        Self { shared: Arc::new(RwLock::new(fork)) }
    }

    fn lock(&self) -> RwLockWriteGuard<'_, Shared> {
        self.shared.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shared tables, for a write: one less is left.
    fn writable(&self) -> Result<RwLockWriteGuard<'_, Shared>, Fault> {
        let mut shared = self.lock();
        match &mut shared.writes_left {
            None => {}
            Some(0) => return Err(Fault::Engine("injected: the disk is full".into())),
            Some(left) => *left -= 1,
        }
        Ok(shared)
    }

    fn state(&self) -> State {
        self.shared.read().unwrap_or_else(PoisonError::into_inner).now.clone()
    }
}

impl State {
    fn table(&self, table: Table) -> &OrdMap<Vec<u8>, Vec<u8>> {
        &self.tables[table as usize]
    }

    fn apply(&mut self, change: Change<'_>) {
        match change {
            Change::Put(table, key, value) => {
                self.tables[table as usize].insert(key.to_vec(), value.to_vec());
            }
            Change::Delete(table, key) => {
                self.tables[table as usize].remove(key);
            }
            Change::DeleteRange(table, start, end) => {
                let range = KeyRange { table, start: start.to_vec(), end: end.map(<[u8]>::to_vec) };
                let doomed: Vec<Vec<u8>> = self.range(&range).map(|(key, _)| key.clone()).collect();
                for key in doomed {
                    self.tables[table as usize].remove(&key);
                }
            }
        }
    }

    fn range(
        &self,
        range: &KeyRange,
    ) -> impl DoubleEndedIterator<Item = (&Vec<u8>, &Vec<u8>)> + Send + use<'_> {
        let start = Bound::Included(range.start.clone());
        let end = range.end.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let empty = range.is_empty();
        let bounds =
            if empty { (Bound::Excluded(vec![]), Bound::Included(vec![])) } else { (start, end) };
        self.table(range.table).range(bounds)
    }
}

impl Read for State {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        Ok(self.table(table).get(key).cloned())
    }

    fn cursor(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor + '_> {
        Box::new(StateCursor { rows: Box::new(self.range(range)), direction })
    }
}

/// Rows of a table, from both ends.
type TableRows<'a> = Box<dyn DoubleEndedIterator<Item = (&'a Vec<u8>, &'a Vec<u8>)> + Send + 'a>;

/// Walks tables that somebody else keeps.
struct StateCursor<'a> {
    rows: TableRows<'a>,
    direction: Direction,
}

impl Cursor for StateCursor<'_> {
    fn next_row(&mut self) -> Result<Option<RowRef<'_>>, Fault> {
        let row = match self.direction {
            Direction::Forward => self.rows.next(),
            Direction::Backward => self.rows.next_back(),
        };
        Ok(row.map(|(key, value)| (key.as_slice(), value.as_slice())))
    }
}

/// Walks rows of its own.
struct RowsCursor {
    rows: std::vec::IntoIter<Row>,
    current: Row,
}

impl Cursor for RowsCursor {
    fn next_row(&mut self) -> Result<Option<RowRef<'_>>, Fault> {
        let Some(row) = self.rows.next() else { return Ok(None) };
        self.current = row;
        Ok(Some((&self.current.0, &self.current.1)))
    }
}

impl Read for MemoryEngine {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner).now.get(table, key)
    }

    fn cursor(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor + '_> {
        let state = self.state();
        let mut rows: Vec<Row> =
            state.range(range).map(|(key, value)| (key.clone(), value.clone())).collect();
        if direction == Direction::Backward {
            rows.reverse();
        }
        Box::new(RowsCursor { rows: rows.into_iter(), current: Row::default() })
    }
}

impl Engine for MemoryEngine {
    fn write(&self, batch: Batch) -> Result<(), Fault> {
        let mut shared = self.writable()?;
        shared.unflushed_bytes += batch.bytes() as u64;
        for change in batch.changes() {
            shared.now.apply(change);
        }
        let now = shared.now.clone();
        shared.unflushed.push(now);
        Ok(())
    }

    fn view(&self) -> Arc<dyn Read> {
        Arc::new(self.state())
    }

    /// Drops all garbage, too.
    fn flush(&self) -> Result<(), Fault> {
        let mut shared = self.writable()?;
        let garbage = Garbage::load(&shared.now)?;
        if !garbage.is_empty() {
            for table in LITTERED {
                let rows = &mut shared.now.tables[table as usize];
                let dropped: Vec<_> = rows
                    .iter()
                    .filter(|(key, value)| garbage.holds(table, key, value))
                    .map(|(key, _)| key.clone())
                    .collect();
                for key in dropped {
                    rows.remove(&key);
                }
            }
        }
        shared.durable = shared.now.clone();
        shared.unflushed.clear();
        shared.unflushed_bytes = 0;
        Ok(())
    }

    fn usage(&self) -> Usage {
        let shared = self.shared.read().unwrap_or_else(PoisonError::into_inner);
        Usage { disk_bytes: 0, unflushed_bytes: shared.unflushed_bytes }
    }
}
