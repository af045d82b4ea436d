//! Deleting a logical partition: at once for everybody, and row by row behind the scenes.
//!
//! 1. One entry notes that what the logical partition holds by then is deleted. From then on nobody sees
//!    it (`liveness`); what is written later is alive.
//! 2. The leader's sweeper has the rows removed, some with every entry. How far that came is replicated,
//!    so that any leader goes on with it.
//! 3. Behind the last row the note goes, too.

use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Partition;
use super::apply::Draft;
use crate::charge::Charge;
use crate::command::{CommandEffect, TooManyCleared};
use crate::engine::{Batch, Fault, KeyRange, Table};
use crate::ids::{GroupId, Lsn};
use crate::item::{ContainerKeys, ItemKey, LogicalPartition};
use crate::machine::{self, MetaTag};
use crate::ttl::TtlState;

/// Deleted logical partitions that may have rows: bounds what is written when one of them changes.
pub const CLEARED_MAX: usize = 256;
/// Bytes of bodies that one entry may walk when it removes rows: bounds the time of one apply, whatever
/// size items have.
const WALKED_BYTES_MAX: usize = 4 << 20;
/// What looking at an item is worth beside its body, in bytes.
const ITEM_BYTES: usize = 256;

/// Deleted logical partitions that may still have rows, in the order of their keys, then of their
/// deletion. Changed only by applying log entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cleared(Vec<Clearing>);

/// One deletion of a logical partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Clearing {
    logical_partition: LogicalPartition,
    /// The entry that deleted it: what was written before is gone.
    at: Lsn,
    /// What had expired by then was not there to be deleted.
    pub(super) ttl: TtlState,
    /// No row of what is gone is left up to this item.
    passed: Option<ItemKey>,
}

impl Cleared {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The deletion that ended a version; none if it was not deleted that way.
    pub(super) fn clearing(&self, item: &[u8], lsn: Lsn) -> Option<&Clearing> {
        let behind = self.0.partition_point(|one| one.logical_partition.as_bytes() <= item);
        let of_item = |one: &&Clearing| item.starts_with(one.logical_partition.as_bytes());
        self.0[..behind].iter().rev().take_while(of_item).take_while(|one| lsn < one.at).last()
    }

    /// Each deletion, with the rows among which those of what is gone are.
    pub(super) fn unswept(
        &self,
        keys: ContainerKeys,
    ) -> impl Iterator<Item = (&Clearing, KeyRange)> {
        self.0.iter().map(move |one| {
            let rows = keys.rows_of(&one.logical_partition);
            let rows = match &one.passed {
                Some(passed) => rows.after(&keys.item(passed)),
                None => rows,
            };
            (one, rows)
        })
    }

    fn add(&mut self, new: Clearing) {
        let is_before = |one: &Clearing| one.logical_partition <= new.logical_partition;
        self.0.insert(self.0.partition_point(is_before), new);
    }

    fn put(&self, batch: &mut Batch, group: GroupId) {
        if self.is_empty() {
            batch.delete(Table::Meta, &machine::meta_key(group, MetaTag::Cleared));
        } else {
            machine::put_meta(batch, group, MetaTag::Cleared, self);
        }
    }
}

impl Partition {
    /// True while rows of deleted logical partitions wait to be removed.
    pub fn is_clearing(&self) -> bool {
        !self.published.now().cleared.is_empty()
    }
}

/// How much of an entry is left.
struct Room {
    items: u32,
    bytes: usize,
}

impl Draft<'_> {
    /// Deletes what a logical partition holds; its rows go later.
    pub(super) fn clear(
        &mut self,
        logical_partition: LogicalPartition,
    ) -> Result<CommandEffect, Fault> {
        let Partition { spec, keys, .. } = self.partition;
        let is_here = logical_partition.is_valid() && spec.slots.contains(logical_partition.slot());
        let rows = keys.rows_of(&logical_partition);
        let has_rows = is_here
            && self.partition.kept_items(&rows, self.state.swept).next().transpose()?.is_some();
        if !has_rows {
            return Ok(CommandEffect::Cleared(Ok(())));
        }
        if self.cleared.0.len() >= CLEARED_MAX {
            return Ok(CommandEffect::Cleared(Err(TooManyCleared)));
        }
        let (at, ttl) = (self.lsn, *self.state.ttl());
        let cleared = Arc::make_mut(&mut self.cleared);
        cleared.add(Clearing { logical_partition, at, ttl, passed: None });
        cleared.put(&mut self.batch, spec.group);
        Ok(CommandEffect::Cleared(Ok(())))
    }

    /// Removes rows of what was deleted with its logical partition.
    pub(super) fn sweep_cleared(&mut self, limit: NonZeroU32) -> Result<CommandEffect, Fault> {
        let (cleared, partition) = (self.cleared.clone(), self.partition);
        let mut room = Room { items: limit.get(), bytes: WALKED_BYTES_MAX };
        let (mut left, mut begun) = (cleared.unswept(partition.keys), None);
        while begun.is_none()
            && let Some((one, rows)) = left.next()
        {
            begun = match self.remove_cleared(one, &rows, &mut room)? {
                ControlFlow::Continue(()) => None,
                ControlFlow::Break(passed) => Some(Clearing { passed, ..one.clone() }),
            };
        }
        let left = begun.into_iter().chain(left.map(|(one, _)| one.clone())).collect();
        if !cleared.is_empty() {
            self.cleared = Arc::new(Cleared(left));
            self.cleared.put(&mut self.batch, partition.spec.group);
        }
        let (removed, more) = (limit.get() - room.items, !self.cleared.is_empty());
        Ok(CommandEffect::Swept { removed, trimmed: 0, more, charge: self.swept })
    }

    /// Removes the versions that one deletion ended, until there is no more of them, or no more room; up
    /// to which item, then.
    fn remove_cleared(
        &mut self,
        one: &Clearing,
        rows: &KeyRange,
        room: &mut Room,
    ) -> Result<ControlFlow<Option<ItemKey>>, Fault> {
        let (partition, mut passed) = (self.partition, one.passed.clone());
        for version in partition.kept_items(rows, self.state.swept) {
            if room.items == 0 || room.bytes == 0 {
                return Ok(ControlFlow::Break(passed));
            }
            let (key, item) = version?;
            room.bytes = room.bytes.saturating_sub(ITEM_BYTES + item.body.len());
            if self.cleared.clearing(key.as_bytes(), item.stamp.lsn) == Some(one) {
                self.swept += Charge::create(item.body.len(), item.stamp.indexed_values);
                self.remove(&key, &item)?;
                room.items -= 1;
            }
            passed = Some(key);
        }
        Ok(ControlFlow::Continue(()))
    }
}
