//! What applying costs one replica, in processor time: creates and sweeps over RocksDB, without network, log
//! and other replicas, in whose noise a small gain or loss is lost.
//!
//! ```sh
//! cargo run --package ephemeris-store --features rocksdb --example replica [ITEMS]
//! ```
//!
//! Per item: what the thread that applies takes, and what the process takes, with flushes and compactions as a
//! node has them; after sweeps with a last flush, and all that is compacted then. Memory comes from the system's
//! allocator, not from the one nodes use.

use std::num::{NonZero, NonZeroU32};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ephemeris_store::codec;
use ephemeris_store::command::{
    Action, Command, CommandEffect, ItemWrite, Outcome, Precondition, Proposal,
};
use ephemeris_store::document::DocumentRules;
use ephemeris_store::engine::{Engine, RocksEngine, RocksOptions};
use ephemeris_store::ids::{ContainerNumber, DatabaseNumber, GroupId, ItemId};
use ephemeris_store::indexing::{self, IndexRules};
use ephemeris_store::item::ItemKey;
use ephemeris_store::machine::{Entry, LogId, Machine as _};
use ephemeris_store::partition::{Partition, PartitionSpec};
use ephemeris_store::partition_key::{KeyDefinition, KeyKind, SlotRange};
use ephemeris_store::time::{ClockInterval, Millis, Seconds};
use ephemeris_store::ttl::{PolicyEpoch, TimeToLive, TtlPolicy};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

const ITEMS: u32 = 100_000;
/// Bytes of an item's JSON, about.
const ITEM_BYTES: usize = 1024;
/// One item of so many never expires, so that those that do seldom stand together.
const LASTING: u32 = 10;
/// Entries applied together, when it is creates; items that an entry may remove.
const VISITS: [usize; 3] = [1, 26, 256];
const LIMITS: [u32; 3] = [250, 500, 2000];
/// A node's memory for the engine, and how much of it is filled when the node flushes.
const MEMORY: RocksOptions = RocksOptions {
    block_cache_bytes: 32 << 20,
    write_buffer_bytes: 32 << 20,
    background_threads: NonZero::<u8>::MIN,
};
const FLUSHED_AT: u64 = 24 << 20;
const STORED_AT: u64 = 1000;
const ITEMS_A_SECOND: u32 = 5000;
/// So near that the partition clock takes it for no jump.
const DUE: u64 = 2000;
/// RocksDB rests once the process has used less than a tenth of so much time.
const LOOK_EVERY: Duration = Duration::from_millis(100);

fn main() {
    let items =
        std::env::args().nth(1).map_or(ITEMS, |text| text.parse().expect("a number of items"));
    println!("{:32} {:>8} {:>8}", "µs of processor time an item", "applying", "all");
    for visit in VISITS {
        let mut replica = Replica::new();
        let spent = Spent::during(|| replica.create(items, visit));
        // Making the requests was most of it.
        let spent =
            Spent { all: spent.all - (spent.thread - replica.applying), thread: replica.applying };
        spent.print(&format!("create, {visit} entries together"), items);
    }
    for limit in LIMITS {
        let mut replica = Replica::new();
        replica.create(items, 256);
        await_rest();
        let (mut removed, mut swept) = (0, Spent::default());
        let spent = Spent::during(|| {
            swept = Spent::during(|| removed = replica.sweep(limit));
            replica.engine.flush().expect("the disk works");
            await_rest();
        });
        let spent = Spent { thread: swept.thread, ..spent };
        spent.print(&format!("sweep, {limit} items an entry"), removed);
    }
}

/// Processor time, in microseconds.
#[derive(Default)]
struct Spent {
    thread: f64,
    all: f64,
}

impl Spent {
    fn during(work: impl FnOnce()) -> Self {
        let (thread, all) = (micros(ClockId::ThreadCPUTime), micros(ClockId::ProcessCPUTime));
        work();
        Self {
            thread: micros(ClockId::ThreadCPUTime) - thread,
            all: micros(ClockId::ProcessCPUTime) - all,
        }
    }

    fn print(&self, what: &str, items: u32) {
        let each = |spent: f64| spent / f64::from(items);
        println!("{what:32} {:8.2} {:8.2}", each(self.thread), each(self.all));
    }
}

#[expect(clippy::cast_precision_loss, reason = "a run takes seconds, not centuries")]
fn micros(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Returns when flushes and compactions that are under way have ended.
fn await_rest() {
    while Spent::during(|| thread::sleep(LOOK_EVERY)).all * 10.0 >= LOOK_EVERY.as_secs_f64() * 1e6 {
    }
}

/// A partition in a directory of its own, whose items are indexed and may expire.
struct Replica {
    rules: DocumentRules,
    engine: Arc<dyn Engine>,
    partition: Partition,
    next: u64,
    /// Processor time of this thread for applying and flushing, in microseconds.
    applying: f64,
    _directory: TempDir,
}

impl Replica {
    fn new() -> Self {
        let key = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
        let policy = indexing::complete(None).expect("the policy of containers that name none");
        let rules = DocumentRules::new(key, IndexRules::new(&policy).expect("it compiles"));
        let directory = tempfile::tempdir().expect("the temporary directory is writable");
        let on_damage = Box::new(|fault: &_| panic!("{fault}"));
        let engine = RocksEngine::open(directory.path(), MEMORY, on_damage).expect("it opens");
        let engine: Arc<dyn Engine> = Arc::new(engine);
        let container = ContainerNumber { database: DatabaseNumber(1), number: 1 };
        let spec = PartitionSpec { group: GroupId(1), container, slots: SlotRange::ALL };
        let partition = Partition::open(engine.clone(), spec).expect("it opens");
        let index = rules.index().clone();
        let mut replica =
            Self { rules, engine, partition, next: 0, applying: 0.0, _directory: directory };
        let policy = TtlPolicy::from_default_ttl(Some(ttl(-1)));
        let epoch = PolicyEpoch(1);
        replica.apply(&[
            entry(STORED_AT, Command::SetTtlPolicy { epoch, policy, retention: None }),
            entry(STORED_AT, Command::SetIndexPolicy { epoch, rules: index }),
        ]);
        replica
    }

    fn create(&mut self, items: u32, visit: usize) {
        let numbers: Vec<u32> = (0..items).collect();
        for together in numbers.chunks(visit) {
            let entries: Vec<_> = together.iter().map(|number| self.creation(*number)).collect();
            self.apply(&entries);
        }
    }

    /// Removes what is due; returns how many items that were.
    fn sweep(&mut self, limit: u32) -> u32 {
        let limit = NonZeroU32::new(limit).expect("not zero");
        let mut total = 0;
        loop {
            let effects = self.apply(&[entry(DUE, Command::Sweep { limit, grace: Millis(0) })]);
            let [CommandEffect::Swept { removed, more, .. }] = effects[..] else {
                panic!("{effects:?}")
            };
            total += removed;
            if !more {
                return total;
            }
        }
    }

    /// An entry that creates an item, with an id that says nothing of when it was created.
    fn creation(&self, number: u32) -> Vec<u8> {
        let second = STORED_AT + u64::from(number / ITEMS_A_SECOND);
        let id = format!("{:010}{number:010}", number.wrapping_mul(0x9E37_79B9));
        let ttl = match number % LASTING {
            0 => String::new(),
            _ => format!("\"ttl\":{},", DUE - second),
        };
        let start = format!("{{\"id\":\"{id}\",\"pk\":\"{}\",{ttl}\"filler\":\"", &id[..8]);
        let body = format!("{start}{}\"}}", "x".repeat(ITEM_BYTES - start.len()));
        let parsed = self.rules.parse(body.as_bytes()).expect("an item");
        let id = ItemId::try_from(id).expect("an id");
        let key = ItemKey::new(&self.rules.key().place(&parsed.key), &parsed.key, &id);
        let action = Action::Create(parsed.document);
        let write = ItemWrite { key, precondition: Precondition::None, action };
        entry(second, Command::Write(vec![write]))
    }

    /// Applies entries together, and flushes where a node would.
    fn apply(&mut self, entries: &[Vec<u8>]) -> Vec<CommandEffect> {
        let begun = micros(ClockId::ThreadCPUTime);
        let mut effects = Vec::new();
        let mut positioned = (self.next..)
            .zip(entries)
            .map(|(index, entry)| (LogId { term: 1, index }, Entry::Command(entry)));
        let mut answer = |outcome: Option<Outcome>| {
            effects.extend(outcome.map(|outcome| outcome.effect));
        };
        self.partition.apply_all(&mut positioned, &mut answer).expect("the disk works");
        self.next += entries.len() as u64;
        if self.engine.usage().unflushed_bytes >= FLUSHED_AT {
            self.engine.flush().expect("the disk works");
        }
        self.applying += micros(ClockId::ThreadCPUTime) - begun;
        effects
    }
}

fn ttl(seconds: i64) -> TimeToLive {
    TimeToLive::from_seconds(seconds).expect("a time to live")
}

fn entry(second: u64, command: Command) -> Vec<u8> {
    let now = ClockInterval::exact(Seconds(second).start());
    codec::encode(&Proposal { now, vouchers: None, command })
}
