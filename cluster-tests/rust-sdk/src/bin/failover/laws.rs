//! What workers do, turn by turn, and the laws by which each judges it in the end.
//!
//! Each function is one feature: its loop is the load, what follows the loop is the verdict.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use anyhow::{Result, ensure};
use azure_data_cosmos::clients::{ContainerClient, DatabaseClient};
use azure_data_cosmos::feed::{ChangeFeedPageIterator, ContinuationToken, FeedScope};
use azure_data_cosmos::models::{
    ChangeFeedItem, ContainerProperties, PatchInstructions, PatchOperation,
};
use azure_data_cosmos::options::{
    ChangeFeedOptions, ChangeFeedStartFrom, PatchItemOptions, PatchStrategy,
    QueryContainersOptions, QueryOptions,
};
use azure_data_cosmos::{CosmosError, Query, TransactionalBatch};
use ephemeris_rust_sdk_tests::{
    LATE_MAX, NODES, all_done, await_second, definition, due, if_unchanged, now, number, rows_max,
    text, through,
};
use futures_util::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::worker::Worker;

/// What was acknowledged, and what may have been done.
#[derive(Default)]
struct Journal {
    acknowledged: BTreeSet<String>,
    failed: BTreeSet<String>,
}

impl Journal {
    fn note(&mut self, id: &str, acknowledged: bool) {
        let set = if acknowledged { &mut self.acknowledged } else { &mut self.failed };
        set.insert(id.to_owned());
    }

    /// Everything acknowledged is there, and nothing that was never asked for.
    fn judge(&self, found: &BTreeSet<String>) -> Result<()> {
        let lost: Vec<_> = self.acknowledged.difference(found).collect();
        ensure!(lost.is_empty(), "of {} acknowledged are lost: {lost:?}", self.acknowledged.len());
        let unasked = |id: &&String| !self.acknowledged.contains(*id) && !self.failed.contains(*id);
        let unasked: Vec<_> = found.iter().filter(unasked).collect();
        ensure!(unasked.is_empty(), "nobody has asked for {unasked:?}");
        Ok(())
    }
}

fn ids(items: &[Value]) -> BTreeSet<String> {
    items.iter().map(|item| text(item, "id").to_owned()).collect()
}

/// Whether an item is there, if anybody can tell.
async fn is_there(worker: &Worker, id: &str) -> Option<bool> {
    match worker.items.read_item(&worker.key, id, None).await {
        Ok(_) => Some(true),
        Err(error) if error.status().is_not_found() => Some(false),
        Err(_) => None,
    }
}

/// Reads an item that nobody deletes; nothing if nobody can tell.
async fn read_kept(worker: &Worker, id: &str) -> Result<Option<Value>> {
    match worker.items.read_item(&worker.key, id, None).await {
        Ok(read) => Ok(Some(read.into_model()?)),
        Err(error) => {
            ensure!(!error.status().is_not_found(), "{id} is lost: {error}");
            Ok(None)
        }
    }
}

/// Writes an item before the load begins, when nothing fails.
async fn prepare(worker: &Worker, item: &Value) -> Result<Value, CosmosError> {
    worker.items.create_item(&worker.key, text(item, "id"), item, None).await?.into_model()
}

/// What is created stays, and an id is taken once.
pub(crate) async fn creates(mut worker: Worker) -> Result<()> {
    let mut journal = Journal::default();
    while let Some(turn) = worker.next_turn() {
        let id = turn.to_string();
        let item = worker.item(&id, &json!({"by": "the first"}));
        let created = worker.items.create_item(&worker.key, &id, item, None).await;
        let created = worker.note(created)?.is_some();
        journal.note(&id, created);
        if created {
            ensure!(is_there(&worker, &id).await != Some(false), "{id} is lost at once");
            let again = worker.item(&id, &json!({"by": "the second"}));
            let again = worker.items.create_item(&worker.key, &id, again, None).await;
            ensure!(again.is_err(), "{id} was created twice");
        }
    }
    for found in worker.found().await? {
        journal.judge(&ids(&found))?;
        ensure!(found.iter().all(|item| item["by"] == "the first"), "a refused item is there");
    }
    Ok(())
}

/// The last acknowledged value is there, or one of a call that failed.
pub(crate) async fn upserts(mut worker: Worker) -> Result<()> {
    let mut last = 0;
    prepare(&worker, &worker.item("1", &json!({"n": last}))).await?;
    let mut failed = BTreeSet::new();
    while let Some(turn) = worker.next_turn() {
        let item = worker.item("1", &json!({"n": turn}));
        let upserted = worker.items.upsert_item(&worker.key, "1", item, None).await;
        match worker.note(upserted)? {
            Some(_) => last = turn,
            None => _ = failed.insert(turn),
        }
        if let Some(read) = read_kept(&worker, "1").await? {
            let n = number(&read, "n");
            ensure!(n == last || failed.contains(&n), "read {n}, not {last}, nor {failed:?}");
        }
    }
    for found in worker.found().await? {
        let n = number(&found[0], "n");
        ensure!(n == last || failed.contains(&n), "found {n}, not {last}, nor {failed:?}");
    }
    Ok(())
}

/// Who knows the etag replaces, and nobody else.
pub(crate) async fn replaces(mut worker: Worker) -> Result<()> {
    let mut known = prepare(&worker, &worker.item("1", &json!({"n": 0}))).await?;
    let mut failed = BTreeSet::new();
    let may_be = |item: &Value, known: &Value, failed: &BTreeSet<u64>| {
        item["n"] == known["n"] || item["n"].as_u64().is_some_and(|n| failed.contains(&n))
    };
    while let Some(turn) = worker.next_turn() {
        let item = worker.item("1", &json!({"n": turn}));
        let replaced =
            worker.items.replace_item(&worker.key, "1", item, Some(if_unchanged(&known))).await;
        if let Some(replaced) = worker.note(replaced)? {
            let before = std::mem::replace(&mut known, replaced.into_model()?);
            let stale = worker.item("1", &json!({"n": "stale"}));
            let stale =
                worker.items.replace_item(&worker.key, "1", stale, Some(if_unchanged(&before)));
            ensure!(stale.await.is_err(), "a stale etag was taken for a fresh one");
            continue;
        }
        failed.insert(turn);
        if let Some(read) = read_kept(&worker, "1").await? {
            ensure!(may_be(&read, &known, &failed), "read {read}, not {known}, nor {failed:?}");
            known = read;
        }
    }
    for found in worker.found().await? {
        ensure!(may_be(&found[0], &known, &failed), "found {found:?}, not {known}, nor {failed:?}");
    }
    Ok(())
}

/// A patch that adds one happens once, or never if it failed.
pub(crate) async fn patches(mut worker: Worker, strategy: PatchStrategy) -> Result<()> {
    prepare(&worker, &worker.item("1", &json!({"n": 0}))).await?;
    let (mut acknowledged, mut failed) = (0, 0);
    while worker.next_turn().is_some() {
        let patch = PatchInstructions::from(vec![PatchOperation::increment("/n", 1_i64)]);
        let options = PatchItemOptions::default().with_strategy(strategy);
        let patched = worker.items.patch_item(&worker.key, "1", patch, Some(options)).await;
        match worker.note(patched)? {
            Some(_) => acknowledged += 1,
            None => failed += 1,
        }
    }
    for found in worker.found().await? {
        let n = number(&found[0], "n");
        let possible = acknowledged..=acknowledged + failed;
        ensure!(possible.contains(&n), "{n} patches were made, not {possible:?}");
    }
    Ok(())
}

/// A batch is there as a whole or not at all, and one that fails not at all.
pub(crate) async fn batches(mut worker: Worker) -> Result<()> {
    let mut journal = Journal::default();
    while let Some(turn) = worker.next_turn() {
        let pair = [format!("{turn}-a"), format!("{turn}-b")];
        let batch = TransactionalBatch::new(&worker.key)
            .create_item(worker.item(&pair[0], &Value::Null))?
            .create_item(worker.item(&pair[1], &Value::Null))?;
        let done = worker.items.execute_transactional_batch(batch, None).await;
        let done = worker.note(done)?;
        // A batch that the SDK has sent twice finds its own items in the way.
        let done = match done {
            Some(done) => all_done(&done.into_model()?),
            None => false,
        };
        for id in &pair {
            journal.note(id, done);
        }
        if done {
            let failing = TransactionalBatch::new(&worker.key)
                .create_item(worker.item(&format!("{turn}-refused"), &Value::Null))?
                .create_item(worker.item(&pair[0], &Value::Null))?;
            if let Ok(failed) = worker.items.execute_transactional_batch(failing, None).await {
                ensure!(!all_done(&failed.into_model()?), "it did not fail");
            }
        }
    }
    for found in worker.found().await? {
        let found = ids(&found);
        journal.judge(&found)?;
        let mut parts: BTreeMap<&str, u32> = BTreeMap::new();
        for (turn, _) in found.iter().filter_map(|id| id.split_once('-')) {
            *parts.entry(turn).or_default() += 1;
        }
        ensure!(parts.values().all(|parts| *parts == 2), "a batch is there by half: {parts:?}");
    }
    Ok(())
}

/// What is deleted stays away.
pub(crate) async fn deletes(mut worker: Worker) -> Result<()> {
    let mut deleted = BTreeSet::new();
    let mut journal = Journal::default();
    while let Some(turn) = worker.next_turn() {
        let id = turn.to_string();
        let item = worker.item(&id, &Value::Null);
        let created = worker.items.create_item(&worker.key, &id, item, None).await;
        let created = worker.note(created)?.is_some();
        let gone = worker.items.delete_item(&worker.key, &id, None).await;
        if worker.note(gone)?.is_some() && created {
            ensure!(is_there(&worker, &id).await != Some(true), "{id} is there after its end");
            deleted.insert(id);
        } else {
            journal.note(&id, false);
        }
    }
    for found in worker.found().await? {
        let found = ids(&found);
        journal.judge(&found)?;
        ensure!(deleted.is_disjoint(&found), "deleted items are back: {found:?}");
    }
    Ok(())
}

/// What expires is there until its second, and never again.
pub(crate) async fn expiries(mut worker: Worker) -> Result<()> {
    const TTL: u64 = 2;
    let mut living: VecDeque<(String, Duration)> = VecDeque::new();
    while let Some(turn) = worker.next_turn() {
        let id = turn.to_string();
        let item = worker.item(&id, &json!({"ttl": TTL}));
        let created = worker.items.create_item(&worker.key, &id, item, None).await;
        if let Some(created) = worker.note(created)? {
            living.push_back((id, Duration::from_secs(due(&created.into_model()?))));
        }
        let Some((oldest, end)) = living.front() else { continue };
        let asked = now();
        match is_there(&worker, oldest).await {
            Some(true) => ensure!(asked < *end + LATE_MAX, "{oldest} is still there"),
            Some(false) => {
                ensure!(now() >= *end, "{oldest} is gone too early");
                living.pop_front();
            }
            None => {}
        }
    }
    // Stamps are rounded up.
    await_second(now().as_secs() + TTL + 2).await;
    for found in worker.found().await? {
        ensure!(found.is_empty(), "expired items are there: {found:?}");
    }
    Ok(())
}

/// A value of a unique key is taken once.
pub(crate) async fn unique_keys(mut worker: Worker) -> Result<()> {
    let mut journal = Journal::default();
    while let Some(turn) = worker.next_turn() {
        let id = turn.to_string();
        let item = worker.item(&id, &json!({"unique": turn}));
        let created = worker.items.create_item(&worker.key, &id, item, None).await;
        let created = worker.note(created)?.is_some();
        journal.note(&id, created);
        if created {
            let id = format!("{id}-again");
            let again = worker.item(&id, &json!({"unique": turn}));
            let again = worker.items.upsert_item(&worker.key, &id, again, None).await;
            ensure!(again.is_err(), "the value {turn} was taken twice");
        }
    }
    for found in worker.found().await? {
        journal.judge(&ids(&found))?;
    }
    Ok(())
}

/// A query tells each item once and in order, from page to page, whoever dies in between.
pub(crate) async fn queries(mut worker: Worker) -> Result<()> {
    const ITEMS: u64 = 30;
    for n in 0..ITEMS {
        prepare(&worker, &worker.item(&n.to_string(), &json!({"n": n}))).await?;
    }
    let text = "SELECT * FROM c WHERE c.pk = @key ORDER BY c.n";
    let query = Query::from(text).with_parameter("@key", &worker.key)?;
    let first_page = QueryOptions::default().with_max_item_count(rows_max(7));
    let (mut found, mut options) = (Vec::new(), first_page.clone());
    while worker.next_turn().is_some() {
        let page = read_page(&worker.items, &query, &options).await;
        match worker.note(page)? {
            Some(Some((rows, token))) => {
                found.extend(rows.iter().map(|row| number(row, "n")));
                options = options.with_continuation_token(token);
            }
            Some(None) => {
                ensure!(found.iter().copied().eq(0..ITEMS), "it found {found:?}");
                (found, options) = (Vec::new(), first_page.clone());
            }
            None => {}
        }
    }
    for found in worker.found().await? {
        ensure!(found.len() as u64 == ITEMS, "{} of {ITEMS} items are there", found.len());
    }
    Ok(())
}

/// A page and where it ends; nothing after the last one.
async fn read_page(
    items: &ContainerClient,
    query: &Query,
    options: &QueryOptions,
) -> Result<Option<(Vec<Value>, ContinuationToken)>, CosmosError> {
    let all = FeedScope::full_container();
    let rows = items.query_items(query.clone(), all, Some(options.clone())).await?;
    let mut pages = rows.into_pages();
    let Some(page) = pages.next().await else { return Ok(None) };
    Ok(Some((page?.into_items(), pages.to_continuation_token()?)))
}

/// A change feed tells each item once, and goes on where it was.
pub(crate) async fn change_feed(mut worker: Worker) -> Result<()> {
    let mut journal = Journal::default();
    let mut feed = Feed::default();
    while let Some(turn) = worker.next_turn() {
        let id = turn.to_string();
        let item = worker.item(&id, &Value::Null);
        let created = worker.items.create_item(&worker.key, &id, item, None).await;
        journal.note(&id, created.is_ok());
        let page = feed.read_page(&worker).await;
        worker.note(page)?;
    }
    let expected = worker.found().await?.pop().unwrap_or_default();
    while feed.told.len() < expected.len() {
        ensure!(
            feed.read_page(&worker).await? > 0,
            "the feed has an end before everything is told"
        );
    }
    let told: BTreeSet<String> = feed.told.iter().cloned().collect();
    ensure!(told.len() == feed.told.len(), "the feed has told something twice");
    ensure!(told == ids(&expected), "the feed tells something else");
    journal.judge(&told)
}

/// A container is there until it is deleted, and then it is not.
pub(crate) async fn containers(mut worker: Worker, database: DatabaseClient) -> Result<()> {
    let ours = Uuid::new_v4().to_string();
    let mut deleted = BTreeSet::new();
    let mut journal = Journal::default();
    while let Some(turn) = worker.next_turn() {
        let name = format!("{ours} {turn}");
        let created = database.create_container(definition(&name), None).await;
        let created = worker.note(created)?.is_some();
        let used = match database.container_client(&*name, None).await {
            Ok(container) => use_up(&container).await,
            Err(error) => {
                ensure!(!(created && error.status().is_not_found()), "{name} is lost at once");
                Err(error)
            }
        };
        if worker.note(used)?.is_some() && created {
            deleted.insert(name);
        } else {
            journal.note(&name, false);
        }
    }
    let names = Query::from("SELECT * FROM c WHERE STARTSWITH(c.id, @ours)")
        .with_parameter("@ours", &ours)?;
    for node in NODES {
        let options = QueryContainersOptions::default().with_operation_options(through(node));
        let listed = database.query_containers(names.clone(), Some(options)).await?;
        let listed: Vec<ContainerProperties> = listed.try_collect().await?;
        let listed = listed.into_iter().map(|container| container.id.into_owned()).collect();
        journal.judge(&listed)?;
        ensure!(deleted.is_disjoint(&listed), "deleted containers are back: {listed:?}");
    }
    Ok(())
}

/// Works with a container, and deletes it.
async fn use_up(container: &ContainerClient) -> Result<(), CosmosError> {
    container.create_item("a", "1", json!({"id": "1", "pk": "a"}), None).await?;
    container.read_item("a", "1", None).await?;
    container.delete(None).await?;
    Ok(())
}

/// A reader of the logical partition's changes.
#[derive(Default)]
struct Feed {
    told: Vec<String>,
    end: Option<ContinuationToken>,
}

impl Feed {
    /// Takes note of a page as a whole, together with where it ends; answers how much it tells.
    async fn read_page(&mut self, worker: &Worker) -> Result<usize, CosmosError> {
        let options = ChangeFeedOptions::default().with_max_item_count(rows_max(50));
        let options = match self.end.clone() {
            Some(end) => options.with_continuation_token(end),
            None => options,
        };
        let scope = FeedScope::partition(worker.key.clone());
        let mut pages: ChangeFeedPageIterator<ChangeFeedItem<Value>> = worker
            .items
            .query_change_feed(scope, ChangeFeedStartFrom::Beginning, Some(options))
            .await?;
        let Some(page) = pages.next().await else { return Ok(0) };
        let page = page?;
        self.end = Some(pages.to_continuation_token()?);
        let current = page.items().iter().filter_map(ChangeFeedItem::current);
        self.told.extend(current.map(|item| text(item, "id").to_owned()));
        Ok(page.items().len())
    }
}
