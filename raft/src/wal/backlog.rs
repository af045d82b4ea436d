//! What waits to be synced, and for how long. Every proposal looks here, so that it is read without the log's lock.
//!
//! A disk that hangs fails nothing: no callback comes, and nothing else tells of it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::{Instant, monotonic};

/// A log with more to sync should be given no more: a second's work for a disk that is well, and what memory can
/// spare where one is not.
pub const UNSYNCED_BYTES_MAX: usize = 64 << 20;

/// A disk that syncs nothing for longer hangs.
const HANGS: Duration = Duration::from_secs(1);

/// No moment: nothing waits.
const NEVER: u64 = u64::MAX;

/// Changes while the log is locked.
pub(super) struct Backlog {
    queued_bytes: AtomicUsize,
    writing_bytes: AtomicUsize,
    opened: Instant,
    /// When something was queued, or synced last: in microseconds since the log was opened.
    waits_since: AtomicU64,
    /// When the disk went on after it had hung, last; in the same.
    hung_until: AtomicU64,
}

impl Backlog {
    pub(super) fn new() -> Self {
        Self {
            queued_bytes: AtomicUsize::new(0),
            writing_bytes: AtomicUsize::new(0),
            opened: monotonic(),
            waits_since: AtomicU64::new(NEVER),
            hung_until: AtomicU64::new(NEVER),
        }
    }

    /// So much is queued.
    pub(super) fn note_queued(&self, bytes: usize) {
        self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.waits_since.load(Ordering::Relaxed) == NEVER {
            self.wait_from_now();
        }
    }

    /// All that is queued is going to be written.
    pub(super) fn note_taken(&self) {
        let bytes = self.queued_bytes.swap(0, Ordering::Relaxed);
        self.writing_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The disk goes on: some of it is synced.
    pub(super) fn note_sync(&self) {
        self.remember_hanging();
        self.wait_from_now();
    }

    /// All that was taken is written, and perhaps more is queued.
    pub(super) fn note_written(&self) {
        self.remember_hanging();
        self.writing_bytes.store(0, Ordering::Relaxed);
        if self.queued_bytes.load(Ordering::Relaxed) == 0 {
            self.waits_since.store(NEVER, Ordering::Relaxed);
        } else {
            self.wait_from_now();
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.queued_bytes.load(Ordering::Relaxed) + self.writing_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn waits(&self) -> Duration {
        match self.waits_since.load(Ordering::Relaxed) {
            NEVER => Duration::ZERO,
            since => self.since(since),
        }
    }

    /// True while the disk hangs, and for so long after: one that has hung will again.
    pub(super) fn has_hung(&self, within: Duration) -> bool {
        let until = self.hung_until.load(Ordering::Relaxed);
        self.waits() > HANGS || until != NEVER && self.since(until) < within
    }

    /// The disk goes on.
    fn remember_hanging(&self) {
        if self.waits() > HANGS {
            self.hung_until.store(self.now(), Ordering::Relaxed);
        }
    }

    fn wait_from_now(&self) {
        self.waits_since.store(self.now(), Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(NEVER - 1)
    }

    fn since(&self, moment: u64) -> Duration {
        self.opened.elapsed().saturating_sub(Duration::from_micros(moment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::simulate;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_waits_is_counted_until_it_is_written_and_timed_from_the_last_sync() {
        simulate(1, async {
            let backlog = Backlog::new();
            tokio::time::sleep(SECOND).await;
            assert_eq!((backlog.bytes(), backlog.waits()), (0, Duration::ZERO));
            backlog.note_queued(3);
            tokio::time::sleep(SECOND).await;
            backlog.note_queued(4);
            assert_eq!((backlog.bytes(), backlog.waits()), (7, SECOND), "since the first");
            backlog.note_taken();
            backlog.note_queued(5);
            assert_eq!((backlog.bytes(), backlog.waits()), (12, SECOND), "nothing is synced");
            backlog.note_sync();
            tokio::time::sleep(SECOND).await;
            assert_eq!((backlog.bytes(), backlog.waits()), (12, SECOND), "it goes on");
            backlog.note_written();
            assert_eq!((backlog.bytes(), backlog.waits()), (5, Duration::ZERO));
            tokio::time::sleep(SECOND).await;
            assert_eq!(backlog.waits(), SECOND, "what came meanwhile waits");
            backlog.note_taken();
            backlog.note_written();
            tokio::time::sleep(SECOND).await;
            assert_eq!((backlog.bytes(), backlog.waits()), (0, Duration::ZERO));
        });
    }
    #[test]
    fn a_disk_that_has_hung_is_remembered() {
        simulate(1, async {
            let backlog = Backlog::new();
            let has_hung = || backlog.has_hung(10 * SECOND);
            backlog.note_queued(3);
            tokio::time::sleep(HANGS).await;
            assert!(!has_hung(), "it may be slow");
            backlog.note_taken();
            backlog.note_sync();
            assert!(!has_hung());
            tokio::time::sleep(2 * HANGS).await;
            assert!(has_hung(), "it hangs");
            backlog.note_written();
            tokio::time::sleep(9 * SECOND).await;
            assert!(has_hung(), "it has");
            backlog.note_queued(1);
            backlog.note_taken();
            backlog.note_written();
            tokio::time::sleep(SECOND).await;
            assert!(!has_hung(), "that was long ago");
        });
    }
}
