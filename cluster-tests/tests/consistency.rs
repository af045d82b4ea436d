//! Levels of consistency: who answers, what a session token is worth, what clients may ask for.

use std::time::Duration;

use ephemeris_cluster_tests::client::{Answer, Call, Client, Container};
use ephemeris_cluster_tests::cluster::Cluster;
use ephemeris_cluster_tests::measure::Metrics;
use ephemeris_cluster_tests::wait;
use serde_json::{Value, json};

const LEVEL: &str = "x-ms-consistency-level";
const STRATEGY: &str = "x-ms-cosmos-read-consistency-strategy";
const TOKEN: &str = "x-ms-session-token";
/// Levels of an account, the weakest first.
const LEVELS: [&str; 5] = ["Eventual", "ConsistentPrefix", "Session", "BoundedStaleness", "Strong"];
/// Writes that are read back at once.
const WRITES: u32 = 100;

async fn cluster_at(level: &str) -> (Cluster, Container) {
    let cluster = Cluster::start_at(3, level).await;
    let container = Container::new("shop", "carts");
    cluster.client(1).create_database("shop").await.expect(201);
    cluster.client(1).create_container(&container, json!({ "defaultTtl": -1 })).await.expect(201);
    (cluster, container)
}

fn item(id: &str) -> Value {
    json!({ "id": id, "pk": "k" })
}

fn read(container: &Container, id: &str) -> Call {
    Call::get(container.item(id)).key(&json!("k"))
}

fn token(answer: &Answer) -> String {
    answer.header(TOKEN).expect("items' answers have tokens").to_string()
}

/// Reads a node's replica has answered without leading, and such that it passed on.
async fn follower_reads(client: &Client) -> (u64, u64) {
    let metrics = Metrics::of(client).await;
    let counts = ["follower_reads_total", "follower_reads_passed_on_total"];
    let [answered, passed_on] = counts.map(|name| metrics.count(name));
    (answered, passed_on)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_answers_what_need_not_be_strong_also_while_the_leader_hangs() {
    let (cluster, container) = cluster_at("Session").await;
    let written = cluster.client(1).create_item(&container, &item("a")).await.expect(201);
    let token = token(&written);
    cluster.await_settled().await;
    let leader = cluster.leader(&container).await;
    let follower = cluster.ids().into_iter().find(|node| *node != leader).expect("a follower");
    let client = cluster.client(follower);

    let query = Call::post(container.items(), json!({ "query": "SELECT * FROM c" }).to_string())
        .header("x-ms-documentdb-isquery", "true")
        .header("x-ms-documentdb-query-enablecrosspartition", "true");
    let weak = [
        read(&container, "a").header(TOKEN, &token),
        read(&container, "a"),
        read(&container, "a").header(LEVEL, "ConsistentPrefix"),
        read(&container, "a").header(LEVEL, "Eventual"),
        query.clone().header(TOKEN, &token),
        query.header(LEVEL, "Eventual"),
        Call::get(container.items()).header(LEVEL, "Eventual"),
        Call::get(container.items()).header("a-im", "Incremental Feed").header(LEVEL, "Eventual"),
        read(&container, "a").header(STRATEGY, "Session").header(TOKEN, &token),
        read(&container, "a").header(STRATEGY, "Eventual"),
    ];
    let (before, _) = follower_reads(&client).await;
    for call in &weak {
        client.ask(call.clone()).await.expect(200);
    }
    let (after, _) = follower_reads(&client).await;
    assert_eq!(after, before + weak.len() as u64, "the follower answered all of them");
    let (by_leader, _) = follower_reads(&cluster.client(leader)).await;
    assert_eq!(by_leader, 0, "a leader is no follower");

    cluster.pause(leader);
    for call in &weak {
        client.ask(call.clone()).await.expect(200);
    }
    let (alone, _) = follower_reads(&client).await;
    // The other follower may have been elected meanwhile, and even this one.
    assert!(alone > after, "the follower answered while the leader could not");
    cluster.resume(leader);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strong_account_shows_what_was_acknowledged_at_every_node_and_may_be_weakened() {
    let (cluster, container) = cluster_at("Strong").await;
    let clients = cluster.clients(&[1, 2, 3]);
    let levels = ["", "Strong", "BoundedStaleness", "Eventual"];
    let strong = &levels[..3];
    for n in 0..WRITES {
        let id = format!("i{n}");
        clients[n as usize % 3].create_item(&container, &item(&id)).await.expect(201);
        for client in &clients {
            for level in strong {
                client.ask(read(&container, &id).header(LEVEL, *level)).await.expect(200);
            }
        }
    }
    cluster.await_settled().await;
    let (mut followers, mut answered) = (0, 0);
    for client in &clients {
        client.ask(read(&container, "i0").header(LEVEL, levels[3])).await.expect(200);
        let (here, passed_on) = follower_reads(client).await;
        followers += u64::from(here + passed_on > 0);
        answered += here;
    }
    assert_eq!(followers, 2, "of three replicas, two follow");
    assert!(answered > u64::from(WRITES), "followers answered many of them: {answered}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_reads_its_writes_through_every_node() {
    let (cluster, container) = cluster_at("Session").await;
    let clients = cluster.clients(&[1, 2, 3]);
    for n in 0..WRITES {
        let id = format!("i{n}");
        let writer = &clients[n as usize % 3];
        let written = writer.create_item(&container, &item(&id)).await.expect(201);
        // With its token at any node, without one at the node that it talks to.
        let with_token = read(&container, &id).header(TOKEN, token(&written));
        let next = &clients[(n as usize + 1) % 3];
        let (there, here) = tokio::join!(next.ask(with_token), writer.ask(read(&container, &id)));
        there.expect(200);
        here.expect(200);
    }
    let mut answered = 0;
    for client in &clients {
        answered += follower_reads(client).await.0;
    }
    assert!(answered > 0, "followers answered some of them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_from_the_future_is_answered_by_the_leader() {
    let (cluster, container) = cluster_at("Session").await;
    cluster.client(1).create_item(&container, &item("a")).await.expect(201);
    cluster.await_settled().await;
    for node in cluster.ids() {
        // That of another container, surely.
        let ahead = read(&container, "a").header(TOKEN, "0:-1#999999999");
        cluster.client(node).ask(ahead).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_may_weaken_the_account_s_level_and_not_strengthen_it() {
    let cluster = Cluster::single().await;
    let client = cluster.client(1);
    let container = Container::new("shop", "carts");
    client.create_database("shop").await.expect(201);
    client.create_container(&container, json!({})).await.expect(201);
    client.create_item(&container, &item("a")).await.expect(201);
    let account = client.ask(Call::get("/").header(LEVEL, "Strong")).await.expect(200).json();
    let shown = &account["userConsistencyPolicy"]["defaultConsistencyLevel"];
    assert_eq!(shown, "Session", "the default of defaults");

    for (at, level) in LEVELS.into_iter().enumerate() {
        for call in [read(&container, "a"), Call::get(container.items())] {
            let answer = client.ask(call.header(LEVEL, level)).await;
            let expected = if at <= 2 { 200 } else { 400 };
            assert_eq!(answer.status, expected, "{level}: {}", answer.describe());
            if expected == 400 {
                let text = format!(
                    "ConsistencyLevel {level} specified in the request is invalid when service \
                     is configured with consistency level Session."
                );
                let message = answer.json()["message"].to_string();
                assert!(message.contains(&text), "{message}");
            }
        }
    }
    for unknown in ["Weak", "0", "Strong,Session", "\u{e9}"] {
        let answer = client.ask(read(&container, "a").header(LEVEL, unknown)).await;
        assert_eq!(answer.status, 400, "{unknown}: {}", answer.describe());
    }
    let wrong = cluster.command(&["start-single-node", "--consistency", "Weak"]);
    assert!(!wrong.status.success(), "there is no such level");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_latest_committed_is_read_at_every_node_of_a_weak_account_and_costs_twice() {
    let (cluster, container) = cluster_at("Eventual").await;
    let clients = cluster.clients(&[1, 2, 3]);
    let query =
        Call::post(container.items(), json!({ "query": "SELECT VALUE c.id FROM c" }).to_string())
            .header("x-ms-documentdb-isquery", "true")
            .header("x-ms-max-item-count", "-1")
            .key(&json!("k"));
    let feed = Call::get(container.items()).header("a-im", "Incremental Feed");
    let mut etag = "\"0\"".to_string();
    for n in 0..WRITES {
        let id = format!("i{n}");
        clients[n as usize % 3].create_item(&container, &item(&id)).await.expect(201);
        let latest = |call: &Call| call.clone().header(STRATEGY, "LatestCommitted");
        let next = &clients[(n as usize + 1) % 3];
        next.ask(latest(&read(&container, &id))).await.expect(200);
        let found = next.ask(latest(&query)).await.expect(200).json();
        assert_eq!(found["_count"], n + 1, "the query shows all of them");
        let news = next.ask(latest(&feed).header("if-none-match", &etag)).await.expect(200);
        assert_eq!(news.json()["Documents"][0]["id"], id.as_str(), "and so does the feed");
        etag = news.header("etag").expect("pages have etags").to_string();
    }
    cluster.await_settled().await;
    let charge = async |call: Call| {
        let answer = clients[0].ask(call).await.expect(200);
        let charge = answer.header("x-ms-request-charge").expect("every answer has a charge");
        charge.parse::<f64>().expect("a charge is a number")
    };
    for call in [read(&container, "i0"), query, feed] {
        let once = charge(call.clone().header(STRATEGY, "Eventual")).await;
        let twice = charge(call.header(STRATEGY, "LatestCommitted")).await;
        // Each of them is rounded up.
        assert!((twice - 2.0 * once).abs() < 0.025, "{once} and {twice}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strategy_is_one_of_four_and_takes_the_place_of_a_level() {
    for (account, global) in [("Session", 400), ("Strong", 200)] {
        let (cluster, container) = cluster_at(account).await;
        let client = cluster.client(1);
        client.create_item(&container, &item("a")).await.expect(201);
        cluster.await_settled().await;
        let status = async |strategy: &str| {
            client.ask(read(&container, "a").header(STRATEGY, strategy)).await.status
        };
        for known in ["Eventual", "Session", "LatestCommitted", ""] {
            assert_eq!(status(known).await, 200, "{known} at {account}");
        }
        assert_eq!(status("GlobalStrong").await, global, "at {account}");
        for unknown in ["Strong", "BoundedStaleness", "Latest", "\u{e9}"] {
            assert_eq!(status(unknown).await, 400, "{unknown} at {account}");
        }
        let both = read(&container, "a").header(STRATEGY, "Eventual").header(LEVEL, "Eventual");
        client.ask(both).await.expect(400);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_feed_goes_on_where_it_was_whoever_answers() {
    let (cluster, container) = cluster_at("Eventual").await;
    let clients = cluster.clients(&[1, 2, 3]);
    let feed = || Call::get(container.items()).header("a-im", "Incremental Feed");
    let (mut seen, mut etag) = (Vec::new(), None::<String>);
    for n in 0..WRITES {
        clients[0].create_item(&container, &item(&format!("i{n}"))).await.expect(201);
        let call = match &etag {
            Some(etag) => feed().header("if-none-match", etag),
            None => feed(),
        };
        let page = clients[n as usize % 3].ask(call).await;
        take(&page, &mut seen);
        etag = page.header("etag").map(str::to_string);
    }
    wait::until("the rest of the feed", Duration::from_secs(10), async || {
        let call = feed().header("if-none-match", etag.clone().expect("pages have etags"));
        let page = clients[0].ask(call).await;
        take(&page, &mut seen);
        etag = page.header("etag").map(str::to_string);
        (seen.len() >= WRITES as usize).then_some(())
    })
    .await;
    let expected: Vec<String> = (0..WRITES).map(|n| format!("i{n}")).collect();
    assert_eq!(seen, expected, "every change once, in order");
}

fn take(page: &Answer, seen: &mut Vec<String>) {
    if page.status == 200 {
        let body = page.json();
        let rows = body["Documents"].as_array().expect("a page has Documents");
        seen.extend(rows.iter().map(|row| row["id"].as_str().expect("an id").to_string()));
    } else {
        assert_eq!(page.status, 304, "{}", page.describe());
    }
}
