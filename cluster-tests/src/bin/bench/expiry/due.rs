//! The second everything falls due in, and what a read may see on either side of it.

use std::time::Duration;

use ephemeris_cluster_tests::clock;

/// Reads that start this long after the due second, or later, must find nothing: what the nodes'
/// clocks may be apart, and some more.
const SURELY_DEAD_AFTER_MS: u64 = 50;

/// The second items fall due in, of Unix time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due(pub(super) u64);

/// A point read of a due item, by the wall clock in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) started_ms: u64,
    pub(super) finished_ms: u64,
    pub(super) status: u16,
}

/// What a read says of expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may see what it saw.
    Right,
    /// It saw an item that had expired.
    Visible,
    /// It missed an item that had not.
    Early,
    /// It was not answered with an item, or that there is none.
    Unexpected,
}

impl Due {
    /// The second that begins in so many.
    pub(super) fn after(seconds: u64) -> Self {
        Self(clock::wall_ms() / 1000 + 1 + seconds)
    }

    /// The time to live of an item with this `_ts`; none if it is too late for one.
    pub(super) fn ttl_from(self, stamp: u64) -> Option<u64> {
        self.0.checked_sub(stamp).filter(|ttl| *ttl > 0)
    }

    /// How long until it begins; nothing once it has.
    pub(super) fn remaining(self) -> Duration {
        Duration::from_millis(self.ms().saturating_sub(clock::wall_ms()))
    }

    /// How long ago it began; nothing before.
    pub(super) fn elapsed(self) -> Duration {
        Duration::from_millis(clock::wall_ms().saturating_sub(self.ms()))
    }

    /// Judges a read. One that was under way while the second began may see either.
    pub(super) fn judge(self, read: Read) -> Verdict {
        let Read { started_ms, finished_ms, status } = read;
        match status {
            200 if started_ms >= self.ms() + SURELY_DEAD_AFTER_MS => Verdict::Visible,
            404 if finished_ms < self.ms() => Verdict::Early,
            200 | 404 => Verdict::Right,
            _ => Verdict::Unexpected,
        }
    }

    fn ms(self) -> u64 {
        self.0 * 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(started_ms: u64, finished_ms: u64, status: u16) -> Verdict {
        Due(10).judge(Read { started_ms, finished_ms, status })
    }

    #[test]
    fn a_read_begun_after_the_due_second_must_find_nothing() {
        assert_eq!(verdict(10_050, 10_060, 200), Verdict::Visible);
        assert_eq!(verdict(10_049, 10_060, 200), Verdict::Right);
        assert_eq!(verdict(10_050, 10_060, 404), Verdict::Right);
    }

    #[test]
    fn a_read_ended_before_the_due_second_must_find_the_item() {
        assert_eq!(verdict(9_990, 9_999, 404), Verdict::Early);
        assert_eq!(verdict(9_990, 10_000, 404), Verdict::Right);
        assert_eq!(verdict(9_990, 9_999, 200), Verdict::Right);
    }

    #[test]
    fn other_answers_say_nothing() {
        assert_eq!(verdict(9_990, 9_999, 503), Verdict::Unexpected);
        assert_eq!(verdict(10_050, 10_060, 0), Verdict::Unexpected);
    }

    #[test]
    fn a_time_to_live_ends_at_the_due_second() {
        assert_eq!(Due(10).ttl_from(7), Some(3));
        assert_eq!(Due(10).ttl_from(10), None);
        assert_eq!(Due(10).ttl_from(11), None);
    }
}
