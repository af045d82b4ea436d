//! Garbage: rows that items left when they were swept.
//!
//! 1. The rows of a version that is to expire tell where the sweeper comes upon it (`SweepPlace`): in the items and
//!    in the index. So a sweep need neither read the item nor take these rows away.
//! 2. Whoever reads them passes over those of what was swept by the state they read: nobody is shown one, and
//!    `apply` does the same whether they are there or not.
//! 3. An engine drops them when it comes past, by cursors that are on its disk and that every view in use
//!    has reached. So replicas hold the same but for garbage.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{PartitionSpec, PartitionState, PartitionView, SweepCursors};
use crate::engine::{Fault, KeyRange, Read, Row, Table};
use crate::ids::{GroupId, ItemNumber};
use crate::item::{ContainerKeys, Item};
use crate::machine::{self, MetaTag};
use crate::timeline::{SweepPlace, VersionRef};

/// Tables with rows that may go by themselves.
pub(crate) const LITTERED: [Table; 2] = [Table::Items, Table::Index];

/// What the rows of an item take beside its body and its entries, and an entry, in bytes, about.
const ROWS_BYTES: u64 = 128;
const ENTRY_BYTES: u64 = 64;

/// Bytes that so many items with bodies of so many bytes take beside their entries, about.
fn weight(items: u64, bodies: u64) -> u64 {
    items * ROWS_BYTES + bodies
}

/// Bytes that a version leaves when it is swept, about.
pub(super) fn left_by(version: &VersionRef<'_>) -> u64 {
    let entries = u64::from(version.stamp.indexed_values) * ENTRY_BYTES;
    weight(1, version.body_bytes.into()) + entries
}

/// Tells what is garbage, by all partitions of an engine as they were at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Garbage {
    swept: BTreeMap<GroupId, SweepCursors>,
    /// Where the items of each of these groups begin, and whose they are up to where.
    items: BTreeMap<Vec<u8>, (KeyRange, GroupId)>,
    /// Bytes of all items that are stored, about: of their index only what is garbage is known.
    stored: u64,
    /// Bytes that items of each group which were swept have left, ever, about.
    left: BTreeMap<GroupId, u64>,
}

impl Garbage {
    /// Reads how far every partition is swept. One that cannot be read has none: whoever opens it is told.
    pub(crate) fn load(read: &dyn Read) -> Result<Self, Fault> {
        Self::load_where(read, |_| true)
    }

    /// The same for one group alone.
    pub(crate) fn load_of(read: &dyn Read, group: GroupId) -> Result<Self, Fault> {
        Self::load_where(read, |one| one == group)
    }

    fn load_where(read: &dyn Read, is_meant: impl Fn(GroupId) -> bool) -> Result<Self, Fault> {
        let mut garbage = Self::default();
        let specs = machine::read_specs::<PartitionSpec>(read)?;
        for spec in specs.into_iter().filter(|spec| is_meant(spec.group)) {
            let group = spec.group;
            let state = match machine::read_meta::<PartitionState>(read, group, MetaTag::State) {
                Ok(state) => state,
                Err(Fault::Corrupt { .. }) => None,
                Err(fault @ Fault::Engine(_)) => return Err(fault),
            };
            let Some(PartitionState { swept, items, bytes, left_bytes, .. }) = state else {
                continue;
            };
            garbage.stored += weight(items, bytes);
            garbage.left.insert(spec.group, left_bytes);
            garbage.add(&spec, swept);
        }
        Ok(garbage)
    }

    /// Adds that of a partition.
    fn add(&mut self, spec: &PartitionSpec, swept: SweepCursors) {
        if swept != SweepCursors::default() {
            self.swept.insert(spec.group, swept);
            let items = ContainerKeys::new(spec.container).slots(Table::Items, spec.slots);
            self.items.insert(items.start.clone(), (items, spec.group));
        }
    }

    /// That of some groups, by the bytes of what is stored and of what each has left.
    #[cfg(all(test, feature = "rocksdb"))]
    pub(crate) fn of(stored: u64, left: impl IntoIterator<Item = (GroupId, u64)>) -> Self {
        let left: BTreeMap<_, _> = left.into_iter().collect();
        let swept = left.keys().map(|group| (*group, SweepCursors::default())).collect();
        Self { swept, stored, left, ..Self::default() }
    }

    /// True if nothing can be garbage.
    pub(crate) fn is_empty(&self) -> bool {
        self.swept.is_empty()
    }

    /// Bytes of what is stored.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn stored(&self) -> u64 {
        self.stored
    }

    /// Bytes that items of each group which were swept have left, ever.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn left(&self) -> &BTreeMap<GroupId, u64> {
        &self.left
    }

    /// Forgets what is known of a group.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn forget(&mut self, group: GroupId) {
        self.swept.remove(&group);
        self.left.remove(&group);
    }

    /// True for a row that may go. What cannot be read is for readers to complain of.
    pub(crate) fn holds(&self, table: Table, key: &[u8], value: &[u8]) -> bool {
        if self.is_empty() {
            return false;
        }
        let (group, place) = match table {
            Table::Items => {
                let stamp = Item::split(value).ok().map(|(stamp, _)| stamp);
                (self.group_of(key), stamp.and_then(|stamp| SweepPlace::told_by(&stamp)))
            }
            Table::Index => {
                let group = key.split_first_chunk();
                let group = group.map(|(group, _)| GroupId(u64::from_be_bytes(*group)));
                let number = ItemNumber::at_end_of(key);
                let place = number.and_then(|number| SweepPlace::in_entry(value, number));
                (group, place.ok().flatten())
            }
            Table::Numbers
            | Table::Feed
            | Table::Expiry
            | Table::Meta
            | Table::Catalog
            | Table::History
            | Table::Unique => return false,
        };
        let swept = group.and_then(|group| self.swept.get(&group));
        swept.zip(place).is_some_and(|(swept, place)| swept.have_passed(place))
    }

    /// Whose item has this key.
    fn group_of(&self, key: &[u8]) -> Option<GroupId> {
        let (_, (items, group)) =
            self.items.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()?;
        items.contains(key).then_some(*group)
    }
}

impl PartitionView {
    /// The rows of a range that are not garbage, as they are: for tests.
    pub fn kept_rows(&self, range: &KeyRange) -> Result<Vec<Row>, Fault> {
        let mut garbage = Garbage::default();
        garbage.add(&self.spec, self.state().swept);
        let mut rows = self.rows(range)?;
        rows.retain(|(key, value)| !garbage.holds(range.table, key, value));
        Ok(rows)
    }

    /// Those of the index.
    pub fn index_rows(&self) -> Result<Vec<Row>, Fault> {
        self.kept_rows(&KeyRange::prefix(Table::Index, self.spec.group.0.to_be_bytes().to_vec()))
    }
}
