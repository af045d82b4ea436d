//! Check quorum, as etcd calls it: a leader that no majority answers asks another to take over.
//!
//! Such a leader may still be heard. What it sends then keeps the others from electing, and the group
//! stands still for as long as only the way back is cut.

use std::sync::Arc;
use std::time::Duration;

use ephemeris_store::ids::{GroupId, ReplicaId};
use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::metrics::{RaftMetrics, RaftServerMetrics, SerdeInstant};
use openraft::{AsyncRuntime as _, ServerState};
use tokio::sync::watch;
use tracing::info;

use crate::runtime::Runtime;
use crate::timers::wait_aligned;
use crate::transport::{Lane, Transport};
use crate::types::{TypeConfig, Vote, from_raft_vote};
use crate::wire::{Envelope, Message, Request};

/// Watches over one replica of a group.
pub(crate) struct CheckQuorum {
    /// To be looked at now and then: they change with every entry.
    pub(crate) metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    /// Those of them that change with leadership.
    pub(crate) server: WatchReceiverOf<TypeConfig, RaftServerMetrics<TypeConfig>>,
    /// Whether the replica rests: then nobody is asked, so nobody answers.
    pub(crate) is_resting: watch::Receiver<bool>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) group: GroupId,
    pub(crate) me: ReplicaId,
    /// How long a leader goes on without an answer: as long as the others wait for a sign of it.
    pub(crate) patience: Duration,
    /// How often it is looked at.
    pub(crate) every: Duration,
}

impl CheckQuorum {
    /// Goes on until the replica stops.
    pub(crate) fn run(self) {
        drop(Runtime::spawn(self.watch()));
    }

    async fn watch(mut self) {
        while self.await_leadership().await.is_some() && self.lead().await.is_some() {}
    }

    /// Returns when this replica leads; none when it has stopped.
    async fn await_leadership(&mut self) -> Option<()> {
        loop {
            if self.server.borrow_and_update().state == ServerState::Leader {
                return Some(());
            }
            self.server.changed().await.ok()?;
        }
    }

    /// Returns when this replica leads no more; none when it has stopped.
    async fn lead(&mut self) -> Option<()> {
        let term = self.metrics.borrow_watched().current_term;
        // Counted rather than measured: a process that stood still has heard nobody, and knows nothing.
        let (mut silent, mut acknowledged, mut asked) = (Duration::ZERO, None, 0);
        loop {
            if *self.is_resting.borrow_and_update() {
                self.is_resting.wait_for(|is_resting| !is_resting).await.ok()?;
                silent = Duration::ZERO;
            }
            wait_aligned(self.every).await;
            let metrics = self.metrics.borrow_watched().clone();
            metrics.running_state.as_ref().ok()?;
            if metrics.state != ServerState::Leader || metrics.current_term != term {
                return Some(());
            }
            let last_acknowledged = metrics.last_quorum_acked.map(SerdeInstant::into_inner);
            silent = if last_acknowledged == acknowledged {
                silent + self.every
            } else {
                Duration::ZERO
            };
            acknowledged = last_acknowledged;
            let voters = metrics.membership_config.membership().voter_ids();
            let others: Vec<ReplicaId> = voters.filter(|voter| *voter != self.me).collect();
            if silent < self.patience || others.is_empty() {
                continue;
            }
            let to = others[asked % others.len()];
            asked += 1;
            self.ask(to, from_raft_vote(&metrics.vote)).await;
        }
    }

    /// Asks another to stand for election at once.
    async fn ask(&self, to: ReplicaId, from: Vote) {
        info!(group = %self.group, %to, "no majority answers: asking another to lead");
        // One that lacks entries does not win, so how far its log reaches does not matter here. openraft's
        // own transfer would end this leader's work, too, though perhaps nobody hears of it.
        let request = Request::TransferLeader { from, to, last: None };
        let envelope = Envelope { group: self.group, from: self.me, to, request };
        // There may be no answer, and it makes no difference.
        let message = Message::Replica(envelope).encode();
        let _ = self.transport.call(to.node, Lane::Control, message, self.every).await;
    }
}
