//! Garbage: index entries whose items were swept.
//!
//! 1. An entry of a version that is to expire tells where the sweeper comes upon it (`SweepPlace`), so a
//!    sweep need not read the item, nor take its entries away one by one.
//! 2. Readers pass over the entries of what was swept by the view they read: nobody is shown one.
//! 3. An engine drops them when it comes past, by cursors that are on its disk and that every view in use
//!    has reached. So replicas hold the same but for garbage.

use std::collections::BTreeMap;

use super::{PartitionSpec, PartitionState, PartitionView, SweepCursors};
use crate::engine::{Fault, KeyRange, Read, Row, Table};
use crate::ids::{GroupId, ItemNumber};
use crate::keycode::MalformedKey;
use crate::machine::{self, MetaTag};
use crate::timeline::SweepPlace;

/// Tells what is garbage, by all partitions of an engine as they were at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Garbage {
    swept: BTreeMap<GroupId, SweepCursors>,
    /// Items of all partitions.
    items: u64,
    /// How many of them were swept and left their entries, ever.
    left: u64,
}

impl Garbage {
    /// Reads how far every partition is swept. One that cannot be read has none: whoever opens it is told.
    pub(crate) fn load(read: &dyn Read) -> Result<Self, Fault> {
        let mut garbage = Self::default();
        for PartitionSpec { group, .. } in machine::read_specs(read)? {
            let state = match machine::read_meta::<PartitionState>(read, group, MetaTag::State) {
                Ok(state) => state,
                Err(Fault::Corrupt { .. }) => None,
                Err(fault @ Fault::Engine(_)) => return Err(fault),
            };
            let Some(PartitionState { swept, items, left_entries, .. }) = state else { continue };
            garbage.items += items;
            garbage.left += left_entries;
            if swept != SweepCursors::default() {
                garbage.swept.insert(group, swept);
            }
        }
        Ok(garbage)
    }

    /// That of one partition, by how many items there are and left their entries.
    #[cfg(all(test, feature = "rocksdb"))]
    pub(crate) fn of(items: u64, left: u64) -> Self {
        Self { swept: BTreeMap::from([(GroupId(1), SweepCursors::default())]), items, left }
    }

    /// True if nothing can be garbage.
    pub(crate) fn is_empty(&self) -> bool {
        self.swept.is_empty()
    }

    /// Items there are, and items that were swept and left their entries, ever.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn items_and_left(&self) -> (u64, u64) {
        (self.items, self.left)
    }

    /// Forgets what is known of a group.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn forget(&mut self, group: GroupId) {
        self.swept.remove(&group);
    }

    /// True for a row of `Table::Index` that may go. What cannot be read is for readers to complain of.
    pub(crate) fn holds(&self, key: &[u8], value: &[u8]) -> bool {
        let Some((group, _)) = key.split_first_chunk() else { return false };
        let swept = self.swept.get(&GroupId(u64::from_be_bytes(*group)));
        let is_garbage = |swept| is_garbage(swept, number(key)?, value);
        swept.is_some_and(|swept| is_garbage(swept).unwrap_or(false))
    }
}

/// True for the entry of an item that was swept.
pub(super) fn is_garbage(
    swept: &SweepCursors,
    number: ItemNumber,
    place: &[u8],
) -> Result<bool, MalformedKey> {
    let place = SweepPlace::in_entry(place, number)?;
    Ok(place.is_some_and(|place| swept.have_passed(place)))
}

/// The item's number, at the end of an entry's key.
fn number(key: &[u8]) -> Result<ItemNumber, MalformedKey> {
    let number = key.last_chunk().ok_or(MalformedKey("it ends too early"))?;
    Ok(ItemNumber(u64::from_be_bytes(*number)))
}

impl PartitionView {
    /// The rows of the index that are not garbage, as they are: for tests and tools.
    pub fn index_rows(&self) -> Result<Vec<Row>, Fault> {
        let range = KeyRange::prefix(Table::Index, self.spec.group.0.to_be_bytes().to_vec());
        let mut rows = self.rows(&range)?;
        let mut malformed = Ok(());
        let is_garbage = |(key, value): &Row| is_garbage(&self.state().swept, number(key)?, value);
        rows.retain(|row| match is_garbage(row) {
            Ok(is_garbage) => !is_garbage,
            Err(error) => {
                malformed = Err(Fault::corrupt("index", error));
                false
            }
        });
        malformed.map(|()| rows)
    }
}
