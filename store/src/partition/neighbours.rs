//! Which dead items have nothing living between them, in the order of their numbers.
//!
//! Items that die together were often written together. Then their numbers stand side by side, and so do
//! their entries of one value in an index: no other item is there whose number could lie between. What
//! stands side by side is deleted by ranges, which costs next to nothing, instead of key by key.

use crate::engine::{Direction, Fault, KeyRange, Read, Table};
use crate::ids::ItemNumber;
use crate::item::ContainerKeys;

/// Searches for the beginning of a run: so many, and one more for so many numbers that were found. Where
/// the living are everywhere between the dead, looking on would cost more than it saves.
const SEEKS: usize = 4;
const NUMBERS_PER_SEEK: usize = 8;

/// Numbers of dead items in order, each with the run it belongs to.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    numbers: Vec<ItemNumber>,
    runs: Vec<usize>,
}

impl Neighbours {
    /// Finds the runs among these items, all of which have rows.
    pub(super) fn find(
        read: &dyn Read,
        keys: ContainerKeys,
        mut numbers: Vec<ItemNumber>,
    ) -> Result<Self, Fault> {
        numbers.sort_unstable();
        let key = |at: usize| keys.number(numbers[at]);
        let (mut runs, mut seeks) = (Vec::with_capacity(numbers.len()), 0);
        while runs.len() < numbers.len() {
            let run = runs.len();
            runs.push(run);
            if seeks == SEEKS + run / NUMBERS_PER_SEEK {
                continue;
            }
            seeks += 1;
            let rows = KeyRange { table: Table::Numbers, start: key(run), end: None };
            let rows = rows.after(&key(run)).through(&key(numbers.len() - 1));
            let mut cursor = read.cursor(&rows, Direction::Forward);
            while runs.len() < numbers.len()
                && cursor.next_row()?.is_some_and(|(found, _)| *found == key(runs.len()))
            {
                runs.push(run);
            }
        }
        Ok(Self { numbers, runs })
    }

    /// The numbers, in order.
    pub(super) fn numbers(&self) -> &[ItemNumber] {
        &self.numbers
    }

    /// True if two keys differ in nothing but the numbers at their ends, and all items between these
    /// numbers die: then no other such key is between the keys.
    pub(super) fn stand_together(&self, a: &[u8], b: &[u8]) -> bool {
        match (a.split_last_chunk(), b.split_last_chunk()) {
            (Some((value, a)), Some((other, b))) if value == other => {
                self.run(*a).is_some_and(|run| self.run(*b) == Some(run))
            }
            _ => false,
        }
    }

    fn run(&self, number: [u8; 8]) -> Option<usize> {
        let number = ItemNumber(u64::from_be_bytes(number));
        self.numbers.binary_search(&number).ok().map(|at| self.runs[at])
    }
}
