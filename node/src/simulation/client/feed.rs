//! The change feed: of last versions, while the client works, and of all versions in the end.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::http::{Answer, Ask};
use super::super::laws::{Known, Span};
use super::{Client, SHARED_TTL, found};

/// The form of the rows of the feed of all versions.
const WIRE_FORMAT: &str = "2021-09-15";

/// What happened to each item of a container, by id and in its order.
pub(in crate::simulation) struct History(BTreeMap<String, Vec<Change>>);

/// One thing that happened to an item.
#[derive(Debug)]
struct Change {
    /// The version that came, by its serial.
    came: Option<u64>,
    /// The version that went.
    went: Option<u64>,
    /// True if it went because its time was over.
    is_expiry: bool,
}

impl Change {
    /// What a row of the feed tells of which item.
    fn of(row: &Value) -> (String, Self) {
        let (current, previous, metadata) = (&row["current"], &row["previous"], &row["metadata"]);
        let id = current["id"].as_str().or(metadata["id"].as_str()).expect("items have an id");
        let is_expiry = metadata["timeToLiveExpired"] == true;
        if is_expiry {
            let ttl = previous["ttl"].as_i64().unwrap_or(i64::from(SHARED_TTL));
            let ts = previous["_ts"].as_i64().expect("items have a stamp");
            let at = metadata["crts"].as_i64().expect("a change has a date");
            assert!(ttl > 0 && ts + ttl <= at, "nothing expires early: {row}");
        }
        let (came, went) = (current["serial"].as_u64(), previous["serial"].as_u64());
        (id.to_string(), Self { came, went, is_expiry })
    }
}

impl History {
    /// Judges what is left: of items of which too little was known, and which were deleted in the end.
    pub(in crate::simulation) fn judge_rest(self) {
        for (id, changes) in self.0 {
            assert_eq!(last_version(&id, &changes), None, "{id} was deleted: {changes:?}");
        }
    }
}

/// The version that is there in the end. What goes is always what was there before, so that nothing is told
/// twice, and of an item that comes anew its end is told before.
fn last_version(id: &str, changes: &[Change]) -> Option<u64> {
    let mut there = None;
    for change in changes {
        assert_eq!(change.went, there, "{id} was another one: {changes:?}");
        there = change.came;
    }
    there
}

impl Client {
    /// Reads the last versions of a logical partition's items, in the order in which they were written.
    pub(super) async fn read_feed(&mut self, which: usize) {
        let item = &self.items[which];
        let (partition_key, key_header) = (item.partition_key.clone(), item.key_header());
        let path = self.items_path();
        let (mut rows, mut place, mut began) = (Vec::new(), None, None);
        loop {
            let mut headers = vec![key_header.clone(), ("a-im", "Incremental Feed".to_string())];
            headers.extend(place.map(|place| ("if-none-match", place)));
            let ask = Ask { verb: "GET", path: &path, headers, body: String::new() };
            let (span, answer) = self.ask(ask).await;
            let Some(answer) = found(answer) else { return };
            let lsn = self.learn(&answer);
            let (call, lsn) = *began.get_or_insert((span.call, lsn));
            if answer.status == 304 {
                self.world.count("change feed");
                let order = rows.iter().map(|row: &Value| row["_lsn"].as_u64());
                assert!(order.is_sorted(), "rows are in the order of the writes");
                // What is known of nothing may be written anew between two pages.
                rows.retain(|row| self.lost.iter().all(|item| row["id"] != item.id));
                let span = Span { call, ret: span.ret };
                return self.judge_rows(Some(&partition_key), span, lsn, &rows);
            }
            rows.append(&mut documents(&answer));
            place = Some(place_of(&answer));
        }
    }

    /// Notes where the history of the container begins.
    pub(in crate::simulation) async fn begin_history(&mut self) {
        let path = format!("{}/pkranges", self.container_path());
        let (_, ranges) = self.insist("GET", &path, Vec::new(), String::new(), &[200]).await;
        let ranges = ranges.json();
        for range in ranges["PartitionKeyRanges"].as_array().expect("a container has ranges") {
            let range = range["id"].as_str().expect("a range has an id").to_string();
            let (path, headers) = (self.items_path(), all_versions(&range, "*"));
            let (_, answer) = self.insist("GET", &path, headers, String::new(), &[304]).await;
            self.places.push((range, place_of(&answer)));
        }
    }

    /// Reads the history of the container.
    pub(in crate::simulation) async fn history(&mut self) -> History {
        let mut history: BTreeMap<String, Vec<Change>> = BTreeMap::new();
        assert_eq!(self.places.len(), 2, "the container has two partitions");
        for (range, mut place) in self.places.clone() {
            loop {
                let (path, headers) = (self.items_path(), all_versions(&range, &place));
                let statuses = [200, 304];
                let (_, answer) =
                    self.insist("GET", &path, headers, String::new(), &statuses).await;
                if answer.status == 304 {
                    break;
                }
                for row in documents(&answer) {
                    let (id, change) = Change::of(&row);
                    history.entry(id).or_default().push(change);
                }
                place = place_of(&answer);
            }
        }
        History(history)
    }

    /// Judges what the history tells of this client's items, and takes it out: each version that was
    /// acknowledged came, and no other; those that the client deleted were deleted, and all others that went
    /// without another in their place have expired.
    pub(in crate::simulation) fn judge_history(&self, history: &mut History) {
        if self.flips() {
            return;
        }
        for item in &self.items {
            let changes = history.0.remove(&item.id).unwrap_or_default();
            let alive = match item.key.known() {
                Known::Version { serial, .. } => Some(serial),
                Known::Absent => None,
            };
            assert_eq!(last_version(&item.id, &changes), alive, "{}: {changes:?}", item.id);
            let came: Vec<u64> = changes.iter().filter_map(|change| change.came).collect();
            let written: Vec<u64> = item.key.serials().collect();
            assert_eq!(came, written, "versions of {}", item.id);
            let gone = changes.iter().filter(|change| change.came.is_none());
            let (expired, deleted): (Vec<_>, Vec<_>) = gone.partition(|change| change.is_expiry);
            let deleted: BTreeSet<u64> = deleted.iter().filter_map(|change| change.went).collect();
            assert_eq!(deleted, item.deleted, "versions of {} that were deleted", item.id);
            for _ in expired {
                self.world.count("expiry told");
            }
        }
    }
}

/// What asks a range for all versions behind a place.
fn all_versions(range: &str, place: &str) -> Vec<(&'static str, String)> {
    vec![
        ("a-im", "Full-Fidelity Feed".to_string()),
        ("x-ms-cosmos-changefeed-wire-format-version", WIRE_FORMAT.to_string()),
        ("x-ms-documentdb-partitionkeyrangeid", range.to_string()),
        ("if-none-match", place.to_string()),
    ]
}

/// The rows of a page.
fn documents(answer: &Answer) -> Vec<Value> {
    let Value::Array(rows) = answer.json()["Documents"].take() else {
        panic!("{answer:?} has no rows")
    };
    rows
}

/// The place behind a page.
fn place_of(answer: &Answer) -> String {
    answer.header("etag").expect("a page of a feed has an etag").to_string()
}
