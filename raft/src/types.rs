//! Our own forms of what goes to disk and over the wire, and openraft's forms of the same.
//!
//! openraft's structs change between its alphas, so they are never stored or sent: they are turned
//! into ours at the edge, here.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;

use bytes::Bytes;
use ephemeris_store::codec;
use ephemeris_store::ids::ReplicaId;
use ephemeris_store::machine::{LogId, Membership as StoredMembership};
use openraft::entry::RaftEntry as _;
use openraft::impls::leader_id_std::LeaderId;
use openraft::vote::leader_id_std::CommittedLeaderId;
use serde::{Deserialize, Serialize};

use crate::runtime::Runtime;

/// A vote as Raft keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Vote {
    /// The term.
    pub(crate) term: u64,
    /// The candidate or leader voted for, as a Raft member number.
    pub(crate) replica: u64,
    /// True once a quorum granted it.
    pub(crate) committed: bool,
}

/// An entry of a group's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogEntry {
    /// Its place.
    pub(crate) id: LogId,
    /// What it holds.
    pub(crate) payload: Payload,
}

/// What an entry holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Payload {
    /// Nothing: it commits what earlier leaders left.
    Blank,
    /// The members of the group, encoded.
    Membership(Bytes),
    /// A command of the machine, encoded.
    Command(Bytes),
}

impl Payload {
    /// Bytes of the payload itself.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Payload::Blank => 0,
            Payload::Membership(bytes) | Payload::Command(bytes) => bytes.len(),
        }
    }
}

/// A command on its way through Raft: opaque bytes, cheap to move and to clone.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Command(pub(crate) Bytes);

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command of {} bytes", self.0.len())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What applying an entry answers, on its way to whoever proposed it; machines differ in its type.
pub(crate) struct Answer(pub(crate) Option<Box<dyn Any + Send + Sync>>);

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "outcome" } else { "nothing" })
    }
}

/// The one configuration of Raft, for the catalog and for partitions alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TypeConfig;

impl openraft::RaftTypeConfig for TypeConfig {
    type D = Command;
    type R = Answer;
    type NodeId = ReplicaId;
    type Node = ();
    type Term = u64;
    type LeaderId = LeaderId<u64, ReplicaId>;
    type Vote = RaftVote;
    type Payload = openraft::EntryPayload<Command, ReplicaId, ()>;
    type Entry = RaftEntry;
    type AsyncRuntime = Runtime;
    type Responder<T>
        = openraft::impls::OneshotResponder<Self, T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

pub(crate) type RaftLogId = openraft::LogId<CommittedLeaderId<u64>>;
pub(crate) type RaftVote = openraft::Vote<LeaderId<u64, ReplicaId>>;
pub(crate) type RaftEntry =
    openraft::Entry<CommittedLeaderId<u64>, openraft::EntryPayload<Command, ReplicaId, ()>>;
pub(crate) type RaftMembership = openraft::Membership<ReplicaId, ()>;
pub(crate) type RaftStoredMembership =
    openraft::StoredMembership<CommittedLeaderId<u64>, ReplicaId, ()>;

pub(crate) fn to_raft_id(id: LogId) -> RaftLogId {
    RaftLogId::new_term_index(id.term, id.index)
}

pub(crate) fn from_raft_id(id: RaftLogId) -> LogId {
    LogId { term: id.committed_leader_id().term, index: id.index() }
}

pub(crate) fn to_raft_vote(vote: Vote) -> RaftVote {
    let replica = ReplicaId::from_u64(vote.replica);
    if vote.committed {
        RaftVote::new_committed(vote.term, replica)
    } else {
        RaftVote::new(vote.term, replica)
    }
}

pub(crate) fn from_raft_vote(vote: &RaftVote) -> Vote {
    let LeaderId { term, voted_for } = *vote.leader_id();
    Vote { term, replica: voted_for.as_u64(), committed: vote.is_committed() }
}

/// Members as they are stored and sent.
#[derive(Serialize, Deserialize)]
struct Members {
    /// One set of voters, or two while the group changes from one to the other.
    voters: Vec<BTreeSet<u64>>,
    /// Every member, learners included.
    all: BTreeSet<u64>,
}

pub(crate) fn encode_membership(membership: &RaftMembership) -> Bytes {
    let number = |replica: &ReplicaId| replica.as_u64();
    let sets = membership.get_joint_config().iter();
    let members = Members {
        voters: sets.map(|set| set.iter().map(number).collect()).collect(),
        all: membership.nodes().map(|(replica, ())| number(replica)).collect(),
    };
    Bytes::from(codec::encode(&members))
}

/// Members that no encoder here produced.
#[derive(Debug, thiserror::Error)]
#[error("malformed membership: {0}")]
pub(crate) struct MalformedMembership(String);

pub(crate) fn decode_membership(bytes: &[u8]) -> Result<RaftMembership, MalformedMembership> {
    let malformed = |error: String| MalformedMembership(error);
    let Members { voters, all } =
        codec::decode(bytes).map_err(|error| malformed(error.to_string()))?;
    let replica = |number: u64| ReplicaId::from_u64(number);
    let voters = voters.into_iter().map(|set| set.into_iter().map(replica).collect()).collect();
    let all: BTreeSet<ReplicaId> = all.into_iter().map(replica).collect();
    RaftMembership::new(voters, all).map_err(|error| malformed(error.to_string()))
}

pub(crate) fn to_stored_membership(
    membership: Option<&StoredMembership>,
) -> Result<RaftStoredMembership, MalformedMembership> {
    match membership {
        None => Ok(RaftStoredMembership::default()),
        Some(membership) => Ok(RaftStoredMembership::new(
            membership.log_id.map(to_raft_id),
            decode_membership(&membership.members)?,
        )),
    }
}

pub(crate) fn from_raft_entry(entry: RaftEntry) -> LogEntry {
    let payload = match entry.payload {
        openraft::EntryPayload::Blank => Payload::Blank,
        openraft::EntryPayload::Normal(command) => Payload::Command(command.0),
        openraft::EntryPayload::Membership(members) => {
            Payload::Membership(encode_membership(&members))
        }
    };
    LogEntry { id: from_raft_id(entry.log_id), payload }
}

pub(crate) fn to_raft_entry(entry: LogEntry) -> Result<RaftEntry, MalformedMembership> {
    let payload = match entry.payload {
        Payload::Blank => openraft::EntryPayload::Blank,
        Payload::Command(bytes) => openraft::EntryPayload::Normal(Command(bytes)),
        Payload::Membership(bytes) => {
            openraft::EntryPayload::Membership(decode_membership(&bytes)?)
        }
    };
    Ok(RaftEntry::new(to_raft_id(entry.id), payload))
}
