//! The part of an illegal history that a person can read.
//!
//! 1. The shortest beginning.  2. What does nothing is left out.  3. Answers to writes are forgotten.

use super::model::Tolerance;
use super::search::{Budget, is_legal};
use crate::history::{Action, Nanos, Operation, Outcome, Policy};

/// Most steps of one search while answers are forgotten: each of them doubles what there is to try.
const FORGETTING_STEPS_MAX: usize = 20_000;

/// The shortest beginning that is illegal, without operations that do nothing and answers to others, where
/// these are not needed.
///
/// The deadline is that of all searches together: then it is what is known to be illegal so far.
pub(super) fn shrunk(
    operations: &[Operation],
    policy: Policy,
    tolerance: Tolerance,
    budget: Budget,
) -> Vec<Operation> {
    let judge = |some: &[Operation], budget: Budget| is_legal(some, policy, tolerance, budget);
    let is_illegal = |some: &[Operation]| judge(some, budget) == Some(false);
    let mut kept = shortest_beginning(operations, is_illegal);
    kept.sort_by_key(|one| one.call);
    leave_out(&mut kept, is_illegal);
    let steps_max = budget.steps_max.min(FORGETTING_STEPS_MAX);
    forget_answers(&mut kept, |some| judge(some, Budget { steps_max, ..budget }));
    kept
}

/// Once it is illegal, it stays so whatever comes behind.
fn shortest_beginning(
    operations: &[Operation],
    is_illegal: impl Fn(&[Operation]) -> bool,
) -> Vec<Operation> {
    let mut returns: Vec<Nanos> = operations.iter().filter_map(|one| one.ret).collect();
    returns.sort_unstable();
    let mut shortest = operations.to_vec();
    let (mut legal, mut illegal) = (0, returns.len());
    while legal < illegal {
        let middle = usize::midpoint(legal, illegal);
        let shorter = beginning(operations, returns[middle]);
        if is_illegal(&shorter) {
            (shortest, illegal) = (shorter, middle);
        } else {
            legal = middle + 1;
        }
    }
    shortest
}

/// What was known at an instant.
fn beginning(operations: &[Operation], until: Nanos) -> Vec<Operation> {
    let begun = operations.iter().filter(|one| one.call <= until);
    let known = |one: &Operation| match one.ret {
        Some(ret) if ret > until => unanswered(one),
        _ => one.clone(),
    };
    begun.map(known).collect()
}

/// Leaves out what does nothing, in ever smaller parts, as long as the rest is illegal; then that is all
/// that was done.
fn leave_out(kept: &mut Vec<Operation>, is_illegal: impl Fn(&[Operation]) -> bool) {
    let mut part = kept.len();
    while part > 0 {
        let mut end = kept.len();
        while end > 0 {
            let begin = end.saturating_sub(part);
            let mut fewer = kept[..begin].to_vec();
            fewer.extend(kept[begin..end].iter().filter(|one| !does_nothing(one)).cloned());
            fewer.extend_from_slice(&kept[end..]);
            if fewer.len() < kept.len() && is_illegal(&fewer) {
                *kept = fewer;
            }
            end = begin;
        }
        part /= 2;
    }
}

/// Turns what was done into what may have been done, the last first, as long as it stays illegal.
///
/// That allows all that the answer allowed, and more: what is illegal without it is illegal with it. To
/// leave out such a write would prove nothing. Even if nobody saw its version, it may have replaced another,
/// or have been there for the next to replace: what was legal with it would be illegal without it.
fn forget_answers(kept: &mut [Operation], judge: impl Fn(&[Operation]) -> Option<bool>) {
    for at in (0..kept.len()).rev() {
        if kept[at].outcome == Outcome::Unknown || does_nothing(&kept[at]) {
            continue;
        }
        let answered = kept[at].clone();
        kept[at] = unanswered(&answered);
        let verdict = judge(kept);
        if verdict != Some(false) {
            kept[at] = answered;
        }
        if verdict.is_none() {
            // With fewer answers it takes no less to find out.
            return;
        }
    }
}

fn unanswered(operation: &Operation) -> Operation {
    Operation { ret: None, outcome: Outcome::Unknown, entry: None, ..operation.clone() }
}

fn does_nothing(operation: &Operation) -> bool {
    matches!(operation.action, Action::Read { .. })
        || matches!(
            operation.outcome,
            Outcome::NotFound | Outcome::Conflict | Outcome::PreconditionFailed
        )
}
