//! W2: what was inserted is there in the end, once, and nothing else; meanwhile it is counted.

use std::collections::BTreeSet;
use std::sync::Mutex;

use anyhow::Result;
use ephemeris_cluster_tests::checker::{Counts, Tolerance};
use ephemeris_cluster_tests::client::Container;
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{
    Doing, Finding, Kind, ONE_PARTITION, PAGE_ROWS, Workload, create_container, drain, query, rows,
    store,
};
use crate::hand::{Hand, Reply, locked};

/// Logical partitions.
const PARTITION_KEYS: usize = 8;
/// How often a client counts the items of one.
const COUNT_PROBABILITY: f64 = 0.05;

#[derive(Default)]
struct Inserts {
    made: usize,
    acknowledged: BTreeSet<String>,
    /// Nobody knows.
    unknown: BTreeSet<String>,
    /// Inserts and counts, by logical partition.
    counts: [Counts; PARTITION_KEYS],
    /// What is there in the end, if that was looked at.
    found: Option<Vec<String>>,
}

pub(super) struct Set {
    container: Container,
    inserts: Mutex<Inserts>,
}

impl Set {
    pub(super) fn new() -> Self {
        Self { container: Kind::Set.container(), inserts: Mutex::default() }
    }

    async fn insert(&self, hand: &mut Hand) {
        let number = {
            let mut inserts = locked(&self.inserts);
            inserts.made += 1;
            inserts.made
        };
        let (id, at) = (format!("i{number}"), number % PARTITION_KEYS);
        let item = json!({ "id": id, "pk": key(at) });
        let asked = hand.ask(&store(&self.container, &item, false)).await;
        let inserts = &mut *locked(&self.inserts);
        match asked.reply {
            Reply::Answered(answer) if answer.status == 201 => {
                inserts.acknowledged.insert(id);
                inserts.counts[at].increments.push((asked.call, Some(asked.ret)));
            }
            Reply::Answered(answer) => {
                hand.shared.complain(format!("a new id: {}", answer.describe()));
            }
            Reply::Unknown => {
                inserts.unknown.insert(id);
                inserts.counts[at].increments.push((asked.call, None));
            }
            Reply::Refused => {}
        }
    }

    async fn count(&self, hand: &mut Hand) {
        let at = hand.rng.random_range(0..PARTITION_KEYS);
        let text = "SELECT VALUE COUNT(1) FROM c";
        let asked = hand.ask(&query(&self.container, text, PAGE_ROWS).key(&key(at))).await;
        let Reply::Answered(answer) = &asked.reply else { return };
        match rows(answer).first().and_then(Value::as_u64) {
            Some(count) => {
                locked(&self.inserts).counts[at].reads.push((asked.call, asked.ret, count));
            }
            // The node had no time to count to the end.
            None if answer.continuation().is_some() => {}
            None => hand.shared.complain(format!("a count: {}", answer.describe())),
        }
    }
}

fn key(at: usize) -> Value {
    json!(format!("p{at}"))
}

impl Workload for Set {
    fn name(&self) -> &'static str {
        "set"
    }

    fn hands(&self) -> u32 {
        3
    }

    fn set_up<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(create_container(hand, &self.container, ONE_PARTITION, json!({})))
    }

    fn step<'a>(&'a self, _which: u32, hand: &'a mut Hand) -> Doing<'a> {
        Box::pin(async {
            if hand.rng.random_bool(COUNT_PROBABILITY) {
                self.count(hand).await;
            } else {
                self.insert(hand).await;
            }
        })
    }

    fn settle<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            let items = drain(hand, &self.container).await?;
            let id = |item: &Value| item["id"].as_str().map(String::from);
            let ids = |items: Vec<Value>| items.iter().filter_map(id).collect();
            locked(&self.inserts).found = items.map(ids);
            Ok(())
        })
    }

    fn judge(&self, _tolerance: Tolerance) -> Vec<Finding> {
        let inserts = locked(&self.inserts);
        let counted = inserts.counts.iter().map(|one| one.reads.len()).sum();
        let miscounted = inserts.counts.iter().enumerate().flat_map(|(at, one)| {
            one.wrong().into_iter().map(move |wrong| format!("p{at}: {wrong}"))
        });
        let acknowledged = inserts.acknowledged.len();
        vec![
            Finding::new("set: nothing lost, nothing twice", acknowledged, inserts.wrong())
                .if_looked(inserts.found.is_some()),
            Finding::new("set: counted as many as there are", counted, miscounted.collect()),
        ]
    }
}

impl Inserts {
    /// What should be there in the end and is not, and what should not be and is.
    fn wrong(&self) -> Vec<String> {
        let Some(found) = &self.found else { return Vec::new() };
        let shown: BTreeSet<&String> = found.iter().collect();
        let lost = self.acknowledged.iter().filter(|id| !shown.contains(id));
        let is_known = |id: &String| self.acknowledged.contains(id) || self.unknown.contains(id);
        let refused = shown.iter().filter(|id| !is_known(id));
        let mut wrong: Vec<String> = lost
            .map(|id| format!("{id} was acknowledged and is lost"))
            .chain(refused.map(|id| format!("{id} was refused and is there")))
            .collect();
        if shown.len() != found.len() {
            wrong.push(format!("{} items twice", found.len() - shown.len()));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With `a` and `b` acknowledged and `c` unknown.
    fn judged(found: &[&str]) -> usize {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_string()).collect::<Vec<_>>();
        let inserts = Inserts {
            acknowledged: ids(&["a", "b"]).into_iter().collect(),
            unknown: ids(&["c"]).into_iter().collect(),
            found: Some(ids(found)),
            ..Inserts::default()
        };
        inserts.wrong().len()
    }

    #[test]
    fn what_was_acknowledged_is_there_and_what_is_unknown_may_be() {
        assert_eq!(judged(&["a", "b"]), 0);
        assert_eq!(judged(&["b", "c", "a"]), 0);
        assert_eq!(Inserts::default().wrong(), Vec::<String>::new(), "nobody has looked");
    }

    #[test]
    fn what_is_lost_doubled_or_was_refused_is_found() {
        assert_eq!(judged(&["a", "c"]), 1, "lost");
        assert_eq!(judged(&[]), 2, "all lost");
        assert_eq!(judged(&["a", "b", "b"]), 1, "twice");
        assert_eq!(judged(&["a", "b", "d"]), 1, "refused");
    }
}
