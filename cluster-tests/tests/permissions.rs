//! Users, permissions, and what their tokens allow; keys that read only, and keys that change.

use std::time::Duration;

use ephemeris_cluster_tests::client::{AccountKey, Answer, Call, Client, Container};
use ephemeris_cluster_tests::cluster::{Cluster, Passage};
use ephemeris_cluster_tests::wait;
use reqwest::Method;
use serde_json::{Value, json};

const KEY_B: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const KEY_C: &str = "//79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=";
/// More than a body may have.
const LARGE_BYTES: usize = 4 << 20;
/// Keys in files are looked at every five seconds.
const RELOAD_DEADLINE: Duration = Duration::from_secs(30);
/// How long a cluster may take to go on after a node was killed.
const RECOVERY_DEADLINE: Duration = Duration::from_secs(30);

/// A node with the containers `carts` and `other`, in which are items `a` (key `k`) and `b` (key
/// `l`), and with a user.
struct World {
    cluster: Cluster,
    client: Client,
    carts: Container,
    other: Container,
}

impl World {
    async fn new(cluster: Cluster) -> Self {
        let client = cluster.client(1);
        let [carts, other] = ["carts", "other"].map(|name| Container::new("shop", name));
        client.create_database("shop").await.expect(201);
        for container in [&carts, &other] {
            client.create_container(container, json!({})).await.expect(201);
            for (id, key) in [("a", "k"), ("b", "l")] {
                client.create_item(container, &json!({ "id": id, "pk": key })).await.expect(201);
            }
        }
        let user = Call::post("/dbs/shop/users", r#"{"id":"ada"}"#);
        client.ask(user).await.expect(201);
        Self { cluster, client, carts, other }
    }

    /// Creates or replaces a permission of the user; answers its token.
    async fn token(&self, definition: Value) -> String {
        let call = Call::post("/dbs/shop/users/ada/permissions", definition.to_string())
            .header("x-ms-documentdb-is-upsert", "true");
        let answer = self.client.ask(call).await;
        assert!(matches!(answer.status, 200 | 201), "{}", answer.describe());
        answer.json()["_token"].as_str().expect("a permission has a token").to_string()
    }

    async fn item(&self, id: &str, key: &str) -> Value {
        self.client.read_item(&self.carts, &json!(key), id).await.expect(200).json()
    }
}

/// Sends a call with a token, encoded as SDKs do.
async fn with_token(client: &Client, token: &str, call: Call) -> Answer {
    let encoded = token.replace('=', "%3D").replace('&', "%26");
    let answer = client.send_unsigned(&call.header("authorization", encoded)).await;
    answer.expect("the node answers")
}

/// The link in a resource, as a path.
fn path_of(resource: &Value) -> String {
    format!("/{}", resource["_self"].as_str().expect("resources have a link"))
}

fn names(feed: &Value, name: &str) -> Vec<String> {
    let rows = feed[name].as_array().expect("a feed has rows").iter();
    rows.map(|row| row["id"].as_str().expect("rows have ids").to_string()).collect()
}

#[tokio::test]
async fn users_are_created_read_renamed_and_deleted() {
    let world = World::new(Cluster::single().await).await;
    let client = &world.client;
    let users = || "/dbs/shop/users".to_string();
    let ada = client.ask(Call::get("/dbs/shop/users/ada")).await.expect(200);
    assert_eq!(ada.json()["_permissions"], "permissions/");
    assert_eq!(client.ask(Call::get(path_of(&ada.json()))).await.expect(200).json(), ada.json());
    client.ask(Call::post(users(), r#"{"id":"ada"}"#)).await.expect(409);
    let upsert = |id: &str| {
        let body = json!({ "id": id }).to_string();
        Call::post(users(), body).header("x-ms-documentdb-is-upsert", "true")
    };
    let upserted = client.ask(upsert("ada")).await.expect(200);
    assert_ne!(upserted.header("etag"), ada.header("etag"));
    client.ask(upsert("bob")).await.expect(201);
    let listed = client.ask(Call::get(users())).await.expect(200).json();
    assert_eq!(names(&listed, "Users"), ["ada", "bob"]);
    assert_eq!(listed["_count"], 2);
    let query = json!({ "query": "SELECT * FROM root r WHERE r.id=@id",
        "parameters": [{ "name": "@id", "value": "bob" }] });
    let query = Call::post(users(), query.to_string()).header("x-ms-documentdb-isquery", "true");
    assert_eq!(names(&client.ask(query).await.expect(200).json(), "Users"), ["bob"]);

    let rename = |from: &str, to: &str| {
        Call::put(format!("/dbs/shop/users/{from}"), json!({ "id": to }).to_string())
    };
    client.ask(rename("bob", "ada")).await.expect(409);
    let stale = rename("bob", "eve").header("if-match", ada.header("etag").expect("a tag"));
    client.ask(stale).await.expect(412);
    let eve = client.ask(rename("bob", "eve")).await.expect(200).json();
    client.ask(Call::get("/dbs/shop/users/bob")).await.expect(404);
    client.ask(Call::delete("/dbs/shop/users/eve")).await.expect(204);
    client.ask(Call::delete("/dbs/shop/users/eve")).await.expect(404);
    client.ask(Call::get(path_of(&eve))).await.expect(404);

    for body in ["", "{}", r#"{"id":5}"#, r#"{"id":"a/b"}"#, "[]"] {
        client.ask(Call::post(users(), body)).await.expect(400);
    }
    let none = client.ask(Call::post("/dbs/none/users", r#"{"id":"x"}"#)).await.expect(404);
    assert_eq!(none.substatus(), 1003);
    client.ask(Call::new(Method::PATCH, "/dbs/shop/users/ada")).await.expect(405);
}

#[tokio::test]
async fn permissions_are_created_read_replaced_and_deleted() {
    let world = World::new(Cluster::single().await).await;
    let client = &world.client;
    let permissions = || "/dbs/shop/users/ada/permissions".to_string();
    let one = |name: &str| format!("{}/{name}", permissions());
    let definition = |id: &str, mode: &str| {
        json!({ "id": id, "permissionMode": mode, "resource": "dbs/shop/colls/carts",
            "resourcePartitionKey": ["k"] })
    };
    let create = |body: &Value| Call::post(permissions(), body.to_string());
    let created = client.ask(create(&definition("p q", "Read"))).await.expect(201);
    let read = client.ask(Call::get(one("p%20q"))).await.expect(200);
    let named = client.ask(Call::get(path_of(&read.json()))).await.expect(200);
    assert_eq!(named.json()["_rid"], read.json()["_rid"]);
    assert_eq!(read.header("etag"), created.header("etag"));
    for (property, value) in definition("p q", "read").as_object().expect("it is one") {
        assert_eq!(&read.json()[property], value);
    }
    client.ask(create(&definition("p q", "All"))).await.expect(409);
    let upsert = create(&definition("p q", "All")).header("x-ms-documentdb-is-upsert", "True");
    let upserted = client.ask(upsert).await.expect(200).json();
    assert_eq!(
        (&upserted["permissionMode"], &upserted["_rid"]),
        (&json!("all"), &read.json()["_rid"])
    );

    let replace = Call::put(one("p%20q"), definition("r", "read").to_string());
    let stale = replace.clone().header("if-match", created.header("etag").expect("a tag"));
    client.ask(stale).await.expect(412);
    client.ask(replace).await.expect(200);
    client.ask(Call::get(one("p%20q"))).await.expect(404);
    let listed = client.ask(Call::get(permissions())).await.expect(200).json();
    assert_eq!(names(&listed, "Permissions"), ["r"]);
    assert!(listed["Permissions"][0]["_token"].is_string());
    let query = json!({ "query": "SELECT * FROM root r WHERE r.id='r'" }).to_string();
    let query = Call::post(permissions(), query).header("x-ms-documentdb-isquery", "true");
    assert_eq!(names(&client.ask(query).await.expect(200).json(), "Permissions"), ["r"]);

    for (extra, status) in [
        (json!({ "id": 5 }), 400),
        (json!({ "permissionMode": "none" }), 400),
        (json!({ "resource": "dbs/shop" }), 400),
        (json!({ "resource": "dbs/shop/colls/carts/pkranges/0" }), 400),
        (json!({ "resourcePartitionKey": "k" }), 400),
        (json!({ "resourcePartitionKey": [] }), 400),
        (json!({ "resourcePartitionKey": ["k", 1, true, null] }), 400),
        (json!({ "id": "t", "resourcePartitionKey": ["k", 1, true] }), 201),
        (json!({ "resource": "dbs/shop/colls/none" }), 404),
        (json!({ "resource": "dbs/none/colls/carts" }), 404),
        // A `_rid` of nothing is accepted, and grants nothing.
        (json!({ "id": "s", "resource": "dbs/AQAAAA==/colls/AQAAAJ0fgTc=" }), 201),
    ] {
        let mut body = definition("x", "read");
        body.as_object_mut().expect("it is one").extend(extra.as_object().expect("one").clone());
        client.ask(create(&body)).await.expect(status);
    }
    for lifetime in ["9", "86401", "x", "-1"] {
        let call = Call::get(one("r")).header("x-ms-documentdb-expiry-seconds", lifetime);
        client.ask(call).await.expect(400);
    }
    let long = Call::get(one("r")).header("x-ms-documentdb-expiry-seconds", "86400");
    client.ask(long).await.expect(200);
    client.ask(Call::delete(one("r"))).await.expect(204);
    client.ask(Call::delete(one("r"))).await.expect(404);
    let nobodys = Call::get("/dbs/shop/users/none/permissions");
    assert_eq!(client.ask(nobodys).await.expect(404).substatus(), 1003);
}

/// What a bearer of a token may try, and may or may not succeed with.
struct Attempts<'w> {
    world: &'w World,
    token: String,
}

impl Attempts<'_> {
    async fn status(&self, call: Call) -> u16 {
        with_token(&self.world.client, &self.token, call).await.status
    }

    async fn expect(&self, what: &str, call: Call, status: u16) {
        let answer = with_token(&self.world.client, &self.token, call).await;
        assert_eq!(answer.status, status, "{what}: {}", answer.describe());
        if status == 403 {
            assert!(answer.json()["message"].is_string(), "{what}");
        }
    }

    /// What no token allows.
    async fn expect_nothing_else(&self) {
        let World { carts, other, .. } = self.world;
        let definition = json!({ "id": "carts", "partitionKey": { "paths": ["/pk"] } }).to_string();
        for (what, call) in [
            ("databases", Call::get("/dbs")),
            ("a database", Call::get("/dbs/shop")),
            ("creating a database", Call::post("/dbs", r#"{"id":"x"}"#)),
            ("containers", Call::get("/dbs/shop/colls")),
            ("replacing the container", Call::put(carts.path(), definition)),
            ("deleting the container", Call::delete(carts.path())),
            ("another container", Call::get(other.path())),
            ("an item of another container", Call::get(other.item("a")).key(&json!("k"))),
            ("no container", Call::get("/dbs/shop/colls/none/docs")),
            ("users", Call::get("/dbs/shop/users")),
            ("the user", Call::get("/dbs/shop/users/ada")),
            ("permissions", Call::get("/dbs/shop/users/ada/permissions")),
            ("its own permission", Call::get("/dbs/shop/users/ada/permissions/p")),
            ("offers", Call::get("/offers")),
            ("the cluster", Call::get("/admin/status")),
            ("changing the account", Call::post("/", "{}")),
        ] {
            self.expect(what, call, 403).await;
        }
        for (what, call) in [
            ("the account", Call::get("/")),
            ("the container", Call::get(carts.path())),
            ("its ranges", Call::get(carts.path() + "/pkranges")),
        ] {
            self.expect(what, call, 200).await;
        }
    }
}

fn query_of(container: &Container) -> Call {
    Call::post(container.items(), json!({ "query": "SELECT * FROM c" }).to_string())
        .header("content-type", "application/query+json")
        .header("x-ms-documentdb-isquery", "true")
        .header("x-ms-documentdb-query-enablecrosspartition", "true")
}

fn clearing(container: &Container) -> Call {
    Call::post(container.path() + "/operations/partitionkeydelete", "")
}

/// A call that says of itself that it only asks.
fn as_query(call: Call) -> Call {
    call.header("x-ms-documentdb-isquery", "true").header("content-type", "application/query+json")
}

fn item_body(id: &str, key: &str) -> String {
    json!({ "id": id, "pk": key }).to_string()
}

#[tokio::test]
async fn a_token_to_read_a_container_reads_and_does_nothing_else() {
    let world = World::new(Cluster::single().await).await;
    let carts = &world.carts;
    let definition =
        json!({ "id": "p", "permissionMode": "Read", "resource": "dbs/shop/colls/carts" });
    let token = world.token(definition).await;
    let attempts = Attempts { world: &world, token };
    attempts.expect_nothing_else().await;
    let (key, a) = (json!("k"), world.item("a", "k").await);
    attempts.expect("an item", Call::get(carts.item("a")).key(&key), 200).await;
    attempts.expect("an item by _rid", Call::get(path_of(&a)).key(&key), 200).await;
    attempts.expect("a missing item", Call::get(carts.item("z")).key(&key), 404).await;
    attempts.expect("all items", Call::get(carts.items()), 200).await;
    attempts.expect("a query", query_of(carts), 200).await;
    let feed = Call::get(carts.items()).header("a-im", "Incremental Feed");
    attempts.expect("the change feed", feed, 200).await;
    attempts.expect("scripts", Call::get(carts.path() + "/sprocs"), 200).await;
    let patch = r#"{"operations":[{"op":"add","path":"/x","value":1}]}"#;
    let batch = json!([{ "operationType": "Read", "id": "a" }]).to_string();
    for (what, call) in [
        ("creating", Call::post(carts.items(), item_body("c", "k"))),
        (
            "upserting",
            Call::post(carts.items(), item_body("a", "k"))
                .header("x-ms-documentdb-is-upsert", "true"),
        ),
        ("replacing", Call::put(carts.item("a"), item_body("a", "k"))),
        ("patching", Call::new(Method::PATCH, carts.item("a")).body(patch)),
        ("deleting", Call::delete(carts.item("a"))),
        (
            "a batch",
            Call::post(carts.items(), batch).header("x-ms-cosmos-is-batch-request", "True"),
        ),
        ("clearing", clearing(carts)),
        ("clearing, as if it were a query", as_query(clearing(carts))),
        ("a script", Call::post(carts.path() + "/udfs", r#"{"id":"f","body":"x"}"#)),
        // Of whom may not send it, a body is not looked at.
        ("creating much too large an item", Call::post(carts.items(), vec![b'x'; LARGE_BYTES])),
        (
            "creating a compressed item",
            Call::post(carts.items(), "x").header("content-encoding", "gzip"),
        ),
    ] {
        attempts.expect(what, call.key(&key), 403).await;
    }
    let large = as_query(Call::post(carts.items(), vec![b'x'; LARGE_BYTES]));
    attempts.expect("a query that is too large", large, 413).await;
}

#[tokio::test]
async fn a_token_for_a_partition_key_stays_within_it() {
    let world = World::new(Cluster::single().await).await;
    let carts = &world.carts;
    let definition = json!({ "id": "p", "permissionMode": "All",
        "resource": "dbs/shop/colls/carts", "resourcePartitionKey": ["k"] });
    let attempts = Attempts { world: &world, token: world.token(definition).await };
    attempts.expect_nothing_else().await;
    let (own, foreign) = (json!("k"), json!("l"));
    let [a, b] = [world.item("a", "k").await, world.item("b", "l").await];
    for (what, call) in [
        ("a foreign item", Call::get(carts.item("b")).key(&foreign)),
        ("a foreign item by _rid", Call::get(path_of(&b)).key(&foreign)),
        ("a foreign item by _rid and the own key", Call::get(path_of(&b)).key(&own)),
        ("deleting one so", Call::delete(path_of(&b)).key(&own)),
        ("replacing one so", Call::put(path_of(&b), item_body("b", "k")).key(&own)),
        ("an item without a key", Call::get(carts.item("a"))),
        ("creating a foreign item", Call::post(carts.items(), item_body("c", "l")).key(&foreign)),
        ("creating without a key", Call::post(carts.items(), item_body("c", "k"))),
        ("all items", Call::get(carts.items())),
        ("a query over all", query_of(carts)),
        ("a foreign query", query_of(carts).key(&foreign)),
        ("the change feed", Call::get(carts.items()).header("a-im", "Incremental Feed")),
        ("scripts", Call::get(carts.path() + "/udfs")),
    ] {
        attempts.expect(what, call, 403).await;
    }
    attempts
        .expect(
            "another key in the body",
            Call::post(carts.items(), item_body("c", "l")).key(&own),
            400,
        )
        .await;
    attempts
        .expect("creating", Call::post(carts.items(), item_body("c", "k")).key(&own), 201)
        .await;
    attempts.expect("an item", Call::get(carts.item("a")).key(&own), 200).await;
    attempts.expect("an item by _rid", Call::get(path_of(&a)).key(&own), 200).await;
    attempts.expect("deleting", Call::delete(carts.item("c")).key(&own), 204).await;
    for narrowed in [
        query_of(carts).key(&own),
        query_of(carts).key(&own).header("x-ms-documentdb-partitionkeyrangeid", "0"),
        Call::get(carts.items()).key(&own),
        Call::get(carts.items()).key(&own).header("a-im", "Incremental Feed"),
    ] {
        let answer = with_token(&world.client, &attempts.token, narrowed).await.expect(200);
        assert_eq!(names(&answer.json(), "Documents"), ["a"]);
    }
    attempts.expect("clearing a foreign key", clearing(carts).key(&foreign), 403).await;
    attempts.expect("clearing", clearing(carts).key(&own), 200).await;
    assert_eq!(world.client.read_feed(carts).await.len(), 1);
}

#[tokio::test]
async fn a_token_for_an_item_is_for_that_item() {
    let world = World::new(Cluster::single().await).await;
    let carts = &world.carts;
    let [a, b] = [world.item("a", "k").await, world.item("b", "l").await];
    let by_rid = a["_self"].as_str().expect("a link").to_string();
    for resource in ["dbs/shop/colls/carts/docs/a", &by_rid] {
        let definition = json!({ "id": "p", "permissionMode": "All", "resource": resource });
        let attempts = Attempts { world: &world, token: world.token(definition).await };
        attempts.expect_nothing_else().await;
        for (what, call) in [
            ("another item", Call::get(carts.item("b")).key(&json!("l"))),
            ("another item by _rid", Call::get(path_of(&b)).key(&json!("l"))),
            ("deleting another item", Call::delete(path_of(&b)).key(&json!("l"))),
            ("all items", Call::get(carts.items())),
            ("a query", query_of(carts)),
            ("creating", Call::post(carts.items(), item_body("a", "k")).key(&json!("k"))),
            ("another id", Call::put(path_of(&a), item_body("z", "k")).key(&json!("k"))),
            ("clearing", clearing(carts)),
        ] {
            // Which id an item has, its `_rid` does not tell: it may have any.
            if what == "another id" && resource == by_rid {
                continue;
            }
            attempts.expect(&format!("{resource}: {what}"), call, 403).await;
        }
        attempts.expect("the item by _rid", Call::get(path_of(&a)).key(&json!("k")), 200).await;
        // Which `_rid` an item has, its name does not tell.
        let by_name = if resource == by_rid { 403 } else { 200 };
        assert_eq!(attempts.status(Call::get(carts.item("a")).key(&json!("k"))).await, by_name);
        let replace = Call::put(path_of(&a), item_body("a", "k")).key(&json!("k"));
        attempts.expect("replacing it", replace, 200).await;
    }
}

#[tokio::test]
async fn a_token_allows_what_its_permission_says_when_it_is_used() {
    let world = World::new(Cluster::start(3).await).await;
    let definition = |mode: &str| json!({ "id": "p", "permissionMode": mode, "resource": "dbs/shop/colls/carts" });
    let (key, carts) = (json!("k"), &world.carts);
    let token = world.token(definition("Read")).await;
    // What one node gave out holds on every other, at once.
    for node in world.cluster.ids() {
        let client = world.cluster.client(node);
        with_token(&client, &token, Call::get(carts.item("a")).key(&key)).await.expect(200);
        let create = Call::post(carts.items(), item_body(&format!("n{node}"), "k")).key(&key);
        with_token(&client, &token, create).await.expect(403);
    }
    world.token(definition("All")).await;
    for node in world.cluster.ids() {
        let create = Call::post(carts.items(), item_body(&format!("n{node}"), "k")).key(&key);
        with_token(&world.cluster.client(node), &token, create).await.expect(201);
    }
    let expect_everywhere = async |status: u16| {
        for node in world.cluster.ids() {
            let read = Call::get(carts.item("a")).key(&key);
            with_token(&world.cluster.client(node), &token, read).await.expect(status);
        }
    };
    world.client.ask(Call::delete("/dbs/shop/users/ada/permissions/p")).await.expect(204);
    expect_everywhere(403).await;
    let again = world.token(definition("All")).await;
    expect_everywhere(403).await;
    let read = Call::get(carts.item("a")).key(&key);
    with_token(&world.client, &again, read.clone()).await.expect(200);

    // A container that takes the name is another container.
    world.client.ask(Call::delete(carts.path())).await.expect(204);
    world.client.create_container(carts, json!({})).await.expect(201);
    with_token(&world.client, &again, read.clone()).await.expect(403);
    world.client.ask(Call::delete("/dbs/shop/users/ada")).await.expect(204);
    with_token(&world.client, &again, read).await.expect(403);
}

#[tokio::test]
async fn a_node_that_was_away_honours_no_token_before_it_knows_what_was_taken_away() {
    let mut world = World::new(Cluster::start(3).await).await;
    let definition =
        json!({ "id": "p", "permissionMode": "All", "resource": "dbs/shop/colls/carts" });
    let token = world.token(definition).await;
    let (back, account) = (world.cluster.client(3), || Call::get("/"));
    with_token(&back, &token, account()).await.expect(200);
    // What is flushed is there at once when it comes back; the rest, when it hears what is committed.
    back.ask(Call::post("/admin/flush", "")).await.expect(200);
    world.cluster.kill(3);
    let taking = async || {
        let call = Call::delete("/dbs/shop/users/ada/permissions/p");
        let answer = world.client.send(&call).await.ok()?;
        matches!(answer.status, 204 | 404).then_some(())
    };
    wait::until("the permission to be deleted", RECOVERY_DEADLINE, taking).await;
    // Alone, it cannot know.
    world.cluster.kill_at_once(&[1, 2]);
    world.cluster.spawn(3);
    let listens = async || back.send(&account()).await.ok();
    wait::until("node 3 to listen", RECOVERY_DEADLINE, listens).await;
    with_token(&back, &token, account()).await.expect(429);
    world.cluster.spawn(1);
    world.cluster.spawn(2);
    world.cluster.await_ready(3).await;
    with_token(&back, &token, account()).await.expect(403);
}

#[tokio::test]
async fn a_node_that_is_cut_off_does_not_go_on_honouring_tokens() {
    let mut cluster = Cluster::breakable_with(3, &["--request-timeout-ms", "1000"]);
    cluster.start_all().await;
    let mut world = World::new(cluster).await;
    let definition =
        json!({ "id": "p", "permissionMode": "All", "resource": "dbs/shop/colls/carts" });
    let token = world.token(definition).await;
    let (alone, account) = (world.cluster.client(3), || Call::get("/"));
    with_token(&alone, &token, account()).await.expect(200);
    for link in [(1, 3), (2, 3), (3, 1), (3, 2)] {
        world.cluster.set_link(link, Passage::Held);
    }
    let taking = async || {
        let call = Call::delete("/dbs/shop/users/ada/permissions/p");
        let answer = world.client.send(&call).await.ok()?;
        matches!(answer.status, 204 | 404).then_some(())
    };
    wait::until("the permission to be deleted", RECOVERY_DEADLINE, taking).await;
    let status = async |wanted: u16| {
        let answer = with_token(&alone, &token, account()).await;
        (answer.status == wanted).then_some(())
    };
    wait::until("node 3 to trust its copy no more", RECOVERY_DEADLINE, || status(429)).await;
    alone.ask(account()).await.expect(200);
    world.cluster.heal_links();
    wait::until("node 3 to hear of it", RECOVERY_DEADLINE, || status(403)).await;
}

#[tokio::test]
async fn a_token_that_is_none_opens_nothing() {
    let world = World::new(Cluster::single().await).await;
    let definition =
        json!({ "id": "p", "permissionMode": "All", "resource": "dbs/shop/colls/carts" });
    let token = world.token(definition).await;
    let (head, seal) = token.split_at(token.len() - 10);
    let flipped: String = seal.chars().map(|c| if c == 'A' { 'B' } else { 'A' }).collect();
    let as_master = token.replace("type=resource", "type=master");
    for wrong in [
        &format!("{head}{flipped}"),
        head,
        "type=resource&ver=1.0&sig=",
        "type=resource&ver=1.0",
        &as_master,
    ] {
        let answer = with_token(&world.client, wrong, Call::get(world.carts.path())).await;
        assert_eq!(answer.status, 401, "{wrong}: {}", answer.describe());
    }
    // Clusters that share a key do not share tokens.
    let stranger = World::new(Cluster::single().await).await;
    let answer = with_token(&stranger.client, &token, Call::get(stranger.carts.path())).await;
    assert_eq!(answer.status, 401, "{}", answer.describe());
}

#[tokio::test]
async fn a_read_only_key_looks_at_everything_but_permissions() {
    let arguments = ["--key", KEY_B, "--read-only-key", KEY_C];
    let mut cluster = Cluster::alone_with(&arguments);
    cluster.restart(1).await;
    let writer = cluster.client(1).with_key(AccountKey::parse(KEY_B));
    let reader = cluster.client(1).with_key(AccountKey::parse(KEY_C));
    let carts = Container::new("shop", "carts");
    writer.create_database("shop").await.expect(201);
    writer.create_container(&carts, json!({})).await.expect(201);
    writer.create_item(&carts, &json!({ "id": "a", "pk": "k" })).await.expect(201);
    writer.ask(Call::post("/dbs/shop/users", r#"{"id":"ada"}"#)).await.expect(201);
    for call in [
        Call::get("/"),
        Call::get("/dbs"),
        Call::get("/dbs/shop/users"),
        Call::get(carts.path()),
        Call::get(carts.item("a")).key(&json!("k")),
        query_of(&carts),
        Call::get("/offers"),
        Call::get("/admin/status"),
    ] {
        reader.ask(call).await.expect(200);
    }
    for call in [
        Call::get("/dbs/shop/users/ada/permissions"),
        Call::post("/dbs", r#"{"id":"x"}"#),
        Call::post(carts.items(), item_body("b", "k")).key(&json!("k")),
        Call::put(carts.item("a"), item_body("a", "k")).key(&json!("k")),
        Call::delete(carts.item("a")).key(&json!("k")),
        Call::delete(carts.path()),
        Call::post("/dbs/shop/users", r#"{"id":"bob"}"#),
        Call::post("/admin/ttl", r#"{"sweeping":"paused"}"#),
        as_query(Call::post("/admin/ttl", r#"{"sweeping":"paused"}"#)),
        as_query(clearing(&carts).key(&json!("k"))),
        clearing(&carts).key(&json!("k")),
    ] {
        reader.ask(call).await.expect(403);
    }
    cluster.client(1).ask(Call::get("/")).await.expect(401);
    let log = cluster.log(1);
    assert!(!log.contains(KEY_B) && !log.contains(KEY_C), "a key stands in the log:\n{log}");
}

/// A container, and a token to read it.
async fn container_and_token(client: &Client) -> (Container, String) {
    let carts = Container::new("shop", "carts");
    client.create_database("shop").await.expect(201);
    client.create_container(&carts, json!({})).await.expect(201);
    client.ask(Call::post("/dbs/shop/users", r#"{"id":"ada"}"#)).await.expect(201);
    let definition =
        json!({ "id": "p", "permissionMode": "Read", "resource": "dbs/shop/colls/carts" });
    let created = Call::post("/dbs/shop/users/ada/permissions", definition.to_string());
    let created = client.ask(created).await.expect(201).json();
    (carts, created["_token"].as_str().expect("a permission has a token").to_string())
}

#[tokio::test]
async fn keys_in_files_are_changed_without_a_pause() {
    let directory = tempfile::tempdir().expect("the temporary directory is writable");
    let files = ["primary", "secondary"].map(|name| directory.path().join(name));
    let write = |keys: [&str; 2]| {
        for (file, key) in files.iter().zip(keys) {
            std::fs::write(file, key).expect("the file can be written");
        }
    };
    write([KEY_B, KEY_B]);
    let [primary, secondary] = files.each_ref().map(|file| file.to_str().expect("it is text"));
    let arguments = ["--key-file", primary, "--secondary-key-file", secondary, "--log", "trace"];
    let mut cluster = Cluster::alone_with(&arguments);
    cluster.restart(1).await;
    let [old, new] = [KEY_B, KEY_C].map(|key| cluster.client(1).with_key(AccountKey::parse(key)));
    let opens = async |client: &Client| client.ask(Call::get("/dbs")).await.status == 200;
    assert!(opens(&old).await && !opens(&new).await);
    let until = async |what: &str, client: &Client, state: bool| {
        let looking = async || (opens(client).await == state).then_some(());
        wait::until(what, RELOAD_DEADLINE, looking).await;
    };
    // The new key is found without being told of.
    write([KEY_B, KEY_C]);
    until("the new key to be found", &new, true).await;
    assert!(opens(&old).await, "the old key still works");
    let (carts, token) = container_and_token(&old).await;
    with_token(&new, &token, Call::get(carts.path())).await.expect(200);
    // SIGHUP makes it quick; a file that cannot be used changes nothing.
    write([KEY_C, "no key"]);
    cluster.hang_up(1);
    let complaint = async || cluster.log(1).contains("is not base64").then_some(());
    wait::until("the node to complain", RELOAD_DEADLINE, complaint).await;
    assert!(opens(&old).await && opens(&new).await);
    with_token(&new, &token, Call::get(carts.path())).await.expect(200);
    write([KEY_C, KEY_C]);
    cluster.hang_up(1);
    until("the old key to be forgotten", &old, false).await;
    // What was made with a key that is forgotten is worth nothing.
    with_token(&new, &token, Call::get(carts.path())).await.expect(401);
    new.ask(Call::get("/dbs/shop")).await.expect(200);
    let log = cluster.log(1);
    let (_, seal) = token.rsplit_once("sig=").expect("a token is sealed");
    for secret in [KEY_B, KEY_C, seal] {
        assert!(!log.contains(secret), "the log says {secret}");
    }
}
