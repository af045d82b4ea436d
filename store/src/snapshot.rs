//! Snapshots: a machine's rows as checksummed chunks, and their installation on another replica.
//!
//! Export walks a consistent view in key order, so memory stays bounded and a broken transfer can go
//! on behind any row, also over another view of the same state. Garbage stays behind, but for a row here and there by
//! which a chunk tells how far it came. Installation is not one atomic step, so it leaves a durable marker first:
//! whoever finds the marker after a crash starts the installation over.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::codec;
use crate::engine::{Batch, Engine, Fault, KeyRange, Read, Table};
use crate::ids::GroupId;
use crate::machine::{self, MetaTag};
use crate::partition::Garbage;

/// Rows of a chunk, in table and key order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Its place in the snapshot, from 0.
    pub number: u32,
    /// Table, key, value.
    pub rows: Vec<ChunkRow>,
    /// True for the last chunk.
    pub last: bool,
}

/// One row of a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkRow {
    /// The table.
    pub table: Table,
    /// The key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// The value.
    #[serde(with = "serde_bytes")]
    pub value: Vec<u8>,
}

/// How much of a snapshot its receiver has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// So many chunks.
    pub chunks: u32,
    /// The last row in them.
    pub last_row: Option<RowKey>,
    /// True if nothing is missing.
    pub complete: bool,
}

/// Names a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowKey {
    /// The table.
    pub table: Table,
    /// The key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
}

impl Received {
    /// Counts the next chunk in.
    pub fn add(&mut self, chunk: &Chunk) {
        self.chunks += 1;
        self.complete = chunk.last;
        if let Some(ChunkRow { table, key, .. }) = chunk.rows.last() {
            self.last_row = Some(RowKey { table: *table, key: key.clone() });
        }
    }
}

/// Bytes that are not a chunk.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a snapshot chunk is damaged: {0}")]
pub struct DamagedChunk(&'static str);

const CHECKSUM_BYTES: usize = 4;

impl Chunk {
    /// Checksum, then the encoded chunk.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; CHECKSUM_BYTES];
        codec::encode_into(&mut bytes, self);
        let checksum = crc32c::crc32c(&bytes[CHECKSUM_BYTES..]);
        bytes[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    /// Reads and verifies an encoded chunk.
    pub fn decode(bytes: &[u8]) -> Result<Self, DamagedChunk> {
        let (checksum, body) = bytes.split_first_chunk().ok_or(DamagedChunk("it is too short"))?;
        if u32::from_be_bytes(*checksum) != crc32c::crc32c(body) {
            return Err(DamagedChunk("its checksum is wrong"));
        }
        codec::decode(body).map_err(|_| DamagedChunk("it does not decode"))
    }
}

/// So many bytes of garbage a chunk passes at most for each that it may hold.
const PASSED_PER_SENT: usize = 8;

/// Walks a view, chunk by chunk.
pub struct Exporter {
    view: Arc<dyn Read>,
    ranges: Vec<KeyRange>,
    garbage: Garbage,
}

impl Exporter {
    /// Exports the meta rows of `group` and the rows of `ranges`.
    pub fn new(view: Arc<dyn Read>, group: GroupId, ranges: Vec<KeyRange>) -> Self {
        let mut all = vec![machine::meta_range(group)];
        all.extend(ranges);
        // If this cannot be read, all is sent: reading the rows tells why.
        let garbage = Garbage::load_of(&*view, group).unwrap_or_default();
        Self { view, ranges: all, garbage }
    }

    /// The chunk behind what was received, of about so many bytes.
    pub fn chunk(&self, received: &Received, bytes_max: usize) -> Result<Chunk, Fault> {
        let (mut rows, mut bytes, mut passed) = (Vec::new(), 0, 0);
        let number = received.chunks;
        for range in self.ranges_behind(received.last_row.as_ref())? {
            for row in self.view.scan(&range) {
                let (key, value) = row?;
                if bytes >= bytes_max && !rows.is_empty() {
                    return Ok(Chunk { number, rows, last: false });
                }
                let row_bytes = key.len() + value.len();
                if passed < bytes_max.saturating_mul(PASSED_PER_SENT)
                    && self.garbage.holds(range.table, &key, &value)
                {
                    passed += row_bytes;
                    continue;
                }
                bytes += row_bytes;
                rows.push(ChunkRow { table: range.table, key, value });
            }
        }
        Ok(Chunk { number, rows, last: true })
    }

    fn ranges_behind(&self, last_row: Option<&RowKey>) -> Result<Vec<KeyRange>, Fault> {
        let Some(RowKey { table, key }) = last_row else { return Ok(self.ranges.clone()) };
        let holds = |range: &KeyRange| range.table == *table && range.contains(key);
        let here = self.ranges.iter().position(holds);
        let here =
            here.ok_or_else(|| Fault::corrupt("snapshot", "the receiver has rows of another"))?;
        let mut behind = self.ranges[here..].to_vec();
        behind[0] = behind[0].clone().after(key);
        Ok(behind)
    }
}

/// Replaces a machine's rows by those of a snapshot.
pub struct Installer {
    engine: Arc<dyn Engine>,
    group: GroupId,
    next: u32,
    complete: bool,
}

impl Installer {
    /// The installation a crash interrupted, by the name it was begun with.
    pub fn interrupted(engine: &dyn Engine, group: GroupId) -> Result<Option<String>, Fault> {
        machine::read_meta(engine, group, MetaTag::Installing)
    }

    /// Leaves the marker, then removes the rows that are there.
    pub fn begin(
        engine: Arc<dyn Engine>,
        group: GroupId,
        ranges: Vec<KeyRange>,
        name: &str,
    ) -> Result<Self, Fault> {
        let mut marker = Batch::default();
        machine::put_meta(&mut marker, group, MetaTag::Installing, &name.to_string());
        engine.write(marker)?;
        engine.flush()?;
        let mut clearing = Batch::default();
        for range in ranges {
            clearing.delete_range(&range);
        }
        for tag in [
            MetaTag::State,
            MetaTag::Membership,
            MetaTag::Index,
            MetaTag::IndexBuild,
            MetaTag::UniqueKeys,
            MetaTag::Cleared,
        ] {
            clearing.delete(Table::Meta, &machine::meta_key(group, tag));
        }
        engine.write(clearing)?;
        Ok(Self { engine, group, next: 0, complete: false })
    }

    /// Writes the next chunk's rows.
    pub fn write(&mut self, chunk: Chunk) -> Result<(), Fault> {
        if chunk.number != self.next || self.complete {
            return Err(Fault::corrupt("snapshot", "its chunks are out of order"));
        }
        self.next += 1;
        self.complete = chunk.last;
        let marker = machine::meta_key(self.group, MetaTag::Installing);
        let mut batch = Batch::default();
        for ChunkRow { table, key, value } in chunk.rows {
            if table != Table::Meta || key != marker {
                batch.put(table, &key, &value);
            }
        }
        self.engine.write(batch)
    }

    /// Takes the marker away, once everything is durable.
    pub fn finish(self) -> Result<(), Fault> {
        if !self.complete {
            return Err(Fault::corrupt("snapshot", "its last chunk is missing"));
        }
        let mut batch = Batch::default();
        batch.delete(Table::Meta, &machine::meta_key(self.group, MetaTag::Installing));
        self.engine.write(batch)?;
        self.engine.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::MemoryEngine;

    const GROUP: GroupId = GroupId(7);

    fn items() -> Vec<KeyRange> {
        vec![
            KeyRange::prefix(Table::Items, vec![1]),
            KeyRange::prefix(Table::Feed, vec![1]),
            KeyRange::prefix(Table::Expiry, vec![1]),
        ]
    }

    fn engine(rows: &[(Table, Vec<u8>, Vec<u8>)]) -> MemoryEngine {
        let engine = MemoryEngine::new();
        let mut batch = Batch::default();
        for (table, key, value) in rows {
            batch.put(*table, key, value);
        }
        machine::put_meta(&mut batch, GROUP, MetaTag::State, &42_u32);
        engine.write(batch).unwrap();
        engine.flush().unwrap();
        engine
    }

    fn contents(engine: &MemoryEngine) -> Vec<(Vec<u8>, Vec<u8>)> {
        let ranges = Table::ALL.map(|table| KeyRange::prefix(table, Vec::new()));
        ranges.iter().flat_map(|range| engine.scan(range).map(Result::unwrap)).collect()
    }

    fn export(engine: &MemoryEngine, bytes_max: usize) -> Vec<Chunk> {
        let exporter = Exporter::new(engine.view(), GROUP, items());
        let (mut received, mut chunks) = (Received::default(), Vec::new());
        while !received.complete {
            let chunk = exporter.chunk(&received, bytes_max).unwrap();
            received.add(&chunk);
            chunks.push(chunk);
        }
        chunks
    }

    fn install(engine: &MemoryEngine, chunks: Vec<Chunk>) -> Result<(), Fault> {
        let target: Arc<dyn Engine> = Arc::new(engine.clone());
        let mut installer = Installer::begin(target, GROUP, items(), "s")?;
        chunks.into_iter().try_for_each(|chunk| installer.write(chunk))?;
        installer.finish()
    }

    #[test]
    fn damaged_chunks_are_noticed() {
        let chunk = Chunk { number: 0, rows: Vec::new(), last: true };
        let good = chunk.encode();
        assert_eq!(Chunk::decode(&good), Ok(chunk));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Chunk::decode(&bad).is_err(), "bit {bit}");
        }
        assert!(Chunk::decode(&[]).is_err());
    }

    #[test]
    fn a_crash_in_the_middle_leaves_the_marker() {
        let source = engine(&[(Table::Items, vec![1, 1], vec![1])]);
        let chunks = export(&source, 1);
        for crash_after in 0..=chunks.len() {
            let target = engine(&[(Table::Items, vec![1, 9], vec![9])]);
            let shared: Arc<dyn Engine> = Arc::new(target.clone());
            let mut installer = Installer::begin(shared, GROUP, items(), "file").unwrap();
            for chunk in chunks.iter().take(crash_after) {
                installer.write(chunk.clone()).unwrap();
            }
            target.crash();
            let name = Installer::interrupted(&target, GROUP).unwrap();
            assert_eq!(name.as_deref(), Some("file"), "after {crash_after} chunks");
            install(&target, chunks.clone()).unwrap();
            assert_eq!(contents(&target), contents(&source));
            assert_eq!(Installer::interrupted(&target, GROUP).unwrap(), None);
        }
    }

    #[test]
    fn chunks_out_of_order_or_missing_are_faults() {
        let source =
            engine(&[(Table::Items, vec![1, 1], vec![1]), (Table::Items, vec![1, 2], vec![2])]);
        let chunks = export(&source, 1);
        assert!(chunks.len() > 2);
        let target = MemoryEngine::new();
        assert!(install(&target, chunks[1..].to_vec()).is_err());
        assert!(install(&target, chunks[..chunks.len() - 1].to_vec()).is_err());
    }

    fn rows() -> impl Strategy<Value = Vec<(Table, Vec<u8>, Vec<u8>)>> {
        let table = prop_oneof![Just(Table::Items), Just(Table::Feed), Just(Table::Expiry)];
        let row = (table, any::<u16>(), prop::collection::vec(any::<u8>(), 0..20));
        let row = row.prop_map(|(table, key, value)| {
            (table, [&[1][..], &key.to_be_bytes()].concat(), value)
        });
        prop::collection::vec(row, 0..40)
    }

    proptest! {
        #[test]
        fn what_is_exported_is_installed_whatever_the_chunk_size(
            source in rows(), target in rows(), bytes_max in 1_usize..200
        ) {
            let (source, target) = (engine(&source), engine(&target));
            let chunks = export(&source, bytes_max);
            prop_assert!(chunks.iter().rev().skip(1).all(|chunk| !chunk.last));
            install(&target, chunks).unwrap();
            prop_assert_eq!(contents(&target), contents(&source));
        }
    }
}
