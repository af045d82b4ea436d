//! Paths: as policies write them, and as the index's keys begin.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::key::{Component, EncodedRef, EncodedValue, order_bytes, put_value};
use crate::keycode::{self, KeyReader, MalformedKey};
use crate::query::Value;

/// Longest path that is indexed, in encoded bytes. Every entry repeats its path: a longer one would
/// cost more in keys than the item has in its body.
pub const PATH_BYTES_MAX: usize = 255;

/// The time of the last write.
pub(super) const TS: &str = "_ts";

/// One step from a value to one inside it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Step {
    /// To a member of an object.
    Member(String),
    /// To each element of an array: `[]`.
    Elements,
}

impl fmt::Display for Step {
    /// As policies write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Member(name) => write!(f, "{name:?}"),
            Step::Elements => f.write_str("[]"),
        }
    }
}

impl From<&str> for Step {
    fn from(name: &str) -> Self {
        Step::Member(name.to_string())
    }
}

pub(super) const END: u8 = 0;
pub(super) const MEMBER: u8 = 1;
pub(super) const ELEMENTS: u8 = 2;
pub(super) const COMPOSITE: u8 = 3;
pub(super) const SHAPES: u8 = 4;

/// Appends a step to a member.
pub(super) fn put_member(path: &mut Vec<u8>, name: &str) {
    path.push(MEMBER);
    keycode::put_bytes(path, name.as_bytes());
}

/// Appends a step to all elements.
pub(super) fn put_elements(path: &mut Vec<u8>) {
    path.push(ELEMENTS);
}

/// Ends a path that is not too long to be indexed.
pub(super) fn put_end(path: &mut Vec<u8>) {
    path.push(END);
}

fn put_steps(path: &mut Vec<u8>, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Member(name) => put_member(path, name),
            Step::Elements => put_elements(path),
        }
    }
}

/// What the keys of an index begin with: one path, or those of a composite index, or one of a spatial
/// index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IndexPath {
    pub(super) bytes: Vec<u8>,
    /// For each component whether it sorts descending.
    pub(super) descending: Vec<bool>,
}

impl IndexPath {
    /// A single path; none if it is too long to be indexed.
    pub fn new(steps: &[Step]) -> Option<Self> {
        let mut bytes = Vec::with_capacity(32);
        put_steps(&mut bytes, steps);
        if bytes.len() >= PATH_BYTES_MAX {
            return None;
        }
        put_end(&mut bytes);
        Some(Self { bytes, descending: vec![false] })
    }

    /// That of `_ts`. Only items that were written again have an entry of it; the feed stands for all others.
    pub(crate) fn ts() -> Self {
        Self::new(&[TS.into()]).expect("a short path")
    }

    /// The paths of a composite index; none if one of them is too long.
    pub(super) fn composite(components: &[(Vec<Step>, bool)]) -> Option<Self> {
        let mut bytes = vec![COMPOSITE];
        for (steps, descending) in components {
            let path = Self::new(steps)?;
            bytes.extend_from_slice(&path.bytes);
            bytes.push(u8::from(*descending));
        }
        bytes.push(END);
        let descending = components.iter().map(|(_, descending)| *descending).collect();
        Some(Self { bytes, descending })
    }

    /// A path of a spatial index, whose values are cells; none if it is too long.
    pub(super) fn shapes(steps: &[Step]) -> Option<Self> {
        let path = Self::new(steps)?;
        Some(Self { bytes: [&[SHAPES], &path.bytes[..]].concat(), ..path })
    }

    /// The bytes: unlike those of any other path, and no beginning of them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many values an entry has.
    pub fn components(&self) -> usize {
        self.descending.len()
    }

    /// The encoding of the values of an entry: one for each component.
    pub fn encode(&self, values: &[Value]) -> EncodedValue {
        assert_eq!(values.len(), self.descending.len(), "an entry has a value for each path");
        let mut bytes = Vec::with_capacity(16 * values.len());
        for (value, descending) in values.iter().zip(&self.descending) {
            let start = bytes.len();
            put_value(&mut bytes, value);
            if *descending {
                invert(&mut bytes[start..]);
            }
        }
        EncodedValue(bytes)
    }

    /// The values of an entry, each as far as the entry tells it.
    pub fn decode(&self, entry: EncodedRef<'_>) -> Result<Decoded, MalformedKey> {
        let mut rest = entry.as_bytes();
        let mut values = Vec::with_capacity(self.descending.len());
        let mut undecided = None;
        for descending in &self.descending {
            let inverted = if *descending { inverted(rest) } else { Vec::new() };
            let readable = if *descending { &inverted } else { rest };
            let mut reader = KeyReader::new(readable);
            let component = Component::read(&mut reader)?;
            let taken = readable.len() - reader.rest().len();
            if !component.is_exact() && undecided.is_none() {
                let decided = order_bytes(&readable[..taken])?.len();
                undecided = Some(entry.as_bytes().len() - rest.len() + decided);
            }
            values.push(component.value());
            rest = &rest[taken..];
        }
        if !rest.is_empty() {
            return Err(MalformedKey("bytes behind the last value"));
        }
        Ok(Decoded { values, undecided })
    }
}

/// What an entry tells.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// The values; none for those that only the item knows.
    pub values: Vec<Option<Value>>,
    undecided: Option<usize>,
}

impl Decoded {
    /// True if the entry tells all values.
    pub fn is_exact(&self) -> bool {
        self.undecided.is_none()
    }

    /// The beginning of the entry that is in order: entries that share it, and go on, must be sorted
    /// by what their items say. All of an exact entry, whose equals are in the order of their numbers.
    pub fn in_order<'a>(&self, entry: EncodedRef<'a>) -> &'a [u8] {
        let bytes = entry.as_bytes();
        self.undecided.map_or(bytes, |end| &bytes[..end])
    }
}

pub(super) fn invert(bytes: &mut [u8]) {
    for byte in bytes {
        *byte = !*byte;
    }
}

fn inverted(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| !byte).collect()
}
