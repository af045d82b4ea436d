//! Asks the other nodes for their clocks, once a second, and settles on what a majority says.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ephemeris_store::ids::NodeId;
use futures_util::future::join_all;

use super::Node;
use crate::clock::{Clock as _, QuorumClock};
use crate::requests::{NodeRequest, NodeResponse};

/// Pause between two rounds of questions.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// The same, as long as the clocks have not agreed.
const SAMPLE_EVERY_AT_FIRST: Duration = Duration::from_millis(50);
/// A slower answer would say little about the other clock.
const ANSWER_DEADLINE: Duration = Duration::from_millis(500);

impl Node {
    /// The other nodes whose clocks count: those that are registered or awaited, and those that have a copy of the
    /// catalog. Founders have one before they are registered, one by one.
    pub(super) fn others_with_clocks(&self) -> Vec<NodeId> {
        let catalog = self.inner.catalog.status();
        let members = catalog.voters.iter().chain(&catalog.learners).map(|replica| replica.node);
        let directory = self.directory().current();
        let known = self.catalog_nodes().into_iter().chain(directory.state().awaited());
        let nodes: BTreeSet<NodeId> = members.chain(known).collect();
        nodes.into_iter().filter(|node| *node != self.node_id()).collect()
    }

    /// Runs until the node stops.
    pub(super) async fn run_clock_samples(&self, clock: Arc<QuorumClock>) {
        loop {
            let others = self.others_with_clocks();
            join_all(others.iter().map(|node| self.sample_clock(&clock, *node))).await;
            clock.settle(&others);
            let agreed = clock.width_ms().is_some();
            tokio::time::sleep(if agreed { SAMPLE_EVERY } else { SAMPLE_EVERY_AT_FIRST }).await;
        }
    }

    async fn sample_clock(&self, clock: &QuorumClock, node: NodeId) {
        let sample = clock.ask();
        let answer = self.send(node, &NodeRequest::Clock, ANSWER_DEADLINE).await;
        if let Ok(NodeResponse::Clock(wall_micros)) = answer {
            clock.observe(node, sample, wall_micros);
        }
    }
}
