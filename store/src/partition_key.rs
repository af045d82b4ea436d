//! Partition keys: definition, value, and the effective partition key (EPK) that places an item in
//! the hash space exactly where Cosmos SDKs compute it to be.
//!
//! The hash space of a container is cut into 256 equal slots; a partition owns a run of slots. Every
//! engine key starts with its slot, so that a partition is one range of every table, whatever the
//! hash version.

use std::fmt;
use std::io::Cursor;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::keycode::{self, KeyReader, MalformedKey};

/// How many slots the hash space of a container has, and so the most partitions it can have.
pub const SLOTS: u16 = 256;
/// Most paths in a hierarchical partition key.
pub const PATHS_MAX: usize = 3;
/// Longest partition key value, in UTF-8 bytes of all its strings together.
pub const VALUE_BYTES_MAX: usize = 2048;
/// V1 hashes only this many UTF-16 units of a string.
const V1_STRING_UNITS_MAX: usize = 100;

/// How a container's partition key is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyKind {
    /// 32-bit hash of at most 100 characters: containers made by old SDKs.
    HashV1,
    /// 128-bit hash of the whole value.
    HashV2,
    /// Hierarchical: each component hashed alone.
    MultiHash,
    /// As `HashV1`, of a container whose users named no key (`systemKey`): the empty key is that of
    /// all items without the property that the system chose.
    SystemV1,
    /// As `HashV2`, of such a container.
    SystemV2,
}

impl KeyKind {
    fn is_system(self) -> bool {
        match self {
            KeyKind::SystemV1 | KeyKind::SystemV2 => true,
            KeyKind::HashV1 | KeyKind::HashV2 | KeyKind::MultiHash => false,
        }
    }
}

/// Which properties make up the partition key, and how they are hashed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyDefinition {
    /// The hash.
    pub kind: KeyKind,
    /// Property names from the root of an item, one list per component.
    pub paths: Vec<Vec<String>>,
}

/// One component of a partition key value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Component {
    /// The property is missing, or is an array or object; `{}` on the wire.
    Undefined,
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// Any number; `5` and `5.0` are one key, and so are `0` and `-0.0`.
    Number(f64),
    /// Any text.
    Text(String),
}

/// The partition key value of an item, or a prefix of one for queries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartitionKey(pub Vec<Component>);

/// Why a partition key value was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidKey {
    /// Not JSON, or not an array.
    #[error("the partition key is not a JSON array")]
    NotAnArray,
    /// An array or a non-empty object inside.
    #[error("a partition key component must be a string, number, boolean, null or {{}}")]
    Component,
    /// More or fewer components than the container's definition has paths.
    #[error("the partition key has {found} components, the container's definition has {expected}")]
    Count {
        /// What came.
        found: usize,
        /// What the definition says.
        expected: usize,
    },
    /// Over `VALUE_BYTES_MAX`.
    #[error("the partition key value is longer than {VALUE_BYTES_MAX} bytes")]
    TooLong,
}

/// Why a path in a definition was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not a property path such as /name or /\"first name\"/part")]
pub struct InvalidPath(pub String);

/// Splits `/a/"b c"/'d'` into its property names.
pub fn parse_path(path: &str) -> Result<Vec<String>, InvalidPath> {
    let invalid = || InvalidPath(path.to_string());
    let mut names = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        rest = rest.strip_prefix('/').ok_or_else(invalid)?;
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''));
        let name = if let Some(quote) = quote {
            rest = &rest[1..];
            let end = closing_quote(rest, quote).ok_or_else(invalid)?;
            let name = &rest[..end];
            rest = &rest[end + 1..];
            name
        } else {
            let end = rest.find('/').unwrap_or(rest.len());
            let name = &rest[..end];
            rest = &rest[end..];
            name
        };
        if name.is_empty() {
            return Err(invalid());
        }
        names.push(name.to_string());
    }
    if names.is_empty() { Err(invalid()) } else { Ok(names) }
}

/// The end of a quoted name: the next such quote that no backslash precedes.
fn closing_quote(text: &str, quote: char) -> Option<usize> {
    text.char_indices()
        .find(|(at, c)| *c == quote && !text[..*at].ends_with('\\'))
        .map(|(at, _)| at)
}

impl PartitionKey {
    /// Parses the `x-ms-documentdb-partitionkey` header: a JSON array.
    pub fn parse(text: &str) -> Result<Self, InvalidKey> {
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|_| InvalidKey::NotAnArray)?;
        let serde_json::Value::Array(values) = value else {
            return Err(InvalidKey::NotAnArray);
        };
        let components =
            values.into_iter().map(Component::from_json).collect::<Result<Vec<_>, _>>()?;
        let key = Self(components);
        if key.text_bytes() > VALUE_BYTES_MAX {
            return Err(InvalidKey::TooLong);
        }
        Ok(key)
    }

    /// The bytes of all text in the key: what `VALUE_BYTES_MAX` limits.
    pub fn text_bytes(&self) -> usize {
        self.0.iter().map(Component::text_bytes).sum()
    }

    /// Checks that this is a whole key for `definition`, not a prefix.
    pub fn check_complete(&self, definition: &KeyDefinition) -> Result<(), InvalidKey> {
        let (found, expected) = (self.0.len(), definition.paths.len());
        if found == expected { Ok(()) } else { Err(InvalidKey::Count { found, expected }) }
    }

    /// Appends the order-preserving form of the value.
    pub fn put(&self, key: &mut Vec<u8>) {
        for component in &self.0 {
            component.put(key);
        }
    }

    /// Reads `count` components back.
    pub fn read(reader: &mut KeyReader<'_>, count: usize) -> Result<Self, MalformedKey> {
        (0..count).map(|_| Component::read(reader)).collect::<Result<Vec<_>, _>>().map(Self)
    }
}

const TAG_UNDEFINED: u8 = 0x00;
const TAG_NULL: u8 = 0x01;
const TAG_FALSE: u8 = 0x02;
const TAG_TRUE: u8 = 0x03;
const TAG_NUMBER: u8 = 0x05;
const TAG_TEXT: u8 = 0x08;

impl Component {
    /// A number as keys hold it: bodies store `-0.0` as `0`, so keys know one zero.
    pub fn number(number: f64) -> Self {
        Component::Number(one_zero(number))
    }

    fn from_json(value: serde_json::Value) -> Result<Self, InvalidKey> {
        match value {
            serde_json::Value::Null => Ok(Component::Null),
            serde_json::Value::Bool(truth) => Ok(Component::Bool(truth)),
            serde_json::Value::Number(number) => {
                number.as_f64().map(Component::number).ok_or(InvalidKey::Component)
            }
            serde_json::Value::String(text) => Ok(Component::Text(text)),
            serde_json::Value::Object(map) if map.is_empty() => Ok(Component::Undefined),
            serde_json::Value::Array(_) | serde_json::Value::Object(_) => {
                Err(InvalidKey::Component)
            }
        }
    }

    fn text_bytes(&self) -> usize {
        match self {
            Component::Text(text) => text.len(),
            Component::Undefined | Component::Null | Component::Bool(_) | Component::Number(_) => 0,
        }
    }

    fn put(&self, key: &mut Vec<u8>) {
        match self {
            Component::Undefined => key.push(TAG_UNDEFINED),
            Component::Null => key.push(TAG_NULL),
            Component::Bool(false) => key.push(TAG_FALSE),
            Component::Bool(true) => key.push(TAG_TRUE),
            Component::Number(number) => {
                key.push(TAG_NUMBER);
                keycode::put_f64(key, *number);
            }
            Component::Text(text) => {
                key.push(TAG_TEXT);
                keycode::put_bytes(key, text.as_bytes());
            }
        }
    }

    fn read(reader: &mut KeyReader<'_>) -> Result<Self, MalformedKey> {
        match reader.u8()? {
            TAG_UNDEFINED => Ok(Component::Undefined),
            TAG_NULL => Ok(Component::Null),
            TAG_FALSE => Ok(Component::Bool(false)),
            TAG_TRUE => Ok(Component::Bool(true)),
            TAG_NUMBER => reader.f64().map(Component::Number),
            TAG_TEXT => reader.text().map(Component::Text),
            _ => Err(MalformedKey("an unknown type tag")),
        }
    }

    /// The bytes Cosmos feeds to its hash; `string_end` differs between versions.
    fn put_hash_input(&self, input: &mut Vec<u8>, string_end: u8) {
        match self {
            Component::Undefined => input.push(TAG_UNDEFINED),
            Component::Null => input.push(TAG_NULL),
            Component::Bool(false) => input.push(TAG_FALSE),
            Component::Bool(true) => input.push(TAG_TRUE),
            Component::Number(number) => {
                input.push(TAG_NUMBER);
                input.extend_from_slice(&one_zero(*number).to_le_bytes());
            }
            Component::Text(text) => {
                input.push(TAG_TEXT);
                input.extend_from_slice(text.as_bytes());
                input.push(string_end);
            }
        }
    }

    /// The component as V1 hashes it: text cut to its first 100 UTF-16 units.
    fn truncated_for_v1(&self) -> Self {
        let Component::Text(text) = self else { return self.clone() };
        let units: Vec<u16> = text.encode_utf16().take(V1_STRING_UNITS_MAX).collect();
        Component::Text(String::from_utf16_lossy(&units))
    }

    /// Appends the component behind a V1 hash.
    fn put_v1(&self, epk: &mut Vec<u8>) {
        match self {
            Component::Undefined => epk.push(TAG_UNDEFINED),
            Component::Null => epk.push(TAG_NULL),
            Component::Bool(false) => epk.push(TAG_FALSE),
            Component::Bool(true) => epk.push(TAG_TRUE),
            Component::Number(number) => put_v1_number(epk, *number),
            Component::Text(text) => {
                epk.push(TAG_TEXT);
                let short = text.len() <= V1_STRING_UNITS_MAX;
                let shown = text.bytes().take(V1_STRING_UNITS_MAX + 1);
                epk.extend(shown.map(|byte| byte.wrapping_add(1)));
                if short {
                    epk.push(0);
                }
            }
        }
    }
}

/// The number, and zero for negative zero.
fn one_zero(number: f64) -> f64 {
    if number == 0.0 { 0.0 } else { number }
}

/// V1's variable-length number: the top byte, then seven bits a byte while any are left.
fn put_v1_number(epk: &mut Vec<u8>, number: f64) {
    epk.push(TAG_NUMBER);
    let bits = one_zero(number).to_bits();
    let mut payload = if bits >> 63 == 1 { bits.wrapping_neg() } else { bits ^ (1 << 63) };
    epk.push(top_byte(payload));
    payload <<= 8;
    let start = epk.len();
    while payload != 0 {
        epk.push(top_byte(payload) | 1);
        payload <<= 7;
    }
    if epk.len() == start {
        epk.push(0);
    }
    let last = epk.len() - 1;
    epk[last] &= 0xFE;
}

fn top_byte(bits: u64) -> u8 {
    u8::try_from(bits >> 56).expect("eight bits remain after the shift")
}

/// Where a partition key value lies in its container's hash space.
///
/// Compared byte by byte, where trailing zeros do not matter: bounds come trimmed or padded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Epk(#[serde(with = "serde_bytes")] Vec<u8>);

impl Epk {
    /// The lower end of the hash space; also the EPK of the empty key.
    pub fn min() -> Self {
        Epk(Vec::new())
    }

    /// Above every EPK.
    pub fn max() -> Self {
        Epk(vec![0xFF])
    }

    /// Parses hexadecimal digits of either case. `None` if there are others or an odd number.
    pub fn parse(hex: &str) -> Option<Self> {
        if !hex.len().is_multiple_of(2) || !hex.is_ascii() {
            return None;
        }
        (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).ok())
            .collect::<Option<Vec<u8>>>()
            .map(Epk)
    }

    /// An EPK from its raw bytes.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Epk(bytes)
    }

    /// The raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn trimmed(&self) -> &[u8] {
        let used = self.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        &self.0[..used]
    }
}

impl PartialEq for Epk {
    fn eq(&self, other: &Self) -> bool {
        self.trimmed() == other.trimmed()
    }
}

impl Eq for Epk {}

impl PartialOrd for Epk {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Epk {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.trimmed().cmp(other.trimmed())
    }
}

impl fmt::Display for Epk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

/// A key value's place: its EPK and the slot that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The effective partition key.
    pub epk: Epk,
    /// The slot of the hash space.
    pub slot: u8,
}

impl KeyDefinition {
    /// The key that a client means: where users named no key, SDKs call that of an item without one
    /// `[]`, elsewhere `[{}]`.
    pub fn meant(&self, named: PartitionKey) -> PartitionKey {
        if self.kind.is_system() && named.0.is_empty() {
            return PartitionKey(vec![Component::Undefined]);
        }
        named
    }

    /// Hashes a key value, or the first components of one.
    pub fn place(&self, key: &PartitionKey) -> Place {
        let is_missing = self.kind.is_system() && key.0 == [Component::Undefined];
        if key.0.is_empty() || is_missing {
            return Place { epk: Epk::min(), slot: 0 };
        }
        match self.kind {
            KeyKind::HashV1 | KeyKind::SystemV1 => place_v1(&key.0),
            KeyKind::HashV2 | KeyKind::SystemV2 => {
                let bytes = hash_v2(&key.0).to_vec();
                Place { slot: slot_v2(&bytes), epk: Epk(bytes) }
            }
            KeyKind::MultiHash => {
                let bytes: Vec<u8> =
                    key.0.iter().flat_map(|part| hash_v2(std::slice::from_ref(part))).collect();
                Place { slot: slot_v2(&bytes), epk: Epk(bytes) }
            }
        }
    }

    /// The first EPK of a slot; slot 256 is the end of the hash space.
    pub fn slot_start(&self, slot: u16) -> Epk {
        assert!(slot <= SLOTS, "slots are numbered 0 to 255, 256 is the end");
        if slot == 0 {
            return Epk::min();
        }
        if slot == SLOTS {
            return Epk::max();
        }
        match self.kind {
            KeyKind::HashV1 | KeyKind::SystemV1 => {
                let mut epk = Vec::new();
                put_v1_number(&mut epk, f64::from(u32::from(slot) << 24));
                Epk(epk)
            }
            KeyKind::HashV2 | KeyKind::SystemV2 | KeyKind::MultiHash => {
                Epk((u128::from(slot) << 118).to_be_bytes().to_vec())
            }
        }
    }

    /// The EPK range `[start, end)` of all keys that begin with `prefix`.
    pub fn prefix_range(&self, prefix: &PartitionKey) -> (Epk, Epk) {
        let start = self.place(prefix).epk;
        let mut end = start.clone();
        end.0.push(0xFF);
        (start, end)
    }
}

/// The first eight of the 126 bits a V2 hash fills.
fn slot_v2(epk: &[u8]) -> u8 {
    (epk[0] << 2) | (epk[1] >> 6)
}

fn hash_v2(components: &[Component]) -> [u8; 16] {
    let mut input = Vec::with_capacity(64);
    for component in components {
        component.put_hash_input(&mut input, 0xFF);
    }
    let hash = murmur3::murmur3_x64_128(&mut Cursor::new(&input), 0)
        .expect("reading from memory cannot fail");
    let mut bytes = hash.to_be_bytes();
    bytes[0] &= 0x3F;
    bytes
}

fn place_v1(components: &[Component]) -> Place {
    let components: Vec<Component> = components.iter().map(Component::truncated_for_v1).collect();
    let mut input = Vec::with_capacity(64);
    for component in &components {
        component.put_hash_input(&mut input, 0x00);
    }
    let hash =
        murmur3::murmur3_32(&mut Cursor::new(&input), 0).expect("reading from memory cannot fail");
    let mut epk = Vec::with_capacity(64);
    put_v1_number(&mut epk, f64::from(hash));
    for component in &components {
        component.put_v1(&mut epk);
    }
    Place { epk: Epk(epk), slot: u8::try_from(hash >> 24).expect("eight bits remain") }
}

/// A run of slots `[start, end)`: what one partition owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SlotRange {
    /// The first slot.
    pub start: u16,
    /// The slot after the last.
    pub end: u16,
}

impl SlotRange {
    /// The whole hash space.
    pub const ALL: SlotRange = SlotRange { start: 0, end: SLOTS };

    /// No slot.
    pub const NONE: SlotRange = SlotRange { start: 0, end: 0 };

    /// True if the slot lies inside.
    pub fn contains(self, slot: u8) -> bool {
        (self.start..self.end).contains(&u16::from(slot))
    }

    /// The slots one by one.
    pub fn slots(self) -> impl DoubleEndedIterator<Item = u8> {
        (self.start..self.end).map(|slot| u8::try_from(slot).expect("slots below 256"))
    }

    /// Cuts the hash space into `count` runs whose sizes differ by at most one slot.
    pub fn split_all(count: u16) -> Vec<SlotRange> {
        assert!((1..=SLOTS).contains(&count), "a container has 1 to 256 partitions");
        let bound = |at: u16| {
            let exact = u32::from(SLOTS) * u32::from(at) / u32::from(count);
            u16::try_from(exact).expect("at most 256")
        };
        (0..count).map(|at| SlotRange { start: bound(at), end: bound(at + 1) }).collect()
    }
}

#[cfg(test)]
mod tests;
