//! Writes and reads of single items.

use std::collections::BTreeMap;

use ephemeris_store::ids::Lsn;
use ephemeris_store::time::Seconds;
use rand::RngExt as _;
use serde_json::{Value, json};

use super::super::http::{Answer, Ask};
use super::super::laws::{Known, Span};
use super::{Client, Item, SLOTS, entry_of, found, is_taken};

/// What a client writes into an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    pub(super) serial: u64,
    ttl: Option<i64>,
    pub(super) slot: Option<u64>,
}

/// What must hold for a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    None,
    /// The last version.
    Current,
    /// A version that was replaced.
    Old,
}

/// How fresh a read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Strong,
    Session,
    Eventual,
}

impl Client {
    fn condition(&mut self, which: usize) -> (Condition, Vec<(&'static str, String)>) {
        let item = &self.items[which];
        let mut headers = vec![item.key_header()];
        let condition = match (self.rng.random_range(0..10), &item.etag, &item.old_etag) {
            (0, Some(etag), _) => {
                headers.push(("if-match", etag.clone()));
                Condition::Current
            }
            (1, _, Some(etag)) => {
                headers.push(("if-match", etag.clone()));
                Condition::Old
            }
            _ => Condition::None,
        };
        (condition, headers)
    }

    /// The next version of an item, and the item as it is sent.
    pub(super) fn body(&mut self, which: usize) -> (Version, Value) {
        self.serial += 1;
        let ttl = match self.rng.random_range(0..10) {
            0 => Some(-1),
            1..4 => None,
            _ => Some(self.rng.random_range(1..7)),
        };
        let slot = self.rng.random_range(0..SLOTS);
        let item = &self.items[which];
        let mut body = json!({
            "id": item.id,
            "pk": item.partition_key,
            "client": self.number,
            "serial": self.serial,
            "slot": slot,
        });
        if let Some(ttl) = ttl {
            body["ttl"] = json!(ttl);
        }
        (Version { serial: self.serial, ttl, slot: Some(slot) }, body)
    }

    /// Creates or upserts.
    pub(super) async fn store(&mut self, which: usize) {
        let (version, body) = self.body(which);
        let creates = self.rng.random_bool(0.3);
        let (condition, mut headers) = if creates {
            (Condition::None, vec![self.items[which].key_header()])
        } else {
            self.condition(which)
        };
        if !creates {
            headers.push(("x-ms-documentdb-is-upsert", "true".to_string()));
        }
        let path = self.items_path();
        let ask = Ask { verb: "POST", path: &path, headers, body: body.to_string() };
        let (span, answer) = self.ask(ask).await;
        let Some(answer) = self.known_answer(which, answer) else { return };
        match answer.status {
            201 => {
                self.items[which].key.saw_gone(span, "created");
                self.wrote(which, span, version, &answer);
            }
            200 if !creates => self.replaced(which, span, version, condition, &answer),
            409 if is_taken(&answer.json()) => self.saw_taken(which, span, version, &answer),
            409 if creates => self.saw_alive(which, span, "conflicted", &answer),
            412 => self.failed(which, span, condition, &answer),
            _ => panic!("a write is not answered with {answer:?}"),
        }
    }

    pub(super) async fn replace(&mut self, which: usize) {
        let (version, body) = self.body(which);
        let (condition, headers) = self.condition(which);
        let path = self.item_path(&self.items[which]);
        let ask = Ask { verb: "PUT", path: &path, headers, body: body.to_string() };
        let (span, answer) = self.ask(ask).await;
        let Some(answer) = self.known_answer(which, answer) else { return };
        match answer.status {
            200 => self.replaced(which, span, version, condition, &answer),
            409 if is_taken(&answer.json()) => self.saw_taken(which, span, version, &answer),
            404 => self.saw_gone(which, span, "was not there to replace", &answer),
            412 => self.failed(which, span, condition, &answer),
            _ => panic!("a replace is not answered with {answer:?}"),
        }
    }

    pub(super) async fn patch(&mut self, which: usize) {
        self.serial += 1;
        let (serial, item) = (self.serial, &self.items[which]);
        let version = Version { serial, ttl: item.ttl, slot: item.slot };
        let (condition, headers) = self.condition(which);
        let path = self.item_path(&self.items[which]);
        let operation = json!({ "op": "set", "path": "/serial", "value": serial });
        let body = json!({ "operations": [operation] }).to_string();
        let (span, answer) = self.ask(Ask { verb: "PATCH", path: &path, headers, body }).await;
        let Some(answer) = self.known_answer(which, answer) else { return };
        match answer.status {
            200 => self.replaced(which, span, version, condition, &answer),
            404 => self.saw_gone(which, span, "was not there to patch", &answer),
            412 => self.failed(which, span, condition, &answer),
            _ => panic!("a patch is not answered with {answer:?}"),
        }
    }

    pub(super) async fn delete(&mut self, which: usize) {
        let (condition, headers) = self.condition(which);
        let path = self.item_path(&self.items[which]);
        let ask = Ask { verb: "DELETE", path: &path, headers, body: String::new() };
        let (span, answer) = self.ask(ask).await;
        let Some(answer) = self.known_answer(which, answer) else { return };
        match answer.status {
            204 => {
                assert!(condition != Condition::Old, "an old version was deleted");
                let lsn = self.learn(&answer);
                let item = &mut self.items[which];
                if let Known::Version { serial, .. } = item.key.known() {
                    item.deleted.insert(serial);
                }
                item.key.deleted(span, lsn);
            }
            404 => self.saw_gone(which, span, "was not there to delete", &answer),
            412 => self.failed(which, span, condition, &answer),
            _ => panic!("a delete is not answered with {answer:?}"),
        }
    }

    fn replaced(
        &mut self,
        which: usize,
        span: Span,
        version: Version,
        condition: Condition,
        answer: &Answer,
    ) {
        assert!(condition != Condition::Old, "an old version was replaced");
        self.items[which].key.saw_alive_at_apply(span, "replaced");
        self.wrote(which, span, version, answer);
    }

    fn wrote(&mut self, which: usize, span: Span, version: Version, answer: &Answer) {
        let lsn = self.learn(answer);
        self.wrote_as(which, span, version, lsn, &answer.json());
    }

    /// An entry made this of an item, and the answer shows it.
    pub(super) fn wrote_as(
        &mut self,
        which: usize,
        span: Span,
        version: Version,
        lsn: Lsn,
        shown: &Value,
    ) {
        let Version { serial, ttl, slot } = version;
        assert_eq!(shown["serial"], serial, "the answer shows what was written");
        let item = &mut self.items[which];
        (item.ttl, item.slot) = (ttl, slot);
        item.old_etag = item.etag.take().or(item.old_etag.take());
        item.etag = Some(shown["_etag"].as_str().expect("an item has an etag").to_string());
        item.writes += 1;
        let ts = Seconds(shown["_ts"].as_u64().expect("an item has a stamp"));
        item.key.written(span, (serial, ts, ttl), self.policy, lsn);
        if !self.flips() {
            self.check_slot(which, span);
        }
    }

    /// No other item of the logical partition has the same slot and is surely alive.
    fn check_slot(&self, which: usize, span: Span) {
        for other in self.neighbours(which, self.items[which].slot) {
            assert!(!other.key.is_surely_alive(span), "{} has that slot", other.id);
        }
    }

    /// Another item of the logical partition has the slot: one that may be alive, or of which nothing is
    /// known.
    pub(super) fn saw_taken(
        &mut self,
        which: usize,
        span: Span,
        version: Version,
        answer: &Answer,
    ) {
        self.learn(answer);
        self.world.count("unique key taken");
        assert!(!self.flips(), "only the shared container has a unique key");
        let item = &self.items[which];
        let mut neighbours = self.neighbours(which, version.slot);
        let is_held = neighbours.any(|other| other.key.may_be_alive_at_apply(span));
        let mut lost = self.lost.iter();
        let may_be_held = lost.any(|other| other.partition_key == item.partition_key);
        assert!(is_held || may_be_held, "nobody but {} has slot {:?}", item.id, version.slot);
    }

    /// The other items of a logical partition that have a slot, as far as this client knows them.
    fn neighbours(&self, which: usize, slot: Option<u64>) -> impl Iterator<Item = &Item> {
        let item = &self.items[which];
        self.items.iter().chain(&self.retired).filter(move |other| {
            other.id != item.id && other.partition_key == item.partition_key && other.slot == slot
        })
    }

    fn saw_gone(&mut self, which: usize, span: Span, what: &str, answer: &Answer) {
        self.learn(answer);
        self.items[which].key.saw_gone(span, what);
    }

    fn saw_alive(&mut self, which: usize, span: Span, what: &str, answer: &Answer) {
        self.learn(answer);
        self.items[which].key.saw_alive_at_apply(span, what);
    }

    /// A precondition failed: there is another version than the one asked for.
    fn failed(&mut self, which: usize, span: Span, condition: Condition, answer: &Answer) {
        assert!(condition == Condition::Old, "the last version was not the last");
        self.saw_alive(which, span, "had another version", answer);
    }

    pub(super) async fn read(&mut self, which: usize, level: Level) {
        let item = &self.items[which];
        let (path, mut headers) = (self.item_path(item), vec![item.key_header()]);
        let asks_for_change = item.etag.is_some() && self.rng.random_bool(0.2);
        match level {
            Level::Strong if asks_for_change => {
                let etag = item.etag.clone().expect("there is one");
                headers.push(("if-none-match", etag));
            }
            Level::Strong => {}
            Level::Session => {
                let parts = self.session.iter().map(|(range, lsn)| format!("{range}:-1#{lsn}"));
                let token = parts.collect::<Vec<_>>().join(",");
                headers.push(("x-ms-consistency-level", "Session".to_string()));
                headers.push(("x-ms-session-token", token));
            }
            Level::Eventual => {
                headers.push(("x-ms-consistency-level", "Eventual".to_string()));
            }
        }
        let session = self.session.clone();
        let ask = Ask { verb: "GET", path: &path, headers, body: String::new() };
        let (span, answer) = self.ask(ask).await;
        let Some(answer) = found(answer) else { return };
        self.judge(which, span, level, &session, &answer);
    }

    pub(super) fn judge(
        &mut self,
        which: usize,
        span: Span,
        level: Level,
        session: &BTreeMap<String, u64>,
        answer: &Answer,
    ) {
        let lsn = match level {
            Level::Strong | Level::Session => self.learn(answer),
            // What it tells is not kept: a later one may be about an earlier moment.
            Level::Eventual => Lsn(entry_of(answer)),
        };
        let token = answer.header("x-ms-session-token").expect("reads have a token");
        let range = token.split(':').next().unwrap_or_default();
        let seen = session.get(range).copied().unwrap_or_default();
        let price = match (level, answer.status) {
            (Level::Strong, 200 | 404) => "2",
            (Level::Strong | Level::Session | Level::Eventual, _) => "1",
        };
        assert_eq!(answer.header("x-ms-request-charge"), Some(price), "{level:?}");
        let key = &mut self.items[which].key;
        let shown = match (answer.status, key.known()) {
            (404, _) => None,
            // The version that was named, which is the last.
            (304, Known::Version { serial, .. }) => Some(serial),
            (304, Known::Absent) => panic!("{} is back, not modified", key.name()),
            _ => Some(answer.json()["serial"].as_u64().expect("items have a serial")),
        };
        self.world.count(match (level, shown) {
            (Level::Strong, Some(_)) => "strong read found",
            (Level::Strong, None) => "strong read found nothing",
            (Level::Session, Some(_)) => "session read found",
            (Level::Session, None) => "session read found nothing",
            (Level::Eventual, _) if lsn < key.changed() => "eventual read of an earlier moment",
            (Level::Eventual, Some(_)) => "eventual read found",
            (Level::Eventual, None) => "eventual read found nothing",
        });
        match level {
            Level::Strong => key.read_last(span, lsn, shown),
            Level::Session => {
                assert!(lsn.0 >= seen, "a session at {seen} was answered at {lsn}");
                key.read_last(span, lsn, shown);
            }
            Level::Eventual => key.read(span, lsn, shown),
        }
    }
}
