//! The one binary encoding for everything stored or sent: a version byte, then bincode.
//!
//! bincode is named nowhere else. Decoding always has a limit, because a hostile length would
//! otherwise make the process reserve memory it does not have; and leftover bytes are an error,
//! because they mean that writer and reader disagree about the shape.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Format version written by this build.
pub const VERSION: u8 = 1;

/// Largest message that will be decoded, in bytes: above any batch or snapshot chunk we send.
const DECODE_BYTES_MAX: usize = 64 << 20;

/// Bytes this build cannot read.
#[derive(Debug, Error)]
pub enum DecodeError {
    /// Written by another version.
    #[error("format version {found}, this build reads version {VERSION}")]
    Version {
        /// The version byte that was found.
        found: u8,
    },
    /// No bytes at all.
    #[error("empty message")]
    Empty,
    /// Not what the type expects.
    #[error("malformed message: {0}")]
    Malformed(String),
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<DECODE_BYTES_MAX>()
}

/// Encodes a value behind the version byte.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    encode_about(64, value)
}

/// Does the same for a value that is known to take about so many bytes: room for them is taken at once.
pub fn encode_about<T: Serialize>(about_bytes: usize, value: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(about_bytes);
    encode_into(&mut bytes, value);
    bytes
}

/// Appends an encoded value, version byte first.
pub fn encode_into<T: Serialize>(bytes: &mut Vec<u8>, value: &T) {
    bytes.push(VERSION);
    bincode::serde::encode_into_std_write(value, bytes, config())
        .expect("our own types encode, and a Vec takes every write");
}

/// Decodes exactly what `encode` wrote.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let (version, rest) = bytes.split_first().ok_or(DecodeError::Empty)?;
    if *version != VERSION {
        return Err(DecodeError::Version { found: *version });
    }
    let (value, used) = bincode::serde::decode_from_slice(rest, config())
        .map_err(|error| DecodeError::Malformed(error.to_string()))?;
    if used != rest.len() {
        return Err(DecodeError::Malformed(format!("{} bytes left over", rest.len() - used)));
    }
    Ok(value)
}

/// Decodes what the encoding of a value begins with.
pub fn decode_start<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let rest = bytes.strip_prefix(&[VERSION])?;
    bincode::serde::decode_from_slice(rest, config()).ok().map(|(start, _)| start)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_are_pinned() {
        let value = (7_u32, "id".to_string(), Some(300_u64), vec![true]);
        let golden = [1, 7, 2, b'i', b'd', 1, 251, 44, 1, 1, 1];
        assert_eq!(encode(&value), golden);
        assert_eq!(decode::<(u32, String, Option<u64>, Vec<bool>)>(&golden).unwrap(), value);
    }

    #[test]
    fn a_hostile_length_is_an_error_not_an_allocation() {
        let huge = [1, 253, 255, 255, 255, 255, 255, 255, 255, 255, 0];
        assert!(matches!(decode::<Vec<u64>>(&huge), Err(DecodeError::Malformed(_))));
    }

    #[test]
    fn other_versions_and_leftovers_are_refused() {
        assert!(matches!(decode::<u8>(&[2, 0]), Err(DecodeError::Version { found: 2 })));
        assert!(matches!(decode::<u8>(&[]), Err(DecodeError::Empty)));
        assert!(matches!(decode::<u8>(&[1, 0, 0]), Err(DecodeError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_panic(bytes: Vec<u8>) {
            let _ = decode::<(String, Vec<u64>, Option<Box<u8>>)>(&bytes);
        }
    }
}
