//! The only place in this crate that reads a clock: this machine's, which its nodes read, too.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Now, for measuring how long something takes; never a date.
pub fn monotonic() -> Instant {
    Instant::now()
}

/// The wall clock's date.
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// The wall clock in milliseconds of Unix time, rounded down.
pub fn wall_ms() -> u64 {
    let since_epoch = wall().duration_since(UNIX_EPOCH).expect("the clock reads later than 1970");
    u64::try_from(since_epoch.as_millis()).expect("the year is below 500 million")
}
