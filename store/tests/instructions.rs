//! How many instructions the hot paths take, by callgrind: see `docs/BENCHMARKS.md`.
#![cfg(target_arch = "x86_64")]

#[path = "support/instructions.rs"]
mod support;

use std::hint::black_box;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use ephemeris_store::codec;
use ephemeris_store::command::{Action, Command, CommandEffect, ItemWrite, Precondition, Proposal};
use ephemeris_store::document::DocumentRules;
use ephemeris_store::engine::{
    Batch, Cursor, Direction, Engine, Fault, KeyRange, MemoryEngine, Read, RowRef, Table, Usage,
};
use ephemeris_store::ids::{ContainerNumber, DatabaseNumber, GroupId, ItemId};
use ephemeris_store::indexing::{self, IndexRules};
use ephemeris_store::item::ItemKey;
use ephemeris_store::machine::{Entry, LogId, Machine as _};
use ephemeris_store::partition::{PageOutcome, Partition, PartitionSpec};
use ephemeris_store::partition_key::{KeyDefinition, KeyKind, SlotRange};
use ephemeris_store::query::{
    CompiledQuery, ComputedProperties, Moment, PageLimits, Parameters, Question, Run, Scope,
    Signal, Source, run_page,
};
use ephemeris_store::time::{ClockInterval, Millis, Seconds};
use ephemeris_store::ttl::{PolicyEpoch, TimeToLive, TtlPolicy};

/// Bytes of an item's JSON.
const ITEM_BYTES: usize = 1024;
const ITEMS: u32 = 1000;
/// Entries that are applied together, as with 64 clients.
const TOGETHER: usize = 25;
const STORED_AT: Seconds = Seconds(1000);
const LIFETIME: i64 = 60;
const DUE: Seconds = Seconds(2000);
/// So long that nothing is due for years.
const LONG_LIFETIME: i64 = 1_000_000_000;
const CONTAINER: ContainerNumber = ContainerNumber { database: DatabaseNumber(1), number: 1 };

fn check<S, R>(test: &str, setup: impl FnOnce() -> S, work: impl FnOnce(&mut S) -> R) {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/instructions.txt");
    support::check(&table, test, setup, work);
}

/// A document as shops have them.
fn body(number: u32) -> Vec<u8> {
    let start = format!(
        "{{\"id\":\"order-{number:06}\",\"pk\":\"customer-{:04}\",\"n\":{number},\"bucket\":{},\
         \"total\":{number}.25,\"paid\":true,\"note\":null,\
         \"address\":{{\"street\":\"Märkische Straße 7\",\"zip\":\"10969\",\"geo\":[52.5,13.4]}},\
         \"lines\":[{{\"sku\":\"A-1\",\"count\":2,\"price\":9.99}},{{\"sku\":\"B\\u00e4-2\",\"count\":1,\
         \"price\":100}}],\"filler\":\"",
        number % 100,
        number % 10,
    );
    let filler = "x".repeat(ITEM_BYTES - start.len() - 2);
    format!("{start}{filler}\"}}").into_bytes()
}

fn rules() -> DocumentRules {
    let key = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
    let policy = indexing::complete(None).expect("the policy of containers that name none");
    DocumentRules::new(key, IndexRules::new(&policy).expect("it compiles"))
}

fn create(rules: &DocumentRules, number: u32) -> ItemWrite {
    let parsed = rules.parse(&body(number)).expect("an item");
    let id = ItemId::try_from(format!("order-{number:06}")).expect("an id");
    let key = ItemKey::new(&rules.key().place(&parsed.key), &parsed.key, &id);
    ItemWrite { key, precondition: Precondition::None, action: Action::Create(parsed.document) }
}

fn proposal(at: Seconds, command: Command) -> Proposal {
    Proposal { now: ClockInterval::exact(at.start()), vouchers: None, command }
}

/// Items live for so many seconds if they do not say otherwise.
fn default_of(seconds: i64) -> TtlPolicy {
    let default = TimeToLive::from_seconds(seconds).expect("a time to live");
    TtlPolicy::from_default_ttl(Some(default))
}

/// An engine that keeps nothing, so that what it costs is not counted: the one in memory would be seven parts
/// of eight.
struct Forgetful;

impl Cursor for Forgetful {
    fn next_row(&mut self) -> Result<Option<RowRef<'_>>, Fault> {
        Ok(None)
    }
}

impl Read for Forgetful {
    fn get(&self, _: Table, _: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        Ok(None)
    }

    fn cursor(&self, _: &KeyRange, _: Direction) -> Box<dyn Cursor + '_> {
        Box::new(Forgetful)
    }
}

impl Engine for Forgetful {
    fn write(&self, batch: Batch) -> Result<(), Fault> {
        drop(black_box(batch));
        Ok(())
    }

    fn view(&self) -> Arc<dyn Read> {
        Arc::new(Forgetful)
    }

    fn flush(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }
}

/// A partition in memory, and the next entry of its log.
struct World {
    rules: DocumentRules,
    partition: Partition,
    next: u64,
}

impl World {
    /// A partition whose items are indexed, and expire if nothing else is said.
    fn indexed() -> Self {
        Self::plain().indexed_and_living(default_of(LIFETIME))
    }

    /// One that never heard of either.
    fn plain() -> Self {
        Self::over(Arc::new(MemoryEngine::new()))
    }

    /// The same, over this engine.
    fn over(engine: Arc<dyn Engine>) -> Self {
        let spec = PartitionSpec { group: GroupId(1), container: CONTAINER, slots: SlotRange::ALL };
        let partition = Partition::open(engine, spec).expect("memory opens");
        Self { rules: rules(), partition, next: 0 }
    }

    /// The same, whose items are indexed, and live for as long as this says.
    fn indexed_and_living(mut self, policy: TtlPolicy) -> Self {
        let (epoch, rules) = (PolicyEpoch(1), self.rules.index().clone());
        self.apply(STORED_AT, Command::SetTtlPolicy { epoch, policy, retention: None });
        self.apply(STORED_AT, Command::SetIndexPolicy { epoch, rules });
        self
    }

    /// The same with all items.
    fn filled(mut self) -> Self {
        let entries = self.creates();
        self.apply_all(&entries);
        self
    }

    /// Entries that store one item each.
    fn creates(&self) -> Vec<Vec<u8>> {
        let entry = |number| {
            let command = Command::Write(vec![create(&self.rules, number)]);
            codec::encode(&proposal(STORED_AT, command))
        };
        (0..ITEMS).map(entry).collect()
    }

    fn apply(&mut self, at: Seconds, command: Command) -> CommandEffect {
        self.apply_bytes(&codec::encode(&proposal(at, command)))
    }

    /// Applies entries, some at a time.
    fn apply_all(&mut self, entries: &[Vec<u8>]) {
        for visit in entries.chunks(TOGETHER) {
            let positions = (self.next..).map(|index| LogId { term: 1, index });
            let commands = visit.iter().map(|entry| Entry::Command(entry));
            let mut applied = 0;
            let all = self.partition.apply_all(&mut positions.zip(commands), &mut |outcome| {
                outcome.expect("commands have an outcome");
                applied += 1;
            });
            all.expect("nothing fails");
            self.next += applied;
        }
    }

    fn apply_bytes(&mut self, entry: &[u8]) -> CommandEffect {
        let index = self.next;
        self.next += 1;
        let applied = self.partition.apply(LogId { term: 1, index }, Entry::Command(entry));
        applied.expect("memory works").expect("commands have an outcome").effect
    }
}

#[test]
fn parse_and_normalise_1_kb() {
    let setup = || (rules(), body(7));
    check("parse_and_normalise_1_kb", setup, |(rules, body)| rules.parse(body).expect("an item"));
}

#[test]
fn encode_a_proposal() {
    let setup = || proposal(STORED_AT, Command::Write(vec![create(&rules(), 7)]));
    check("encode_a_proposal", setup, |proposal| proposal.encode());
}

#[test]
fn decode_a_proposal() {
    let setup = || codec::encode(&proposal(STORED_AT, Command::Write(vec![create(&rules(), 7)])));
    let decode =
        |bytes: &mut Vec<u8>| codec::decode::<Proposal>(bytes).expect("it was just encoded");
    check("decode_a_proposal", setup, decode);
}

#[test]
fn apply_1000_creates() {
    let setup = || {
        let world = World::over(Arc::new(Forgetful)).indexed_and_living(default_of(LIFETIME));
        let entries = world.creates();
        (world, entries)
    };
    check("apply_1000_creates", setup, |(world, entries)| {
        world.apply_all(entries);
        assert_eq!(world.partition.state().items(), u64::from(ITEMS));
    });
}

#[test]
fn sweep_1000_items() {
    let setup = || {
        let mut world = World::indexed().filled();
        world.apply(DUE, Command::AdvanceClock);
        world
    };
    check("sweep_1000_items", setup, |world| {
        let limit = NonZeroU32::new(ITEMS).expect("not zero");
        let swept = world.apply(DUE, Command::Sweep { limit, grace: Millis(0) });
        let CommandEffect::Swept { removed, .. } = swept else { panic!("{swept:?}") };
        assert_eq!(removed, ITEMS);
    });
}

/// Counts what it takes to read an item of a full partition.
fn check_read(test: &str, policy: TtlPolicy) {
    let setup = || {
        let world = World::plain().indexed_and_living(policy).filled();
        let key = create(&world.rules, 7).key;
        (world, key)
    };
    check(test, setup, |(world, key)| {
        let fetched = world.partition.fetch(key).expect("memory reads");
        fetched.judge(STORED_AT.start());
        fetched.into_item().expect("it is there").to_json(CONTAINER)
    });
}

#[test]
fn point_read() {
    check_read("point_read", default_of(LIFETIME));
}

#[test]
fn point_read_ttl_off() {
    check_read("point_read_ttl_off", TtlPolicy::Off);
}

#[test]
fn point_read_ttl_far() {
    check_read("point_read_ttl_far", default_of(LONG_LIFETIME));
}

#[test]
fn query_1000_items() {
    let setup = || {
        let world = World::plain().filled();
        let text = "SELECT c.id, c.total FROM c WHERE c.bucket = 3 AND c.address.zip = '10969'";
        let (parameters, computed) = (Parameters::default(), ComputedProperties::default());
        let query = CompiledQuery::new(text, &parameters, world.rules.index(), &computed);
        (world, query.expect("it compiles"))
    };
    check("query_1000_items", setup, |(world, query)| {
        let hi = STORED_AT.start();
        let view = world.partition.snapshot();
        let (spec, key) = (world.partition.spec(), world.rules.key());
        let limits = PageLimits { rows: usize::MAX, bytes: usize::MAX, items: usize::MAX };
        let question = Question { query, scope: &Scope::default(), resume: None, limits };
        let run = Run::new(Moment::new(hi, hi, 1));
        let source = Source { view: &view, spec, key, hi };
        let outcome = run_page(source, question, &run, &|| Signal::Go).expect("memory reads");
        let PageOutcome::Page(Ok(page)) = outcome else { panic!("it has a page") };
        page
    });
}
