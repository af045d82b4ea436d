//! Check quorum, as etcd calls it: a leader that no majority answers asks another to take over; and so does one
//! whose own disk does not answer.
//!
//! Such a leader may still be heard. What it sends then keeps the others from electing, and the group
//! stands still for as long as only the way back is cut. If it is the disk, a majority of others may do without
//! it; but all that they sync piles up here.

use std::sync::Arc;
use std::time::Duration;

use ephemeris_store::ids::{GroupId, ReplicaId};
use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::metrics::{RaftMetrics, RaftServerMetrics, SerdeInstant};
use openraft::{AsyncRuntime as _, ServerState};
use tokio::sync::watch;
use tracing::{debug, info};

use crate::runtime::Runtime;
use crate::timers::wait_aligned;
use crate::transport::{Lane, Transport};
use crate::types::{RaftLogId, TypeConfig, Vote, from_raft_vote};
use crate::wal::Wal;
use crate::wire::{Envelope, Message, Request};

/// Watches over one replica of a group.
pub(crate) struct CheckQuorum {
    /// To be looked at now and then: they change with every entry.
    pub(crate) metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    /// Those of them that change with leadership.
    pub(crate) server: WatchReceiverOf<TypeConfig, RaftServerMetrics<TypeConfig>>,
    /// Whether the replica rests: then nobody is asked, so nobody answers.
    pub(crate) is_resting: watch::Receiver<bool>,
    pub(crate) wal: Wal,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) group: GroupId,
    pub(crate) me: ReplicaId,
    /// How long a leader goes on without an answer, of others or of its disk: as long as the others wait for a
    /// sign of it.
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
        let mut unsynced = Duration::ZERO;
        loop {
            if *self.is_resting.borrow_and_update() {
                self.is_resting.wait_for(|is_resting| !is_resting).await.ok()?;
                (silent, unsynced) = (Duration::ZERO, Duration::ZERO);
            }
            wait_aligned(self.every).await;
            let metrics = self.metrics.borrow_watched().clone();
            metrics.running_state.as_ref().ok()?;
            if metrics.state != ServerState::Leader || metrics.current_term != term {
                return Some(());
            }
            let last_acknowledged = metrics.last_quorum_acked.map(SerdeInstant::into_inner);
            if last_acknowledged == acknowledged {
                silent += self.every;
            } else {
                (silent, asked) = (Duration::ZERO, 0);
            }
            acknowledged = last_acknowledged;
            let voters = metrics.membership_config.membership().voter_ids();
            let others: Vec<ReplicaId> = voters.filter(|voter| *voter != self.me).collect();
            unsynced =
                if self.wal.waits() > unsynced { unsynced + self.every } else { Duration::ZERO };
            // It has voted for another, and waits for that to be synced: the metrics do not tell.
            let has_voted = self.wal.vote(self.group).is_some_and(|vote| vote.term > term);
            if others.is_empty() || has_voted {
                continue;
            }
            let vote = from_raft_vote(&metrics.vote);
            if silent >= self.patience {
                let to = others[asked % others.len()];
                // Once, for as long as it lasts.
                if asked == 0 {
                    info!(group = %self.group, %to, "no majority answers: asking another to lead");
                } else {
                    debug!(group = %self.group, %to, "still no majority answers");
                }
                asked += 1;
                self.ask(to, vote).await;
            } else if unsynced >= self.patience
                && let Some(to) = self.able_without_me(&metrics, &others)
            {
                // It may be asked again after the same time.
                unsynced = Duration::ZERO;
                info!(group = %self.group, %to, "the disk hangs: asking another to lead");
                self.ask(to, vote).await;
            }
        }
    }

    /// Who lacks least of those that have committed what is not synced here, and so do without this disk. Where
    /// all disks are slow nobody would do better.
    fn able_without_me(
        &self,
        metrics: &RaftMetrics<TypeConfig>,
        others: &[ReplicaId],
    ) -> Option<ReplicaId> {
        let synced = |replica: &ReplicaId| -> Option<RaftLogId> {
            metrics.replication.as_ref()?.get(replica).copied().flatten()
        };
        let is_ahead = synced(&self.me) >= metrics.local_committed;
        others.iter().copied().filter(|_| !is_ahead).max_by_key(synced)
    }

    /// Asks another to stand for election at once.
    async fn ask(&self, to: ReplicaId, from: Vote) {
        // One that lacks entries does not win, so how far its log reaches does not matter here. openraft's
        // own transfer would end this leader's work, too, though perhaps nobody hears of it.
        let request = Request::TransferLeader { from, to, last: None };
        let envelope = Envelope { group: self.group, to, request };
        // There may be no answer, and it makes no difference.
        let message = Message::Replica(envelope).encode();
        let _ = self.transport.call(to.node, Lane::Control, message, self.every).await;
    }
}
