//! JSON as we store it: compact, one way to write each value, every integer exact.
//!
//! A body is normalised once, while it is parsed, without building a tree: white space goes, `3.0`
//! becomes `3`, escapes take one form, of repeated names the last wins. On the way a `Visitor` sees
//! every scalar with its place in the document.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess};
use thiserror::Error;

/// A scalar, or the mere fact of a container, as it stands in a document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer of up to 64 bits with sign.
    Int(i64),
    /// An integer above the largest `i64`.
    UInt(u64),
    /// Any other number.
    Float(f64),
    /// Text.
    Text(&'a str),
}

impl Scalar<'_> {
    /// The number as a double, as JavaScript and the partition hash see it.
    #[expect(clippy::cast_precision_loss, reason = "doubles are what the protocol compares")]
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Scalar::Int(number) => Some(number as f64),
            Scalar::UInt(number) => Some(number as f64),
            Scalar::Float(number) => Some(number),
            Scalar::Null | Scalar::Bool(_) | Scalar::Text(_) => None,
        }
    }

    /// Appends the one way to write this scalar.
    pub fn write(&self, out: &mut Vec<u8>) {
        match *self {
            Scalar::Null => out.extend_from_slice(b"null"),
            Scalar::Bool(true) => out.extend_from_slice(b"true"),
            Scalar::Bool(false) => out.extend_from_slice(b"false"),
            Scalar::Int(number) => {
                out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            }
            Scalar::UInt(number) => {
                out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            }
            Scalar::Float(number) => write_f64(out, number),
            Scalar::Text(text) => write_text(out, text),
        }
    }
}

/// Doubles at or beyond this magnitude are printed with an exponent.
const EXPONENT_FROM: f64 = 1e16;

/// Appends the shortest text that reads back as the same double; no fraction on whole numbers.
pub fn write_f64(out: &mut Vec<u8>, number: f64) {
    assert!(number.is_finite(), "JSON has no NaN and no infinity");
    if number.fract() == 0.0 && number.abs() < EXPONENT_FROM {
        #[expect(clippy::cast_possible_truncation, reason = "it is whole and fits")]
        let whole = number as i64;
        out.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes());
    } else {
        out.extend_from_slice(ryu::Buffer::new().format_finite(number).as_bytes());
    }
}

/// Appends quoted text.
pub fn write_text(out: &mut Vec<u8>, text: &str) {
    if is_plain(text) {
        out.reserve(text.len() + 2);
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        let written = serde_json::to_writer(out, text);
        written.expect("text always serialises, and a Vec takes every write");
    }
}

/// True if nothing in it is escaped. Looks at all of it, so that the compiler takes many bytes at a time.
fn is_plain(text: &str) -> bool {
    let is_escaped = |byte: u8| byte < b' ' || byte == b'"' || byte == b'\\';
    !text.bytes().fold(false, |any, byte| any | is_escaped(byte))
}

/// Sees a document go by. Containers nest: every `enter` is matched by a `leave`.
pub trait Visitor {
    /// A member named `name` follows; false leaves it out of the output.
    fn member(&mut self, name: &str) -> bool;
    /// An array element follows.
    fn element(&mut self);
    /// The member or element is over.
    fn done(&mut self);
    /// The current member or element is this scalar.
    fn scalar(&mut self, value: Scalar<'_>);
    /// The current member or element is an array or an object.
    fn container(&mut self, kind: Container);
}

/// What holds other values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// `[…]`
    Array,
    /// `{…}`
    Object,
}

/// Why a body is not JSON we take.
#[derive(Debug, Error)]
pub enum JsonError {
    /// Not JSON, or nested more than 128 levels deep.
    #[error("invalid JSON: {0}")]
    Syntax(String),
    /// The top level is not an object.
    #[error("the body must be a JSON object")]
    NotAnObject,
}

/// Text by which the inner visitor reports a repeated name to `normalise`.
const REPEATED_NAME: &str = "ephemeris: repeated name";

/// Normalises an object, showing every value to `visitor`.
///
/// `new_visitor` is called once more if names repeat: then a tree is built that keeps the last of
/// each, and the document goes by again.
pub fn normalise<V: Visitor>(
    body: &[u8],
    mut new_visitor: impl FnMut() -> V,
) -> Result<(Vec<u8>, V), JsonError> {
    match normalise_once(body, new_visitor()) {
        Err(error) if error.to_string().starts_with(REPEATED_NAME) => {}
        outcome => return outcome.map_err(|error| describe(body, &error)),
    }
    let tree: serde_json::Value =
        serde_json::from_slice(body).map_err(|error| describe(body, &error))?;
    let deduplicated = serde_json::to_vec(&tree).expect("a tree of JSON serialises");
    normalise_once(&deduplicated, new_visitor()).map_err(|error| describe(body, &error))
}

fn describe(body: &[u8], error: &serde_json::Error) -> JsonError {
    let starts_object = body.trim_ascii_start().first() == Some(&b'{');
    if starts_object || serde_json::from_slice::<IgnoredAny>(body).is_err() {
        JsonError::Syntax(error.to_string())
    } else {
        JsonError::NotAnObject
    }
}

fn normalise_once<V: Visitor>(body: &[u8], visitor: V) -> Result<(Vec<u8>, V), serde_json::Error> {
    let mut writer = Writer { out: Vec::with_capacity(body.len()), visitor };
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    TopLevel(&mut writer).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok((writer.out, writer.visitor))
}

struct Writer<V> {
    out: Vec<u8>,
    visitor: V,
}

struct TopLevel<'w, V>(&'w mut Writer<V>);
struct Value<'w, V>(&'w mut Writer<V>);
struct Name<'w, V> {
    writer: &'w mut Writer<V>,
    names: &'w mut Names,
    first: bool,
}

/// Names of one object seen so far, to find repetitions.
#[derive(Default)]
struct Names {
    few: Vec<std::ops::Range<usize>>,
    many: std::collections::HashSet<Vec<u8>>,
}

/// Up to so many names are compared one by one; beyond that a set is faster.
const FEW_NAMES: usize = 24;
/// Names of an object, or a few less: room for them is taken at once.
const USUAL_NAMES: usize = 16;

impl Names {
    /// Remembers the name at `span`; false if it was there already.
    fn insert(&mut self, out: &[u8], span: std::ops::Range<usize>) -> bool {
        if self.many.is_empty() {
            if self.few.iter().any(|known| out[known.clone()] == out[span.clone()]) {
                return false;
            }
            if self.few.is_empty() {
                self.few.reserve(USUAL_NAMES);
            }
            self.few.push(span);
            if self.few.len() > FEW_NAMES {
                self.many = self.few.drain(..).map(|known| out[known].to_vec()).collect();
            }
            return true;
        }
        self.many.insert(out[span].to_vec())
    }
}

impl<'de, V: Visitor> DeserializeSeed<'de> for TopLevel<'_, V> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(Value(self.0))
    }
}

impl<'de, V: Visitor> DeserializeSeed<'de> for Value<'_, V> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<V: Visitor> Value<'_, V> {
    fn scalar(self, value: Scalar<'_>) {
        value.write(&mut self.0.out);
        self.0.visitor.scalar(value);
    }
}

impl<'de, V: Visitor> de::Visitor<'de> for Value<'_, V> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.scalar(Scalar::Null);
        Ok(())
    }

    fn visit_bool<E>(self, truth: bool) -> Result<(), E> {
        self.scalar(Scalar::Bool(truth));
        Ok(())
    }

    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        self.scalar(Scalar::Int(number));
        Ok(())
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.scalar(i64::try_from(number).map_or(Scalar::UInt(number), Scalar::Int));
        Ok(())
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        self.scalar(Scalar::Float(number));
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.scalar(Scalar::Text(text));
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let writer = self.0;
        writer.visitor.container(Container::Array);
        writer.out.push(b'[');
        let start = writer.out.len();
        loop {
            // The comma is written before the element is known to exist, and taken back at the end.
            let before = writer.out.len();
            if before > start {
                writer.out.push(b',');
            }
            writer.visitor.element();
            let found = seq.next_element_seed(Value(writer))?;
            writer.visitor.done();
            if found.is_none() {
                writer.out.truncate(before);
                break;
            }
        }
        writer.out.push(b']');
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let writer = self.0;
        writer.visitor.container(Container::Object);
        writer.out.push(b'{');
        let mut names = Names::default();
        let mut first = true;
        loop {
            let before = writer.out.len();
            let name = Name { writer, names: &mut names, first };
            match map.next_key_seed(name)? {
                None => break,
                Some(Member::Kept) => {
                    map.next_value_seed(Value(writer))?;
                    writer.visitor.done();
                    first = false;
                }
                Some(Member::LeftOut) => {
                    writer.out.truncate(before);
                    map.next_value::<IgnoredAny>()?;
                    writer.visitor.done();
                }
            }
        }
        writer.out.push(b'}');
        Ok(())
    }
}

enum Member {
    Kept,
    LeftOut,
}

impl<'de, V: Visitor> DeserializeSeed<'de> for Name<'_, V> {
    type Value = Member;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Member, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<V: Visitor> de::Visitor<'_> for Name<'_, V> {
    type Value = Member;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member name")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Member, E> {
        let writer = self.writer;
        if !writer.visitor.member(name) {
            return Ok(Member::LeftOut);
        }
        if !self.first {
            writer.out.push(b',');
        }
        let start = writer.out.len();
        write_text(&mut writer.out, name);
        if !self.names.insert(&writer.out, start..writer.out.len()) {
            return Err(E::custom(REPEATED_NAME));
        }
        writer.out.push(b':');
        Ok(Member::Kept)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Keeps everything but members called `_drop`; records a trace of what it saw.
    #[derive(Default)]
    struct Trace(String);

    impl Visitor for Trace {
        fn member(&mut self, name: &str) -> bool {
            self.0.push_str(name);
            self.0.push(':');
            name != "_drop"
        }
        fn element(&mut self) {
            self.0.push('-');
        }
        fn done(&mut self) {
            self.0.push(';');
        }
        fn scalar(&mut self, _: Scalar<'_>) {
            self.0.push('s');
        }
        fn container(&mut self, kind: Container) {
            self.0.push(if kind == Container::Array { 'a' } else { 'o' });
        }
    }

    fn normal(body: &str) -> String {
        let (out, _) = normalise(body.as_bytes(), Trace::default).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn white_space_goes_and_numbers_take_one_form() {
        assert_eq!(normal(" { \"a\" : [ 1.0 , -0.0, 1e3, 2.50 ] } "), r#"{"a":[1,0,1000,2.5]}"#);
        assert_eq!(normal(r#"{"a":18446744073709551615}"#), r#"{"a":18446744073709551615}"#);
        assert_eq!(normal(r#"{"a":9007199254740993}"#), r#"{"a":9007199254740993}"#);
        for whole in ["9007199254740994", "9500000000000002", "-9999999999999998", "1e16"] {
            let double: f64 = whole.parse().unwrap();
            let mut shown = Vec::new();
            write_f64(&mut shown, double);
            assert_eq!(String::from_utf8(shown).unwrap(), whole);
        }
        assert_eq!(normal(r#"{"a":"\u00e9\u2028\/"}"#), "{\"a\":\"é\u{2028}/\"}");
    }

    #[test]
    fn of_repeated_names_the_last_wins() {
        assert_eq!(normal(r#"{"a":1,"b":2,"a":{"c":1,"c":3}}"#), r#"{"a":{"c":3},"b":2}"#);
        let many = (0..40).fold(String::new(), |text, n| text + &format!("\"k{n}\":{n},"));
        assert!(normal(&format!("{{{many}\"k3\":true}}")).contains("\"k3\":true"));
    }

    #[test]
    fn left_out_members_leave_no_trace_in_the_output() {
        assert_eq!(normal(r#"{"_drop":{"a":[1]},"b":1}"#), r#"{"b":1}"#);
        assert_eq!(normal(r#"{"b":1,"_drop":2}"#), r#"{"b":1}"#);
        assert_eq!(normal(r#"{"_drop":2}"#), "{}");
    }

    #[test]
    fn the_visitor_sees_every_value_at_its_place() {
        let (_, trace) = normalise(br#"{"a":[1,{"b":null}],"c":{}}"#, Trace::default).unwrap();
        assert_eq!(trace.0, "oa:a-s;-ob:s;;-;;c:o;");
    }

    #[test]
    fn what_is_not_an_object_is_refused() {
        let refuse = |body: &[u8]| normalise(body, Trace::default).err().unwrap().to_string();
        for body in ["[]", "1", "\"a\"", "null", " [1] "] {
            assert_eq!(refuse(body.as_bytes()), "the body must be a JSON object", "{body}");
        }
        for body in ["", "{", "{\"a\":}", "{\"a\":1}x", "{\"a\":01}", "[", "{\"a\":\"\\ud800\"}"] {
            assert!(refuse(body.as_bytes()).starts_with("invalid JSON"), "{body}");
        }
        assert!(refuse(b"{\"a\":\"\xff\"}").starts_with("invalid JSON"));
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(200), "]".repeat(200));
        assert!(refuse(deep.as_bytes()).starts_with("invalid JSON: recursion limit"));
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            any::<f64>().prop_map(serde_json::Value::from),
            ".*".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
                prop::collection::vec((".{0,3}", inner), 0..6)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    fn same(a: &serde_json::Value, b: &serde_json::Value) -> bool {
        match (a, b) {
            (serde_json::Value::Number(a), serde_json::Value::Number(b)) => {
                a.as_f64() == b.as_f64()
            }
            (serde_json::Value::Array(a), serde_json::Value::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
            }
            (serde_json::Value::Object(a), serde_json::Value::Object(b)) => {
                a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| same(v, w)))
            }
            _ => a == b,
        }
    }

    proptest! {
        #[test]
        fn normalising_changes_no_value(value in json()) {
            let body = serde_json::json!({ "v": value });
            let once = normal(&body.to_string());
            let back: serde_json::Value = serde_json::from_str(&once).unwrap();
            prop_assert!(same(&body, &back), "{} became {}", body, once);
            prop_assert_eq!(normal(&once), once.clone());
        }

        #[test]
        fn any_bytes_are_refused_or_taken_without_panic(body: Vec<u8>) {
            let _ = normalise(&body, Trace::default);
        }
    }
}
