//! Explores every history of a small system: the protocol of expiry keeps its promises.
//!
//! 1. `clocks` has three nodes, one with a wrong clock, and what a majority agrees on.
//! 2. `replica` applies entries with the store's own `TtlState`, or with something built in wrongly.
//! 3. `system` lets leaders, late entries and a reader do what they can, in every order.
//! 4. `witness` knows the true time and every answer, and says which promise was broken.
//!
//! The first tests explore everything there is and find nothing broken. The others build one fault in
//! and see that it is found. Time is in half seconds; lives are of one or two seconds.

mod clocks;
mod replica;
mod system;
mod witness;

use std::collections::BTreeSet;

use replica::{Policy, Ttl, Variant};
use stateright::{Checker as _, HasDiscoveries, Model as _};
use system::{Exploration, Onlooker};

/// Two right clocks, a second apart, and a wrong one.
const APART: clocks::Skews = [-1, 1, 8];
const THREADS: usize = 2;

/// Items that inherit, a leader that is slow and one that is fast, and one late entry of any kind.
fn inheriting() -> Exploration {
    Exploration {
        variant: Variant::Real,
        skews: vec![APART],
        leaders: vec![0, 1],
        policies: vec![Policy::Off, Policy::Default(1)],
        ttls: vec![Ttl::Inherit],
        ticks_max: 4,
        writes_max: 2,
        policy_changes_max: 1,
        pending_max: 1,
        onlooker: Onlooker::Reader,
    }
}

/// Explores everything: no promise is broken, and everything worth seeing was seen.
fn keeps_its_promises(exploration: Exploration) {
    let checker = exploration.checker().threads(THREADS).spawn_bfs().join();
    println!("{} steps lead to {} states", checker.state_count(), checker.unique_state_count());
    assert!(checker.is_done(), "everything was explored");
    checker.assert_properties();
}

/// Explores until this promise is broken.
fn breaks(promise: &'static str, exploration: Exploration) {
    let until = HasDiscoveries::AllOf(BTreeSet::from([promise]));
    let checker = exploration.checker().threads(THREADS).finish_when(until).spawn_bfs().join();
    let history = checker.assert_any_discovery(promise).into_actions();
    println!("{promise}, but {history:?}");
}

#[test]
fn i1_i2_i3_i5_hold_for_items_that_inherit() {
    keeps_its_promises(inheriting());
}

#[test]
fn i1_i2_i3_i5_hold_for_items_with_a_ttl_of_their_own() {
    keeps_its_promises(Exploration {
        policies: vec![Policy::Off, Policy::NoDefault],
        ttls: vec![Ttl::Own(1)],
        ..inheriting()
    });
}

#[test]
fn i1_i2_i3_i5_hold_over_many_changes_of_the_policy() {
    keeps_its_promises(Exploration {
        policies: vec![Policy::Off, Policy::NoDefault, Policy::Default(1), Policy::Default(2)],
        ttls: vec![Ttl::Inherit, Ttl::Own(1)],
        ticks_max: 5,
        policy_changes_max: 3,
        pending_max: 0,
        ..inheriting()
    });
}

#[test]
fn i1_i2_i3_i8_hold_whichever_clock_is_wrong_and_however_much() {
    let wrong = [-100, -3, -2, 2, 3, 100];
    let right = [(-1, -1), (-1, 1), (1, 1)];
    let skews = wrong.iter().flat_map(|w| right.iter().map(|(a, b)| [*a, *b, *w]));
    keeps_its_promises(Exploration {
        skews: skews.collect(),
        leaders: vec![0, 1, 2],
        ticks_max: 6,
        pending_max: 0,
        ..inheriting()
    });
}

#[test]
fn i4_replicas_at_the_same_entry_are_equal() {
    keeps_its_promises(Exploration {
        policies: vec![Policy::Off, Policy::NoDefault, Policy::Default(1)],
        ttls: vec![Ttl::Inherit, Ttl::Own(1)],
        pending_max: 0,
        onlooker: Onlooker::Follower,
        ..inheriting()
    });
}

#[test]
fn without_floors_the_dead_come_back() {
    breaks("irreversible", Exploration { variant: Variant::NoFloors, ..inheriting() });
}

#[test]
fn a_404_that_the_log_does_not_know_is_taken_back() {
    breaks("irreversible", Exploration { variant: Variant::UnloggedNotFound, ..inheriting() });
}

#[test]
fn a_200_in_doubt_shows_the_dead() {
    breaks("never late", Exploration { variant: Variant::DoubtIsAlive, ..inheriting() });
}

#[test]
fn a_clock_read_before_the_fetch_shows_what_was_dead_on_arrival() {
    breaks("never late", Exploration { variant: Variant::ClockBeforeFetch, ..inheriting() });
}

#[test]
fn a_leader_that_trusts_its_own_clock_expires_early() {
    let exploration =
        Exploration { variant: Variant::OwnClock, leaders: vec![0, 1, 2], ..inheriting() };
    breaks("never early", exploration.clone());
    breaks("the partition clock is not ahead", exploration);
}

#[test]
fn a_leader_that_trusts_its_own_clock_expires_late() {
    breaks(
        "never late",
        Exploration {
            variant: Variant::OwnClock,
            skews: vec![[-1, 1, -8]],
            leaders: vec![0, 1, 2],
            ..inheriting()
        },
    );
}

#[test]
fn a_sweep_that_names_items_removes_the_living() {
    let exploration = Exploration { variant: Variant::SweepNamesItems, ..inheriting() };
    breaks("a sweep removes only the dead", exploration);
}
