//! Compares a partition with a naive reading of `docs/TTL.md`, over long random histories.
//!
//! 1. `history` draws writes, policy changes, sweeps, crashes, snapshots, and what clocks read.
//! 2. `world` has two replicas and the model do the same, step by step.
//! 3. `naive` keeps every version and every setting there ever was, and no floors.
//! 4. Each law below compares after every step what it is about.
//! 5. `races` and `scenarios` are cases of the catalogue in `docs/TESTING.md`.
//!
//! `PROPTEST_CASES=2560` does ten times as much as the default.

mod history;
mod indexes;
mod looks;
mod naive;
mod races;
mod retold;
mod scenarios;
#[path = "../support/query.rs"]
mod support;
mod world;

use std::collections::BTreeSet;

use ephemeris_store::engine::Table;
use ephemeris_store::indexing::IndexState;
use ephemeris_store::time::{ClockInterval, Millis};
use ephemeris_store::ttl::PolicyEpoch;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use history::{Act, IDS, KEYS, Step, history};
use looks::Seen;
use world::{Dead, Done, Reading, World};

const STEPS_MAX: usize = 300;

/// A quarter of the cases asked for, and patience in shrinking: histories are long.
fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig {
        cases: config.cases.div_ceil(4),
        max_shrink_iters: config.max_shrink_iters.min(20_000),
        ..config
    }
}

/// Runs a history, and checks the world after every step.
fn after_every_step(
    steps: &[Step],
    mut check: impl FnMut(&mut World, &Step, Done) -> TestCaseResult,
) -> TestCaseResult {
    let mut world = World::new();
    for step in steps {
        let done = world.step(step);
        check(&mut world, step, done)?;
    }
    Ok(())
}

/// Instants around which a reader may look: now, later, and on both sides of every expiry.
fn instants(world: &World, step: &Step) -> Vec<u64> {
    let mut instants = vec![world.now(), world.now() + step.look_after, world.model.clock];
    for version in world.model.live() {
        if let Some(expiry) = world.model.expiry(version) {
            instants.extend([expiry * 1000 - 1, expiry * 1000]);
        }
    }
    instants
}

/// How many rows say what the index is.
fn index_rows(index: &IndexState) -> usize {
    usize::from(index.epoch() > PolicyEpoch(0)) + usize::from(index.is_building())
}

/// A clock that says nothing, so that an entry happens at the instant of the one before.
fn standing() -> Reading {
    (ClockInterval::exact(Millis(0)), None)
}

proptest! {
    #![proptest_config(config())]

    /// Status, stamp, body and number of every write are those of the model, in batches too.
    #[test]
    fn r2_r5_r7_i9_writes_answer_as_the_model_does(steps in history(STEPS_MAX)) {
        after_every_step(&steps, |_, step, done| {
            prop_assert_eq!(done.difference(), None, "{:?}", step);
            Ok(())
        })?;
    }

    /// Point reads on both sides of every expiry: alive, in doubt or dead, as the model says.
    #[test]
    fn r1_r3_r4_r6_i1_i2_reads_find_what_the_model_holds(steps in history(STEPS_MAX)) {
        after_every_step(&steps, |world, step, _| {
            for hi in instants(world, step) {
                for id in 0..IDS {
                    let found = looks::read(world, &world.leader.partition, id, hi);
                    let expected = looks::expected_read(&world.model, id, hi);
                    prop_assert_eq!(found, expected, "item {} at {} after {:?}", id, hi, step);
                }
            }
            Ok(())
        })?;
    }

    /// Queries, COUNT and the change feed hold exactly what point reads find.
    #[test]
    fn r7_i10_queries_and_feeds_show_what_the_model_holds(steps in history(STEPS_MAX)) {
        after_every_step(&steps, |world, step, _| {
            for hi in [world.model.clock, world.now() + step.look_after] {
                let partition = &world.leader.partition;
                let expected = looks::expected_all(&world.model, hi);
                prop_assert_eq!(&looks::feed(world, partition, hi), &expected, "feed at {}", hi);
                prop_assert_eq!(&looks::query(world, partition, hi), &expected, "query at {}", hi);
                let count = expected.map(|rows| rows.len() as u64);
                prop_assert_eq!(looks::count(world, partition, hi), count, "COUNT at {}", hi);
            }
            Ok(())
        })?;
    }

    /// The clock and the stamps are those of the model, and neither ever goes back.
    #[test]
    fn r10_i8_clock_and_stamps_never_go_back(steps in history(STEPS_MAX)) {
        let mut before = (0, 0);
        after_every_step(&steps, |world, step, _| {
            let state = world.leader.partition.state();
            let after = (state.ttl().clock().0, state.ttl().last_ts().0);
            prop_assert_eq!(after, (world.model.clock, world.model.last_ts), "{:?}", step);
            prop_assert!(before.0 <= after.0 && before.1 <= after.1, "{:?}", step);
            before = after;
            Ok(())
        })?;
    }

    /// A version is a one-shot register, whatever the model says: once missed, never met again.
    #[test]
    fn i3_nothing_seen_dead_is_seen_alive_again(steps in history(STEPS_MAX)) {
        let mut last_serial = [0; IDS as usize];
        let mut gone = BTreeSet::new();
        after_every_step(&steps, |world, step, _| {
            for id in 0..IDS {
                let last = &mut last_serial[usize::from(id)];
                match looks::read(world, &world.leader.partition, id, world.now()) {
                    Seen::InDoubt(_) => {}
                    Seen::Dead => {
                        gone.insert(*last);
                    }
                    Seen::Alive((serial, _)) => {
                        prop_assert!(!gone.contains(&serial), "{} is back: {:?}", serial, step);
                        if *last != serial {
                            gone.insert(*last);
                        }
                        *last = serial;
                    }
                }
            }
            Ok(())
        })?;
    }

    /// A sweep removes only what is dead, says truly whether that was all, and the alarm that wakes
    /// it is never late.
    #[test]
    fn i5_i6_sweeps_remove_all_that_is_dead_and_nothing_else(steps in history(STEPS_MAX)) {
        let mut stored_before = 0;
        after_every_step(&steps, |world, step, done| {
            let stored = looks::stored(&world.leader.partition);
            let state = world.leader.partition.state();
            let live: BTreeSet<u8> = world.model.live().iter().map(|version| version.id).collect();
            prop_assert!(live.iter().all(|id| stored.contains(id)), "{:?} took a live item", step);
            prop_assert_eq!(state.items(), stored.len() as u64);
            let cleared = stored.iter().filter(|id| world.model.is_cleared(**id)).count();
            let expired = stored.len() - live.len() - cleared;
            if let Done::Swept { dead, removed, more, kept } = done {
                let left = match dead {
                    Dead::Expired => expired,
                    Dead::Cleared => cleared,
                };
                prop_assert_eq!(removed as usize, stored_before - stored.len());
                prop_assert!(more || kept || left == 0, "{} are left after {:?}", left, step);
                prop_assert!(!kept || removed == 0, "{:?} may not purge yet", step);
            }
            stored_before = stored.len();
            let expiries = world.model.live().into_iter().filter_map(|v| world.model.expiry(v));
            prop_assert!(cleared == 0 || world.leader.partition.is_clearing(), "{:?}", step);
            let overdue = (expired > 0).then_some(world.model.clock / 1000);
            if let Some(truth) = expiries.chain(overdue).min() {
                for due in [world.leader.partition.due(), world.leader.partition.find_due().unwrap()] {
                    prop_assert!(due.is_some_and(|due| due.0 <= truth), "{:?} after {:?}", due, step);
                }
            }
            Ok(())
        })?;
    }

    /// In the end sweeping leaves what lives and nothing else, in every table.
    #[test]
    fn i6_the_backlog_drains(steps in history(STEPS_MAX)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        let mut sweeps = 0;
        while let Done::Swept { more: true, .. } = world.sweep(2, 0, &standing()) {
            sweeps += 1;
            prop_assert!(sweeps < 2 * STEPS_MAX, "sweeping does not come to an end");
        }
        while let Done::Swept { more: true, .. } = world.sweep_cleared(2, &standing()) {
            sweeps += 1;
            prop_assert!(sweeps < 4 * STEPS_MAX, "sweeping does not come to an end");
        }
        prop_assert!(!world.leader.partition.is_clearing());
        let live = world.model.live();
        let later = live.iter().filter(|version| world.model.is_later(version)).count();
        let own = live.iter().filter(|version| version.ttl.is_some_and(|ttl| ttl > 0)).count();
        for (table, rows) in world.leader.contents() {
            let expected = match table {
                Table::Items | Table::Feed | Table::Unique => live.len(),
                Table::Numbers => later,
                Table::Expiry => own,
                Table::Meta => 3 + index_rows(&world.leader.partition.index()),
                Table::Catalog | Table::History => 0,
                // `the_index_holds_the_entries_of_what_is_stored` says which.
                Table::Index => continue,
            };
            prop_assert_eq!(rows.len(), expected, "{}", table.name());
        }
    }

    /// After writes, sweeps, crashes and changes of the policy the index holds the entries of what is
    /// stored, and no others; what is being built holds those of the first items.
    #[test]
    fn the_index_holds_the_entries_of_what_is_stored(steps in history(STEPS_MAX)) {
        after_every_step(&steps, |world, step, _| {
            let (serving, wanted) = (world.index.serving, world.index.wanted);
            let complaint = indexes::complaint(&world.leader.partition, serving, wanted);
            prop_assert_eq!(complaint, None, "after {:?}", step);
            Ok(())
        })?;
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        while world.leader.partition.index().is_building() {
            world.build_index(2, &standing());
        }
        world.catch_up(usize::MAX);
        for partition in [&world.leader.partition, &world.follower.partition] {
            let wanted = world.index.wanted;
            prop_assert_eq!(indexes::complaint(partition, wanted, wanted), None);
        }
    }

    /// No two items that exist in one logical partition share their unique key; and every one of them has
    /// its entry, which no other item has.
    #[test]
    fn r7_unique_keys_are_unique_among_what_exists(steps in history(STEPS_MAX)) {
        after_every_step(&steps, |world, step, _| {
            let entries = looks::unique(&world.leader.partition);
            let mut taken = BTreeSet::new();
            for version in world.model.live() {
                let shared = (version.id % KEYS, version.unique);
                prop_assert!(taken.insert(shared), "{:?} twice after {:?}", shared, step);
                let entry = (version.number, version.id);
                prop_assert!(entries.contains(&entry), "{:?} has no entry, {:?}", entry, step);
            }
            let stored = looks::stored(&world.leader.partition);
            prop_assert!(entries.iter().all(|(_, id)| stored.contains(id)), "after {:?}", step);
            prop_assert!(entries.len() <= stored.len(), "{:?} after {:?}", entries, step);
            Ok(())
        })?;
    }

    /// R13: who follows the feed of all versions and deletes is told of every version once, in order, and
    /// knows at any time what is stored; what expired is told as such, and before what comes after it.
    #[test]
    fn r13_the_feed_of_all_versions_tells_everything_once(steps in history(STEPS_MAX)) {
        let (mut world, mut reader) = (World::that_remembers(), retold::Reader::default());
        for step in &steps {
            world.step(step);
            prop_assert_eq!(reader.follow(&world), Ok(()), "after {:?}", step);
        }
        while let Done::Swept { more: true, .. } = world.sweep(2, 0, &standing()) {}
        while let Done::Swept { more: true, .. } = world.sweep_cleared(2, &standing()) {}
        prop_assert_eq!(reader.follow(&world), Ok(()));
    }

    /// What reads entries alone is told of every item that is not surely alive.
    #[test]
    fn i10_what_is_overdue_is_what_is_not_surely_alive(steps in history(STEPS_MAX)) {
        after_every_step(&steps, |world, step, _| {
            for hi in instants(world, step) {
                let found = looks::overdue(&world.leader.partition, hi);
                let expected = looks::expected_overdue(&world.leader.partition, hi);
                prop_assert_eq!(found, expected, "at {} after {:?}", hi, step);
            }
            Ok(())
        })?;
    }

    /// Whether rows were removed yet cannot be told: a partition that is swept before every entry and
    /// one that never is answer the same, etags, numbers and charges included.
    #[test]
    fn r7_i10_sweeping_cannot_be_told(steps in history(STEPS_MAX)) {
        let (mut swept, mut unswept) = (World::new(), World::new());
        for step in &steps {
            swept.sweep(100, 0, &standing());
            swept.sweep_cleared(100, &standing());
            unswept.advance(&standing());
            unswept.advance(&standing());
            let is_sweep = matches!(step.act, Act::Sweep { .. } | Act::SweepCleared { .. });
            let act = if is_sweep { Act::Advance } else { step.act.clone() };
            let step = Step { act, ..step.clone() };
            let done = [&mut swept, &mut unswept].map(|world| world.step(&step));
            if let [Done::Written { .. }, Done::Written { .. }] = done {
                prop_assert_eq!(swept.last_outcome(), unswept.last_outcome(), "{:?}", step);
            }
            let hi = swept.now();
            for id in 0..IDS {
                let [a, b] = [&swept, &unswept]
                    .map(|world| looks::read(world, &world.leader.partition, id, hi));
                prop_assert_eq!(a, b, "{} after {:?}", id, step);
            }
            let [a, b] = [&swept, &unswept]
                .map(|world| looks::feed(world, &world.leader.partition, hi));
            prop_assert_eq!(a, b, "after {:?}", step);
        }
    }

    /// Crashes, replays and snapshots neither revive nor drop anything: two replicas at the same
    /// entry hold the same bytes, and entries replayed answer the same.
    #[test]
    fn r14_i4_replicas_at_the_same_entry_are_equal(steps in history(STEPS_MAX)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            let (leader, follower) = (&world.leader.partition, &world.follower.partition);
            if leader.state().applied() == follower.state().applied() {
                prop_assert_eq!(leader.state(), follower.state(), "after {:?}", step);
            }
        }
        world.catch_up(usize::MAX);
        let (leader, follower) = (&world.leader, &world.follower);
        prop_assert_eq!(leader.partition.state(), follower.partition.state());
        prop_assert_eq!(leader.contents(), follower.contents());
        for id in 0..IDS {
            let hi = world.now();
            let expected = looks::expected_read(&world.model, id, hi);
            prop_assert_eq!(looks::read(&world, &follower.partition, id, hi), expected);
        }
    }
}
