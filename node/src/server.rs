//! Runs a node from its first socket to its last flush.

use std::fmt::Debug;
use std::io::{self, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::{Listener, ListenerExt as _};
use ephemeris_raft::align_timers;
use metrics_exporter_prometheus::PrometheusHandle;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{debug, info, warn};

use crate::clock;
use crate::config::NodeConfig;
use crate::connections::{self, Room};
use crate::front::Front;
use crate::gateway::Gateway;
use crate::node::{Node, StartupError};
use crate::platform::{DirectoryError, Platform, TakeMachine};
use crate::reload::Watched;
use crate::supervisor::{self, Tasks};
use crate::telemetry;
use crate::tls::{self, Tls, TlsError, TlsListener, TlsSource};

/// How often it is looked whether the node has become ready.
const READY_LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long clients' last requests may take once the node stops.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);
/// How often timers fire while a leader shows once that it lives: a little more often than groups tick.
const TIMERS_PER_HEARTBEAT: u32 = 6;

/// Why a node does not run.
#[derive(Debug, Error)]
pub(crate) enum ServerError {
    /// The address for clients cannot be used.
    #[error("--http {address} cannot be listened on: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The node did not start.
    #[error(transparent)]
    Startup(#[from] StartupError),
    /// HTTPS cannot be served.
    #[error("HTTPS cannot be served: {0}")]
    Tls(#[from] TlsError),
    /// Signals cannot be waited for.
    #[error("signals cannot be received: {0}")]
    Signals(io::Error),
}

/// Runs a node until it is told to stop.
pub(crate) async fn run(
    config: NodeConfig,
    metrics: PrometheusHandle,
    take: TakeMachine,
) -> Result<(), ServerError> {
    let files = Tasks::new();
    let ended = run_with(&files, config, metrics, take).await;
    files.stop().await;
    ended
}

/// The same, with tasks that look at files of keys and certificates.
async fn run_with(
    files: &Tasks,
    mut config: NodeConfig,
    metrics: PrometheusHandle,
    take: TakeMachine,
) -> Result<(), ServerError> {
    let mut stop = StopSignals::listen().map_err(ServerError::Signals)?;
    let hangup = || signal(SignalKind::hangup()).map_err(ServerError::Signals);
    let [for_certificate, for_peer_keys, for_keys] = [hangup()?, hangup()?, hangup()?];
    let address = config.http;
    let listen_error = |source| ServerError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listen_error)?;
    let http = listener.local_addr().map_err(listen_error)?;
    if config.keys.emulator {
        warn!("requests are checked with the emulator key, which everybody knows");
    }
    if config.peer.is_some_and(|peer| !peer.ip().is_loopback()) && config.peer_keys.is_none() {
        warn!(
            "nodes talk without TLS: whoever reaches --peer can act as a node (see --peer-key-file)"
        );
    }
    align_timers(config.heartbeat / TIMERS_PER_HEARTBEAT);
    let machine = take(&config)?;
    let tls = config.tls.clone().map(load_tls).transpose()?;
    // From here on: a node that waits for others may do so because of these files.
    if let Some(tls) = tls.clone() {
        let watched = Watched::new("certificate", move || tls.reload(clock::wall()));
        files.spawn("reload the certificate", watched.keep_up(for_certificate));
    }
    if let Some(keys) = config.peer_keys.clone() {
        keys.announce();
        let watched = Watched::new("peer keys", move || keys.reload());
        files.spawn("reload peer keys", watched.keep_up(for_peer_keys));
    }
    let room = Room::take();
    config.connections_max = room.connections;
    let starting = async {
        match tls {
            None => {
                Server::start(machine.as_ref(), config, (without_delay(listener), http), metrics)
                    .await
            }
            Some(tls) => {
                let listener = TlsListener::new(listener, tls, room.handshakes);
                Server::start(machine.as_ref(), config, (listener, http), metrics).await
            }
        }
    };
    let server = tokio::select! {
        started = starting => started?,
        () = stop.wait() => return Ok(()),
    };
    let gateway = server.gateway.clone();
    let watched = Watched::new("keys", move || gateway.reload_keys());
    files.spawn("reload keys", watched.keep_up(for_keys));
    stop.wait().await;
    server.tasks.spawn("second signal", async move {
        // A terminal that is gone may say so more than once.
        stop.wait_for_order().await;
        warn!("a second signal: the process ends at once");
        supervisor::exit();
    });
    server.stop().await;
    Ok(())
}

/// Reads or makes the certificate for HTTPS; says how clients come to trust one made for the first
/// time.
fn load_tls(source: TlsSource) -> Result<Arc<Tls>, TlsError> {
    let is_new = matches!(&source, TlsSource::Made { directory, .. } if !directory.exists());
    let tls = Tls::load(source)?;
    match tls.source() {
        TlsSource::Made { directory, .. } => {
            if is_new {
                // Nobody may read it: the node runs all the same.
                let _ = io::stderr().write_all(tls::trust_lines(directory).as_bytes());
            }
            info!(directory = %directory.display(), "HTTPS with a certificate made here");
        }
        TlsSource::Files { certificate, .. } => {
            info!(certificate = %certificate.display(), "HTTPS");
        }
    }
    Ok(Arc::new(tls))
}

fn without_delay(listener: TcpListener) -> impl Listener<Io = TcpStream, Addr = SocketAddr> {
    listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "a connection keeps its delays");
        }
    })
}

/// A node that answers clients.
pub(crate) struct Server {
    gateway: Gateway,
    tasks: Tasks,
    connections: Tasks,
}

impl Server {
    /// Starts a node on a machine, with a listener for clients and its address.
    pub(crate) async fn start<L>(
        machine: &dyn Platform,
        config: NodeConfig,
        (listener, http): (L, SocketAddr),
        metrics: PrometheusHandle,
    ) -> Result<Self, StartupError>
    where
        L: Listener,
        L::Addr: Debug,
    {
        let started = clock::monotonic();
        let (tasks, connections) = (Tasks::new(), Tasks::new());
        let (clients, timeout) = ((listener, config.connections_max), config.request_timeout);
        let (front, stop) = (Front::new(timeout), connections.token().clone());
        let serving = connections::serve(clients, front.clone(), timeout, stop);
        connections.spawn_orderly("http", serving);
        let starting = Node::start(machine, config, http, tasks.clone()).await;
        let node = starting.inspect_err(|_| connections.token().cancel())?;
        tasks.spawn("metrics", telemetry::keep_up(metrics.clone()));
        let gateway = Gateway::new(node.clone());
        front.open(gateway.clone(), metrics);
        announce_readiness(&tasks, node, started);
        Ok(Self { gateway, tasks, connections })
    }

    /// The node.
    #[cfg(test)]
    pub(crate) fn node(&self) -> &Node {
        &self.gateway.node
    }

    /// Hands leadership over and ends everything in order.
    pub(crate) async fn stop(self) {
        info!("stopping: handing leadership over");
        let Self { gateway: Gateway { node, .. }, tasks, connections } = self;
        node.hand_over().await;
        if tokio::time::timeout(CLOSE_DEADLINE, connections.stop()).await.is_err() {
            debug!("some connections did not close in time");
        }
        node.stop().await;
        tasks.stop().await;
        info!("stopped");
    }
}

/// Says once that the node can be used, and how.
fn announce_readiness(tasks: &Tasks, node: Node, started: clock::Instant) {
    tasks.clone().spawn("readiness", async move {
        while !node.readiness().iter().all(|(_, holds)| *holds) {
            tokio::time::sleep(READY_LOOK_EVERY).await;
        }
        let after_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        info!(node = %node.node_id(), url = node.url(), after_ms, "ready");
    });
}

/// SIGTERM and SIGINT; and SIGHUP, where it says that the terminal is gone that the node was started at. Nobody would
/// know of it any more.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    has_terminal: bool,
}

impl StopSignals {
    fn listen() -> io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let hangup = signal(SignalKind::hangup())?;
        Ok(Self { terminate, interrupt, hangup, has_terminal: io::stdin().is_terminal() })
    }

    async fn wait(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => {
                    if self.has_terminal && !io::stdin().is_terminal() {
                        return;
                    }
                }
            }
        }
    }

    /// Waits for SIGTERM or SIGINT alone.
    async fn wait_for_order(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
