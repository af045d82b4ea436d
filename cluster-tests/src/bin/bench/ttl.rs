//! What a time to live costs where nothing expires: the same requests to containers that differ in
//! nothing else.
//!
//! 1. Four containers on one cluster: `off` and `off again` without TTL, `on` with default -1, and
//!    `far` whose items expire in 31 years.
//! 2. In each of some rounds all of them get the same run, one after the other, in an order that turns.
//! 3. Each is put next to `off` of the same round. What `off again` differs by is chance, and as much
//!    may be in the other numbers.

use std::fmt;
use std::net::SocketAddr;

use anyhow::bail;
use ephemeris_cluster_tests::client::{AccountKey, Container};
use ephemeris_cluster_tests::load::{ClosedLoop, Source};
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::plan::{WORKERS_MAX, measure};
use crate::report::{Run, Server, shown};
use crate::servers::Servers;
use crate::sources::{Creates, Reads};

/// Requests under way at the same time, unless the command line says how many.
const CONCURRENCY: [usize; 1] = [64];
/// How often every container is measured.
const ROUNDS: u64 = 6;
/// Requests under way while items for reads are stored.
const STORE_CONCURRENCY: u64 = 64;
/// A default that is no concern of anybody who measures, in seconds.
const FAR_SECONDS: u32 = 1_000_000_000;

/// A container, and where its requests go.
struct Subject {
    name: &'static str,
    container: Container,
    target: SocketAddr,
    ids: Vec<String>,
}

/// What is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Create,
    Read,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Create, Self::Read];

    fn name(self) -> &'static str {
        match self {
            Kind::Create => "create",
            Kind::Read => "read",
        }
    }
}

/// The least, the middle and the greatest of some numbers.
#[derive(Clone, Copy, Debug, Serialize)]
struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    fn of(mut numbers: Vec<f64>) -> Option<Self> {
        numbers.sort_by(f64::total_cmp);
        let (min, max) = (*numbers.first()?, *numbers.last()?);
        Some(Self { min, median: numbers[numbers.len() / 2], max })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:.3} ({:.3}–{:.3})", self.median, self.min, self.max);
        f.pad(&text)
    }
}

/// What requests to one container cost, next to those without TTL.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cost {
    container: &'static str,
    workload: &'static str,
    concurrency: usize,
    /// Operations a second, next to `off`.
    rate: Option<Spread>,
    /// Processor time of an operation, next to `off`; none if the nodes are elsewhere.
    cpu: Option<Spread>,
    /// The same in microseconds, in the middle.
    cpu_micros: Option<f64>,
}

impl Cost {
    /// `runs` and those of `off`, of the same rounds.
    fn new(container: &'static str, runs: &[Run], off: &[Run]) -> Self {
        let pairs = || runs.iter().zip(off);
        let rate = pairs().map(|(run, off)| run.per_second / off.per_second.max(1.0));
        let cpu = |run: &Run| run.server_cpu_per_operation();
        let ratio = |(run, off)| Some(cpu(run)? / cpu(off)?.max(f64::MIN_POSITIVE));
        Self {
            container,
            workload: runs.first().map_or("", |run| run.workload),
            concurrency: runs.first().map_or(0, |run| run.concurrency),
            rate: Spread::of(rate.collect()),
            cpu: Spread::of(pairs().filter_map(ratio).collect()),
            cpu_micros: Spread::of(runs.iter().filter_map(cpu).collect()).map(|all| all.median),
        }
    }

    /// The line above all costs.
    pub(crate) fn write_head(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ("ttl", "what", "conc", "CPU µs/op", "of ops/s", "of CPU");
        let (container, what, concurrency, cpu, rate, ratio) = names;
        writeln!(f, "{container:<9} {what:<7} {concurrency:>5} {cpu:>9} {rate:>22} {ratio:>22}")
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spread = |spread: Option<Spread>| spread.map_or("-".to_string(), |s| s.to_string());
        writeln!(
            f,
            "{:<9} {:<7} {:>5} {:>9} {:>22} {:>22}",
            self.container,
            self.workload,
            self.concurrency,
            shown(self.cpu_micros, 1),
            spread(self.rate),
            spread(self.cpu),
        )
    }
}

/// The containers, `off` first.
fn definitions() -> [(&'static str, Value); 4] {
    [
        ("off", json!({})),
        ("off again", json!({})),
        ("on", json!({ "defaultTtl": -1 })),
        ("far", json!({ "defaultTtl": FAR_SECONDS })),
    ]
}

/// Measures all containers at each concurrency.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Vec<Cost>> {
    let key = arguments.account_key();
    let unique = rand::random::<u32>();
    let (mut servers, mut subjects) = (None, Vec::new());
    for (name, definition) in definitions() {
        let unique = format!("{}-{unique:08x}", name.replace(' ', "-"));
        let container = Container::new("bench", &unique);
        let servers: &mut Servers = match &mut servers {
            None => servers.insert(Servers::nodes(arguments, &key, &container, definition).await?),
            Some(started) => {
                started.turn_to(arguments, &container, definition).await?;
                started
            }
        };
        let target = servers.targets[0];
        let ids = store(&container, target, &key, arguments.read_items()).await?;
        subjects.push(Subject { name, container, target, ids });
    }
    let Some(servers) = servers else { bail!("there is no container to measure") };
    let mut costs = Vec::new();
    for concurrency in arguments.concurrency_or(&CONCURRENCY) {
        for kind in Kind::ALL {
            let measuring = Measuring { arguments, key: &key, servers: &servers, kind };
            costs.extend(measuring.run(&subjects, *concurrency).await?);
        }
    }
    Ok(costs)
}

/// Stores what is read.
async fn store(
    container: &Container,
    target: SocketAddr,
    key: &AccountKey,
    items: u32,
) -> anyhow::Result<Vec<String>> {
    let each = u64::from(items).div_ceil(STORE_CONCURRENCY);
    let workers = 0..STORE_CONCURRENCY;
    let ids: Vec<String> =
        workers.clone().flat_map(|run| (0..each).map(move |n| Creates::id(run, n))).collect();
    let sources = workers.map(|run| (target, Creates::new(target, container, key, run)));
    let measured = ClosedLoop::requests(each).run(sources.collect()).await;
    if measured.latencies.count() != ids.len() as u64 {
        bail!("items were not stored: {:?}", measured.unexpected);
    }
    Ok(ids)
}

/// One kind of request, measured at all containers.
struct Measuring<'a> {
    arguments: &'a Arguments,
    key: &'a AccountKey,
    servers: &'a Servers,
    kind: Kind,
}

impl Measuring<'_> {
    async fn run(&self, subjects: &[Subject], concurrency: usize) -> anyhow::Result<Vec<Cost>> {
        let progress = ProgressBar::new_spinner();
        let mut runs: Vec<Vec<Run>> = subjects.iter().map(|_| Vec::new()).collect();
        for round in 1..=ROUNDS {
            progress.set_message(format!("{}: round {round}", self.kind.name()));
            for turn in 0..subjects.len() {
                let at = (turn + usize::try_from(round)?) % subjects.len();
                let run = self.run_one(&subjects[at], round, concurrency).await;
                if !run.unexpected.is_empty() {
                    bail!("{} was answered badly: {:?}", subjects[at].name, run.unexpected);
                }
                runs[at].push(run);
            }
        }
        progress.finish_and_clear();
        let costs = subjects.iter().zip(&runs);
        Ok(costs.map(|(subject, of_it)| Cost::new(subject.name, of_it, &runs[0])).collect())
    }

    async fn run_one(&self, subject: &Subject, round: u64, concurrency: usize) -> Run {
        let Subject { container, target, ids, .. } = subject;
        let workers = 0..concurrency as u64;
        let number = |worker| round * WORKERS_MAX + worker;
        match self.kind {
            Kind::Create => {
                let source = |worker| Creates::new(*target, container, self.key, number(worker));
                self.measure(workers.map(|worker| (*target, source(worker))).collect()).await
            }
            Kind::Read => {
                let reads = Reads::new(*target, container, self.key, ids);
                let source = |worker| reads.seeded(number(worker));
                self.measure(workers.map(|worker| (*target, source(worker))).collect()).await
            }
        }
    }

    async fn measure<S: Source>(&self, sources: Vec<(SocketAddr, S)>) -> Run {
        measure(self.arguments, self.servers, Server::Ephemeris, self.kind.name(), sources).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;

    #[test]
    fn a_cost_is_the_middle_of_the_rounds_next_to_the_same_rounds_without_ttl() {
        let rounds = |rates: [f64; 3], cpu_ms| -> Vec<Run> {
            rates.into_iter().map(|rate| run(Server::Ephemeris, rate, cpu_ms)).collect()
        };
        let off = rounds([100.0, 200.0, 400.0], 40);
        let cost = Cost::new("far", &rounds([110.0, 180.0, 400.0], 50), &off);
        let line = cost.to_string();
        let cells: Vec<&str> = line.split_whitespace().collect();
        let expected =
            ["far", "read", "4", "50.0", "1.000", "(0.900–1.100)", "1.250", "(1.250–1.250)"];
        assert_eq!(cells, expected);
    }

    #[test]
    fn nodes_elsewhere_have_rates_and_no_costs() {
        let elsewhere = Run { server_cpu: None, ..run(Server::Ephemeris, 100.0, 1) };
        let cost =
            Cost::new("on", std::slice::from_ref(&elsewhere), std::slice::from_ref(&elsewhere));
        assert!(cost.cpu.is_none() && cost.rate.is_some());
    }
}
