//! Races for one item at the millisecond of its expiry, in every order of the log.

use ephemeris_store::time::{ClockInterval, Millis};

use crate::history::{Act, Condition, Epoch, Operation, Write};
use crate::looks;
use crate::world::{Done, Reading, World};

/// When the item is written, and when it expires, in milliseconds.
const WRITTEN: u64 = 1_000_000;
const EXPIRES: u64 = WRITTEN + 5000;

const OPERATIONS: [Operation; 5] =
    [Operation::Replace, Operation::Upsert, Operation::Patch, Operation::Create, Operation::Delete];

/// One racer: when it was proposed, and what it does.
type Racer = (u64, Act);

/// How a race ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The sweep removed the item, and nobody wrote it anew.
    Swept,
    /// The sweep removed the item, and somebody wrote it anew.
    Rewritten,
    /// The sweep found nothing to remove.
    Kept,
}

/// Any clock reading of so much width.
fn reading(lo: u64, width: u64) -> Reading {
    (ClockInterval::new(Millis(lo), Millis(lo + width)), None)
}

fn write(operation: Operation, ttl: Option<i64>) -> Act {
    let condition = Condition::None;
    Act::Write(vec![Write { id: 0, operation, ttl, tag: None, condition }])
}

/// Every order of three things.
fn orders([a, b, c]: [Racer; 3]) -> [[Racer; 3]; 6] {
    let all = [[&a, &b, &c], [&a, &c, &b], [&b, &a, &c], [&b, &c, &a], [&c, &a, &b], [&c, &b, &a]];
    all.map(|order| order.map(Clone::clone))
}

/// A sweep and two writes, each proposed just before the expiry, at it, or just after it.
fn line_ups(ttl: Option<i64>) -> Vec<[Racer; 3]> {
    let instants = [EXPIRES - 1, EXPIRES, EXPIRES + 1];
    let mut line_ups = Vec::new();
    for (first, second) in OPERATIONS.iter().flat_map(|a| OPERATIONS.map(|b| (*a, b))) {
        for (swept_at, first_at) in instants.iter().flat_map(|a| instants.map(|b| (*a, b))) {
            line_ups.extend(instants.map(|second_at| {
                [
                    (swept_at, Act::Sweep { limit: 1, grace: 0 }),
                    (first_at, write(first, None)),
                    (second_at, write(second, ttl)),
                ]
            }));
        }
    }
    line_ups
}

fn race(order: &[Racer], width: u64, ttl: Option<i64>) -> End {
    let mut world = World::new();
    let policy = Act::SetPolicy { default_ttl: Some(5), epoch: Epoch::Newer(1) };
    world.act(&policy, &reading(WRITTEN, 0));
    world.act(&write(Operation::Create, ttl), &reading(WRITTEN, 0));
    let mut end = End::Kept;
    for (proposed_at, act) in order {
        let done = world.act(act, &reading(*proposed_at, width));
        assert_eq!(done.difference(), None, "{order:?}");
        if let Done::Swept { removed: 1, .. } = done {
            end = End::Swept;
        }
        for hi in [*proposed_at, EXPIRES - 1, EXPIRES, EXPIRES + 5000] {
            let found = looks::read(&world, &world.leader.partition, 0, hi);
            assert_eq!(found, looks::expected_read(&world.model, 0, hi), "{order:?} at {hi}");
        }
    }
    // All rows of the losers are gone, and all of the winner are there.
    world.act(&Act::Sweep { limit: 9, grace: 0 }, &reading(0, 0));
    let live = world.model.live().len();
    assert_eq!(looks::stored(&world.leader.partition).len(), live, "{order:?}");
    if end == End::Swept && live == 1 { End::Rewritten } else { end }
}

#[test]
fn t23_t24_sweeps_and_writes_race_at_the_expiry_in_every_order() {
    let mut ends = Vec::new();
    for (width, ttl) in [(0, None), (0, Some(5)), (3, None), (3, Some(5))] {
        for order in line_ups(ttl).into_iter().flat_map(orders) {
            ends.push(race(&order, width, ttl));
        }
    }
    assert!(ends.len() >= 10_000, "{} rounds", ends.len());
    for end in [End::Swept, End::Rewritten, End::Kept] {
        let rounds = ends.iter().filter(|found| **found == end).count();
        assert!(rounds > 500, "{rounds} rounds end with {end:?}");
    }
}
