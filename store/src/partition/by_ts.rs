//! The entries of `_ts`.
//!
//! Stamps never go back, so the feed is in the order of `_ts` already. An item that was written once stands in it where
//! its number says, and so in the order that entries have: by value, then by number. It has no entry of its own. One
//! that was written again has, because it stands in the feed where it was written last.

use super::PartitionView;
use super::feed::find_place;
use crate::engine::{Cursor, Direction, Fault, KeyRange};
use crate::ids::{ItemNumber, Lsn};
use crate::indexing;
use crate::item::Stamp;
use crate::time::Seconds;
use crate::timeline::{FeedPosition, feed_key, feed_rows};

/// Steps through entries of `_ts`, those that are stored and those that the feed stands for.
pub(super) struct ByTs<'v> {
    stored: Head<Box<dyn Cursor + 'v>>,
    feed: Head<Feed<'v>>,
    direction: Direction,
}

impl<'v> ByTs<'v> {
    /// The entries with keys in this range, which all begin with a generation and the path.
    pub(super) fn new(
        view: &'v PartitionView,
        entries: KeyRange,
        path: Vec<u8>,
        direction: Direction,
    ) -> Self {
        let stored = Head::new(view.read.cursor(&entries, direction));
        let feed = Feed { view, entries, path, direction, rows: None };
        Self { stored, feed: Head::new(feed), direction }
    }

    /// The key of the next entry, and whether it is to be passed over: so is what the feed has in the place of an item
    /// that was written again.
    pub(super) fn next_key(&mut self) -> Result<Option<(&[u8], bool)>, Fault> {
        self.stored.fill(|rows, next| {
            let row = rows.next_row()?;
            Ok(row.map(|(key, _)| {
                next.extend_from_slice(key);
                false
            }))
        })?;
        self.feed.fill(Feed::next_key)?;
        let feed_is_next = match (self.stored.key(), self.feed.key()) {
            (Some(stored), Some(fed)) => (fed < stored) == (self.direction == Direction::Forward),
            (_, fed) => fed.is_some(),
        };
        Ok(if feed_is_next { self.feed.take() } else { self.stored.take() })
    }
}

/// A source of keys in order, and the next of them.
struct Head<S> {
    source: S,
    key: Vec<u8>,
    /// Whether it is to be passed over; none behind the last.
    next: Option<bool>,
    /// True if that was taken, or none was looked for.
    is_taken: bool,
}

impl<S> Head<S> {
    fn new(source: S) -> Self {
        Self { source, key: Vec::new(), next: None, is_taken: true }
    }

    /// Sees to it that the next key is there, if there is one.
    fn fill(
        &mut self,
        next: impl FnOnce(&mut S, &mut Vec<u8>) -> Result<Option<bool>, Fault>,
    ) -> Result<(), Fault> {
        if std::mem::take(&mut self.is_taken) {
            self.key.clear();
            self.next = next(&mut self.source, &mut self.key)?;
        }
        Ok(())
    }

    fn key(&self) -> Option<&[u8]> {
        self.next.map(|_| self.key.as_slice())
    }

    fn take(&mut self) -> Option<(&[u8], bool)> {
        // A source that has ended is not asked again.
        self.is_taken = self.next.is_some();
        self.next.map(|is_passed_over| (self.key.as_slice(), is_passed_over))
    }
}

/// The writes of a feed in the form of entries.
struct Feed<'v> {
    view: &'v PartitionView,
    /// The keys of entries inside.
    entries: KeyRange,
    /// What they all begin with.
    path: Vec<u8>,
    direction: Direction,
    /// None until the first was asked for.
    rows: Option<Box<dyn Cursor + 'v>>,
}

impl Feed<'_> {
    /// Writes the key of the next entry; true if there is none, because the item was written again.
    fn next_key(&mut self, key: &mut Vec<u8>) -> Result<Option<bool>, Fault> {
        if self.entries.is_empty() {
            return Ok(None);
        }
        if self.rows.is_none() {
            self.rows = Some(self.view.read.cursor(&self.rows_from_the_start()?, self.direction));
        }
        while let Some((_, row)) = self.rows.as_mut().expect("just opened").next_row()? {
            let stamp = Stamp::decode(row)?;
            key.clear();
            self.put_key_of(&stamp, key)?;
            if self.entries.contains(key) {
                return Ok(Some(!stamp.is_first()));
            }
            let is_behind = match self.direction {
                Direction::Forward => *key >= self.entries.start,
                Direction::Backward => *key < self.entries.start,
            };
            if is_behind {
                break;
            }
        }
        Ok(None)
    }

    /// Appends the key of the entry for an item that this write created, or would have: writes are in the order of
    /// these.
    fn put_key_of(&self, stamp: &Stamp, key: &mut Vec<u8>) -> Result<(), Fault> {
        let number = ItemNumber::checked(stamp.number.slot(), stamp.lsn, stamp.operation);
        let number = number.ok_or_else(|| Fault::corrupt("feed", "no log has such an entry"))?;
        self.put_key(stamp.ts, number, key);
        Ok(())
    }

    fn put_key(&self, ts: Seconds, number: ItemNumber, key: &mut Vec<u8>) {
        key.extend_from_slice(&self.path);
        indexing::put_ts(key, ts);
        key.extend_from_slice(&number.0.to_be_bytes());
    }

    fn key(&self, ts: Seconds, number: ItemNumber) -> Vec<u8> {
        let mut key = Vec::new();
        self.put_key(ts, number, &mut key);
        key
    }

    /// The rows of the feed, without most of those before the first one inside.
    fn rows_from_the_start(&self) -> Result<KeyRange, Fault> {
        let group = self.view.spec.group;
        let feed = feed_rows(group);
        let at = |lsn| feed_key(group, FeedPosition::start_of(Lsn(lsn))).to_vec();
        Ok(match (self.direction, &self.entries.end) {
            (Direction::Forward, _) => {
                let behind = self.behind(&feed, &self.entries.start)?;
                // A bound may lie between two writes of the log entry before.
                feed.from(at(behind.0.saturating_sub(1)))
            }
            (Direction::Backward, Some(end)) => {
                let behind = self.behind(&feed, end)?;
                feed.before(at(behind.0))
            }
            (Direction::Backward, None) => feed,
        })
    }

    /// The first log entry that does not begin before this key of an entry.
    fn behind(&self, feed: &KeyRange, bound: &[u8]) -> Result<Lsn, Fault> {
        let first = self.key(Seconds(0), ItemNumber(0));
        if bound <= &first[..] {
            return Ok(Lsn(0));
        }
        let end = self.view.state().lsn().0 + 1;
        if bound > &self.key(Seconds(u64::MAX), ItemNumber::MAX)[..] {
            return Ok(Lsn(end));
        }
        // Who goes on behind an item is mostly where that was written; else what is recent is asked for.
        let number_at = first.len() - size_of::<ItemNumber>();
        let number = bound.get(number_at..).and_then(|number| number.first_chunk());
        let number = number.map_or(0, |number| u64::from_be_bytes(*number));
        let near = if number == 0 { end } else { ItemNumber(number).creation().0.0 };
        let is_before = |stamp: &Stamp| {
            let mut key = Vec::with_capacity(first.len());
            self.put_key_of(stamp, &mut key)?;
            Ok(&key[..] < bound)
        };
        Ok(find_place(&*self.view.read, self.view.spec.group, feed, 0..end, near, is_before)?.lsn)
    }
}

#[cfg(test)]
mod tests;
