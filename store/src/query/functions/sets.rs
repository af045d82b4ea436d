//! Arrays taken as sets: each value once, equal as `=` has it.
//!
//! Values are compared by keys, equal for equal values, so that long arrays cost no more than their
//! length.

use std::collections::HashSet;

use super::call::call;
use super::{Args, Function, Moment, cost};
use crate::query::value::{Member, Number, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("SETUNION", 2, 2, union).at(cost::keys),
    Function::new("SETINTERSECT", 2, 2, intersect).at(cost::keys),
    Function::new("SETDIFFERENCE", 2, 2, difference).at(cost::keys),
    Function::new("SETEQUAL", 2, 2, equal).at(cost::keys),
];

/// Those of the first, then what the second adds.
fn union(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(a, b): (&[Value], &[Value])| distinct(a.iter().chain(b), |_| true))
}

/// In the order of the second.
fn intersect(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(a, b): (&[Value], &[Value])| {
        let known = keys(a);
        distinct(b.iter(), |key| known.contains(key))
    })
}

/// In the order of the first.
fn difference(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(a, b): (&[Value], &[Value])| {
        let known = keys(b);
        distinct(a.iter(), |key| !known.contains(key))
    })
}

fn equal(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(a, b): (&[Value], &[Value])| {
        // Of what equals nothing, not even itself, no other set has the same.
        let comparable = a.iter().chain(b).all(|value| Key::of(value).is_some());
        comparable && keys(a) == keys(b)
    })
}

fn keys(values: &[Value]) -> HashSet<Key> {
    values.iter().filter_map(Key::of).collect()
}

/// The first of each value whose key is wanted. What equals nothing is never known before.
fn distinct<'v>(
    values: impl Iterator<Item = &'v Value>,
    wanted: impl Fn(&Key) -> bool,
) -> Vec<Value> {
    let mut seen = HashSet::new();
    let fresh = |value: &&Value| match Key::of(value) {
        Some(key) => wanted(&key) && seen.insert(key),
        None => wanted(&Key(Vec::new())),
    };
    values.filter(fresh).cloned().collect()
}

/// Bytes that are the same for equal values, and for no others.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key(Vec<u8>);

impl Key {
    /// The key of a value; none for one that holds NaN, which equals nothing.
    fn of(value: &Value) -> Option<Key> {
        let mut bytes = Vec::new();
        append(&mut bytes, value)?;
        Some(Key(bytes))
    }
}

fn append(out: &mut Vec<u8>, value: &Value) -> Option<()> {
    out.push(value.rank());
    match value {
        Value::Undefined | Value::Null => {}
        Value::Bool(truth) => out.push(u8::from(*truth)),
        Value::Number(number) => append_number(out, *number)?,
        Value::Text(text) => append_text(out, text),
        Value::Array(elements) => {
            out.extend_from_slice(&elements.len().to_be_bytes());
            for element in elements {
                append(out, element)?;
            }
        }
        Value::Object(members) => {
            let mut sorted: Vec<&Member> = members.iter().collect();
            sorted.sort_by(|a, b| a.0.cmp(&b.0));
            out.extend_from_slice(&sorted.len().to_be_bytes());
            for (name, value) in sorted {
                append_text(out, name);
                append(out, value)?;
            }
        }
    }
    Some(())
}

/// Integers and doubles of the same value alike; NaN not at all.
fn append_number(out: &mut Vec<u8>, number: Number) -> Option<()> {
    if let Some(whole) = number.as_i64() {
        out.push(0);
        out.extend_from_slice(&whole.to_be_bytes());
        return Some(());
    }
    let double = number.as_f64();
    if double.is_nan() {
        return None;
    }
    out.push(1);
    out.extend_from_slice(&double.to_bits().to_be_bytes());
    Some(())
}

fn append_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&text.len().to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}
