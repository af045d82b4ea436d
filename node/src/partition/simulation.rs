//! Expiry under wrong clocks, dead leaders and a bad network, by seed.
//!
//! Three replicas with their services, sweepers and quorum clocks run on one thread in simulated
//! time. The wall clocks are a few milliseconds off, and one of them may be anything. Each client
//! works on keys of its own, one request after the other, so what it may be told is known exactly:
//!
//! - never early: a version is told to be gone only at or after `_ts + ttl`;
//! - never late: a read that starts at or after `_ts + ttl` does not show it;
//! - irreversible: told to be gone once, it is never shown again;
//! - a session goes forward: what answers a token is as fresh as that, on any node;
//! - the replicas end up identical, and the dead are swept.
//!
//! Reads are linearizable, of a session, or eventual; the first three hold for all of them, but that
//! an eventual one may be about an earlier moment: then about the version of that moment.
//!
//! `SEEDS=1000 cargo nextest run --workspace t65_expiry` runs more seeds; a failure prints its seed, and
//! `SEED=n` runs that one alone.

mod client;
mod determinism;
mod scenarios;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ephemeris_raft::testing::{MemoryDisk, MemoryNetwork, Weather, simulate};
use ephemeris_raft::wal::{Wal, WalOptions};
use ephemeris_raft::{Executor, Group, GroupOptions, Host, Quiescence, Router, Storage};
use ephemeris_store::catalog::Catalog;
use ephemeris_store::document::DocumentRules;
use ephemeris_store::engine::MemoryEngine;
use ephemeris_store::ids::{ContainerNumber, DatabaseNumber, GroupId, NodeId, ReplicaId};
use ephemeris_store::indexing::{self, IndexRules};
use ephemeris_store::machine::Machine as _;
use ephemeris_store::partition::{Partition, PartitionSpec, PartitionState};
use ephemeris_store::partition_key::{KeyDefinition, KeyKind, SlotRange};
use ephemeris_store::time::Millis;
use ephemeris_store::ttl::{PolicyEpoch, TtlPolicy};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::sweeper::Sweeper;
use super::{
    Burst, PartitionError, PartitionRequest, PartitionResponse, PartitionService, Price, ReadLevel,
};
use crate::clock::{Clock as _, Instant, QuorumClock, TimeSource, monotonic};
use crate::placement::{Directory, catalogs};
use crate::simulation::core_time;
use crate::simulation::laws::WIDTH_MAX;
use client::Client;

const SEEDS: u64 = 500;
const NODES: u32 = 3;
const CLIENTS: u32 = 3;
/// How long clients and faults run, in simulated time.
const RUN: Duration = Duration::from_mins(1);
const DEADLINE: Duration = Duration::from_secs(3);
pub(super) const GROUP: GroupId = GroupId(1);
const DEFAULT_TTL: u32 = 4;
/// Short, so that groups rest now and then.
const QUIET_AFTER: Duration = Duration::from_millis(200);
/// The true date at which simulations begin.
const EPOCH_MICROS: i64 = 1_700_000_000_000_000;
/// How far a clock that counts as right may be off.
const ERROR_MICROS: i64 = 5000;

/// A machine's clocks: true time since the beginning, plus what is wrong with them.
struct SimulatedTime {
    started: Instant,
    /// The wall clock's error.
    wall_error: AtomicI64,
}

impl TimeSource for SimulatedTime {
    fn boot_micros(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_micros()).unwrap() + 1_000_000
    }

    fn wall_micros(&self) -> i64 {
        let elapsed = i64::try_from(self.started.elapsed().as_micros()).unwrap();
        (EPOCH_MICROS + elapsed + self.wall_error.load(Ordering::SeqCst)).max(0)
    }
}

/// What survives a crash of a node, and what runs on it.
struct Node {
    id: NodeId,
    time: Arc<SimulatedTime>,
    log: MemoryDisk,
    snapshots: MemoryDisk,
    engine: MemoryEngine,
    running: Option<Running>,
}

struct Running {
    host: Host,
    service: PartitionService,
    clock: Arc<QuorumClock>,
    storage: Storage,
    tasks: Vec<JoinHandle<()>>,
}

/// The simulated world. Tasks on its one thread share it; no borrow is held over an await.
struct World {
    network: MemoryNetwork,
    nodes: RefCell<Vec<Node>>,
    rules: DocumentRules,
    started: Instant,
    seen: RefCell<Seen>,
    /// What replicas looked like, by the entry they had applied last.
    states: RefCell<BTreeMap<u64, PartitionState>>,
}

/// What reads found.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    alive: u32,
    gone: u32,
    alive_at_followers: u32,
    gone_at_followers: u32,
    /// By a follower that its leader had told how far it must have come.
    linearizable_at_followers: u32,
    /// By a replica that had not come as far as the client.
    stale: u32,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn t65_expiry_is_exact_and_irreversible_whatever_clocks_and_leaders_do() {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(SEEDS),
    };
    show_what_happens();
    let (began, runs) = (core_time(), seeds.end - seeds.start);
    let mut seen = Seen::default();
    for seed in seeds {
        match std::panic::catch_unwind(|| simulate(seed, run(seed))) {
            Ok(one) => seen.add(one),
            Err(panic) => {
                eprintln!("replay: SEED={seed} cargo nextest run --workspace t65_expiry");
                std::panic::resume_unwind(panic);
            }
        }
    }
    let spent = core_time().saturating_sub(began);
    let simulated = RUN * u32::try_from(runs).unwrap();
    println!("{seen:?}");
    println!(
        "{} simulated seconds in {:.1} s on one core: {:.0} a second",
        simulated.as_secs(),
        spent.as_secs_f64(),
        simulated.as_secs_f64() / spent.as_secs_f64(),
    );
    if runs >= SEEDS {
        let all = seen.counts().into_iter().all(|count| *count > 0);
        assert!(all, "clients saw everything there is to see: {seen:?}");
    }
}

impl Seen {
    fn add(&mut self, mut other: Self) {
        for (count, more) in self.counts().into_iter().zip(other.counts()) {
            *count += *more;
        }
    }

    fn counts(&mut self) -> [&mut u32; 6] {
        let Self {
            alive,
            gone,
            alive_at_followers,
            gone_at_followers,
            linearizable_at_followers,
            stale,
        } = self;
        [alive, gone, alive_at_followers, gone_at_followers, linearizable_at_followers, stale]
    }
}

/// `RUST_LOG=debug` shows what happens inside.
fn show_what_happens() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}

/// Runs one seed; what its reads found.
async fn run(seed: u64) -> Seen {
    let world = Rc::new(World::start(seed).await);
    let failure = Rc::new(Mutex::new(None));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let rng = SmallRng::seed_from_u64(seed ^ (u64::from(client) + 1) << 32);
            tokio::task::spawn_local(Client::new(world.clone(), client, rng).run())
        })
        .collect();
    let faults = tokio::task::spawn_local(cause_faults(world.clone(), seed));
    for client in clients {
        if let Err(error) = client.await {
            *failure.lock().unwrap() = Some(error);
        }
    }
    faults.await.unwrap();
    if let Some(error) = failure.lock().unwrap().take() {
        std::panic::resume_unwind(error.into_panic());
    }
    world.heal_and_check().await;
    world.seen.take()
}

impl World {
    async fn start(seed: u64) -> Self {
        let started = monotonic();
        let key = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
        let policy = indexing::complete(None).unwrap();
        let rules = DocumentRules::new(key, IndexRules::new(&policy).unwrap());
        let mut rng = SmallRng::seed_from_u64(seed);
        let node = |number| Node {
            id: NodeId(number),
            time: Arc::new(SimulatedTime {
                started,
                wall_error: AtomicI64::new(rng.random_range(-ERROR_MICROS..=ERROR_MICROS)),
            }),
            log: MemoryDisk::new(),
            snapshots: MemoryDisk::new(),
            engine: MemoryEngine::new(),
            running: None,
        };
        let nodes = RefCell::new((1..=NODES).map(node).collect());
        let network = MemoryNetwork::new(seed);
        let states = RefCell::default();
        let world = Self { network, nodes, rules, started, seen: RefCell::default(), states };
        for node in 0..NODES as usize {
            world.boot(node).await;
        }
        let members: Vec<ReplicaId> = (1..=NODES).map(replica).collect();
        for node in 0..NODES as usize {
            let group = world.service(node).unwrap().group().clone();
            group.form(&members).await.unwrap();
        }
        world.set_policy().await;
        world
    }

    /// True time, in microseconds since 1970.
    fn truth(&self) -> i64 {
        EPOCH_MICROS + i64::try_from(self.started.elapsed().as_micros()).unwrap()
    }

    fn service(&self, node: usize) -> Option<PartitionService> {
        let nodes = self.nodes.borrow();
        nodes[node].running.as_ref().map(|running| running.service.clone())
    }

    /// The machine a node's process runs on.
    fn host(&self, node: usize) -> Option<Host> {
        let nodes = self.nodes.borrow();
        nodes[node].running.as_ref().map(|running| running.host.clone())
    }

    /// True if a node runs, and does not stand still.
    fn is_awake(&self, node: usize) -> bool {
        self.host(node).is_some_and(|host| !host.is_frozen())
    }

    /// Stops a node's process for a while, as by SIGSTOP and SIGCONT.
    fn pause(&self, node: usize, time: Duration) {
        let Some(host) = self.host(node) else { return };
        host.freeze();
        tokio::task::spawn_local(async move {
            sleep(time).await;
            host.thaw();
        });
    }

    /// Has a replica answer a request, as a gateway beside it does; a process that crashes meanwhile answers
    /// nobody.
    async fn ask(
        &self,
        service: &PartitionService,
        request: PartitionRequest,
        level: ReadLevel,
    ) -> Result<PartitionResponse, PartitionError> {
        let node = service.group().replica().node.0 as usize - 1;
        let process = |running: &Running| (running.host.clone(), running.clock.clone());
        let asked = self.nodes.borrow()[node].running.as_ref().map(process);
        let Some((host, clock)) = asked else { return Err(PartitionError::NotHere) };
        let service = service.clone();
        let answering = host.run(async move {
            match request {
                PartitionRequest::Read(_)
                | PartitionRequest::Query(_)
                | PartitionRequest::Changes(_) => service.answer_here(request, level).await,
                PartitionRequest::Write(_)
                | PartitionRequest::Find(_)
                | PartitionRequest::SetPolicies { .. }
                | PartitionRequest::Clear(_)
                | PartitionRequest::Statistics
                | PartitionRequest::TtlStatus => service.answer(request, level, Price::Once).await,
            }
        });
        let lost = Err(PartitionError::Unknown("no answer in time".into()));
        let Ok(answer) = timeout(DEADLINE, answering).await else { return lost };
        let nodes = self.nodes.borrow();
        let runs = |running: &Running| Arc::ptr_eq(&running.clock, &clock);
        if nodes[node].running.as_ref().is_some_and(runs) { answer } else { lost }
    }

    /// The service of a node that believes it leads.
    fn leader(&self) -> Option<PartitionService> {
        let services = (0..NODES as usize).filter_map(|node| self.service(node));
        services
            .filter(|service| service.group().leadership().is_me)
            .max_by_key(|service| service.group().leadership().term)
    }

    async fn boot(self: &World, node: usize) {
        let (id, time, log, snapshots, engine) = {
            let nodes = self.nodes.borrow();
            let node = &nodes[node];
            assert!(node.running.is_none(), "a node boots when it does not run");
            let (log, snapshots) = (node.log.clone(), node.snapshots.clone());
            (node.id, node.time.clone(), log, snapshots, node.engine.clone())
        };
        let options = WalOptions { segment_bytes: 64 << 10, cache_bytes: 4096, segments_max: 4 };
        let (wal, writer) = Wal::open(Arc::new(log), options).unwrap();
        let (host, mut tasks) = (Host::new(), Vec::new());
        tasks.push(tokio::task::spawn_local(host.run(async move {
            writer.run_as_task(Duration::from_millis(1)).await.unwrap();
        })));
        let engine = Arc::new(engine);
        let storage = Storage {
            engine: engine.clone(),
            wal,
            snapshots: Arc::new(snapshots),
            executor: Executor::Inline,
        };
        let router = Router::new();
        let transport = self.network.connect_host(id, host.clone(), router.clone());
        let options = GroupOptions {
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(300),
            election_max: Duration::from_millis(600),
            log_entries_kept: 20,
            quiet_after: QUIET_AFTER,
        };
        let machine = Partition::open(engine, spec()).unwrap();
        let me = replica(id.0);
        let quiescence = Quiescence {
            router: router.clone(),
            transport: transport.clone(),
            options: options.clone(),
        };
        let group = Group::start(GROUP, me, machine, storage.clone(), transport, router, &options);
        let group = host.run(group).await.unwrap();
        tasks.push(tokio::task::spawn_local(host.run(quiescence.run())));
        let clock = Arc::new(QuorumClock::new(NODES as usize, WIDTH_MAX, time));
        let directory = Directory::new(Arc::new(catalog()));
        let service = PartitionService::new(
            group,
            clock.clone(),
            directory,
            Executor::Inline,
            Millis(0),
            Burst::Saved,
        );
        let sweeper = Sweeper { service: service.clone(), term: 0 };
        // One on every node, whoever leads: a deposed leader's sweeps must do no harm.
        tasks.push(tokio::task::spawn_local(host.run(sweeper.run())));
        let running = Running { host, service, clock, storage, tasks };
        self.nodes.borrow_mut()[node].running = Some(running);
    }

    /// Stops a node as a power loss would.
    async fn crash(&self, node: usize) {
        let running = {
            let mut nodes = self.nodes.borrow_mut();
            self.network.disconnect(nodes[node].id);
            nodes[node].running.take()
        };
        let Some(running) = running else { return };
        running.host.thaw();
        for task in &running.tasks {
            task.abort();
        }
        running.service.group().stop().await;
        let mut nodes = self.nodes.borrow_mut();
        nodes[node].log.lose_power();
        nodes[node].snapshots.lose_power();
        nodes[node].engine.crash();
    }

    async fn checkpoint(&self, node: usize) {
        let (group, storage) = {
            let nodes = self.nodes.borrow();
            let Some(running) = &nodes[node].running else { return };
            (running.service.group().clone(), running.storage.clone())
        };
        let progress = group.progress();
        storage.flush().await.unwrap();
        group.mark_durable(progress).await;
    }

    /// One round of questions among the nodes that run; some get no answer, some a late one.
    async fn sample_clocks(&self, rng: &mut SmallRng) {
        for asking in 0..NODES as usize {
            for asked in 0..NODES as usize {
                let (clock, other) = {
                    if asking == asked || !self.is_awake(asking) || !self.is_awake(asked) {
                        continue;
                    }
                    let nodes = self.nodes.borrow();
                    let Some(running) = &nodes[asking].running else { continue };
                    (running.clock.clone(), nodes[asked].time.clone())
                };
                let sample = clock.ask();
                sleep(Duration::from_micros(rng.random_range(50..3000))).await;
                let answer = other.wall_micros();
                sleep(Duration::from_micros(rng.random_range(50..3000))).await;
                if rng.random_bool(0.9) {
                    clock.observe(NodeId(u32::try_from(asked).unwrap() + 1), sample, answer);
                }
            }
            let nodes = self.nodes.borrow();
            let others: Vec<NodeId> =
                nodes.iter().map(|node| node.id).filter(|id| *id != nodes[asking].id).collect();
            if let Some(running) = &nodes[asking].running {
                running.clock.settle(&others);
            }
        }
    }

    async fn set_policy(&self) {
        let policy = TtlPolicy::Default(NonZeroU32::new(DEFAULT_TTL).unwrap());
        let mut rng = SmallRng::seed_from_u64(0);
        loop {
            self.sample_clocks(&mut rng).await;
            if let Some(leader) = self.leader()
                && let Ok(Ok(_)) =
                    timeout(DEADLINE, leader.set_ttl_policy(PolicyEpoch(1), policy, None)).await
            {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// I4: replicas that have applied the same entry are equal, now and at any other time. I8: no
    /// partition clock is ahead of the true time by more than a right clock may be.
    fn check_invariants(&self) {
        for node in 0..NODES as usize {
            let Some(service) = self.service(node) else { continue };
            let state = service.group().machine().state();
            let ahead = i64::try_from(state.ttl().clock().0).unwrap() * 1000 - self.truth();
            assert!(ahead <= ERROR_MICROS, "a partition clock is {ahead} µs ahead");
            let mut states = self.states.borrow_mut();
            let known = states.entry(state.lsn().0).or_insert(state);
            assert_eq!(*known, state, "replicas differ after entry {}", state.lsn());
        }
    }

    /// Puts everything right, and checks that the replicas agree and nothing dead is left.
    async fn heal_and_check(&self) {
        self.network.heal();
        self.network.set_weather(Weather::FAIR);
        for node in 0..NODES as usize {
            self.nodes.borrow()[node].time.wall_error.store(0, Ordering::SeqCst);
            match self.host(node) {
                Some(host) => host.thaw(),
                None => self.boot(node).await,
            }
        }
        let mut rng = SmallRng::seed_from_u64(1);
        let deadline = monotonic() + Duration::from_mins(1);
        loop {
            self.sample_clocks(&mut rng).await;
            sleep(Duration::from_secs(1)).await;
            let states: Vec<_> = (0..NODES as usize)
                .map(|node| self.service(node).unwrap().group().machine().state())
                .collect();
            let agree = states.windows(2).all(|pair| pair[0] == pair[1]);
            if agree && states[0].items() == 0 {
                break;
            }
            assert!(monotonic() < deadline, "not swept, or not agreed: {}", self.describe());
        }
        for node in 0..NODES as usize {
            let service = self.service(node).unwrap();
            let machine = service.group().machine();
            let view = machine.snapshot();
            for range in machine.ranges() {
                assert_eq!(view.kept_rows(&range).unwrap(), [], "no row outlives its item");
            }
        }
    }
}

impl World {
    /// What every node says of itself, for failures.
    fn describe(&self) -> String {
        let nodes = self.nodes.borrow();
        let describe = |node: &Node| {
            let Some(running) = &node.running else { return format!("{}: down\n", node.id) };
            let (group, clock) = (running.service.group(), &running.clock);
            format!(
                "{}: {:?}\n  due {:?}\n  {:?}\n  reads {:?}, {:?}\n",
                node.id,
                group.machine().state(),
                group.machine().due(),
                group.status(),
                clock.now(),
                clock.status(),
            )
        };
        nodes.iter().map(describe).collect()
    }
}

pub(super) fn replica(node: u32) -> ReplicaId {
    ReplicaId { node: NodeId(node), incarnation: 0 }
}

pub(super) fn spec() -> PartitionSpec {
    let container = ContainerNumber { database: DatabaseNumber(1), number: 1 };
    PartitionSpec { group: GROUP, container, slots: SlotRange::ALL }
}

/// A catalog that knows the container, which queries are compiled for.
fn catalog() -> Catalog {
    let definition = serde_json::json!({ "id": "c", "partitionKey": { "paths": ["/pk"] } });
    catalogs::catalog(&catalogs::a_container(&definition, 1, None))
}

/// Faults until the run is over.
async fn cause_faults(world: Rc<World>, seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed.wrapping_mul(31));
    let end = monotonic() + RUN;
    let bad = rng.random_range(0..NODES as usize);
    let any = |rng: &mut SmallRng| rng.random_range(0..NODES as usize);
    while monotonic() < end {
        world.sample_clocks(&mut rng).await;
        world.check_invariants();
        match rng.random_range(0..100) {
            0..12 => world.crash(any(&mut rng)).await,
            12..30 => {
                let node = any(&mut rng);
                if world.service(node).is_none() {
                    world.boot(node).await;
                }
            }
            30..38 => world.network.isolate(NodeId(rng.random_range(1..=NODES))),
            38..46 => world.network.heal(),
            46..50 => {
                let time = Duration::from_millis(rng.random_range(100..6000));
                world.pause(any(&mut rng), time);
            }
            50..54 => world.network.set_weather(Weather::FOUL),
            54..60 => world.network.set_weather(Weather::FAIR),
            60..80 => set_clocks(&world, bad, &mut rng),
            80..90 => world.checkpoint(any(&mut rng)).await,
            _ => {
                let to = replica(rng.random_range(1..=NODES));
                if let Some(leader) = world.leader() {
                    let _ = timeout(DEADLINE, leader.group().transfer_leadership(to)).await;
                }
            }
        }
        sleep(Duration::from_millis(rng.random_range(100..1000))).await;
    }
}

/// Sets the run's one bad wall clock, wrong or right, and moves the others within what counts as right.
///
/// It is the same clock for the whole run: a sample is good for a minute, so two clocks that are wrong
/// in the same minute can both count as wrong at once, which nobody promises to survive.
fn set_clocks(world: &World, bad: usize, rng: &mut SmallRng) {
    let year = 365 * 86_400_000_000_i64;
    let errors = [0, 1_000_000, 5_000_000, 3_600_000_000, year, 80 * year];
    let error = errors[rng.random_range(0..errors.len())];
    let sign = if rng.random_bool(0.5) { 1 } else { -1 };
    for (number, node) in world.nodes.borrow().iter().enumerate() {
        let small = rng.random_range(-ERROR_MICROS..=ERROR_MICROS);
        let error = if number == bad { sign * error + small } else { small };
        node.time.wall_error.store(error, Ordering::SeqCst);
    }
}
