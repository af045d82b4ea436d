//! Indexing policies as clients send them: checked and completed as Cosmos does, echoed whole.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::path::Step;
use super::pattern::{End, InvalidPath, Pattern};

/// Most paths in `includedPaths`, and in `excludedPaths`, beside the one that completes a policy.
const PATHS_MAX: usize = 1500;
/// Longest path, in bytes and in steps.
const PATH_BYTES_MAX: usize = 1024;
const PATH_STEPS_MAX: usize = 128;
/// Most composite indexes of a container.
const COMPOSITES_MAX: usize = 100;
/// Fewest and most paths of a composite index.
const COMPOSITE_PATHS: std::ops::RangeInclusive<usize> = 2..=8;
/// What is excluded unless the policy says otherwise.
const ETAG: &str = "_etag";
const ETAG_EXCLUDED: &str = "/\"_etag\"/?";

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
    #[error(transparent)]
    Path(#[from] InvalidPath),
    /// More of a path than is of use.
    #[error(
        "an indexing path has {bytes} bytes and {steps} steps, the limits are {PATH_BYTES_MAX} and {PATH_STEPS_MAX}"
    )]
    PathTooLong {
        /// How long it is.
        bytes: usize,
        /// How many names and `[]` it has.
        steps: usize,
    },
    /// A path must say whether it means the value or all below it.
    #[error("the indexing path '{0}' must end with /? or /*")]
    PathEnd(String),
    /// Neither list says what holds for all other paths.
    #[error(
        "the special mandatory indexing path \"/\" is not provided in any of the path type sets. \
         Please provide this path in one of the sets"
    )]
    NoRoot,
    /// A path is included and excluded.
    #[error("the indexing path '{0}' is both included and excluded")]
    InBoth(String),
    /// More than the service takes.
    #[error("'{member}' has {found} entries, the limit is {limit}")]
    TooMany {
        /// Which list.
        member: &'static str,
        /// How long it is.
        found: usize,
        /// How long it may be.
        limit: usize,
    },
    /// A composite index of one path, or of too many.
    #[error("a composite index has 2 to 8 paths, not {0}")]
    CompositeLength(usize),
    /// A composite index has no wildcard.
    #[error("the path '{0}' of a composite index must name a property, without /*")]
    CompositePath(String),
    /// Not an order.
    #[error("the order of a composite index must be ascending or descending, not '{0}'")]
    Order(String),
    /// A tuple where there can be none.
    #[error("the tuple in '{0}' can only be included")]
    Tuple(String),
    /// A kind of shape that does not exist.
    #[error("'{0}' is no type of a spatial index")]
    Type(String),
}

type Result<T> = std::result::Result<T, InvalidPolicy>;

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

/// A policy, read.
pub(super) struct Policy {
    pub(super) mode: IndexingMode,
    pub(super) included: Vec<Pattern>,
    pub(super) excluded: Vec<Pattern>,
    /// Paths, and for each whether it sorts descending.
    pub(super) composites: Vec<Vec<(Vec<Step>, bool)>>,
    /// Paths of shapes; a tuple is nothing but a path here.
    pub(super) spatial: Vec<Pattern>,
}

/// Completes a policy as the service does: missing parts take their defaults, `_etag` is excluded.
pub fn complete(policy: Option<&Value>) -> Result<Value> {
    let mut policy = match policy {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(map)) => map.clone(),
        Some(_) => return Err(InvalidPolicy::Malformed("indexingPolicy")),
    };
    let Policy { mode, included, excluded, .. } = Policy::read(&policy)?;
    let name = match mode {
        IndexingMode::Consistent => "consistent",
        IndexingMode::Lazy => "lazy",
        IndexingMode::None => "none",
    };
    policy.insert("indexingMode".into(), json!(name));
    policy.insert("automatic".into(), json!(mode != IndexingMode::None));
    for member in ["includedPaths", "excludedPaths"] {
        if policy.get(member).is_none_or(Value::is_null) {
            policy.insert(member.into(), json!([]));
        }
    }
    if mode == IndexingMode::None {
        return Ok(Value::Object(policy));
    }
    if included.is_empty() && excluded.is_empty() {
        policy.insert("includedPaths".into(), json!([{ "path": "/*" }]));
    }
    drop_index_kinds(&mut policy);
    let etag = [Step::from(ETAG)];
    if !included.iter().chain(&excluded).any(|path| path.steps == etag) {
        let excluded = policy.get_mut("excludedPaths").and_then(Value::as_array_mut);
        excluded.expect("it was put there").push(json!({ "path": ETAG_EXCLUDED }));
    }
    Ok(Value::Object(policy))
}

/// Index kinds of old: every included path has a range index, whatever was asked for, and the service
/// shows none of them. SDKs check that.
fn drop_index_kinds(policy: &mut Map<String, Value>) {
    let included = policy.get_mut("includedPaths").and_then(Value::as_array_mut);
    for path in included.into_iter().flatten() {
        if let Some(path) = path.as_object_mut() {
            path.shift_remove("indexes");
        }
    }
}

/// The mode of a policy.
pub fn mode(policy: &Value) -> Result<IndexingMode> {
    policy.as_object().map_or(Err(InvalidPolicy::Malformed("indexingPolicy")), mode_of)
}

fn mode_of(policy: &Map<String, Value>) -> Result<IndexingMode> {
    let Some(mode) = policy.get("indexingMode").filter(|mode| !mode.is_null()) else {
        return Ok(IndexingMode::Consistent);
    };
    let mode = mode.as_str().ok_or(InvalidPolicy::Malformed("indexingMode"))?;
    match mode.to_ascii_lowercase().as_str() {
        "consistent" => Ok(IndexingMode::Consistent),
        "lazy" => Ok(IndexingMode::Lazy),
        "none" => Ok(IndexingMode::None),
        _ => Err(InvalidPolicy::Mode(mode.to_string())),
    }
}

impl Policy {
    /// Reads a policy that was once taken. What it holds was checked by the rules of its time: what
    /// is no path today, or no composite index, is passed over, and never a reason not to start.
    pub(super) fn of_stored(policy: &Map<String, Value>) -> Result<Self> {
        let entries = |member| {
            let entries: Option<&Vec<Value>> = policy.get(member).and_then(Value::as_array);
            entries.map_or(&[][..], Vec::as_slice).iter()
        };
        let patterns = |member| entries(member).filter_map(|entry| pattern(entry, member).ok());
        Ok(Self {
            mode: mode_of(policy)?,
            included: patterns("includedPaths").collect(),
            excluded: patterns("excludedPaths").collect(),
            composites: entries("compositeIndexes").filter_map(|one| composite(one).ok()).collect(),
            spatial: patterns("spatialIndexes").collect(),
        })
    }

    /// Reads and checks a policy, completed or not.
    pub(super) fn read(policy: &Map<String, Value>) -> Result<Self> {
        let mode = mode_of(policy)?;
        if policy.get("automatic").is_some_and(|automatic| !automatic.is_boolean()) {
            return Err(InvalidPolicy::Malformed("automatic"));
        }
        let included = patterns(policy, "includedPaths")?;
        let excluded = patterns(policy, "excludedPaths")?;
        let composites = list(policy, "compositeIndexes", COMPOSITES_MAX)?;
        let composites = composites.iter().map(composite).collect::<Result<_>>()?;
        let spatial = list(policy, "spatialIndexes", PATHS_MAX)?;
        let spatial = spatial.iter().map(spatial_index).collect::<Result<_>>()?;
        let this = Self { mode, included, excluded, composites, spatial };
        this.check_paths()?;
        Ok(this)
    }

    /// Checks what the two lists must be together.
    fn check_paths(&self) -> Result<()> {
        if let Some(tuple) = self.excluded.iter().find(|path| !path.tuple.is_empty()) {
            return Err(InvalidPolicy::Tuple(tuple.to_string()));
        }
        let excluded: BTreeSet<&Pattern> = self.excluded.iter().collect();
        if let Some(both) = self.included.iter().find(|path| excluded.contains(path)) {
            return Err(InvalidPolicy::InBoth(both.to_string()));
        }
        let mut paths = self.included.iter().chain(&self.excluded).peekable();
        let needs_root = match self.mode {
            IndexingMode::Consistent | IndexingMode::Lazy => paths.peek().is_some(),
            IndexingMode::None => false,
        };
        if needs_root && !paths.any(Pattern::is_root) {
            return Err(InvalidPolicy::NoRoot);
        }
        Ok(())
    }
}

/// A list of the policy; empty if it is not there.
fn list<'p>(
    policy: &'p Map<String, Value>,
    member: &'static str,
    limit: usize,
) -> Result<&'p [Value]> {
    match policy.get(member) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(entries)) if entries.len() <= limit => Ok(entries),
        Some(Value::Array(entries)) => {
            Err(InvalidPolicy::TooMany { member, found: entries.len(), limit })
        }
        Some(_) => Err(InvalidPolicy::Malformed(member)),
    }
}

fn path_of<'p>(entry: &'p Value, member: &'static str) -> Result<&'p str> {
    entry["path"].as_str().ok_or(InvalidPolicy::Malformed(member))
}

fn patterns(policy: &Map<String, Value>, member: &'static str) -> Result<Vec<Pattern>> {
    let entries = list(policy, member, PATHS_MAX + 1)?;
    let own = entries.iter().filter(|entry| entry["path"] != ETAG_EXCLUDED).count();
    if own > PATHS_MAX {
        return Err(InvalidPolicy::TooMany { member, found: own, limit: PATHS_MAX });
    }
    entries.iter().map(|entry| pattern(entry, member)).collect()
}

fn parse(path: &str) -> Result<Pattern> {
    // So long a text is not even taken apart.
    let pattern = if path.len() > PATH_BYTES_MAX { None } else { Some(Pattern::parse(path)?) };
    let steps = pattern.as_ref().map_or(0, |pattern| pattern.steps.len());
    pattern
        .filter(|_| steps <= PATH_STEPS_MAX)
        .ok_or(InvalidPolicy::PathTooLong { bytes: path.len(), steps })
}

fn pattern(entry: &Value, member: &'static str) -> Result<Pattern> {
    let path = path_of(entry, member)?;
    let pattern = parse(path)?;
    if pattern.end == End::Bare {
        return Err(InvalidPolicy::PathEnd(path.to_string()));
    }
    Ok(pattern)
}

fn composite(entry: &Value) -> Result<Vec<(Vec<Step>, bool)>> {
    let malformed = InvalidPolicy::Malformed("compositeIndexes");
    let paths = entry.as_array().ok_or(malformed)?;
    if !COMPOSITE_PATHS.contains(&paths.len()) {
        return Err(InvalidPolicy::CompositeLength(paths.len()));
    }
    let component = |entry| {
        let path = path_of(entry, "compositeIndexes")?;
        let pattern = parse(path)?;
        if pattern.end == End::Below || !pattern.tuple.is_empty() {
            return Err(InvalidPolicy::CompositePath(path.to_string()));
        }
        Ok((pattern.steps, is_descending(&entry["order"])?))
    };
    paths.iter().map(component).collect()
}

fn is_descending(order: &Value) -> Result<bool> {
    if order.is_null() {
        return Ok(false);
    }
    let order = order.as_str().ok_or(InvalidPolicy::Malformed("compositeIndexes"))?;
    match order.to_ascii_lowercase().as_str() {
        "ascending" => Ok(false),
        "descending" => Ok(true),
        _ => Err(InvalidPolicy::Order(order.to_string())),
    }
}

/// The path of a spatial index. Shapes of every type have entries, whatever types are listed.
fn spatial_index(entry: &Value) -> Result<Pattern> {
    const MEMBER: &str = "spatialIndexes";
    const SHAPES: [&str; 4] = ["Point", "LineString", "Polygon", "MultiPolygon"];
    let path = pattern(entry, MEMBER)?;
    let entry = entry.as_object().ok_or(InvalidPolicy::Malformed(MEMBER))?;
    for shape in list(entry, "types", PATHS_MAX)? {
        let shape = shape.as_str().ok_or(InvalidPolicy::Malformed(MEMBER))?;
        if !SHAPES.contains(&shape) {
            return Err(InvalidPolicy::Type(shape.to_string()));
        }
    }
    let Some(bounds) = entry.get("boundingBox").filter(|bounds| !bounds.is_null()) else {
        return Ok(path);
    };
    let are_numbers = ["xmin", "ymin", "xmax", "ymax"].iter().all(|side| bounds[side].is_number());
    if are_numbers { Ok(path) } else { Err(InvalidPolicy::Malformed("boundingBox")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(policy: &Value) -> InvalidPolicy {
        complete(Some(policy)).expect_err("a policy nobody should take")
    }

    /// A policy that indexes everything, and has these members.
    fn with(members: &Value) -> Value {
        let mut policy = json!({ "includedPaths": [{ "path": "/*" }] });
        let members = members.as_object().unwrap().clone();
        policy.as_object_mut().unwrap().extend(members);
        policy
    }

    #[test]
    fn the_default_indexes_everything() {
        for policy in [None, Some(json!(null)), Some(json!({ "indexingMode": "Consistent" }))] {
            assert_eq!(
                complete(policy.as_ref()).unwrap(),
                json!({
                    "indexingMode": "consistent",
                    "automatic": true,
                    "includedPaths": [{ "path": "/*" }],
                    "excludedPaths": [{ "path": "/\"_etag\"/?" }],
                })
            );
        }
    }

    #[test]
    fn a_completed_policy_is_complete() {
        let policy = with(&json!({ "compositeIndexes": [[{ "path": "/a" }, { "path": "/b" }]] }));
        for policy in [json!({}), json!({ "indexingMode": "none" }), policy] {
            let completed = complete(Some(&policy)).unwrap();
            assert_eq!(complete(Some(&completed)), Ok(completed));
        }
    }

    #[test]
    fn modes_are_taken_in_any_case_and_shown_in_lower_case() {
        for (sent, shown) in [("CONSISTENT", "consistent"), ("Lazy", "lazy"), ("none", "none")] {
            let completed = complete(Some(&json!({ "indexingMode": sent }))).unwrap();
            assert_eq!(completed["indexingMode"], shown);
            assert_eq!(completed["automatic"], shown != "none");
        }
    }

    /// As the Rust SDK's own tests want it, which send `false` with every policy.
    #[test]
    fn automatic_says_what_the_mode_says() {
        for (mode, shown) in [("consistent", true), ("none", false)] {
            let sent = json!({ "indexingMode": mode, "automatic": !shown });
            assert_eq!(complete(Some(&sent)).unwrap()["automatic"], shown);
        }
    }

    #[test]
    fn etag_is_excluded_beside_the_users_paths_unless_they_name_it() {
        let policy = json!({
            "includedPaths": [{ "path": "/", "indexes": [{ "kind": "Hash" }], "more": 1 }],
            "excludedPaths": [{ "path": "/\"systemMetadata\"/*" }],
        });
        let completed = complete(Some(&policy)).unwrap();
        assert_eq!(completed["includedPaths"], json!([{ "path": "/", "more": 1 }]));
        assert_eq!(completed["excludedPaths"].as_array().unwrap().len(), 2);
        for named in ["/\"_etag\"/?", "/_etag/?"] {
            let policy = json!({ "includedPaths": [{ "path": "/*" }, { "path": named }] });
            assert_eq!(complete(Some(&policy)).unwrap()["excludedPaths"], json!([]));
        }
    }

    #[test]
    fn the_root_is_in_one_of_the_lists() {
        for policy in [
            json!({ "includedPaths": [{ "path": "/a/?" }] }),
            json!({ "excludedPaths": [{ "path": "/a/*" }] }),
            json!({ "indexingMode": "lazy", "includedPaths": [{ "path": "/a/?" }] }),
        ] {
            assert_eq!(refusal(&policy), InvalidPolicy::NoRoot, "{policy}");
        }
        let excluded = json!({
            "includedPaths": [{ "path": "/a/?" }], "excludedPaths": [{ "path": "/*" }],
        });
        assert!(complete(Some(&excluded)).is_ok());
        let none = json!({ "indexingMode": "none", "includedPaths": [{ "path": "/a/?" }] });
        assert!(complete(Some(&none)).is_ok());
    }

    #[test]
    fn a_path_is_included_or_excluded() {
        let both = with(&json!({ "excludedPaths": [{ "path": "/*" }] }));
        assert_eq!(refusal(&both), InvalidPolicy::InBoth("/*".into()));
        let spelled = json!({
            "includedPaths": [{ "path": "/*" }, { "path": "/a/[]/?" }],
            "excludedPaths": [{ "path": "/\"a\"/[]/?" }],
        });
        assert_eq!(refusal(&spelled), InvalidPolicy::InBoth("/\"a\"/[]/?".into()));
        let ends = json!({
            "includedPaths": [{ "path": "/*" }, { "path": "/a/?" }],
            "excludedPaths": [{ "path": "/a/*" }],
        });
        assert!(complete(Some(&ends)).is_ok(), "the value is not what lies below");
    }

    #[test]
    fn lists_have_limits() {
        let paths = |count: usize| -> Vec<Value> {
            (0..count).map(|n| json!({ "path": format!("/p{n}/?") })).collect()
        };
        let completed = complete(Some(&with(&json!({ "excludedPaths": paths(1500) })))).unwrap();
        assert_eq!(completed["excludedPaths"].as_array().map(Vec::len), Some(1501));
        assert_eq!(
            complete(Some(&completed)),
            Ok(completed),
            "it is read again, and may be sent back"
        );
        let excluded = refusal(&with(&json!({ "excludedPaths": paths(1501) })));
        assert!(matches!(excluded, InvalidPolicy::TooMany { member: "excludedPaths", .. }));
        let included = refusal(&json!({ "includedPaths": paths(1501) }));
        assert!(matches!(included, InvalidPolicy::TooMany { member: "includedPaths", .. }));
        let pair = json!([{ "path": "/a" }, { "path": "/b" }]);
        assert!(complete(Some(&with(&json!({ "compositeIndexes": vec![&pair; 100] })))).is_ok());
        let composites = refusal(&with(&json!({ "compositeIndexes": vec![&pair; 101] })));
        assert!(matches!(composites, InvalidPolicy::TooMany { member: "compositeIndexes", .. }));
    }

    #[test]
    fn paths_have_a_length() {
        let path = |path: String| with(&json!({ "excludedPaths": [{ "path": path }] }));
        let steps = |count: usize| path(format!("{}/?", "/a".repeat(count)));
        assert!(complete(Some(&steps(128))).is_ok());
        assert_eq!(refusal(&steps(129)), InvalidPolicy::PathTooLong { bytes: 260, steps: 129 });
        let bytes = |count: usize| path(format!("/{}/?", "a".repeat(count - 3)));
        assert!(complete(Some(&bytes(1024))).is_ok());
        assert_eq!(refusal(&bytes(1025)), InvalidPolicy::PathTooLong { bytes: 1025, steps: 0 });
        let long = json!([{ "path": "/a".repeat(129) }, { "path": "/b" }]);
        let composite = refusal(&with(&json!({ "compositeIndexes": [long] })));
        assert!(matches!(composite, InvalidPolicy::PathTooLong { .. }));
    }

    #[test]
    fn composite_indexes_have_two_to_eight_paths_and_orders() {
        let composite = |paths: Value| with(&json!({ "compositeIndexes": [paths] }));
        let path = |n: usize| json!({ "path": format!("/a/p{n}"), "order": "Descending" });
        for good in [2, 8] {
            let paths: Vec<Value> = (0..good).map(path).collect();
            assert!(complete(Some(&composite(json!(paths)))).is_ok());
        }
        for bad in [0, 1, 9] {
            let paths: Vec<Value> = (0..bad).map(path).collect();
            assert_eq!(refusal(&composite(json!(paths))), InvalidPolicy::CompositeLength(bad));
        }
        for wrong in [
            json!([{ "path": "/a" }, { "path": "/b/*" }]),
            json!([{ "path": "/a" }, { "path": "/b", "order": "up" }]),
            json!([{ "path": "/a" }, { "path": "/b", "order": 1 }]),
            json!([{ "path": "/a" }, { "path": "b" }]),
            json!([{ "path": "/a" }, {}]),
            json!({ "path": "/a" }),
        ] {
            assert!(complete(Some(&composite(wrong.clone()))).is_err(), "{wrong}");
        }
        let elements = json!([{ "path": "/a/[]/b" }, { "path": "/c/?" }]);
        assert!(complete(Some(&composite(elements))).is_ok());
    }

    #[test]
    fn spatial_indexes_are_checked() {
        let spatial = |entry: Value| complete(Some(&with(&json!({ "spatialIndexes": [entry] }))));
        let bounds = json!({ "xmin": -10, "ymin": 0.5, "xmax": 10, "ymax": 1 });
        for good in [
            json!({ "path": "/place/*", "types": ["Point", "Polygon"] }),
            json!({ "path": "/place/?", "boundingBox": bounds }),
        ] {
            assert!(spatial(good.clone()).is_ok(), "{good}");
        }
        for wrong in [
            json!({ "path": "/place" }),
            json!({ "path": "/place/*", "types": ["Circle"] }),
            json!({ "path": "/place/*", "types": "Point" }),
            json!({ "path": "/place/*", "boundingBox": { "xmin": 1 } }),
            json!("/place/*"),
        ] {
            assert!(spatial(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tuples_are_included_only() {
        let tuple = json!({ "path": "/events/[]/{name, kind/sub}/?" });
        let included = json!({ "includedPaths": [{ "path": "/*" }, tuple] });
        assert!(complete(Some(&included)).is_ok());
        let excluded = refusal(&with(&json!({ "excludedPaths": [tuple] })));
        assert_eq!(
            excluded,
            InvalidPolicy::Tuple("/\"events\"/[]/{\"name\",\"kind\"/\"sub\"}/?".into())
        );
    }

    #[test]
    fn malformed_policies_are_refused() {
        for policy in [
            json!([]),
            json!({ "indexingMode": "sometimes" }),
            json!({ "indexingMode": 1 }),
            json!({ "automatic": "yes" }),
            json!({ "includedPaths": {} }),
            json!({ "includedPaths": [{ "path": 1 }] }),
            json!({ "includedPaths": ["/*"] }),
            json!({ "includedPaths": [{ "path": "/*" }, { "path": "/a" }] }),
            json!({ "includedPaths": [{ "path": "/*" }], "excludedPaths": [{ "path": "a/?" }] }),
            json!({ "includedPaths": [{ "path": "/*" }, { "path": "/a-b/?" }] }),
        ] {
            assert!(complete(Some(&policy)).is_err(), "{policy}");
        }
    }
}
