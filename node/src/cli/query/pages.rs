//! Fetches a result page by page.

use anyhow::bail;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::complaint;
use crate::cli::client::{Answer, Client};

/// Rows asked for at a time: as many as a page may have.
const PAGE_ROWS_MAX: u64 = 1000;

/// What is fetched.
pub(super) struct Request {
    method: &'static str,
    path: String,
    /// The query's text.
    query: Option<String>,
    /// What the rows are called in an answer.
    rows: &'static str,
}

impl Request {
    pub(super) fn databases() -> Self {
        Self { method: "GET", path: "/dbs".to_string(), query: None, rows: "Databases" }
    }

    pub(super) fn containers(database: &str) -> Self {
        let path = format!("{}/colls", database_path(database));
        Self { method: "GET", path, query: None, rows: "DocumentCollections" }
    }

    pub(super) fn query(database: &str, container: &str, text: &str) -> Self {
        let path = format!("{}/docs", container_path(database, container));
        Self { method: "POST", path, query: Some(text.to_string()), rows: "Documents" }
    }
}

pub(super) fn database_path(database: &str) -> String {
    format!("/dbs/{}", utf8_percent_encode(database, NON_ALPHANUMERIC))
}

pub(super) fn container_path(database: &str, container: &str) -> String {
    let container = utf8_percent_encode(container, NON_ALPHANUMERIC);
    format!("{}/colls/{container}", database_path(database))
}

/// A result that is being fetched.
pub(super) struct Pages<'c> {
    client: &'c Client,
    request: Request,
    next: Next,
    /// Request units so far.
    pub(super) charge: f64,
}

enum Next {
    First,
    After(String),
    None,
}

impl<'c> Pages<'c> {
    pub(super) fn new(client: &'c Client, request: Request) -> Self {
        Self { client, request, next: Next::First, charge: 0.0 }
    }

    /// True if there is, or may be, another page.
    pub(super) fn has_more(&self) -> bool {
        !matches!(self.next, Next::None)
    }

    /// The next page, of at most so many rows; it may be empty.
    pub(super) async fn next(&mut self, rows: u64) -> anyhow::Result<Vec<Value>> {
        let mut headers = vec![format!("x-ms-max-item-count: {}", rows.min(PAGE_ROWS_MAX))];
        if self.request.query.is_some() {
            headers.push("x-ms-documentdb-isquery: true".to_string());
            headers.push("x-ms-documentdb-query-enablecrosspartition: true".to_string());
        }
        if let Next::After(continuation) = &self.next {
            headers.push(format!("x-ms-continuation: {continuation}"));
        }
        let body = self.request.query.as_ref().map(|text| json!({ "query": text }).to_string());
        let Request { method, path, query, .. } = &self.request;
        let answer = self.client.send(method, path, body, &headers).await?;
        self.charge += answer.header("x-ms-request-charge").and_then(number).unwrap_or(0.0);
        check(&answer, query.as_deref())?;
        self.next = match answer.header("x-ms-continuation") {
            Some(continuation) => Next::After(continuation.to_string()),
            None => Next::None,
        };
        match answer.json()?.get_mut(self.request.rows).map(Value::take) {
            Some(Value::Array(rows)) => Ok(rows),
            _ => bail!("the node's answer has no '{}'", self.request.rows),
        }
    }
}

/// An error that explains what the node refused; nothing if it did not.
pub(super) fn check(answer: &Answer, query: Option<&str>) -> anyhow::Result<()> {
    if answer.is_success() {
        return Ok(());
    }
    bail!("{}", complaint::of(answer.status(), answer.body(), query))
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok()
}
