//! Too many clients, and too few descriptors.

use std::net::SocketAddr;
use std::time::Duration;

use ephemeris_cluster_tests::client::Call;
use ephemeris_cluster_tests::cluster::Resource;
use ephemeris_cluster_tests::load::{Crowd, storm};

use super::{Nemesis, names};

/// Clients that come at once, and how soon all of them must have been served.
const STORM: usize = 500;
const SERVED_WITHIN: Duration = Duration::from_secs(20);
/// Clients that are connected and say nothing.
const IDLE: usize = 10_000;
const GATHERED_WITHIN: Duration = Duration::from_mins(1);
/// How long a node without descriptors may think about an order.
const ORDER_PATIENCE: Duration = Duration::from_secs(1);

impl Nemesis<'_> {
    fn addresses(&self, nodes: &[u32]) -> Vec<SocketAddr> {
        nodes.iter().map(|node| self.cluster.crowd_address(*node)).collect()
    }

    /// All nodes are killed and started, and hundreds of clients are at their doors.
    pub(super) async fn storm(&mut self) -> Vec<String> {
        let all = self.cluster.ids();
        self.cluster.kill_at_once(&all);
        self.note_installed();
        for node in &all {
            self.cluster.spawn(*node);
        }
        self.note_healed();
        storm(&self.addresses(&all), self.container, STORM, SERVED_WITHIN).await;
        for node in &all {
            self.cluster.await_ready(*node).await;
        }
        names(&all)
    }

    /// A leader is killed while nearly all connections there may be are taken by clients that say nothing.
    pub(super) async fn idle_connections(&mut self, leader: u32, lasts: Duration) -> Vec<String> {
        let all = self.addresses(&self.cluster.ids());
        let idle = Crowd::most(IDLE);
        if idle < IDLE {
            self.in_vain = Some(format!("`ulimit -Hn` lets only {idle} of {IDLE} clients connect"));
        }
        let mut crowd = Crowd::gather(&all, idle, GATHERED_WITHIN).await;
        // Gathering them is no fault: only what follows must not take long.
        self.begun = Some(self.timer.now());
        let killed = self.kill(&[leader], lasts).await;
        let others: Vec<u32> =
            self.cluster.ids().into_iter().filter(|node| *node != leader).collect();
        let others = self.addresses(&others);
        let (connected, answered) = (crowd.count(&others), crowd.count_answered(&others).await);
        assert_eq!(answered, connected, "clients of nodes that were not killed are still served");
        killed
    }

    /// A node can open nothing: it goes on with what it has, or ends by itself.
    pub(super) async fn starve(&mut self, node: u32, lasts: Duration) -> Vec<String> {
        self.cluster.exhaust(node, Resource::Descriptors);
        self.note_installed();
        // It may be deaf by now, or end for want of a file.
        let client = self.cluster.client(node);
        let flush = Call::post("/admin/flush", "");
        let _ = tokio::time::timeout(ORDER_PATIENCE, client.send(&flush)).await;
        tokio::time::sleep(lasts).await;
        let ended = self.cluster.try_exit(node);
        self.cluster.relieve(node, Resource::Descriptors);
        if let Some(status) = ended {
            assert!(!status.success(), "node {node} ended well though it can open no file");
            self.restart(node).await;
        }
        names(&[node])
    }
}
