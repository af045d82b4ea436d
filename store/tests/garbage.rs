//! Rows of items that were swept, on disk: nobody is shown one, and they are dropped once no view may need them. That memory drops them, and replicas agree on the rest, the model and the simulation tell.

use std::num::NonZeroU32;
use std::sync::Arc;

use ephemeris_store::codec;
use ephemeris_store::command::{
    Action, Command, CommandEffect, Effect, ItemWrite, Precondition, Proposal,
};
use ephemeris_store::document::DocumentRules;
use ephemeris_store::engine::{Engine, KeyRange, RocksEngine, RocksOptions, Table};
use ephemeris_store::ids::{ContainerNumber, DatabaseNumber, GroupId, ItemId, ItemNumber};
use ephemeris_store::indexing::{self, IndexRules};
use ephemeris_store::item::ItemKey;
use ephemeris_store::machine::{Entry, LogId, Machine as _};
use ephemeris_store::partition::{Partition, PartitionSpec, PartitionView};
use ephemeris_store::partition_key::{KeyDefinition, KeyKind, SlotRange};
use ephemeris_store::time::{ClockInterval, Millis, Seconds};
use ephemeris_store::ttl::{PolicyEpoch, TimeToLive, TtlPolicy};

/// As many as must go before all is compacted for their sake.
const MORTAL: u64 = 60_000;
const LASTING: u64 = 1000;
/// `id` and `pk`; and `ttl`.
const ENTRIES: u64 = 2;
const ENTRIES_OF_LASTING: u64 = 3;

const STORED_AT: u64 = 1000;
const LIFETIME: u32 = 60;
const DUE: u64 = STORED_AT + LIFETIME as u64;
const BATCH: usize = ItemNumber::OPERATIONS_MAX;

struct Disk {
    engine: Arc<RocksEngine>,
    partition: Partition,
    rules: DocumentRules,
}

impl Disk {
    fn open(directory: &tempfile::TempDir) -> Self {
        let on_damage = Box::new(|fault: &_| panic!("{fault}"));
        let options = RocksOptions::default();
        let engine = RocksEngine::open(directory.path(), options, on_damage).expect("it opens");
        let engine = Arc::new(engine);
        let container = ContainerNumber { database: DatabaseNumber(1), number: 1 };
        let spec = PartitionSpec { group: GroupId(1), container, slots: SlotRange::ALL };
        let partition = Partition::open(engine.clone(), spec).expect("it opens");
        let key = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
        let policy = indexing::complete(None).expect("the policy of containers that name none");
        let rules = DocumentRules::new(key, IndexRules::new(&policy).expect("it compiles"));
        Self { engine, partition, rules }
    }

    fn apply(&self, second: u64, command: Command) -> CommandEffect {
        let now = ClockInterval::exact(Seconds(second).start());
        let bytes = codec::encode(&Proposal { now, vouchers: None, command });
        let index = self.partition.progress().applied.map_or(0, |applied| applied.index + 1);
        let applied = self.partition.apply(LogId { term: 1, index }, Entry::Command(&bytes));
        applied.expect("the disk works").expect("commands have an outcome").effect
    }

    fn upsert(&self, id: &str, ttl: &str) -> ItemWrite {
        let body = format!(r#"{{"id":"{id}","pk":"p"{ttl}}}"#);
        let parsed = self.rules.parse(body.as_bytes()).expect("an item");
        let id = ItemId::try_from(id.to_string()).expect("an id");
        let key = ItemKey::new(&self.rules.key().place(&parsed.key), &parsed.key, &id);
        let action = Action::Upsert(parsed.document);
        ItemWrite { key, precondition: Precondition::None, action }
    }

    /// Stores items that inherit the default, and some that never expire.
    fn fill(&self) {
        let ttl = TimeToLive::from_seconds(LIFETIME.into());
        let (epoch, policy) = (PolicyEpoch(1), TtlPolicy::from_default_ttl(ttl));
        self.apply(STORED_AT, Command::SetTtlPolicy { epoch, policy, retention: None });
        let rules = self.rules.index().clone();
        self.apply(STORED_AT, Command::SetIndexPolicy { epoch, rules });
        let mortal = (0..MORTAL).map(|number| self.upsert(&format!("mortal{number}"), ""));
        let lasting =
            (0..LASTING).map(|number| self.upsert(&format!("lasting{number}"), ",\"ttl\":-1"));
        let writes: Vec<ItemWrite> = mortal.chain(lasting).collect();
        for batch in writes.chunks(BATCH) {
            self.apply(STORED_AT, Command::Write(batch.to_vec()));
        }
    }

    fn sweep(&self) {
        let limit = NonZeroU32::new(2000).expect("not zero");
        let sweep = || self.apply(DUE, Command::Sweep { limit, grace: Millis(0) });
        while matches!(sweep(), CommandEffect::Swept { more: true, .. }) {}
    }

    /// Flushes, and waits for all that drops garbage then.
    fn flush(&self) {
        self.engine.flush().expect("the disk works");
        self.engine.await_collection();
    }
}

/// Tables in which items leave rows, and how many rows there are.
const TABLES: [Table; 2] = [Table::Items, Table::Index];
type Counts = [u64; TABLES.len()];

/// Rows of some items, of which each has so many entries in the index.
fn of(items: u64, entries: u64) -> Counts {
    [items, items * entries]
}

fn sum(one: Counts, other: Counts) -> Counts {
    std::array::from_fn(|at| one[at] + other[at])
}

/// Rows as they lie on disk.
fn rows(view: &PartitionView) -> Counts {
    TABLES.map(|table| {
        let rows = view.rows(&KeyRange::prefix(table, Vec::new()));
        rows.expect("the disk works").len() as u64
    })
}

/// Rows that are of some item.
fn shown(view: &PartitionView) -> Counts {
    let counts = TABLES.map(|table| {
        let rows = view.kept_rows(&KeyRange::prefix(table, Vec::new()));
        rows.expect("the disk works").len() as u64
    });
    let all = view.keys().slots(Table::Items, SlotRange::ALL);
    assert_eq!(view.items(&all).count() as u64, counts[0], "items are shown by the same rule");
    let mut items = view.item_cursor(&all);
    let mut walked = 0;
    while let Some(item) = items.next_item().expect("the disk works") {
        walked += u64::from(!item.is_garbage);
    }
    assert_eq!(walked, counts[0], "to whoever walks through them, too");
    counts
}

#[test]
fn rows_of_what_was_swept_are_shown_to_nobody_and_go_once_no_view_needs_them() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let disk = Disk::open(&directory);
    disk.fill();
    let left = of(LASTING, ENTRIES_OF_LASTING);
    let all = sum(of(MORTAL, ENTRIES), left);
    disk.flush();
    let before = disk.partition.snapshot();

    disk.sweep();
    let after = disk.partition.snapshot();
    assert_eq!((rows(&after), shown(&after)), (all, left), "a sweep leaves them where they are");
    drop(after);
    disk.flush();
    disk.flush();
    assert_eq!((rows(&before), shown(&before)), (all, all), "a view keeps what it shows");

    drop(before);
    disk.flush();
    drop(disk);
    let disk = Disk::open(&directory);
    let after = disk.partition.snapshot();
    assert_eq!((rows(&after), shown(&after)), (left, left));
}

#[test]
fn an_item_that_takes_the_place_of_garbage_is_another_one() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let disk = Disk::open(&directory);
    disk.fill();
    let before = disk.partition.state();
    disk.sweep();
    let swept = disk.partition.state();
    assert_eq!((before.items(), swept.items()), (MORTAL + LASTING, LASTING));
    let again: Vec<_> = (0..10).map(|number| disk.upsert(&format!("mortal{number}"), "")).collect();
    let keys: Vec<_> = again.iter().map(|write| write.key.clone()).collect();
    let CommandEffect::Write(Ok(written)) = disk.apply(DUE, Command::Write(again)) else {
        panic!("they are written")
    };
    assert!(written.iter().all(|one| one.effect == Effect::Created), "nobody sees the old ones");
    assert_eq!(disk.partition.state().items(), LASTING + 10);
    let view = disk.partition.snapshot();
    for (key, one) in keys.iter().zip(&written) {
        let item = view.item(key).expect("the disk works").expect("it is there");
        assert_eq!(item.stamp, one.stamp);
        assert_eq!(
            disk.partition.find(one.stamp.number).expect("the disk works").as_ref(),
            Some(key)
        );
    }
    assert_eq!(shown(&view), sum(of(LASTING, ENTRIES_OF_LASTING), of(10, ENTRIES)));
    drop(view);
    disk.flush();
    disk.flush();
    let view = disk.partition.snapshot();
    assert_eq!(rows(&view), sum(of(LASTING, ENTRIES_OF_LASTING), of(10, ENTRIES)));
    assert!(keys.iter().all(|key| view.item(key).expect("the disk works").is_some()));
}

#[test]
fn an_engine_that_is_closed_while_it_drops_garbage_goes_on_with_it_later() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let disk = Disk::open(&directory);
    disk.fill();
    disk.engine.flush().expect("the disk works");
    disk.sweep();
    disk.engine.flush().expect("the disk works");
    drop(disk);
    let disk = Disk::open(&directory);
    let left = of(LASTING, ENTRIES_OF_LASTING);
    assert_eq!(shown(&disk.partition.snapshot()), left);
    disk.flush();
    assert_eq!(rows(&disk.partition.snapshot()), left);
}
