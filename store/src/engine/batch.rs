//! Changes to be written together, encoded one behind the other in one piece of memory.
//!
//! An entry of the log changes many small rows: so their keys and values cost no allocations of their
//! own, and the checksum of all of them is that of one string of bytes.

use super::{KeyRange, Table};

const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_RANGE: u8 = 3;
/// A range that has no end.
const DELETE_REST: u8 = 4;

/// Changes to be written together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// For each change its kind, its table, and then what it consists of, each behind its length.
    bytes: Vec<u8>,
}

/// One change of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Sets a key.
    Put(Table, &'a [u8], &'a [u8]),
    /// Removes a key, if it is there.
    Delete(Table, &'a [u8]),
    /// Removes all keys from one on, up to another one or to the last.
    DeleteRange(Table, &'a [u8], Option<&'a [u8]>),
}

impl<'a> Change<'a> {
    /// The table it changes.
    pub fn table(&self) -> Table {
        let (Change::Put(table, ..) | Change::Delete(table, _) | Change::DeleteRange(table, ..)) =
            *self;
        table
    }

    /// The key it changes, or the first one.
    pub fn key(&self) -> &'a [u8] {
        let (Change::Put(_, key, _) | Change::Delete(_, key) | Change::DeleteRange(_, key, _)) =
            *self;
        key
    }
}

impl Batch {
    /// Sets a key.
    pub fn put(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.add(PUT, table, [key, value]);
    }

    /// Sets a key to what `put` appends: a large value is not put together elsewhere first.
    pub fn put_with(&mut self, table: Table, key: &[u8], put: impl FnOnce(&mut Vec<u8>)) {
        self.put(table, key, &[]);
        let start = self.bytes.len();
        put(&mut self.bytes);
        let length = length_of(&self.bytes[start..]);
        self.bytes[start - length.len()..start].copy_from_slice(&length);
    }

    /// Removes a key.
    pub fn delete(&mut self, table: Table, key: &[u8]) {
        self.add(DELETE, table, [key]);
    }

    /// Removes a range.
    pub fn delete_range(&mut self, range: &KeyRange) {
        if range.is_empty() {
            return;
        }
        match &range.end {
            Some(end) => self.add(DELETE_RANGE, range.table, [&range.start, end]),
            None => self.add(DELETE_REST, range.table, [&range.start]),
        }
    }

    fn add<const PARTS: usize>(&mut self, kind: u8, table: Table, parts: [&[u8]; PARTS]) {
        self.bytes.extend_from_slice(&[kind, table as u8]);
        for part in parts {
            self.bytes.extend_from_slice(&length_of(part));
            self.bytes.extend_from_slice(part);
        }
    }

    /// The changes in order.
    pub fn changes(&self) -> Changes<'_> {
        Changes { rest: &self.bytes }
    }

    /// Bytes of all changes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Takes back all changes behind the first so many bytes.
    pub fn truncate(&mut self, bytes: usize) {
        self.bytes.truncate(bytes);
    }

    /// Extends a running checksum over what the batch changes behind the first so many bytes: replicas
    /// that applied the same log have the same.
    pub fn digest(&self, start: usize, seed: u32) -> u32 {
        crc32c::crc32c_append(seed, &self.bytes[start..])
    }
}

/// What stands before a part.
fn length_of(part: &[u8]) -> [u8; 4] {
    u32::try_from(part.len()).expect("keys and values have a few megabytes").to_le_bytes()
}

/// The changes of a batch.
#[derive(Clone, Debug)]
pub struct Changes<'a> {
    rest: &'a [u8],
}

impl<'a> Changes<'a> {
    fn part(&mut self) -> &'a [u8] {
        let (length, rest) = self.rest.split_first_chunk().expect("a length");
        let length = u32::from_le_bytes(*length) as usize;
        let (part, rest) = rest.split_at(length);
        self.rest = rest;
        part
    }
}

impl<'a> Iterator for Changes<'a> {
    type Item = Change<'a>;

    fn next(&mut self) -> Option<Change<'a>> {
        let (&[kind, table], rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        let table = Table::ALL[usize::from(table)];
        Some(match kind {
            PUT => Change::Put(table, self.part(), self.part()),
            DELETE => Change::Delete(table, self.part()),
            DELETE_RANGE => Change::DeleteRange(table, self.part(), Some(self.part())),
            DELETE_REST => Change::DeleteRange(table, self.part(), None),
            _ => unreachable!("batches know four kinds of changes"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_as_they_were_added() {
        let rest = KeyRange { table: Table::Index, start: b"s".to_vec(), end: None };
        let some = KeyRange { table: Table::Feed, start: b"s".to_vec(), end: Some(b"t".to_vec()) };
        let empty = KeyRange { table: Table::Feed, start: b"s".to_vec(), end: Some(Vec::new()) };
        let mut batch = Batch::default();
        batch.put(Table::Items, b"key", b"");
        batch.put_with(Table::Items, b"other", |value| value.extend_from_slice(b"value"));
        batch.delete(Table::Catalog, b"");
        batch.delete_range(&rest);
        batch.delete_range(&empty);
        batch.delete_range(&some);
        let changes = [
            Change::Put(Table::Items, b"key", b""),
            Change::Put(Table::Items, b"other", b"value"),
            Change::Delete(Table::Catalog, b""),
            Change::DeleteRange(Table::Index, b"s", None),
            Change::DeleteRange(Table::Feed, b"s", Some(b"t")),
        ];
        assert!(batch.changes().eq(changes));
    }

    #[test]
    fn tables_are_numbered_as_they_are_listed() {
        for (at, table) in Table::ALL.into_iter().enumerate() {
            assert_eq!(table as usize, at);
        }
    }

    #[test]
    fn where_keys_end_and_what_came_before_matters_to_the_checksum() {
        let (mut one, mut other) = (Batch::default(), Batch::default());
        one.put(Table::Items, b"ab", b"c");
        other.put(Table::Items, b"a", b"bc");
        assert_ne!(one.digest(0, 7), other.digest(0, 7));
        assert_ne!(one.digest(0, 7), one.digest(0, 8));
    }
}
