//! Two nodes talk over loopback: order, refusals, deadlines, coming back.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use ephemeris_raft::Router;
use ephemeris_store::catalog::ClusterId;
use futures_util::future::BoxFuture;
use tokio::net::TcpListener;

use super::server::{GREETING_DEADLINE, GREETINGS_MAX};
use super::tcp::Door;
use super::*;
use crate::platform::{Arriving, Listener, Stream};
use crate::tls::{PeerKeys, new_peer_key};

struct Echo;

impl RequestHandler for Echo {
    fn handle(
        &self,
        from: NodeId,
        request: Bytes,
    ) -> Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>> {
        Box::pin(async move {
            match &request[..] {
                b"refuse" => Err(format!("node {from} is refused")),
                b"hang" => std::future::pending().await,
                _ => Ok(request),
            }
        })
    }
}

const DEADLINE: Duration = Duration::from_secs(5);

async fn server(tasks: &Tasks, cluster: u128, known: Option<u128>) -> String {
    server_with(tasks, cluster, known, Arc::new(Echo)).await
}

async fn server_with(
    tasks: &Tasks,
    cluster: u128,
    known: Option<u128>,
    handler: Arc<dyn RequestHandler>,
) -> String {
    let identity = LocalIdentity::new(NodeId(2), 2, Some(ClusterId(cluster)));
    identity.set_directories(known.map(|directory| (NodeId(1), directory)).into_iter().collect());
    server_behind(tasks, identity, handler, None).await
}

async fn server_behind(
    tasks: &Tasks,
    identity: LocalIdentity,
    handler: Arc<dyn RequestHandler>,
    keys: Option<Arc<PeerKeys>>,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    serve(tasks, Box::new(Door { listener, keys }), identity, Router::new(), handler);
    address
}

fn client(tasks: &Tasks, address: String) -> PeerTransport {
    client_with(tasks, address, None)
}

fn client_with(tasks: &Tasks, address: String, keys: Option<Arc<PeerKeys>>) -> PeerTransport {
    let identity = LocalIdentity::new(NodeId(1), 1, Some(ClusterId(7)));
    let addresses = (BTreeMap::from([(NodeId(2), address)]), BTreeMap::new());
    PeerTransport::new(tasks.clone(), Arc::new(Tcp { keys }), identity, addresses)
}

async fn call(client: &PeerTransport, message: &'static [u8]) -> Result<Bytes, TransportError> {
    client.send(NodeId(2), Channel::Requests, Bytes::from_static(message), DEADLINE).await
}

#[tokio::test]
async fn requests_are_answered_and_refused() {
    let tasks = Tasks::new();
    let client = client(&tasks, server(&tasks, 7, Some(1)).await);
    assert_eq!(call(&client, b"hello").await.unwrap(), "hello");
    let refused = call(&client, b"refuse").await.unwrap_err();
    assert!(matches!(refused, TransportError::Refused { reason, .. } if reason.contains("node 1")));
    tasks.stop().await;
}

#[tokio::test]
async fn many_requests_share_a_connection() {
    let tasks = Tasks::new();
    let client = client(&tasks, server(&tasks, 7, None).await);
    let calls = (0..1000_u32).map(|number| {
        let message = Bytes::from(number.to_be_bytes().to_vec());
        let call = client.send(NodeId(2), Channel::Requests, message.clone(), DEADLINE);
        async move { assert_eq!(call.await.unwrap(), message) }
    });
    futures_util::future::join_all(calls).await;
    tasks.stop().await;
}

/// Never answers; every request under way holds the token.
struct Hanging(Arc<()>);

impl RequestHandler for Hanging {
    fn handle(
        &self,
        _from: NodeId,
        _request: Bytes,
    ) -> Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>> {
        let token = self.0.clone();
        Box::pin(async move {
            let never = std::future::pending().await;
            drop(token);
            never
        })
    }
}

#[tokio::test]
async fn nobody_works_for_a_caller_that_gave_up() {
    let tasks = Tasks::new();
    let token = Arc::new(());
    let handler = Arc::new(Hanging(token.clone()));
    let client = client(&tasks, server_with(&tasks, 7, None, handler).await);
    let deadline = Duration::from_millis(200);
    let call = client.send(NodeId(2), Channel::Requests, Bytes::from_static(b"work"), deadline);
    let count_is = |count: usize| {
        let token = &token;
        tokio::time::timeout(DEADLINE, async move {
            while Arc::strong_count(token) != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    };
    let (answer, begun) = tokio::join!(call, count_is(3));
    begun.expect("it is under way: test, handler and request hold the token");
    assert!(matches!(answer, Err(TransportError::NoAnswer { .. })), "{answer:?}");
    count_is(2).await.expect("it ends");
    tasks.stop().await;
}

#[tokio::test]
async fn a_request_without_an_answer_ends_at_its_deadline() {
    let tasks = Tasks::new();
    let client = client(&tasks, server(&tasks, 7, None).await);
    let deadline = Duration::from_millis(50);
    let message = Bytes::from_static(b"hang");
    let result = client.send(NodeId(2), Channel::Requests, message, deadline).await;
    assert!(matches!(result, Err(TransportError::NoAnswer { .. })));
    assert_eq!(call(&client, b"still alive").await.unwrap(), "still alive");
    tasks.stop().await;
}

#[tokio::test]
async fn another_cluster_is_refused() {
    let tasks = Tasks::new();
    let client = client(&tasks, server(&tasks, 8, None).await);
    assert_eq!(call(&client, b"hello").await, Err(TransportError::Unreachable(NodeId(2))));
    tasks.stop().await;
}

#[tokio::test]
async fn a_node_is_dialled_where_the_settings_say_whatever_it_says_itself() {
    let tasks = Tasks::new();
    let address = server(&tasks, 7, None).await;
    let identity = LocalIdentity::new(NodeId(1), 1, Some(ClusterId(7)));
    let nowhere = "127.0.0.1:1".to_string();
    let founders = BTreeMap::from([(NodeId(2), nowhere.clone())]);
    let dial = BTreeMap::from([(NodeId(2), address)]);
    let client =
        PeerTransport::new(tasks.clone(), Arc::new(Tcp { keys: None }), identity, (founders, dial));
    client.set_address(NodeId(2), &nowhere);
    assert_eq!(call(&client, b"hello").await, Ok(Bytes::from_static(b"hello")));
    tasks.stop().await;
}

#[tokio::test]
async fn another_node_at_the_address_is_refused() {
    let tasks = Tasks::new();
    let address = server(&tasks, 7, None).await;
    let identity = LocalIdentity::new(NodeId(1), 1, Some(ClusterId(7)));
    let nodes = (BTreeMap::from([(NodeId(3), address)]), BTreeMap::new());
    let client = PeerTransport::new(tasks.clone(), Arc::new(Tcp { keys: None }), identity, nodes);
    let answer = client.send(NodeId(3), Channel::Requests, Bytes::new(), DEADLINE).await;
    assert_eq!(answer, Err(TransportError::Unreachable(NodeId(3))));
    tasks.stop().await;
}

#[test]
fn a_node_with_other_data_may_ask_but_not_vote() {
    let identity = LocalIdentity::new(NodeId(2), 2, Some(ClusterId(7)));
    identity.set_directories(BTreeMap::from([(NodeId(1), 5)]));
    let stranger = LocalIdentity::new(NodeId(1), 6, None);
    for lane in [Lane::Append, Lane::Control, Lane::Snapshot] {
        assert!(identity.check(&stranger.hello(Channel::Raft(lane))).is_err());
    }
    assert!(identity.check(&stranger.hello(Channel::Requests)).is_ok());
    let known = LocalIdentity::new(NodeId(1), 5, None);
    assert!(identity.check(&known.hello(Channel::Raft(Lane::Append))).is_ok());
}

#[test]
fn a_node_that_the_catalog_shows_here_has_not_lost_its_data_whatever_an_old_copy_says() {
    let old_copy = LocalIdentity::new(NodeId(2), 2, Some(ClusterId(7)));
    old_copy.set_directories(BTreeMap::from([(NodeId(1), 5)]));
    let rebuilt = LocalIdentity::new(NodeId(1), 6, Some(ClusterId(7)));
    let refused = old_copy.check(&rebuilt.hello(Channel::Raft(Lane::Control))).unwrap_err();
    assert!(rebuilt.has_lost_data(&refused), "nothing shows that it was registered");
    rebuilt.set_directories(BTreeMap::from([(NodeId(1), 5)]));
    assert!(rebuilt.has_lost_data(&refused));
    rebuilt.set_directories(BTreeMap::from([(NodeId(1), 6)]));
    assert!(!rebuilt.has_lost_data(&refused));
    let other = LocalIdentity::new(NodeId(3), 3, Some(ClusterId(7)));
    assert!(!other.has_lost_data(&refused), "it is about another node");
}

#[tokio::test]
async fn unknown_and_dead_nodes_are_unreachable_and_come_back() {
    let tasks = Tasks::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let client = client(&tasks, address.clone());
    let nobody = client.send(NodeId(9), Channel::Requests, Bytes::new(), DEADLINE).await;
    assert_eq!(nobody, Err(TransportError::Unreachable(NodeId(9))));
    assert_eq!(call(&client, b"hello").await, Err(TransportError::Unreachable(NodeId(2))));
    let other = server(&tasks, 7, None).await;
    client.set_address(NodeId(2), &other);
    assert_eq!(call(&client, b"hello").await.unwrap(), "hello");
    tasks.stop().await;
}

/// What a node with these keys talks with; without any there is no file.
fn keys(keys: &[&str]) -> Option<Arc<PeerKeys>> {
    if keys.is_empty() {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("peer-key.pem");
    std::fs::write(&file, keys.concat()).unwrap();
    Some(Arc::new(PeerKeys::load(file).unwrap()))
}

/// Whether a node with some keys is answered by one with others.
async fn is_answered(ours: Option<Arc<PeerKeys>>, theirs: Option<Arc<PeerKeys>>) -> bool {
    let tasks = Tasks::new();
    let identity = LocalIdentity::new(NodeId(2), 2, Some(ClusterId(7)));
    let address = server_behind(&tasks, identity, Arc::new(Echo), theirs).await;
    let answer = call(&client_with(&tasks, address, ours), b"hello").await;
    assert!(matches!(answer, Ok(_) | Err(TransportError::Unreachable(_))), "{answer:?}");
    tasks.stop().await;
    answer.is_ok()
}

#[tokio::test]
async fn nodes_with_a_common_key_talk_and_no_others() {
    let [one, other] = [new_peer_key(), new_peer_key()];
    assert!(is_answered(keys(&[&one]), keys(&[&one])).await);
    assert!(!is_answered(keys(&[&other]), keys(&[&one])).await, "another key");
    assert!(!is_answered(keys(&[]), keys(&[&one])).await, "no key");
    assert!(!is_answered(keys(&[&one]), keys(&[])).await, "nobody there has one");
}

#[tokio::test]
async fn one_key_follows_another_node_by_node() {
    let [old, new] = [new_peer_key(), new_peer_key()];
    let steps: [&[&str]; 4] = [&[&old], &[&old, &new], &[&new, &old], &[&new]];
    for pair in steps.windows(2) {
        let [before, after] = [keys(pair[0]), keys(pair[1])];
        assert!(is_answered(before.clone(), after.clone()).await);
        assert!(is_answered(after, before).await);
    }
    assert!(!is_answered(keys(steps[3]), keys(steps[0])).await, "the old one no longer counts");
}

#[tokio::test]
async fn large_messages_pass_encrypted_in_both_directions_at_once() {
    let (tasks, keys) = (Tasks::new(), keys(&[&new_peer_key()]));
    let identity = LocalIdentity::new(NodeId(2), 2, Some(ClusterId(7)));
    let address = server_behind(&tasks, identity, Arc::new(Echo), keys.clone()).await;
    let client = client_with(&tasks, address, keys);
    let calls = (1..=20_u8).map(|number| {
        let message = Bytes::from(vec![number; usize::from(number) << 17]);
        let call = client.send(NodeId(2), Channel::Requests, message.clone(), DEADLINE);
        async move { assert!(call.await.unwrap() == message) }
    });
    futures_util::future::join_all(calls).await;
    tasks.stop().await;
}

/// A door at which strangers stand who say nothing.
struct Silence {
    strangers: Vec<tokio::io::DuplexStream>,
    let_in: Arc<AtomicUsize>,
}

impl Listener for Silence {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Arriving>> {
        let (near, far) = tokio::io::duplex(64);
        self.strangers.push(far);
        self.let_in.store(self.strangers.len(), Ordering::SeqCst);
        if self.strangers.len() > 10 * GREETINGS_MAX {
            return Box::pin(std::future::pending());
        }
        let (reader, writer) = tokio::io::split(near);
        let stream = Stream { reader: Box::new(reader), writer: Box::new(writer) };
        let arriving: Arriving = Box::pin(std::future::ready(Ok(stream)));
        Box::pin(std::future::ready(Ok(arriving)))
    }
}

#[tokio::test(start_paused = true)]
async fn so_many_who_say_nothing_are_waited_for_at_once_and_not_for_long() {
    let (tasks, let_in) = (Tasks::new(), Arc::new(AtomicUsize::new(0)));
    let silence = Silence { strangers: Vec::new(), let_in: let_in.clone() };
    let identity = LocalIdentity::new(NodeId(2), 2, None);
    serve(&tasks, Box::new(silence), identity, Router::new(), Arc::new(Echo));
    for rounds in 1..4 {
        tokio::time::sleep(GREETING_DEADLINE / 2).await;
        assert_eq!(let_in.load(Ordering::SeqCst), rounds * GREETINGS_MAX);
        tokio::time::sleep(GREETING_DEADLINE / 2).await;
    }
    tasks.stop().await;
}

#[tokio::test]
async fn who_has_said_who_it_is_takes_no_place_from_others() {
    let tasks = Tasks::new();
    let address = server(&tasks, 7, None).await;
    let mut clients = Vec::new();
    for _ in 0..=GREETINGS_MAX {
        let client = client(&tasks, address.clone());
        assert_eq!(call(&client, b"hello").await.unwrap(), "hello");
        clients.push(client);
    }
    tasks.stop().await;
}
