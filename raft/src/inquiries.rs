//! Read barriers at a follower (ReadIndex): readers that come while the leader is being asked for its commit
//! index wait for the next time that it is, together.
//!
//! 1. The follower notes its vote, which must be for a leader that was elected.
//! 2. It asks that one for its commit index. If that one leads with this vote, and is a majority together with
//!    the follower, nobody else had been elected when the vote was noted: one of the two would have had to vote
//!    otherwise before. So what was acknowledged until then is committed where the leader stands; it asks
//!    nobody. Otherwise, among more voters or where the follower is none, it passes a barrier of its own.
//! 3. What was committed then has to be applied here, and the readers go.

use std::sync::Arc;
use std::time::Duration;

use ephemeris_store::codec;
use ephemeris_store::ids::{GroupId, ReplicaId};

use crate::gathering::Gathering;
use crate::group::ReadError;
use crate::readers::{Ask, ReadIndex};
use crate::transport::{Lane, Transport};
use crate::wal::Wal;
use crate::wire::{self, Message};

/// Asks the leader for the readers of one follower.
pub(crate) struct Inquirer {
    pub(crate) wal: Wal,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) group: GroupId,
    pub(crate) me: ReplicaId,
    /// How long it may take.
    pub(crate) patience: Duration,
}

/// Readers of one follower that wait.
pub(crate) type Inquiries = Gathering<Inquirer>;

impl Ask for Inquirer {
    async fn ask(&self) -> ReadIndex {
        let (group, from) = (self.group, self.me);
        let vote = self.wal.vote(group).filter(|vote| vote.committed);
        let vote = vote.ok_or(ReadError::NotLeader { leader: None })?;
        let to = ReplicaId::from_u64(vote.replica);
        if to == from {
            return Err(ReadError::NotLeader { leader: None });
        }
        let question = Message::ReadIndex(wire::ReadIndex { group, from, to, vote }).encode();
        let answering = self.transport.call(to.node, Lane::Control, question, self.patience);
        let answer = answering.await.ok();
        let index: Option<Option<u64>> = answer.and_then(|answer| codec::decode(&answer).ok());
        index.flatten().ok_or(ReadError::NotLeader { leader: Some(to) })
    }
}
