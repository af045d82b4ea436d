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

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use ephemeris_store::ids::NodeId;

    use super::*;
    use crate::types::Payload;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("text grows");
            text
        })
    }

    /// Nodes of another `PROTOCOL` (`node/src/transport/hello.rs`) are refused: to be raised if this fails.
    #[test]
    fn the_bytes_are_pinned() {
        let replica = |node, incarnation| ReplicaId { node: NodeId(node), incarnation };
        let (group, from, to) = (GroupId(9), replica(1, 2), replica(3, 4));
        let vote = Vote { term: 5, replica: 6, committed: true };
        let last = Some(LogId { term: 7, index: 8 });
        let progress = || Progress { applied: last, membership: None };
        let received = || Received { chunks: 1, last_row: None, complete: false };
        let payloads = [
            Payload::Blank,
            Payload::Membership(Bytes::from_static(b"m")),
            Payload::Command(Bytes::from_static(b"c")),
        ];
        let entry = |payload| LogEntry { id: LogId { term: 7, index: 9 }, payload };
        let entries = payloads.map(entry).to_vec();
        let requests = [
            Request::Append { vote, previous: last, entries, committed: None },
            Request::Vote { vote, last, transfer: true },
            Request::PreVote { vote, last },
            Request::TransferLeader { from: vote, to, last },
            Request::SnapshotBegin { progress: progress() },
            Request::SnapshotChunk { position: last, received: received(), bytes: Bytes::new() },
            Request::SnapshotInstall { vote, progress: progress() },
        ];
        let replica = |request| Message::Replica(Envelope { group, to, request });
        let others = [
            Message::Quiet(vec![Quiet { group, to, vote, last: Some(8) }]),
            Message::Confirm(Confirm { group, to, vote }),
            Message::ReadIndex(ReadIndex { group, from, to, vote }),
        ];
        let messages = requests.map(replica).into_iter().chain(others);
        let refused = |refused| Response::TransferLeader(Err(refused));
        let responses = [
            Response::Append(AppendResult::Success),
            Response::Append(AppendResult::PartialSuccess(last)),
            Response::Append(AppendResult::Conflict),
            Response::Append(AppendResult::HigherVote(vote)),
            Response::Vote { vote, granted: true, last },
            Response::TransferLeader(Ok(())),
            refused(TransferRefused::VoteChanged { expected: vote, actual: vote }),
            refused(TransferRefused::LogNotFlushed { expected: last, actual: None }),
            Response::SnapshotReceived(received()),
            Response::SnapshotInstalled { vote },
            Response::Failed("why".to_string()),
        ];
        let encoded = messages.map(|message| hex(&message.encode()));
        let encoded = encoded.chain(responses.iter().map(|response| hex(&response.encode())));
        let encoded: Vec<String> = encoded.collect();
        assert_eq!(encoded, PINNED);
    }

    const PINNED: [&str; 21] = [
        "01000903040005060101070803070900070901016d070902016300",
        "01000903040105060101070801",
        "010009030402050601010708",
        "0100090304030506010304010708",
        "01000903040401070800",
        "01000903040501070801000000",
        "01000903040605060101070800",
        "0101010903040506010108",
        "0102090304050601",
        "01030901020304050601",
        "010000",
        "010001010708",
        "010002",
        "010003050601",
        "010105060101010708",
        "010200",
        "01020100050601050601",
        "0102010101070800",
        "0103010000",
        "0104050601",
        "010503776879",
    ];
}
