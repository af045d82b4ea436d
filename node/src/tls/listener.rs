//! Takes connections in and shakes hands with each apart: a slow client holds up nobody.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::debug;

use super::Tls;

/// How long a client may take until it is encrypted.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// A connection, or that there is none.
type Shaken = Option<(TlsStream<TcpStream>, SocketAddr)>;

/// A listener whose connections are encrypted.
pub(crate) struct TlsListener {
    tcp: TcpListener,
    tls: Arc<Tls>,
    handshakes: JoinSet<Shaken>,
    /// Handshakes under way at the same time; more wait in the kernel.
    handshakes_max: usize,
}

impl TlsListener {
    /// Encrypts the connections of a listener.
    pub(crate) fn new(tcp: TcpListener, tls: Arc<Tls>, handshakes_max: usize) -> Self {
        Self { tcp, tls, handshakes: JoinSet::new(), handshakes_max }
    }

    fn begin_handshake(&mut self, stream: TcpStream, client: SocketAddr) {
        let acceptor = TlsAcceptor::from(self.tls.config());
        self.handshakes.spawn(async move {
            match tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => return Some((stream, client)),
                Ok(Err(error)) => debug!(%client, %error, "no handshake"),
                Err(_) => debug!(%client, "a handshake took too long"),
            }
            None
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let has_room = self.handshakes.len() < self.handshakes_max;
            tokio::select! {
                Some(done) = self.handshakes.join_next() => {
                    if let Some(connection) = done.expect("handshakes do not panic") {
                        return connection;
                    }
                }
                (stream, client) = Listener::accept(&mut self.tcp), if has_room => {
                    if let Err(error) = stream.set_nodelay(true) {
                        debug!(%error, "a connection keeps its delays");
                    }
                    self.begin_handshake(stream, client);
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}
