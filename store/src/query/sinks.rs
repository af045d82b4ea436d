//! Picks the first rows out of many while they go by, holding no more than a page.

use std::cmp::Ordering;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BinaryHeap};

use super::compiled::CompiledQuery;
use super::digest;
use super::evaluate::Row;
use super::page::{
    Content, Directions, Harvest, Keyed, PageLimits, Place, QueryRow, Resume, SortKey,
};
use super::run::Run;
use super::value::Value;

/// The first rows of a sorted result, as many as fit one page.
///
/// Never more bytes than the page's and those of the row just added are held, however many rows go
/// by.
pub(super) struct FirstRows {
    /// The last of them is on top.
    rows: BinaryHeap<Candidate>,
    bytes: usize,
    /// The place of the first row that did not fit. What comes after it does not fit either,
    /// however small it is: the page would have a gap.
    end: Option<Place>,
    limits: PageLimits,
    directions: Directions,
    resume: Option<Resume>,
}

/// A row that can be compared, and its size.
struct Candidate {
    place: Place,
    json: Vec<u8>,
    directions: Directions,
}

impl FirstRows {
    pub(super) fn new(limits: PageLimits, directions: Directions, resume: Option<Resume>) -> Self {
        assert!(limits.rows > 0, "a page has room for a row");
        Self { rows: BinaryHeap::new(), bytes: 0, end: None, limits, directions, resume }
    }

    pub(super) fn directions(&self) -> &Directions {
        &self.directions
    }

    /// The place from which on nothing fits.
    pub(super) fn end(&self) -> Option<&Place> {
        self.end.as_ref()
    }

    /// Takes a row if it belongs on the page.
    pub(super) fn offer(&mut self, place: Place, show: impl FnOnce() -> Option<Vec<u8>>) {
        if self.wants(&place)
            && let Some(json) = show()
        {
            self.add(place, json);
        }
    }

    /// Takes a row if it belongs on the page and is not there yet: equal rows share a place.
    pub(super) fn offer_distinct(&mut self, mut place: Place, row: &Value) {
        place.tie = digest::of(row);
        if self.wants(&place) && !self.has(&place) {
            self.add(place, row.to_json());
        }
    }

    /// True if a row in this place belongs on the page.
    fn wants(&self, place: &Place) -> bool {
        let is_behind = match &self.resume {
            Some(Resume::Behind(start)) => place.compare(start, &self.directions).is_gt(),
            Some(Resume::From(start)) => place.compare(start, &self.directions).is_ge(),
            None | Some(Resume::Item(_) | Resume::Entry(_) | Resume::Digest(_)) => true,
        };
        let fits = |end: &Place| place.compare(end, &self.directions).is_lt();
        is_behind && self.end.as_ref().is_none_or(fits)
    }

    fn has(&self, place: &Place) -> bool {
        self.rows.iter().any(|row| row.place.compare(place, &self.directions).is_eq())
    }

    fn add(&mut self, place: Place, json: Vec<u8>) {
        let row = Candidate { place, json, directions: self.directions.clone() };
        self.bytes += row.bytes();
        self.rows.push(row);
        while self.is_too_large() {
            let last = self.rows.pop().expect("a page with one row is not too large");
            self.bytes -= last.bytes();
            self.end = Some(last.place);
        }
    }

    fn is_too_large(&self) -> bool {
        let rows = self.rows.len();
        rows > self.limits.rows || (self.bytes > self.limits.bytes && rows > 1)
    }

    /// The rows in order, and where the next page begins.
    pub(super) fn into_harvest(self) -> (Harvest, Option<Resume>) {
        let more = self.end.is_some();
        let rows = self.rows.into_sorted_vec().into_iter();
        let rows: Vec<QueryRow> = rows
            .map(|Candidate { place, json, .. }| QueryRow { json, place: Some(place) })
            .collect();
        let last = rows.last().and_then(|row| row.place.clone()).filter(|_| more);
        (Harvest::Rows(rows), last.map(Resume::Behind))
    }
}

impl Candidate {
    fn bytes(&self) -> usize {
        self.json.len() + self.place.bytes()
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place.compare(&other.place, &self.directions)
    }
}

/// All distinct rows, each at the first of its places.
pub(super) struct FirstPlaces {
    found: BTreeMap<u128, (Place, Vec<u8>)>,
    bytes: usize,
    bytes_max: usize,
    directions: Directions,
}

impl FirstPlaces {
    pub(super) fn new(limits: PageLimits, directions: Directions) -> Self {
        Self { found: BTreeMap::new(), bytes: 0, bytes_max: limits.bytes, directions }
    }

    pub(super) fn directions(&self) -> &Directions {
        &self.directions
    }

    pub(super) fn offer(&mut self, mut place: Place, row: &Value) {
        place.tie = digest::of(row);
        match self.found.entry(place.tie) {
            Entry::Vacant(vacant) => {
                let json = row.to_json();
                self.bytes += json.len() + place.bytes();
                vacant.insert((place, json));
            }
            Entry::Occupied(mut occupied) => {
                if place.compare(&occupied.get().0, &self.directions).is_lt() {
                    occupied.get_mut().0 = place;
                }
            }
        }
    }

    /// True if there are more rows than can be held.
    pub(super) fn is_too_large(&self) -> bool {
        self.bytes > self.bytes_max
    }

    pub(super) fn into_harvest(self) -> Harvest {
        let rows = self.found.into_values();
        Harvest::Rows(rows.map(|(place, json)| QueryRow { json, place: Some(place) }).collect())
    }
}

/// The first distinct rows or groups in the order of their digests, as many as fit one page; told in
/// the order in which they came.
///
/// What did not fit once never fits later, so every group that is on the page in the end has seen all
/// of its rows.
pub(super) struct FirstKeyed<'q> {
    query: &'q CompiledQuery,
    /// By digest, with a number that says which was first.
    found: BTreeMap<u128, (u64, Content)>,
    seen: u64,
    bytes: usize,
    /// The first digest that did not fit.
    end: Option<u128>,
    after: Option<u128>,
    limits: PageLimits,
}

impl<'q> FirstKeyed<'q> {
    pub(super) fn new(
        query: &'q CompiledQuery,
        limits: PageLimits,
        resume: Option<&Resume>,
    ) -> Self {
        assert!(limits.rows > 0, "a page has room for a row");
        let after = match resume {
            Some(Resume::Digest(after)) => Some(*after),
            None
            | Some(Resume::Item(_) | Resume::Entry(_) | Resume::Behind(_) | Resume::From(_)) => {
                None
            }
        };
        Self { query, found: BTreeMap::new(), seen: 0, bytes: 0, end: None, after, limits }
    }

    pub(super) fn offer(&mut self, row: &Row<'_>, run: &Run) {
        if self.query.is_grouped() { self.offer_group(row, run) } else { self.offer_row(row, run) }
    }

    fn wants(&self, digest: u128) -> bool {
        self.after.is_none_or(|after| digest > after) && self.end.is_none_or(|end| digest < end)
    }

    fn offer_row(&mut self, row: &Row<'_>, run: &Run) {
        let Some(value) = self.query.project(row, run) else { return };
        let digest = digest::of(&value);
        if self.wants(digest) && !self.found.contains_key(&digest) {
            let json = value.to_json();
            self.bytes += json.len();
            self.seen += 1;
            self.found.insert(digest, (self.seen, Content::Row(json)));
            self.shrink();
        }
    }

    fn offer_group(&mut self, row: &Row<'_>, run: &Run) {
        let key = self.query.group_key(row, run);
        let digest = digest::of_all(&key);
        if !self.wants(digest) {
            return;
        }
        let query = self.query;
        let (mut before, seen) = (0, &mut self.seen);
        if let Some((_, known)) = self.found.get(&digest) {
            before = size(known);
        }
        let (_, content) = self.found.entry(digest).or_insert_with(|| {
            *seen += 1;
            let key = key.into_iter().map(SortKey).collect();
            (*seen, Content::Group(key, query.accumulators()))
        });
        let Content::Group(_, sums) = content else { panic!("a grouped query has groups") };
        query.accumulate(sums, row, run);
        // A least value may be shorter than the one before.
        self.bytes = self.bytes - before + size(content);
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.found.len() > self.limits.rows
            || (self.bytes > self.limits.bytes && self.found.len() > 1)
        {
            let (digest, (_, content)) = self.found.pop_last().expect("there is more than one");
            self.bytes = self.bytes.saturating_sub(size(&content));
            self.end = Some(digest);
        }
    }

    pub(super) fn into_harvest(self) -> (Harvest, Option<Resume>) {
        let more = self.end.is_some();
        let last = self.found.keys().next_back().copied().filter(|_| more);
        let mut found: Vec<_> = self.found.into_iter().collect();
        found.sort_by_key(|(_, (seen, _))| *seen);
        let found = found.into_iter().map(|(digest, (_, content))| Keyed { digest, content });
        (Harvest::Keyed(found.collect()), last.map(Resume::Digest))
    }
}

fn size(content: &Content) -> usize {
    match content {
        Content::Row(json) => json.len(),
        Content::Group(key, sums) => {
            key.iter().map(|key| key.0.size()).sum::<usize>() + sums.size()
        }
    }
}
