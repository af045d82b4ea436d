//! The entries of `_ts`, compared with what looking at every item finds.

use std::num::NonZeroU32;
use std::ops::{Bound, RangeBounds as _};

use proptest::prelude::*;

use super::super::tests::{apply, partition, policy, upsert_body, writes};
use super::super::{IndexEntry, Partition};
use super::*;
use crate::command::{Action, Command, CommandEffect, ItemWrite};
use crate::engine::{Engine as _, MemoryEngine, Table};
use crate::indexing::{EncodedValue, IndexPath, IndexRange, IndexRules, complete};
use crate::partition_key::SlotRange;
use crate::query::{Number, Value};
use crate::time::Millis;
use crate::ttl::PolicyEpoch;

const IDS: u64 = 30;

#[derive(Clone, Debug)]
enum Step {
    /// Items that are written together: a third of them are deleted.
    Write(Vec<(u64, bool)>),
    Sweep,
    Wait(u64),
    /// Entries without writes.
    Idle(u64),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let write = (0..IDS, prop::bool::weighted(0.3));
    prop_oneof![
        6 => prop::collection::vec(write, 1..6).prop_map(Step::Write),
        1 => Just(Step::Sweep),
        3 => (0..4_u64).prop_map(Step::Wait),
        1 => (1..40_u64).prop_map(Step::Idle),
        1 => Just(Step::Flush),
    ]
}

/// Carries the steps out; returns the partition and what time it is.
fn tell(steps: &[Step]) -> (Partition, u64) {
    let engine = MemoryEngine::new();
    let partition = partition(&engine);
    let rules = IndexRules::new(&complete(None).unwrap()).unwrap();
    let epoch = PolicyEpoch(1);
    apply(&partition, 100, Command::SetIndexPolicy { epoch, rules });
    apply(
        &partition,
        100,
        Command::SetTtlPolicy { epoch, policy: policy(Some(-1)), retention: None },
    );
    let mut now = 100;
    for step in steps {
        match step {
            Step::Write(items) => {
                let write = |(id, is_delete): &(u64, bool)| {
                    let ttl = id.is_multiple_of(5).then_some(3);
                    // One logical partition, or a transaction would not be one.
                    let body = format!("{{\"id\":\"i{id}\"}}");
                    let write = writes(upsert_body(3 * id, ttl, body.as_bytes(), 1)).remove(0);
                    let action = if *is_delete { Action::Delete } else { write.action };
                    ItemWrite { action, ..write }
                };
                let command = Command::Write(items.iter().map(write).collect());
                let effect = apply(&partition, now, command);
                assert!(matches!(effect, CommandEffect::Write(_)), "{effect:?}");
            }
            Step::Sweep => {
                let limit = NonZeroU32::new(2).unwrap();
                apply(&partition, now, Command::Sweep { limit, grace: Millis(0) });
            }
            Step::Wait(seconds) => now += seconds,
            Step::Idle(entries) => {
                for _ in 0..*entries {
                    apply(&partition, now, Command::AdvanceClock);
                }
            }
            Step::Flush => engine.flush().unwrap(),
        }
    }
    (partition, now)
}

/// An entry as an item has it: its stamp and its number.
type Entry = (u64, ItemNumber);

fn value(ts: u64) -> Value {
    Value::Number(Number::Int(i64::try_from(ts).unwrap()))
}

fn encoded((ts, number): Entry) -> IndexEntry {
    IndexEntry { value: EncodedValue::new(&value(ts)), number }
}

/// What stands between two bounds, by looking at every item that is stored.
fn expected(
    partition: &Partition,
    direction: Direction,
    holds: impl Fn(&Entry) -> bool,
) -> Vec<Entry> {
    let view = partition.snapshot();
    let items = view.items(&view.keys().slots(Table::Items, SlotRange::ALL));
    let stamps = items.map(|item| item.unwrap().1.stamp);
    let mut entries: Vec<_> =
        stamps.map(|stamp| (stamp.ts.0, stamp.number)).filter(holds).collect();
    entries.sort();
    if direction == Direction::Backward {
        entries.reverse();
    }
    entries
}

fn bounds() -> impl Strategy<Value = (Bound<u64>, Bound<u64>)> {
    let bound = || {
        (any::<bool>(), 98..140_u64).prop_map(|(is_included, ts)| {
            if is_included { Bound::Included(ts) } else { Bound::Excluded(ts) }
        })
    };
    let open = || Just(Bound::Unbounded);
    let one = (99..120_u64).prop_map(|ts| (Bound::Included(ts), Bound::Included(ts)));
    prop_oneof![(bound(), bound()), (bound(), open()), (open(), bound()), (open(), open()), one]
}

proptest! {
    #[test]
    fn entries_of_stamps_are_those_of_what_is_stored(
        steps in prop::collection::vec(step(), 1..60),
        (low, high) in bounds(),
        direction in prop_oneof![Just(Direction::Forward), Just(Direction::Backward)],
        from in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let (partition, now) = tell(&steps);
        let holds = |(ts, _): &Entry| (low, high).contains(ts);
        let mut wanted = expected(&partition, direction, holds);
        let after = from.filter(|_| !wanted.is_empty()).map(|from| from.index(wanted.len()));
        let start = after.map(|at| wanted[at]);
        wanted.drain(..after.map_or(0, |at| at + 1));

        let range = match (low, high) {
            (Bound::Included(a), Bound::Included(b)) if a == b => {
                IndexRange::equal(IndexPath::ts(), &value(a))
            }
            (Bound::Unbounded, Bound::Unbounded) => IndexRange::all(IndexPath::ts()),
            _ => {
                let (low, high) = (low.map(value), high.map(value));
                IndexRange::between(IndexPath::ts(), low.as_ref(), high.as_ref())
            }
        };
        let view = partition.snapshot();
        let after = start.map(encoded);
        let found: Result<Vec<_>, _> = view.scan_index(&range, direction, after.as_ref()).collect();
        let found: Vec<_> = found.unwrap().into_iter().flatten().collect();
        let wanted: Vec<_> = wanted.into_iter().map(encoded).collect();
        prop_assert_eq!(found, wanted, "at {}", now);
    }
}

/// Whoever pages through them goes on behind what was passed over, and sees nothing twice.
#[test]
fn what_is_passed_over_has_a_place_in_the_order() {
    let twice = |id| [Step::Write(vec![(id, false)]), Step::Write(vec![(id, false)])];
    let steps = [twice(1), twice(2), [Step::Wait(1), Step::Write(vec![(3, false)])]].concat();
    let (partition, _) = tell(&steps);
    let view = partition.snapshot();
    let range = IndexRange::all(IndexPath::ts());
    for direction in [Direction::Forward, Direction::Backward] {
        let mut cursor = view.index_cursor(&range, direction, None);
        let mut all = Vec::new();
        while let Some(entry) = cursor.next_entry().unwrap() {
            let at = IndexEntry { value: entry.value.to_owned(), number: entry.number };
            all.push((at, entry.is_void));
        }
        let passed_over = all.iter().filter(|(_, is_void)| *is_void).count();
        assert_eq!((all.len(), passed_over), (5, 2), "{all:?}");
        for (at, (entry, _)) in all.iter().enumerate() {
            let mut rest = view.index_cursor(&range, direction, Some(entry));
            let next = rest.next_entry().unwrap().map(|entry| (entry.number, entry.is_void));
            let wanted = all.get(at + 1).map(|(entry, is_void)| (entry.number, *is_void));
            assert_eq!(next, wanted);
        }
    }
}
