//! Values as bytes: exactly, to be sent and stored, or as a key that equal values share.
//!
//! JSON would do for neither: it has no undefined, no NaN and no infinity, and it keeps apart what
//! is equal.

use super::{Member, Number, Value};
use crate::keycode::{KeyReader, MalformedKey};

/// How deep a value read back may nest. A query that would make deeper ones is refused.
pub(in crate::query) const DEPTH_MAX: u32 = 1_000;

const UNDEFINED: u8 = 0;
const NULL: u8 = 1;
const FALSE: u8 = 2;
const TRUE: u8 = 3;
const INT: u8 = 4;
const FLOAT: u8 = 5;
const TEXT: u8 = 6;
const ARRAY: u8 = 7;
const OBJECT: u8 = 8;

/// Whether equal values are to have equal bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Reads back as it was.
    Exact,
    /// `2` and `2.0` are one, and so are objects that differ in the order of their members.
    Key,
}

impl Value {
    /// The value so that it reads back as it is.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(self, Form::Exact, &mut bytes);
        bytes
    }

    /// Reads what `to_bytes` wrote.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Value, MalformedKey> {
        let mut reader = KeyReader::new(bytes);
        let value = read(&mut reader, 0)?;
        if reader.rest().is_empty() { Ok(value) } else { Err(MalformedKey("bytes behind a value")) }
    }

    /// Bytes that two values share exactly if they are equal: for DISTINCT and GROUP BY. NaN, which
    /// equals nothing, counts as one value here, and so does undefined.
    pub fn key(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(self, Form::Key, &mut bytes);
        bytes
    }
}

fn write(value: &Value, form: Form, out: &mut Vec<u8>) {
    match value {
        Value::Undefined => out.push(UNDEFINED),
        Value::Null => out.push(NULL),
        Value::Bool(false) => out.push(FALSE),
        Value::Bool(true) => out.push(TRUE),
        Value::Number(number) => write_number(*number, form, out),
        Value::Text(text) => {
            out.push(TEXT);
            write_text(text, out);
        }
        Value::Array(elements) => {
            out.push(ARRAY);
            write_length(elements.len(), out);
            for element in elements {
                write(element, form, out);
            }
        }
        Value::Object(members) => {
            out.push(OBJECT);
            write_length(members.len(), out);
            let mut members: Vec<&Member> = members.iter().collect();
            if form == Form::Key {
                members.sort_by(|a, b| a.0.cmp(&b.0));
            }
            for (name, value) in members {
                write_text(name, out);
                write(value, form, out);
            }
        }
    }
}

fn write_number(number: Number, form: Form, out: &mut Vec<u8>) {
    let number = if form == Form::Key { number.whole() } else { number };
    match number {
        Number::Int(number) => {
            out.push(INT);
            out.extend_from_slice(&number.to_be_bytes());
        }
        Number::Float(number) => {
            // Processors differ in the bits of the NaN they compute.
            let number = if number.is_nan() { f64::NAN } else { number };
            out.push(FLOAT);
            out.extend_from_slice(&number.to_bits().to_be_bytes());
        }
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    write_length(text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

fn write_length(length: usize, out: &mut Vec<u8>) {
    let length = u32::try_from(length).expect("values are far below 4 GiB");
    out.extend_from_slice(&length.to_be_bytes());
}

fn read(reader: &mut KeyReader<'_>, depth: u32) -> Result<Value, MalformedKey> {
    if depth > DEPTH_MAX {
        return Err(MalformedKey("a value nested too deep"));
    }
    Ok(match reader.u8()? {
        UNDEFINED => Value::Undefined,
        NULL => Value::Null,
        FALSE => Value::Bool(false),
        TRUE => Value::Bool(true),
        INT => Value::Number(Number::Int(reader.u64()?.cast_signed())),
        FLOAT => Value::float(f64::from_bits(reader.u64()?)),
        TEXT => Value::Text(read_text(reader)?),
        ARRAY => {
            let elements = (0..reader.u32()?).map(|_| read(reader, depth + 1));
            Value::Array(elements.collect::<Result<_, _>>()?)
        }
        OBJECT => {
            let members =
                (0..reader.u32()?).map(|_| Ok((read_text(reader)?, read(reader, depth + 1)?)));
            Value::Object(members.collect::<Result<_, MalformedKey>>()?)
        }
        _ => return Err(MalformedKey("an unknown kind of value")),
    })
}

fn read_text(reader: &mut KeyReader<'_>) -> Result<String, MalformedKey> {
    let length = reader.u32()? as usize;
    let bytes = reader.take(length)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| MalformedKey("text that is not UTF-8"))
}

/// For `#[serde(with = "as_bytes")]`: bincode cannot carry self-describing values.
pub(in crate::query) mod serde_form {
    use serde::{Deserializer, Serializer, de::Error};

    use super::Value;

    pub(in crate::query) fn serialize<S: Serializer>(
        value: &Value,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serde_bytes::serialize(&value.to_bytes(), serializer)
    }

    pub(in crate::query) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Value, D::Error> {
        let bytes: Vec<u8> = serde_bytes::deserialize(deserializer)?;
        Value::from_bytes(&bytes).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Value {
        Value::from_json(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_json_cannot_say_survives() {
        let odd = Value::Array(vec![
            Value::float(f64::NAN),
            Value::float(f64::NEG_INFINITY),
            Value::float(2.0),
            Value::Undefined,
            json(r#"{"b":[1,{"a":null}],"a":"text","t":true,"f":false}"#),
        ]);
        let again = Value::from_bytes(&odd.to_bytes()).unwrap();
        assert_eq!(format!("{odd:?}"), format!("{again:?}"));
    }

    #[test]
    fn equal_values_share_their_key_and_no_others_do() {
        let same = [
            ("2", "2.0"),
            ("0", "-0.0"),
            (r#"{"a":1,"b":[2]}"#, r#"{"b":[2.0],"a":1}"#),
            ("9007199254740993", "9007199254740993"),
        ];
        for (a, b) in same {
            assert_eq!(json(a).key(), json(b).key(), "{a} and {b}");
        }
        let different = [
            ("1", "true"),
            ("1", "\"1\""),
            ("[]", "{}"),
            ("[[1],2]", "[[1,2]]"),
            (r#"{"a":1}"#, r#"{"a":1,"b":1}"#),
            ("9007199254740993", "9007199254740992.0"),
            ("null", "false"),
        ];
        for (a, b) in different {
            assert_ne!(json(a).key(), json(b).key(), "{a} and {b}");
        }
    }

    #[test]
    fn bytes_that_are_no_value_are_refused() {
        let whole = json(r#"{"a":["text",1]}"#).to_bytes();
        for cut in 0..whole.len() {
            assert!(Value::from_bytes(&whole[..cut]).is_err());
        }
        assert!(Value::from_bytes(&[99]).is_err());
        assert!(Value::from_bytes(&[NULL, NULL]).is_err());
        assert!(Value::from_bytes(&[TEXT, 0, 0, 0, 1, 0xFF]).is_err());
        let deep: Vec<u8> = std::iter::repeat_n([ARRAY, 0, 0, 0, 1], 5_000).flatten().collect();
        assert!(Value::from_bytes(&deep).is_err());
    }
}
