//! What operators ask: is the node alive, is it ready, what does it run, how is it doing.
//!
//! `/livez`, `/readyz` and `/metrics` need no key, for orchestrators. `/admin/…` is signed like every
//! other request.

mod status;
mod ttl;

use std::fmt::Write as _;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{Response, StatusCode, header};
use axum::routing::get;
use ephemeris_raft::TransportError;
use ephemeris_store::catalog::{CatalogCommand, CatalogRefusal};
use ephemeris_store::charge::Charge;
use ephemeris_store::ids::{GroupId, NodeId};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;

use crate::clock;
use crate::gateway::{ApiError, Call, Failure, Gateway, Reply, Verb};
use crate::node::Node;
use crate::placement::{describe_nodes, groups_that_need};
use crate::requests::NodeRequest;

/// What the unsigned endpoints need.
#[derive(Clone)]
struct Probes {
    node: Node,
    metrics: PrometheusHandle,
}

/// The endpoints that need no key.
pub(crate) const PROBES: [&str; 3] = ["/livez", "/readyz", "/metrics"];

/// Answers those.
pub(crate) fn probes(node: Node, metrics: PrometheusHandle) -> Router {
    Router::new()
        .route("/livez", get(|| async { text(StatusCode::OK, "ok\n".to_string()) }))
        .route("/readyz", get(ready))
        .route("/metrics", get(render_metrics))
        .with_state(Probes { node, metrics })
}

/// What they answer while the node has not started: it is alive, and not ready.
pub(crate) fn probe_early(path: &str) -> Response<Body> {
    match path {
        "/livez" => text(StatusCode::OK, "ok\n".to_string()),
        _ => text(StatusCode::SERVICE_UNAVAILABLE, format!("[-] {NOT_STARTED}\nnot ready\n")),
    }
}

/// Why a node does not answer yet.
pub(crate) const NOT_STARTED: &str = "the node is starting: its log says what it waits for";

fn text(status: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

/// 200 once the node can answer requests; with `?verbose`, one line for each condition.
async fn ready(State(probes): State<Probes>, RawQuery(query): RawQuery) -> Response<Body> {
    let conditions = probes.node.readiness();
    let ready = conditions.iter().all(|(_, holds)| *holds);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut body = String::new();
    if query.is_some_and(|query| query.split('&').any(|part| part == "verbose")) {
        for (name, holds) in conditions {
            let mark = if holds { "+" } else { "-" };
            writeln!(body, "[{mark}] {name}").expect("a String takes any text");
        }
    }
    body.push_str(if ready { "ready\n" } else { "not ready\n" });
    text(status, body)
}

async fn render_metrics(State(probes): State<Probes>) -> Response<Body> {
    probes.node.record_gauges();
    text(StatusCode::OK, probes.metrics.render())
}

/// Answers `/admin/…`.
pub(crate) async fn answer(gateway: &Gateway, call: &Call, what: &str) -> Result<Reply, Failure> {
    match (what, call.verb) {
        ("status", Verb::Get) => {
            let status = status::cluster(&gateway.node).await;
            Ok(Reply::json(StatusCode::OK, status.to_string()).charge(Charge::METADATA_READ))
        }
        ("ttl", Verb::Get) => {
            let status = ttl::status(&gateway.node).await;
            Ok(Reply::json(StatusCode::OK, status.to_string()).charge(Charge::METADATA_READ))
        }
        ("ttl", Verb::Post(_)) => ttl::switch(gateway, call).await,
        ("forget-node", Verb::Post(_)) => forget_node(gateway, call).await,
        ("hand-over", Verb::Post(_)) => {
            gateway.node.step_aside().await;
            Ok(done("handedOver", gateway))
        }
        ("flush", Verb::Post(_)) => {
            gateway.node.flush().await;
            Ok(done("flushed", gateway))
        }
        ("status", _) => Err(call.not_allowed("GET")),
        ("ttl", _) => Err(call.not_allowed("GET, POST")),
        ("forget-node" | "hand-over" | "flush", _) => Err(call.not_allowed("POST")),
        _ => Err(ApiError::UnknownPath(format!("admin/{what}")).into()),
    }
}

/// What the node that was asked has done.
fn done(what: &str, gateway: &Gateway) -> Reply {
    let body = json!({ what: gateway.node.node_id().0 });
    Reply::json(StatusCode::OK, body.to_string()).charge(Charge::METADATA_WRITE)
}

/// How long groups may take to find a new leader before they count as leaderless.
const ELECTION_PATIENCE: Duration = Duration::from_secs(3);
/// How long a node may take to show that it runs.
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);
/// How often it is looked whether they have.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The groups that cannot spare a node; those that it led are given time to elect another leader.
async fn still_needed(gateway: &Gateway, call: &Call, node: NodeId) -> Vec<GroupId> {
    let until = (clock::monotonic() + ELECTION_PATIENCE).min(call.deadline);
    loop {
        let descriptions = describe_nodes(&gateway.node).await;
        let directory = gateway.node.directory().current();
        let groups = groups_that_need(directory.state(), &descriptions, node);
        if groups.is_empty() || clock::monotonic() >= until {
            return groups;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A node that runs would go on with replicas that count for nothing any more.
async fn refuse_while_it_runs(gateway: &Gateway, node: NodeId) -> Result<(), ApiError> {
    match gateway.node.send(node, &NodeRequest::Describe, ANSWER_DEADLINE).await {
        Err(TransportError::Unreachable(_) | TransportError::NoAnswer { .. }) => return Ok(()),
        // To say that it has no time is an answer.
        Ok(_) | Err(TransportError::Refused { .. }) => {}
    }
    Err(ApiError::Conflict(format!(
        "Node {node} runs, and cannot be forgotten: stop its process first, and do not start it again with \
         the data directory it has."
    )))
}

/// Forgets a node that will not come back with its data: its replicas are made anew elsewhere.
async fn forget_node(gateway: &Gateway, call: &Call) -> Result<Reply, Failure> {
    let number = call.json()?["node"].as_u64().and_then(|number| u32::try_from(number).ok());
    let node = number
        .map(NodeId)
        .ok_or_else(|| ApiError::BadRequest("The body must be {\"node\": NUMBER}.".to_string()))?;
    if node == gateway.node.node_id() {
        let message = "A node cannot forget itself: ask another one.";
        return Err(ApiError::BadRequest(message.to_string()).into());
    }
    refuse_while_it_runs(gateway, node).await?;
    gateway.node.catalog_barrier(call.deadline).await?;
    if !gateway.node.directory().current().state().counts(node) {
        let message =
            format!("The cluster has no node {node}: `ephemeris status` shows those it has.");
        return Err(ApiError::NotFound(message).into());
    }
    let groups = still_needed(gateway, call, node).await;
    if !groups.is_empty() {
        return Err(CatalogRefusal::StillNeeded { node, groups }.into());
    }
    gateway.change_catalog(call, CatalogCommand::ForgetNode { node }).await?;
    let body = json!({ "forgotten": node.0 });
    Ok(Reply::json(StatusCode::OK, body.to_string()).charge(Charge::METADATA_WRITE))
}
