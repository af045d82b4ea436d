//! A transfer that goes on over another view of the same state, where there is other garbage, loses no row.

use ephemeris_store::codec;
use ephemeris_store::command::{Action, Command, ItemWrite, Precondition, Proposal};
use ephemeris_store::document::DocumentRules;
use ephemeris_store::engine::{KeyRange, MemoryEngine, Read as _, Table};
use ephemeris_store::ids::{ContainerNumber, DatabaseNumber, ItemId};
use ephemeris_store::indexing::{self, IndexRules, UniqueKeys};
use ephemeris_store::item::ItemKey;
use ephemeris_store::machine::Entry;
use ephemeris_store::partition::{Partition, PartitionSpec};
use ephemeris_store::partition_key::{KeyDefinition, KeyKind, PartitionKey, SlotRange};
use ephemeris_store::time::{ClockInterval, Millis};
use ephemeris_store::ttl::{PolicyEpoch, TimeToLive, TtlPolicy, Vouchers};
use serde_json::json;

use super::*;
use crate::testing::MemoryDisk;

const GROUP: GroupId = GroupId(7);
const START: Millis = Millis(1_700_000_000_000);
const CHUNK_BYTES_SMALL: usize = 150;

fn index_rules() -> IndexRules {
    IndexRules::new(&indexing::complete(None).unwrap()).unwrap()
}

struct Replica {
    engine: MemoryEngine,
    partition: Partition,
}

impl Replica {
    fn new() -> Self {
        let engine = MemoryEngine::new();
        let container = ContainerNumber { database: DatabaseNumber(1), number: 1 };
        let spec = PartitionSpec { group: GROUP, container, slots: SlotRange::ALL };
        let partition = Partition::open(Arc::new(engine.clone()), spec).unwrap();
        Self { engine, partition }
    }

    /// A replica that holds items, and index entries of items that were swept.
    fn with_garbage() -> Self {
        let replica = Self::new();
        let policy = TtlPolicy::from_default_ttl(Some(TimeToLive::Forever));
        replica.apply(0, Command::SetUniqueKeys(UniqueKeys::new(1, vec![vec![vec!["n".into()]]])));
        replica.apply(0, Command::SetTtlPolicy { epoch: PolicyEpoch(1), policy, retention: None });
        let epoch = PolicyEpoch(1);
        replica.apply(0, Command::SetIndexPolicy { epoch, rules: index_rules() });
        let limit = 100.try_into().unwrap();
        for number in 0..12 {
            let ttl = if number % 3 == 0 { -1 } else { 2 };
            replica.apply(0, Command::Write(vec![upsert(number, ttl)]));
        }
        replica.apply(10_000, Command::AdvanceClock);
        replica.apply(10_000, Command::Sweep { limit, grace: Millis(0) });
        replica
    }

    /// Applies the next entry, so long after the start.
    fn apply(&self, after_ms: u64, command: Command) {
        let now = ClockInterval::exact(Millis(START.0 + after_ms));
        let vouchers = Some(Vouchers { readings: vec![now.lo(); 3], nodes: 3 });
        let encoded = codec::encode(&Proposal { now, vouchers, command });
        let index = self.partition.progress().applied.map_or(0, |applied| applied.index + 1);
        self.partition.apply(LogId { term: 1, index }, Entry::Command(&encoded)).unwrap();
    }

    fn offer(&self) -> Offer {
        Offer { chunk_bytes: CHUNK_BYTES_SMALL, ..Offer::new(&self.partition, GROUP) }
    }

    fn rows(&self, table: Table) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.engine.scan(&KeyRange::prefix(table, Vec::new())).map(Result::unwrap).collect()
    }
}

fn upsert(number: u32, ttl: i64) -> ItemWrite {
    let key = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
    let rules = DocumentRules::new(key, index_rules());
    let value = PartitionKey::parse("[\"p\"]").unwrap();
    let id = format!("i{number}");
    let body = json!({ "id": id, "pk": "p", "n": number, "a": "x", "b": number % 5, "ttl": ttl });
    let document = rules.parse(body.to_string().as_bytes()).unwrap().document;
    let key = ItemKey::new(&rules.key().place(&value), &value, &ItemId::try_from(id).unwrap());
    ItemWrite { key, precondition: Precondition::None, action: Action::Upsert(document) }
}

/// Receives the chunks of an offer until so many are there, or all.
fn receive(store: &SnapshotStore, offer: &Offer, chunks: u32) -> Received {
    let position = offer.progress.applied;
    let mut received = store.begin(position).unwrap();
    while !received.complete && received.chunks < chunks {
        let chunk = offer.chunk(&received).unwrap();
        received = store.stage(position, &received, &chunk).unwrap();
    }
    received
}

/// Receives so many chunks from one replica, the rest from another, and installs them.
fn install_from_both(first: &Offer, chunks: u32, second: &Offer) -> Replica {
    let store = SnapshotStore::new(Arc::new(MemoryDisk::new()), GROUP, Stop::default());
    receive(&store, first, chunks);
    assert!(receive(&store, second, u32::MAX).complete);
    let receiver = Replica::new();
    let name = store.staged(second.progress.applied).unwrap();
    let engine: Arc<dyn Engine> = Arc::new(receiver.engine.clone());
    store.install(&engine, &receiver.partition, &name).unwrap();
    receiver
}

#[test]
fn a_transfer_that_goes_on_where_garbage_differs_loses_no_row() {
    let [littered, tidy] = [Replica::with_garbage(), Replica::with_garbage()];
    tidy.engine.flush().unwrap();
    let entries = [&littered, &tidy].map(|replica| replica.rows(Table::Index).len());
    assert!(entries[0] > entries[1] && entries[1] > 0, "{entries:?}");
    let offers = [littered.offer(), tidy.offer()];
    for (first, second) in [(0, 1), (1, 0)] {
        let (first, second) = (&offers[first], &offers[second]);
        let store = SnapshotStore::new(Arc::new(MemoryDisk::new()), GROUP, Stop::default());
        let all = receive(&store, first, u32::MAX).chunks;
        assert!(all > 10, "{all} chunks");
        for chunks in 0..=all {
            let receiver = install_from_both(first, chunks, second);
            // The installation's flush drops garbage.
            for table in Table::ALL {
                let found = receiver.rows(table);
                assert_eq!(found, tidy.rows(table), "{} after {chunks}", table.name());
            }
        }
    }
}

/// A leader that was deposed may send on: what it made for what was here before is not put behind something else.
#[test]
fn a_chunk_that_was_made_to_follow_another_row_is_not_taken() {
    let replica = Replica::with_garbage();
    let ours = replica.offer();
    let theirs = Offer { chunk_bytes: 2 * CHUNK_BYTES_SMALL, ..replica.offer() };
    let position = ours.progress.applied;
    let store = || SnapshotStore::new(Arc::new(MemoryDisk::new()), GROUP, Stop::default());
    let differs = |chunks: &u32| {
        let [here, there] = [&ours, &theirs].map(|offer| receive(&store(), offer, *chunks));
        here.last_row != there.last_row
    };
    let chunks = (1..=u32::MAX).find(differs).unwrap();
    let (store, other) = (store(), store());
    let received = receive(&store, &ours, chunks);
    let elsewhere = receive(&other, &theirs, chunks);
    let late = theirs.chunk(&elsewhere).unwrap();
    assert_eq!(store.stage(position, &elsewhere, &late).unwrap(), received);
    let next = ours.chunk(&received).unwrap();
    assert_eq!(store.stage(position, &received, &next).unwrap().chunks, chunks + 1);
    assert_eq!(store.stage(position, &received, &next).unwrap().chunks, chunks + 1, "once");
}
