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
use crate::engine::{self, Batch, Direction, Fault, KeyRange, Table};
use crate::item::{Item, Stamp};
use crate::time::Millis;
use crate::timeline::{
    FeedPosition, OwnExpiry, VersionRef, VersionRow, expiry_place, feed_position,
};
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
    /// The first of those that stand together, up to here: `RUN_MIN` of them.
    run: Vec<Vec<u8>>,
    /// The last of them, if they are more.
    last: Vec<u8>,
}

impl Removal {
    fn new(table: Table) -> Self {
        Self { table, run: Vec::new(), last: Vec::new() }
    }

    /// The next row goes.
    fn remove(&mut self, key: &[u8]) {
        if self.run.len() < RUN_MIN {
            self.run.push(key.to_vec());
        } else {
            key.clone_into(&mut self.last);
        }
    }

    /// The next row stays, or is not known.
    fn end_run(&mut self, batch: &mut Batch) {
        match &self.run[..] {
            [first, .., last] if self.run.len() == RUN_MIN => {
                let last = if self.last.is_empty() { last } else { &self.last };
                let range = KeyRange { table: self.table, start: first.clone(), end: None };
                batch.delete_range(&range.through(last));
            }
            few => few.iter().for_each(|key| batch.delete(self.table, key)),
        }
        self.run.clear();
        self.last.clear();
    }
}

/// Dead versions that one sweep removes.
struct Taken {
    limit: u32,
    items: u32,
    /// What removing them comes to.
    work: u64,
    /// Where in the feed those are that were met in the order of expiry.
    in_feed: Vec<FeedPosition>,
    /// Those that must be read, or of which rows are left that do not go by themselves.
    lasting: Vec<VersionRow>,
}

impl Taken {
    fn new(limit: NonZeroU32) -> Self {
        Self { limit: limit.get(), items: 0, work: 0, in_feed: Vec::new(), lasting: Vec::new() }
    }

    /// How many feed rows may be passed.
    fn rows_passed_max(&self) -> u32 {
        self.limit.saturating_mul(ROWS_PASSED_PER_ITEM).max(ROWS_PASSED_MIN)
    }

    fn is_full(&self) -> bool {
        self.items == self.limit || self.work >= WORK_MAX
    }

    /// Counts one more.
    fn count(&mut self, indexed_values: u32, body_bytes: u32, must_be_read: bool) {
        self.items += 1;
        self.work += ITEM_WORK;
        if must_be_read {
            self.work += u64::from(indexed_values) + u64::from(body_bytes / BYTES_PER_KB);
        }
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
        // Also if no more may be taken: somebody must say whether this was all.
        more |= self.take_inheriting(&mut taken)?;
        let removed = taken.items;
        taken.in_feed.into_iter().for_each(|position| self.leave_feed(position));
        self.remove_lasting(&taken.lasting)?;
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
        let mut rows = partition.engine.cursor(&range, Direction::Forward);
        while let Some((key, version)) = rows.next_row()? {
            if taken.is_full() {
                more = true;
                break;
            }
            let version = VersionRef::read(version)?;
            self.take(taken, &version)?;
            taken.in_feed.push(FeedPosition::of(&version.stamp));
            self.state.swept.own = Some(expiry_place(key)?);
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
        let mut rows = partition.engine.cursor(&range, Direction::Forward);
        while let Some((key, value)) = rows.next_row()? {
            let (position, version) = (feed_position(key)?, VersionRef::read(value)?);
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
                self.take(taken, &version)?;
                removal.remove(key);
            } else {
                removal.end_run(&mut self.batch);
            }
        }
        removal.end_run(&mut self.batch);
        self.state.swept.inheriting = self.state.swept.inheriting.max(passed);
        Ok(more)
    }

    /// Takes a version, which must be dead, off what is stored. Most leave nothing behind but what goes by itself.
    fn take(&mut self, taken: &mut Taken, version: &VersionRef<'_>) -> Result<(), Fault> {
        let &VersionRef { stamp, body_bytes, item } = version;
        assert!(self.end(item, &stamp).is_some(), "the sweeper removes only dead items");
        let bytes = usize::try_from(body_bytes).expect("a body fits in memory");
        self.swept += Charge::create(bytes, stamp.indexed_values);
        self.count_out(body_bytes);
        let must_be_read = self.must_be_read(item, &stamp);
        taken.count(stamp.indexed_values, body_bytes, must_be_read);
        if stamp.tells_place {
            self.state.left_bytes += garbage::left_by(version);
        }
        if must_be_read || !stamp.tells_place {
            taken.lasting.push(version.to_row()?);
        }
        Ok(())
    }

    /// True if a version cannot be removed by what its rows in the two orders say: if its expiry is recorded,
    /// or if it has entries that do not go by themselves.
    fn must_be_read(&self, item: &[u8], stamp: &Stamp) -> bool {
        self.state.remembers() || self.has_lasting_entries(item, stamp)
    }

    /// Removes what does not go by itself of versions that were taken out of both orders.
    fn remove_lasting(&mut self, dead: &[VersionRow]) -> Result<(), Fault> {
        let partition = self.partition;
        let key = |version: &VersionRow| partition.keys.item(&version.item);
        let must_be_read =
            |version: &&VersionRow| self.must_be_read(version.item.as_bytes(), &version.stamp);
        let mut keyed: Vec<(Vec<u8>, &VersionRow)> =
            dead.iter().filter(must_be_read).map(|version| (key(version), version)).collect();
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
        dead.iter()
            .filter(|version| !version.stamp.tells_place)
            .for_each(|version| self.remove_places(version));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_by_their_range_from_64_on_and_one_by_one_before() {
        let key = |number: u64| number.to_be_bytes().to_vec();
        let (mut removal, mut batch) = (Removal::new(Table::Feed), Batch::default());
        let mut expected = Batch::default();
        let mut next = 0;
        for length in [0, 1, 63, 200, 63, 64, 65, 2] {
            let run = next..next + length;
            run.clone().for_each(|number| removal.remove(&key(number)));
            removal.end_run(&mut batch);
            if length < 64 {
                run.for_each(|number| expected.delete(Table::Feed, &key(number)));
            } else {
                let range = KeyRange { table: Table::Feed, start: key(next), end: None };
                expected.delete_range(&range.through(&key(next + length - 1)));
            }
            next += length + 1;
        }
        assert!(batch.changes().eq(expected.changes()));
    }

    #[test]
    fn the_more_there_is_to_an_item_the_fewer_one_sweep_takes() {
        let limit = NonZeroU32::new(2000).unwrap();
        let taken = |indexed_values, body_bytes, must_be_read| {
            let mut taken = Taken::new(limit);
            while !taken.is_full() {
                taken.count(indexed_values, body_bytes, must_be_read);
            }
            taken.items
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
