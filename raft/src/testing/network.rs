//! A network in memory: messages are lost, late, doubled, out of order, or cut off, by seed.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ephemeris_store::ids::NodeId;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use crate::clock::{self, Instant};
use crate::host::Host;
use crate::router::Router;
use crate::transport::{Answering, Lane, Transport, TransportError};

/// How messages fare. Probabilities are in percent.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Least time under way.
    pub delay_min: Duration,
    /// Most time under way.
    pub delay_max: Duration,
    /// Messages lost.
    pub loss_percent: u32,
    /// Messages delivered twice.
    pub duplicate_percent: u32,
    /// Messages that do not wait for earlier ones.
    pub reorder_percent: u32,
}

impl Weather {
    /// A quiet local network.
    pub const FAIR: Weather = Weather {
        delay_min: Duration::from_micros(200),
        delay_max: Duration::from_millis(2),
        loss_percent: 0,
        duplicate_percent: 0,
        reorder_percent: 0,
    };

    /// A bad day.
    pub const FOUL: Weather = Weather {
        delay_min: Duration::from_millis(1),
        delay_max: Duration::from_millis(120),
        loss_percent: 10,
        duplicate_percent: 10,
        reorder_percent: 10,
    };
}

/// The network. Clones share it.
#[derive(Clone)]
pub struct MemoryNetwork {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    rng: SmallRng,
    weather: Weather,
    /// How much longer messages to a node are under way.
    delays: BTreeMap<NodeId, Duration>,
    routers: BTreeMap<NodeId, (Host, Router)>,
    /// Ordered pairs between which nothing gets through.
    cut: BTreeSet<(NodeId, NodeId)>,
    links: BTreeMap<(NodeId, NodeId, Lane), mpsc::UnboundedSender<Parcel>>,
    tasks: JoinSet<()>,
}

struct Parcel {
    at: Instant,
    message: Bytes,
    /// Dropped without an answer, the message or its answer is lost.
    answer: Option<oneshot::Sender<Delivery>>,
}

enum Delivery {
    Answered(Bytes),
    Refused(String),
    Unreachable,
}

impl MemoryNetwork {
    /// A network whose mishaps follow from `seed`.
    pub fn new(seed: u64) -> Self {
        let shared = Shared {
            rng: SmallRng::seed_from_u64(seed),
            weather: Weather::FAIR,
            delays: BTreeMap::new(),
            routers: BTreeMap::new(),
            cut: BTreeSet::new(),
            links: BTreeMap::new(),
            tasks: JoinSet::new(),
        };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects a node; its groups take messages through `router`.
    pub fn connect(&self, node: NodeId, router: Router) -> Arc<dyn Transport> {
        self.connect_host(node, Host::new(), router)
    }

    /// Connects a node that runs on a machine: while it stands still, messages to it wait.
    pub fn connect_host(&self, node: NodeId, host: Host, router: Router) -> Arc<dyn Transport> {
        self.lock().routers.insert(node, (host, router));
        Arc::new(Endpoint { network: self.clone(), node })
    }

    /// Takes a node off the network.
    pub fn disconnect(&self, node: NodeId) {
        self.lock().routers.remove(&node);
    }

    /// Sets how messages fare from now on.
    pub fn set_weather(&self, weather: Weather) {
        self.lock().weather = weather;
    }

    /// Sets how much longer than others messages to a node are under way from now on.
    pub fn delay(&self, to: NodeId, by: Duration) {
        self.lock().delays.insert(to, by);
    }

    /// Lets nothing through from one node to another.
    pub fn cut(&self, from: NodeId, to: NodeId) {
        self.lock().cut.insert((from, to));
    }

    /// Cuts a node off, both ways.
    pub fn isolate(&self, node: NodeId) {
        let mut shared = self.lock();
        let others: Vec<NodeId> = shared.routers.keys().copied().collect();
        for other in others {
            shared.cut.extend([(node, other), (other, node)]);
        }
    }

    /// Lets everything through again.
    pub fn heal(&self) {
        self.lock().cut.clear();
    }

    fn send(
        &self,
        from: NodeId,
        to: NodeId,
        lane: Lane,
        message: &Bytes,
    ) -> oneshot::Receiver<Delivery> {
        let (sender, receiver) = oneshot::channel();
        let mut shared = self.lock();
        let weather = shared.weather;
        if shared.percent(weather.loss_percent) {
            return receiver;
        }
        let twice = shared.percent(weather.duplicate_percent);
        let parcel =
            Parcel { at: shared.arrival(to), message: message.clone(), answer: Some(sender) };
        self.post(&mut shared, (from, to, lane), parcel);
        if twice {
            let copy = Parcel { at: shared.arrival(to), message: message.clone(), answer: None };
            self.post(&mut shared, (from, to, lane), copy);
        }
        receiver
    }

    /// Puts a parcel on its link, or on a way of its own.
    fn post(&self, shared: &mut Shared, link: (NodeId, NodeId, Lane), parcel: Parcel) {
        let reorder_percent = shared.weather.reorder_percent;
        if shared.percent(reorder_percent) {
            let network = self.clone();
            shared.spawn(async move { network.deliver(link, parcel).await });
            return;
        }
        if let Some(queue) = shared.links.get(&link)
            && !queue.is_closed()
        {
            let _ = queue.send(parcel);
            return;
        }
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let _ = sender.send(parcel);
        shared.links.insert(link, sender);
        let network = self.clone();
        shared.spawn(async move {
            while let Some(parcel) = receiver.recv().await {
                network.deliver(link, parcel).await;
            }
        });
    }

    /// Waits for the parcel's time, hands it over, and sends the answer on its way back.
    async fn deliver(&self, (from, to, _): (NodeId, NodeId, Lane), parcel: Parcel) {
        sleep_until(parcel.at).await;
        let router = {
            let shared = self.lock();
            if shared.cut.contains(&(from, to)) {
                return;
            }
            shared.routers.get(&to).cloned()
        };
        let Some((host, router)) = router else {
            if let Some(answer) = parcel.answer {
                let _ = answer.send(Delivery::Unreachable);
            }
            return;
        };
        // Those behind it on the same link wait with it.
        if !host.thawed().await {
            return;
        }
        let mut handling = Box::pin(host.run(router.receive(&parcel.message)));
        // Polled once here, so that messages enter the group in the order they arrive.
        let first = futures_util::poll!(&mut handling);
        let network = self.clone();
        let task = async move {
            let result = match first {
                std::task::Poll::Ready(result) => result,
                std::task::Poll::Pending => handling.await,
            };
            let Some(answer) = parcel.answer else { return };
            let at = network.lock().arrival(from);
            sleep_until(at).await;
            if !network.lock().cut.contains(&(to, from)) {
                let _ = answer.send(match result {
                    Ok(bytes) => Delivery::Answered(bytes),
                    Err(reason) => Delivery::Refused(reason),
                });
            }
        };
        self.lock().spawn(task);
    }
}

impl Shared {
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(task);
    }

    fn percent(&mut self, chance: u32) -> bool {
        chance > 0 && self.rng.random_range(0..100) < chance
    }

    fn arrival(&mut self, to: NodeId) -> Instant {
        let Weather { delay_min, delay_max, .. } = self.weather;
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let delay = self.rng.random_range(micros(delay_min)..=micros(delay_max));
        let more = self.delays.get(&to).copied().unwrap_or_default();
        clock::monotonic() + Duration::from_micros(delay) + more
    }
}

struct Endpoint {
    network: MemoryNetwork,
    node: NodeId,
}

impl Transport for Endpoint {
    fn call(&self, node: NodeId, lane: Lane, message: Bytes, deadline: Duration) -> Answering {
        let receiver = self.network.send(self.node, node, lane, &message);
        Box::pin(async move {
            let started = clock::monotonic();
            match timeout(deadline, receiver).await {
                Ok(Ok(Delivery::Answered(answer))) => Ok(answer),
                Ok(Ok(Delivery::Refused(reason))) => Err(TransportError::Refused { node, reason }),
                Ok(Ok(Delivery::Unreachable)) => Err(TransportError::Unreachable(node)),
                Ok(Err(_)) | Err(_) => {
                    sleep_until(started + deadline).await;
                    Err(TransportError::NoAnswer { node, waited: deadline })
                }
            }
        })
    }
}
