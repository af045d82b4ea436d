//! What is gone stays gone: judged in one walk through the history.

use std::collections::HashMap;

use crate::history::{Nanos, Operation, Outcome};

/// A version that was seen after it must have been gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revival {
    /// The version.
    pub serial: u64,
    /// Nothing that was written before this instant was there any more.
    pub gone_at: Nanos,
    /// What saw it none the less.
    pub seen_by: Operation,
}

/// Versions of a key that came back.
///
/// A version is gone if it was known before an operation was called that found no item, or before the
/// call of a write that has replaced it.
pub fn came_back(operations: &[Operation]) -> Vec<Revival> {
    let (mut calls, mut known_at) = (HashMap::new(), HashMap::new());
    for one in operations {
        calls.extend(one.action.serial().map(|serial| (serial, one.call)));
        let Some(ret) = one.ret else { continue };
        for serial in shown(one) {
            let known: &mut Nanos = known_at.entry(serial).or_insert(ret);
            *known = ret.min(*known);
        }
    }
    let mut returns: Vec<(Nanos, Nanos)> = Vec::with_capacity(operations.len());
    for one in operations {
        let Some(ret) = one.ret else { continue };
        let found_none =
            matches!(one.outcome, Outcome::NotFound | Outcome::Created { .. } | Outcome::Deleted);
        let written = shown(one).filter_map(|serial| calls.get(&serial).copied());
        let gone_before = written.chain(found_none.then_some(one.call)).max();
        returns.extend(gone_before.map(|gone_before| (ret, gone_before)));
    }
    returns.sort_unstable();
    let mut in_order: Vec<&Operation> = operations.iter().collect();
    in_order.sort_by_key(|one| one.call);
    let (mut returns, mut gone_at) = (returns.into_iter().peekable(), 0);
    let mut revivals = Vec::new();
    for one in in_order {
        while let Some((_, gone_before)) = returns.next_if(|(ret, _)| *ret < one.call) {
            gone_at = gone_at.max(gone_before);
        }
        if let Some((serial, _)) = one.seen()
            && known_at.get(&serial).is_some_and(|known| *known < gone_at)
        {
            revivals.push(Revival { serial, gone_at, seen_by: one.clone() });
        }
    }
    revivals
}

/// The versions that an answer tells of.
fn shown(operation: &Operation) -> impl Iterator<Item = u64> {
    let seen = operation.seen().map(|(serial, _)| serial);
    operation.written().map(|(serial, _)| serial).into_iter().chain(seen)
}
