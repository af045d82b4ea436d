//! A signing HTTP client: one request, one attempt, the whole answer.

mod answer;
mod binary_json;
mod resources;
mod retry;
mod sign;

use std::time::Duration;

use reqwest::Method;

use crate::clock;

pub use answer::{Answer, Fate, NoAnswer};
pub use binary_json::binary_json;
pub use resources::Container;
pub use retry::{Created, Retrying};
pub use sign::{AccountKey, EMULATOR_KEY, encode_segment, http_date};

/// How long an answer may take; nodes give up after five seconds by themselves.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// How long a connection may take.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);

/// Talks to one node. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: AccountKey,
}

/// A request before it is signed.
#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

impl Call {
    /// A request for an encoded path.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), headers: Vec::new(), body: None }
    }

    /// `GET`
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    /// `POST`
    pub fn post(path: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self::new(Method::POST, path).body(body)
    }

    /// `PUT`
    pub fn put(path: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self::new(Method::PUT, path).body(body)
    }

    /// `DELETE`
    pub fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path)
    }

    /// Adds a body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// The verb.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The encoded path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A header's text, as it was added.
    pub fn header_text(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The body's bytes; empty if there is none.
    pub fn body_bytes(&self) -> &[u8] {
        self.body.as_deref().unwrap_or_default()
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_string(), value.into()));
        self
    }

    /// Adds the partition key: one value, which becomes the header's only component.
    #[must_use]
    pub fn key(self, key: &serde_json::Value) -> Self {
        self.header("x-ms-documentdb-partitionkey", serde_json::json!([key]).to_string())
    }
}

impl Client {
    /// A client of the node at `base`, as `http://127.0.0.1:8081`.
    pub fn new(base: impl Into<String>, key: AccountKey) -> Self {
        Self::built(reqwest::Client::builder(), base, key)
    }

    /// A client that speaks HTTP/2 from its first byte on, over one connection, as the Rust SDK does.
    pub fn over_http2(base: impl Into<String>, key: AccountKey) -> Self {
        Self::built(reqwest::Client::builder().http2_prior_knowledge(), base, key)
    }

    /// A client that trusts an authority, in PEM, and speaks whatever the node prefers.
    pub fn over_tls(base: impl Into<String>, key: AccountKey, authority: &[u8]) -> Self {
        let authority = reqwest::Certificate::from_pem(authority).expect("it is in PEM");
        Self::built(reqwest::Client::builder().add_root_certificate(authority), base, key)
    }

    fn built(builder: reqwest::ClientBuilder, base: impl Into<String>, key: AccountKey) -> Self {
        let http = builder
            .timeout(ANSWER_DEADLINE)
            .connect_timeout(CONNECT_DEADLINE)
            .build()
            .expect("nothing a client needs is missing");
        Self { http, base: base.into(), key }
    }

    /// The same node, under another key.
    #[must_use]
    pub fn with_key(&self, key: AccountKey) -> Self {
        Self { key, ..self.clone() }
    }

    /// Where the node is.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Signs and sends a request, once.
    pub async fn send(&self, call: &Call) -> Result<Answer, NoAnswer> {
        let date = http_date(clock::wall());
        let authorization = self.key.authorization(call.method.as_str(), &call.path, &date);
        let call = call.clone().header("x-ms-date", date).header("authorization", authorization);
        self.send_unsigned(&call).await
    }

    /// Sends a request as it is.
    pub async fn send_unsigned(&self, call: &Call) -> Result<Answer, NoAnswer> {
        let url = format!("{}{}", self.base, call.path);
        let mut request = self.http.request(call.method.clone(), url);
        for (name, value) in &call.headers {
            request = request.header(name, value.as_bytes());
        }
        if let Some(body) = &call.body {
            request = request.body(body.clone());
        }
        let response = request.send().await.map_err(|error| no_answer(&error))?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.bytes().await.map_err(|error| no_answer(&error))?;
        Ok(Answer { status, headers, body })
    }

    /// Signs and sends a request; panics if there is no answer.
    #[track_caller]
    pub fn ask(&self, call: Call) -> impl Future<Output = Answer> {
        let caller = std::panic::Location::caller();
        async move {
            match self.send(&call).await {
                Ok(answer) => answer,
                Err(error) => panic!("{} {} at {caller}: {error}", call.method, call.path),
            }
        }
    }
}

fn no_answer(error: &reqwest::Error) -> NoAnswer {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    if error.is_connect() || error.is_builder() {
        NoAnswer::NotSent(text)
    } else {
        NoAnswer::Broken(text)
    }
}
