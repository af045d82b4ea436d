//! W7: the feed of all versions has every change once, in the order of the entries: one create and one
//! expiry of every item, and nothing of an item behind its end.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Result, ensure};
use ephemeris_cluster_tests::checker::Tolerance;
use ephemeris_cluster_tests::client::{Answer, Call, Container};
use ephemeris_cluster_tests::clock;
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{
    Created, Doing, Finding, Kind, ONE_PARTITION, RECOVERY, Workload, create_container, store,
};
use crate::hand::{Hand, Reply, locked};

/// Seconds that an item lives at most.
const TTL_MAX: u64 = 3;
/// How long it may take until the last item is expired, swept and told.
const END: Duration = Duration::from_mins(1);

#[derive(Default)]
struct Seen {
    made: u64,
    created: Created,
    /// Behind what was read.
    tag: Option<String>,
    /// What was told of each item, in order.
    told: BTreeMap<String, Vec<Change>>,
    last_lsn: u64,
    wrong: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Created,
    Expired,
    Other,
}

pub(super) struct Feed {
    container: Container,
    seen: Mutex<Seen>,
}

impl Feed {
    pub(super) fn new() -> Self {
        Self { container: Kind::Feed.container(), seen: Mutex::default() }
    }

    fn page(&self) -> Call {
        let tag = locked(&self.seen).tag.clone().unwrap_or_else(|| "*".to_string());
        Call::get(self.container.items())
            .header("a-im", "Full-Fidelity Feed")
            .header("x-ms-cosmos-changefeed-wire-format-version", "2021-09-15")
            .header("x-ms-max-item-count", "100")
            .header("if-none-match", tag)
    }

    fn take(&self, answer: &Answer) {
        let mut seen = locked(&self.seen);
        if let Some(tag) = answer.header("etag") {
            seen.tag = Some(tag.to_string());
        }
        let body = answer.json();
        for row in body["Documents"].as_array().map(Vec::as_slice).unwrap_or_default() {
            seen.take(row);
        }
    }
}

impl Seen {
    fn take(&mut self, row: &Value) {
        let metadata = &row["metadata"];
        let lsn = metadata["lsn"].as_u64().unwrap_or(0);
        if lsn < self.last_lsn {
            self.wrong.push(format!("entry {lsn} was told behind {}", self.last_lsn));
        }
        self.last_lsn = lsn;
        let change = match metadata["operationType"].as_str() {
            Some("create") => Change::Created,
            Some("delete") if metadata["timeToLiveExpired"] == true => Change::Expired,
            _ => Change::Other,
        };
        let named = [&row["current"]["id"], &metadata["id"]];
        match named.into_iter().find_map(Value::as_str) {
            Some(id) => self.told.entry(id.to_string()).or_default().push(change),
            None => self.wrong.push(format!("a row names no item: {row}")),
        }
    }

    /// How many items still have no end.
    fn open(&self) -> usize {
        let is_over = |id: &String| {
            self.told.get(id).is_some_and(|changes| changes.contains(&Change::Expired))
        };
        self.created.acknowledged.iter().filter(|id| !is_over(id)).count()
    }

    fn wrong(&self) -> Vec<String> {
        let life = [Change::Created, Change::Expired];
        let mut wrong = self.wrong.clone();
        let odd = self.told.iter().filter(|(_, changes)| **changes != life);
        wrong.extend(odd.map(|(id, changes)| format!("{id}: {changes:?}")));
        wrong.extend(self.created.wrong(&self.told.keys().collect()));
        wrong
    }
}

impl Workload for Feed {
    fn name(&self) -> &'static str {
        "feed"
    }

    fn hands(&self) -> u32 {
        3
    }

    fn set_up<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            let policy = json!({
                "defaultTtl": -1,
                "changeFeedPolicy": { "retentionDuration": 60 },
            });
            create_container(hand, &self.container, ONE_PARTITION, policy).await?;
            let now = hand.insist_answer(&self.page(), RECOVERY).await?;
            ensure!(now.status == 304, "the feed begins with {}", now.describe());
            self.take(&now);
            Ok(())
        })
    }

    fn step<'a>(&'a self, which: u32, hand: &'a mut Hand) -> Doing<'a> {
        Box::pin(async move {
            if which == 0 {
                if let Reply::Answered(answer) = hand.ask(&self.page()).await.reply {
                    self.take(&answer);
                }
                return;
            }
            let id = {
                let mut seen = locked(&self.seen);
                seen.made += 1;
                format!("f{}", seen.made)
            };
            let ttl = hand.rng.random_range(1..=TTL_MAX);
            let item = json!({ "id": id, "pk": format!("p{which}"), "ttl": ttl });
            let asked = hand.ask(&store(&self.container, &item, false)).await;
            if let Some(answer) = locked(&self.seen).created.note(id, asked.reply) {
                hand.shared.complain(format!("a new id: {}", answer.describe()));
            }
        })
    }

    fn settle<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            let begun = clock::monotonic();
            loop {
                let answer = hand.insist_answer(&self.page(), RECOVERY).await?;
                self.take(&answer);
                let open = locked(&self.seen).open();
                if answer.status == 304 && open == 0 {
                    return Ok(());
                }
                ensure!(begun.elapsed() < END, "{open} items have no end in the feed");
                if answer.status == 304 {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        })
    }

    fn judge(&self, _tolerance: Tolerance) -> Vec<Finding> {
        let seen = locked(&self.seen);
        vec![Finding::new("feed: each life once, in order", seen.told.len(), seen.wrong())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(lsn: u64, id: &str, kind: &str, expired: bool) -> Value {
        let metadata = json!({
            "lsn": lsn, "operationType": kind, "id": id, "timeToLiveExpired": expired,
        });
        json!({ "current": {}, "metadata": metadata })
    }

    fn judged(rows: &[Value]) -> usize {
        let mut seen = Seen::default();
        seen.created.acknowledged.insert("a".to_string());
        for row in rows {
            seen.take(row);
        }
        seen.wrong().len()
    }

    #[test]
    fn a_life_has_a_beginning_and_an_end_and_is_told_once() {
        let (born, dead) = (row(1, "a", "create", false), row(2, "a", "delete", true));
        assert_eq!(judged(&[born.clone(), dead.clone()]), 0);
        assert_eq!(judged(&[]), 1, "not told");
        assert_eq!(judged(&[born.clone(), dead.clone(), dead.clone()]), 1, "expired twice");
        assert_eq!(judged(&[dead.clone(), born.clone()]), 2, "out of order, and revived");
        assert_eq!(judged(&[born, row(2, "a", "delete", false)]), 1, "deleted by nobody");
    }
}
