//! Removing dead items, inside `apply`, so that every replica removes the same ones.
//!
//! Nothing in the command names an item: apply walks the two orders in which items die and takes the
//! first dead ones. Items with their own `ttl` stand in `Table::Expiry` by second and number; items that
//! inherit the default die in the order of their last write, which is the order of the feed. Cursors
//! remember what was passed, so items that never expire are walked over once. Rows of these orders that
//! stand together and all go, as after a peak, go by their range; all other rows of a version that tell its place
//! in these orders go by themselves (`garbage`).

use std::num::NonZeroU32;

use bytes::Bytes;

use super::apply::Draft;
use super::garbage;
use crate::charge::Charge;
use crate::command::CommandEffect;
use crate::engine::{self, Batch, Fault, KeyRange, Table};
use crate::item::Item;
use crate::time::Millis;
use crate::timeline::{FeedPosition, OwnExpiry, VersionRow, expiry_place, feed_position};
use crate::ttl::ItemTtl;

/// Feed rows one sweep may pass for each item it may remove, and at least: the sweeper lets it remove fewer if
/// it takes long.
const ROWS_PASSED_PER_ITEM: u32 = 16;
const ROWS_PASSED_MIN: u32 = 2000;
/// Rows that one sweep removes and kilobytes that it reads, about: bounds the time of one apply, whatever the
/// items are. Of items that must be read, with six indexed values and one kilobyte, these are 2000.
const WORK_MAX: u64 = 24_000;
/// An item that need not be read.
const ITEM_WORK: u64 = 5;
const BYTES_PER_KB: u32 = 1024;
/// So many rows that stand together go by their range: readers pay for each range until it is compacted.
const RUN_MIN: usize = 64;

/// Removes rows of a table that are met in the order of their keys.
struct Removal {
    table: Table,
    /// Those that stand together, up to here.
    run: Vec<Vec<u8>>,
}

impl Removal {
    fn new(table: Table) -> Self {
        Self { table, run: Vec::new() }
    }

    /// The next row goes.
    fn remove(&mut self, key: Vec<u8>) {
        self.run.push(key);
    }

    /// The next row stays, or is not known.
    fn end_run(&mut self, batch: &mut Batch) {
        match &self.run[..] {
            [first, .., last] if self.run.len() >= RUN_MIN => {
                let range = KeyRange { table: self.table, start: first.clone(), end: None };
                batch.delete_range(&range.through(last));
            }
            few => few.iter().for_each(|key| batch.delete(self.table, key)),
        }
        self.run.clear();
    }
}

/// Dead versions that one sweep removes.
struct Taken {
    limit: usize,
    versions: Vec<VersionRow>,
    /// What removing them comes to.
    work: u64,
}

impl Taken {
    fn new(limit: NonZeroU32) -> Self {
        Self { limit: limit.get() as usize, versions: Vec::new(), work: 0 }
    }

    /// How many feed rows may be passed.
    fn rows_passed_max(&self) -> u32 {
        let limit = u32::try_from(self.limit).expect("it was one");
        limit.saturating_mul(ROWS_PASSED_PER_ITEM).max(ROWS_PASSED_MIN)
    }

    fn is_full(&self) -> bool {
        self.versions.len() == self.limit || self.work >= WORK_MAX
    }

    fn take(&mut self, version: VersionRow, must_be_read: bool) {
        self.work += ITEM_WORK;
        if must_be_read {
            let entries = u64::from(version.stamp.indexed_values);
            self.work += entries + u64::from(version.body_bytes / BYTES_PER_KB);
        }
        self.versions.push(version);
    }
}

impl Draft<'_> {
    pub(super) fn sweep(
        &mut self,
        limit: NonZeroU32,
        grace: Millis,
    ) -> Result<CommandEffect, Fault> {
        if self.state.ttl.keeps_the_dead(grace) {
            let charge = Charge::ZERO;
            return Ok(CommandEffect::Swept { removed: 0, trimmed: 0, more: false, charge });
        }
        let mut taken = Taken::new(limit);
        let mut more = self.take_own(&mut taken)?;
        let own = taken.versions.len();
        // Also if no more may be taken: somebody must say whether this was all.
        more |= self.take_inheriting(&mut taken)?;
        let dead = taken.versions;
        let removed = u32::try_from(dead.len()).expect("no more than the limit");
        dead[..own].iter().for_each(|version| self.leave_feed(version));
        self.remove_dead(&dead)?;
        let (trimmed, more_to_trim) = self.trim_history()?;
        more |= more_to_trim;
        Ok(CommandEffect::Swept { removed, trimmed, more, charge: self.swept })
    }

    /// Takes items whose own expiry has passed out of the order of expiry.
    fn take_own(&mut self, taken: &mut Taken) -> Result<bool, Fault> {
        let Some(through) = self.state.ttl.own_dead_through() else { return Ok(false) };
        let end = OwnExpiry::end_of(through);
        if self.state.swept.own.is_some_and(|swept| swept >= end) {
            return Ok(false);
        }
        let partition = self.partition;
        let range = self.state.swept.unswept_own(&partition.spec, through);
        let mut removal = Removal::new(Table::Expiry);
        let mut more = false;
        for row in partition.engine.scan(&range) {
            if taken.is_full() {
                more = true;
                break;
            }
            let (key, version) = row?;
            let version = VersionRow::decode(&version)?;
            let must_be_read = self.must_be_read(&version);
            taken.take(version, must_be_read);
            self.state.swept.own = Some(expiry_place(&key)?);
            removal.remove(key);
        }
        removal.end_run(&mut self.batch);
        if !more {
            self.state.swept.own = Some(end);
        }
        Ok(more)
    }

    /// Takes inheriting items out of the feed, from its front, while they are dead. The cursor comes as far as
    /// the first row that stays, or nobody would stop passing what else was removed before it.
    fn take_inheriting(&mut self, taken: &mut Taken) -> Result<bool, Fault> {
        let Some(through) = self.state.ttl.inheriting_dead_through() else { return Ok(false) };
        let partition = self.partition;
        let range = self.state.swept.unswept_feed(&partition.spec);
        let mut removal = Removal::new(Table::Feed);
        let mut rows_left = taken.rows_passed_max();
        let mut passed = Some(FeedPosition::end_of(self.lsn));
        let mut more = false;
        for row in partition.engine.scan(&range) {
            let (key, value) = row?;
            let (position, version) = (feed_position(&key)?, VersionRow::decode(&value)?);
            if version.stamp.ts > through {
                passed = position.before();
                break;
            }
            if taken.is_full() || rows_left == 0 {
                passed = position.before();
                more = true;
                break;
            }
            rows_left -= 1;
            if version.stamp.ttl == ItemTtl::Inherit {
                let must_be_read = self.must_be_read(&version);
                taken.take(version, must_be_read);
                removal.remove(key);
            } else {
                removal.end_run(&mut self.batch);
            }
        }
        removal.end_run(&mut self.batch);
        self.state.swept.inheriting = self.state.swept.inheriting.max(passed);
        Ok(more)
    }

    /// True if a version cannot be removed by what its rows in the two orders say: if its expiry is recorded,
    /// or if it has entries that do not go by themselves.
    fn must_be_read(&self, version: &VersionRow) -> bool {
        self.state.remembers() || self.has_lasting_entries(version)
    }

    /// Removes versions that were taken out of both orders.
    fn remove_dead(&mut self, dead: &[VersionRow]) -> Result<(), Fault> {
        let partition = self.partition;
        let key = |version: &VersionRow| partition.keys.item(&version.item);
        let must_be_read = dead.iter().filter(|version| self.must_be_read(version));
        let mut keyed: Vec<(Vec<u8>, &VersionRow)> =
            must_be_read.map(|version| (key(version), version)).collect();
        // Items that died together often stand together. What one sweep records is in this order, too.
        keyed.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let (keys, versions): (Vec<_>, Vec<_>) = keyed.into_iter().unzip();
        engine::visit(&*partition.engine, Table::Items, &keys, |at, row| {
            let Some(row) = row else {
                return Err(Fault::corrupt("expiry", "an index row without its item"));
            };
            let (version, (stamp, body)) = (versions[at], Item::split(row)?);
            assert_eq!(stamp, version.stamp, "a row leads to the last version");
            if self.state.remembers() {
                let item = Item { stamp, body: Bytes::copy_from_slice(body) };
                self.record_removed(&version.item, &item);
            }
            self.unindex_swept((&version.item, &stamp, body))
        })?;
        for version in dead {
            let is_dead = self.end(&version.item, &version.stamp).is_some();
            assert!(is_dead, "the sweeper removes only dead items");
            let bytes = usize::try_from(version.body_bytes).expect("a body fits in memory");
            self.swept += Charge::create(bytes, version.stamp.indexed_values);
            if version.stamp.tells_place {
                self.state.left_bytes += garbage::left_by(version);
                self.count_out(version);
            } else {
                self.remove_places(version);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Etag, GroupId, ItemId, ItemNumber, Lsn};
    use crate::item::{ItemKey, Stamp};
    use crate::partition_key::{KeyDefinition, KeyKind, PartitionKey};
    use crate::time::Seconds;

    fn version(indexed_values: u32, body_bytes: u32) -> VersionRow {
        let definition = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
        let value = PartitionKey::parse("[1]").unwrap();
        let id = ItemId::try_from("a".to_string()).unwrap();
        let stamp = Stamp {
            lsn: Lsn(1),
            operation: 0,
            ts: Seconds(1),
            ttl: ItemTtl::Inherit,
            etag: Etag::new(GroupId(1), Lsn(1), 0),
            number: ItemNumber(1),
            indexed_values,
            tells_place: false,
        };
        VersionRow { stamp, body_bytes, item: ItemKey::new(&definition.place(&value), &value, &id) }
    }

    #[test]
    fn the_more_there_is_to_an_item_the_fewer_one_sweep_takes() {
        let limit = NonZeroU32::new(2000).unwrap();
        let taken = |indexed_values, body_bytes, must_be_read| {
            let mut taken = Taken::new(limit);
            while !taken.is_full() {
                taken.take(version(indexed_values, body_bytes), must_be_read);
            }
            taken.versions.len()
        };
        let taken_of = |indexed_values, body_bytes| taken(indexed_values, body_bytes, true);
        assert_eq!(taken(u32::MAX, u32::MAX, false), 2000, "nobody reads them");
        assert_eq!(taken_of(5, 1024), 2000);
        assert_eq!(taken_of(6, 1024), 2000);
        assert_eq!(taken_of(10, 1024), 1500);
        assert_eq!(taken_of(1000, 100), 24);
        assert_eq!(taken_of(5, 2 << 20), 12);
        assert_eq!(taken_of(u32::MAX, u32::MAX), 1, "it always comes further");
    }
}
