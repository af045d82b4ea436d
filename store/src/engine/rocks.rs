//! The durable engine: RocksDB, named nowhere else.
//!
//! Its own write-ahead log is off and column families flush together, so that a crash leaves an
//! exact prefix of the batches; the Raft log replays the rest. Nothing here runs on async workers
//! for long: callers hand scans, and applies of more than a few small writes, to threads that may block.

mod collector;

use std::num::NonZero;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::{fs, thread};

use collector::{Age, Collector, FilterFactory};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, CompactOptions, DB, DBCompressionType,
    DBRawIteratorWithThreadMode, ErrorKind, FlushOptions, Options, ReadOptions, SliceTransform,
    SnapshotWithThreadMode, WriteBatch, WriteOptions,
};
use rustix::process::{Pid, setpriority_process};
use self_cell::self_cell;

use super::{
    Batch, Change, Cursor, Direction, Engine, Fault, KeyRange, Read, RowRef, Table, Usage,
};
use crate::ids::{GroupId, ItemNumber};
use crate::keycode::prefix_end;
use crate::partition::LITTERED;

/// How much memory and how many threads the engine may take.
#[derive(Clone, Copy, Debug)]
pub struct RocksOptions {
    /// Cache of uncompressed blocks, in bytes.
    pub block_cache_bytes: usize,
    /// What all tables together may hold before it is flushed, in bytes, as long as somebody does; the engine
    /// itself flushes at twice as much, or when one table holds so much.
    pub write_buffer_bytes: usize,
    /// Threads that flush and compact: one that flushes and one that compacts at least, and of every four
    /// three compact.
    pub background_threads: NonZero<u8>,
}

impl Default for RocksOptions {
    fn default() -> Self {
        Self {
            block_cache_bytes: 64 << 20,
            write_buffer_bytes: 64 << 20,
            background_threads: NonZero::<u8>::MIN,
        }
    }
}

/// Flushes of a table whose files are compacted, together with all that lies below them. All tables flush
/// when one of them must, so files are small: after the usual four, compacting is a quarter of the work
/// of a sweep.
const FLUSHES_PER_COMPACTION: i32 = 8;

/// The filter of what was written lately, as a part of its memory: ten bits for each of its items, and more
/// if they are large.
const MEMTABLE_FILTER_RATIO: f64 = 0.01;

/// What RocksDB calls threads that flush and threads that compact, and how nice they are. On Linux they get a
/// third and a ninth of the time of one of niceness 0: writes wait for flushes soon, for compactions only once
/// there are many files.
const BACKGROUND_THREADS: [(&str, i32); 2] = [("rocksdb:high", 5), ("rocksdb:low", 10)];

/// Bytes of the item number at the end of each index entry.
const NUMBER_BYTES: usize = size_of::<ItemNumber>();

/// Is told of damage by whoever comes upon it: a reader, a writer, the sender of a snapshot.
pub type OnDamage = Box<dyn Fn(&Fault) + Send + Sync>;

/// A RocksDB database with one column family per table.
pub struct RocksEngine {
    database: Arc<Database>,
    /// Waits while tables are compacted for their garbage.
    collecting: Mutex<Option<JoinHandle<()>>>,
}

struct Database {
    db: DB,
    on_damage: OnDamage,
    collector: Collector,
}

impl RocksEngine {
    /// True if there is a database in `directory`.
    pub fn is_in(directory: &Path) -> bool {
        directory.join("CURRENT").exists()
    }

    /// Opens or creates the database in `directory`. Bytes that are found not to be what was written are
    /// a fault of corruption: of this call, or later one that `on_damage` is told of.
    pub fn open(
        directory: &Path,
        options: RocksOptions,
        on_damage: OnDamage,
    ) -> Result<Self, Fault> {
        let cache = Cache::new_lru_cache(options.block_cache_bytes);
        let collector = Collector::default();
        let families = Table::ALL.map(|table| {
            let mut family = table_options(&cache, options, table)?;
            if LITTERED.contains(&table) {
                let collector = collector.clone();
                family.set_compaction_filter_factory(FilterFactory { collector, table });
            }
            Ok(ColumnFamilyDescriptor::new(table.name(), family))
        });
        let families: Result<Vec<_>, Fault> = families.into_iter().collect();
        let db = DB::open_cf_descriptors(&database_options(options), directory, families?);
        let db = db.map_err(fault)?;
        make_background_nice();
        let database = Arc::new(Database { db, on_damage, collector });
        Ok(Self { database, collecting: Mutex::new(None) })
    }

    /// Returns when no table is being compacted for its garbage: for tests.
    pub fn await_collection(&self) {
        let mut collecting = self.collecting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = collecting.take() {
            // It has nothing to tell.
            let _ = thread.join();
        }
    }

    /// Has what is littered compacted, in the background. If that is under way, or the system has no thread for it, the
    /// next flush asks again.
    fn collect_garbage(&self) {
        let mut collecting = self.collecting.lock().unwrap_or_else(PoisonError::into_inner);
        if collecting.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let database = self.database.clone();
        let thread = thread::Builder::new().name("garbage".into());
        if let Ok(thread) = thread.spawn(move || database.compact_littered()) {
            self.database.collector.collects();
            *collecting = Some(thread);
        }
    }
}

impl Drop for RocksEngine {
    fn drop(&mut self) {
        let collecting = self.collecting.get_mut().unwrap_or_else(PoisonError::into_inner);
        if collecting.is_some() {
            self.database.db.cancel_all_background_work(false);
            self.await_collection();
        }
    }
}

fn fault(error: rocksdb::Error) -> Fault {
    if error.kind() == ErrorKind::Corruption {
        return Fault::corrupt("the files of the state", error.into_string());
    }
    Fault::Engine(error.into_string())
}

impl Database {
    fn fault(&self, error: rocksdb::Error) -> Fault {
        let fault = fault(error);
        if let Fault::Corrupt { .. } = fault {
            (self.on_damage)(&fault);
        }
        fault
    }

    fn family(&self, table: Table) -> &rocksdb::ColumnFamily {
        self.db.cf_handle(table.name()).expect("every table was opened with the database")
    }

    /// Returns when all files of tables with garbage were compacted; those of others are, too, meanwhile.
    fn compact_littered(&self) {
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        for table in LITTERED {
            let family = self.family(table);
            self.db.compact_range_cf_opt(family, None::<&[u8]>, None::<&[u8]>, &options);
        }
    }
}

fn database_options(options: RocksOptions) -> Options {
    let mut database = Options::default();
    database.create_if_missing(true);
    database.create_missing_column_families(true);
    // Without this the column families would survive a crash at different points of history.
    database.set_atomic_flush(true);
    database.set_db_write_buffer_size(2 * options.write_buffer_bytes);
    database.set_max_background_jobs(options.background_threads.get().into());
    database.set_bytes_per_sync(1 << 20);
    database.set_keep_log_file_num(4);
    database.set_max_open_files(512);
    database
}

fn table_options(cache: &Cache, options: RocksOptions, table: Table) -> Result<Options, Fault> {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(cache);
    blocks.set_block_size(8 << 10);
    blocks.set_bloom_filter(10.0, false);
    // Nobody asks for a single entry, but for those of one value.
    blocks.set_whole_key_filtering(!ends_with_number(table));
    // Indexes and filters stay in memory with their open files: in the cache, which is small, a large
    // file's index would be read and decompressed again for every lookup.
    blocks.set_cache_index_and_filter_blocks(false);
    blocks.set_format_version(5);
    let mut family = Options::default();
    family.set_block_based_table_factory(&blocks);
    family.set_write_buffer_size(options.write_buffer_bytes);
    family.set_level_zero_file_num_compaction_trigger(FLUSHES_PER_COMPACTION);
    // What was just flushed is soon compacted: compressing it would be work for little.
    family.set_compression_per_level(&[DBCompressionType::None, DBCompressionType::Lz4]);
    family.set_level_compaction_dynamic_level_bytes(true);
    if table == Table::Items {
        // A write looks first whether its item is there, and mostly it is not.
        family.set_memtable_whole_key_filtering(true);
        family.set_memtable_prefix_bloom_ratio(MEMTABLE_FILTER_RATIO);
    }
    if ends_with_number(table) {
        family.set_prefix_extractor(SliceTransform::create("value", without_number, None));
    }
    // A memory table is searched from where the last key with the same beginning went.
    let hint = format!("memtable_insert_with_hint_prefix_extractor=capped:{}", beginning(table));
    family.get_options_from_string(hint).map_err(fault)
}

/// What neighbours in a table begin with, in bytes: a group, or a container and a slot.
fn beginning(table: Table) -> usize {
    match table {
        Table::Items | Table::Numbers => 9,
        Table::Feed
        | Table::Expiry
        | Table::Meta
        | Table::Catalog
        | Table::History
        | Table::Index
        | Table::Unique => 8,
    }
}

/// True for the tables of entries that lead from values to items.
///
/// A range may take a whole generation of them, never a part of one value's: a scan of one value goes by
/// the filters of files, and would show again what a range in another file hides.
fn ends_with_number(table: Table) -> bool {
    matches!(table, Table::Index | Table::Unique)
}

/// What all entries of one value begin with: files that have none of them are passed over unread.
fn without_number(key: &[u8]) -> &[u8] {
    &key[..key.len().saturating_sub(NUMBER_BYTES)]
}

/// Lets flushes and compactions leave processor time to what answers requests, where there is not enough for
/// both. RocksDB itself can only make them so nice that a busy machine would never flush.
fn make_background_nice() {
    for (thread, niceness) in background_threads() {
        // One that has ended meanwhile, or is nicer than that, stays as it is.
        let _ = setpriority_process(Some(thread), niceness);
    }
}

/// RocksDB's threads in this process, and how nice they should be. They are there once a database is open.
fn background_threads() -> impl Iterator<Item = (Pid, i32)> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads.filter_map(|thread| {
        let name = fs::read_to_string(thread.path().join("comm")).ok()?;
        let mut known = BACKGROUND_THREADS.into_iter();
        let (_, niceness) = known.find(|(known, _)| name.starts_with(known))?;
        let id = thread.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        Some((id, niceness))
    })
}

/// The changes of a batch in the order of tables and keys: a third of the work is to find where a row goes in
/// memory, and least of it behind the row before. Changes of one key keep their order, and so do all of a table
/// in which a range goes.
fn in_key_order(batch: &Batch) -> impl Iterator<Item = Change<'_>> {
    let mut tables = [const { Vec::new() }; Table::ALL.len()];
    for change in batch.changes() {
        tables[change.table() as usize].push(change);
    }
    for changes in &mut tables {
        if !changes.iter().any(|change| matches!(change, Change::DeleteRange(..))) {
            changes.sort_by_key(Change::key);
        }
    }
    tables.into_iter().flatten()
}

fn unjournaled() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.disable_wal(true);
    options
}

fn read_options(range: &KeyRange, direction: Direction) -> ReadOptions {
    let mut options = ReadOptions::default();
    let is_one_value = ends_with_number(range.table)
        && direction == Direction::Forward
        && range.start.ends_with(&[0; NUMBER_BYTES])
        && range.end == prefix_end(without_number(&range.start));
    options.set_prefix_same_as_start(is_one_value);
    options.set_total_order_seek(!is_one_value);
    options.set_iterate_lower_bound(range.start.clone());
    if let Some(end) = &range.end {
        options.set_iterate_upper_bound(end.clone());
    }
    options
}

impl Read for RocksEngine {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        let Database { db, .. } = &*self.database;
        let value = db.get_cf(self.database.family(table), key);
        value.map_err(|error| self.database.fault(error))
    }

    fn get_each(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        let Database { db, .. } = &*self.database;
        let values = db.batched_multi_get_cf(self.database.family(table), keys, false);
        let copied = values.into_iter().map(|value| Ok(value?.map(|value| value.to_vec())));
        copied.collect::<Result<_, _>>().map_err(|error| self.database.fault(error))
    }

    fn cursor(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor + '_> {
        let Database { db, .. } = &*self.database;
        RocksCursor::boxed(&self.database, range, direction, |options| {
            db.raw_iterator_cf_opt(self.database.family(range.table), options)
        })
    }
}

/// Walks the rows between the bounds its iterator was given.
struct RocksCursor<'a> {
    database: &'a Database,
    rows: DBRawIteratorWithThreadMode<'a, DB>,
    direction: Direction,
    /// False until the first row was asked for.
    has_begun: bool,
}

impl<'a> RocksCursor<'a> {
    fn boxed(
        database: &'a Database,
        range: &KeyRange,
        direction: Direction,
        rows: impl FnOnce(ReadOptions) -> DBRawIteratorWithThreadMode<'a, DB>,
    ) -> Box<dyn Cursor + 'a> {
        if range.is_empty() {
            return Box::new(NoRows);
        }
        let rows = rows(read_options(range, direction));
        Box::new(Self { database, rows, direction, has_begun: false })
    }

    fn advance(&mut self) {
        match (self.has_begun, self.direction) {
            (false, Direction::Forward) => self.rows.seek_to_first(),
            (false, Direction::Backward) => self.rows.seek_to_last(),
            (true, Direction::Forward) => self.rows.next(),
            (true, Direction::Backward) => self.rows.prev(),
        }
        self.has_begun = true;
    }
}

impl Cursor for RocksCursor<'_> {
    fn next_row(&mut self) -> Result<Option<RowRef<'_>>, Fault> {
        self.advance();
        let row = self.rows.item();
        if row.is_none() {
            self.rows.status().map_err(|error| self.database.fault(error))?;
        }
        Ok(row)
    }
}

/// RocksDB takes bounds in the wrong order for a mistake.
struct NoRows;

impl Cursor for NoRows {
    fn next_row(&mut self) -> Result<Option<RowRef<'_>>, Fault> {
        Ok(None)
    }
}

type Snapshot<'a> = SnapshotWithThreadMode<'a, DB>;

self_cell!(
    /// The database as it was at one moment, kept alive together with the database.
    struct RocksView {
        owner: (Arc<Database>, Age),
        #[covariant]
        dependent: Snapshot,
    }
);

impl Read for RocksView {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        let (database, _) = self.borrow_owner();
        let value = self.borrow_dependent().get_cf(database.family(table), key);
        value.map_err(|error| database.fault(error))
    }

    fn cursor(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor + '_> {
        let (database, _) = self.borrow_owner();
        RocksCursor::boxed(database, range, direction, |options| {
            self.borrow_dependent().raw_iterator_cf_opt(database.family(range.table), options)
        })
    }
}

impl Engine for RocksEngine {
    fn write(&self, batch: Batch) -> Result<(), Fault> {
        let mut changes = WriteBatch::with_capacity_bytes(batch.bytes());
        let families = Table::ALL.map(|table| self.database.family(table));
        let family = |table: Table| families[table as usize];
        let mut begun_anew = Vec::new();
        for change in in_key_order(&batch) {
            match change {
                Change::Put(table, key, value) => changes.put_cf(family(table), key, value),
                Change::Delete(table, key) => changes.delete_cf(family(table), key),
                Change::DeleteRange(table, start, end) => {
                    // All of a group's index, and not one generation of it.
                    if table == Table::Index
                        && let Ok(group) = start.try_into()
                    {
                        begun_anew.push(GroupId(u64::from_be_bytes(group)));
                    }
                    changes.delete_range_cf(family(table), start, end.unwrap_or(&LAST_KEY));
                }
            }
        }
        let written = self.database.db.write_opt(changes, &unjournaled());
        written.map_err(|error| self.database.fault(error))?;
        for group in begun_anew {
            self.database.collector.forget(group);
        }
        Ok(())
    }

    fn view(&self) -> Arc<dyn Read> {
        let owner = (self.database.clone(), self.database.collector.age());
        Arc::new(RocksView::new(owner, |(database, _)| database.db.snapshot()))
    }

    fn flush(&self) -> Result<(), Fault> {
        let found = self.database.collector.find(|| self.view())?;
        let families = Table::ALL.map(|table| self.database.family(table));
        let mut options = FlushOptions::default();
        options.set_wait(true);
        let flushed = self.database.db.flush_cfs_opt(&families, &options);
        flushed.map_err(|error| self.database.fault(error))?;
        if self.database.collector.flushed(found) {
            self.collect_garbage();
        }
        Ok(())
    }

    fn usage(&self) -> Usage {
        let disk_bytes = self.sum(rocksdb::properties::TOTAL_SST_FILES_SIZE);
        let unflushed_bytes = self.sum(rocksdb::properties::CUR_SIZE_ALL_MEM_TABLES);
        Usage { disk_bytes, unflushed_bytes }
    }
}

impl RocksEngine {
    /// Adds up a numeric property over all tables.
    fn sum(&self, property: &rocksdb::properties::PropName) -> u64 {
        let Database { db, .. } = &*self.database;
        let value = |table: &Table| {
            db.property_int_value_cf(self.database.family(*table), property).ok().flatten()
        };
        Table::ALL.iter().filter_map(value).sum()
    }
}

/// Sorts behind every key we write: no key starts with 64 bytes of FF.
const LAST_KEY: [u8; 64] = [0xFF; 64];

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn changes_are_written_in_key_order_but_not_across_ranges() {
        let mut batch = Batch::default();
        batch.put(Table::Index, b"b", b"1");
        batch.put(Table::Feed, b"b", b"1");
        batch.put(Table::Index, b"a", b"1");
        batch.delete(Table::Index, b"b");
        batch.delete_range(&KeyRange::prefix(Table::Feed, b"a".to_vec()));
        batch.put(Table::Feed, b"a", b"1");
        let order = [
            Change::Put(Table::Feed, b"b", b"1"),
            Change::DeleteRange(Table::Feed, b"a", Some(b"b")),
            Change::Put(Table::Feed, b"a", b"1"),
            Change::Put(Table::Index, b"a", b"1"),
            Change::Put(Table::Index, b"b", b"1"),
            Change::Delete(Table::Index, b"b"),
        ];
        assert!(in_key_order(&batch).eq(order));
    }

    #[test]
    fn flushing_and_compacting_leave_time_to_requests() {
        let directory = tempfile::tempdir().expect("the temporary directory is writable");
        let eight = NonZero::new(8).expect("not zero");
        let options = RocksOptions { background_threads: eight, ..RocksOptions::default() };
        let engine = RocksEngine::open(directory.path(), options, Box::new(|_| ()));
        let engine = engine.expect("it opens");
        let niceness = |thread| getpriority_process(thread).expect("the thread is there");
        let mut found: Vec<_> =
            background_threads().map(|(thread, wanted)| (wanted, niceness(Some(thread)))).collect();
        found.sort_unstable();
        let [flushing, compacting] =
            BACKGROUND_THREADS.map(|(_, wanted)| (wanted, wanted.max(niceness(None))));
        assert_eq!(found, [vec![flushing; 2], vec![compacting; 6]].concat());
        drop(engine);
    }
}
