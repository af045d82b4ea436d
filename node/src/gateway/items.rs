//! Items: create, upsert, read, replace, patch, delete.

use std::sync::Arc;

use axum::http::StatusCode;
use bytes::Bytes;
use ephemeris_store::binary_json;
use ephemeris_store::catalog::PartitionRecord;
use ephemeris_store::charge::Charge;
use ephemeris_store::codec;
use ephemeris_store::command::{
    Action, Effect, ItemWrite, Precondition, Refused, WRITES_BYTES_MAX, Written,
};
use ephemeris_store::document::{Document, IdField, ParsedDocument};
use ephemeris_store::ids::{ItemId, Lsn};
use ephemeris_store::item::{ItemKey, LogicalPartition, client_json};
use ephemeris_store::partition_key::{InvalidKey, PartitionKey, VALUE_BYTES_MAX};
use ephemeris_store::patch::{ConditionBudget, Patch, PatchRequest};

use super::error::{ApiError, Failure};
use super::headers::Content;
use super::path::ContainerPath;
use super::reply::{DataHeaders, Reply};
use super::resolve::Resolved;
use super::session::Freshness;
use super::{Call, Gateway};
use crate::partition::{PartitionRequest, PartitionResponse, ReadItem};

/// `POST /dbs/d/colls/c/docs`
pub(crate) async fn create(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Reply, Failure> {
    store_new(gateway, call, path, Action::Create).await
}

/// `POST /dbs/d/colls/c/docs` with `x-ms-documentdb-is-upsert`
pub(crate) async fn upsert(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Reply, Failure> {
    store_new(gateway, call, path, Action::Upsert).await
}

async fn store_new(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
    action: fn(Document) -> Action,
) -> Result<Reply, Failure> {
    let resolved = gateway.container(call, path).await?;
    let parsed = parse_body(&resolved, &call.body).map_err(Failure::in_body)?;
    let id = id_in(&parsed.id).map_err(Failure::in_body)?;
    let definition = resolved.container.definition.key();
    let key = key_of(call, &resolved, &parsed).map_err(Failure::in_body)?;
    let item = ItemKey::new(&definition.place(&key), &key, &id);
    let body = parsed.document.body.clone();
    let (precondition, action) = (call.headers.precondition()?, action(parsed.document));
    let write = ItemWrite { key: item, precondition, action };
    store(gateway, call, &resolved, write, body).await
}

/// `PUT /dbs/d/colls/c/docs/i`: the body may give the item another id.
pub(crate) async fn replace(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
    segment: &str,
) -> Result<Reply, Failure> {
    let resolved = gateway.container(call, path).await?;
    let parsed = parse_body(&resolved, &call.body).map_err(Failure::in_body)?;
    let id = id_in(&parsed.id).map_err(Failure::in_body)?;
    let definition = resolved.container.definition.key();
    let key = key_of(call, &resolved, &parsed).map_err(Failure::in_body)?;
    let place = definition.place(&key);
    let to = ItemKey::new(&place, &key, &id);
    call.access.check_item(&to, definition)?;
    let precondition = precondition(call, &resolved, segment)?;
    let item = if resolved.item_number(segment).is_some() {
        locate(gateway, call, &resolved, segment).await?
    } else {
        let id = ItemId::try_from(segment.to_string()).map_err(ApiError::from)?;
        ItemKey::new(&place, &key, &id)
    };
    if !LogicalPartition::new(&place, &key).holds(&item) {
        return Err(Failure::in_body(ApiError::KeyMismatch));
    }
    let (document, body) = (parsed.document.clone(), parsed.document.body);
    let action =
        if item == to { Action::Replace(document) } else { Action::Rename { to, document } };
    let write = ItemWrite { key: item, precondition, action };
    store(gateway, call, &resolved, write, body).await
}

/// `GET /dbs/d/colls/c/docs/i`
pub(crate) async fn read(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
    segment: &str,
) -> Result<Reply, Failure> {
    let freshness = Freshness::of(call)?;
    let condition = call.headers.read_condition()?;
    let resolved = gateway.container(call, path).await?;
    let number = resolved.item_number(segment);
    let mut renamed_from = None;
    let (range, lsn, item) = loop {
        let key = locate(gateway, call, &resolved, segment).await?;
        let partition = resolved.partition(key.slot())?;
        let (node, group) = (&gateway.node, partition.group);
        let request = PartitionRequest::Read(key.clone());
        let response = match number {
            None => {
                let level = freshness.at(node, partition);
                node.read_partition(group, request, level, call.deadline).await?
            }
            // Where it stands is what the leader has said.
            Some(_) => node.ask_partition(group, request, call.deadline).await?,
        };
        let PartitionResponse::Read { lsn, item } = response else {
            unreachable!("`ask_partition` checks what is answered");
        };
        let is_meant = |item: &ReadItem| number.is_none_or(|number| item.stamp.number == number);
        let item = item.filter(is_meant);
        if number.is_none() || item.is_some() || renamed_from.as_ref() == Some(&key) {
            break (partition.range, lsn, item);
        }
        // It may have got another id between the two requests.
        renamed_from = Some(key);
    };
    let headers = resolved.headers().at(range, lsn);
    let Some(item) = item else { return Err(missing(headers)) };
    let headers = headers.item(item.stamp.lsn);
    let etag = item.stamp.etag;
    if !condition.allows(etag) {
        let reply = Reply::empty(StatusCode::NOT_MODIFIED).charge(Charge::NOT_MODIFIED);
        return Ok(reply.etag(etag).data(headers));
    }
    let body = client_json(&item.body, &item.stamp, resolved.container.number);
    let charge = Charge::point_read(item.body.len());
    Ok(Reply::json(StatusCode::OK, body).charge(charge).etag(etag).data(headers))
}

/// `DELETE /dbs/d/colls/c/docs/i`
pub(crate) async fn delete(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
    segment: &str,
) -> Result<Reply, Failure> {
    let resolved = gateway.container(call, path).await?;
    let precondition = precondition(call, &resolved, segment)?;
    let key = locate(gateway, call, &resolved, segment).await?;
    let write = ItemWrite { key, precondition, action: Action::Delete };
    let (written, headers) = write_one(gateway, call, &resolved, write).await?;
    Ok(Reply::empty(StatusCode::NO_CONTENT).charge(written.charge).data(headers))
}

/// `PATCH /dbs/d/colls/c/docs/i`
pub(crate) async fn patch(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
    segment: &str,
) -> Result<Reply, Failure> {
    let resolved = gateway.container(call, path).await?;
    let precondition = precondition(call, &resolved, segment)?;
    let rules = resolved.container.definition.rules();
    let mut budget = ConditionBudget::REQUEST;
    Patch::check(&call.body, rules, &mut budget).map_err(Failure::in_body)?;
    let key = locate(gateway, call, &resolved, segment).await?;
    let request = PatchRequest { text: call.body.to_vec(), rules: rules.clone() };
    let write = ItemWrite { key, precondition, action: Action::Patch(request) };
    let (written, headers) = write_one(gateway, call, &resolved, write).await?;
    let reply = match (call.headers.content(), &written.body) {
        (Content::Full, Some(body)) => {
            let body = client_json(body, &written.stamp, resolved.container.number);
            Reply::json(StatusCode::OK, body)
        }
        (Content::Minimal, _) | (Content::Full, None) => Reply::empty(StatusCode::OK),
    };
    Ok(reply.charge(written.charge).etag(written.stamp.etag).data(headers))
}

/// `POST /dbs/d/colls/c/operations/partitionkeydelete`: removes all items with one partition key.
pub(crate) async fn clear(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Reply, Failure> {
    let resolved = gateway.container(call, path).await?;
    let (definition, key) = (resolved.container.definition.key(), named_key(call, &resolved)?);
    let logical_partition = LogicalPartition::new(&definition.place(&key), &key);
    let partition = resolved.partition(logical_partition.slot())?.clone();
    let request = PartitionRequest::Clear(logical_partition);
    let response = gateway.node.ask_partition(partition.group, request, call.deadline).await?;
    let PartitionResponse::Cleared(lsn) = response else {
        unreachable!("`ask_partition` checks what is answered");
    };
    let headers = resolved.headers().at(partition.range, lsn);
    Ok(Reply::empty(StatusCode::OK).charge(Charge::METADATA_READ).data(headers))
}

fn missing(headers: DataHeaders) -> Failure {
    let refusal = ephemeris_store::command::Refusal::NotFound;
    let mut failure = Failure::charged(refusal, Charge::NOT_FOUND);
    failure.data = Some(Box::new(headers));
    failure
}

/// Reads the body of an item: JSON, as text or, from the Rust SDK, in Cosmos' binary form.
pub(crate) fn parse_body(resolved: &Resolved, body: &[u8]) -> Result<ParsedDocument, ApiError> {
    let rules = resolved.container.definition.rules();
    if binary_json::is_binary(body) {
        return Ok(rules.parse(&binary_json::decode(body)?)?);
    }
    Ok(rules.parse(body)?)
}

/// The id in a body.
pub(crate) fn id_in(field: &IdField) -> Result<ItemId, ApiError> {
    match field {
        IdField::Text(id) => Ok(ItemId::try_from(id.clone())?),
        IdField::Absent => Err(ApiError::BadRequest(
            "The input content is invalid because the required properties - 'id; ' - are missing"
                .to_string(),
        )),
        IdField::NotText(value) => {
            Err(ApiError::BadRequest(format!("The 'id' must be a string, not {value}.")))
        }
    }
}

/// The partition key in the header, as the container's definition understands it.
pub(crate) fn header_key(
    call: &Call,
    resolved: &Resolved,
) -> Result<Option<PartitionKey>, ApiError> {
    let named = call.headers.partition_key()?;
    Ok(named.map(|key| resolved.container.definition.key().meant(key)))
}

/// The partition key of an item that is being stored: that of the body, which the header must match.
fn key_of(
    call: &Call,
    resolved: &Resolved,
    parsed: &ParsedDocument,
) -> Result<PartitionKey, ApiError> {
    if parsed.key.text_bytes() > VALUE_BYTES_MAX {
        return Err(InvalidKey::TooLong.into());
    }
    match header_key(call, resolved)? {
        None => Ok(parsed.key.clone()),
        Some(header) => check_key(&header, parsed).map(|()| header),
    }
}

/// Refuses a body whose partition key is not that of the header. A component that the body does not
/// have is not null, though SDKs may say so.
pub(crate) fn check_key(header: &PartitionKey, parsed: &ParsedDocument) -> Result<(), ApiError> {
    if header.0.len() != parsed.key.0.len() {
        return Err(ApiError::KeyShape);
    }
    if *header == parsed.key { Ok(()) } else { Err(ApiError::KeyMismatch) }
}

/// The partition key in the header, complete.
pub(crate) fn named_key(call: &Call, resolved: &Resolved) -> Result<PartitionKey, ApiError> {
    let key = header_key(call, resolved)?.ok_or_else(|| {
        let message = "The partition key must be supplied in the header \
                       x-ms-documentdb-partitionkey for this operation.";
        ApiError::BadRequest(message.to_string())
    })?;
    let complete = key.check_complete(resolved.container.definition.key());
    complete.map(|()| key).map_err(|_| ApiError::KeyShape)
}

/// The condition of a write to the item that a path's last segment names.
fn precondition(call: &Call, resolved: &Resolved, segment: &str) -> Result<Precondition, ApiError> {
    let asked_for = call.headers.precondition()?;
    Ok(match (resolved.item_number(segment), asked_for) {
        // Any other item than the one named would have another etag.
        (
            Some(number),
            Precondition::None | Precondition::IfMatchAny | Precondition::IfNoneMatch(_),
        ) => Precondition::IsItem(number),
        // No two items have the same etag.
        (_, asked_for) => asked_for,
    })
}

/// The key of the item that a path's last segment names.
async fn locate(
    gateway: &Gateway,
    call: &Call,
    resolved: &Resolved,
    segment: &str,
) -> Result<ItemKey, Failure> {
    if let Some(number) = resolved.item_number(segment) {
        // A `_rid` says enough; a key that comes with it must be a whole one all the same.
        if call.headers.partition_key()?.is_some_and(|key| !key.0.is_empty()) {
            named_key(call, resolved)?;
        }
        let partition = resolved.partition(number.slot())?;
        let request = PartitionRequest::Find(number);
        let response = gateway.node.ask_partition(partition.group, request, call.deadline).await?;
        let PartitionResponse::Found(found) = response else {
            unreachable!("`ask_partition` checks what is answered");
        };
        let key = found.ok_or_else(|| missing(resolved.headers()))?;
        call.access.check_item(&key, resolved.container.definition.key())?;
        return Ok(key);
    }
    let (definition, key) = (resolved.container.definition.key(), named_key(call, resolved)?);
    let id = ItemId::try_from(segment.to_string()).map_err(ApiError::from)?;
    Ok(ItemKey::new(&definition.place(&key), &key, &id))
}

/// Stores a version with this body.
async fn store(
    gateway: &Gateway,
    call: &Call,
    resolved: &Resolved,
    write: ItemWrite,
    body: Bytes,
) -> Result<Reply, Failure> {
    let (written, headers) = write_one(gateway, call, resolved, write).await?;
    let status = match written.effect {
        Effect::Created => StatusCode::CREATED,
        Effect::Replaced => StatusCode::OK,
        Effect::Deleted | Effect::Read | Effect::NotModified => {
            unreachable!("`ask_partition` checks what a write did")
        }
    };
    let stamp = &written.stamp;
    let reply = match call.headers.content() {
        Content::Minimal => Reply::empty(status),
        Content::Full => Reply::json(status, client_json(&body, stamp, resolved.container.number)),
    };
    Ok(reply.charge(written.charge).etag(stamp.etag).data(headers))
}

/// What became of writes at one partition.
pub(crate) struct Executed {
    /// What they did, or why they did nothing.
    pub(crate) result: Result<Vec<Written>, Refused>,
    lsn: Lsn,
    partition: Arc<PartitionRecord>,
}

impl Executed {
    /// What the answer says about the partition.
    pub(crate) fn headers(&self, resolved: &Resolved) -> DataHeaders {
        resolved.headers().at(self.partition.range, self.lsn)
    }
}

/// Carries out writes, at least one, that belong to the same slot.
pub(crate) async fn execute(
    gateway: &Gateway,
    call: &Call,
    resolved: &Resolved,
    writes: Vec<ItemWrite>,
) -> Result<Executed, Failure> {
    check_size(&writes)?;
    let slot = writes.first().expect("there is something to write").key.slot();
    let partition = resolved.partition(slot)?.clone();
    let request = PartitionRequest::Write(writes);
    let response = gateway.node.ask_partition(partition.group, request, call.deadline).await?;
    let PartitionResponse::Written { lsn, result } = response else {
        unreachable!("`ask_partition` checks what is answered");
    };
    Ok(Executed { result, lsn, partition })
}

/// Each patch carries how the container reads items, which may be much more than what clients sent.
fn check_size(writes: &[ItemWrite]) -> Result<(), ApiError> {
    let has_patch = writes.iter().any(|write| matches!(write.action, Action::Patch(_)));
    if writes.len() < 2 || !has_patch {
        return Ok(());
    }
    let bytes: usize = writes.iter().map(|write| codec::encode(write).len()).sum();
    if bytes <= WRITES_BYTES_MAX {
        return Ok(());
    }
    Err(ApiError::TooLarge(format!(
        "With the container's indexing policy the batch has {bytes} bytes, the limit is {WRITES_BYTES_MAX}: \
         put fewer patches into one."
    )))
}

/// Carries out one write; a refusal becomes the client's error.
async fn write_one(
    gateway: &Gateway,
    call: &Call,
    resolved: &Resolved,
    write: ItemWrite,
) -> Result<(Written, DataHeaders), Failure> {
    let executed = execute(gateway, call, resolved, vec![write]).await?;
    let headers = executed.headers(resolved);
    match executed.result {
        Ok(mut written) => {
            let written = written.pop().expect("one write has one result");
            let headers = headers.item(written.stamp.lsn);
            Ok((written, headers))
        }
        Err(refused) => {
            let mut failure = Failure::charged(refused.refusal, refused.charge);
            failure.data = Some(Box::new(headers));
            Err(failure)
        }
    }
}

#[cfg(test)]
mod tests {
    use ephemeris_store::catalog::ContainerDefinition;
    use ephemeris_store::command::Precondition;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_batch_of_patches_is_no_larger_than_what_replicas_can_read() {
        let excluded: Vec<_> =
            (0..1500).map(|n| json!({ "path": format!("/n{n}{}/?", "/a".repeat(30)) })).collect();
        let definition = json!({
            "id": "c", "partitionKey": { "paths": ["/pk"] },
            "indexingPolicy": { "includedPaths": [{ "path": "/*" }], "excludedPaths": excluded },
        });
        let definition = ContainerDefinition::parse(&definition).unwrap();
        let key = PartitionKey::parse("[\"p\"]").unwrap();
        let id = ItemId::try_from("a".to_string()).unwrap();
        let request = PatchRequest { text: Vec::new(), rules: definition.rules().clone() };
        let patch = ItemWrite {
            key: ItemKey::new(&definition.key().place(&key), &key, &id),
            precondition: Precondition::None,
            action: Action::Patch(request),
        };
        let fits = |count: usize| check_size(&vec![patch.clone(); count]).is_ok();
        assert!(fits(1));
        let most = (2..100).take_while(|count| fits(*count)).last().unwrap();
        assert!(!fits(100));
        let encoded = codec::encode(&vec![patch.clone(); most]);
        assert!(codec::decode::<Vec<ItemWrite>>(&encoded).is_ok());
    }
}
