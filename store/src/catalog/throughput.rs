//! Provisioned throughput: what may be asked for, and how many partitions it takes.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
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
    /// Scales between a tenth of a maximum and the maximum.
    Autoscale(Autoscale),
}

/// A rate that follows the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Autoscale {
    /// The most request units a second.
    pub maximum: u32,
    /// By how much the maximum is to grow with the data, in percent: kept and shown, and without
    /// effect.
    pub increment_percent: Option<u32>,
}

/// Why a rate was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidThroughput {
    /// Below the least.
    #[error("Requested throughput {found} is less than required minimum throughput {min}")]
    TooLow {
        /// What was asked for.
        found: i64,
        /// The least.
        min: u32,
    },
    /// Above the most or between steps.
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
        found: i64,
    },
    /// Manual and autoscale at once.
    #[error("manual and autoscale throughput exclude each other")]
    Both,
    /// Not a number, or not the JSON it should be.
    #[error("the throughput setting is malformed")]
    Malformed,
}

impl Autoscale {
    /// The settings as clients see them.
    pub fn to_json(self) -> Value {
        let mut settings = json!({ "maxThroughput": self.maximum });
        if let Some(percent) = self.increment_percent {
            let policy = json!({ "throughputPolicy": { "incrementPercent": percent } });
            settings["autoUpgradePolicy"] = policy;
        }
        settings
    }
}

impl Throughput {
    /// Checks a manual rate.
    pub fn manual(rate: i64) -> Result<Self, InvalidThroughput> {
        checked("manual", rate, MANUAL_RU_MIN, MANUAL_RU_STEP).map(Throughput::Manual)
    }

    /// Checks autoscale settings, as they stand in a header and in an offer.
    pub fn autoscale(settings: &Value) -> Result<Self, InvalidThroughput> {
        let maximum = settings["maxThroughput"].as_i64().ok_or(InvalidThroughput::Malformed)?;
        let maximum = checked("autoscale", maximum, AUTOSCALE_RU_MIN, AUTOSCALE_RU_STEP)?;
        let increment = &settings["autoUpgradePolicy"]["throughputPolicy"]["incrementPercent"];
        let increment_percent = if increment.is_null() {
            None
        } else {
            let percent = increment.as_u64().and_then(|percent| u32::try_from(percent).ok());
            Some(percent.ok_or(InvalidThroughput::Malformed)?)
        };
        Ok(Throughput::Autoscale(Autoscale { maximum, increment_percent }))
    }

    /// The most request units a second.
    pub fn maximum(self) -> u32 {
        match self {
            Throughput::Manual(rate) => rate,
            Throughput::Autoscale(Autoscale { maximum, increment_percent: _ }) => maximum,
        }
    }

    /// The least that a rate of its kind may be.
    pub fn minimum(self) -> u32 {
        match self {
            Throughput::Manual(_) => MANUAL_RU_MIN,
            Throughput::Autoscale(_) => AUTOSCALE_RU_MIN,
        }
    }

    /// How many partitions a container with this rate starts with.
    pub fn partitions(self) -> u16 {
        let partitions = self.maximum().div_ceil(PARTITION_RU_AT_CREATION).max(1);
        u16::try_from(partitions).expect("the highest rate takes fewer partitions than slots")
    }
}

fn checked(kind: &'static str, found: i64, min: u32, step: u32) -> Result<u32, InvalidThroughput> {
    if found < i64::from(min) {
        return Err(InvalidThroughput::TooLow { found, min });
    }
    let out_of_range = || InvalidThroughput::OutOfRange { kind, min, step, found };
    let rate = u32::try_from(found).map_err(|_| out_of_range())?;
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
        let autoscale = |maximum: i64| Throughput::autoscale(&json!({ "maxThroughput": maximum }));
        assert_eq!(autoscale(1000).unwrap().maximum(), 1000);
        for wrong in [i64::MIN, -400, 0, 399, 450, 1_000_100, i64::MAX] {
            assert!(Throughput::manual(wrong).is_err(), "{wrong}");
        }
        for wrong in [i64::MIN, -200, 0, 900, 1500, i64::MAX] {
            assert!(autoscale(wrong).is_err(), "{wrong}");
        }
        let too_low = autoscale(-200).unwrap_err().to_string();
        let wording = "Requested throughput -200 is less than required minimum throughput 1000";
        assert_eq!(too_low, wording);
        for malformed in [json!(null), json!({}), json!([]), json!({ "maxThroughput": "1000" })] {
            assert_eq!(Throughput::autoscale(&malformed), Err(InvalidThroughput::Malformed));
        }
    }

    #[test]
    fn autoscale_settings_are_shown_as_they_came() {
        let increment =
            |percent: Value| json!({ "throughputPolicy": { "incrementPercent": percent } });
        for settings in [
            json!({ "maxThroughput": 4000 }),
            json!({ "maxThroughput": 4000, "autoUpgradePolicy": increment(json!(0)) }),
            json!({ "maxThroughput": 4000, "autoUpgradePolicy": increment(json!(42)) }),
        ] {
            let Ok(Throughput::Autoscale(autoscale)) = Throughput::autoscale(&settings) else {
                panic!("{settings}");
            };
            assert_eq!(autoscale.to_json(), settings);
        }
        for wrong in [json!(-1), json!("1"), json!(1.5)] {
            let settings = json!({ "maxThroughput": 4000, "autoUpgradePolicy": increment(wrong) });
            assert_eq!(Throughput::autoscale(&settings), Err(InvalidThroughput::Malformed));
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
