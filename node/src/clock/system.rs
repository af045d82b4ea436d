//! The clock of a node alone: there is no majority to ask.
//!
//! The wall clock is believed as long as it walks in step with the time since boot. When somebody
//! sets it, this clock goes on at the old pace and raises an alarm.

use std::sync::{Arc, Mutex, PoisonError};

use ephemeris_store::time::{ClockInterval, Millis};
use ephemeris_store::ttl::Vouchers;
use tracing::error;

use super::{Clock, Reading, TimeSource};

/// A step of the wall clock by more than this is not believed, in milliseconds.
const STEP_MS_MAX: u64 = 2000;

/// The machine's own clock.
///
/// Readings are whole milliseconds, so the interval is one millisecond wide.
pub(crate) struct SystemClock {
    time: Arc<dyn TimeSource>,
    anchor: Mutex<Anchor>,
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
    pub(crate) fn new(time: Arc<dyn TimeSource>) -> Self {
        let (wall_ms, boot_ms) = readings(time.as_ref());
        let anchor = Anchor { wall_ms, boot_ms, alarmed: false };
        Self { time, anchor: Mutex::new(anchor) }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Reading {
        let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let (wall_ms, boot_ms) = readings(self.time.as_ref());
        let at = anchor.read(wall_ms, boot_ms);
        Reading::sure(ClockInterval::new(Millis(at), Millis(at + 1)))
    }

    fn vouching(&self) -> Vouchers {
        Vouchers { readings: vec![self.now().interval.lo()], nodes: 1 }
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

/// Wall clock and time since boot, in milliseconds.
fn readings(time: &dyn TimeSource) -> (u64, u64) {
    let millis = |micros: i64| u64::try_from(micros / 1000).expect("time is positive");
    (millis(time.wall_micros()), millis(time.boot_micros()))
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
        let now = SystemClock::new(Arc::new(crate::clock::MachineTime)).now();
        assert_eq!(now.interval.width_ms(), 1);
        assert!(now.interval.lo() > Millis(1_600_000_000_000));
    }
}
