//! Items that have a value here and another one there: entries of several paths, brought together.
//!
//! Entries of one value come in the order of item numbers. So several cursors go forward side by side,
//! each straight to where the others are (a leapfrog join), and no item is read that one of them lacks.

use crate::engine::{Direction, Fault};
use crate::ids::ItemNumber;
use crate::indexing::{EncodedRef, EncodedValue, IndexRange};
use crate::partition::{IndexCursor, IndexEntry, PartitionView};

/// Entries stepped over before a cursor is placed anew.
const STEPS_MAX: usize = 16;

/// Entries of a range, or those of a single value whose items have other values, too.
pub(super) enum Entries<'v> {
    Plain(IndexCursor<'v>),
    Joined(Leapfrog<'v>),
}

impl<'v> Entries<'v> {
    /// The entries of `range` behind `after`; `joined` are ranges of single values, and if there are
    /// any, so is `range`.
    pub(super) fn new(
        view: &'v PartitionView,
        range: &'v IndexRange,
        after: Option<&IndexEntry>,
        joined: &'v [IndexRange],
    ) -> Self {
        let number = match after {
            None => Some(0),
            Some(after) if range.contains(&after.value) => after.number.0.checked_add(1),
            Some(after) if range.is_behind(&after.value) => Some(0),
            Some(_) => None,
        };
        let Some(number) = number.filter(|_| !joined.is_empty()) else {
            return Entries::Plain(view.index_cursor(range, Direction::Forward, after));
        };
        let values = std::iter::once(range).chain(joined);
        let values = values.map(|range| OneValue::new(view, range)).collect();
        Entries::Joined(Leapfrog { values, number: ItemNumber(number) })
    }

    /// The next value and the item that has it, and whether that has all others and is still there; none at the
    /// end.
    pub(super) fn next_entry(
        &mut self,
    ) -> Result<Option<(EncodedRef<'_>, ItemNumber, bool)>, Fault> {
        match self {
            Entries::Plain(cursor) => {
                let entry = cursor.next_entry()?;
                Ok(entry.map(|entry| (entry.value, entry.number, !entry.is_void)))
            }
            Entries::Joined(leapfrog) => leapfrog.next_entry(),
        }
    }
}

/// Cursors over entries of single values.
pub(super) struct Leapfrog<'v> {
    values: Vec<OneValue<'v>>,
    /// No item before this one is left.
    number: ItemNumber,
}

impl Leapfrog<'_> {
    /// The next item of the first value, and whether it is one of all others, too, and still there.
    fn next_entry(&mut self) -> Result<Option<(EncodedRef<'_>, ItemNumber, bool)>, Fault> {
        let [first, others @ ..] = self.values.as_mut_slice() else { return Ok(None) };
        let Some(number) = first.advance_to(self.number)? else { return Ok(None) };
        let mut farthest = number;
        for other in others {
            let Some(reached) = other.advance_to(farthest)? else { return Ok(None) };
            farthest = reached;
        }
        let is_one_of_all = farthest == number;
        self.number = if is_one_of_all { ItemNumber(number.0.saturating_add(1)) } else { farthest };
        let has_all = is_one_of_all && first.is_there;
        Ok(first.value.as_ref().map(|value| (value.as_ref(), number, has_all)))
    }
}

/// A cursor over the entries of a single value; void ones are among them.
struct OneValue<'v> {
    view: &'v PartitionView,
    range: &'v IndexRange,
    cursor: IndexCursor<'v>,
    /// The value, once an entry was seen.
    value: Option<EncodedValue>,
    /// The item of the last entry seen, and whether it is still there.
    number: Option<ItemNumber>,
    is_there: bool,
}

impl<'v> OneValue<'v> {
    fn new(view: &'v PartitionView, range: &'v IndexRange) -> Self {
        let cursor = view.index_cursor(range, Direction::Forward, None);
        Self { view, range, cursor, value: None, number: None, is_there: false }
    }

    /// The first item at or behind this one; none if no such item has the value.
    fn advance_to(&mut self, wanted: ItemNumber) -> Result<Option<ItemNumber>, Fault> {
        let mut steps = 0;
        while self.number.is_none_or(|number| number < wanted) {
            if steps == STEPS_MAX
                && let (Some(value), Some(before)) = (&self.value, wanted.0.checked_sub(1))
            {
                let after = IndexEntry { value: value.clone(), number: ItemNumber(before) };
                self.cursor = self.view.index_cursor(self.range, Direction::Forward, Some(&after));
            }
            steps += 1;
            let Some(entry) = self.cursor.next_entry()? else { return Ok(None) };
            if self.value.is_none() {
                self.value = Some(entry.value.to_owned());
            }
            (self.number, self.is_there) = (Some(entry.number), !entry.is_void);
        }
        Ok(self.number)
    }
}
