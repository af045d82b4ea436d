//! Scanning a partition without copying: index entries, items, and what must be left out of counts.

use std::ops::ControlFlow;

use super::by_ts::ByTs;
use super::{PartitionSpec, PartitionView, SweepCursors};
use crate::engine::{Cursor, Direction, Fault, KeyRange, Read, Table};
use crate::ids::ItemNumber;
use crate::indexing::{EncodedRef, EncodedValue, IndexPath, IndexRange, IndexState};
use crate::item::{ContainerKeys, Item, ItemKey, Stamp};
use crate::keycode::MalformedKey;
use crate::time::{Millis, Seconds};
use crate::timeline::{FeedPosition, SweepPlace, VersionRow, feed_key};
use crate::ttl::{ItemTtl, Life, TtlPolicy};

/// Rows that a leader looks at for one log entry, and their bytes.
const ROWS_LOOKED_AT_MAX: u32 = 20_000;
const BYTES_LOOKED_AT_MAX: usize = 32 << 20;

/// Where a scan of the index stands, and where one may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The value.
    pub value: EncodedValue,
    /// The item.
    pub number: ItemNumber,
}

/// Steps through entries of one path.
pub struct IndexCursor<'v> {
    entries: Entries<'v>,
    /// Where the value begins in each key.
    value_at: usize,
}

enum Entries<'v> {
    /// Rows of `Table::Index`, and how far the partition is swept.
    Stored(Box<dyn Cursor + 'v>, SweepCursors),
    /// Those of `_ts`.
    ByTs(Box<ByTs<'v>>),
}

/// An entry of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// The value.
    pub value: EncodedRef<'a>,
    /// The item that has it.
    pub number: ItemNumber,
    /// True if it stands for no item, and is to be passed over: that was swept, or written again (`by_ts`).
    pub is_void: bool,
}

impl Entries<'_> {
    /// The key of the next entry, and whether it is to be passed over.
    fn next_key(&mut self) -> Result<Option<(&[u8], bool)>, Fault> {
        let (rows, swept) = match self {
            Entries::Stored(rows, swept) => (rows, swept),
            Entries::ByTs(by_ts) => return by_ts.next_key(),
        };
        let Some((key, place)) = rows.next_row()? else { return Ok(None) };
        let number = ItemNumber::at_end_of(key);
        let place = number.and_then(|number| SweepPlace::in_entry(place, number));
        let place = place.map_err(|error| Fault::corrupt("index", error))?;
        Ok(Some((key, place.is_some_and(|place| swept.have_passed(place)))))
    }
}

impl IndexCursor<'_> {
    /// The next entry; none behind the last.
    pub fn next_entry(&mut self) -> Result<Option<EntryRef<'_>>, Fault> {
        let Some((key, is_void)) = self.entries.next_key()? else { return Ok(None) };
        let rest = key.get(self.value_at..).and_then(|rest| rest.split_last_chunk());
        let Some((value, number)) = rest else {
            return Err(Fault::corrupt("index", MalformedKey("it ends too early")));
        };
        let (value, number) = (EncodedRef::new(value), ItemNumber(u64::from_be_bytes(*number)));
        Ok(Some(EntryRef { value, number, is_void }))
    }
}

/// Steps through items.
pub struct ItemCursor<'v> {
    rows: Box<dyn Cursor + 'v>,
    /// Bytes of the container before each item key.
    key_at: usize,
    /// How far the partition is swept.
    swept: SweepCursors,
}

/// A stored version that somebody else keeps.
#[derive(Clone, Copy, Debug)]
pub struct ItemRef<'a> {
    /// The bytes of its `ItemKey`.
    pub key: &'a [u8],
    /// What the system keeps of it.
    pub stamp: Stamp,
    /// What the user wrote, normalised.
    pub body: &'a [u8],
    /// True if the item was swept, and is no more: to be passed over.
    pub is_garbage: bool,
}

impl ItemRef<'_> {
    /// The item's key, copied.
    pub fn to_key(&self) -> Result<ItemKey, Fault> {
        ItemKey::from_bytes(self.key).map_err(|error| Fault::corrupt("items", error))
    }
}

impl ItemCursor<'_> {
    /// The next version, dead or alive; none behind the last.
    pub fn next_item(&mut self) -> Result<Option<ItemRef<'_>>, Fault> {
        let Some((key, value)) = self.rows.next_row()? else { return Ok(None) };
        let (stamp, body) = Item::split(value)?;
        let key = key.get(self.key_at..).unwrap_or_default();
        Ok(Some(ItemRef { key, stamp, body, is_garbage: self.swept.have_left(&stamp) }))
    }
}

impl PartitionView {
    /// Shows items of a range, dead or alive, for an entry of the log to be about them. Returns up to which item all
    /// were shown; none: all of the range.
    ///
    /// A leader looks ahead outside of `apply`: its garbage is passed here, however much of it there is. Every replica has
    /// another: one that walks the same range may have to pass more.
    pub(super) fn look_ahead(
        &self,
        range: &KeyRange,
        mut show: impl FnMut(&ItemRef<'_>) -> Result<ControlFlow<()>, Fault>,
    ) -> Result<Option<ItemKey>, Fault> {
        let mut items = self.item_cursor(range);
        let (mut rows, mut bytes) = (0, 0);
        while let Some(item) = items.next_item()? {
            rows += 1;
            bytes += item.body.len();
            let is_enough = !item.is_garbage && show(&item)?.is_break();
            if is_enough || rows == ROWS_LOOKED_AT_MAX || bytes >= BYTES_LOOKED_AT_MAX {
                return item.to_key().map(Some);
            }
        }
        Ok(None)
    }

    /// Which paths have entries that may be used.
    pub fn index(&self) -> &IndexState {
        &self.contents.index
    }

    /// A cursor over entries of a path that `index` serves; behind one of them, if one is given, in
    /// the direction of the scan. Entries of one value come in the order of item numbers.
    ///
    /// Entries of dead items are among them: those of what was not swept yet, see `overdue`; and void ones, which
    /// say so.
    pub fn index_cursor(
        &self,
        range: &IndexRange,
        direction: Direction,
        after: Option<&IndexEntry>,
    ) -> IndexCursor<'_> {
        let serving = self.contents.index.serving().expect("only what is served is scanned");
        let prefix = serving.prefix(self.spec.group);
        let (start, end) = range.rows(&prefix);
        let mut rows = KeyRange { table: Table::Index, start, end };
        if let Some(IndexEntry { value, number }) = after {
            let path = range.path().as_bytes();
            let number = number.0.to_be_bytes();
            let key = [&prefix[..], path, value.as_ref().as_bytes(), &number].concat();
            match direction {
                Direction::Forward => rows = rows.after(&key),
                Direction::Backward => rows = rows.before(key),
            }
        }
        let path = [&prefix[..], range.path().as_bytes()].concat();
        let value_at = path.len();
        let entries = if *range.path() == IndexPath::ts() {
            Entries::ByTs(Box::new(ByTs::new(self, rows, path, direction)))
        } else {
            Entries::Stored(self.read.cursor(&rows, direction), self.state().swept)
        };
        IndexCursor { entries, value_at }
    }

    /// The entries of `index_cursor`, copied; none in the place of one that is void.
    pub fn scan_index(
        &self,
        range: &IndexRange,
        direction: Direction,
        after: Option<&IndexEntry>,
    ) -> impl Iterator<Item = Result<Option<IndexEntry>, Fault>> + use<'_> {
        let mut cursor = self.index_cursor(range, direction, after);
        let copied = |EntryRef { value, number, is_void }: EntryRef<'_>| {
            (!is_void).then(|| IndexEntry { value: value.to_owned(), number })
        };
        std::iter::from_fn(move || Some(cursor.next_entry().transpose()?.map(copied)))
    }

    /// A cursor over stored versions of a range of `Table::Items`, dead or alive; and garbage, which says so.
    pub fn item_cursor(&self, range: &KeyRange) -> ItemCursor<'_> {
        assert_eq!(range.table, Table::Items, "items are read from their table");
        let key_at = self.keys.prefix_bytes();
        let swept = self.state().swept;
        ItemCursor { rows: self.read.cursor(range, Direction::Forward), key_at, swept }
    }

    /// The item with this number, dead or alive, and where it stands.
    pub fn item_numbered(&self, number: ItemNumber) -> Result<Option<(ItemKey, Item)>, Fault> {
        let Some(key) = find(&*self.read, &self.spec, number)? else { return Ok(None) };
        let item = self.item(&key)?;
        let item = item.ok_or_else(|| Fault::corrupt("items", "a number without its item"))?;
        assert_eq!(item.stamp.number, number, "a number leads to its item");
        Ok(Some((key, item)))
    }

    /// Shows every item that is stored and not surely alive at `hi`: dead ones that were not swept
    /// yet, however they ended, and those in doubt. What reads entries alone leaves them out. Rows of others that
    /// are met on the way are shown as alive.
    pub fn overdue(
        &self,
        hi: Millis,
        mut show: impl FnMut(ItemNumber, Life) -> ControlFlow<()>,
    ) -> Result<(), Fault> {
        if self.overdue_own(hi, &mut show)?.is_continue()
            && self.overdue_inheriting(hi, &mut show)?.is_continue()
        {
            self.cleared_in_time(hi, &mut show)?;
        }
        Ok(())
    }

    /// Shows every item that was deleted with its logical partition, and else would surely be alive, as dead.
    fn cleared_in_time(
        &self,
        hi: Millis,
        show: &mut impl FnMut(ItemNumber, Life) -> ControlFlow<()>,
    ) -> Result<(), Fault> {
        for (clearing, rows) in self.contents.cleared.unswept(self.keys) {
            let mut items = self.item_cursor(&rows);
            while let Some(ItemRef { key, stamp, is_garbage, .. }) = items.next_item()? {
                let is_in_time = self.state().ttl().judge(stamp.ttl, stamp.ts, hi) == Life::Alive;
                let is_cleared = self.contents.cleared.clearing(key, stamp.lsn) == Some(clearing);
                let is_dead = !is_garbage && is_in_time && is_cleared;
                let life = if is_dead { Life::Dead } else { Life::Alive };
                if show(stamp.number, life).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn overdue_own(
        &self,
        hi: Millis,
        show: &mut impl FnMut(ItemNumber, Life) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Fault> {
        let (now, ttl) = (hi.floor_seconds(), self.state().ttl());
        let through = ttl.policy().is_on().then_some(now).max(ttl.own_dead_through());
        let Some(through) = through else { return Ok(ControlFlow::Continue(())) };
        let mut rows = self
            .read
            .cursor(&self.state().swept.unswept_own(&self.spec, through), Direction::Forward);
        while let Some((_, version)) = rows.next_row()? {
            let VersionRow { item, stamp, .. } = VersionRow::decode(version)?;
            if show(stamp.number, self.judge(item.as_bytes(), &stamp, hi)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn overdue_inheriting(
        &self,
        hi: Millis,
        show: &mut impl FnMut(ItemNumber, Life) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Fault> {
        let (now, ttl) = (hi.floor_seconds(), self.state().ttl());
        let doubtful = match ttl.policy() {
            TtlPolicy::Default(seconds) => now.0.checked_sub(u64::from(seconds.get())).map(Seconds),
            TtlPolicy::Off | TtlPolicy::NoDefault => None,
        };
        let through = doubtful.max(ttl.inheriting_dead_through());
        let Some(through) = through else { return Ok(ControlFlow::Continue(())) };
        let mut rows =
            self.read.cursor(&self.state().swept.unswept_feed(&self.spec), Direction::Forward);
        while let Some((_, version)) = rows.next_row()? {
            let VersionRow { item, stamp, .. } = VersionRow::decode(version)?;
            if stamp.ts > through {
                break;
            }
            let inherits = stamp.ttl == ItemTtl::Inherit;
            let life = if inherits { self.judge(item.as_bytes(), &stamp, hi) } else { Life::Alive };
            if show(stamp.number, life).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// The key of the item with this number, dead or alive: as the feed has it where its first version stood, or, if
/// that was replaced, as the numbers do.
pub(super) fn find(
    read: &dyn Read,
    spec: &PartitionSpec,
    number: ItemNumber,
) -> Result<Option<ItemKey>, Fault> {
    let first = feed_key(spec.group, FeedPosition::of_first(number));
    if let Some(row) = read.get(Table::Feed, &first)? {
        let VersionRow { stamp, item, .. } = VersionRow::decode(&row)?;
        if stamp.number == number {
            return Ok(Some(item));
        }
    }
    let later = ContainerKeys::new(spec.container).number(number);
    let item = read.get(Table::Numbers, &later)?.map(|item| ItemKey::from_bytes(&item));
    item.transpose().map_err(|error| Fault::corrupt("numbers", error))
}
