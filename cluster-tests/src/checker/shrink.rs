//! The part of an illegal history that a person can read.

use super::model::Tolerance;
use super::search::is_legal;
use crate::history::{Action, Nanos, Operation, Outcome, Policy};

/// The shortest beginning that is illegal, without what does nothing and is not needed.
pub(super) fn shrunk(
    operations: &[Operation],
    policy: Policy,
    tolerance: Tolerance,
    steps_max: usize,
) -> Vec<Operation> {
    let is_illegal =
        |some: &[Operation]| is_legal(some, policy, tolerance, steps_max) == Some(false);
    let mut returns: Vec<Nanos> = operations.iter().filter_map(|one| one.ret).collect();
    returns.sort_unstable();
    // Once it is illegal, it stays so whatever comes behind.
    let legal = returns.partition_point(|until| !is_illegal(&beginning(operations, *until)));
    let mut kept = match returns.get(legal) {
        Some(until) => beginning(operations, *until),
        None => operations.to_vec(),
    };
    kept.sort_by_key(|one| one.call);
    // What does nothing can be left out; then the rest is all that was done.
    for at in (0..kept.len()).rev() {
        if does_nothing(&kept[at]) {
            let one = kept.remove(at);
            if !is_illegal(&kept) {
                kept.insert(at, one);
            }
        }
    }
    kept
}

/// What was known at an instant.
fn beginning(operations: &[Operation], until: Nanos) -> Vec<Operation> {
    let begun = operations.iter().filter(|one| one.call <= until);
    let known = |one: &Operation| match one.ret {
        Some(ret) if ret > until => {
            Operation { ret: None, outcome: Outcome::Unknown, entry: None, ..one.clone() }
        }
        _ => one.clone(),
    };
    begun.map(known).collect()
}

fn does_nothing(operation: &Operation) -> bool {
    matches!(operation.action, Action::Read { .. })
        || matches!(
            operation.outcome,
            Outcome::NotFound | Outcome::Conflict | Outcome::PreconditionFailed
        )
}
