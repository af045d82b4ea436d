//! etcd: three nodes, spoken to by the JSON gateway, which each of them has beside gRPC.
//!
//! A create is a transaction that puts a key that was never created; a read is linearizable. Both as etcd
//! does them by default: every entry is synced by a majority before it is answered.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ephemeris_cluster_tests::load::{Connection, Request, Wire, WireError};
use rustix::process::Signal;
use serde_json::Value;

use super::Started;
use super::daemon::{Daemons, find, version};
use super::requests::Dialect;
use super::stream::contains;

/// Nodes of the cluster.
const NODES: usize = 3;
/// Room for all that is stored, in bytes: more than two by default.
const QUOTA_BYTES: &str = "8589934592";

/// Starts three nodes.
pub(super) async fn start() -> anyhow::Result<Started<Etcd>> {
    let program = find("etcd")?;
    let mut daemons = Daemons::new(None)?;
    let clients: Vec<SocketAddr> = (0..NODES).map(|_| daemons.port()).collect();
    let peers: Vec<String> = (0..NODES).map(|_| format!("http://{}", daemons.port())).collect();
    let members: Vec<String> = (0..).zip(&peers).map(|(n, peer)| format!("n{n}={peer}")).collect();
    let members = members.join(",");
    for (node, (client, peer)) in clients.iter().zip(&peers).enumerate() {
        let (name, client) = (format!("n{node}"), format!("http://{client}"));
        let directory = daemons.directory(&name)?.display().to_string();
        let arguments = [
            ["--name", &name],
            ["--data-dir", &directory],
            ["--listen-client-urls", &client],
            ["--advertise-client-urls", &client],
            ["--listen-peer-urls", peer],
            ["--initial-advertise-peer-urls", peer],
            ["--initial-cluster", &members],
            ["--quota-backend-bytes", QUOTA_BYTES],
            ["--log-level", "error"],
        ];
        daemons.spawn(&program, arguments.as_flattened(), Signal::TERM)?;
    }
    let target = daemons.until("etcd's leader", async || leader(&clients).await).await?;
    Ok(Started {
        dialect: Etcd { target },
        daemons,
        target,
        version: version(&program, "--version")?,
        promise: "three nodes, a majority syncs every create, reads are linearizable; JSON gateway"
            .to_string(),
    })
}

/// The node that leads, once all have answered.
async fn leader(clients: &[SocketAddr]) -> anyhow::Result<SocketAddr> {
    let mut found = None;
    for client in clients {
        let mut connection = Connection::open(*client).await?;
        let request = Request::new("POST /v3/maintenance/status", *client, &[], b"{}");
        let status = connection.exchange(request.bytes()).await?;
        ensure!(status == 200, "its status is {status}");
        let answer: Value = serde_json::from_slice(connection.body())?;
        let leader = &answer["leader"];
        ensure!(leader.is_string(), "it knows no leader");
        if *leader == answer["header"]["member_id"] {
            found = Some(*client);
        }
    }
    found.context("nobody leads")
}

/// Requests to the gateway.
#[derive(Clone)]
pub(super) struct Etcd {
    target: SocketAddr,
}

impl Etcd {
    fn post(&self, path: &str, body: &str, to: &mut Vec<u8>) {
        let headers = [("content-type", "application/json")];
        let request = Request::new(&format!("POST {path}"), self.target, &headers, body.as_bytes());
        to.extend_from_slice(request.bytes());
    }
}

impl Dialect for Etcd {
    type Wire = Gateway;

    fn create(&self, id: &str, item: &str, to: &mut Vec<u8>) {
        let (key, value) = (STANDARD.encode(id), STANDARD.encode(item));
        let body = format!(
            "{{\"compare\":[{{\"key\":\"{key}\",\"target\":\"CREATE\",\"create_revision\":\"0\"}}],\
             \"success\":[{{\"request_put\":{{\"key\":\"{key}\",\"value\":\"{value}\"}}}}]}}"
        );
        self.post("/v3/kv/txn", &body, to);
    }

    fn read(&self, id: &str, to: &mut Vec<u8>) {
        let body = format!("{{\"key\":\"{}\"}}", STANDARD.encode(id));
        self.post("/v3/kv/range", &body, to);
    }
}

/// A connection whose answers are all 200: their bodies tell.
pub(super) struct Gateway(Connection);

impl Wire for Gateway {
    async fn open(address: SocketAddr) -> Result<Self, WireError> {
        Ok(Self(Connection::open(address).await?))
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<u16, WireError> {
        let status = self.0.exchange(request).await?;
        Ok(match self.0.body() {
            _ if status != 200 => status,
            body if contains(body, b"\"kvs\":") => 200,
            body if contains(body, b"\"succeeded\":true") => 201,
            _ => 404,
        })
    }
}
