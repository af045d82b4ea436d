//! Queries over a container of a given number of items of 1 KB, with everything indexed but two
//! properties.
//!
//! Once the nodes have put away what they were filled with, each query runs again and again, one at a
//! time, next to point reads of the same items. What counts is the processor time of all nodes for one
//! query, as a ratio of a point read's, and how many items a second of processor time passes.

pub(crate) mod fill;
mod outcome;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ephemeris_cluster_tests::client::{AccountKey, Call, Client, Container};
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::load::{ClosedLoop, Connection, Measured, Request, Source};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::servers::Servers;
use crate::sources::{query_request, read_request};
use fill::Fill;
pub(crate) use outcome::QueryCost;

/// Items that queries are asked about, unless the command line says how many.
const ITEMS: u32 = 1_000_000;
/// Pages of one query at most.
const PAGES_MAX: usize = 100_000;
/// Connections for what is answered with one page.
const CONNECTIONS: usize = 8;

/// A query, and what it passes over.
struct Case {
    name: &'static str,
    text: String,
    passes: Passes,
}

/// How many items a query passes over.
#[derive(Clone, Copy)]
enum Passes {
    /// As many as it returns, on one page.
    Few,
    /// All there are.
    All,
}

/// The queries. `n` is another number in each item, `bucket` one of a thousand; `plain` is the same as
/// `bucket`, but is not indexed.
fn cases(items: u32) -> Vec<Case> {
    let case = |name, text: &str, passes| Case { name, text: text.to_string(), passes };
    let equality = format!("SELECT * FROM c WHERE c.n = {}", items / 2);
    vec![
        case("equality", &equality, Passes::Few),
        case("order by limit", "SELECT * FROM c ORDER BY c.n OFFSET 0 LIMIT 10", Passes::Few),
        case("count all", "SELECT VALUE COUNT(1) FROM c", Passes::All),
        case("count range", "SELECT VALUE COUNT(1) FROM c WHERE c.n >= 0", Passes::All),
        case("scan", "SELECT VALUE c.id FROM c WHERE c.plain = -1", Passes::All),
        case("group by", "SELECT c.bucket, COUNT(1) AS n FROM c GROUP BY c.bucket", Passes::All),
        case(
            "order by scan",
            "SELECT TOP 10 c.id FROM c WHERE c.plain >= 0 ORDER BY c.n DESC",
            Passes::Few,
        ),
    ]
}

/// Fills a container and asks every query.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Vec<QueryCost>> {
    let key = arguments.account_key();
    let container = Container::new("bench", &format!("query-{:08x}", rand::random::<u32>()));
    let excluded = ["/filler/?", "/plain/?"].map(|path| json!({ "path": path }));
    let policy = json!({ "includedPaths": [{ "path": "/*" }], "excludedPaths": excluded });
    let definition = json!({ "indexingPolicy": policy });
    let servers = Servers::nodes(arguments, &key, &container, definition).await?;
    let progress = ProgressBar::new_spinner();
    let items = arguments.items_or(ITEMS);
    let client = Client::new(format!("http://{}", servers.targets[0]), key.clone());
    let begun = clock::monotonic();
    Fill { container: container.clone(), items, progress: progress.clone() }.run(&client).await?;
    let filled_in = begun.elapsed();
    progress.set_message("waiting for compactions to end");
    servers.rest().await;
    let bench = Bench { arguments, container, key, servers, client, progress };
    let mut costs = vec![bench.point_reads().await];
    for case in cases(items) {
        bench.progress.set_message(case.name);
        costs.push(bench.query(&case, items).await?);
    }
    bench.progress.finish_and_clear();
    eprintln!("{items} items were stored in {:.1} s", filled_in.as_secs_f64());
    Ok(costs)
}

struct Bench<'a> {
    arguments: &'a Arguments,
    container: Container,
    key: AccountKey,
    servers: Servers,
    client: Client,
    progress: ProgressBar,
}

impl Bench<'_> {
    /// Point reads of one item.
    async fn point_reads(&self) -> QueryCost {
        self.progress.set_message("point reads");
        let target = self.servers.targets[0];
        let (id, pk) = (fill::id(0), fill::key(0));
        let request = read_request(target, &self.container, &self.key, &id, &pk);
        let before = self.servers.read().await;
        let measured = self.again_and_again(&request).await;
        let after = self.servers.read().await;
        let count = measured.latencies.count();
        QueryCost::new("point read", 1, count, measured.elapsed, before, after)
    }

    async fn query(&self, case: &Case, items: u32) -> anyhow::Result<QueryCost> {
        // Once to warm up, and to see that it works.
        let rows = self.all_pages(&case.text).await.with_context(|| case.text.clone())?;
        let passed = match case.passes {
            Passes::Few => rows,
            Passes::All => u64::from(items),
        };
        let before = self.servers.read().await;
        let (queries, elapsed) = match case.passes {
            Passes::Few => self.one_page(&case.text).await,
            Passes::All => self.every_page(&case.text).await?,
        };
        let after = self.servers.read().await;
        Ok(QueryCost::new(case.name, passed, queries, elapsed, before, after))
    }

    /// Asks again and again for a query of a single page, as fast as point reads are asked for.
    async fn one_page(&self, text: &str) -> (u64, Duration) {
        let request =
            query_request(self.servers.targets[0], &self.container, &self.key, &body(text));
        let measured = self.again_and_again(&request).await;
        (measured.latencies.count(), measured.elapsed)
    }

    /// Sends one request from several connections at the same time: with a single one, most of the
    /// processor time of what is this short goes into falling asleep and waking up.
    async fn again_and_again(&self, request: &Request) -> Measured {
        let source = |_| (self.servers.targets[0], Again(request.clone()));
        let sources: Vec<(SocketAddr, Again)> = (0..CONNECTIONS).map(source).collect();
        ClosedLoop::lasting(self.arguments.duration()).run(sources).await
    }

    /// Asks again and again for all pages of a query.
    async fn every_page(&self, text: &str) -> anyhow::Result<(u64, Duration)> {
        let begun = clock::monotonic();
        let mut queries = 0;
        while queries == 0 || begun.elapsed() < self.arguments.duration() {
            self.all_pages(text).await?;
            queries += 1;
        }
        Ok((queries, begun.elapsed()))
    }

    /// Asks for a query's pages until there is no more; how many rows there were.
    async fn all_pages(&self, text: &str) -> anyhow::Result<u64> {
        let (mut continuation, mut rows) = (None::<String>, 0);
        for _ in 0..PAGES_MAX {
            let mut call = Call::post(self.container.items(), body(text))
                .header("content-type", "application/query+json")
                .header("x-ms-documentdb-isquery", "True")
                .header("x-ms-documentdb-query-enablecrosspartition", "True")
                .header("x-ms-max-item-count", "-1");
            if let Some(token) = &continuation {
                call = call.header("x-ms-continuation", token.as_str());
            }
            let answer = self.client.send(&call).await?;
            if answer.status != 200 {
                bail!("{}", answer.describe());
            }
            let page: Value = serde_json::from_slice(&answer.body)?;
            rows += page["_count"].as_u64().unwrap_or(0);
            continuation = answer.continuation().map(String::from);
            if continuation.is_none() {
                return Ok(rows);
            }
        }
        bail!("the query has more than {PAGES_MAX} pages")
    }
}

fn body(text: &str) -> String {
    json!({ "query": text, "parameters": [] }).to_string()
}

/// One request, again and again.
struct Again(Request);

impl Source for Again {
    type Wire = Connection;

    fn next(&mut self) -> (&[u8], u16) {
        (self.0.bytes(), 200)
    }
}

/// Items a query passes over in a second of processor time.
fn per_core_second(items: u64, cpu: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^52")]
    let items = items as f64;
    items / cpu.as_secs_f64().max(f64::MIN_POSITIVE)
}
