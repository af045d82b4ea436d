//! What a container with an offer serves while clients want more than that.
//!
//! 1. A container is made with so many request units a second.
//! 2. Workers create items as fast as they are let. Who is refused sends the same request again after
//!    the pause that the answer names, and never gives up.
//! 3. Once what had been saved up is spent, the charges of a while are put next to what the offer
//!    allows for it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ephemeris_cluster_tests::client::{AccountKey, Call, Container};
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::load::{Connection, Source as _};
use ephemeris_cluster_tests::measure::Latencies;
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;

use crate::arguments::Arguments;
use crate::report::float;
use crate::servers::Servers;
use crate::sources::Creates;

/// Workers, unless the command line says how many.
const CONCURRENCY: [usize; 1] = [16];
/// In this time workers spend what the container begins with.
const SPEND: Duration = Duration::from_secs(3);
/// Charges have two digits behind the point.
const HUNDREDTHS: f64 = 100.0;

/// A container under more load than it is paid for.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Throttled {
    concurrency: usize,
    /// What the container is given each second.
    request_units: u32,
    seconds: f64,
    /// Charges of all that was served, next to what the container was given.
    of_offer: f64,
    served: u64,
    refused: u64,
    /// Times a request was sent at most until it was served.
    attempts_max: u64,
    /// From sending a create first until it was served, pauses included.
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

impl Throttled {
    /// The line above all containers.
    pub(crate) fn write_head(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<9} {:>5} {:>7} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "throttle",
            "conc",
            "RU/s",
            "seconds",
            "of offer",
            "served",
            "refused",
            "attempts",
            "p50 ms",
            "p99 ms",
            "max ms",
        )
    }
}

impl fmt::Display for Throttled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<9} {:>5} {:>7} {:>7.1} {:>8.4} {:>8} {:>8} {:>8} {:>8.1} {:>8.1} {:>8.1}",
            "",
            self.concurrency,
            self.request_units,
            self.seconds,
            self.of_offer,
            self.served,
            self.refused,
            self.attempts_max,
            self.p50_ms,
            self.p99_ms,
            self.max_ms,
        )
    }
}

/// Loads a new container at each concurrency.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Vec<Throttled>> {
    let key = arguments.account_key();
    let unique = format!("{:08x}", rand::random::<u32>());
    let free = Container::new("bench", &format!("free-{unique}"));
    let mut servers = Servers::nodes(arguments, &key, &free, json!({})).await?;
    let mut found = Vec::new();
    for concurrency in arguments.concurrency_or(&CONCURRENCY) {
        let container = Container::new("bench", &format!("throttled-{concurrency}-{unique}"));
        create(&servers, &container, arguments.request_units).await?;
        servers.follow(arguments, &container).await?;
        let target = servers.targets[0];
        found.push(measure(arguments, target, &container, &key, *concurrency).await?);
    }
    Ok(found)
}

async fn create(servers: &Servers, container: &Container, units: u32) -> anyhow::Result<()> {
    let key = json!({ "paths": ["/pk"], "kind": "Hash", "version": 2 });
    let body = json!({ "id": container.name(), "partitionKey": key }).to_string();
    let call = Call::post(format!("/dbs/{}/colls", container.database()), body)
        .header("x-ms-offer-throughput", units.to_string());
    let answer = servers.any_node().ask(call).await;
    if answer.status != 201 {
        bail!("the container cannot be made: {}", answer.describe());
    }
    Ok(())
}

async fn measure(
    arguments: &Arguments,
    target: SocketAddr,
    container: &Container,
    key: &AccountKey,
    concurrency: usize,
) -> anyhow::Result<Throttled> {
    let meter = Arc::new(Meter::default());
    let mut workers = JoinSet::new();
    for number in 0..concurrency as u64 {
        let creates = Creates::new(target, container, key, number);
        let worker = Worker { connection: Connection::open(target).await?, meter: meter.clone() };
        workers.spawn(worker.run(creates));
    }
    tokio::time::sleep(SPEND).await;
    let before = meter.look();
    tokio::time::sleep(arguments.duration()).await;
    let after = meter.look();
    meter.stop.store(true, Ordering::Relaxed);
    let mut latencies = Latencies::default();
    while let Some(worker) = workers.join_next().await {
        latencies.add(&worker.expect("workers do not panic")?);
    }
    let seconds = (after.at - before.at).as_secs_f64();
    let given = f64::from(arguments.request_units) * seconds;
    let millis = |took: Duration| took.as_secs_f64() * 1e3;
    Ok(Throttled {
        concurrency,
        request_units: arguments.request_units,
        seconds,
        of_offer: float(after.hundredths - before.hundredths) / HUNDREDTHS / given,
        served: after.served - before.served,
        refused: after.refused - before.refused,
        attempts_max: meter.attempts_max.load(Ordering::Relaxed),
        p50_ms: millis(latencies.percentile(50.0)),
        p99_ms: millis(latencies.percentile(99.0)),
        max_ms: millis(latencies.max()),
    })
}

/// What all workers were told, and whether they go on.
#[derive(Default)]
struct Meter {
    /// Charges of what was served, in hundredths of a request unit.
    hundredths: AtomicU64,
    served: AtomicU64,
    refused: AtomicU64,
    attempts_max: AtomicU64,
    stop: AtomicBool,
}

/// A meter at one moment.
struct Look {
    at: Instant,
    hundredths: u64,
    served: u64,
    refused: u64,
}

impl Meter {
    fn look(&self) -> Look {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Look {
            at: clock::monotonic(),
            hundredths: count(&self.hundredths),
            served: count(&self.served),
            refused: count(&self.refused),
        }
    }
}

struct Worker {
    connection: Connection,
    meter: Arc<Meter>,
}

impl Worker {
    /// Creates items until it is told to stop; how long each took.
    async fn run(mut self, mut creates: Creates) -> anyhow::Result<Latencies> {
        let mut latencies = Latencies::default();
        while !self.meter.stop.load(Ordering::Relaxed) {
            let (request, good) = creates.next();
            let begun = clock::monotonic();
            self.until_served(request, good).await?;
            latencies.record(begun.elapsed());
        }
        Ok(latencies)
    }

    async fn until_served(&mut self, request: &[u8], good: u16) -> anyhow::Result<()> {
        for attempt in 1.. {
            match self.connection.exchange(request).await? {
                status if status == good => {
                    let charge = hundredths(self.header("x-ms-request-charge")?)?;
                    self.meter.hundredths.fetch_add(charge, Ordering::Relaxed);
                    self.meter.served.fetch_add(1, Ordering::Relaxed);
                    self.meter.attempts_max.fetch_max(attempt, Ordering::Relaxed);
                    break;
                }
                429 => {
                    self.meter.refused.fetch_add(1, Ordering::Relaxed);
                    let pause = self.header("x-ms-retry-after-ms")?.parse()?;
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
                other => bail!("a create was answered by {other}"),
            }
        }
        Ok(())
    }

    fn header(&self, name: &str) -> anyhow::Result<&str> {
        self.connection.header(name).with_context(|| format!("the answer has no {name}"))
    }
}

/// A charge, as answers tell it.
fn hundredths(charge: &str) -> anyhow::Result<u64> {
    let (units, rest) = charge.split_once('.').unwrap_or((charge, ""));
    Ok(format!("{units}{rest:0<2}").parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_are_added_without_rounding() {
        let charges = ["7", "6.9", "6.95", "0.05"].map(|text| hundredths(text).unwrap());
        assert_eq!(charges, [700, 690, 695, 5]);
        assert!(hundredths("free").is_err());
    }
}
