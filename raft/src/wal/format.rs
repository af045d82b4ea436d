//! How the log lies on disk.
//!
//! ```text
//! segment file = header · batch · batch · …  · whatever the file held before
//! header  = magic u64 · segment number u64 · file length u64 · sequence number of the first batch u64
//!           · version u32 · checksum of the 36 bytes before it u32 · zeros to 64 bytes
//! batch   = magic u32 · checksum of the next 24 bytes u32
//!           · segment number u64 · sequence number u64 · body length u32 · checksum of the body u32
//!           · body, padded with zeros to a multiple of 8
//! body    = record · record · …
//! record  = length u32 · checksum u32 · tag u8 · group u64 · fields
//! ```
//!
//! A batch is what is written together and covered by one `fdatasync`. Batches are numbered without gaps over all
//! segments, and no batch is written before its predecessor is synced: so a damaged batch with a
//! sound one behind it is corruption, and a damaged one with nothing behind it is a torn tail.
//! A segment is begun once all batches before it are synced: its header says which those are, though it may hold no
//! batch itself. A file has its length, and its header is synced, before it gets the name of a segment: so a shorter
//! one was cut.
//! Recycled files hold old batches; the segment number in their headers gives them away.
//! All integers are little-endian.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ephemeris_store::ids::GroupId;
use ephemeris_store::machine::LogId;

use crate::types::{LogEntry, Payload, Vote};

pub(super) const SEGMENT_HEADER_BYTES: usize = 64;
pub(super) const BATCH_HEADER_BYTES: usize = 32;
const RECORD_HEADER_BYTES: usize = 8;
const ALIGNMENT: usize = 8;

const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"EPHEWAL\xFF");
/// Not UTF-8, so that no JSON document can contain it.
const BATCH_MAGIC: u32 = u32::from_le_bytes([0xFF, b'W', 0xFE, b'B']);
const VERSION: u32 = 3;
/// Bytes of a header before its checksum.
const CHECKED_BYTES: usize = 36;

/// A fact about a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// An entry appended behind the last.
    Entry(LogEntry),
    /// A copy of a live entry, so that the segment it lay in can go.
    Moved(LogEntry),
    /// A vote.
    Vote(Vote),
    /// What is known to be committed.
    Committed(LogId),
    /// Entries behind this index are void; all of them if there is no index.
    Truncated(Option<u64>),
    /// Entries up to this one are no longer needed.
    Purged(LogId),
    /// The replica is gone.
    Dropped,
}

const TAG_ENTRY: u8 = 1;
const TAG_MOVED: u8 = 2;
const TAG_VOTE: u8 = 3;
const TAG_COMMITTED: u8 = 4;
const TAG_TRUNCATED: u8 = 5;
const TAG_PURGED: u8 = 6;
const TAG_DROPPED: u8 = 7;

const PAYLOAD_BLANK: u8 = 0;
const PAYLOAD_MEMBERSHIP: u8 = 1;
const PAYLOAD_COMMAND: u8 = 2;

/// What is wrong with bytes that should be part of the log.
pub(super) type Damage = &'static str;

/// The header of a segment in a file of so many bytes, whose first batch is number `first`.
pub(super) fn segment_header(
    number: u64,
    file_bytes: u64,
    first: u64,
) -> [u8; SEGMENT_HEADER_BYTES] {
    let mut header = Vec::with_capacity(SEGMENT_HEADER_BYTES);
    header.put_u64_le(SEGMENT_MAGIC);
    header.put_u64_le(number);
    header.put_u64_le(file_bytes);
    header.put_u64_le(first);
    header.put_u32_le(VERSION);
    header.put_u32_le(crc32c::crc32c(&header));
    header.resize(SEGMENT_HEADER_BYTES, 0);
    header.try_into().expect("it was filled up")
}

/// Checks what a file of a segment begins with; returns the number of its first batch.
pub(super) fn read_segment_header(file: &[u8], number: u64) -> Result<u64, Damage> {
    let Some(mut fields) = file.get(..SEGMENT_HEADER_BYTES) else {
        return Err("the file was cut: it ends within the segment header");
    };
    let (magic, found) = (fields.get_u64_le(), fields.get_u64_le());
    let (file_bytes, first, version) =
        (fields.get_u64_le(), fields.get_u64_le(), fields.get_u32_le());
    if fields.get_u32_le() != crc32c::crc32c(&file[..CHECKED_BYTES]) {
        return Err("the segment header is damaged");
    }
    if magic != SEGMENT_MAGIC {
        return Err("this is not a log segment");
    }
    if version != VERSION {
        return Err("the segment was written by another version of Ephemeris");
    }
    if found != number {
        return Err("the segment header names another segment than the file name");
    }
    if file_bytes != file.len() as u64 {
        return Err("the file was cut, or has grown: it has another length than when it was made");
    }
    Ok(first)
}

/// The header of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchHeader {
    pub(super) segment: u64,
    pub(super) sequence: u64,
    pub(super) body_bytes: u32,
    body_checksum: u32,
}

impl BatchHeader {
    /// The header at the start of `bytes`, if there is a sound one.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = bytes.get(..BATCH_HEADER_BYTES)?;
        if fields.get_u32_le() != BATCH_MAGIC || fields.get_u32_le() != crc32c::crc32c(fields) {
            return None;
        }
        Some(Self {
            segment: fields.get_u64_le(),
            sequence: fields.get_u64_le(),
            body_bytes: fields.get_u32_le(),
            body_checksum: fields.get_u32_le(),
        })
    }

    /// Bytes the whole batch takes, padding included.
    pub(super) fn batch_bytes(&self) -> usize {
        padded(BATCH_HEADER_BYTES + self.body_bytes as usize)
    }

    pub(super) fn matches(&self, body: &[u8]) -> bool {
        crc32c::crc32c(body) == self.body_checksum
    }
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// True if a batch of this segment, numbered `sequence` or above, starts anywhere in `bytes`.
pub(super) fn contains_batch(bytes: &[u8], segment: u64, sequence: u64) -> bool {
    (0..bytes.len()).step_by(ALIGNMENT).any(|at| {
        BatchHeader::read(&bytes[at..])
            .is_some_and(|header| header.segment == segment && header.sequence >= sequence)
    })
}

/// Room that is kept for later batches, in bytes: as much as many small entries together take.
const BATCH_ROOM_KEPT: usize = 256 << 10;

/// Builds one batch after the other.
pub(super) struct BatchWriter {
    bytes: BytesMut,
}

impl BatchWriter {
    pub(super) fn new() -> Self {
        let mut bytes = BytesMut::with_capacity(4096);
        bytes.put_bytes(0, BATCH_HEADER_BYTES);
        Self { bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.len() == BATCH_HEADER_BYTES
    }

    /// Bytes so far, header included.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Appends a record; returns where it starts within the batch and how long it is.
    pub(super) fn put(&mut self, group: GroupId, record: &Record) -> (u32, u32) {
        let start = self.bytes.len();
        self.bytes.put_bytes(0, RECORD_HEADER_BYTES);
        put_record(&mut self.bytes, group, record);
        let length = self.bytes.len() - start - RECORD_HEADER_BYTES;
        let checksum = crc32c::crc32c(&self.bytes[start + RECORD_HEADER_BYTES..]);
        let length = u32::try_from(length).expect("records stay far below 4 GiB");
        self.bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
        self.bytes[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
        let bytes = u32::try_from(self.bytes.len() - start).expect("records stay far below 4 GiB");
        let start = u32::try_from(start).expect("batches stay far below 4 GiB");
        (start, bytes)
    }

    /// Begins anew.
    pub(super) fn clear(&mut self) {
        if self.bytes.capacity() > BATCH_ROOM_KEPT {
            *self = Self::new();
        }
        self.bytes.truncate(BATCH_HEADER_BYTES);
    }

    /// The finished batch.
    pub(super) fn finish(&mut self, segment: u64, sequence: u64) -> &[u8] {
        let body = &self.bytes[BATCH_HEADER_BYTES..];
        let body_bytes = u32::try_from(body.len()).expect("batches stay far below 4 GiB");
        let body_checksum = crc32c::crc32c(body);
        let mut header = Vec::with_capacity(BATCH_HEADER_BYTES);
        header.put_u32_le(BATCH_MAGIC);
        header.put_u32_le(0);
        header.put_u64_le(segment);
        header.put_u64_le(sequence);
        header.put_u32_le(body_bytes);
        header.put_u32_le(body_checksum);
        let checksum = crc32c::crc32c(&header[8..]);
        header[4..8].copy_from_slice(&checksum.to_le_bytes());
        self.bytes[..BATCH_HEADER_BYTES].copy_from_slice(&header);
        self.bytes.put_bytes(0, padded(self.bytes.len()) - self.bytes.len());
        &self.bytes
    }
}

fn put_record(bytes: &mut BytesMut, group: GroupId, record: &Record) {
    let tag = match record {
        Record::Entry(_) => TAG_ENTRY,
        Record::Moved(_) => TAG_MOVED,
        Record::Vote(_) => TAG_VOTE,
        Record::Committed(_) => TAG_COMMITTED,
        Record::Truncated(_) => TAG_TRUNCATED,
        Record::Purged(_) => TAG_PURGED,
        Record::Dropped => TAG_DROPPED,
    };
    bytes.put_u8(tag);
    bytes.put_u64_le(group.0);
    match record {
        Record::Entry(entry) | Record::Moved(entry) => {
            put_log_id(bytes, entry.id);
            match &entry.payload {
                Payload::Blank => bytes.put_u8(PAYLOAD_BLANK),
                Payload::Membership(payload) => {
                    bytes.put_u8(PAYLOAD_MEMBERSHIP);
                    bytes.put_slice(payload);
                }
                Payload::Command(payload) => {
                    bytes.put_u8(PAYLOAD_COMMAND);
                    bytes.put_slice(payload);
                }
            }
        }
        Record::Vote(vote) => {
            bytes.put_u64_le(vote.term);
            bytes.put_u64_le(vote.replica);
            bytes.put_u8(u8::from(vote.committed));
        }
        Record::Committed(id) | Record::Purged(id) => put_log_id(bytes, *id),
        Record::Truncated(after) => {
            bytes.put_u8(u8::from(after.is_some()));
            bytes.put_u64_le(after.unwrap_or_default());
        }
        Record::Dropped => {}
    }
}

fn put_log_id(bytes: &mut BytesMut, id: LogId) {
    bytes.put_u64_le(id.term);
    bytes.put_u64_le(id.index);
}

/// A record found in a batch.
#[derive(Debug)]
pub(super) struct FoundRecord {
    pub(super) group: GroupId,
    pub(super) record: Record,
    /// Where it starts, from the start of the body.
    pub(super) offset: u32,
    pub(super) bytes: u32,
}

/// Takes a body apart.
pub(super) fn read_body(body: &Bytes) -> Result<Vec<FoundRecord>, Damage> {
    let mut records = Vec::new();
    let mut rest = body.clone();
    while rest.has_remaining() {
        let offset = u32::try_from(body.len() - rest.len()).expect("bodies stay below 4 GiB");
        let (group, record, bytes) = read_record(&mut rest)?;
        records.push(FoundRecord { group, record, offset, bytes });
    }
    Ok(records)
}

/// Reads one record from the front, checking its checksum.
pub(super) fn read_record(rest: &mut Bytes) -> Result<(GroupId, Record, u32), Damage> {
    if rest.remaining() < RECORD_HEADER_BYTES {
        return Err("a record is cut short");
    }
    let (length, checksum) = (rest.get_u32_le(), rest.get_u32_le());
    if rest.remaining() < length as usize {
        return Err("a record is longer than what holds it");
    }
    let mut fields = rest.split_to(length as usize);
    let bytes = RECORD_HEADER_BYTES + fields.len();
    let bytes = u32::try_from(bytes).expect("records stay far below 4 GiB");
    if crc32c::crc32c(&fields) != checksum {
        return Err("a record has a wrong checksum");
    }
    let (group, record) = read_fields(&mut fields).ok_or("a record is malformed")?;
    Ok((group, record, bytes))
}

fn read_fields(fields: &mut Bytes) -> Option<(GroupId, Record)> {
    let tag = fields.try_get_u8().ok()?;
    let group = GroupId(fields.try_get_u64_le().ok()?);
    let record = match tag {
        TAG_ENTRY => Record::Entry(read_entry(fields)?),
        TAG_MOVED => Record::Moved(read_entry(fields)?),
        TAG_VOTE => Record::Vote(Vote {
            term: fields.try_get_u64_le().ok()?,
            replica: fields.try_get_u64_le().ok()?,
            committed: fields.try_get_u8().ok()? == 1,
        }),
        TAG_COMMITTED => Record::Committed(read_log_id(fields)?),
        TAG_TRUNCATED => {
            let some = fields.try_get_u8().ok()? == 1;
            let after = fields.try_get_u64_le().ok()?;
            Record::Truncated(some.then_some(after))
        }
        TAG_PURGED => Record::Purged(read_log_id(fields)?),
        TAG_DROPPED => Record::Dropped,
        _ => return None,
    };
    (!fields.has_remaining()).then_some((group, record))
}

fn read_log_id(fields: &mut Bytes) -> Option<LogId> {
    let term = fields.try_get_u64_le().ok()?;
    let index = fields.try_get_u64_le().ok()?;
    Some(LogId { term, index })
}

fn read_entry(fields: &mut Bytes) -> Option<LogEntry> {
    let id = read_log_id(fields)?;
    let kind = fields.try_get_u8().ok()?;
    let payload = fields.split_to(fields.len());
    let payload = match kind {
        PAYLOAD_BLANK if payload.is_empty() => Payload::Blank,
        PAYLOAD_MEMBERSHIP => Payload::Membership(payload),
        PAYLOAD_COMMAND => Payload::Command(payload),
        _ => return None,
    };
    Some(LogEntry { id, payload })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn records() -> Vec<(GroupId, Record)> {
        let id = LogId { term: 3, index: 9 };
        let entry = |payload| LogEntry { id, payload };
        vec![
            (GroupId(1), Record::Entry(entry(Payload::Command(Bytes::from_static(b"command"))))),
            (GroupId(1), Record::Moved(entry(Payload::Membership(Bytes::from_static(b"m"))))),
            (GroupId(2), Record::Entry(entry(Payload::Blank))),
            (GroupId(2), Record::Vote(Vote { term: 7, replica: 1 << 32, committed: true })),
            (GroupId(2), Record::Committed(id)),
            (GroupId(3), Record::Truncated(None)),
            (GroupId(3), Record::Truncated(Some(4))),
            (GroupId(3), Record::Purged(id)),
            (GroupId(4), Record::Dropped),
        ]
    }

    fn batch() -> BytesMut {
        let mut writer = BatchWriter::new();
        for (group, record) in records() {
            writer.put(group, &record);
        }
        BytesMut::from(writer.finish(5, 77))
    }

    #[test]
    fn a_batch_is_not_told_by_those_before_it() {
        let mut writer = BatchWriter::new();
        for room in [100, 2 * BATCH_ROOM_KEPT] {
            let payload = Payload::Command(vec![7; room].into());
            let entry = LogEntry { id: LogId { term: 3, index: 8 }, payload };
            writer.put(GroupId(1), &Record::Entry(entry));
            writer.finish(5, 76);
            writer.clear();
            assert!(writer.is_empty());
            assert!(writer.bytes.capacity() <= BATCH_ROOM_KEPT);
            for (group, record) in records() {
                writer.put(group, &record);
            }
            assert_eq!(writer.finish(5, 77), &batch()[..]);
            writer.clear();
        }
    }

    #[test]
    fn a_batch_comes_apart_as_it_was_put_together() {
        let bytes = batch().freeze();
        let header = BatchHeader::read(&bytes).unwrap();
        assert_eq!((header.segment, header.sequence), (5, 77));
        assert_eq!(header.batch_bytes(), bytes.len());
        let body = bytes.slice(BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + header.body_bytes as usize);
        assert!(header.matches(&body));
        let found = read_body(&body).unwrap();
        let found: Vec<_> = found.into_iter().map(|found| (found.group, found.record)).collect();
        assert_eq!(found, records());
    }

    #[test]
    fn every_flipped_bit_of_a_batch_is_noticed() {
        let good = batch();
        let header = BatchHeader::read(&good).unwrap();
        let used = BATCH_HEADER_BYTES + header.body_bytes as usize;
        for bit in 0..used * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let sound = BatchHeader::read(&bad)
                .is_some_and(|header| header.matches(&bad[BATCH_HEADER_BYTES..used]));
            assert!(!sound, "bit {bit}");
        }
    }

    #[test]
    fn segment_headers_know_their_number_and_where_they_begin() {
        let header = segment_header(9, SEGMENT_HEADER_BYTES as u64, 77);
        assert_eq!(read_segment_header(&header, 9), Ok(77));
        assert!(read_segment_header(&header, 8).is_err());
        for bit in 0..8 * (CHECKED_BYTES + 4) {
            let mut bad = header;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read_segment_header(&bad, 9).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_later_batch_is_found_wherever_it_starts() {
        let mut bytes = vec![0xAB; 64];
        bytes.extend_from_slice(&batch());
        assert!(contains_batch(&bytes, 5, 77));
        assert!(!contains_batch(&bytes, 5, 78), "an earlier one does not count");
        assert!(!contains_batch(&bytes, 6, 77), "nor one of another segment");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = BatchHeader::read(&bytes);
            let _ = read_body(&Bytes::from(bytes));
        }
    }
}
