//! Provisioned throughput: what may be asked for, and how many partitions it takes.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Request units a second one partition is expected to serve when a container is created.
pub const PARTITION_RU_AT_CREATION: u32 = 6_000;
const MANUAL_RU_MIN: u32 = 400;
const MANUAL_RU_STEP: u32 = 100;
const AUTOSCALE_RU_MIN: u32 = 1_000;
const AUTOSCALE_RU_STEP: u32 = 1_000;
/// Bounded so that no container has more partitions than slots.
const RU_MAX: u32 = 1_000_000;

/// The request units a second a container or database has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Throughput {
    /// A fixed rate.
    Manual(u32),
    /// Scales between a tenth of this and this.
    Autoscale(u32),
}

/// Why a rate was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidThroughput {
    /// Below, above or between steps.
    #[error(
        "{kind} throughput must be between {min} and {RU_MAX} request units per second, \
         in steps of {step}; {found} is not"
    )]
    OutOfRange {
        /// "manual" or "autoscale".
        kind: &'static str,
        /// The least.
        min: u32,
        /// The step.
        step: u32,
        /// What was asked for.
        found: u64,
    },
    /// Manual and autoscale at once.
    #[error("manual and autoscale throughput exclude each other")]
    Both,
    /// Not a number, or not the JSON it should be.
    #[error("the throughput setting is malformed")]
    Malformed,
}

impl Throughput {
    /// Checks a manual rate.
    pub fn manual(rate: u64) -> Result<Self, InvalidThroughput> {
        checked("manual", rate, MANUAL_RU_MIN, MANUAL_RU_STEP).map(Throughput::Manual)
    }

    /// Checks an autoscale maximum.
    pub fn autoscale(rate: u64) -> Result<Self, InvalidThroughput> {
        checked("autoscale", rate, AUTOSCALE_RU_MIN, AUTOSCALE_RU_STEP).map(Throughput::Autoscale)
    }

    /// The most request units a second.
    pub fn maximum(self) -> u32 {
        match self {
            Throughput::Manual(rate) | Throughput::Autoscale(rate) => rate,
        }
    }

    /// How many partitions a container with this rate starts with.
    pub fn partitions(self) -> u16 {
        let partitions = self.maximum().div_ceil(PARTITION_RU_AT_CREATION).max(1);
        u16::try_from(partitions).expect("the highest rate takes fewer partitions than slots")
    }
}

fn checked(kind: &'static str, rate: u64, min: u32, step: u32) -> Result<u32, InvalidThroughput> {
    let out_of_range = || InvalidThroughput::OutOfRange { kind, min, step, found: rate };
    let rate = u32::try_from(rate).map_err(|_| out_of_range())?;
    if (min..=RU_MAX).contains(&rate) && rate.is_multiple_of(step) {
        Ok(rate)
    } else {
        Err(out_of_range())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_checked_against_azures_limits() {
        assert_eq!(Throughput::manual(400), Ok(Throughput::Manual(400)));
        assert_eq!(Throughput::autoscale(1000), Ok(Throughput::Autoscale(1000)));
        for wrong in [0, 399, 450, 1_000_100, u64::MAX] {
            assert!(Throughput::manual(wrong).is_err(), "{wrong}");
        }
        for wrong in [0, 900, 1500, u64::MAX] {
            assert!(Throughput::autoscale(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn partitions_follow_the_rate_as_sdk_tests_expect() {
        let partitions = |rate| Throughput::manual(rate).unwrap().partitions();
        let expected = [(400, 1), (6000, 1), (6100, 2), (12_000, 2), (30_000, 5), (1_000_000, 167)];
        for (rate, count) in expected {
            assert_eq!(partitions(rate), count, "{rate}");
        }
    }
}
