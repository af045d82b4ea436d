//! The only place that reads a clock. Everything else is handed an interval or an instant.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ephemeris_store::time::{ClockInterval, Millis};
use rustix::time::{ClockId, clock_gettime};
use tracing::error;

pub(crate) use tokio::time::Instant;

/// What a node knows of the time.
pub(crate) trait Clock: Send + Sync + 'static {
    /// The interval the true time lies in.
    fn now(&self) -> ClockInterval;
}

/// A shared clock.
pub(crate) type SharedClock = Arc<dyn Clock>;

/// Now, for measuring how long something takes; never a date.
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

/// The wall clock's date, for HTTP headers and log lines only.
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// Waits until the clock cannot read earlier than `at`.
pub(crate) async fn wait_until(clock: &dyn Clock, at: Millis) {
    loop {
        let lo = clock.now().lo();
        if lo >= at {
            return;
        }
        tokio::time::sleep(Duration::from_millis(at.0 - lo.0)).await;
    }
}

/// A step of the wall clock by more than this is not believed, in milliseconds.
const STEP_MS_MAX: u64 = 2000;

/// The machine's own clock.
///
/// Readings are whole milliseconds, so the interval is one millisecond wide.
pub(crate) struct SystemClock {
    anchor: Mutex<Anchor>,
    steps: Steps,
}

/// What to make of a step of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steps {
    /// A node alone: go on at the pace of the time since boot, and raise an alarm.
    Distrusted,
    /// A node in a cluster: the wall clock is taken as it is.
    Followed,
}

/// A pair of readings taken together.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    wall_ms: u64,
    boot_ms: u64,
    alarmed: bool,
}

impl SystemClock {
    /// A clock that starts at what the wall clock says now.
    pub(crate) fn new(steps: Steps) -> Self {
        let anchor = Anchor { wall_ms: wall_ms(), boot_ms: boot_ms(), alarmed: false };
        Self { anchor: Mutex::new(anchor), steps }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> ClockInterval {
        let wall = wall_ms();
        let reading = match self.steps {
            Steps::Followed => wall,
            Steps::Distrusted => {
                let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
                anchor.read(wall, boot_ms())
            }
        };
        ClockInterval::new(Millis(reading), Millis(reading + 1))
    }
}

impl Anchor {
    /// The time by both readings: the wall clock's while it walks in step with the time since boot,
    /// otherwise that of the last moment it did, carried on at the pace of the time since boot.
    fn read(&mut self, wall_ms: u64, boot_ms: u64) -> u64 {
        let carried = self.wall_ms + boot_ms.saturating_sub(self.boot_ms);
        if wall_ms.abs_diff(carried) <= STEP_MS_MAX {
            *self = Anchor { wall_ms, boot_ms, alarmed: false };
            return wall_ms;
        }
        if !self.alarmed {
            self.alarmed = true;
            metrics::counter!("clock_steps_distrusted_total").increment(1);
            error!(
                wall_ms,
                carried,
                "the wall clock was set by more than two seconds; going on at the old pace. \
                 If the new time is right, restart this node"
            );
        }
        carried
    }
}

fn wall_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let since_epoch = since_epoch.expect("the clock reads later than 1970");
    u64::try_from(since_epoch.as_millis())
        .expect("the clock reads earlier than the year 500 million")
}

/// Time since boot, suspended time included.
fn boot_ms() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).expect("time since boot is positive");
    let nanos = u64::try_from(time.tv_nsec).expect("nanoseconds are positive");
    seconds * 1000 + nanos / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor() -> Anchor {
        Anchor { wall_ms: 1_000_000, boot_ms: 5000, alarmed: false }
    }

    #[test]
    fn slow_drift_is_followed() {
        let mut anchor = anchor();
        let mut wall = 1_000_000;
        for second in 1..=3600 {
            wall += 1001;
            assert_eq!(anchor.read(wall, 5000 + second * 1000), wall);
        }
    }

    #[test]
    fn steps_are_not_believed_in_either_direction() {
        for stepped in [1_000_000 + 86_400_000, 1_000_000 - 900_000] {
            let mut anchor = anchor();
            assert_eq!(anchor.read(stepped + 1000, 6000), 1_001_000);
            assert!(anchor.alarmed);
            assert_eq!(anchor.read(stepped + 9000, 14_000), 1_009_000, "carried on at boot pace");
        }
    }

    #[test]
    fn a_clock_that_is_set_right_again_is_believed() {
        let mut anchor = anchor();
        anchor.read(9_000_000, 6000);
        assert_eq!(anchor.read(1_002_500, 7000), 1_002_500);
        assert!(!anchor.alarmed);
    }

    #[test]
    fn readings_are_a_millisecond_wide() {
        let now = SystemClock::new(Steps::Distrusted).now();
        assert_eq!(now.width_ms(), 1);
        assert!(now.lo() > Millis(1_600_000_000_000));
    }
}
