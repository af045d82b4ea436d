//! W1 and W3: items that expire, written, read and queried by many at once.
//!
//! Everything that clients see of a key becomes its history, rows of queries as much as reads, and the
//! changes of its container's time to live; the checker judges each.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Mutex;

use anyhow::{Result, ensure};
use ephemeris_cluster_tests::checker::{self, Tolerance, Verdict};
use ephemeris_cluster_tests::client::{Answer, Call, Container};
use ephemeris_cluster_tests::history::{Action, Operation, Outcome as Saw, Policy, Ttl};
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{
    Doing, Finding, Outcome, RECOVERY, TWO_PARTITIONS, Workload, container, create_container,
    definition, patch, query, store,
};
use crate::hand::{Asked, Hand, Reply, locked};

/// Keys in use at a time, of both containers together.
const KEYS: usize = 48;
/// Requests for a key at a time.
const IN_FLIGHT_MAX: usize = 6;
/// Requests after which another key takes a key's place.
const OPERATIONS_MAX: usize = 250;
/// The same of requests of unknown outcome, for the key or for the time to live of its container: each
/// doubles what the checker may have to think through.
const UNKNOWN_MAX: usize = 12;
/// So many times is the outcome of a change of the time to live unknown until it is left as it is: for
/// whoever comes later it may still happen.
const UNKNOWN_FLIPS_MAX: usize = 6;
/// Logical partitions of a container.
const PARTITION_KEYS: usize = 6;
/// Etags that are remembered of a key.
const ETAGS: usize = 4;
const HANDS: u32 = 20;
/// How often the client that does so changes the time to live.
const FLIP_PROBABILITY: f64 = 0.01;

/// A container with its time to live, which the second of them changes.
const CONTAINERS: [(&str, Policy); 2] =
    [("register", Policy::Default(3)), ("flips", Policy::NoDefault)];
const FLIPPING: usize = 1;

/// A key in use.
struct Key {
    name: String,
    container: usize,
    partition: Value,
    /// The versions that were seen last, with their serials.
    etags: VecDeque<(String, u64)>,
    in_flight: usize,
    operations: usize,
    unknown: usize,
}

impl Key {
    /// True if another one is to take its place.
    fn is_worn_out(&self) -> bool {
        self.operations >= OPERATIONS_MAX || self.unknown >= UNKNOWN_MAX
    }
}

struct Keys {
    made: usize,
    used: Vec<Key>,
    histories: HashMap<String, (usize, Vec<Operation>)>,
    /// Requests to change the time to live.
    flips: Vec<Operation>,
}

pub(super) struct Register {
    containers: [Container; 2],
    serial: std::sync::atomic::AtomicU64,
    keys: Mutex<Keys>,
}

/// A key as a request needs it.
struct Chosen {
    slot: usize,
    name: String,
    container: usize,
    partition_key: Value,
    etag: Option<(String, u64)>,
}

impl Keys {
    fn new_key(&mut self) -> Key {
        self.made += 1;
        let number = self.made;
        let container = if number.is_multiple_of(3) { FLIPPING } else { 0 };
        let unknown = if container == FLIPPING { self.unknown_flips() } else { 0 };
        Key {
            name: format!("k{number}"),
            container,
            partition: json!(format!("p{}", number / 3 % PARTITION_KEYS)),
            etags: VecDeque::new(),
            in_flight: 0,
            operations: 0,
            unknown,
        }
    }

    fn unknown_flips(&self) -> usize {
        self.flips.iter().filter(|flip| flip.outcome == Saw::Unknown).count()
    }

    fn record_flip(&mut self, flip: Operation) {
        if flip.outcome == Saw::Unknown {
            let flipping = self.used.iter_mut().filter(|key| key.container == FLIPPING);
            flipping.for_each(|key| key.unknown += 1);
        }
        self.flips.push(flip);
    }

    /// A key that is not too busy, with a version that was seen of it.
    fn choose(&mut self, hand: &mut Hand) -> Option<Chosen> {
        let slot = hand.rng.random_range(0..self.used.len());
        if self.used[slot].is_worn_out() && self.used[slot].in_flight == 0 {
            self.used[slot] = self.new_key();
        }
        let key = &mut self.used[slot];
        if key.in_flight >= IN_FLIGHT_MAX || key.is_worn_out() {
            return None;
        }
        key.in_flight += 1;
        key.operations += 1;
        let etag = match key.etags.len() {
            0 => None,
            count => key.etags.get(hand.rng.random_range(0..count)).cloned(),
        };
        let (name, partition_key) = (key.name.clone(), key.partition.clone());
        Some(Chosen { slot, name, container: key.container, partition_key, etag })
    }

    fn release(&mut self, chosen: &Chosen) {
        self.used[chosen.slot].in_flight -= 1;
    }

    fn remember(&mut self, chosen: &Chosen, etag: &str, serial: u64) {
        let etags = &mut self.used[chosen.slot].etags;
        if etags.iter().all(|(known, _)| known != etag) {
            etags.push_back((etag.to_string(), serial));
        }
        if etags.len() > ETAGS {
            etags.pop_front();
        }
    }

    fn record(&mut self, container: usize, operation: Operation) {
        let key = operation.key.clone();
        self.histories.entry(key).or_insert((container, Vec::new())).1.push(operation);
    }
}

impl Register {
    pub(super) fn new() -> Self {
        let mut keys =
            Keys { made: 0, used: Vec::new(), histories: HashMap::new(), flips: Vec::new() };
        keys.used = (0..KEYS).map(|_| keys.new_key()).collect();
        Self {
            containers: CONTAINERS.map(|(name, _)| container(name)),
            serial: std::sync::atomic::AtomicU64::new(0),
            keys: Mutex::new(keys),
        }
    }

    fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1
    }

    /// A request for a key, and what it asks for.
    fn request(&self, chosen: &Chosen, hand: &mut Hand) -> (Action, Call) {
        let container = &self.containers[chosen.container];
        let rng = &mut hand.rng;
        let ttl = match rng.random_range(0..10) {
            0 => Ttl::Never,
            1..4 => Ttl::Inherit,
            _ => Ttl::Own(rng.random_range(1..5)),
        };
        let named = chosen.etag.as_ref().filter(|_| rng.random_bool(0.3));
        let if_match = named.map(|(_, serial)| *serial);
        let with_etag = |call: Call| match named {
            Some((etag, _)) => call.header("if-match", etag.clone()),
            None => call,
        };
        let body = |serial: u64| {
            let mut item =
                json!({ "id": chosen.name, "pk": chosen.partition_key, "serial": serial });
            match ttl {
                Ttl::Inherit => {}
                Ttl::Never => item["ttl"] = json!(-1),
                Ttl::Own(seconds) => item["ttl"] = json!(seconds),
            }
            item
        };
        match rng.random_range(0..20) {
            0..9 => {
                let call = Call::get(container.item(&chosen.name)).key(&chosen.partition_key);
                let call = match named {
                    Some((etag, _)) => call.header("if-none-match", etag.clone()),
                    None => call,
                };
                (Action::Read { if_none_match: if_match }, call)
            }
            9..12 => {
                let serial = self.next_serial();
                (Action::Create { serial, ttl }, store(container, &body(serial), false))
            }
            12..16 => {
                let serial = self.next_serial();
                let call = with_etag(store(container, &body(serial), true));
                (Action::Upsert { serial, ttl, if_match }, call)
            }
            16 => {
                let serial = self.next_serial();
                let call = Call::put(container.item(&chosen.name), body(serial).to_string())
                    .header("content-type", "application/json")
                    .key(&chosen.partition_key);
                (Action::Replace { serial, ttl, if_match }, with_etag(call))
            }
            17 => {
                let serial = self.next_serial();
                let set = json!([{ "op": "set", "path": "/serial", "value": serial }]);
                let call = patch(container, &chosen.partition_key, &chosen.name, &set);
                (Action::Patch { serial, if_match }, with_etag(call))
            }
            _ => {
                let call = Call::delete(container.item(&chosen.name)).key(&chosen.partition_key);
                (Action::Delete { if_match }, with_etag(call))
            }
        }
    }

    /// One request for one key.
    async fn work(&self, chosen: &Chosen, hand: &mut Hand) {
        let (action, call) = self.request(chosen, hand);
        let asked = hand.ask(&call).await;
        let outcome = match &asked.reply {
            Reply::Refused => None,
            Reply::Unknown => Some(Saw::Unknown),
            Reply::Answered(answer) => {
                let outcome = outcome_of(action, answer);
                if outcome.is_none() {
                    let what = format!("{action:?} was answered by {}", answer.describe());
                    hand.shared.complain(what);
                }
                outcome
            }
        };
        let mut keys = locked(&self.keys);
        if let Reply::Answered(answer) = &asked.reply
            && let Some(serial) = answer.json()["serial"].as_u64()
            && let Some(etag) = answer.json()["_etag"].as_str()
        {
            keys.remember(chosen, etag, serial);
        }
        if let Some(outcome) = outcome {
            keys.used[chosen.slot].unknown += usize::from(outcome == Saw::Unknown);
            let operation = operation(hand, &asked, &chosen.name, action, outcome);
            keys.record(chosen.container, operation);
        }
    }

    /// Asks for all items of a logical partition, or of the container; every key that is known to be in
    /// use was read, found or not.
    async fn query(&self, hand: &mut Hand) {
        let at = hand.rng.random_range(0..self.containers.len());
        let partition_key = hand
            .rng
            .random_bool(0.7)
            .then(|| json!(format!("p{}", hand.rng.random_range(0..PARTITION_KEYS))));
        let text = if hand.rng.random_bool(0.5) {
            "SELECT c.id, c.serial, c._ts FROM c"
        } else {
            "SELECT c.id, c.serial, c._ts FROM c WHERE c.serial >= 0 ORDER BY c.serial DESC"
        };
        let call = query(&self.containers[at], text);
        let call = match &partition_key {
            Some(key) => call.key(key),
            None => call.header("x-ms-documentdb-query-enablecrosspartition", "true"),
        };
        let keys_before: Vec<(String, usize)> = {
            let keys = locked(&self.keys);
            let asked = keys.used.iter().filter(|key| {
                let is_asked = partition_key.as_ref().is_none_or(|asked| *asked == key.partition);
                key.container == at && is_asked && !key.is_worn_out()
            });
            asked.map(|key| (key.name.clone(), key.container)).collect()
        };
        let (mut rows, mut next, mut begun) = (Vec::new(), None::<String>, None);
        let last = loop {
            let page = match &next {
                Some(token) => call.clone().header("x-ms-continuation", token.clone()),
                None => call.clone(),
            };
            let asked = hand.ask(&page).await;
            begun.get_or_insert(asked.call);
            let Reply::Answered(answer) = &asked.reply else { return };
            if answer.status != 200 {
                hand.shared.complain(format!("{text} was answered by {}", answer.describe()));
                return;
            }
            let mut body = answer.json();
            rows.append(body["Documents"].as_array_mut().unwrap_or(&mut Vec::new()));
            next = answer.continuation().map(String::from);
            if next.is_none() {
                break asked;
            }
        };
        let asked = Asked { call: begun.unwrap_or(last.call), ..last };
        self.note_rows(hand, &asked, &rows, keys_before);
    }

    fn note_rows(
        &self,
        hand: &Hand,
        asked: &Asked,
        rows: &[Value],
        keys_before: Vec<(String, usize)>,
    ) {
        let mut shown: HashMap<&str, Saw> = HashMap::new();
        for row in rows {
            let (Some(id), Some(serial), Some(ts)) =
                (row["id"].as_str(), row["serial"].as_u64(), row["_ts"].as_u64())
            else {
                hand.shared.complain(format!("a row is {row}"));
                continue;
            };
            if shown.insert(id, Saw::Found { serial, ts }).is_some() {
                hand.shared.complain(format!("{id} is twice in the rows of a query"));
            }
        }
        let mut keys = locked(&self.keys);
        for (name, container) in keys_before {
            let outcome = shown.get(name.as_str()).copied().unwrap_or(Saw::NotFound);
            let read = Action::Read { if_none_match: None };
            let one = Operation { entry: None, ..operation(hand, asked, &name, read, outcome) };
            keys.record(container, one);
        }
    }

    /// Changes the time to live of a container.
    async fn flip(&self, hand: &mut Hand) {
        if locked(&self.keys).unknown_flips() >= UNKNOWN_FLIPS_MAX {
            return;
        }
        let policies = [Policy::Off, Policy::NoDefault, Policy::Default(1), Policy::Default(4)];
        let policy = policies[hand.rng.random_range(0..policies.len())];
        let container = &self.containers[FLIPPING];
        let call = Call::put(container.path(), definition(container, time_to_live(policy)));
        let asked = hand.ask(&call).await;
        let outcome = match &asked.reply {
            Reply::Refused => return,
            Reply::Unknown => Saw::Unknown,
            Reply::Answered(answer) if answer.status == 200 => Saw::PolicyChanged,
            Reply::Answered(answer) => {
                hand.shared.complain(format!("a time to live: {}", answer.describe()));
                return;
            }
        };
        let one = operation(hand, &asked, "", Action::Policy { policy }, outcome);
        locked(&self.keys).record_flip(Operation { entry: None, ..one });
    }
}

fn time_to_live(policy: Policy) -> Value {
    match policy {
        Policy::Off => json!({}),
        Policy::NoDefault => json!({ "defaultTtl": -1 }),
        Policy::Default(seconds) => json!({ "defaultTtl": seconds }),
    }
}

fn operation(hand: &Hand, asked: &Asked, key: &str, action: Action, outcome: Saw) -> Operation {
    let is_known = outcome != Saw::Unknown;
    Operation {
        client: hand.number,
        node: asked.node,
        key: key.to_string(),
        action,
        call: asked.call,
        ret: is_known.then_some(asked.ret),
        outcome,
        entry: asked.entry(),
    }
}

/// What an answer says; none if it is not one to the request.
fn outcome_of(action: Action, answer: &Answer) -> Option<Saw> {
    let body = answer.json();
    let (serial, ts) = (body["serial"].as_u64(), body["_ts"].as_u64());
    Some(match (action, answer.status) {
        (Action::Read { .. }, 200) => Saw::Found { serial: serial?, ts: ts? },
        (Action::Read { .. }, 304) => Saw::NotModified,
        (Action::Create { .. } | Action::Upsert { .. }, 201) if serial == action.serial() => {
            Saw::Created { ts: ts? }
        }
        (Action::Upsert { .. } | Action::Replace { .. } | Action::Patch { .. }, 200)
            if serial == action.serial() =>
        {
            Saw::Replaced { ts: ts? }
        }
        (Action::Delete { .. }, 204) => Saw::Deleted,
        (Action::Create { .. }, 409) => Saw::Conflict,
        (
            Action::Read { .. }
            | Action::Replace { .. }
            | Action::Patch { .. }
            | Action::Delete { .. },
            404,
        ) => Saw::NotFound,
        (
            Action::Upsert { .. }
            | Action::Replace { .. }
            | Action::Patch { .. }
            | Action::Delete { .. },
            412,
        ) => Saw::PreconditionFailed,
        _ => return None,
    })
}

impl Workload for Register {
    fn name(&self) -> &'static str {
        "register"
    }

    fn hands(&self) -> u32 {
        HANDS
    }

    fn set_up<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            for (container, (_, policy)) in self.containers.iter().zip(CONTAINERS) {
                create_container(hand, container, TWO_PARTITIONS, time_to_live(policy)).await?;
            }
            Ok(())
        })
    }

    fn step<'a>(&'a self, which: u32, hand: &'a mut Hand) -> Doing<'a> {
        Box::pin(async move {
            if which == 0 && hand.rng.random_bool(FLIP_PROBABILITY) {
                return self.flip(hand).await;
            }
            if hand.rng.random_bool(0.05) {
                return self.query(hand).await;
            }
            let chosen = locked(&self.keys).choose(hand);
            if let Some(chosen) = chosen {
                self.work(&chosen, hand).await;
                locked(&self.keys).release(&chosen);
            }
        })
    }

    fn settle<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            let all: Vec<(String, usize, Value)> = {
                let keys = locked(&self.keys);
                let key = |key: &Key| (key.name.clone(), key.container, key.partition.clone());
                keys.used.iter().map(key).collect()
            };
            for (name, at, partition_key) in all {
                let call = Call::get(self.containers[at].item(&name)).key(&partition_key);
                let asked = hand.insist(&call, RECOVERY).await?;
                let Reply::Answered(answer) = &asked.reply else { continue };
                let read = Action::Read { if_none_match: None };
                let outcome = outcome_of(read, answer);
                ensure!(outcome.is_some(), "a read was answered by {}", answer.describe());
                let outcome = outcome.unwrap_or(Saw::Unknown);
                let one = operation(hand, &asked, &name, read, outcome);
                locked(&self.keys).record(at, one);
            }
            Ok(())
        })
    }

    fn judge(&self, tolerance: Tolerance) -> Vec<Finding> {
        let mut expiry = Judged::default();
        let (mut returned, mut stamps) = (Vec::new(), Vec::new());
        let histories = self.histories();
        let container_of = |history: &[Operation]| {
            let keys = locked(&self.keys);
            let name = history.iter().find(|one| !one.key.is_empty()).map(|one| one.key.clone());
            name.and_then(|name| keys.histories.get(&name).map(|(at, _)| *at)).unwrap_or(0)
        };
        let mut by_container: [Vec<Operation>; 2] = Default::default();
        for history in &histories {
            let at = container_of(history);
            expiry.take(history, CONTAINERS[at].1, tolerance);
            returned.extend(checker::came_back(history).into_iter().map(|one| format!("{one:?}")));
            by_container[at].extend(history.iter().filter(|one| !one.key.is_empty()).cloned());
        }
        for operations in &by_container {
            let wrong = checker::wrong_stamps(operations, tolerance);
            stamps.extend(wrong.into_iter().map(|one| format!("{one:?}")));
        }
        let checked = by_container.iter().map(Vec::len).sum();
        vec![
            expiry.finding(),
            Finding::new("register: what is gone stays gone", checked, returned),
            Finding::new("register: stamps and entries", checked, stamps),
        ]
    }

    fn histories(&self) -> Vec<Vec<Operation>> {
        let keys = locked(&self.keys);
        let mut names: Vec<&String> = keys.histories.keys().collect();
        names.sort_unstable();
        let with_flips = |name: &String| {
            let (container, operations) = &keys.histories[name];
            let mut all = operations.clone();
            if *container == FLIPPING {
                all.extend(keys.flips.iter().cloned());
            }
            all.sort_by_key(|one| one.call);
            all
        };
        names.into_iter().map(with_flips).collect()
    }
}

/// What the checker found of all keys.
#[derive(Default)]
struct Judged {
    checked: usize,
    illegal: Vec<String>,
    unknown: HashSet<String>,
}

impl Judged {
    fn take(&mut self, history: &[Operation], policy: Policy, tolerance: Tolerance) {
        self.checked += history.len();
        match checker::check(history, policy, tolerance) {
            Verdict::Ok => {}
            Verdict::Illegal(operations) => {
                let lines = operations.iter().map(|one| {
                    serde_json::to_string(one).unwrap_or_else(|error| error.to_string())
                });
                self.illegal.push(lines.collect::<Vec<_>>().join("\n"));
            }
            Verdict::Unknown => {
                // Changes of the time to live are of no key.
                let of_key = history.iter().find(|one| !one.key.is_empty());
                self.unknown.extend(of_key.map(|one| one.key.clone()));
            }
        }
    }

    fn finding(self) -> Finding {
        let verdict = match (self.illegal.is_empty(), self.unknown.is_empty()) {
            (true, true) => Outcome::Ok,
            (true, false) => Outcome::Unknown(self.unknown.into_iter().collect()),
            (false, _) => Outcome::Illegal(self.illegal),
        };
        let property = "register: one thing after the other, with exact expiry".to_string();
        Finding { property, checked: self.checked as u64, verdict }
    }
}
