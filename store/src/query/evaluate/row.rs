//! A row of FROM and JOIN: the values that names stand for, in slots.

use crate::ids::ItemNumber;
use crate::query::value::Value;

/// The values in reach of an expression: those of the query itself, and outwards those of the
/// queries around it. Each source adds a value without copying what was there.
#[derive(Clone, Copy, Debug)]
pub struct Row<'r> {
    outer: Option<&'r Row<'r>>,
    /// The slot of the first of `values`.
    first: usize,
    values: &'r [Value],
    number: ItemNumber,
}

impl<'r> Row<'r> {
    /// The row that holds nothing but an item, in slot 0.
    pub(in crate::query) fn of(item: &'r Value, number: ItemNumber) -> Self {
        Self { outer: None, first: 0, values: std::slice::from_ref(item), number }
    }

    /// This row with values in the slots from `first` on. Slots may stay empty before it: those of
    /// sources that a condition does not have to wait for.
    pub(in crate::query) fn with(&'r self, first: usize, values: &'r [Value]) -> Self {
        assert!(first >= self.first + self.values.len(), "slots are filled once");
        Self { outer: Some(self), first, values, number: self.number }
    }

    /// The value in a slot.
    pub(in crate::query) fn slot(&self, slot: usize) -> &'r Value {
        let (mut values, mut first, mut outer) = (self.values, self.first, self.outer);
        while slot < first {
            let row = outer.expect("the first row starts with slot 0");
            (values, first, outer) = (row.values, row.first, row.outer);
        }
        &values[slot - first]
    }

    /// The number of the item.
    pub fn number(&self) -> ItemNumber {
        self.number
    }
}
