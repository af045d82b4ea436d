//! Signed requests to a node.

use std::env::VarError;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Method, StatusCode, Url};
use serde_json::Value;

use super::{Connection, Trust};
use crate::clock;
use crate::config::EMULATOR_KEY;
use crate::gateway::{Segments, sign};

/// Where a node on this machine listens.
pub(super) const URL_DEFAULT: &str = "http://127.0.0.1:8081";
const TIMEOUT: Duration = Duration::from_secs(30);
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends requests to one node.
pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    key: Vec<u8>,
}

/// What a node answered.
pub(super) struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Client {
    pub(super) fn new(connection: &Connection) -> anyhow::Result<Self> {
        let key = account_key(connection)?;
        let base = Url::parse(&connection.http)
            .with_context(|| format!("{} is no URL", connection.http))?;
        let http = http_client(&connection.trust, TIMEOUT)?;
        Ok(Self { http, base, key })
    }

    /// Where the node is.
    pub(super) fn base(&self) -> &Url {
        &self.base
    }

    pub(super) async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<String>,
        headers: &[String],
    ) -> anyhow::Result<Answer> {
        let method = Method::from_bytes(method.to_uppercase().as_bytes())?;
        let url = self.base.join(path).with_context(|| format!("{path} is no path"))?;
        let segments = Segments::parse(url.path())?;
        let date = httpdate::fmt_http_date(clock::wall());
        let mut request = self
            .http
            .request(method.clone(), url.clone())
            .header("authorization", sign(&self.key, method.as_str(), &segments, &date))
            .header("x-ms-date", date)
            .header("x-ms-version", "2020-07-15");
        for header in headers {
            let (name, value) = header
                .split_once(':')
                .with_context(|| format!("'{header}' is not 'name: value'"))?;
            let name = HeaderName::from_bytes(name.trim().as_bytes())?;
            request = request.header(name, HeaderValue::from_str(value.trim())?);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let response = request.send().await.with_context(|| no_answer(&self.base))?;
        let (status, headers) = (response.status(), response.headers().clone());
        Ok(Answer { status, headers, body: response.text().await? })
    }
}

impl Answer {
    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    pub(super) fn is_success(&self) -> bool {
        self.status.is_success()
    }

    pub(super) fn body(&self) -> &str {
        &self.body
    }

    /// A header that is text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body of a success.
    pub(super) fn json(&self) -> anyhow::Result<Value> {
        if !self.status.is_success() {
            let json: Option<Value> = serde_json::from_str(&self.body).ok();
            let message = json.as_ref().and_then(|json| json["message"].as_str());
            bail!("{}: {}", self.refusal(), message.unwrap_or(&self.body));
        }
        Ok(serde_json::from_str(&self.body)?)
    }

    /// What a status that is no success says.
    fn refusal(&self) -> String {
        let remedy = match self.status {
            StatusCode::UNAUTHORIZED => {
                " (is it the node's key that --key-file, --key or EPHEMERIS_KEY gives?)"
            }
            _ => "",
        };
        format!("the node answers {}{remedy}", self.status)
    }

    /// Prints the answer; the exit code tells whether it was a success.
    pub(super) fn print(&self, with_headers: bool) -> anyhow::Result<ExitCode> {
        let mut out = io::stdout().lock();
        if with_headers {
            writeln!(out, "{}", self.status)?;
            for (name, value) in &self.headers {
                writeln!(out, "{name}: {}", String::from_utf8_lossy(value.as_bytes()))?;
            }
            writeln!(out)?;
        }
        if !self.body.is_empty() {
            writeln!(out, "{}", self.body)?;
        }
        if self.status.is_success() {
            return Ok(ExitCode::SUCCESS);
        }
        if !with_headers {
            eprintln!("ephemeris: {}", self.refusal());
        }
        Ok(ExitCode::FAILURE)
    }
}

/// The key to the account: what flags say wins over the environment.
fn account_key(connection: &Connection) -> anyhow::Result<Vec<u8>> {
    let variable = |name| match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(error @ VarError::NotUnicode(_)) => Err(error).context(name),
    };
    let (key, file) = match (&connection.key, &connection.key_file) {
        (None, None) => {
            (variable("EPHEMERIS_KEY")?, variable("EPHEMERIS_KEY_FILE")?.map(PathBuf::from))
        }
        (key, file) => (key.clone(), file.clone()),
    };
    let (text, name) = match (key, file) {
        (Some(_), Some(_)) => bail!("EPHEMERIS_KEY and EPHEMERIS_KEY_FILE are both set: unset one"),
        (Some(key), None) => (key, "the account key".to_string()),
        (None, Some(file)) => {
            let name = format!("the key file {}", file.display());
            let text = std::fs::read_to_string(file);
            (text.with_context(|| format!("{name} cannot be read"))?, name)
        }
        (None, None) => (EMULATOR_KEY.to_string(), "the emulator key".to_string()),
    };
    ensure!(!text.trim().is_empty(), "{name} is empty");
    STANDARD.decode(text.trim()).with_context(|| format!("{name} is not base64"))
}

fn http_client(trust: &Trust, timeout: Duration) -> anyhow::Result<reqwest::Client> {
    // A node is asked where it is: proxies of the environment are for the world outside.
    let mut builder = reqwest::Client::builder().timeout(timeout).no_proxy();
    if let Some(file) = &trust.ca_file {
        let shown = file.display();
        let pem = std::fs::read(file).with_context(|| format!("{shown} cannot be read"))?;
        let authorities = Certificate::from_pem_bundle(&pem)
            .with_context(|| format!("{shown} holds no certificate in PEM"))?;
        for authority in authorities {
            builder = builder.add_root_certificate(authority);
        }
    }
    Ok(builder.build()?)
}

fn no_answer(url: &Url) -> String {
    format!(
        "no answer from {url}: is a node running there? If it serves HTTPS, the URL begins with \
         https:// and --ca-file names its authority (tls/ca.pem)"
    )
}

/// Asks a node whether it is ready.
pub(super) async fn healthcheck(url: &str, trust: &Trust) -> anyhow::Result<ExitCode> {
    let http = http_client(trust, HEALTH_TIMEOUT)?;
    let url =
        Url::parse(url).with_context(|| format!("{url} is no URL"))?.join("/readyz?verbose")?;
    let response = http.get(url.clone()).send().await;
    let response = response.with_context(|| no_answer(&url))?;
    let ready = response.status().is_success();
    print!("{}", response.text().await?);
    Ok(if ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
