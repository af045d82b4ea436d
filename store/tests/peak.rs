//! T42: a hundred thousand items that fall due in the same second. They are hidden at once; an entry
//! that removes some of them looks at no more rows than it must; and what clients do meanwhile touches
//! as many rows as before. How long all of it takes on disks, `bench --workload expiry` tells.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ephemeris_store::codec;
use ephemeris_store::command::{Action, Command, CommandEffect, ItemWrite, Precondition, Proposal};
use ephemeris_store::document::Document;
use ephemeris_store::engine::{
    Batch, Cursor, Direction, Engine, Fault, KeyRange, MemoryEngine, Read, RowRef, Table, Usage,
};
use ephemeris_store::ids::{ContainerNumber, DatabaseNumber, GroupId, ItemId};
use ephemeris_store::indexing::{self, IndexRules};
use ephemeris_store::item::ItemKey;
use ephemeris_store::machine::{Entry, LogId, Machine as _};
use ephemeris_store::partition::{Partition, PartitionSpec};
use ephemeris_store::partition_key::{KeyDefinition, KeyKind, PartitionKey, SlotRange};
use ephemeris_store::time::{ClockInterval, Millis, Seconds};
use ephemeris_store::ttl::{Life, PolicyEpoch, TimeToLive, TtlField, TtlPolicy};

/// Items that fall due together; half of them by their own `ttl`, half by the container's default.
const ITEMS: u64 = 100_000;
/// Items stored by one entry.
const BATCH: u64 = 100;
/// Items an entry may remove: as many as the sweeper lets it.
const LIMIT: u32 = 2000;
const STORED_AT: u64 = 1000;
const LIFETIME: u32 = 60;
const DUE: u64 = STORED_AT + LIFETIME as u64;
/// Rows that an entry may look at beside those of what it removes.
const SLACK: u64 = 40;
/// Entries of an item in the index: `id`, and `_ts` of what clients wrote twice.
const ENTRIES: u64 = 1;
const ENTRIES_OF_WRITTEN: u64 = 2;

/// An engine that counts the rows it was asked for.
struct Counting {
    engine: MemoryEngine,
    rows: AtomicU64,
}

impl Read for Counting {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.rows.fetch_add(1, Ordering::Relaxed);
        self.engine.get(table, key)
    }

    fn cursor(&self, range: &KeyRange, direction: Direction) -> Box<dyn Cursor + '_> {
        Box::new(CountingCursor { cursor: self.engine.cursor(range, direction), rows: &self.rows })
    }
}

/// A cursor that counts the rows it came to.
struct CountingCursor<'a> {
    cursor: Box<dyn Cursor + 'a>,
    rows: &'a AtomicU64,
}

impl Cursor for CountingCursor<'_> {
    fn next_row(&mut self) -> Result<Option<RowRef<'_>>, Fault> {
        self.rows.fetch_add(1, Ordering::Relaxed);
        self.cursor.next_row()
    }
}

impl Engine for Counting {
    fn write(&self, batch: Batch) -> Result<(), Fault> {
        self.engine.write(batch)
    }

    fn view(&self) -> Arc<dyn Read> {
        self.engine.view()
    }

    fn flush(&self) -> Result<(), Fault> {
        self.engine.flush()
    }

    fn usage(&self) -> Usage {
        self.engine.usage()
    }
}

/// A partition over an engine that counts.
struct Peak {
    engine: Arc<Counting>,
    partition: Partition,
    written: u64,
}

impl Peak {
    /// Stores the items, whose container is indexed by these rules if there are some.
    fn new(index: Option<IndexRules>) -> Self {
        let engine = Arc::new(Counting { engine: MemoryEngine::new(), rows: AtomicU64::new(0) });
        let container = ContainerNumber { database: DatabaseNumber(1), number: 1 };
        let spec = PartitionSpec { group: GroupId(1), container, slots: SlotRange::ALL };
        let partition = Partition::open(engine.clone(), spec).expect("memory opens");
        let peak = Self { engine, partition, written: 0 };
        let default = TimeToLive::from_seconds(LIFETIME.into()).expect("a time to live");
        let policy = TtlPolicy::from_default_ttl(Some(default));
        let epoch = PolicyEpoch(1);
        peak.apply(STORED_AT, Command::SetTtlPolicy { epoch, policy, retention: None });
        if let Some(rules) = index {
            peak.apply(STORED_AT, Command::SetIndexPolicy { epoch, rules });
        }
        for batch in 0..ITEMS / BATCH {
            let numbers = batch * BATCH..(batch + 1) * BATCH;
            let own = |number: u64| number.is_multiple_of(2).then_some(i64::from(LIFETIME));
            let writes = numbers.map(|number| write(&format!("due{number}"), own(number)));
            peak.apply(STORED_AT, Command::Write(writes.collect()));
            peak.engine.flush().expect("memory flushes");
        }
        peak
    }

    fn apply(&self, second: u64, command: Command) -> CommandEffect {
        let now = ClockInterval::exact(Seconds(second).start());
        let bytes = codec::encode(&Proposal { now, vouchers: None, command });
        let index = self.partition.progress().applied.map_or(0, |applied| applied.index + 1);
        let applied = self.partition.apply(LogId { term: 1, index }, Entry::Command(&bytes));
        applied.expect("memory works").expect("commands have an outcome").effect
    }

    /// What some work takes in rows.
    fn rows(&self, work: impl FnOnce()) -> u64 {
        let before = self.engine.rows.load(Ordering::Relaxed);
        work();
        self.engine.rows.load(Ordering::Relaxed) - before
    }

    fn is_alive(&self, id: &str, second: u64) -> bool {
        let key = key(id);
        let fetched = self.partition.fetch(&key).expect("memory reads");
        fetched.judge(Seconds(second).start()) == Life::Alive && fetched.into_item().is_some()
    }

    /// A client writes an item, reads it, reads one that is due, and writes its own again.
    fn serve(&mut self, second: u64) -> u64 {
        self.written += 1;
        let id = format!("other{}", self.written);
        self.rows(|| {
            for _ in 0..2 {
                self.apply(second, Command::Write(vec![write(&id, Some(-1))]));
                assert!(self.is_alive(&id, second));
            }
            assert_eq!(self.is_alive("due7", second), second < DUE);
        })
    }
}

fn key(id: &str) -> ItemKey {
    let definition = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
    let value = PartitionKey::parse("[\"p\"]").expect("a partition key");
    ItemKey::new(
        &definition.place(&value),
        &value,
        &ItemId::try_from(id.to_string()).expect("an id"),
    )
}

fn write(id: &str, ttl: Option<i64>) -> ItemWrite {
    let ttl = ttl.map_or(TtlField::Absent, |ttl| {
        TtlField::Valid(TimeToLive::from_seconds(ttl).expect("a time to live"))
    });
    let body = format!("{{\"id\":\"{id}\"}}").into();
    let action = Action::Upsert(Document { body, ttl, indexed_values: 1 });
    ItemWrite { key: key(id), precondition: Precondition::None, action }
}

#[test]
fn t42_a_peak_of_expiry_is_hidden_at_once_and_removed_in_bounded_entries() {
    check(Peak::new(None));
}

#[test]
fn t42_a_peak_of_expiry_leaves_the_index_in_bounded_entries() {
    let policy = indexing::complete(None).expect("the policy of containers that name none");
    let rules = IndexRules::new(&policy).expect("it compiles");
    let peak = check(Peak::new(Some(rules)));
    let entries = || peak.engine.scan(&KeyRange::prefix(Table::Index, Vec::new())).count() as u64;
    let written = ENTRIES_OF_WRITTEN * peak.written;
    assert_eq!(entries(), ENTRIES * ITEMS + written, "they go by themselves");
    let shown = peak.partition.snapshot().index_rows().expect("memory reads");
    assert_eq!(shown.len() as u64, written, "the entries of what clients wrote");
    peak.engine.flush().expect("memory flushes");
    assert_eq!(entries(), written);
}

/// Lets the peak come and go.
fn check(mut peak: Peak) -> Peak {
    let served_before = peak.serve(DUE - 1);

    // Hidden at once, and nothing was removed for it.
    peak.apply(DUE, Command::AdvanceClock);
    let state = peak.partition.state();
    let view = peak.partition.snapshot();
    let all = view.keys().slots(Table::Items, SlotRange::ALL);
    let dead = view.items(&all).filter(|item| {
        let stamp = item.as_ref().expect("memory reads").1.stamp;
        state.ttl().has_expired(stamp.ttl, stamp.ts)
    });
    assert_eq!((dead.count() as u64, state.items()), (ITEMS, ITEMS + 1));

    // Removed by as few entries as that takes, each of them bounded; clients pay nothing for it.
    let limit = NonZeroU32::new(LIMIT).expect("not zero");
    for entry in 1..=ITEMS / u64::from(LIMIT) {
        let mut swept = None;
        let rows = peak.rows(|| {
            swept = Some(peak.apply(DUE, Command::Sweep { limit, grace: Millis(0) }));
        });
        let Some(CommandEffect::Swept { removed, .. }) = swept else { panic!("{swept:?}") };
        assert_eq!(removed, LIMIT, "entry {entry}");
        // The row that says when it dies.
        assert!(rows <= u64::from(LIMIT) + SLACK, "entry {entry} looked at {rows} rows");
        assert_eq!(peak.serve(DUE), served_before, "after entry {entry}");
    }
    let swept = peak.apply(DUE, Command::Sweep { limit, grace: Millis(0) });
    let CommandEffect::Swept { removed: 0, more: false, .. } = swept else { panic!("{swept:?}") };
    assert_eq!(peak.partition.state().items(), peak.written, "what clients wrote is there");
    peak
}
