//! Takes connections from other nodes.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ephemeris_raft::{Handling, Router};
use ephemeris_store::codec;
use ephemeris_store::ids::NodeId;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::frame::{Frame, FrameReader, Kind};
use super::hello::{self, Hello, LocalIdentity, Refused};
use super::{Channel, WRITE_BYTES_TARGET, take_time_left};
use crate::clock::{self, Instant};
use crate::platform::{Arriving, Listener, Reader, Stream, Writer};
use crate::supervisor::Tasks;

/// How long a peer that has connected may take to say who it is: itself it gives up after one second.
pub(super) const GREETING_DEADLINE: Duration = Duration::from_secs(2);
/// Connections that have not said yet who they are; more wait in the kernel. Their descriptors are among those that
/// are kept from clients (`connections::room`).
pub(super) const GREETINGS_MAX: usize = 128;
/// Answers waiting to be written on one connection.
const ANSWERS_MAX: usize = 8192;
/// Forwarded requests under way on one connection.
const REQUESTS_MAX: usize = 4096;
/// Raft messages under way on one connection: far more than all groups have, unless nothing gets done here.
const MESSAGES_MAX: usize = 8192;
/// How long a refusal that was logged is no news. Whoever is refused tries again several times a second.
const NEWS_PAUSE: Duration = Duration::from_mins(1);
/// So many different ones are logged in that time: whoever opens the port may say anything.
const NEWS_MAX: usize = 64;

/// Answers requests that other nodes forward.
pub(crate) trait RequestHandler: Send + Sync + 'static {
    /// Answers one request.
    fn handle(
        &self,
        from: NodeId,
        request: Bytes,
    ) -> Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>>;
}

/// What a connection needs.
#[derive(Clone)]
struct Context {
    tasks: Tasks,
    identity: LocalIdentity,
    router: Router,
    handler: Arc<dyn RequestHandler>,
    refusals: Arc<Mutex<Refusals>>,
}

impl Context {
    /// Tells people why a peer does not come in, if that is news.
    fn report(&self, what: &'static str, reason: &str) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if refusals.is_news(reason, clock::monotonic()) {
            warn!(reason, "{what}");
        }
    }
}

/// Why peers were refused lately, and when that was logged.
#[derive(Default)]
struct Refusals(Vec<(String, Instant)>);

impl Refusals {
    /// True if this is to be logged now.
    fn is_news(&mut self, reason: &str, now: Instant) -> bool {
        self.0.retain(|(_, logged)| now.saturating_duration_since(*logged) < NEWS_PAUSE);
        let is_known = self.0.iter().any(|(known, _)| known == reason);
        let is_news = !is_known && self.0.len() < NEWS_MAX;
        if is_news {
            self.0.push((reason.to_string(), now));
        }
        is_news
    }
}

/// Takes connections until the tasks end.
pub(crate) fn serve(
    tasks: &Tasks,
    mut listener: Box<dyn Listener>,
    identity: LocalIdentity,
    router: Router,
    handler: Arc<dyn RequestHandler>,
) {
    let refusals = Arc::default();
    let context = Context { tasks: tasks.clone(), identity, router, handler, refusals };
    let room = Arc::new(Semaphore::new(GREETINGS_MAX));
    tasks.spawn("peer listener", async move {
        loop {
            let permit = room.clone().acquire_owned().await.expect("nobody closes it");
            match listener.accept().await {
                Ok(arriving) => {
                    let context = context.clone();
                    context.tasks.clone().spawn("peer connection", async move {
                        if let Err(error) = take(arriving, permit, context).await {
                            debug!(%error, "a peer connection ended");
                        }
                    });
                }
                Err(error) => {
                    warn!(%error, "cannot take a peer connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
}

async fn take(
    arriving: Arriving,
    permit: OwnedSemaphorePermit,
    context: Context,
) -> io::Result<()> {
    let greet = async {
        let Stream { reader, writer } = arriving.await?;
        let mut reader = FrameReader::new(reader);
        let greeting = reader.next().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok::<_, io::Error>((reader, writer, greeting))
    };
    // Whoever opens the port and says nothing is not waited for.
    let greeted = timeout(GREETING_DEADLINE, greet).await?;
    let (mut reader, mut writer, greeting) =
        greeted.inspect_err(|error| report_nonsense(error, &context))?;
    drop(permit);
    let judged = judge(&greeting, &context);
    let mut out = BytesMut::new();
    let verdict = match &judged {
        Ok((_, channel)) => Ok(context.identity.hello(*channel)),
        Err(refused) => Err(refused.clone()),
    };
    let payload = Bytes::from(codec::encode(&verdict));
    Frame { kind: Kind::Hello, number: 0, payload }.write(&mut out);
    writer.write_all(&out).await?;
    writer.flush().await?;
    let (hello, channel) = match judged {
        Ok(judged) => judged,
        Err(refused) => {
            context.report("a peer was refused", &refused.to_string());
            return Ok(());
        }
    };
    let (answers, outgoing) = mpsc::channel(ANSWERS_MAX);
    let write = write_answers(writer, outgoing);
    let read = async {
        match channel {
            Channel::Raft(_) => {
                let receive = |message: &[u8]| context.router.receive(message);
                route(&mut reader, receive, answers).await
            }
            Channel::Requests => handle(&mut reader, &context, hello.node, answers).await,
        }
    };
    tokio::select! {
        ended = write => ended,
        ended = read => ended,
    }
}

/// Tells people of somebody who does not talk as nodes do, or has no key of ours. Whoever only looks whether the port is
/// open says nothing.
fn report_nonsense(error: &io::Error, context: &Context) {
    if error.kind() == io::ErrorKind::InvalidData {
        context.report("no connection with a peer", &error.to_string());
    }
}

fn judge(greeting: &Frame, context: &Context) -> Result<(Hello, Channel), Refused> {
    if greeting.kind != Kind::Hello {
        return Err(Refused::Malformed);
    }
    // By itself: the rest of another version's may look otherwise.
    let protocol = codec::decode_start(&greeting.payload).ok_or(Refused::Malformed)?;
    hello::check_protocol(protocol)?;
    let hello: Hello = codec::decode(&greeting.payload).map_err(|_| Refused::Malformed)?;
    let channel = context.identity.check(&hello)?;
    Ok((hello, channel))
}

fn answer(number: u64, result: Result<Bytes, String>) -> Frame {
    match result {
        Ok(payload) => Frame { kind: Kind::Answer, number, payload },
        Err(reason) => Frame { kind: Kind::Refusal, number, payload: Bytes::from(reason) },
    }
}

/// Hands Raft messages over in the order they come; answers go back as they are ready.
async fn route(
    reader: &mut FrameReader<Reader>,
    receive: impl Fn(&[u8]) -> Handling,
    answers: mpsc::Sender<Frame>,
) -> io::Result<()> {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            frame = reader.next() => {
                let Some(frame) = frame? else { return Ok(()) };
                if under_way.len() >= MESSAGES_MAX {
                    send(&answers, answer(frame.number, Err("too many messages".into()))).await?;
                    continue;
                }
                let mut handling = receive(&frame.payload);
                match futures_util::poll!(&mut handling) {
                    Poll::Ready(result) => send(&answers, answer(frame.number, result)).await?,
                    Poll::Pending => under_way.push(async move {
                        answer(frame.number, handling.await)
                    }),
                }
            }
            Some(answer) = under_way.next(), if !under_way.is_empty() => {
                send(&answers, answer).await?;
            }
        }
    }
}

/// Answers forwarded requests, each in a task of its own, which ends when the caller's time is up.
async fn handle(
    reader: &mut FrameReader<Reader>,
    context: &Context,
    from: NodeId,
    answers: mpsc::Sender<Frame>,
) -> io::Result<()> {
    let room = Arc::new(Semaphore::new(REQUESTS_MAX));
    while let Some(mut frame) = reader.next().await? {
        let Some(left) = take_time_left(&mut frame.payload) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let Ok(permit) = room.clone().try_acquire_owned() else {
            send(&answers, answer(frame.number, Err("too many requests".into()))).await?;
            continue;
        };
        let handling = context.handler.handle(from, frame.payload);
        let answers = answers.clone();
        context.tasks.spawn("forwarded request", async move {
            // Too late there is nothing to say: a refusal would mean that nothing was done.
            if let Ok(result) = timeout(left, handling).await {
                // The connection is gone if nobody takes the answer; the caller learns that itself.
                let _ = answers.send(answer(frame.number, result)).await;
            }
            drop(permit);
        });
    }
    Ok(())
}

async fn send(answers: &mpsc::Sender<Frame>, frame: Frame) -> io::Result<()> {
    answers.send(frame).await.map_err(|_| io::ErrorKind::ConnectionAborted.into())
}

async fn write_answers(mut writer: Writer, mut outgoing: mpsc::Receiver<Frame>) -> io::Result<()> {
    let mut out = BytesMut::new();
    while let Some(frame) = outgoing.recv().await {
        frame.write(&mut out);
        while out.len() < WRITE_BYTES_TARGET
            && let Ok(frame) = outgoing.try_recv()
        {
            frame.write(&mut out);
        }
        writer.write_all(&out).await?;
        writer.flush().await?;
        out.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::sync::Notify;

    use super::*;

    fn message(number: u64, out: &mut BytesMut) {
        Frame { kind: Kind::Request, number, payload: Bytes::new() }.write(out);
    }

    #[test]
    fn a_refusal_is_logged_once_a_minute() {
        let (mut refusals, begin) = (Refusals::default(), clock::monotonic());
        let [old, new] = ["an old one", "a new one"];
        let mut is_news = |reason, after| refusals.is_news(reason, begin + after);
        assert!(is_news(old, Duration::ZERO));
        assert!(!is_news(old, Duration::from_secs(59)));
        assert!(is_news(new, Duration::from_secs(59)), "it is another one");
        assert!(is_news(old, Duration::from_mins(1)));
        assert!(!is_news(new, Duration::from_secs(118)));
    }

    #[test]
    fn only_so_many_refusals_are_logged_in_a_minute() {
        let (mut refusals, now) = (Refusals::default(), clock::monotonic());
        let others = (0..2 * NEWS_MAX).map(|number| number.to_string());
        let logged = others.filter(|reason| refusals.is_news(reason, now));
        assert_eq!(logged.count(), NEWS_MAX);
    }

    #[tokio::test]
    async fn a_message_too_many_is_refused_unread_until_another_is_answered() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut reader = FrameReader::new(Box::new(near) as Reader);
        let (answers, mut outgoing) = mpsc::channel::<Frame>(ANSWERS_MAX);
        let (received, one_is_done) = (AtomicU64::new(0), Arc::new(Notify::new()));
        let receive = |_: &[u8]| -> Handling {
            received.fetch_add(1, Ordering::SeqCst);
            let done = one_is_done.clone();
            Box::pin(async move {
                done.notified().await;
                Ok(Bytes::new())
            })
        };
        let peer = async {
            let mut out = BytesMut::new();
            let max = MESSAGES_MAX as u64;
            (0..=max).for_each(|number| message(number, &mut out));
            far.write_all(&out).await.unwrap();
            let refused = outgoing.recv().await.unwrap();
            assert_eq!((refused.kind, refused.number), (Kind::Refusal, max));
            assert_eq!(received.load(Ordering::SeqCst), max);

            one_is_done.notify_one();
            assert_eq!(outgoing.recv().await.unwrap().kind, Kind::Answer);
            out.clear();
            (max + 1..max + 3).for_each(|number| message(number, &mut out));
            far.write_all(&out).await.unwrap();
            let refused = outgoing.recv().await.unwrap();
            assert_eq!((refused.kind, refused.number), (Kind::Refusal, max + 2));
            assert_eq!(received.load(Ordering::SeqCst), max + 1);
            drop(far);
        };
        let (routed, ()) = tokio::join!(route(&mut reader, receive, answers), peer);
        routed.expect("the connection ends in order");
    }
}
