//! What readers see of a partition: rows and state of the same moment, without waiting for a batch that is
//! being written.
//!
//! 1. Before a batch is written, a view of the rows before it is published, and readers go by that.
//! 2. After it, the state with which the rows agree is published, and readers go by the rows as they are.
//! 3. Whoever has read rows as they are looks whether something was published meanwhile, and if so reads again.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::{Cleared, PartitionState};
use crate::engine::{Batch, Engine, Fault, Read, Table};
use crate::indexing::{IndexState, UniqueKeys};
use crate::machine::{Membership, Progress};

/// What changes together with the engine's rows.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) state: PartitionState,
    pub(super) index: Arc<IndexState>,
    pub(super) unique_keys: Arc<UniqueKeys>,
    pub(super) cleared: Arc<Cleared>,
    pub(super) membership: Option<Membership>,
}

impl Contents {
    pub(super) fn progress(&self) -> Progress {
        Progress { applied: self.state.applied, membership: self.membership.clone() }
    }
}

/// Contents, and where the rows of the same moment are.
struct Moment {
    contents: Arc<Contents>,
    /// The rows, while a batch is being written behind them.
    rows: Option<Arc<dyn Read>>,
}

/// What was published last. One at a time publishes; anybody reads.
pub(super) struct Published(ArcSwap<Moment>);

impl Published {
    pub(super) fn new(contents: Contents) -> Self {
        Self(ArcSwap::from_pointee(Moment { contents: Arc::new(contents), rows: None }))
    }

    /// The contents, for those who need no rows.
    pub(super) fn now(&self) -> Arc<Contents> {
        self.0.load().contents.clone()
    }

    /// Shows other contents, where rows were changed by other means.
    pub(super) fn replace(&self, contents: Contents) {
        self.0.store(Arc::new(Moment { contents: Arc::new(contents), rows: None }));
    }

    /// Writes a batch, and shows the contents with which the rows agree then.
    pub(super) fn publish(
        &self,
        engine: &dyn Engine,
        batch: Batch,
        contents: Contents,
    ) -> Result<(), Fault> {
        self.0.store(Arc::new(Moment { contents: self.now(), rows: Some(engine.view()) }));
        engine.write(batch)?;
        self.replace(contents);
        Ok(())
    }

    /// A row, and the contents of the same moment.
    pub(super) fn get(
        &self,
        engine: &dyn Engine,
        table: Table,
        key: &[u8],
    ) -> (Arc<Contents>, Result<Option<Vec<u8>>, Fault>) {
        self.look(|rows| match rows {
            Some(rows) => rows.get(table, key),
            None => engine.get(table, key),
        })
    }

    /// All rows, and the contents of the same moment.
    pub(super) fn view(&self, engine: &dyn Engine) -> (Arc<Contents>, Arc<dyn Read>) {
        self.look(|rows| rows.cloned().unwrap_or_else(|| engine.view()))
    }

    /// Has somebody look at the rows given, or else at the engine's, until contents and rows are of the same
    /// moment.
    pub(super) fn look<T>(&self, look: impl Fn(Option<&Arc<dyn Read>>) -> T) -> (Arc<Contents>, T) {
        loop {
            let moment = self.0.load();
            let seen = look(moment.rows.as_ref());
            if moment.rows.is_some() || Arc::ptr_eq(&moment, &self.0.load()) {
                return (moment.contents.clone(), seen);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;
    use crate::engine::{Cursor, Direction, KeyRange, MemoryEngine, Usage};

    const KEY: &[u8] = b"key";
    /// How often the row is written while others read it, and after how many of these memory is flushed.
    const WRITES: u64 = 20_000;
    const FLUSH_EVERY: u64 = 500;

    /// Where something else may happen, once.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Point {
        BeforeGet,
        AfterGet,
        BeforeView,
        AfterView,
        BeforeWrite,
        AfterWrite,
    }

    type Hook = Box<dyn FnOnce() + Send>;

    /// An engine in whose work something else happens.
    #[derive(Default)]
    struct Interrupted {
        engine: MemoryEngine,
        hooks: Mutex<BTreeMap<Point, Hook>>,
    }

    impl Interrupted {
        fn at(&self, point: Point, hook: Hook) {
            self.hooks.lock().unwrap().insert(point, hook);
        }

        fn during<T>(&self, before: Point, after: Point, work: impl FnOnce() -> T) -> T {
            self.reach(before);
            let done = work();
            self.reach(after);
            done
        }

        fn reach(&self, point: Point) {
            let hook = self.hooks.lock().unwrap().remove(&point);
            if let Some(hook) = hook {
                hook();
            }
        }
    }

    impl Read for Interrupted {
        fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
            self.during(Point::BeforeGet, Point::AfterGet, || self.engine.get(table, key))
        }

        fn cursor(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor + '_> {
            self.engine.cursor(range, direction)
        }
    }

    impl Engine for Interrupted {
        fn write(&self, batch: Batch) -> Result<(), Fault> {
            self.during(Point::BeforeWrite, Point::AfterWrite, || self.engine.write(batch))
        }

        fn view(&self) -> Arc<dyn Read> {
            self.during(Point::BeforeView, Point::AfterView, || self.engine.view())
        }

        fn flush(&self) -> Result<(), Fault> {
            self.engine.flush()
        }

        fn usage(&self) -> Usage {
            self.engine.usage()
        }
    }

    /// Contents that agree with a row of the same number.
    fn contents(number: u64) -> Contents {
        let state = PartitionState { items: number, ..PartitionState::default() };
        Contents { state, ..Contents::default() }
    }

    fn publish(published: &Published, engine: &dyn Engine, number: u64) {
        let mut batch = Batch::default();
        batch.put(Table::Items, KEY, &number.to_be_bytes());
        published.publish(engine, batch, contents(number)).unwrap();
    }

    fn number(row: Option<Vec<u8>>) -> u64 {
        row.map_or(0, |row| u64::from_be_bytes(row.try_into().unwrap()))
    }

    /// What a reader of one row sees: the number row and contents agree on.
    fn got(published: &Published, engine: &dyn Engine) -> u64 {
        let (contents, row) = published.get(engine, Table::Items, KEY);
        assert_eq!(number(row.unwrap()), contents.state.items);
        contents.state.items
    }

    /// The same of a reader of all rows.
    fn viewed(published: &Published, engine: &dyn Engine) -> u64 {
        let (contents, view) = published.view(engine);
        assert_eq!(number(view.get(Table::Items, KEY).unwrap()), contents.state.items);
        contents.state.items
    }

    #[test]
    fn while_a_batch_is_written_readers_see_what_was_before_it() {
        let engine = Arc::new(Interrupted::default());
        let published = Arc::new(Published::new(contents(0)));
        publish(&published, &*engine, 1);
        let seen = Arc::new(Mutex::new(Vec::new()));
        for point in [Point::BeforeWrite, Point::AfterWrite] {
            let (published, within, seen) = (published.clone(), engine.clone(), seen.clone());
            let look = move || {
                let looked = [got(&published, &*within), viewed(&published, &*within)];
                seen.lock().unwrap().extend(looked);
            };
            engine.at(point, Box::new(look));
        }
        publish(&published, &*engine, 2);
        assert_eq!(*seen.lock().unwrap(), [1, 1, 1, 1]);
        assert_eq!((got(&published, &*engine), viewed(&published, &*engine)), (2, 2));
    }

    #[test]
    fn who_is_overtaken_by_a_batch_looks_again() {
        let engine = Arc::new(Interrupted::default());
        let published = Arc::new(Published::new(contents(0)));
        let points = [Point::BeforeGet, Point::AfterGet, Point::BeforeView, Point::AfterView];
        for (number, point) in (1..).zip(points) {
            let (overtaken, within) = (published.clone(), engine.clone());
            engine.at(point, Box::new(move || publish(&overtaken, &*within, number)));
            let look = if number <= 2 { got } else { viewed };
            assert_eq!(look(&published, &*engine), number);
        }
    }

    #[test]
    fn what_could_not_be_written_is_not_seen() {
        let engine = MemoryEngine::new();
        let published = Published::new(contents(0));
        publish(&published, &engine, 1);
        engine.fail_after(0);
        let mut batch = Batch::default();
        batch.put(Table::Items, KEY, &2_u64.to_be_bytes());
        assert!(published.publish(&engine, batch, contents(2)).is_err());
        assert_eq!((got(&published, &engine), viewed(&published, &engine)), (1, 1));
    }

    /// Two threads read while one writes.
    fn race(engine: &dyn Engine) {
        let published = Published::new(contents(0));
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while !is_done.load(Ordering::Relaxed) {
                        for now in [got(&published, engine), viewed(&published, engine)] {
                            assert!(now >= last, "{now} after {last}");
                            last = now;
                        }
                    }
                });
            }
            for number in 1..=WRITES {
                publish(&published, engine, number);
                if number % FLUSH_EVERY == 0 {
                    engine.flush().unwrap();
                }
            }
            is_done.store(true, Ordering::Relaxed);
        });
        assert_eq!(got(&published, engine), WRITES);
    }

    #[test]
    fn rows_and_contents_agree_while_others_write_in_memory() {
        race(&MemoryEngine::new());
    }

    #[cfg(feature = "rocksdb")]
    #[test]
    fn rows_and_contents_agree_while_others_write_on_disk() {
        use crate::engine::{RocksEngine, RocksOptions};

        let directory = tempfile::tempdir().unwrap();
        let on_damage = Box::new(|fault: &Fault| panic!("{fault}"));
        let engine = RocksEngine::open(directory.path(), RocksOptions::default(), on_damage);
        race(&engine.unwrap());
    }
}
