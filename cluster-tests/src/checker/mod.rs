//! Judges histories: is what the clients saw what one machine could have shown that does one thing
//! after the other, with items that expire?
//!
//! `check` looks for an order of all operations of a key, and an instant for each, in which every answer
//! is right: no early and no late expiry, nothing lost, nothing done twice, nothing that comes back.
//! `check_all` does so for many keys, each by itself, several at once.
//! `came_back` looks for the last of these alone, in a time that grows with the history and no faster;
//! `stamps` judges what the answers say of time. `Counts` and `List` judge what only grows,
//! `Due` reads around the second in which something expires.

mod counts;
mod due;
mod irreversible;
mod lists;
mod model;
mod search;
mod shrink;
mod stamps;
#[cfg(test)]
mod tests;

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::monotonic;
use crate::history::{Operation, Policy};

pub use counts::Counts;
pub use due::{Due, Margin, Read, Verdict as DueVerdict};
pub use irreversible::{Revival, came_back};
pub use lists::List;
pub use model::Tolerance;
pub use search::Budget;
pub use stamps::{WrongStamp, wrong_stamps};

/// What was found about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Ok,
    /// There is none, and none of these alone.
    Illegal(Vec<Operation>),
    /// It took too much to find out.
    Unknown,
}

/// Longest that one key is searched.
const KEY_TIME_MAX: Duration = Duration::from_secs(10);

/// Longest that all keys together are searched.
const ALL_TIME_MAX: Duration = Duration::from_mins(5);

/// Longest that one illegal history is made shorter.
const SHRINKING_TIME_MAX: Duration = Duration::from_secs(30);

/// Most memory of all searches that run at once, approximately.
const BYTES_MAX: usize = 1 << 30;

/// Judges all operations of one key, of a container that began with this time to live.
pub fn check(operations: &[Operation], policy: Policy, tolerance: Tolerance) -> Verdict {
    let deadline = Some(monotonic() + KEY_TIME_MAX);
    let budget = Budget { steps_max: usize::MAX, bytes_max: BYTES_MAX, deadline };
    check_within(operations, policy, tolerance, budget)
}

/// The same, within this budget. If that has a deadline, there is a time of its own for making an illegal
/// history shorter.
pub fn check_within(
    operations: &[Operation],
    policy: Policy,
    tolerance: Tolerance,
    budget: Budget,
) -> Verdict {
    match search::is_legal(operations, policy, tolerance, budget) {
        Some(true) => Verdict::Ok,
        Some(false) => {
            let deadline = budget.deadline.map(|_| monotonic() + SHRINKING_TIME_MAX);
            let budget = Budget { deadline, ..budget };
            Verdict::Illegal(shrink::shrunk(operations, policy, tolerance, budget))
        }
        None => Verdict::Unknown,
    }
}

/// Judges all keys, each by its operations and what its container began with, in the order they are given.
pub fn check_all(histories: &[(&[Operation], Policy)], tolerance: Tolerance) -> Vec<Verdict> {
    check_all_until(histories, tolerance, monotonic() + ALL_TIME_MAX)
}

/// The same, by a thread for each processor, the shortest first; what is not begun by then is unknown.
fn check_all_until(
    histories: &[(&[Operation], Policy)],
    tolerance: Tolerance,
    deadline: Instant,
) -> Vec<Verdict> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = histories.len().clamp(1, processors);
    let mut shortest_first: Vec<usize> = (0..histories.len()).collect();
    shortest_first.sort_by_key(|at| histories[*at].0.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut judged = Vec::new();
        while let Some(at) = shortest_first.get(next.fetch_add(1, Ordering::Relaxed))
            && monotonic() < deadline
        {
            let (operations, policy) = histories[*at];
            let deadline = Some(deadline.min(monotonic() + KEY_TIME_MAX));
            let bytes_max = BYTES_MAX / threads;
            let budget = Budget { steps_max: usize::MAX, bytes_max, deadline };
            judged.push((*at, check_within(operations, policy, tolerance, budget)));
        }
        judged
    };
    let mut verdicts = vec![Verdict::Unknown; histories.len()];
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            for (at, verdict) in worker.join().expect("a search does not panic") {
                verdicts[at] = verdict;
            }
        }
    });
    verdicts
}
