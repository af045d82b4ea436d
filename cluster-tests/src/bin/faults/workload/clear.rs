//! W10: what is deleted by its partition key is gone at once, for good, and all of it; nothing else is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use anyhow::Result;
use ephemeris_cluster_tests::checker::Tolerance;
use ephemeris_cluster_tests::client::{Call, Container};
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{
    Doing, Finding, Kind, PAGE_ROWS, TWO_PARTITIONS, Workload, create_container, drain, query,
    rows, store,
};
use crate::hand::{Hand, Reply, locked};

const CLEAR_PROBABILITY: f64 = 0.1;
const READ_PROBABILITY: f64 = 0.3;

/// The items of one logical partition, which only one client writes.
#[derive(Default)]
struct Logical {
    /// The numbers of those that are there.
    acknowledged: BTreeSet<u64>,
    /// Nobody knows, and may never: what was asked for may yet be done.
    unknown: BTreeSet<u64>,
    /// Whether nobody knows if they were deleted. Then it is left alone until the end.
    in_doubt: bool,
}

impl Logical {
    /// What is wrong with what a read has shown.
    fn wrong(&self, shown: &BTreeSet<u64>) -> Option<String> {
        let lost: Vec<&u64> = self.acknowledged.difference(shown).collect();
        if !lost.is_empty() && !self.in_doubt {
            return Some(format!("{lost:?} were acknowledged and are gone"));
        }
        if !lost.is_empty() && lost.len() < self.acknowledged.len() {
            return Some(format!("{lost:?} are gone, and the others with the same key are not"));
        }
        let is_known = |n: &&u64| self.acknowledged.contains(n) || self.unknown.contains(n);
        let back: Vec<&u64> = shown.iter().filter(|n| !is_known(n)).collect();
        (!back.is_empty()).then(|| format!("{back:?} were deleted and are there"))
    }
}

#[derive(Default)]
struct Seen {
    /// By the value of their partition key.
    partitions: BTreeMap<String, Logical>,
    /// What each client works on.
    current: BTreeMap<u32, String>,
    items: u64,
    clears: usize,
    reads: usize,
    wrong: Vec<String>,
    has_looked: bool,
}

impl Seen {
    fn current(&mut self, which: u32) -> &mut Logical {
        let key = &self.current[&which];
        self.partitions.get_mut(key).expect("it was begun")
    }

    /// The value of the partition key that a client works on, with nothing unknown about its past.
    fn key(&mut self, which: u32) -> String {
        let is_in_doubt = |key: &String| self.partitions[key].in_doubt;
        if self.current.get(&which).is_none_or(is_in_doubt) {
            let key = format!("k{}", self.partitions.len());
            self.partitions.insert(key.clone(), Logical::default());
            self.current.insert(which, key);
        }
        self.current[&which].clone()
    }

    fn compare(&mut self, key: &str, shown: &BTreeSet<u64>) {
        self.reads += 1;
        let wrong = self.partitions.get(key).and_then(|one| one.wrong(shown));
        self.wrong.extend(wrong.map(|wrong| format!("{key}: {wrong}")));
    }
}

pub(super) struct Clear {
    container: Container,
    seen: Mutex<Seen>,
}

impl Clear {
    pub(super) fn new() -> Self {
        Self { container: Kind::Clear.container(), seen: Mutex::default() }
    }

    async fn insert(&self, which: u32, key: &str, hand: &mut Hand) {
        let n = {
            let mut seen = locked(&self.seen);
            seen.items += 1;
            seen.items
        };
        let item = json!({ "id": format!("i{n}"), "pk": key, "n": n });
        let reply = hand.ask(&store(&self.container, &item, false)).await.reply;
        let mut seen = locked(&self.seen);
        match reply {
            Reply::Answered(answer) if answer.status == 201 => {
                seen.current(which).acknowledged.insert(n);
            }
            Reply::Answered(answer) => {
                hand.shared.complain(format!("a new id: {}", answer.describe()));
            }
            Reply::Unknown => {
                seen.current(which).unknown.insert(n);
            }
            Reply::Refused => {}
        }
    }

    async fn clear(&self, which: u32, key: &str, hand: &mut Hand) {
        let path = self.container.path() + "/operations/partitionkeydelete";
        let reply = hand.ask(&Call::post(path, "").key(&json!(key))).await.reply;
        let mut seen = locked(&self.seen);
        match reply {
            Reply::Answered(answer) if answer.status == 200 => {
                seen.clears += 1;
                seen.current(which).acknowledged.clear();
            }
            Reply::Answered(answer) => {
                hand.shared.complain(format!("a delete by key: {}", answer.describe()));
            }
            Reply::Unknown => seen.current(which).in_doubt = true,
            Reply::Refused => {}
        }
    }

    async fn read(&self, key: &str, hand: &mut Hand) {
        let text = "SELECT VALUE c.n FROM c";
        let asked = hand.ask(&query(&self.container, text, PAGE_ROWS).key(&json!(key))).await;
        let Reply::Answered(answer) = asked.reply else { return };
        // The node had no time for all of them.
        if answer.continuation().is_some() {
            return;
        }
        let shown = rows(&answer).iter().filter_map(Value::as_u64).collect();
        locked(&self.seen).compare(key, &shown);
    }
}

impl Workload for Clear {
    fn name(&self) -> &'static str {
        "clear"
    }

    fn hands(&self) -> u32 {
        2
    }

    fn set_up<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(create_container(hand, &self.container, TWO_PARTITIONS, json!({})))
    }

    fn step<'a>(&'a self, which: u32, hand: &'a mut Hand) -> Doing<'a> {
        Box::pin(async move {
            let key = locked(&self.seen).key(which);
            let dice: f64 = hand.rng.random_range(0.0..1.0);
            if dice < CLEAR_PROBABILITY {
                self.clear(which, &key, hand).await;
            } else if dice < CLEAR_PROBABILITY + READ_PROBABILITY {
                self.read(&key, hand).await;
            } else {
                self.insert(which, &key, hand).await;
            }
        })
    }

    fn settle<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            let Some(items) = drain(hand, &self.container).await? else { return Ok(()) };
            let seen = &mut *locked(&self.seen);
            let mut shown: BTreeMap<String, BTreeSet<u64>> =
                seen.partitions.keys().map(|key| (key.clone(), BTreeSet::new())).collect();
            for item in items {
                let known = item["pk"].as_str().and_then(|key| shown.get_mut(key));
                match (known, item["n"].as_u64()) {
                    (Some(known), Some(n)) => drop(known.insert(n)),
                    _ => hand.shared.complain(format!("nobody stored {item}")),
                }
            }
            for (key, shown) in shown {
                seen.compare(&key, &shown);
            }
            seen.has_looked = true;
            Ok(())
        })
    }

    fn judge(&self, _tolerance: Tolerance) -> Vec<Finding> {
        let seen = locked(&self.seen);
        let checked = seen.clears + seen.reads;
        let property = "clear: deleted by key, all of it, for good, and nothing else";
        vec![Finding::new(property, checked, seen.wrong.clone()).if_looked(seen.has_looked)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With 1 and 2 acknowledged and 3 unknown.
    fn is_wrong(in_doubt: bool, shown: &[u64]) -> bool {
        let (acknowledged, unknown) = (BTreeSet::from([1, 2]), BTreeSet::from([3]));
        let logical = Logical { acknowledged, unknown, in_doubt };
        logical.wrong(&shown.iter().copied().collect()).is_some()
    }

    #[test]
    fn what_was_acknowledged_is_there_and_what_was_deleted_is_not() {
        assert!(!is_wrong(false, &[1, 2]) && !is_wrong(false, &[1, 2, 3]));
        assert!(is_wrong(false, &[1]) && is_wrong(false, &[]), "lost");
        assert!(is_wrong(false, &[0, 1, 2]), "deleted before");
    }

    #[test]
    fn a_delete_that_nobody_answered_took_all_or_nothing() {
        assert!(!is_wrong(true, &[1, 2]) && !is_wrong(true, &[]) && !is_wrong(true, &[3]));
        assert!(is_wrong(true, &[1]) && is_wrong(true, &[2, 3]), "half of them");
        assert!(is_wrong(true, &[0]), "deleted before");
    }
}
