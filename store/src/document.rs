//! The body of an item: read once, into what the rest of the system needs to know of it.
//!
//! 1. `json::normalise` walks the body.
//! 2. On the way we pick up `id`, `ttl` and the partition key, count the values the index policy
//!    includes, and leave the system properties out.
//! 3. What remains is stored as it is; system properties are spliced back in when it is read.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::indexing::{self, IndexRules};
use crate::json::{self, Container, JsonError, Scalar};
use crate::partition_key::{Component, KeyDefinition, PartitionKey};
use crate::ttl::{TimeToLive, TtlField};

/// Largest item, in bytes of its normalised body.
pub const ITEM_BYTES_MAX: usize = 2 << 20;
/// How much of an offending value an error message shows, in characters.
const SHOWN_CHARS_MAX: usize = 60;
/// Levels of a document, or a few less: room for them is taken at once.
const USUAL_DEPTH: usize = 8;

/// Properties the system adds on the way out, and drops on the way in.
pub const SYSTEM_PROPERTIES: [&str; 5] = ["_rid", "_self", "_etag", "_ts", "_attachments"];

/// What a container's definition says about reading bodies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentRules {
    key: KeyDefinition,
    index: IndexRules,
}

/// A body ready to be stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Normalised JSON without system properties.
    pub body: Bytes,
    /// What it says about its time to live.
    pub ttl: TtlField,
    /// How many values the index policy includes: the `L` of the charge formula.
    pub indexed_values: u32,
}

/// A body with what was found in it.
#[derive(Clone, Debug)]
pub struct ParsedDocument {
    /// The `id` property, if it is text.
    pub id: IdField,
    /// The partition key value, component by component.
    pub key: PartitionKey,
    /// What will be stored.
    pub document: Document,
}

/// The `id` property of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdField {
    /// Not there.
    Absent,
    /// Text; not yet checked.
    Text(String),
    /// Something else, as JSON.
    NotText(String),
}

/// Why a body was refused.
#[derive(Debug, Error)]
pub enum InvalidDocument {
    /// Not a JSON object.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// Over `ITEM_BYTES_MAX`.
    #[error("the item is {found} bytes long, the limit is {ITEM_BYTES_MAX}")]
    TooLarge {
        /// Its normalised size.
        found: usize,
    },
}

impl DocumentRules {
    /// Rules of a container with this partition key and these index rules.
    pub fn new(key: KeyDefinition, index: IndexRules) -> Self {
        Self { key, index }
    }

    /// The partition key definition.
    pub fn key(&self) -> &KeyDefinition {
        &self.key
    }

    /// What the container indexes.
    pub fn index(&self) -> &IndexRules {
        &self.index
    }

    /// Reads a body.
    pub fn parse(&self, body: &[u8]) -> Result<ParsedDocument, InvalidDocument> {
        let (body, reader) = json::normalise(body, || Reader::new(self))?;
        if body.len() > ITEM_BYTES_MAX {
            return Err(InvalidDocument::TooLarge { found: body.len() });
        }
        Ok(ParsedDocument {
            id: reader.id,
            key: PartitionKey(reader.key),
            document: Document {
                body: body.into(),
                ttl: reader.ttl,
                indexed_values: reader.indexed_values,
            },
        })
    }
}

/// Walks along with the normaliser.
struct Reader<'r> {
    rules: &'r DocumentRules,
    /// Where we are, from the root down.
    steps: Vec<Step>,
    id: IdField,
    ttl: TtlField,
    key: Vec<Component>,
    indexed_values: u32,
}

/// One level of the walk.
#[derive(Clone, Copy, Debug)]
struct Step {
    depth: usize,
    /// Where we are in the index rules.
    place: indexing::Place,
    /// Bit `n` is set while the walk follows path `n` of the key definition.
    key_paths: u8,
    top_level: Option<TopLevel>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TopLevel {
    Id,
    Ttl,
}

impl<'r> Reader<'r> {
    fn new(rules: &'r DocumentRules) -> Self {
        let paths = rules.key.paths.len();
        let key_paths = (0..paths).fold(0_u8, |bits, path| bits | (1 << path));
        let root = Step { depth: 0, place: rules.index.root(), key_paths, top_level: None };
        let mut steps = Vec::with_capacity(USUAL_DEPTH);
        steps.push(root);
        Self {
            rules,
            steps,
            id: IdField::Absent,
            ttl: TtlField::Absent,
            key: vec![Component::Undefined; paths],
            indexed_values: rules.index.special_entries(),
        }
    }

    fn step(&self) -> Step {
        *self.steps.last().expect("the root step is never popped")
    }

    /// The key components whose path ends right here.
    fn components_here(&self) -> impl Iterator<Item = usize> + use<'r> {
        let (Step { key_paths, depth, .. }, paths) = (self.step(), &self.rules.key.paths);
        (0..paths.len()).filter(move |at| key_paths & (1 << at) != 0 && paths[*at].len() == depth)
    }
}

impl json::Visitor for Reader<'_> {
    fn member(&mut self, name: &str) -> bool {
        let step = self.step();
        let depth = step.depth;
        let mut key_paths = 0;
        if step.key_paths != 0 {
            for (path, names) in self.rules.key.paths.iter().enumerate() {
                let follows = step.key_paths & (1 << path) != 0;
                if follows && names.get(depth).is_some_and(|wanted| wanted == name) {
                    key_paths |= 1 << path;
                }
            }
        }
        let top_level = match (depth, name) {
            (0, "id") => Some(TopLevel::Id),
            (0, "ttl") => Some(TopLevel::Ttl),
            _ => None,
        };
        let place = self.rules.index.member(step.place, name);
        self.steps.push(Step { depth: depth + 1, place, key_paths, top_level });
        depth > 0 || !SYSTEM_PROPERTIES.contains(&name)
    }

    fn element(&mut self) {
        let step = self.step();
        let place = self.rules.index.element(step.place);
        self.steps.push(Step { depth: step.depth + 1, place, key_paths: 0, top_level: None });
    }

    fn done(&mut self) {
        self.steps.pop();
    }

    fn scalar(&mut self, value: Scalar<'_>) {
        let step = self.step();
        if self.rules.index.includes_value(step.place) {
            self.indexed_values = self.indexed_values.saturating_add(1);
        }
        match step.top_level {
            Some(TopLevel::Id) => self.id = id_field(value),
            Some(TopLevel::Ttl) => self.ttl = ttl_field(value),
            None => {}
        }
        if step.key_paths != 0 {
            for path in self.components_here() {
                self.key[path] = component(value);
            }
        }
    }

    fn container(&mut self, kind: Container) {
        let shown = match kind {
            Container::Array => "[…]",
            Container::Object => "{…}",
        };
        match self.step().top_level {
            Some(TopLevel::Id) => self.id = IdField::NotText(shown.to_string()),
            Some(TopLevel::Ttl) => self.ttl = TtlField::Invalid(shown.to_string()),
            None => {}
        }
    }
}

fn shown(value: Scalar<'_>) -> String {
    let mut text = Vec::new();
    value.write(&mut text);
    let text = String::from_utf8(text).expect("scalars are written as UTF-8");
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn id_field(value: Scalar<'_>) -> IdField {
    match value {
        Scalar::Text(text) => IdField::Text(text.to_string()),
        Scalar::Null | Scalar::Bool(_) | Scalar::Int(_) | Scalar::UInt(_) | Scalar::Float(_) => {
            IdField::NotText(shown(value))
        }
    }
}

fn ttl_field(value: Scalar<'_>) -> TtlField {
    let ttl = match value {
        Scalar::Int(seconds) => TimeToLive::from_seconds(seconds),
        Scalar::Float(seconds) => TimeToLive::from_f64(seconds),
        Scalar::Null | Scalar::Bool(_) | Scalar::UInt(_) | Scalar::Text(_) => None,
    };
    ttl.map_or_else(|| TtlField::Invalid(shown(value)), TtlField::Valid)
}

fn component(value: Scalar<'_>) -> Component {
    match value {
        Scalar::Null => Component::Null,
        Scalar::Bool(truth) => Component::Bool(truth),
        Scalar::Text(text) => Component::Text(text.to_string()),
        Scalar::Int(_) | Scalar::UInt(_) | Scalar::Float(_) => {
            Component::number(value.as_f64().expect("these three are numbers"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition_key::KeyKind;

    fn rules(paths: &[&str]) -> DocumentRules {
        let paths = paths.iter().map(|path| crate::partition_key::parse_path(path).unwrap());
        let key = KeyDefinition { kind: KeyKind::MultiHash, paths: paths.collect() };
        let policy = indexing::complete(None).unwrap();
        DocumentRules::new(key, IndexRules::new(&policy).unwrap())
    }

    fn parse(body: &str) -> ParsedDocument {
        rules(&["/pk"]).parse(body.as_bytes()).unwrap()
    }

    fn ttl(json: &str) -> TtlField {
        parse(&format!("{{\"ttl\":{json}}}")).document.ttl
    }

    #[test]
    fn system_properties_are_dropped_at_the_top_level_only() {
        let parsed = parse(
            r#"{"id":"a","_rid":"x","_self":"x","_etag":"x","_attachments":"x","_ts":1,
                "in":{"_ts":2},"_lsn":3}"#,
        );
        assert_eq!(parsed.document.body, br#"{"id":"a","in":{"_ts":2},"_lsn":3}"#[..]);
    }

    #[test]
    fn the_partition_key_is_found_by_its_paths() {
        let rules = rules(&["/tenant", "/address/city", "/id"]);
        let parsed = rules
            .parse(br#"{"id":"a","address":{"city":{"x":1},"city2":0},"tenant":5.0}"#)
            .unwrap();
        let expected =
            [Component::Number(5.0), Component::Undefined, Component::Text("a".to_string())];
        assert_eq!(parsed.key.0, expected);
        let parsed = rules.parse(br#"{"address":[{"city":"x"}],"tenant":null}"#).unwrap();
        assert_eq!(parsed.key.0, [Component::Null, Component::Undefined, Component::Undefined]);
        let parsed = rules.parse(br#"{"address":{"city":"x","deep":{"city":"y"}}}"#).unwrap();
        assert_eq!(parsed.key.0[1], Component::Text("x".to_string()));
    }

    #[test]
    fn negative_zero_in_a_body_is_the_key_zero() {
        let encoded = |body: &str| crate::codec::encode(&parse(body).key);
        let zero = encoded(r#"{"pk":0}"#);
        for body in [r#"{"pk":-0.0}"#, r#"{"pk":-0}"#, r#"{"pk":0.0}"#, r#"{"pk":-1e-400}"#] {
            assert_eq!(encoded(body), zero, "{body}");
        }
    }

    #[test]
    fn r5_every_form_of_ttl_is_told_apart() {
        assert_eq!(parse("{}").document.ttl, TtlField::Absent);
        assert_eq!(ttl("-1"), TtlField::Valid(TimeToLive::Forever));
        for valid in ["1", "2147483647", "1.0", "1e3"] {
            assert!(matches!(ttl(valid), TtlField::Valid(TimeToLive::Seconds(_))), "{valid}");
        }
        let invalid = [
            "0",
            "-2",
            "2147483648",
            "1.5",
            "\"10\"",
            "true",
            "[]",
            "{}",
            "null",
            "-1.5",
            "99999999999999999999",
            "[1]",
            "{\"a\":1}",
        ];
        for value in invalid {
            assert!(matches!(ttl(value), TtlField::Invalid(_)), "{value}");
        }
    }

    #[test]
    fn r9_only_the_ttl_of_the_whole_document_counts() {
        for body in [r#"{"a":{"ttl":1}}"#, r#"{"TTL":1}"#, r#"{"_ttl":1}"#, r#"[{"ttl":1}]"#] {
            let body = format!("{{\"v\":{body}}}");
            assert_eq!(parse(&body).document.ttl, TtlField::Absent, "{body}");
        }
    }

    #[test]
    fn ids_are_text() {
        assert_eq!(parse("{}").id, IdField::Absent);
        assert_eq!(parse(r#"{"id":"a"}"#).id, IdField::Text("a".to_string()));
        assert_eq!(parse(r#"{"id":5}"#).id, IdField::NotText("5".to_string()));
        assert_eq!(parse(r#"{"id":{}}"#).id, IdField::NotText("{…}".to_string()));
    }

    #[test]
    fn indexed_values_are_leaves() {
        let parsed = parse(r#"{"id":"a","_ts":5,"list":[1,2,{"x":null}],"empty":[],"o":{}}"#);
        assert_eq!(parsed.document.indexed_values, 4);
    }

    #[test]
    fn large_items_are_refused_by_their_normalised_size() {
        let body = format!("{{\"a\":\"{}\"}}", "x".repeat(ITEM_BYTES_MAX));
        let error = rules(&["/pk"]).parse(body.as_bytes()).unwrap_err();
        assert!(matches!(error, InvalidDocument::TooLarge { .. }));
        let escaped = format!("{{\"a\":\"{}\"}}", "\\u65e5".repeat(500_000));
        assert!(rules(&["/pk"]).parse(escaped.as_bytes()).is_ok());
    }
}
