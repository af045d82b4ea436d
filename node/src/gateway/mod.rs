//! The gateway: what Cosmos clients talk to, on every node.
//!
//! 1. `path`, `auth`, `headers` and `access`: what is named, with whose word, and whether that is
//!    enough.
//! 2. The body is read; who may not send it is refused without.
//! 3. `resolve` finds the container in this node's copy of the catalog.
//! 4. The request goes to the leader of its partition, here or on another node; changes of leader
//!    are absorbed until the request's deadline. A read that need not see everything is answered by
//!    the replica on this node, if that is as fresh as the client's `session` says.
//! 5. `reply` and `error` turn the outcome into status, headers and body.

mod access;
mod account;
mod auth;
mod batch;
mod change_feed;
mod conflicts;
mod containers;
mod continuation;
mod counted;
mod databases;
mod dispatch;
mod error;
mod feed;
mod headers;
#[cfg(all(test, target_arch = "x86_64"))]
mod instructions;
mod items;
mod mac;
mod partition_ranges;
mod path;
mod permissions;
mod query;
mod query_plan;
mod reply;
mod resolve;
mod resource_tokens;
mod resume_filter;
mod scripts;
mod session;
mod throughput;
mod untaken;
mod users;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::http::header::CONTENT_ENCODING;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response};
use bytes::{Bytes, BytesMut};
use ephemeris_store::catalog::{CatalogCommand, CatalogRefusal, ClusterId, Created};
use futures_util::StreamExt as _;
use rand::RngExt as _;
use serde_json::Value;
use tracing::debug;
use uuid::{Builder, Uuid};

pub(crate) use auth::sign;
pub(crate) use error::{ApiError, Failure};
pub(crate) use path::Segments;
use reply::ACTIVITY_ID;
pub(crate) use reply::Reply;

use access::Access;
use auth::{Credential, Verifier};
use counted::Counted;
use dispatch::dispatch;
use headers::{PostKind, RequestHeaders};
use path::Target;
use untaken::Untaken;

use crate::admin;
use crate::clock::{self, Instant};
use crate::consistency::ConsistencyLevel;
use crate::node::Node;
use crate::partition::Price;
use crate::reload::Looked;
use crate::requests::RequestError;

/// Largest body of a request, in bytes.
const BODY_BYTES_MAX: usize = 2 << 20;
/// A body that is too large is read on to here, so that the client hears why it was refused.
const BODY_BYTES_DRAINED_MAX: usize = 32 << 20;
/// How long a body may take to arrive.
const BODY_DEADLINE: Duration = Duration::from_secs(30);
/// The same for a client that has not shown a key.
const UNVERIFIED_BYTES_DRAINED_MAX: usize = BODY_BYTES_MAX;
const UNVERIFIED_DEADLINE: Duration = Duration::from_secs(5);
/// Requests under way at the same time, and bytes of their bodies; more are told to come again.
const REQUESTS_MAX: usize = 8192;
const BYTES_UNDER_WAY_MAX: usize = 512 << 20;

/// Answers requests of clients. Clones share it.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(crate) node: Node,
    verifier: Arc<Verifier>,
    under_way: Arc<AtomicUsize>,
    bytes_under_way: Arc<AtomicUsize>,
    untaken: Untaken,
    counted: Arc<Counted>,
}

/// What can be done to a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post(PostKind),
    Put,
    Patch,
    Delete,
    /// Nothing any resource knows.
    Other,
}

/// A request that was signed, is allowed, and was read.
pub(crate) struct Call {
    method: Method,
    pub(crate) verb: Verb,
    /// What it may do.
    pub(crate) access: Access,
    pub(crate) headers: RequestHeaders,
    pub(crate) body: Bytes,
    /// How fresh what it reads must be.
    pub(crate) consistency: ConsistencyLevel,
    pub(crate) deadline: Instant,
}

impl Call {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Result<Value, Failure> {
        serde_json::from_slice(&self.body).map_err(|error| {
            Failure::in_body(ApiError::BadRequest(format!("The body is not valid JSON: {error}.")))
        })
    }

    /// The answer to a method that the resource does not have; it has these.
    pub(crate) fn not_allowed(&self, methods: &'static str) -> Failure {
        ApiError::MethodNotAllowed { method: self.method.to_string(), allowed: methods }.into()
    }
}

impl Verb {
    fn of(method: &Method, headers: &RequestHeaders) -> Self {
        match *method {
            Method::GET => Verb::Get,
            Method::POST => Verb::Post(headers.post_kind()),
            Method::PUT => Verb::Put,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ => Verb::Other,
        }
    }
}

/// What a request adds to what is under way, as long as it is.
struct Counting<'g> {
    all: &'g AtomicUsize,
    mine: usize,
}

impl<'g> Counting<'g> {
    fn new(all: &'g AtomicUsize) -> Self {
        Self { all, mine: 0 }
    }

    /// True if there is room for so much more.
    fn add(&mut self, more: usize, max: usize) -> bool {
        self.mine += more;
        self.all.fetch_add(more, Ordering::Relaxed) + more <= max
    }

    /// Counts the request itself.
    fn begin(&mut self) -> Result<(), ApiError> {
        if self.add(1, REQUESTS_MAX) {
            return Ok(());
        }
        Err(ApiError::NotExecuted("too many requests are under way".to_string()))
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.mine, Ordering::Relaxed);
    }
}

/// Answers one request.
pub(crate) async fn handle(
    gateway: Gateway,
    request: Request<Body>,
) -> Result<Response<Body>, Infallible> {
    let started = clock::monotonic();
    let (parts, body) = request.into_parts();
    let activity_id = activity_id(&parts.headers);
    let (method, path) = (parts.method.clone(), parts.uri.clone());
    let reply = gateway.answer(parts, body).await.unwrap_or_else(|failure| {
        failure.error.count_if_put_off();
        failure.into_reply(&activity_id)
    });
    let elapsed = started.elapsed();
    let response = reply.into_response(&activity_id, elapsed, &gateway.untaken);
    let status = response.status();
    gateway.counted.count(status, elapsed);
    debug!(?activity_id, %method, %path, %status, ?elapsed, "request");
    Ok(response)
}

/// The answer to a request that has waited in vain for the node to start: it may be sent again.
pub(crate) async fn not_started(request: Request<Body>) -> Response<Body> {
    let activity_id = activity_id(request.headers());
    drain(request.into_body(), UNVERIFIED_BYTES_DRAINED_MAX, UNVERIFIED_DEADLINE).await;
    let failure = Failure::from(ApiError::NotExecuted(admin::NOT_STARTED.to_string()));
    let reply = failure.into_reply(&activity_id);
    reply.into_response(&activity_id, Duration::ZERO, &Untaken::default())
}

/// The client's name for the request, or one of ours: a random UUID, of version 4.
fn activity_id(headers: &HeaderMap) -> HeaderValue {
    headers.get(&ACTIVITY_ID).cloned().unwrap_or_else(|| {
        let mut text = Uuid::encode_buffer();
        let id = Builder::from_random_bytes(ephemeris_raft::random().random()).into_uuid();
        let id = id.hyphenated().encode_lower(&mut text);
        HeaderValue::from_str(id).expect("hexadecimal digits are a header value")
    })
}

impl Gateway {
    /// A gateway of this node.
    pub(crate) fn new(node: Node) -> Self {
        let verifier = Arc::new(Verifier::new(node.config().keys.clone()));
        Self {
            node,
            verifier,
            under_way: Arc::default(),
            bytes_under_way: Arc::default(),
            untaken: Untaken::default(),
            counted: Arc::default(),
        }
    }

    /// The cluster, by which tokens are sealed.
    fn cluster(&self) -> Result<ClusterId, ApiError> {
        self.node.cluster().ok_or_else(ApiError::unknown_cluster)
    }

    /// Reads the account's keys again.
    pub(crate) fn reload_keys(&self) -> Result<Looked, String> {
        let keys = self.node.config().key_sources.load().map_err(|error| error.to_string())?;
        Ok(self.verifier.replace_keys(keys))
    }

    /// How long a request may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.node.config().request_timeout
    }

    async fn answer(&self, parts: Parts, body: Body) -> Result<Reply, Failure> {
        let (credential, target) = match self.verified(&parts) {
            Ok(verified) => verified,
            Err(error) => {
                drain(body, UNVERIFIED_BYTES_DRAINED_MAX, UNVERIFIED_DEADLINE).await;
                return Err(error.into());
            }
        };
        let mut under_way = Counting::new(&self.under_way);
        let admitted = match under_way.begin() {
            Ok(()) => self.admit(parts, credential, &target).await,
            Err(error) => Err(error.into()),
        };
        let mut call = match admitted {
            Ok(call) => call,
            Err(failure) => {
                drop(under_way);
                drain(body, BODY_BYTES_DRAINED_MAX, BODY_DEADLINE).await;
                return Err(failure);
            }
        };
        let mut bytes = Counting::new(&self.bytes_under_way);
        if !body.is_end_stream() {
            // A client that sends none of it keeps no other from being answered.
            drop(under_way);
            let begun = clock::monotonic();
            call.body = read_body(&call.headers, body, &mut bytes).await?;
            under_way = Counting::new(&self.under_way);
            under_way.begin()?;
            // The time that a body takes to arrive is its client's.
            call.deadline += begun.elapsed();
            // What was allowed may have been taken away meanwhile.
            call.access = self.access(credential, call.deadline).await?;
            access::check(self, &call, &target).await?;
        }
        let price = price(&call, &target);
        let answered = match dispatch(self, &call, &target).await {
            Err(Failure { error: ApiError::StaleMap, .. }) => {
                Box::pin(self.node.catalog_barrier(call.deadline)).await?;
                Box::pin(dispatch(self, &call, &target)).await
            }
            answered => answered,
        };
        answered.map(|reply| reply.priced(price)).map_err(|failure| failure.priced(price))
    }

    /// With whose word a request comes, and what it names.
    fn verified(&self, parts: &Parts) -> Result<(Credential, Target), ApiError> {
        let segments = Segments::parse(parts.uri.path())?;
        // In direct mode SDKs sign what they look for, and not the path: whoever asks is told that it is not there.
        if segments.is_of_direct_mode() {
            return Err(ApiError::NotSupported(path::DIRECT_MODE.to_string()));
        }
        let (cluster, date) = (self.node.cluster(), self.node.date());
        let method = parts.method.as_str();
        let credential = self.verifier.verify(method, &segments, &parts.headers, cluster, date)?;
        Ok((credential, segments.target()?))
    }

    /// The call of a request that is allowed, as far as its head tells; its body is still to be read.
    async fn admit(
        &self,
        parts: Parts,
        credential: Credential,
        target: &Target,
    ) -> Result<Call, Failure> {
        // These have short answers, and show clients and operators the way out.
        if !matches!(target, Target::Account | Target::Admin(_)) {
            self.untaken.check()?;
        }
        let deadline = clock::monotonic() + self.timeout();
        let access = self.access(credential, deadline).await?;
        let headers = RequestHeaders::new(parts.headers, &parts.uri);
        let verb = Verb::of(&parts.method, &headers);
        let method = parts.method;
        let account = self.node.config().consistency;
        // The account tells clients what they may ask for.
        let is_account = matches!(target, Target::Account);
        let consistency = if is_account { account } else { headers.consistency(account)? };
        let body = Bytes::new();
        let call = Call { method, verb, access, headers, body, consistency, deadline };
        access::check(self, &call, target).await?;
        Ok(call)
    }

    /// Changes the catalog; a refusal becomes the client's error.
    pub(crate) async fn change_catalog(
        &self,
        call: &Call,
        command: CatalogCommand,
    ) -> Result<Created, Failure> {
        Ok(self.try_change_catalog(call, command).await??)
    }

    /// Changes the catalog; the refusal is for the caller. Afterwards all nodes that can be reached
    /// show the change.
    pub(crate) async fn try_change_catalog(
        &self,
        call: &Call,
        command: CatalogCommand,
    ) -> Result<Result<Created, CatalogRefusal>, RequestError> {
        let outcome = self.node.change_catalog(command, call.deadline).await?;
        if outcome.result.is_ok() {
            if !self.node.wait_for_catalog(outcome.lsn, call.deadline).await {
                // The answer would show what was there before.
                let reason = "it was made, and this node does not show it yet";
                return Err(RequestError::Unknown(reason.to_string()));
            }
            self.node.spread_catalog(outcome.lsn).await;
        }
        Ok(outcome.result)
    }
}

/// What a call costs, next to what it does: reads of items pay for how fresh they must be.
fn price(call: &Call, target: &Target) -> Price {
    let reads_items = match call.verb {
        Verb::Get => matches!(target, Target::Items(_) | Target::Item(..)),
        Verb::Post(PostKind::Query) => matches!(target, Target::Items(_)),
        Verb::Post(_) | Verb::Put | Verb::Patch | Verb::Delete | Verb::Other => false,
    };
    let is_strong = call.consistency >= ConsistencyLevel::BoundedStaleness;
    if reads_items && is_strong { Price::Twice } else { Price::Once }
}

/// Reads a body that is not too large, if there is room for it beside those of others.
async fn read_body(
    headers: &RequestHeaders,
    body: Body,
    counting: &mut Counting<'_>,
) -> Result<Bytes, ApiError> {
    let reading = async {
        let mut stream = body.into_data_stream();
        let mut bytes = Bytes::new();
        let (mut seen, mut has_room) = (0, true);
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|error| {
                ApiError::BadRequest(format!("The body did not arrive: {error}."))
            })?;
            seen += chunk.len();
            if seen <= BODY_BYTES_MAX && has_room {
                has_room = counting.add(chunk.len(), BYTES_UNDER_WAY_MAX);
                bytes = joined(bytes, chunk);
            } else if seen > BODY_BYTES_DRAINED_MAX {
                break;
            }
        }
        if seen > BODY_BYTES_MAX {
            return Err(ApiError::TooLarge(format!("The limit is {BODY_BYTES_MAX} bytes.")));
        }
        if !has_room {
            return Err(ApiError::NotExecuted("too many large requests are under way".to_string()));
        }
        Ok(bytes)
    };
    if headers.raw().get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        return Err(ApiError::BadRequest("The body must not be compressed.".to_string()));
    }
    tokio::time::timeout(BODY_DEADLINE, reading).await.unwrap_or_else(|_| {
        Err(ApiError::Timeout("The body did not arrive in time; nothing was executed.".into()))
    })
}

/// Takes in the body of a request that was refused: a client that is cut off may not hear why.
async fn drain(body: Body, bytes_max: usize, deadline: Duration) {
    let draining = async {
        let (mut stream, mut seen) = (body.into_data_stream(), 0);
        while let Some(Ok(chunk)) = stream.next().await
            && seen <= bytes_max
        {
            seen += chunk.len();
        }
    };
    // However it ends, what was refused stays refused.
    let _ = tokio::time::timeout(deadline, draining).await;
}

/// Two pieces of a body; a body that comes in one is not copied.
fn joined(bytes: Bytes, chunk: Bytes) -> Bytes {
    if bytes.is_empty() {
        return chunk;
    }
    // What was joined before is nobody else's, and grows where it is.
    let mut bytes = BytesMut::from(bytes);
    bytes.extend_from_slice(&chunk);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;

    use super::*;

    #[tokio::test]
    async fn bodies_beyond_what_there_is_room_for_are_read_and_refused() {
        let headers = RequestHeaders::new(HeaderMap::new(), &"/".parse().unwrap());
        let all = AtomicUsize::new(BYTES_UNDER_WAY_MAX - 100);
        let mut counting = Counting::new(&all);
        let read = read_body(&headers, Body::from(vec![b' '; 100]), &mut counting).await;
        assert_eq!(read.unwrap().len(), 100);
        assert_eq!(
            all.load(Ordering::Relaxed),
            BYTES_UNDER_WAY_MAX,
            "as long as the request lasts"
        );
        let mut other = Counting::new(&all);
        let refused = read_body(&headers, Body::from("{}"), &mut other).await;
        assert!(matches!(refused, Err(ApiError::NotExecuted(_))), "{refused:?}");
        drop((counting, other));
        assert_eq!(all.load(Ordering::Relaxed), BYTES_UNDER_WAY_MAX - 100);
    }

    #[test]
    fn so_many_requests_are_under_way_and_no_more() {
        let all = AtomicUsize::new(REQUESTS_MAX - 1);
        let (mut last, mut next) = (Counting::new(&all), Counting::new(&all));
        last.begin().unwrap();
        assert!(next.begin().is_err());
        drop((last, next));
        Counting::new(&all).begin().unwrap();
    }
}
