//! Whole nodes in a simulated world, by seed: gateways, the framed transport, catalog, placement,
//! partitions, sweepers and clocks, all as they run in a cluster.
//!
//! Only what a node runs on is simulated: its network (`network`), its disks and clocks (`machine`);
//! RocksDB's place is taken by the engine in memory, which forgets at a crash what was not flushed.
//! One thread runs everything in simulated time. Clients speak HTTP with any node and judge every
//! answer by the `laws`, while a `demon` breaks things; in the end everything is put right, and what
//! was acknowledged must be there, what has expired must be gone, from disks too, and the replicas
//! must be equal; and once more after all nodes lost their power at once. Last, the feed of all versions
//! must tell all of it.
//!
//! `SEEDS=1000 cargo nextest run --workspace t65_whole_nodes` runs more seeds; a failure prints its
//! seed, and `SEED=n` runs that one alone. `RUST_LOG=simulation=debug` tells what happens.

mod client;
mod demon;
mod determinism;
mod http;
pub(crate) mod laws;
mod machine;
mod network;
mod peers;
mod scenarios;
mod world;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ephemeris_raft::testing::simulate;
use ephemeris_store::engine::Table;
use ephemeris_store::ids::GroupId;
use ephemeris_store::machine::Machine as _;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;

use crate::clock::monotonic;
use crate::partition::LocalReplica;
use client::{CLIENTS, Client, FLIPPING};
use demon::{Demon, FaultKind};
use machine::Loss;
use world::{Options, World};

/// Seeds run when nothing else is said.
const SEEDS: u64 = 50;
/// How long clients and faults run, in simulated time.
const RUN: Duration = Duration::from_mins(1);
/// How long a write of unknown outcome may still come to something once everything is put right.
const STRAGGLERS: Duration = Duration::from_secs(15);
/// How long it may take until the dead are off the disks.
const SWEPT: Duration = Duration::from_mins(1);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Time this thread has spent on a core.
pub(crate) fn core_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|text| text.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}

/// `RUST_LOG=debug` shows what happens inside.
fn show_what_happens() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}

#[test]
fn t65_whole_nodes_keep_every_promise_whatever_breaks() {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(SEEDS),
    };
    show_what_happens();
    let (began, count) = (core_time(), seeds.end - seeds.start);
    let (mut simulated, mut events) = (Duration::ZERO, BTreeMap::new());
    for seed in seeds {
        match std::panic::catch_unwind(|| simulate(seed, run(seed))) {
            Ok(summary) => {
                simulated += summary.simulated;
                for (event, times) in summary.events {
                    *events.entry(event).or_insert(0) += times;
                }
            }
            Err(panic) => {
                eprintln!("replay: SEED={seed} cargo nextest run --workspace t65_whole_nodes");
                std::panic::resume_unwind(panic);
            }
        }
    }
    let spent = core_time().saturating_sub(began);
    let speed = simulated.as_secs_f64() / spent.as_secs_f64();
    println!("{count} seeds: {simulated:.0?} simulated in {spent:.1?}, {speed:.0} per core-second");
    println!("{events:#?}");
    if count >= SEEDS {
        check_coverage(&events);
    }
}

/// A fault that never happens, or an answer that is never given, proves nothing.
fn check_coverage(events: &BTreeMap<&'static str, u64>) {
    let answers = [
        "fault",
        "conflict",
        "precondition failed",
        "not modified",
        "put off",
        "time to live changed",
        "container of unknown time to live",
        "unavailable",
        "unknown outcome",
        "query",
        "query in order",
        "query of all partitions",
        "query by index",
        "count",
        "count by index",
        "strong read found",
        "strong read found nothing",
        "session read found",
        "session read found nothing",
        "eventual read found",
        "eventual read found nothing",
        "eventual read of an earlier moment",
        "change feed",
        "batch",
        "batch refused",
        "unique key taken",
        "expiry told",
    ];
    for event in FaultKind::ALL.map(FaultKind::name).into_iter().chain(answers) {
        let times = events.get(event).copied().unwrap_or_default();
        assert!(times >= 5, "{event}: {times} times only");
    }
}

/// What a run was like.
struct Summary {
    simulated: Duration,
    events: BTreeMap<&'static str, u64>,
}

/// Runs one seed.
async fn run(seed: u64) -> Summary {
    let began = monotonic();
    let mut rng = SmallRng::seed_from_u64(seed);
    let options = Options::some(&mut rng);
    let world = World::new(seed, options);
    let mut clients: Vec<Client> = (0..CLIENTS)
        .map(|number| Client::new(world.clone(), number, SmallRng::seed_from_u64(rng.random())))
        .collect();
    clients[0].set_up().await;
    clients[FLIPPING as usize].set_up().await;
    clients[0].begin_history().await;
    let demon = Demon::new(world.clone(), SmallRng::seed_from_u64(rng.random()));
    let clients = clients.into_iter().map(|mut client| {
        spawn_local(async move {
            client.run(RUN).await;
            client
        })
    });
    let working: Vec<JoinHandle<Client>> = clients.collect();
    let breaking = spawn_local(demon.run(RUN));
    let mut clients = Vec::new();
    for client in working {
        clients.push(done(client).await);
    }
    done(breaking).await;
    world.heal().await;
    sleep(STRAGGLERS).await;
    settle(&world, &mut clients).await;
    let events = world.counts();
    Summary { simulated: began.elapsed(), events }
}

/// The result of a task; what it panicked with goes on.
async fn done<T>(task: JoinHandle<T>) -> T {
    task.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Checks what is left, and that it survives a loss of power everywhere.
async fn settle(world: &Rc<World>, clients: &mut [Client]) {
    let mut immortal = 0;
    for client in clients.iter_mut() {
        immortal += client.settle().await;
    }
    check_end_state(world, immortal).await;
    for number in world.numbers() {
        world.end(number, Loss::Everything);
    }
    world.heal().await;
    let mut still = 0;
    for client in clients.iter_mut() {
        still += client.verify().await;
    }
    assert_eq!(still, immortal, "nothing was lost with the power");
    check_end_state(world, immortal).await;
    let mut history = clients[0].history().await;
    for client in &*clients {
        client.judge_history(&mut history);
    }
    history.judge_rest();
}

/// The replicas are equal, and hold what is alive and nothing else.
async fn check_end_state(world: &World, alive: u64) {
    world
        .wait("replicas that agree and hold nothing dead", SWEPT, || {
            world.check();
            let mut states = BTreeMap::new();
            for number in world.numbers() {
                for local in world.replicas(number) {
                    let state = local.group().machine().state();
                    let of_group: &mut Vec<_> = states.entry(local.group().group()).or_default();
                    of_group.push(state);
                }
            }
            let agree = states.values().all(|of_group| {
                of_group.len() == 3 && of_group.windows(2).all(|pair| pair[0] == pair[1])
            });
            let items: u64 = states.values().map(|of_group| of_group[0].items()).sum();
            states.len() == 3 && agree && items == alive
        })
        .await;
    // Garbage may stay until then.
    for number in world.numbers() {
        let host = world.host(number).expect("every node is up");
        let node = world.node(number).expect("every node is up");
        host.run(async move { node.flush().await }).await;
    }
    let mut groups: BTreeMap<GroupId, Vec<Arc<LocalReplica>>> = BTreeMap::new();
    for local in world.numbers().flat_map(|number| world.replicas(number)) {
        groups.entry(local.group().group()).or_default().push(local);
    }
    for (group, replicas) in &groups {
        check_rows(*group, replicas);
    }
}

/// The replicas of a group hold the same rows in every table, and no row outlives its item.
fn check_rows(group: GroupId, replicas: &[Arc<LocalReplica>]) {
    let views: Vec<_> = replicas.iter().map(|local| local.group().machine().snapshot()).collect();
    let machine = replicas[0].group().machine();
    let state = machine.state();
    let items = views[0].items(&views[0].keys().slots(Table::Items, machine.spec().slots));
    let stamps = items.map(|item| item.expect("memory reads").1.stamp);
    let later = stamps.filter(|stamp| !stamp.is_first()).count() as u64;
    for range in machine.ranges() {
        let rows = views[0].rows(&range).expect("memory reads");
        for view in &views[1..] {
            let others = view.rows(&range).expect("memory reads");
            assert!(others == rows, "replicas of {group} differ in {range:?}");
        }
        let expected = match range.table {
            Table::Unique if machine.unique_keys().is_empty() => 0,
            Table::Items | Table::Feed | Table::Unique => state.items(),
            Table::Numbers => later,
            Table::Index => client::INDEX_ENTRIES * state.items() + later,
            // What happened is remembered for longer than a run takes.
            Table::History if state.remembers() => continue,
            Table::Expiry | Table::History | Table::Meta | Table::Catalog => 0,
        };
        assert_eq!(rows.len() as u64, expected, "no row of {range:?} outlives its item");
    }
}
