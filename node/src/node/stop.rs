//! Stopping: leadership is handed away, then everything ends in order.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ephemeris_raft::GroupStatus;
use ephemeris_store::ids::{NodeId, ReplicaId};
use tracing::warn;

use super::Node;
use crate::clock;
use crate::placement::describe_nodes;
use crate::supervisor;

/// How long handing leadership away may take, all groups together.
const HAND_OVER_DEADLINE: Duration = Duration::from_secs(5);
/// How often it is looked whether some is left.
const HAND_OVER_EVERY: Duration = Duration::from_millis(20);
/// How long it is believed who could take over: then all are asked again, for they may stop, too.
const HEIRS_FOR: Duration = Duration::from_millis(200);
/// How long somebody is looked for who could.
const HEIRS_PATIENCE: Duration = Duration::from_secs(1);

impl Node {
    /// Stops being ready, and hands all leadership away; requests are still answered.
    pub(crate) async fn hand_over(&self) {
        self.inner.draining.store(true, Ordering::SeqCst);
        let handed_over = async {
            let started = clock::monotonic();
            loop {
                let heirs = self.heirs().await;
                let asked = clock::monotonic();
                while asked.elapsed() < HEIRS_FOR {
                    match self.hand_over_once(&heirs).await {
                        HandOver::Done => return,
                        HandOver::NobodyElse if started.elapsed() >= HEIRS_PATIENCE => return,
                        HandOver::NobodyElse | HandOver::Asked => {}
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
        self.hand_over_once(&self.heirs().await).await;
    }

    /// The nodes that answer, and do not stop themselves; true for those whose disks are well.
    async fn heirs(&self) -> BTreeMap<NodeId, bool> {
        let nodes = describe_nodes(self).await.into_values().filter(|node| !node.draining);
        nodes.map(|node| (node.node, !node.hung)).collect()
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

    /// Asks a follower of every group led from here to take over.
    async fn hand_over_once(&self, heirs: &BTreeMap<NodeId, bool>) -> HandOver {
        let mut handed_over = HandOver::Done;
        let catalog = self.inner.catalog.status();
        match successor(&catalog, heirs) {
            Ok(to) => {
                handed_over = HandOver::Asked;
                self.inner.catalog.transfer_leadership(to).await;
            }
            Err(kept) => handed_over = handed_over.max(kept),
        }
        for local in self.local_partitions() {
            match successor(&local.group().status(), heirs) {
                Ok(to) => {
                    handed_over = HandOver::Asked;
                    local.group().transfer_leadership(to).await;
                }
                Err(kept) => handed_over = handed_over.max(kept),
            }
        }
        handed_over
    }
}

/// How far handing over has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HandOver {
    /// Nothing is led here that others could lead.
    Done,
    /// Nobody is there to take over what is left.
    NobodyElse,
    /// Somebody was asked.
    Asked,
}

/// The voter that takes over what this replica leads: on a node whose disk is well, if any is, and furthest along. A
/// group without new entries does not show by what is replicated who has gone.
fn successor(status: &GroupStatus, heirs: &BTreeMap<NodeId, bool>) -> Result<ReplicaId, HandOver> {
    let others = || status.voters.iter().copied().filter(|replica| *replica != status.replica);
    if !status.leadership.is_me || others().next().is_none() {
        return Err(HandOver::Done);
    }
    let could = |replica: &ReplicaId| heirs.contains_key(&replica.node);
    let matching = |replica: &ReplicaId| status.matching.get(replica).copied().flatten();
    let rank = |replica: &ReplicaId| (heirs.get(&replica.node).copied(), matching(replica));
    others().filter(could).max_by_key(rank).ok_or(HandOver::NobodyElse)
}
