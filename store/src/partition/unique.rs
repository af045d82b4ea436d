//! Unique keys: no two live items of a logical partition share one.
//!
//! 1. Every item has an entry for each key, which leads from its values to it and ends with its
//!    number: what goes with an item that has expired is never the entry of the one that came after.
//! 2. A write looks at the items with the same values, as the writes before it left them, and is refused if one of
//!    them is alive.
//! 3. Dead ones hold nothing (`docs/TTL.md` R7). Their entries go at once, so that there is no more
//!    than one to look at.

use std::collections::BTreeMap;

use super::apply::Draft;
use super::index::Version;
use crate::charge::Charge;
use crate::command::{CommandEffect, Refusal};
use crate::engine::{Batch, Fault, KeyRange, Table};
use crate::ids::ItemNumber;
use crate::indexing::{ChangeKind, UniqueEntry, UniqueKeys};
use crate::item::ItemKey;
use crate::machine::{self, MetaTag};

/// What becomes of entries while log entries are applied: the item that each leads to then, if any.
#[derive(Debug, Default)]
pub(super) struct UniqueChanges {
    /// By the log entries that are finished, as far as they share a batch.
    before: BTreeMap<Vec<u8>, Option<ItemKey>>,
    /// By the one that is being applied.
    now: BTreeMap<Vec<u8>, Option<ItemKey>>,
}

impl UniqueChanges {
    /// Writes those of the log entry, in the order of keys.
    pub(super) fn finish(&mut self, batch: &mut Batch) {
        for (key, item) in &self.now {
            match item {
                Some(item) => batch.put(Table::Unique, key, item.as_bytes()),
                None => batch.delete(Table::Unique, key),
            }
        }
        self.before.append(&mut self.now);
    }

    /// Forgets those of the log entry.
    pub(super) fn take_back(&mut self) {
        self.now.clear();
    }

    fn set(&mut self, key: Vec<u8>, item: Option<ItemKey>) {
        self.now.insert(key, item);
    }

    /// Changes among some rows, later ones last.
    fn of(&self, rows: &KeyRange) -> impl Iterator<Item = (&Vec<u8>, &Option<ItemKey>)> {
        [&self.before, &self.now].into_iter().flat_map(|changes| {
            let is_inside = |key: &Vec<u8>| rows.end.as_ref().is_none_or(|end| key < end);
            changes.range(rows.start.clone()..).take_while(move |(key, _)| is_inside(key))
        })
    }
}

impl Draft<'_> {
    pub(super) fn set_unique_keys(&mut self, keys: UniqueKeys) -> CommandEffect {
        if self.unique_keys.is_empty() && self.state.items == 0 {
            let group = self.partition.spec.group;
            machine::put_meta(&mut self.batch, group, MetaTag::UniqueKeys, &keys);
            self.unique_keys = keys.into();
        }
        CommandEffect::UniqueKeysSet
    }

    /// Enters a version, or takes its entries away.
    pub(super) fn enter_unique(
        &mut self,
        kind: ChangeKind,
        (item, stamp, body): Version<'_>,
    ) -> Result<(), Fault> {
        if self.unique_keys.is_empty() {
            return Ok(());
        }
        for entry in self.unique_keys.entries(self.partition.spec.group, item, body)? {
            let leads_to = match kind {
                ChangeKind::Put => Some(item.clone()),
                ChangeKind::Delete => None,
            };
            self.unique.set(entry.of(stamp.number), leads_to);
        }
        Ok(())
    }

    /// Refuses a version whose unique keys another live item has; `number` is that of the item
    /// itself, if it is there already.
    pub(super) fn check_unique(
        &mut self,
        item: &ItemKey,
        number: Option<ItemNumber>,
        body: &[u8],
    ) -> Result<Result<(), (Refusal, Charge)>, Fault> {
        if self.unique_keys.is_empty() {
            return Ok(Ok(()));
        }
        let (keys, group) = (self.unique_keys.clone(), self.partition.spec.group);
        for entry in keys.entries(group, item, body)? {
            for (row, holder) in self.holders(&entry.rows())? {
                let holds = UniqueEntry::number(&row)?;
                if number == Some(holds) {
                    continue;
                }
                let other = self.stored(&holder)?;
                let other = other.ok_or_else(|| Fault::corrupt("unique", "no such item"))?;
                assert_eq!(other.stamp.number, holds, "an entry leads to its item");
                if !self.is_dead(&holder, &other) {
                    let paths = keys.paths(&entry);
                    let looked_at = Charge::point_read(other.body.len());
                    return Ok(Err((Refusal::UniqueKeyTaken { paths }, looked_at)));
                }
                self.unique.set(row, None);
            }
        }
        Ok(Ok(()))
    }

    /// Entries and the items they lead to, as the earlier writes of this log entry left them.
    fn holders(&self, rows: &KeyRange) -> Result<BTreeMap<Vec<u8>, ItemKey>, Fault> {
        let mut holders = BTreeMap::new();
        for row in self.partition.engine.scan(rows) {
            let (key, item) = row?;
            let item = ItemKey::from_bytes(&item).map_err(|e| Fault::corrupt("unique", e))?;
            holders.insert(key, item);
        }
        for (key, item) in self.unique.of(rows) {
            match item {
                Some(item) => holders.insert(key.clone(), item.clone()),
                None => holders.remove(key),
            };
        }
        Ok(holders)
    }
}
