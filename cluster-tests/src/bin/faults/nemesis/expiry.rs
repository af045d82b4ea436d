//! Bombs: thousands of items that expire in the same second, just when their leader goes.
//!
//! 1. They are stored in batches, each with the time to live that is left.
//! 2. Before their second all of them are counted.
//! 3. Around that second their leader hands over, or is killed. Meanwhile they are read through every node: each
//!    is there until its second, and gone from then on.
//! 4. A little later no node shows any, neither while the leader is away nor when it is back.
//! 5. Their rows are removed.
//!
//! What is seen that should not be is a finding of the run. A batch whose outcome is not known is no part
//! of a bomb: it may be stored later, and then expires later.

use std::time::Duration;

use ephemeris_cluster_tests::checker::{Due, Margin, Read};
use ephemeris_cluster_tests::client::{Answer, Call, Client, Container, encode_segment};
use ephemeris_cluster_tests::load::{Look, Readers, Seen};
use ephemeris_cluster_tests::{clock, wait};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::Nemesis;

/// The container of all bombs.
const CONTAINER: &str = "bombs";
/// Batches of a bomb, and items of a batch: the most there may be.
const BATCHES: u32 = 100;
const BATCH_ITEMS: u32 = 100;
/// Batches that are sent at the same time.
const WORKERS: u32 = 4;
/// Seconds until a bomb goes off, and how late a batch may be sent before.
const FUSE_S: u64 = 12;
const STORED_BEFORE_S: u64 = 3;
/// A count that was answered so long before the second shows all of it: clocks may be ahead.
const WHOLE_BEFORE_MS: u64 = 1500;
/// The leader goes so much earlier than the second at most, and so much later.
const GOES_BEFORE_MS: u64 = 200;
const GOES_AFTER_MS: u64 = 600;
/// Readers begin so long before the second, and pause so long between two reads.
const WATCHED_BEFORE_MS: u64 = 1000;
const WATCH_PAUSE: Duration = Duration::from_millis(20);
/// One look of so many is a count of all.
const COUNT_ONE_OF: u32 = 25;
/// What answers say nothing of expiry while a leader goes; 0 stands for none.
const STATUSES_OF_FAILOVER: [u16; 4] = [0, 408, 429, 503];
/// So long after the last of it is due nothing of it is there: longer than what clocks leave in doubt.
const GONE_AFTER_MS: u64 = 2500;
/// Items of it that are read from each node.
const READS: usize = 50;
/// How long a node may take to answer, and all may take until they do.
const PATIENCE: Duration = Duration::from_secs(6);
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);
/// How long it may take until no row is left.
const SWEPT_WITHIN: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Items that were surely stored.
#[derive(Clone)]
struct Bomb {
    container: Container,
    /// Their partition keys, of which each batch has its own, and when they expire.
    batches: Vec<(String, Due)>,
    /// The seconds in which the first and the last of them expire.
    first: Due,
    last: Due,
}

impl Nemesis<'_> {
    /// Thousands of items expire in one second, and just then their leader goes.
    pub(super) async fn bomb(&mut self) -> Vec<String> {
        let bomb = self.store_bomb().await;
        let leader = self.cluster.leader(&bomb.container).await;
        let counted_by = self.look_before(&bomb).await;
        let goes_at = self.rng.random_range(0..GOES_BEFORE_MS + GOES_AFTER_MS);
        until_wall_ms(bomb.first.ms() - WATCHED_BEFORE_MS).await;
        let readers = self.watch(&bomb);
        until_wall_ms(bomb.first.ms() - GOES_BEFORE_MS + goes_at).await;
        // Storing it was no fault.
        self.begun = Some(self.timer.now());
        let is_killed = self.rng.random_bool(0.5);
        if is_killed {
            self.cluster.kill(leader);
            self.note_installed();
        } else {
            self.hand_over(leader).await;
        }
        until_wall_ms(bomb.last.ms() + GONE_AFTER_MS).await;
        let seen = readers.stop().await;
        self.wrong.extend(wrong_looks(&seen).map(|why| format!("bomb: {why}")));
        for node in self.cluster.running() {
            // Whoever cannot answer yet is asked again when all is well.
            let _ = self.look_after(&bomb, node).await;
        }
        if is_killed {
            self.restart(leader).await;
        }
        for node in self.cluster.ids() {
            let look = async || self.look_after(&bomb, node).await;
            wait::until_seen("an answer of every node", ANSWERED_WITHIN, look).await;
        }
        self.await_swept(&bomb).await;
        if counted_by == 0 {
            self.in_vain = Some("nobody counted the items before they were due".to_string());
        }
        let how = if is_killed { "killed" } else { "handed over" };
        let (items, reads) = (bomb.items(), seen.reads);
        vec![format!(
            "n{leader} {how}, {items} items due, counted by {counted_by} before, {reads} times read"
        )]
    }

    /// Lets one read through each node.
    fn watch(&mut self, bomb: &Bomb) -> Readers {
        let skew_ms = u64::try_from(self.skew.as_millis()).expect("clocks are hardly apart");
        let margin = Margin { before_ms: skew_ms, after_ms: skew_ms };
        let nodes = self.cluster.running().into_iter();
        let watcher = |node| Watcher {
            client: self.cluster.client(node),
            bomb: bomb.clone(),
            rng: SmallRng::seed_from_u64(self.rng.random()),
            looks: 0,
        };
        let watchers: Vec<Watcher> = nodes.map(watcher).collect();
        Readers::start(watchers, margin, WATCH_PAUSE)
    }

    async fn store_bomb(&self) -> Bomb {
        let container = self.make_container().await;
        // Its partition is led by somebody.
        self.cluster.leader(&container).await;
        let due = clock::wall_ms() / 1000 + FUSE_S;
        let clients = self.cluster.clients(&self.cluster.running());
        let mut workers = JoinSet::new();
        for (worker, client) in (0..WORKERS).zip(clients.iter().cycle()) {
            let (client, container) = (client.clone(), container.clone());
            workers.spawn(async move {
                let mut stored = Vec::new();
                for batch in (worker..BATCHES).step_by(WORKERS as usize) {
                    stored.extend(store_batch(&client, &container, due, batch).await);
                }
                stored
            });
        }
        let stored: Vec<(String, u64)> = workers.join_all().await.into_iter().flatten().collect();
        let seconds = stored.iter().map(|(_, second)| *second);
        let first = seconds.clone().min().expect("some of the bomb was stored");
        let last = seconds.max().unwrap_or(first);
        let batches = stored.into_iter().map(|(key, second)| (key, Due(second))).collect();
        Bomb { container, batches, first: Due(first), last: Due(last) }
    }

    async fn make_container(&self) -> Container {
        let container = Container::new(self.container.database(), CONTAINER);
        let key = json!({ "paths": ["/pk"], "kind": "Hash", "version": 2 });
        let definition = json!({ "id": CONTAINER, "partitionKey": key, "defaultTtl": -1 });
        let path = format!("/dbs/{}/colls", encode_segment(container.database()));
        let make = Call::post(path, definition.to_string());
        wait::until_seen("a container for bombs", ANSWERED_WITHIN, async || {
            let mut said = String::new();
            for client in self.cluster.clients(&self.cluster.running()) {
                match ask(&client, &make).await {
                    Ok(answer) if matches!(answer.status, 201 | 409) => return Ok(()),
                    Ok(answer) => said = answer.describe(),
                    Err(why) => said = why,
                }
            }
            Err(said)
        })
        .await;
        container
    }

    /// Counts it while all of it must be there, and says how many nodes did so in time.
    async fn look_before(&mut self, bomb: &Bomb) -> u32 {
        let (all, mut counted_by) = (bomb.items(), 0);
        for node in self.cluster.running() {
            let counted = bomb.count(&self.cluster.client(node)).await;
            let answered_ms = clock::wall_ms();
            if answered_ms + WHOLE_BEFORE_MS > bomb.first.ms() {
                break;
            }
            let Ok(counted) = counted else { continue };
            counted_by += 1;
            if counted != all {
                self.wrong.push(format!(
                    "bomb: node {node} counted {counted} of {all} items at {answered_ms} ms, due at \
                     {} ms",
                    bomb.first.ms()
                ));
            }
        }
        counted_by
    }

    /// Looks for it once nothing may be there, until something is; an error if the node does not answer.
    async fn look_after(&mut self, bomb: &Bomb, node: u32) -> Result<(), String> {
        let client = self.cluster.client(node);
        for _ in 0..READS {
            let (read, _) = bomb.read_one(&mut self.rng);
            let answer = ask(&client, &read).await?;
            match answer.status {
                404 => {}
                200 => {
                    self.note_shown(bomb, node, &answer.describe());
                    return Ok(());
                }
                _ => return Err(answer.describe()),
            }
        }
        let counted = bomb.count(&client).await?;
        if counted > 0 {
            self.note_shown(bomb, node, &format!("a count of {counted}"));
        }
        Ok(())
    }

    fn note_shown(&mut self, bomb: &Bomb, node: u32, what: &str) {
        let (now, last) = (clock::wall_ms(), bomb.last.ms());
        self.wrong.push(format!(
            "bomb: all of it was due at {last} ms, and by {now} ms node {node} showed {what}"
        ));
    }

    async fn await_swept(&mut self, bomb: &Bomb) {
        let begun = clock::monotonic();
        loop {
            let Err(left) = self.try_swept(bomb).await else { return };
            if begun.elapsed() > SWEPT_WITHIN {
                self.wrong.push(format!("bomb: its rows are not removed: {left}"));
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// What is left to be removed, if anything is.
    async fn try_swept(&self, bomb: &Bomb) -> Result<(), String> {
        let client = self.cluster.client(self.cluster.ids()[0]);
        let body = ask(&client, &Call::get("/admin/ttl")).await?.json();
        left(&body, &bomb.container).map_or(Ok(()), Err)
    }
}

/// What is left to be removed of a container, as `/admin/ttl` tells it. Of what it does not tell, all is.
fn left(body: &Value, container: &Container) -> Option<String> {
    let partitions = body["partitions"].as_array().map_or(&[][..], Vec::as_slice);
    let is_ours = |row: &&Value| {
        row["database"] == container.database() && row["container"] == container.name()
    };
    let mut ours = partitions.iter().filter(is_ours).peekable();
    if ours.peek().is_none() {
        return Some(format!("{body} has no partition of {}", container.path()));
    }
    let is_left = |row: &&Value| row["backlog"] != 0 && row["keptAfterJump"] != true;
    ours.find(is_left).map(Value::to_string)
}

/// What readers saw that nobody should see.
fn wrong_looks(seen: &Seen) -> impl Iterator<Item = String> {
    let Seen { visible, early, unexpected, told, .. } = seen;
    let (visible, early) = (*visible, *early);
    let at_the_wrong_time = (visible + early > 0).then(|| {
        format!("{visible} looks showed what had expired, {early} missed what had not: {told:?}")
    });
    let strange = unexpected.iter().filter(|(status, _)| !STATUSES_OF_FAILOVER.contains(*status));
    let strange = strange.map(|(status, times)| format!("{times} looks were answered by {status}"));
    at_the_wrong_time.into_iter().chain(strange)
}

/// Looks at a bomb through one node.
struct Watcher {
    client: Client,
    bomb: Bomb,
    rng: SmallRng,
    looks: u32,
}

impl Look for Watcher {
    async fn look(&mut self) -> (Due, Read) {
        self.looks += 1;
        if self.looks.is_multiple_of(COUNT_ONE_OF) {
            return self.count().await;
        }
        let (read, due) = self.bomb.read_one(&mut self.rng);
        let started_ms = clock::wall_ms();
        let answer = ask(&self.client, &read).await;
        let finished_ms = clock::wall_ms();
        (due, Read { started_ms, finished_ms, status: answer.map_or(0, |answer| answer.status) })
    }
}

impl Watcher {
    /// A count is like a read of whatever there should be at the time: of all until the first second, of none
    /// after the last.
    async fn count(&self) -> (Due, Read) {
        let started_ms = clock::wall_ms();
        let counted = self.bomb.count(&self.client).await;
        let finished_ms = clock::wall_ms();
        let (due, status) = self.bomb.judged(counted.ok(), finished_ms);
        (due, Read { started_ms, finished_ms, status })
    }
}

impl Bomb {
    fn items(&self) -> u64 {
        self.batches.len() as u64 * u64::from(BATCH_ITEMS)
    }

    /// The request for any of its items, and when that is due.
    fn read_one(&self, rng: &mut SmallRng) -> (Call, Due) {
        let (key, due) = &self.batches[rng.random_range(0..self.batches.len())];
        let id = rng.random_range(0..BATCH_ITEMS).to_string();
        (Call::get(self.container.item(&id)).key(&json!(key)), *due)
    }

    /// Which second a count that was answered by then is judged by, and the status of a read that would say
    /// the same.
    fn judged(&self, counted: Option<u64>, finished_ms: u64) -> (Due, u16) {
        let Some(counted) = counted else { return (self.last, 0) };
        if finished_ms < self.first.ms() {
            let status = if counted < self.items() { 404 } else { 200 };
            return (self.first, status);
        }
        (self.last, if counted > 0 { 200 } else { 404 })
    }

    /// How many of its items a node counts.
    async fn count(&self, client: &Client) -> Result<u64, String> {
        let (mut total, mut next) = (0, None::<String>);
        loop {
            let page = match &next {
                Some(token) => self.question().header("x-ms-continuation", token.clone()),
                None => self.question(),
            };
            let answer = ask(client, &page).await?;
            let body = answer.json();
            let rows = body["Documents"].as_array().filter(|_| answer.status == 200);
            let rows = rows.ok_or_else(|| answer.describe())?;
            total += rows.iter().filter_map(Value::as_u64).sum::<u64>();
            next = answer.continuation().map(str::to_string);
            if next.is_none() {
                return Ok(total);
            }
        }
    }

    fn question(&self) -> Call {
        let text = "SELECT VALUE COUNT(1) FROM c WHERE ARRAY_CONTAINS(@keys, c.pk)";
        let keys: Vec<&String> = self.batches.iter().map(|(key, _)| key).collect();
        let parameters = json!([{ "name": "@keys", "value": keys }]);
        let body = json!({ "query": text, "parameters": parameters });
        Call::post(self.container.items(), body.to_string())
            .header("content-type", "application/query+json")
            .header("x-ms-documentdb-isquery", "true")
            .header("x-ms-documentdb-query-enablecrosspartition", "true")
    }
}

/// Stores a batch that expires in second `due`, or a little later; its key and that second, if it was surely
/// stored.
async fn store_batch(
    client: &Client,
    container: &Container,
    due: u64,
    batch: u32,
) -> Option<(String, u64)> {
    // Its stamp will be that of the commit, rounded up.
    let left = due.checked_sub(clock::wall_ms() / 1000 + 1)?;
    if left < STORED_BEFORE_S {
        return None;
    }
    let key = format!("{due}-{batch}");
    let operation = |number: u32| {
        let item = json!({ "id": number.to_string(), "pk": key, "ttl": left });
        json!({ "operationType": "Create", "resourceBody": item })
    };
    let operations: Vec<Value> = (0..BATCH_ITEMS).map(operation).collect();
    let call = Call::post(container.items(), json!(operations).to_string())
        .header("content-type", "application/json")
        .header("x-ms-cosmos-is-batch-request", "True")
        .header("x-ms-cosmos-batch-atomic", "True")
        .key(&json!(key));
    let answer = ask(client, &call).await.ok().filter(|answer| answer.status == 200)?;
    Some((key, last_stamp(&answer.json())? + left))
}

/// The latest `_ts` of a batch's items.
fn last_stamp(body: &Value) -> Option<u64> {
    let stamps = body.as_array()?.iter().map(|row| row["resourceBody"]["_ts"].as_u64());
    stamps.collect::<Option<Vec<u64>>>()?.into_iter().max()
}

/// Asks a node once.
async fn ask(client: &Client, call: &Call) -> Result<Answer, String> {
    match tokio::time::timeout(PATIENCE, client.send(call)).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    }
}

/// Waits until the wall clock shows so many milliseconds.
async fn until_wall_ms(at: u64) {
    let left = at.saturating_sub(clock::wall_ms());
    tokio::time::sleep(Duration::from_millis(left)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_due_by_the_latest_stamp_of_its_items_if_all_have_one() {
        let row = |stamp: u64| json!({ "statusCode": 201, "resourceBody": { "_ts": stamp } });
        assert_eq!(last_stamp(&json!([row(5), row(7), row(6)])), Some(7));
        assert_eq!(last_stamp(&json!([row(5), { "statusCode": 424 }])), None);
        assert_eq!(last_stamp(&json!({ "code": "BadRequest" })), None);
    }

    #[test]
    fn a_count_is_of_what_was_surely_stored() {
        let body: Value = serde_json::from_slice(bomb().question().body_bytes()).unwrap();
        assert_eq!(body["parameters"][0]["value"], json!(["9-1", "9-4"]));
    }

    fn bomb() -> Bomb {
        let container = Container::new("faults", CONTAINER);
        let batches = vec![("9-1".to_string(), Due(9)), ("9-4".to_string(), Due(10))];
        Bomb { container, batches, first: Due(9), last: Due(10) }
    }

    #[test]
    fn a_count_shows_all_until_the_first_second_and_none_after_the_last() {
        let bomb = bomb();
        assert_eq!(bomb.judged(Some(200), 8_999), (Due(9), 200));
        assert_eq!(bomb.judged(Some(199), 8_999), (Due(9), 404));
        assert_eq!(bomb.judged(Some(1), 10_500), (Due(10), 200));
        assert_eq!(
            bomb.judged(Some(0), 9_500),
            (Due(10), 404),
            "between the two it is late for none"
        );
        assert_eq!(bomb.judged(None, 10_500).1, 0);
    }

    #[test]
    fn rows_that_nobody_tells_of_are_left() {
        let container = Container::new("faults", CONTAINER);
        let row = |name: &str, backlog: u32, kept: bool| json!({ "database": "faults", "container": name, "backlog": backlog, "keptAfterJump": kept });
        let left = |rows: Value| left(&json!({ "partitions": rows }), &container).is_some();
        assert!(!left(json!([row(CONTAINER, 0, false), row("other", 7, false)])));
        assert!(!left(json!([row(CONTAINER, 7, true)])), "they are kept after a jump");
        assert!(left(json!([row(CONTAINER, 7, false)])));
        assert!(left(json!([row("other", 0, false)])) && left(json!([])) && left(json!(null)));
        let silent = json!({ "database": "faults", "container": CONTAINER, "error": "none leads" });
        assert!(left(json!([silent])));
    }

    #[test]
    fn answers_of_a_failover_say_nothing_and_all_others_are_told() {
        let seen = |unexpected: &[(u16, u64)]| Seen {
            unexpected: unexpected.iter().copied().collect(),
            ..Seen::default()
        };
        assert_eq!(wrong_looks(&seen(&[(0, 1), (408, 1), (429, 2), (503, 9)])).count(), 0);
        assert_eq!(wrong_looks(&seen(&[(500, 1), (503, 9)])).count(), 1);
        let shown = Seen { visible: 1, ..Seen::default() };
        assert_eq!(wrong_looks(&shown).count(), 1);
    }
}
