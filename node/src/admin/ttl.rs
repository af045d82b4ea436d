//! What expires where: policy, backlog and clock of every partition, and the switch that keeps the
//! dead on disk.

use std::time::Duration;

use ephemeris_store::catalog::{CatalogCommand, CatalogState, PartitionRecord, Sweeping};
use ephemeris_store::charge::Charge;
use ephemeris_store::ttl::TtlPolicy;
use futures_util::future::join_all;
use serde_json::{Value, json};

use axum::http::StatusCode;

use crate::clock;
use crate::gateway::{ApiError, Call, Failure, Gateway, Reply};
use crate::node::Node;
use crate::partition::{PartitionRequest, PartitionResponse, TtlStatus};

/// How long one partition may take to answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

/// `GET /admin/ttl`
pub(super) async fn status(node: &Node) -> Value {
    let directory = node.directory().current();
    let state = directory.state();
    let rows = state.partitions().map(|record| partition(node, state, record));
    let sweeping = match state.sweeping() {
        Sweeping::Running => "running",
        Sweeping::Paused => "paused",
    };
    json!({ "sweeping": sweeping, "partitions": join_all(rows).await })
}

async fn partition(node: &Node, state: &CatalogState, record: &PartitionRecord) -> Value {
    let deadline = clock::monotonic() + ANSWER_DEADLINE;
    let answer = node.ask_partition(record.group, PartitionRequest::TtlStatus, deadline).await;
    let container = state.container(record.container);
    let database = state.database(record.container.database);
    let mut row = json!({
        "database": database.map(|database| database.name.as_str()),
        "container": container.map(|container| container.definition.name().as_str()),
        "range": record.range.to_string(),
        "group": record.group.0,
    });
    match answer {
        Ok(PartitionResponse::TtlStatus(status)) => describe(&mut row, &status),
        Ok(other) => row["error"] = json!(format!("answered {other:?}")),
        Err(error) => row["error"] = json!(error.to_string()),
    }
    row
}

fn describe(row: &mut Value, status: &TtlStatus) {
    row["defaultTtl"] = match status.policy {
        TtlPolicy::Off => json!("off"),
        TtlPolicy::NoDefault => json!(-1),
        TtlPolicy::Default(seconds) => json!(seconds),
    };
    row["items"] = json!(status.items);
    row["backlog"] = json!(status.backlog.items);
    row["backlogIsMore"] = json!(status.backlog.more);
    row["oldestOverdueS"] = json!(
        status
            .backlog
            .oldest
            .map(|expired| { status.now.floor_seconds().0.saturating_sub(expired.0) })
    );
    row["sweptPerSecond"] = json!(status.swept_per_second);
    row["nextDueS"] =
        json!(status.due.map(|due| { due.0.saturating_sub(status.now.floor_seconds().0) }));
    row["partitionClock"] = json!(status.clock.to_string());
    row["keptAfterJump"] = json!(status.keeps_the_dead);
    row["clockIsSure"] = json!(status.clock_is_sure);
    row["clockWidthMs"] = json!(status.clock_width_ms);
}

/// `POST /admin/ttl` with `{"sweeping": "paused"}` or `{"sweeping": "running"}`
pub(super) async fn switch(gateway: &Gateway, call: &Call) -> Result<Reply, Failure> {
    let body = call.json()?;
    let sweeping = match body["sweeping"].as_str() {
        Some("paused") => Sweeping::Paused,
        Some("running") => Sweeping::Running,
        Some(_) | None => {
            let message =
                "The body must be {\"sweeping\": \"paused\"} or {\"sweeping\": \"running\"}.";
            return Err(ApiError::BadRequest(message.to_string()).into());
        }
    };
    gateway.change_catalog(call, CatalogCommand::SetSweeping(sweeping)).await?;
    Ok(Reply::json(StatusCode::OK, body.to_string()).charge(Charge::METADATA_WRITE))
}
