//! What is measured: nodes started here or given, or the echo server.

use std::any::Any;
use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use ephemeris_cluster_tests::client::{AccountKey, Client, Container};
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::cluster::{Cluster, Status};
use ephemeris_cluster_tests::measure::{Metrics, Usage, machine_cpu};
use ephemeris_cluster_tests::wait;
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::echo::Echo;
use crate::peers::Daemons;
use crate::subject::unique_container;

/// Which nodes requests go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The one that leads.
    Direct,
    /// Those that do not, and forward.
    Forwarded,
}

/// How long leaders must stay where they are to count as spread, and how long that may take: four
/// move in two seconds at most.
const SPREAD_FOR: Duration = Duration::from_secs(5);
const SPREAD_MAX: Duration = Duration::from_mins(3);
/// How long a new container may take until it has a leader.
const LEADER_DEADLINE: Duration = Duration::from_secs(10);
/// How long nodes may go on compacting what they were filled with, and how it is noticed that they
/// are done: in a while they use less than a part of a processor more than what they use at rest.
const COMPACTING_MAX: Duration = Duration::from_mins(2);
const QUIET_FOR: Duration = Duration::from_secs(2);
const QUIET_PART: u32 = 20;

/// Servers, and how to look into them.
pub(crate) struct Servers {
    /// Where requests go.
    pub(crate) targets: Vec<SocketAddr>,
    /// All processes; none if they are not on this machine.
    processes: Vec<u32>,
    /// The nodes, for their metrics.
    nodes: Vec<Client>,
    /// What one of them uses.
    usage_of: fn(u32) -> Usage,
    /// Processor time they use in `QUIET_FOR` when nobody asks for anything.
    at_rest: Cell<Duration>,
    /// Held so that they run.
    _running: Box<dyn Any>,
}

/// What servers have used so far.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    /// Processor time and memory of all; none if they are not on this machine.
    pub(crate) usage: Option<Usage>,
    /// Syncs of all logs.
    pub(crate) syncs: u64,
    /// Processor time of everything on this machine.
    pub(crate) machine_cpu: Duration,
}

impl Servers {
    /// Starts a cluster, or takes the one that is given, and makes the container, of which
    /// `definition` says what is special.
    pub(crate) async fn nodes(
        arguments: &Arguments,
        key: &AccountKey,
        container: &Container,
        definition: Value,
    ) -> anyhow::Result<Self> {
        let cluster = if arguments.urls.is_empty() { Some(start(arguments).await) } else { None };
        let (nodes, processes) = if let Some(cluster) = &cluster {
            let ids = cluster.ids();
            let processes = ids.iter().map(|id| cluster.process_id(*id)).collect();
            (cluster.clients(&ids), processes)
        } else {
            let client = |url: &String| Client::new(url.trim_end_matches('/'), key.clone());
            (arguments.urls.iter().map(client).collect::<Vec<_>>(), arguments.pids.clone())
        };
        for answer in [
            nodes[0].create_database(container.database()).await,
            nodes[0].create_container(container, definition).await,
        ] {
            if !matches!(answer.status, 201 | 409) {
                bail!("the container cannot be made: {}", answer.describe());
            }
        }
        let targets = targets(&nodes, container, arguments.way()).await?;
        Ok(Self {
            targets,
            processes,
            nodes,
            usage_of: Usage::of,
            at_rest: Cell::default(),
            _running: Box::new(cluster),
        })
    }

    /// Makes so many containers of one partition each.
    pub(crate) async fn make_containers(&self, count: u32) -> anyhow::Result<Vec<Container>> {
        let mut containers = Vec::new();
        for _ in 0..count {
            let container = unique_container("partition");
            let answer = self.nodes[0].create_container(&container, json!({})).await;
            ensure!(answer.status == 201, "a container cannot be made: {}", answer.describe());
            containers.push(container);
        }
        Ok(containers)
    }

    /// Waits until no group changes its leader any more, and looks what the nodes use then.
    pub(crate) async fn await_spread(&self) -> anyhow::Result<()> {
        let begun = clock::monotonic();
        let mut seen = None;
        let mut since = begun;
        while since.elapsed() < SPREAD_FOR {
            ensure!(begun.elapsed() < SPREAD_MAX, "leaders still move after {SPREAD_MAX:?}");
            tokio::time::sleep(SPREAD_FOR / 10).await;
            let status = Status::of(self.any_node()).await.context("a node has no status")?;
            let leaders: Vec<_> = status.groups.iter().map(|g| (g.group, g.leader)).collect();
            let is_led = leaders.iter().all(|(_, leader)| leader.is_some());
            let leaders = is_led.then_some(leaders);
            if leaders.is_none() || leaders != seen {
                (seen, since) = (leaders, clock::monotonic());
            }
        }
        self.at_rest.set(self.used_in(QUIET_FOR).await.unwrap_or_default());
        Ok(())
    }

    /// Where requests for a container go.
    pub(crate) async fn targets_of(
        &self,
        container: &Container,
        way: Way,
    ) -> anyhow::Result<Vec<SocketAddr>> {
        targets(&self.nodes, container, way).await
    }

    /// Makes another container, and turns to where it is led.
    pub(crate) async fn turn_to(
        &mut self,
        arguments: &Arguments,
        container: &Container,
        definition: Value,
    ) -> anyhow::Result<()> {
        let answer = self.nodes[0].create_container(container, definition).await;
        if answer.status != 201 {
            bail!("the container cannot be made: {}", answer.describe());
        }
        self.follow(arguments, container).await
    }

    /// Turns to where a container is led.
    pub(crate) async fn follow(
        &mut self,
        arguments: &Arguments,
        container: &Container,
    ) -> anyhow::Result<()> {
        self.targets = targets(&self.nodes, container, arguments.way()).await?;
        Ok(())
    }

    /// Starts the echo server.
    pub(crate) fn echo() -> anyhow::Result<Self> {
        let echo = Echo::start()?;
        Ok(Self {
            targets: vec![echo.address],
            processes: vec![echo.process()],
            nodes: Vec::new(),
            usage_of: Usage::of,
            at_rest: Cell::default(),
            _running: Box::new(echo),
        })
    }

    /// Another store, whose processes may have children.
    pub(crate) fn peer(target: SocketAddr, daemons: Daemons) -> Self {
        Self {
            targets: vec![target],
            processes: daemons.ids(),
            nodes: Vec::new(),
            usage_of: Usage::of_tree,
            at_rest: Cell::default(),
            _running: Box::new(daemons),
        }
    }

    /// Some node.
    pub(crate) fn any_node(&self) -> &Client {
        self.nodes.first().expect("it is not the echo server that is asked")
    }

    /// Where the nodes are.
    pub(crate) fn addresses(&self) -> anyhow::Result<Vec<SocketAddr>> {
        self.nodes.iter().map(|client| address(client.base())).collect()
    }

    /// Waits until they have put away what they were given, though not for ever.
    pub(crate) async fn rest(&self) {
        let begun = clock::monotonic();
        while begun.elapsed() < COMPACTING_MAX {
            let quiet = self.at_rest.get() + QUIET_FOR / QUIET_PART;
            if self.used_in(QUIET_FOR).await.is_none_or(|used| used < quiet) {
                break;
            }
        }
    }

    /// Processor time that all of them use from now on for so long; none if they are elsewhere.
    async fn used_in(&self, duration: Duration) -> Option<Duration> {
        let before = self.usage()?;
        tokio::time::sleep(duration).await;
        Some((self.usage()? - before).cpu)
    }

    /// What they have used so far.
    pub(crate) async fn read(&self) -> Reading {
        let mut syncs = 0;
        for node in &self.nodes {
            syncs += Metrics::of(node).await.count("log_syncs_total");
        }
        Reading { usage: self.usage(), syncs, machine_cpu: machine_cpu() }
    }

    /// Processor time and memory of all so far; none if they are not on this machine.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let usage = || self.processes.iter().map(|process| (self.usage_of)(*process)).sum();
        (!self.processes.is_empty()).then(usage)
    }
}

async fn start(arguments: &Arguments) -> Cluster {
    let mut cluster = if arguments.nodes == 1 {
        Cluster::alone()
    } else {
        Cluster::formable_with(arguments.nodes, &["--consistency", arguments.consistency()])
    };
    if let Some(binary) = &arguments.binary {
        cluster.set_binary(binary);
    }
    cluster.start_all().await;
    cluster
}

/// The node that leads the container's partition, or those that do not.
async fn targets(
    nodes: &[Client],
    container: &Container,
    way: Way,
) -> anyhow::Result<Vec<SocketAddr>> {
    let leader = leader_url(&nodes[0], container).await;
    let leads = |client: &&Client| same_host(client.base(), &leader);
    let chosen: Vec<&Client> = match way {
        Way::Direct => nodes.iter().filter(leads).collect(),
        Way::Forwarded => nodes.iter().filter(|client| !leads(client)).collect(),
    };
    ensure!(!chosen.is_empty(), "there is no node for requests that are {way:?}");
    chosen.iter().map(|client| address(client.base())).collect()
}

async fn leader_url(node: &Client, container: &Container) -> String {
    wait::until("a leader", LEADER_DEADLINE, async || {
        let status = Status::of(node).await?;
        let leader = status.partitions(container).first()?.leader?;
        status.nodes.iter().find(|known| known.node == leader).map(|known| known.url.clone())
    })
    .await
}

fn host(url: &str) -> &str {
    let url = url.strip_prefix("http://").unwrap_or(url);
    url.trim_end_matches('/')
}

fn same_host(a: &str, b: &str) -> bool {
    host(a) == host(b)
}

fn address(url: &str) -> anyhow::Result<SocketAddr> {
    let found = std::net::ToSocketAddrs::to_socket_addrs(host(url));
    let mut found = found.with_context(|| format!("{url} has no address"))?;
    found.next().with_context(|| format!("{url} has no address"))
}
