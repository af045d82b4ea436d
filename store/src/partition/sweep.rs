//! Removing dead items, inside `apply`, so that every replica removes the same ones.
//!
//! Nothing in the command names an item: apply walks the two orders in which items die and takes the
//! first dead ones. Items with their own `ttl` stand in `Table::Expiry` by expiry second; items that
//! inherit the default die in the order of their last write, which is the order of the feed. Cursors
//! remember what was passed, so items that never expire are walked over once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;

use super::apply::Draft;
use crate::command::CommandEffect;
use crate::engine::{Fault, KeyRange, Rows, Table};
use crate::item::{FeedRow, Item, ItemKey, feed_position};
use crate::time::{Millis, Seconds};
use crate::ttl::ItemTtl;

/// Feed rows one sweep may pass for each item it may remove: bounds the time of one apply.
const ROWS_PASSED_PER_REMOVAL: u32 = 16;

impl Draft<'_> {
    pub(super) fn sweep(
        &mut self,
        limit: NonZeroU32,
        grace: Millis,
    ) -> Result<CommandEffect, Fault> {
        if self.state.ttl.keeps_the_dead(grace) {
            return Ok(CommandEffect::Swept { removed: 0, more: false });
        }
        let limit = limit.get();
        let mut removed = 0;
        let mut more = self.sweep_own(limit, &mut removed)?;
        if removed < limit {
            more |= self.sweep_inheriting(limit, &mut removed)?;
        }
        Ok(CommandEffect::Swept { removed, more })
    }

    /// Removes items whose own expiry has passed, in the order of expiry over all slots.
    fn sweep_own(&mut self, limit: u32, removed: &mut u32) -> Result<bool, Fault> {
        let Some(through) = self.state.ttl.own_dead_through() else { return Ok(false) };
        if self.state.swept.own.is_some_and(|swept| swept >= through) {
            return Ok(false);
        }
        let partition = self.partition;
        let from = self.state.swept.own.map_or(Seconds(0), |swept| swept.plus(1));
        let mut slots: Vec<Rows<'_>> = partition
            .spec
            .slots
            .slots()
            .map(|slot| {
                let start = partition.keys.expiry_from(slot, from);
                let end = Some(partition.keys.expiry_from(slot, through.plus(1)));
                partition.engine.scan(&KeyRange { table: Table::Expiry, start, end })
            })
            .collect();
        let mut heads = BinaryHeap::new();
        for slot in 0..slots.len() {
            self.push_head(&mut slots, slot, &mut heads)?;
        }
        while let Some(Reverse((expiry, item, slot))) = heads.pop() {
            if *removed == limit {
                self.state.swept.own = expiry.0.checked_sub(1).map(Seconds);
                return Ok(true);
            }
            self.remove_dead(&item)?;
            *removed += 1;
            self.push_head(&mut slots, slot, &mut heads)?;
        }
        self.state.swept.own = Some(through);
        Ok(false)
    }

    fn push_head(
        &self,
        slots: &mut [Rows<'_>],
        slot: usize,
        heads: &mut BinaryHeap<Reverse<(Seconds, ItemKey, usize)>>,
    ) -> Result<(), Fault> {
        if let Some(row) = slots[slot].next() {
            let (expiry, item) = self.partition.keys.expiry_of(&row?.0)?;
            heads.push(Reverse((expiry, item, slot)));
        }
        Ok(())
    }

    /// Removes inheriting items from the front of the feed while they are dead.
    fn sweep_inheriting(&mut self, limit: u32, removed: &mut u32) -> Result<bool, Fault> {
        let Some(through) = self.state.ttl.inheriting_dead_through() else { return Ok(false) };
        let partition = self.partition;
        let range = partition.unswept_feed(&self.state);
        let mut rows_left = limit.saturating_mul(ROWS_PASSED_PER_REMOVAL);
        for row in partition.engine.scan(&range) {
            let (key, value) = row?;
            let row = FeedRow::decode(&value)?;
            if row.ts > through {
                return Ok(false);
            }
            if *removed == limit || rows_left == 0 {
                return Ok(true);
            }
            if row.ttl == ItemTtl::Inherit {
                self.remove_dead(&row.item)?;
                *removed += 1;
            }
            self.state.swept.inheriting = Some(feed_position(&key)?);
            rows_left -= 1;
        }
        Ok(false)
    }

    fn remove_dead(&mut self, key: &ItemKey) -> Result<(), Fault> {
        let row = self.partition.engine.get(Table::Items, &self.partition.keys.item(key))?;
        let Some(row) = row else {
            return Err(Fault::corrupt("expiry", "an index row without its item"));
        };
        let item = Item::decode(row)?;
        let dead = self.state.ttl.is_dead(item.stamp.ttl, item.stamp.ts);
        assert!(dead, "the sweeper removes only dead items");
        self.remove(key, &item);
        Ok(())
    }
}
