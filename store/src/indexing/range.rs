//! Runs of index entries: which values of a path a scan is about.

use std::ops::{Bound, RangeInclusive};

use super::key::{EncodedValue, UNDEFINED, order_bytes, text_beginning};
use super::path::IndexPath;
use crate::ids::ItemNumber;
use crate::keycode::prefix_end;
use crate::query::{Region, Value};

/// Entries of one path whose values lie between two bounds.
///
/// Whatever the entries leave open is inside: who scans looks at the items of entries that are not
/// exact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexRange {
    path: IndexPath,
    /// The first encoded value inside.
    start: Vec<u8>,
    /// The first one outside; none if there is none.
    end: Option<Vec<u8>>,
    /// True if all entries inside have one value, `start`.
    is_one_value: bool,
}

impl IndexRange {
    fn new(path: IndexPath, start: Vec<u8>, end: Option<Vec<u8>>) -> Self {
        Self { path, start, end, is_one_value: false }
    }

    /// Every entry, those of items without the property included.
    pub fn all(path: IndexPath) -> Self {
        Self::new(path, Vec::new(), None)
    }

    /// The entries of items that have the property.
    pub fn defined(path: IndexPath) -> Self {
        Self::new(path, vec![UNDEFINED + 1], None)
    }

    /// The values whose types have these ranks.
    pub fn types(path: IndexPath, ranks: RangeInclusive<u8>) -> Self {
        let end = ranks.end().checked_add(1).map(|end| vec![end]);
        Self::new(path, vec![*ranks.start()], end)
    }

    /// The values equal to this one; what is undefined, or not a number, is equal to nothing.
    pub fn equal(path: IndexPath, value: &Value) -> Self {
        if is_nan(value) || !value.is_defined() {
            return Self::nothing(path);
        }
        let start = EncodedValue::new(value).0;
        Self { path, end: prefix_end(&start), start, is_one_value: true }
    }

    /// The values of the bounds' type between them; nothing if the types differ.
    pub fn between(path: IndexPath, low: Bound<&Value>, high: Bound<&Value>) -> Self {
        let mut ranks = [low, high].into_iter().filter_map(bound_value).map(Value::rank);
        let Some(rank) = ranks.next() else { return Self::defined(path) };
        let is_nothing = [low, high].into_iter().filter_map(bound_value).any(is_nan);
        if is_nothing || ranks.any(|other| other != rank) {
            return Self::nothing(path);
        }
        let start = match low {
            Bound::Unbounded => Some(vec![rank]),
            Bound::Included(value) => Some(Edge::new(value).first),
            Bound::Excluded(value) => Edge::new(value).behind,
        };
        let end = match high {
            Bound::Unbounded => Some(vec![rank + 1]),
            Bound::Included(value) => Edge::new(value).end,
            Bound::Excluded(value) => Some(Edge::new(value).before),
        };
        match start {
            Some(start) => Self::new(path, start, end),
            None => Self::nothing(path),
        }
    }

    /// The text that begins like this, as far as text is kept.
    pub fn beginning(path: IndexPath, prefix: &str) -> Self {
        let start = text_beginning(prefix);
        let end = prefix_end(&start);
        Self::new(path, start, end)
    }

    /// The shapes that may be in a region: those in its cells, in smaller ones inside of these, and in
    /// larger ones around them; in order and apart.
    pub(crate) fn region(path: &IndexPath, region: &Region) -> Vec<Self> {
        let inside = region.cells().iter().map(|cell| {
            let digits = cell.digits();
            Self::new(path.clone(), digits.to_vec(), prefix_end(digits))
        });
        let enclosing = region.enclosing().map(|cell| {
            let start = EncodedValue::of_cell(cell.digits()).0;
            let end = prefix_end(&start);
            Self { path: path.clone(), start, end, is_one_value: true }
        });
        Self::without_overlaps(inside.chain(enclosing).collect())
    }

    /// The entries that share the beginning of an entry that is in order: see `Decoded::in_order`.
    pub fn sharing(path: IndexPath, in_order: &[u8]) -> Self {
        Self::new(path, in_order.to_vec(), prefix_end(in_order))
    }

    /// The part of this range at or behind the values that begin like this, in the order of the keys.
    #[must_use]
    pub fn from(mut self, in_order: &[u8]) -> Self {
        if self.start.as_slice() < in_order {
            self.start = in_order.to_vec();
            self.is_one_value = false;
        }
        self
    }

    /// The part of this range up to the values that begin like this, in the order of the keys.
    #[must_use]
    pub fn through(mut self, in_order: &[u8]) -> Self {
        let end = prefix_end(in_order);
        self.end = match (self.end, end) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self
    }

    /// True if an entry with this value lies inside.
    pub fn contains(&self, value: &EncodedValue) -> bool {
        self.start <= value.0 && self.end.as_ref().is_none_or(|end| value.0 < *end)
    }

    /// True if all its values come behind this one.
    pub fn is_behind(&self, value: &EncodedValue) -> bool {
        value.0 < self.start
    }

    /// Ranges of one path in order, those that touch made one unless both are single values: no entry
    /// lies in two of them.
    pub fn without_overlaps(mut ranges: Vec<IndexRange>) -> Vec<IndexRange> {
        ranges.sort_by(|a, b| a.start.cmp(&b.start));
        let mut apart: Vec<IndexRange> = Vec::with_capacity(ranges.len());
        for range in ranges {
            if range.end.as_ref().is_some_and(|end| *end <= range.start) {
                continue;
            }
            match apart.last_mut() {
                Some(last) if last.end.is_none() || last.end.as_ref() >= Some(&range.start) => {
                    if *last == range {
                        continue;
                    }
                    if last.is_one_value && range.is_one_value {
                        apart.push(range);
                        continue;
                    }
                    let ends = last.end.take().zip(range.end);
                    last.end = ends.map(|(a, b)| a.max(b));
                    last.is_one_value = false;
                }
                _ => apart.push(range),
            }
        }
        apart
    }

    /// What lies in both of two lists of ranges of one path, each in order and apart.
    pub fn common(a: Vec<IndexRange>, b: Vec<IndexRange>) -> Vec<IndexRange> {
        let ends_first = |a: &IndexRange, b: &IndexRange| match (&a.end, &b.end) {
            (Some(a), Some(b)) => a <= b,
            (a, _) => a.is_some(),
        };
        let mut common = Vec::new();
        let (mut a, mut b) = (a.into_iter().peekable(), b.into_iter().peekable());
        while let (Some(one), Some(other)) = (a.peek(), b.peek()) {
            let start = (&one.start).max(&other.start).clone();
            let is_done = ends_first(one, other);
            let end = if is_done { &one.end } else { &other.end }.clone();
            if end.as_ref().is_none_or(|end| start < *end) {
                // What is left of a single value is all of it.
                let is_one_value = one.is_one_value || other.is_one_value;
                common.push(Self { path: one.path.clone(), start, end, is_one_value });
            }
            if is_done {
                a.next()
            } else {
                b.next()
            };
        }
        common
    }

    /// True if all entries inside have one value: they come in the order of item numbers.
    pub fn is_one_value(&self) -> bool {
        self.is_one_value
    }

    /// The path.
    pub fn path(&self) -> &IndexPath {
        &self.path
    }

    /// The rows of the index with these keys, behind what all keys of it begin with.
    pub(crate) fn rows(&self, generation: &[u8]) -> (Vec<u8>, Option<Vec<u8>>) {
        let key = |value: &[u8]| [generation, self.path.as_bytes(), value].concat();
        let end = match &self.end {
            Some(end) => Some(key(end)),
            None => prefix_end(&key(&[])),
        };
        let mut start = key(&self.start);
        if self.is_one_value {
            // The first item of all: so an engine can tell it from longer values that begin so.
            start.extend_from_slice(&ItemNumber(0).0.to_be_bytes());
        } else if start.ends_with(&ItemNumber(0).0.to_be_bytes()) {
            // NaN, and some hashes: an engine must not take the end of the value for a number. No row is
            // before this key, since all have a number behind the value.
            start.push(0);
        }
        (start, end)
    }

    fn nothing(path: IndexPath) -> Self {
        Self::new(path, vec![UNDEFINED], Some(vec![UNDEFINED]))
    }
}

/// The places around a bound. If entries leave open on which side of it they are, they are on both.
struct Edge {
    /// The first entry that may be equal.
    first: Vec<u8>,
    /// The end of all entries surely below.
    before: Vec<u8>,
    /// The first entry that may be above.
    behind: Option<Vec<u8>>,
    /// The end of all entries that may be equal.
    end: Option<Vec<u8>>,
}

impl Edge {
    fn new(value: &Value) -> Self {
        let encoded = EncodedValue::new(value);
        let entry = encoded.as_ref().component().expect("our own encoding is whole");
        let first = order_bytes(&encoded.0).expect("our own encoding is whole").to_vec();
        let end = prefix_end(&first);
        if entry.is_exact() {
            return Self { before: first.clone(), behind: end.clone(), first, end };
        }
        let before = end.clone().expect("a rank is below FF");
        Self { before, behind: Some(first.clone()), first, end }
    }
}

fn bound_value(bound: Bound<&Value>) -> Option<&Value> {
    match bound {
        Bound::Included(value) | Bound::Excluded(value) => Some(value),
        Bound::Unbounded => None,
    }
}

fn is_nan(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64().is_nan(),
        Value::Undefined
        | Value::Null
        | Value::Bool(_)
        | Value::Text(_)
        | Value::Array(_)
        | Value::Object(_) => false,
    }
}
