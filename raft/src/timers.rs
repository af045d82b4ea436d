//! Timers that fire together: a process with a hundred replicas wakes once for all of them.
//!
//! Every replica ticks some thirty times a second and has little to do then; to wake a thread costs more
//! than that. What is sent in one tick goes to the others in one piece, too.

use std::sync::OnceLock;
use std::time::Duration;

use crate::clock::{Instant, monotonic};

/// Whoever waits for less is not put off.
const SHORT: Duration = Duration::from_millis(1);

/// The moments at which timers of this process fire; none in simulations, where they follow from the seed.
static GRID: OnceLock<Grid> = OnceLock::new();

struct Grid {
    origin: Instant,
    period: Duration,
}

/// From now on timers of this process that have a millisecond to go, or more, fire only every `period`.
/// That of the first call counts.
///
/// It should be shorter than the ticks of groups are apart: a fifth of `GroupOptions::heartbeat`.
pub fn align_timers(period: Duration) {
    if !period.is_zero() {
        let _ = GRID.set(Grid { origin: monotonic(), period });
    }
}

/// Waits at least so long, until others wake, too.
pub async fn wait_aligned(duration: Duration) {
    tokio::time::sleep(aligned(duration)).await;
}

/// How long a timer waits that is set for so long.
pub(crate) fn aligned(duration: Duration) -> Duration {
    match GRID.get() {
        Some(grid) if duration >= SHORT => {
            let passed = monotonic() - grid.origin;
            let next = next_multiple(passed.saturating_add(duration), grid.period);
            next.saturating_sub(passed)
        }
        Some(_) | None => duration,
    }
}

fn next_multiple(duration: Duration, period: Duration) -> Duration {
    let periods = duration.as_nanos().div_ceil(period.as_nanos());
    // Whoever waits for centuries waits for as long as he said.
    let multiple = u32::try_from(periods).ok().and_then(|periods| period.checked_mul(periods));
    multiple.unwrap_or(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_at_the_next_common_moment_and_never_early() {
        let ms = Duration::from_millis;
        for (at, next) in [(0, 0), (1, 25), (25, 25), (26, 50), (3_600_001, 3_600_025)] {
            assert_eq!(next_multiple(ms(at), ms(25)), ms(next), "{at} ms");
        }
        assert_eq!(next_multiple(Duration::MAX, ms(25)), Duration::MAX);
    }
}
