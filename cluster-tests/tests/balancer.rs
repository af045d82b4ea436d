//! A cluster behind a load balancer, whose address is all that clients know.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ephemeris_cluster_tests::client::{AccountKey, Answer, Call, Client, Container};
use ephemeris_cluster_tests::cluster::Cluster;
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const TOKEN: &str = "x-ms-session-token";
const ITEMS: u32 = 30;

/// Passes connections on to one node after the other; those that do not take them are left out.
async fn balance(listener: TcpListener, nodes: Vec<SocketAddr>) {
    let mut connections = JoinSet::new();
    for first in 0.. {
        let Ok((mut client, _)) = listener.accept().await else { return };
        let mut turn = nodes.clone();
        turn.rotate_left(first % nodes.len());
        connections.spawn(async move {
            for node in turn {
                if let Ok(mut node) = TcpStream::connect(node).await {
                    let _ = copy_bidirectional(&mut client, &mut node).await;
                    return;
                }
            }
        });
    }
}

/// The same account through a new connection, and so another node.
fn client(url: &str) -> Client {
    Client::new(url, AccountKey::emulator())
}

fn token(answer: &Answer) -> String {
    answer.header(TOKEN).expect("items' answers have tokens").to_string()
}

fn locations(account: &Value, kind: &str) -> Vec<Value> {
    let locations = account[kind].as_array().expect("locations are listed");
    locations.iter().map(|location| location["databaseAccountEndpoint"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_load_balancer_are_told_of_nothing_else_and_read_what_they_wrote() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let arguments = ["--consistency", "Session", "--account-endpoint", &url];
    let mut cluster = Cluster::formable_with(3, &arguments);
    cluster.start_all().await;
    let nodes = cluster.ids().into_iter().map(|node| cluster.address(node)).collect();
    let mut balancer = JoinSet::new();
    balancer.spawn(balance(listener, nodes));

    let only = [json!(url.clone() + "/")];
    for node in cluster.ids() {
        let account = cluster.client(node).ask(Call::get("/")).await.expect(200).json();
        assert_eq!(locations(&account, "writableLocations"), only);
        assert_eq!(locations(&account, "readableLocations"), only);
        assert_eq!(account["enableMultipleWriteLocations"], false);
    }

    let carts = Container::new("shop", "carts");
    client(&url).create_database("shop").await.expect(201);
    client(&url).create_container(&carts, json!({})).await.expect(201);
    let mut session = String::new();
    for n in 0..ITEMS {
        if n == ITEMS / 2 {
            let leader = cluster.leader(&carts).await;
            cluster.kill(leader);
            cluster.leader(&carts).await;
        }
        let item = json!({ "id": format!("i{n}"), "pk": "k" });
        session = token(&client(&url).create_item(&carts, &item).await.expect(201));
        for _ in 0..3 {
            let read = Call::get(carts.item(&format!("i{n}"))).key(&json!("k"));
            client(&url).ask(read.header(TOKEN, &session)).await.expect(200);
        }
    }
    let feed = Call::get(carts.items()).header("x-ms-max-item-count", "1000");
    let feed = client(&url).ask(feed.header(TOKEN, session)).await.expect(200).json();
    let items = feed["Documents"].as_array().expect("a page has rows");
    let ids: BTreeSet<String> = items.iter().map(|item| item["id"].to_string()).collect();
    assert_eq!(ids.len(), ITEMS as usize, "{ids:?}");
}
