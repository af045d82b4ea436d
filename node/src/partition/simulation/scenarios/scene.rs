//! A world with hands to act in it, and a clock that shows what it is told to.

use std::sync::atomic::AtomicU32;

use ephemeris_store::command::{Action, Effect, ItemWrite, Precondition, Refusal};
use ephemeris_store::document::Document;
use ephemeris_store::ids::{ItemId, Lsn};
use ephemeris_store::item::{ItemKey, Stamp};
use ephemeris_store::partition_key::PartitionKey;
use ephemeris_store::query::{
    CompiledQuery, ComputedProperties, Moment, PageLimits, Parameters, Run, Scope, Walk,
};
use ephemeris_store::ttl::Vouchers;

use super::super::super::QueryRequest;
use super::*;
use crate::clock::Clock;

/// A read that answers within this is no news: elections and clocks take their time.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a scenario in simulated time, with clocks that agree.
pub(super) fn scenario<F: Future<Output = ()>>(tell: impl FnOnce(Scene) -> F) {
    show_what_happens();
    simulate(1, async {
        let scene = Scene { world: Rc::new(World::start(1).await) };
        scene.set_walls([0, 0, 0]);
        scene.sample().await;
        let sampler = tokio::task::spawn_local(scene.clone().keep_sampling());
        tell(scene).await;
        sampler.abort();
    });
}

/// A world with hands to act in it.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) world: Rc<World>,
}

impl Scene {
    async fn keep_sampling(self) {
        loop {
            self.sample().await;
            sleep(Duration::from_millis(300)).await;
        }
    }

    pub(super) async fn sample(&self) {
        self.world.sample_clocks(&mut SmallRng::seed_from_u64(7)).await;
    }

    /// Sets how far the wall clocks are off, in microseconds.
    pub(super) fn set_walls(&self, errors: [i64; NODES as usize]) {
        for (node, error) in self.world.nodes.borrow().iter().zip(errors) {
            node.time.wall_error.store(error, Ordering::SeqCst);
        }
    }

    /// Makes one wall clock wrong.
    pub(super) fn set_wall(&self, node: usize, error: i64) {
        self.world.nodes.borrow()[node].time.wall_error.store(error, Ordering::SeqCst);
    }

    /// Waits until a node leads and answers.
    pub(super) async fn leader(&self) -> usize {
        let deadline = monotonic() + PATIENCE;
        loop {
            for node in 0..NODES as usize {
                let settled = async {
                    let service = self.world.service(node)?;
                    service.group().leadership().is_me.then_some(())?;
                    timeout(DEADLINE, service.group().read_barrier()).await.ok()?.ok()
                };
                if settled.await.is_some() {
                    return node;
                }
            }
            assert!(monotonic() < deadline, "nobody leads:\n{}", self.world.describe());
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Kills the leader, boots it again, and waits for another.
    pub(super) async fn replace_leader(&self) -> usize {
        let old = self.leader().await;
        self.world.crash(old).await;
        let new = self.leader().await;
        self.world.boot(old).await;
        new
    }

    pub(super) fn key(&self, id: &str) -> ItemKey {
        let value = PartitionKey::parse("[\"p\"]").unwrap();
        let id = ItemId::try_from(id.to_string()).unwrap();
        ItemKey::new(&self.world.rules.key().place(&value), &value, &id)
    }

    /// Asks a node; what is not executed is asked again, also of whoever leads then.
    pub(super) async fn ask(
        &self,
        node: usize,
        request: PartitionRequest,
    ) -> Result<PartitionResponse, PartitionError> {
        self.ask_at(node, request, Linearizable).await
    }

    pub(super) async fn ask_at(
        &self,
        node: usize,
        request: PartitionRequest,
        level: ReadLevel,
    ) -> Result<PartitionResponse, PartitionError> {
        let Some(service) = self.world.service(node) else { return Err(PartitionError::NotHere) };
        self.world.ask(&service, request, level).await
    }

    pub(super) async fn ask_leader(&self, request: PartitionRequest) -> PartitionResponse {
        let deadline = monotonic() + PATIENCE;
        loop {
            let leader = self.leader().await;
            match self.ask(leader, request.clone()).await {
                Ok(response) => return response,
                Err(error) => assert!(monotonic() < deadline, "not answered: {error}"),
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    pub(super) fn write_of(
        &self,
        id: &str,
        ttl: Option<u32>,
        kind: fn(Document) -> Action,
    ) -> ItemWrite {
        let own = ttl.map_or(String::new(), |ttl| format!(",\"ttl\":{ttl}"));
        let body = format!("{{\"id\":\"{id}\",\"pk\":\"p\"{own}}}");
        let document = self.world.rules.parse(body.as_bytes()).unwrap().document;
        ItemWrite { key: self.key(id), precondition: Precondition::None, action: kind(document) }
    }

    pub(super) async fn write(&self, write: ItemWrite) -> Result<(Effect, Stamp), Refusal> {
        let response = self.ask_leader(PartitionRequest::Write(vec![write])).await;
        let PartitionResponse::Written { result, .. } = response else { panic!("{response:?}") };
        let written = result.map_err(|refused| refused.refusal)?.pop().unwrap();
        Ok((written.effect, written.stamp))
    }

    /// Writes an item with a time to live; returns its stamp.
    pub(super) async fn put(&self, id: &str, ttl: u32) -> Seconds {
        self.write(self.write_of(id, Some(ttl), Action::Upsert)).await.unwrap().1.ts
    }

    /// True if the leader shows the item.
    pub(super) async fn shows(&self, id: &str) -> bool {
        let response = self.ask_leader(PartitionRequest::Read(self.key(id))).await;
        let PartitionResponse::Read { item, .. } = response else { panic!("{response:?}") };
        item.is_some()
    }

    /// What a query finds that needs no order, as JSON.
    pub(super) async fn query(&self, text: &str) -> Vec<Vec<u8>> {
        let response = self.ask_leader(question(text)).await;
        self.found(text, response)
    }

    /// What is in the answer to it.
    pub(super) fn found(&self, text: &str, response: PartitionResponse) -> Vec<Vec<u8>> {
        let PartitionResponse::Page { page, .. } = response else { panic!("{response:?}") };
        let (index, computed) = (self.world.rules.index(), ComputedProperties::default());
        let query = CompiledQuery::new(text, &Parameters::default(), index, &computed).unwrap();
        let mut walk = Walk::new(&query, None, query.window, LIMITS);
        walk.take(SlotRange::ALL, page);
        walk.end(SlotRange::ALL, &Run::new(Moment::new(Millis(0), Millis(0), 0))).rows
    }

    /// What a node's replica finds: as of which entry, and whether the item is there.
    pub(super) async fn finds(
        &self,
        node: usize,
        id: &str,
        level: ReadLevel,
    ) -> Result<(Lsn, bool), PartitionError> {
        let request = PartitionRequest::Read(self.key(id));
        let response = self.ask_at(node, request, level).await?;
        let PartitionResponse::Read { lsn, item } = response else { panic!("{response:?}") };
        Ok((lsn, item.is_some()))
    }

    /// Sleeps until true time has come so far beyond a second, in microseconds.
    pub(super) async fn until(&self, second: Seconds, beyond: i64) {
        let at = i64::try_from(second.0).unwrap() * SECOND + beyond;
        if let Ok(left) = u64::try_from(at - self.world.truth()) {
            sleep(Duration::from_micros(left)).await;
        }
    }

    /// Waits until a node trusts its clock so much, and no more.
    pub(super) async fn await_trust(&self, node: usize, trust: Trust) {
        let deadline = monotonic() + Duration::from_hours(2);
        let clock = {
            let nodes = self.world.nodes.borrow();
            nodes[node].running.as_ref().expect("it runs").clock.clone()
        };
        while clock.now().trust != trust {
            assert!(monotonic() < deadline, "not so:\n{}", self.world.describe());
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Items with rows at the leader, dead or alive.
    pub(super) async fn rows(&self) -> u64 {
        let leader = self.leader().await;
        self.world.service(leader).unwrap().group().machine().state().items()
    }

    /// True if nothing happens at this node's replica, which does not tick.
    pub(super) fn rests(&self, node: usize) -> bool {
        self.world.service(node).is_some_and(|service| service.group().status().is_resting)
    }

    /// Waits until a node's replica rests.
    pub(super) async fn rested(&self, node: usize) {
        let deadline = monotonic() + PATIENCE;
        while !self.rests(node) {
            assert!(monotonic() < deadline, "it does not rest:\n{}", self.world.describe());
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the leader has no rows left.
    pub(super) async fn swept(&self) {
        let deadline = monotonic() + PATIENCE;
        while self.rows().await > 0 {
            assert!(monotonic() < deadline, "not swept:\n{}", self.world.describe());
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A clock that shows what it is told to, and counts how often somebody looks.
pub(super) struct HandClock {
    reading: Mutex<Reading>,
    looks: AtomicU32,
}

impl HandClock {
    pub(super) fn new(reading: Reading) -> Arc<Self> {
        Arc::new(Self { reading: Mutex::new(reading), looks: AtomicU32::new(0) })
    }

    pub(super) fn set(&self, reading: Reading) {
        *self.reading.lock().unwrap() = reading;
    }

    pub(super) fn looks(&self) -> u32 {
        self.looks.load(Ordering::SeqCst)
    }

    pub(super) fn showing(micros: i64) -> Reading {
        let now = Millis(u64::try_from(micros / MILLI).unwrap());
        Reading::sure(ClockInterval::new(now, Millis(now.0 + 1)))
    }
}

impl Clock for HandClock {
    fn now(&self) -> Reading {
        self.looks.fetch_add(1, Ordering::SeqCst);
        *self.reading.lock().unwrap()
    }

    fn vouching(&self) -> Vouchers {
        Vouchers { readings: vec![self.now().interval.lo()], nodes: 1 }
    }
}

/// A query for one page.
pub(super) fn question(text: &str) -> PartitionRequest {
    let request = QueryRequest {
        query: Some((text.to_string(), Parameters::default())),
        scope: Scope::default(),
        resume: None,
        limits: LIMITS,
        first: Millis(0),
        seed: 0,
        patience: DEADLINE,
    };
    PartitionRequest::Query(Box::new(request))
}

const LIMITS: PageLimits = PageLimits { rows: 100, bytes: 1 << 20, items: 1000 };

/// A service of the same replica that goes by this clock.
pub(super) fn with_clock(service: &PartitionService, clock: Arc<HandClock>) -> PartitionService {
    let (group, directory) = (service.group().clone(), Directory::new(Arc::new(catalog())));
    PartitionService::new(group, clock, directory, Executor::Inline, Millis(0), Burst::Off)
}

/// True if nothing was told of an item: 503, or another replica is to be asked.
pub(super) fn is_doubt(answer: &Result<PartitionResponse, PartitionError>) -> bool {
    matches!(answer, Err(PartitionError::Doubtful(_) | PartitionError::NotLeader { .. }))
}
