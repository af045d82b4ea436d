//! The least, the middle and the greatest of some numbers: what several rounds say.

use std::fmt;

use serde::Serialize;

/// The least, the middle and the greatest of some numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of these; none if there is none. Of two in the middle the greater counts.
    pub(crate) fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut numbers: Vec<f64> = numbers.into_iter().collect();
        numbers.sort_by(f64::total_cmp);
        let (min, max) = (*numbers.first()?, *numbers.last()?);
        Some(Self { min, median: numbers[numbers.len() / 2], max })
    }

    /// All of them in another measure.
    pub(crate) fn over(self, unit: f64) -> Self {
        let over = |number: f64| number / unit.max(f64::MIN_POSITIVE);
        Self { min: over(self.min), median: over(self.median), max: over(self.max) }
    }

    /// The spread, or a dash if there is none.
    pub(crate) fn shown(spread: Option<Self>) -> String {
        spread.map_or_else(|| "-".to_string(), |spread| spread.to_string())
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:.3} ({:.3}–{:.3})", self.median, self.min, self.max);
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_told_with_its_ends() {
        let spread = Spread::of([4.0, 1.0, 2.0]).unwrap();
        assert_eq!(spread.to_string(), "2.000 (1.000–4.000)");
        assert_eq!(spread.over(2.0), Spread { min: 0.5, median: 1.0, max: 2.0 });
        assert_eq!(Spread::shown(Spread::of([])), "-");
    }
}
