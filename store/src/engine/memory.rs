//! The engine of tests and simulation: ordered maps in memory that know what a crash would lose.

use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use imbl::OrdMap;

use super::{Batch, Change, Engine, Fault, KeyRange, Read, Rows, Table, Usage};

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

    fn apply(&mut self, change: Change) {
        match change {
            Change::Put(table, key, value) => {
                self.tables[table as usize].insert(key, value);
            }
            Change::Delete(table, key) => {
                self.tables[table as usize].remove(&key);
            }
            Change::DeleteRange(range) => {
                let doomed: Vec<Vec<u8>> = self.range(&range).map(|(key, _)| key.clone()).collect();
                for key in doomed {
                    self.tables[range.table as usize].remove(&key);
                }
            }
        }
    }

    fn range(&self, range: &KeyRange) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> + use<'_> {
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

    fn scan(&self, range: &KeyRange) -> Rows<'_> {
        Box::new(self.range(range).map(|(key, value)| Ok((key.clone(), value.clone()))))
    }
}

impl Read for MemoryEngine {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner).now.get(table, key)
    }

    fn scan(&self, range: &KeyRange) -> Rows<'_> {
        let rows: Vec<_> = self.state().scan(range).collect();
        Box::new(rows.into_iter())
    }
}

impl Engine for MemoryEngine {
    fn write(&self, batch: Batch) -> Result<(), Fault> {
        let mut shared = self.writable()?;
        shared.unflushed_bytes += batch.bytes() as u64;
        for change in batch.into_changes() {
            shared.now.apply(change);
        }
        let now = shared.now.clone();
        shared.unflushed.push(now);
        Ok(())
    }

    fn view(&self) -> Arc<dyn Read> {
        Arc::new(self.state())
    }

    fn flush(&self) -> Result<(), Fault> {
        let mut shared = self.writable()?;
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
