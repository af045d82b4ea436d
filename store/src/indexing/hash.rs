//! Hashes of values, the same for all that are equal: members in any order, numbers in any form.
//!
//! The index keeps them in place of what is too long for a key. Two values may share one, so whoever
//! finds an item by a hash looks at the item.

use std::io::Cursor;

use super::key;
use crate::json::Scalar;
use crate::keycode;

/// A hash of bytes.
pub(crate) fn of_bytes(bytes: &[u8]) -> u64 {
    let hash = murmur3::murmur3_x64_128(&mut Cursor::new(bytes), 0);
    let hash = hash.expect("reading from memory cannot fail");
    u64::try_from(hash >> 64).expect("64 bits remain")
}

/// A hash of a scalar.
pub(crate) fn of_scalar(scalar: Scalar<'_>) -> u64 {
    let mut bytes = Vec::with_capacity(16);
    match scalar {
        Scalar::Null => bytes.push(key::NULL),
        Scalar::Bool(truth) => bytes.extend_from_slice(&[key::BOOLEAN, u8::from(truth)]),
        Scalar::Text(text) => {
            bytes.push(key::TEXT);
            bytes.extend_from_slice(text.as_bytes());
        }
        Scalar::Int(_) | Scalar::UInt(_) | Scalar::Float(_) => {
            bytes.push(key::NUMBER);
            keycode::put_f64(&mut bytes, scalar.as_f64().expect("these three are numbers"));
        }
    }
    of_bytes(&bytes)
}

/// The hash of an array whose elements have these hashes.
pub(crate) fn of_array(elements: &[u64]) -> u64 {
    let mut bytes = vec![key::ARRAY];
    bytes.extend(elements.iter().flat_map(|element| element.to_be_bytes()));
    of_bytes(&bytes)
}

/// The hash of an object whose members have these hashes of name and value, in any order.
pub(crate) fn of_object(mut members: Vec<(u64, u64)>) -> u64 {
    members.sort_unstable();
    let mut bytes = vec![key::OBJECT];
    for (name, value) in members {
        bytes.extend_from_slice(&name.to_be_bytes());
        bytes.extend_from_slice(&value.to_be_bytes());
    }
    of_bytes(&bytes)
}
