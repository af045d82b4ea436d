//! The sweeper's alarm clock, never late whatever happens in between; what readers may see; and what
//! sweeping costs.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::charge::Charge;
use crate::codec;
use crate::command::{
    Action, Command, CommandEffect, ItemWrite, Precondition, Proposal, Refusal, Refused,
    TRANSACTION_BYTES_MAX, TooManyCleared,
};
use crate::document::{Document, DocumentRules};
use crate::engine::{MemoryEngine, Row};
use crate::ids::{DatabaseNumber, ItemId, ItemNumber};
use crate::indexing::{self, IndexRules};
use crate::item::{Item, ItemKey, LogicalPartition};
use crate::partition_key::{KeyDefinition, KeyKind, PartitionKey};
use crate::patch::PatchRequest;
use crate::snapshot::{ChunkRow, Exporter, Received};
use crate::time::{ClockInterval, Millis, Seconds};
use crate::ttl::{ItemTtl, PolicyEpoch, TimeToLive, TtlField, TtlPolicy, Vouchers};

pub(super) fn partition(engine: &MemoryEngine) -> Partition {
    let container = ContainerNumber { database: DatabaseNumber(1), number: 1 };
    let spec = PartitionSpec { group: GroupId(1), container, slots: SlotRange::ALL };
    Partition::open(Arc::new(engine.clone()), spec).unwrap()
}

pub(super) fn apply(partition: &Partition, second: u64, command: Command) -> CommandEffect {
    let now = ClockInterval::exact(Seconds(second).start());
    let vouchers = Some(Vouchers { readings: vec![now.lo()], nodes: 1 });
    let bytes = codec::encode(&Proposal { now, vouchers, command });
    let index = partition.progress().applied.map_or(0, |applied| applied.index + 1);
    partition.apply(LogId { term: 1, index }, Entry::Command(&bytes)).unwrap().unwrap().effect
}

fn upsert(id: u64, ttl: Option<i64>) -> Command {
    upsert_body(id, ttl, b"{}", 0)
}

pub(super) fn upsert_body(id: u64, ttl: Option<i64>, body: &[u8], indexed_values: u32) -> Command {
    let definition = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
    let value = PartitionKey::parse(&format!("[{}]", id % 3)).unwrap();
    let id = ItemId::try_from(format!("i{id}")).unwrap();
    let ttl =
        ttl.map_or(TtlField::Absent, |ttl| TtlField::Valid(TimeToLive::from_seconds(ttl).unwrap()));
    let document = Document { body: Bytes::copy_from_slice(body), ttl, indexed_values };
    let key = ItemKey::new(&definition.place(&value), &value, &id);
    let action = Action::Upsert(document);
    Command::Write(vec![ItemWrite { key, precondition: Precondition::None, action }])
}

pub(super) fn policy(default: Option<i64>) -> TtlPolicy {
    TtlPolicy::from_default_ttl(default.map(|ttl| TimeToLive::from_seconds(ttl).unwrap()))
}

/// The earliest second in which a stored item will be dead, or is dead and unswept.
fn truth(partition: &Partition) -> Option<Seconds> {
    let view = partition.snapshot();
    let ttl = *view.state().ttl();
    let range = view.keys().slots(Table::Items, SlotRange::ALL);
    let expiries = view.items(&range).filter_map(|item| {
        let stamp = item.unwrap().1.stamp;
        if ttl.has_expired(stamp.ttl, stamp.ts) {
            return Some(ttl.clock().floor_seconds());
        }
        ttl.expiry(stamp.ttl, stamp.ts)
    });
    expiries.min()
}

/// What a transaction of these writes comes to: how many were carried out, or which one was refused and why.
fn write(partition: &Partition, writes: &[ItemWrite]) -> Result<usize, (usize, Refusal)> {
    let effect = apply(partition, 1, Command::Write(writes.to_vec()));
    let CommandEffect::Write(result) = effect else { panic!("{effect:?}") };
    let refused = |refused: Refused| (usize::from(refused.operation), refused.refusal);
    result.map(|written| written.len()).map_err(refused)
}

pub(super) fn writes(command: Command) -> Vec<ItemWrite> {
    let Command::Write(writes) = command else { panic!("{command:?}") };
    writes
}

/// A hundred items are 200 MB, for a request of 5 KB: every replica would be held up, and hold them in memory.
#[test]
fn a_transaction_works_on_only_so_many_bytes() {
    let body = format!("{{\"x\":\"{}\"}}", "x".repeat(2 << 20));
    let fitting = TRANSACTION_BYTES_MAX / body.len();
    let stored = |id: usize| writes(upsert_body(3 * id as u64, None, body.as_bytes(), 0)).remove(0);
    for action in [Action::Read, Action::Delete] {
        let partition = partition(&MemoryEngine::default());
        for id in 1..=fitting + 1 {
            assert_eq!(write(&partition, &[stored(id)]), Ok(1));
        }
        let small = writes(upsert(0, None));
        let acts = (1..=fitting + 1).map(|id| ItemWrite { action: action.clone(), ..stored(id) });
        let mut all: Vec<ItemWrite> = small.iter().cloned().chain(acts).collect();
        let refused = Err((fitting + 1, Refusal::TransactionTooLarge));
        assert_eq!(write(&partition, &all), refused);
        assert_eq!(partition.fetch(&small[0].key).unwrap().into_item(), None, "all or nothing");
        assert_eq!(partition.state().items(), fitting as u64 + 1);
        all.pop();
        assert_eq!(write(&partition, &all), Ok(fitting + 1));
    }
}

/// What has expired does not exist: it makes no transaction too large, which may only have to wait for the sweeper.
#[test]
fn expired_items_make_no_transaction_too_large() {
    let body = format!("{{\"x\":\"{}\"}}", "x".repeat(2 << 20));
    let many = TRANSACTION_BYTES_MAX / body.len() + 1;
    let partition = partition(&MemoryEngine::default());
    let (epoch, policy) = (PolicyEpoch(1), policy(Some(-1)));
    apply(&partition, 1, Command::SetTtlPolicy { epoch, policy, retention: None });
    let stored = |id: usize, text: &str| {
        writes(upsert_body(3 * id as u64, Some(1), text.as_bytes(), 0)).remove(0)
    };
    assert_eq!(write(&partition, &[stored(0, "{}")]), Ok(1));
    for id in 1..=many {
        assert_eq!(write(&partition, &[stored(id, &body)]), Ok(1));
    }
    let small: Vec<_> = (1..=many).map(|id| stored(id, "{}")).collect();
    assert_eq!(write(&partition, &small), Err((many - 1, Refusal::TransactionTooLarge)));
    apply(&partition, 2, Command::AdvanceClock);
    assert_eq!(write(&partition, &small), Err((many - 1, Refusal::SweepAwaited)));
    let gone = ItemWrite { action: Action::Read, ..small[many - 1].clone() };
    let fresh = (1..=many).map(|id| stored(2 * many + id, &body));
    let hopeless: Vec<_> = std::iter::once(stored(0, "{}")).chain(fresh).collect();
    assert_eq!(write(&partition, &hopeless), Err((many, Refusal::TransactionTooLarge)));
    let named = stored(3 * many, "{}");
    assert_eq!(write(&partition, std::slice::from_ref(&named)), Ok(1));
    let Action::Upsert(document) = named.action.clone() else { panic!("{named:?}") };
    let action = Action::Rename { to: small[0].key.clone(), document };
    let renamed = [&[ItemWrite { action, ..named }], &small[1..]].concat();
    assert_eq!(write(&partition, &renamed), Err((many - 1, Refusal::SweepAwaited)));
    let CommandEffect::Write(Err(refused)) = apply(&partition, 1, Command::Write(renamed)) else {
        panic!("it was refused before")
    };
    assert_eq!(refused.charge, Charge::ZERO);
    let others = [&small[..many - 1], &[gone]].concat();
    assert_eq!(write(&partition, &others), Err((many - 1, Refusal::NotFound)));
    let limit = NonZeroU32::new(100).unwrap();
    apply(&partition, 2, Command::Sweep { limit, grace: Millis(0) });
    assert_eq!(write(&partition, &small), Ok(many));
}

/// Conditions that each are within their limit may not take forever together.
#[test]
fn a_transaction_judges_only_so_long() {
    let partition = partition(&MemoryEngine::default());
    let body = format!(r#"{{"id":"i0","pk":0,"t":[{}]}}"#, vec!["1"; 150].join(","));
    let stored = writes(upsert_body(0, None, body.as_bytes(), 0)).remove(0);
    assert_eq!(write(&partition, std::slice::from_ref(&stored)), Ok(1));
    let paths = vec![vec!["pk".into()]];
    let index = IndexRules::new(&indexing::complete(None).unwrap()).unwrap();
    let rules = DocumentRules::new(KeyDefinition { kind: KeyKind::HashV2, paths }, index);
    let condition =
        "FROM c WHERE NOT EXISTS(SELECT VALUE 1 FROM a IN c.t JOIN b IN c.t WHERE a > b)";
    let text = serde_json::json!({
        "operations": [{ "op": "incr", "path": "/n", "value": 1 }],
        "condition": condition,
    });
    let text = text.to_string().into_bytes();
    let action = Action::Patch(PatchRequest { text, rules: rules.into() });
    let patch = ItemWrite { action, ..stored };
    let Err((refused, reason)) = write(&partition, &vec![patch.clone(); 100]) else {
        panic!("a hundred such conditions take seconds")
    };
    assert_eq!(reason, Refusal::TransactionTooLarge);
    assert!((5..50).contains(&refused), "{refused}");
    assert_eq!(write(&partition, &vec![patch; refused]), Ok(refused), "so many it may be");
}

#[test]
fn a_partition_without_ttl_has_nothing_due() {
    let partition = partition(&MemoryEngine::new());
    apply(&partition, 100, upsert(1, Some(5)));
    assert_eq!(partition.find_due().unwrap(), None);
    apply(&partition, 101, upsert(2, Some(5)));
    assert_eq!(partition.due(), None);
}

#[test]
fn a_shorter_ttl_moves_the_alarm_forward() {
    let partition = partition(&MemoryEngine::new());
    let epoch = PolicyEpoch(1);
    apply(
        &partition,
        100,
        Command::SetTtlPolicy { epoch, policy: policy(Some(1000)), retention: None },
    );
    apply(&partition, 100, upsert(1, None));
    assert_eq!(partition.find_due().unwrap(), Some(Seconds(1100)));
    apply(&partition, 100, upsert(2, Some(5)));
    assert_eq!(partition.due(), Some(Seconds(105)));
}

#[test]
fn a_partition_whose_rows_are_being_replaced_has_no_policy_to_be_read_by() {
    let partition = partition(&MemoryEngine::new());
    let epoch = PolicyEpoch(1);
    apply(
        &partition,
        100,
        Command::SetTtlPolicy { epoch, policy: policy(Some(1000)), retention: None },
    );
    apply(&partition, 100, upsert(1, None));
    let whole = partition.state();
    assert_eq!(whole.ttl().epoch(), epoch);

    partition.unload();
    assert_eq!(partition.state().ttl().epoch(), PolicyEpoch(0));
    assert_eq!(partition.snapshot().state().ttl().epoch(), PolicyEpoch(0));
    partition.reload().unwrap();
    assert_eq!(partition.state(), whole);
}

#[test]
fn a_sweep_tells_what_its_deletes_would_have_cost() {
    let partition = partition(&MemoryEngine::new());
    let epoch = PolicyEpoch(1);
    let policy = policy(Some(5));
    apply(&partition, 100, Command::SetTtlPolicy { epoch, policy, retention: None });
    apply(&partition, 100, upsert_body(1, None, &[b' '; 3000], 4));
    apply(&partition, 100, upsert_body(2, Some(3), b"{}", 10));
    apply(&partition, 100, upsert_body(3, Some(-1), b"{}", 10));
    let sweep = |limit| {
        let limit = NonZeroU32::new(limit).unwrap();
        let effect = apply(&partition, 110, Command::Sweep { limit, grace: Millis(0) });
        let CommandEffect::Swept { removed, charge, .. } = effect else { panic!("{effect:?}") };
        (removed, charge)
    };
    assert_eq!(sweep(1), (1, Charge::create(2, 10)));
    assert_eq!(sweep(10), (1, Charge::create(3000, 4)));
    assert_eq!(sweep(10), (0, Charge::ZERO));
}

fn clear(key: u64) -> Command {
    let definition = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
    let value = PartitionKey::parse(&format!("[{key}]")).unwrap();
    Command::Clear(LogicalPartition::new(&definition.place(&value), &value))
}

fn sweep_cleared(partition: &Partition, limit: u32) -> (u32, bool) {
    let limit = NonZeroU32::new(limit).unwrap();
    let rows = partition.snapshot().cleared_rows(limit).unwrap().unwrap_or_default();
    let effect = apply(partition, 100, Command::SweepCleared(rows));
    let CommandEffect::Swept { removed, more, .. } = effect else { panic!("{effect:?}") };
    (removed, more)
}

#[test]
fn only_so_many_deleted_logical_partitions_may_have_rows() {
    let partition = partition(&MemoryEngine::new());
    let cleared = |key| {
        let effect = apply(&partition, 100, clear(key));
        let CommandEffect::Cleared(result) = effect else { panic!("{effect:?}") };
        result
    };
    apply(&partition, 100, upsert(0, None));
    apply(&partition, 100, upsert(1, None));
    for _ in 0..CLEARED_MAX {
        assert_eq!(cleared(0), Ok(()));
    }
    assert_eq!(cleared(1), Err(TooManyCleared), "there is no room for it");
    // The first has ended the item; the others find nothing.
    assert_eq!(sweep_cleared(&partition, 10), (1, true));
    assert_eq!(cleared(1), Ok(()), "there is room again");
    let mut removed = 0;
    while partition.is_clearing() {
        removed += sweep_cleared(&partition, 10).0;
    }
    assert_eq!(removed, 1);
    assert!(!partition.is_clearing());
}

/// Between the moment in which a request learned where an item stands and its entry another item may have come
/// there.
#[test]
fn a_write_to_an_item_named_by_its_number_touches_no_other_one() {
    let engine = MemoryEngine::new();
    let partition = partition(&engine);
    apply(&partition, 100, upsert(1, None));
    let [number] = stored_numbers(&partition)[..] else { panic!("one item") };
    let Command::Write(written) = upsert(1, None) else { panic!("a write") };
    let delete = |number| {
        let key = written[0].key.clone();
        let precondition = Precondition::IsItem(number);
        let action = Action::Delete;
        let command = Command::Write(vec![ItemWrite { key, precondition, action }]);
        let effect = apply(&partition, 100, command);
        let CommandEffect::Write(result) = effect else { panic!("{effect:?}") };
        result.map(drop).map_err(|refused| refused.refusal)
    };
    assert_eq!(delete(number), Ok(()));
    apply(&partition, 100, upsert(1, None));
    assert_eq!(delete(number), Err(Refusal::NotFound), "it has the same key, and is another item");
    assert_eq!(partition.state().items(), 1);
}

/// By the feed as long as it is the first version of its item, then by a row of its own.
#[test]
fn a_number_leads_to_its_item_wherever_that_goes() {
    let partition = partition(&MemoryEngine::new());
    let rows = || numbered(&partition, Table::Numbers);
    let rename = |from: u64, to: u64| {
        let [from, to] = [from, to].map(|id| writes(upsert(id, None)).remove(0));
        let Action::Upsert(document) = to.action else { panic!("an upsert") };
        let action = Action::Rename { to: to.key.clone(), document };
        assert_eq!(write(&partition, &[ItemWrite { action, ..from }]), Ok(1));
        to.key
    };
    let key = |id| writes(upsert(id, None)).remove(0).key;
    let [first, other] = [0, 1].map(|id| writes(upsert(id, None)).remove(0));
    assert_eq!(write(&partition, &[first.clone(), other]), Ok(2));
    let number = ItemNumber::new(first.key.slot(), partition.state().lsn(), 0);
    assert_eq!((partition.find(number).unwrap(), rows()), (Some(key(0)), vec![]));
    let elsewhere = ItemNumber::new(first.key.slot(), partition.state().lsn(), 2);
    assert_eq!(partition.find(elsewhere).unwrap(), None);
    let of_another_slot = ItemNumber::new(!first.key.slot(), partition.state().lsn(), 0);
    assert_eq!(partition.find(of_another_slot).unwrap(), None, "another item stands there");

    for _ in 0..2 {
        assert_eq!(write(&partition, std::slice::from_ref(&first)), Ok(1));
        assert_eq!((partition.find(number).unwrap(), rows()), (Some(key(0)), vec![number]));
        // Where the version that is there now stands no item was created.
        let replaced_at = ItemNumber::new(first.key.slot(), partition.state().lsn(), 0);
        assert_eq!(partition.find(replaced_at).unwrap(), None);
    }
    let moved = rename(0, 3);
    assert_eq!((partition.find(number).unwrap(), rows()), (Some(moved.clone()), vec![number]));
    assert_eq!(partition.snapshot().item_numbered(number).unwrap().unwrap().0, moved);

    // A first version that goes elsewhere, too.
    apply(&partition, 100, upsert(6, None));
    let sixth = ItemNumber::new(key(6).slot(), partition.state().lsn(), 0);
    let moved_at_once = rename(6, 0);
    assert_eq!(partition.find(sixth).unwrap(), Some(moved_at_once));

    for (key, number) in [(moved, number), (key(0), sixth)] {
        let (action, precondition) = (Action::Delete, Precondition::IsItem(number));
        assert_eq!(write(&partition, &[ItemWrite { key, precondition, action }]), Ok(1));
        assert_eq!(partition.find(number).unwrap(), None);
    }
    assert_eq!(rows(), []);
}

#[test]
fn an_entry_has_only_so_many_operations() {
    let partition = partition(&MemoryEngine::new());
    let all: Vec<_> = (0..=ItemNumber::OPERATIONS_MAX as u64)
        .map(|id| writes(upsert(3 * id, None)).remove(0))
        .collect();
    let last = all.len() - 1;
    assert_eq!(write(&partition, &all), Err((last, Refusal::TransactionTooLarge)));
    assert_eq!(partition.state().items(), 0);
    assert_eq!(write(&partition, &all[..last]), Ok(last));
}

#[test]
fn an_entry_walks_few_megabytes_of_what_was_deleted() {
    let partition = partition(&MemoryEngine::new());
    for id in 0..9 {
        apply(&partition, 100, upsert_body(3 * id, None, &vec![b' '; 1 << 20], 0));
    }
    apply(&partition, 100, clear(0));
    // What is written since is walked, too, and stays.
    apply(&partition, 100, upsert_body(0, None, &vec![b' '; 1 << 20], 0));
    assert_eq!(sweep_cleared(&partition, 100), (4, true));
    assert_eq!(sweep_cleared(&partition, 100), (4, true));
    assert_eq!(sweep_cleared(&partition, 100), (0, false));
    assert_eq!(partition.state().items(), 1);
}

/// How a build of the index goes on from a step: items entered, and whether there are more.
fn build(partition: &Partition, step: BuildStep) -> (u32, bool) {
    let effect = apply(partition, 100, Command::BuildIndex(step));
    let CommandEffect::IndexBuilt { items, more, .. } = effect else { panic!("{effect:?}") };
    (items, more)
}

/// Whoever leads looks ahead, and others may write meanwhile, or lead and do the same.
#[test]
fn a_step_of_a_build_that_comes_late_does_no_harm() {
    let partition = partition(&MemoryEngine::new());
    let rules = IndexRules::new(&indexing::complete(None).unwrap()).unwrap();
    let rules = |epoch| Command::SetIndexPolicy { epoch: PolicyEpoch(epoch), rules: rules.clone() };
    let ids = (0..9).map(|n| 3 * n);
    for id in ids.clone().step_by(2) {
        apply(&partition, 100, upsert_body(id, None, br#"{"id":"i","pk":0}"#, 2));
    }
    apply(&partition, 100, rules(1));
    let step = |limit| {
        let step = partition.snapshot().build_step(NonZeroU32::new(limit).unwrap());
        step.unwrap().expect("it is being built")
    };
    let (first, other) = (step(2), step(1));
    assert_eq!(build(&partition, first.clone()), (2, true));
    assert_eq!(build(&partition, first), (0, true));
    assert_eq!(build(&partition, other), (0, true));
    let last = step(100);
    for id in ids.skip(1).step_by(2) {
        apply(&partition, 100, upsert_body(id, None, br#"{"id":"i","pk":0}"#, 2));
    }
    let (items, more) = build(&partition, last.clone());
    assert!((3..=7).contains(&items) && !more, "{items}");
    assert_eq!(partition.snapshot().index_rows().unwrap().len(), 9 * 2, "of /id and /pk");
    assert_eq!(build(&partition, last), (0, false));
    assert_eq!(partition.snapshot().build_step(NonZeroU32::MIN).unwrap(), None);
}

/// A leader may propose what another has done already, and what it looked up before somebody wrote.
#[test]
fn rows_of_a_deletion_that_are_proposed_late_or_twice_take_nothing_else() {
    let partition = partition(&MemoryEngine::new());
    (0..4).for_each(|id| drop(apply(&partition, 100, upsert(3 * id, None))));
    apply(&partition, 100, clear(0));
    let look = |limit| {
        let rows = partition.snapshot().cleared_rows(NonZeroU32::new(limit).unwrap());
        Command::SweepCleared(rows.unwrap().unwrap())
    };
    let (two, all) = (look(2), look(100));
    // Items that were looked up are there again, and others have come between.
    apply(&partition, 100, upsert(0, None));
    apply(&partition, 100, upsert(15, None));
    let sweep = |rows: &Command| {
        let effect = apply(&partition, 100, rows.clone());
        let CommandEffect::Swept { removed, more, .. } = effect else { panic!("{effect:?}") };
        (removed, more)
    };
    let (first, second) = (sweep(&two), sweep(&two));
    assert_eq!((first.1, second), (true, (0, true)));
    assert_eq!(sweep(&all).0 + first.0, 3, "all but the one that was written again");
    assert_eq!((sweep(&all), sweep(&two)), ((0, false), (0, false)));
    assert_eq!(partition.state().items(), 2);
    assert!(!partition.is_clearing());
}

/// Garbage is passed by who looks, not by those who apply.
#[test]
fn a_look_for_rows_of_a_deletion_ends_and_goes_on_where_it_came_to() {
    let partition = partition(&MemoryEngine::new());
    apply(&partition, 100, upsert(0, None));
    apply(&partition, 100, clear(0));
    let rows = |limit| partition.snapshot().cleared_rows(NonZeroU32::new(limit).unwrap()).unwrap();
    let one = rows(1).unwrap();
    apply(&partition, 100, Command::SweepCleared(one));
    assert!(partition.is_clearing(), "it was not looked whether that was all");
    apply(&partition, 100, Command::SweepCleared(rows(1).unwrap()));
    assert!(!partition.is_clearing());
    assert_eq!(rows(1), None);
}

/// A partition with little left over must not crawl past what never expires; and one that is slow, and
/// therefore may remove little, must not take long over it.
#[test]
fn an_entry_passes_many_that_live_on_and_more_if_it_may_remove_more() {
    let removed = |limit: u32| {
        let partition = partition(&MemoryEngine::new());
        let (epoch, policy) = (PolicyEpoch(1), policy(Some(5)));
        apply(&partition, 100, Command::SetTtlPolicy { epoch, policy, retention: None });
        for id in 0..2001 {
            apply(&partition, 100, upsert(id, Some(-1)));
        }
        apply(&partition, 100, upsert(2001, None));
        let limit = NonZeroU32::new(limit).unwrap();
        let sweep = || {
            let effect = apply(&partition, 110, Command::Sweep { limit, grace: Millis(0) });
            let CommandEffect::Swept { removed, more, .. } = effect else { panic!("{effect:?}") };
            (removed, more)
        };
        [sweep(), sweep()]
    };
    assert_eq!(removed(1), [(0, true), (1, false)]);
    assert_eq!(removed(200), [(1, false), (0, false)]);
}

/// What was swept need not be sent to others.
#[test]
fn snapshots_leave_garbage_behind() {
    let engine = MemoryEngine::new();
    let partition = partition(&engine);
    apply(
        &partition,
        100,
        Command::SetTtlPolicy { epoch: PolicyEpoch(1), policy: policy(Some(-1)), retention: None },
    );
    for id in 0..100 {
        apply(&partition, 100, upsert(id, (id % 10 > 0).then_some(5)));
    }
    let limit = NonZeroU32::new(1000).unwrap();
    apply(&partition, 200, Command::Sweep { limit, grace: Millis(0) });
    let range = partition.ranges().into_iter().find(|range| range.table == Table::Items).unwrap();
    assert_eq!(engine.scan(&range).count(), 100, "rows of what was swept are there");
    for bytes_max in [usize::MAX, 500, 1] {
        let exporter = Exporter::new(partition.view().0, GroupId(1), partition.ranges());
        let (mut received, mut rows) = (Received::default(), Vec::new());
        while !received.complete {
            let chunk = exporter.chunk(&received, bytes_max).unwrap();
            received.add(&chunk);
            rows.extend(chunk.rows.into_iter().filter(|row| row.table == Table::Items));
        }
        let stamp = |row: &ChunkRow| Item::decode(row.value.clone()).unwrap().stamp;
        let living = rows.iter().filter(|row| stamp(row).ttl == ItemTtl::Inherit).count();
        assert_eq!(living, 10, "{bytes_max}: each once");
        let garbage = rows.len() - living;
        let is_little = if bytes_max == usize::MAX { garbage == 0 } else { garbage < 90 };
        assert!(is_little, "{bytes_max}: {garbage} rows of garbage");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Upsert(u64, Option<i64>),
    Policy(Option<i64>),
    Sweep(u32),
    Wait(u64),
    Look,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let ttl = prop_oneof![Just(None), Just(Some(-1)), (1..30_i64).prop_map(Some)];
    prop_oneof![
        6 => (0..20_u64, ttl.clone()).prop_map(|(id, ttl)| Step::Upsert(id, ttl)),
        1 => ttl.prop_map(Step::Policy),
        2 => (1..8_u32).prop_map(Step::Sweep),
        2 => (0..20_u64).prop_map(Step::Wait),
        2 => Just(Step::Look),
        1 => Just(Step::Restart),
    ]
}

/// The numbers of the items that are stored.
fn stored_numbers(partition: &Partition) -> Vec<ItemNumber> {
    let view = partition.snapshot();
    let items = view.items(&view.keys().slots(Table::Items, SlotRange::ALL));
    let mut numbers: Vec<_> = items.map(|item| item.unwrap().1.stamp.number).collect();
    numbers.sort();
    numbers
}

/// The item numbers at the ends of the keys of a table, as they lie in the engine.
fn numbered(partition: &Partition, table: Table) -> Vec<ItemNumber> {
    let ranges = partition.ranges().into_iter().filter(|range| range.table == table);
    item_numbers(ranges.flat_map(|range| partition.snapshot().rows(&range).unwrap()))
}

fn item_numbers(rows: impl IntoIterator<Item = Row>) -> Vec<ItemNumber> {
    let number = |(key, _): Row| *key.last_chunk().expect("a number");
    let rows = rows.into_iter();
    let mut numbers: Vec<_> = rows.map(|row| ItemNumber(u64::from_be_bytes(number(row)))).collect();
    numbers.sort();
    numbers
}

/// Runs of items that die, and of items that live: long ones, short ones, and lone ones.
fn lives() -> impl Strategy<Value = Vec<bool>> {
    let run = (any::<bool>(), prop_oneof![1..4_usize, 10..40_usize, Just(100)]);
    let runs = prop::collection::vec(run, 1..12);
    runs.prop_map(|runs| {
        runs.into_iter().flat_map(|(lives, count)| std::iter::repeat_n(lives, count)).collect()
    })
}

proptest! {
    #[test]
    fn a_sweep_takes_every_row_of_the_dead_and_none_of_the_living(
        lives in lives(),
        limit in prop_oneof![Just(1000_u32), 1..50_u32],
        has_own in any::<bool>(),
    ) {
        let engine = MemoryEngine::new();
        let partition = partition(&engine);
        let default = if has_own { Some(-1) } else { Some(10) };
        let (epoch, policy) = (PolicyEpoch(1), policy(default));
        apply(&partition, 100, Command::SetTtlPolicy { epoch, policy, retention: None });
        let index = crate::indexing::complete(None).unwrap();
        let rules = crate::indexing::IndexRules::new(&index).unwrap();
        apply(&partition, 100, Command::SetIndexPolicy { epoch, rules });
        for (id, lives) in (0..).zip(&lives) {
            let ttl = match (has_own, lives) {
                (true, true) | (false, false) => None,
                (true, false) => Some(10),
                (false, true) => Some(-1),
            };
            let body = format!("{{\"id\":\"i{id}\",\"one\":1,\"few\":{}}}", id % 3);
            apply(&partition, 100, upsert_body(id, ttl, body.as_bytes(), 3));
        }
        let limit = NonZeroU32::new(limit).unwrap();
        let sweep = || apply(&partition, 200, Command::Sweep { limit, grace: Millis(0) });
        while matches!(sweep(), CommandEffect::Swept { more: true, .. }) {}
        let living = lives.iter().filter(|lives| **lives).count();
        prop_assert_eq!(partition.state().items(), living as u64);
        let view = partition.snapshot();
        let kept = |table| view.kept_rows(&KeyRange::prefix(table, Vec::new())).unwrap();
        let numbers = stored_numbers(&partition);
        prop_assert_eq!(numbers.len(), living);
        prop_assert_eq!(kept(Table::Items).len(), living);
        // `id`, `one`, `few`
        let entered: Vec<_> = numbers.iter().flat_map(|number| [*number; 3]).collect();
        prop_assert_eq!(&item_numbers(partition.snapshot().index_rows().unwrap()), &entered);
        engine.flush().unwrap();
        prop_assert_eq!(numbered(&partition, Table::Index), entered);
        prop_assert_eq!(numbered(&partition, Table::Expiry), []);
        for table in [Table::Items, Table::Feed] {
            prop_assert_eq!(numbered(&partition, table).len(), living);
        }
        prop_assert_eq!(numbered(&partition, Table::Numbers), [], "each was written once");
    }

    #[test]
    fn the_alarm_is_never_late(steps in prop::collection::vec(step(), 1..60)) {
        let engine = MemoryEngine::new();
        let mut partition = partition(&engine);
        let (mut now, mut epoch) = (100, 0);
        for step in steps {
            match step {
                Step::Upsert(id, ttl) => {
                    apply(&partition, now, upsert(id, ttl));
                }
                Step::Policy(default) => {
                    epoch += 1;
                    let (epoch, policy) = (PolicyEpoch(epoch), policy(default));
                    apply(&partition, now, Command::SetTtlPolicy { epoch, policy, retention: None });
                }
                Step::Sweep(limit) => {
                    let limit = NonZeroU32::new(limit).unwrap();
                    apply(&partition, now, Command::Sweep { limit, grace: Millis(0) });
                }
                Step::Wait(seconds) => now += seconds,
                Step::Look => {
                    let _ = partition.find_due().unwrap();
                }
                Step::Restart => partition = super::tests::partition(&engine),
            }
            if let Some(truth) = truth(&partition) {
                let due = partition.due();
                prop_assert!(due.is_some_and(|due| due <= truth), "{:?} but {:?}", due, truth);
                let found = partition.find_due().unwrap();
                prop_assert!(found.is_some_and(|due| due <= truth), "{:?} but {:?}", found, truth);
            }
        }
        // Sweeping until nothing is due empties the partition of everything dead.
        let limit = NonZeroU32::new(100).unwrap();
        for _ in 0..20 {
            apply(&partition, now, Command::Sweep { limit, grace: Millis(0) });
        }
        let view = partition.snapshot();
        let range = view.keys().slots(Table::Items, SlotRange::ALL);
        for item in view.items(&range) {
            let stamp = item.unwrap().1.stamp;
            prop_assert!(!view.state().ttl().has_expired(stamp.ttl, stamp.ts));
        }
    }
}
