//! W7: the feeds of all versions, one for each range, have every change once, in the order of the entries:
//! of an item how it came, how it was replaced, and its end, a delete or an expiry.
//!
//! 1. Every item is changed by one client, one change after the other.
//! 2. It is left alone once the outcome of a change is not known, and expires if it is there: so there is
//!    one change at most of which nobody knows, and it is the last.
//! 3. Nothing is gone, or told to be, before its time to live is over.
//! 4. What the feed tells is what was acknowledged, with that one or without it, and then the end.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Result, ensure};
use ephemeris_cluster_tests::checker::Tolerance;
use ephemeris_cluster_tests::client::{Answer, Call, Container};
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::history::Nanos;
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{
    Doing, End, Finding, Kind, RECOVERY, TWO_PARTITIONS, Workload, create_container, replace, rows,
    store,
};
use crate::hand::{Asked, Hand, Reply, locked};

/// Ranges of the container: each has a feed of its own.
const RANGES: usize = 2;
/// Logical partitions, of both ranges together.
const PARTITION_KEYS: u64 = 8;
/// The client that reads; the others write.
const READER: u32 = 0;
/// Seconds that an item lives at most, if it is not replaced.
const TTL_MAX: u64 = 3;
/// How often a client goes on with its item, and how often it deletes it then.
const STAYS: f64 = 0.6;
const DELETES: f64 = 0.2;
/// How long it may take until the last item has ended, is swept and told.
const END: Duration = Duration::from_mins(1);

/// A change of an item; versions are told apart by their serials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Created(u64),
    Replaced(u64),
    Deleted,
    Expired,
}

/// When a version was written, and how many seconds later it expires.
#[derive(Clone, Copy, Debug)]
struct Stamped {
    ts: u64,
    ttl: u64,
}

/// What is known of an item.
#[derive(Debug, Default)]
struct Life {
    /// Changes that were acknowledged, in order.
    acknowledged: Vec<Change>,
    /// The version that the last of them left.
    last: Option<Stamped>,
    /// When a client had learnt that it was gone.
    missed: Option<Nanos>,
    /// Nobody knows.
    unknown: Option<Change>,
    told: Vec<Change>,
}

/// How far the feed of a range was read.
#[derive(Default)]
struct Place {
    tag: Option<String>,
    last_lsn: u64,
}

#[derive(Default)]
struct Seen {
    made: u64,
    /// The item that each client is at, by its number.
    at_work: BTreeMap<u32, u64>,
    lives: BTreeMap<String, Life>,
    places: [Place; RANGES],
    /// True if the feeds were read to their ends, once all was well.
    is_complete: bool,
    wrong: Vec<String>,
}

pub(super) struct Feed {
    container: Container,
    seen: Mutex<Seen>,
}

impl Stamped {
    /// As an item says; none if it says nothing of it.
    fn of(item: &Value) -> Option<Self> {
        Some(Self { ts: item["_ts"].as_u64()?, ttl: item["ttl"].as_u64()? })
    }
}

impl Change {
    /// The version that it leaves.
    fn serial(self) -> Option<u64> {
        match self {
            Change::Created(serial) | Change::Replaced(serial) => Some(serial),
            Change::Deleted | Change::Expired => None,
        }
    }

    /// The status of the answer that it was done.
    fn status(self) -> u16 {
        match self {
            Change::Created(_) => 201,
            Change::Replaced(_) => 200,
            Change::Deleted | Change::Expired => 204,
        }
    }

    /// What a row of a feed tells; none if it is no such row.
    fn told_by(row: &Value) -> Option<Self> {
        let (metadata, serial) = (&row["metadata"], row["current"]["serial"].as_u64());
        match metadata["operationType"].as_str()? {
            "create" => serial.map(Change::Created),
            "replace" => serial.map(Change::Replaced),
            "delete" if metadata["timeToLiveExpired"] == true => Some(Change::Expired),
            "delete" => Some(Change::Deleted),
            _ => None,
        }
    }
}

impl Life {
    /// True if its end is still to be told.
    fn is_open(&self) -> bool {
        let is_begun = !self.acknowledged.is_empty() || !self.told.is_empty();
        is_begun && !matches!(self.told.last(), Some(Change::Deleted | Change::Expired))
    }

    /// True if what was told is what it should be, or the beginning of it if not all was read.
    fn is_right(&self, is_complete: bool) -> bool {
        let with_unknown = self.acknowledged.iter().copied().chain(self.unknown);
        let lives = [whole(self.acknowledged.clone()), whole(with_unknown.collect())];
        lives.iter().any(|life| {
            life.starts_with(&self.told) && (!is_complete || life.len() == self.told.len())
        })
    }

    /// True if a client learnt that it was gone before that can have been so.
    fn is_gone_early(&self, tolerance: Tolerance) -> bool {
        self.missed.is_some_and(|ret| {
            self.last
                .is_none_or(|Stamped { ts, ttl }| ret < End::of(ts, Some(ttl), tolerance).earliest)
        })
    }
}

/// All changes of an item: what is there and is not deleted expires.
fn whole(mut changes: Vec<Change>) -> Vec<Change> {
    if changes.last().is_some_and(|last| *last != Change::Deleted) {
        changes.push(Change::Expired);
    }
    changes
}

fn id(number: u64) -> String {
    format!("f{number}")
}

fn key(number: u64) -> Value {
    json!(format!("p{}", number % PARTITION_KEYS))
}

impl Feed {
    pub(super) fn new() -> Self {
        Self { container: Kind::Feed.container(), seen: Mutex::default() }
    }

    /// The request for what a range has to tell behind what was read.
    fn page(&self, range: usize) -> Call {
        let tag = locked(&self.seen).places[range].tag.clone().unwrap_or_else(|| "*".to_string());
        Call::get(self.container.items())
            .header("a-im", "Full-Fidelity Feed")
            .header("x-ms-cosmos-changefeed-wire-format-version", "2021-09-15")
            .header("x-ms-documentdb-partitionkeyrangeid", range.to_string())
            .header("x-ms-max-item-count", "100")
            .header("if-none-match", tag)
    }

    fn take(&self, hand: &Hand, range: usize, answer: &Answer) {
        if !matches!(answer.status, 200 | 304) {
            return hand.shared.complain(format!("a feed: {}", answer.describe()));
        }
        let mut seen = locked(&self.seen);
        if let Some(tag) = answer.header("etag") {
            seen.places[range].tag = Some(tag.to_string());
        }
        for row in rows(answer) {
            seen.take(range, &row);
        }
    }

    async fn read(&self, hand: &mut Hand) {
        let range = hand.rng.random_range(0..RANGES);
        if let Reply::Answered(answer) = hand.ask(&self.page(range)).await.reply {
            self.take(hand, range, &answer);
        }
    }

    async fn change(&self, which: u32, hand: &mut Hand) {
        let (number, change) = locked(&self.seen).next(which, hand);
        let (id, key, ttl) = (id(number), key(number), hand.rng.random_range(1..=TTL_MAX));
        let item = |serial: u64| json!({ "id": id, "pk": key, "ttl": ttl, "serial": serial });
        let call = match change {
            Change::Created(serial) => store(&self.container, &item(serial), false),
            Change::Replaced(serial) => replace(&self.container, &id, &item(serial)),
            Change::Deleted | Change::Expired => Call::delete(self.container.item(&id)).key(&key),
        };
        let Asked { ret, reply, .. } = hand.ask(&call).await;
        let seen = &mut *locked(&self.seen);
        let life = seen.lives.entry(id).or_default();
        seen.at_work.remove(&which);
        match reply {
            Reply::Answered(answer) if answer.status == change.status() => {
                life.acknowledged.push(change);
                if change.serial().is_some() {
                    life.last = Stamped::of(&answer.json());
                    seen.at_work.insert(which, number);
                }
            }
            // Its time was over.
            Reply::Answered(answer) if answer.status == 404 && change != Change::Created(1) => {
                life.missed = Some(ret);
            }
            Reply::Answered(answer) => {
                hand.shared.complain(format!("{change:?}: {}", answer.describe()));
            }
            Reply::Unknown => life.unknown = Some(change),
            Reply::Refused => {}
        }
    }
}

impl Seen {
    /// What a client does next: to the item that it is at, or to a new one.
    fn next(&mut self, which: u32, hand: &mut Hand) -> (u64, Change) {
        if let Some(number) = self.at_work.get(&which).copied()
            && hand.rng.random_bool(STAYS)
        {
            let versions = self.lives[&id(number)].acknowledged.len() as u64;
            let is_enough = hand.rng.random_bool(DELETES);
            let change = if is_enough { Change::Deleted } else { Change::Replaced(versions + 1) };
            return (number, change);
        }
        self.made += 1;
        (self.made, Change::Created(1))
    }

    fn take(&mut self, range: usize, row: &Value) {
        let metadata = &row["metadata"];
        let (lsn, place) = (metadata["lsn"].as_u64().unwrap_or(0), &mut self.places[range]);
        if lsn < place.last_lsn {
            self.wrong.push(format!("entry {lsn} was told behind {}", place.last_lsn));
        }
        place.last_lsn = lsn;
        let named = [&row["current"]["id"], &metadata["id"]];
        let id = named.into_iter().find_map(Value::as_str);
        let (Some(id), Some(change)) = (id, Change::told_by(row)) else {
            return self.wrong.push(format!("a row tells nothing: {row}"));
        };
        let life = self.lives.entry(id.to_string()).or_default();
        let before = life.told.last().copied().and_then(Change::serial);
        if row["previous"]["serial"].as_u64() != before {
            self.wrong.push(format!("{before:?} is the version told before: {row}"));
        }
        if change == Change::Expired {
            let due = Stamped::of(&row["previous"]).map(|Stamped { ts, ttl }| ts + ttl);
            if (before.is_some() && due.is_none()) || metadata["crts"].as_u64() < due {
                self.wrong.push(format!("it is told to expire at {due:?}: {row}"));
            }
        }
        life.told.push(change);
    }

    fn is_open(&self) -> bool {
        self.lives.values().any(Life::is_open)
    }

    fn wrong(&self, tolerance: Tolerance) -> Vec<String> {
        let mut wrong = self.wrong.clone();
        let is_odd =
            |life: &Life| !life.is_right(self.is_complete) || life.is_gone_early(tolerance);
        let odd = self.lives.iter().filter(|(_, life)| is_odd(life));
        wrong.extend(odd.map(|(id, life)| format!("{id}: {life:?}")));
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
            create_container(hand, &self.container, TWO_PARTITIONS, policy).await?;
            for range in 0..RANGES {
                let now = hand.insist_answer(&self.page(range), RECOVERY).await?;
                ensure!(now.status == 304, "the feed begins with {}", now.describe());
                self.take(hand, range, &now);
            }
            Ok(())
        })
    }

    fn step<'a>(&'a self, which: u32, hand: &'a mut Hand) -> Doing<'a> {
        Box::pin(async move {
            if which == READER {
                self.read(hand).await;
            } else {
                self.change(which, hand).await;
            }
        })
    }

    fn settle<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            let begun = clock::monotonic();
            loop {
                let mut is_end = true;
                for range in 0..RANGES {
                    let answer = hand.insist_answer(&self.page(range), RECOVERY).await?;
                    self.take(hand, range, &answer);
                    is_end &= answer.status == 304;
                }
                let is_over = is_end && !locked(&self.seen).is_open();
                // What has no end by then is judged as it is.
                if is_over || begun.elapsed() > END {
                    locked(&self.seen).is_complete = true;
                    return Ok(());
                }
                if is_end {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        })
    }

    fn judge(&self, tolerance: Tolerance) -> Vec<Finding> {
        let seen = locked(&self.seen);
        let told = seen.lives.values().map(|life| life.told.len()).sum();
        let wrong = seen.wrong(tolerance);
        let finding = Finding::new("feed: each change once, in order", told, wrong);
        vec![finding.if_looked(seen.is_complete)]
    }
}

#[cfg(test)]
mod tests {
    use super::Change::{Created, Deleted, Expired, Replaced};
    use super::*;

    const EXACT: Tolerance = Tolerance { skew: 0, width: 0 };

    /// A row about `a`, with the serial of the version before it, at the second of its entry's number.
    fn row(lsn: u64, change: Change, previous: Option<u64>) -> Value {
        let kind = match change {
            Created(_) => "create",
            Replaced(_) => "replace",
            Deleted | Expired => "delete",
        };
        let metadata = json!({ "lsn": lsn, "crts": lsn, "operationType": kind });
        let mut row = json!({ "current": {}, "metadata": metadata });
        if let Some(serial) = change.serial() {
            row["current"] = json!({ "id": "a", "serial": serial });
        } else {
            row["metadata"]["id"] = json!("a");
            row["metadata"]["timeToLiveExpired"] = json!(change == Expired);
        }
        if let Some(serial) = previous {
            row["previous"] = json!({ "id": "a", "serial": serial, "_ts": lsn - 1, "ttl": 1 });
        }
        row
    }

    /// Judges what is told of `a`, each change with the version that the one before it has left.
    fn judged(acknowledged: &[Change], unknown: Option<Change>, told: &[Change]) -> usize {
        let life = Life { acknowledged: acknowledged.to_vec(), unknown, ..Life::default() };
        let mut seen = Seen { is_complete: true, ..Seen::default() };
        seen.lives.insert("a".to_string(), life);
        let mut before = None;
        for (lsn, change) in (1..).zip(told) {
            seen.take(0, &row(lsn, *change, before));
            before = change.serial();
        }
        seen.wrong(EXACT).len()
    }

    #[test]
    fn each_acknowledged_change_is_told_once_and_then_the_end() {
        let life = [Created(1), Replaced(2)];
        assert_eq!(judged(&life, None, &[Created(1), Replaced(2), Expired]), 0);
        let deleted = [Created(1), Replaced(2), Deleted];
        assert_eq!(judged(&deleted, None, &deleted), 0);
        assert_eq!(judged(&life, None, &[Created(1), Expired]), 1, "lost");
        assert_eq!(judged(&life, None, &[]), 1, "not told");
        assert_eq!(judged(&life, None, &[Created(1), Replaced(2)]), 1, "no end");
        assert_eq!(judged(&life, None, &deleted), 1, "deleted by nobody");
        assert_eq!(judged(&deleted, None, &[Created(1), Replaced(2), Expired]), 1, "not deleted");
        let twice = [Created(1), Replaced(2), Replaced(2), Expired];
        assert_eq!(judged(&life, None, &twice), 1, "twice");
        let expired_twice = [Created(1), Replaced(2), Expired, Expired];
        assert_eq!(judged(&life, None, &expired_twice), 1, "expired twice");
        assert_eq!(judged(&[], None, &[Created(1), Expired]), 1, "refused");
    }

    #[test]
    fn a_change_of_which_nobody_knows_may_be_told() {
        let unknown = Some(Created(1));
        assert_eq!(judged(&[], unknown, &[]), 0);
        assert_eq!(judged(&[], unknown, &[Created(1), Expired]), 0);
        let life = [Created(1)];
        for unknown in [Some(Replaced(2)), Some(Deleted)] {
            assert_eq!(judged(&life, unknown, &[Created(1), Expired]), 0);
            let with = whole(life.into_iter().chain(unknown).collect());
            assert_eq!(judged(&life, unknown, &with), 0);
        }
    }

    #[test]
    fn entries_and_versions_follow_each_other_in_each_range() {
        let mut seen = Seen::default();
        seen.take(0, &row(7, Created(1), None));
        seen.take(1, &row(3, Replaced(2), Some(1)));
        assert_eq!(seen.wrong.len(), 0, "ranges count by themselves");
        seen.take(1, &row(2, Replaced(3), Some(2)));
        assert_eq!(seen.wrong.len(), 1, "an earlier entry");
        seen.take(0, &row(8, Expired, Some(2)));
        assert_eq!(seen.wrong.len(), 2, "another version was there");
        seen.take(0, &json!({ "current": {}, "metadata": {} }));
        assert!(seen.wrong.len() > 2, "of no item");
    }

    #[test]
    fn nothing_is_gone_before_its_time_to_live_is_over() {
        let mut seen = Seen::default();
        let mut early = row(7, Expired, None);
        early["previous"] = json!({ "_ts": 5, "ttl": 3 });
        seen.take(0, &early);
        assert_eq!(seen.wrong.len(), 1, "told at 7, due at 8: {:?}", seen.wrong);
        let missed = |last: Option<Stamped>, ret: Nanos| {
            Life { last, missed: Some(ret), ..Life::default() }.is_gone_early(EXACT)
        };
        let version = Some(Stamped { ts: 5, ttl: 3 });
        assert!(missed(version, 7_999_999_999) && !missed(version, 8_000_000_000));
        assert!(missed(None, 8_000_000_000), "it was never there");
    }

    #[test]
    fn what_was_not_read_to_the_end_is_the_beginning_of_what_is_right() {
        let life = |told: &[Change]| Life {
            acknowledged: vec![Created(1), Replaced(2)],
            told: told.to_vec(),
            ..Life::default()
        };
        assert!(life(&[]).is_right(false) && life(&[Created(1)]).is_right(false));
        assert!(!life(&[Created(1), Expired]).is_right(false));
        assert!(life(&[Created(1)]).is_open() && !life(&[Created(1), Expired]).is_open());
    }
}
