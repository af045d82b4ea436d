//! Answers: status, headers and body as Cosmos clients expect them.

use std::fmt::{Display, Write as _};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use bytes::{Bytes, BytesMut};
use ephemeris_store::charge::Charge;
use ephemeris_store::command::Precondition;
use ephemeris_store::ids::{ETAG_LENGTH, Etag, Lsn, RangeId};
use serde_json::{Value, json};

use super::error::{ApiError, Failure};
use super::session;
use super::untaken::Untaken;
use crate::partition::Price;
use crate::placement::Links;

/// Headers of an answer about an item, or a few less: room for them is taken at once.
const HEADERS_ROOM: usize = 24;
/// Bytes of what differs from answer to answer in them, or a few less.
const TEXTS_ROOM: usize = 96;
/// The version of the protocol we speak.
const API_VERSION: &str = "2020-07-15";

/// The name of a request, in requests and answers.
pub(crate) static ACTIVITY_ID: HeaderName = HeaderName::from_static("x-ms-activity-id");
const ALT_CONTENT_PATH: HeaderName = HeaderName::from_static("x-ms-alt-content-path");
const CONTENT_PATH: HeaderName = HeaderName::from_static("x-ms-content-path");
const CONTINUATION: HeaderName = HeaderName::from_static("x-ms-continuation");
const GATEWAY_VERSION: HeaderName = HeaderName::from_static("x-ms-gatewayversion");
const ITEM_COUNT: HeaderName = HeaderName::from_static("x-ms-item-count");
const ITEM_LSN: HeaderName = HeaderName::from_static("x-ms-item-lsn");
const LSN: HeaderName = HeaderName::from_static("lsn");
const RANGE_ID: HeaderName = HeaderName::from_static("x-ms-documentdb-partitionkeyrangeid");
const REQUEST_CHARGE: HeaderName = HeaderName::from_static("x-ms-request-charge");
const REQUEST_DURATION: HeaderName = HeaderName::from_static("x-ms-request-duration-ms");
const RETRY_AFTER: HeaderName = HeaderName::from_static("x-ms-retry-after-ms");
const SCHEMA_VERSION: HeaderName = HeaderName::from_static("x-ms-schemaversion");
const SERVICE_VERSION: HeaderName = HeaderName::from_static("x-ms-serviceversion");
/// How far a client has seen the partitions, in requests and answers.
pub(crate) static SESSION_TOKEN: HeaderName = HeaderName::from_static("x-ms-session-token");
const SUBSTATUS: HeaderName = HeaderName::from_static("x-ms-substatus");
const VERSION: HeaderName = HeaderName::from_static("x-ms-version");

/// The program's version, as `x-ms-gatewayversion` and `x-ms-serviceversion` tell it.
const PROGRAM: &str = concat!("ephemeris/", env!("CARGO_PKG_VERSION"));

/// What an answer says about the partitions that made it.
#[derive(Clone, Debug)]
pub(crate) struct DataHeaders {
    /// The container.
    links: Arc<Links>,
    /// How far each partition was.
    pub(crate) sessions: Vec<(RangeId, Lsn)>,
    /// The entry that wrote the item.
    pub(crate) item_lsn: Option<Lsn>,
}

impl DataHeaders {
    /// Headers of a container's data.
    pub(crate) fn new(links: Arc<Links>) -> Self {
        Self { links, sessions: Vec::new(), item_lsn: None }
    }

    /// Adds how far a partition was.
    #[must_use]
    pub(crate) fn at(mut self, range: RangeId, lsn: Lsn) -> Self {
        self.sessions.push((range, lsn));
        self
    }

    /// Adds the entry that wrote the item.
    #[must_use]
    pub(crate) fn item(mut self, lsn: Lsn) -> Self {
        self.item_lsn = Some(lsn);
        self
    }

    fn write(self, headers: &mut HeaderMap, texts: &mut Texts) {
        headers.insert(ALT_CONTENT_PATH, self.links.by_name.clone());
        headers.insert(CONTENT_PATH, self.links.rid.clone());
        if let Some(lsn) = self.item_lsn {
            headers.insert(ITEM_LSN, texts.number(lsn.0));
        }
        if let [(range, lsn)] = self.sessions.as_slice() {
            headers.insert(RANGE_ID, texts.number(range.0));
            headers.insert(LSN, texts.number(lsn.0));
        }
        if !self.sessions.is_empty() {
            headers.insert(SESSION_TOKEN.clone(), texts.value(&session::Token(&self.sessions)));
        }
    }
}

/// What headers say, one behind the other in one piece of memory.
struct Texts(BytesMut);

impl Texts {
    fn new() -> Self {
        Self(BytesMut::with_capacity(TEXTS_ROOM))
    }

    /// The value of a header: digits and punctuation.
    fn value(&mut self, text: &impl Display) -> HeaderValue {
        write!(self.0, "{text}").expect("memory takes every write");
        self.taken()
    }

    fn number(&mut self, number: impl itoa::Integer) -> HeaderValue {
        self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self.taken()
    }

    fn taken(&mut self) -> HeaderValue {
        let text = self.0.split().freeze();
        HeaderValue::from_maybe_shared(text).expect("a header may say digits and punctuation")
    }
}

/// An answer on its way to the client.
#[derive(Debug)]
pub(crate) struct Reply {
    status: StatusCode,
    body: Option<Bytes>,
    charge: Charge,
    data: Option<Box<DataHeaders>>,
    headers: HeaderMap,
}

impl Reply {
    /// An answer without a body.
    pub(crate) fn empty(status: StatusCode) -> Self {
        let headers = HeaderMap::with_capacity(HEADERS_ROOM);
        Self { status, body: None, charge: Charge::ZERO, data: None, headers }
    }

    /// An answer with a JSON body.
    pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self { body: Some(body.into()), ..Self::empty(status) }
    }

    /// What the request cost.
    #[must_use]
    pub(crate) fn charge(mut self, charge: Charge) -> Self {
        self.charge = charge;
        self
    }

    /// Makes a read cost what it does at its price; that nothing has changed always costs the same.
    #[must_use]
    pub(crate) fn priced(mut self, price: Price) -> Self {
        if self.status != StatusCode::NOT_MODIFIED {
            self.charge = price.times(self.charge);
        }
        self
    }

    /// The resource's tag.
    #[must_use]
    pub(crate) fn etag(self, etag: Etag) -> Self {
        self.header(header::ETAG, etag.encode(&mut [0; ETAG_LENGTH]))
    }

    /// Of a resource that a reader knows as it is (`If-None-Match`) only that.
    #[must_use]
    pub(crate) fn unless_known(mut self, condition: Precondition, etag: Etag) -> Self {
        if !condition.allows(etag) {
            self.status = StatusCode::NOT_MODIFIED;
            self.body = None;
            self.charge = Charge::NOT_MODIFIED;
        }
        self.etag(etag)
    }

    /// The partitions that answered.
    #[must_use]
    pub(crate) fn data(mut self, data: DataHeaders) -> Self {
        self.data = Some(Box::new(data));
        self
    }

    /// How many rows there are, and how to get the next ones.
    #[must_use]
    pub(crate) fn page(self, rows: usize, continuation: Option<&str>) -> Self {
        let reply = self.header(ITEM_COUNT, rows.to_string());
        match continuation {
            Some(token) => reply.header(CONTINUATION, token),
            None => reply,
        }
    }

    /// What an error says beside its status.
    #[must_use]
    pub(crate) fn substatus(self, error: &ApiError) -> Self {
        match error.answer().substatus {
            // The Rust SDK tells none from zero, and expects none.
            0 => self,
            substatus => self.header(SUBSTATUS, substatus.to_string()),
        }
    }

    /// Any other header.
    #[must_use]
    pub(crate) fn header(mut self, name: HeaderName, value: impl AsRef<str>) -> Self {
        insert_text(&mut self.headers, name, value.as_ref());
        self
    }

    /// The finished response to a request that took so long.
    pub(crate) fn into_response(
        self,
        activity_id: &HeaderValue,
        elapsed: Duration,
        untaken: &Untaken,
    ) -> Response<Body> {
        let Self { status, body, charge, data, mut headers } = self;
        let mut texts = Texts::new();
        headers.insert(ACTIVITY_ID.clone(), activity_id.clone());
        headers.insert(VERSION, HeaderValue::from_static(API_VERSION));
        headers.insert(SERVICE_VERSION, HeaderValue::from_static(PROGRAM));
        headers.insert(GATEWAY_VERSION, HeaderValue::from_static(PROGRAM));
        headers.insert(SCHEMA_VERSION, HeaderValue::from_static("1.19"));
        headers.insert(REQUEST_CHARGE, texts.value(&charge));
        headers.insert(REQUEST_DURATION, texts.value(&millis(elapsed)));
        if let Some(data) = data {
            data.write(&mut headers, &mut texts);
        }
        if body.is_some() {
            let json = HeaderValue::from_static("application/json");
            headers.entry(header::CONTENT_TYPE).or_insert(json);
        }
        let mut response =
            Response::new(body.map_or_else(Body::empty, |bytes| untaken.body(bytes)));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
}

impl Failure {
    /// The answer that tells of it.
    pub(crate) fn into_reply(self, activity_id: &HeaderValue) -> Reply {
        let answer = self.error.answer();
        let mut message = self.error.to_string();
        // As the service ends what it says about a query.
        if let (ApiError::BadQuery(_), Ok(id)) = (&self.error, activity_id.to_str()) {
            message = format!("{message}\r\nActivityId: {id}");
        }
        let body = json!({ "code": answer.code, "message": message });
        let mut reply = Reply::json(answer.status, body.to_string()).charge(self.charge);
        reply = reply.substatus(&self.error);
        if let Some(pause) = self.error.retry_after() {
            reply = reply.header(RETRY_AFTER, pause.as_millis().to_string());
        }
        if let Some(methods) = self.error.allowed() {
            reply = reply.header(header::ALLOW, methods);
        }
        reply.data = self.data;
        reply
    }
}

/// Milliseconds with three decimals.
fn millis(duration: Duration) -> impl Display {
    let micros = duration.as_micros();
    std::fmt::from_fn(move |f| write!(f, "{}.{:03}", micros / 1000, micros % 1000))
}

/// Text that a header cannot hold is left out: only names of resources can be such, percent-encoded
/// before they come here.
fn insert_text(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// The body of a feed: an envelope round rows that are JSON already.
pub(crate) fn envelope(rid: &str, name: &str, rows: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let bytes: usize = rows.iter().map(|row| row.as_ref().len() + 1).sum();
    let mut body = Vec::with_capacity(bytes + 64);
    body.extend_from_slice(format!("{{\"_rid\":\"{rid}\",\"{name}\":[").as_bytes());
    for (at, row) in rows.iter().enumerate() {
        if at > 0 {
            body.push(b',');
        }
        body.extend_from_slice(row.as_ref());
    }
    body.extend_from_slice(format!("],\"_count\":{}}}", rows.len()).as_bytes());
    body
}

/// The system properties of a resource that is not an item.
pub(crate) fn with_system_properties(
    mut resource: serde_json::Map<String, Value>,
    rid: &str,
    link: &str,
    etag: Etag,
    ts: u64,
) -> serde_json::Map<String, Value> {
    resource.insert("_rid".into(), json!(rid));
    resource.insert("_self".into(), json!(link));
    resource.insert("_etag".into(), json!(etag.to_string()));
    resource.insert("_ts".into(), json!(ts));
    resource
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(error: ApiError) -> (u16, Vec<Option<String>>) {
        let activity_id = HeaderValue::from_static("a");
        let reply = Failure::from(error).into_reply(&activity_id);
        let response = reply.into_response(&activity_id, Duration::ZERO, &Untaken::default());
        let header = |name: HeaderName| {
            response.headers().get(name).map(|value| value.to_str().unwrap().to_string())
        };
        let headers = [SUBSTATUS, RETRY_AFTER, REQUEST_CHARGE].map(header);
        (response.status().as_u16(), headers.to_vec())
    }

    #[test]
    fn what_was_put_off_says_until_when() {
        let text = |text: &str| Some(text.to_string());
        let spent = ApiError::Throttled { retry_after: Duration::from_millis(1234) };
        assert_eq!(shown(spent), (429, vec![text("3200"), text("1234"), text("0")]));
        let nobody = ApiError::NotExecuted("no leader".to_string());
        assert_eq!(shown(nobody), (429, vec![text("3200"), text("200"), text("0")]));
        let missing = ApiError::NotFound("no".to_string());
        assert_eq!(shown(missing), (404, vec![None, None, text("0")]));
    }

    #[test]
    fn headers_say_what_they_should_however_long_that_is() {
        let links = Links { by_name: "dbs/a/colls/b".parse().unwrap(), rid: "c".parse().unwrap() };
        let mut data = DataHeaders::new(links.into()).item(Lsn(u64::MAX));
        for range in 0..9 {
            data = data.at(RangeId(u32::MAX - range), Lsn(u64::MAX - 7));
        }
        let token = session::Token(&data.sessions).to_string();
        assert!(token.len() > TEXTS_ROOM);
        let reply = Reply::empty(StatusCode::OK).charge(Charge::point_read(1 << 20)).data(data);
        let activity_id = HeaderValue::from_static("a");
        let elapsed = Duration::from_micros(12_345);
        let response = reply.into_response(&activity_id, elapsed, &Untaken::default());
        let charge = Charge::point_read(1 << 20).to_string();
        for (name, text) in [
            (ITEM_LSN, "18446744073709551615"),
            (REQUEST_CHARGE, charge.as_str()),
            (REQUEST_DURATION, "12.345"),
            (SESSION_TOKEN.clone(), token.as_str()),
        ] {
            assert_eq!(response.headers()[name], text);
        }
    }

    #[test]
    fn durations_have_three_decimals() {
        let shown = |micros| millis(Duration::from_micros(micros)).to_string();
        assert_eq!(
            [0, 7, 999, 1000, 12_345].map(shown),
            ["0.000", "0.007", "0.999", "1.000", "12.345"]
        );
    }
}
