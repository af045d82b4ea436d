//! `GET …/pkranges`: how a container is cut into partitions, for SDKs that route by themselves.

use axum::http::{StatusCode, header};
use ephemeris_store::catalog::PartitionRecord;
use ephemeris_store::charge::Charge;
use ephemeris_store::ids::{ChildKind, Etag, ResourceId, container_link};
use serde_json::{Value, json};

use super::error::Failure;
use super::path::ContainerPath;
use super::reply::{Reply, envelope};
use super::resolve::Resolved;
use super::{Call, Gateway};

/// Answers with all ranges, or 304 if the client has them already: SDKs ask until they get one.
pub(crate) async fn list(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Reply, Failure> {
    let resolved = gateway.container(call, path).await?;
    let rid = ResourceId::Container(resolved.container.number).to_string();
    // Range ids are never reused, so their count names one division of one container.
    let etag = format!("\"{rid}-{}\"", resolved.container.ranges_created);
    let reply = match call.headers.text("if-none-match")? {
        Some(known) if known == etag => Reply::empty(StatusCode::NOT_MODIFIED),
        Some(_) | None => {
            let range = |record: &_| to_json(&resolved, record).to_string().into_bytes();
            let rows: Vec<_> = resolved.partitions().iter().map(|record| range(record)).collect();
            let body = envelope(&rid, "PartitionKeyRanges", &rows);
            Reply::json(StatusCode::OK, body).page(rows.len(), None)
        }
    };
    let reply = reply.header(header::ETAG, &etag).data(resolved.headers());
    Ok(reply.charge(Charge::METADATA_READ))
}

fn to_json(resolved: &Resolved, record: &PartitionRecord) -> Value {
    let definition = &resolved.container.definition;
    let container = resolved.container.number;
    let rid = ResourceId::child(container, ChildKind::Range, u64::from(record.range.0));
    let resource = resolved.container.resource;
    let etag = Etag::new(record.group, ephemeris_store::ids::Lsn(0), 0);
    let parents: Vec<String> = record.parents.iter().map(ToString::to_string).collect();
    let slots = f64::from(record.slots.end - record.slots.start);
    json!({
        "id": record.range.to_string(),
        "_rid": rid.to_string(),
        "_self": format!("{}pkranges/{rid}/", container_link(container)),
        "_etag": etag.to_string(),
        "_ts": resource.ts.0,
        "_lsn": 1,
        "minInclusive": definition.key().slot_start(record.slots.start).to_string(),
        "maxExclusive": definition.key().slot_start(record.slots.end).to_string(),
        "ridPrefix": record.range.0,
        "throughputFraction": slots / f64::from(ephemeris_store::partition_key::SLOTS),
        "status": "online",
        "parents": parents,
    })
}
