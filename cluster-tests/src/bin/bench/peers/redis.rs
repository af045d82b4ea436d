//! Redis: a primary and two replicas.
//!
//! The primary syncs its file before it answers (`appendfsync always`), and a create waits until one of the
//! replicas has received it (`WAIT 1`), not until it has synced it: that came with 7.2 (`WAITAOF`). A read
//! is what the primary has, whether or not it still is the primary.

use std::net::SocketAddr;

use anyhow::ensure;
use ephemeris_cluster_tests::load::{Wire, WireError};
use rustix::process::Signal;

use super::Started;
use super::daemon::{Daemons, find, version};
use super::requests::Dialect;
use super::stream::{Stream, line};

/// Replicas beside the primary.
const REPLICAS: usize = 2;

/// Starts a primary and its replicas.
pub(super) async fn start() -> anyhow::Result<Started<Redis>> {
    let program = find("redis-server")?;
    let mut daemons = Daemons::new(None)?;
    let primary = daemons.port();
    for node in 0..=REPLICAS {
        let address = if node == 0 { primary } else { daemons.port() };
        let directory = daemons.directory(&format!("n{node}"))?.display().to_string();
        let (port, primary_port) = (address.port().to_string(), primary.port().to_string());
        let mut arguments = [
            ["--bind", "127.0.0.1"],
            ["--port", &port],
            ["--dir", &directory],
            ["--save", ""],
            ["--appendonly", "yes"],
            ["--appendfsync", "always"],
        ]
        .concat();
        if node > 0 {
            arguments.extend(["--replicaof", "127.0.0.1", &primary_port]);
        }
        daemons.spawn(&program, &arguments, Signal::TERM)?;
    }
    daemons.until("redis' replicas", async || are_online(primary).await).await?;
    Ok(Started {
        daemons,
        dialect: Redis,
        target: primary,
        version: version(&program, "--version")?,
        promise: "a primary that syncs every create, and one of two replicas has received it, not synced; \
                  reads are the primary's"
            .to_string(),
    })
}

async fn are_online(primary: SocketAddr) -> anyhow::Result<()> {
    let mut stream = Stream::open(primary).await?;
    stream.send(b"*2\r\n$4\r\nINFO\r\n$11\r\nreplication\r\n").await?;
    let information = stream.receive(|bytes| {
        let (text, used) = bulk(bytes)?;
        Some((String::from_utf8_lossy(text?).into_owned(), used))
    });
    let information = information.await?;
    let online = information.matches("state=online").count();
    ensure!(online == REPLICAS, "{online} replicas are online");
    Ok(())
}

/// Requests as arrays of strings.
#[derive(Clone)]
pub(super) struct Redis;

impl Dialect for Redis {
    type Wire = Replies;

    fn create(&self, id: &str, item: &str, to: &mut Vec<u8>) {
        array(&["SET", id, item, "NX"], to);
        array(&["WAIT", "1", "5000"], to);
    }

    fn read(&self, id: &str, to: &mut Vec<u8>) {
        array(&["GET", id], to);
    }
}

fn array(words: &[&str], to: &mut Vec<u8>) {
    to.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        to.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        to.extend_from_slice(word.as_bytes());
        to.extend_from_slice(b"\r\n");
    }
}

/// A string or nothing, and the bytes it takes.
fn bulk(bytes: &[u8]) -> Option<(Option<&[u8]>, usize)> {
    let (head, rest) = line(bytes)?;
    let start = bytes.len() - rest.len();
    match head.strip_prefix('$')?.parse::<usize>() {
        Ok(length) => Some((Some(rest.get(..length)?), start + length + 2))
            .filter(|(_, end)| *end <= bytes.len()),
        Err(_) => Some((None, start)),
    }
}

/// A reply that is a line, and the bytes it takes; a string counts as its first line.
fn simple(bytes: &[u8]) -> Option<(String, usize)> {
    let (text, rest) = line(bytes)?;
    Some((text.to_string(), bytes.len() - rest.len()))
}

/// A connection whose answers have no status.
pub(super) struct Replies(Stream);

impl Wire for Replies {
    async fn open(address: SocketAddr) -> Result<Self, WireError> {
        Ok(Self(Stream::open(address).await?))
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<u16, WireError> {
        self.0.send(request).await?;
        if request.starts_with(b"*2") {
            return self
                .0
                .receive(|bytes| bulk(bytes).map(|(found, used)| (read_status(found), used)))
                .await;
        }
        let stored = self.0.receive(simple).await?;
        let replicas = self.0.receive(simple).await?;
        Ok(create_status(&stored, &replicas))
    }
}

fn read_status(found: Option<&[u8]>) -> u16 {
    if found.is_some() { 200 } else { 404 }
}

fn create_status(stored: &str, replicas: &str) -> u16 {
    match (stored, replicas) {
        ("+OK", ":1" | ":2") => 201,
        ("$-1", _) => 409,
        _ => 503,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_whole_or_not_there() {
        assert_eq!(bulk(b"$2\r\nab\r\n+"), Some((Some(&b"ab"[..]), 8)));
        assert_eq!(bulk(b"$2\r\nab\r"), None);
        assert_eq!(bulk(b"$-1\r\n"), Some((None, 5)));
    }

    #[test]
    fn a_create_is_good_once_a_replica_has_it() {
        let statuses = [("+OK", ":1"), ("+OK", ":0"), ("$-1", ":2"), ("-ERR", ":1")]
            .map(|(stored, replicas)| create_status(stored, replicas));
        assert_eq!(statuses, [201, 503, 409, 503]);
    }

    #[test]
    fn a_request_is_an_array_of_strings() {
        let mut bytes = Vec::new();
        Redis.read("ab", &mut bytes);
        assert_eq!(bytes, b"*2\r\n$3\r\nGET\r\n$2\r\nab\r\n");
    }
}
