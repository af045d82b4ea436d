//! Dates and times in any layout, by the letters of .NET.

use super::civil::{Civil, DateTime};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Sunday first.
const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Letters of an abbreviated name.
const ABBREVIATION: usize = 3;

/// Most digits of a fraction, and most zeros before a year: more of a letter is no layout.
const LETTERS_MAX: usize = 7;

/// The instant in a layout, in which runs of letters stand for parts and a backslash makes the next
/// character stand for itself. None if that is no layout.
pub(super) fn format(instant: DateTime, layout: &str) -> Option<String> {
    let civil = instant.civil();
    let mut out = String::new();
    let mut rest = layout.chars();
    while let Some(letter) = rest.next() {
        if letter == '\\' {
            out.push(rest.next()?);
            continue;
        }
        if !"yMdHhmsfFt".contains(letter) {
            out.push(letter);
            continue;
        }
        let tail = rest.as_str();
        let repeated = tail.len() - tail.trim_start_matches(letter).len();
        rest = tail[repeated..].chars();
        let count = repeated + 1;
        if count > LETTERS_MAX {
            return None;
        }
        out.push_str(&part(instant, civil, letter, count));
    }
    Some(out)
}

fn part(instant: DateTime, civil: Civil, letter: char, count: usize) -> String {
    match (letter, count) {
        ('y', 1 | 2) => padded(civil.year % 100, count),
        ('y', _) => padded(civil.year, count),
        ('M', 1 | 2) => padded(civil.month, count),
        ('M', _) => name(&MONTHS, civil.month - 1, count),
        ('d', 1 | 2) => padded(civil.day, count),
        ('d', _) => name(&WEEKDAYS, instant.weekday(), count),
        ('H', _) => padded(civil.hour, count.min(2)),
        // Twelve, one, .. eleven.
        ('h', _) => padded((civil.hour + 11) % 12 + 1, count.min(2)),
        ('m', _) => padded(civil.minute, count.min(2)),
        ('s', _) => padded(civil.second, count.min(2)),
        ('f', _) => fraction(civil)[..count].to_string(),
        ('F', _) => fraction(civil)[..count].trim_end_matches('0').to_string(),
        (_, 1) => half_of_day(civil)[..1].to_string(),
        (_, _) => half_of_day(civil).to_string(),
    }
}

fn padded(number: i64, digits: usize) -> String {
    format!("{number:0digits$}")
}

/// Three letters abbreviate, four or more write it out.
fn name(names: &[&str], index: i64, count: usize) -> String {
    let index = usize::try_from(index).expect("months and weekdays are counted from zero");
    let name = names[index];
    if count <= ABBREVIATION { name[..ABBREVIATION].to_string() } else { name.to_string() }
}

fn fraction(civil: Civil) -> String {
    padded(civil.fraction, LETTERS_MAX)
}

fn half_of_day(civil: Civil) -> &'static str {
    if civil.hour < 12 { "AM" } else { "PM" }
}
