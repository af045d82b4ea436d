//! Random faults by seed: whatever happens, nothing acknowledged is lost, no read is stale, and the
//! replicas end up identical.
//!
//! `SEEDS=1000 cargo nextest run -p ephemeris-raft --test simulation` runs more of them; a failure
//! prints its seed, and `SEED=n` runs that one alone.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{Cluster, replica, simulate};
use ephemeris_raft::testing::Weather;
use ephemeris_store::ids::NodeId;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::{sleep, timeout};

/// Seeds run when nothing else is said.
const SEEDS: u64 = 40;
/// Faults and operations in one run.
const STEPS: u32 = 120;
/// How long a client waits for an answer.
const DEADLINE: Duration = Duration::from_secs(1);
const ITEMS: u64 = 5;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn nothing_acknowledged_is_lost_and_no_read_is_stale() {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        let result = std::panic::catch_unwind(|| simulate(seed, async || run(seed).await));
        if let Err(panic) = result {
            eprintln!("replay: SEED={seed} cargo nextest run -p ephemeris-raft --test simulation");
            std::panic::resume_unwind(panic);
        }
    }
}

struct World {
    cluster: Cluster,
    rng: SmallRng,
    count: u32,
    serial: u64,
    /// The newest acknowledged serial number of each item.
    acknowledged: BTreeMap<u64, u64>,
    /// The newest one that was ever sent.
    sent: BTreeMap<u64, u64>,
}

async fn run(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let count = if rng.random_bool(0.7) { 3 } else { 5 };
    let cluster = Cluster::start(count, seed).await;
    let (acknowledged, sent) = (BTreeMap::new(), BTreeMap::new());
    let mut world = World { cluster, rng, count, serial: 0, acknowledged, sent };
    for _ in 0..STEPS {
        world.step().await;
    }
    world.heal_and_check().await;
}

impl World {
    fn any_node(&mut self) -> u32 {
        self.rng.random_range(1..=self.count)
    }

    fn any_running(&mut self) -> Option<u32> {
        let node = self.any_node();
        self.cluster.node(node).is_running().then_some(node)
    }

    async fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..50 => self.write().await,
            50..65 => self.read().await,
            65..70 => {
                let node = self.any_node();
                self.cluster.crash(node).await;
            }
            70..78 => {
                let node = self.any_node();
                if !self.cluster.node(node).is_running() {
                    self.cluster.restart(node).await;
                }
            }
            78..82 => {
                let node = self.any_node();
                self.cluster.network.isolate(NodeId(node));
            }
            82..84 => {
                let (from, to) = (self.any_node(), self.any_node());
                self.cluster.network.cut(NodeId(from), NodeId(to));
            }
            84..90 => self.cluster.network.heal(),
            90..92 => self.cluster.network.set_weather(Weather::FOUL),
            92..94 => self.cluster.network.set_weather(Weather::FAIR),
            94..98 => {
                let node = self.any_node();
                self.cluster.checkpoint(node).await;
            }
            _ => {
                let to = self.any_node();
                if let Some(from) = self.any_running() {
                    let group = self.cluster.node(from).group();
                    group.transfer_leadership(replica(to)).await;
                }
            }
        }
        let pause = self.rng.random_range(0..200);
        sleep(Duration::from_millis(pause)).await;
    }

    /// Writes through the leader, if anybody believes to be it.
    async fn write(&mut self) {
        let item = self.rng.random_range(0..ITEMS);
        let Some(node) = self.cluster.leader() else { return };
        self.serial += 1;
        let serial = self.serial;
        self.sent.insert(item, serial);
        let id = format!("i{item}");
        let write = self.cluster.upsert(node, &id, serial);
        if let Ok(Ok(_)) = timeout(DEADLINE, write).await {
            self.acknowledged.insert(item, serial);
        }
    }

    /// Reads through any node: an answer is never older than the newest acknowledged write.
    async fn read(&mut self) {
        let item = self.rng.random_range(0..ITEMS);
        let Some(node) = self.any_running() else { return };
        let id = format!("i{item}");
        let read = self.cluster.read(node, &id);
        if let Ok(Ok(found)) = timeout(DEADLINE, read).await {
            self.check(item, found);
        }
    }

    fn check(&self, item: u64, found: Option<u64>) {
        let acknowledged = self.acknowledged.get(&item).copied();
        let sent = self.sent.get(&item).copied();
        assert!(found >= acknowledged, "item {item}: {found:?}, but {acknowledged:?} was acked");
        assert!(found <= sent, "item {item}: {found:?}, but {sent:?} was the last one sent");
    }

    async fn heal_and_check(&mut self) {
        self.cluster.network.heal();
        self.cluster.network.set_weather(Weather::FAIR);
        for node in 1..=self.count {
            if !self.cluster.node(node).is_running() {
                self.cluster.restart(node).await;
            }
        }
        self.cluster.wait_for_agreement().await;
        let leader = self.cluster.wait_for_leader().await;
        for item in 0..ITEMS {
            let found = self.cluster.read(leader, &format!("i{item}")).await;
            self.check(item, found.expect("a healed cluster answers"));
        }
    }
}
