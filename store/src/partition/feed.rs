//! Finding a place in the feed: stamps never go back along it, so its log entries can be searched.

use std::ops::Range;

use super::PartitionView;
use crate::engine::{Direction, Fault, KeyRange, Read};
use crate::ids::{GroupId, Lsn};
use crate::item::Stamp;
use crate::time::Seconds;
use crate::timeline::{FeedPosition, feed_key, feed_rows};

impl PartitionView {
    /// The first log entry whose writes are stamped at or after this second: one to come, if there is none.
    pub(crate) fn first_stamped(&self, second: Seconds) -> Result<Lsn, Fault> {
        let (group, end) = (self.spec.group, self.state().lsn().0 + 1);
        let feed = feed_rows(group);
        let is_before = |stamp: &Stamp| Ok(stamp.ts < second);
        Ok(find_place(&*self.read, group, &feed, 0..end, end, is_before)?.lsn)
    }
}

/// A place between two log entries.
pub(super) struct FeedPlace {
    /// The log entry behind it: the first write of no later one is before the place.
    pub(super) lsn: Lsn,
    /// The first write behind it, if there is one.
    pub(super) first: Option<Stamp>,
}

/// Looks for a place among these log entries of a feed: writes are `before` it up to some entry, and none behind
/// that is. It should be `near` one of them.
pub(super) fn find_place(
    read: &dyn Read,
    group: GroupId,
    feed: &KeyRange,
    entries: Range<u64>,
    near: u64,
    is_before: impl Fn(&Stamp) -> Result<bool, Fault>,
) -> Result<FeedPlace, Fault> {
    let Range { start: mut from, end: mut until } = entries;
    let key = |lsn| feed_key(group, FeedPosition::start_of(Lsn(lsn))).to_vec();
    let (mut first, mut step) = (None, 1_u64);
    let (mut is_behind_some, mut is_before_some) = (false, false);
    while from < until {
        // Steps away from there double until the place was passed.
        let at = match (is_behind_some, is_before_some) {
            (false, false) => near,
            (true, false) => from.saturating_add(step),
            (false, true) => until.saturating_sub(step),
            (true, true) => u64::midpoint(from, until),
        };
        step = step.saturating_mul(2);
        let at = at.clamp(from, until - 1);
        // What is behind is known: what was removed there is not passed again.
        let part = feed.clone().from(key(at)).before(key(until));
        let mut rows = read.cursor(&part, Direction::Forward);
        match rows.next_row()?.map(|(_, row)| Stamp::decode(row)).transpose()? {
            Some(stamp) if is_before(&stamp)? => {
                from = stamp.lsn.0 + 1;
                is_behind_some = true;
            }
            found => {
                first = found.or(first);
                until = at;
                is_before_some = true;
            }
        }
    }
    Ok(FeedPlace { lsn: Lsn(until), first })
}
