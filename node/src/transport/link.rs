//! One connection to another node: connects when needed, gives up fast, comes back with patience.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ephemeris_raft::{Answering, TransportError};
use ephemeris_store::codec;
use ephemeris_store::ids::NodeId;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::frame::{Frame, FrameReader, Kind};
use super::hello::{Hello, LocalIdentity, Refused};
use super::{Channel, WRITE_BYTES_TARGET};
use crate::platform::{Network, Reader, Stream, Writer};
use crate::supervisor::{self, Tasks};

/// Messages waiting for a connection; beyond that the node counts as unreachable.
const QUEUE_MESSAGES_MAX: usize = 8192;
/// Beyond so many unanswered requests, those whose callers gave up are forgotten.
const PENDING_MAX: usize = 8192;
/// How long connecting and greeting may take.
const CONNECT_DEADLINE: Duration = Duration::from_secs(1);
/// Pause after a failed attempt, doubled up to the second number. A node that is back is reached on all
/// of its links well before the next election.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_millis(200);

/// A connection to one node. Clones share it; it ends with its last clone.
#[derive(Clone)]
pub(super) struct Link {
    node: NodeId,
    queue: mpsc::Sender<Outgoing>,
    next: Arc<AtomicU64>,
}

struct Outgoing {
    number: u64,
    payload: Bytes,
    answer: oneshot::Sender<Result<Bytes, TransportError>>,
}

/// Requests that were written and not answered, in the order they were.
#[derive(Default)]
struct Pending(Mutex<BTreeMap<u64, oneshot::Sender<Result<Bytes, TransportError>>>>);

impl Pending {
    fn insert(&self, number: u64, answer: oneshot::Sender<Result<Bytes, TransportError>>) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.len() >= PENDING_MAX {
            pending.retain(|_, answer| !answer.is_closed());
        }
        pending.insert(number, answer);
    }

    fn resolve(&self, number: u64, result: Result<Bytes, TransportError>) {
        let answer = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        if let Some(answer) = answer {
            // Nobody waits any more if the deadline has passed.
            let _ = answer.send(result);
        }
    }
}

impl Link {
    pub(super) fn start(
        tasks: &Tasks,
        (node, channel): (NodeId, Channel),
        network: Arc<dyn Network>,
        address: String,
        identity: LocalIdentity,
    ) -> Self {
        let (queue, receiver) = mpsc::channel(QUEUE_MESSAGES_MAX);
        let connection = Connection { node, channel, network, address, identity, queue: receiver };
        tasks.spawn("peer link", connection.run());
        Self { node, queue, next: Arc::new(AtomicU64::new(1)) }
    }

    pub(super) fn call(&self, payload: Bytes, deadline: Duration) -> Answering {
        let (answer, receiver) = oneshot::channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let node = self.node;
        if self.queue.try_send(Outgoing { number, payload, answer }).is_err() {
            return Box::pin(async move { Err(TransportError::Unreachable(node)) });
        }
        Box::pin(async move {
            let no_answer = TransportError::NoAnswer { node, waited: deadline };
            match timeout(deadline, receiver).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) | Err(_) => Err(no_answer),
            }
        })
    }
}

struct Connection {
    node: NodeId,
    channel: Channel,
    network: Arc<dyn Network>,
    address: String,
    identity: LocalIdentity,
    queue: mpsc::Receiver<Outgoing>,
}

impl Connection {
    async fn run(mut self) {
        let mut backoff = BACKOFF_MIN;
        let mut failing = false;
        // The connection is made for the first message, and again for the first after it broke.
        while let Some(first) = self.queue.recv().await {
            match self.connect().await {
                Ok((reader, writer)) => {
                    if failing {
                        info!(node = %self.node, "connected again");
                    }
                    (backoff, failing) = (BACKOFF_MIN, false);
                    let error = self.exchange(first, reader, writer).await;
                    debug!(node = %self.node, %error, "connection ended");
                }
                Err(error) => {
                    if !failing {
                        warn!(node = %self.node, address = self.address, %error, "cannot connect");
                    }
                    failing = true;
                    self.refuse(first);
                    self.refuse_for(jittered(backoff)).await;
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                }
            }
        }
    }

    fn refuse(&self, message: Outgoing) {
        // Nobody waits any more if the deadline has passed.
        let _ = message.answer.send(Err(TransportError::Unreachable(self.node)));
    }

    /// Refuses messages at once for a while, instead of letting them wait for a dead node.
    async fn refuse_for(&mut self, pause: Duration) {
        let refusing = async {
            while let Some(message) = self.queue.recv().await {
                let _ = message.answer.send(Err(TransportError::Unreachable(self.node)));
            }
        };
        let _ = timeout(pause, refusing).await;
    }

    async fn connect(&self) -> io::Result<(FrameReader<Reader>, Writer)> {
        let attempt = async {
            let Stream { reader, mut writer } = self.network.connect(&self.address).await?;
            let mut greeting = BytesMut::new();
            let payload = Bytes::from(codec::encode(&self.identity.hello(self.channel)));
            Frame { kind: Kind::Hello, number: 0, payload }.write(&mut greeting);
            writer.write_all(&greeting).await?;
            writer.flush().await?;
            let mut reader = FrameReader::new(reader);
            let answer = reader.next().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let welcome: Result<Hello, Refused> =
                codec::decode(&answer.payload).map_err(io::Error::other)?;
            match welcome.and_then(|hello| self.identity.check_answer(self.node, &hello)) {
                Ok(()) => Ok((reader, writer)),
                Err(refused) => {
                    self.refused(&refused);
                    Err(io::Error::other(refused))
                }
            }
        };
        timeout(CONNECT_DEADLINE, attempt).await.map_err(|_| io::ErrorKind::TimedOut)?
    }

    /// A node without the data it is known for must not go on: its votes would be lies.
    fn refused(&self, refused: &Refused) {
        if self.identity.has_lost_data(refused) {
            supervisor::fault(&refused.to_string());
        }
    }

    /// Writes messages and reads answers until either fails; returns why it ended.
    async fn exchange(
        &mut self,
        first: Outgoing,
        mut reader: FrameReader<Reader>,
        mut writer: Writer,
    ) -> io::Error {
        let pending = Pending::default();
        let node = self.node;
        let queue = &mut self.queue;
        let write = async {
            let mut next = Some(first);
            let mut out = BytesMut::new();
            while let Some(message) = next {
                put(&pending, &mut out, message);
                while out.len() < WRITE_BYTES_TARGET
                    && let Ok(message) = queue.try_recv()
                {
                    put(&pending, &mut out, message);
                }
                writer.write_all(&out).await?;
                writer.flush().await?;
                out.clear();
                next = queue.recv().await;
            }
            Err::<(), io::Error>(io::Error::other("the link was dropped"))
        };
        let read = async {
            while let Some(frame) = reader.next().await? {
                let result = match frame.kind {
                    Kind::Answer => Ok(frame.payload),
                    Kind::Refusal => {
                        let reason = String::from_utf8_lossy(&frame.payload).into_owned();
                        Err(TransportError::Refused { node, reason })
                    }
                    Kind::Hello | Kind::Request => {
                        return Err(io::Error::other("an answer was expected"));
                    }
                };
                pending.resolve(frame.number, result);
            }
            Err::<(), io::Error>(io::ErrorKind::ConnectionAborted.into())
        };
        // What is pending is dropped with the connection: its callers learn that no answer came.
        let ended = tokio::select! {
            ended = write => ended,
            ended = read => ended,
        };
        ended.err().unwrap_or_else(|| io::Error::other("ended"))
    }
}

fn put(pending: &Pending, out: &mut BytesMut, message: Outgoing) {
    let Outgoing { number, payload, answer } = message;
    if answer.is_closed() {
        return;
    }
    pending.insert(number, answer);
    Frame { kind: Kind::Request, number, payload }.write(out);
}

fn jittered(pause: Duration) -> Duration {
    use rand::RngExt as _;

    pause.mul_f64(ephemeris_raft::random().random_range(0.5..1.5))
}
