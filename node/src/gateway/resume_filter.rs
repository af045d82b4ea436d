//! Where a client that merges by itself wants one range's sorted rows to go on.
//!
//! SDKs put it into the body of a query: the sort keys of the last row they have, the row's `_rid`,
//! and whether that row itself is wanted again.

use ephemeris_store::ids::{ItemNumber, ResourceId};
use ephemeris_store::query::{SortKey, Value};
use serde::{Deserialize, Serialize};

use super::error::ApiError;

/// Sort keys in a filter: as many as a composite index has paths.
const KEYS_MAX: usize = 8;

/// The place from which rows are wanted, in the order of the query.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ResumeFilter {
    /// What the last row is sorted by.
    pub(crate) keys: Vec<SortKey>,
    /// The last row's item; without it, all rows with these keys are meant.
    pub(crate) item: Option<ItemNumber>,
    /// True if that row, or those rows, are not wanted again.
    pub(crate) exclude: bool,
}

#[derive(Deserialize)]
struct Body {
    value: Vec<serde_json::Value>,
    #[serde(default)]
    rid: Option<String>,
    #[serde(default)]
    exclude: bool,
}

impl ResumeFilter {
    /// Reads `{"value":[…],"rid":"…","exclude":false}`.
    pub(crate) fn parse(json: serde_json::Value) -> Result<Self, ApiError> {
        let body: Body =
            serde_json::from_value(json).map_err(|error| refused(&error.to_string()))?;
        if body.value.is_empty() || body.value.len() > KEYS_MAX {
            return Err(refused(&format!("it needs 1 to {KEYS_MAX} values")));
        }
        let keys = body.value.iter().map(sort_key).collect::<Result<_, _>>()?;
        let item = body.rid.as_deref().map(item_number).transpose()?;
        Ok(Self { keys, item, exclude: body.exclude })
    }
}

/// A scalar stands for itself, `[]` for undefined. Other arrays, and objects, come as hashes that
/// only SDKs know how to make.
fn sort_key(json: &serde_json::Value) -> Result<SortKey, ApiError> {
    match json {
        serde_json::Value::Array(elements) if elements.is_empty() => Ok(SortKey(Value::Undefined)),
        serde_json::Value::Array(_) | serde_json::Value::Object(_) => {
            Err(refused("rows sorted by arrays or objects cannot be resumed"))
        }
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => {
            let value = Value::from_json(json.to_string().as_bytes());
            value.map(SortKey).map_err(|error| refused(&error.to_string()))
        }
    }
}

fn item_number(rid: &str) -> Result<ItemNumber, ApiError> {
    let number = ResourceId::parse(rid).ok().and_then(ResourceId::item_number);
    number.ok_or_else(|| refused(&format!("'{rid}' is not the _rid of an item")))
}

fn refused(why: &str) -> ApiError {
    ApiError::BadRequest(format!("The resumeFilter of the query is not valid: {why}."))
}

#[cfg(test)]
mod tests {
    use ephemeris_store::ids::{ContainerNumber, DatabaseNumber, Lsn};
    use serde_json::json;

    use super::*;

    fn rid(number: ItemNumber) -> String {
        let container = ContainerNumber { database: DatabaseNumber(1), number: 1 };
        ResourceId::item(container, number).to_string()
    }

    #[test]
    fn a_filter_names_keys_and_item() {
        let number = ItemNumber::new(7, Lsn(42), 0);
        let body = json!({ "value": [5, "x", null, []], "rid": rid(number), "exclude": true });
        let filter = ResumeFilter::parse(body).unwrap();
        let keys: Vec<_> = filter.keys.iter().map(|SortKey(value)| value.rank()).collect();
        assert_eq!(keys, [3, 4, 1, 0]);
        assert_eq!((filter.item, filter.exclude), (Some(number), true));
    }

    #[test]
    fn item_and_exclude_may_be_missing() {
        let filter = ResumeFilter::parse(json!({ "value": [true] })).unwrap();
        assert_eq!((filter.item, filter.exclude), (None, false));
    }

    #[test]
    fn integers_stay_exact() {
        let number = 9_007_199_254_740_993_i64;
        let filter = ResumeFilter::parse(json!({ "value": [number] })).unwrap();
        assert_eq!(filter.keys[0].0.to_json(), number.to_string().into_bytes());
    }

    #[test]
    fn everything_else_is_refused() {
        for body in [
            json!(null),
            json!([]),
            json!({}),
            json!({ "value": [] }),
            json!({ "value": [1, 2, 3, 4, 5, 6, 7, 8, 9] }),
            json!({ "value": [[1]] }),
            json!({ "value": [{ "type": "object", "low": 1, "high": 2 }] }),
            json!({ "value": [1], "rid": "nonsense" }),
            json!({ "value": [1], "rid": "AAAAAYAAAAE=" }),
            json!({ "value": [1], "exclude": "yes" }),
        ] {
            let refusal = ResumeFilter::parse(body.clone()).unwrap_err();
            assert!(refusal.to_string().contains("resumeFilter"), "{body}: {refusal}");
        }
    }
}
