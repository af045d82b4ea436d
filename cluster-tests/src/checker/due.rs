//! The second everything falls due in, and what a read may see on either side of it.

use std::time::Duration;

use crate::clock;

/// How far the clocks may be apart of who judges and who answers, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margin {
    /// Reads that end earlier than so long before the due second must find the item.
    pub before_ms: u64,
    /// Reads that start so long after the due second, or later, must find nothing.
    pub after_ms: u64,
}

/// The second items fall due in, of Unix time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due(pub u64);

/// A point read of a due item, by the wall clock in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Before it was sent.
    pub started_ms: u64,
    /// After its answer had come.
    pub finished_ms: u64,
    /// Of the answer; 0 if there was none.
    pub status: u16,
}

/// What a read says of expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
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
    pub fn after(seconds: u64) -> Self {
        Self(clock::wall_ms() / 1000 + 1 + seconds)
    }

    /// The time to live of an item with this `_ts`; none if it is too late for one.
    pub fn ttl_from(self, stamp: u64) -> Option<u64> {
        self.0.checked_sub(stamp).filter(|ttl| *ttl > 0)
    }

    /// How long until it begins; nothing once it has.
    pub fn remaining(self) -> Duration {
        Duration::from_millis(self.ms().saturating_sub(clock::wall_ms()))
    }

    /// How long ago it began; nothing before.
    pub fn elapsed(self) -> Duration {
        Duration::from_millis(clock::wall_ms().saturating_sub(self.ms()))
    }

    /// Judges a read. One that was under way while the second began may see either.
    pub fn judge(self, read: Read, margin: Margin) -> Verdict {
        let Read { started_ms, finished_ms, status } = read;
        match status {
            200 if started_ms >= self.ms() + margin.after_ms => Verdict::Visible,
            404 if finished_ms + margin.before_ms < self.ms() => Verdict::Early,
            200 | 404 => Verdict::Right,
            _ => Verdict::Unexpected,
        }
    }

    /// When it begins, in milliseconds of Unix time.
    pub fn ms(self) -> u64 {
        self.0 * 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(started_ms: u64, finished_ms: u64, status: u16) -> Verdict {
        let margin = Margin { before_ms: 5, after_ms: 50 };
        Due(10).judge(Read { started_ms, finished_ms, status }, margin)
    }

    #[test]
    fn a_read_begun_after_the_due_second_must_find_nothing() {
        assert_eq!(verdict(10_050, 10_060, 200), Verdict::Visible);
        assert_eq!(verdict(10_049, 10_060, 200), Verdict::Right);
        assert_eq!(verdict(10_050, 10_060, 404), Verdict::Right);
    }

    #[test]
    fn a_read_ended_before_the_due_second_must_find_the_item() {
        assert_eq!(verdict(9_980, 9_994, 404), Verdict::Early);
        assert_eq!(verdict(9_980, 9_995, 404), Verdict::Right);
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
