//! Nodes that are made anew, leaders that hand over, replicas that need a snapshot.

use std::time::Duration;

use ephemeris_cluster_tests::client::Call;
use ephemeris_cluster_tests::cluster::Passage;
use ephemeris_cluster_tests::wait;
use rand::RngExt as _;
use serde_json::json;

use super::links::around;
use super::{Nemesis, names};

/// How long others may take until they can do without a node.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(30);
/// Hand-overs one after the other, and the pauses between them.
const HAND_OVERS: u32 = 8;
const HAND_OVER_PAUSE_MS: std::ops::Range<u64> = 100..800;
/// How often the others let their logs go while a node is away, and the pause between.
const FLUSHES: u32 = 6;
const FLUSH_PAUSE: Duration = Duration::from_millis(800);

/// Where processes end, as `ephemeris-faulty` knows them.
const POINTS: [&str; 5] =
    ["log-written", "log-torn", "log-synced", "state-written", "state-flushed"];
const POINTS_OF_SNAPSHOTS: [&str; 3] =
    ["snapshot-received", "snapshot-begun", "snapshot-installed"];

impl Nemesis<'_> {
    /// A log is damaged: its node must refuse it, and say which command helps.
    pub(super) async fn corrupt_record(&mut self, node: u32) -> Vec<String> {
        self.cluster.kill(node);
        self.note_installed();
        self.cluster.damage_log(node);
        self.cluster.spawn(node);
        let status = self.cluster.await_exit(node).await;
        assert!(!status.success(), "node {node} ended well though its log is damaged");
        self.rebuild(node).await;
        names(&[node])
    }

    /// A node loses its disk: it must be refused, is forgotten, and comes back as a new one.
    pub(super) async fn replace(&mut self, node: u32) -> Vec<String> {
        self.lose_disk(node).await;
        self.rebuild(node).await;
        names(&[node])
    }

    /// The same, while another hears and says nothing. If a group had no majority without the two, the node
    /// is not forgotten before the other is back.
    pub(super) async fn replace_while_cut(
        &mut self,
        node: u32,
        cut: u32,
        lasts: Duration,
    ) -> Vec<String> {
        let mut others = self.cluster.ids();
        others.retain(|other| *other != cut);
        self.set_links(&around(cut, &others), Passage::Held);
        self.lose_disk(node).await;
        others.retain(|other| *other != node);
        let is_forgotten = self.try_rebuild(node, others[0]).is_ok();
        if is_forgotten {
            self.cluster.spawn(node);
        }
        tokio::time::sleep(lasts).await;
        self.heal_links();
        if is_forgotten {
            self.cluster.await_ready(node).await;
            self.cluster.await_copies().await;
        } else {
            self.rebuild(node).await;
        }
        let when = if is_forgotten { "meanwhile" } else { "afterwards" };
        vec![format!("n{node} replaced {when}"), format!("n{cut} cut off")]
    }

    async fn lose_disk(&mut self, node: u32) {
        self.cluster.kill(node);
        self.note_installed();
        self.cluster.wipe(node);
        self.cluster.spawn(node);
        let status = self.cluster.await_exit(node).await;
        assert!(!status.success(), "node {node} ended well though its data are gone");
    }

    async fn rebuild(&mut self, node: u32) {
        let mut others = self.cluster.running();
        others.retain(|other| *other != node);
        let rebuild = async || self.try_rebuild(node, others[0]);
        wait::until_seen("the node to be forgotten", FORGOTTEN_WITHIN, rebuild).await;
        self.restart(node).await;
        self.cluster.await_copies().await;
    }

    /// Asks another to forget a node, so that it can join anew.
    fn try_rebuild(&self, node: u32, of: u32) -> Result<(), String> {
        let rebuilt = tokio::task::block_in_place(|| self.cluster.rebuild_by(node, of));
        if rebuilt.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&rebuilt.stderr).into_owned())
    }

    /// Whoever leads has others lead.
    pub(super) async fn transfer_leaders(&mut self) -> Vec<String> {
        let mut asked = Vec::new();
        for _ in 0..HAND_OVERS {
            let leader = self.cluster.leader(self.container).await;
            self.hand_over(leader).await;
            asked.push(leader);
            let pause = self.rng.random_range(HAND_OVER_PAUSE_MS);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        names(&asked)
    }

    /// A node has others lead what it leads.
    pub(super) async fn hand_over(&mut self, leader: u32) {
        let hand_over = Call::post("/admin/hand-over", "");
        let answer = self.cluster.client(leader).send(&hand_over).await;
        assert!(answer.is_ok_and(|answer| answer.status == 200), "node {leader} hands over");
        self.note_installed();
    }

    /// A node is away for so long that the others' logs do not reach back to what it has.
    pub(super) async fn snapshot(&mut self, node: u32) -> Vec<String> {
        self.fall_behind(node).await;
        self.restart(node).await;
        names(&[node])
    }

    /// Ends a node, and has the others let their logs go.
    async fn fall_behind(&mut self, node: u32) {
        self.cluster.kill(node);
        self.note_installed();
        for _ in 0..FLUSHES {
            tokio::time::sleep(FLUSH_PAUSE).await;
            for client in self.cluster.clients(&self.cluster.running()) {
                let flushed = client.send(&Call::post("/admin/flush", "")).await;
                assert!(flushed.is_ok_and(|answer| answer.status == 200), "it flushes");
            }
        }
    }

    /// A process ends at a point that every node passes again and again.
    pub(super) async fn crash_point(&mut self, node: u32, lasts: Duration) -> Vec<String> {
        let point = POINTS[self.rng.random_range(0..POINTS.len())];
        self.cluster.set_faults(node, &json!({ "crash": point }).to_string()).await;
        // So that it need not be waited for.
        let flush = Call::post("/admin/flush", "");
        let _ = tokio::time::timeout(FLUSH_PAUSE, self.cluster.client(node).send(&flush)).await;
        let status = self.cluster.await_exit(node).await;
        self.note_installed();
        assert!(!status.success(), "node {node} ended well at {point}");
        tokio::time::sleep(lasts / 2).await;
        self.cluster.set_faults(node, "{}").await;
        self.restart(node).await;
        vec![format!("n{node} at {point}")]
    }

    /// A process ends while it installs a snapshot.
    pub(super) async fn crash_in_snapshot(&mut self, node: u32) -> Vec<String> {
        let point = POINTS_OF_SNAPSHOTS[self.rng.random_range(0..POINTS_OF_SNAPSHOTS.len())];
        self.fall_behind(node).await;
        self.cluster.set_faults(node, &json!({ "crash": point }).to_string()).await;
        self.cluster.spawn(node);
        let status = self.cluster.await_exit(node).await;
        assert!(!status.success(), "node {node} ended well at {point}");
        self.cluster.set_faults(node, "{}").await;
        self.restart(node).await;
        vec![format!("n{node} at {point}")]
    }
}
