//! What a connection costs a node while nothing happens on it: resident memory.
//!
//! Each of many connections reads an item once and is kept open. A connection that has never carried
//! anything would be too cheap. In the end each reads again: none of them was closed meanwhile.

use std::fmt;
use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use ephemeris_cluster_tests::client::{Client, Container};
use ephemeris_cluster_tests::load::{Connection, Request};
use indicatif::{ProgressBar, ProgressIterator as _};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use serde_json::json;

use crate::arguments::Arguments;
use crate::report::float;
use crate::servers::Servers;
use crate::sources::read_request;

/// Files this process and a node need beside connections.
const OTHER_FILES: u64 = 1000;

/// Memory of all nodes together: one of them has the connections, the others have nothing to do.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct IdleCost {
    connections: u32,
    /// Before there were connections, while there are, and after each was used again.
    resident_bytes_before: u64,
    resident_bytes_idle: u64,
    resident_bytes_used: u64,
}

impl IdleCost {
    fn kilobytes_each(&self, resident_bytes: u64) -> f64 {
        let more = resident_bytes.saturating_sub(self.resident_bytes_before);
        float(more) / 1e3 / f64::from(self.connections)
    }

    /// The line above all costs.
    pub(crate) fn write_head(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            ("idle", "connections", "MB before", "MB idle", "KB each", "KB each, used again");
        let (idle, connections, before, during, each, used) = names;
        writeln!(f, "{idle:<9} {connections:>11} {before:>9} {during:>9} {each:>9} {used:>19}")
    }
}

impl fmt::Display for IdleCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<9} {:>11} {:>9.1} {:>9.1} {:>9.1} {:>19.1}",
            "",
            self.connections,
            float(self.resident_bytes_before) / 1e6,
            float(self.resident_bytes_idle) / 1e6,
            self.kilobytes_each(self.resident_bytes_idle),
            self.kilobytes_each(self.resident_bytes_used),
        )
    }
}

/// Opens the connections, and looks at the node's memory.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Vec<IdleCost>> {
    // Nodes that are started inherit the limit.
    allow_files(u64::from(arguments.connections) + OTHER_FILES)?;
    let key = arguments.account_key();
    let container = Container::new("bench", &format!("idle-{:08x}", rand::random::<u32>()));
    let servers = Servers::nodes(arguments, &key, &container, json!({})).await?;
    let target = servers.targets[0];
    let client = Client::new(format!("http://{target}"), key.clone());
    client.create_item(&container, &json!({ "id": "a", "pk": "a" })).await.expect(201);
    let read = read_request(target, &container, &key, "a", "a");
    used_connection(target, &read).await?;

    let before = resident(&servers).await?;
    let progress = ProgressBar::new(arguments.connections.into());
    let mut connections = Vec::new();
    for _ in (0..arguments.connections).progress_with(progress.clone()) {
        connections.push(used_connection(target, &read).await?);
    }
    let idle = resident(&servers).await?;
    for connection in &mut connections {
        exchange(connection, &read).await?;
    }
    let used = resident(&servers).await?;
    progress.finish_and_clear();
    Ok(vec![IdleCost {
        connections: arguments.connections,
        resident_bytes_before: before,
        resident_bytes_idle: idle,
        resident_bytes_used: used,
    }])
}

/// Raises the limit of open files as far as it is needed.
fn allow_files(files: u64) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(u64::MAX).max(files);
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: limit.maximum })
        .with_context(|| format!("{files} files cannot be open at the same time"))
}

async fn used_connection(target: SocketAddr, read: &Request) -> anyhow::Result<Connection> {
    let mut connection = Connection::open(target).await?;
    exchange(&mut connection, read).await?;
    Ok(connection)
}

async fn exchange(connection: &mut Connection, read: &Request) -> anyhow::Result<()> {
    let status = connection.exchange(read.bytes()).await?;
    ensure!(status == 200, "a read was answered by {status}");
    Ok(())
}

/// Memory of the nodes once they have nothing to do.
async fn resident(servers: &Servers) -> anyhow::Result<u64> {
    servers.rest().await;
    let usage = servers.read().await.usage;
    Ok(usage.context("memory is told of nodes on this machine: name --pids")?.resident_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_costs_what_was_not_there_before() {
        let cost = IdleCost {
            connections: 1000,
            resident_bytes_before: 50_000_000,
            resident_bytes_idle: 62_000_000,
            resident_bytes_used: 63_000_000,
        };
        let line = cost.to_string();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["1000", "50.0", "62.0", "12.0", "13.0"]);
    }
}
