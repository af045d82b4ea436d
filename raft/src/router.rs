//! Hands messages from other nodes to the group they are for.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use ephemeris_store::ids::{GroupId, ReplicaId};

use crate::wire::{Envelope, Request, Response};

/// The answer to a message, being made.
pub type Handling = Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>>;

/// A group that takes requests.
pub(crate) trait Inbound: Send + Sync + 'static {
    fn replica(&self) -> ReplicaId;
    fn handle(
        &self,
        from: ReplicaId,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>>;
}

/// Knows the groups of this node. Clones share it.
#[derive(Clone, Default)]
pub struct Router {
    groups: Arc<RwLock<HashMap<GroupId, Arc<dyn Inbound>>>>,
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

    /// Takes a message. The future must be polled once before the next message of the same
    /// connection is taken, so that messages reach their group in the order they came; the answer
    /// may be awaited later. An error says why the message was refused.
    pub fn receive(&self, message: &[u8]) -> Handling {
        let envelope = match Envelope::decode(message) {
            Ok(envelope) => envelope,
            Err(error) => return Box::pin(async move { Err(error.to_string()) }),
        };
        let Envelope { group, from, to, request } = envelope;
        let known = self.groups.read().unwrap_or_else(PoisonError::into_inner).get(&group).cloned();
        match known {
            None => Box::pin(async move { Err(format!("group {group} is not here")) }),
            Some(inbound) if inbound.replica() != to => {
                let here = inbound.replica();
                Box::pin(async move { Err(format!("replica {here} is here, not {to}")) })
            }
            Some(inbound) => {
                let handling = inbound.handle(from, request);
                Box::pin(async move { Ok(handling.await.encode()) })
            }
        }
    }
}
