//! W1 and W3: items that expire, written, read and queried by many at once.
//!
//! Everything that clients see of a key becomes its history, rows of queries as much as reads, and the
//! changes of its container's time to live; the checker judges each.

mod queries;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use anyhow::Result;
use ephemeris_cluster_tests::checker::{self, Tolerance, Verdict};
use ephemeris_cluster_tests::client::{Answer, Call, Container};
use ephemeris_cluster_tests::history::{Action, Operation, Outcome as Saw, Policy, Ttl};
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{
    Doing, Finding, Outcome, RECOVERY, TWO_PARTITIONS, Workload, container, create_container,
    definition, patch, replace, store,
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
/// Rows of queries that are kept of a key, until all is looked at once more: what never expires is shown
/// to the end.
const ROWS_MAX: usize = 400;
const HANDS: u32 = 20;
/// How often the client that does so changes the time to live.
const FLIP_PROBABILITY: f64 = 0.01;

/// A container with its time to live, which the second of them changes.
const CONTAINERS: [(&str, Policy); 2] =
    [("register", Policy::Default(3)), ("flips", Policy::NoDefault)];
const FLIPPING: usize = 1;

/// What a row of a query amounts to, or its absence.
const READ: Action = Action::Read { if_none_match: None };

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

/// What was seen of a key, in use or not.
struct History {
    container: usize,
    partition: Value,
    operations: Vec<Operation>,
    /// Rows of queries that are still kept.
    rows_left: usize,
}

struct Keys {
    made: usize,
    used: Vec<Key>,
    /// Of all keys that ever were in use.
    histories: BTreeMap<String, History>,
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
        let name = format!("k{number}");
        let partition = json!(format!("p{}", number / 3 % PARTITION_KEYS));
        let history = History {
            container,
            partition: partition.clone(),
            operations: Vec::new(),
            rows_left: ROWS_MAX,
        };
        self.histories.insert(name.clone(), history);
        Key {
            name,
            container,
            partition,
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

    /// Remembers the version that an etag names; returns what is wrong if an etag names two, or two name
    /// the same.
    fn remember(&mut self, chosen: &Chosen, etag: &str, serial: u64) -> Option<String> {
        let etags = &mut self.used[chosen.slot].etags;
        let known = etags.iter().find(|(tag, version)| tag == etag || *version == serial);
        if let Some((tag, version)) = known {
            let is_same = tag == etag && *version == serial;
            return (!is_same).then(|| {
                format!("{} has version {version} as {tag}, and {serial} as {etag}", chosen.name)
            });
        }
        etags.push_back((etag.to_string(), serial));
        if etags.len() > ETAGS {
            etags.pop_front();
        }
        None
    }

    fn record(&mut self, operation: Operation) {
        let history = self.histories.get_mut(&operation.key);
        history.expect("every key has a history").operations.push(operation);
    }
}

impl Register {
    pub(super) fn new() -> Self {
        let mut keys =
            Keys { made: 0, used: Vec::new(), histories: BTreeMap::new(), flips: Vec::new() };
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
                let call = replace(container, &chosen.name, &body(serial));
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
            && let Some(what) = keys.remember(chosen, etag, serial)
        {
            hand.shared.complain(what);
        }
        if let Some(outcome) = outcome {
            keys.used[chosen.slot].unknown += usize::from(outcome == Saw::Unknown);
            keys.record(operation(hand, &asked, &chosen.name, action, outcome));
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

    /// Reads every key in use, once all is well.
    async fn read_used(&self, hand: &mut Hand) -> Result<()> {
        let all: Vec<(String, usize, Value)> = {
            let keys = locked(&self.keys);
            let key = |key: &Key| (key.name.clone(), key.container, key.partition.clone());
            keys.used.iter().map(key).collect()
        };
        for (name, at, partition_key) in all {
            let call = Call::get(self.containers[at].item(&name)).key(&partition_key);
            let asked = hand.insist(&call, RECOVERY).await?;
            let Reply::Answered(answer) = &asked.reply else { continue };
            match outcome_of(READ, answer) {
                Some(outcome) => {
                    locked(&self.keys).record(operation(hand, &asked, &name, READ, outcome));
                }
                None => hand.shared.complain(format!("a read: {}", answer.describe())),
            }
        }
        Ok(())
    }

    /// All that was seen of every key.
    fn complete(&self) -> Vec<Complete> {
        let keys = locked(&self.keys);
        let seen = keys.histories.iter().filter(|(_, history)| !history.operations.is_empty());
        let with_flips = |(name, history): (&String, &History)| {
            let (name, container) = (name.clone(), history.container);
            let mut operations = history.operations.clone();
            if container == FLIPPING {
                operations.extend(keys.flips.iter().cloned());
            }
            operations.sort_by_key(|one| one.call);
            Complete { name, container, operations }
        };
        seen.map(with_flips).collect()
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
            self.read_used(hand).await?;
            for at in 0..self.containers.len() {
                self.look_at_all(at, hand).await?;
            }
            Ok(())
        })
    }

    fn judge(&self, tolerance: Tolerance) -> Vec<Finding> {
        let all = self.complete();
        let (mut returned, mut stamps) = (Vec::new(), Vec::new());
        let mut by_container: [Vec<Operation>; 2] = Default::default();
        for one in &all {
            let wrong = checker::came_back(&one.operations);
            returned.extend(wrong.into_iter().map(|one| format!("{one:?}")));
            let of_key = one.operations.iter().filter(|operation| !operation.key.is_empty());
            by_container[one.container].extend(of_key.cloned());
        }
        for operations in &by_container {
            let wrong = checker::wrong_stamps(operations, tolerance);
            stamps.extend(wrong.into_iter().map(|one| format!("{one:?}")));
        }
        let checked = by_container.iter().map(Vec::len).sum();
        vec![
            one_after_the_other(&all, tolerance),
            Finding::new("register: what is gone stays gone", checked, returned),
            Finding::new("register: stamps and entries", checked, stamps),
        ]
    }

    fn histories(&self) -> Vec<Vec<Operation>> {
        self.complete().into_iter().map(|one| one.operations).collect()
    }
}

/// All that was seen of a key, with the changes of its container's time to live, in the order of calls.
struct Complete {
    name: String,
    container: usize,
    operations: Vec<Operation>,
}

/// What the checker finds of all keys.
fn one_after_the_other(all: &[Complete], tolerance: Tolerance) -> Finding {
    let policy = |one: &Complete| CONTAINERS[one.container].1;
    let histories: Vec<(&[Operation], Policy)> =
        all.iter().map(|one| (one.operations.as_slice(), policy(one))).collect();
    let (mut illegal, mut unknown) = (Vec::new(), Vec::new());
    for (one, verdict) in all.iter().zip(checker::check_all(&histories, tolerance)) {
        match verdict {
            Verdict::Ok => {}
            Verdict::Illegal(operations) => illegal.push(lines(&operations)),
            Verdict::Unknown => unknown.push(one.name.clone()),
        }
    }
    let verdict = match (illegal.is_empty(), unknown.is_empty()) {
        (true, true) => Outcome::Ok,
        (true, false) => Outcome::Unknown(unknown),
        (false, _) => Outcome::Illegal(illegal),
    };
    let property = "register: one thing after the other, with exact expiry".to_string();
    let checked = all.iter().map(|one| one.operations.len() as u64).sum();
    Finding { property, checked, verdict }
}

/// Requests as the history has them, one in a line.
fn lines(operations: &[Operation]) -> String {
    let line =
        |one: &Operation| serde_json::to_string(one).unwrap_or_else(|error| error.to_string());
    operations.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        let mut keys =
            Keys { made: 0, used: Vec::new(), histories: BTreeMap::new(), flips: Vec::new() };
        keys.used = vec![keys.new_key()];
        keys
    }

    #[test]
    fn an_etag_has_one_version_and_a_version_one_etag() {
        let mut keys = keys();
        let Key { name, container, partition: partition_key, .. } = keys.new_key();
        let chosen = Chosen { slot: 0, name, container, partition_key, etag: None };
        let mut remember = |etag: &str, serial: u64| keys.remember(&chosen, etag, serial);
        assert_eq!([remember("a", 1), remember("b", 2), remember("a", 1)], [None, None, None]);
        assert!(remember("a", 3).is_some(), "an etag of two versions");
        assert!(remember("c", 2).is_some(), "a version with two etags");
    }
}
