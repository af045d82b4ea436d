//! An HTTP client of the simulated network: one connection to each node, kept while it works.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, UNIX_EPOCH};

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, Request};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ephemeris_raft::Host;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::time::timeout;

use super::machine::{client_ip, node_ip};
use super::network::{Interface, SimulatedNetwork};
use crate::config::EMULATOR_KEY;
use crate::gateway::{Segments, sign};

/// Where nodes take clients.
pub(super) const HTTP_PORT: u16 = 8081;
/// How long connecting may take.
const CONNECT_DEADLINE: Duration = Duration::from_millis(500);
/// Larger than any answer.
const BODY_BYTES_MAX: usize = 8 << 20;

/// What a node answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The request was not sent: surely nothing was done.
    NotSent,
    /// It may have been carried out, or be carried out later.
    NoAnswer,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Ask<'a> {
    pub(super) verb: &'static str,
    pub(super) path: &'a str,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: String,
}

/// One client.
pub(super) struct HttpClient {
    interface: Interface,
    key: Vec<u8>,
    connections: BTreeMap<u32, SendRequest<Body>>,
}

impl HttpClient {
    /// A client on a machine of its own.
    pub(super) fn new(network: &SimulatedNetwork, number: u32) -> Self {
        let interface = network.interface(client_ip(number), Host::new());
        let key = STANDARD.decode(EMULATOR_KEY).expect("the key is base64");
        Self { interface, key, connections: BTreeMap::new() }
    }

    /// Asks a node, at a true time in microseconds, and waits so long at most. A connection that was
    /// of no use is given up.
    pub(super) async fn ask(
        &mut self,
        node: u32,
        ask: &Ask<'_>,
        now: i64,
        patience: Duration,
    ) -> Result<Answer, Lost> {
        let request = self.request(ask, now);
        let mut sent = false;
        let answering = self.exchange(node, request, &mut sent);
        if let Ok(Some(answer)) = timeout(patience, answering).await {
            return Ok(answer);
        }
        self.connections.remove(&node);
        Err(if sent { Lost::NoAnswer } else { Lost::NotSent })
    }

    fn request(&self, ask: &Ask<'_>, now: i64) -> Request<Body> {
        let micros = u64::try_from(now).expect("simulations begin after 1970");
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_micros(micros));
        let segments = Segments::parse(ask.path).expect("a path of the API");
        let mut request = Request::builder()
            .method(Method::from_bytes(ask.verb.as_bytes()).expect("a method"))
            .uri(ask.path)
            .header("host", "simulated")
            .header("authorization", sign(&self.key, ask.verb, &segments, &date))
            .header("x-ms-date", date)
            .header("x-ms-version", "2020-07-15");
        for (name, value) in &ask.headers {
            request = request.header(*name, value);
        }
        request.body(Body::from(ask.body.clone())).expect("a request")
    }

    async fn exchange(
        &mut self,
        node: u32,
        request: Request<Body>,
        sent: &mut bool,
    ) -> Option<Answer> {
        let mut connection = match self.connections.remove(&node).filter(|known| !known.is_closed())
        {
            Some(known) => known,
            None => self.connect(node).await?,
        };
        connection.ready().await.ok()?;
        *sent = true;
        let (parts, body) = connection.send_request(request).await.ok()?.into_parts();
        let body = to_bytes(Body::new(body), BODY_BYTES_MAX).await.ok()?;
        self.connections.insert(node, connection);
        Some(Answer { status: parts.status.as_u16(), headers: parts.headers, body: body.to_vec() })
    }

    async fn connect(&self, node: u32) -> Option<SendRequest<Body>> {
        let address = SocketAddr::new(node_ip(node), HTTP_PORT);
        let reaching = self.interface.clone().reach(address, None);
        let stream = timeout(CONNECT_DEADLINE, reaching).await.ok()?.ok()?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.ok()?;
        tokio::task::spawn_local(connection);
        Some(sender)
    }
}

impl Answer {
    /// A header's text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The second half of the status.
    pub(super) fn substatus(&self) -> u32 {
        self.header("x-ms-substatus").and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// The body.
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("{error} in {}", String::from_utf8_lossy(&self.body));
        })
    }
}
