//! What a replica answers to others of its group.

use std::future::Future;
use std::pin::Pin;

use ephemeris_store::ids::ReplicaId;
use ephemeris_store::machine::{LogId, Machine, Progress};
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, TransferLeaderRequest,
    VoteRequest,
};

use super::Group;
use crate::clock::Instant;
use crate::router::Inbound;
use crate::state_machine::{RaftSnapshot, SnapshotData, snapshot_meta};
use crate::types::{
    LogEntry, TypeConfig, Vote, from_raft_id, from_raft_vote, to_raft_entry, to_raft_id,
    to_raft_vote,
};
use crate::wire::{AppendResult, Quiet, Request, Response, TransferRefused};

impl<M: Machine> Inbound for Group<M> {
    fn replica(&self) -> ReplicaId {
        self.shared.replica
    }

    fn handle(&self, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        let group = self.clone();
        Box::pin(async move {
            match group.answer(request).await {
                Ok(response) => response,
                Err(reason) => Response::Failed(reason),
            }
        })
    }

    fn look(&self, now: Instant) -> Vec<Quiet> {
        self.shared.rest.look(now)
    }

    fn agree(&self, quiet: &Quiet, now: Instant) -> bool {
        self.shared.rest.agree(quiet, now)
    }

    fn note_agreed(&self, quiet: Quiet, asked: Instant) {
        self.shared.rest.note_agreed(quiet, asked);
    }

    fn vote(&self) -> Option<Vote> {
        self.shared.storage.wal.vote(self.shared.id)
    }

    fn read_index(
        &self,
        follower: ReplicaId,
        vote: Vote,
    ) -> Pin<Box<dyn Future<Output = Option<u64>> + Send>> {
        let barriers = self.shared.barriers.clone();
        Box::pin(async move { barriers.read_index_for(follower, vote).await })
    }
}

impl<M: Machine> Group<M> {
    async fn answer(&self, request: Request) -> Result<Response, String> {
        match request {
            Request::Append { vote, previous, entries, committed } => {
                self.answer_append(vote, previous, entries, committed).await
            }
            Request::PreVote { .. } | Request::Vote { transfer: false, .. }
                if self.shared.rest.is_resting() =>
            {
                Ok(self.refuse_vote())
            }
            // openraft would follow whom it names, or lead.
            Request::Vote { vote, .. } | Request::PreVote { vote, .. } if vote.committed => {
                Err("this is no candidate's vote".to_string())
            }
            Request::Vote { vote, last, transfer } => {
                let mut request = vote_request(vote, last);
                request.leadership_transfer = transfer;
                let response = self.shared.raft.vote(request).await.map_err(text)?;
                Ok(vote_response(&response))
            }
            Request::PreVote { vote, last } => {
                let response =
                    self.shared.raft.pre_vote(vote_request(vote, last)).await.map_err(text)?;
                Ok(vote_response(&response))
            }
            Request::TransferLeader { from, to, last } => {
                let last = last.map(to_raft_id);
                let request = TransferLeaderRequest::new(to_raft_vote(from), to, last);
                let answer =
                    self.shared.raft.handle_transfer_leader(request).await.map_err(text)?;
                Ok(Response::TransferLeader(answer.map_err(|error| transfer_refused(&error))))
            }
            Request::SnapshotBegin { progress } => {
                let snapshots = self.shared.snapshots.clone();
                let begin = move || snapshots.begin(progress.applied);
                let received = self.shared.storage.executor.run(begin).await.map_err(text)?;
                Ok(Response::SnapshotReceived(received))
            }
            Request::SnapshotChunk { position, received, bytes } => {
                let snapshots = self.shared.snapshots.clone();
                let stage = move || snapshots.stage(position, &received, &bytes);
                let received = self.shared.storage.executor.run(stage).await.map_err(text)?;
                Ok(Response::SnapshotReceived(received))
            }
            Request::SnapshotInstall { vote, progress } => {
                let applied = progress.applied.map_or(0, |applied| applied.term);
                if !vote.committed || applied > vote.term {
                    return Err("this is no snapshot of a leader".to_string());
                }
                let vote = self.install_snapshot(vote, &progress).await?;
                Ok(Response::SnapshotInstalled { vote })
            }
        }
    }

    /// The leader of a replica at rest counts as alive, though openraft has not heard it for long.
    fn refuse_vote(&self) -> Response {
        let vote = from_raft_vote(&self.shared.raft.metrics().borrow_watched().vote);
        Response::Vote { vote, granted: false, last: self.last_logged() }
    }

    /// Installs the staged snapshot of this progress, unless that has been done already.
    pub(super) async fn install_snapshot(
        &self,
        vote: Vote,
        progress: &Progress,
    ) -> Result<Vote, String> {
        let _one_at_a_time = self.shared.installing.lock().await;
        if self.shared.machine.progress().applied >= progress.applied {
            // Entries are applied before the log has synced them, and the leader will never send
            // these again: they must be durable one way or the other.
            self.shared.storage.flush().await.map_err(text)?;
            // It may have come once more while it was installed.
            if let Some(name) = self.shared.snapshots.staged(progress.applied) {
                self.shared.snapshots.release(&name);
            }
            // To openraft an answer is a sign that the leader still leads, unless it names a newer one.
            let newer = self.vote().filter(|own| own.term > vote.term);
            return Ok(newer.unwrap_or(vote));
        }
        let name = self.shared.snapshots.staged(progress.applied);
        let name = name.ok_or("the snapshot was not received completely")?;
        let meta = snapshot_meta(progress).map_err(text)?;
        let snapshot = RaftSnapshot { meta, snapshot: SnapshotData::Staged(name.clone()) };
        let installed = self.shared.raft.install_full_snapshot(to_raft_vote(vote), snapshot);
        let response = installed.await.map_err(text)?;
        // It is installed, or was not wanted. After an error it may still be in use.
        self.shared.snapshots.release(&name);
        let answered = from_raft_vote(&response.vote);
        if answered == vote && self.shared.machine.progress().applied < progress.applied {
            // Its log has all of it, perhaps not synced yet. The leader asks again, and then it is applied.
            return Err("the entries of the snapshot are here, and not applied yet".to_string());
        }
        Ok(answered)
    }

    async fn answer_append(
        &self,
        vote: Vote,
        previous: Option<LogId>,
        entries: Vec<LogEntry>,
        committed: Option<LogId>,
    ) -> Result<Response, String> {
        if !vote.committed || !follow_each_other(previous, &entries) {
            return Err("these are no entries of a leader".to_string());
        }
        // The leader, which others may make a majority with, sends them again later.
        if !entries.is_empty() && !self.takes_entries() {
            return Err("the log does not get written".to_string());
        }
        let entries = entries.into_iter().map(to_raft_entry).collect::<Result<_, _>>();
        let request = AppendEntriesRequest {
            vote: to_raft_vote(vote),
            prev_log_id: previous.map(to_raft_id),
            entries: entries.map_err(text)?,
            leader_commit: committed.map(to_raft_id),
        };
        let response = self.shared.raft.append_entries(request).await.map_err(text)?;
        Ok(Response::Append(match response {
            AppendEntriesResponse::Success => AppendResult::Success,
            AppendEntriesResponse::PartialSuccess(last) => {
                AppendResult::PartialSuccess(last.map(from_raft_id))
            }
            AppendEntriesResponse::Conflict => AppendResult::Conflict,
            AppendEntriesResponse::HigherVote(vote) => {
                AppendResult::HigherVote(from_raft_vote(&vote))
            }
        }))
    }
}

/// True if the first entry stands right behind `previous`, and each other one behind the one before it: openraft
/// takes that for granted.
fn follow_each_other(previous: Option<LogId>, entries: &[LogEntry]) -> bool {
    let first = previous.map_or(Some(0), |previous| previous.index.checked_add(1));
    first.is_some_and(|first| (first..).zip(entries).all(|(index, entry)| entry.id.index == index))
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands errors over by value")]
fn text(error: impl ToString) -> String {
    error.to_string()
}

fn vote_request(vote: Vote, last: Option<LogId>) -> VoteRequest<TypeConfig> {
    VoteRequest::new(to_raft_vote(vote), last.map(to_raft_id))
}

fn vote_response(response: &openraft::raft::VoteResponse<TypeConfig>) -> Response {
    Response::Vote {
        vote: from_raft_vote(&response.vote),
        granted: response.vote_granted,
        last: response.last_log_id.map(from_raft_id),
    }
}

fn transfer_refused(error: &TransferLeaderError<TypeConfig>) -> TransferRefused {
    match error {
        TransferLeaderError::VoteChanged { expected, actual } => TransferRefused::VoteChanged {
            expected: from_raft_vote(expected),
            actual: from_raft_vote(actual),
        },
        TransferLeaderError::LogNotFlushed { expected, actual } => TransferRefused::LogNotFlushed {
            expected: expected.map(from_raft_id),
            actual: actual.map(from_raft_id),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Payload;

    #[test]
    fn entries_with_a_gap_are_no_leaders() {
        let at = |index| LogId { term: 1, index };
        let entries = |indexes: &[u64]| -> Vec<LogEntry> {
            let entry = |&index| LogEntry { id: at(index), payload: Payload::Blank };
            indexes.iter().map(entry).collect()
        };
        for (previous, indexes, is_right) in [
            (None, &[][..], true),
            (None, &[0, 1], true),
            (Some(at(4)), &[5, 6, 7], true),
            (None, &[1], false),
            (Some(at(4)), &[6], false),
            (Some(at(4)), &[5, 7], false),
            (Some(at(u64::MAX)), &[], false),
        ] {
            assert_eq!(follow_each_other(previous, &entries(indexes)), is_right, "{indexes:?}");
        }
    }
}
