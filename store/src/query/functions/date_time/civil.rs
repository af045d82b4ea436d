//! Instants of the calendar, to 100 nanoseconds, from their text and back.
//!
//! Between days and years stands the calculation of H. Hinnant ("chrono-compatible low-level date
//! algorithms"): years begin in March, so that the leap day is their last.

use std::fmt;

/// Ticks of 100 nanoseconds in a second.
pub(super) const SECOND: i64 = 10_000_000;
/// Ticks in a day.
pub(super) const DAY: i64 = 86_400 * SECOND;

/// An instant in UTC, as ticks of 100 nanoseconds since 1970. Its year has four digits, 0001 to 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct DateTime(i64);

/// What a calendar and a clock on the wall say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Civil {
    pub(super) year: i64,
    pub(super) month: i64,
    pub(super) day: i64,
    pub(super) hour: i64,
    pub(super) minute: i64,
    pub(super) second: i64,
    /// Ticks of the second.
    pub(super) fraction: i64,
}

impl DateTime {
    /// 1970, from which ticks and bins are counted.
    pub(super) const EPOCH: DateTime = DateTime(0);
    /// 1601, where Windows begins to count, and bins at the earliest.
    pub(super) const YEAR_1601: DateTime = DateTime(-134_774 * DAY);

    const FIRST: DateTime = DateTime(-719_162 * DAY);
    const LAST: DateTime = DateTime(2_932_897 * DAY - 1);

    /// The instant so many ticks after 1970, if its year has four digits.
    pub(super) fn from_ticks(ticks: i64) -> Option<DateTime> {
        let instant = DateTime(ticks);
        (Self::FIRST..=Self::LAST).contains(&instant).then_some(instant)
    }

    /// The instant a wall shows, if it exists.
    pub(super) fn from_civil(civil: Civil) -> Option<DateTime> {
        let Civil { year, month, day, hour, minute, second, fraction } = civil;
        let exists = (1..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=days_in_month(year, month)).contains(&day)
            && (0..24).contains(&hour)
            && (0..60).contains(&minute)
            && (0..60).contains(&second)
            && (0..SECOND).contains(&fraction);
        let seconds = |days: i64| ((days * 24 + hour) * 60 + minute) * 60 + second;
        exists.then(|| DateTime(seconds(days_from_civil(year, month, day)) * SECOND + fraction))
    }

    /// Reads `YYYY-MM-DD[Z]` and `YYYY-MM-DD(T| )hh:mm:ss[.f{1,7}][Z]`, nothing else.
    pub(in super::super) fn parse(text: &str) -> Option<DateTime> {
        let mut rest = text.strip_suffix('Z').unwrap_or(text).as_bytes();
        let rest = &mut rest;
        let (year, month, day) = (digits(rest, 4)?, after(rest, b"-")?, after(rest, b"-")?);
        let mut civil = Civil { year, month, day, hour: 0, minute: 0, second: 0, fraction: 0 };
        if !rest.is_empty() {
            civil.hour = after(rest, b"T ")?;
            civil.minute = after(rest, b":")?;
            civil.second = after(rest, b":")?;
            civil.fraction = fraction(rest)?;
        }
        DateTime::from_civil(civil)
    }

    pub(super) fn ticks(self) -> i64 {
        self.0
    }

    pub(super) fn civil(self) -> Civil {
        let (year, month, day) = civil_from_days(self.0.div_euclid(DAY));
        let ticks = self.0.rem_euclid(DAY);
        let seconds = ticks / SECOND;
        Civil {
            year,
            month,
            day,
            hour: seconds / 3600,
            minute: seconds / 60 % 60,
            second: seconds % 60,
            fraction: ticks % SECOND,
        }
    }

    /// The day of the week, Sunday 0.
    pub(super) fn weekday(self) -> i64 {
        // 1970 began on a Thursday.
        (self.0.div_euclid(DAY) + 4).rem_euclid(7)
    }

    /// So many months later, on the same day, or on the last of the month.
    pub(super) fn plus_months(self, months: i64) -> Option<DateTime> {
        let mut civil = self.civil();
        let month = months.checked_add(civil.year * 12 + civil.month - 1)?;
        (civil.year, civil.month) = (month.div_euclid(12), month.rem_euclid(12) + 1);
        civil.day = civil.day.min(days_in_month(civil.year, civil.month));
        DateTime::from_civil(civil)
    }
}

/// Always seven digits of the second, and `Z`.
impl fmt::Display for DateTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Civil { year, month, day, hour, minute, second, fraction } = self.civil();
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:07}Z")
    }
}

/// Two digits behind one of these characters.
fn after(rest: &mut &[u8], any_of: &[u8]) -> Option<i64> {
    let (first, others) = rest.split_first()?;
    *rest = others;
    if any_of.contains(first) { digits(rest, 2) } else { None }
}

/// Exactly so many digits.
fn digits(rest: &mut &[u8], count: usize) -> Option<i64> {
    let (number, others) = rest.split_at_checked(count)?;
    *rest = others;
    number.iter().try_fold(0, |number, byte| {
        byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0'))
    })
}

/// Nothing, or a point and one to seven digits; then the end.
fn fraction(rest: &mut &[u8]) -> Option<i64> {
    let Some((point, fraction)) = rest.split_first() else { return Some(0) };
    let places = u32::try_from(fraction.len()).ok().filter(|places| (1..=7).contains(places))?;
    *rest = fraction;
    let number = if *point == b'.' { digits(rest, fraction.len()) } else { None };
    Some(number? * 10_i64.pow(7 - places))
}

fn days_in_month(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to this day.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Year, month and day, so many days after 1970-01-01.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era;
    (if month <= 2 { year + 1 } else { year }, month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_ends_of_the_calendar_hold() {
        assert_eq!(DateTime::FIRST.to_string(), "0001-01-01T00:00:00.0000000Z");
        assert_eq!(DateTime::LAST.to_string(), "9999-12-31T23:59:59.9999999Z");
        assert_eq!(DateTime::YEAR_1601.to_string(), "1601-01-01T00:00:00.0000000Z");
        assert_eq!(DateTime::from_ticks(DateTime::FIRST.0 - 1), None);
        assert_eq!(DateTime::from_ticks(DateTime::LAST.0 + 1), None);
    }

    #[test]
    fn every_day_follows_the_day_before() {
        let mut yesterday = DateTime::FIRST.civil();
        for days in DateTime::FIRST.0 / DAY + 1..=DateTime::LAST.0 / DAY {
            let today = DateTime(days * DAY).civil();
            let next_month =
                today.day == 1 && yesterday.day == days_in_month(yesterday.year, yesterday.month);
            assert!(today.day == yesterday.day + 1 || next_month, "{yesterday:?} {today:?}");
            assert_eq!(DateTime::from_civil(today), Some(DateTime(days * DAY)));
            yesterday = today;
        }
    }

    #[test]
    fn weekdays_are_those_of_the_calendar() {
        let weekday = |text: &str| DateTime::parse(text).unwrap().weekday();
        assert_eq!(weekday("1970-01-01"), 4);
        assert_eq!(weekday("2026-11-21"), 6);
        assert_eq!(weekday("0001-01-01"), 1);
        assert_eq!(weekday("1969-12-28T23:59:59"), 0);
    }

    proptest! {
        #[test]
        fn every_instant_reads_back_from_its_text(ticks in DateTime::FIRST.0..=DateTime::LAST.0) {
            let instant = DateTime::from_ticks(ticks).unwrap();
            prop_assert_eq!(DateTime::parse(&instant.to_string()), Some(instant));
            prop_assert_eq!(DateTime::from_civil(instant.civil()), Some(instant));
        }

        #[test]
        fn the_order_of_texts_is_the_order_of_instants(a: i64, b: i64) {
            let year = DAY * 365;
            let (a, b) = (DateTime(a % (year * 1900)), DateTime(b % (year * 1900)));
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9TZ:. -]{0,30}|.{0,12}") {
            if let Some(instant) = DateTime::parse(&text) {
                prop_assert_eq!(&instant.to_string()[..10], &text[..10]);
            }
        }
    }
}
