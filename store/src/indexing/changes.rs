//! What becomes of index entries while a log entry is applied, gathered and written in key order.
//!
//! Neighbours cost an engine less than keys all over it, and a log entry may sweep thousands of items.
//! Versions that follow one another share most of their entries: what is taken away and put back as it was
//! costs nothing.

use crate::engine::{Batch, Table};

/// Bytes from which on changes are condensed: an array of a million equal values has one entry, and a million changes
/// of it.
const CONDENSED_BYTES: usize = 8 << 20;

/// Changes of entries, those of each in the order in which they were made.
#[derive(Debug)]
pub(crate) struct EntryChanges {
    /// All keys and values, one behind the other.
    bytes: Vec<u8>,
    changes: Vec<Change>,
    /// Bytes of all keys and values that were ever added, whether they were condensed or not: replicas decide by that.
    added: usize,
    /// How large they may become before they are condensed.
    limit: usize,
}

impl Default for EntryChanges {
    fn default() -> Self {
        Self { bytes: Vec::new(), changes: Vec::new(), added: 0, limit: CONDENSED_BYTES }
    }
}

#[derive(Clone, Copy, Debug)]
struct Change {
    kind: ChangeKind,
    start: usize,
    /// Where the key ends, and the value begins.
    middle: usize,
    end: usize,
}

/// Whether entries come or go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// They were not there, and will be.
    Put,
    /// They were there, and will not be.
    Delete,
}

impl EntryChanges {
    /// Adds a change of the entry whose key is written, and which has this value, or had it.
    pub(super) fn add(
        &mut self,
        kind: ChangeKind,
        value: &[u8],
        write_key: impl FnOnce(&mut Vec<u8>),
    ) {
        let start = self.bytes.len();
        write_key(&mut self.bytes);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.changes.push(Change { kind, start, middle, end: self.bytes.len() });
        self.added += self.bytes.len() - start;
        if self.size() >= self.limit {
            self.condense();
            self.limit = self.limit.max(2 * self.size());
        }
    }

    /// Bytes of the keys and values of all changes since the log entry began.
    pub(crate) fn added(&self) -> usize {
        self.added
    }

    /// How much of memory they take, about.
    fn size(&self) -> usize {
        self.bytes.len() + self.changes.len() * size_of::<Change>()
    }

    /// Keeps what `finish` looks at: of each entry the first change and the last.
    fn condense(&mut self) {
        self.sort();
        let (bytes, changes) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.changes));
        for changes in changes.chunk_by(|a, b| a.key(&bytes) == b.key(&bytes)) {
            let (first, rest) = changes.split_first().expect("a chunk is not empty");
            for kept in [Some(first), rest.last()].into_iter().flatten() {
                let start = self.bytes.len();
                self.bytes.extend_from_slice(&bytes[kept.start..kept.end]);
                let middle = start + (kept.middle - kept.start);
                self.changes.push(Change { kind: kept.kind, start, middle, end: self.bytes.len() });
            }
        }
    }

    /// In the order of keys; changes of one entry keep theirs.
    fn sort(&mut self) {
        let bytes = &self.bytes;
        self.changes.sort_by(|a, b| a.key(bytes).cmp(b.key(bytes)));
    }

    /// Takes back everything.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.changes.clear();
        (self.added, self.limit) = (0, CONDENSED_BYTES);
    }

    /// Writes what they come to, in the order of keys.
    pub(crate) fn finish(&mut self, batch: &mut Batch) {
        self.sort();
        let bytes = &self.bytes;
        for changes in self.changes.chunk_by(|a, b| a.key(bytes) == b.key(bytes)) {
            let [first, .., last] = changes else {
                changes[0].write(bytes, batch);
                continue;
            };
            let comes_to_nothing = match (first.kind, last.kind) {
                (ChangeKind::Put, ChangeKind::Delete) => true,
                (ChangeKind::Delete, ChangeKind::Put) => first.value(bytes) == last.value(bytes),
                (ChangeKind::Put, ChangeKind::Put) | (ChangeKind::Delete, ChangeKind::Delete) => {
                    false
                }
            };
            if !comes_to_nothing {
                last.write(bytes, batch);
            }
        }
        self.clear();
    }

    /// The keys that are put, in order.
    #[cfg(test)]
    pub(super) fn into_keys(mut self) -> Vec<Vec<u8>> {
        let mut batch = Batch::default();
        self.finish(&mut batch);
        let put = |change| {
            let crate::engine::Change::Put(Table::Index, key, _) = change else {
                panic!("not an entry that is put: {change:?}")
            };
            key.to_vec()
        };
        batch.changes().map(put).collect()
    }
}

impl Change {
    fn key(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start..self.middle]
    }

    fn value(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.middle..self.end]
    }

    fn write(self, bytes: &[u8], batch: &mut Batch) {
        match self.kind {
            ChangeKind::Put => batch.put(Table::Index, self.key(bytes), self.value(bytes)),
            ChangeKind::Delete => batch.delete(Table::Index, self.key(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::Change as Written;

    proptest! {
        #[test]
        fn to_condense_changes_what_is_held_and_not_what_is_written(
            made in prop::collection::vec((0_u8..6, any::<bool>(), 0_u8..3), 0..200),
            limit in 1_usize..500,
        ) {
            let write = |limit: usize| {
                let mut changes = EntryChanges { limit, ..EntryChanges::default() };
                for (key, puts, value) in &made {
                    let kind = if *puts { ChangeKind::Put } else { ChangeKind::Delete };
                    changes.add(kind, &[*value], |bytes| bytes.extend_from_slice(&[*key; 9]));
                }
                let mut batch = Batch::default();
                changes.finish(&mut batch);
                format!("{:?}", batch.changes().collect::<Vec<_>>())
            };
            prop_assert_eq!(write(limit), write(usize::MAX));
        }
    }

    /// Replicas decide by it, whatever they have applied before and condensed.
    #[test]
    fn what_was_added_is_counted_the_same_after_much_and_after_nothing() {
        let add = |changes: &mut EntryChanges| {
            for _ in 0..100_000 {
                changes.add(ChangeKind::Put, b"place", |bytes| bytes.extend_from_slice(&[7; 270]));
            }
            changes.added()
        };
        let mut changes = EntryChanges::default();
        let once = add(&mut changes);
        assert_eq!(once, 100_000 * 275);
        for key in 0..300_000_u32 {
            changes.add(ChangeKind::Put, &[0; 270], |bytes| bytes.extend(key.to_be_bytes()));
        }
        changes.clear();
        assert_eq!(add(&mut changes), once);
        assert_eq!(changes.limit, CONDENSED_BYTES);
    }

    #[test]
    fn many_changes_of_one_entry_take_no_room() {
        let mut changes = EntryChanges::default();
        for _ in 0..1_000_000 {
            changes.add(ChangeKind::Put, b"place", |bytes| bytes.extend_from_slice(&[7; 270]));
        }
        assert!(changes.bytes.capacity() <= 2 * CONDENSED_BYTES, "{}", changes.bytes.capacity());
        assert_eq!(changes.into_keys().len(), 1);
    }

    #[test]
    fn entries_change_in_key_order_and_only_if_they_end_otherwise_than_they_began() {
        use ChangeKind::{Delete, Put};

        let mut changes = EntryChanges::default();
        let made = [
            (Put, "new", "2"),
            (Delete, "old", "1"),
            (Delete, "back", "1"),
            (Put, "back", "1"),
            (Delete, "moved", "1"),
            (Put, "moved", "2"),
            (Put, "twice", "1"),
            (Put, "twice", "2"),
            (Put, "brief", "1"),
            (Delete, "brief", "1"),
            (Delete, "gone", "1"),
            (Put, "gone", "1"),
            (Delete, "gone", "1"),
        ];
        for (kind, key, value) in made {
            changes.add(kind, value.as_bytes(), |bytes| bytes.extend_from_slice(key.as_bytes()));
        }
        let mut batch = Batch::default();
        changes.finish(&mut batch);
        let written = [
            Written::Delete(Table::Index, b"gone"),
            Written::Put(Table::Index, b"moved", b"2"),
            Written::Put(Table::Index, b"new", b"2"),
            Written::Delete(Table::Index, b"old"),
            Written::Put(Table::Index, b"twice", b"2"),
        ];
        assert!(batch.changes().eq(written));
    }
}
