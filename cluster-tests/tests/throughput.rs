//! Throughput, as clients see it: a container is served its rate, and told honestly when to come again.

use std::time::Duration;

use ephemeris_cluster_tests::client::{Answer, Call, Client, Container};
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::cluster::Cluster;
use ephemeris_cluster_tests::measure::Metrics;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// The least a container can be given, in request units a second.
const RATE: f64 = 400.0;
/// Who sends at the same time.
const CLIENTS: u32 = 4;
const LOAD: Duration = Duration::from_secs(6);

/// An item of so many bytes, and a little more.
fn item(id: &str, bytes: usize) -> Value {
    json!({ "id": id, "pk": "k", "text": "x".repeat(bytes) })
}

fn charge(answer: &Answer) -> f64 {
    let charge = answer.header("x-ms-request-charge").expect("every answer has a charge");
    charge.parse().expect("a charge is a number")
}

/// How long a refused request was told to wait.
fn retry_after(answer: &Answer) -> Duration {
    assert_eq!((answer.status, answer.substatus()), (429, 3200), "{}", answer.describe());
    assert_eq!(answer.header("x-ms-request-charge"), Some("0"));
    let millis = answer.header("x-ms-retry-after-ms").expect("it says until when");
    let millis: u64 = millis.parse().expect("a pause is a whole number");
    assert!(millis > 0, "a pause");
    Duration::from_millis(millis)
}

async fn create_container(client: &Client, container: &Container, throughput: Option<&str>) {
    let key = json!({ "paths": ["/pk"], "kind": "Hash", "version": 2 });
    let body = json!({ "id": container.name(), "partitionKey": key });
    let call = Call::post(format!("/dbs/{}/colls", container.database()), body.to_string());
    let call = match throughput {
        Some(rate) => call.header("x-ms-offer-throughput", rate),
        None => call,
    };
    client.ask(call).await.expect(201);
}

/// What was granted, and how many requests were refused.
#[derive(Debug, Default)]
struct Served {
    charge: f64,
    refused: u32,
}

/// Stores items as fast as it goes, without waiting as told.
async fn hurry(client: Client, container: Container, number: u32) -> Served {
    let (started, mut served) = (clock::monotonic(), Served::default());
    for serial in 0.. {
        if started.elapsed() >= LOAD {
            break;
        }
        let item = item(&format!("{number}-{serial}"), 20 << 10);
        let answer = client.create_item(&container, &item).await;
        if answer.status == 429 {
            retry_after(&answer);
            served.refused += 1;
        } else {
            served.charge += charge(&answer.expect(201));
        }
    }
    served
}

/// Sends a request until it is served, waiting each time as told.
async fn patiently(mut send: impl AsyncFnMut() -> Answer) -> Answer {
    let started = clock::monotonic();
    loop {
        let answer = send().await;
        if answer.status != 429 {
            return answer;
        }
        assert!(started.elapsed() < LOAD, "refused for ever");
        tokio::time::sleep(retry_after(&answer)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_is_served_its_rate_and_told_when_to_come_again() {
    let cluster = Cluster::single().await;
    let (client, container) = (cluster.client(1), Container::new("shop", "slow"));
    client.create_database("shop").await.expect(201);
    let created = clock::monotonic();
    create_container(&client, &container, Some("400")).await;

    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(hurry(client.clone(), container.clone(), number));
    }
    let served = clients.join_all().await;
    let existed = created.elapsed().as_secs_f64();
    let charge: f64 = served.iter().map(|one| one.charge).sum();
    let refused: u32 = served.iter().map(|one| one.refused).sum();
    assert!(refused > 0, "more was asked for than there is: {served:?}");
    // A second's worth at the start, what came in since, and what each client was let run up.
    let most = RATE * (existed + 1.0) + f64::from(CLIENTS) * 20.0;
    let least = 0.9 * RATE * LOAD.as_secs_f64();
    assert!((least..=most).contains(&charge), "{charge} RU in {existed} s, {refused} refused");
    let counted = Metrics::of(&client).await.count("ru_charged_total");
    let counted = f64::from(u32::try_from(counted).unwrap());
    assert!((counted - charge).abs() < 10.0, "{counted} RU counted, {charge} RU charged");

    // Everything is spent. A mebibyte more leaves a debt of over a second.
    let big = item("big", 1 << 20);
    patiently(async || client.create_item(&container, &big).await).await.expect(201);
    let refused = client.read_item(&container, &json!("k"), "big").await;
    let pause = retry_after(&refused);
    assert!(pause > Duration::from_millis(300), "{pause:?}");
    tokio::time::sleep(pause).await;
    client.read_item(&container, &json!("k"), "big").await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_without_an_offer_has_no_limit() {
    let cluster = Cluster::single().await;
    let (client, container) = (cluster.client(1), Container::new("shop", "fast"));
    client.create_database("shop").await.expect(201);
    create_container(&client, &container, None).await;
    let (started, mut charged) = (clock::monotonic(), 0.0);
    // At the least rate there is these would take half a minute.
    for serial in 0..30 {
        let item = item(&serial.to_string(), 1 << 20);
        charged += charge(&client.create_item(&container, &item).await.expect(201));
    }
    let took = started.elapsed().as_secs_f64();
    assert!(charged > RATE * 30.0, "{charged} RU in {took} s");
}

#[tokio::test]
async fn an_offer_is_replaced_only_as_its_client_knows_it() {
    let cluster = Cluster::single().await;
    let (client, container) = (cluster.client(1), Container::new("shop", "carts"));
    client.create_database("shop").await.expect(201);
    create_container(&client, &container, Some("400")).await;
    let offers = client.ask(Call::get("/offers")).await.expect(200).json();
    let path = format!("/{}", offers["Offers"][0]["_self"].as_str().expect("a link"));
    let known = client.ask(Call::get(&path)).await.expect(200);
    let known = known.header("etag").expect("offers have etags");
    let replace = |rate: u32, etag: &str| {
        let body = json!({ "content": { "offerThroughput": rate } });
        client.ask(Call::put(&path, body.to_string()).header("if-match", etag))
    };
    let replaced = replace(500, known).await.expect(200);
    replace(600, known).await.expect(412);
    replace(700, "\"other\"").await.expect(412);
    let read = client.ask(Call::get(&path)).await.expect(200);
    assert_eq!(read.json()["content"]["offerThroughput"], 500);
    replace(600, replaced.header("etag").expect("offers have etags")).await.expect(200);
    replace(700, "*").await.expect(200);
}
