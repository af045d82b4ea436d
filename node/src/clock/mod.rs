//! The only place that reads a clock. Everything else is handed a reading or an instant.
//!
//! A node alone has its `system` clock. A node of a cluster has a `quorum` clock: `agreement` of a
//! majority of the nodes' clocks, sampled once a second; of a cluster of one, which may grow, the same as alone.

mod agreement;
mod quorum;
mod system;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ephemeris_store::time::{ClockInterval, Millis};
use ephemeris_store::ttl::Vouchers;
use rustix::time::{ClockId, clock_gettime};

pub(crate) use quorum::{ClockStatus, QuorumClock};
pub(crate) use system::SystemClock;
pub(crate) use tokio::time::Instant;

/// What a node knows of the time.
pub(crate) trait Clock: Send + Sync + 'static {
    /// The interval the true time lies in, and what it is good for.
    fn now(&self) -> Reading;

    /// What the nodes' clocks say, for a jump of the partition clock that must be vouched for.
    fn vouching(&self) -> Vouchers;

    /// How uncertain the time is, in milliseconds; none if it was never known.
    fn width_ms(&self) -> Option<u64> {
        let now = self.now();
        now.is_sure().then(|| now.interval.width_ms())
    }
}

/// A reading of the clock.
///
/// An interval that is not `Sure` starts at zero: no partition clock is moved by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The true time lies in here.
    pub(crate) interval: ClockInterval,
    /// What it is good for.
    pub(crate) trust: Trust,
}

/// What a reading is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Stamps and expiry.
    Sure,
    /// Stamps: the last agreement is long ago. Nothing expires meanwhile.
    Wide,
    /// Stamps: a majority of the nodes' clocks says an earlier time, for a moment so far. Nothing expires
    /// meanwhile, and what may have expired is in doubt.
    Contradicted,
    /// Stamps of what does not expire: a majority says a later time, for a moment so far. This machine may have
    /// stood still, and what it stamps would die before its time.
    Behind,
    /// Nothing but the catalog's stamps: a majority of the nodes' clocks never agreed, and this one's
    /// may be wrong in either direction.
    Unsettled,
}

impl Reading {
    pub(crate) fn sure(interval: ClockInterval) -> Self {
        Self { interval, trust: Trust::Sure }
    }

    fn until(hi: Millis, trust: Trust) -> Self {
        Self { interval: ClockInterval::new(Millis(0), hi), trust }
    }

    /// No later than this is it now: what expires after it is surely alive. Only for that: it may be the end of
    /// all time. What is told to people is `interval.hi()`.
    pub(crate) fn latest(self) -> Millis {
        match self.trust {
            Trust::Sure | Trust::Wide => self.interval.hi(),
            Trust::Contradicted | Trust::Behind | Trust::Unsettled => Millis(u64::MAX),
        }
    }

    /// True if items may expire by this reading.
    pub(crate) fn is_sure(self) -> bool {
        match self.trust {
            Trust::Sure => true,
            Trust::Wide | Trust::Contradicted | Trust::Behind | Trust::Unsettled => false,
        }
    }
}

/// A shared clock.
pub(crate) type SharedClock = Arc<dyn Clock>;

/// Now, for measuring how long something takes; never a date.
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

/// The wall clock's date, for the command line.
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// Longest pause between two looks at a clock that is waited for.
const LOOK_EVERY_MAX: Duration = Duration::from_millis(100);

/// Waits until `at` has surely passed; false if the clock does not know.
pub(crate) async fn wait_until(clock: &dyn Clock, at: Millis) -> bool {
    loop {
        let now = clock.now();
        if !now.is_sure() {
            return false;
        }
        let Some(left) = at.0.checked_sub(now.interval.lo().0).filter(|left| *left > 0) else {
            return true;
        };
        tokio::time::sleep(Duration::from_millis(left).min(LOOK_EVERY_MAX)).await;
    }
}

/// Where a clock's readings come from: the machine, or a simulation. All in microseconds.
pub(crate) trait TimeSource: Send + Sync + 'static {
    /// Time since boot, suspended time included: nobody sets it.
    fn boot_micros(&self) -> i64;
    /// The wall clock, since 1970.
    fn wall_micros(&self) -> i64;

    /// The wall clock's date, for people and for dates they send.
    fn date(&self) -> SystemTime {
        let micros = u64::try_from(self.wall_micros()).unwrap_or_default();
        UNIX_EPOCH + Duration::from_micros(micros)
    }
}

/// The machine's own.
pub(crate) struct MachineTime;

impl TimeSource for MachineTime {
    fn boot_micros(&self) -> i64 {
        let time = clock_gettime(ClockId::Boottime);
        time.tv_sec * 1_000_000 + time.tv_nsec / 1000
    }

    fn wall_micros(&self) -> i64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let since_epoch = since_epoch.expect("the clock reads later than 1970");
        i64::try_from(since_epoch.as_micros())
            .expect("the clock reads earlier than the year 290 thousand")
    }
}
