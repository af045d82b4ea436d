//! Bad input of every kind gets the status the protocol gives it, and never harms the node.

use ephemeris_cluster_tests::client::{AccountKey, Answer, Call, Client, Container, http_date};
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::cluster::Cluster;
use ephemeris_cluster_tests::load::{Connection, Request, Signed};
use reqwest::Method;
use serde_json::{Value, json};

const OTHER_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// Largest body, and largest item.
const BODY_BYTES_MAX: usize = 2 << 20;

/// A node with a database, a container with TTL on and an item `a` with key `k` in it.
struct World {
    cluster: Cluster,
    client: Client,
    carts: Container,
}

impl World {
    async fn new() -> Self {
        let cluster = Cluster::single().await;
        let client = cluster.client(1);
        let carts = Container::new("shop", "carts");
        client.create_database("shop").await.expect(201);
        client.create_container(&carts, json!({ "defaultTtl": -1 })).await.expect(201);
        client.create_item(&carts, &json!({ "id": "a", "pk": "k" })).await.expect(201);
        Self { cluster, client, carts }
    }

    /// Sends a call, and checks status, sub-status and what every error answer carries.
    async fn refused(&self, what: &str, call: Call, status: u16, substatus: u32) -> Answer {
        let answer = self.client.ask(call).await;
        check_refusal(what, &answer, status, substatus);
        answer
    }

    async fn check_health(&self) {
        let read = self.client.read_item(&self.carts, &json!("k"), "a").await.expect(200);
        assert_eq!(read.json()["id"], "a");
        let log = self.cluster.log(1);
        assert!(!log.contains("panic"), "the node has panicked:\n{log}");
    }
}

fn check_refusal(what: &str, answer: &Answer, status: u16, substatus: u32) {
    let found = (answer.status, answer.substatus());
    assert_eq!(found, (status, substatus), "{what}: {}", answer.describe());
    let body = answer.json();
    assert!(body["code"].is_string() && body["message"].is_string(), "{what}: {body}");
    for header in ["x-ms-activity-id", "x-ms-request-charge", "x-ms-version"] {
        assert!(answer.header(header).is_some(), "{what}: no {header}");
    }
    assert_eq!(answer.header("content-type"), Some("application/json"), "{what}");
}

#[tokio::test]
async fn bad_databases_and_containers_are_refused() {
    let world = World::new().await;
    let long = json!({ "id": "x".repeat(256) }).to_string();
    for body in [
        "",
        "{",
        "[]",
        "5",
        "null",
        "\"shop2\"",
        "{}",
        "{\"id\":5}",
        "{\"id\":null}",
        "{\"id\":\"\"}",
        "{\"id\":\"a/b\"}",
        "{\"id\":\"a\\\\b\"}",
        "{\"id\":\"a?b\"}",
        "{\"id\":\"a#b\"}",
        "{\"id\":\"a\\tb\"}",
        "{\"id\":\"a \"}",
        "{\"id\":\"a\"} x",
        &long,
    ] {
        world.refused(body, Call::post("/dbs", body), 400, 0).await;
    }
    world.refused("a name twice", Call::post("/dbs", r#"{"id":"shop"}"#), 409, 0).await;
    world.refused("no such database", Call::get("/dbs/none"), 404, 0).await;
    world.refused("no such database", Call::delete("/dbs/none"), 404, 0).await;
    world.refused("PUT", Call::put("/dbs/shop", "{}"), 405, 0).await;

    let key = json!({ "paths": ["/pk"], "kind": "Hash", "version": 2 });
    let unique = |paths: Value| json!({ "uniqueKeys": [{ "paths": paths }] });
    for definition in [
        json!({ "id": "c" }),
        json!({ "partitionKey": key }),
        json!({ "id": "c", "partitionKey": { "paths": "/pk", "kind": "Hash" } }),
        json!({ "id": "c", "partitionKey": { "paths": [], "kind": "Hash" } }),
        json!({ "id": "c", "partitionKey": { "paths": ["pk"], "kind": "Hash" } }),
        json!({ "id": "c", "partitionKey": { "paths": ["/pk"], "kind": "Range" } }),
        json!({ "id": "c", "partitionKey": { "paths": ["/pk"], "kind": "Hash", "version": 3 } }),
        json!({ "id": "c", "partitionKey": key, "defaultTtl": 0 }),
        json!({ "id": "c", "partitionKey": key, "defaultTtl": -10 }),
        json!({ "id": "c", "partitionKey": key, "defaultTtl": 1.5 }),
        json!({ "id": "c", "partitionKey": key, "defaultTtl": "10" }),
        json!({ "id": "c", "partitionKey": key, "defaultTtl": true }),
        json!({ "id": "c", "partitionKey": key, "defaultTtl": 2_147_483_648_u32 }),
        json!({ "id": "c", "partitionKey": key, "defaultTtl": 5,
            "indexingPolicy": { "indexingMode": "none", "automatic": false } }),
        json!({ "id": "c", "partitionKey": key, "indexingPolicy": "all" }),
        json!({ "id": "c", "partitionKey": key,
            "indexingPolicy": { "vectorIndexes": [{ "path": "/v", "type": "flat" }] } }),
        json!({ "id": "c", "partitionKey": key,
            "fullTextPolicy": { "fullTextPaths": [{ "path": "/t" }] } }),
        json!({ "id": "c", "partitionKey": key, "uniqueKeyPolicy": [] }),
        json!({ "id": "c", "partitionKey": key, "uniqueKeyPolicy": unique(json!(["/a/*"])) }),
        json!({ "id": "c", "partitionKey": key, "uniqueKeyPolicy": unique(json!(["/_ts"])) }),
        json!({ "id": "c", "partitionKey": key, "uniqueKeyPolicy": unique(json!([])) }),
    ] {
        let what = definition.to_string();
        world.refused(&what, Call::post("/dbs/shop/colls", what.clone()), 400, 0).await;
    }
    let good = json!({ "id": "carts", "partitionKey": key }).to_string();
    let create = |path: &str| Call::post(path, good.clone());
    world.refused("a name twice", create("/dbs/shop/colls"), 409, 0).await;
    world.refused("no such database", create("/dbs/none/colls"), 404, 1003).await;
    for throughput in ["x", "-1", "0", "399", "1e99", "99999999999999999999"] {
        let call = create("/dbs/shop/colls").header("x-ms-offer-throughput", throughput);
        world.refused(throughput, call, 400, 0).await;
    }
    for (path, substatus) in [("/dbs/shop/colls/none", 0), ("/dbs/none/colls/carts", 1003)] {
        world.refused(path, Call::get(path), 404, substatus).await;
        world.refused(path, Call::put(path, good.clone()), 404, substatus).await;
        world.refused(path, Call::delete(path), 404, substatus).await;
    }
    let other_key = json!({ "id": "carts", "partitionKey": { "paths": ["/x"], "kind": "Hash" } });
    for changed in [other_key, json!({ "id": "other", "partitionKey": key }), json!({})] {
        let what = changed.to_string();
        world.refused(&what, Call::put(world.carts.path(), what.clone()), 400, 0).await;
    }
    let policy = unique(json!(["/a"]));
    let changed = json!({ "id": "carts", "partitionKey": key, "uniqueKeyPolicy": policy });
    let call = Call::put(world.carts.path(), changed.to_string());
    world.refused("a unique key of a container that has none", call, 403, 0).await;
    world.check_health().await;
}

#[tokio::test]
async fn bad_items_are_refused() {
    let world = World::new().await;
    let post = |body: Vec<u8>| Call::post(world.carts.items(), body);
    let large_id = json!({ "id": "x".repeat(1024), "pk": "k" }).to_string();
    let no_items: [&[u8]; 16] = [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b"{\"id\":\"x\"",
        b"{}",
        b"{\"pk\":\"k\"}",
        b"{\"id\":5,\"pk\":\"k\"}",
        b"{\"id\":\"\",\"pk\":\"k\"}",
        b"{\"id\":\"a/b\",\"pk\":\"k\"}",
        b"{\"id\":\"x\",\"pk\":\"\xFF\"}",
        b"{\"id\":\"x\",\"n\":NaN}",
        b"{'id':'x'}",
        b"\x80\xEF\x01",
        large_id.as_bytes(),
    ];
    for body in no_items {
        let what = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        world.refused(&what, post(body.to_vec()), 400, 0).await;
    }
    for ttl in ["0", "null", "-10", "-2", "1.5", "\"10\"", "true", "[]", "{}", "2147483648"] {
        let body = format!(r#"{{"id":"x","pk":"k","ttl":{ttl}}}"#);
        world.refused(&body, post(body.clone().into_bytes()), 400, 0).await;
    }
    let item = json!({ "id": "a", "pk": "k" });
    let body = item.to_string();
    let key = json!("k");
    world.refused("twice", post(body.clone().into_bytes()).key(&key), 409, 0).await;
    let elsewhere = post(body.clone().into_bytes()).key(&json!("other"));
    world.refused("another key", elsewhere, 400, 1001).await;
    let put = |id: &str| Call::put(world.carts.item(id), body.clone()).key(&key);
    world.refused("another id of nothing", put("b"), 404, 0).await;
    world.refused("if-match", put("a").header("if-match", "\"other\""), 412, 0).await;
    let missing = Call::put(world.carts.item("none"), r#"{"id":"none","pk":"k"}"#).key(&key);
    world.refused("nothing to replace", missing, 404, 0).await;
    world.refused("DELETE", Call::delete(world.carts.item("none")).key(&key), 404, 0).await;
    world.refused("GET", Call::get(world.carts.item("none")).key(&key), 404, 0).await;
    world.refused("PUT on a feed", Call::put(world.carts.items(), body.clone()), 405, 0).await;
    world.refused("POST on an item", Call::post(world.carts.item("a"), ""), 405, 0).await;
    let nowhere = Container::new("shop", "none");
    world.refused("no container", Call::get(nowhere.item("a")).key(&key), 404, 1003).await;
    world.refused("no container", Call::post(nowhere.items(), body), 404, 1003).await;
    world.check_health().await;
}

#[tokio::test]
async fn large_and_deep_bodies_are_refused_with_their_own_status() {
    let world = World::new().await;
    let item = |bytes: usize| {
        let empty = json!({ "id": "big", "pk": "k", "filler": "" }).to_string();
        json!({ "id": "big", "pk": "k", "filler": "x".repeat(bytes - empty.len()) }).to_string()
    };
    let post = |body: String| Call::post(world.carts.items(), body);
    world.refused("one byte too many", post(item(BODY_BYTES_MAX + 1)), 413, 0).await;
    world.refused("far too many", post(item(4 * BODY_BYTES_MAX)), 413, 0).await;
    let query = json!({ "query": "x".repeat(BODY_BYTES_MAX) }).to_string();
    let query = post(query).header("x-ms-documentdb-isquery", "true");
    world.refused("a long query", query, 413, 0).await;
    world.client.ask(post(item(BODY_BYTES_MAX - 1000))).await.expect(201);
    let script = |bytes: usize| {
        let body = json!({ "id": format!("s{bytes}"), "body": "x".repeat(bytes) }).to_string();
        Call::post("/dbs/shop/colls/carts/sprocs", body)
    };
    world.refused("a long script", script(256 << 10), 413, 0).await;
    world.client.ask(script(255 << 10)).await.expect(201);

    for depth in [100, 1000, 100_000] {
        let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let body = format!(r#"{{"id":"deep{depth}","pk":"k","nested":{nested}}}"#);
        let answer = world.client.ask(post(body)).await;
        assert!(matches!(answer.status, 201 | 400), "depth {depth}: {}", answer.describe());
    }
    world.check_health().await;
}

#[tokio::test]
async fn broken_headers_are_refused() {
    let world = World::new().await;
    let read = || Call::get(world.carts.item("a"));
    let header = "x-ms-documentdb-partitionkey";
    world.refused("no key", read(), 400, 0).await;
    for key in ["", "x", "\"k\"", "{}", "[", "[\"k\"", "[[1]]", "[{\"a\":1}]", "[\"\u{FF}", "[nan]"]
    {
        world.refused(key, read().header(header, key), 400, 0).await;
    }
    world.refused("two components", read().header(header, r#"["k","l"]"#), 400, 1001).await;
    let read = || read().key(&json!("k"));
    for token in ["x", "0", "0:-1", "0:-1#x", "\u{e9}"] {
        let call = read().header("x-ms-session-token", token);
        world.refused(token, call, 400, 0).await;
    }
    // Of another container, surely: a leader's answer shows everything anybody was told of this one.
    let ahead = read().header("x-ms-session-token", "0:-1#999999999");
    assert_eq!(world.client.send(&ahead).await.expect("an answer").status, 200);
    let rid = read().header("x-ms-cosmos-intended-collection-rid", "AAAAAIAAAAE=");
    world.refused("another container's rid", rid, 400, 1024).await;
    let zipped = Call::post(world.carts.items(), "x").header("content-encoding", "gzip");
    world.refused("a compressed body", zipped, 400, 0).await;

    for count in ["0", "-2", "x", "1.5"] {
        let call = Call::get(world.carts.items()).header("x-ms-max-item-count", count);
        world.refused(count, call, 400, 0).await;
    }
    for token in ["x", "{}", "AAAA", "%00"] {
        let call = Call::get(world.carts.items()).header("x-ms-continuation", token);
        world.refused(token, call, 400, 0).await;
    }
    let unchanged = world.client.ask(read()).await.expect(200);
    let etag = unchanged.header("etag").expect("items have etags");
    world.client.ask(read().header("if-none-match", etag)).await.expect(304);
    // It is about writes only, as at the service.
    world.client.ask(read().header("if-match", "\"other\"")).await.expect(200);
    let both = read().header("if-match", "\"other\"").header("if-none-match", etag);
    world.client.ask(both).await.expect(304);
    world.check_health().await;
}

#[tokio::test]
async fn bad_queries_are_refused() {
    let world = World::new().await;
    let bodies = [
        "",
        "{",
        "{}",
        "[]",
        "\"SELECT * FROM c\"",
        r#"{"query":5}"#,
        r#"{"query":""}"#,
        r#"{"query":"SELEKT * FROM c"}"#,
        r#"{"query":"SELECT * FROM"}"#,
        r#"{"query":"SELECT * FROM c WHERE"}"#,
        r#"{"query":"SELECT * FROM c WHERE c.x = @x"}"#,
        r#"{"query":"SELECT * FROM c WHERE ((((("}"#,
        r#"{"query":"SELECT * FROM c","parameters":5}"#,
        r#"{"query":"SELECT * FROM c","parameters":[{"value":1}]}"#,
        r#"{"query":"SELECT * FROM c; DROP c"}"#,
        r#"{"query":"SELECT '"}"#,
    ];
    for body in bodies {
        let call = Call::post(world.carts.items(), body).header("x-ms-documentdb-isquery", "True");
        world.refused(body, call, 400, 0).await;
    }
    let deep = format!("SELECT * FROM c WHERE {}1{}", "(".repeat(50_000), ")".repeat(50_000));
    let deep = Call::post(world.carts.items(), json!({ "query": deep }).to_string());
    world.refused("parentheses", deep.header("x-ms-documentdb-isquery", "True"), 400, 0).await;
    world.check_health().await;
}

#[tokio::test]
async fn unknown_paths_and_methods_are_refused() {
    let world = World::new().await;
    for path in [
        "/nothing",
        "/db",
        "/dbs/shop/x",
        "/dbs/shop/colls/carts/x",
        "/dbs/shop/colls/carts/docs/a/b",
        "/admin/x",
        "/dbs/shop/colls/carts/docs/a/x/y/z",
        "/DBS",
    ] {
        world.refused(path, Call::get(path), 404, 0).await;
    }
    for path in ["/dbs/%FF", "/dbs/shop/colls/%C3"] {
        world.refused(path, Call::get(path), 400, 0).await;
    }
    for (method, path, allowed) in [
        (Method::OPTIONS, "/dbs", "GET, POST"),
        (Method::TRACE, "/dbs", "GET, POST"),
        (Method::DELETE, "/", "GET"),
        (Method::PATCH, "/dbs/shop/colls/carts", "GET, PUT, DELETE"),
        (Method::PUT, "/dbs/shop/colls/carts/docs", "GET, POST"),
        (Method::POST, "/dbs/shop/colls/carts/docs/a", "GET, PUT, PATCH, DELETE"),
        (Method::GET, "/dbs/shop/colls/carts/operations/partitionkeydelete", "POST"),
        (Method::PATCH, "/dbs/shop/colls/carts/sprocs/s", "GET, PUT, POST, DELETE"),
        (Method::POST, "/dbs/shop/colls/carts/udfs/f", "GET, PUT, DELETE"),
        (Method::PUT, "/admin/ttl", "GET, POST"),
        (Method::POST, "/admin/status", "GET"),
        (Method::GET, "/admin/forget-node", "POST"),
        (Method::GET, "/admin/hand-over", "POST"),
        (Method::PUT, "/admin/flush", "POST"),
    ] {
        let answer = world.refused(path, Call::new(method, path), 405, 0).await;
        assert_eq!(answer.header("allow"), Some(allowed), "{path}");
    }
    let head = world.client.ask(Call::new(Method::HEAD, "/dbs")).await;
    assert_eq!(head.status, 405, "HEAD is no verb of the protocol");
    assert_eq!(head.header("allow"), Some("GET, POST"));
    // In direct mode SDKs sign what they look for.
    let resolve =
        "//addresses/?$resolveFor=dbs%2fshop%2fcolls%2fcarts%2fdocs&$partitionKeyRangeIds=0";
    for call in [Call::get(resolve), Call::get(resolve).header("authorization", "x")] {
        let answer = world.client.send_unsigned(&call).await.expect("the node answers");
        check_refusal("direct mode", &answer, 501, 0);
        assert!(answer.json()["message"].to_string().contains("ConnectionMode.Gateway"));
    }
    world.check_health().await;
}

#[tokio::test]
async fn requests_that_are_not_signed_as_they_should_be_are_refused() {
    let world = World::new().await;
    let now = clock::wall();
    let (key, path) = (AccountKey::emulator(), "/dbs/shop");
    let unsigned = |authorization: &str, date: &str| {
        let call = Call::get(path).header("x-ms-date", date);
        if authorization.is_empty() { call } else { call.header("authorization", authorization) }
    };
    let date = http_date(now);
    let good = key.authorization("GET", path, &date);
    let other = AccountKey::parse(OTHER_KEY).authorization("GET", path, &date);
    let twenty_minutes = std::time::Duration::from_mins(20);
    let [old, young] = [now - twenty_minutes, now + twenty_minutes].map(http_date);
    let for_verb = key.authorization("POST", path, &date);
    let for_path = key.authorization("GET", "/dbs/other", &date);
    for (what, authorization, date) in [
        ("none", "", date.as_str()),
        ("garbage", "x", &date),
        ("not percent-encoded UTF-8", "%FF%FE", &date),
        ("no signature", "type%3Dmaster%26ver%3D1.0", &date),
        ("no base64", "type%3Dmaster%26ver%3D1.0%26sig%3D!", &date),
        ("a token of another kind", "type%3Daad%26ver%3D1.0%26sig%3Dx", &date),
        ("another key", &other, &date),
        ("another verb", &for_verb, &date),
        ("another path", &for_path, &date),
        ("a date that is none", &key.authorization("GET", path, "yesterday"), "yesterday"),
        ("another date", &good, &http_date(now - std::time::Duration::from_secs(5))),
    ] {
        let answer = world.client.send_unsigned(&unsigned(authorization, date)).await;
        check_refusal(what, &answer.expect("the node answers"), 401, 0);
    }
    for date in [&old, &young] {
        let signed = unsigned(&key.authorization("GET", path, date), date);
        let answer = world.client.send_unsigned(&signed).await.expect("the node answers");
        check_refusal("a date that is not of now", &answer, 403, 0);
    }
    // What a client or a proxy puts beside the date that was signed.
    let dated = unsigned(&good, &date).header("date", http_date(now - twenty_minutes));
    world.client.send_unsigned(&dated).await.expect("the node answers").expect(200);
    let undated = Call::get(path).header("authorization", good.clone());
    let answer = world.client.send_unsigned(&undated).await.expect("the node answers");
    check_refusal("no date", &answer, 401, 0);
    let answer = world.client.send_unsigned(&unsigned(&good, &date)).await;
    answer.expect("the node answers").expect(200);
    world.check_health().await;
}

#[tokio::test]
async fn names_rids_slashes_and_scripts_of_the_world_address_the_same_things() {
    let world = World::new().await;
    let (client, key) = (&world.client, AccountKey::emulator());
    let container = Container::new("läden 日本", "корзины & é+%");
    client.create_database("läden 日本").await.expect(201);
    let made = client.create_container(&container, json!({})).await.expect(201).json();
    let item = json!({ "id": "ключ 🙂 +%&=", "pk": "ß日", "text": "€" });
    let stored = client.create_item(&container, &item).await.expect(201).json();
    let id = "ключ 🙂 +%&=";
    let read = client.read_item(&container, &json!("ß日"), id).await.expect(200).json();
    assert_eq!((&read["id"], &read["text"]), (&item["id"], &item["text"]));

    // Clients may send keys in ASCII.
    let ascii = Call::get(container.item(id) + "/")
        .header("x-ms-documentdb-partitionkey", r#"["\u00df\u65e5"]"#);
    assert_eq!(client.ask(ascii).await.expect(200).json(), read);
    for path in ["/dbs", "/dbs/shop", "/dbs/shop/colls", "/dbs/shop/colls/carts/pkranges"] {
        let plain = client.ask(Call::get(path)).await.expect(200).json();
        let slashed = client.ask(Call::get(format!("{path}/"))).await.expect(200).json();
        assert_eq!(plain, slashed, "{path}");
    }

    let link = |value: &Value| format!("/{}", value["_self"].as_str().expect("a link"));
    for (resource, kind) in [(&made, "colls"), (&stored, "docs")] {
        let date = http_date(clock::wall());
        let rid = resource["_rid"].as_str().expect("a rid").to_lowercase();
        let call = Call::get(link(resource))
            .header("x-ms-date", date.clone())
            .header("authorization", key.authorization_for("GET", kind, &rid, &date))
            .key(&json!("ß日"));
        let answer = client.send_unsigned(&call).await.expect("the node answers").expect(200);
        assert_eq!(answer.json()["_rid"], resource["_rid"]);
    }
}

/// As .NET and Java may name it.
#[tokio::test]
async fn a_key_range_is_named_with_its_container_or_without() {
    let world = World::new().await;
    let made = world.client.ask(Call::get(world.carts.path())).await.expect(200).json();
    let rid = made["_rid"].as_str().expect("a rid");
    let range = "x-ms-documentdb-partitionkeyrangeid";
    let feed = Call::get(world.carts.items());
    let query = Call::post(world.carts.items(), r#"{"query":"SELECT * FROM c"}"#)
        .header("x-ms-documentdb-isquery", "True");
    let operation = json!({ "operationType": "Read", "id": "a", "partitionKey": "[\"k\"]" });
    let bulk = Call::post(world.carts.items(), json!([operation]).to_string())
        .header("x-ms-cosmos-is-batch-request", "True")
        .header("x-ms-cosmos-batch-atomic", "False");
    let changes = feed.clone().header("a-im", "Incremental Feed");
    for (what, call) in [("feed", feed), ("query", query), ("bulk", bulk), ("changes", changes)] {
        for known in ["0".to_string(), format!("{rid},0")] {
            world.client.ask(call.clone().header(range, known)).await.expect(200);
        }
        for gone in ["7".to_string(), format!("{rid},7")] {
            world.refused(what, call.clone().header(range, gone), 410, 1002).await;
        }
        let other = call.header(range, "AAAAAIAAAAE=,0");
        world.refused(what, other, 400, 1024).await;
    }
}

#[tokio::test]
async fn who_knows_a_resource_as_it_is_gets_it_not_again() {
    let world = World::new().await;
    let made = [
        Call::post("/dbs/shop/users", r#"{"id":"u"}"#),
        Call::post("/dbs/shop/colls/carts/sprocs", r#"{"id":"s","body":"function () {}"}"#),
    ];
    for call in made {
        world.client.ask(call).await.expect(201);
    }
    let shared = Call::post("/dbs", r#"{"id":"rated"}"#).header("x-ms-offer-throughput", "400");
    world.client.ask(shared).await.expect(201);
    let offers = world.client.ask(Call::get("/offers")).await.expect(200).json();
    let offer = format!("/offers/{}", offers["Offers"][0]["id"].as_str().expect("an offer"));
    let paths = [
        "/dbs/shop",
        "/dbs/shop/colls/carts",
        "/dbs/shop/colls/carts/sprocs/s",
        "/dbs/shop/users/u",
        &offer,
    ];
    for path in paths {
        let read = world.client.ask(Call::get(path)).await.expect(200);
        let etag = read.header("etag").expect("an etag");
        assert_eq!(read.json()["_etag"], etag, "{path}");
        let again = Call::get(path).header("if-none-match", etag);
        let known = world.client.ask(again).await.expect(304);
        assert_eq!((known.header("etag"), known.body.len()), (Some(etag), 0), "{path}");
        let other = Call::get(path).header("if-none-match", "\"an older one\"");
        assert_eq!(world.client.ask(other).await.expect(200).json(), read.json(), "{path}");
    }
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let world = World::new().await;
    let address = world.cluster.address(1);
    let path = world.carts.item("a");
    let signed = Signed::new(&AccountKey::emulator(), "GET", &path, clock::wall());
    let key = ("x-ms-documentdb-partitionkey", r#"["k"]"#);
    let headers =
        [("x-ms-date", signed.date.as_str()), ("authorization", &signed.authorization), key];
    let good = Request::new(&format!("GET {path}"), address, &headers, b"");
    let unsigned = Request::new(&format!("GET {path}"), address, &headers[2..], b"");
    let mut connection = Connection::open(address).await.expect("the node listens");
    for _ in 0..50 {
        assert_eq!(connection.exchange(good.bytes()).await.expect("an answer"), 200);
        assert_eq!(connection.exchange(unsigned.bytes()).await.expect("an answer"), 401);
    }
}

/// Texts that are sorted by, partition keys and ids may be long; what a client carries on is not.
#[tokio::test]
async fn continuation_tokens_are_short_however_long_keys_are() {
    let world = World::new().await;
    let long = Container::new("shop", "long");
    world.client.create_container(&long, json!({})).await.expect(201);
    let (same, key) = ("t".repeat(3000), "k".repeat(1000));
    for n in 0..9 {
        let id = format!("{}{n}", "i".repeat(1000));
        let item = json!({ "id": id, "pk": key, "n": n, "text": format!("{same}{n}") });
        world.client.create_item(&long, &item).await.expect(201);
    }
    for text in [
        "SELECT VALUE c.n FROM c",
        "SELECT VALUE c.n FROM c ORDER BY c.text",
        "SELECT VALUE c.n FROM c ORDER BY c.text DESC",
        "SELECT DISTINCT VALUE c.n FROM c ORDER BY c.text",
    ] {
        let (mut rows, mut token) = (Vec::new(), None);
        loop {
            let body = json!({ "query": text }).to_string();
            let mut call = Call::post(long.items(), body)
                .header("content-type", "application/query+json")
                .header("x-ms-documentdb-isquery", "True")
                .header("x-ms-documentdb-query-enablecrosspartition", "True")
                .header("x-ms-max-item-count", "2");
            if let Some(token) = &token {
                call = call.header("x-ms-continuation", token);
            }
            let answer = world.client.ask(call).await.expect(200);
            rows.extend(answer.json()["Documents"].as_array().expect("rows").clone());
            token = answer.continuation().map(String::from);
            let Some(token) = &token else { break };
            assert!(token.len() < 1024, "{} characters: {text}", token.len());
        }
        let mut expected: Vec<Value> = (0..9).map(Value::from).collect();
        if text.ends_with("DESC") {
            expected.reverse();
        }
        assert_eq!(rows, expected, "{text}");
    }
}
