//! Clocks that are wrong, disks that fail or are slow, machines that lose their power.

use std::time::Duration;

use ephemeris_cluster_tests::cluster::Resource;
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{Nemesis, names};

/// By how much a wall clock is set, in milliseconds: a second, an hour, a year.
const JUMPS_MS: [i64; 3] = [1000, 3_600_000, 31_536_000_000];
/// How far a clock that strobes is ahead and behind, in milliseconds, and how long it does so: nodes look at each
/// other's clocks once a second.
const STROBE_MS: i64 = 500;
const STROBES_FOR: Duration = Duration::from_secs(6);

/// By how much the clocks of a majority are set at most, in milliseconds, and for how long: what contradicts
/// the time so far is believed after five seconds.
const NUDGE_MS: i64 = 500;
const NUDGED_FOR_MS: std::ops::Range<u64> = 2000..9000;
/// So far the cluster's time may then be off, to either side: clocks are believed to within 50 ms, and the
/// rest is for questions that take a while.
pub(super) const NUDGE_SKEW: Duration = Duration::from_millis(700);

/// How long it takes to make a log durable, or a state to read, in milliseconds.
const SLOW_LOG_MS: std::ops::Range<u64> = 1000..5000;
const SLOW_STATE_MS: std::ops::Range<u64> = 50..1000;

impl Nemesis<'_> {
    /// Lets machines lie for a while.
    pub(super) async fn lie(
        &mut self,
        nodes: &[u32],
        faults: Value,
        lasts: Duration,
    ) -> Vec<String> {
        let faults = faults.to_string();
        for node in nodes {
            self.cluster.set_faults(*node, &faults).await;
        }
        self.wait(lasts).await;
        self.tell_truth(nodes).await;
        self.note_healed();
        names(nodes)
    }

    async fn tell_truth(&self, nodes: &[u32]) {
        for node in nodes {
            self.cluster.set_faults(*node, "{}").await;
        }
    }

    pub(super) async fn jump_clocks(&mut self, nodes: &[u32], lasts: Duration) -> Vec<String> {
        let ahead = JUMPS_MS[self.rng.random_range(0..JUMPS_MS.len())];
        let sign = if self.rng.random_bool(0.5) { 1 } else { -1 };
        self.lie(nodes, json!({ "wall": { "ahead_ms": sign * ahead } }), lasts).await
    }

    pub(super) async fn strobe_clocks(&mut self, nodes: &[u32]) -> Vec<String> {
        self.lie(nodes, json!({ "wall": { "strobe_ms": STROBE_MS } }), STROBES_FOR).await
    }

    pub(super) async fn drift_clocks(&mut self, nodes: &[u32], lasts: Duration) -> Vec<String> {
        let pace = if self.rng.random_bool(0.5) { 0.5 } else { 2.0 };
        self.lie(nodes, json!({ "wall": { "pace": pace } }), lasts).await
    }

    /// Sets the clocks of so many nodes that they may be believed, all by the same hand or each by its own.
    /// Nothing else goes wrong until all clocks agree again.
    pub(super) async fn nudge_clocks(&mut self, nodes: &[u32]) -> Vec<String> {
        let common = self.rng.random_range(-NUDGE_MS..=NUDGE_MS);
        let is_common = self.rng.random_bool(0.5);
        let mut targets = Vec::new();
        for node in nodes {
            let own = self.rng.random_range(-NUDGE_MS..=NUDGE_MS);
            let ahead = if is_common { common } else { own };
            let faults = json!({ "wall": { "ahead_ms": ahead } }).to_string();
            self.cluster.set_faults(*node, &faults).await;
            targets.push(format!("n{node} by {ahead} ms"));
        }
        let lasts = self.rng.random_range(NUDGED_FOR_MS);
        self.wait(Duration::from_millis(lasts)).await;
        self.tell_truth(nodes).await;
        self.note_healed();
        self.cluster.await_clocks().await;
        targets
    }

    pub(super) async fn slow_logs(&mut self, nodes: &[u32], lasts: Duration) -> Vec<String> {
        let takes = self.rng.random_range(SLOW_LOG_MS);
        self.lie(nodes, json!({ "log": { "slow": takes } }), lasts).await
    }

    pub(super) async fn slow_states(&mut self, nodes: &[u32], lasts: Duration) -> Vec<String> {
        let takes = self.rng.random_range(SLOW_STATE_MS);
        self.lie(nodes, json!({ "state": { "slow": takes } }), lasts).await
    }

    /// Breaks a disk: the node ends by itself, and is started when the disk is whole again.
    pub(super) async fn spoil(&mut self, node: u32, faults: Value, lasts: Duration) -> Vec<String> {
        self.cluster.set_faults(node, &faults.to_string()).await;
        self.note_installed();
        let status = self.cluster.await_exit(node).await;
        assert!(!status.success(), "node {node} ended well though its disk is broken");
        tokio::time::sleep(lasts).await;
        self.cluster.set_faults(node, "{}").await;
        self.restart(node).await;
        names(&[node])
    }

    /// A node hardly moves.
    pub(super) async fn slow_down(&mut self, node: u32, lasts: Duration) -> Vec<String> {
        self.cluster.exhaust(node, Resource::Processor);
        self.wait(lasts).await;
        self.cluster.relieve(node, Resource::Processor);
        names(&[node])
    }

    /// Machines lose their power at once, and come back with what was synced.
    pub(super) async fn lose_power(&mut self, nodes: &[u32], lasts: Duration) -> Vec<String> {
        tokio::task::block_in_place(|| self.cluster.lose_power(nodes));
        self.wait(lasts).await;
        self.bring_back(nodes).await;
        names(nodes)
    }
}
