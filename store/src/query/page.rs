//! What the gateway and a partition tell each other about a page: which items, where from, how much,
//! and what came of it.
//!
//! A query takes one of four courses (`Course`). Whatever the course, a page ends at a place that
//! names a position and not an item, so that a result can be gone on with after the item at its end
//! has expired, after a restart, and by another replica.

use std::cmp::Ordering;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::aggregate::Accumulators;
use super::anchors::Anchor;
use super::compiled::CompiledQuery;
use super::value::{Value, as_bytes};
use crate::charge::QueryWork;
use crate::engine::Fault;
use crate::ids::ItemNumber;
use crate::item::ItemKey;
use crate::partition_key::{Epk, KeyDefinition, PartitionKey};

/// Which items of a partition a query is about.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Scope {
    /// Only items with this partition key value, or prefix of one.
    pub key: Option<PartitionKey>,
    /// Only items whose effective partition key lies in `[start, end)`.
    pub epks: Option<(Epk, Epk)>,
}

impl Scope {
    /// True if an item is one of those.
    pub fn admits(&self, item: &ItemKey, definition: &KeyDefinition) -> Result<bool, Fault> {
        if self.key.is_none() && self.epks.is_none() {
            return Ok(true);
        }
        let parts = item.parts(definition.paths.len());
        let parts = parts.map_err(|error| Fault::corrupt("items", error))?;
        let has_key = self.key.as_ref().is_none_or(|key| parts.key.0.starts_with(&key.0));
        let in_range =
            self.epks.as_ref().is_none_or(|(start, end)| *start <= parts.epk && parts.epk < *end);
        Ok(has_key && in_range)
    }
}

/// How much one page may be.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PageLimits {
    /// Rows to return.
    pub rows: usize,
    /// Bytes of rows to return, with what they are sorted by; one row may exceed them.
    pub bytes: usize,
    /// Items to look at, if the course allows to go on between any two of them.
    pub items: usize,
}

/// How a query comes to its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// Item by item; rows come as they are found.
    Walk,
    /// The first rows of a sorted result.
    Sorted,
    /// A sorted result of distinct rows, each at the first of its places. Where that is, only all
    /// partitions together know, so that each page takes all rows.
    Unique,
    /// Rows or groups in the order of their digest: of equal ones there is one.
    Keyed,
    /// Everything added up to one row.
    Sums,
}

impl CompiledQuery {
    /// How this query comes to its rows.
    pub fn course(&self) -> Course {
        if self.is_aggregate() {
            Course::Sums
        } else if self.is_grouped() {
            Course::Keyed
        } else if self.distinct && !self.order.is_empty() && !self.selects_order {
            Course::Unique
        } else if !self.order.is_empty() {
            Course::Sorted
        } else if self.distinct {
            Course::Keyed
        } else {
            Course::Walk
        }
    }

    /// True if equal groups count once: only all groups together tell which are equal.
    pub fn needs_all_groups(&self) -> bool {
        self.is_grouped() && self.distinct
    }

    /// The directions of ORDER BY.
    pub fn directions(&self) -> Directions {
        Directions(self.order.iter().map(|key| key.descending).collect())
    }
}

/// A value to sort by.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SortKey(#[serde(with = "as_bytes")] pub Value);

/// For each key of ORDER BY, true if it descends.
#[derive(Clone, Debug)]
pub struct Directions(Arc<[bool]>);

impl Directions {
    /// Key by key.
    pub(super) fn iter(&self) -> impl Iterator<Item = &bool> {
        self.0.iter()
    }

    fn first_is_descending(&self) -> bool {
        self.0.first().copied().unwrap_or(false)
    }
}

/// Where a row stands in a sorted result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    /// What it is sorted by, key by key.
    pub keys: Vec<SortKey>,
    /// What decides between equal keys: item number and row, or the row's digest with DISTINCT.
    pub tie: u128,
    /// The item of the row; of distinct rows the one that was met first.
    pub number: ItemNumber,
}

impl Place {
    /// The place of a row of an item: rows of one item keep their order, whatever the direction.
    pub(super) fn of_row(
        keys: Vec<Value>,
        number: ItemNumber,
        row: u64,
        directions: &Directions,
    ) -> Self {
        let row = if directions.first_is_descending() { u64::MAX - row } else { row };
        let tie = (u128::from(number.0) << 64) | u128::from(row);
        Self { keys: keys.into_iter().map(SortKey).collect(), tie, number }
    }

    /// The place of an item: before its first row, or behind its last. Without an item that of all
    /// rows with these keys.
    pub fn of_item(
        keys: Vec<SortKey>,
        item: Option<ItemNumber>,
        is_behind: bool,
        directions: &Directions,
    ) -> Self {
        let (least, most) = match item {
            Some(number) => {
                let first = u128::from(number.0) << 64;
                (first, first | u128::from(u64::MAX))
            }
            None => (u128::MIN, u128::MAX),
        };
        let tie = if is_behind == directions.first_is_descending() { least } else { most };
        let number = ItemNumber(u64::try_from(tie >> 64).expect("half of the bits"));
        Self { keys, tie, number }
    }

    /// The order of a result sorted like this. Ties follow the direction of the first key.
    pub fn compare(&self, other: &Place, directions: &Directions) -> Ordering {
        for ((a, b), descending) in self.keys.iter().zip(&other.keys).zip(directions.0.iter()) {
            let ascending = a.0.sort_compare(&b.0);
            if ascending.is_ne() {
                return if *descending { ascending.reverse() } else { ascending };
            }
        }
        let ascending = self.tie.cmp(&other.tie);
        if directions.first_is_descending() { ascending.reverse() } else { ascending }
    }

    /// Bytes it takes, about.
    pub(super) fn bytes(&self) -> usize {
        16 + self.keys.iter().map(|key| key.0.size()).sum::<usize>()
    }
}

/// Where a page ended, and so where the next one begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Resume {
    /// In the order of item keys.
    Item(ItemPlace),
    /// In the order of an index.
    Entry(EntryPlace),
    /// Behind this place of a sorted result.
    Behind(Place),
    /// At this place of a sorted result: what stands there comes again.
    From(Place),
    /// Behind this digest.
    Digest(u128),
}

/// A place in a walk through the items.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ItemPlace {
    /// The item, or how its key begins, if that is long.
    pub key: ItemKey,
    /// If the key is long: the item and those right before it, the last one first.
    pub anchors: Vec<Anchor>,
    /// How many of the item's rows were taken; none if it is done with.
    pub taken: Option<u64>,
}

/// A place in a walk along an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryPlace {
    /// Which condition of the filter the walk follows.
    pub condition: u16,
    /// Which of its ranges.
    pub leg: u16,
    /// The value there, as the index has it.
    #[serde(with = "serde_bytes")]
    pub value: Vec<u8>,
    /// The item.
    pub number: ItemNumber,
    /// How many of its rows were taken; none if it is done with.
    pub taken: Option<u64>,
}

/// A row of a result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QueryRow {
    /// The row as JSON.
    #[serde(with = "serde_bytes")]
    pub json: Vec<u8>,
    /// Where it stands in a sorted result.
    pub place: Option<Place>,
}

/// A row or group in the order of digests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Keyed {
    /// The digest of what makes it this one: of the row with DISTINCT, of the key with GROUP BY.
    pub digest: u128,
    /// What came of it.
    pub content: Content,
}

/// What stands behind a digest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Content {
    /// A row, as JSON.
    Row(#[serde(with = "serde_bytes")] Vec<u8>),
    /// A group: its key and what was added up so far.
    Group(Vec<SortKey>, Accumulators),
}

/// What one partition found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Harvest {
    /// Rows in order.
    Rows(Vec<QueryRow>),
    /// Rows or groups by digest.
    Keyed(Vec<Keyed>),
    /// What was added up.
    Sums(Accumulators),
}

/// A page of one partition's part of a result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Page {
    /// What was found.
    pub harvest: Harvest,
    /// Where to go on; none if there is no more.
    pub next: Option<Resume>,
    /// What it took.
    pub work: QueryWork,
    /// Index paths that were followed, as a policy writes them; keys of a composite index are joined
    /// by commas.
    pub followed: Vec<String>,
}

impl Page {
    /// True if it is what this query is answered with: what comes from a peer is checked.
    pub fn suits(&self, query: &CompiledQuery) -> bool {
        match (query.course(), &self.harvest, &self.next) {
            (Course::Walk, Harvest::Rows(_), None | Some(Resume::Item(_) | Resume::Entry(_))) => {
                true
            }
            (
                Course::Sums,
                Harvest::Sums(sums),
                None | Some(Resume::Item(_) | Resume::Entry(_)),
            ) => query.adds_up_to(sums),
            (Course::Keyed, Harvest::Keyed(keyed), None | Some(Resume::Digest(_))) => {
                keyed.iter().all(|one| match &one.content {
                    Content::Row(_) => !query.is_grouped(),
                    Content::Group(_, sums) => query.is_grouped() && query.adds_up_to(sums),
                })
            }
            (Course::Sorted, Harvest::Rows(rows), None | Some(Resume::Behind(_)))
            | (Course::Unique, Harvest::Rows(rows), None) => {
                rows.iter().all(|row| row.place.is_some())
            }
            (
                Course::Walk | Course::Sums | Course::Keyed | Course::Sorted | Course::Unique,
                _,
                _,
            ) => false,
        }
    }
}
