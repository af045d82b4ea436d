//! Container definitions: checked and completed as the service does, stored and echoed whole.

use std::num::NonZeroU32;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::document::{DocumentRules, SYSTEM_PROPERTIES};
use crate::ids::{InvalidName, ResourceName};
use crate::indexing::{
    self, IndexRules, IndexingMode, InvalidPolicy, InvalidUniqueKeys, UniqueKeys,
};
use crate::partition::Retention;
use crate::partition_key::{InvalidPath, KeyDefinition, KeyKind, PATHS_MAX, parse_path};
use crate::query::{
    CompiledQuery, ComputedProperties, InvalidComputed, Metric, Parameters, QueryError,
};
use crate::ttl::{InvalidTtl, TimeToLive, TtlPolicy};

/// Properties of a container that clients set; everything else in a body is dropped.
const PROPERTIES: [&str; 14] = [
    "id",
    "indexingPolicy",
    "partitionKey",
    "defaultTtl",
    "uniqueKeyPolicy",
    "conflictResolutionPolicy",
    "geospatialConfig",
    "analyticalStorageTtl",
    "computedProperties",
    "vectorEmbeddingPolicy",
    "fullTextPolicy",
    "changeFeedPolicy",
    "clientEncryptionPolicy",
    "materializedViewDefinition",
];

/// Longest definition, in bytes: every node keeps all of them in memory.
const DEFINITION_BYTES_MAX: usize = 512 << 10;
/// Longest path of a partition key or a unique key, as of an indexing policy.
const PATH_NAMES_MAX: usize = 128;
const PATH_BYTES_MAX: usize = 1024;

/// Where items have a partition key if their container's users named none.
const SYSTEM_KEY_PATH: &str = "/_partitionKey";

/// Why a definition was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidDefinition {
    /// The body is not an object, or a property has the wrong type.
    #[error("'{0}' is malformed")]
    Malformed(&'static str),
    /// A required property is not there.
    #[error("'{0}' is missing")]
    Missing(&'static str),
    /// The name cannot be used.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// A partition key path cannot be used.
    #[error(transparent)]
    Path(#[from] InvalidPath),
    /// More than a node keeps of it in memory.
    #[error("the definition has {0} bytes as JSON, the limit is {DEFINITION_BYTES_MAX}")]
    TooLong(usize),
    /// No property that users write.
    #[error(
        "the partition key path {0:?} does not lead to one property that users write: it names one of the system, or \
         holds a wildcard"
    )]
    KeyPath(String),
    /// Of a partition key or a unique key.
    #[error(
        "the path of a key has {names} names and {bytes} bytes, the limits are {PATH_NAMES_MAX} and {PATH_BYTES_MAX}"
    )]
    PathTooLong {
        /// How many names it has.
        names: usize,
        /// How long it is.
        bytes: usize,
    },
    /// The partition key has too few or too many paths for its kind.
    #[error(
        "{}: a {kind} partition key has {allowed}, not {found}",
        if *.found == 0 { "No partition key path" } else { "Too many partition key paths" }
    )]
    PathCount {
        /// `Hash` or `MultiHash`.
        kind: &'static str,
        /// What is allowed.
        allowed: &'static str,
        /// What came.
        found: usize,
    },
    /// A time to live out of range.
    #[error(transparent)]
    Ttl(#[from] InvalidTtl),
    /// The indexing policy cannot be used.
    #[error(transparent)]
    Index(#[from] InvalidPolicy),
    /// `docs/TTL.md` R8.
    #[error("a container whose indexing mode is none cannot have a defaultTtl")]
    TtlWithoutIndex,
    /// The unique keys cannot be used.
    #[error(transparent)]
    UniqueKeys(#[from] InvalidUniqueKeys),
    /// The computed properties cannot be used.
    #[error(transparent)]
    Computed(#[from] InvalidComputed),
    /// Without effect, so better refused than ignored.
    #[error("'{0}' is not supported by this version of Ephemeris")]
    Unsupported(&'static str),
}

/// A container's definition, as completed JSON and as what it means.
#[derive(Clone, Debug)]
pub struct ContainerDefinition {
    json: Map<String, Value>,
    name: ResourceName,
    rules: Arc<DocumentRules>,
    ttl: TtlPolicy,
    retention: Option<Retention>,
    computed: ComputedProperties,
    unique_keys: UniqueKeys,
}

impl ContainerDefinition {
    /// Checks and completes what a client sent.
    pub fn parse(body: &Value) -> Result<Self, InvalidDefinition> {
        check_features(body)?;
        let computed = ComputedProperties::parse(body.get("computedProperties"))?;
        let definition = Self::with_computed(body, computed)?;
        definition.check_paths()?;
        // Replicas read it again from its text: what they could not read must never reach them.
        let text = Value::Object(definition.json.clone()).to_string();
        if text.len() > DEFINITION_BYTES_MAX {
            return Err(InvalidDefinition::TooLong(text.len()));
        }
        let read = serde_json::from_str(&text).map_err(|_| InvalidDefinition::Malformed("body"))?;
        Self::restore(&read)?;
        Ok(definition)
    }

    /// Refuses paths that nobody means, and that would be walked for every item.
    fn check_paths(&self) -> Result<(), InvalidDefinition> {
        let key = self.key();
        let is_many = |name: &String| matches!(name.as_str(), "*" | "?" | "[]");
        let is_of_system = |path: &Vec<String>| SYSTEM_PROPERTIES.contains(&path[0].as_str());
        if let Some(path) =
            key.paths.iter().find(|path| is_of_system(path) || path.iter().any(is_many))
        {
            return Err(InvalidDefinition::KeyPath(format!("/{}", path.join("/"))));
        }
        for path in key.paths.iter().chain(self.unique_keys.all_paths()) {
            let (names, bytes) = (path.len(), path.iter().map(|name| name.len() + 1).sum());
            if names > PATH_NAMES_MAX || bytes > PATH_BYTES_MAX {
                return Err(InvalidDefinition::PathTooLong { names, bytes });
            }
        }
        Ok(())
    }

    /// Reads a definition that is stored. What it could not be accepted with now has no effect: a replica reads
    /// whatever there is.
    pub fn restore(json: &Value) -> Result<Self, InvalidDefinition> {
        let computed = ComputedProperties::parse(json.get("computedProperties"));
        Self::with_computed(json, computed.unwrap_or_default())
    }

    fn with_computed(
        body: &Value,
        computed: ComputedProperties,
    ) -> Result<Self, InvalidDefinition> {
        let body = body.as_object().ok_or(InvalidDefinition::Malformed("body"))?;
        let mut json: Map<String, Value> = PROPERTIES
            .iter()
            .filter_map(|name| {
                let value = body.get(*name).filter(|value| !value.is_null())?;
                Some(((*name).to_string(), value.clone()))
            })
            .collect();
        let name = name_of(&json)?;
        let (key, completed_key) = key_definition(json.get("partitionKey"))?;
        json.insert("partitionKey".into(), completed_key);
        let policy = indexing::complete(json.get("indexingPolicy"))?;
        let metric = complete_geospatial(&mut json)?;
        let index = IndexRules::new(&policy)?;
        let index = index.with_computed(computed.definitions()).with_metric(metric);
        let mode = indexing::mode(&policy)?;
        json.insert("indexingPolicy".into(), policy);
        let default_ttl = default_ttl(json.get("defaultTtl"))?;
        check_analytical_ttl(json.get("analyticalStorageTtl"))?;
        if mode == IndexingMode::None && default_ttl.is_some() {
            return Err(InvalidDefinition::TtlWithoutIndex);
        }
        let unique_keys = UniqueKeys::parse(json.get("uniqueKeyPolicy"), key.paths.len())?;
        complete_conflict_resolution(&mut json)?;
        for (property, is_right) in [
            ("vectorEmbeddingPolicy", Value::is_object as fn(&Value) -> bool),
            ("fullTextPolicy", Value::is_object),
            ("clientEncryptionPolicy", Value::is_object),
            ("materializedViewDefinition", Value::is_object),
        ] {
            if json.get(property).is_some_and(|value| !is_right(value)) {
                return Err(InvalidDefinition::Malformed(property));
            }
        }
        let ttl = TtlPolicy::from_default_ttl(default_ttl);
        let retention = retention(json.get("changeFeedPolicy"))?;
        let rules = Arc::new(DocumentRules::new(key, index));
        Ok(Self { json, name, rules, ttl, retention, computed, unique_keys })
    }

    /// The container's name.
    pub fn name(&self) -> &ResourceName {
        &self.name
    }

    /// How bodies are read: shared by every patch, since they may be large.
    pub fn rules(&self) -> &Arc<DocumentRules> {
        &self.rules
    }

    /// The partition key.
    pub fn key(&self) -> &KeyDefinition {
        self.rules.key()
    }

    /// The time-to-live policy.
    pub fn ttl(&self) -> TtlPolicy {
        self.ttl
    }

    /// How long the change feed of all versions remembers what happens; none: not at all.
    pub fn retention(&self) -> Option<Retention> {
        self.retention
    }

    /// What no two items of a logical partition may have in common.
    pub fn unique_keys(&self) -> &UniqueKeys {
        &self.unique_keys
    }

    /// Compiles a query over the container's items.
    pub fn compile(
        &self,
        text: &str,
        parameters: &Parameters,
    ) -> Result<CompiledQuery, QueryError> {
        CompiledQuery::new(text, parameters, self.rules.index(), &self.computed)
    }

    /// The computed properties.
    pub fn computed(&self) -> &ComputedProperties {
        &self.computed
    }

    /// The completed definition, without system properties.
    pub fn json(&self) -> &Map<String, Value> {
        &self.json
    }

    /// The first property that a replacement may not change and does.
    pub fn immutable_difference(&self, other: &Self) -> Option<&'static str> {
        let completed = |property: &str| self.json.get(property) == other.json.get(property);
        [
            ("id", completed("id")),
            ("partitionKey", self.key() == other.key()),
            ("uniqueKeyPolicy", self.unique_keys == other.unique_keys),
            ("conflictResolutionPolicy", completed("conflictResolutionPolicy")),
        ]
        .into_iter()
        .find_map(|(property, same)| (!same).then_some(property))
    }

    /// A property that a replacement computes, and that this definition lists for indexing as one of
    /// the stored items. Those it computes itself it may list.
    pub fn listed_and_now_computed<'n>(&self, new: &'n Self) -> Option<&'n str> {
        let listed = listed_names(&self.json["indexingPolicy"]);
        let is_stored = |name: &str| !self.computed.names().any(|known| known == name);
        new.computed.names().find(|name| is_stored(name) && listed.iter().any(|one| one == name))
    }
}

/// Refuses features that no container has here: nothing would come of them, and a client that asks for
/// one has queries that need it. What is empty asks for nothing, and SDKs send it.
fn check_features(body: &Value) -> Result<(), InvalidDefinition> {
    let policy = &body["indexingPolicy"];
    let asked_for = [
        ("vectorIndexes", &policy["vectorIndexes"]),
        ("fullTextIndexes", &policy["fullTextIndexes"]),
        ("vectorEmbeddingPolicy", &body["vectorEmbeddingPolicy"]["vectorEmbeddings"]),
        ("fullTextPolicy", &body["fullTextPolicy"]["fullTextPaths"]),
        ("materializedViewDefinition", &body["materializedViewDefinition"]),
    ];
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(entries) => entries.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    match asked_for.into_iter().find(|(_, value)| !is_empty(value)) {
        Some((feature, _)) => Err(InvalidDefinition::Unsupported(feature)),
        None => Ok(()),
    }
}

/// The top-level properties that paths of an indexing policy name.
fn listed_names(policy: &Value) -> Vec<String> {
    let paths = |member: &str| policy[member].as_array().into_iter().flatten();
    let composites = paths("compositeIndexes").filter_map(Value::as_array).flatten();
    let entries = ["includedPaths", "excludedPaths", "spatialIndexes"].into_iter().flat_map(paths);
    let name = |entry: &Value| {
        let path = entry["path"].as_str()?;
        let names = path.strip_suffix("/?").or(path.strip_suffix("/*")).unwrap_or(path);
        parse_path(names).ok()?.into_iter().next()
    };
    entries.chain(composites).filter_map(name).collect()
}

fn name_of(json: &Map<String, Value>) -> Result<ResourceName, InvalidDefinition> {
    match json.get("id") {
        None => Err(InvalidDefinition::Missing("id")),
        Some(Value::String(name)) => Ok(ResourceName::try_from(name.clone())?),
        Some(_) => Err(InvalidDefinition::Malformed("id")),
    }
}

fn key_definition(value: Option<&Value>) -> Result<(KeyDefinition, Value), InvalidDefinition> {
    let malformed = InvalidDefinition::Malformed("partitionKey");
    let value = value.ok_or(InvalidDefinition::Missing("partitionKey"))?;
    let given = value.as_object().ok_or_else(|| malformed.clone())?;
    let is_system = given.get("systemKey") == Some(&json!(true));
    let paths = given.get("paths").and_then(Value::as_array).ok_or_else(|| malformed.clone())?;
    let kind = match given.get("kind") {
        None | Some(Value::Null) => "Hash",
        Some(Value::String(kind)) if kind == "Hash" => "Hash",
        Some(Value::String(kind)) if kind == "MultiHash" => "MultiHash",
        Some(_) => return Err(malformed),
    };
    let default_version = if kind == "Hash" { 1 } else { 2 };
    let version = match given.get("version") {
        None | Some(Value::Null) => default_version,
        Some(version) => {
            version.as_u64().filter(|v| (1..=2).contains(v)).ok_or_else(|| malformed.clone())?
        }
    };
    let found = paths.len();
    if is_system && (kind != "Hash" || *paths != [SYSTEM_KEY_PATH]) {
        return Err(malformed);
    }
    let kind_and_version = match (kind, version, found) {
        ("Hash", 1, 1) if is_system => KeyKind::SystemV1,
        ("Hash", 2, 1) if is_system => KeyKind::SystemV2,
        ("Hash", 1, 1) => KeyKind::HashV1,
        ("Hash", 2, 1) => KeyKind::HashV2,
        ("MultiHash", 2, 1..=PATHS_MAX) => KeyKind::MultiHash,
        ("Hash", ..) => {
            return Err(InvalidDefinition::PathCount { kind, allowed: "one path", found });
        }
        (_, 1, _) => return Err(malformed),
        _ => {
            return Err(InvalidDefinition::PathCount {
                kind,
                allowed: "one to three paths",
                found,
            });
        }
    };
    let parsed = paths
        .iter()
        .map(|path| Ok(parse_path(path.as_str().ok_or_else(|| malformed.clone())?)?))
        .collect::<Result<Vec<_>, InvalidDefinition>>()?;
    let mut completed = json!({ "paths": paths, "kind": kind });
    // SDKs take no version for 1, and the service shows none where none was named: the Rust SDK's own
    // tests say so.
    if version != 1 || given.get("version").is_some_and(Value::is_number) {
        completed["version"] = json!(version);
    }
    if is_system {
        completed["systemKey"] = json!(true);
    }
    Ok((KeyDefinition { kind: kind_and_version, paths: parsed }, completed))
}

fn default_ttl(value: Option<&Value>) -> Result<Option<TimeToLive>, InvalidDefinition> {
    let Some(value) = value else { return Ok(None) };
    let ttl = match value {
        Value::Number(number) => {
            let exact = number.as_i64().map(TimeToLive::from_seconds);
            exact.unwrap_or_else(|| number.as_f64().and_then(TimeToLive::from_f64))
        }
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            None
        }
    };
    ttl.map(Some).ok_or_else(|| invalid_ttl("defaultTtl", value))
}

fn invalid_ttl(property: &'static str, value: &Value) -> InvalidDefinition {
    InvalidDefinition::Ttl(InvalidTtl { property, value: value.to_string() })
}

/// Checked and echoed; there is no analytical store, so it has no effect (R12).
fn check_analytical_ttl(value: Option<&Value>) -> Result<(), InvalidDefinition> {
    let Some(value) = value else { return Ok(()) };
    let checked = default_ttl(Some(value)).map(|_| ());
    checked.map_err(|_| invalid_ttl("analyticalStorageTtl", value))
}

/// `changeFeedPolicy.retentionDuration`, in whole minutes; 0 and absent mean none.
fn retention(policy: Option<&Value>) -> Result<Option<Retention>, InvalidDefinition> {
    let malformed = InvalidDefinition::Malformed("changeFeedPolicy");
    let Some(policy) = policy else { return Ok(None) };
    match policy.as_object().ok_or_else(|| malformed.clone())?.get("retentionDuration") {
        None | Some(Value::Null) => Ok(None),
        Some(minutes) => {
            let minutes = minutes.as_u64().and_then(|minutes| u32::try_from(minutes).ok());
            Ok(NonZeroU32::new(minutes.ok_or(malformed)?).map(Retention))
        }
    }
}

fn complete_conflict_resolution(json: &mut Map<String, Value>) -> Result<(), InvalidDefinition> {
    let malformed = InvalidDefinition::Malformed("conflictResolutionPolicy");
    let policy = json
        .entry("conflictResolutionPolicy")
        .or_insert_with(|| json!({ "mode": "LastWriterWins" }))
        .as_object_mut()
        .ok_or_else(|| malformed.clone())?;
    let (mode, path) = match policy.get("mode").and_then(Value::as_str) {
        Some(mode) if mode.eq_ignore_ascii_case("LastWriterWins") => ("LastWriterWins", "/_ts"),
        Some(mode) if mode.eq_ignore_ascii_case("Custom") => ("Custom", ""),
        _ => return Err(malformed),
    };
    policy.insert("mode".into(), json!(mode));
    for (property, default) in
        [("conflictResolutionPath", path), ("conflictResolutionProcedure", "")]
    {
        let value = policy.entry(property).or_insert(json!(default));
        if value.is_null() {
            *value = json!(default);
        }
        if !value.is_string() {
            return Err(malformed);
        }
    }
    Ok(())
}

fn complete_geospatial(json: &mut Map<String, Value>) -> Result<Metric, InvalidDefinition> {
    let config = json.entry("geospatialConfig").or_insert_with(|| json!({ "type": "Geography" }));
    match config["type"].as_str() {
        Some("Geography") => Ok(Metric::Geography),
        Some("Geometry") => Ok(Metric::Geometry),
        _ => Err(InvalidDefinition::Malformed("geospatialConfig")),
    }
}

#[cfg(test)]
mod tests;
