//! Unique keys: which values no two items of a logical partition may have in common.
//!
//! A value is found at each path of a key; what is missing counts as null. The values together are told from all
//! others by a digest, however long they are.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use thiserror::Error;

use crate::document::SYSTEM_PROPERTIES;
use crate::engine::{Fault, KeyRange, Table};
use crate::ids::{GroupId, ItemNumber};
use crate::item::ItemKey;
use crate::keycode::prefix_end;
use crate::partition_key::parse_path;
use crate::query::{Needed, Value, digest_of_all};

/// Most unique keys of a container.
pub const UNIQUE_KEYS_MAX: usize = 10;
/// Most paths of a unique key.
pub const UNIQUE_PATHS_MAX: usize = 16;

/// The unique keys of a container, fixed when it is created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UniqueKeys {
    /// How many components the container's partition key has: how much of an item's key names its
    /// logical partition.
    components: usize,
    /// For each key its paths, each as property names from the root of an item.
    keys: Vec<Vec<Vec<String>>>,
}

/// Why a policy was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidUniqueKeys {
    /// Not what a policy looks like.
    #[error("'uniqueKeyPolicy' is malformed")]
    Malformed,
    /// More keys than a container may have.
    #[error("a container has at most {UNIQUE_KEYS_MAX} unique keys, not {0}")]
    KeyCount(usize),
    /// A key of nothing, or of more than one may have.
    #[error("a unique key has 1 to {UNIQUE_PATHS_MAX} paths, not {0}")]
    PathCount(usize),
    /// A key cannot be about this.
    #[error(
        "{0:?} is not a path of a unique key: it leads to one property that users write, such as \
         /name or /\"first name\"/part"
    )]
    Path(String),
}

/// What an item has of one unique key, and where all entries with these values stand.
#[derive(Clone, Debug)]
pub(crate) struct UniqueEntry {
    /// Which of the container's keys.
    key: usize,
    /// What the keys of these entries begin with; each ends with the number of its item.
    prefix: Vec<u8>,
}

impl UniqueKeys {
    /// These keys, of a container with so many partition key components.
    pub fn new(components: usize, keys: Vec<Vec<Vec<String>>>) -> Self {
        Self { components, keys }
    }

    /// The keys of a `uniqueKeyPolicy`, of a container with so many partition key components.
    pub fn parse(policy: Option<&Json>, components: usize) -> Result<Self, InvalidUniqueKeys> {
        let Some(policy) = policy else { return Ok(Self::default()) };
        let policy = policy.as_object().ok_or(InvalidUniqueKeys::Malformed)?;
        let keys = match policy.get("uniqueKeys") {
            None | Some(Json::Null) => return Ok(Self::default()),
            Some(keys) => keys.as_array().ok_or(InvalidUniqueKeys::Malformed)?,
        };
        if keys.len() > UNIQUE_KEYS_MAX {
            return Err(InvalidUniqueKeys::KeyCount(keys.len()));
        }
        let keys = keys.iter().map(parse_key).collect::<Result<Vec<_>, _>>()?;
        Ok(if keys.is_empty() { Self::default() } else { Self::new(components, keys) })
    }

    /// True if items may have everything in common.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The paths of all keys.
    pub(crate) fn all_paths(&self) -> impl Iterator<Item = &Vec<String>> {
        self.keys.iter().flatten()
    }

    /// The paths of a key, as an error message shows them.
    pub(crate) fn paths(&self, of: &UniqueEntry) -> String {
        let path = |names: &Vec<String>| format!("/{}", names.join("/"));
        self.keys[of.key].iter().map(path).collect::<Vec<_>>().join(", ")
    }

    /// What an item has of each key.
    pub(crate) fn entries(
        &self,
        group: GroupId,
        item: &ItemKey,
        body: &[u8],
    ) -> Result<Vec<UniqueEntry>, Fault> {
        let partition = item.logical_partition_of(self.components);
        let partition = partition.map_err(|error| Fault::corrupt("items", error))?;
        let needed = Needed::members_at(self.all_paths());
        let body = Value::read(body, &needed).map_err(|error| Fault::corrupt("items", error))?;
        let at = |path: &Vec<String>| {
            let value = path.iter().fold(&body, |at, name| at.member(name));
            if value.is_defined() { value.clone() } else { Value::Null }
        };
        let entry = |(key, paths): (usize, &Vec<Vec<String>>)| {
            let values: Vec<Value> = paths.iter().map(at).collect();
            let mut prefix = Vec::with_capacity(partition.len() + 32);
            prefix.extend_from_slice(&group.0.to_be_bytes());
            prefix.push(u8::try_from(key).expect("a container has few unique keys"));
            prefix.extend_from_slice(partition);
            prefix.extend_from_slice(&digest_of_all(&values).to_be_bytes());
            UniqueEntry { key, prefix }
        };
        Ok(self.keys.iter().enumerate().map(entry).collect())
    }
}

impl UniqueEntry {
    /// The key of the entry of the item with this number.
    pub(crate) fn of(&self, number: ItemNumber) -> Vec<u8> {
        [&self.prefix[..], &number.0.to_be_bytes()].concat()
    }

    /// The number of the item that an entry is of.
    pub(crate) fn number(entry: &[u8]) -> Result<ItemNumber, Fault> {
        ItemNumber::at_end_of(entry).map_err(|error| Fault::corrupt("unique", error))
    }

    /// The entries of all items that have these values: of one that is alive, at most.
    pub(crate) fn rows(&self) -> KeyRange {
        // From the first item of all: an engine looks up in its filters what comes before an item's number.
        let (start, end) = (self.of(ItemNumber(0)), prefix_end(&self.prefix));
        KeyRange { table: Table::Unique, start, end }
    }
}

fn parse_key(key: &Json) -> Result<Vec<Vec<String>>, InvalidUniqueKeys> {
    let paths = key.get("paths").and_then(Json::as_array).ok_or(InvalidUniqueKeys::Malformed)?;
    if paths.is_empty() || paths.len() > UNIQUE_PATHS_MAX {
        return Err(InvalidUniqueKeys::PathCount(paths.len()));
    }
    let names = |path: &Json| property_names(path.as_str().ok_or(InvalidUniqueKeys::Malformed)?);
    paths.iter().map(names).collect()
}

/// A path to one property: what means many in an indexing policy means nothing here.
fn property_names(path: &str) -> Result<Vec<String>, InvalidUniqueKeys> {
    let invalid = || InvalidUniqueKeys::Path(path.to_string());
    let names = parse_path(path).map_err(|_| invalid())?;
    let is_many = path.split('/').any(|step| matches!(step, "*" | "?" | "[]"));
    let is_of_system = SYSTEM_PROPERTIES.contains(&names[0].as_str());
    if is_many || is_of_system { Err(invalid()) } else { Ok(names) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::ids::{ItemId, Lsn};
    use crate::partition_key::{KeyDefinition, KeyKind, PartitionKey};

    fn item(pk: &str, id: &str) -> ItemKey {
        let paths = vec![vec!["a".into()], vec!["b".into()]];
        let definition = KeyDefinition { kind: KeyKind::MultiHash, paths };
        let value = PartitionKey::parse(pk).unwrap();
        let id = ItemId::try_from(id.to_string()).unwrap();
        ItemKey::new(&definition.place(&value), &value, &id)
    }

    fn keys() -> UniqueKeys {
        let path = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
        UniqueKeys::new(2, vec![vec![path(&["x"]), path(&["in", "y"])], vec![path(&["z"])]])
    }

    fn entries(item: &ItemKey, body: &str) -> Vec<UniqueEntry> {
        keys().entries(GroupId(7), item, body.as_bytes()).unwrap()
    }

    /// Whether two items share the first key.
    fn shares(a: &str, b: &str) -> bool {
        let [a, b] = [a, b].map(|body| entries(&item(r#"["p",1]"#, "i"), body));
        a[0].prefix == b[0].prefix
    }

    #[test]
    fn policies_are_checked() {
        let parse = |keys: Json| UniqueKeys::parse(Some(&json!({ "uniqueKeys": keys })), 1);
        let paths = |paths: Json| parse(json!([{ "paths": paths }]));
        assert_eq!(parse(json!([])), Ok(UniqueKeys::default()));
        assert_eq!(parse(json!(null)), Ok(UniqueKeys::default()));
        let names = vec![vec!["a".to_string()], vec!["b".into(), "c d".into()]];
        assert_eq!(paths(json!(["/a", "/b/\"c d\""])), Ok(UniqueKeys::new(1, vec![names])));
        let many = |count: usize| (0..count).map(|n| format!("/p{n}")).collect::<Vec<_>>();
        assert!(paths(json!(many(UNIQUE_PATHS_MAX))).is_ok());
        let found = UNIQUE_PATHS_MAX + 1;
        assert_eq!(paths(json!(many(found))), Err(InvalidUniqueKeys::PathCount(found)));
        assert_eq!(paths(json!([])), Err(InvalidUniqueKeys::PathCount(0)));
        let key = json!({ "paths": ["/a"] });
        assert!(parse(json!(vec![key.clone(); UNIQUE_KEYS_MAX])).is_ok());
        let found = UNIQUE_KEYS_MAX + 1;
        assert_eq!(parse(json!(vec![key; found])), Err(InvalidUniqueKeys::KeyCount(found)));
        for wrong in ["", "a", "/", "/a/", "/a/*", "/a/?", "/a/[]/b", "/_ts", "/_etag/x"] {
            let refused = Err(InvalidUniqueKeys::Path(wrong.to_string()));
            assert_eq!(paths(json!(["/a", wrong])), refused, "{wrong}");
        }
        for malformed in [json!(5), json!({}), json!([5]), json!([{}]), json!([{ "paths": 5 }])] {
            let refused = Err(InvalidUniqueKeys::Malformed);
            assert_eq!(parse(malformed.clone()), refused, "{malformed}");
        }
        assert_eq!(paths(json!([5])), Err(InvalidUniqueKeys::Malformed));
        assert_eq!(UniqueKeys::parse(Some(&json!([])), 1), Err(InvalidUniqueKeys::Malformed));
    }

    #[test]
    fn what_is_missing_is_null_and_every_value_counts() {
        assert!(shares(r#"{"x":1,"in":{"y":2}}"#, r#"{"in":{"y":2.0},"x":1,"more":3}"#));
        assert!(!shares(r#"{"x":1,"in":{"y":2}}"#, r#"{"x":1,"in":{"y":3}}"#));
        assert!(shares("{}", r#"{"x":null,"in":{"y":null}}"#));
        assert!(shares("{}", r#"{"x":null,"in":[{"y":1}]}"#));
        assert!(!shares(r#"{"x":"a"}"#, r#"{"x":"A"}"#));
        assert!(!shares(r#"{"x":1}"#, r#"{"x":"1"}"#));
        assert!(shares(r#"{"x":{"a":1,"b":[2]}}"#, r#"{"x":{"b":[2],"a":1}}"#));
        let long = "x".repeat(10_000);
        assert!(!shares(&format!(r#"{{"x":"{long}a"}}"#), &format!(r#"{{"x":"{long}b"}}"#)));
    }

    /// Were they the same entry, each write would read all neighbours of its value.
    #[test]
    fn integers_beyond_doubles_have_entries_of_their_own() {
        assert!(!shares(r#"{"x":9007199254740992}"#, r#"{"x":9007199254740993}"#));
        assert!(shares(r#"{"x":9007199254740992}"#, r#"{"x":9007199254740992.0}"#));
    }

    #[test]
    fn an_entry_is_of_a_logical_partition_a_key_and_an_item() {
        let body = r#"{"x":1,"z":1}"#;
        let one = entries(&item(r#"["p",1]"#, "i"), body);
        assert_eq!(one[0].prefix, entries(&item(r#"["p",1]"#, "other"), body)[0].prefix);
        assert_ne!(one[0].prefix, entries(&item(r#"["p",2]"#, "i"), body)[0].prefix);
        assert_ne!(one[0].prefix, one[1].prefix);
        let number = ItemNumber::new(3, Lsn(4), 0);
        let (entry, rows) = (one[0].of(number), one[0].rows());
        assert_eq!(UniqueEntry::number(&entry).unwrap(), number);
        assert!(rows.start <= entry && rows.end.is_some_and(|end| entry < end));
        assert_eq!(keys().paths(&one[0]), "/x, /in/y");
    }

    proptest! {
        /// Rows of one value hold all items that have it, and of no other logical partition.
        #[test]
        fn entries_are_found_by_their_values(a in "[a\u{0}]{0,3}", b in "[a\u{0}]{0,3}", n: u32) {
            let body = |text: &str| json!({ "x": text }).to_string();
            let pk = |text: &str| json!([text, 1]).to_string();
            let number = ItemNumber(u64::from(n));
            let holds = |rows: KeyRange, entry: Vec<u8>| {
                rows.start <= entry && rows.end.is_some_and(|end| entry < end)
            };
            let [x, y] = [&a, &b].map(|text| entries(&item(&pk("p"), "i"), &body(text)));
            prop_assert_eq!(holds(x[0].rows(), y[0].of(number)), a == b);
            let [x, y] = [&a, &b].map(|text| entries(&item(&pk(text), "i"), &body("v")));
            prop_assert_eq!(holds(x[0].rows(), y[0].of(number)), a == b);
        }
    }
}
