//! How long entries wait until they are applied: a leader that is far behind its own log takes no more.
//!
//! Whoever proposes gives up after a few seconds, and tries again, but its entry stays. Without an end to it, entries
//! that are logged faster than they are applied would fill the disk, and later ones would wait for all of them.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Instant;

/// Entries may wait so long: less than whoever proposes them does.
const LAG_MAX: Duration = Duration::from_secs(3);
/// How often the end of the log is noted.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How far a replica's machine is behind its log.
#[derive(Default)]
pub(crate) struct Lag(Mutex<VecDeque<Mark>>);

/// The last entry that the log had at a moment.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    index: u64,
}

impl Lag {
    /// True if an entry that was in the log `LAG_MAX` ago is not applied yet. Entries are taken back, too: those that
    /// are not in the log any more need not be.
    pub(crate) fn is_long(
        &self,
        now: Instant,
        logged: impl Fn() -> u64,
        applied: impl Fn() -> u64,
    ) -> bool {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let age = |mark: &Mark| now.saturating_duration_since(mark.at);
        if marks.back().is_some_and(|last| age(last) < LOOK_EVERY) {
            return false;
        }
        let (logged, applied) = (logged(), applied());
        while marks.front().is_some_and(|mark| mark.index.min(logged) <= applied) {
            marks.pop_front();
        }
        if marks.front().is_some_and(|oldest| age(oldest) > LAG_MAX) {
            return true;
        }
        marks.push_back(Mark { at: now, index: logged });
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn what_waits_for_long_shows_and_what_was_taken_back_does_not() {
        let (lag, start) = (Lag::default(), clock::monotonic());
        let is_long = |millis, logged, applied| {
            lag.is_long(start + Duration::from_millis(millis), || logged, || applied)
        };
        assert!(!is_long(0, 10, 0));
        assert!(!is_long(1000, 20, 0));
        assert!(!is_long(3000, 30, 9), "it may take so long");
        assert!(is_long(3100, 30, 9));
        assert!(!is_long(3200, 30, 10), "what waits now is younger");
        assert!(!is_long(4000, 30, 19) && is_long(4100, 30, 19), "and waits as long");
        assert!(!is_long(5000, 15, 15), "the others were taken back");
        assert!(!is_long(100_000, 15, 15), "nothing waits");
        assert!(!is_long(100_100, 99, 15) && !is_long(103_100, 99, 98));
        assert!(is_long(103_200, 99, 98));
    }
}
