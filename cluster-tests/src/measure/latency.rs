//! How long things took, as a histogram.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Three digits of each value are kept.
const DIGITS: u8 = 3;
/// Longer ones count as this long: an hour.
const MICROS_MAX: u64 = 3_600_000_000;

/// Durations, in microseconds, counted by size.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, MICROS_MAX, DIGITS);
        Self(histogram.expect("the bounds are in order"))
    }
}

impl Latencies {
    /// Counts one.
    pub fn record(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        self.0.saturating_record(micros);
    }

    /// Counts what another has counted.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// What so many of 100 did not exceed.
    pub fn percentile(&self, percent: f64) -> Duration {
        Duration::from_micros(self.0.value_at_percentile(percent))
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        Duration::from_micros(self.0.max())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: Duration, micros: u64) -> bool {
        found.abs_diff(Duration::from_micros(micros)) <= Duration::from_micros(micros / 500)
    }

    #[test]
    fn percentiles_are_those_of_the_values_counted() {
        let (mut low, mut high) = (Latencies::default(), Latencies::default());
        for micros in 1..=1000 {
            let half = if micros <= 500 { &mut low } else { &mut high };
            half.record(Duration::from_micros(micros * 10));
        }
        low.add(&high);
        assert_eq!(low.count(), 1000);
        assert!(near(low.percentile(50.0), 5000), "{:?}", low.percentile(50.0));
        assert!(near(low.percentile(99.0), 9900), "{:?}", low.percentile(99.0));
        assert!(near(low.max(), 10_000), "{:?}", low.max());
    }
}
