//! The parts of dates and times that functions name.

use std::borrow::Cow;
use std::slice::Iter;

use super::super::call::Argument;
use super::civil::DateTime;
use crate::query::value::{Number, Value};

/// A part of a date or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Year,
    Month,
    /// A part of fixed length.
    Span(Span),
}

/// A part that is always as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span {
    Day,
    Hour,
    Minute,
    Second,
    Millisecond,
    Microsecond,
    Nanosecond,
}

impl Part {
    fn parse(name: &str) -> Option<Part> {
        Some(match name.to_ascii_lowercase().as_str() {
            "year" | "yyyy" | "yy" => Part::Year,
            "month" | "mm" | "m" => Part::Month,
            "day" | "dd" | "d" => Part::Span(Span::Day),
            "hour" | "hh" => Part::Span(Span::Hour),
            "minute" | "mi" | "n" => Part::Span(Span::Minute),
            "second" | "ss" | "s" => Part::Span(Span::Second),
            "millisecond" | "ms" => Part::Span(Span::Millisecond),
            "microsecond" | "mcs" => Part::Span(Span::Microsecond),
            "nanosecond" | "ns" => Part::Span(Span::Nanosecond),
            _ => return None,
        })
    }

    /// The instant so many parts later, if the calendar has it.
    pub(super) fn add(self, count: i64, to: DateTime) -> Option<DateTime> {
        match self {
            Part::Year => to.plus_months(count.checked_mul(12)?),
            Part::Month => to.plus_months(count),
            Part::Span(span) => {
                let ticks = i64::try_from(span.nanoseconds() * i128::from(count) / 100).ok()?;
                DateTime::from_ticks(to.ticks().checked_add(ticks)?)
            }
        }
    }

    /// How many borders of this part lie between two instants; negative if the end comes first.
    pub(super) fn between(self, start: DateTime, end: DateTime) -> Number {
        let borders = self.number(end) - self.number(start);
        #[expect(clippy::cast_precision_loss, reason = "some have more nanoseconds than 64 bits")]
        i64::try_from(borders).map_or_else(|_| Number::Float(borders as f64), Number::Int)
    }

    /// The parts are numbered through all time.
    fn number(self, instant: DateTime) -> i128 {
        let civil = instant.civil();
        match self {
            Part::Year => i128::from(civil.year),
            Part::Month => i128::from(civil.year * 12 + civil.month),
            Part::Span(span) => (i128::from(instant.ticks()) * 100).div_euclid(span.nanoseconds()),
        }
    }

    /// What a date or a clock shows for this part; below the second it counts within the second.
    pub(super) fn of(self, instant: DateTime) -> i64 {
        let civil = instant.civil();
        match self {
            Part::Year => civil.year,
            Part::Month => civil.month,
            Part::Span(Span::Day) => civil.day,
            Part::Span(Span::Hour) => civil.hour,
            Part::Span(Span::Minute) => civil.minute,
            Part::Span(Span::Second) => civil.second,
            Part::Span(Span::Millisecond) => civil.fraction / 10_000,
            Part::Span(Span::Microsecond) => civil.fraction / 10,
            Part::Span(Span::Nanosecond) => civil.fraction * 100,
        }
    }
}

impl Span {
    pub(super) fn nanoseconds(self) -> i128 {
        match self {
            Span::Day => 86_400_000_000_000,
            Span::Hour => 3_600_000_000_000,
            Span::Minute => 60_000_000_000,
            Span::Second => 1_000_000_000,
            Span::Millisecond => 1_000_000,
            Span::Microsecond => 1000,
            Span::Nanosecond => 1,
        }
    }
}

/// The name of a part; case does not matter.
impl<'a> Argument<'a> for Part {
    fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self> {
        Part::parse(<&str>::take(rest)?)
    }
}

impl<'a> Argument<'a> for Span {
    fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self> {
        match Part::take(rest)? {
            Part::Span(span) => Some(span),
            Part::Year | Part::Month => None,
        }
    }
}
