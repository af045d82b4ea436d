//! Dates and times: text in UTC, ticks of 100 nanoseconds, milliseconds.

mod civil;
mod format;
mod part;

use std::borrow::Cow;
use std::slice::Iter;

pub(super) use civil::DateTime;

use self::civil::Civil;
use self::format::format;
use self::part::{Part, Span};
use super::call::{Argument, call};
use super::{Args, Function, Moment};
use crate::query::value::Value;
use crate::time::Millis;

/// Ticks of 100 nanoseconds in a millisecond.
const MILLISECOND: i64 = 10_000;

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("DATETIMEADD", 3, 3, add),
    Function::new("DATETIMEDIFF", 3, 3, difference),
    Function::new("DATETIMEBIN", 2, 4, bin),
    Function::new("DATETIMEPART", 2, 2, part),
    Function::new("YEAR", 1, 1, year),
    Function::new("MONTH", 1, 1, month),
    Function::new("DAY", 1, 1, day),
    Function::new("DATETIMEFROMPARTS", 3, 7, from_parts),
    Function::new("DATETIMETOTICKS", 1, 1, to_ticks),
    Function::new("DATETIMETOTIMESTAMP", 1, 1, to_timestamp),
    Function::new("TICKSTODATETIME", 1, 1, from_ticks),
    Function::new("TIMESTAMPTODATETIME", 1, 1, from_timestamp),
    Function::new("DATETIMEFORMAT", 2, 2, formatted),
    Function::new("GETCURRENTDATETIME", 0, 0, current_date_time),
    Function::new("GETCURRENTTICKS", 0, 0, current_ticks),
    Function::new("GETCURRENTTIMESTAMP", 0, 0, current_timestamp),
    Function::new("GETCURRENTDATETIMESTATIC", 0, 0, static_date_time),
    Function::new("GETCURRENTTICKSSTATIC", 0, 0, static_ticks),
    Function::new("GETCURRENTTIMESTAMPSTATIC", 0, 0, static_timestamp),
    Function::new("NOW", 0, 2, now),
    Function::new("AGO", 2, 2, ago),
];

/// An argument that is the text of a date and time.
impl<'a> Argument<'a> for DateTime {
    fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self> {
        DateTime::parse(<&str>::take(rest)?)
    }
}

impl From<DateTime> for Value {
    fn from(instant: DateTime) -> Self {
        Value::Text(instant.to_string())
    }
}

fn add(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(part, count, to): (Part, i64, DateTime)| part.add(count, to))
}

fn difference(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(part, start, end): (Part, DateTime, DateTime)| part.between(start, end))
}

/// Down to the start of the bin, where bins of so many parts are laid from the origin.
fn bin(args: &Args<'_>, _: &Moment) -> Value {
    type Parameters = (DateTime, Span, Option<i64>, Option<DateTime>);
    call(args, |(instant, span, count, origin): Parameters| {
        let (count, origin) = (count.unwrap_or(1), origin.unwrap_or(DateTime::EPOCH));
        if count <= 0 || origin < DateTime::YEAR_1601 {
            return None;
        }
        let size = span.nanoseconds() * i128::from(count);
        let since = i128::from(instant.ticks() - origin.ticks()) * 100;
        let start = since.div_euclid(size) * size;
        // Bins that begin between two ticks begin at the earlier.
        let ticks = i64::try_from(start.div_euclid(100)).ok()?;
        DateTime::from_ticks(origin.ticks().checked_add(ticks)?)
    })
}

fn part(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(part, instant): (Part, DateTime)| part.of(instant))
}

fn year(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |instant: DateTime| instant.civil().year)
}

fn month(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |instant: DateTime| instant.civil().month)
}

fn day(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |instant: DateTime| instant.civil().day)
}

fn from_parts(args: &Args<'_>, _: &Moment) -> Value {
    type Time = Option<i64>;
    type Parameters = (i64, i64, i64, Time, Time, Time, Time);
    call(args, |(year, month, day, hour, minute, second, fraction): Parameters| {
        DateTime::from_civil(Civil {
            year,
            month,
            day,
            hour: hour.unwrap_or(0),
            minute: minute.unwrap_or(0),
            second: second.unwrap_or(0),
            fraction: fraction.unwrap_or(0),
        })
    })
}

fn to_ticks(args: &Args<'_>, _: &Moment) -> Value {
    call(args, DateTime::ticks)
}

fn to_timestamp(args: &Args<'_>, _: &Moment) -> Value {
    call(args, timestamp)
}

fn timestamp(instant: DateTime) -> i64 {
    instant.ticks().div_euclid(MILLISECOND)
}

fn from_ticks(args: &Args<'_>, _: &Moment) -> Value {
    call(args, DateTime::from_ticks)
}

fn from_timestamp(args: &Args<'_>, _: &Moment) -> Value {
    call(args, from_millis)
}

fn from_millis(millis: i64) -> Option<DateTime> {
    DateTime::from_ticks(millis.checked_mul(MILLISECOND)?)
}

fn formatted(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(instant, layout): (DateTime, &str)| format(instant, layout))
}

/// A clock may tell a time that no date shows.
fn on_calendar(clock: Millis) -> Option<DateTime> {
    from_millis(i64::try_from(clock.0).ok()?)
}

fn current_date_time(_: &Args<'_>, moment: &Moment) -> Value {
    on_calendar(moment.now).into()
}

fn current_ticks(_: &Args<'_>, moment: &Moment) -> Value {
    on_calendar(moment.now).map(DateTime::ticks).into()
}

fn current_timestamp(_: &Args<'_>, moment: &Moment) -> Value {
    on_calendar(moment.now).map(timestamp).into()
}

fn static_date_time(_: &Args<'_>, moment: &Moment) -> Value {
    on_calendar(moment.first).into()
}

fn static_ticks(_: &Args<'_>, moment: &Moment) -> Value {
    on_calendar(moment.first).map(DateTime::ticks).into()
}

fn static_timestamp(_: &Args<'_>, moment: &Moment) -> Value {
    on_calendar(moment.first).map(timestamp).into()
}

/// The current time, or so many parts later.
fn now(args: &Args<'_>, moment: &Moment) -> Value {
    if args.is_empty() {
        return on_calendar(moment.now).into();
    }
    call(args, |(part, count): (Part, i64)| part.add(count, on_calendar(moment.now)?))
}

fn ago(args: &Args<'_>, moment: &Moment) -> Value {
    call(args, |(part, count): (Part, i64)| {
        part.add(count.checked_neg()?, on_calendar(moment.now)?)
    })
}

#[cfg(test)]
mod tests;
