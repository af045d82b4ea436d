//! A client of the simulated cluster: one request after the other, through any gateway, and each
//! answer judged by the laws.

mod batch;
mod feed;
mod items;
mod queries;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use ephemeris_store::ids::Lsn;
use rand::RngExt as _;
use rand::rngs::SmallRng;
use serde_json::{Value, json};
use tokio::time::sleep;

use self::items::Level;
use super::http::{Answer, Ask, HttpClient, Lost};
use super::laws::{Key, Known, NEVER, Policy, Span};
use super::world::World;
use crate::clock::{Instant, monotonic};

/// How many clients work at the same time.
pub(super) const CLIENTS: u32 = 4;
/// The one of them that changes the time to live of a container that it alone uses.
pub(super) const FLIPPING: u32 = CLIENTS - 1;
/// The time to live of the container that the others share.
const SHARED_TTL: u32 = 4;
const SHARED: (&str, Policy) = ("items", Policy::Default(SHARED_TTL));
/// How long that container remembers what happened, in minutes: longer than a run takes.
const RETENTION: u32 = 60;
/// Values of the property that is unique in it, within a logical partition.
const SLOTS: u64 = 4;
/// Keys a client works on at a time.
const KEYS: usize = 3;
/// Logical partitions of a client, which lie in different partitions.
const PARTITION_KEYS: u32 = 4;
/// Entries in the index of an item that never expires: `id`, `pk`, `client`, `serial`, `slot`, `ttl`. One that was
/// written again has one of `_ts`, too.
pub(super) const INDEX_ENTRIES: u64 = 6;
/// A key that was written so often is retired, and looked at once more in the end.
const WRITES_MAX: u32 = 10;
/// The longest a client waits; at times it is in more of a hurry.
const PATIENCE: Duration = Duration::from_secs(6);
const IMPATIENCE: Duration = Duration::from_millis(300);
/// An expiry that is no further away is waited for.
const WORTH_WAITING: Duration = Duration::from_millis(1200);
/// How long it may take until a request is carried out once everything is put right.
const RECOVERY: Duration = Duration::from_secs(10);

/// A key with what is needed to ask for it.
struct Item {
    key: Key,
    id: String,
    partition_key: String,
    /// Of the last version.
    ttl: Option<i64>,
    slot: Option<u64>,
    etag: Option<String>,
    /// Of an earlier version.
    old_etag: Option<String>,
    writes: u32,
    /// The versions that this client deleted, by serial.
    deleted: BTreeSet<u64>,
}

impl Item {
    fn new(client: u32, number: u32) -> Self {
        let id = format!("k{client}-{number}");
        let partition_key = format!("p{client}-{}", number % PARTITION_KEYS);
        Self {
            key: Key::new(id.clone()),
            id,
            partition_key,
            ttl: None,
            slot: None,
            etag: None,
            old_etag: None,
            writes: 0,
            deleted: BTreeSet::new(),
        }
    }

    fn key_header(&self) -> (&'static str, String) {
        ("x-ms-documentdb-partitionkey", format!("[\"{}\"]", self.partition_key))
    }
}

/// A client.
pub(super) struct Client {
    world: Rc<World>,
    number: u32,
    rng: SmallRng,
    http: HttpClient,
    container: String,
    policy: Policy,
    /// Containers that were given up: a change of unknown outcome may still come to something.
    lost_containers: Vec<String>,
    items: Vec<Item>,
    /// Known to the end, and not written any more.
    retired: Vec<Item>,
    /// A write of unknown outcome may still change them.
    lost: Vec<Item>,
    made: u32,
    serial: u64,
    /// The session, by range.
    session: BTreeMap<String, u64>,
    /// Where the history of the container begins, by range.
    places: Vec<(String, String)>,
    /// When to end.
    until: Instant,
}

impl Client {
    pub(super) fn new(world: Rc<World>, number: u32, rng: SmallRng) -> Self {
        let http = HttpClient::new(&world.network, number);
        let flips = number == FLIPPING;
        let (container, policy) = if flips { ("flips-0", Policy::Off) } else { SHARED };
        let mut client = Self {
            world,
            number,
            rng,
            http,
            container: container.to_string(),
            policy,
            lost_containers: Vec::new(),
            items: Vec::new(),
            retired: Vec::new(),
            lost: Vec::new(),
            made: 0,
            serial: 0,
            session: BTreeMap::new(),
            places: Vec::new(),
            until: monotonic(),
        };
        client.items = (0..KEYS).map(|_| client.new_item()).collect();
        client
    }

    fn new_item(&mut self) -> Item {
        self.made += 1;
        Item::new(self.number, self.made)
    }

    fn flips(&self) -> bool {
        self.number == FLIPPING
    }

    /// Makes the client's container; of those who share one, the first does.
    pub(super) async fn set_up(&mut self) {
        let database = json!({ "id": "shop" }).to_string();
        self.insist("POST", "/dbs", Vec::new(), database, &[201, 409]).await;
        // Two partitions.
        let offer = ("x-ms-offer-throughput", "12000".to_string());
        let headers = if self.flips() { Vec::new() } else { vec![offer] };
        let definition = self.definition(self.policy);
        self.insist("POST", "/dbs/shop/colls", headers, definition, &[201, 409]).await;
    }

    fn definition(&self, policy: Policy) -> String {
        let mut definition = json!({
            "id": self.container,
            "partitionKey": { "paths": ["/pk"], "kind": "Hash", "version": 2 },
        });
        match policy {
            Policy::Off => {}
            Policy::NoDefault => definition["defaultTtl"] = json!(-1),
            Policy::Default(seconds) => definition["defaultTtl"] = json!(seconds),
        }
        if !self.flips() {
            definition["uniqueKeyPolicy"] = json!({ "uniqueKeys": [{ "paths": ["/slot"] }] });
            definition["changeFeedPolicy"] = json!({ "retentionDuration": RETENTION });
        }
        definition.to_string()
    }

    fn container_path(&self) -> String {
        format!("/dbs/shop/colls/{}", self.container)
    }

    fn items_path(&self) -> String {
        format!("{}/docs", self.container_path())
    }

    fn item_path(&self, item: &Item) -> String {
        format!("{}/{}", self.items_path(), item.id)
    }

    /// Works for so long.
    pub(super) async fn run(&mut self, time: Duration) {
        self.until = monotonic() + time;
        while monotonic() < self.until {
            let which = self.rng.random_range(0..self.items.len());
            let is_absent = self.items[which].key.known() == Known::Absent;
            let stores = is_absent && self.rng.random_bool(0.6);
            match self.rng.random_range(0..22) {
                _ if stores => self.store(which).await,
                0..3 if self.flips() => self.flip().await,
                0..18 if self.flips() && self.rng.random_bool(0.5) => {
                    self.read(which, Level::Strong).await;
                }
                9..18 if self.flips() => self.store(which).await,
                0..6 => self.store(which).await,
                6..7 => self.replace(which).await,
                7..8 => self.patch(which).await,
                8..9 => self.delete(which).await,
                9..12 => self.read(which, Level::Strong).await,
                12..15 => self.read(which, Level::Session).await,
                15..18 => self.read(which, Level::Eventual).await,
                18..20 => self.query(which).await,
                20 => self.read_feed(which).await,
                _ => self.batch(which).await,
            }
            self.retire();
            let pause = self.pause(which);
            sleep(pause).await;
        }
    }

    /// Often just round the expiry, where things go wrong.
    fn pause(&mut self, which: usize) -> Duration {
        let random = Duration::from_millis(self.rng.random_range(0..200));
        match self.items[which].key.known() {
            Known::Version { expiry, .. } if self.rng.random_bool(0.5) => {
                let left = expiry.saturating_sub(self.world.truth());
                let aim = left.saturating_add(self.rng.random_range(-3000..3000));
                match u64::try_from(aim).map(Duration::from_micros) {
                    Ok(pause) if pause < WORTH_WAITING => pause,
                    Ok(_) | Err(_) => random,
                }
            }
            Known::Version { .. } | Known::Absent => random,
        }
    }

    fn retire(&mut self) {
        for which in 0..self.items.len() {
            if self.items[which].writes >= WRITES_MAX {
                let item = self.renew(which);
                self.retired.push(item);
            }
        }
    }

    /// Puts a new key in the place of one.
    fn renew(&mut self, which: usize) -> Item {
        let item = self.new_item();
        std::mem::replace(&mut self.items[which], item)
    }

    fn lose(&mut self, which: usize) {
        self.world.count("unknown outcome");
        let item = self.renew(which);
        self.lost.push(item);
    }

    /// Asks any node.
    async fn ask(&mut self, ask: Ask<'_>) -> (Span, Result<Answer, Lost>) {
        let node = self.rng.random_range(self.world.numbers());
        let patience = if self.rng.random_bool(0.1) { IMPATIENCE } else { PATIENCE };
        self.ask_node(node, ask, patience).await
    }

    async fn ask_node(
        &mut self,
        node: u32,
        ask: Ask<'_>,
        patience: Duration,
    ) -> (Span, Result<Answer, Lost>) {
        let call = self.world.truth();
        let answer = self.http.ask(node, &ask, call, patience).await;
        let ret = self.world.truth();
        let said = match &answer {
            Ok(answer) => format!("{} lsn {:?}", answer.status, answer.header("lsn")),
            Err(lost) => format!("{lost:?}"),
        };
        let (client, Ask { verb, path, body, .. }) = (self.number, ask);
        self.world.note(format_args!("client {client} at {node}: {verb} {path} {body} → {said}"));
        if let Ok(answer) = &answer {
            self.world.count(match answer.status {
                200..300 => "done",
                304 => "not modified",
                404 => "not found",
                408 => "timed out",
                409 => "conflict",
                412 => "precondition failed",
                429 => "put off",
                503 => "unavailable",
                _ => "refused",
            });
        }
        (Span { call, ret }, answer)
    }

    /// Asks one node after the other until one answers with one of these.
    async fn insist(
        &mut self,
        verb: &'static str,
        path: &str,
        headers: Vec<(&'static str, String)>,
        body: String,
        statuses: &[u16],
    ) -> (Span, Answer) {
        let deadline = monotonic() + RECOVERY;
        loop {
            let ask = Ask { verb, path, headers: headers.clone(), body: body.clone() };
            let node = self.rng.random_range(self.world.numbers());
            let (span, answer) = self.ask_node(node, ask, PATIENCE).await;
            match answer {
                Ok(answer) if statuses.contains(&answer.status) => return (span, answer),
                other => assert!(
                    monotonic() < deadline,
                    "{verb} {path}: {other:?}\n{}",
                    self.world.describe()
                ),
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Takes over what an answer tells of the session; the entry it is as of.
    fn learn(&mut self, answer: &Answer) -> Lsn {
        let lsn = entry_of(answer);
        let token = answer.header("x-ms-session-token").unwrap_or_default();
        let (range, seen) = token.split_once(":-1#").expect("a token of one partition");
        assert_eq!(seen.parse(), Ok(lsn), "the token is of the entry that was read");
        let known = self.session.entry(range.to_string()).or_default();
        *known = lsn.max(*known);
        Lsn(lsn)
    }

    /// An answer that says something of the item; none if nothing was done, or nobody knows.
    fn known_answer(&mut self, which: usize, answer: Result<Answer, Lost>) -> Option<Answer> {
        match answer {
            Ok(answer) => match (answer.status, answer.substatus()) {
                (200 | 201 | 204 | 304 | 409 | 412, _) | (404, 0) => Some(answer),
                // Surely nothing was done; 403 is from a node whose wall clock is far off.
                (403 | 429 | 503, _) => None,
                (408, _) => {
                    self.lose(which);
                    None
                }
                _ => panic!("nobody should be told {answer:?}"),
            },
            Err(Lost::NotSent) => None,
            Err(Lost::NoAnswer) => {
                self.lose(which);
                None
            }
        }
    }

    /// Changes the container's time to live.
    async fn flip(&mut self) {
        let policies = [
            Policy::Off,
            Policy::NoDefault,
            Policy::Default(1),
            Policy::Default(3),
            Policy::Default(10),
            Policy::Default(1000),
        ];
        let policy = policies[self.rng.random_range(0..policies.len())];
        let (path, body) = (self.container_path(), self.definition(policy));
        let (span, answer) =
            self.ask(Ask { verb: "PUT", path: &path, headers: Vec::new(), body }).await;
        match answer.map(|answer| (answer.status, answer)) {
            Ok((200, _)) => self.adopt(span, policy),
            // Surely nothing was changed.
            Ok((403 | 429 | 503, _)) | Err(Lost::NotSent) => {}
            Ok((408, _)) | Err(Lost::NoAnswer) => self.lose_container().await,
            Ok((_, answer)) => panic!("a replace of the container is not answered with {answer:?}"),
        }
    }

    fn adopt(&mut self, span: Span, policy: Policy) {
        self.world.count("time to live changed");
        self.policy = policy;
        for which in 0..self.items.len() {
            if !self.items[which].key.adopt(span, policy) {
                let item = self.renew(which);
                self.lost.push(item);
            }
        }
        for mut item in std::mem::take(&mut self.retired) {
            let is_known = item.key.adopt(span, policy);
            if is_known { &mut self.retired } else { &mut self.lost }.push(item);
        }
    }

    /// Goes on with another container.
    async fn lose_container(&mut self) {
        self.world.count("container of unknown time to live");
        let next = format!("flips-{}", self.lost_containers.len() + 1);
        self.lost_containers.push(std::mem::replace(&mut self.container, next));
        self.policy = Policy::Off;
        self.retired.clear();
        self.lost.clear();
        for which in 0..self.items.len() {
            self.renew(which);
        }
        let definition = self.definition(self.policy);
        // The definition is always the same, so that of two attempts either is as good.
        while monotonic() < self.until {
            let body = definition.clone();
            let ask = Ask { verb: "POST", path: "/dbs/shop/colls", headers: Vec::new(), body };
            if let (_, Ok(Answer { status: 201 | 409, .. })) = self.ask(ask).await {
                return;
            }
        }
    }

    /// Reads all that is known, once everything is put right, and deletes what is not known; returns
    /// how many items are left that never expire.
    pub(super) async fn settle(&mut self) -> u64 {
        if self.flips() {
            self.settle_containers().await;
        }
        for item in std::mem::take(&mut self.lost) {
            let headers = vec![item.key_header()];
            let path = self.item_path(&item);
            self.insist("DELETE", &path, headers, String::new(), &[204, 404]).await;
        }
        self.verify().await
    }

    /// Deletes what was given up, and turns expiry on where it may be off, so that the dead are swept.
    async fn settle_containers(&mut self) {
        self.set_up().await;
        for container in std::mem::take(&mut self.lost_containers) {
            let path = format!("/dbs/shop/colls/{container}");
            self.insist("DELETE", &path, Vec::new(), String::new(), &[204, 404]).await;
        }
        let policy = Policy::Default(1);
        let (path, body) = (self.container_path(), self.definition(policy));
        let (mut span, answer) = self.insist("PUT", &path, Vec::new(), body, &[200]).await;
        assert_eq!(answer.json()["defaultTtl"], 1, "the answer shows the new definition");
        // Earlier attempts may have been the one that did it.
        span.call = 0;
        self.adopt(span, policy);
    }

    /// Reads all that is known; returns how many items never expire.
    pub(super) async fn verify(&mut self) -> u64 {
        let retired = std::mem::take(&mut self.retired);
        self.items.extend(retired);
        let mut immortal = 0;
        for which in 0..self.items.len() {
            let item = &self.items[which];
            let (path, headers) = (self.item_path(item), vec![item.key_header()]);
            let (span, answer) =
                self.insist("GET", &path, headers, String::new(), &[200, 404]).await;
            let session = self.session.clone();
            self.judge(which, span, Level::Strong, &session, &answer);
            if let Known::Version { expiry: NEVER, .. } = self.items[which].key.known() {
                immortal += 1;
            }
        }
        immortal
    }
}

/// The answer of a read; none if there was none.
fn found(answer: Result<Answer, Lost>) -> Option<Answer> {
    let answer = answer.ok()?;
    match (answer.status, answer.substatus()) {
        (200 | 304, _) | (404, 0) => Some(answer),
        (403 | 408 | 429 | 503, _) => None,
        _ => panic!("a read is not answered with {answer:?}"),
    }
}

fn entry_of(answer: &Answer) -> u64 {
    let lsn = answer.header("lsn").and_then(|text| text.parse().ok());
    lsn.unwrap_or_else(|| panic!("an answer without an entry: {answer:?}"))
}

/// True if a write was refused because another item has the slot.
fn is_taken(error: &Value) -> bool {
    let message = error["message"].as_str().unwrap_or_default();
    message.contains("Unique index constraint violation")
}
