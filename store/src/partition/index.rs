//! Keeping the index: entries change with the versions they are made of, in the same batch.
//!
//! A write puts the entries that the old version had not, and deletes those that the new one has not.
//! While a new generation is built beside the one that serves, items behind the cursor have no entries
//! of it: the build comes to them later, and finds them as they are then.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::apply::Draft;
use crate::charge::Charge;
use crate::command::CommandEffect;
use crate::engine::{Fault, Table};
use crate::indexing::{BuildProgress, Generation, IndexRules};
use crate::item::{Item, ItemKey};
use crate::ttl::PolicyEpoch;

/// Bytes of bodies that one entry may walk when it builds: bounds the time of one apply, whatever size
/// items have.
const BUILD_BYTES_MAX: usize = 4 << 20;

/// A version, and where its item stands.
type Version<'a> = (&'a ItemKey, &'a Item);

impl Draft<'_> {
    /// True if the item may have entries, so that its body must be read before it is removed.
    pub(super) fn has_entries(&self, item: &ItemKey) -> bool {
        self.index.holding(item).next().is_some()
    }

    /// Brings the entries from one version of an item to the next.
    pub(super) fn index(
        &mut self,
        old: Option<Version<'_>>,
        new: Option<Version<'_>>,
    ) -> Result<(), Fault> {
        let index = self.index.clone();
        for generation in index.generations() {
            let is_held = |(key, _): &Version<'_>| {
                index.holding(key).any(|holding| holding.is_same(generation))
            };
            let old = self.entries(generation, old.filter(is_held))?;
            let new = self.entries(generation, new.filter(is_held))?;
            self.exchange(old, new);
        }
        Ok(())
    }

    fn entries(
        &self,
        generation: &Generation,
        version: Option<Version<'_>>,
    ) -> Result<Vec<Vec<u8>>, Fault> {
        let Some((_, item)) = version else { return Ok(Vec::new()) };
        let prefix = generation.prefix(self.partition.spec.group);
        generation.extractor().keys(&prefix, item, &[])
    }

    /// Replaces keys by others; both are in order.
    fn exchange(&mut self, old: Vec<Vec<u8>>, new: Vec<Vec<u8>>) {
        let mut new = new.into_iter().peekable();
        for key in old {
            while let Some(added) = new.next_if(|added| *added < key) {
                self.batch.put(Table::Index, added, Vec::new());
            }
            if new.next_if_eq(&key).is_none() {
                self.batch.delete(Table::Index, key);
            }
        }
        for added in new {
            self.batch.put(Table::Index, added, Vec::new());
        }
    }

    pub(super) fn set_index_policy(
        &mut self,
        epoch: PolicyEpoch,
        rules: IndexRules,
    ) -> CommandEffect {
        let (group, items) = (self.partition.spec.group, self.state.items);
        let index = Arc::make_mut(&mut self.index);
        index.set_policy(&mut self.batch, group, epoch, rules, items);
        CommandEffect::IndexPolicySet(self.index.epoch())
    }

    /// Enters the next items into the generation that is being built; behind the last one it serves.
    pub(super) fn build_index(&mut self, limit: NonZeroU32) -> Result<CommandEffect, Fault> {
        let (mut items, mut more, mut charge, mut bytes) = (0, false, Charge::ZERO, 0);
        let index = self.index.clone();
        let Some(build) = index.building() else {
            return Ok(CommandEffect::IndexBuilt { items, more, charge });
        };
        let partition = self.partition;
        let mut done = build.done.clone();
        let mut range = partition.keys.slots(Table::Items, partition.spec.slots);
        if let Some(through) = &done.through {
            range = range.after(&partition.keys.item(through));
        }
        for row in partition.engine.scan(&range) {
            if items == limit.get() || bytes >= BUILD_BYTES_MAX {
                more = true;
                break;
            }
            let (key, row) = row?;
            let (key, item) = (partition.keys.item_of(&key)?, Item::decode(row)?);
            let entries = self.entries(&build.generation, Some((&key, &item)))?;
            bytes += item.body.len();
            charge += Charge::index(item.body.len(), item.stamp.indexed_values);
            self.exchange(Vec::new(), entries);
            items += 1;
            done = BuildProgress { through: Some(key), items: done.items + 1 };
        }
        let group = partition.spec.group;
        let index = Arc::make_mut(&mut self.index);
        if more {
            index.note_progress(&mut self.batch, group, done);
        } else {
            index.switch(&mut self.batch, group);
        }
        Ok(CommandEffect::IndexBuilt { items, more, charge })
    }
}
