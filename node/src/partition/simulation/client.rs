//! A client of the simulation: one request after the other, each answer judged.

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
use super::{DEFAULT_TTL, NODES, RUN, World};
use crate::clock::monotonic;
use crate::simulation::laws::{Key, Known, Policy, Span};

/// Works on one key after the other; a key of which too little is known is given up.
pub(super) struct Client {
    world: Rc<World>,
    number: u32,
    rng: SmallRng,
    keys: u32,
    key: Key,
    serial: u64,
    /// The session token.
    token: Lsn,
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
            keys: 0,
            key: Key::new(format!("c{number}-0")),
            serial: 0,
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
        match self.key.known() {
            Known::Version { expiry, .. } if self.rng.random_bool(0.4) => {
                let left = expiry - self.world.truth() + self.rng.random_range(-3000..3000);
                u64::try_from(left).map_or(random, Duration::from_micros)
            }
            Known::Version { .. } | Known::Absent => random,
        }
    }

    fn item(&self) -> ItemKey {
        let value = PartitionKey::parse("[\"p\"]").unwrap();
        let id = ItemId::try_from(self.key.name().to_string()).unwrap();
        ItemKey::new(&self.world.rules.key().place(&value), &value, &id)
    }

    fn next_key(&mut self) {
        self.keys += 1;
        self.key = Key::new(format!("c{}-{}", self.number, self.keys));
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
            seen.linearizable_at_followers +=
                u32::from(follows && level == ReadLevel::Linearizable);
            return Some((span, found));
        }
        let (span, answer) = self.ask(request).await?;
        read_answer(answer).map(|found| (span, found))
    }

    async fn write(&mut self) {
        self.serial += 1;
        let serial = self.serial;
        let ttl: i64 = self.rng.random_range(0..4);
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
                    Effect::Created => self.key.saw_gone(span, "created"),
                    Effect::Replaced => self.key.saw_alive_at_apply(span, "replaced"),
                    Effect::Deleted | Effect::Read | Effect::NotModified => {
                        panic!("a write did {:?}", written.effect)
                    }
                }
                let version = (serial, written.stamp.ts, (ttl > 0).then_some(ttl));
                self.key.written(span, version, Policy::Default(DEFAULT_TTL), lsn);
            }
            Ok(PartitionResponse::Written { result: Err(refused), lsn }) => {
                self.token = self.token.max(lsn);
                assert_eq!(refused.refusal, Refusal::Conflict, "only a create can be refused");
                self.key.saw_alive_at_apply(span, "conflicted");
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
                self.key.deleted(span, lsn);
            }
            Ok(PartitionResponse::Written { result: Err(refused), lsn }) => {
                self.token = self.token.max(lsn);
                assert_eq!(refused.refusal, Refusal::NotFound, "nothing else stops a delete");
                self.key.saw_gone(span, "was not there to delete");
            }
            Ok(other) => panic!("a write is not answered with {other:?}"),
            Err(PartitionError::Unknown(_)) => self.next_key(),
            Err(_) => {}
        }
    }

    async fn read(&mut self) {
        let Some((span, found)) = self.read_anywhere(ReadLevel::Linearizable).await else { return };
        self.token = self.token.max(found.lsn);
        self.count(&found);
        self.key.read_last(span, found.lsn, found.serial());
    }

    async fn read_in_session(&mut self) {
        let token = self.token;
        let Some((span, found)) = self.read_anywhere(ReadLevel::AtLeast(token)).await else {
            return;
        };
        assert!(found.lsn >= token, "a session at {token} was answered at {}", found.lsn);
        self.token = found.lsn;
        self.count(&found);
        self.key.read_last(span, found.lsn, found.serial());
    }

    async fn read_eventually(&mut self) {
        let Some((span, found)) = self.read_anywhere(ReadLevel::Any).await else { return };
        if found.lsn >= self.key.changed() {
            self.count(&found);
        } else {
            self.world.seen.borrow_mut().stale += 1;
        }
        self.key.read(span, found.lsn, found.serial());
    }

    fn count(&self, found: &Found) {
        let mut seen = self.world.seen.borrow_mut();
        seen.alive += u32::from(found.item.is_some());
        seen.gone += u32::from(found.item.is_none());
    }
}

impl Found {
    fn serial(&self) -> Option<u64> {
        let body = &self.item.as_ref()?.body;
        let body: serde_json::Value = serde_json::from_slice(body).unwrap();
        body["serial"].as_u64()
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
