//! The entries of an item: one walk through its body finds all values that are indexed.
//!
//! 1. Every scalar, array and object at an indexed path is an entry of that path.
//! 2. A path that the policy lists by itself has an entry in items without it, too.
//! 3. A composite index has one entry in every item.
//! 4. `id` and `_ts` are always indexed, the latter by the feed where an item was written once.
//! 5. A shape at a path of a spatial index is an entry for each cell of space it may touch.
//! 6. What is computed at a path of its own name stands in for what is stored there.
//!
//! What no rule reaches is skipped unread. Arrays and objects are entered by a hash of their content,
//! so a walk through one of them returns its hash.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess};

use super::path::{self, IndexPath, Step};
use super::rules::{IndexRules, Place, ShapesAt};
use super::{ChangeKind, EncodedValue, EntryChanges, hash, key};
use crate::engine::Fault;
use crate::ids::ContainerNumber;
use crate::item::Stamp;
use crate::json::Scalar;
use crate::query::{ComputedProperties, Needed, Value, cells_of};
use crate::timeline::SweepPlace;

/// Rules made ready for walking.
#[derive(Clone, Debug)]
pub(crate) struct Extractor {
    rules: IndexRules,
    /// For each node of the rules what else there is to know.
    nodes: Vec<Node>,
    /// Paths that have an entry in every item.
    listed: Vec<IndexPath>,
    composites: Vec<Composite>,
    /// How many paths composite indexes have.
    captures: usize,
    /// The computed properties that have entries, and what of an item they are computed from.
    computed: ComputedProperties,
    needed: Needed,
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// True if something here or below is wanted.
    reaches: bool,
    /// Its place among the listed paths.
    listed: Option<usize>,
    /// Its place among the paths of composite indexes.
    capture: Option<usize>,
}

#[derive(Clone, Debug)]
struct Composite {
    path: IndexPath,
    /// The paths whose values it is made of.
    captures: Vec<usize>,
}

impl Extractor {
    /// Prepares rules.
    pub(crate) fn new(rules: &IndexRules) -> Self {
        let computed = ComputedProperties::restore(rules.computed().with_entries());
        let mut this = Self {
            rules: rules.clone().with_id(),
            nodes: Vec::new(),
            listed: Vec::new(),
            composites: Vec::new(),
            captures: 0,
            needed: computed.needed(),
            computed,
        };
        let reach = this.rules.reach().into_iter();
        this.nodes = reach.map(|reaches| Node { reaches, ..Node::default() }).collect();
        for steps in rules.listed() {
            if let Some(path) = IndexPath::new(&steps) {
                this.node(&steps).listed = Some(this.listed.len());
                this.listed.push(path);
            }
        }
        for composite in rules.kept_composites() {
            if let Some(path) = IndexPath::composite(composite) {
                let captures = composite.iter().map(|(steps, _)| this.capture(steps)).collect();
                this.composites.push(Composite { path, captures });
            }
        }
        this
    }

    /// The node of a path of the policy.
    fn node(&mut self, steps: &[Step]) -> &mut Node {
        let node = IndexRules::node_of(self.rules.place(steps));
        &mut self.nodes[node.expect("paths of the policy have nodes")]
    }

    /// Sees to it that the value at a path is kept for composite indexes.
    fn capture(&mut self, steps: &[Step]) -> usize {
        let next = self.captures;
        for end in 0..steps.len() {
            self.node(&steps[..end]).reaches = true;
        }
        let node = self.node(steps);
        node.reaches = true;
        let capture = *node.capture.get_or_insert(next);
        self.captures = self.captures.max(capture + 1);
        capture
    }

    /// Adds the keys of an item's entries, behind what all keys of the generation begin with. Returns how many
    /// operations its computed properties have taken.
    pub(crate) fn change(
        &self,
        changes: &mut EntryChanges,
        kind: ChangeKind,
        generation: &[u8],
        (container, stamp, body): (ContainerNumber, &Stamp, &[u8]),
    ) -> Result<u64, Fault> {
        let mut operations = 0;
        let mut walk = Walk::new(self, changes, kind, generation, stamp);
        walk.enter(body)?;
        walk.stamp(stamp);
        if self.computed.names().next().is_some() {
            let item = Value::read_item(body, stamp, container, &self.needed);
            let item = item.map_err(|error| Fault::corrupt("items", error))?;
            let (computed, spent) = self.computed.compute(&item);
            operations = spent;
            for (name, value) in computed {
                walk.enter_computed(name, &value);
            }
        }
        if self.rules.has_shapes() {
            let item = Value::from_json(body).map_err(|error| Fault::corrupt("items", error))?;
            walk.enter_shapes(&item, self.rules.shapes_at_root(), &mut Vec::new());
        }
        walk.finish();
        Ok(operations)
    }
}

/// A walk through one item.
struct Walk<'r> {
    extractor: &'r Extractor,
    /// The key so far: the generation and the steps from the root.
    key: Vec<u8>,
    /// Where the steps begin.
    steps_at: usize,
    number: [u8; 8],
    /// What all entries of the version hold.
    place: Vec<u8>,
    changes: &'r mut EntryChanges,
    kind: ChangeKind,
    /// Which of the listed paths were found.
    seen: Vec<bool>,
    captured: Vec<Option<Vec<u8>>>,
}

impl<'r> Walk<'r> {
    fn new(
        extractor: &'r Extractor,
        changes: &'r mut EntryChanges,
        kind: ChangeKind,
        generation: &[u8],
        stamp: &Stamp,
    ) -> Self {
        let mut key = Vec::with_capacity(generation.len() + path::PATH_BYTES_MAX);
        key.extend_from_slice(generation);
        Self {
            extractor,
            key,
            steps_at: generation.len(),
            number: stamp.number.0.to_be_bytes(),
            place: SweepPlace::in_entries_of(stamp),
            changes,
            kind,
            seen: vec![false; extractor.listed.len()],
            captured: vec![None; extractor.captures],
        }
    }

    fn enter(&mut self, body: &[u8]) -> Result<(), Fault> {
        let place = self.extractor.rules.root();
        let spot = Spot { walk: self, place, kind: Kind::Root, hashed: false };
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        let walked = spot.deserialize(&mut deserializer);
        walked.map(drop).map_err(|error| Fault::corrupt("items", error))
    }

    fn enter_computed(&mut self, name: &str, value: &Value) {
        let (place, depth) = (self.place_of(name), self.key.len());
        path::put_member(&mut self.key, name);
        self.enter_value(place, value);
        self.key.truncate(depth);
    }

    /// Adds the entries of a value where the walk stands, and of all within it.
    fn enter_value(&mut self, place: Place, value: &Value) {
        if !value.is_defined() || !self.reaches(place) {
            return;
        }
        self.note(place, |key| key::put_value(key, value));
        let (rules, depth) = (&self.extractor.rules, self.key.len());
        match value {
            Value::Array(elements) => {
                let place = rules.element(place);
                path::put_elements(&mut self.key);
                for element in elements {
                    self.enter_value(place, element);
                }
                self.key.truncate(depth);
            }
            Value::Object(members) => {
                for (name, member) in members {
                    path::put_member(&mut self.key, name);
                    self.enter_value(rules.member(place, name), member);
                    self.key.truncate(depth);
                }
            }
            Value::Undefined | Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) => {
            }
        }
    }

    /// Adds the entry of `_ts`, whatever the rules say, unless the feed stands for it.
    fn stamp(&mut self, stamp: &Stamp) {
        let put = |key: &mut Vec<u8>| key::put_ts(key, stamp.ts);
        if !stamp.is_first() {
            let depth = self.key.len();
            path::put_member(&mut self.key, path::TS);
            self.add(put);
            self.key.truncate(depth);
        }
        self.see(self.place_of(path::TS), put);
    }

    /// Adds the entries of all shapes at these steps and below. Nobody asks for those in arrays.
    fn enter_shapes(&mut self, value: &Value, at: ShapesAt<'r>, steps: &mut Vec<Step>) {
        let Value::Object(members) = value else { return };
        if !at.reaches() {
            return;
        }
        if at.includes()
            && let Some(path) = IndexPath::shapes(steps)
        {
            for cell in cells_of(value, self.extractor.rules.metric()) {
                self.add_at(&path, EncodedValue::of_cell(cell.digits()).as_ref().as_bytes());
            }
        }
        for (name, member) in members {
            steps.push(Step::Member(name.clone()));
            self.enter_shapes(member, at.member(name), steps);
            steps.pop();
        }
    }

    fn place_of(&self, name: &str) -> Place {
        let rules = &self.extractor.rules;
        rules.member(rules.root(), name)
    }

    fn node(&self, place: Place) -> Option<&'r Node> {
        IndexRules::node_of(place).map(|node| &self.extractor.nodes[node])
    }

    /// True if something at or below a place is wanted.
    fn reaches(&self, place: Place) -> bool {
        place.is_below_included() || self.node(place).is_some_and(|node| node.reaches)
    }

    /// True if the value at a place is wanted.
    fn wants(&self, place: Place) -> bool {
        let is_captured = |node: &Node| node.capture.is_some();
        self.extractor.rules.includes_value(place) || self.node(place).is_some_and(is_captured)
    }

    /// Notes the value where the walk stands, for everything that wants it.
    fn note(&mut self, place: Place, put: impl Fn(&mut Vec<u8>)) {
        if self.extractor.rules.includes_value(place) {
            self.add(&put);
        }
        self.see(place, put);
    }

    /// Notes a value for the listed paths and for composite indexes.
    fn see(&mut self, place: Place, put: impl Fn(&mut Vec<u8>)) {
        let Some(node) = self.node(place) else { return };
        if let Some(listed) = node.listed {
            self.seen[listed] = true;
        }
        if let Some(capture) = node.capture {
            let mut value = Vec::with_capacity(16);
            put(&mut value);
            self.captured[capture] = Some(value);
        }
    }

    /// Adds an entry of the path where the walk stands.
    fn add(&mut self, put: impl Fn(&mut Vec<u8>)) {
        if self.key.len() - self.steps_at >= path::PATH_BYTES_MAX {
            return;
        }
        self.changes.add(self.kind, &self.place, |key| {
            key.extend_from_slice(&self.key);
            path::put_end(key);
            put(key);
            key.extend_from_slice(&self.number);
        });
    }

    /// Adds an entry of a path from the root.
    fn add_at(&mut self, path: &IndexPath, values: &[u8]) {
        self.changes.add(self.kind, &self.place, |key| {
            for part in [&self.key[..self.steps_at], path.as_bytes(), values, &self.number] {
                key.extend_from_slice(part);
            }
        });
    }

    fn finish(mut self) {
        let extractor = self.extractor;
        for (path, seen) in extractor.listed.iter().zip(std::mem::take(&mut self.seen)) {
            if !seen {
                self.add_at(path, &[key::UNDEFINED]);
            }
        }
        for composite in &extractor.composites {
            let mut values = Vec::with_capacity(32);
            for (capture, descending) in composite.captures.iter().zip(&composite.path.descending) {
                let start = values.len();
                match &self.captured[*capture] {
                    Some(value) => values.extend_from_slice(value),
                    None => values.push(key::UNDEFINED),
                }
                if *descending {
                    path::invert(&mut values[start..]);
                }
            }
            self.add_at(&composite.path, &values);
        }
    }
}

/// What a spot of the walk is to the item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The item itself, which is no value of its own.
    Root,
    /// A value inside it.
    Inner,
}

/// A value about to be walked; the walk returns its hash, if somebody wants it.
struct Spot<'w, 'r> {
    walk: &'w mut Walk<'r>,
    place: Place,
    kind: Kind,
    hashed: bool,
}

impl Spot<'_, '_> {
    fn scalar(self, value: Scalar<'_>) -> u64 {
        self.walk.note(self.place, |key| key::put_scalar(key, value));
        if self.hashed { hash::of_scalar(value) } else { 0 }
    }

    /// True if the array or object here is an entry, or part of one.
    fn needs_hash(&self) -> bool {
        self.hashed || (self.kind != Kind::Root && self.walk.wants(self.place))
    }

    fn container(self, rank: u8, hash: u64) -> u64 {
        if self.kind != Kind::Root {
            self.walk.note(self.place, |key| key::put_container(key, rank, hash));
        }
        hash
    }
}

impl<'de> DeserializeSeed<'de> for Spot<'_, '_> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> de::Visitor<'de> for Spot<'_, '_> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<u64, E> {
        Ok(self.scalar(Scalar::Null))
    }

    fn visit_bool<E>(self, truth: bool) -> Result<u64, E> {
        Ok(self.scalar(Scalar::Bool(truth)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<u64, E> {
        Ok(self.scalar(Scalar::Int(number)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<u64, E> {
        Ok(self.scalar(Scalar::UInt(number)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<u64, E> {
        Ok(self.scalar(Scalar::Float(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<u64, E> {
        Ok(self.scalar(Scalar::Text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<u64, A::Error> {
        let hashed = self.needs_hash();
        let place = self.walk.extractor.rules.element(self.place);
        let depth = self.walk.key.len();
        let mut children = Vec::new();
        if hashed || self.walk.reaches(place) {
            path::put_elements(&mut self.walk.key);
            loop {
                let spot = Spot { walk: &mut *self.walk, place, kind: Kind::Inner, hashed };
                let Some(child) = seq.next_element_seed(spot)? else { break };
                if hashed {
                    children.push(child);
                }
            }
            self.walk.key.truncate(depth);
        } else {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
        }
        let hash = if hashed { hash::of_array(&children) } else { 0 };
        Ok(self.container(key::ARRAY, hash))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<u64, A::Error> {
        let hashed = self.needs_hash();
        let depth = self.walk.key.len();
        let mut children = Vec::new();
        loop {
            let Spot { place, kind, .. } = self;
            let name = Name { walk: &mut *self.walk, place, kind, hashed };
            let Some(member) = map.next_key_seed(name)? else { break };
            match member {
                Member::Skipped => {
                    map.next_value::<IgnoredAny>()?;
                }
                Member::Walked { place, name } => {
                    let walk = &mut *self.walk;
                    let spot = Spot { walk, place, kind: Kind::Inner, hashed };
                    let child = map.next_value_seed(spot)?;
                    if hashed {
                        children.push((name, child));
                    }
                }
            }
            self.walk.key.truncate(depth);
        }
        let hash = if hashed { hash::of_object(children) } else { 0 };
        Ok(self.container(key::OBJECT, hash))
    }
}

/// The name of a member, about to be read.
struct Name<'w, 'r> {
    walk: &'w mut Walk<'r>,
    /// Where its object is.
    place: Place,
    kind: Kind,
    hashed: bool,
}

/// What becomes of a member.
enum Member {
    /// Nothing wants it.
    Skipped,
    /// The walk goes on there.
    Walked { place: Place, name: u64 },
}

impl<'de> DeserializeSeed<'de> for Name<'_, '_> {
    type Value = Member;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Member, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl de::Visitor<'_> for Name<'_, '_> {
    type Value = Member;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Member, E> {
        let rules = &self.walk.extractor.rules;
        let place = rules.member(self.place, name);
        let is_hidden = self.kind == Kind::Root && rules.computed().has(name);
        if is_hidden || !(self.hashed || self.walk.reaches(place)) {
            return Ok(Member::Skipped);
        }
        path::put_member(&mut self.walk.key, name);
        let name = if self.hashed { hash::of_bytes(name.as_bytes()) } else { 0 };
        Ok(Member::Walked { place, name })
    }
}

#[cfg(test)]
mod tests;
