//! The only place in this crate that reads a clock; simulations pause and move it.

use std::time::Duration;

pub(crate) use tokio::time::Instant;

/// Now, for measuring how long something takes; never a date.
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

/// How long it is until a moment of openraft's.
pub(crate) fn left_until<I: openraft::Instant>(moment: I) -> Duration {
    moment.saturating_duration_since(I::now())
}
