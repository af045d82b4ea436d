//! Order-preserving keys: the order of encoded bytes is the order of what they mean.
//!
//! Integers are big-endian. Byte strings and text escape `00` as `00 FF` and end with `00 00`, so
//! that a prefix sorts before its extensions and parts can follow. Numbers are IEEE doubles with the
//! sign bit flipped (all bits for negatives).

use thiserror::Error;

pub(crate) const ESCAPE: u8 = 0x00;
pub(crate) const ESCAPED_ZERO: u8 = 0xFF;
pub(crate) const END: u8 = 0x00;

/// Bytes that no encoder here produced.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("malformed key: {0}")]
pub struct MalformedKey(pub(crate) &'static str);

/// Appends escaped bytes with their terminator.
pub fn put_bytes(key: &mut Vec<u8>, bytes: &[u8]) {
    key.reserve(bytes.len() + 2);
    for &byte in bytes {
        key.push(byte);
        if byte == ESCAPE {
            key.push(ESCAPED_ZERO);
        }
    }
    key.extend_from_slice(&[ESCAPE, END]);
}

/// Appends a double so that byte order is numeric order; `-0.0` and `0.0` are one value.
pub fn put_f64(key: &mut Vec<u8>, number: f64) {
    key.extend_from_slice(&ordered_bits(number).to_be_bytes());
}

fn ordered_bits(number: f64) -> u64 {
    if number.is_nan() {
        // Before all numbers. Which bits it has depends on the processor.
        return 0;
    }
    let bits = if number == 0.0 { 0.0_f64.to_bits() } else { number.to_bits() };
    if bits >> 63 == 1 { !bits } else { bits | (1 << 63) }
}

/// Reads a key from the front, part by part.
#[derive(Clone, Debug)]
pub struct KeyReader<'a> {
    rest: &'a [u8],
}

impl<'a> KeyReader<'a> {
    /// A reader at the start of `key`.
    pub fn new(key: &'a [u8]) -> Self {
        Self { rest: key }
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Takes `count` raw bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], MalformedKey> {
        if self.rest.len() < count {
            return Err(MalformedKey("it ends too early"));
        }
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        Ok(taken)
    }

    /// Takes one byte.
    pub fn u8(&mut self) -> Result<u8, MalformedKey> {
        Ok(self.take(1)?[0])
    }

    /// Takes a big-endian `u16`.
    pub fn u16(&mut self) -> Result<u16, MalformedKey> {
        Ok(u16::from_be_bytes(self.take(2)?.try_into().expect("two bytes were taken")))
    }

    /// Takes a big-endian `u32`.
    pub fn u32(&mut self) -> Result<u32, MalformedKey> {
        Ok(u32::from_be_bytes(self.take(4)?.try_into().expect("four bytes were taken")))
    }

    /// Takes a big-endian `u64`.
    pub fn u64(&mut self) -> Result<u64, MalformedKey> {
        Ok(u64::from_be_bytes(self.take(8)?.try_into().expect("eight bytes were taken")))
    }

    /// Takes an ordered double.
    pub fn f64(&mut self) -> Result<f64, MalformedKey> {
        let bits = self.u64()?;
        Ok(f64::from_bits(if bits >> 63 == 1 { bits & !(1 << 63) } else { !bits }))
    }

    /// Takes an escaped byte string and its terminator.
    pub fn bytes(&mut self) -> Result<Vec<u8>, MalformedKey> {
        let mut bytes = Vec::new();
        loop {
            match self.u8()? {
                ESCAPE => match self.u8()? {
                    END => return Ok(bytes),
                    ESCAPED_ZERO => bytes.push(ESCAPE),
                    _ => return Err(MalformedKey("an unknown escape")),
                },
                byte => bytes.push(byte),
            }
        }
    }

    /// Takes escaped text.
    pub fn text(&mut self) -> Result<String, MalformedKey> {
        String::from_utf8(self.bytes()?).map_err(|_| MalformedKey("text that is not UTF-8"))
    }
}

/// The first key after every key that starts with `prefix`; `None` if there is no such key.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|byte| *byte != 0xFF)?;
    let mut end = prefix[..=keep].to_vec();
    end[keep] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(bytes: &[u8]) -> Vec<u8> {
        let mut key = Vec::new();
        put_bytes(&mut key, bytes);
        key
    }

    fn encoded_f64(number: f64) -> Vec<u8> {
        let mut key = Vec::new();
        put_f64(&mut key, number);
        key
    }

    #[test]
    fn a_prefix_sorts_before_its_extensions() {
        assert!(encoded(b"a") < encoded(b"a\0"));
        assert!(encoded(b"a\0") < encoded(b"aa"));
        assert!(encoded(b"") < encoded(b"\0"));
    }

    #[test]
    fn prefix_end_is_the_next_sibling() {
        assert_eq!(prefix_end(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(prefix_end(&[1, 0xFF]), Some(vec![2]));
        assert_eq!(prefix_end(&[0xFF, 0xFF]), None);
    }

    #[test]
    fn malformed_keys_are_refused() {
        assert!(KeyReader::new(b"abc").bytes().is_err());
        assert!(KeyReader::new(&[0, 7]).bytes().is_err());
        assert!(KeyReader::new(&[1, 2]).u64().is_err());
        assert!(KeyReader::new(&[0xC3, 0, 0]).text().is_err());
    }

    proptest! {
        #[test]
        fn byte_strings_keep_their_order(a: Vec<u8>, b: Vec<u8>) {
            prop_assert_eq!(a.cmp(&b), encoded(&a).cmp(&encoded(&b)));
        }

        #[test]
        fn byte_strings_survive_the_round_trip(a: Vec<u8>, tail: Vec<u8>) {
            let mut key = encoded(&a);
            key.extend_from_slice(&tail);
            let mut reader = KeyReader::new(&key);
            prop_assert_eq!(reader.bytes(), Ok(a));
            prop_assert_eq!(reader.rest(), &tail[..]);
        }

        #[test]
        fn doubles_keep_their_order(a: f64, b: f64) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            prop_assert_eq!(a.partial_cmp(&b), Some(encoded_f64(a).cmp(&encoded_f64(b))));
            prop_assert_eq!(KeyReader::new(&encoded_f64(a)).f64(), Ok(a));
        }

        #[test]
        fn any_bytes_are_read_without_panic(key: Vec<u8>) {
            let _ = KeyReader::new(&key).bytes();
            let _ = KeyReader::new(&key).text();
            let _ = KeyReader::new(&key).f64();
        }
    }
}
