//! Hashes of values, the same for all that are equal: members in any order, numbers in any form.
//!
//! The index keeps them in place of what is too long for a key. Two values may share one, so whoever
//! finds an item by a hash looks at the item.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::key;
use crate::json::Scalar;
use crate::keycode;

/// A hash of bytes.
pub(crate) fn of_bytes(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// A hash of a scalar.
pub(crate) fn of_scalar(scalar: Scalar<'_>) -> u64 {
    match scalar {
        Scalar::Null => of_bytes(&[key::NULL]),
        Scalar::Bool(truth) => of_bytes(&[key::BOOLEAN, u8::from(truth)]),
        // Long texts are not copied to put their type before them.
        Scalar::Text(text) => xxh3_64_with_seed(text.as_bytes(), key::TEXT.into()),
        Scalar::Int(_) | Scalar::UInt(_) | Scalar::Float(_) => {
            let mut bytes = begun(key::NUMBER, size_of::<f64>());
            keycode::put_f64(&mut bytes, scalar.as_f64().expect("these three are numbers"));
            of_bytes(&bytes)
        }
    }
}

/// The hash of an array whose elements have these hashes.
pub(crate) fn of_array(elements: &[u64]) -> u64 {
    let mut bytes = begun(key::ARRAY, size_of_val(elements));
    bytes.extend(elements.iter().flat_map(|element| element.to_be_bytes()));
    of_bytes(&bytes)
}

/// The hash of an object whose members have these hashes of name and value, in any order.
pub(crate) fn of_object(mut members: Vec<(u64, u64)>) -> u64 {
    members.sort_unstable();
    let mut bytes = begun(key::OBJECT, size_of_val(&*members));
    for (name, value) in members {
        bytes.extend_from_slice(&name.to_be_bytes());
        bytes.extend_from_slice(&value.to_be_bytes());
    }
    of_bytes(&bytes)
}

/// What begins with the rank of a type, and has room for so many bytes more.
fn begun(rank: u8, room: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + room);
    bytes.push(rank);
    bytes
}
