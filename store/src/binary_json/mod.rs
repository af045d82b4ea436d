//! Cosmos binary JSON: the tagged bytes in which the Rust SDK sends items, turned into text.
//!
//! 1. A body is the preamble `80`, then one value, then nothing: no text starts with that byte.
//! 2. `marker` says what the first byte of a value means: it is the whole format in one table.
//! 3. `values` walks the value once and writes JSON text; `texts` reads the many forms of strings.
//! 4. The text goes the way of every other body, so that nothing behind here knows of two formats.
//!
//! Everything is checked: lengths and counts agree with what is there, text is UTF-8, numbers are
//! finite, nesting and the text that comes out are bounded, since references make a small body large.

mod marker;
mod texts;
mod values;

use thiserror::Error;

use crate::document::ITEM_BYTES_MAX;

/// First byte of every body in this format.
pub const PREAMBLE: u8 = 0x80;

/// Containers within containers: as many as text may have.
const DEPTH_MAX: usize = 128;
/// Longest text a body may stand for, in bytes: a whole item, and as much again for what is left out
/// of it, which are system properties and repeated names.
const TEXT_BYTES_MAX: usize = 2 * ITEM_BYTES_MAX;

/// Why a body is not binary JSON. Positions are bytes from the preamble, which is 0.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InvalidBinaryJson {
    /// No preamble.
    #[error("binary JSON starts with the byte 80")]
    NoPreamble,
    /// Something goes on behind the end of the body, or of what holds it.
    #[error("something goes on where it should have ended, at byte {at}")]
    Truncated {
        /// Where more was expected.
        at: usize,
    },
    /// There is something behind the value.
    #[error("something follows the value, at byte {at}")]
    Trailing {
        /// Where it starts.
        at: usize,
    },
    /// A byte that starts no value, or none that may stand there.
    #[error("the byte {marker:02X} cannot stand at byte {at}")]
    Marker {
        /// Where it stands.
        at: usize,
        /// The byte.
        marker: u8,
    },
    /// A string of a dictionary that only the service has.
    #[error("the string at byte {at} is in a dictionary that is not part of the body")]
    UserString {
        /// Where its marker stands.
        at: usize,
    },
    /// Lengths or counts that contradict each other.
    #[error("the length or count at byte {at} contradicts what it is about")]
    Length {
        /// Where the marker stands.
        at: usize,
    },
    /// A string that is not text.
    #[error("the string at byte {at} is not valid text")]
    NotText {
        /// Where its marker stands.
        at: usize,
    },
    /// A reference to something other than an earlier string.
    #[error("the reference at byte {at} does not lead to an earlier string")]
    Reference {
        /// Where its marker stands.
        at: usize,
    },
    /// Not a number, or infinite.
    #[error("the number at byte {at} is not finite")]
    NotFinite {
        /// Where its marker stands.
        at: usize,
    },
    /// Containers within containers.
    #[error("the containers at byte {at} are nested more than {DEPTH_MAX} levels deep")]
    TooDeep {
        /// Where the innermost one starts.
        at: usize,
    },
    /// It stands for more text than an item can have.
    #[error("the body stands for more than {TEXT_BYTES_MAX} bytes of JSON")]
    TooLarge,
}

type Result<T> = std::result::Result<T, InvalidBinaryJson>;

/// True for a body that claims to be in this format.
pub fn is_binary(body: &[u8]) -> bool {
    body.first() == Some(&PREAMBLE)
}

/// The JSON text a body stands for: one value of any kind. Repeated names stay.
pub fn decode(body: &[u8]) -> Result<Vec<u8>> {
    if !is_binary(body) {
        return Err(InvalidBinaryJson::NoPreamble);
    }
    values::write_text(body)
}

/// Reads forward through a body, up to an end: that of the body, or of what is being read.
#[derive(Clone, Copy)]
struct Cursor<'b> {
    body: &'b [u8],
    position: usize,
    end: usize,
}

impl<'b> Cursor<'b> {
    fn take(&mut self, length: usize) -> Result<&'b [u8]> {
        let end = self.end_of(length)?;
        let taken = &self.body[self.position..end];
        self.position = end;
        Ok(taken)
    }

    fn take_array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("as many bytes were taken"))
    }

    fn byte(&mut self) -> Result<u8> {
        self.take_array().map(|[byte]| byte)
    }

    /// A length, count or offset: little-endian.
    fn count(&mut self, width: marker::Width) -> Result<usize> {
        let bytes = self.take(width.bytes())?;
        Ok(bytes.iter().rev().fold(0, |count, byte| (count << 8) | usize::from(*byte)))
    }

    /// Where the next so many bytes end; an error if they are not there.
    fn end_of(&self, length: usize) -> Result<usize> {
        let end = self.position.checked_add(length).filter(|end| *end <= self.end);
        end.ok_or(InvalidBinaryJson::Truncated { at: self.end })
    }
}

#[cfg(test)]
mod tests;
