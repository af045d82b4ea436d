//! Messages between nodes: framed TCP, four connections for every ordered pair of nodes.
//!
//! 1. A caller's message gets a number and goes into the queue of its lane's `link`.
//! 2. The link connects when it has something to send, says who it is, and writes what is queued in
//!    one go: many groups' messages become one packet.
//! 3. The other side hands frames to the Raft router in the order they come, or to the node's
//!    request handler, and writes answers as they are ready.
//!
//! Log entries, control messages, snapshots and forwarded requests travel apart, so that a large
//! one never holds up a heartbeat.

mod frame;
mod hello;
mod link;
mod server;
mod tcp;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use ephemeris_raft::{Answering, Lane, Transport, TransportError};
use ephemeris_store::ids::NodeId;

pub(crate) use hello::{LocalIdentity, PROTOCOL};
use link::Link;
pub(crate) use server::{RequestHandler, serve};
pub(crate) use tcp::Tcp;

use crate::platform::Network;
use crate::supervisor::Tasks;

/// Bytes gathered into one write.
const WRITE_BYTES_TARGET: usize = 256 << 10;

/// Which of the four connections of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Channel {
    /// Raft's three.
    Raft(Lane),
    /// Requests forwarded to the node that can answer them.
    Requests,
}

/// Sends messages to other nodes. Clones share the connections.
#[derive(Clone)]
pub(crate) struct PeerTransport {
    shared: Arc<Shared>,
}

struct Shared {
    tasks: Tasks,
    network: Arc<dyn Network>,
    identity: LocalIdentity,
    /// Where nodes are reached.
    addresses: RwLock<BTreeMap<NodeId, String>>,
    /// Nodes that are reached there whatever they say.
    fixed: BTreeSet<NodeId>,
    links: Mutex<BTreeMap<(NodeId, Channel), Link>>,
}

impl PeerTransport {
    /// A transport that knows some nodes' addresses, and others that hold whatever it learns.
    pub(crate) fn new(
        tasks: Tasks,
        network: Arc<dyn Network>,
        identity: LocalIdentity,
        (mut addresses, fixed): (BTreeMap<NodeId, String>, BTreeMap<NodeId, String>),
    ) -> Self {
        addresses.extend(fixed.clone());
        let shared = Shared {
            tasks,
            network,
            identity,
            addresses: RwLock::new(addresses),
            fixed: fixed.into_keys().collect(),
            links: Mutex::new(BTreeMap::new()),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Learns where a node is reached; its connections start over if that changed.
    pub(crate) fn set_address(&self, node: NodeId, address: &str) {
        if self.shared.fixed.contains(&node) {
            return;
        }
        let mut addresses = self.shared.addresses.write().unwrap_or_else(PoisonError::into_inner);
        if addresses.get(&node).is_some_and(|known| known == address) {
            return;
        }
        addresses.insert(node, address.to_string());
        drop(addresses);
        let mut links = self.shared.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|(known, _), _| *known != node);
    }

    /// Sends a message now; the future waits for the answer.
    pub(crate) fn send(
        &self,
        node: NodeId,
        channel: Channel,
        message: Bytes,
        deadline: Duration,
    ) -> Answering {
        let message = match channel {
            Channel::Raft(_) => message,
            Channel::Requests => with_time_left(deadline, &message),
        };
        match self.link(node, channel) {
            Some(link) => link.call(message, deadline),
            None => Box::pin(async move { Err(TransportError::Unreachable(node)) }),
        }
    }

    fn link(&self, node: NodeId, channel: Channel) -> Option<Link> {
        let mut links = self.shared.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get(&(node, channel)) {
            return Some(link.clone());
        }
        let addresses = self.shared.addresses.read().unwrap_or_else(PoisonError::into_inner);
        let address = addresses.get(&node)?.clone();
        let (network, identity) = (self.shared.network.clone(), self.shared.identity.clone());
        let link = Link::start(&self.shared.tasks, (node, channel), network, address, identity);
        links.insert((node, channel), link.clone());
        Some(link)
    }
}

/// A forwarded request as it travels: first the milliseconds its caller waits for the answer, so that
/// nobody works for a caller that gave up.
fn with_time_left(left: Duration, message: &[u8]) -> Bytes {
    let millis = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
    let mut payload = BytesMut::with_capacity(size_of::<u32>() + message.len());
    payload.put_u32(millis);
    payload.put_slice(message);
    payload.freeze()
}

/// Takes off what `with_time_left` put on; none if it is not there.
fn take_time_left(payload: &mut Bytes) -> Option<Duration> {
    payload.try_get_u32().ok().map(|millis| Duration::from_millis(millis.into()))
}

impl Transport for PeerTransport {
    fn call(&self, node: NodeId, lane: Lane, message: Bytes, deadline: Duration) -> Answering {
        self.send(node, Channel::Raft(lane), message, deadline)
    }
}

#[cfg(test)]
mod tests;
