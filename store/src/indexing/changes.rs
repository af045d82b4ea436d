//! What becomes of index entries while a log entry is applied, gathered and written in key order.
//!
//! Neighbours cost an engine less than keys all over it, and a log entry may sweep thousands of items.
//! Versions that follow one another share most of their entries: what is taken away and put back
//! costs nothing.

use crate::engine::{Batch, Table};

/// Changes of entries, in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct EntryChanges {
    /// All keys, one behind the other.
    bytes: Vec<u8>,
    changes: Vec<Change>,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    kind: ChangeKind,
    start: usize,
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
    /// Adds a change of the entry whose key is written.
    pub(super) fn add(&mut self, kind: ChangeKind, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        self.changes.push(Change { kind, start, end: self.bytes.len() });
    }

    /// Takes back everything.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.changes.clear();
    }

    /// Writes what they come to, in the order of keys.
    pub(crate) fn finish(&mut self, batch: &mut Batch) {
        let bytes = &self.bytes;
        let key = |change: &Change| &bytes[change.start..change.end];
        // Changes of one entry keep their order.
        self.changes.sort_by(|a, b| key(a).cmp(key(b)));
        for changes in self.changes.chunk_by(|a, b| key(a) == key(b)) {
            let [first, .., last] = changes else {
                changes[0].write(bytes, batch);
                continue;
            };
            if first.kind == last.kind {
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
    fn write(self, bytes: &[u8], batch: &mut Batch) {
        let key = &bytes[self.start..self.end];
        match self.kind {
            ChangeKind::Put => batch.put(Table::Index, key, &[]),
            ChangeKind::Delete => batch.delete(Table::Index, key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Change as Written;

    #[test]
    fn entries_change_in_key_order_and_only_if_they_end_otherwise_than_they_began() {
        use ChangeKind::{Delete, Put};

        let mut changes = EntryChanges::default();
        let made = [
            (Put, "new"),
            (Delete, "old"),
            (Delete, "back"),
            (Put, "back"),
            (Put, "twice"),
            (Put, "twice"),
            (Put, "brief"),
            (Delete, "brief"),
            (Delete, "gone"),
            (Put, "gone"),
            (Delete, "gone"),
        ];
        for (kind, key) in made {
            changes.add(kind, |bytes| bytes.extend_from_slice(key.as_bytes()));
        }
        let mut batch = Batch::default();
        changes.finish(&mut batch);
        let written = [
            Written::Delete(Table::Index, b"gone"),
            Written::Put(Table::Index, b"new", b""),
            Written::Delete(Table::Index, b"old"),
            Written::Put(Table::Index, b"twice", b""),
        ];
        assert!(batch.changes().eq(written));
    }
}
