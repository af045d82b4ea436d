//! Connections of the operating system.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tracing::debug;

use crate::platform::{Listener, Network, Stream};

/// Bytes that another node has not acknowledged for so long end the connection: without this, one
/// that was cut would go on waiting long after the network is whole again.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(3);

/// A connection that is silent for so long is asked whether there is still somebody: one question that is not
/// answered in `UNACKNOWLEDGED_MAX` ends it.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// TCP.
pub(crate) struct Tcp;

impl Network for Tcp {
    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let listener = TcpListener::bind(address).await?;
            Ok(Box::new(listener) as Box<dyn Listener>)
        })
    }

    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Stream>> {
        let address = address.to_string();
        Box::pin(async move { stream(TcpStream::connect(address).await?) })
    }
}

impl Listener for TcpListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(async move {
            loop {
                let (connection, _) = TcpListener::accept(self).await?;
                match stream(connection) {
                    Ok(stream) => return Ok(stream),
                    Err(error) => debug!(%error, "a peer connection ended"),
                }
            }
        })
    }
}

/// Sets a connection up: small messages go at once, and a dead peer is noticed.
fn stream(connection: TcpStream) -> io::Result<Stream> {
    connection.set_nodelay(true)?;
    let millis = u32::try_from(UNACKNOWLEDGED_MAX.as_millis()).expect("a few thousand");
    sockopt::set_tcp_user_timeout(&connection, millis)?;
    // Whoever only takes requests has nothing unacknowledged: it asks whether the peer is there.
    sockopt::set_socket_keepalive(&connection, true)?;
    sockopt::set_tcp_keepidle(&connection, SILENCE_MAX)?;
    sockopt::set_tcp_keepintvl(&connection, UNACKNOWLEDGED_MAX)?;
    let (reader, writer) = connection.into_split();
    Ok(Stream { reader: Box::new(reader), writer: Box::new(writer) })
}
