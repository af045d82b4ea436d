//! Stopping: leadership is handed away, then everything ends in order.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ephemeris_raft::GroupStatus;
use ephemeris_store::ids::{NodeId, ReplicaId};
use tracing::warn;

use super::Node;
use crate::clock;
use crate::placement::{self, describe_nodes};
use crate::supervisor;

/// How long handing leadership away may take, all groups together.
const HAND_OVER_DEADLINE: Duration = Duration::from_secs(5);
/// How often it is looked whether some is left.
const HAND_OVER_EVERY: Duration = Duration::from_millis(20);
/// How long nodes count as able to take over: then they are asked again, for they may stop, too.
const ABLE_FOR: Duration = Duration::from_millis(200);

impl Node {
    /// Stops being ready, and hands all leadership away; requests are still answered.
    pub(crate) async fn hand_over(&self) {
        self.inner.draining.store(true, Ordering::SeqCst);
        let handed_over = async {
            loop {
                let able = self.able().await;
                let asked = clock::monotonic();
                while asked.elapsed() < ABLE_FOR {
                    if !self.hand_over_once(&able).await {
                        return;
                    }
                    tokio::time::sleep(HAND_OVER_EVERY).await;
                }
            }
        };
        if tokio::time::timeout(HAND_OVER_DEADLINE, handed_over).await.is_err() {
            warn!("some leadership could not be handed over in time");
        }
    }

    /// Asks others to take over once, and stays ready: what is then led from here comes back to it as after
    /// an election.
    pub(crate) async fn step_aside(&self) {
        self.hand_over_once(&self.able().await).await;
    }

    /// The nodes that answer, and do not stop themselves.
    async fn able(&self) -> BTreeSet<NodeId> {
        placement::able(&describe_nodes(self).await)
    }

    /// Stops all replicas, and leaves storage as a clean start wants it.
    pub(crate) async fn stop(&self) {
        // First whoever would start a replica that the catalog has just told of.
        self.inner.background.stop().await;
        for local in self.local_partitions() {
            // Who asks from now on is told that it is not here, and so that nothing was done.
            self.take_out(local.group().group());
            local.stop().await;
        }
        self.inner.catalog_watch.stop().await;
        self.inner.catalog.stop().await;
        if let Err(fault) = self.inner.storage.flush().await {
            supervisor::fault(&fault.to_string());
        }
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.inner.storage.wal.close(Box::new(move |result| {
            // Nobody listens only if the process ends before us.
            let _ = sender.send(result);
        }));
        if let Ok(Err(error)) = receiver.await {
            supervisor::fault(&format!("the log could not be closed: {error}"));
        }
    }

    /// Asks a follower of every group led from here to take over; false if none is led any more that another could
    /// lead.
    async fn hand_over_once(&self, able: &BTreeSet<NodeId>) -> bool {
        let mut leads = false;
        let catalog = self.inner.catalog.status();
        if let Some(to) = successor(&catalog, able) {
            leads = true;
            self.inner.catalog.transfer_leadership(to).await;
        }
        for local in self.local_partitions() {
            if let Some(to) = successor(&local.group().status(), able) {
                leads = true;
                local.group().transfer_leadership(to).await;
            }
        }
        leads
    }
}

/// The voter on an able node that is furthest along, if this replica leads others: a group without new entries does
/// not show by what is replicated who has gone.
fn successor(status: &GroupStatus, able: &BTreeSet<NodeId>) -> Option<ReplicaId> {
    if !status.leadership.is_me {
        return None;
    }
    let could = |replica: &ReplicaId| *replica != status.replica && able.contains(&replica.node);
    let matching = |replica: &ReplicaId| status.matching.get(replica).copied().flatten();
    status.voters.iter().copied().filter(could).max_by_key(matching)
}
