//! The write-ahead log: one per node, shared by all its groups.
//!
//! 1. A group appends entries: they are readable at once, and queued for the writer.
//! 2. The writer takes everything that is queued, from all groups, as one batch: written together, one
//!    `fdatasync`, then every callback. It has a thread; while batches are brief, a worker of the runtime writes
//!    what comes when nothing is being written, which spares two threads waking each other.
//! 3. Segments are preallocated and recycled; a segment goes when none of its entries is needed.
//! 4. At start, `recovery` reads what is there: a torn tail is forgotten, for it was never
//!    acknowledged; any other damage refuses to start.
//!
//! An error of `fdatasync` is final: the writer stops for good, every waiter is told, and the node
//! ends the process, because the kernel may have dropped what it could not write.

mod backlog;
mod format;
mod index;
mod recovery;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ephemeris_store::ids::GroupId;
use ephemeris_store::machine::LogId;
use thiserror::Error;
use tokio::sync::{Notify, oneshot};

use crate::brief;
use crate::disk::{Disk, DiskFile};
use crate::types::{LogEntry, Vote};
use backlog::Backlog;
pub use backlog::UNSYNCED_BYTES_MAX;
use index::{Index, Location};
use writer::Next;
pub use writer::{SyncTime, Writer};

/// Called once with the fate of an operation, by whoever wrote it.
pub type Callback = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Queues an operation, and waits until it is durable.
pub async fn durable(queue: impl FnOnce(Callback) -> io::Result<()>) -> io::Result<()> {
    let (sender, receiver) = oneshot::channel();
    queue(Box::new(move |result| {
        // The receiver is gone only if whoever waits is shutting down.
        let _ = sender.send(result);
    }))?;
    receiver.await.map_err(|_| io::Error::other("the log's writer has stopped"))?
}

/// Sizes of the log.
#[derive(Clone, Copy, Debug)]
pub struct WalOptions {
    /// Size of a segment file, in bytes.
    pub segment_bytes: u64,
    /// Entries kept in memory for readers, in bytes.
    pub cache_bytes: usize,
    /// Segments there should be. If there are more, few entries in the oldest are moved out of it, and more are
    /// told by `overdue`.
    pub segments_max: usize,
}

impl Default for WalOptions {
    fn default() -> Self {
        Self { segment_bytes: 16 << 20, cache_bytes: 4 << 20, segments_max: 4 }
    }
}

/// Why the log could not be opened.
#[derive(Debug, Error)]
pub enum WalError {
    /// A file operation failed.
    #[error("write-ahead log: {0}")]
    Io(#[from] io::Error),
    /// The log is damaged somewhere else than at its very end.
    #[error(
        "the write-ahead log is damaged: {directory}/{file} at offset {offset}: {detail}; entries \
         that were acknowledged may be lost on this node. Do not delete the file alone"
    )]
    Corrupt {
        /// The log's directory.
        directory: String,
        /// The segment.
        file: String,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        detail: String,
    },
}

/// What a group's log holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogBounds {
    /// The last entry that was purged.
    pub purged: Option<LogId>,
    /// The last entry, purged or not.
    pub last: Option<LogId>,
}

/// The log. Clones share it.
#[derive(Clone)]
pub struct Wal {
    shared: Arc<Shared>,
}

struct Shared {
    disk: Arc<dyn Disk>,
    options: WalOptions,
    inner: Mutex<Inner>,
    backlog: Backlog,
    /// The writer, while it runs as a thread; for whoever has made the turn `Writing`.
    writer: Mutex<Option<Writer>>,
    /// Wakes a writer that is a thread.
    wake: Condvar,
    /// Wakes a writer that is a task.
    notify: Notify,
}

struct Inner {
    index: Index,
    segments: BTreeMap<u64, Segment>,
    queue: Vec<Operation>,
    turn: WriterTurn,
    /// True if the last batch was as little work as a worker of the runtime may do.
    is_brief: bool,
    /// Groups whose commit index moved since it was last written.
    committed: BTreeSet<GroupId>,
    failed: Option<String>,
    closing: bool,
    stats: WalStats,
}

/// Who sees to what is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriterTurn {
    /// Nobody: nothing is queued.
    Idle,
    /// Somebody was told: the thread, or a worker of the runtime.
    Told,
    /// Whoever writes will look again.
    Writing,
    /// Nobody any more: the log is closed, or has failed.
    Over,
}

struct Segment {
    file: Arc<dyn DiskFile>,
    /// Entries in it that are still needed, and what they take of it.
    live: u64,
    live_bytes: u64,
}

impl Segment {
    fn new(file: Arc<dyn DiskFile>) -> Self {
        Self { file, live: 0, live_bytes: 0 }
    }

    fn hold(&mut self, location: Location) {
        self.live += 1;
        self.live_bytes += u64::from(location.bytes);
    }

    fn release(&mut self, location: Location) {
        let live = self.live.checked_sub(1);
        let live_bytes = self.live_bytes.checked_sub(location.bytes.into());
        self.live = live.expect("live entries are counted");
        self.live_bytes = live_bytes.expect("so is what they take");
    }
}

/// What the log did so far, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalStats {
    /// Batches written, each with one `fdatasync`.
    pub syncs: u64,
    /// Entries written.
    pub entries: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Segments in use.
    pub segments: u64,
    /// Entries still needed in them.
    pub live_entries: u64,
}

enum Operation {
    Append { group: GroupId, entries: Vec<LogEntry>, done: Callback },
    Vote { group: GroupId, vote: Vote, done: Callback },
    Truncate { group: GroupId, after: Option<u64>, freed: Vec<Location> },
    Purge { group: GroupId, upto: LogId, freed: Vec<Location> },
    Drop { group: GroupId, freed: Vec<Location>, done: Callback },
    Close { done: Callback },
}

impl Wal {
    /// Opens the log in a directory and reads what is there. The writer must be run for anything to
    /// become durable.
    pub fn open(disk: Arc<dyn Disk>, options: WalOptions) -> Result<(Self, Writer), WalError> {
        let recovered = recovery::recover(disk.as_ref())?;
        let inner = Inner {
            index: recovered.index,
            segments: recovered.segments,
            queue: Vec::new(),
            turn: WriterTurn::Idle,
            is_brief: false,
            committed: BTreeSet::new(),
            failed: None,
            closing: false,
            stats: WalStats::default(),
        };
        let shared = Arc::new(Shared {
            disk,
            options,
            inner: Mutex::new(inner),
            backlog: Backlog::new(),
            writer: Mutex::new(None),
            wake: Condvar::new(),
            notify: Notify::new(),
        });
        let writer = Writer::new(shared.clone(), recovered.position);
        Ok((Self { shared }, writer))
    }

    /// The groups that have anything in the log.
    pub fn groups(&self) -> Vec<GroupId> {
        self.shared.lock().index.groups().collect()
    }

    /// What a group's log holds.
    pub fn bounds(&self, group: GroupId) -> LogBounds {
        self.shared.lock().index.bounds(group)
    }

    /// A group's vote.
    pub(crate) fn vote(&self, group: GroupId) -> Option<Vote> {
        self.shared.lock().index.vote(group)
    }

    /// The last entry of the log that is known to be committed, if it was saved that any is.
    pub(crate) fn committed(&self, group: GroupId) -> Option<LogId> {
        self.shared.lock().index.committed(group)
    }

    /// Appends entries behind the last; they are readable when this returns.
    pub(crate) fn append(
        &self,
        group: GroupId,
        entries: Vec<LogEntry>,
        done: Callback,
    ) -> io::Result<()> {
        let mut inner = self.shared.usable()?;
        inner.index.append(group, &entries);
        self.shared.queue(inner, Operation::Append { group, entries, done });
        Ok(())
    }

    /// Saves a vote.
    pub(crate) fn save_vote(&self, group: GroupId, vote: Vote, done: Callback) -> io::Result<()> {
        let mut inner = self.shared.usable()?;
        inner.index.set_vote(group, vote);
        self.shared.queue(inner, Operation::Vote { group, vote, done });
        Ok(())
    }

    /// Remembers what is committed, with the next batch that is written anyway.
    pub(crate) fn save_committed(&self, group: GroupId, committed: LogId) -> io::Result<()> {
        let mut inner = self.shared.usable()?;
        inner.index.set_committed(group, committed);
        inner.committed.insert(group);
        Ok(())
    }

    /// Makes the entries behind `after` void; all of them without it.
    pub(crate) fn truncate(&self, group: GroupId, after: Option<LogId>) -> io::Result<()> {
        let mut inner = self.shared.usable()?;
        let after = after.map(|id| id.index);
        let freed = inner.index.truncate(group, after);
        self.shared.queue(inner, Operation::Truncate { group, after, freed });
        Ok(())
    }

    /// Lets the entries up to `upto` go.
    pub(crate) fn purge(&self, group: GroupId, upto: LogId) -> io::Result<()> {
        let mut inner = self.shared.usable()?;
        let freed = inner.index.purge(group, upto);
        self.shared.queue(inner, Operation::Purge { group, upto, freed });
        Ok(())
    }

    /// Of each group the last entry in the oldest segments, if there are more of these than there should be.
    /// Whoever keeps entries for others that lag, in a group where nothing happens any more, keeps all segments
    /// since: up to these entries they should be purged.
    pub fn overdue(&self) -> Vec<(GroupId, LogId)> {
        let inner = self.shared.lock();
        let too_many = inner.segments.keys().rev().nth(self.shared.options.segments_max);
        too_many.map(|newest| inner.index.last_entries(*newest)).unwrap_or_default()
    }

    /// Forgets a group altogether.
    pub(crate) fn drop_group(&self, group: GroupId, done: Callback) -> io::Result<()> {
        let mut inner = self.shared.usable()?;
        let freed = inner.index.drop_group(group);
        inner.committed.remove(&group);
        self.shared.queue(inner, Operation::Drop { group, freed, done });
        Ok(())
    }

    /// Reads entries `[start, end)`, about `bytes_max` of them but at least one; what is not there
    /// is missing from the ends.
    pub(crate) fn read(
        &self,
        group: GroupId,
        start: u64,
        end: u64,
        bytes_max: usize,
    ) -> io::Result<Vec<LogEntry>> {
        let found = self.locate(group, start, end, bytes_max);
        self.fetch(group, found)
    }

    fn fetch(&self, group: GroupId, found: Vec<(LogId, Place)>) -> io::Result<Vec<LogEntry>> {
        let mut entries = Vec::with_capacity(found.len());
        for (id, place) in found {
            match self.fetch_one(group, id, place)? {
                Some(entry) => entries.push(entry),
                // Purged while we read: then all before it is purged too.
                None => entries.clear(),
            }
        }
        Ok(entries)
    }

    /// The entry, unless it is gone by now. It may have been moved, and something else written in its place.
    fn fetch_one(
        &self,
        group: GroupId,
        id: LogId,
        mut place: Place,
    ) -> io::Result<Option<LogEntry>> {
        loop {
            let (file, location) = match place {
                Place::Memory(entry) => return Ok(Some(entry)),
                Place::Disk(file, location) => (file, location),
            };
            let error = match read_entry(group, id, &*file, location) {
                Ok(entry) => return Ok(Some(entry)),
                Err(error) => error,
            };
            let found = self.locate(group, id.index, id.index + 1, 0).pop();
            place = match found.filter(|(found, _)| *found == id) {
                None => return Ok(None),
                Some((_, Place::Disk(_, still))) if still == location => return Err(error),
                Some((_, elsewhere)) => elsewhere,
            };
        }
    }

    fn locate(
        &self,
        group: GroupId,
        start: u64,
        end: u64,
        bytes_max: usize,
    ) -> Vec<(LogId, Place)> {
        let inner = self.shared.lock();
        let mut bytes = 0;
        let mut places = Vec::new();
        for slot in inner.index.slots(group, start, end) {
            if bytes >= bytes_max && !places.is_empty() {
                break;
            }
            bytes += slot.bytes;
            let place = match (&slot.cached, slot.location) {
                (Some(entry), _) => Place::Memory((**entry).clone()),
                (None, Some(location)) => {
                    let segment = inner.segments.get(&location.segment);
                    let segment = segment.expect("a live entry keeps its segment");
                    Place::Disk(segment.file.clone(), location)
                }
                (None, None) => unreachable!("an entry stays in memory until it is on disk"),
            };
            places.push((slot.id, place));
        }
        places
    }

    /// True if so much waits to be synced that nothing should be added.
    pub(crate) fn is_choked(&self) -> bool {
        self.unsynced_bytes() >= UNSYNCED_BYTES_MAX
    }

    /// What waits to be synced, and so stays in memory.
    pub(crate) fn unsynced_bytes(&self) -> usize {
        self.shared.backlog.bytes()
    }

    /// How long it has waited, or the disk has synced nothing: nothing for a log that has nothing to write.
    pub fn waits(&self) -> Duration {
        self.shared.backlog.waits()
    }

    /// True while its disk hangs, and for so long after.
    pub fn has_hung(&self, within: Duration) -> bool {
        self.shared.backlog.has_hung(within)
    }

    /// True once nobody writes any more: the log is closed, or has failed.
    pub fn is_over(&self) -> bool {
        self.shared.lock().turn == WriterTurn::Over
    }

    /// What the log did and holds.
    pub fn stats(&self) -> WalStats {
        let inner = self.shared.lock();
        WalStats {
            segments: inner.segments.len() as u64,
            live_entries: inner.segments.values().map(|segment| segment.live).sum(),
            ..inner.stats
        }
    }

    /// Writes what is queued and stops the writer; `done` is called when everything is durable.
    pub fn close(&self, done: Callback) {
        let mut inner = self.shared.lock();
        if let Some(error) = inner.error() {
            drop(inner);
            return done(Err(error));
        }
        inner.closing = true;
        self.shared.queue(inner, Operation::Close { done });
    }
}

enum Place {
    Memory(LogEntry),
    Disk(Arc<dyn DiskFile>, Location),
}

fn read_entry(
    group: GroupId,
    id: LogId,
    file: &dyn DiskFile,
    location: Location,
) -> io::Result<LogEntry> {
    let mut buffer = vec![0; location.bytes as usize];
    file.read_at(u64::from(location.offset), &mut buffer)?;
    let bad = |detail: &str| {
        let place = format!("segment {:016x} at {}", location.segment, location.offset);
        io::Error::new(io::ErrorKind::InvalidData, format!("log entry {id} in {place}: {detail}"))
    };
    let (found_group, record, _) = format::read_record(&mut Bytes::from(buffer)).map_err(&bad)?;
    if let format::Record::Entry(entry) | format::Record::Moved(entry) = record
        && found_group == group
        && entry.id == id
    {
        return Ok(entry);
    }
    Err(bad("another record lies there"))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inner state, unless the log has failed or is closing.
    fn usable(&self) -> io::Result<MutexGuard<'_, Inner>> {
        let inner = self.lock();
        match inner.error() {
            Some(error) => Err(error),
            None => Ok(inner),
        }
    }

    /// Queues an operation, and tells somebody who will write it, unless somebody has been told or writes.
    fn queue(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>, operation: Operation) {
        self.backlog.note_queued(operation.bytes());
        inner.queue.push(operation);
        if inner.turn != WriterTurn::Idle {
            return;
        }
        inner.turn = WriterTurn::Told;
        let is_brief = inner.is_brief;
        drop(inner);
        if !(is_brief && Errand::send(self)) {
            self.tell_writer();
        }
    }

    fn tell_writer(&self) {
        self.wake.notify_one();
        self.notify.notify_one();
    }

    /// What is queued, for whoever writes it now; none if somebody else does, or nothing is.
    fn take_queued(&self) -> Option<Vec<Operation>> {
        let mut inner = self.lock();
        if inner.turn != WriterTurn::Told {
            return None;
        }
        inner.turn = WriterTurn::Writing;
        self.backlog.note_taken();
        Some(std::mem::take(&mut inner.queue))
    }

    /// Writes what was taken.
    fn write(&self, operations: Vec<Operation>) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = writer.as_mut().expect("the writer runs");
        let panics = OverIfDropped(self);
        let next = writer.process(operations);
        std::mem::forget(panics);
        match next {
            Ok(Next::Continue) => self.pass_turn(),
            Ok(Next::Closed) | Err(_) => self.lock().turn = WriterTurn::Over,
        }
    }

    /// Whoever has written looks whether there is more.
    fn pass_turn(&self) {
        let mut inner = self.lock();
        inner.turn = if inner.queue.is_empty() { WriterTurn::Idle } else { WriterTurn::Told };
        self.backlog.note_written();
    }
}

/// The log has failed if this is dropped: its writer has panicked.
struct OverIfDropped<'s>(&'s Shared);

impl Drop for OverIfDropped<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.failed = Some("its writer has panicked".to_string());
        inner.turn = WriterTurn::Over;
    }
}

/// A worker of the runtime on its way to write what is queued. Once it is over the thread is told what there is
/// left to do: everything, if another worker has its turn, or the runtime ends before.
struct Errand(Arc<Shared>);

impl Errand {
    /// False if there is no worker to send.
    fn send(shared: &Arc<Shared>) -> bool {
        let Some(runtime) = brief::runtime() else { return false };
        let errand = Self(shared.clone());
        drop(runtime.spawn(async move { errand.run() }));
        true
    }

    fn run(self) {
        if let Some(_turn) = brief::Turn::take()
            && let Some(operations) = self.0.take_queued()
        {
            self.0.write(operations);
        }
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        let turn = self.0.lock().turn;
        if matches!(turn, WriterTurn::Told | WriterTurn::Over) {
            self.0.tell_writer();
        }
    }
}

impl Inner {
    fn error(&self) -> Option<io::Error> {
        match &self.failed {
            Some(reason) => Some(io::Error::other(format!("the log has failed: {reason}"))),
            None if self.closing => Some(io::Error::other("the log is closed")),
            None => None,
        }
    }

    /// Entries at these places are no longer needed, and the log on disk says so.
    fn release(&mut self, locations: impl IntoIterator<Item = Location>) {
        for location in locations {
            if let Some(segment) = self.segments.get_mut(&location.segment) {
                segment.release(location);
            }
        }
    }
}
