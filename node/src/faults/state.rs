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

/// An engine, or a view of it, whose disk may be slow or broken, and whose process may end after a write.
pub(super) struct Faulty<R: ?Sized> {
    pub(super) state: Arc<R>,
    pub(super) now: Arc<Now>,
}

impl<R: Read + ?Sized> Read for Faulty<R> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.now.check_state_read()?;
        self.state.get(table, key)
    }

    fn cursor(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor + '_> {
        match self.now.check_state_read() {
            Ok(()) => self.state.cursor(range, direction),
            Err(_) => Box::new(BrokenCursor),
        }
    }
}

/// True of a batch that makes room for a snapshot: it removes all items, and one of the meta rows after the other.
/// A replica that goes for good loses these by a range, too.
fn begins_a_snapshot(batch: &Batch) -> bool {
    let removes_items = |change| matches!(change, Change::DeleteRange(Table::Items, ..));
    let removes_meta_row = |change| matches!(change, Change::Delete(Table::Meta, _));
    batch.changes().any(removes_items) && batch.changes().any(removes_meta_row)
}

impl Engine for Faulty<dyn Engine> {
    fn write(&self, batch: Batch) -> Result<(), Fault> {
        self.now.check_state_write()?;
        let begins = begins_a_snapshot(&batch);
        self.state.write(batch)?;
        self.now.pass(if begins { Point::SnapshotBegun } else { Point::StateWritten });
        Ok(())
    }

    fn view(&self) -> Arc<dyn Read> {
        Arc::new(Faulty { state: self.state.view(), now: self.now.clone() })
    }

    fn flush(&self) -> Result<(), Fault> {
        self.now.check_state_write()?;
        self.state.flush()?;
        self.now.pass(Point::StateFlushed);
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.state.usage()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use ephemeris_store::engine::MemoryEngine;
    use ephemeris_store::ids::GroupId;
    use ephemeris_store::machine::drop_rows;
    use ephemeris_store::snapshot::Installer;

    use super::*;

    /// Remembers of each batch whether it begins a snapshot.
    #[derive(Default)]
    struct Watched(MemoryEngine, Mutex<Vec<bool>>);

    impl Watched {
        fn seen(&self) -> Vec<bool> {
            std::mem::take(&mut *self.1.lock().unwrap_or_else(PoisonError::into_inner))
        }
    }

    impl Read for Watched {
        fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
            self.0.get(table, key)
        }
        fn cursor(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor + '_> {
            self.0.cursor(range, direction)
        }
    }

    impl Engine for Watched {
        fn write(&self, batch: Batch) -> Result<(), Fault> {
            let begins = begins_a_snapshot(&batch);
            self.1.lock().unwrap_or_else(PoisonError::into_inner).push(begins);
            self.0.write(batch)
        }
        fn view(&self) -> Arc<dyn Read> {
            self.0.view()
        }
        fn flush(&self) -> Result<(), Fault> {
            self.0.flush()
        }
        fn usage(&self) -> Usage {
            self.0.usage()
        }
    }

    #[test]
    fn the_beginning_of_a_snapshot_is_told_from_the_end_of_a_replica() {
        let watched = Arc::new(Watched::default());
        let engine: Arc<dyn Engine> = watched.clone();
        let ranges = || vec![KeyRange::prefix(Table::Items, b"group".to_vec())];
        Installer::begin(engine.clone(), GroupId(1), ranges(), "a file").unwrap();
        assert_eq!(watched.seen(), [false, true], "the marker, and then the rows");
        drop_rows(&engine, GroupId(1), ranges()).unwrap();
        assert_eq!(watched.seen(), [false]);
    }

    #[test]
    fn a_state_fails_as_it_is_told() {
        let now = Arc::new(Now::new());
        let state: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let engine = Faulty { state, now: now.clone() };
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
