//! What is measured: nodes started here or given, or the echo server.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ephemeris_cluster_tests::client::{AccountKey, Client, Container};
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::cluster::{Cluster, Status};
use ephemeris_cluster_tests::measure::{Metrics, Usage, machine_cpu};
use ephemeris_cluster_tests::wait;
use serde_json::Value;

use crate::arguments::Arguments;
use crate::echo::Echo;

/// How long a new container may take until it has a leader.
const LEADER_DEADLINE: Duration = Duration::from_secs(10);
/// How long nodes may go on compacting what they were filled with, and how it is noticed that they
/// are done: in a while they use less than a part of a processor.
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
    /// Held so that it runs.
    _cluster: Option<Cluster>,
    /// Held so that it runs.
    _echo: Option<Echo>,
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
        let cluster = match (arguments.urls.is_empty(), arguments.nodes) {
            (false, _) => None,
            (true, 1) => Some(Cluster::single().await),
            (true, count) => Some(Cluster::start_at(count, &arguments.consistency).await),
        };
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
        let targets = targets(&nodes, container, arguments.forwarded).await?;
        Ok(Self { targets, processes, nodes, _cluster: cluster, _echo: None })
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
        self.targets = targets(&self.nodes, container, arguments.forwarded).await?;
        Ok(())
    }

    /// Starts the echo server.
    pub(crate) fn echo() -> anyhow::Result<Self> {
        let echo = Echo::start()?;
        Ok(Self {
            targets: vec![echo.address],
            processes: vec![echo.process()],
            nodes: Vec::new(),
            _cluster: None,
            _echo: Some(echo),
        })
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
            let before = self.read().await.usage;
            tokio::time::sleep(QUIET_FOR).await;
            let used = self.read().await.usage.zip(before).map(|(after, before)| after - before);
            if used.is_none_or(|used| used.cpu < QUIET_FOR / QUIET_PART) {
                break;
            }
        }
    }

    /// What they have used so far.
    pub(crate) async fn read(&self) -> Reading {
        let mut syncs = 0;
        for node in &self.nodes {
            syncs += Metrics::of(node).await.count("log_syncs_total");
        }
        let usage = || self.processes.iter().map(|process| Usage::of(*process)).sum();
        let usage = (!self.processes.is_empty()).then(usage);
        Reading { usage, syncs, machine_cpu: machine_cpu() }
    }
}

/// The node that leads the container's partition, or those that do not.
async fn targets(
    nodes: &[Client],
    container: &Container,
    forwarded: bool,
) -> anyhow::Result<Vec<SocketAddr>> {
    let leader = leader_url(&nodes[0], container).await;
    let leads = |client: &&Client| same_host(client.base(), &leader);
    let chosen: Vec<&Client> = if forwarded {
        nodes.iter().filter(|client| !leads(client)).collect()
    } else {
        nodes.iter().filter(leads).collect()
    };
    if chosen.is_empty() {
        bail!("none of the nodes {}", if forwarded { "forwards" } else { "leads" });
    }
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
