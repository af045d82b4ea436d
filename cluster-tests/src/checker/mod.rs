//! Judges histories: is what the clients saw what one machine could have shown that does one thing
//! after the other, with items that expire?
//!
//! `check` looks for an order of all operations of a key, and an instant for each, in which every answer
//! is right: no early and no late expiry, nothing lost, nothing done twice, nothing that comes back.
//! `came_back` looks for the last of these alone, in a time that grows with the history and no faster;
//! `stamps` judges what the answers say of time.

mod irreversible;
mod model;
mod search;
mod shrink;
mod stamps;
#[cfg(test)]
mod tests;

use crate::history::{Operation, Policy};

pub use irreversible::{Revival, came_back};
pub use model::Tolerance;
pub use stamps::{WrongStamp, wrong_stamps};

/// What was found about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Ok,
    /// There is none, and none of these alone.
    Illegal(Vec<Operation>),
    /// It took too long to find out.
    Unknown,
}

/// Most steps of one search: some ten seconds and a gigabyte.
pub const STEPS_MAX: usize = 5_000_000;

/// Judges all operations of one key, of a container that began with this time to live.
pub fn check(operations: &[Operation], policy: Policy, tolerance: Tolerance) -> Verdict {
    check_within(operations, policy, tolerance, STEPS_MAX)
}

/// The same, with so many steps at most.
pub fn check_within(
    operations: &[Operation],
    policy: Policy,
    tolerance: Tolerance,
    steps_max: usize,
) -> Verdict {
    match search::is_legal(operations, policy, tolerance, steps_max) {
        Some(true) => Verdict::Ok,
        Some(false) => Verdict::Illegal(shrink::shrunk(operations, policy, tolerance, steps_max)),
        None => Verdict::Unknown,
    }
}
