//! Tells a query under way when to end: its page has taken long enough, or nobody waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ephemeris_store::query::Signal;

use crate::clock::Instant;

/// How long a partition works for one page of a query, if it can go on with the next.
const PAGE_TIME_MAX: Duration = Duration::from_secs(1);
/// How long it works if it cannot.
const UNPAUSED_TIME_MAX: Duration = Duration::from_secs(5);

/// Somebody who waits for a query: once this is gone, nobody does.
pub(super) struct Waiting(Watch);

/// Knows whether somebody still waits for a query, and when a page should end.
#[derive(Clone)]
pub(super) struct Watch {
    is_there: Arc<AtomicBool>,
    pause: Instant,
    stop: Instant,
}

impl Waiting {
    /// Begins to wait, and not for longer than the patience of who asked.
    pub(super) fn new(since: Instant, patience: Duration) -> Self {
        let stop = patience.min(UNPAUSED_TIME_MAX);
        let pause = PAGE_TIME_MAX.min(stop / 2);
        let is_there = Arc::new(AtomicBool::new(true));
        Self(Watch { is_there, pause: since + pause, stop: since + stop })
    }

    /// What the thread that works for it takes along.
    pub(super) fn watch(&self) -> Watch {
        self.0.clone()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.is_there.store(false, Ordering::Relaxed);
    }
}

impl Watch {
    /// What a page should do now.
    pub(super) fn signal(&self, now: Instant) -> Signal {
        if !self.is_there.load(Ordering::Relaxed) || now >= self.stop {
            Signal::Stop
        } else if now >= self.pause {
            Signal::Pause
        } else {
            Signal::Go
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    /// What a page is told after so many milliseconds.
    fn told(patience_ms: u64, after_ms: u64) -> Signal {
        let since = clock::monotonic();
        let waiting = Waiting::new(since, Duration::from_millis(patience_ms));
        waiting.watch().signal(since + Duration::from_millis(after_ms))
    }

    #[test]
    fn a_page_goes_on_then_pauses_if_it_can_and_stops_in_the_end() {
        for (ms, signal) in [
            (0, Signal::Go),
            (999, Signal::Go),
            (1000, Signal::Pause),
            (4999, Signal::Pause),
            (5000, Signal::Stop),
        ] {
            assert_eq!(told(60_000, ms), signal, "after {ms} ms");
        }
    }

    #[test]
    fn a_page_stops_while_who_asked_can_still_hear_of_it() {
        for (patience_ms, after_ms, signal) in [
            (4700, 4699, Signal::Pause),
            (4700, 4700, Signal::Stop),
            (600, 299, Signal::Go),
            (600, 300, Signal::Pause),
            (600, 600, Signal::Stop),
            (0, 0, Signal::Stop),
        ] {
            assert_eq!(told(patience_ms, after_ms), signal, "{patience_ms}: after {after_ms} ms");
        }
    }

    #[test]
    fn a_query_stops_once_whoever_asked_is_gone() {
        let since = clock::monotonic();
        let waiting = Waiting::new(since, Duration::from_secs(5));
        let watch = waiting.watch();
        assert_eq!(watch.signal(since), Signal::Go);
        drop(waiting);
        assert_eq!(watch.signal(since), Signal::Stop);
    }
}
