//! Writes what all groups queued: one batch, one sync, then everybody is told.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ephemeris_store::ids::GroupId;
use ephemeris_store::machine::LogId;
use tracing::{error, info};

use super::format::{BatchWriter, Record, SEGMENT_HEADER_BYTES, segment_header};
use super::index::Location;
use super::recovery::{FIRST_SEGMENT, NEW_NAME, SPARE_SUFFIX, SegmentFile, segment_name};
use super::{Callback, Inner, Operation, Segment, Shared, WalOptions, WriterTurn};
use crate::brief;
use crate::clock::monotonic;
use crate::disk::BLOCK_BYTES;
use crate::types::{LogEntry, Vote};

/// A batch is closed once it has reached this size.
const BATCH_BYTES_TARGET: usize = 4 << 20;
/// Recycled files kept for later segments: about as many as a flush of the state machines lets go.
const SPARES_MAX: usize = 4;
/// A batch is padded by so many bytes at most.
const PADDING_BYTES: u64 = 8;
/// After a batch of no more bytes, which took no longer, a worker of the runtime may write the next one: as long
/// as clients are few. Otherwise the workers have enough to do.
const BRIEF_BYTES_MAX: usize = 2 << 10;
const BRIEF_MAX: Duration = Duration::from_micros(500);
/// Entries are moved out of the oldest segment only if they fill no more than this part of it, or all that is
/// needed no more than this part of all segments; otherwise a flush of the state machines will soon let them go.
const MOVED_FRACTION: u64 = 8;

/// Where the log ends.
pub(super) struct Position {
    /// Segment number, its file, the offset where batches end, and the file's length. It holds a
    /// batch.
    pub(super) current: Option<(u64, SegmentFile, u64, u64)>,
    /// The number of the next batch.
    pub(super) sequence: u64,
    /// Names of files that can become segments.
    pub(super) spares: Vec<String>,
}

impl Position {
    /// Writes and syncs one batch; returns the segment, and where in it the batch starts.
    fn write(&mut self, batch: &mut BatchWriter, shared: &Shared) -> io::Result<(u64, u64)> {
        let (number, file, offset, _) = self.current.as_mut().expect("a segment was made room in");
        let bytes = batch.finish(*number, self.sequence);
        let begun = monotonic();
        file.write_at(*offset, bytes)?;
        file.sync()?;
        let is_brief = bytes.len() <= BRIEF_BYTES_MAX && begun.elapsed() <= BRIEF_MAX;
        let start = *offset;
        *offset += bytes.len() as u64;
        self.sequence += 1;
        let mut inner = shared.lock();
        shared.backlog.note_sync();
        inner.is_brief = is_brief;
        inner.stats.syncs += 1;
        inner.stats.bytes += bytes.len() as u64;
        Ok((*number, start))
    }
}

/// The writer. Exactly one of its `run` methods must be called, and runs until the log is closed.
pub struct Writer {
    shared: Arc<Shared>,
    position: Position,
    /// What the log on disk says of each group, to repeat it at the start of a segment.
    states: BTreeMap<GroupId, State>,
    batch: BatchWriter,
    /// What the open batch says of groups, in order. It may follow from the batch's other records, so it is
    /// not repeated before these are written.
    notes: Vec<(GroupId, Note)>,
    /// Entries in the open batch: where they will lie, relative to its start.
    placed: Vec<(GroupId, LogId, u32, u32)>,
    /// Places of entries that the open batch makes void.
    freed: Vec<Location>,
    /// Whom to tell when the open batch is durable.
    waiting: Vec<Callback>,
}

#[derive(Clone, Copy, Default)]
struct State {
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
}

/// A change of a group's state.
#[derive(Clone, Copy)]
enum Note {
    Vote(Vote),
    Committed(LogId),
    Purged(LogId),
    Dropped,
}

impl State {
    fn notes(self) -> impl Iterator<Item = Note> {
        let Self { vote, committed, purged } = self;
        let vote = vote.map(Note::Vote).into_iter();
        vote.chain(purged.map(Note::Purged)).chain(committed.map(Note::Committed))
    }
}

impl Note {
    fn record(self) -> Record {
        match self {
            Note::Vote(vote) => Record::Vote(vote),
            Note::Committed(id) => Record::Committed(id),
            Note::Purged(upto) => Record::Purged(upto),
            Note::Dropped => Record::Dropped,
        }
    }
}

/// How long a simulated disk takes for a batch. Clones share it; it may change at any time.
#[derive(Clone, Debug)]
pub struct SyncTime(Arc<AtomicU64>);

impl SyncTime {
    /// From the next batch on it takes this long.
    pub fn set(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.0.store(micros, Ordering::SeqCst);
    }

    fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::SeqCst))
    }
}

impl From<Duration> for SyncTime {
    fn from(duration: Duration) -> Self {
        let sync_time = Self(Arc::default());
        sync_time.set(duration);
        sync_time
    }
}

/// Whether the log goes on.
#[derive(PartialEq, Eq)]
pub(super) enum Next {
    Continue,
    Closed,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, position: Position) -> Self {
        let states = {
            let inner = shared.lock();
            let state = |group| State {
                vote: inner.index.vote(group),
                committed: inner.index.committed(group),
                purged: inner.index.bounds(group).purged,
            };
            inner.index.groups().map(|group| (group, state(group))).collect()
        };
        Self {
            shared,
            position,
            states,
            batch: BatchWriter::new(),
            notes: Vec::new(),
            placed: Vec::new(),
            freed: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// Runs on a thread of its own, until the log is closed or has failed.
    pub fn run(self) -> io::Result<()> {
        let shared = self.shared.clone();
        *shared.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(self);
        loop {
            let mut inner = shared.lock();
            while matches!(inner.turn, WriterTurn::Idle | WriterTurn::Writing) {
                inner = shared.wake.wait(inner).unwrap_or_else(PoisonError::into_inner);
            }
            drop(inner);
            if let Some(operations) = shared.take_queued() {
                shared.write(operations);
            }
            let inner = shared.lock();
            if inner.turn == WriterTurn::Over {
                let failed = inner.failed.clone();
                drop(inner);
                shared.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
                return failed.map_or(Ok(()), |reason| Err(io::Error::other(reason)));
            }
        }
    }

    /// Runs as a task, for simulations on one thread: every batch takes `sync_time`.
    pub async fn run_as_task(mut self, sync_time: impl Into<SyncTime>) -> io::Result<()> {
        let sync_time = sync_time.into();
        loop {
            let Some(operations) = self.shared.take_queued() else {
                self.shared.notify.notified().await;
                continue;
            };
            tokio::time::sleep(sync_time.get()).await;
            let next = self.process(operations)?;
            if next == Next::Closed {
                return Ok(());
            }
            self.shared.pass_turn();
        }
    }

    /// Writes operations; on an error the log has failed, and everybody who waits is told.
    pub(super) fn process(&mut self, operations: Vec<Operation>) -> io::Result<Next> {
        let mut rest = operations.into_iter();
        let result = self.try_process(&mut rest);
        if let Err(reason) = &result {
            error!(%reason, "the write-ahead log has failed");
            let queued = {
                let mut inner = self.shared.lock();
                inner.failed = Some(reason.to_string());
                self.shared.backlog.note_taken();
                self.shared.backlog.note_written();
                std::mem::take(&mut inner.queue)
            };
            let callbacks = rest.chain(queued).filter_map(Operation::into_callback);
            for callback in self.waiting.drain(..).chain(callbacks) {
                callback(Err(io::Error::new(reason.kind(), reason.to_string())));
            }
        }
        result
    }

    fn try_process(
        &mut self,
        operations: &mut impl Iterator<Item = Operation>,
    ) -> io::Result<Next> {
        let mut next = Next::Continue;
        for operation in operations {
            match operation {
                Operation::Append { group, entries, done } => self.append(group, entries, done)?,
                Operation::Vote { group, vote, done } => {
                    self.note(group, Note::Vote(vote));
                    self.waiting.push(done);
                }
                Operation::Truncate { group, after, freed } => {
                    self.batch.put(group, &Record::Truncated(after));
                    self.freed.extend(freed);
                }
                Operation::Purge { group, upto, freed } => {
                    self.note(group, Note::Purged(upto));
                    self.freed.extend(freed);
                }
                Operation::Drop { group, freed, done } => {
                    self.note(group, Note::Dropped);
                    self.freed.extend(freed);
                    self.waiting.push(done);
                }
                Operation::Close { done } => {
                    self.waiting.push(done);
                    next = Next::Closed;
                }
            }
        }
        self.write_batch()?;
        self.move_laggards()?;
        self.free_segments()?;
        Ok(next)
    }

    fn append(&mut self, group: GroupId, entries: Vec<LogEntry>, done: Callback) -> io::Result<()> {
        for entry in entries {
            if self.batch.bytes() >= BATCH_BYTES_TARGET {
                self.write_batch()?;
            }
            self.put_entry(group, entry.id, &Record::Entry(entry));
        }
        self.waiting.push(done);
        Ok(())
    }

    fn note(&mut self, group: GroupId, note: Note) {
        self.batch.put(group, &note.record());
        self.notes.push((group, note));
    }

    fn put_entry(&mut self, group: GroupId, id: LogId, record: &Record) {
        let (offset, bytes) = self.batch.put(group, record);
        self.placed.push((group, id, offset, bytes));
    }

    /// Commit indexes ride along: they are worth no sync of their own.
    fn put_committed(&mut self) {
        let moved: Vec<(GroupId, LogId)> = {
            let mut inner = self.shared.lock();
            let groups = std::mem::take(&mut inner.committed);
            groups
                .into_iter()
                .filter_map(|group| Some((group, inner.index.committed(group)?)))
                .collect()
        };
        for (group, committed) in moved {
            self.note(group, Note::Committed(committed));
        }
    }

    /// Writes and syncs the open batch, then tells everybody who waits for it.
    fn write_batch(&mut self) -> io::Result<()> {
        if self.batch.is_empty() && self.waiting.is_empty() {
            return Ok(());
        }
        self.put_committed();
        if !self.batch.is_empty() {
            self.make_room(self.batch.bytes() as u64)?;
            let (segment, offset) = self.position.write(&mut self.batch, &self.shared)?;
            self.batch.clear();
            self.settle(segment, offset);
        }
        for callback in self.waiting.drain(..) {
            callback(Ok(()));
        }
        Ok(())
    }

    /// Notes what the log says now, where the batch's entries lie, and which earlier ones it made void.
    fn settle(&mut self, segment: u64, start: u64) {
        for (group, note) in std::mem::take(&mut self.notes) {
            self.follow(group, note);
        }
        let mut inner = self.shared.lock();
        inner.stats.entries += self.placed.len() as u64;
        for (group, id, offset, bytes) in self.placed.drain(..) {
            let offset = u32::try_from(start).expect("segments stay below 4 GiB") + offset;
            let location = Location { segment, offset, bytes };
            // An entry truncated or purged meanwhile needs no place.
            if let Some(slot) = inner.index.slot_mut(group, id) {
                let before = slot.location.replace(location);
                inner.release(before);
                let segment = inner.segments.get_mut(&segment);
                segment.expect("the current segment is known").hold(location);
            }
        }
        inner.release(self.freed.drain(..));
        inner.index.shrink_cache(self.shared.options.cache_bytes);
    }

    /// Takes a change into what the log on disk says.
    fn follow(&mut self, group: GroupId, note: Note) {
        let state = self.states.entry(group).or_default();
        match note {
            Note::Vote(vote) => state.vote = Some(vote),
            Note::Committed(id) => state.committed = Some(id),
            Note::Purged(upto) => state.purged = state.purged.max(Some(upto)),
            Note::Dropped => {
                self.states.remove(&group);
            }
        }
    }

    /// Makes sure that a batch of `bytes` fits into the current segment.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        let bytes = bytes + PADDING_BYTES;
        let fits = |offset: u64, capacity: u64| offset + bytes <= capacity;
        match &self.position.current {
            Some((_, _, offset, capacity)) if fits(*offset, *capacity) => return Ok(()),
            Some(_) | None => {}
        }
        let mut states = self.states();
        let states_bytes = states.bytes() as u64 + PADDING_BYTES;
        self.start_segment(SEGMENT_HEADER_BYTES as u64 + states_bytes + bytes)?;
        if !states.is_empty() {
            self.position.write(&mut states, &self.shared)?;
        }
        Ok(())
    }

    fn start_segment(&mut self, bytes_min: u64) -> io::Result<()> {
        let number = self.position.current.as_ref();
        let number = number.map_or(FIRST_SEGMENT, |(number, ..)| number + 1);
        let disk = self.shared.disk.clone();
        let size = self.shared.options.segment_bytes;
        let name = segment_name(number);
        let spare = if bytes_min <= size { self.take_spare(size)? } else { None };
        let (file, made) = if let Some(spare) = spare {
            (disk.open(&spare)?, spare)
        } else {
            let large = bytes_min.next_multiple_of(BLOCK_BYTES as u64);
            let bytes = if bytes_min <= size { size } else { large };
            (disk.create(NEW_NAME, bytes)?, NEW_NAME.to_string())
        };
        let capacity = file.length()?;
        file.write_at(0, &segment_header(number, capacity, self.position.sequence))?;
        file.sync()?;
        disk.rename(&made, &name)?;
        disk.sync_directory()?;
        let mut inner = self.shared.lock();
        inner.segments.insert(number, Segment::new(file.clone()));
        drop(inner);
        self.position.current = Some((number, file, SEGMENT_HEADER_BYTES as u64, capacity));
        Ok(())
    }

    /// A spare file of the usual size; others are removed.
    fn take_spare(&mut self, size: u64) -> io::Result<Option<String>> {
        while let Some(spare) = self.position.spares.pop() {
            if self.shared.disk.open(&spare)?.length()? == size {
                return Ok(Some(spare));
            }
            self.shared.disk.remove(&spare)?;
        }
        Ok(None)
    }

    /// What is known of every group: a segment begins with it, so that earlier ones are needed for entries only.
    fn states(&self) -> BatchWriter {
        let mut batch = BatchWriter::new();
        for (group, state) in &self.states {
            for note in state.notes() {
                batch.put(*group, &note.record());
            }
        }
        batch
    }

    /// Copies the entries that keep the oldest segment, once there are too many segments.
    fn move_laggards(&mut self) -> io::Result<()> {
        let laggards = {
            let inner = self.shared.lock();
            let Some((&oldest, segment)) = inner.segments.first_key_value() else { return Ok(()) };
            let WalOptions { segments_max, segment_bytes, .. } = self.shared.options;
            let is_needed = inner.segments.len() > segments_max && segment.live_bytes > 0;
            // To look them up takes long where there are many: not before they are few. But a group that cannot
            // commit lets nothing go, and must not keep what others write.
            let is_little = |live: u64, of: u64| live <= of / MOVED_FRACTION;
            let live = || inner.segments.values().map(|segment| segment.live_bytes).sum();
            let all = segment_bytes * inner.segments.len() as u64;
            if !is_needed
                || !(is_little(segment.live_bytes, segment_bytes) || is_little(live(), all))
            {
                return Ok(());
            }
            inner.entries_in(oldest)
        };
        // Whoever was told that its entries are durable need not wait for this.
        brief::let_others_run();
        info!(entries = laggards.len(), "moving entries out of the oldest log segment");
        for (group, id, file, location) in laggards {
            if self.batch.bytes() >= BATCH_BYTES_TARGET {
                self.write_batch()?;
            }
            let entry = super::read_entry(group, id, &*file, location)?;
            self.put_entry(group, id, &Record::Moved(entry));
        }
        self.write_batch()
    }

    /// Recycles the oldest segments that nobody needs.
    fn free_segments(&mut self) -> io::Result<()> {
        let current = self.position.current.as_ref().map(|(number, ..)| *number);
        let mut freed = Vec::new();
        {
            let mut inner = self.shared.lock();
            while let Some((&number, segment)) = inner.segments.first_key_value()
                && segment.live == 0
                && Some(number) != current
            {
                freed.extend(inner.segments.remove(&number).map(|segment| (number, segment)));
            }
        }
        if freed.is_empty() {
            return Ok(());
        }
        brief::let_others_run();
        let disk = self.shared.disk.clone();
        for (number, segment) in freed {
            let name = segment_name(number);
            let usual = segment.file.length()? == self.shared.options.segment_bytes;
            if usual && self.position.spares.len() < SPARES_MAX {
                let spare = format!("{number:016x}{SPARE_SUFFIX}");
                disk.rename(&name, &spare)?;
                self.position.spares.push(spare);
            } else {
                disk.remove(&name)?;
            }
        }
        disk.sync_directory()
    }
}

impl Inner {
    fn entries_in(&self, segment: u64) -> Vec<(GroupId, LogId, SegmentFile, Location)> {
        let Some(file) = self.segments.get(&segment).map(|segment| segment.file.clone()) else {
            return Vec::new();
        };
        let entries = self.index.entries_in(segment).into_iter();
        entries.map(|(group, id, location)| (group, id, file.clone(), location)).collect()
    }
}

impl Operation {
    /// About what it takes of memory.
    pub(super) fn bytes(&self) -> usize {
        let entries = match self {
            Operation::Append { entries, .. } => entries.as_slice(),
            Operation::Vote { .. }
            | Operation::Truncate { .. }
            | Operation::Purge { .. }
            | Operation::Drop { .. }
            | Operation::Close { .. } => &[],
        };
        let entry_bytes = |entry: &LogEntry| size_of::<LogEntry>() + entry.payload.bytes();
        size_of::<Self>() + entries.iter().map(entry_bytes).sum::<usize>()
    }

    fn into_callback(self) -> Option<Callback> {
        match self {
            Operation::Append { done, .. }
            | Operation::Vote { done, .. }
            | Operation::Drop { done, .. }
            | Operation::Close { done } => Some(done),
            Operation::Truncate { .. } | Operation::Purge { .. } => None,
        }
    }
}
