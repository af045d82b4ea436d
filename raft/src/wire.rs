//! What replicas of a group say to each other.

use bytes::Bytes;
use ephemeris_store::codec::{self, DecodeError};
use ephemeris_store::ids::{GroupId, ReplicaId};
use ephemeris_store::machine::{LogId, Progress};
use ephemeris_store::snapshot::Received;
use serde::{Deserialize, Serialize};

use crate::types::{LogEntry, Vote};

/// What goes from node to node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// For one replica.
    Replica(Envelope),
    /// For all replicas of these groups; answered with the groups that are seen differently.
    Quiet(Vec<Quiet>),
    /// For one replica; answered with true or false.
    Confirm(Confirm),
    /// For the leader; answered with its commit index, or with nothing if it does not lead.
    ReadIndex(ReadIndex),
}

/// A leader asks one of its followers whether that still has its vote.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Confirm {
    pub(crate) group: GroupId,
    pub(crate) to: ReplicaId,
    /// The leader's.
    pub(crate) vote: Vote,
}

/// A follower asks its leader what is committed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ReadIndex {
    pub(crate) group: GroupId,
    pub(crate) from: ReplicaId,
    pub(crate) to: ReplicaId,
    /// The follower's, when it asks.
    pub(crate) vote: Vote,
}

/// A group in which nothing happens, as its leader tells one of its followers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Quiet {
    pub(crate) group: GroupId,
    pub(crate) to: ReplicaId,
    /// The leader's.
    pub(crate) vote: Vote,
    /// The last entry, which all have applied.
    pub(crate) last: Option<u64>,
}

/// A request from one replica to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    pub(crate) group: GroupId,
    pub(crate) from: ReplicaId,
    pub(crate) to: ReplicaId,
    pub(crate) request: Request,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Append { vote: Vote, previous: Option<LogId>, entries: Vec<LogEntry>, committed: Option<LogId> },
    Vote { vote: Vote, last: Option<LogId>, transfer: bool },
    PreVote { vote: Vote, last: Option<LogId> },
    TransferLeader { from: Vote, to: ReplicaId, last: Option<LogId> },
    SnapshotBegin { progress: Progress },
    SnapshotChunk { position: Option<LogId>, received: Received, bytes: Bytes },
    SnapshotInstall { vote: Vote, progress: Progress },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Response {
    Append(AppendResult),
    Vote {
        vote: Vote,
        granted: bool,
        last: Option<LogId>,
    },
    TransferLeader(Result<(), TransferRefused>),
    /// What the receiver has of a snapshot.
    SnapshotReceived(Received),
    SnapshotInstalled {
        vote: Vote,
    },
    /// The receiver could not do it.
    Failed(String),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum AppendResult {
    Success,
    PartialSuccess(Option<LogId>),
    Conflict,
    HigherVote(Vote),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum TransferRefused {
    VoteChanged { expected: Vote, actual: Vote },
    LogNotFlushed { expected: Option<LogId>, actual: Option<LogId> },
}

/// What a message takes at most beside the payloads of its entries, and what each of these takes beside its own:
/// rounded up, for room that is taken at once.
const MESSAGE_BYTES: usize = 128;
const ENTRY_BYTES: usize = 32;

impl Message {
    pub(crate) fn encode(&self) -> Bytes {
        let entries = match self {
            Message::Replica(Envelope { request: Request::Append { entries, .. }, .. }) => {
                entries.as_slice()
            }
            Message::Replica(_)
            | Message::Quiet(_)
            | Message::Confirm(_)
            | Message::ReadIndex(_) => &[],
        };
        let entry_bytes = |entry: &LogEntry| ENTRY_BYTES + entry.payload.bytes();
        let about = MESSAGE_BYTES + entries.iter().map(entry_bytes).sum::<usize>();
        Bytes::from(codec::encode_about(about, self))
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        codec::decode(bytes)
    }
}

impl Response {
    pub(crate) fn encode(&self) -> Bytes {
        Bytes::from(codec::encode(self))
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        codec::decode(bytes)
    }
}
