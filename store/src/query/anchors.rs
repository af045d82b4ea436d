//! Places with long keys, told in few bytes.
//!
//! A continuation token is short, while a text that is sorted by, or the key of an item, may be long. A
//! place with such keys is told by items: the one that stands there and those right before it. Whoever
//! goes on looks them up, and so has the place again. Should all of them be gone or changed by then, the
//! result is gone on with where the long key begins: nothing is left out, but rows that share the
//! beginning may come again.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::compiled::CompiledQuery;
use super::digest;
use super::evaluate::Row;
use super::merge::Position;
use super::page::{Directions, ItemPlace, Place, SortKey};
use super::run::Run;
use super::value::{Members, Value};
use crate::codec;
use crate::ids::ItemNumber;
use crate::item::ItemKey;

/// Bytes of keys that a place tells as they are.
const KEYS_BYTES_KEPT: usize = 400;
/// Bytes of the beginnings of longer ones, taken together.
const BEGINNINGS_BYTES: usize = 240;
/// Items that a place is told by.
pub(super) const ANCHORS_MAX: usize = 8;

/// An item that stands at a place, or right before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// The item.
    pub number: ItemNumber,
    /// Of the keys it had: with others it stands elsewhere.
    digest: u64,
}

impl Anchor {
    fn of_place(place: &Place) -> Self {
        Self { number: place.number, digest: digest::of_bytes(&codec::encode(place)) }
    }

    /// The anchor of an item in a walk.
    pub(super) fn of_item(number: ItemNumber, key: &ItemKey) -> Self {
        Self { number, digest: digest::of_bytes(key.as_bytes()) }
    }
}

/// A place of a sorted result whose keys are long.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Anchored {
    /// The items there and right before it, the last one first.
    pub anchors: Vec<Anchor>,
    /// Where the keys begin; none if that is where the result begins.
    start: Option<Place>,
}

impl Anchored {
    /// Where to go on behind the item of an anchor, if one of its rows still stands where it did.
    pub fn behind(
        query: &CompiledQuery,
        anchor: Anchor,
        item: &Value,
        run: &Run,
    ) -> Option<Position> {
        let (directions, mut at, mut found) = (query.directions(), 0, None);
        query.for_each_row(item, anchor.number, run, &mut |row| {
            let place = place_of(query, row, at, anchor.number, &directions, run);
            at += 1;
            found = place.filter(|place| Anchor::of_place(place) == anchor);
            if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found.map(Position::Behind)
    }

    /// The place where the keys begin.
    pub(super) fn place(&self) -> Option<&Place> {
        self.start.as_ref()
    }

    /// Where to go on if none of the items is as it was.
    pub fn start(self) -> Option<Position> {
        self.start.map(Position::From)
    }
}

fn place_of(
    query: &CompiledQuery,
    row: &Row<'_>,
    at: u64,
    number: ItemNumber,
    directions: &Directions,
    run: &Run,
) -> Option<Place> {
    let mut place = Place::of_row(query.sort_keys(row, run)?, number, at, directions);
    if query.distinct {
        place.tie = digest::of(&query.project(row, run)?);
    }
    Some(place)
}

impl Position {
    /// Behind the last of some rows of a sorted result, whose places these are.
    pub(super) fn behind(rows: &[Place], directions: &Directions) -> Option<Self> {
        let last = rows.last()?;
        if codec::encode(last).len() <= KEYS_BYTES_KEPT {
            return Some(Position::Behind(last.clone()));
        }
        let anchors = rows.iter().rev().take(ANCHORS_MAX).map(Anchor::of_place).collect();
        let start = beginning(&last.keys, directions);
        Some(Position::Anchored(Anchored { anchors, start }))
    }
}

/// A place with short keys that is not behind any with these; none if there is no such place.
fn beginning(keys: &[SortKey], directions: &Directions) -> Option<Place> {
    let bytes = BEGINNINGS_BYTES / keys.len();
    let mut short: Vec<SortKey> = Vec::with_capacity(keys.len());
    for (key, descends) in keys.iter().zip(directions.iter()) {
        if codec::encode(key).len() <= bytes {
            short.push(key.clone());
            continue;
        }
        // The keys that follow decide nothing: the place has a value behind this one.
        short.push(SortKey(bound(&key.0, bytes, *descends)?));
        break;
    }
    short.resize(keys.len(), SortKey(Value::Undefined));
    Some(Place::of_item(short, None, false, directions))
}

/// A short value that comes before a long one, whichever way the order goes; none if none does.
fn bound(value: &Value, bytes: usize, descends: bool) -> Option<Value> {
    Some(match (value, descends) {
        (Value::Text(text), false) => Value::Text(start_of(text, bytes).to_string()),
        (Value::Text(text), true) => {
            text_behind(start_of(text, bytes)).map_or(Value::Array(Vec::new()), Value::Text)
        }
        (Value::Array(_), false) => Value::Text(String::new()),
        (Value::Array(_), true) => Value::Object(Members::default()),
        (Value::Object(_), false) => Value::Array(Vec::new()),
        (Value::Object(_), true) => return None,
        (Value::Undefined | Value::Null | Value::Bool(_) | Value::Number(_), _) => value.clone(),
    })
}

/// The beginning of a text that takes so many bytes, however it is written down.
fn start_of(text: &str, bytes: usize) -> &str {
    text.char_indices().nth(bytes / 8).map_or(text, |(end, _)| &text[..end])
}

/// A text that comes behind all that begin like this, in the order of UTF-16; none if there is none.
fn text_behind(start: &str) -> Option<String> {
    let mut chars: Vec<char> = start.chars().collect();
    while let Some(last) = chars.pop() {
        if let Some(next) = char_behind(last) {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

/// The next character in the order of UTF-16, where those of two units come before U+E000.
fn char_behind(char: char) -> Option<char> {
    match char {
        '\u{D7FF}' => Some('\u{10000}'),
        '\u{10FFFF}' => Some('\u{E000}'),
        '\u{FFFF}' => None,
        char => char::from_u32(u32::from(char) + 1),
    }
}

impl ItemPlace {
    /// At an item, or behind it. `recent` are the items that were met, the last one first.
    pub(super) fn new(key: ItemKey, taken: Option<u64>, recent: &[(ItemNumber, ItemKey)]) -> Self {
        if !Self::is_long(key.as_bytes()) {
            return Self { key, anchors: Vec::new(), taken };
        }
        let anchors = recent.iter().map(|(number, key)| Anchor::of_item(*number, key)).collect();
        let start = ItemKey::from_bytes(&key.as_bytes()[..BEGINNINGS_BYTES]);
        Self { key: start.expect("it has bytes"), anchors, taken }
    }

    /// True for a key of which a place tells only the beginning.
    pub(super) fn is_long(key: &[u8]) -> bool {
        key.len() > KEYS_BYTES_KEPT
    }
}
