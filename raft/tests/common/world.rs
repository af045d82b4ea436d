//! A world of random faults: clients that write and read, a supervisor that restarts what stopped,
//! and a demon that breaks machines, disks and the network. Everything follows from the seed.
//!
//! 1. Each seed has its own selection of faults, so that some are seen often together.
//! 2. Operations run side by side; an item has one writer at a time, so what a reader may see is
//!    known: at least what was acknowledged or read before the read began, at most what was sent.
//! 3. At the end everything is put right: the replicas agree in every row, and what was
//!    acknowledged is there; and once more after all of them lost power at once.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ephemeris_raft::testing::Weather;
use ephemeris_store::command::{Command, CommandEffect};
use ephemeris_store::engine::{KeyRange, Table};
use ephemeris_store::partition_key::SlotRange;
use ephemeris_store::time::Millis;
use ephemeris_store::timeline::{OwnExpiry, VersionRow, expiry_place};
use ephemeris_store::ttl::{PolicyEpoch, TimeToLive, TtlPolicy};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::demon::FaultKind;
use super::{Cluster, Loss, Node, NodeOptions};

/// Operations and faults in one run.
const STEPS: u32 = 120;
/// How long a client waits for an answer.
const DEADLINE: Duration = Duration::from_secs(1);
/// Items that are written and read back.
const ITEMS: u64 = 5;
/// Items that expire.
const MORTALS: u64 = 4;

/// What happened in a run.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) simulated: Duration,
    /// How often what happened.
    pub(crate) events: BTreeMap<&'static str, u64>,
    /// Of every replica's rows, at the end.
    pub(crate) digest: u64,
}

pub(crate) struct World {
    pub(super) cluster: Cluster,
    pub(super) rng: SmallRng,
    pub(super) count: u32,
    pub(super) kinds: Vec<FaultKind>,
    ledger: Arc<Mutex<Ledger>>,
    serial: u64,
    epoch: u64,
    operations: JoinSet<()>,
    events: BTreeMap<&'static str, u64>,
}

/// What clients were told.
#[derive(Default)]
struct Ledger {
    /// The newest acknowledged serial number of each item.
    acknowledged: BTreeMap<u64, u64>,
    /// The newest one that was ever read: it stays, also if its writer was told nothing.
    seen: BTreeMap<u64, u64>,
    /// The newest one that was ever sent.
    sent: BTreeMap<u64, u64>,
    /// Items that somebody writes just now.
    busy: BTreeSet<u64>,
    writes: u64,
    reads: u64,
    reads_following: u64,
}

impl Ledger {
    /// Judges what a read that began with this floor has found; later ones find no less.
    fn judge(&mut self, item: u64, floor: Option<u64>, found: Option<u64>) {
        let sent = self.sent.get(&item).copied();
        assert!(found >= floor, "item {item}: {found:?}, but {floor:?} was there before");
        assert!(found <= sent, "item {item}: {found:?}, but {sent:?} was the last one sent");
        if let Some(found) = found {
            let seen = self.seen.entry(item).or_default();
            *seen = found.max(*seen);
        }
    }

    /// What a read that begins now finds at least.
    fn floor(&self, item: u64) -> Option<u64> {
        self.acknowledged.get(&item).max(self.seen.get(&item)).copied()
    }
}

/// Runs one seed; panics if anything is wrong.
pub(crate) async fn run(seed: u64) -> Summary {
    let started = Instant::now();
    let mut rng = SmallRng::seed_from_u64(seed);
    let count = if rng.random_bool(0.7) { 3 } else { 5 };
    let mut options =
        NodeOptions { segment_bytes: 2048 << rng.random_range(0..6), ..NodeOptions::default() };
    options.group.log_entries_kept = [0, 5, 20][rng.random_range(0..3)];
    let quiet_after = [0, 50, 200, 2000][rng.random_range(0..4)];
    options.group.quiet_after = Duration::from_millis(quiet_after);
    let kinds = FaultKind::some(&mut rng);
    let cluster = Cluster::start_with(count, seed, options).await;
    let mut world = World {
        cluster,
        rng,
        count,
        kinds,
        ledger: Arc::default(),
        serial: 0,
        epoch: 0,
        operations: JoinSet::new(),
        events: BTreeMap::new(),
    };
    for _ in 0..STEPS {
        world.step().await;
    }
    world.heal_and_check().await;
    world.sweep_and_check().await;
    world.darken().await;
    world.summary(started)
}

impl World {
    pub(super) fn any_node(&mut self) -> u32 {
        self.rng.random_range(1..=self.count)
    }

    pub(super) fn any_running(&mut self) -> Option<u32> {
        let node = self.any_node();
        self.cluster.node(node).is_running().then_some(node)
    }

    pub(super) fn note(&mut self, event: &'static str) {
        *self.events.entry(event).or_default() += 1;
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn step(&mut self) {
        self.supervise();
        if self.cluster.running().any(|node| node.group().status().is_resting) {
            self.note("replica at rest");
        }
        match self.rng.random_range(0..100) {
            0..40 => self.write(),
            40..60 => self.read(),
            60..70 => self.write_mortal(),
            70..72 => self.change_policy(),
            72..76 => self.sweep(),
            76..88 => self.repair().await,
            _ => self.break_something(),
        }
        let pause = self.rng.random_range(0..200);
        sleep(Duration::from_millis(pause)).await;
        while let Some(ended) = self.operations.try_join_next() {
            resume(ended);
        }
    }

    /// Ends processes whose replica has stopped by itself: that must have had a reason.
    fn supervise(&mut self) {
        for id in 1..=self.count {
            let node = self.cluster.node(id);
            let Some(reason) = node.failure() else { continue };
            assert!(node.is_excused, "node {id} stopped, and its disks were well: {reason}");
            let is_broken =
                reason.contains("panicked") || reason.contains("an invariant is broken");
            assert!(!is_broken, "no disk explains why node {id} stopped: {reason}");
            let seed = self.rng.random();
            let loss = if node.is_losing_power {
                Loss::Some { seed }
            } else {
                Loss::Process { flushed: seed }
            };
            self.note("replica stopped itself");
            self.cluster.lose(id, loss);
        }
    }

    /// Starts a node; it may fail if a disk is in the way.
    pub(super) async fn restart(&mut self, id: u32) {
        let is_excused = self.cluster.node(id).is_excused;
        match self.cluster.try_restart(id).await {
            Ok(()) => self.note("restart"),
            Err(error) => {
                assert!(is_excused, "node {id} does not start, and its disks are well: {error}");
                let flushed = self.rng.random();
                self.cluster.lose(id, Loss::Process { flushed });
                self.note("failed start");
            }
        }
    }

    /// Writes through the leader, if anybody believes to be it.
    fn write(&mut self) {
        let item = self.rng.random_range(0..ITEMS);
        let Some(node) = self.cluster.leader() else { return };
        if !self.ledger().busy.insert(item) {
            return;
        }
        self.serial += 1;
        let serial = self.serial;
        self.ledger().sent.insert(item, serial);
        let (client, ledger) = (self.cluster.client(node), self.ledger.clone());
        self.operations.spawn(async move {
            let id = format!("i{item}");
            let answer = timeout(DEADLINE, client.upsert(&id, serial, Some(-1))).await;
            let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
            ledger.busy.remove(&item);
            if let Ok(Ok(_)) = answer {
                ledger.acknowledged.insert(item, serial);
                ledger.writes += 1;
            }
        });
    }

    /// Reads through any node, half of the time through one that leads: an answer is never older than the
    /// newest write that was acknowledged, or read, before.
    fn read(&mut self) {
        let item = self.rng.random_range(0..ITEMS);
        let leads = |node: &&Node| node.group().leadership().is_me;
        let leaders: Vec<u32> =
            self.cluster.running().filter(leads).map(|node| node.id.0).collect();
        let node = match leaders.len() {
            0 => self.any_running(),
            _ if self.rng.random_bool(0.5) => self.any_running(),
            several => Some(leaders[self.rng.random_range(0..several)]),
        };
        let Some(node) = node else { return };
        let follows = !leaders.contains(&node);
        let (client, ledger) = (self.cluster.client(node), self.ledger.clone());
        let floor = self.ledger().floor(item);
        self.operations.spawn(async move {
            let id = format!("i{item}");
            let reading = async {
                if follows { client.read_following(&id).await } else { client.read(&id).await }
            };
            if let Ok(Ok(found)) = timeout(DEADLINE, reading).await {
                let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
                ledger.reads += 1;
                ledger.reads_following += u64::from(follows);
                ledger.judge(item, floor, found);
            }
        });
    }

    /// Proposes a command and does not look at what becomes of it.
    fn propose(&mut self, command: Command) {
        let Some(node) = self.cluster.leader() else { return };
        let client = self.cluster.client(node);
        self.operations.spawn(async move {
            let _ = timeout(DEADLINE, client.propose(command)).await;
        });
    }

    fn write_mortal(&mut self) {
        let Some(node) = self.cluster.leader() else { return };
        let client = self.cluster.client(node);
        let id = format!("m{}", self.rng.random_range(0..MORTALS));
        let ttl = self.rng.random_bool(0.7).then(|| self.rng.random_range(1..6));
        self.serial += 1;
        let serial = self.serial;
        self.operations.spawn(async move {
            let _ = timeout(DEADLINE, client.upsert(&id, serial, ttl)).await;
        });
    }

    fn change_policy(&mut self) {
        let default = [None, Some(-1), Some(2), Some(8)][self.rng.random_range(0..4)];
        let default = default.map(|ttl| TimeToLive::from_seconds(ttl).expect("a valid ttl"));
        self.epoch += 1;
        let policy = TtlPolicy::from_default_ttl(default);
        self.propose(Command::SetTtlPolicy {
            epoch: PolicyEpoch(self.epoch),
            policy,
            retention: None,
        });
    }

    fn sweep(&mut self) {
        let limit = self.rng.random_range(1..4).try_into().expect("not zero");
        self.propose(Command::Sweep { limit, grace: Millis(0) });
    }

    /// Puts everything right, and checks what must hold.
    async fn heal_and_check(&mut self) {
        self.cluster.network.heal();
        self.cluster.network.set_weather(Weather::FAIR);
        for id in 1..=self.count {
            self.cluster.node_mut(id).repair();
            if self.cluster.node(id).is_running() {
                self.cluster.node(id).host().thaw();
            }
        }
        while let Some(ended) = self.operations.join_next().await {
            resume(ended);
        }
        // A disk fault may still be on its way to the replica that it stops: as long as a slow sync
        // takes that was begun before, and then some.
        for _ in 0..8 {
            sleep(Duration::from_secs(1)).await;
            self.supervise();
            for id in 1..=self.count {
                if !self.cluster.node(id).is_running() {
                    self.restart(id).await;
                }
            }
        }
        let all = self.count as usize;
        assert_eq!(
            self.cluster.running().count(),
            all,
            "every node starts once its disks are well"
        );
        self.check_acknowledged().await;
    }

    async fn check_acknowledged(&self) {
        self.cluster.wait_for_agreement().await;
        let leader = self.cluster.wait_for_leader().await;
        for item in 0..ITEMS {
            let found = self.cluster.read(leader, &format!("i{item}")).await;
            let mut ledger = self.ledger();
            let floor = ledger.floor(item);
            ledger.judge(item, floor, found.expect("a healed cluster answers"));
        }
    }

    /// Sweeps until there is nothing to sweep: then no dead item is left, and every item with a
    /// `ttl` of its own has its row among the expiries.
    async fn sweep_and_check(&mut self) {
        let leader = self.cluster.wait_for_leader().await;
        loop {
            let limit = 100.try_into().expect("not zero");
            let swept = self.cluster.propose(leader, Command::Sweep { limit, grace: Millis(0) });
            let effect = swept.await.expect("a healed cluster answers").effect;
            if matches!(effect, CommandEffect::Swept { more: false, .. }) {
                break;
            }
        }
        self.cluster.wait_for_agreement().await;
        for node in self.cluster.running() {
            let view = node.group().machine().snapshot();
            let (ttl, keys) = (*view.state().ttl(), view.keys());
            let mut expected = BTreeSet::new();
            for item in view.items(&keys.slots(Table::Items, SlotRange::ALL)) {
                let (key, item) = item.expect("memory reads");
                assert!(!ttl.has_expired(item.stamp.ttl, item.stamp.ts), "dead and not swept");
                if let Some(expiry) = OwnExpiry::of(&item.stamp) {
                    expected.insert((expiry, key.as_bytes().to_vec()));
                }
            }
            let rows = view.rows(&KeyRange::prefix(Table::Expiry, Vec::new()));
            let found: BTreeSet<_> = rows
                .expect("memory reads")
                .iter()
                .map(|(key, row)| {
                    let item = VersionRow::decode(row).expect("a sound row").item;
                    (expiry_place(key).expect("a sound key"), item.as_bytes().to_vec())
                })
                .collect();
            assert_eq!(found, expected, "{}: the expiries are those of the items", node.id);
        }
    }

    /// All nodes lose power at once; nothing acknowledged may be gone.
    async fn darken(&mut self) {
        for id in 1..=self.count {
            self.cluster.lose(id, Loss::Everything);
        }
        for id in 1..=self.count {
            self.restart(id).await;
        }
        self.check_acknowledged().await;
    }

    fn summary(self, started: Instant) -> Summary {
        let mut hasher = DefaultHasher::new();
        for node in self.cluster.running() {
            node.rows().hash(&mut hasher);
        }
        let snapshots = self.cluster.running().map(|node| node.snapshot_disk.syncs()).sum();
        let mut events = self.events.clone();
        events.insert("snapshot file synced", snapshots);
        let ledger = self.ledger();
        events.extend([
            ("write acknowledged", ledger.writes),
            ("read answered", ledger.reads),
            ("read answered by a follower", ledger.reads_following),
        ]);
        Summary { simulated: started.elapsed(), events, digest: hasher.finish() }
    }
}

/// Goes on with a panic of an operation.
fn resume(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        std::panic::resume_unwind(error.into_panic());
    }
}
