//! The engine of tests and simulation: ordered maps in memory that know what a crash would lose.

use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock};

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
    unflushed_bytes: u64,
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
        let mut shared = self.shared.write().unwrap_or_else(PoisonError::into_inner);
        shared.now = shared.durable.clone();
        shared.unflushed_bytes = 0;
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
        let mut shared = self.shared.write().unwrap_or_else(PoisonError::into_inner);
        shared.unflushed_bytes += batch.bytes() as u64;
        for change in batch.into_changes() {
            shared.now.apply(change);
        }
        Ok(())
    }

    fn view(&self) -> Arc<dyn Read> {
        Arc::new(self.state())
    }

    fn flush(&self) -> Result<(), Fault> {
        let mut shared = self.shared.write().unwrap_or_else(PoisonError::into_inner);
        shared.durable = shared.now.clone();
        shared.unflushed_bytes = 0;
        Ok(())
    }

    fn usage(&self) -> Usage {
        let shared = self.shared.read().unwrap_or_else(PoisonError::into_inner);
        Usage { disk_bytes: 0, unflushed_bytes: shared.unflushed_bytes }
    }
}
