//! How fast a change feed is read: the latest version of every item, from the beginning.
//!
//! Each of some readers asks page after page by the tag of its last one until there is nothing new
//! (304), again and again. Every pass must show every item.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use ephemeris_cluster_tests::client::{AccountKey, Client, Container};
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::load::{Connection, Request, Signed};
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;

use crate::arguments::Arguments;
use crate::query::fill::Fill;
use crate::report::{float, shown};
use crate::servers::Servers;

/// Items of the feed, unless the command line says how many.
const ITEMS: u32 = 200_000;
/// Readers at the same time, unless the command line says how many.
const CONCURRENCY: [usize; 2] = [1, 4];

/// What so many readers got together.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FeedRate {
    concurrency: usize,
    /// Items read, each as often as it was.
    items: u64,
    bytes: u64,
    seconds: f64,
    /// Processor time of all nodes; none if they are not on this machine.
    server_cpu_seconds: Option<f64>,
}

impl FeedRate {
    /// The line above all rates.
    pub(crate) fn write_head(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ("feed", "conc", "items", "items/s", "MB/s", "CPU µs/item", "items/s core");
        let (feed, concurrency, items, rate, bytes, cpu, core) = names;
        writeln!(
            f,
            "{feed:<9} {concurrency:>5} {items:>10} {rate:>9} {bytes:>7} {cpu:>11} {core:>12}"
        )
    }
}

impl fmt::Display for FeedRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items = float(self.items);
        let per_second = |amount: f64| amount / self.seconds.max(f64::MIN_POSITIVE);
        let cpu = self.server_cpu_seconds.filter(|cpu| *cpu > 0.0);
        writeln!(
            f,
            "{:<9} {:>5} {:>10} {:>9.0} {:>7.0} {:>11} {:>12}",
            "",
            self.concurrency,
            self.items,
            per_second(items),
            per_second(float(self.bytes) / 1e6),
            shown(cpu.map(|cpu| cpu * 1e6 / items), 2),
            shown(cpu.map(|cpu| items / cpu), 0),
        )
    }
}

/// Fills a container, and reads its feed with so many readers after so many.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Vec<FeedRate>> {
    let key = arguments.account_key();
    let container = Container::new("bench", &format!("feed-{:08x}", rand::random::<u32>()));
    let servers = Servers::nodes(arguments, &key, &container, json!({})).await?;
    let target = servers.targets[0];
    let client = Client::new(format!("http://{target}"), key.clone());
    let (items, progress) = (arguments.items_or(ITEMS), ProgressBar::new_spinner());
    Fill { container: container.clone(), items, progress: progress.clone() }.run(&client).await?;
    progress.set_message("waiting for compactions to end");
    servers.rest().await;
    let reader = Reader::new(target, &container, &key, items);
    let mut rates = Vec::new();
    for concurrency in arguments.concurrency_or(&CONCURRENCY) {
        progress.set_message(format!("change feed: {concurrency} readers"));
        rates.push(measure(&servers, &reader, *concurrency, arguments.duration()).await?);
    }
    progress.finish_and_clear();
    Ok(rates)
}

async fn measure(
    servers: &Servers,
    reader: &Reader,
    concurrency: usize,
    duration: Duration,
) -> anyhow::Result<FeedRate> {
    let before = servers.read().await.usage;
    let begun = clock::monotonic();
    let mut readers = JoinSet::new();
    for _ in 0..concurrency {
        readers.spawn(reader.clone().read_for(duration));
    }
    let mut seen = Seen::default();
    while let Some(read) = readers.join_next().await {
        let Seen { items, bytes } = read.expect("readers do not panic")?;
        seen.items += items;
        seen.bytes += bytes;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let used = servers.read().await.usage.zip(before).map(|(after, before)| after - before);
    let server_cpu_seconds = used.map(|used| used.cpu.as_secs_f64());
    Ok(FeedRate { concurrency, items: seen.items, bytes: seen.bytes, seconds, server_cpu_seconds })
}

/// Reads a container's feed.
#[derive(Clone)]
struct Reader {
    host: SocketAddr,
    line: String,
    signed: Signed,
    /// Items a pass must show.
    items: u64,
}

/// What a reader got.
#[derive(Default)]
struct Seen {
    items: u64,
    bytes: u64,
}

impl Reader {
    fn new(host: SocketAddr, container: &Container, key: &AccountKey, items: u32) -> Self {
        let path = container.items();
        let signed = Signed::new(key, "GET", &path, clock::wall());
        Self { host, line: format!("GET {path}"), signed, items: items.into() }
    }

    /// Passes over the whole feed until time is up, at least once.
    async fn read_for(self, duration: Duration) -> anyhow::Result<Seen> {
        let mut connection = Connection::open(self.host).await?;
        let (begun, mut all) = (clock::monotonic(), Seen::default());
        loop {
            let pass = self.pass(&mut connection).await?;
            ensure!(pass.items == self.items, "a pass has shown {} items", pass.items);
            all.items += pass.items;
            all.bytes += pass.bytes;
            if begun.elapsed() >= duration {
                return Ok(all);
            }
        }
    }

    async fn pass(&self, connection: &mut Connection) -> anyhow::Result<Seen> {
        let (mut tag, mut seen) = (None::<String>, Seen::default());
        loop {
            let status = connection.exchange(self.request(tag.as_deref()).bytes()).await?;
            match status {
                304 => return Ok(seen),
                200 => {}
                other => bail!("a page was answered by {other}"),
            }
            let count = connection.header("x-ms-item-count").context("pages have a count")?;
            seen.items += count.parse::<u64>()?;
            seen.bytes += connection.body().len() as u64;
            tag = Some(connection.header("etag").context("pages have a tag")?.to_string());
        }
    }

    fn request(&self, tag: Option<&str>) -> Request {
        let mut headers = vec![
            ("x-ms-date", self.signed.date.as_str()),
            ("authorization", &self.signed.authorization),
            ("x-ms-version", "2020-07-15"),
            ("a-im", "Incremental Feed"),
            ("x-ms-max-item-count", "-1"),
        ];
        headers.extend(tag.map(|tag| ("if-none-match", tag)));
        Request::new(&self.line, self.host, &headers, b"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_all_readers_together() {
        let server_cpu_seconds = Some(4.0);
        let rate = FeedRate {
            concurrency: 4,
            items: 1_000_000,
            bytes: 1_000_000_000,
            seconds: 5.0,
            server_cpu_seconds,
        };
        let line = rate.to_string();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["4", "1000000", "200000", "200", "4.00", "250000"]);
    }
}
