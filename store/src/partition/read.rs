//! Reading a partition: always rows and state of the same moment.

use std::sync::Arc;

use super::scan;
use super::{Contents, Partition, PartitionSpec, PartitionState, SweepCursors};
use crate::engine::{Fault, KeyRange, Read, Row, Rows, Table};
use crate::ids::{ContainerNumber, ItemNumber, Lsn};
use crate::item::{ContainerKeys, Item, ItemKey};
use crate::time::Seconds;

/// A stored version, if there is one, with the state it was fetched under.
///
/// Fetch first, then read the clock: a clock read before the fetch could return a version that was
/// dead on arrival.
#[derive(Clone, Debug)]
pub struct Fetched<'k> {
    pub(super) key: &'k ItemKey,
    pub(super) item: Option<Item>,
    pub(super) contents: Arc<Contents>,
}

impl Fetched<'_> {
    /// The version that was judged alive.
    pub fn into_item(self) -> Option<Item> {
        self.item
    }

    /// The state under which it was fetched.
    pub fn state(&self) -> &PartitionState {
        &self.contents.state
    }

    /// The last entry applied when it was fetched.
    pub fn lsn(&self) -> Lsn {
        self.contents.state.lsn()
    }
}

/// A page of items, or the reason why there is none yet.
#[derive(Clone, Debug)]
pub enum PageOutcome<P> {
    /// The page.
    Page(P),
    /// An item may have expired at this second: advance the partition clock and read again.
    InDoubt(Seconds),
}

impl<P> PageOutcome<P> {
    /// The same of another kind of page.
    pub fn map<Q>(self, turn: impl FnOnce(P) -> Q) -> PageOutcome<Q> {
        match self {
            PageOutcome::Page(page) => PageOutcome::Page(turn(page)),
            PageOutcome::InDoubt(expiry) => PageOutcome::InDoubt(expiry),
        }
    }
}

/// A partition as it was at one moment.
#[derive(Clone)]
pub struct PartitionView {
    pub(super) read: Arc<dyn Read>,
    pub(super) spec: PartitionSpec,
    pub(super) contents: Arc<Contents>,
    pub(super) keys: ContainerKeys,
}

impl Partition {
    /// Fetches the stored version of an item, dead or alive.
    pub fn fetch<'k>(&self, key: &'k ItemKey) -> Result<Fetched<'k>, Fault> {
        let row_key = self.keys.item(key);
        let (contents, row) = self.published.get(&*self.engine, Table::Items, &row_key);
        let item = contents.state.swept.kept(row?)?;
        Ok(Fetched { key, item, contents })
    }

    /// Finds the item with this number, as a `_rid` names it.
    pub fn find(&self, number: ItemNumber) -> Result<Option<ItemKey>, Fault> {
        if !self.spec.slots.contains(number.slot()) {
            return Ok(None);
        }
        let find = |rows: &dyn Read| scan::find(rows, &self.spec, number);
        let (_, key) = self
            .published
            .look(|rows| rows.map_or_else(|| find(&*self.engine), |rows| find(&**rows)));
        key
    }

    /// The stored items of a range of `Table::Items` as it is now, dead or alive, in key order.
    pub(super) fn kept_items(
        &self,
        range: &KeyRange,
        swept: SweepCursors,
    ) -> impl Iterator<Item = Result<(ItemKey, Item), Fault>> + use<'_> {
        kept_items(&*self.engine, self.keys, range, swept)
    }

    /// A view that later entries do not change.
    pub fn snapshot(&self) -> PartitionView {
        let (contents, read) = self.published.view(&*self.engine);
        PartitionView { read, spec: self.spec, contents, keys: self.keys }
    }
}

impl PartitionView {
    /// The state of that moment.
    pub fn state(&self) -> &PartitionState {
        &self.contents.state
    }

    /// The container.
    pub fn container(&self) -> ContainerNumber {
        self.spec.container
    }

    /// The keys of the container.
    pub fn keys(&self) -> ContainerKeys {
        self.keys
    }

    /// The stored items of a range of `Table::Items`, dead or alive, in key order.
    pub fn items(
        &self,
        range: &KeyRange,
    ) -> impl Iterator<Item = Result<(ItemKey, Item), Fault>> + use<'_> {
        kept_items(&*self.read, self.keys, range, self.state().swept)
    }

    /// The stored version of an item, dead or alive.
    pub fn item(&self, key: &ItemKey) -> Result<Option<Item>, Fault> {
        let row = self.read.get(Table::Items, &self.keys.item(key))?;
        self.state().swept.kept(row)
    }

    /// The rows of a range, one after the other.
    pub fn scan(&self, range: &KeyRange) -> Rows<'_> {
        self.read.scan(range)
    }

    /// The rows of any table, as they are: for tests.
    pub fn rows(&self, range: &KeyRange) -> Result<Vec<Row>, Fault> {
        self.read.scan(range).collect()
    }
}

/// The stored items of a range of `Table::Items`, but for garbage.
fn kept_items<'a>(
    read: &'a dyn Read,
    keys: ContainerKeys,
    range: &KeyRange,
    swept: SweepCursors,
) -> impl Iterator<Item = Result<(ItemKey, Item), Fault>> + use<'a> {
    assert_eq!(range.table, Table::Items, "items are read from their table");
    read.scan(range).filter_map(move |row| {
        let kept = |(key, value): Row| {
            let item = swept.kept(Some(value))?;
            item.map(|item| Ok((keys.item_of(&key)?, item))).transpose()
        };
        row.and_then(kept).transpose()
    })
}
