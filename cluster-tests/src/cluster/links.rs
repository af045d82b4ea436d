//! What lies between nodes: a proxy for every ordered pair of them, which can hold, delay and cut what
//! one says to the other.
//!
//! A fault is of bytes and their direction: what node 1 says to node 2 goes forth on the connections
//! that 1 has made, and back on those that 2 has made.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::RngExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::ports::Port;

/// Bytes that are passed on at once.
const CHUNK_BYTES: usize = 64 << 10;

/// What becomes of bytes on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Passage {
    /// They arrive.
    #[default]
    Open,
    /// They arrive after some time, at most so long.
    Delayed(Duration),
    /// So many arrive in a second.
    Throttled(u32),
    /// Of a hundred packets so many are lost. Nothing can be lost of a stream.
    Lossy(u8),
    /// They wait. Whoever has sent them does not notice.
    Held,
    /// Half of them arrive, and then the connection ends.
    Cut,
}

/// A direction: from one node to another.
pub type Link = (u32, u32);

/// All links of a cluster.
pub(super) struct Links {
    ports: BTreeMap<Link, Port>,
    passages: BTreeMap<Link, watch::Sender<Passage>>,
    /// Bytes that did not just pass.
    touched: Arc<AtomicU64>,
    /// Ends with the cluster.
    proxies: JoinSet<()>,
}

impl Links {
    /// Links between nodes at these addresses.
    pub(super) fn new(nodes: &BTreeMap<u32, SocketAddr>) -> Self {
        let pairs = nodes.keys().flat_map(|from| nodes.keys().map(move |to| (*from, *to)));
        let pairs: Vec<Link> = pairs.filter(|(from, to)| from != to).collect();
        let ports: BTreeMap<Link, Port> = pairs.iter().map(|link| (*link, Port::take())).collect();
        let passages: BTreeMap<Link, watch::Sender<Passage>> =
            pairs.iter().map(|link| (*link, watch::Sender::new(Passage::Open))).collect();
        let (touched, mut proxies) = (Arc::default(), JoinSet::new());
        for ((from, to), port) in &ports {
            let way = |link: Link| Way {
                passage: passages[&link].subscribe(),
                touched: Arc::clone(&touched),
            };
            let (there, back) = (way((*from, *to)), way((*to, *from)));
            proxies.spawn(serve(port.address(), nodes[to], there, back));
        }
        Self { ports, passages, touched, proxies }
    }

    /// Where a node reaches all others: `2=127.0.0.1:12345,…`
    pub(super) fn dial_map(&self, from: u32) -> String {
        let own = self.ports.iter().filter(|((caller, _), _)| *caller == from);
        let all: Vec<String> =
            own.map(|((_, to), port)| format!("{to}={}", port.address())).collect();
        all.join(",")
    }

    pub(super) fn set(&self, link: Link, passage: Passage) {
        self.passages[&link].send_replace(passage);
    }

    /// How many bytes did not just pass, on all links so far.
    pub(super) fn touched(&self) -> u64 {
        self.touched.load(Ordering::Relaxed)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Link> {
        self.passages.keys().copied()
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.proxies.abort_all();
    }
}

/// What becomes of bytes of one direction.
#[derive(Clone)]
struct Way {
    passage: watch::Receiver<Passage>,
    touched: Arc<AtomicU64>,
}

async fn serve(at: SocketAddr, node: SocketAddr, there: Way, back: Way) {
    let listener = TcpListener::bind(at).await.expect("the port is ours");
    let mut connections = JoinSet::new();
    loop {
        let (caller, _) = listener.accept().await.expect("connections can be taken");
        while connections.try_join_next().is_some() {}
        let (there, back) = (there.clone(), back.clone());
        connections.spawn(async move {
            // However it ended, both ends learn of it.
            let _ = connect(caller, node, there, back).await;
        });
    }
}

async fn connect(caller: TcpStream, node: SocketAddr, there: Way, back: Way) -> io::Result<()> {
    let node = TcpStream::connect(node).await?;
    caller.set_nodelay(true)?;
    node.set_nodelay(true)?;
    let ((caller_says, caller_hears), (node_says, node_hears)) =
        (caller.into_split(), node.into_split());
    tokio::select! {
        ended = pass(caller_says, node_hears, there) => ended,
        ended = pass(node_says, caller_hears, back) => ended,
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, way: Way) -> io::Result<()> {
    let Way { mut passage, touched } = way;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let bytes = from.read(&mut chunk).await?;
        if bytes == 0 {
            return Ok(());
        }
        let mut is_touched = false;
        loop {
            let now = *passage.borrow_and_update();
            if !is_touched && !matches!(now, Passage::Open | Passage::Lossy(_)) {
                is_touched = true;
                touched.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            match now {
                Passage::Open | Passage::Lossy(_) => break,
                Passage::Delayed(most) => {
                    let part = rand::rng().random_range(0.0..1.0);
                    tokio::time::sleep(most.mul_f64(part)).await;
                    break;
                }
                Passage::Throttled(bytes_per_second) => {
                    let bytes = u32::try_from(bytes).expect("a chunk is small");
                    let each = Duration::from_secs(1) / bytes_per_second.max(1);
                    tokio::time::sleep(each * bytes).await;
                    break;
                }
                Passage::Held => {
                    if passage.changed().await.is_err() {
                        return Ok(());
                    }
                }
                Passage::Cut => {
                    to.write_all(&chunk[..bytes / 2]).await?;
                    return Ok(());
                }
            }
        }
        to.write_all(&chunk[..bytes]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes, the second of which says back what it hears.
    struct Nodes {
        links: Links,
        /// What 1 has to say to 2.
        stream: TcpStream,
        _echo: JoinSet<()>,
    }

    async fn two_nodes() -> Nodes {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut echo = JoinSet::new();
        echo.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (mut reader, mut writer) = stream.into_split();
                // It ends when the other side ends.
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            }
        });
        let nowhere = "127.0.0.1:1".parse().unwrap();
        let links = Links::new(&BTreeMap::from([(1, nowhere), (2, address)]));
        let proxy = links.ports[&(1, 2)].address();
        let stream = loop {
            match TcpStream::connect(proxy).await {
                Ok(stream) => break stream,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        Nodes { links, stream, _echo: echo }
    }

    async fn hear(stream: &mut TcpStream) -> Option<[u8; 4]> {
        let mut heard = [0; 4];
        let hearing = stream.read_exact(&mut heard);
        let heard_all = tokio::time::timeout(Duration::from_millis(200), hearing).await;
        heard_all.ok().map(|all| all.map(|_| heard).expect("the connection holds"))
    }

    #[tokio::test]
    async fn what_is_held_arrives_when_it_is_let_go() {
        for link in [(1, 2), (2, 1)] {
            let Nodes { links, mut stream, _echo } = two_nodes().await;
            stream.write_all(b"abcd").await.unwrap();
            assert_eq!(hear(&mut stream).await, Some(*b"abcd"));
            assert_eq!(links.touched(), 0, "{link:?}");
            links.set(link, Passage::Held);
            stream.write_all(b"efgh").await.unwrap();
            assert_eq!(hear(&mut stream).await, None, "{link:?}");
            links.set(link, Passage::Open);
            assert_eq!(hear(&mut stream).await, Some(*b"efgh"));
            assert_eq!(links.touched(), 4, "{link:?}");
        }
    }

    #[tokio::test]
    async fn what_is_cut_arrives_in_part() {
        let Nodes { links, mut stream, _echo } = two_nodes().await;
        links.set((1, 2), Passage::Cut);
        stream.write_all(b"abcd").await.unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await.unwrap();
        assert!(heard.len() <= 2, "{heard:?}");
    }

    #[test]
    fn a_node_dials_every_other() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _guard = runtime.enter();
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let links = Links::new(&(1..=3).map(|node| (node, at(1))).collect());
        let map = links.dial_map(2);
        assert!(map.starts_with("1=127.0.0.1:") && map.contains(",3=127.0.0.1:"), "{map}");
    }
}
