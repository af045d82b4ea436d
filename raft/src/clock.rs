//! The only place in this crate that reads a clock; simulations pause and move it.

pub(crate) use tokio::time::Instant;

/// Now, for measuring how long something takes; never a date.
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}
