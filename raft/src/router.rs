//! Hands messages from other nodes to the group they are for.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use ephemeris_store::codec;
use ephemeris_store::ids::{GroupId, ReplicaId};

use crate::clock::{Instant, monotonic};
use crate::types::Vote;
use crate::wire::{Confirm, Envelope, Message, Quiet, ReadIndex, Request, Response};

/// The answer to a message, being made.
pub type Handling = Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>>;

/// A group that takes requests.
pub(crate) trait Inbound: Send + Sync + 'static {
    fn replica(&self) -> ReplicaId;
    fn handle(&self, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>>;
    /// Lets the replica rest or tick as it should; returns what its followers are to agree with.
    fn look(&self, now: Instant) -> Vec<Quiet>;
    /// Whether the replica sees its group as its leader does; then it rests.
    fn agree(&self, quiet: &Quiet, now: Instant) -> bool;
    /// A follower has agreed with what it was told then.
    fn note_agreed(&self, quiet: Quiet, asked: Instant);
    /// The replica's vote, at the latest when anybody else may know of it.
    fn vote(&self) -> Option<Vote>;
    /// The commit index, if the replica leads, for the readers of a follower that had this vote when it asked.
    fn read_index(
        &self,
        follower: ReplicaId,
        vote: Vote,
    ) -> Pin<Box<dyn Future<Output = Option<u64>> + Send>>;
}

/// Knows the groups of this node. Clones share it.
#[derive(Clone, Default)]
pub struct Router {
    groups: Arc<RwLock<BTreeMap<GroupId, Arc<dyn Inbound>>>>,
}

impl Router {
    /// A router without groups.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn add(&self, group: GroupId, inbound: Arc<dyn Inbound>) {
        self.groups.write().unwrap_or_else(PoisonError::into_inner).insert(group, inbound);
    }

    pub(crate) fn remove(&self, group: GroupId) {
        self.groups.write().unwrap_or_else(PoisonError::into_inner).remove(&group);
    }

    pub(crate) fn group(&self, group: GroupId) -> Option<Arc<dyn Inbound>> {
        self.groups.read().unwrap_or_else(PoisonError::into_inner).get(&group).cloned()
    }

    /// All of them, in the order of their numbers.
    pub(crate) fn groups(&self) -> Vec<Arc<dyn Inbound>> {
        self.groups.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Takes a message. The future must be polled once before the next message of the same
    /// connection is taken, so that messages reach their group in the order they came; the answer
    /// may be awaited later. An error says why the message was refused.
    pub fn receive(&self, message: &[u8]) -> Handling {
        match Message::decode(message) {
            Ok(Message::Replica(envelope)) => self.deliver(envelope),
            Ok(Message::Quiet(quiet)) => {
                let answer = Bytes::from(codec::encode(&self.agree(&quiet)));
                Box::pin(std::future::ready(Ok(answer)))
            }
            Ok(Message::Confirm(confirm)) => {
                let answer = Bytes::from(codec::encode(&self.confirms(&confirm)));
                Box::pin(std::future::ready(Ok(answer)))
            }
            Ok(Message::ReadIndex(question)) => self.read_index(question),
            Err(error) => Box::pin(async move { Err(error.to_string()) }),
        }
    }

    fn deliver(&self, Envelope { group, to, request }: Envelope) -> Handling {
        match self.group(group) {
            None => Box::pin(async move { Err(format!("group {group} is not here")) }),
            Some(inbound) if inbound.replica() != to => {
                let here = inbound.replica();
                Box::pin(async move { Err(format!("replica {here} is here, not {to}")) })
            }
            Some(inbound) => {
                let handling = inbound.handle(request);
                Box::pin(async move { Ok(handling.await.encode()) })
            }
        }
    }

    /// True if the replica is here, and has that vote.
    fn confirms(&self, Confirm { group, to, vote }: &Confirm) -> bool {
        let group = self.group(*group).filter(|group| group.replica() == *to);
        group.is_some_and(|group| group.vote() == Some(*vote))
    }

    /// The commit index of a group, if the replica that is asked is here, and leads it.
    fn read_index(&self, ReadIndex { group, from, to, vote }: ReadIndex) -> Handling {
        let leader = self.group(group).filter(|group| group.replica() == to);
        let asking = leader.map(|leader| leader.read_index(from, vote));
        Box::pin(async move {
            let index = match asking {
                Some(asking) => asking.await,
                None => None,
            };
            Ok(Bytes::from(codec::encode(&index)))
        })
    }

    /// Lets replicas rest whose leaders say that nothing happens; returns the groups that are seen differently.
    fn agree(&self, quiet: &[Quiet]) -> Vec<GroupId> {
        let now = monotonic();
        let agrees = |quiet: &&Quiet| {
            let group = self.group(quiet.group);
            group.is_some_and(|group| group.replica() == quiet.to && group.agree(quiet, now))
        };
        quiet.iter().filter(|quiet| !agrees(quiet)).map(|quiet| quiet.group).collect()
    }
}
