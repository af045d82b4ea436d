//! Reads strings in each of their forms.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};

use super::marker::{Base64Alphabet, GuidStyle, LOWER_HEX, TextForm, UPPER_HEX, Width};
use super::{Cursor, InvalidBinaryJson, Result};

/// Bits of a character that takes no more than ASCII needs.
const ASCII_BITS: u32 = 7;
/// A base64 padding byte up to here counts the `=` signs that end the string.
const PADDING_MAX: u8 = 2;

impl<'b> Cursor<'b> {
    /// Reads a string whose marker stood at `at`.
    pub(super) fn string(&mut self, at: usize, form: TextForm) -> Result<Cow<'b, str>> {
        match form {
            TextForm::System(name) => Ok(Cow::Borrowed(name)),
            TextForm::User => Err(InvalidBinaryJson::UserString { at }),
            TextForm::Short(length) => self.utf8(at, length),
            TextForm::Utf8(width) => {
                let length = self.count(width)?;
                self.utf8(at, length)
            }
            TextForm::Reference(width) => self.reference(at, width),
            TextForm::Base64(width, alphabet) => self.base64(at, width, alphabet).map(Cow::Owned),
            TextForm::Guid(style) => self.guid(style).map(Cow::Owned),
            TextForm::Nibbles(alphabet) => self.nibbles(at, alphabet).map(Cow::Owned),
            TextForm::PackedFrom(bits) => {
                let (length, base) = (usize::from(self.byte()?), self.byte()?);
                self.packed(at, bits, length, base).map(Cow::Owned)
            }
            TextForm::Packed(width) => {
                let length = self.count(width)?;
                self.packed(at, ASCII_BITS, length, 0).map(Cow::Owned)
            }
        }
    }

    fn utf8(&mut self, at: usize, length: usize) -> Result<Cow<'b, str>> {
        let text = std::str::from_utf8(self.take(length)?);
        text.map(Cow::Borrowed).map_err(|_| InvalidBinaryJson::NotText { at })
    }

    /// The string at an offset, which ends before the reference and is none itself.
    fn reference(&mut self, at: usize, width: Width) -> Result<Cow<'b, str>> {
        let invalid = InvalidBinaryJson::Reference { at };
        let target = self.count(width)?;
        // The preamble looks like the marker of an empty string, and is none.
        let is_value = (1..at).contains(&target);
        let form = self.body.get(target).filter(|_| is_value).and_then(|byte| TextForm::of(*byte));
        match form {
            None | Some(TextForm::Reference(_)) => Err(invalid),
            Some(form) => {
                let mut earlier = Cursor { body: self.body, position: target + 1, end: at };
                earlier.string(target, form)
            }
        }
    }

    fn base64(&mut self, at: usize, width: Width, alphabet: Base64Alphabet) -> Result<String> {
        let padded_length = 4 * self.count(width)?;
        let padding = self.byte()?;
        let is_left_out = padding > PADDING_MAX;
        let signs = usize::from(if is_left_out { !padding } else { padding });
        let invalid = InvalidBinaryJson::Length { at };
        if signs > usize::from(PADDING_MAX) || signs > padded_length {
            return Err(invalid);
        }
        let bytes = self.take((padded_length - signs) * 3 / 4)?;
        let mut text = match alphabet {
            Base64Alphabet::Standard => STANDARD.encode(bytes),
            Base64Alphabet::UrlSafe => URL_SAFE.encode(bytes),
        };
        assert_eq!(text.len(), padded_length, "so many bytes take so many characters");
        if is_left_out {
            text.truncate(padded_length - signs);
        }
        Ok(text)
    }

    fn guid(&mut self, style: GuidStyle) -> Result<String> {
        let bytes: [u8; 16] = self.take_array()?;
        Ok(match style {
            GuidStyle::Lower => dashed(bytes.map(|byte| swapped_pair(byte, LOWER_HEX))),
            GuidStyle::Upper => dashed(bytes.map(|byte| swapped_pair(byte, UPPER_HEX))),
            GuidStyle::LowerQuoted => {
                format!("\"{}\"", dashed(bytes.map(|byte| swapped_pair(byte, LOWER_HEX))))
            }
        })
    }

    /// A GUID as .NET keeps one: its first three groups are little-endian numbers.
    pub(super) fn guid_value(&mut self) -> Result<String> {
        let mut bytes: [u8; 16] = self.take_array()?;
        bytes[..4].reverse();
        bytes[4..6].reverse();
        bytes[6..8].reverse();
        Ok(dashed(bytes.map(|byte| {
            let [high, low] = swapped_pair(byte, LOWER_HEX);
            [low, high]
        })))
    }

    fn nibbles(&mut self, at: usize, alphabet: &[u8; 16]) -> Result<String> {
        let length = usize::from(self.byte()?);
        let bytes = self.take(length.div_ceil(2))?;
        let is_odd = length % 2 == 1;
        if is_odd && bytes.last().is_some_and(|last| last >> 4 != 0) {
            return Err(InvalidBinaryJson::Length { at });
        }
        let pairs = bytes.iter().flat_map(|byte| swapped_pair(*byte, alphabet));
        Ok(pairs.take(length).map(char::from).collect())
    }

    /// Characters of `bits` bits, the lowest first, counted from `base`.
    fn packed(&mut self, at: usize, bits: u32, length: usize, base: u8) -> Result<String> {
        let bytes = self.take((length * bits as usize).div_ceil(8))?;
        let mut waiting = 0_u32;
        let mut waiting_bits = 0;
        let mut bytes = bytes.iter();
        let mut text = String::with_capacity(length);
        for _ in 0..length {
            if waiting_bits < bits {
                let byte = bytes.next().expect("as many bytes were taken as the bits need");
                waiting |= u32::from(*byte) << waiting_bits;
                waiting_bits += 8;
            }
            let character = u32::from(base) + (waiting & ((1 << bits) - 1));
            let ascii = u8::try_from(character).ok().filter(u8::is_ascii);
            text.push(ascii.map(char::from).ok_or(InvalidBinaryJson::NotText { at })?);
            waiting >>= bits;
            waiting_bits -= bits;
        }
        Ok(text)
    }
}

/// The two characters of a byte, the low half first.
fn swapped_pair(byte: u8, alphabet: &[u8; 16]) -> [u8; 2] {
    [byte & 0xF, byte >> 4].map(|half| alphabet[usize::from(half)])
}

/// Sixteen pairs of digits with the dashes of a GUID.
fn dashed(pairs: [[u8; 2]; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, pair) in pairs.into_iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.extend(pair.map(char::from));
    }
    text
}
