//! How messages get from node to node, behind a trait: framed TCP in a cluster, memory in tests.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use ephemeris_store::ids::NodeId;
use thiserror::Error;

/// Which connection a message travels on, so that large ones never hold up urgent ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Log entries.
    Append,
    /// Heartbeats, votes, read barriers, leader transfer.
    Control,
    /// Snapshot chunks.
    Snapshot,
}

/// Why there is no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TransportError {
    /// The node cannot be reached; the message was not delivered.
    #[error("node {0} is unreachable")]
    Unreachable(NodeId),
    /// The connection broke, or the answer did not come in time; the message may have arrived.
    #[error("no answer from node {node} within {waited:?}")]
    NoAnswer {
        /// Whom we asked.
        node: NodeId,
        /// How long we waited.
        waited: Duration,
    },
    /// The node refused the message: it does not know the group, or runs another version.
    #[error("node {node} refused: {reason}")]
    Refused {
        /// Whom we asked.
        node: NodeId,
        /// What it said.
        reason: String,
    },
}

/// An answer on its way.
pub type Answering = Pin<Box<dyn Future<Output = Result<Bytes, TransportError>> + Send>>;

/// Sends messages between nodes.
pub trait Transport: Send + Sync + 'static {
    /// Sends a message and returns its answer when it comes. The message is on its way when this
    /// returns, in order with the others to the same node on the same lane; the future only waits.
    fn call(&self, node: NodeId, lane: Lane, message: Bytes, deadline: Duration) -> Answering;
}
