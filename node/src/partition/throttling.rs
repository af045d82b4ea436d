//! Real services and sweepers under an offer, in simulated time: who is served, who waits, and what
//! the sweeper is left.

use std::sync::Arc;
use std::time::Duration;

use ephemeris_raft::testing::{MemoryDisk, MemoryNetwork, simulate};
use ephemeris_raft::wal::{Wal, WalOptions};
use ephemeris_raft::{Executor, Group, GroupOptions, Router, Storage};
use ephemeris_store::catalog::{Catalog, CatalogCommand, Sweeping, Throughput};
use ephemeris_store::change_feed::{FeedStart, RowForm};
use ephemeris_store::charge::Charge;
use ephemeris_store::command::{Action, Command, ItemWrite, Precondition};
use ephemeris_store::document::Document;
use ephemeris_store::engine::MemoryEngine;
use ephemeris_store::ids::{ItemId, NodeId};
use ephemeris_store::indexing::{IndexRules, complete};
use ephemeris_store::item::{ItemKey, LogicalPartition};
use ephemeris_store::partition::{Partition, PartitionState};
use ephemeris_store::partition_key::{KeyDefinition, KeyKind, PartitionKey, Place};
use ephemeris_store::query::{PageLimits, Scope};
use ephemeris_store::time::Millis;
use ephemeris_store::ttl::{PolicyEpoch, TimeToLive, TtlField, TtlPolicy};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::indexer::Indexer;
use super::simulation::{GROUP, replica, spec};
use super::sweeper::Sweeper;
use super::{
    Burst, ChangesRequest, Feed, PartitionError, PartitionRequest, PartitionResponse,
    PartitionService, Price, QueryRequest, ReadLevel, cost,
};
use crate::clock::{Instant, SystemClock, TimeSource, monotonic};
use crate::placement::{Directory, catalogs};

pub(super) const SEED: u64 = 7;
/// The least a container can be given, in request units a second.
const RATE: u32 = 400;
/// So much that nothing waits.
const PLENTY: u32 = 1_000_000;
const EPOCH_MICROS: i64 = 1_700_000_000_000_000;
const DEADLINE: Duration = Duration::from_mins(2);
/// Reads come this often: far more of them than the rate pays for.
const HURRY: Duration = Duration::from_millis(1);
/// How long a hand-over of leadership may take.
const HAND_OVER: Duration = Duration::from_secs(1);

/// A machine whose clocks are right.
struct RightTime(Instant);

impl TimeSource for RightTime {
    fn boot_micros(&self) -> i64 {
        i64::try_from(self.0.elapsed().as_micros()).unwrap() + 1_000_000
    }

    fn wall_micros(&self) -> i64 {
        EPOCH_MICROS + self.boot_micros()
    }
}

struct Node {
    service: PartitionService,
    catalog: Arc<Catalog>,
    tasks: Vec<JoinHandle<()>>,
}

/// A group of replicas, each with its service, sweeper and copy of the catalog.
pub(super) struct World {
    nodes: Vec<Node>,
}

impl World {
    pub(super) async fn start(count: u32, burst: Burst) -> Self {
        let (network, started) = (MemoryNetwork::new(7), monotonic());
        let mut nodes = Vec::new();
        for number in 1..=count {
            nodes.push(Node::boot(NodeId(number), &network, started, burst).await);
        }
        let members: Vec<_> = (1..=count).map(replica).collect();
        for node in &nodes {
            node.service.group().form(&members).await.unwrap();
        }
        let world = Self { nodes };
        for command in the_container() {
            world.change_catalog(&command);
        }
        until("the policy to be set", async || {
            let leader = world.leader().await;
            leader.set_ttl_policy(PolicyEpoch(1), TtlPolicy::NoDefault, None).await.ok()
        })
        .await;
        world
    }

    fn change_catalog(&self, command: &CatalogCommand) {
        self.nodes.iter().for_each(|node| catalogs::apply(&node.catalog, command));
    }

    /// Gives the container's only partition this rate.
    fn set_rate(&self, request_units: u32) {
        let throughput = Throughput::Manual(request_units);
        let precondition = Precondition::None;
        let command = CatalogCommand::ReplaceThroughput { offer: 1, throughput, precondition };
        self.change_catalog(&command);
    }

    pub(super) async fn leader(&self) -> PartitionService {
        until("a leader", async || {
            let services = self.nodes.iter().map(|node| &node.service);
            services
                .filter(|service| service.group().leadership().is_me)
                .max_by_key(|service| service.group().leadership().term)
                .cloned()
        })
        .await
    }

    /// Makes another replica lead.
    async fn hand_over(&self) -> PartitionService {
        let old = self.leader().await;
        let me = old.group().replica();
        let next = replica(me.node.0 % u32::try_from(self.nodes.len()).unwrap() + 1);
        until("the next leader", async || {
            old.group().transfer_leadership(next).await;
            let settled = timeout(HAND_OVER, async {
                let leader = until("a leader", async || {
                    let leader = self.leader().await;
                    (leader.group().replica() != me).then_some(leader)
                });
                let leader = leader.await;
                leader.group().settle().await.is_ok().then_some(leader)
            });
            settled.await.ok().flatten()
        })
        .await
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for task in self.nodes.iter().flat_map(|node| &node.tasks) {
            task.abort();
        }
    }
}

impl Node {
    async fn boot(id: NodeId, network: &MemoryNetwork, started: Instant, burst: Burst) -> Self {
        let options = WalOptions { segment_bytes: 8 << 20, cache_bytes: 1 << 20, segments_max: 8 };
        let (wal, writer) = Wal::open(Arc::new(MemoryDisk::new()), options).unwrap();
        let writing = tokio::task::spawn_local(async move {
            writer.run_as_task(Duration::from_millis(1)).await.unwrap();
        });
        let engine = Arc::new(MemoryEngine::new());
        let storage = Storage {
            engine: engine.clone(),
            wal,
            snapshots: Arc::new(MemoryDisk::new()),
            executor: Executor::Inline,
        };
        let router = Router::new();
        let transport = network.connect(id, router.clone());
        let machine = Partition::open(engine, spec()).unwrap();
        let options = GroupOptions::default();
        let group =
            Group::start(GROUP, replica(id.0), machine, storage, transport, router, &options);
        let clock = Arc::new(SystemClock::new(Arc::new(RightTime(started))));
        let catalog = Arc::new(catalogs::catalog(&[]));
        let directory = Directory::new(catalog.clone());
        let service = PartitionService::new(
            group.await.unwrap(),
            clock,
            directory,
            Executor::Inline,
            Millis(0),
            burst,
        );
        let sweeper = Sweeper { service: service.clone(), term: 0 };
        let sweeping = tokio::task::spawn_local(sweeper.run());
        let indexer = Indexer { service: service.clone() };
        let indexing = tokio::task::spawn_local(indexer.run());
        Self { service, catalog, tasks: vec![writing, sweeping, indexing] }
    }
}

/// What makes a catalog know the partition, with an offer of plenty.
fn the_container() -> [CatalogCommand; 3] {
    let definition = serde_json::json!({ "id": "c", "partitionKey": { "paths": ["/pk"] } });
    catalogs::a_container(&definition, 1, Some(Throughput::Manual(PLENTY)))
}

/// Looks until there is something, in simulated time.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = monotonic() + DEADLINE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(monotonic() < deadline, "waited in vain for {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

fn partition_key() -> PartitionKey {
    PartitionKey::parse("[\"p\"]").unwrap()
}

fn place() -> Place {
    let definition = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
    definition.place(&partition_key())
}

fn item_key(id: &str) -> ItemKey {
    ItemKey::new(&place(), &partition_key(), &ItemId::try_from(id.to_string()).unwrap())
}

/// An item of so many bytes, with ten indexed values.
fn create(id: &str, bytes: usize, ttl: i64) -> ItemWrite {
    let empty = format!("{{\"id\":\"{id}\",\"pk\":\"p\",\"text\":\"\"}}");
    let text = "x".repeat(bytes - empty.len());
    let body = format!("{{\"id\":\"{id}\",\"pk\":\"p\",\"text\":\"{text}\"}}").into();
    let ttl = TtlField::Valid(TimeToLive::from_seconds(ttl).unwrap());
    let action = Action::Create(Document { body, ttl, indexed_values: 10 });
    ItemWrite { key: item_key(id), precondition: Precondition::None, action }
}

async fn store(service: &PartitionService, writes: Vec<ItemWrite>) {
    let answer = service
        .answer(PartitionRequest::Write(writes), ReadLevel::Linearizable, Price::Once)
        .await
        .unwrap();
    assert!(matches!(answer, PartitionResponse::Written { result: Ok(_), .. }), "{answer:?}");
}

/// Stores `count` items of 1 KB that live for `ttl` seconds, and "alive", which does not expire.
async fn fill(service: &PartitionService, count: usize, ttl: i64) {
    store(service, vec![create("alive", 1024, -1)]).await;
    for batch in (0..count).collect::<Vec<_>>().chunks(100) {
        let write = |number: &usize| create(&format!("i{number}"), 1024, ttl);
        store(service, batch.iter().map(write).collect()).await;
    }
}

fn state(service: &PartitionService) -> PartitionState {
    service.group().machine().state()
}

fn query() -> PartitionRequest {
    let limits = PageLimits { rows: 1000, bytes: 4 << 20, items: 100_000 };
    let request = QueryRequest {
        query: None,
        scope: Scope::default(),
        resume: None,
        limits,
        first: Millis(0),
        seed: 0,
        patience: Duration::from_secs(5),
    };
    PartitionRequest::Query(Box::new(request))
}

/// Reads "alive" again and again, as fast as it goes; how often it was served, and how often not.
async fn hurry(service: &PartitionService, lasting: Duration) -> [u32; 2] {
    let (end, mut seen) = (monotonic() + lasting, [0, 0]);
    while monotonic() < end {
        match service
            .answer(PartitionRequest::Read(item_key("alive")), ReadLevel::Linearizable, Price::Once)
            .await
        {
            Ok(PartitionResponse::Read { item: Some(_), .. }) => seen[0] += 1,
            Err(PartitionError::Throttled { .. }) => seen[1] += 1,
            other => panic!("{other:?}"),
        }
        sleep(HURRY).await;
    }
    seen
}

/// What was served in `lasting` of full load while `count` dead items wait, and the world after it.
async fn full_load(count: usize, lasting: Duration) -> ([u32; 2], World) {
    let world = World::start(1, Burst::Off).await;
    let service = world.leader().await;
    fill(&service, count, 5).await;
    world.set_rate(RATE);
    let seen = hurry(&service, lasting).await;
    (seen, world)
}

#[test]
fn t43_under_full_load_nothing_is_swept_and_nobody_waits_longer_for_it() {
    simulate(SEED, async {
        let lasting = Duration::from_secs(30);
        let (alone, _) = full_load(0, lasting).await;
        let (seen, world) = full_load(500, lasting).await;
        assert!(seen[1] > 1000, "the partition was overloaded: {seen:?}");
        let granted = RATE * 30;
        assert!(seen[0].abs_diff(granted) * 100 <= granted * 4, "{} of {granted} RU", seen[0]);
        assert!(seen[0].abs_diff(alone[0]) * 100 <= alone[0], "{seen:?}, without dead {alone:?}");

        let service = world.leader().await;
        assert_eq!(state(&service).items(), 501, "nothing was swept");
        let dead = until("a read to be served", async || {
            service
                .answer(
                    PartitionRequest::Read(item_key("i7")),
                    ReadLevel::Linearizable,
                    Price::Once,
                )
                .await
                .ok()
        })
        .await;
        assert!(matches!(dead, PartitionResponse::Read { item: None, .. }), "{dead:?}");
        let began = monotonic();
        until("the dead to be swept", async || (state(&service).items() == 1).then_some(())).await;
        let took = began.elapsed().as_secs_f64();
        // One second to fill the balance, then 500 items of 8.95 RU.
        let expected = 1.0 + 500.0 * 8.95 / f64::from(RATE);
        assert!((took - expected).abs() < 0.1 * expected, "drained in {took} s, not {expected} s");
    });
}

#[test]
fn an_idle_partition_is_swept_by_the_sizing_rule() {
    simulate(SEED, async {
        let world = World::start(1, Burst::Saved).await;
        let service = world.leader().await;
        fill(&service, 600, 3).await;
        world.set_rate(RATE);
        let left = || state(&service).items();
        until("sweeping to begin", async || (left() < 601).then_some(())).await;
        let before = left();
        sleep(Duration::from_secs(10)).await;
        let swept = before - left();
        assert!((425..=469).contains(&swept), "{swept} in 10 s, not 447 ± 5 %");
    });
}

/// Otherwise the first reader of each second would wait for the log, and nobody would see the backlog.
#[test]
fn what_is_due_and_has_to_stay_is_dead_by_the_log_and_counted() {
    simulate(SEED, async {
        let world = World::start(1, Burst::Off).await;
        let service = world.leader().await;
        world.change_catalog(&CatalogCommand::SetSweeping(Sweeping::Paused));
        fill(&service, 50, 5).await;
        assert_eq!(service.gauges().unwrap().backlog.items, 0);
        sleep(Duration::from_secs(7)).await;
        assert_eq!(service.gauges().unwrap().backlog.items, 50, "sweeping is paused");

        let (_, world) = full_load(50, Duration::from_secs(10)).await;
        let service = world.leader().await;
        assert_eq!(service.gauges().unwrap().backlog.items, 50, "nothing is left over");
    });
}

#[test]
fn an_index_is_built_while_the_dead_have_to_stay() {
    simulate(SEED, async {
        let world = World::start(1, Burst::Off).await;
        let service = world.leader().await;
        world.change_catalog(&CatalogCommand::SetSweeping(Sweeping::Paused));
        fill(&service, 50, 2).await;
        sleep(Duration::from_secs(4)).await;
        let rules = IndexRules::new(&complete(None).unwrap()).unwrap();
        let set = Command::SetIndexPolicy { epoch: PolicyEpoch(2), rules };
        service.propose(set).await.unwrap();
        let index = || service.group().machine().index();
        assert!(index().is_building(), "it is built beside the items");
        until("the index to serve", async || (!index().is_building()).then_some(())).await;
        assert_eq!(state(&service).items(), 51, "sweeping is paused");
    });
}

#[test]
fn sweeping_changes_no_charge() {
    simulate(SEED, async {
        let world = World::start(1, Burst::Saved).await;
        let service = world.leader().await;
        world.change_catalog(&CatalogCommand::SetSweeping(Sweeping::Paused));
        fill(&service, 50, 2).await;
        sleep(Duration::from_secs(4)).await;
        let charges = async || {
            let mut charges = Vec::new();
            let feed = Feed::LatestVersion(FeedStart::Beginning, RowForm::Flat);
            let limits = PageLimits { rows: 100, bytes: 4 << 20, items: 1000 };
            let page = ChangesRequest { feed, scope: Scope::default(), limits };
            for request in [
                query(),
                PartitionRequest::Changes(Box::new(page)),
                PartitionRequest::Read(item_key("i7")),
                PartitionRequest::Read(item_key("never")),
                PartitionRequest::Read(item_key("alive")),
            ] {
                charges.push(
                    cost::charge(
                        &service.answer(request, ReadLevel::Linearizable, Price::Once).await,
                    )
                    .unwrap(),
                );
            }
            charges
        };
        assert_eq!(state(&service).items(), 51);
        let before = charges().await;
        world.change_catalog(&CatalogCommand::SetSweeping(Sweeping::Running));
        until("the dead to be swept", async || (state(&service).items() == 1).then_some(())).await;
        assert_eq!(charges().await, before);
        assert_eq!(before[2], before[3], "the dead cost what never was costs");
    });
}

#[test]
fn a_throttled_request_changes_nothing_and_is_served_when_it_was_told() {
    simulate(SEED, async {
        let world = World::start(1, Burst::Off).await;
        let service = world.leader().await;
        fill(&service, 10, 1000).await;
        world.set_rate(RATE);
        // 473.9 RU: a debt of 73.9 RU.
        store(&service, vec![create("big", 1 << 20, -1)]).await;
        let before = state(&service);
        let mut longest = Duration::ZERO;
        for request in [
            PartitionRequest::Write(vec![create("new", 200, -1)]),
            PartitionRequest::Read(item_key("i1")),
            PartitionRequest::Clear(LogicalPartition::new(&place(), &partition_key())),
            query(),
        ] {
            match service.answer(request, ReadLevel::Linearizable, Price::Once).await {
                Err(PartitionError::Throttled { retry_after }) => longest = retry_after,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(state(&service), before, "not even the log moved");
        // What the system asks for itself is never refused.
        for request in [PartitionRequest::Statistics, PartitionRequest::TtlStatus] {
            service.answer(request, ReadLevel::Linearizable, Price::Once).await.unwrap();
        }
        let exact = Duration::from_millis(185);
        assert!(longest <= exact && longest > exact / 2, "{longest:?} for 73.9 RU at 400 RU/s");
        sleep(longest).await;
        store(&service, vec![create("new", 200, -1)]).await;
    });
}

#[test]
fn a_failover_throttles_nobody() {
    simulate(SEED, async {
        let world = World::start(3, Burst::Off).await;
        let first = world.leader().await;
        fill(&first, 1, 1000).await;
        world.set_rate(RATE);
        store(&first, (0..5).map(|n| create(&format!("big{n}"), 1 << 20, -1)).collect()).await;
        let debt = match first
            .answer(PartitionRequest::Read(item_key("alive")), ReadLevel::Linearizable, Price::Once)
            .await
        {
            Err(PartitionError::Throttled { retry_after }) => retry_after,
            other => panic!("{other:?}"),
        };
        let owed_until = monotonic() + debt;
        loop {
            let leader = world.hand_over().await;
            // Within a second's worth.
            for _ in 0..RATE / 2 {
                leader
                    .answer(
                        PartitionRequest::Read(item_key("alive")),
                        ReadLevel::Linearizable,
                        Price::Once,
                    )
                    .await
                    .unwrap();
            }
            if leader.group().replica() == first.group().replica() {
                break;
            }
        }
        assert!(monotonic() < owed_until, "the debt would not be paid yet");
    });
}

#[test]
fn a_write_that_is_given_up_half_way_is_paid() {
    simulate(SEED, async {
        let world = World::start(1, Burst::Off).await;
        let service = world.leader().await;
        fill(&service, 1, 1000).await;
        world.set_rate(RATE);
        // 281 RU each: one leaves something of 400 RU, two do not.
        let write = |id| PartitionRequest::Write(vec![create(id, 600 << 10, -1)]);
        let given_up = timeout(
            Duration::ZERO,
            service.answer(write("a"), ReadLevel::Linearizable, Price::Once),
        )
        .await;
        assert!(given_up.is_err(), "it had no time");
        until("it to be committed", async || (state(&service).items() == 3).then_some(())).await;
        service.answer(write("b"), ReadLevel::Linearizable, Price::Once).await.unwrap();
        let third = service
            .answer(PartitionRequest::Read(item_key("alive")), ReadLevel::Linearizable, Price::Once)
            .await;
        assert!(matches!(third, Err(PartitionError::Throttled { .. })), "{third:?}");
    });
}

#[test]
fn a_raised_rate_counts_from_the_next_request() {
    simulate(SEED, async {
        let world = World::start(1, Burst::Off).await;
        let service = world.leader().await;
        fill(&service, 1, 1000).await;
        world.set_rate(RATE);
        store(&service, vec![create("big", 1 << 20, -1)]).await;
        let read = || PartitionRequest::Read(item_key("alive"));
        assert!(service.answer(read(), ReadLevel::Linearizable, Price::Once).await.is_err());
        world.set_rate(PLENTY);
        let pause = Duration::from_millis(1);
        match service.answer(read(), ReadLevel::Linearizable, Price::Once).await {
            Err(PartitionError::Throttled { retry_after }) => assert_eq!(retry_after, pause),
            other => panic!("{other:?}"),
        }
        sleep(pause).await;
        let answer = service.answer(read(), ReadLevel::Linearizable, Price::Once).await;
        assert_eq!(cost::charge(&answer), Some(Charge::point_read(1024)), "{answer:?}");
    });
}

/// Reads "alive" at this level and price as fast as it goes; how often it was answered here.
async fn served(service: &PartitionService, level: ReadLevel, price: Price, time: Duration) -> u32 {
    let (end, mut served) = (monotonic() + time, 0);
    while monotonic() < end {
        let request = PartitionRequest::Read(item_key("alive"));
        match service.answer(request, level, price).await {
            Ok(PartitionResponse::Read { item: Some(_), .. }) => served += 1,
            Err(PartitionError::Throttled { .. } | PartitionError::NotLeader { .. }) => {}
            other => panic!("{other:?}"),
        }
        sleep(HURRY).await;
    }
    served
}

#[test]
fn a_follower_reads_at_the_rate_and_leaves_the_rest_to_the_leader() {
    simulate(SEED, async {
        let world = World::start(3, Burst::Saved).await;
        let leader = world.leader().await;
        fill(&leader, 1, 1000).await;
        let services = world.nodes.iter().map(|node| node.service.clone());
        let follower = services
            .filter(|service| service.group().replica() != leader.group().replica())
            .find(|service| !service.group().leadership().is_me)
            .unwrap();
        until("what was stored", async || {
            (state(&follower).items() == state(&leader).items()).then_some(())
        })
        .await;
        let seconds = 10;
        let time = Duration::from_secs(seconds.into());
        let unlimited = served(&follower, ReadLevel::Any, Price::Once, time).await;
        world.set_rate(RATE);
        let limited = served(&follower, ReadLevel::Any, Price::Once, time).await;
        assert!(unlimited > 2 * RATE * seconds, "{unlimited} reads without a limit worth the name");
        // A second's worth was saved when it began.
        let granted = RATE * (seconds + 1);
        assert!(limited.abs_diff(granted) * 100 <= granted * 4, "{limited} of {granted} reads");
    });
}

#[test]
fn reads_that_must_be_as_fresh_as_everything_acknowledged_pay_twice() {
    simulate(SEED, async {
        let world = World::start(1, Burst::Off).await;
        let leader = world.leader().await;
        fill(&leader, 1, 1000).await;
        world.set_rate(RATE);
        let time = Duration::from_secs(20);
        let once = served(&leader, ReadLevel::Linearizable, Price::Once, time).await;
        let twice = served(&leader, ReadLevel::Linearizable, Price::Twice, time).await;
        assert!((2 * twice).abs_diff(once) * 100 <= once * 6, "{twice} instead of {once} reads");
    });
}
