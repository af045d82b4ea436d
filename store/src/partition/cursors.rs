//! How far sweeping came, so that what it passed is never scanned again.
//!
//! Removed rows leave traces in the engine that cost a reader time, so a scan that begins where the
//! last sweep ended is what keeps a drain linear.

use serde::{Deserialize, Serialize};

use super::PartitionSpec;
use crate::engine::{Fault, KeyRange, Table};
use crate::item::{Item, Stamp};
use crate::time::Seconds;
use crate::timeline::{FeedPosition, OwnExpiry, SweepPlace, expiry_key, feed_key, feed_rows};

/// The two ends of what was swept; replicated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SweepCursors {
    /// No inheriting item stands in the feed at or before this position.
    pub(super) inheriting: Option<FeedPosition>,
    /// No item with its own `ttl` is left at or before this place.
    pub(super) own: Option<OwnExpiry>,
}

impl SweepCursors {
    /// True if the version whose place this is was removed by a sweep.
    pub(super) fn have_passed(&self, place: SweepPlace) -> bool {
        match place {
            SweepPlace::Own(place) => self.own.is_some_and(|passed| place <= passed),
            SweepPlace::Inheriting(place) => self.inheriting.is_some_and(|passed| place <= passed),
        }
    }

    /// True if a version was removed by a sweep, and its row is garbage.
    pub(super) fn have_left(&self, stamp: &Stamp) -> bool {
        stamp.tells_place && SweepPlace::told_by(stamp).is_some_and(|place| self.have_passed(place))
    }

    /// The version in a row of `Table::Items`, if there is one and it is not garbage.
    pub(super) fn kept(&self, row: Option<Vec<u8>>) -> Result<Option<Item>, Fault> {
        let item = row.map(Item::decode).transpose()?;
        Ok(item.filter(|item| !self.have_left(&item.stamp)))
    }

    /// The part of the feed that was not passed.
    pub(super) fn unswept_feed(&self, spec: &PartitionSpec) -> KeyRange {
        let feed = feed_rows(spec.group);
        match self.inheriting {
            Some(passed) => feed.after(&feed_key(spec.group, passed)),
            None => feed,
        }
    }

    /// The items with their own `ttl` that expire by `through` and were not passed.
    pub(super) fn unswept_own(&self, spec: &PartitionSpec, through: Seconds) -> KeyRange {
        let order = KeyRange::prefix(Table::Expiry, spec.group.0.to_be_bytes().to_vec());
        let end = expiry_key(spec.group, OwnExpiry::end_of(through)).to_vec();
        let order = KeyRange { end: Some(end), ..order };
        match self.own {
            Some(passed) => order.after(&expiry_key(spec.group, passed)),
            None => order,
        }
    }
}
