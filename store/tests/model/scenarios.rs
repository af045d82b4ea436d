//! Scenarios of the catalogue in `docs/TESTING.md` that need pages, two replicas or two partitions.

use std::collections::BTreeSet;

use ephemeris_store::machine::{self, Machine as _};
use ephemeris_store::partition::Partition;
use ephemeris_store::query::{Merged, PageLimits};
use ephemeris_store::time::{ClockInterval, Millis};
use proptest::prelude::*;

use crate::config;
use crate::history::{Act, Condition, Epoch, IDS, Operation, Step, Write, history};
use crate::looks;
use crate::world::{Done, Reading, World, spec};

/// When the scenarios begin, in milliseconds.
const START: u64 = 1_000_000;

fn at(ms: u64) -> Reading {
    (ClockInterval::exact(Millis(ms)), None)
}

fn create(id: u8, ttl: Option<i64>) -> Act {
    let (operation, condition) = (Operation::Create, Condition::None);
    Act::Write(vec![Write { id, operation, ttl, tag: None, condition }])
}

fn sweep(limit: u32) -> Act {
    Act::Sweep { limit, grace: 0 }
}

/// A world in which these items expire after five seconds, and all others after a hundred.
fn world_with(doomed: &[u8]) -> World {
    let mut world = World::new();
    let policy = Act::SetPolicy { default_ttl: Some(100), epoch: Epoch::Newer(1) };
    world.act(&policy, &at(START));
    for id in 0..IDS {
        let ttl = doomed.contains(&id).then_some(5);
        let done = world.act(&create(id, ttl), &at(START));
        assert_eq!(done.difference(), None);
    }
    world
}

/// The serials of page one, and of all pages behind it, five seconds later.
fn pages_around_an_expiry(
    world: &mut World,
    text: &str,
    rows: usize,
    behind: &[Act],
) -> (Vec<u64>, Vec<u64>) {
    let limits = PageLimits { rows, bytes: usize::MAX, items: usize::MAX };
    let page = |world: &World, at, hi| {
        let Merged { rows, next } =
            looks::page(world, &world.leader.partition, text, at, limits, hi)
                .expect("nothing is in doubt");
        let serials = rows.iter().map(|row| looks::row_of(row).0);
        (serials.collect::<Vec<_>>(), next)
    };
    let (first, mut resume) = page(world, None, START);
    let expired = START + 5000;
    for act in behind {
        world.act(act, &at(expired));
    }
    let mut later = Vec::new();
    while let Some(place) = resume {
        let (serials, next) = page(world, Some(place), expired);
        later.extend(serials);
        resume = next;
    }
    (first, later)
}

/// Whatever expired in between, perhaps the very item page one ended with, swept or not.
#[test]
fn t31_pages_behind_an_expiry_have_no_error_no_duplicate_and_no_gap() {
    let orders = ["", "ORDER BY c.v", "ORDER BY c.v DESC"];
    for (order, doomed) in orders.iter().flat_map(|o| (0..1_u8 << IDS).map(move |d| (o, d))) {
        let doomed: Vec<u8> = (0..IDS).filter(|id| doomed & (1 << id) != 0).collect();
        for (rows, behind) in
            [(1, vec![Act::Advance]), (2, vec![Act::Advance]), (2, vec![sweep(9)])]
        {
            let mut world = world_with(&doomed);
            let text = format!("SELECT * FROM c {order}");
            let (first, later) = pages_around_an_expiry(&mut world, &text, rows, &behind);
            let live: BTreeSet<u64> = world.model.live().iter().map(|v| v.serial).collect();
            let shown_before: BTreeSet<u64> = first.iter().copied().collect();
            let expected: BTreeSet<u64> = live.difference(&shown_before).copied().collect();
            let shown_later: BTreeSet<u64> = later.iter().copied().collect();
            assert_eq!(shown_later, expected, "{text}, {rows} rows, doomed {doomed:?}");
            assert_eq!(later.len(), shown_later.len(), "{text}: each is shown once");
        }
    }
}

proptest! {
    #![proptest_config(config())]

    /// The default flips 10, 1000, 10, null, 5 while items are written, swept, and replicas crash.
    #[test]
    fn t38_flips_of_the_default_agree_with_the_model(
        rounds in prop::collection::vec(history(40), 5)
    ) {
        let mut world = World::new();
        for (default_ttl, steps) in [Some(10), Some(1000), Some(10), None, Some(5)].iter().zip(rounds) {
            let epoch = Epoch::Newer(1);
            let now = at(world.now());
            world.act(&Act::SetPolicy { default_ttl: *default_ttl, epoch }, &now);
            for step in steps.iter().filter(|step| !matches!(step.act, Act::SetPolicy { .. })) {
                let done = world.step(step);
                prop_assert_eq!(done.difference(), None, "{:?}", step);
                let hi = world.model.clock;
                let found = looks::feed(&world, &world.leader.partition, hi);
                prop_assert_eq!(found, looks::expected_all(&world.model, hi), "{:?}", step);
            }
        }
    }

    /// A follower that lags behind the whole history is in the same state after every entry.
    #[test]
    fn t48_a_lagging_follower_applies_the_same(steps in history(150)) {
        let concerns_follower = |step: &&Step| {
            matches!(step.act, Act::CatchUp(_) | Act::Snapshot { .. } | Act::Crash(_) | Act::Flush(_))
        };
        let mut world = World::new();
        let mut states = vec![world.leader.partition.state()];
        for step in steps.iter().filter(|step| !concerns_follower(step)) {
            world.step(step);
            states.push(world.leader.partition.state());
        }
        prop_assert_eq!(world.entries(), states.len());
        for state in states {
            world.catch_up(1);
            prop_assert_eq!(world.follower.partition.state(), state);
        }
        prop_assert_eq!(world.follower.contents(), world.leader.contents());
    }
}

/// A snapshot is begun when a sweep has done part of its work; the leader goes on with it while the
/// snapshot is built; whoever installs it goes on from there.
#[test]
fn t46_t47_a_snapshot_in_the_middle_of_a_sweep() {
    for (swept_before, swept_meanwhile) in (0..=IDS).flat_map(|a| (0..=IDS).map(move |b| (a, b))) {
        for (chunk_bytes, crash_after) in [(1, None), (200, Some(3)), (1 << 20, Some(0))] {
            let mut world = world_with(&[0, 2, 3]);
            let expired = at(START + 100_000);
            for _ in 0..swept_before {
                world.act(&sweep(1), &expired);
            }
            let snapshot = world.leader.snapshot();
            for _ in 0..swept_meanwhile {
                world.act(&sweep(1), &expired);
            }
            let nothing = world.follower.partition.find_due().unwrap();
            assert_eq!(nothing, None, "the follower has nothing that could fall due");
            world.follower.install(snapshot, chunk_bytes, crash_after);
            let due = world.follower.partition.due();
            assert!(due.is_some_and(|due| due.start() <= Millis(START + 100_000)), "now it may");
            let found = looks::stored(&world.follower.partition).len();
            let left = if swept_before == 0 { IDS } else { IDS - swept_before };
            assert_eq!(found, usize::from(left), "the moment it was begun");
            // As the next leader: it has what was committed, and finishes.
            world.catch_up(usize::MAX);
            while let Done::Swept { more: true, .. } = world.act(&sweep(1), &expired) {}
            world.catch_up(usize::MAX);
            assert!(looks::stored(&world.follower.partition).is_empty());
            assert_eq!(world.follower.contents(), world.leader.contents());
        }
    }
}

/// The container is deleted and created anew while sweeps of its old partition are queued: the new
/// one is another group with another number, and what the old group applies does not reach it.
#[test]
fn t40_old_sweeps_do_not_reach_a_container_created_anew() {
    let mut old = world_with(&[0, 1]);
    let mut new = old.beside(spec(2, 2));
    let policy = Act::SetPolicy { default_ttl: Some(100), epoch: Epoch::Newer(1) };
    new.act(&policy, &at(START + 4000));
    for id in 0..IDS {
        new.act(&create(id, Some(5)), &at(START + 4000));
    }
    let before = new.leader.contents();
    let done = old.act(&sweep(9), &at(START + 5000));
    assert!(matches!(done, Done::Swept { removed: 2, .. }), "the sweep had something to do");
    assert_eq!(new.leader.contents(), before);
    // What is left of the old one is removed; its group cannot be taken for the new one's.
    let engine = old.leader.engine();
    let mixed = Partition::open(engine.clone(), spec(1, 2));
    assert!(mixed.is_err(), "the old group does not open as the new container's");
    let group = old.leader.partition.spec().group;
    machine::drop_rows(&engine, group, old.leader.partition.ranges()).unwrap();
    assert_eq!(new.leader.contents(), before);
    for (table, rows) in old.leader.contents() {
        assert_eq!(rows.len(), 0, "{} of the old partition", table.name());
    }
    for id in 0..IDS {
        let hi = START + 4000;
        let found = looks::read(&new, &new.leader.partition, id, hi);
        assert_eq!(found, looks::expected_read(&new.model, id, hi));
    }
}
