//! Time to live, as clients see it: exact to the second through every node, at every level of
//! consistency, and for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ephemeris_cluster_tests::client::{Call, Client, Container};
use ephemeris_cluster_tests::cluster::Cluster;
use ephemeris_cluster_tests::measure::Metrics;
use ephemeris_cluster_tests::{clock, wait};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const MS_PER_SECOND: u64 = 1000;
/// How long items are watched after they have expired, and at most until each level has shown that.
const WATCHED_AFTER_MS: u64 = 500;
const WATCHED_AFTER_MAX_MS: u64 = 10_000;
/// The accounts of these tests are strong; clients may ask for less.
const LEVELS: [&str; 3] = ["Strong", "Session", "Eventual"];
const SWEEP_DEADLINE: Duration = Duration::from_secs(40);

/// One read of an item, and when it was under way.
#[derive(Debug)]
struct Sight {
    level: &'static str,
    called_ms: u64,
    returned_ms: u64,
    status: u16,
}

async fn cluster_with(container: &Container, extra: Value) -> Cluster {
    let cluster = Cluster::start(3).await;
    cluster.client(1).create_database(container.database()).await.expect(201);
    cluster.client(1).create_container(container, extra).await.expect(201);
    cluster
}

fn item(id: &str, ttl: Option<i64>) -> Value {
    let mut item = json!({ "id": id, "pk": "k" });
    if let Some(ttl) = ttl {
        item["ttl"] = json!(ttl);
    }
    item
}

async fn create(client: &Client, container: &Container, id: &str, ttl: Option<i64>) -> u64 {
    client.create_item(container, &item(id, ttl)).await.expect(201).ts()
}

async fn status(client: &Client, container: &Container, id: &str) -> u16 {
    client.read_item(container, &json!("k"), id).await.status
}

/// The same at every level, without a token: they must agree.
async fn status_at_every_level(client: &Client, container: &Container, id: &str) -> u16 {
    let mut statuses = Vec::new();
    for level in LEVELS {
        let call = Call::get(container.item(id)).key(&json!("k"));
        statuses.push(client.ask(call.header("x-ms-consistency-level", level)).await.status);
    }
    assert!(statuses.iter().all(|status| *status == statuses[0]), "{id}: {statuses:?}");
    statuses[0]
}

/// What all watchers of an item have in common.
struct Watched {
    container: Container,
    id: String,
    /// The entry that wrote it.
    born: u64,
    /// How far the session has come that they share.
    session: AtomicU64,
    until_ms: u64,
}

/// Reads an item through one node, again and again, at all levels in turn.
async fn watch(client: Client, watched: Arc<Watched>) -> Vec<Sight> {
    let mut sights = Vec::new();
    for level in LEVELS.into_iter().cycle() {
        let called_ms = clock::wall_ms();
        let is_gone = |level: &&str| {
            sights.iter().any(|one: &Sight| one.level == *level && one.status == 404)
        };
        let all_seen = called_ms >= watched.until_ms && LEVELS.iter().all(is_gone);
        if all_seen || called_ms >= watched.until_ms + WATCHED_AFTER_MAX_MS {
            break;
        }
        let call = Call::get(watched.container.item(&watched.id)).key(&json!("k"));
        let call = call.header("x-ms-consistency-level", level);
        let call = match level {
            "Session" => {
                let seen = watched.session.load(Ordering::SeqCst);
                call.header("x-ms-session-token", format!("0:-1#{seen}"))
            }
            _ => call,
        };
        let answer = client.ask(call).await;
        let returned_ms = clock::wall_ms();
        let lsn: u64 = answer.header("lsn").and_then(|lsn| lsn.parse().ok()).expect("a position");
        // A replica that has not heard of the item does not say that it has expired.
        if lsn < watched.born {
            assert_eq!((level, answer.status), ("Eventual", 404), "{}", answer.describe());
            continue;
        }
        if level == "Session" {
            watched.session.fetch_max(lsn, Ordering::SeqCst);
        }
        sights.push(Sight { level, called_ms, returned_ms, status: answer.status });
    }
    sights
}

/// Panics unless all of what was seen is what an expiry at `expiry_ms` allows.
fn check(id: &str, sights: &[Sight], expiry_ms: u64) {
    let gone = sights.iter().filter(|sight| sight.status == 404);
    let gone_for_good = gone.map(|sight| sight.returned_ms).min();
    let gone_for_good = gone_for_good.unwrap_or_else(|| panic!("{id} never expired"));
    for sight in sights {
        match sight.status {
            200 => {
                assert!(sight.called_ms < expiry_ms, "{id}: late: {sight:?}, due {expiry_ms}");
                assert!(sight.called_ms <= gone_for_good, "{id} came back: {sight:?}");
            }
            404 => assert!(sight.returned_ms >= expiry_ms, "{id}: early: {sight:?}, {expiry_ms}"),
            other => panic!("{id}: a read answered {other}"),
        }
    }
    for (level, status) in LEVELS.into_iter().flat_map(|level| [(level, 200), (level, 404)]) {
        let seen = sights.iter().any(|sight| (sight.level, sight.status) == (level, status));
        assert!(seen, "{id}: {level} reads never answered {status}");
    }
}

/// Watches an item through every node until after its expiry, and checks what was seen.
async fn check_expiry(cluster: &Cluster, container: &Container, id: &str, expiry: u64) {
    let expiry_ms = expiry * MS_PER_SECOND;
    let read = cluster.client(1).read_item(container, &json!("k"), id).await.expect(200);
    let born = read.header("x-ms-item-lsn").and_then(|lsn| lsn.parse().ok());
    let born = born.expect("items say which entry wrote them");
    let watched = Arc::new(Watched {
        container: container.clone(),
        id: id.to_string(),
        born,
        session: AtomicU64::new(born),
        until_ms: expiry_ms + WATCHED_AFTER_MS,
    });
    let mut watchers = JoinSet::new();
    for node in cluster.running() {
        watchers.spawn(watch(cluster.client(node), watched.clone()));
    }
    let sights: Vec<Sight> = watchers.join_all().await.into_iter().flatten().collect();
    check(id, &sights, expiry_ms);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_item_is_gone_at_its_exact_second_through_every_node() {
    let container = Container::new("shop", "carts");
    let cluster = cluster_with(&container, json!({ "defaultTtl": 3 })).await;
    let client = cluster.client(2);
    create(&client, &container, "forever", Some(-1)).await;
    create(&client, &container, "longer", Some(3600)).await;
    let own = create(&client, &container, "own", Some(2)).await + 2;
    let inherits = create(&client, &container, "inherits", None).await + 3;

    tokio::join!(
        check_expiry(&cluster, &container, "own", own),
        check_expiry(&cluster, &container, "inherits", inherits),
    );

    for node in cluster.running() {
        let client = cluster.client(node);
        let rows = client.query(&container, "SELECT * FROM c", json!([])).await;
        let mut ids: Vec<&str> = rows.iter().filter_map(|row| row["id"].as_str()).collect();
        ids.sort_unstable();
        assert_eq!(ids, ["forever", "longer"], "node {node}");
        let count = client.query(&container, "SELECT VALUE COUNT(1) FROM c", json!([])).await;
        assert_eq!(count, [json!(2)], "node {node}");
    }
    // What has expired equals what never was.
    let key = json!("k");
    client.replace_item(&container, &item("own", None)).await.expect(404);
    client.delete_item(&container, &key, "own").await.expect(404);
    create(&cluster.client(3), &container, "own", Some(-1)).await;
    assert_eq!(status(&cluster.client(1), &container, "own").await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_default_counts_at_once_and_the_dead_stay_dead() {
    let container = Container::new("shop", "carts");
    let cluster = cluster_with(&container, json!({ "defaultTtl": 1000 })).await;
    let client = cluster.client(1);
    let born = create(&client, &container, "old", None).await;
    create(&client, &container, "own", Some(1000)).await;
    wait::until("the item to be two seconds old", Duration::from_secs(10), async || {
        (clock::wall_ms() >= (born + 2) * MS_PER_SECOND).then_some(())
    })
    .await;
    assert_eq!(status(&client, &container, "old").await, 200);

    client.replace_container(&container, json!({ "defaultTtl": 2 })).await.expect(200);
    for node in cluster.running() {
        let client = cluster.client(node);
        let old = status_at_every_level(&client, &container, "old").await;
        assert_eq!(old, 404, "the lower default counts");
        let own = status_at_every_level(&client, &container, "own").await;
        assert_eq!(own, 200, "its own ttl counts");
    }
    let young = create(&client, &container, "young", None).await + 2;
    check_expiry(&cluster, &container, "young", young).await;

    // Neither a higher default nor none at all brings anything back.
    for extra in [json!({ "defaultTtl": 5000 }), json!({ "defaultTtl": -1 }), json!({})] {
        client.replace_container(&container, extra.clone()).await.expect(200);
        for node in cluster.running() {
            let client = cluster.client(node);
            for dead in ["old", "young"] {
                let found = status_at_every_level(&client, &container, dead).await;
                assert_eq!(found, 404, "{dead}, {extra}");
            }
            assert_eq!(status_at_every_level(&client, &container, "own").await, 200, "{extra}");
        }
    }
    let items = client.read_feed(&container).await;
    assert_eq!(items.len(), 1, "{items:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sweeper_empties_storage_on_every_replica_without_a_read() {
    let container = Container::new("shop", "carts");
    let cluster = cluster_with(&container, json!({ "defaultTtl": 4 })).await;
    let mut writers = JoinSet::new();
    for node in cluster.running() {
        let (client, container) = (cluster.client(node), container.clone());
        writers.spawn(async move {
            for n in 0..400 {
                let ttl = (n % 2 == 0).then_some(3);
                create(&client, &container, &format!("{node}-{n}"), ttl).await;
            }
        });
    }
    writers.join_all().await;
    create(&cluster.client(1), &container, "kept", Some(-1)).await;

    wait::until_seen("storage to hold the one item that stays", SWEEP_DEADLINE, async || {
        let status = cluster.status().await;
        let partitions = status.partitions(&container);
        let replicas = partitions.iter().flat_map(|group| &group.replicas);
        let items: Vec<_> = replicas.map(|replica| replica.items).collect();
        if items == [Some(1); 3] { Ok(()) } else { Err(format!("{items:?}")) }
    })
    .await;
    for node in cluster.running() {
        let metrics = Metrics::of(&cluster.client(node)).await;
        assert_eq!(metrics.count("items_stored"), 1, "node {node}");
    }
    assert_eq!(swept(&cluster).await, 1200, "every item was swept once, by whoever led");
    assert_eq!(status(&cluster.client(3), &container, "kept").await, 200);
}

/// Items that all nodes together have swept since they started.
async fn swept(cluster: &Cluster) -> u64 {
    let mut swept = 0;
    for node in cluster.running() {
        swept += Metrics::of(&cluster.client(node)).await.count("ttl_swept_items_total");
    }
    swept
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t50_while_sweeping_is_paused_the_dead_stay_on_disk_and_invisible() {
    let container = Container::new("shop", "carts");
    let cluster = cluster_with(&container, json!({ "defaultTtl": -1 })).await;
    let client = cluster.client(1);
    let switch = async |to: &str| {
        let call = Call::post("/admin/ttl", json!({ "sweeping": to }).to_string());
        client.send(&call).await.expect("an answer").expect(200);
    };
    switch("paused").await;
    let gone = create(&client, &container, "paused", Some(1)).await + 1;
    check_expiry(&cluster, &container, "paused", gone).await;
    let ttl_status = async || {
        let answer = client.send(&Call::get("/admin/ttl")).await.expect("an answer");
        answer.expect(200).json()
    };
    let kept = wait::until("the item to wait for the sweeper", SWEEP_DEADLINE, async || {
        let status = ttl_status().await;
        assert_eq!(status["sweeping"], "paused");
        let partition = &status["partitions"][0];
        (partition["backlog"] == 1).then(|| partition.clone())
    })
    .await;
    assert_eq!(kept["sweptPerSecond"], 0.0, "{kept}");
    assert!(kept["clockWidthMs"].as_u64().is_some_and(|width| width > 0), "{kept}");
    switch("running").await;
    wait::until("storage to be empty", SWEEP_DEADLINE, async || {
        let status = cluster.status().await;
        let partitions = status.partitions(&container);
        let replicas: Vec<_> = partitions.iter().flat_map(|group| &group.replicas).collect();
        replicas.iter().all(|replica| replica.items == Some(0)).then_some(())
    })
    .await;
    // Not per second: that tells of the last ten only.
    wait::until_seen("one sweep of one item", SWEEP_DEADLINE, async || {
        let swept = swept(&cluster).await;
        if swept == 1 { Ok(()) } else { Err(swept.to_string()) }
    })
    .await;
}

/// What is not swept yet counts for a batch that replaces it; it only has to wait.
#[tokio::test]
async fn a_batch_over_much_that_has_expired_waits_for_the_sweeper() {
    let (cluster, container) = (Cluster::single().await, Container::new("shop", "carts"));
    let client = cluster.client(1);
    client.create_database("shop").await.expect(201);
    client.create_container(&container, json!({ "defaultTtl": -1 })).await.expect(201);
    let switch = async |to: &str| {
        client
            .ask(Call::post("/admin/ttl", json!({ "sweeping": to }).to_string()))
            .await
            .expect(200);
    };
    switch("paused").await;
    let ids: Vec<String> = (0..9).map(|number| format!("large{number}")).collect();
    for id in &ids {
        let mut large = item(id, Some(1));
        large["text"] = "x".repeat(2_000_000).into();
        client.create_item(&container, &large).await.expect(201);
    }
    for id in &ids {
        wait::until("it to expire", SWEEP_DEADLINE, async || {
            (status(&client, &container, id).await == 404).then_some(())
        })
        .await;
    }
    let upsert = |id| json!({ "operationType": "Upsert", "resourceBody": item(id, None) });
    let batch = ids.iter().map(|id| upsert(id)).collect::<Value>().to_string();
    let batch = Call::post(container.items(), batch).key(&json!("k"));
    let batch = batch.header("x-ms-cosmos-is-batch-request", "True");
    let batch = batch.header("x-ms-cosmos-batch-atomic", "True");
    let refused = client.send(&batch).await.expect("an answer").expect(429);
    assert_eq!(refused.header("x-ms-retry-after-ms"), Some("200"));
    assert_eq!(refused.header("x-ms-request-charge"), Some("0"));
    assert_eq!(status(&client, &container, &ids[0]).await, 404, "nothing of it happened");
    switch("running").await;
    wait::until("the batch to be carried out", SWEEP_DEADLINE, async || {
        let answer = client.send(&batch).await.expect("an answer");
        (answer.status != 429).then(|| answer.expect(200))
    })
    .await;
    assert_eq!(status(&client, &container, &ids[8]).await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_expired_stays_gone_over_a_leader_kill_and_a_full_restart() {
    let container = Container::new("shop", "carts");
    let mut cluster = cluster_with(&container, json!({ "defaultTtl": -1 })).await;
    let client = cluster.client(1);
    create(&client, &container, "live", Some(3600)).await;
    let seen = create(&client, &container, "seen", Some(2)).await + 2;
    let unseen = create(&client, &container, "unseen", Some(3)).await + 3;
    check_expiry(&cluster, &container, "seen", seen).await;

    let leader = cluster.leader(&container).await;
    cluster.kill(leader);
    for node in cluster.running() {
        let client = cluster.client(node);
        await_answer(&client, &container, "live", 200).await;
        assert_eq!(status(&client, &container, "seen").await, 404);
    }
    check_dead_by(&cluster, &container, "unseen", unseen).await;
    cluster.restart(leader).await;

    for node in cluster.ids() {
        cluster.kill(node);
    }
    cluster.start_all().await;
    for node in cluster.running() {
        let client = cluster.client(node);
        await_answer(&client, &container, "live", 200).await;
        for dead in ["seen", "unseen"] {
            assert_eq!(status(&client, &container, dead).await, 404, "{dead}");
        }
    }
    cluster.client(2).replace_container(&container, json!({})).await.expect(200);
    for node in cluster.running() {
        assert_eq!(status(&cluster.client(node), &container, "seen").await, 404);
        assert_eq!(status(&cluster.client(node), &container, "unseen").await, 404);
        assert_eq!(status(&cluster.client(node), &container, "live").await, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_died_by_a_default_that_a_node_missed_stays_dead_when_it_comes_back() {
    let container = Container::new("shop", "carts");
    let mut cluster = cluster_with(&container, json!({ "defaultTtl": 1000 })).await;
    let (client, back) = (cluster.client(1), cluster.client(3));
    create(&client, &container, "old", None).await;
    cluster.await_settled().await;
    // What is flushed is there at once when it comes back; the rest, when it hears what is committed.
    back.ask(Call::post("/admin/flush", "")).await.expect(200);
    cluster.kill(3);
    await_answer(&client, &container, "old", 200).await;
    client.replace_container(&container, json!({ "defaultTtl": 1 })).await.expect(200);
    wait::until("the item to expire", Duration::from_secs(10), async || {
        (status(&client, &container, "old").await == 404).then_some(())
    })
    .await;
    // The clocks of two nodes are a majority, while nobody leads yet who knows of the new default.
    cluster.kill(1);
    cluster.spawn(3);
    let read = Call::get(container.item("old")).key(&json!("k"));
    let read = read.header("x-ms-consistency-level", "Eventual");
    let found = wait::until("the node that was away to answer", SWEEP_DEADLINE, async || {
        let answer = back.send(&read).await.ok()?;
        (!matches!(answer.status, 429 | 503)).then_some(answer.status)
    });
    assert_eq!(found.await, 404);
}

/// Waits for an answer other than a plea to come again, which must be `expected`.
async fn await_answer(client: &Client, container: &Container, id: &str, expected: u16) {
    let read = Call::get(container.item(id)).key(&json!("k"));
    let found = wait::until("a leader that answers", Duration::from_secs(30), async || {
        let answer = client.send(&read).await.ok()?;
        (!matches!(answer.status, 429 | 503)).then_some(answer.status)
    });
    assert_eq!(found.await, expected, "{id} at {}", client.base());
}

/// Waits for an item's expiry, and panics if any running node still shows it then.
async fn check_dead_by(cluster: &Cluster, container: &Container, id: &str, expiry: u64) {
    wait::until("the item to expire", Duration::from_secs(10), async || {
        (clock::wall_ms() >= expiry * MS_PER_SECOND).then_some(())
    })
    .await;
    for node in cluster.running() {
        assert_eq!(status(&cluster.client(node), container, id).await, 404, "{id}, node {node}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_to_live_that_is_none_is_counted_if_it_is_stored_while_nothing_expires() {
    let cluster = Cluster::start(1).await;
    let (client, container) = (cluster.client(1), Container::new("shop", "carts"));
    client.create_database("shop").await.expect(201);
    client.create_container(&container, json!({})).await.expect(201);
    for (number, ttl) in [json!("soon"), json!(0), json!(7), json!(-1)].into_iter().enumerate() {
        let item = json!({ "id": format!("i{number}"), "pk": "k", "ttl": ttl });
        client.create_item(&container, &item).await.expect(201);
    }
    assert_eq!(Metrics::of(&client).await.count("ttl_invalid_stored_total"), 2, "\"soon\" and 0");
}
