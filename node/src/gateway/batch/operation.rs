//! Operations of batches and bulk requests: how they are sent, and what each answers.

use axum::http::StatusCode;
use bytes::Bytes;
use ephemeris_store::charge::Charge;
use ephemeris_store::command::{Action, Effect, ItemWrite, Precondition, Written};
use ephemeris_store::document::Document;
use ephemeris_store::ids::{ContainerNumber, Etag, ItemId};
use ephemeris_store::item::{ItemKey, client_json};
use ephemeris_store::partition_key::PartitionKey;
use ephemeris_store::patch::{ConditionBudget, Patch, PatchRequest};

use super::pieces::Pieces;
use crate::gateway::error::ApiError;
use crate::gateway::headers::Content;
use crate::gateway::items;
use crate::gateway::resolve::Resolved;

/// Most operations of one request.
const OPERATIONS_MAX: usize = 100;
/// First byte of a body in `HybridRow`, as the .NET SDK sends it.
const HYBRID_ROW: u8 = 0x81;

/// An operation as it is sent.
#[derive(Default)]
pub(super) struct Operation<'a> {
    kind: String,
    id: Option<String>,
    /// Of a bulk request: a JSON array in a text.
    pub(super) partition_key: Option<String>,
    /// JSON.
    resource_body: Option<&'a [u8]>,
    if_match: Option<String>,
    if_none_match: Option<String>,
    /// The client does not want to see what is written.
    minimal: Option<bool>,
}

/// An operation ready to be proposed, and what its answer will show.
pub(super) struct Prepared {
    pub(super) write: ItemWrite,
    pub(super) body: Option<Bytes>,
    /// How much of it, as the operation says by itself.
    pub(super) content: Content,
}

/// Reads the body of a request.
pub(super) fn parse(body: &[u8]) -> Result<Vec<Operation<'_>>, ApiError> {
    if body.first() == Some(&HYBRID_ROW) {
        let message = "The body is HybridRow, as the .NET SDK sends batches, which is not \
                       supported by this version of Ephemeris.";
        return Err(ApiError::BadRequest(message.to_string()));
    }
    let operations = operations(body).map_err(|error| {
        ApiError::BadRequest(format!("The batch is not a valid array of operations: {error}."))
    })?;
    if operations.is_empty() {
        return Err(ApiError::BadRequest("Batch request has no operations.".to_string()));
    }
    if operations.len() > OPERATIONS_MAX {
        return Err(ApiError::BadRequest(
            "Batch request has more operations than what is supported.".to_string(),
        ));
    }
    Ok(operations)
}

fn operations(body: &[u8]) -> Result<Vec<Operation<'_>>, serde_json::Error> {
    let mut operations = Vec::new();
    let mut pieces = Pieces::new(body);
    pieces.array(|pieces| {
        operations.push(Operation::read(pieces)?);
        Ok(())
    })?;
    pieces.end()?;
    Ok(operations)
}

impl<'a> Operation<'a> {
    fn read(pieces: &mut Pieces<'a>) -> Result<Self, serde_json::Error> {
        let mut operation = Self::default();
        pieces.object(|name, pieces| {
            match name {
                "operationType" => operation.kind = pieces.value()?,
                "id" => operation.id = pieces.value()?,
                "partitionKey" => operation.partition_key = pieces.value()?,
                "resourceBody" => operation.resource_body = pieces.text()?,
                "ifMatch" => operation.if_match = pieces.value()?,
                "ifNoneMatch" => operation.if_none_match = pieces.value()?,
                "minimalReturnPreference" => operation.minimal = pieces.value()?,
                _ => {
                    pieces.text()?;
                }
            }
            Ok(())
        })?;
        Ok(operation)
    }
}

impl Operation<'_> {
    /// What the operation proposes, on items with this partition key.
    pub(super) fn prepare(
        &self,
        resolved: &Resolved,
        key: &PartitionKey,
        budget: &mut ConditionBudget,
    ) -> Result<Prepared, ApiError> {
        let rules = resolved.container.definition.rules();
        let (id, action, body) = match self.kind.to_ascii_lowercase().as_str() {
            "create" => {
                let (id, document, body) = self.document(resolved, key)?;
                (id, Action::Create(document), Some(body))
            }
            "upsert" => {
                let (id, document, body) = self.document(resolved, key)?;
                (id, Action::Upsert(document), Some(body))
            }
            "replace" => self.replace(resolved, key)?,
            "patch" => {
                let text = self.resource_body()?.to_vec();
                Patch::check(&text, rules, budget)?;
                let request = PatchRequest { text, rules: rules.clone() };
                (self.id()?, Action::Patch(request), None)
            }
            "delete" => (self.id()?, Action::Delete, None),
            "read" => (self.id()?, Action::Read, None),
            other => {
                return Err(ApiError::BadRequest(format!(
                    "'{other}' is not an operation of a batch."
                )));
            }
        };
        let key = ItemKey::new(&rules.key().place(key), key, &id);
        let write = ItemWrite { key, precondition: self.precondition(), action };
        let content = if self.minimal == Some(true) { Content::Minimal } else { Content::Full };
        Ok(Prepared { write, body, content })
    }

    /// A replacement; the item gets another id if the body has one.
    fn replace(
        &self,
        resolved: &Resolved,
        key: &PartitionKey,
    ) -> Result<(ItemId, Action, Option<Bytes>), ApiError> {
        let (new_id, document, body) = self.document(resolved, key)?;
        if self.id.as_ref().is_none_or(|id| id == new_id.as_str()) {
            return Ok((new_id, Action::Replace(document), Some(body)));
        }
        let place = resolved.container.definition.key().place(key);
        let to = ItemKey::new(&place, key, &new_id);
        Ok((self.id()?, Action::Rename { to, document }, Some(body)))
    }

    /// The item in the body, its id, and how it will be shown.
    fn document(
        &self,
        resolved: &Resolved,
        key: &PartitionKey,
    ) -> Result<(ItemId, Document, Bytes), ApiError> {
        let parsed = items::parse_body(resolved, self.resource_body()?)?;
        let id = items::id_in(&parsed.id)?;
        items::check_key(key, &parsed)?;
        let body = parsed.document.body.clone();
        Ok((id, parsed.document, body))
    }

    fn resource_body(&self) -> Result<&[u8], ApiError> {
        self.resource_body.ok_or_else(|| {
            ApiError::BadRequest("The operation needs a 'resourceBody'.".to_string())
        })
    }

    fn id(&self) -> Result<ItemId, ApiError> {
        let id = self
            .id
            .as_ref()
            .ok_or_else(|| ApiError::BadRequest("The operation needs an 'id'.".to_string()))?;
        Ok(ItemId::try_from(id.clone())?)
    }

    fn precondition(&self) -> Precondition {
        match (self.if_match.as_deref(), self.if_none_match.as_deref()) {
            (Some("*"), _) => Precondition::IfMatchAny,
            (Some(tag), _) => Precondition::IfMatch(Etag::parse(tag)),
            (None, Some("*")) => Precondition::IfNoneMatchAny,
            (None, Some(tag)) => Precondition::IfNoneMatch(Etag::parse(tag)),
            (None, None) => Precondition::None,
        }
    }
}

/// What an operation answers that was carried out.
pub(super) fn row(
    written: Written,
    sent: Option<Bytes>,
    content: Content,
    container: ContainerNumber,
) -> Vec<u8> {
    let Written { effect, stamp, charge, body, has_inert_ttl: _ } = written;
    let status = match effect {
        Effect::Created => StatusCode::CREATED,
        Effect::Replaced | Effect::Read => StatusCode::OK,
        Effect::Deleted => StatusCode::NO_CONTENT,
        Effect::NotModified => StatusCode::NOT_MODIFIED,
    };
    let status = status.as_u16();
    let mut row = format!("{{\"statusCode\":{status},\"requestCharge\":{charge}").into_bytes();
    if effect != Effect::Deleted {
        let etag = stamp.etag.to_string();
        row.extend_from_slice(b",\"eTag\":");
        serde_json::to_writer(&mut row, &etag).expect("text always serialises");
    }
    // A read is asked for to see the item; only writes can do without.
    let shown = content == Content::Full || effect == Effect::Read;
    if let Some(body) = body.or(sent).filter(|_| shown) {
        row.extend_from_slice(b",\"resourceBody\":");
        row.extend_from_slice(&client_json(&body, &stamp, container));
    }
    row.push(b'}');
    row
}

/// An answer of rows.
pub(super) fn array(rows: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut body = vec![b'['];
    for row in rows {
        if body.len() > 1 {
            body.push(b',');
        }
        body.extend_from_slice(&row);
    }
    body.push(b']');
    body
}

/// What an operation answers that was not carried out.
pub(super) fn refused_row(error: &ApiError, charge: Charge) -> Vec<u8> {
    let answer = error.answer();
    let (status, substatus) = (answer.status.as_u16(), answer.substatus);
    let mut row = format!(
        "{{\"statusCode\":{status},\"subStatusCode\":{substatus},\"requestCharge\":{charge}"
    )
    .into_bytes();
    if let Some(pause) = error.retry_after() {
        let pause = format!(",\"retryAfterMilliseconds\":{}", pause.as_millis());
        row.extend_from_slice(pause.as_bytes());
    }
    row.extend_from_slice(b",\"message\":");
    serde_json::to_writer(&mut row, &error.to_string()).expect("text always serialises");
    row.push(b'}');
    row
}

/// What an operation answers that was not carried out because another one was not.
pub(super) fn dependent_row() -> Vec<u8> {
    let status = StatusCode::FAILED_DEPENDENCY.as_u16();
    format!("{{\"statusCode\":{status},\"requestCharge\":0}}").into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::gateway::resolve;

    /// Prepares the only operation of a batch on the partition key "p".
    fn prepared(operation: &Value) -> Result<Prepared, ApiError> {
        let body = json!([operation]).to_string();
        let operations = parse(body.as_bytes())?;
        let key = PartitionKey::parse("[\"p\"]").unwrap();
        let mut budget = ConditionBudget::REQUEST;
        operations[0].prepare(&resolve::tests::container(1, &["/pk"]), &key, &mut budget)
    }

    fn item_key(id: &str) -> ItemKey {
        let resolved = resolve::tests::container(1, &["/pk"]);
        let key = PartitionKey::parse("[\"p\"]").unwrap();
        let id = ItemId::try_from(id.to_string()).unwrap();
        ItemKey::new(&resolved.container.definition.key().place(&key), &key, &id)
    }

    #[test]
    fn the_number_of_operations_is_limited() {
        let batch = |count| {
            let operations = vec![json!({ "operationType": "Read", "id": "a" }); count];
            parse(json!(operations).to_string().as_bytes()).map(|parsed| parsed.len())
        };
        assert!(batch(0).unwrap_err().to_string().contains("no operations"));
        assert_eq!(batch(OPERATIONS_MAX).unwrap(), OPERATIONS_MAX);
        assert!(batch(OPERATIONS_MAX + 1).unwrap_err().to_string().contains("more operations"));
        let hybrid = parse(&[HYBRID_ROW, 0, 0]).map(|parsed| parsed.len());
        assert!(hybrid.unwrap_err().to_string().contains("HybridRow"));
    }

    #[test]
    fn an_operation_may_decline_what_it_writes() {
        let content = |preference: Value| {
            let item = json!({ "id": "a", "pk": "p" });
            let operation = json!({ "operationType": "Create", "resourceBody": item,
                                    "minimalReturnPreference": preference });
            prepared(&operation).unwrap().content
        };
        assert_eq!(content(json!(true)), Content::Minimal);
        assert_eq!(content(json!(false)), Content::Full);
        assert_eq!(content(Value::Null), Content::Full);
    }

    #[test]
    fn operations_that_cannot_be_carried_out_are_refused() {
        let item = json!({ "id": "a", "pk": "p" });
        for (operation, status) in [
            (json!({ "operationType": "Merge", "id": "a" }), 400),
            (json!({ "operationType": "Read" }), 400),
            (json!({ "operationType": "Delete", "id": "a/b" }), 400),
            (json!({ "operationType": "Create" }), 400),
            (json!({ "operationType": "Create", "resourceBody": 5 }), 400),
            (json!({ "operationType": "Create", "resourceBody": { "pk": "p" } }), 400),
            (json!({ "operationType": "Upsert", "resourceBody": { "id": "a", "pk": "q" } }), 400),
            (json!({ "operationType": "Replace", "id": "", "resourceBody": item }), 400),
            (json!({ "operationType": "Patch", "id": "a", "resourceBody": {} }), 400),
        ] {
            let Err(error) = prepared(&operation) else { panic!("{operation}") };
            assert_eq!(error.answer().status, StatusCode::from_u16(status).unwrap(), "{operation}");
        }
    }

    #[test]
    fn a_replacement_with_another_id_renames() {
        let body = json!({ "id": "b", "pk": "p" });
        let write = |id: Value| {
            let operation =
                json!({ "operationType": "Replace", "id": id, "resourceBody": body.clone() });
            prepared(&operation).unwrap().write
        };
        let renaming = write(json!("a"));
        assert_eq!(renaming.key, item_key("a"));
        assert!(matches!(renaming.action, Action::Rename { to, .. } if to == item_key("b")));
        for same in [json!("b"), json!(null)] {
            let replacing = write(same);
            assert_eq!(replacing.key, item_key("b"));
            assert!(matches!(replacing.action, Action::Replace(_)));
        }
    }

    /// Any JSON, with the names a batch is made of among its own.
    fn any_json() -> impl Strategy<Value = Value> {
        const NAMES: [&str; 7] =
            ["operationType", "id", "resourceBody", "ifMatch", "ifNoneMatch", "pk", "op"];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            prop::sample::select(
                &["Create", "Upsert", "Replace", "Read", "Delete", "Patch", "p"][..]
            )
            .prop_map(Value::from),
            "\\PC{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            let name = prop_oneof![
                4 => prop::sample::select(&NAMES[..]).prop_map(str::to_string),
                1 => "\\PC{0,4}",
            ];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((name, inner), 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_batch_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(operations) = parse(&body) {
                prop_assert!((1..=OPERATIONS_MAX).contains(&operations.len()));
            }
        }

        #[test]
        fn any_json_is_prepared_or_refused(operations in prop::collection::vec(any_json(), 0..4)) {
            let resolved = resolve::tests::container(1, &["/pk"]);
            let key = PartitionKey::parse("[\"p\"]").unwrap();
            let body = json!(operations).to_string();
            let mut budget = ConditionBudget::REQUEST;
            for operation in parse(body.as_bytes()).unwrap_or_default() {
                if let Err(error) = operation.prepare(&resolved, &key, &mut budget) {
                    prop_assert!(error.answer().status.is_client_error());
                }
            }
        }
    }
}
