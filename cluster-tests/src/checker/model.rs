//! One key as a machine would hold it that does one thing after the other.
//!
//! An operation happens at an instant between its call and its return. All that is known of the instant
//! of the last one is how early it may have been; as instants never go back, the earliest is the best.

use std::collections::HashMap;

use crate::history::{Action, Nanos, Operation, Outcome, Policy, SECOND, Ttl};

/// How far clocks may be off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tolerance {
    /// Between the clients' clock and the cluster's.
    pub skew: Nanos,
    /// Of the interval within which the cluster knows the time: so far may the clock lag by which a
    /// write is decided.
    pub width: Nanos,
}

impl Tolerance {
    /// The first second that a version can be stamped with that was asked for then: stamps are rounded up.
    pub fn first_stamp(self, call: Nanos) -> u64 {
        call.saturating_sub(self.skew).div_ceil(SECOND)
    }

    /// The last second that a version can be stamped with that was there by then.
    pub fn last_stamp(self, ret: Nanos) -> u64 {
        (ret + self.skew + self.width) / SECOND + 1
    }
}

/// When a version was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stamp {
    /// This is its `_ts`.
    Known(u64),
    /// Nobody saw it: not before this second.
    AtLeast(u64),
}

/// A version that was not deleted, nor replaced; it may have expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Version {
    serial: u64,
    stamp: Stamp,
    ttl: Ttl,
}

/// What the machine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct State {
    policy: Policy,
    item: Option<Version>,
}

/// A state, and the earliest instant at which it can have been reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reached {
    pub(super) state: State,
    pub(super) since: Nanos,
}

/// What an operation found.
#[derive(Clone, Copy)]
enum Found {
    Alive(Version),
    Gone,
}

/// The machine, and what is known of the versions of its key.
pub(super) struct Model {
    tolerance: Tolerance,
    /// The stamps that anybody saw, by serial.
    stamps: HashMap<u64, u64>,
}

impl Model {
    /// None if the answers contradict each other about a stamp.
    pub(super) fn new(operations: &[Operation], tolerance: Tolerance) -> Option<Self> {
        let mut stamps = HashMap::new();
        for (serial, ts) in operations.iter().filter_map(Operation::told) {
            if *stamps.entry(serial).or_insert(ts) != ts {
                return None;
            }
        }
        Some(Self { tolerance, stamps })
    }

    pub(super) fn start(policy: Policy) -> Reached {
        Reached { state: State { policy, item: None }, since: 0 }
    }

    /// Every state in which an operation can leave the machine, in order, each once.
    pub(super) fn step(&self, operation: &Operation, from: &[Reached]) -> Vec<Reached> {
        let mut reached = Vec::with_capacity(from.len());
        for one in from {
            self.step_from(operation, *one, &mut reached);
        }
        reached.sort_unstable();
        // The earliest of equal states comes first.
        reached.dedup_by_key(|one| one.state);
        reached
    }

    fn step_from(&self, operation: &Operation, from: Reached, reached: &mut Vec<Reached>) {
        let (state, at) = (from.state, from.since.max(operation.call));
        let last = operation.ret.unwrap_or(Nanos::MAX);
        let mut go_on = |found: Found, since: Nanos| {
            if since <= last
                && let Some(after) = self.after(operation, state.policy, found)
                && (operation.outcome != Outcome::Unknown
                    || is_done(operation, found, state, after))
            {
                reached.push(Reached { state: after, since });
            }
        };
        match state.item {
            None => go_on(Found::Gone, at),
            Some(version) => {
                if self.may_be_alive(operation, state.policy, version, at) {
                    go_on(Found::Alive(version), at);
                }
                if let Some(expiry) = earliest_expiry(state.policy, version) {
                    go_on(Found::Gone, at.max(expiry.saturating_sub(self.tolerance.skew)));
                }
            }
        }
    }

    /// A read goes by the time at which it looks; what is decided when an entry is applied, by an earlier
    /// one, which whoever proposed it took by a clock that may lag.
    fn may_be_alive(
        &self,
        operation: &Operation,
        policy: Policy,
        version: Version,
        at: Nanos,
    ) -> bool {
        let (Stamp::Known(_), Some(expiry)) = (version.stamp, earliest_expiry(policy, version))
        else {
            return true;
        };
        let Tolerance { skew, width } = self.tolerance;
        if let Action::Read { .. } = operation.action {
            at <= expiry + skew
        } else {
            operation.call <= expiry + skew + width
        }
    }

    /// What an operation makes of what it found; none if its answer is not one to that.
    fn after(&self, operation: &Operation, policy: Policy, found: Found) -> Option<State> {
        use Outcome::{
            Conflict, Created, Deleted, NotFound, NotModified, PolicyChanged, PreconditionFailed,
            Replaced, Unknown,
        };
        let outcome = operation.outcome;
        let as_it_was = match found {
            Found::Alive(version) => State { policy, item: Some(version) },
            Found::Gone => State { policy, item: None },
        };
        let write = |ttl: Ttl| {
            let serial = operation.action.serial().expect("a write has a serial");
            let stamp = match self.stamps.get(&serial) {
                Some(ts) => Stamp::Known(*ts),
                None => Stamp::AtLeast(self.tolerance.first_stamp(operation.call)),
            };
            State { policy, item: Some(Version { serial, stamp, ttl }) }
        };
        let matches = |version: Version| {
            operation.action.if_match().is_none_or(|serial| serial == version.serial)
        };
        match (operation.action, found) {
            (Action::Policy { policy }, _) => {
                matches!(outcome, PolicyChanged | Unknown).then_some(State { policy, ..as_it_was })
            }
            (Action::Read { if_none_match }, Found::Alive(version)) => {
                let is_known = if_none_match == Some(version.serial);
                let fits = if let Outcome::Found { serial, .. } = outcome {
                    serial == version.serial && !is_known
                } else {
                    outcome == NotModified && is_known
                };
                fits.then_some(as_it_was)
            }
            (Action::Create { .. }, Found::Alive(_)) => {
                matches!(outcome, Conflict | Unknown).then_some(as_it_was)
            }
            (Action::Upsert { ttl, .. } | Action::Replace { ttl, .. }, Found::Alive(version))
                if matches(version) =>
            {
                matches!(outcome, Replaced { .. } | Unknown).then(|| write(ttl))
            }
            (Action::Patch { .. }, Found::Alive(version)) if matches(version) => {
                matches!(outcome, Replaced { .. } | Unknown).then(|| write(version.ttl))
            }
            (Action::Delete { .. }, Found::Alive(version)) if matches(version) => {
                matches!(outcome, Deleted | Unknown).then_some(State { policy, item: None })
            }
            (
                Action::Upsert { .. }
                | Action::Replace { .. }
                | Action::Patch { .. }
                | Action::Delete { .. },
                Found::Alive(_),
            ) => matches!(outcome, PreconditionFailed | Unknown).then_some(as_it_was),
            (Action::Create { ttl, .. } | Action::Upsert { ttl, .. }, Found::Gone) => {
                matches!(outcome, Created { .. } | Unknown).then(|| write(ttl))
            }
            (
                Action::Read { .. }
                | Action::Replace { .. }
                | Action::Patch { .. }
                | Action::Delete { .. },
                Found::Gone,
            ) => matches!(outcome, NotFound | Unknown).then_some(as_it_was),
        }
    }
}

/// True if an operation has changed something: what nobody knows to be done, and would have done nothing,
/// need not have been done.
fn is_done(operation: &Operation, found: Found, before: State, after: State) -> bool {
    let is_written = after.item.map(|version| version.serial) == operation.action.serial();
    match operation.action {
        Action::Policy { .. } => before.policy != after.policy,
        Action::Delete { .. } => matches!(found, Found::Alive(_)) && after.item.is_none(),
        Action::Read { .. } => false,
        Action::Create { .. }
        | Action::Upsert { .. }
        | Action::Replace { .. }
        | Action::Patch { .. } => is_written && after.item.is_some(),
    }
}

/// The first instant at which a version can be gone; none if it does not expire.
fn earliest_expiry(policy: Policy, version: Version) -> Option<Nanos> {
    let lifetime = policy.lifetime(version.ttl)?;
    let second = match version.stamp {
        Stamp::Known(second) | Stamp::AtLeast(second) => second,
    };
    Some((second + u64::from(lifetime)) * SECOND)
}
