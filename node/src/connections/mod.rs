//! Serves the connections of clients, and ends those of clients that keep it waiting.
//!
//! 1. A connection is taken in as soon as there are not too many of them.
//! 2. Its client has so long to send the head of a request, and may rest as long between two.
//! 3. A client that says nothing, or does not take what it is sent, is sent away: `patience`. Over HTTP/2
//!    it loses the answer that it does not take.
//! 4. When the node stops, requests under way are answered; then the connections close.

mod patience;
mod room;

use std::convert::Infallible;
use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use axum::serve::Listener;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use patience::{HeadTimer, Patient};
pub(crate) use room::{CONNECTIONS_MAX, Room};

/// How long the head of a request may take over HTTP/1.1, from its first byte or from the answer
/// before. Longer than most clients keep a connection they do not use.
const HEAD_DEADLINE: Duration = Duration::from_secs(75);
/// Bytes of the head of a request over HTTP/1.1, and what is read at once of its body. It is kept for every
/// connection, before anybody has shown a key; the longest head that means anything takes a tenth of it.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How long neither side may say anything, beside the time that a request may take.
const SILENCE_MAX: Duration = Duration::from_mins(2);
/// How long a client may take nothing of what it is sent.
const STALL_MAX: Duration = Duration::from_secs(30);

/// How long a request over HTTP/2 may take, until its client has taken the answer: a client that shuts the
/// window of one stream keeps the connection going, and `STALL_MAX` does not see it. The largest answer
/// comes through in time at 14 KB/s.
const STREAM_MAX: Duration = Duration::from_mins(5);

/// Who answers requests. Clones do the same.
pub(crate) trait Answer:
    Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S> Answer for S where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// Answers clients, so many at a time, until it is told to stop, and until they have their last answers.
pub(crate) async fn serve<L>(
    (mut listener, connections_max): (L, usize),
    service: impl Answer,
    request_timeout: Duration,
    stop: CancellationToken,
) where
    L: Listener,
    L::Addr: Debug,
{
    let mut connections = JoinSet::new();
    loop {
        let has_room = connections.len() < connections_max;
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = connections.join_next() => report(ended),
            (stream, client) = listener.accept(), if has_room => {
                let stream = Patient::new(stream, request_timeout + SILENCE_MAX, STALL_MAX);
                let (service, stop) = (service.clone(), stop.clone());
                connections.spawn(async move {
                    let ended = converse(stream, service, stop).await;
                    debug!(?client, ?ended, "a connection has ended");
                });
            }
        }
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        report(ended);
    }
}

/// One request that breaks an invariant takes its own connection along, and no other.
fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        error!(%error, "a connection was given up");
    }
}

/// Carries the requests of a connection over HTTP/2, which end with their time; the client is told by a
/// reset.
#[derive(Clone)]
struct Streams(TokioExecutor);

impl<F> Executor<F> for Streams
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.execute(tokio::time::timeout(STREAM_MAX, stream));
    }
}

/// Answers the requests of one connection, HTTP/1.1 or HTTP/2 as it begins.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: impl Answer,
    stop: CancellationToken,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut builder = Builder::new(Streams(TokioExecutor::new()));
    let mut http1 = builder.http1();
    http1.timer(HeadTimer::default()).header_read_timeout(HEAD_DEADLINE);
    http1.max_buf_size(HEAD_BYTES_MAX);
    builder.http2().timer(TokioTimer::new());
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // All connections share what a token is made of: by itself it is looked at only when it has something to say.
    let mut stopping = FuturesUnordered::from_iter([stop.cancelled()]);
    tokio::select! {
        biased;
        ended = connection.as_mut() => return ended,
        Some(()) = stopping.next() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use hyper_util::service::TowerToHyperService;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::sync::{Notify, mpsc};

    use super::*;
    use crate::clock;

    const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
    /// Bytes between client and server that nobody has read yet.
    const WIRE_BYTES: usize = 1024;
    const LONG_BYTES: usize = 100 * WIRE_BYTES;
    const REQUEST: &[u8] = b"GET /short HTTP/1.1\r\nhost: h\r\n\r\n";

    /// A listener whose connections are made by the test.
    struct Door(mpsc::Receiver<DuplexStream>);

    impl Listener for Door {
        type Io = DuplexStream;
        type Addr = ();

        async fn accept(&mut self) -> (DuplexStream, ()) {
            match self.0.recv().await {
                Some(stream) => (stream, ()),
                None => std::future::pending().await,
            }
        }

        fn local_addr(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    struct World {
        door: mpsc::Sender<DuplexStream>,
        stop: CancellationToken,
        /// Lets those who ask for `/held` have their answer.
        release: std::sync::Arc<Notify>,
        serving: JoinSet<()>,
    }

    impl World {
        fn new() -> Self {
            Self::with_room(100)
        }

        /// A server that takes so many connections at a time.
        fn with_room(most: usize) -> Self {
            let (door, connections) = mpsc::channel(1);
            let (stop, release) = (CancellationToken::new(), std::sync::Arc::new(Notify::new()));
            let held = release.clone();
            let held = async move || {
                held.notified().await;
                "held"
            };
            let router = Router::new()
                .route("/short", get(async || "short"))
                .route("/long", get(async || "x".repeat(LONG_BYTES)))
                .route("/held", get(held));
            let mut serving = JoinSet::new();
            let service = TowerToHyperService::new(router);
            serving.spawn(serve((Door(connections), most), service, REQUEST_TIMEOUT, stop.clone()));
            Self { door, stop, release, serving }
        }

        async fn connect(&self) -> DuplexStream {
            let (client, server) = duplex(WIRE_BYTES);
            self.door.send(server).await.unwrap();
            client
        }
    }

    /// Reads until the server hangs up; answers how much came, and how long it took.
    async fn read_to_end(client: &mut DuplexStream) -> (Vec<u8>, Duration) {
        let (started, mut bytes) = (clock::monotonic(), Vec::new());
        // The server may hang up in the middle of something.
        let _ = client.read_to_end(&mut bytes).await;
        (bytes, started.elapsed())
    }

    fn is_about(found: Duration, expected: Duration) -> bool {
        (expected..expected + Duration::from_secs(2)).contains(&found)
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_sent_away() {
        let world = World::new();
        let mut client = world.connect().await;
        let (bytes, elapsed) = read_to_end(&mut client).await;
        assert!(bytes.is_empty());
        assert!(is_about(elapsed, REQUEST_TIMEOUT + SILENCE_MAX), "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_a_head_in_drops_is_sent_away() {
        let world = World::new();
        let mut client = world.connect().await;
        let started = clock::monotonic();
        let mut head = b"GET /short HTTP/1.1\r\nx: ".iter().chain(std::iter::repeat(&b'x'));
        while client.write_all(&[*head.next().unwrap()]).await.is_ok() {
            assert!(started.elapsed() < 2 * HEAD_DEADLINE, "nobody hangs up");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(is_about(started.elapsed(), HEAD_DEADLINE), "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_a_head_without_end_is_refused() {
        let world = World::new();
        let (mut reader, mut writer) = tokio::io::split(world.connect().await);
        let head = |bytes: usize| {
            let start = b"GET /short HTTP/1.1\r\nhost: h\r\nx: ";
            [&start[..], &vec![b'x'; bytes]].concat()
        };
        let (long, mut answer) = (head(HEAD_BYTES_MAX + (6 << 10)), Vec::new());
        let sending = writer.write_all(&long);
        // It hangs up before it has read everything.
        let _ = tokio::join!(sending, reader.read_to_end(&mut answer));
        assert!(answer.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&answer));

        let mut client = world.connect().await;
        client.write_all(&head(HEAD_BYTES_MAX / 2)).await.unwrap();
        client.write_all(b"\r\n\r\n").await.unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_serves_many_requests_and_may_rest_between_them() {
        let world = World::new();
        let mut client = world.connect().await;
        for _ in 0..3 {
            client.write_all(REQUEST).await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"short") {
                assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0, "it hung up");
            }
            tokio::time::sleep(Duration::from_secs(HEAD_DEADLINE.as_secs() - 1)).await;
        }
        let (bytes, elapsed) = read_to_end(&mut client).await;
        assert!(bytes.is_empty());
        assert!(is_about(elapsed, Duration::from_secs(1)), "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_take_an_answer_is_sent_away() {
        let world = World::new();
        let mut client = world.connect().await;
        client.write_all(b"GET /long HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
        tokio::time::sleep(STALL_MAX + Duration::from_secs(1)).await;
        let (bytes, _) = read_to_end(&mut client).await;
        assert!(bytes.len() <= WIRE_BYTES, "{}", bytes.len());
    }

    /// A frame of HTTP/2.
    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    /// The kind and the stream of the next frame.
    async fn next_frame(client: &mut (impl AsyncRead + Unpin)) -> (u8, u32) {
        let mut head = [0; 9];
        client.read_exact(&mut head).await.unwrap();
        let [a, b, c, kind, _, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        client.read_exact(&mut payload).await.unwrap();
        (kind, u32::from_be_bytes(stream))
    }

    #[tokio::test(start_paused = true)]
    async fn who_shuts_the_window_of_an_answer_loses_it_and_may_go_on() {
        let [data, headers, reset, settings, ping] = [0, 1, 3, 4, 6];
        let world = World::new();
        let (mut reader, mut writer) = tokio::io::split(world.connect().await);
        let no_window = frame(settings, 0, 0, &[0, 4, 0, 0, 0, 0]);
        // `GET http://h/long`, and that is all.
        let head = [&[0x82, 0x86, 0x44, 5][..], b"/long", &[0x41, 1], b"h"].concat();
        let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let hello = [hello, no_window, frame(headers, 5, 1, &head)].concat();
        writer.write_all(&hello).await.unwrap();
        let started = clock::monotonic();
        let living = async {
            while started.elapsed() < 2 * STREAM_MAX {
                writer.write_all(&frame(ping, 0, 0, &[0; 8])).await.unwrap();
                tokio::time::sleep(Duration::from_secs(30)).await;
            }
        };
        let lost = async {
            loop {
                let (kind, stream) = next_frame(&mut reader).await;
                assert_ne!(kind, data, "there is no room for it");
                if kind == reset {
                    return stream;
                }
            }
        };
        tokio::select! {
            stream = lost => assert_eq!(stream, 1),
            () = living => panic!("the answer is kept for ever"),
        }
        assert!(is_about(started.elapsed(), STREAM_MAX), "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_an_answer_slowly_gets_all_of_it() {
        let world = World::new();
        let mut client = world.connect().await;
        client.write_all(b"GET /long HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
        let (started, mut answer) = (clock::monotonic(), Vec::new());
        while answer.len() < LONG_BYTES || !answer.ends_with(b"x") {
            tokio::time::sleep(STALL_MAX / 2).await;
            assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0, "it hung up");
        }
        assert!(started.elapsed() > 2 * (SILENCE_MAX + REQUEST_TIMEOUT), "it took long");
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_when_there_is_no_room_waits_until_somebody_leaves() {
        let world = World::with_room(1);
        let first = world.connect().await;
        let mut second = world.connect().await;
        second.write_all(REQUEST).await.unwrap();
        let mut answer = [0; 8];
        let waiting = tokio::time::timeout(HEAD_DEADLINE / 2, second.read(&mut answer)).await;
        assert!(waiting.is_err(), "nobody has taken it in");
        drop(first);
        second.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_under_way_are_answered_before_the_end() {
        let mut world = World::new();
        let (mut idle, mut busy) = (world.connect().await, world.connect().await);
        idle.write_all(REQUEST).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"short") {
            assert_ne!(idle.read_buf(&mut answer).await.unwrap(), 0, "it hung up");
        }
        busy.write_all(b"GET /held HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
        // Time stands still until the server has nothing left to do.
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.stop.cancel();
        assert_eq!(read_to_end(&mut idle).await.1, Duration::ZERO);
        world.release.notify_one();
        let (answer, _) = read_to_end(&mut busy).await;
        assert!(answer.ends_with(b"held"), "{}", String::from_utf8_lossy(&answer));
        world.serving.join_next().await.unwrap().unwrap();
    }
}
