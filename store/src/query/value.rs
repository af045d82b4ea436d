//! Values of the query language: JSON, and undefined.

use std::cmp::Ordering;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess};

use super::ast::Literal;
use super::op::Step;
use crate::indexing::hash;
use crate::json::{Scalar, write_f64, write_text};

mod bytes;
mod members;
mod size;

/// How deep a value nests at most.
pub(super) use bytes::DEPTH_MAX;
/// For `#[serde(with = "as_bytes")]`.
pub(super) use bytes::serde_form as as_bytes;
pub use members::{Member, Members};

/// What is not there.
const UNDEFINED: &Value = &Value::Undefined;

/// A number: exact while it is an integer of 64 bits, a double otherwise.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// An integer token that fits.
    Int(i64),
    /// Everything else.
    Float(f64),
}

/// A value of an expression.
#[derive(Clone, Debug, Default)]
pub enum Value {
    /// Not there: what a missing property is.
    #[default]
    Undefined,
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// Any number, infinities and NaN included.
    Number(Number),
    /// Text.
    Text(String),
    /// An array; its elements are defined.
    Array(Vec<Value>),
    /// An object; its members are defined.
    Object(Members),
}

impl Number {
    /// The number as a double.
    #[expect(clippy::cast_precision_loss, reason = "arithmetic is on doubles by definition")]
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Int(number) => number as f64,
            Number::Float(number) => number,
        }
    }

    /// The number as an integer, if it is whole and fits.
    pub fn as_i64(self) -> Option<i64> {
        /// 2^63, the first double that does not fit.
        const BEYOND: f64 = 9_223_372_036_854_775_808.0;
        match self {
            Number::Int(number) => Some(number),
            Number::Float(number) => {
                let fits = number.fract() == 0.0 && (-BEYOND..BEYOND).contains(&number);
                #[expect(clippy::cast_possible_truncation, reason = "it is whole and fits")]
                fits.then_some(number as i64)
            }
        }
    }

    /// Compares by value, exactly, also an integer with a double. None if either is NaN.
    pub fn compare(self, other: Number) -> Option<Ordering> {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
            (Number::Float(a), Number::Float(b)) => a.partial_cmp(&b),
            (Number::Int(a), Number::Float(b)) => compare_mixed(a, b),
            (Number::Float(a), Number::Int(b)) => compare_mixed(b, a).map(Ordering::reverse),
        }
    }

    /// True for what is no number, and compares with none.
    fn is_nan(self) -> bool {
        matches!(self, Number::Float(number) if number.is_nan())
    }

    /// The same number, as an integer if it is one that fits.
    pub(super) fn whole(self) -> Number {
        match self {
            Number::Float(number)
                if number.fract() == 0.0 && (-I64_END..I64_END).contains(&number) =>
            {
                #[expect(clippy::cast_possible_truncation, reason = "whole and within range")]
                Number::Int(number as i64)
            }
            Number::Int(_) | Number::Float(_) => self,
        }
    }
}

/// The first double above all integers of 64 bits.
const I64_END: f64 = 9_223_372_036_854_775_808.0;

/// Doubles near 2^53 and beyond stand for many integers: comparing as doubles would call all of them
/// equal, and equality would no longer be transitive.
#[expect(clippy::cast_possible_truncation, reason = "cut to its whole part, within range")]
fn compare_mixed(a: i64, b: f64) -> Option<Ordering> {
    if b.is_nan() {
        None
    } else if b >= I64_END {
        Some(Ordering::Less)
    } else if b < -I64_END {
        Some(Ordering::Greater)
    } else {
        let whole = b.trunc();
        Some(a.cmp(&(whole as i64)).then(0.0_f64.partial_cmp(&(b - whole))?))
    }
}

impl Value {
    /// A number of things.
    pub(super) fn count(count: u64) -> Value {
        let exact = i64::try_from(count).map(Number::Int);
        Value::Number(exact.unwrap_or(Number::Float(I64_END)))
    }

    /// A double.
    pub fn float(number: f64) -> Value {
        Value::Number(Number::Float(number))
    }

    /// True unless undefined.
    pub fn is_defined(&self) -> bool {
        !matches!(self, Value::Undefined)
    }

    /// True for exactly `true`: what WHERE keeps.
    pub fn is_true(&self) -> bool {
        matches!(self, Value::Bool(true))
    }

    /// The member of an object; undefined for everything else.
    pub fn member(&self, name: &str) -> &Value {
        match self {
            Value::Object(members) => members.named(name).unwrap_or(UNDEFINED),
            Value::Undefined
            | Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Text(_)
            | Value::Array(_) => UNDEFINED,
        }
    }

    /// The element of an array; undefined for everything else.
    pub(super) fn element(&self, index: usize) -> &Value {
        match self {
            Value::Array(elements) => elements.get(index).unwrap_or(UNDEFINED),
            Value::Undefined
            | Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Text(_)
            | Value::Object(_) => UNDEFINED,
        }
    }

    /// One step down.
    pub(super) fn step(&self, step: &Step) -> &Value {
        match step {
            Step::Name(name) => self.member(name),
            Step::Index(index) => self.element(*index),
        }
    }

    /// One step down, keeping nothing else.
    pub(super) fn into_step(self, step: &Step) -> Value {
        match (self, step) {
            (Value::Object(members), Step::Name(name)) => {
                members.into_named(name).unwrap_or_default()
            }
            (Value::Array(mut elements), Step::Index(index)) if *index < elements.len() => {
                elements.swap_remove(*index)
            }
            _ => Value::Undefined,
        }
    }

    /// Rank of the type in ORDER BY, MIN and MAX.
    pub fn rank(&self) -> u8 {
        match self {
            Value::Undefined => 0,
            Value::Null => 1,
            Value::Bool(_) => 2,
            Value::Number(_) => 3,
            Value::Text(_) => 4,
            Value::Array(_) => 5,
            Value::Object(_) => 6,
        }
    }

    /// Equality as `=`, IN and DISTINCT understand it; never called with undefined on either side.
    pub fn equals(&self, other: &Value) -> bool {
        self.equals_for(other, &mut |_| true)
    }

    /// The same, as long as `pay` agrees to go over so many bytes or elements more.
    pub(super) fn equals_for(&self, other: &Value, pay: &mut dyn FnMut(usize) -> bool) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Number(a), Value::Number(b)) => a.compare(*b) == Some(Ordering::Equal),
            (Value::Text(a), Value::Text(b)) => a.len() == b.len() && pay(a.len()) && a == b,
            (Value::Array(a), Value::Array(b)) => {
                a.len() == b.len()
                    && pay(a.len())
                    && a.iter().zip(b).all(|(a, b)| a.equals_for(b, pay))
            }
            (Value::Object(a), Value::Object(b)) => {
                a.len() == b.len()
                    && pay(b.search_length())
                    && a.iter().all(|(name, value)| {
                        b.named(name).is_some_and(|found| value.equals_for(found, pay))
                    })
            }
            _ => false,
        }
    }

    /// A hash that equal values share.
    pub(crate) fn content_hash(&self) -> u64 {
        match self {
            Value::Undefined => hash::of_bytes(&[]),
            Value::Null => hash::of_scalar(Scalar::Null),
            Value::Bool(truth) => hash::of_scalar(Scalar::Bool(*truth)),
            Value::Number(Number::Int(number)) => hash::of_scalar(Scalar::Int(*number)),
            Value::Number(Number::Float(number)) => hash::of_scalar(Scalar::Float(*number)),
            Value::Text(text) => hash::of_scalar(Scalar::Text(text)),
            Value::Array(elements) => {
                let elements: Vec<u64> = elements.iter().map(Value::content_hash).collect();
                hash::of_array(&elements)
            }
            Value::Object(members) => {
                let member = |(name, value): &Member| {
                    (hash::of_bytes(name.as_bytes()), value.content_hash())
                };
                hash::of_object(members.iter().map(member).collect())
            }
        }
    }

    /// The total order of ORDER BY: by type, then by value, NaN before all other numbers;
    /// arrays and objects, which have no order of
    /// their own, as the index has them.
    pub fn sort_compare(&self, other: &Value) -> Ordering {
        match (self, other) {
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Value::Number(a), Value::Number(b)) => {
                a.compare(*b).unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
            }
            (Value::Text(a), Value::Text(b)) => compare_utf16(a, b),
            (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => {
                let by_hash = self.content_hash().cmp(&other.content_hash());
                // Not by JSON, which tells the order of members: what is equal is one value here, too.
                by_hash.then_with(|| self.key().cmp(&other.key()))
            }
            _ => self.rank().cmp(&other.rank()),
        }
    }

    /// Appends the value as JSON. Undefined must have been left out by whoever holds it.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            Value::Undefined => unreachable!("undefined never reaches the output"),
            Value::Null => out.extend_from_slice(b"null"),
            Value::Bool(true) => out.extend_from_slice(b"true"),
            Value::Bool(false) => out.extend_from_slice(b"false"),
            Value::Number(Number::Int(number)) => {
                out.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes());
            }
            Value::Number(Number::Float(number)) if number.is_finite() => write_f64(out, *number),
            Value::Number(Number::Float(number)) if number.is_nan() => write_text(out, "NaN"),
            Value::Number(Number::Float(number)) => {
                write_text(out, if *number > 0.0 { "Infinity" } else { "-Infinity" });
            }
            Value::Text(text) => write_text(out, text),
            Value::Array(elements) => {
                out.push(b'[');
                for (at, element) in elements.iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    element.write_json(out);
                }
                out.push(b']');
            }
            Value::Object(members) => {
                out.push(b'{');
                for (at, (name, value)) in members.iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    write_text(out, name);
                    out.push(b':');
                    value.write_json(out);
                }
                out.push(b'}');
            }
        }
    }

    /// The value as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_json(&mut out);
        out
    }

    /// Reads JSON.
    pub fn from_json(bytes: &[u8]) -> Result<Value, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

impl From<&Literal> for Value {
    fn from(literal: &Literal) -> Self {
        match literal {
            Literal::Undefined => Value::Undefined,
            Literal::Null => Value::Null,
            Literal::Bool(truth) => Value::Bool(*truth),
            Literal::Int(number) => Value::Number(Number::Int(*number)),
            Literal::Float(number) => Value::float(*number),
            Literal::Text(text) => Value::Text(text.clone()),
        }
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Value::Bool(truth)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Number(Number::Int(number))
    }
}

impl From<usize> for Value {
    fn from(count: usize) -> Self {
        Value::from(i64::try_from(count).expect("what is held in memory is counted in 63 bits"))
    }
}

impl From<Number> for Value {
    fn from(number: Number) -> Self {
        Value::Number(number)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Value::float(number)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_string())
    }
}

impl From<Vec<Value>> for Value {
    fn from(elements: Vec<Value>) -> Self {
        Value::Array(elements)
    }
}

/// What cannot be computed is undefined.
impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(found: Option<T>) -> Self {
        found.map_or(Value::Undefined, Into::into)
    }
}

/// Compares text by UTF-16 code unit, as SDKs do when they merge partitions.
pub(super) fn compare_utf16(a: &str, b: &str) -> Ordering {
    a.encode_utf16().cmp(b.encode_utf16())
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Builder)
    }
}

/// Builds a value of all there is.
pub(super) struct Builder;

impl<'de> de::Visitor<'de> for Builder {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(Number::Int(number)))
    }

    #[expect(clippy::cast_precision_loss, reason = "integers above i64 are doubles here")]
    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(match i64::try_from(number) {
            Ok(number) => Number::Int(number),
            Err(_) => Number::Float(number as f64),
        }))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_string()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element()? {
            elements.push(element);
        }
        Ok(Value::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        Ok(Value::Object(all_members(&mut map)?.into()))
    }
}

/// Builds all there is in an object.
pub(super) fn all_members<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Vec<Member>, A::Error> {
    let mut members = Vec::new();
    while let Some(member) = map.next_entry()? {
        members.push(member);
    }
    Ok(members)
}
