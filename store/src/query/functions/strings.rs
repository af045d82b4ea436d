//! Functions of text. Positions and lengths count UTF-16 code units, as JavaScript and .NET do.

use super::call::{Argument, Whole, call};
use super::case::{fold, lower, upper};
use super::{Args, Function, Moment, RESULT_BYTES_MAX, conditions, cost};
use crate::query::value::Value;

/// Longest result of `REPLICATE`, in UTF-16 code units, as Cosmos has it.
const REPLICATE_UNITS_MAX: usize = 10_000;

pub(super) const FUNCTIONS: &[Function] = &[
    Function::variadic("CONCAT", 2, concat),
    Function::new("CONTAINS", 2, 3, contains),
    Function::new("STARTSWITH", 2, 3, starts_with),
    Function::new("ENDSWITH", 2, 3, ends_with),
    Function::new("STRINGEQUALS", 2, 3, string_equals),
    Function::variadic("CONTAINS_ANY_CI", 2, contains_any_ci).at(cost::each_in_text),
    Function::variadic("CONTAINS_ANY_CS", 2, contains_any_cs).at(cost::each_in_text),
    Function::variadic("CONTAINS_ALL_CI", 2, contains_all_ci).at(cost::each_in_text),
    Function::variadic("CONTAINS_ALL_CS", 2, contains_all_cs).at(cost::each_in_text),
    // The other spelling.
    Function::variadic("CONTAINSANYCI", 2, contains_any_ci).at(cost::each_in_text),
    Function::variadic("CONTAINSANYCS", 2, contains_any_cs).at(cost::each_in_text),
    Function::variadic("CONTAINSALLCI", 2, contains_all_ci).at(cost::each_in_text),
    Function::variadic("CONTAINSALLCS", 2, contains_all_cs).at(cost::each_in_text),
    Function::new("INDEX_OF", 2, 3, index_of),
    Function::new("LASTINDEXOF", 2, 3, last_index_of),
    Function::new("LENGTH", 1, 1, length),
    Function::new("LEFT", 2, 2, left),
    Function::new("RIGHT", 2, 2, right),
    Function::new("SUBSTRING", 3, 3, substring),
    Function::new("LOWER", 1, 1, to_lower),
    Function::new("UPPER", 1, 1, to_upper),
    Function::new("LTRIM", 1, 2, ltrim),
    Function::new("RTRIM", 1, 2, rtrim),
    Function::new("TRIM", 1, 2, trim),
    Function::new("REPLACE", 3, 3, replace),
    Function::new("REPLICATE", 2, 2, replicate),
    Function::new("REVERSE", 1, 1, reverse),
    Function::new("STRINGJOIN", 2, 2, join),
    Function::new("STRINGSPLIT", 2, 2, split),
];

fn concat(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |texts: Vec<&str>| {
        let bytes = texts.iter().map(|text| text.len()).sum::<usize>();
        (bytes <= RESULT_BYTES_MAX).then(|| texts.concat())
    })
}

fn contains(args: &Args<'_>, _: &Moment) -> Value {
    compare(args, |text, sought| text.contains(sought))
}

fn starts_with(args: &Args<'_>, _: &Moment) -> Value {
    compare(args, |text, sought| text.starts_with(sought))
}

fn ends_with(args: &Args<'_>, _: &Moment) -> Value {
    compare(args, |text, sought| text.ends_with(sought))
}

fn string_equals(args: &Args<'_>, _: &Moment) -> Value {
    compare(args, |text, other| text == other)
}

/// The third argument says whether case is ignored.
fn compare(args: &Args<'_>, test: fn(&str, &str) -> bool) -> Value {
    call(args, |(text, other, ignore_case): (&str, &str, Option<bool>)| match ignore_case {
        Some(true) => test(&fold(text), &fold(other)),
        Some(false) | None => test(text, other),
    })
}

fn contains_any_ci(args: &Args<'_>, _: &Moment) -> Value {
    conditions::any(each_contained(args, fold)).into()
}

fn contains_any_cs(args: &Args<'_>, _: &Moment) -> Value {
    conditions::any(each_contained(args, str::to_string)).into()
}

fn contains_all_ci(args: &Args<'_>, _: &Moment) -> Value {
    conditions::all(each_contained(args, fold)).into()
}

fn contains_all_cs(args: &Args<'_>, _: &Moment) -> Value {
    conditions::all(each_contained(args, str::to_string)).into()
}

/// Whether the first argument contains each of the others; undefined where one is no text.
fn each_contained<'a>(
    args: &'a Args<'a>,
    form: fn(&str) -> String,
) -> impl Iterator<Item = Option<bool>> {
    let mut rest = args.iter();
    let text = <&str>::take(&mut rest).map(form);
    rest.map(move |sought| {
        let sought = <&str>::take(&mut std::slice::from_ref(sought).iter())?;
        Some(text.as_ref()?.contains(&form(sought)))
    })
}

fn index_of(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(text, sought, from): (&str, &str, Option<Whole>)| {
        let from = from.map_or(0, Whole::count);
        let start = if from > units(text) { None } else { Some(byte_at_or_after(text, from)) };
        let found = start.and_then(|start| Some(start + text[start..].find(sought)?));
        position(text, found)
    })
}

/// With a third argument the match must lie before it, or end there.
fn last_index_of(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(text, sought, last): (&str, &str, Option<Whole>)| {
        let end = match last {
            None => text.len(),
            Some(Whole(negative)) if negative < 0 => return -1,
            Some(last) => byte_at_or_before(text, last.count().saturating_add(1)),
        };
        position(text, text[..end].rfind(sought))
    })
}

/// The position of a byte in code units; -1 if there is none.
fn position(text: &str, byte: Option<usize>) -> i64 {
    byte.map_or(-1, |byte| i64::try_from(units(&text[..byte])).expect("texts fit in memory"))
}

fn length(args: &Args<'_>, _: &Moment) -> Value {
    call(args, units)
}

fn left(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(text, count): (&str, Whole)| part(text, 0, count.count()))
}

fn right(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(text, count): (&str, Whole)| {
        part(text, units(text).saturating_sub(count.count()), usize::MAX)
    })
}

fn substring(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(text, start, count): (&str, Whole, Whole)| match start {
        Whole(negative) if negative < 0 => String::new(),
        start => part(text, start.count(), count.count()),
    })
}

fn to_lower(args: &Args<'_>, _: &Moment) -> Value {
    call(args, lower)
}

fn to_upper(args: &Args<'_>, _: &Moment) -> Value {
    call(args, upper)
}

fn ltrim(args: &Args<'_>, _: &Moment) -> Value {
    trimmed(args, |text, goes| text.trim_start_matches(goes))
}

fn rtrim(args: &Args<'_>, _: &Moment) -> Value {
    trimmed(args, |text, goes| text.trim_end_matches(goes))
}

fn trim(args: &Args<'_>, _: &Moment) -> Value {
    trimmed(args, |text, goes| text.trim_matches(goes))
}

type Goes<'a> = &'a dyn Fn(char) -> bool;

/// White space goes, or every character of the second argument.
fn trimmed(args: &Args<'_>, cut: for<'t> fn(&'t str, Goes<'_>) -> &'t str) -> Value {
    call(args, |(text, characters): (&str, Option<&str>)| match characters {
        None => Value::from(cut(text, &char::is_whitespace)),
        Some(characters) => {
            let characters: std::collections::BTreeSet<char> = characters.chars().collect();
            Value::from(cut(text, &|character| characters.contains(&character)))
        }
    })
}

fn replace(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(text, sought, with): (&str, &str, &str)| {
        if sought.is_empty() {
            return None;
        }
        let times = text.matches(sought).count();
        let bytes = text.len() - times * sought.len() + times.saturating_mul(with.len());
        (bytes <= RESULT_BYTES_MAX).then(|| text.replace(sought, with))
    })
}

fn replicate(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(text, times): (&str, f64)| {
        let times = times.trunc();
        if !times.is_finite() || times < 0.0 {
            return None;
        }
        if text.is_empty() {
            return Some(String::new());
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let times = times as usize;
        let fits = times.saturating_mul(units(text)) <= REPLICATE_UNITS_MAX;
        fits.then(|| text.repeat(times))
    })
}

/// Turns whole characters around, never the halves of one.
fn reverse(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |text: &str| text.chars().rev().collect::<String>())
}

fn join(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(pieces, separator): (&[Value], &str)| {
        let texts: Vec<&str> = pieces.iter().map(as_text).collect::<Option<_>>()?;
        let separators = texts.len().saturating_sub(1).saturating_mul(separator.len());
        let bytes = texts.iter().map(|text| text.len()).sum::<usize>().saturating_add(separators);
        (bytes <= RESULT_BYTES_MAX).then(|| texts.join(separator))
    })
}

fn as_text(value: &Value) -> Option<&str> {
    let Value::Text(text) = value else { return None };
    Some(text)
}

fn split(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(text, separator): (&str, &str)| {
        if separator.is_empty() {
            return Some(vec![Value::from(text)]);
        }
        let pieces = text.matches(separator).count() + 1;
        let bytes = text.len() + pieces * size_of::<Value>();
        (bytes <= RESULT_BYTES_MAX).then(|| text.split(separator).map(Value::from).collect())
    })
}

/// The length in UTF-16 code units.
fn units(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}

/// The code units from `start` on, at most `count`; half a surrogate pair becomes U+FFFD.
fn part(text: &str, start: usize, count: usize) -> String {
    let units = text.encode_utf16().skip(start).take(count);
    char::decode_utf16(units).map(|one| one.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

/// The byte where the first character begins that is not before this code unit.
fn byte_at_or_after(text: &str, unit: usize) -> usize {
    boundaries(text).find(|(_, units)| *units >= unit).map_or(text.len(), |(byte, _)| byte)
}

/// The byte of the last border between characters that is not after this code unit.
fn byte_at_or_before(text: &str, unit: usize) -> usize {
    boundaries(text).take_while(|(_, units)| *units <= unit).last().map_or(0, |(byte, _)| byte)
}

/// The borders between characters, in bytes and in code units; both ends are borders.
fn boundaries(text: &str) -> impl Iterator<Item = (usize, usize)> {
    let after = text.chars().scan((0, 0), |(bytes, units), character| {
        *bytes += character.len_utf8();
        *units += character.len_utf16();
        Some((*bytes, *units))
    });
    std::iter::once((0, 0)).chain(after)
}
