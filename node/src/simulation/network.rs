//! Connections in memory that fare as TCP's do: bytes come in order, late, or not at all.
//!
//! 1. What is written becomes packets that arrive after the weather's delay; one that is lost comes
//!    with its retransmission, and so late.
//! 2. A link that is cut holds packets back. Healed in time it delivers them; later the sender has
//!    given the connection up, if it is one between nodes (`TCP_USER_TIMEOUT`).
//! 3. A machine whose process stands still goes on taking packets. One whose process has ended
//!    breaks the connections it had. One without power says nothing; switched on again, it breaks
//!    the connections on which it hears something.
//!
//! A reader may get any part of what was written, so that frames are cut anywhere.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use ephemeris_raft::Host;
use ephemeris_raft::testing::Weather;
use futures_util::future::BoxFuture;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep, sleep_until};

use crate::clock::{Instant, monotonic};
use crate::platform::{self, Network};

/// Bytes that may be under way in one direction of a connection.
const WINDOW_BYTES: usize = 256 << 10;
/// A packet that was lost is sent again after this long.
const RETRANSMIT_AFTER: Duration = Duration::from_millis(200);
/// How often cut links, dead ends and patience are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What nodes set for their connections.
const PATIENCE: Duration = Duration::from_secs(3);

/// The network. Clones share it.
#[derive(Clone)]
pub(super) struct SimulatedNetwork {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    rng: SmallRng,
    weather: Weather,
    /// Ordered pairs of machines between which nothing gets through.
    cut: BTreeSet<(IpAddr, IpAddr)>,
    /// Machines without power.
    off: BTreeSet<IpAddr>,
    /// Who takes connections where.
    doors: BTreeMap<SocketAddr, Door>,
    connections: Vec<Weak<Mutex<Connection>>>,
}

struct Door {
    host: Host,
    patience: Option<Duration>,
    arrivals: mpsc::UnboundedSender<(ReadHalf, WriteHalf)>,
}

/// Both ends of a connection.
struct Connection {
    ends: [End; 2],
}

struct End {
    ip: IpAddr,
    /// What came and was not read, and what is under way.
    inbox: VecDeque<Packet>,
    inbox_bytes: usize,
    reader: Option<Waker>,
    /// Waits for room at the other end.
    writer: Option<Waker>,
    broken: Option<io::ErrorKind>,
    life: Life,
    /// Since when what was sent may not be acknowledged.
    unacknowledged_since: Option<Instant>,
    patience: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Alive,
    /// Nobody reads any more; what comes is answered by breaking the connection.
    Closed,
    /// The process has ended: the machine says so to the other end.
    Ended,
    /// The machine had no power: it does not know of the connection.
    Forgotten,
}

/// Some bytes; none say that no more will come.
struct Packet {
    /// None as long as a cut holds it back.
    arrives: Option<Instant>,
    bytes: Bytes,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimulatedNetwork {
    /// A network whose mishaps follow from `seed`; it must be run.
    pub(super) fn new(seed: u64) -> Self {
        let shared = Shared {
            rng: SmallRng::seed_from_u64(seed),
            weather: Weather::FAIR,
            cut: BTreeSet::new(),
            off: BTreeSet::new(),
            doors: BTreeMap::new(),
            connections: Vec::new(),
        };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    /// Does what becomes due with time, for ever.
    pub(super) async fn run(self) {
        loop {
            sleep(LOOK_EVERY).await;
            lock(&self.shared).look();
        }
    }

    /// A machine's way into the network, for a process on it.
    pub(super) fn interface(&self, ip: IpAddr, host: Host) -> Interface {
        Interface { network: self.clone(), ip, host }
    }

    /// Sets how packets fare from now on.
    pub(super) fn set_weather(&self, weather: Weather) {
        lock(&self.shared).weather = weather;
    }

    /// Lets nothing through from one machine to another; what is under way is lost on it.
    pub(super) fn cut(&self, from: IpAddr, to: IpAddr) {
        let mut shared = lock(&self.shared);
        shared.cut.insert((from, to));
        shared.hold_back(from, to);
    }

    /// Lets everything through again.
    pub(super) fn heal(&self) {
        lock(&self.shared).cut.clear();
    }

    /// The process on a machine has ended.
    pub(super) fn end_process(&self, ip: IpAddr) {
        lock(&self.shared).leave(ip, Life::Ended);
    }

    /// A machine loses its power.
    pub(super) fn switch_off(&self, ip: IpAddr) {
        let mut shared = lock(&self.shared);
        shared.off.insert(ip);
        shared.leave(ip, Life::Forgotten);
    }

    /// A machine has power again.
    pub(super) fn switch_on(&self, ip: IpAddr) {
        lock(&self.shared).off.remove(&ip);
    }
}

impl Shared {
    fn is_open(&self, from: IpAddr, to: IpAddr) -> bool {
        !self.cut.contains(&(from, to)) && !self.off.contains(&from) && !self.off.contains(&to)
    }

    fn is_open_both_ways(&self, a: IpAddr, b: IpAddr) -> bool {
        self.is_open(a, b) && self.is_open(b, a)
    }

    /// How long a packet is under way.
    fn delay(&mut self) -> Duration {
        let Weather { delay_min, delay_max, loss_percent, .. } = self.weather;
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).expect("short");
        let delay = self.rng.random_range(micros(delay_min)..=micros(delay_max));
        let mut delay = Duration::from_micros(delay);
        let mut again = RETRANSMIT_AFTER;
        while loss_percent > 0 && self.rng.random_range(0..100) < loss_percent {
            delay += again;
            again *= 2;
        }
        delay
    }

    fn live(&mut self) -> Vec<Arc<Mutex<Connection>>> {
        self.connections.retain(|connection| connection.strong_count() > 0);
        self.connections.iter().filter_map(Weak::upgrade).collect()
    }

    /// What is under way from one machine to another does not get there before the cut is healed.
    fn hold_back(&mut self, from: IpAddr, to: IpAddr) {
        let now = monotonic();
        for connection in self.live() {
            let mut connection = lock(&connection);
            for side in 0..2 {
                if connection.ends[1 - side].ip != from || connection.ends[side].ip != to {
                    continue;
                }
                let inbox = &mut connection.ends[side].inbox;
                let late = |packet: &&mut Packet| packet.arrives.is_none_or(|at| at > now);
                let mut held = 0;
                for packet in inbox.iter_mut().filter(late) {
                    packet.arrives = None;
                    held += 1;
                }
                if held > 0 {
                    connection.ends[1 - side].unacknowledged_since.get_or_insert(now);
                }
            }
        }
    }

    /// No process is at a machine's doors and connections any more.
    fn leave(&mut self, ip: IpAddr, life: Life) {
        self.doors.retain(|address, _| address.ip() != ip);
        for connection in self.live() {
            for end in &mut lock(&connection).ends {
                if end.ip == ip && end.life != Life::Forgotten {
                    end.life = life;
                }
            }
        }
    }

    fn look(&mut self) {
        for connection in self.live() {
            let mut connection = lock(&connection);
            for side in 0..2 {
                self.look_at(&mut connection, side);
            }
        }
    }

    /// Looks at what one side sends.
    fn look_at(&mut self, connection: &mut Connection, side: usize) {
        let (from, to) = (connection.ends[side].ip, connection.ends[1 - side].ip);
        if connection.ends[side].broken.is_some() {
            return;
        }
        let now = monotonic();
        if self.is_open(from, to) {
            self.send_again(&mut connection.ends[1 - side], now);
        }
        let whole = self.is_open_both_ways(from, to);
        let is_heard = !connection.ends[1 - side].inbox.is_empty();
        let refused = match connection.ends[1 - side].life {
            Life::Alive => false,
            Life::Closed | Life::Forgotten => is_heard,
            Life::Ended => true,
        };
        if whole && refused {
            return connection.ends[side].break_with(io::ErrorKind::ConnectionReset);
        }
        let sender = &mut connection.ends[side];
        if whole {
            sender.unacknowledged_since = None;
        }
        let waited = sender.unacknowledged_since.map(|since| now.duration_since(since));
        if waited.zip(sender.patience).is_some_and(|(waited, patience)| waited > patience) {
            sender.break_with(io::ErrorKind::TimedOut);
            // What is said of it may not get through; then the other end finds out by itself.
            if self.is_open(from, to) {
                connection.ends[1 - side].break_with(io::ErrorKind::ConnectionReset);
            }
        }
    }

    /// Sends what a cut had held back.
    fn send_again(&mut self, receiver: &mut End, now: Instant) {
        let held = receiver.inbox.iter().any(|packet| packet.arrives.is_none());
        if !held {
            return;
        }
        let arrives =
            now + self.delay() + RETRANSMIT_AFTER.mul_f64(self.rng.random_range(0.0..1.0));
        for packet in receiver.inbox.iter_mut().filter(|packet| packet.arrives.is_none()) {
            packet.arrives = Some(arrives);
        }
        receiver.wake_reader();
    }

    /// Puts bytes on their way from one end to the other.
    fn send(&mut self, connection: &mut Connection, side: usize, bytes: Bytes) {
        let (from, to) = (connection.ends[side].ip, connection.ends[1 - side].ip);
        let soonest = monotonic() + self.delay();
        let receiver = &mut connection.ends[1 - side];
        let before = receiver.inbox.back().map(|packet| packet.arrives);
        let arrives = match before {
            _ if !self.is_open(from, to) => None,
            Some(None) => None,
            Some(Some(before)) => Some(soonest.max(before)),
            None => Some(soonest),
        };
        receiver.inbox_bytes += bytes.len();
        receiver.inbox.push_back(Packet { arrives, bytes });
        receiver.wake_reader();
        if arrives.is_none() || !self.is_open(to, from) {
            connection.ends[side].unacknowledged_since.get_or_insert(monotonic());
        }
    }

    /// Connects two machines; none if nobody listens.
    fn connect(
        &mut self,
        from: IpAddr,
        address: SocketAddr,
        hosts: (&Host, SimulatedNetwork),
        patience: Option<Duration>,
    ) -> Option<(ReadHalf, WriteHalf)> {
        let (host, network) = hosts;
        let door = self.doors.get(&address).filter(|door| !door.arrivals.is_closed())?;
        let ends = [End::new(from, patience), End::new(address.ip(), door.patience)];
        let connection = Arc::new(Mutex::new(Connection { ends }));
        self.connections.push(Arc::downgrade(&connection));
        let half = |side, host: &Host| {
            let (host, network) = (host.clone(), network.clone());
            let end = Handle { connection: connection.clone(), side, host, network };
            (ReadHalf { end: end.clone(), arrival: None }, WriteHalf { end, is_shut: false })
        };
        let sent = door.arrivals.send(half(1, &door.host));
        assert!(sent.is_ok(), "a door that is open takes everybody");
        Some(half(0, host))
    }
}

impl End {
    fn new(ip: IpAddr, patience: Option<Duration>) -> Self {
        Self {
            ip,
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            reader: None,
            writer: None,
            broken: None,
            life: Life::Alive,
            unacknowledged_since: None,
            patience,
        }
    }

    fn break_with(&mut self, kind: io::ErrorKind) {
        self.broken = Some(kind);
        self.wake_reader();
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }

    fn wake_reader(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    fn check(&self) -> io::Result<()> {
        self.broken.map_or(Ok(()), |kind| Err(kind.into()))
    }
}

/// A process at one end of a connection.
#[derive(Clone)]
struct Handle {
    connection: Arc<Mutex<Connection>>,
    side: usize,
    host: Host,
    network: SimulatedNetwork,
}

/// What comes in.
pub(super) struct ReadHalf {
    end: Handle,
    /// When the next packet comes.
    arrival: Option<Pin<Box<Sleep>>>,
}

/// What goes out.
pub(super) struct WriteHalf {
    end: Handle,
    is_shut: bool,
}

impl Handle {
    /// Ready while the process runs: one that has ended does nothing any more.
    fn poll_running(&self, context: &mut Context<'_>) -> Poll<()> {
        if ready!(self.host.poll_thawed(context)) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.end.poll_running(context));
        let connection = this.end.connection.clone();
        loop {
            let mut connection = lock(&connection);
            let end = &mut connection.ends[this.end.side];
            end.check()?;
            let Some(arrives) = end.inbox.front().and_then(|packet| packet.arrives) else {
                end.reader = Some(context.waker().clone());
                return Poll::Pending;
            };
            if arrives > monotonic() {
                end.reader = Some(context.waker().clone());
                drop(connection);
                let arrival = this.arrival.insert(Box::pin(sleep_until(arrives)));
                ready!(arrival.as_mut().poll(context));
                continue;
            }
            let packet = end.inbox.front_mut().expect("it was there");
            let taken = packet.bytes.len().min(buffer.remaining());
            buffer.put_slice(&packet.bytes[..taken]);
            packet.bytes.advance(taken);
            // The end of the stream stays where it is.
            if packet.bytes.is_empty() && taken > 0 {
                end.inbox.pop_front();
            }
            end.inbox_bytes -= taken;
            if let Some(writer) = connection.ends[1 - this.end.side].writer.take() {
                writer.wake();
            }
            return Poll::Ready(Ok(()));
        }
    }
}

impl WriteHalf {
    fn shut(&mut self) {
        if !std::mem::replace(&mut self.is_shut, true) {
            let mut shared = lock(&self.end.network.shared);
            let mut connection = lock(&self.end.connection);
            shared.send(&mut connection, self.end.side, Bytes::new());
        }
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.end.poll_running(context));
        let mut shared = lock(&this.end.network.shared);
        let mut connection = lock(&this.end.connection);
        connection.ends[this.end.side].check()?;
        let room = WINDOW_BYTES.saturating_sub(connection.ends[1 - this.end.side].inbox_bytes);
        if room == 0 {
            connection.ends[this.end.side].writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let most = bytes.len().min(room);
        let in_pieces = most > 1 && shared.rng.random_range(0..8) == 0;
        let taken = if in_pieces { shared.rng.random_range(1..most) } else { most };
        if taken > 0 {
            shared.send(&mut connection, this.end.side, Bytes::copy_from_slice(&bytes[..taken]));
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().shut();
        Poll::Ready(Ok(()))
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        self.shut();
    }
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        let mut connection = lock(&self.end.connection);
        let end = &mut connection.ends[self.end.side];
        if end.life == Life::Alive {
            end.life = Life::Closed;
        }
    }
}

/// Both directions as one, as HTTP wants them.
pub(super) struct Duplex {
    reader: ReadHalf,
    writer: WriteHalf,
}

impl AsyncRead for Duplex {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().reader).poll_read(context, buffer)
    }
}

impl AsyncWrite for Duplex {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().writer).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().writer).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().writer).poll_shutdown(context)
    }
}

/// A machine's way into the network.
#[derive(Clone)]
pub(super) struct Interface {
    network: SimulatedNetwork,
    ip: IpAddr,
    host: Host,
}

impl Interface {
    /// Takes connections at an address.
    pub(super) fn open(
        &self,
        address: SocketAddr,
        patience: Option<Duration>,
    ) -> io::Result<Arrivals> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let door = Door { host: self.host.clone(), patience, arrivals: sender };
        let mut shared = lock(&self.network.shared);
        if shared.doors.get(&address).is_some_and(|door| !door.arrivals.is_closed()) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        shared.doors.insert(address, door);
        Ok(Arrivals { receiver, address })
    }

    /// Connects; as long as the link is cut, it tries.
    pub(super) async fn reach(
        self,
        address: SocketAddr,
        patience: Option<Duration>,
    ) -> io::Result<Duplex> {
        loop {
            let (there, back) = {
                let mut shared = lock(&self.network.shared);
                (shared.delay(), shared.delay())
            };
            sleep(there + back).await;
            {
                let mut shared = lock(&self.network.shared);
                if shared.is_open_both_ways(self.ip, address.ip()) {
                    let ends = (&self.host, self.network.clone());
                    let made = shared.connect(self.ip, address, ends, patience);
                    let refused = || io::ErrorKind::ConnectionRefused.into();
                    return made
                        .map(|(reader, writer)| Duplex { reader, writer })
                        .ok_or_else(refused);
                }
            }
            sleep(RETRANSMIT_AFTER).await;
        }
    }
}

impl Network for Interface {
    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'static, io::Result<Box<dyn platform::Listener>>> {
        let opened = self.open(address, Some(PATIENCE));
        Box::pin(async move { opened.map(|door| Box::new(door) as Box<dyn platform::Listener>) })
    }

    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<platform::Stream>> {
        let interface = self.clone();
        let address = address.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        Box::pin(async move {
            let Duplex { reader, writer } = interface.reach(address?, Some(PATIENCE)).await?;
            Ok(platform::Stream { reader: Box::new(reader), writer: Box::new(writer) })
        })
    }
}

/// Connections that come to a door.
pub(super) struct Arrivals {
    receiver: mpsc::UnboundedReceiver<(ReadHalf, WriteHalf)>,
    address: SocketAddr,
}

impl Arrivals {
    async fn next(&mut self) -> Duplex {
        match self.receiver.recv().await {
            Some((reader, writer)) => Duplex { reader, writer },
            None => std::future::pending().await,
        }
    }
}

impl platform::Listener for Arrivals {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<platform::Arriving>> {
        Box::pin(async move {
            let Duplex { reader, writer } = self.next().await;
            let stream = platform::Stream { reader: Box::new(reader), writer: Box::new(writer) };
            Ok(Box::pin(std::future::ready(Ok(stream))) as platform::Arriving)
        })
    }
}

impl axum::serve::Listener for Arrivals {
    type Io = Duplex;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Duplex, SocketAddr) {
        (self.next().await, self.address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
