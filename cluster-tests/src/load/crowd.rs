//! Very many clients at once, each with a connection of its own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;

use super::{Connection, Request, Signed};
use crate::client::{AccountKey, Container};
use crate::clock;

/// Connections that are being made at the same time: what waits for a listener in the kernel is no more
/// than a few thousand.
const OPENING_MAX: usize = 500;
/// How long a client waits before it tries again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// How long it waits for one answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// What the process may have open beside the crowd's connections.
const DESCRIPTORS_KEPT: usize = 1000;

/// Clients that are connected.
pub struct Crowd {
    members: Vec<(SocketAddr, Connection)>,
}

impl Crowd {
    /// As many as there may be connections from here, at most `count`.
    pub fn most(count: usize) -> usize {
        let maximum = getrlimit(Resource::Nofile).maximum;
        // Nothing is lost if it may not be raised.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        count.min(limit.saturating_sub(DESCRIPTORS_KEPT))
    }

    /// Connects so many clients with these nodes in turns; each is answered once, and then idle.
    pub async fn gather(nodes: &[SocketAddr], count: usize, deadline: Duration) -> Self {
        let until = clock::monotonic() + deadline;
        let (mut opening, mut members) = (JoinSet::new(), Vec::with_capacity(count));
        let mut targets = nodes.iter().copied().cycle().take(count);
        loop {
            while opening.len() < OPENING_MAX
                && let Some(node) = targets.next()
            {
                opening.spawn(async move { (node, connect(node, until).await) });
            }
            match opening.join_next().await {
                Some(opened) => members.push(opened.expect("clients do not panic")),
                None => return Self { members },
            }
        }
    }

    /// How many of those connected with one of these nodes are still answered.
    pub async fn count_answered(&mut self, nodes: &[SocketAddr]) -> usize {
        let mut answered = 0;
        for (_, connection) in self.members.iter_mut().filter(|(node, _)| nodes.contains(node)) {
            answered += usize::from(is_alive(connection).await);
        }
        answered
    }

    /// Connections with one of these nodes.
    pub fn count(&self, nodes: &[SocketAddr]) -> usize {
        self.members.iter().filter(|(node, _)| nodes.contains(node)).count()
    }
}

/// Has so many clients come at once, each of whom reads an item from one of these nodes until it is
/// answered; how long that took the last of them.
pub async fn storm(
    nodes: &[SocketAddr],
    container: &Container,
    count: usize,
    deadline: Duration,
) -> Duration {
    let begun = clock::monotonic();
    let path = container.item("nobody");
    let signed = Signed::new(&AccountKey::emulator(), "GET", &path, clock::wall());
    let read = |node: &SocketAddr| {
        let headers = [
            ("x-ms-date", signed.date.as_str()),
            ("authorization", &signed.authorization),
            ("x-ms-documentdb-partitionkey", r#"["nobody"]"#),
        ];
        Request::new(&format!("GET {path}"), *node, &headers, b"")
    };
    let requests: Vec<(SocketAddr, Request)> =
        nodes.iter().map(|node| (*node, read(node))).collect();
    let mut clients = JoinSet::new();
    for number in 0..count {
        let (node, request) = requests[number % requests.len()].clone();
        let until = begun + deadline;
        clients.spawn(insist(move || read_once(node, request.clone()), until));
    }
    while let Some(ended) = clients.join_next().await {
        let answered = ended.expect("clients do not panic");
        assert!(answered.is_some(), "a client of {count} was not answered within {deadline:?}");
    }
    begun.elapsed()
}

async fn connect(node: SocketAddr, until: Instant) -> Connection {
    let connected = insist(move || connect_once(node), until).await;
    connected.unwrap_or_else(|| panic!("{node} does not take a client in"))
}

async fn connect_once(node: SocketAddr) -> Option<Connection> {
    let mut connection = Connection::open(node).await.ok()?;
    is_alive(&mut connection).await.then_some(connection)
}

async fn read_once(node: SocketAddr, request: Request) -> Option<()> {
    let mut connection = Connection::open(node).await.ok()?;
    let status = connection.exchange(request.bytes()).await.ok()?;
    matches!(status, 200 | 404).then_some(())
}

async fn is_alive(connection: &mut Connection) -> bool {
    const ALIVE: &[u8] = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let answer = tokio::time::timeout(PATIENCE, connection.exchange(ALIVE)).await;
    matches!(answer, Ok(Ok(200)))
}

/// Tries again and again until something comes of it; none if it is too late.
async fn insist<T, F: Future<Output = Option<T>>>(
    mut attempt: impl FnMut() -> F,
    until: Instant,
) -> Option<T> {
    while clock::monotonic() < until {
        if let Ok(Some(found)) = tokio::time::timeout(PATIENCE, attempt()).await {
            return Some(found);
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
    None
}
