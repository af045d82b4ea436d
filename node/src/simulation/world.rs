//! A simulated world of whole nodes: what runs, what survives, and what must hold at any time.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ephemeris_raft::Host;
use ephemeris_raft::testing::Weather;
use ephemeris_store::ids::{GroupId, NodeId};
use ephemeris_store::partition::PartitionState;
use ephemeris_store::time::Millis;
use metrics_exporter_prometheus::PrometheusBuilder;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::sleep;

use super::http::HTTP_PORT;
use super::laws::WIDTH_MAX;
use super::machine::{Disks, EPOCH_MICROS, Loss, SimulatedTime, node_ip};
use super::network::SimulatedNetwork;
use crate::clock::{Instant, monotonic};
use crate::config::{AccountKeys, EMULATOR_KEY, KeySources, NodeConfig, Settings};
use crate::consistency::ConsistencyLevel;
use crate::node::Node;
use crate::partition::{Burst, LocalReplica};
use crate::server::Server;

/// Where nodes take each other.
pub(super) const PEER_PORT: u16 = 7000;
/// How far a clock that counts as right may be off.
pub(super) const ERROR_MICROS: i64 = 5000;
/// How far a machine's time since boot may run ahead or behind, in parts per million: well within
/// what clocks are trusted to do.
const BOOT_PPM: i64 = 100;
/// How long it may take until a cluster that was put right is ready.
const RECOVERY: Duration = Duration::from_secs(20);
/// How long an orderly end may take.
const STOP_DEADLINE: Duration = Duration::from_secs(40);

/// What differs from world to world.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) nodes: u32,
    /// Of them the last so many do not found the cluster: once they are switched on they join it.
    pub(super) joiners: u32,
    pub(super) heartbeat: Duration,
    pub(super) election_timeout: Duration,
    pub(super) request_timeout: Duration,
    pub(super) log_entries_kept: u64,
}

impl Options {
    /// Three nodes as they are by default, but for a log that is purged.
    pub(super) fn plain() -> Self {
        Self {
            nodes: 3,
            joiners: 0,
            heartbeat: Duration::from_millis(150),
            election_timeout: Duration::from_millis(450),
            request_timeout: Duration::from_secs(3),
            log_entries_kept: 100,
        }
    }

    /// What a seed chooses.
    pub(super) fn some(rng: &mut SmallRng) -> Self {
        let one_of = |rng: &mut SmallRng, choices: [u64; 3]| choices[rng.random_range(0..3)];
        let heartbeat = one_of(rng, [50, 100, 250]);
        Self {
            nodes: if rng.random_bool(0.25) { 5 } else { 3 },
            joiners: 0,
            heartbeat: Duration::from_millis(heartbeat),
            election_timeout: Duration::from_millis(heartbeat * 3),
            request_timeout: Duration::from_millis(one_of(rng, [1000, 2000, 5000])),
            log_entries_kept: one_of(rng, [10, 100, 2000]),
        }
    }
}

/// The world. Tasks on its one thread share it; no borrow is held over an await.
pub(super) struct World {
    pub(super) network: SimulatedNetwork,
    pub(super) options: Options,
    started: Instant,
    nodes: RefCell<Vec<SimulatedNode>>,
    /// What replicas looked like, by group and the entry they had applied last.
    states: RefCell<BTreeMap<(GroupId, Option<u64>), PartitionState>>,
    /// How often what happened.
    counts: RefCell<BTreeMap<&'static str, u64>>,
    /// Where processes that start from now on take each other.
    peer_port: Cell<u16>,
}

/// What survives a crash of a node, and what runs on it.
struct SimulatedNode {
    time: Arc<SimulatedTime>,
    disks: Disks,
    /// True if its disks were given a fault that may end the process.
    is_excused: bool,
    /// True if it was ever switched on.
    is_used: bool,
    process: Option<Process>,
}

struct Process {
    host: Host,
    /// There once it has started.
    server: Rc<RefCell<Option<Server>>>,
}

impl World {
    /// A world whose founders are booting.
    pub(super) fn new(seed: u64, options: Options) -> Rc<Self> {
        let world = Self::dark(seed, options);
        world.founders().for_each(|number| world.boot(number));
        world
    }

    /// A world in which nothing is switched on.
    pub(super) fn dark(seed: u64, options: Options) -> Rc<Self> {
        let started = monotonic();
        let mut rng = SmallRng::seed_from_u64(seed);
        let network = SimulatedNetwork::new(seed);
        tokio::task::spawn_local(network.clone().run());
        let node = |_| {
            let boot_ppm = rng.random_range(-BOOT_PPM..=BOOT_PPM);
            let time = Arc::new(SimulatedTime::new(started, boot_ppm));
            time.set_wall(rng.random_range(-ERROR_MICROS..=ERROR_MICROS), 0);
            let (is_excused, is_used) = (false, false);
            SimulatedNode { time, disks: Disks::new(), is_excused, is_used, process: None }
        };
        let nodes = RefCell::new((0..options.nodes).map(node).collect());
        let (states, counts) = (RefCell::default(), RefCell::default());
        let peer_port = Cell::new(PEER_PORT);
        Rc::new(Self { network, options, started, nodes, states, counts, peer_port })
    }

    /// The nodes' numbers.
    pub(super) fn numbers(&self) -> std::ops::RangeInclusive<u32> {
        1..=self.options.nodes
    }

    /// Those that form the cluster.
    fn founders(&self) -> std::ops::RangeInclusive<u32> {
        1..=self.options.nodes - self.options.joiners
    }

    /// Those that were ever switched on.
    fn used(&self) -> Vec<u32> {
        self.numbers().filter(|number| self.with(*number, |node| node.is_used)).collect()
    }

    /// True time, in microseconds since 1970.
    pub(super) fn truth(&self) -> i64 {
        let elapsed = self.started.elapsed().as_micros();
        EPOCH_MICROS + i64::try_from(elapsed).expect("simulations end")
    }

    fn with<T>(&self, number: u32, act: impl FnOnce(&mut SimulatedNode) -> T) -> T {
        act(&mut self.nodes.borrow_mut()[number as usize - 1])
    }

    /// Traces what happens.
    pub(super) fn note(&self, what: std::fmt::Arguments<'_>) {
        tracing::debug!(target: "simulation", "{} {what}", self.truth() - EPOCH_MICROS);
    }

    /// Counts something that should happen sometimes.
    pub(super) fn count(&self, what: &'static str) {
        *self.counts.borrow_mut().entry(what).or_default() += 1;
    }

    /// How often what happened.
    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.counts.borrow().clone()
    }

    /// Gives all nodes other addresses, and the list of them, when they are started again.
    pub(super) fn renumber(&self, peer_port: u16) {
        self.peer_port.set(peer_port);
    }

    fn config(&self, number: u32) -> NodeConfig {
        let address = |number| SocketAddr::new(node_ip(number), self.peer_port.get());
        let key = STANDARD.decode(EMULATOR_KEY).expect("the key is base64");
        let mut founders: BTreeSet<u32> = self.founders().collect();
        founders.insert(number);
        NodeConfig {
            node: NodeId(number),
            data_dir: format!("node {number}").into(),
            http: SocketAddr::new(node_ip(number), HTTP_PORT),
            peer: Some(address(number)),
            founders: founders.into_iter().map(|n| (NodeId(n), address(n).to_string())).collect(),
            dial: BTreeMap::new(),
            peer_keys: None,
            advertise: None,
            account_endpoint: None,
            keys: AccountKeys { read_write: vec![key], read_only: Vec::new(), emulator: true },
            key_sources: KeySources::new(&Settings::default(), node_ip(number)),
            tls: None,
            consistency: ConsistencyLevel::Strong,
            request_timeout: self.options.request_timeout,
            connections_max: 1000,
            block_cache_bytes: 0,
            write_buffer_bytes: 0,
            clock_width_max: WIDTH_MAX,
            purge_grace: Millis(0),
            burst: Burst::Saved,
            heartbeat: self.options.heartbeat,
            election_timeout: self.options.election_timeout,
            log_entries_kept: self.options.log_entries_kept,
        }
    }

    /// Switches a machine on, and starts its process.
    pub(super) fn boot(&self, number: u32) {
        self.note(format_args!("boot {number}"));
        let (ip, host) = (node_ip(number), Host::new());
        self.network.switch_on(ip);
        let interface = self.network.interface(ip, host.clone());
        let http = SocketAddr::new(ip, HTTP_PORT);
        let listener = interface.open(http, None).expect("nobody else listens there");
        let config = self.config(number);
        let server = Rc::new(RefCell::new(None));
        let started = server.clone();
        let machine = self.with(number, |node| {
            assert!(node.process.is_none(), "a node boots when it does not run");
            node.is_used = true;
            node.process = Some(Process { host: host.clone(), server });
            node.disks.machine(node.time.clone(), interface)
        });
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let process = host.clone();
        tokio::task::spawn_local(host.run(async move {
            match Server::start(&machine, config, (listener, http), metrics).await {
                Ok(server) => *started.borrow_mut() = Some(server),
                Err(error) => process.end_process(&error.to_string()),
            }
        }));
    }

    /// Ends a process at once, if it runs, and loses what is lost with it.
    pub(super) fn end(&self, number: u32, loss: Loss) {
        self.note(format_args!("end {number} {loss:?}"));
        let ip = node_ip(number);
        match loss {
            Loss::Process { .. } => self.network.end_process(ip),
            Loss::Everything | Loss::Some { .. } => self.network.switch_off(ip),
        }
        self.with(number, |node| {
            if let Some(process) = node.process.take() {
                process.host.kill();
            }
            node.disks.lose(loss);
        });
    }

    /// Ends a process as SIGTERM does, and waits for it.
    pub(super) async fn stop(&self, number: u32) {
        self.note(format_args!("stop {number}"));
        let server = self.with(number, |node| {
            let process = node.process.as_ref()?;
            let server = process.server.borrow_mut().take()?;
            Some(tokio::task::spawn_local(process.host.run(server.stop())))
        });
        if let (Some(stopping), Some(host)) = (server, self.host(number)) {
            host.thaw();
            let ended = || stopping.is_finished() || host.ended().is_some();
            self.wait("an orderly end", STOP_DEADLINE, ended).await;
            self.check_process(number);
        }
        if self.host(number).is_some() {
            self.end(number, Loss::Process { seed: 0 });
        }
    }

    /// Puts a machine's data away; the next process finds none.
    pub(super) fn wipe(&self, number: u32) {
        self.note(format_args!("wipe {number}"));
        self.with(number, |node| {
            assert!(node.process.is_none(), "nobody wipes a disk that is in use");
            node.disks = Disks::new();
        });
    }

    /// A copy of a machine's data that shares nothing with it, as a backup of a node that is down.
    pub(super) fn copy_disks(&self, number: u32) -> Disks {
        self.with(number, |node| {
            assert!(node.process.is_none(), "a cold backup is of a node that is down");
            node.disks.fork()
        })
    }

    /// Puts a copy in place of a machine's data.
    pub(super) fn restore_disks(&self, number: u32, disks: Disks) {
        self.with(number, |node| {
            assert!(node.process.is_none(), "a backup is restored where nobody runs");
            node.disks = disks;
        });
    }

    /// How often a node has synced a file of a snapshot that it received.
    pub(super) fn snapshot_syncs(&self, number: u32) -> u64 {
        self.with(number, |node| node.disks.snapshots.syncs())
    }

    /// The process of a node, if it runs.
    pub(super) fn host(&self, number: u32) -> Option<Host> {
        self.with(number, |node| node.process.as_ref().map(|process| process.host.clone()))
    }

    /// A node that has started.
    pub(super) fn node(&self, number: u32) -> Option<Node> {
        self.with(number, |node| {
            let process = node.process.as_ref()?;
            process.server.borrow().as_ref().map(|server| server.node().clone())
        })
    }

    /// A node's clocks.
    pub(super) fn time(&self, number: u32) -> Arc<SimulatedTime> {
        self.with(number, |node| node.time.clone())
    }

    /// Breaks something of a node's disks, for which its process may end.
    pub(super) fn break_disks(&self, number: u32, act: impl FnOnce(&Disks)) {
        self.with(number, |node| {
            node.is_excused = true;
            act(&node.disks);
        });
    }

    /// Sets how long a batch of a node's log takes.
    pub(super) fn slow_disk(&self, number: u32, time: Duration) {
        self.with(number, |node| node.disks.sync_time.set(time));
    }

    /// Has a process do something, and does not wait for it.
    pub(super) fn on<F: Future + 'static>(&self, number: u32, work: impl FnOnce(Node) -> F) {
        if let (Some(host), Some(node)) = (self.host(number), self.node(number)) {
            let work = work(node);
            tokio::task::spawn_local(host.run(async move {
                work.await;
            }));
        }
    }

    /// The replicas of partitions that run on a node.
    pub(super) fn replicas(&self, number: u32) -> Vec<Arc<LocalReplica>> {
        self.node(number).map_or_else(Vec::new, |node| node.local_partitions())
    }

    /// What must hold at any time. Replicas that have applied the same entry are equal, now and at
    /// any other time (I4). No replica is of a former life of its node. No partition clock is ahead of true
    /// time by more than a right clock may be (I8). No process ends by itself, but for a disk that was broken.
    pub(super) fn check(&self) {
        for number in self.numbers() {
            self.check_process(number);
            let since = self.node(number).map_or(0, |node| node.since());
            for local in self.replicas(number) {
                let replica = local.group().replica();
                assert!(replica.incarnation >= since, "{replica} is of a former life of its node");
                let state = local.group().machine().state();
                let clock = i64::try_from(state.ttl().clock().0).expect("a date") * 1000;
                let ahead = clock - self.truth();
                assert!(ahead <= ERROR_MICROS, "a partition clock is {ahead} µs ahead");
                // Entries are counted from 0: one that has applied none is none that has applied the first.
                let (group, last) = (local.group().group(), state.applied().map(|id| id.index));
                let mut states = self.states.borrow_mut();
                let known = states.entry((group, last)).or_insert(state);
                assert_eq!(*known, state, "replicas of {group} differ after entry {last:?}");
            }
        }
    }

    fn check_process(&self, number: u32) {
        let Some(reason) = self.host(number).and_then(|host| host.ended()) else { return };
        let is_excused = self.with(number, |node| node.is_excused);
        assert!(is_excused, "node {number} ended by itself: {reason}");
        let is_broken = reason.contains("panicked") || reason.contains("an invariant is broken");
        assert!(!is_broken, "no disk explains why node {number} ended: {reason}");
        self.count("fault");
        self.note(format_args!("fault {number}: {reason}"));
        self.end(number, Loss::Process { seed: 0 });
        // Somebody looks after the disk before the process is started again.
        self.repair(number);
    }

    /// Puts a node's disks right.
    pub(super) fn repair(&self, number: u32) {
        self.with(number, |node| {
            node.disks.repair();
            node.is_excused = false;
        });
    }

    /// Puts everything right, and waits until all nodes are ready.
    pub(super) async fn heal(&self) {
        self.note(format_args!("heal"));
        self.network.heal();
        self.network.set_weather(Weather::FAIR);
        for number in self.used() {
            self.time(number).set_wall(0, 0);
            // A process whose disk was broken and that did not notice goes on.
            self.with(number, |node| node.disks.repair());
            match self.host(number) {
                Some(host) => host.thaw(),
                None => self.boot(number),
            }
        }
        self.wait("the cluster to be ready", RECOVERY, || {
            self.check();
            // All of them, before anybody is asked: who is not ready may wait for one that is down.
            for number in self.used().into_iter().filter(|number| self.host(*number).is_none()) {
                self.boot(number);
            }
            self.used().into_iter().all(|number| {
                let node = self.node(number);
                node.is_some_and(|node| node.readiness().iter().all(|(_, holds)| *holds))
            })
        })
        .await;
        self.numbers().for_each(|number| self.repair(number));
    }

    /// Waits until something holds.
    pub(super) async fn wait(
        &self,
        what: &str,
        patience: Duration,
        mut holds: impl FnMut() -> bool,
    ) {
        let deadline = monotonic() + patience;
        while !holds() {
            assert!(monotonic() < deadline, "waited in vain for {what}:\n{}", self.describe());
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// What every node says of itself, for failures.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for number in self.numbers() {
            let state = match (self.host(number), self.node(number)) {
                (None, _) => "is down".to_string(),
                (Some(host), _) if host.is_frozen() => "stands still".to_string(),
                (Some(host), None) => format!("is starting; ended {:?}", host.ended()),
                (Some(_), Some(node)) => {
                    let states: Vec<_> =
                        node.local_partitions().iter().map(|local| describe(local)).collect();
                    let (ready, replicas) = (node.readiness(), node.describe());
                    format!("{ready:?}\n  {replicas:?}\n  {}", states.join("\n  "))
                }
            };
            writeln!(text, "node {number} {state}").expect("a String takes any text");
        }
        text
    }
}

fn describe(local: &LocalReplica) -> String {
    let machine = local.group().machine();
    format!("{}: {:?}, due {:?}", local.group().group(), machine.state(), machine.due())
}
