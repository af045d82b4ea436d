//! Indexing policies: what a container indexes, checked and completed as Cosmos does.
//!
//! Today the policy decides the request charge (each indexed value costs) and what may be combined
//! with a time to live. Queries scan; the index itself comes with the query engine.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::partition_key::{InvalidPath, parse_path};

/// Why a policy was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidPolicy {
    /// A member has the wrong JSON type.
    #[error("the indexing policy's '{0}' is malformed")]
    Malformed(&'static str),
    /// Not one of the three modes.
    #[error("the indexing mode must be consistent, lazy or none, not '{0}'")]
    Mode(String),
    /// Not a path.
    #[error("the indexing path '{0}' is malformed: {1}")]
    Path(String, InvalidPath),
    /// A path must say whether it means the value or all below it.
    #[error("the indexing path '{0}' must end with /? or /*")]
    PathEnd(String),
}

/// When a container's items are indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexingMode {
    /// With every write.
    Consistent,
    /// Some time after it; Ephemeris indexes consistently here too.
    Lazy,
    /// Never: a key-value container, which cannot have a time to live.
    None,
}

/// Says which values of an item are indexed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexRules {
    nodes: Vec<Node>,
    /// Composite indexes: paths, and whether each descends.
    composites: Vec<Vec<(Vec<String>, bool)>>,
}

/// What a policy says of sorting by one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortSupport {
    /// The path is not indexed: refused.
    Excluded,
    /// Items without the property are left out.
    WithoutUndefined,
    /// Items without the property come first.
    WithUndefined,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Node {
    names: Vec<(String, usize)>,
    elements: Option<usize>,
    /// What a rule ending in `/?` says of the value right here.
    value: Option<bool>,
    /// What a rule ending in `/*` says of everything below.
    below: Option<bool>,
}

/// Where a walk through a document stands in the rules.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    node: Option<usize>,
    /// What the closest rule above says.
    included: bool,
}

const SYSTEM_EXCLUDED: &str = "/\"_etag\"/?";

/// Completes a policy as the service does: missing parts take their defaults, `_etag` is excluded.
pub fn complete(policy: Option<&Value>) -> Result<Value, InvalidPolicy> {
    let given = match policy {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(map)) => map.clone(),
        Some(_) => return Err(InvalidPolicy::Malformed("indexingPolicy")),
    };
    let mut policy = given;
    let mode = mode_of(&policy)?;
    let name = match mode {
        IndexingMode::Consistent => "consistent",
        IndexingMode::Lazy => "lazy",
        IndexingMode::None => "none",
    };
    policy.insert("indexingMode".into(), json!(name));
    policy.entry("automatic").or_insert(json!(mode != IndexingMode::None));
    if mode == IndexingMode::None {
        policy.entry("includedPaths").or_insert(json!([]));
        policy.entry("excludedPaths").or_insert(json!([]));
        return Ok(Value::Object(policy));
    }
    if paths_of(&policy, "includedPaths")?.is_empty()
        && paths_of(&policy, "excludedPaths")?.is_empty()
    {
        policy.insert("includedPaths".into(), json!([{ "path": "/*" }]));
    }
    policy.entry("includedPaths").or_insert(json!([]));
    drop_index_kinds(&mut policy);
    let mut excluded = match policy.get("excludedPaths") {
        Some(Value::Array(paths)) => paths.clone(),
        _ => Vec::new(),
    };
    if !excluded.iter().any(|path| path["path"] == SYSTEM_EXCLUDED) {
        excluded.push(json!({ "path": SYSTEM_EXCLUDED }));
    }
    policy.insert("excludedPaths".into(), Value::Array(excluded));
    let policy = Value::Object(policy);
    IndexRules::new(&policy)?;
    Ok(policy)
}

/// Index kinds of old: every included path has a range index, whatever was asked for.
fn drop_index_kinds(policy: &mut Map<String, Value>) {
    let included = policy.get_mut("includedPaths").and_then(Value::as_array_mut);
    for path in included.into_iter().flatten() {
        if let Some(path) = path.as_object_mut() {
            path.shift_remove("indexes");
        }
    }
}

fn mode_of(policy: &Map<String, Value>) -> Result<IndexingMode, InvalidPolicy> {
    match policy.get("indexingMode") {
        None | Some(Value::Null) => Ok(IndexingMode::Consistent),
        Some(Value::String(mode)) if mode.eq_ignore_ascii_case("consistent") => {
            Ok(IndexingMode::Consistent)
        }
        Some(Value::String(mode)) if mode.eq_ignore_ascii_case("lazy") => Ok(IndexingMode::Lazy),
        Some(Value::String(mode)) if mode.eq_ignore_ascii_case("none") => Ok(IndexingMode::None),
        Some(Value::String(mode)) => Err(InvalidPolicy::Mode(mode.clone())),
        Some(_) => Err(InvalidPolicy::Malformed("indexingMode")),
    }
}

fn paths_of<'p>(
    policy: &'p Map<String, Value>,
    member: &'static str,
) -> Result<Vec<&'p str>, InvalidPolicy> {
    match policy.get(member) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(paths)) => paths
            .iter()
            .map(|path| path["path"].as_str().ok_or(InvalidPolicy::Malformed(member)))
            .collect(),
        Some(_) => Err(InvalidPolicy::Malformed(member)),
    }
}

/// The mode of a completed policy.
pub fn mode(policy: &Value) -> Result<IndexingMode, InvalidPolicy> {
    policy.as_object().map_or(Err(InvalidPolicy::Malformed("indexingPolicy")), mode_of)
}

enum PathEnd {
    Value,
    Below,
}

/// Splits `/a/[]/b/?` into its names and its end.
fn parse_index_path(path: &str) -> Result<(Vec<String>, PathEnd), InvalidPolicy> {
    if matches!(path, "/" | "/*") {
        return Ok((Vec::new(), PathEnd::Below));
    }
    let (names, end) = if let Some(names) = path.strip_suffix("/?") {
        (names, PathEnd::Value)
    } else if let Some(names) = path.strip_suffix("/*") {
        (names, PathEnd::Below)
    } else {
        return Err(InvalidPolicy::PathEnd(path.to_string()));
    };
    let names = parse_path(names).map_err(|error| InvalidPolicy::Path(path.to_string(), error))?;
    Ok((names, end))
}

/// The paths of a composite index and whether each descends; none if it is malformed.
fn composite(index: &Value) -> Option<Vec<(Vec<String>, bool)>> {
    let path = |entry: &Value| {
        let path = entry["path"].as_str()?;
        let descends = entry["order"].as_str() == Some("descending");
        Some((parse_path(path.strip_suffix("/?").unwrap_or(path)).ok()?, descends))
    };
    index.as_array()?.iter().map(path).collect()
}

impl IndexRules {
    /// Compiles the paths of a completed policy.
    pub fn new(policy: &Value) -> Result<Self, InvalidPolicy> {
        let mut rules = Self { nodes: vec![Node::default()], composites: Vec::new() };
        if mode(policy)? == IndexingMode::None {
            return Ok(rules);
        }
        let policy = policy.as_object().ok_or(InvalidPolicy::Malformed("indexingPolicy"))?;
        for (member, included) in [("includedPaths", true), ("excludedPaths", false)] {
            for path in paths_of(policy, member)? {
                let (names, end) = parse_index_path(path)?;
                rules.add(&names, &end, included);
            }
        }
        let composites = policy.get("compositeIndexes").and_then(Value::as_array);
        rules.composites = composites.into_iter().flatten().filter_map(composite).collect();
        Ok(rules)
    }

    fn add(&mut self, names: &[String], end: &PathEnd, included: bool) {
        let node = names.iter().fold(0, |node, name| self.child(node, name));
        match end {
            PathEnd::Value => self.nodes[node].value = Some(included),
            PathEnd::Below => self.nodes[node].below = Some(included),
        }
    }

    fn child(&mut self, node: usize, name: &str) -> usize {
        let next = self.nodes.len();
        let known = if name == "[]" { self.nodes[node].elements } else { self.find(node, name) };
        if let Some(known) = known {
            return known;
        }
        self.nodes.push(Node::default());
        if name == "[]" {
            self.nodes[node].elements = Some(next);
        } else {
            self.nodes[node].names.push((name.to_string(), next));
        }
        next
    }

    fn find(&self, node: usize, name: &str) -> Option<usize> {
        self.nodes[node].names.iter().find(|(known, _)| known == name).map(|(_, child)| *child)
    }

    /// The place of the whole document.
    pub fn root(&self) -> Place {
        Place { node: Some(0), included: self.nodes[0].below.unwrap_or(false) }
    }

    /// The place of a member of the object at `place`.
    pub fn member(&self, place: Place, name: &str) -> Place {
        self.step(place, place.node.and_then(|node| self.find(node, name)))
    }

    /// The place of an element of the array at `place`.
    pub fn element(&self, place: Place) -> Place {
        self.step(place, place.node.and_then(|node| self.nodes[node].elements))
    }

    fn step(&self, from: Place, node: Option<usize>) -> Place {
        let below = node.and_then(|node| self.nodes[node].below);
        Place { node, included: below.unwrap_or(from.included) }
    }

    /// Whether and how results may be sorted by a path.
    pub fn sort_support(&self, path: &[String]) -> SortSupport {
        if matches!(path, [only] if only == "id" || only == "_ts") {
            return SortSupport::WithoutUndefined;
        }
        let place = path.iter().fold(self.root(), |place, name| self.member(place, name));
        let listed = place.node.and_then(|node| self.nodes[node].value) == Some(true);
        if !self.includes_value(place) {
            SortSupport::Excluded
        } else if listed || !self.composites.is_empty() {
            SortSupport::WithUndefined
        } else {
            SortSupport::WithoutUndefined
        }
    }

    /// True if a composite index can give results in the order of these paths, each descending or
    /// not: the same paths in the same sequence, all directions as wanted or all turned round.
    pub fn composite_support(&self, wanted: &[(Vec<String>, bool)]) -> bool {
        self.composites.iter().any(|index| {
            let same_paths = index.len() == wanted.len()
                && index.iter().zip(wanted).all(|((a, _), (b, _))| a == b);
            let mut turned = index.iter().zip(wanted).map(|((_, a), (_, b))| a != b);
            let first = turned.next();
            same_paths && turned.all(|other| Some(other) == first)
        })
    }

    /// True if a scalar at `place` is indexed: the closest rule decides, the exact one first.
    pub fn includes_value(&self, place: Place) -> bool {
        place.node.and_then(|node| self.nodes[node].value).unwrap_or(place.included)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn included(policy: &Value, path: &[&str]) -> bool {
        let rules = IndexRules::new(&complete(Some(policy)).unwrap()).unwrap();
        let place = path.iter().fold(rules.root(), |place, name| match *name {
            "[]" => rules.element(place),
            name => rules.member(place, name),
        });
        rules.includes_value(place)
    }

    #[test]
    fn the_default_indexes_everything() {
        let policy = complete(None).unwrap();
        assert_eq!(
            policy,
            json!({
                "indexingMode": "consistent",
                "automatic": true,
                "includedPaths": [{ "path": "/*" }],
                "excludedPaths": [{ "path": "/\"_etag\"/?" }],
            })
        );
        assert!(included(&json!({}), &["a", "[]", "b"]));
    }

    #[test]
    fn the_closest_rule_decides() {
        let policy = json!({
            "includedPaths": [{ "path": "/*" }, { "path": "/a/keep/?" }],
            "excludedPaths": [{ "path": "/a/*" }, { "path": "/list/[]/x/?" }],
        });
        assert!(included(&policy, &["b"]));
        assert!(!included(&policy, &["a", "other"]));
        assert!(included(&policy, &["a", "keep"]));
        assert!(!included(&policy, &["a", "keep", "below"]));
        assert!(!included(&policy, &["list", "[]", "x"]));
        assert!(included(&policy, &["list", "[]", "y"]));
    }

    #[test]
    fn mode_none_indexes_nothing() {
        assert!(!included(&json!({ "indexingMode": "None" }), &["a"]));
    }

    #[test]
    fn etag_is_excluded_beside_the_users_paths() {
        let policy = complete(Some(&json!({
            "includedPaths": [{ "path": "/", "indexes": [{ "kind": "Hash" }] }],
            "excludedPaths": [{ "path": "/\"systemMetadata\"/*" }],
        })))
        .unwrap();
        assert_eq!(policy["includedPaths"], json!([{ "path": "/" }]));
        assert_eq!(policy["excludedPaths"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn malformed_policies_are_refused() {
        for policy in [
            json!([]),
            json!({ "indexingMode": "sometimes" }),
            json!({ "indexingMode": 1 }),
            json!({ "includedPaths": {} }),
            json!({ "includedPaths": [{ "path": 1 }] }),
            json!({ "includedPaths": [{ "path": "/a" }] }),
            json!({ "excludedPaths": [{ "path": "a/?" }] }),
        ] {
            assert!(complete(Some(&policy)).is_err(), "{policy}");
        }
    }
}
