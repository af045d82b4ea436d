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
use crate::item::SweepPlace;
use crate::keycode::MalformedKey;
use crate::machine::{self, MetaTag};

/// Tells what is garbage, by all partitions of an engine as they were at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Garbage {
    swept: BTreeMap<GroupId, SweepCursors>,
    /// Items of all partitions.
    items: u64,
    /// How many went, ever.
    gone: u64,
}

impl Garbage {
    /// Reads how far every partition is swept.
    pub(crate) fn load(read: &dyn Read) -> Result<Self, Fault> {
        let mut garbage = Self::default();
        for PartitionSpec { group, .. } in machine::read_specs(read)? {
            let state = machine::read_meta::<PartitionState>(read, group, MetaTag::State)?;
            let Some(PartitionState { swept, created, items, .. }) = state else { continue };
            garbage.items += items;
            garbage.gone += created - items;
            if swept != SweepCursors::default() {
                garbage.swept.insert(group, swept);
            }
        }
        Ok(garbage)
    }

    /// That of no partition, by how many items there are and went.
    #[cfg(all(test, feature = "rocksdb"))]
    pub(crate) fn of(items: u64, gone: u64) -> Self {
        Self { swept: BTreeMap::new(), items, gone }
    }

    /// True if nothing can be garbage.
    pub(crate) fn is_empty(&self) -> bool {
        self.swept.is_empty()
    }

    /// Items there are, and items that went, ever.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn items_and_gone(&self) -> (u64, u64) {
        (self.items, self.gone)
    }

    /// True for a row of `Table::Index` that may go. What cannot be read is for readers to complain of.
    pub(crate) fn holds(&self, key: &[u8], value: &[u8]) -> bool {
        let Some((group, _)) = key.split_first_chunk() else { return false };
        let swept = self.swept.get(&GroupId(u64::from_be_bytes(*group)));
        swept.is_some_and(|swept| is_garbage(swept, key, value).unwrap_or(false))
    }
}

/// True for an entry whose item was swept.
pub(super) fn is_garbage(
    swept: &SweepCursors,
    key: &[u8],
    value: &[u8],
) -> Result<bool, MalformedKey> {
    if value.is_empty() {
        return Ok(false);
    }
    let number = key.last_chunk().ok_or(MalformedKey("it ends too early"))?;
    let place = SweepPlace::in_entry(value, ItemNumber(u64::from_be_bytes(*number)))?;
    Ok(place.is_some_and(|place| swept.have_passed(place)))
}

impl PartitionView {
    /// The rows of the index that are not garbage, as they are: for tests and tools.
    pub fn index_rows(&self) -> Result<Vec<Row>, Fault> {
        let range = KeyRange::prefix(Table::Index, self.spec.group.0.to_be_bytes().to_vec());
        let mut rows = self.rows(&range)?;
        let mut malformed = Ok(());
        rows.retain(|(key, value)| match is_garbage(&self.state.swept, key, value) {
            Ok(is_garbage) => !is_garbage,
            Err(error) => {
                malformed = Err(Fault::corrupt("index", error));
                false
            }
        });
        malformed.map(|()| rows)
    }
}
