//! Other stores on the same machine, driven by the same closed loop: the same documents, the same counting.
//!
//! Each is started here, in a temporary directory on loopback ports, measured, and ended by its process
//! numbers. Three processes each; requests go to the one that leads. What is not installed is left out,
//! and it is said how to install it.

mod daemon;
mod etcd;
mod nats;
mod postgres;
mod redis;
mod requests;
mod stream;

use std::fmt;
use std::net::SocketAddr;

use anyhow::ensure;
use clap::ValueEnum;
use ephemeris_cluster_tests::load::{ClosedLoop, Source};
use serde::Serialize;

use crate::arguments::Arguments;
use crate::plan::{Cell, measure};
use crate::report::{Run, Server};
use crate::servers::Servers;
use crate::subject::{Numbers, SINGLE_ITEMS_MAX, Stock};
pub(crate) use daemon::Daemons;
use requests::{Dialect, Requests};

/// Another store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// Three nodes, by the JSON gateway.
    Etcd,
    /// Three nodes, a key-value bucket of `JetStream` with three replicas.
    Nats,
    /// A primary and two replicas.
    Redis,
    /// A primary and two standbys.
    Postgres,
}

/// What was measured under a peer's name, and what it promises.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PeerNote {
    server: Server,
    version: String,
    promise: String,
}

impl fmt::Display for PeerNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}; {}", self.server.name(), self.version, self.promise)
    }
}

/// What was found.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) runs: Vec<Run>,
    pub(crate) notes: Vec<PeerNote>,
}

/// A peer that runs.
struct Started<D> {
    daemons: Daemons,
    dialect: D,
    /// Where requests go.
    target: SocketAddr,
    version: String,
    promise: String,
}

/// Measures every cell on every peer.
pub(crate) async fn run(arguments: &Arguments, cells: &[Cell]) -> anyhow::Result<Found> {
    let too_many = !arguments.peers.is_empty() && arguments.read_items() > SINGLE_ITEMS_MAX;
    ensure!(!too_many, "peers are given {SINGLE_ITEMS_MAX} items at most");
    let mut found = Found::default();
    for peer in &arguments.peers {
        let bench = Bench { arguments, cells, server: peer.server() };
        if let Err(missing) = daemon::find(peer.program()) {
            let package = peer.package();
            eprintln!("{}: {missing}: apt-get install {package}", peer.server().name());
            continue;
        }
        match peer {
            Peer::Etcd => bench.run(etcd::start().await?, &mut found).await?,
            Peer::Nats => bench.run(nats::start().await?, &mut found).await?,
            Peer::Redis => bench.run(redis::start().await?, &mut found).await?,
            Peer::Postgres => bench.run(postgres::start().await?, &mut found).await?,
        }
    }
    Ok(found)
}

impl Peer {
    fn server(self) -> Server {
        match self {
            Peer::Etcd => Server::Etcd,
            Peer::Nats => Server::Nats,
            Peer::Redis => Server::Redis,
            Peer::Postgres => Server::Postgres,
        }
    }

    /// The program that must be there.
    fn program(self) -> &'static str {
        match self {
            Peer::Etcd => "etcd",
            Peer::Nats => "nats-server",
            Peer::Redis => "redis-server",
            Peer::Postgres => "postgres",
        }
    }

    /// Debian's package of it.
    fn package(self) -> &'static str {
        match self {
            Peer::Etcd => "etcd-server",
            Peer::Nats => "nats-server",
            Peer::Redis => "redis-server",
            Peer::Postgres => "postgresql",
        }
    }
}

struct Bench<'a> {
    arguments: &'a Arguments,
    cells: &'a [Cell],
    server: Server,
}

impl Bench<'_> {
    async fn run<D: Dialect>(&self, started: Started<D>, found: &mut Found) -> anyhow::Result<()> {
        let Started { daemons, dialect, target, version, promise } = started;
        found.notes.push(PeerNote { server: self.server, version, promise });
        let (stock, mut numbers) = (Stock::of(self.arguments.read_items()), Numbers::default());
        let base = numbers.next_run();
        let reads = Requests::new(dialect, stock.ids(base));
        let storing = (base..).take(stock.workers()).map(|run| (target, reads.mixed(1.0, run)));
        let measured = ClosedLoop::requests(stock.requests_each()).run(storing.collect()).await;
        let unexpected = &measured.unexpected;
        ensure!(unexpected.is_empty(), "{} stores no items: {unexpected:?}", self.server.name());
        let servers = Servers::peer(target, daemons);
        for _ in 0..self.arguments.rounds() {
            for cell in self.cells {
                let workers = (numbers.next_run()..).take(cell.concurrency);
                let source = |run| (target, reads.mixed(cell.creates_share, run));
                let sources = workers.map(source).collect();
                found.runs.push(self.measure(&servers, cell, sources).await);
            }
        }
        Ok(())
    }

    async fn measure<S: Source>(
        &self,
        servers: &Servers,
        cell: &Cell,
        sources: Vec<(SocketAddr, S)>,
    ) -> Run {
        measure(self.arguments, servers, self.server, cell.workload.name(), sources).await
    }
}
