//! Connections of the operating system.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};

use crate::platform::{Arriving, Listener, Network, Stream};
use crate::tls::PeerKeys;

/// Bytes that another node has not acknowledged for so long end the connection: without this, one
/// that was cut would go on waiting long after the network is whole again.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(3);

/// A connection that is silent for so long is asked whether there is still somebody: one question that is not
/// answered in `UNACKNOWLEDGED_MAX` ends it.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// TCP, encrypted where nodes have keys.
pub(crate) struct Tcp {
    pub(crate) keys: Option<Arc<PeerKeys>>,
}

impl Network for Tcp {
    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let keys = self.keys.clone();
        Box::pin(async move {
            let listener = TcpListener::bind(address).await?;
            Ok(Box::new(Door { listener, keys }) as Box<dyn Listener>)
        })
    }

    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Stream>> {
        let (address, keys) = (address.to_string(), self.keys.clone());
        Box::pin(async move {
            let connection = TcpStream::connect(address).await?;
            set_up(&connection)?;
            match keys {
                None => Ok(halves(connection)),
                Some(keys) => keys.connect(connection).await,
            }
        })
    }
}

/// Where other nodes connect.
pub(super) struct Door {
    pub(super) listener: TcpListener,
    pub(super) keys: Option<Arc<PeerKeys>>,
}

impl Listener for Door {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Arriving>> {
        Box::pin(async move {
            let (connection, _) = self.listener.accept().await?;
            let keys = self.keys.clone();
            let arriving: Arriving = Box::pin(async move {
                set_up(&connection)?;
                match keys {
                    None => Ok(halves(connection)),
                    Some(keys) => keys.accept(connection).await,
                }
            });
            Ok(arriving)
        })
    }
}

/// Sets a connection up: small messages go at once, and a dead peer is noticed.
fn set_up(connection: &TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let millis = u32::try_from(UNACKNOWLEDGED_MAX.as_millis()).expect("a few thousand");
    sockopt::set_tcp_user_timeout(connection, millis)?;
    // Whoever only takes requests has nothing unacknowledged: it asks whether the peer is there.
    sockopt::set_socket_keepalive(connection, true)?;
    sockopt::set_tcp_keepidle(connection, SILENCE_MAX)?;
    sockopt::set_tcp_keepintvl(connection, UNACKNOWLEDGED_MAX)?;
    Ok(())
}

fn halves(connection: TcpStream) -> Stream {
    let (reader, writer) = connection.into_split();
    Stream { reader: Box::new(reader), writer: Box::new(writer) }
}
