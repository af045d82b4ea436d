//! A closed loop: each worker sends its next request when it has the answer to its last.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::wire::Wire;
use crate::clock;
use crate::measure::Latencies;

/// Broken connections after which a worker gives up.
const BREAKS_MAX: u64 = 10;

/// Makes one worker's requests.
pub trait Source: Send + 'static {
    /// What they are sent over.
    type Wire: Wire;

    /// The next request's bytes, and the status of a good answer.
    fn next(&mut self) -> (&[u8], u16);
}

/// Workers against servers, and when each of them ends.
#[derive(Clone, Debug)]
pub struct ClosedLoop {
    duration: Duration,
    requests_max: u64,
    stop: Arc<AtomicBool>,
}

/// What they did.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// How long requests with a good answer took.
    pub latencies: Latencies,
    /// Other answers, by status; 0 stands for a broken connection.
    pub unexpected: BTreeMap<u16, u64>,
    /// How long it went on.
    pub elapsed: Duration,
}

impl Measured {
    /// Good answers in a second.
    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^52")]
    pub fn per_second(&self) -> f64 {
        self.latencies.count() as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn add(&mut self, other: &Self) {
        self.latencies.add(&other.latencies);
        for (status, count) in &other.unexpected {
            *self.unexpected.entry(*status).or_default() += count;
        }
        self.elapsed = self.elapsed.max(other.elapsed);
    }
}

impl ClosedLoop {
    /// Each worker works for so long.
    pub fn lasting(duration: Duration) -> Self {
        Self { duration, ..Self::until(Arc::default()) }
    }

    /// Each worker sends so many requests.
    pub fn requests(requests_max: u64) -> Self {
        Self { requests_max, ..Self::until(Arc::default()) }
    }

    /// Each worker works until it is told to stop.
    pub fn until(stop: Arc<AtomicBool>) -> Self {
        Self { duration: Duration::MAX, requests_max: u64::MAX, stop }
    }

    /// Runs a worker for every source; they begin together.
    pub async fn run<S: Source>(self, sources: Vec<(SocketAddr, S)>) -> Measured {
        let start = Arc::new(Barrier::new(sources.len()));
        let mut workers = JoinSet::new();
        for (address, source) in sources {
            let (this, start) = (self.clone(), start.clone());
            workers.spawn(async move {
                let connection = S::Wire::open(address).await.expect("the server listens");
                start.wait().await;
                this.work(address, connection, source).await
            });
        }
        let mut all = Measured::default();
        while let Some(measured) = workers.join_next().await {
            all.add(&measured.expect("workers do not panic"));
        }
        all
    }

    async fn work<S: Source>(
        self,
        address: SocketAddr,
        mut connection: S::Wire,
        mut source: S,
    ) -> Measured {
        let mut measured = Measured::default();
        let begun = clock::monotonic();
        let mut sent = begun;
        for _ in 0..self.requests_max {
            let over = sent.duration_since(begun) >= self.duration;
            if over || self.stop.load(Ordering::Relaxed) {
                break;
            }
            let (request, good) = source.next();
            let answer = connection.exchange(request).await;
            let now = clock::monotonic();
            match answer {
                Ok(status) if status == good => measured.latencies.record(now - sent),
                Ok(status) => *measured.unexpected.entry(status).or_default() += 1,
                Err(_) => match reopen::<S::Wire>(address, &mut measured).await {
                    Some(opened) => connection = opened,
                    None => break,
                },
            }
            sent = now;
        }
        measured.elapsed = begun.elapsed();
        measured
    }
}

/// Counts a broken connection, and replaces it unless too many have broken.
async fn reopen<W: Wire>(address: SocketAddr, measured: &mut Measured) -> Option<W> {
    let breaks = measured.unexpected.entry(0).or_default();
    *breaks += 1;
    if *breaks > BREAKS_MAX {
        return None;
    }
    W::open(address).await.ok()
}
