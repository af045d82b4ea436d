//! Deleting a logical partition: at once for everybody, and row by row behind the scenes.
//!
//! 1. One entry notes that what the logical partition holds by then is deleted. From then on nobody sees
//!    it (`liveness`); what is written later is alive.
//! 2. The leader's sweeper looks the rows up and has them removed, some with every entry. How far that came is
//!    replicated, so that any leader goes on with it.
//! 3. Behind the last row the note goes, too.

use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::apply::{Draft, LOOK_AHEAD};
use super::{Partition, PartitionView};
use crate::charge::Charge;
use crate::command::{CommandEffect, TooManyCleared};
use crate::engine::{Batch, Fault, KeyRange, Table};
use crate::ids::{GroupId, Lsn};
use crate::item::{ContainerKeys, ItemKey, LogicalPartition};
use crate::machine::{self, MetaTag};
use crate::ttl::TtlState;

/// Deleted logical partitions that may have rows: bounds what is written when one of them changes.
pub const CLEARED_MAX: usize = 256;
/// Bytes of items that one entry removes: bounds the time of one apply, whatever size they have.
const BODY_BYTES_MAX: usize = 4 << 20;
/// What removing an item is worth beside its key and its body, in bytes.
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

/// Rows of one deletion to remove, as the leader has found them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClearedRows {
    /// The entry of the deletion.
    at: Lsn,
    /// The items, in the order of their keys.
    items: Vec<ItemKey>,
    /// Up to which item there are no others; none: there are none at all.
    through: Option<ItemKey>,
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

impl PartitionView {
    /// The next rows to remove of what was deleted with its logical partition, so many at most; none if nothing is
    /// left of it.
    ///
    /// What is written meanwhile is alive, and is not missed.
    pub fn cleared_rows(&self, limit: NonZeroU32) -> Result<Option<ClearedRows>, Fault> {
        let cleared = &self.contents.cleared;
        let Some((one, rows)) = cleared.unswept(self.keys).next() else { return Ok(None) };
        let (mut items, mut bytes) = (Vec::new(), 0);
        let through = self.look_ahead(&rows, |item| {
            if cleared.clearing(item.key, item.stamp.lsn) == Some(one) {
                items.push(item.to_key()?);
                bytes += ITEM_BYTES + item.key.len() + item.body.len();
            }
            let is_full = items.len() == limit.get() as usize || bytes >= BODY_BYTES_MAX;
            Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(Some(ClearedRows { at: one.at, items, through }))
    }
}

impl Draft<'_> {
    /// Deletes what a logical partition holds; its rows go later. It is not looked whether there are any: there may be
    /// any number that are garbage.
    pub(super) fn clear(&mut self, logical_partition: LogicalPartition) -> CommandEffect {
        let spec = &self.partition.spec;
        let is_here = logical_partition.is_valid() && spec.slots.contains(logical_partition.slot());
        if !is_here || self.state.items == 0 {
            return CommandEffect::Cleared(Ok(()));
        }
        if self.cleared.0.len() >= CLEARED_MAX {
            return CommandEffect::Cleared(Err(TooManyCleared));
        }
        let (at, ttl) = (self.lsn, *self.state.ttl());
        let cleared = Arc::make_mut(&mut self.cleared);
        cleared.add(Clearing { logical_partition, at, ttl, passed: None });
        cleared.put(&mut self.batch, spec.group);
        CommandEffect::Cleared(Ok(()))
    }

    /// Removes rows of what was deleted with its logical partition. A proposal that comes late, or twice, does no harm.
    pub(super) fn sweep_cleared(&mut self, rows: &ClearedRows) -> Result<CommandEffect, Fault> {
        let (cleared, mut removed) = (self.cleared.clone(), 0);
        if let Some(place) = cleared.0.iter().position(|one| one.at == rows.at) {
            let one = &cleared.0[place];
            assert!(rows.items.is_sorted_by(|a, b| a < b), "the leader lists each item once");
            for items in rows.items.chunks(LOOK_AHEAD) {
                let keys = items.iter().map(|item| self.partition.keys.item(item));
                // No other entry shares the batch, so the engine has everything.
                let stored = self.stored_each(&keys.collect::<Vec<_>>())?;
                for (key, item) in items.iter().zip(stored) {
                    let Some(item) = item else { continue };
                    if cleared.clearing(key.as_bytes(), item.stamp.lsn) == Some(one) {
                        self.swept += Charge::create(item.body.len(), item.stamp.indexed_values);
                        self.remove(key, &item)?;
                        removed += 1;
                    }
                }
            }
            let left = Arc::make_mut(&mut self.cleared);
            match &rows.through {
                None => drop(left.0.remove(place)),
                Some(through) => {
                    let passed = &mut left.0[place].passed;
                    *passed = passed.take().max(Some(through.clone()));
                }
            }
            left.put(&mut self.batch, self.partition.spec.group);
        }
        let more = !self.cleared.is_empty();
        Ok(CommandEffect::Swept { removed, trimmed: 0, more, charge: self.swept })
    }
}
