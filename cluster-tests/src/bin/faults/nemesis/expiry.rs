//! Bombs: thousands of items that expire in the same second, just when their leader goes.
//!
//! 1. They are stored in batches, each with the time to live that is left.
//! 2. Before their second all of them are counted.
//! 3. Around that second their leader hands over, or is killed.
//! 4. A little later no node shows any, neither while the leader is away nor when it is back.
//! 5. Their rows are removed.
//!
//! What is seen that should not be is a finding of the run. A batch whose outcome is not known is no part
//! of a bomb: it may be stored later, and then expires later.

use std::time::Duration;

use ephemeris_cluster_tests::client::{Answer, Call, Client, Container, encode_segment};
use ephemeris_cluster_tests::{clock, wait};
use rand::RngExt as _;
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
struct Bomb {
    container: Container,
    /// Their partition keys: each batch has its own.
    keys: Vec<String>,
    /// The seconds in which the first and the last of them expire.
    first: u64,
    last: u64,
}

impl Nemesis<'_> {
    /// Thousands of items expire in one second, and just then their leader goes.
    pub(super) async fn bomb(&mut self) -> Vec<String> {
        let bomb = self.store_bomb().await;
        let leader = self.cluster.leader(&bomb.container).await;
        let counted_by = self.look_before(&bomb).await;
        let goes_at = self.rng.random_range(0..GOES_BEFORE_MS + GOES_AFTER_MS);
        until_wall_ms(bomb.first * 1000 - GOES_BEFORE_MS + goes_at).await;
        // Storing it was no fault.
        self.begun = Some(self.timer.now());
        let is_killed = self.rng.random_bool(0.5);
        if is_killed {
            self.cluster.kill(leader);
            self.note_installed();
        } else {
            self.hand_over(leader).await;
        }
        until_wall_ms(bomb.last * 1000 + GONE_AFTER_MS).await;
        for node in self.cluster.running() {
            // Whoever cannot answer yet is asked again when all is well.
            let _ = self.look_after(&bomb, node).await;
        }
        if is_killed {
            self.cluster.restart(leader).await;
        }
        for node in self.cluster.ids() {
            let look = async || self.look_after(&bomb, node).await;
            wait::until_seen("an answer of every node", ANSWERED_WITHIN, look).await;
        }
        self.await_swept(&bomb).await;
        let how = if is_killed { "killed" } else { "handed over" };
        vec![format!("n{leader} {how}, {} items due, counted by {counted_by} before", bomb.items())]
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
        Bomb { container, keys: stored.into_iter().map(|(key, _)| key).collect(), first, last }
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
            if answered_ms + WHOLE_BEFORE_MS > bomb.first * 1000 {
                break;
            }
            let Ok(counted) = counted else { continue };
            counted_by += 1;
            if counted != all {
                self.wrong.push(format!(
                    "bomb: node {node} counted {counted} of {all} items at {answered_ms} ms, due in \
                     second {}",
                    bomb.first
                ));
            }
        }
        counted_by
    }

    /// Looks for it once nothing may be there, until something is; an error if the node does not answer.
    async fn look_after(&mut self, bomb: &Bomb, node: u32) -> Result<(), String> {
        let client = self.cluster.client(node);
        for _ in 0..READS {
            let key = &bomb.keys[self.rng.random_range(0..bomb.keys.len())];
            let id = self.rng.random_range(0..BATCH_ITEMS).to_string();
            let read = Call::get(bomb.container.item(&id)).key(&json!(key));
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
        let (now, last) = (clock::wall_ms(), bomb.last);
        self.wrong.push(format!(
            "bomb: all of it was due in second {last}, and by {now} ms node {node} showed {what}"
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
        let partitions = body["partitions"].as_array().ok_or_else(|| body.to_string())?;
        let is_left = |row: &&Value| {
            row["database"] == bomb.container.database()
                && row["container"] == bomb.container.name()
                && row["backlog"] != 0
                && row["keptAfterJump"] != true
        };
        partitions.iter().find(is_left).map_or(Ok(()), |row| Err(row.to_string()))
    }
}

impl Bomb {
    fn items(&self) -> u64 {
        self.keys.len() as u64 * u64::from(BATCH_ITEMS)
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
        let parameters = json!([{ "name": "@keys", "value": self.keys }]);
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
        let container = Container::new("faults", CONTAINER);
        let bomb = Bomb { container, keys: vec!["9-1".into(), "9-4".into()], first: 9, last: 9 };
        let body: Value = serde_json::from_slice(bomb.question().body_bytes()).unwrap();
        assert_eq!(body["parameters"][0]["value"], json!(["9-1", "9-4"]));
    }
}
