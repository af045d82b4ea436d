//! One group's part of the write-ahead log, as openraft wants to see it.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};

use ephemeris_store::ids::GroupId;
use ephemeris_store::machine::LogId;
use futures_util::{Stream, TryStreamExt as _, stream};
use openraft::OptionalSend;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use tracing::{info, warn};

use crate::storage::Executor;
use crate::types::{
    RaftEntry, RaftLogId, RaftVote, TypeConfig, from_raft_entry, from_raft_id, from_raft_vote,
    to_raft_entry, to_raft_id, to_raft_vote,
};
use crate::wal::{self, Wal};

/// About how many bytes of entries are read at once: for one append request, and to be applied.
const READ_BYTES_TARGET: usize = 1 << 20;

/// A group's log. Clones share it.
#[derive(Clone)]
pub(crate) struct LogStore {
    wal: Wal,
    group: GroupId,
    executor: Executor,
}

impl LogStore {
    /// The log of a group; long reads run on the executor.
    pub(crate) fn new(wal: Wal, group: GroupId, executor: Executor) -> Self {
        Self { wal, group, executor }
    }

    /// Lets go of entries that others replaced, which the log still holds while the machine has
    /// applied what replaced them.
    ///
    /// openraft applies what is committed once it is in memory, and the engine may flush it by itself
    /// before the log has synced it. If the power goes then, the log falls back behind the machine.
    /// openraft expects one that is too short, and takes one that went another way for corrupt, or, if it is shorter
    /// and of a later term, for one that has what the machine applied. That is committed, so all that stands in its
    /// place, and behind, is void.
    pub(crate) fn follow(&self, applied: Option<LogId>) -> io::Result<()> {
        let Some(applied) = applied else { return Ok(()) };
        let found = self.wal.read(self.group, applied.index, applied.index + 1, usize::MAX)?;
        match found.first() {
            Some(entry) if entry.id != applied => {
                warn!(group = %self.group, %applied, found = %entry.id, "the log fell behind");
                let before = applied.index.checked_sub(1);
                let before = before.map(|index| LogId { term: applied.term, index });
                self.wal.truncate(self.group, before)?;
                self.wal.purge(self.group, applied)
            }
            None if self.is_another_way(applied) => {
                warn!(group = %self.group, %applied, "the log fell behind, and went another way");
                self.wal.purge(self.group, applied)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// True if the log ends before an entry, and not as those before that entry do.
    fn is_another_way(&self, applied: LogId) -> bool {
        let last = self.wal.bounds(self.group).last;
        last.is_some_and(|last| last.index < applied.index && last.term > applied.term)
    }

    fn read(&self, start: u64, end: u64, bytes_max: usize) -> io::Result<Vec<RaftEntry>> {
        let entries = self.wal.read(self.group, start, end, bytes_max)?;
        entries.into_iter().map(|entry| to_raft_entry(entry).map_err(io::Error::other)).collect()
    }

    /// The entries `[start, end)` in pieces. After a disk stood still, or after an election, they may be a
    /// hundred megabytes, hardly any of them in the log's cache.
    fn pieces(
        &self,
        start: u64,
        end: u64,
    ) -> impl Stream<Item = io::Result<Vec<RaftEntry>>> + Send + '_ {
        stream::try_unfold(start, move |from| async move {
            if from >= end {
                return Ok(None);
            }
            // The first piece is nearly always the only one, and in the cache.
            let piece = if from == start {
                self.read(from, end, READ_BYTES_TARGET)?
            } else {
                let log = self.clone();
                self.executor.run(move || log.read(from, end, READ_BYTES_TARGET)).await?
            };
            match (piece.first(), piece.last()) {
                (Some(first), Some(last)) if first.log_id.index == from => {
                    let next = last.log_id.index + 1;
                    Ok(Some((piece, next)))
                }
                // The log may end before the range does, says openraft's suite.
                (None, None) if self.ends_before(from) => Ok(None),
                _ => {
                    let group = self.group;
                    let detail = format!("group {group}: entry {from} is missing in the log");
                    Err(io::Error::new(io::ErrorKind::InvalidData, detail))
                }
            }
        })
    }

    fn ends_before(&self, index: u64) -> bool {
        self.wal.bounds(self.group).last.is_some_and(|last| last.index < index)
    }
}

fn start_and_end(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before + 1,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last + 1,
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<RaftEntry>, io::Error> {
        let (start, end) = start_and_end(&range);
        self.read(start, end, usize::MAX)
    }

    /// What is committed, to be applied.
    async fn entries_stream<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<RaftEntry, io::Error>> + OptionalSend {
        let (start, end) = start_and_end(&range);
        let pieces = self.pieces(start, end);
        pieces.map_ok(|piece| stream::iter(piece.into_iter().map(Ok))).try_flatten()
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<RaftEntry>, io::Error> {
        self.read(start, end, READ_BYTES_TARGET)
    }

    async fn read_vote(&mut self) -> Result<Option<RaftVote>, io::Error> {
        Ok(self.wal.vote(self.group).map(to_raft_vote))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let bounds = self.wal.bounds(self.group);
        Ok(LogState {
            last_purged_log_id: bounds.purged.map(to_raft_id),
            last_log_id: bounds.last.map(to_raft_id),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &RaftVote) -> Result<(), io::Error> {
        let vote = from_raft_vote(vote);
        wal::durable(|done| self.wal.save_vote(self.group, vote, done)).await
    }

    async fn save_committed(&mut self, committed: Option<RaftLogId>) -> Result<(), io::Error> {
        match committed {
            Some(committed) => self.wal.save_committed(self.group, from_raft_id(committed)),
            None => Ok(()),
        }
    }

    async fn read_committed(&mut self) -> Result<Option<RaftLogId>, io::Error> {
        Ok(self.wal.committed(self.group).map(to_raft_id))
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: IOFlushed<TypeConfig>,
    ) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries = entries.into_iter().map(from_raft_entry).collect();
        self.wal.append(self.group, entries, Box::new(|result| callback.io_completed(result)))
    }

    async fn truncate_after(&mut self, last: Option<RaftLogId>) -> Result<(), io::Error> {
        let (last, upto) = (last.map(from_raft_id), self.wal.bounds(self.group).last);
        info!(group = %self.group, ?last, ?upto, "taking back entries that were not committed");
        self.wal.truncate(self.group, last)
    }

    async fn purge(&mut self, upto: RaftLogId) -> Result<(), io::Error> {
        self.wal.purge(self.group, from_raft_id(upto))
    }
}

#[cfg(test)]
mod suite;
#[cfg(test)]
mod tests;
