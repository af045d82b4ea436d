//! A server that stores nothing: what HTTP alone costs.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::http::{Method, StatusCode};
use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;

use crate::sources::ITEM_BYTES;

/// Serves until the process is killed; says on standard output where.
pub(crate) async fn run() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    let stored = Bytes::from(vec![b'x'; ITEM_BYTES]);
    let echo = async move |method: Method, body: Bytes| match method {
        Method::POST => (StatusCode::CREATED, body),
        _ => (StatusCode::OK, stored.clone()),
    };
    let listener = listener.tap_io(|stream| {
        // A connection that keeps its delays only makes the echo look slower.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, Router::new().fallback(echo)).await?;
    Ok(())
}

/// An echo server in a process of its own; ends with this value.
pub(crate) struct Echo {
    child: Child,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

impl Echo {
    /// Starts one.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg("echo").stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("the echo server has an output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let address = line.trim().parse().context("the echo server did not start")?;
        Ok(Self { child, address })
    }

    /// Its process number.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
