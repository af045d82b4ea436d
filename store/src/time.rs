//! Units of time: every instant in `store` is a value passed in, never read from a clock.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Millis(pub u64);

/// Whole seconds since the Unix epoch: the unit of `_ts` and of every time to live.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Seconds(pub u64);

impl Millis {
    /// The second this instant lies in.
    pub fn floor_seconds(self) -> Seconds {
        Seconds(self.0 / 1000)
    }

    /// The first whole second that is not before this instant (`TTL.md` R10: `_ts` rounds up).
    pub fn ceil_seconds(self) -> Seconds {
        Seconds(self.0.div_ceil(1000))
    }
}

impl Seconds {
    /// The instant this second begins; saturates far beyond any date Ephemeris will see.
    pub fn start(self) -> Millis {
        Millis(self.0.saturating_mul(1000))
    }

    /// This second plus a time to live, in 64 bits, so that 2^31 is no border.
    #[must_use]
    pub fn plus(self, seconds: u32) -> Seconds {
        Seconds(self.0.saturating_add(u64::from(seconds)))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a node knows of the time: the true instant lies between `lo` and `hi`, both inclusive.
///
/// `lo` drives expiry and `hi` drives stamps, so an uncertain clock only ever makes items live
/// longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockInterval {
    lo: Millis,
    hi: Millis,
}

impl ClockInterval {
    /// An interval from its ends. Panics if they are in the wrong order.
    pub fn new(lo: Millis, hi: Millis) -> Self {
        assert!(lo <= hi, "a clock interval starts before it ends");
        Self { lo, hi }
    }

    /// An interval of no width: a perfect clock, as in tests.
    pub fn exact(at: Millis) -> Self {
        Self { lo: at, hi: at }
    }

    /// The earliest instant it can be.
    pub fn lo(self) -> Millis {
        self.lo
    }

    /// The latest instant it can be.
    pub fn hi(self) -> Millis {
        self.hi
    }

    /// How uncertain the clock is, in milliseconds.
    pub fn width_ms(self) -> u64 {
        self.hi.0 - self.lo.0
    }

    /// True if the ends are in order: what a decoder must check before trusting a peer.
    pub fn is_valid(self) -> bool {
        self.lo <= self.hi
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_round_up_for_stamps_and_down_for_clocks() {
        assert_eq!(Millis(1000).ceil_seconds(), Seconds(1));
        assert_eq!(Millis(1001).ceil_seconds(), Seconds(2));
        assert_eq!(Millis(1999).floor_seconds(), Seconds(1));
    }

    #[test]
    fn the_longest_ttl_passes_the_31_bit_border() {
        assert_eq!(Seconds(1_700_000_000).plus(i32::MAX as u32), Seconds(3_847_483_647));
    }
}
