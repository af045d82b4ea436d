//! The disk under the state: slow or broken, as the storage engine would tell of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ephemeris_store::engine::{
    Batch, Change, Cursor, Direction, Engine, Fault, KeyRange, Read, RowRef, Table, Usage,
};
use serde::Deserialize;

use super::Now;
use super::points::Point;

/// The disk under the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StateDisk {
    #[default]
    Whole,
    /// Nothing can be written.
    FailingWrites,
    /// Nothing can be read.
    FailingReads,
    /// Some reads take so many milliseconds: one of a read between its barrier and its answer, say, or of
    /// a sweeper before it proposes.
    Slow(u64),
}

/// One read of so many is slow.
const SLOW_ONE_OF: u64 = 16;

impl Now {
    fn check_state_read(&self) -> Result<(), Fault> {
        match self.get().0.state {
            StateDisk::FailingReads => Err(broken()),
            StateDisk::Slow(millis) => {
                if self.reads.fetch_add(1, Ordering::Relaxed).is_multiple_of(SLOW_ONE_OF) {
                    std::thread::sleep(Duration::from_millis(millis));
                }
                Ok(())
            }
            StateDisk::Whole | StateDisk::FailingWrites => Ok(()),
        }
    }

    fn check_state_write(&self) -> Result<(), Fault> {
        match self.get().0.state {
            StateDisk::FailingWrites => Err(broken()),
            StateDisk::Whole | StateDisk::FailingReads | StateDisk::Slow(_) => Ok(()),
        }
    }

    fn cursor_of<'a>(
        &self,
        read: &'a (impl Read + ?Sized),
        range: &KeyRange,
        direction: Direction,
    ) -> Box<dyn Cursor + 'a> {
        match self.check_state_read() {
            Ok(()) => read.cursor(range, direction),
            Err(_) => Box::new(BrokenCursor),
        }
    }
}

fn broken() -> Fault {
    Fault::Engine("the disk under the state is broken".to_string())
}

struct BrokenCursor;

impl Cursor for BrokenCursor {
    fn next_row(&mut self) -> Result<Option<RowRef<'_>>, Fault> {
        Err(broken())
    }
}

/// An engine whose disk may be slow or broken, and whose process may end after a write.
pub(super) struct FaultyEngine {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) now: Arc<Now>,
}

impl Read for FaultyEngine {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.now.check_state_read()?;
        self.engine.get(table, key)
    }

    fn cursor(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor + '_> {
        self.now.cursor_of(&*self.engine, range, direction)
    }
}

impl Engine for FaultyEngine {
    fn write(&self, batch: Batch) -> Result<(), Fault> {
        self.now.check_state_write()?;
        // Nothing else removes items by ranges.
        let is_clearing = |change| matches!(change, Change::DeleteRange(Table::Items, ..));
        let clears = batch.changes().any(is_clearing);
        self.engine.write(batch)?;
        self.now.pass(if clears { Point::SnapshotBegun } else { Point::StateWritten });
        Ok(())
    }

    fn view(&self) -> Arc<dyn Read> {
        Arc::new(FaultyView { view: self.engine.view(), now: self.now.clone() })
    }

    fn flush(&self) -> Result<(), Fault> {
        self.now.check_state_write()?;
        self.engine.flush()?;
        self.now.pass(Point::StateFlushed);
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.engine.usage()
    }
}

/// The same at one moment.
struct FaultyView {
    view: Arc<dyn Read>,
    now: Arc<Now>,
}

impl Read for FaultyView {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.now.check_state_read()?;
        self.view.get(table, key)
    }

    fn cursor(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor + '_> {
        self.now.cursor_of(&*self.view, range, direction)
    }
}

#[cfg(test)]
mod tests {
    use ephemeris_store::engine::MemoryEngine;

    use super::*;

    #[test]
    fn a_state_fails_as_it_is_told() {
        let now = Arc::new(Now::new());
        let engine = FaultyEngine { engine: Arc::new(MemoryEngine::new()), now: now.clone() };
        let told = |text: &str| now.set(serde_json::from_str(text).unwrap());
        let put = |key: &[u8]| {
            let mut batch = Batch::default();
            batch.put(Table::Items, key, b"value");
            engine.write(batch)
        };
        let all = KeyRange::prefix(Table::Items, Vec::new());
        let rows = |read: &dyn Read| {
            let mut cursor = read.cursor(&all, Direction::Forward);
            cursor.next_row().map(|row| row.is_some())
        };
        put(b"a").unwrap();
        let view = engine.view();

        told(r#"{"state": "failing_writes"}"#);
        assert!(put(b"b").is_err() && engine.flush().is_err());
        assert!(rows(&engine).unwrap() && rows(&*view).unwrap());

        told(r#"{"state": "failing_reads"}"#);
        assert!(engine.get(Table::Items, b"a").is_err() && rows(&engine).is_err());
        assert!(view.get(Table::Items, b"a").is_err() && rows(&*view).is_err());
        put(b"b").unwrap();

        told(r#"{"state": {"slow": 1}}"#);
        assert!(engine.get(Table::Items, b"b").unwrap().is_some());
    }
}
