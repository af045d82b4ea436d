//! NATS: three nodes, a key-value bucket of `JetStream` with three replicas in files.
//!
//! A create is published under the condition that its subject was never written, and acknowledged by the
//! stream's leader once a majority has it. Whether a majority has synced it depends on the version: since
//! 2.10 there is `sync_interval: always`, before it files are synced every two minutes. A read is answered
//! by the stream's leader, which asks nobody whether it still is the leader.

use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use ephemeris_cluster_tests::load::{Wire, WireError};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::Started;
use super::daemon::{Daemons, find, version};
use super::requests::Dialect;
use super::stream::{Stream, contains, line};

/// Nodes of the cluster, and replicas of the bucket.
const NODES: usize = 3;
/// The stream of the bucket, and what its subjects begin with.
const STREAM: &str = "KV_bench";
const SUBJECT: &str = "$KV.bench.";
/// What the names begin with of places where answers go.
const INBOX: &str = "_INBOX.";

/// How a node syncs its files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sync {
    Always,
    Sometimes,
}

/// Starts three nodes and makes the bucket.
pub(super) async fn start() -> anyhow::Result<Started<Nats>> {
    let program = find("nats-server")?;
    let mut daemons = Daemons::new(None)?;
    let clients: Vec<SocketAddr> = (0..NODES).map(|_| daemons.port()).collect();
    let routes: Vec<SocketAddr> = (0..NODES).map(|_| daemons.port()).collect();
    let mut sync = Sync::Always;
    for node in 0..NODES {
        let directory = daemons.directory(&format!("n{node}"))?;
        let file = directory.join("nats.conf");
        let configure = |sync| {
            let store = directory.join("store").display().to_string();
            std::fs::write(&file, configuration(node, &clients, &routes, &store, sync))
        };
        let name = file.display().to_string();
        configure(sync)?;
        if daemons.run(&program, &["-t", "-c", &name]).is_err() {
            sync = Sync::Sometimes;
            configure(sync)?;
        }
        daemons.spawn(&program, &["-c", &name], Signal::TERM)?;
    }
    let target = daemons.until("NATS's bucket", async || make_bucket(&clients).await).await?;
    let synced = match sync {
        Sync::Always => "each node syncs it",
        Sync::Sometimes => "NOT SYNCED (this version cannot)",
    };
    Ok(Started {
        daemons,
        dialect: Nats { inbox: format!("{INBOX}0") },
        target,
        version: version(&program, "--version")?,
        promise: format!(
            "three replicas, a majority has every create, {synced}; reads are the leader's"
        ),
    })
}

fn configuration(
    node: usize,
    clients: &[SocketAddr],
    routes: &[SocketAddr],
    store: &str,
    sync: Sync,
) -> String {
    let (client, route) = (clients[node], routes[node]);
    let others: Vec<String> = routes.iter().map(|route| format!("\"nats://{route}\"")).collect();
    let others = others.join(", ");
    let sync = if sync == Sync::Always { "sync_interval: always" } else { "" };
    format!(
        "server_name: n{node}\n\
         listen: \"{client}\"\n\
         jetstream {{\n  store_dir: \"{store}\"\n  {sync}\n}}\n\
         cluster {{\n  name: bench\n  listen: \"{route}\"\n  routes: [{others}]\n}}\n"
    )
}

/// Makes the bucket, unless it is there; the address of the node that leads it.
async fn make_bucket(clients: &[SocketAddr]) -> anyhow::Result<SocketAddr> {
    let definition = json!({
        "name": STREAM,
        "subjects": [format!("{SUBJECT}>")],
        "retention": "limits",
        "storage": "file",
        "num_replicas": NODES,
        "max_msgs_per_subject": 1,
        "discard": "new",
        "deny_delete": true,
        "allow_rollup_hdrs": true,
    });
    let mut client = Client::open(clients[0]).await?;
    let created = client.ask(&format!("$JS.API.STREAM.CREATE.{STREAM}"), &definition).await?;
    // 10058: it is there already, as it is while it gets its leader.
    if !created["error"].is_null() && created["error"]["err_code"] != 10058 {
        bail!("the bucket is not made: {}", created["error"]);
    }
    let known = client.ask(&format!("$JS.API.STREAM.INFO.{STREAM}"), &json!({})).await?;
    let cluster = &known["cluster"];
    let current = |replica: &Value| replica["current"] == true;
    let replicas = cluster["replicas"].as_array().context("it has no replicas")?;
    if replicas.len() + 1 < NODES || !replicas.iter().all(current) {
        bail!("its replicas are behind: {cluster}");
    }
    let leader = cluster["leader"].as_str().and_then(|name| name.strip_prefix('n'));
    let node: usize = leader.context("nobody leads it")?.parse()?;
    clients.get(node).copied().context("an unknown node leads it")
}

/// Requests as messages.
#[derive(Clone)]
pub(super) struct Nats {
    /// Where answers go: each worker has a place of its own, and one request under way.
    inbox: String,
}

impl Dialect for Nats {
    type Wire = Client;

    fn of_worker(&self, run: u64) -> Self {
        Self { inbox: format!("{INBOX}{run}") }
    }

    fn create(&self, id: &str, item: &str, to: &mut Vec<u8>) {
        let headers = "NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 0\r\n\r\n";
        let (header_bytes, bytes) = (headers.len(), headers.len() + item.len());
        let inbox = &self.inbox;
        let head = format!("HPUB {SUBJECT}{id} {inbox} {header_bytes} {bytes}\r\n{headers}");
        to.extend_from_slice(head.as_bytes());
        to.extend_from_slice(item.as_bytes());
        to.extend_from_slice(b"\r\n");
    }

    fn read(&self, id: &str, to: &mut Vec<u8>) {
        let body = format!("{{\"last_by_subj\":\"{SUBJECT}{id}\"}}");
        publish(&format!("$JS.API.STREAM.MSG.GET.{STREAM}"), &self.inbox, &body, to);
    }
}

fn publish(subject: &str, inbox: &str, body: &str, to: &mut Vec<u8>) {
    to.extend_from_slice(format!("PUB {subject} {inbox} {}\r\n{body}\r\n", body.len()).as_bytes());
}

/// A connection, which listens for answers where its first request wants them.
pub(super) struct Client {
    stream: Stream,
    listens: bool,
}

/// What a node sends.
enum Operation {
    /// It wants to know whether we are there.
    Ping,
    /// An answer's payload, and whether it is one: without a responder there is none.
    Message(Vec<u8>),
    /// Information, or what we need not know.
    Other,
}

impl Client {
    async fn ask(&mut self, subject: &str, body: &Value) -> anyhow::Result<Value> {
        let mut request = Vec::new();
        publish(subject, &format!("{INBOX}ask"), &body.to_string(), &mut request);
        let answer = self.answer(&request).await?;
        serde_json::from_slice(&answer).context("nobody answers")
    }

    async fn answer(&mut self, request: &[u8]) -> Result<Vec<u8>, WireError> {
        if !self.listens {
            let inbox = inbox(request).ok_or(WireError::Malformed("it has no inbox"))?;
            self.stream.send(format!("SUB {inbox} 1\r\n").as_bytes()).await?;
            self.listens = true;
        }
        self.stream.send(request).await?;
        loop {
            match self.stream.receive(operation).await? {
                Operation::Message(payload) => return Ok(payload),
                Operation::Ping => self.stream.send(b"PONG\r\n").await?,
                Operation::Other => {}
            }
        }
    }
}

impl Wire for Client {
    async fn open(address: SocketAddr) -> Result<Self, WireError> {
        let mut stream = Stream::open(address).await?;
        let options =
            "{\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}";
        stream.send(format!("CONNECT {options}\r\n").as_bytes()).await?;
        Ok(Self { stream, listens: false })
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<u16, WireError> {
        Ok(status(&self.answer(request).await?))
    }
}

/// Where a request's answer goes.
fn inbox(request: &[u8]) -> Option<&str> {
    line(request)?.0.split(' ').nth(2)
}

fn status(answer: &[u8]) -> u16 {
    match answer {
        b"" => 503,
        _ if contains(answer, b"\"error\"") => 500,
        _ if answer.starts_with(b"{\"stream\":") => 201,
        _ if contains(answer, b"\"message\"") => 200,
        _ => 502,
    }
}

/// The first operation, and the bytes it takes.
fn operation(bytes: &[u8]) -> Option<(Operation, usize)> {
    let (head, rest) = line(bytes)?;
    let start = bytes.len() - rest.len();
    let mut words = head.split(' ');
    let name = words.next()?;
    if name == "PING" {
        return Some((Operation::Ping, start));
    }
    if !matches!(name, "MSG" | "HMSG") {
        return Some((Operation::Other, start));
    }
    let lengths: Vec<usize> = words.skip(2).filter_map(|word| word.parse().ok()).collect();
    let (headers, length) = match (name, lengths.as_slice()) {
        ("HMSG", [.., headers, length]) => (*headers, *length),
        (_, [.., length]) => (0, *length),
        _ => return None,
    };
    let end = start + length + 2;
    (end <= bytes.len())
        .then(|| (Operation::Message(bytes[start + headers..end - 2].to_vec()), end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
        match operation(bytes)? {
            (Operation::Message(payload), used) => Some((payload, used)),
            (Operation::Ping | Operation::Other, _) => None,
        }
    }

    #[test]
    fn messages_have_a_length_and_perhaps_headers() {
        assert_eq!(message(b"MSG _INBOX 1 2\r\nab\r\nPING"), Some((b"ab".to_vec(), 20)));
        assert_eq!(message(b"MSG _INBOX 1 2\r\nab"), None);
        let without = b"HMSG _INBOX 1 12 12\r\nNATS/1.0 503\r\n";
        assert_eq!(message(without), Some((Vec::new(), without.len())));
    }

    #[test]
    fn a_request_tells_where_its_answer_goes() {
        let (mut create, nats) = (Vec::new(), Nats { inbox: String::new() }.of_worker(7));
        nats.create("id", "{}", &mut create);
        let mut read = Vec::new();
        nats.read("id", &mut read);
        assert_eq!([inbox(&create), inbox(&read)], [Some("_INBOX.7"); 2]);
        let text = String::from_utf8(create).unwrap();
        assert!(text.starts_with("HPUB $KV.bench.id _INBOX.7 52 54\r\nNATS/1.0\r\n"), "{text}");
    }

    #[test]
    fn an_answer_tells_what_it_answers() {
        let answers: [(&[u8], u16); 4] = [
            (b"{\"stream\":\"KV_bench\", \"seq\":1}", 201),
            (b"{\"error\":{\"code\":400},\"stream\":\"KV_bench\"}", 500),
            (b"{\"type\":\"x\",\"message\":{\"seq\":1}}", 200),
            (b"", 503),
        ];
        for (answer, expected) in answers {
            assert_eq!(status(answer), expected);
        }
    }
}
