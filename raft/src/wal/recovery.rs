//! Reads the log at start: what was acknowledged is there, or we refuse to go on.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use ephemeris_store::ids::GroupId;
use ephemeris_store::machine::LogId;
use tracing::{info, warn};

use super::format::{
    BATCH_HEADER_BYTES, BatchHeader, Record, SEGMENT_HEADER_BYTES, contains_batch, read_body,
    read_segment_header,
};
use super::index::{Index, Location, Slot};
use super::writer::Position;
use super::{Segment, WalError};
use crate::disk::{Disk, DiskFile};
use crate::types::Vote;

/// Suffix of segment files; spare ones have another.
pub(super) const SEGMENT_SUFFIX: &str = ".log";
/// Suffix of files that will become segments.
pub(super) const SPARE_SUFFIX: &str = ".spare";
/// A file that is being made for the next segment.
pub(super) const NEW_NAME: &str = "new.tmp";

/// The number of the first segment of a log.
pub(super) const FIRST_SEGMENT: u64 = 1;

pub(super) fn segment_name(number: u64) -> String {
    format!("{number:016x}{SEGMENT_SUFFIX}")
}

fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SEGMENT_SUFFIX).filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

pub(super) struct Recovered {
    pub(super) index: Index,
    pub(super) segments: BTreeMap<u64, Segment>,
    pub(super) position: Position,
}

/// What the records say of one group, replayed in order.
#[derive(Default)]
struct Replay {
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    entries: BTreeMap<u64, (LogId, usize, Location)>,
}

/// A place in the log, for messages.
struct Place<'d> {
    disk: &'d dyn Disk,
    segment: u64,
    offset: u64,
}

impl Place<'_> {
    fn corrupt(&self, detail: &str) -> WalError {
        WalError::Corrupt {
            directory: self.disk.describe(),
            file: segment_name(self.segment),
            offset: self.offset,
            detail: detail.to_string(),
        }
    }
}

/// Where a segment's sound batches end.
struct End {
    segment: u64,
    file: SegmentFile,
    /// Where the last batch starts.
    last: u64,
    /// Where it ends.
    offset: u64,
    /// Where the file does.
    capacity: u64,
}

pub(super) fn recover(disk: &dyn Disk) -> Result<Recovered, WalError> {
    let names = disk.list()?;
    if names.iter().any(|name| name == NEW_NAME) {
        disk.remove(NEW_NAME)?;
    }
    let spares = names.iter().filter(|name| name.ends_with(SPARE_SUFFIX)).cloned().collect();
    let numbers: Vec<u64> = names.iter().filter_map(|name| segment_number(name)).collect();
    let mut groups = BTreeMap::new();
    let mut segments = BTreeMap::new();
    let mut next = None;
    let mut end: Option<End> = None;
    for (at, &number) in numbers.iter().enumerate() {
        let file = disk.open(&segment_name(number))?;
        let last = at + 1 == numbers.len();
        let before =
            end.as_ref().map(|end| Place { disk, segment: end.segment, offset: end.offset });
        if before.as_ref().is_some_and(|before| before.segment + 1 != number) {
            let place = Place { disk, segment: number - 1, offset: 0 };
            return Err(place.corrupt("the segment is missing"));
        }
        let scan = Scan { disk, number, file: &file, last, before };
        let Some(found) = scan.run(&mut next, &mut groups)? else {
            remove_unfinished(disk, number)?;
            break;
        };
        end = Some(found);
        segments.insert(number, Segment::new(file));
    }
    let index = build_index(disk, groups, &mut segments)?;
    // A damaged log stays as it is.
    if let Some(end) = &end {
        end.make_durable(disk)?;
    }
    let current = end.map(|end| (end.segment, end.file, end.offset, end.capacity));
    let position = Position { current, sequence: next.unwrap_or(0), spares };
    info!(segments = segments.len(), "read the write-ahead log");
    Ok(Recovered { index, segments, position })
}

impl End {
    /// Makes the last batch durable before anybody relies on it.
    ///
    /// The process before us may have ended, or been told that the sync failed, after it wrote the
    /// batch: then we read it from the kernel's memory, or the disk's, and no platter has it. It is written
    /// again because after a failed sync the kernel takes it for written, and would not try.
    fn make_durable(&self, disk: &dyn Disk) -> io::Result<()> {
        let bytes = usize::try_from(self.offset - self.last).map_err(io::Error::other)?;
        let mut batch = vec![0; bytes];
        self.file.read_at(self.last, &mut batch)?;
        self.file.write_at(self.last, &batch)?;
        self.file.sync()?;
        disk.sync_directory()
    }
}

/// Removes the last segment if a crash came before its first batch was synced.
///
/// It must not be gone on with: the states of all groups, which every segment begins with, may be missing in it.
fn remove_unfinished(disk: &dyn Disk, number: u64) -> Result<(), WalError> {
    let file = segment_name(number);
    info!(file, "the last log segment was never finished; it is made anew");
    disk.remove(&file)?;
    Ok(disk.sync_directory()?)
}

/// Reads one segment.
struct Scan<'d> {
    disk: &'d dyn Disk,
    number: u64,
    file: &'d SegmentFile,
    last: bool,
    /// Where the segment before ended.
    before: Option<Place<'d>>,
}

impl Scan<'_> {
    /// Replays the segment's batches; returns where they end. None if it is the last segment and
    /// holds no batch. `next` is the number of the batch to come, if a segment came before.
    fn run(
        &self,
        next: &mut Option<u64>,
        groups: &mut BTreeMap<GroupId, Replay>,
    ) -> Result<Option<End>, WalError> {
        let content = read_all(&**self.file)?;
        let first = read_segment_header(&content, self.number);
        let mut sequence = first.map_err(|damage| self.place(0).corrupt(damage))?;
        if let (Some(expected), Some(before)) = (*next, &self.before)
            && expected != sequence
        {
            let detail = format!(
                "batch {expected} is damaged or missing here, and the next segment begins with {sequence}"
            );
            return Err(before.corrupt(&detail));
        }
        let (mut last, mut offset) = (SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES);
        while let Some((header, body)) = self.batch_at(&content, offset, sequence) {
            self.replay(&body, offset + BATCH_HEADER_BYTES, groups)?;
            sequence += 1;
            last = offset;
            offset += header.batch_bytes();
        }
        *next = Some(sequence);
        // The header of the next segment, if there is one, tells whether a batch is damaged here.
        if self.last {
            self.check_tail(&content, offset, sequence)?;
            if offset == SEGMENT_HEADER_BYTES {
                return self.check_unfinished().map(|()| None);
            }
        }
        Ok(Some(self.end(last, offset, content.len())))
    }

    fn place(&self, offset: u64) -> Place<'_> {
        Place { disk: self.disk, segment: self.number, offset }
    }

    fn end(&self, last: usize, offset: usize, capacity: usize) -> End {
        End {
            segment: self.number,
            file: self.file.clone(),
            last: last as u64,
            offset: offset as u64,
            capacity: capacity as u64,
        }
    }

    /// A segment goes only once a later one holds a batch: one without a batch is not alone, unless
    /// it is the first ever.
    fn check_unfinished(&self) -> Result<(), WalError> {
        if self.before.is_some() || self.number == FIRST_SEGMENT {
            return Ok(());
        }
        Err(self.place(0).corrupt("the segment is empty, and those before it are missing"))
    }

    /// The sound batch at `offset`, if it is number `sequence`.
    fn batch_at(
        &self,
        content: &Bytes,
        offset: usize,
        sequence: u64,
    ) -> Option<(BatchHeader, Bytes)> {
        let header = BatchHeader::read(content.get(offset..)?)?;
        if header.segment != self.number || header.sequence != sequence {
            return None;
        }
        let start = offset + BATCH_HEADER_BYTES;
        let end = start + header.body_bytes as usize;
        if end > content.len() {
            return None;
        }
        let body = content.slice(start..end);
        header.matches(&body).then_some((header, body))
    }

    /// Nothing sound may lie behind the last sound batch but one: that would mean an acknowledged
    /// batch is damaged.
    fn check_tail(&self, content: &Bytes, offset: usize, expected: u64) -> Result<(), WalError> {
        let rest = content.get(offset..).unwrap_or_default();
        if contains_batch(rest, self.number, expected + 1) {
            let place = self.place(offset as u64);
            return Err(place.corrupt("a damaged batch with sound ones behind it"));
        }
        if BatchHeader::read(rest)
            .is_some_and(|header| header.segment == self.number && header.sequence == expected)
        {
            let file = segment_name(self.number);
            warn!(file, offset, "the log's last batch was torn by a crash and is forgotten");
        }
        Ok(())
    }

    fn replay(
        &self,
        body: &Bytes,
        start: usize,
        groups: &mut BTreeMap<GroupId, Replay>,
    ) -> Result<(), WalError> {
        let place = self.place(start as u64);
        for found in read_body(body).map_err(|damage| place.corrupt(damage))? {
            let offset = u64::from(found.offset) + start as u64;
            let location = Location {
                segment: self.number,
                offset: u32::try_from(offset).map_err(|_| place.corrupt("it is too long"))?,
                bytes: found.bytes,
            };
            let group = groups.entry(found.group).or_default();
            match found.record {
                Record::Entry(entry) => {
                    let bytes = entry.payload.bytes();
                    let clash = group.entries.insert(entry.id.index, (entry.id, bytes, location));
                    if clash.is_some() {
                        return Err(place.corrupt("an entry over one that was not truncated"));
                    }
                }
                Record::Moved(entry) => {
                    let bytes = entry.payload.bytes();
                    group.entries.insert(entry.id.index, (entry.id, bytes, location));
                }
                Record::Vote(vote) => group.vote = Some(vote),
                Record::Committed(id) => group.committed = Some(id),
                Record::Truncated(None) => group.entries.clear(),
                Record::Truncated(Some(after)) => {
                    group.entries.split_off(&(after + 1));
                }
                Record::Purged(upto) => {
                    group.purged = group.purged.max(Some(upto));
                    group.entries = group.entries.split_off(&(upto.index + 1));
                }
                Record::Dropped => {
                    groups.remove(&found.group);
                }
            }
        }
        Ok(())
    }
}

fn read_all(file: &dyn DiskFile) -> io::Result<Bytes> {
    let length = usize::try_from(file.length()?).map_err(io::Error::other)?;
    let mut content = vec![0; length];
    file.read_at(0, &mut content)?;
    Ok(Bytes::from(content))
}

fn build_index(
    disk: &dyn Disk,
    groups: BTreeMap<GroupId, Replay>,
    segments: &mut BTreeMap<u64, Segment>,
) -> Result<Index, WalError> {
    let mut index = Index::default();
    for (group, replay) in groups {
        if let Some(vote) = replay.vote {
            index.set_vote(group, vote);
        }
        if let Some(purged) = replay.purged {
            index.purge(group, purged);
        }
        if let Some(committed) = replay.committed {
            index.set_committed(group, committed);
        }
        let mut expected = replay.purged.map_or(0, |purged| purged.index + 1);
        for (id, bytes, location) in replay.entries.into_values() {
            if expected != id.index {
                let place = Place { disk, segment: location.segment, offset: 0 };
                let detail = format!("entries of group {group} before {id} are missing");
                return Err(place.corrupt(&detail));
            }
            expected = id.index + 1;
            index.push(group, Slot { id, bytes, cached: None, location: Some(location) });
            let segment = segments.get_mut(&location.segment);
            segment.expect("entries were read from known segments").hold(location);
        }
    }
    Ok(index)
}

/// A file for the writer, shared with readers.
pub(super) type SegmentFile = Arc<dyn DiskFile>;
