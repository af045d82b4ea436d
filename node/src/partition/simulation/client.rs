//! A client of the simulation: one request after the other, each answer judged.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ephemeris_store::command::{Action, Effect, ItemWrite, Precondition, Refusal};
use ephemeris_store::ids::{ItemId, Lsn};
use ephemeris_store::item::ItemKey;
use ephemeris_store::partition_key::PartitionKey;
use rand::RngExt as _;
use rand::rngs::SmallRng;
use tokio::time::sleep;

use super::super::{
    PartitionError, PartitionRequest, PartitionResponse, PartitionService, ReadItem, ReadLevel,
};
use super::{DEFAULT_TTL, NODES, RUN, WIDTH_MAX, World};
use crate::clock::monotonic;

/// What a client knows of its key.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// There is no item.
    Absent,
    /// This version, which expires at this true instant, in microseconds.
    Version { serial: u64, expiry: i64 },
}

/// Works on one key after the other; a key of which too little is known is given up.
pub(super) struct Client {
    world: Rc<World>,
    number: u32,
    rng: SmallRng,
    key: u32,
    serial: u64,
    known: Known,
    /// The entry that made the key what is known of it.
    changed: Lsn,
    /// When each of the key's versions expires, by serial.
    versions: BTreeMap<u64, i64>,
    /// The session token.
    token: Lsn,
}

/// A request's true times.
#[derive(Clone, Copy)]
struct Span {
    call: i64,
    ret: i64,
}

type Answer = Result<PartitionResponse, PartitionError>;

/// What a read found, and how far the replica was that answered.
struct Found {
    lsn: Lsn,
    item: Option<ReadItem>,
}

impl Client {
    pub(super) fn new(world: Rc<World>, number: u32, rng: SmallRng) -> Self {
        Self {
            world,
            number,
            rng,
            key: 0,
            serial: 0,
            known: Known::Absent,
            changed: Lsn(0),
            versions: BTreeMap::new(),
            token: Lsn(0),
        }
    }

    pub(super) async fn run(mut self) {
        let end = monotonic() + RUN;
        while monotonic() < end {
            match self.rng.random_range(0..10) {
                0..3 => self.write().await,
                3..5 => self.read().await,
                5..7 => self.read_in_session().await,
                7..9 => self.read_eventually().await,
                _ => self.delete().await,
            }
            let pause = self.pause();
            sleep(pause).await;
        }
    }

    /// Often just round the expiry, where things go wrong.
    fn pause(&mut self) -> Duration {
        let random = Duration::from_millis(self.rng.random_range(0..400));
        match self.known {
            Known::Version { expiry, .. } if self.rng.random_bool(0.4) => {
                let left = expiry - self.world.truth() + self.rng.random_range(-3000..3000);
                u64::try_from(left).map_or(random, Duration::from_micros)
            }
            Known::Version { .. } | Known::Absent => random,
        }
    }

    fn item(&self) -> ItemKey {
        let value = PartitionKey::parse("[\"p\"]").unwrap();
        let id = ItemId::try_from(format!("c{}-{}", self.number, self.key)).unwrap();
        ItemKey::new(&self.world.rules.key().place(&value), &value, &id)
    }

    fn next_key(&mut self) {
        self.key += 1;
        self.known = Known::Absent;
        self.changed = Lsn(0);
        self.versions.clear();
    }

    /// Asks whoever believes that it leads.
    async fn ask(&self, request: PartitionRequest) -> Option<(Span, Answer)> {
        self.ask_one(&self.world.leader()?, request, ReadLevel::Linearizable).await
    }

    async fn ask_one(
        &self,
        service: &PartitionService,
        request: PartitionRequest,
        level: ReadLevel,
    ) -> Option<(Span, Answer)> {
        let call = self.world.truth();
        let answer = self.world.ask(service, request, level).await;
        let ret = self.world.truth();
        Some((Span { call, ret }, answer))
    }

    /// Reads at any node, and if its replica cannot answer, at the leader, as gateways do.
    async fn read_anywhere(&mut self, level: ReadLevel) -> Option<(Span, Found)> {
        let node = self.rng.random_range(0..NODES as usize);
        let service = self.world.service(node)?;
        let follows = !service.group().leadership().is_me;
        let request = PartitionRequest::Read(self.item());
        let (span, answer) = self.ask_one(&service, request.clone(), level).await?;
        if let Some(found) = read_answer(answer) {
            let mut seen = self.world.seen.borrow_mut();
            seen.alive_at_followers += u32::from(follows && found.item.is_some());
            seen.gone_at_followers += u32::from(follows && found.item.is_none());
            return Some((span, found));
        }
        let (span, answer) = self.ask(request).await?;
        read_answer(answer).map(|found| (span, found))
    }

    async fn write(&mut self) {
        self.serial += 1;
        let serial = self.serial;
        let ttl = self.rng.random_range(0..4);
        let own = if ttl == 0 { String::new() } else { format!(",\"ttl\":{ttl}") };
        let body = format!("{{\"pk\":\"p\",\"serial\":{serial}{own}}}");
        let document = self.world.rules.parse(body.as_bytes()).unwrap().document;
        let create = self.rng.random_bool(0.3);
        let action = if create { Action::Create(document) } else { Action::Upsert(document) };
        let write = ItemWrite { key: self.item(), precondition: Precondition::None, action };
        let Some((span, answer)) = self.ask(PartitionRequest::Write(vec![write])).await else {
            return;
        };
        match answer {
            Ok(PartitionResponse::Written { result: Ok(written), lsn }) => {
                self.token = self.token.max(lsn);
                let written = &written[0];
                match written.effect {
                    Effect::Created => self.saw_gone(span, "created"),
                    Effect::Replaced => self.saw_alive_at_apply(span, "replaced"),
                    Effect::Deleted | Effect::Read | Effect::NotModified => {
                        panic!("a write did {:?}", written.effect)
                    }
                }
                let ttl = if ttl == 0 { DEFAULT_TTL } else { ttl };
                let ts = i64::try_from(written.stamp.ts.0).unwrap() * 1_000_000;
                let expiry = ts + i64::from(ttl) * 1_000_000;
                self.known = Known::Version { serial, expiry };
                self.changed = lsn;
                self.versions.insert(serial, expiry);
                assert!(ts >= span.call, "a stamp {} µs before its write", span.call - ts);
            }
            Ok(PartitionResponse::Written { result: Err(refused), lsn }) => {
                self.token = self.token.max(lsn);
                assert_eq!(refused.refusal, Refusal::Conflict, "only a create can be refused");
                self.saw_alive_at_apply(span, "conflicted");
            }
            Ok(other) => panic!("a write is not answered with {other:?}"),
            Err(PartitionError::Unknown(_)) => self.next_key(),
            Err(_) => {}
        }
    }

    async fn delete(&mut self) {
        let write = ItemWrite {
            key: self.item(),
            precondition: Precondition::None,
            action: Action::Delete,
        };
        let Some((span, answer)) = self.ask(PartitionRequest::Write(vec![write])).await else {
            return;
        };
        match answer {
            Ok(PartitionResponse::Written { result: Ok(_), lsn }) => {
                self.token = self.token.max(lsn);
                self.saw_alive_at_apply(span, "deleted");
                (self.known, self.changed) = (Known::Absent, lsn);
            }
            Ok(PartitionResponse::Written { result: Err(refused), lsn }) => {
                self.token = self.token.max(lsn);
                assert_eq!(refused.refusal, Refusal::NotFound, "nothing else stops a delete");
                self.saw_gone(span, "was not there to delete");
            }
            Ok(other) => panic!("a write is not answered with {other:?}"),
            Err(PartitionError::Unknown(_)) => self.next_key(),
            Err(_) => {}
        }
    }

    async fn read(&mut self) {
        let request = PartitionRequest::Read(self.item());
        let Some((span, answer)) = self.ask(request).await else { return };
        let Some(found) = read_answer(answer) else { return };
        self.token = self.token.max(found.lsn);
        assert!(found.lsn >= self.changed, "a linearizable read shows what was written");
        self.saw(span, &found);
    }

    async fn read_in_session(&mut self) {
        let token = self.token;
        let Some((span, found)) = self.read_anywhere(ReadLevel::AtLeast(token)).await else {
            return;
        };
        assert!(found.lsn >= token, "a session at {token} was answered at {}", found.lsn);
        self.token = found.lsn;
        self.saw(span, &found);
    }

    async fn read_eventually(&mut self) {
        let Some((span, found)) = self.read_anywhere(ReadLevel::Any).await else { return };
        if found.lsn >= self.changed {
            self.saw(span, &found);
        } else {
            self.saw_earlier(span, &found);
        }
    }

    /// Judges a read that was answered with everything that this client did to the key.
    fn saw(&mut self, span: Span, found: &Found) {
        let Some(item) = &found.item else {
            self.world.seen.borrow_mut().gone += 1;
            self.saw_gone(span, "was not found");
            return;
        };
        self.world.seen.borrow_mut().alive += 1;
        let shown = serial_of(item);
        match self.known {
            Known::Absent => panic!("{} is back with serial {shown}", self.name()),
            Known::Version { serial, expiry } => {
                assert_eq!(shown, serial, "{} shows its last version", self.name());
                let late = span.call - expiry;
                assert!(late < 0, "{} was shown {late} µs late", self.name());
            }
        }
    }

    /// Judges a read that was answered with less: one of the key's versions, unless it has expired.
    fn saw_earlier(&mut self, span: Span, found: &Found) {
        self.world.seen.borrow_mut().stale += 1;
        let Some(item) = &found.item else { return };
        let shown = serial_of(item);
        let expiry = self.versions.get(&shown);
        let expiry = expiry.unwrap_or_else(|| panic!("{} never was {shown}", self.name()));
        let late = span.call - expiry;
        assert!(late < 0, "{} was shown {late} µs late, as {shown}", self.name());
    }

    fn name(&self) -> String {
        format!("item c{}-{}", self.number, self.key)
    }

    /// The version is gone, and stays so.
    fn saw_gone(&mut self, span: Span, what: &str) {
        if let Known::Version { expiry, .. } = self.known {
            let early = expiry - span.ret;
            assert!(early <= 0, "{} {what} {early} µs early", self.name());
        }
        self.known = Known::Absent;
    }

    /// Whoever proposed the write took the version to be alive, by a clock that may lag.
    fn saw_alive_at_apply(&self, span: Span, what: &str) {
        let lag = i64::try_from(WIDTH_MAX.as_micros()).unwrap();
        match self.known {
            Known::Absent => panic!("{} {what}, but it was gone", self.name()),
            Known::Version { expiry, .. } => {
                let late = span.call - expiry;
                assert!(late <= lag, "{} {what} {late} µs late", self.name());
            }
        }
    }
}

/// What a read found; nothing if it was not answered.
fn read_answer(answer: Answer) -> Option<Found> {
    match answer {
        Ok(PartitionResponse::Read { lsn, item }) => Some(Found { lsn, item }),
        Ok(other) => panic!("a read is not answered with {other:?}"),
        Err(_) => None,
    }
}

fn serial_of(item: &ReadItem) -> u64 {
    let body: serde_json::Value = serde_json::from_slice(&item.body).unwrap();
    body["serial"].as_u64().unwrap()
}
