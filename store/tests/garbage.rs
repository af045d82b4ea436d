//! Index entries of items that were swept, on disk: nobody is shown one, and they are dropped once no view may
//! need them. That memory drops them, and replicas agree on the rest, the model and the simulation tell.

use std::num::NonZeroU32;
use std::sync::Arc;

use ephemeris_store::codec;
use ephemeris_store::command::{Action, Command, CommandEffect, ItemWrite, Precondition, Proposal};
use ephemeris_store::document::DocumentRules;
use ephemeris_store::engine::{Engine, KeyRange, RocksEngine, RocksOptions, Table};
use ephemeris_store::ids::{ContainerNumber, DatabaseNumber, GroupId, ItemId};
use ephemeris_store::indexing::{self, IndexRules};
use ephemeris_store::item::ItemKey;
use ephemeris_store::machine::{Entry, LogId, Machine as _};
use ephemeris_store::partition::{Partition, PartitionSpec, PartitionView};
use ephemeris_store::partition_key::{KeyDefinition, KeyKind, SlotRange};
use ephemeris_store::time::{ClockInterval, Millis, Seconds};
use ephemeris_store::ttl::{PolicyEpoch, TimeToLive, TtlPolicy};

/// As many as must go before the index is compacted for their sake.
const MORTAL: u64 = 50_000;
const LASTING: u64 = 1000;
/// `id`, `pk` and `_ts`; and `ttl`.
const ENTRIES: u64 = 3;
const ENTRIES_OF_LASTING: u64 = 4;
const STORED_AT: u64 = 1000;
const LIFETIME: u32 = 60;
const DUE: u64 = STORED_AT + LIFETIME as u64;
const BATCH: usize = 500;

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

/// Rows of the index, as they lie on disk.
fn rows(view: &PartitionView) -> u64 {
    let all = KeyRange::prefix(Table::Index, Vec::new());
    view.rows(&all).expect("the disk works").len() as u64
}

/// Entries of the index that are of some item.
fn shown(view: &PartitionView) -> u64 {
    view.index_rows().expect("the disk works").len() as u64
}

#[test]
fn entries_of_what_was_swept_are_shown_to_nobody_and_go_once_no_view_needs_them() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let disk = Disk::open(&directory);
    disk.fill();
    let (all, left) =
        (MORTAL * ENTRIES + LASTING * ENTRIES_OF_LASTING, LASTING * ENTRIES_OF_LASTING);
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
fn an_engine_that_is_closed_while_it_drops_garbage_goes_on_with_it_later() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let disk = Disk::open(&directory);
    disk.fill();
    disk.engine.flush().expect("the disk works");
    disk.sweep();
    disk.engine.flush().expect("the disk works");
    drop(disk);
    let disk = Disk::open(&directory);
    let left = LASTING * ENTRIES_OF_LASTING;
    assert_eq!(shown(&disk.partition.snapshot()), left);
    disk.flush();
    assert_eq!(rows(&disk.partition.snapshot()), left);
}
