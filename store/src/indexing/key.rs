//! Values as the index holds them: byte strings whose order is the order of ORDER BY.
//!
//! A value is its rank and then:
//!
//! | rank | type | bytes |
//! |---|---|---|
//! | 0, 1 | undefined, null | none |
//! | 2 | boolean | one |
//! | 3 | number | an ordered double |
//! | 4 | text | UTF-8 in the order of UTF-16, `00` escaped; an end, or a cut and a hash of all of it |
//! | 5, 6 | array, object | a hash of the content |
//!
//! No encoding is the beginning of another one, so others may follow. A component that sorts
//! descending has all its bits inverted.

use super::hash;
use crate::json::Scalar;
use crate::keycode::{self, END, ESCAPE, ESCAPED_ZERO, KeyReader, MalformedKey};
use crate::query::{Number, Value};
use crate::time::Seconds;

/// Text is kept up to the character that reaches so many bytes; the rest of a longer one is only
/// hashed. Where it is cut depends on what is kept alone, or a cut could change the order.
pub const TEXT_BYTES_KEPT: usize = 100;

/// Doubles from here on stand for several integers.
const EXACT_INTEGER_END: f64 = 9_007_199_254_740_992.0;
/// Doubles beyond stand for no integer that is kept exactly.
const INTEGERS_END: f64 = 9_223_372_036_854_775_808.0;

/// First byte of every value: the order of types.
pub(super) const UNDEFINED: u8 = 0;
pub(super) const NULL: u8 = 1;
pub(super) const BOOLEAN: u8 = 2;
pub(super) const NUMBER: u8 = 3;
pub(super) const TEXT: u8 = 4;
pub(super) const ARRAY: u8 = 5;
pub(super) const OBJECT: u8 = 6;

const CUT: u8 = 0x01;
/// U+E000 to U+FFFF begin with EE and EF in UTF-8, but come behind all others in UTF-16.
const LEADS_MOVED: std::ops::RangeInclusive<u8> = 0xEE..=0xEF;
const LEADS_MOVED_BY: u8 = 7;

/// A value, or the values of a composite index, as the index orders them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EncodedValue(pub(super) Vec<u8>);

/// An encoded value that somebody else keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EncodedRef<'a>(pub(super) &'a [u8]);

impl EncodedValue {
    /// The encoding of one value.
    pub fn new(value: &Value) -> Self {
        let mut bytes = Vec::with_capacity(16);
        put_value(&mut bytes, value);
        Self(bytes)
    }

    /// The value of a spatial index: the digits of the way to a cell, and an end. No other value begins
    /// with it, but those of the cells inside begin with the digits.
    pub(crate) fn of_cell(digits: &[u8]) -> Self {
        Self([digits, &[END]].concat())
    }

    /// An encoding whose bytes somebody kept.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The encoding, lent.
    pub fn as_ref(&self) -> EncodedRef<'_> {
        EncodedRef(&self.0)
    }
}

impl<'a> EncodedRef<'a> {
    /// The value of an entry.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// A copy.
    pub fn to_owned(self) -> EncodedValue {
        EncodedValue(self.0.to_vec())
    }

    /// What a scan of a single path must know of the value.
    pub fn component(self) -> Result<Component<'a>, MalformedKey> {
        let mut reader = KeyReader::new(self.0);
        let component = Component::read(&mut reader)?;
        if reader.rest().is_empty() { Ok(component) } else { Err(MalformedKey("bytes behind it")) }
    }
}

/// One value of an index entry, taken apart as far as the entry tells it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Component<'a> {
    /// The item has no such property.
    Undefined,
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// This very number.
    Number(f64),
    /// A number that rounds to this one: an integer of more than 53 bits, perhaps. Or no number: what
    /// that is equal to, or less than, is for the item to tell.
    About(f64),
    /// Text, still encoded.
    Text(&'a [u8]),
    /// Text that begins like this, still encoded, and goes on.
    CutText(&'a [u8]),
    /// An array with this hash.
    Array(u64),
    /// An object with this hash.
    Object(u64),
}

impl<'a> Component<'a> {
    /// Reads one component from the front.
    pub(super) fn read(reader: &mut KeyReader<'a>) -> Result<Self, MalformedKey> {
        match reader.u8()? {
            UNDEFINED => Ok(Component::Undefined),
            NULL => Ok(Component::Null),
            BOOLEAN => match reader.u8()? {
                0 => Ok(Component::Bool(false)),
                1 => Ok(Component::Bool(true)),
                _ => Err(MalformedKey("a boolean that is neither")),
            },
            NUMBER => Ok(number(reader.f64()?)),
            TEXT => text(reader),
            ARRAY => Ok(Component::Array(reader.u64()?)),
            OBJECT => Ok(Component::Object(reader.u64()?)),
            _ => Err(MalformedKey("an unknown rank")),
        }
    }

    /// True if the entry says all there is to know of the value.
    pub fn is_exact(&self) -> bool {
        match self {
            Component::Undefined
            | Component::Null
            | Component::Bool(_)
            | Component::Number(_)
            | Component::Text(_) => true,
            Component::About(_)
            | Component::CutText(_)
            | Component::Array(_)
            | Component::Object(_) => false,
        }
    }

    /// The value; none if the item must be asked.
    pub fn value(&self) -> Option<Value> {
        match *self {
            Component::Undefined => Some(Value::Undefined),
            Component::Null => Some(Value::Null),
            Component::Bool(truth) => Some(Value::Bool(truth)),
            Component::Number(number) => Some(number_value(number)),
            Component::Text(encoded) => Some(Value::Text(decoded(encoded))),
            Component::About(_)
            | Component::CutText(_)
            | Component::Array(_)
            | Component::Object(_) => None,
        }
    }
}

fn number(number: f64) -> Component<'static> {
    let magnitude = number.abs();
    if number.is_nan() || (EXACT_INTEGER_END..=INTEGERS_END).contains(&magnitude) {
        Component::About(number)
    } else {
        Component::Number(number)
    }
}

/// As a stored number is read: whole numbers are written without a fraction.
fn number_value(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < EXACT_INTEGER_END {
        #[expect(clippy::cast_possible_truncation, reason = "it is whole and below 2^53")]
        let whole = number as i64;
        Value::Number(Number::Int(whole))
    } else {
        Value::float(number)
    }
}

fn text<'a>(reader: &mut KeyReader<'a>) -> Result<Component<'a>, MalformedKey> {
    let encoded = reader.rest();
    let mut at = 0;
    loop {
        let zero = encoded[at..].iter().position(|byte| *byte == ESCAPE);
        let end = at + zero.ok_or(MalformedKey("text without an end"))?;
        match encoded.get(end + 1) {
            Some(&ESCAPED_ZERO) => at = end + 2,
            Some(&END) => {
                reader.take(end + 2)?;
                return Ok(Component::Text(&encoded[..end]));
            }
            Some(&CUT) => {
                reader.take(end + 2)?;
                reader.u64()?;
                return Ok(Component::CutText(&encoded[..end]));
            }
            Some(_) | None => return Err(MalformedKey("an unknown escape in text")),
        }
    }
}

/// Undoes what `put_text` did to the characters it kept.
pub(super) fn decoded(encoded: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.iter();
    while let Some(byte) = rest.next() {
        let moved = byte.wrapping_sub(LEADS_MOVED_BY);
        bytes.push(if LEADS_MOVED.contains(&moved) { moved } else { *byte });
        if *byte == ESCAPE {
            rest.next();
        }
    }
    // Keys come from our own disk; what is not UTF-8 there is shown, and is no reason to stop.
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into())
}

/// Appends a value.
pub(super) fn put_value(key: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Undefined => key.push(UNDEFINED),
        Value::Null => key.push(NULL),
        Value::Bool(truth) => key.extend_from_slice(&[BOOLEAN, u8::from(*truth)]),
        Value::Number(number) => put_number(key, number.as_f64()),
        Value::Text(text) => put_text(key, text),
        Value::Array(_) => put_container(key, ARRAY, value.content_hash()),
        Value::Object(_) => put_container(key, OBJECT, value.content_hash()),
    }
}

/// Appends the time of a write.
pub(crate) fn put_ts(key: &mut Vec<u8>, ts: Seconds) {
    put_scalar(key, Scalar::UInt(ts.0));
}

/// Appends a scalar of a document.
pub(super) fn put_scalar(key: &mut Vec<u8>, scalar: Scalar<'_>) {
    match scalar {
        Scalar::Null => key.push(NULL),
        Scalar::Bool(truth) => key.extend_from_slice(&[BOOLEAN, u8::from(truth)]),
        Scalar::Text(text) => put_text(key, text),
        Scalar::Int(_) | Scalar::UInt(_) | Scalar::Float(_) => {
            put_number(key, scalar.as_f64().expect("these three are numbers"));
        }
    }
}

/// Appends an array or an object.
pub(super) fn put_container(key: &mut Vec<u8>, rank: u8, hash: u64) {
    key.push(rank);
    key.extend_from_slice(&hash.to_be_bytes());
}

fn put_number(key: &mut Vec<u8>, number: f64) {
    key.push(NUMBER);
    keycode::put_f64(key, number);
}

fn put_text(key: &mut Vec<u8>, text: &str) {
    let kept = kept(text);
    key.reserve(kept.len() + 11);
    key.push(TEXT);
    put_characters(key, kept);
    if kept.len() == text.len() {
        key.extend_from_slice(&[ESCAPE, END]);
    } else {
        key.extend_from_slice(&[ESCAPE, CUT]);
        key.extend_from_slice(&hash::of_bytes(text.as_bytes()).to_be_bytes());
    }
}

/// The part of a text that is kept.
fn kept(text: &str) -> &str {
    let end = (TEXT_BYTES_KEPT..text.len()).find(|end| text.is_char_boundary(*end));
    end.map_or(text, |end| &text[..end])
}

/// Appends text without its end: also what all longer texts begin with, as far as they are kept.
fn put_characters(key: &mut Vec<u8>, text: &str) {
    let is_changed = |byte: u8| byte == ESCAPE || LEADS_MOVED.contains(&byte);
    // Most text is kept as it is. All of it is looked at, several bytes at a time.
    if !text.bytes().fold(false, |found, byte| found | is_changed(byte)) {
        key.extend_from_slice(text.as_bytes());
        return;
    }
    for byte in text.bytes() {
        key.push(if LEADS_MOVED.contains(&byte) { byte + LEADS_MOVED_BY } else { byte });
        if byte == ESCAPE {
            key.push(ESCAPED_ZERO);
        }
    }
}

/// What the encodings of all text that begins like this begin with.
pub(super) fn text_beginning(prefix: &str) -> Vec<u8> {
    let kept = kept(prefix);
    let mut key = vec![TEXT];
    put_characters(&mut key, kept);
    if kept.len() < prefix.len() {
        // All of them are cut, too: a text that is no longer than what is kept is none of them.
        key.extend_from_slice(&[ESCAPE, CUT]);
    }
    key
}

/// The same for all values that are equal to this one as far as order is concerned, and no others:
/// the encoding without the hash of a cut text.
pub(super) fn order_bytes(encoded: &[u8]) -> Result<&[u8], MalformedKey> {
    let mut reader = KeyReader::new(encoded);
    let component = Component::read(&mut reader)?;
    let taken = encoded.len() - reader.rest().len();
    Ok(match component {
        Component::CutText(_) => &encoded[..taken - size_of::<u64>()],
        Component::Undefined
        | Component::Null
        | Component::Bool(_)
        | Component::Number(_)
        | Component::About(_)
        | Component::Text(_)
        | Component::Array(_)
        | Component::Object(_) => &encoded[..taken],
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(value: &Value) -> Vec<u8> {
        EncodedValue::new(value).0
    }

    fn text(text: &str) -> Value {
        Value::Text(text.to_string())
    }

    fn int(number: i64) -> Value {
        Value::Number(Number::Int(number))
    }

    #[test]
    fn types_sort_by_rank() {
        let ordered = [
            Value::Undefined,
            Value::Null,
            Value::Bool(false),
            Value::Bool(true),
            Value::float(f64::NEG_INFINITY),
            int(-1),
            int(0),
            Value::float(f64::INFINITY),
            text(""),
            text("\u{10FFFF}"),
            text("\u{FFFF}"),
            Value::Array(vec![]),
            Value::Object(vec![].into()),
        ];
        for pair in ordered.windows(2) {
            assert!(encoded(&pair[0]) < encoded(&pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn text_sorts_by_utf16_code_unit() {
        // U+FB01 is one unit above the surrogates that U+1F600 takes; in UTF-8 it is below.
        assert!(encoded(&text("\u{1F600}")) < encoded(&text("\u{FB01}")));
        assert!(encoded(&text("a")) < encoded(&text("a\0")));
        assert!(encoded(&text("a\0")) < encoded(&text("a\u{1}")));
    }

    #[test]
    fn negative_zero_is_zero() {
        assert_eq!(encoded(&Value::float(-0.0)), encoded(&int(0)));
    }

    #[test]
    fn a_cut_depends_on_what_is_kept_alone() {
        let ninety_nine = "x".repeat(TEXT_BYTES_KEPT - 1);
        let ordered = [
            format!("{ninety_nine}a"),
            format!("{ninety_nine}a and more"),
            format!("{ninety_nine}é"),
            format!("{ninety_nine}é and more"),
        ];
        for pair in ordered.windows(2) {
            assert!(encoded(&text(&pair[0])) < encoded(&text(&pair[1])), "{pair:?}");
        }
    }

    #[test]
    fn entries_know_what_they_do_not_tell() {
        let is_exact = |value: &Value| {
            EncodedValue::new(value).as_ref().component().expect("our own encoding").is_exact()
        };
        let long = "x".repeat(TEXT_BYTES_KEPT);
        for exact in [Value::Undefined, Value::Null, int((1 << 53) - 1), text(&long)] {
            assert!(is_exact(&exact), "{exact:?}");
        }
        assert!(is_exact(&Value::float(1e300)));
        let cut = text(&format!("{long}x"));
        for inexact in [int(1 << 53), int(i64::MIN), cut, Value::Array(vec![])] {
            assert!(!is_exact(&inexact), "{inexact:?}");
        }
    }

    #[test]
    fn malformed_entries_are_refused() {
        for bytes in [&[][..], &[9], &[2, 7], &[3, 1], &[4, b'a'], &[4, 0, 7], &[4, 0, 1], &[1, 1]]
        {
            assert!(EncodedRef(bytes).component().is_err(), "{bytes:?}");
        }
    }

    fn number() -> impl Strategy<Value = Value> {
        prop_oneof![
            any::<i64>().prop_map(int),
            (-100..100_i64).prop_map(int),
            any::<f64>().prop_filter("JSON has no NaN", |n| !n.is_nan()).prop_map(Value::float),
        ]
    }

    fn any_text() -> impl Strategy<Value = String> {
        let common = "x".repeat(TEXT_BYTES_KEPT - 3);
        prop_oneof![
            ".*".prop_map(String::from),
            "[\0a\u{D7FF}\u{E000}\u{FFFF}\u{10000}]{0,6}".prop_map(String::from),
            "[\0aé😀\u{FB01}]{0,8}".prop_map(move |tail| common.clone() + &tail),
        ]
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Undefined),
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            number(),
            any_text().prop_map(Value::Text),
        ];
        leaf.prop_recursive(2, 8, 3, |inner| {
            let defined = inner.prop_filter("members are defined", Value::is_defined);
            prop_oneof![
                prop::collection::vec(defined.clone(), 0..3).prop_map(Value::Array),
                prop::collection::btree_map("[ab]", defined, 0..3)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// What order bytes decide, `sort_compare` decides alike; what they leave open is not exact.
        #[test]
        fn encodings_keep_the_order_of_values(a in value(), b in value()) {
            let (x, y) = (encoded(&a), encoded(&b));
            let (x, y) = (order_bytes(&x).unwrap(), order_bytes(&y).unwrap());
            if x == y {
                let exact = EncodedValue::new(&a).as_ref().component().unwrap().is_exact();
                prop_assert!(!exact || a.sort_compare(&b).is_eq(), "{:?} {:?}", a, b);
            } else {
                prop_assert_eq!(x.cmp(y), a.sort_compare(&b), "{:?} {:?}", a, b);
            }
        }

        #[test]
        fn equal_values_have_one_encoding(a in value(), b in value()) {
            if a.is_defined() && b.is_defined() && a.equals(&b) {
                prop_assert_eq!(encoded(&a), encoded(&b));
            }
        }

        #[test]
        fn exact_entries_give_the_value_back(a in value()) {
            let bytes = encoded(&a);
            if let Some(value) = EncodedRef(&bytes).component().unwrap().value() {
                prop_assert!(value.sort_compare(&a).is_eq(), "{:?} {:?}", value, a);
            }
        }

        #[test]
        fn no_encoding_begins_another(a in value(), b in value()) {
            let (a, b) = (encoded(&a), encoded(&b));
            prop_assert!(a == b || !b.starts_with(&a));
        }

        #[test]
        fn beginnings_are_found_by_their_prefix(text in any_text(), cut in 0..8_usize) {
            let prefix: String = text.chars().take(cut).collect();
            prop_assert!(encoded(&Value::Text(text)).starts_with(&text_beginning(&prefix)));
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = EncodedRef(&bytes).component().map(|component| component.value());
            let _ = order_bytes(&bytes);
        }
    }
}
