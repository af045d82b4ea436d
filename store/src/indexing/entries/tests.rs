//! What the entries of items are, compared with a naive reading of the rules.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::ids::{DatabaseNumber, Etag, GroupId, ItemNumber, Lsn};
use crate::indexing::complete;
use crate::item::Item;
use crate::time::Seconds;
use crate::ttl::ItemTtl;

const GENERATION: [u8; 3] = [7, 7, 7];
const NUMBER: ItemNumber = ItemNumber(0x0102_0304_0506_0708);
const CONTAINER: ContainerNumber = ContainerNumber { database: DatabaseNumber(1), number: 1 };
const TS_NOW: Seconds = Seconds(1000);

fn rules(policy: &Json) -> IndexRules {
    IndexRules::new(&complete(Some(policy)).unwrap()).unwrap()
}

fn item(body: &str) -> Item {
    let stamp = Stamp {
        lsn: Lsn(1),
        operation: 0,
        ts: TS_NOW,
        ttl: ItemTtl::Inherit,
        etag: Etag::new(GroupId(1), Lsn(1), 0),
        number: NUMBER,
        indexed_values: 0,
        tells_place: false,
    };
    Item { stamp, body: body.to_string().into() }
}

fn keys(rules: &IndexRules, body: &Json) -> BTreeSet<Vec<u8>> {
    keys_of(rules, &item(&body.to_string()))
}

fn keys_of(rules: &IndexRules, item: &Item) -> BTreeSet<Vec<u8>> {
    let mut changes = EntryChanges::default();
    let version = (CONTAINER, &item.stamp, &item.body[..]);
    let extractor = Extractor::new(rules);
    extractor.change(&mut changes, ChangeKind::Put, &GENERATION, version).unwrap();
    let keys = changes.into_keys();
    assert!(keys.is_sorted_by(|a, b| a < b), "keys are in order, each of them once");
    keys.into_iter().collect()
}

/// The entries of a body by what they describe.
fn described(rules: &IndexRules, body: &Json) -> Vec<String> {
    described_of(rules, &item(&body.to_string()))
}

fn described_of(rules: &IndexRules, item: &Item) -> Vec<String> {
    let describe = |key: Vec<u8>| {
        let entry = key.strip_prefix(&GENERATION[..]).unwrap();
        let (path, value, number) = crate::indexing::describe_entry(entry).unwrap();
        assert_eq!(number, item.stamp.number);
        format!("{path}={value}")
    };
    keys_of(rules, item).into_iter().map(describe).collect()
}

fn key(path: &IndexPath, values: &[Value]) -> Vec<u8> {
    let number = NUMBER.0.to_be_bytes();
    [&GENERATION, path.as_bytes(), path.encode(values).as_ref().as_bytes(), &number].concat()
}

/// Every value below `value`, with its path.
fn all_values(steps: &[Step], value: &Value, found: &mut Vec<(Vec<Step>, Value)>) {
    if !steps.is_empty() {
        found.push((steps.to_vec(), value.clone()));
    }
    let below = |step: Step| [steps, &[step]].concat();
    match value {
        Value::Array(elements) => {
            for one in elements {
                all_values(&below(Step::Elements), one, found);
            }
        }
        Value::Object(members) => {
            for (name, one) in members {
                all_values(&below(Step::from(name.as_str())), one, found);
            }
        }
        Value::Undefined | Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) => {}
    }
}

/// What the entries should be: every path of the body is looked up by itself.
fn expected(rules: &IndexRules, body: &Value) -> BTreeSet<Vec<u8>> {
    let mut values = Vec::new();
    all_values(&[], body, &mut values);
    values.push((vec![Step::from(path::TS)], Value::Number(crate::query::Number::Int(1000))));
    let mut expected = BTreeSet::new();
    for (steps, value) in &values {
        let path = IndexPath::new(steps).filter(|_| rules.includes(steps));
        if let Some(path) = path {
            expected.insert(key(&path, std::slice::from_ref(value)));
        }
    }
    let find = |steps: &Vec<Step>| values.iter().find(|(found, _)| found == steps);
    for steps in rules.listed() {
        if find(&steps).is_none() {
            expected.insert(key(&IndexPath::new(&steps).unwrap(), &[Value::Undefined]));
        }
    }
    for composite in rules.kept_composites() {
        let value = |(steps, _): &_| find(steps).map_or(Value::Undefined, |(_, v)| v.clone());
        let values: Vec<Value> = composite.iter().map(value).collect();
        expected.insert(key(&IndexPath::composite(composite).unwrap(), &values));
    }
    expected
}

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "id", "_etag", "é\0", "[]"]).prop_map(str::to_string)
}

/// Bodies over few names, so that policies meet them.
fn body() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        (-3..3_i64).prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        "[a\0😀]{0,3}".prop_map(Json::from),
        "x{99,102}".prop_map(Json::from),
    ];
    let value = leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            prop::collection::btree_map(name(), inner, 0..4)
                .prop_map(|members| Json::Object(members.into_iter().collect())),
        ]
    });
    prop::collection::btree_map(name(), value, 0..5).prop_map(|members| {
        Json::Object(members.into_iter().filter(|(n, _)| n != "_etag").collect())
    })
}

fn path(ends: &'static [&'static str]) -> impl Strategy<Value = String> {
    let step = prop::sample::select(vec!["/a", "/b", "/id", "/[]", "/\"é\0\"", "/\"[]\"", "/_ts"]);
    let steps = prop::collection::vec(step, 1..4).prop_map(|steps| steps.concat());
    (steps, prop::sample::select(ends)).prop_map(|(steps, end)| steps + end)
}

fn policy() -> impl Strategy<Value = Json> {
    let paths = || prop::collection::vec(path(&["/?", "/*"]), 0..5);
    let composite = prop::collection::vec((path(&[""]), any::<bool>()), 2..4);
    let composites = prop::collection::vec(composite, 0..3);
    (any::<bool>(), paths(), paths(), composites).prop_map(|(all, included, excluded, composites)| {
        let list = |root: Option<&str>, paths: Vec<String>| -> Vec<Json> {
            let paths = paths.iter().map(String::as_str).chain(root);
            paths.map(|path| json!({ "path": path })).collect()
        };
        let excluded = excluded.into_iter().filter(|path| !included.contains(path)).collect();
        let order = |descending| if descending { "descending" } else { "ascending" };
        let component = |(path, descending): (String, bool)| {
            json!({ "path": path, "order": order(descending) })
        };
        let composite =
            |paths: Vec<_>| Json::from(paths.into_iter().map(component).collect::<Vec<_>>());
        json!({
            "includedPaths": list(all.then_some("/*"), included),
            "excludedPaths": list((!all).then_some("/*"), excluded),
            "compositeIndexes": composites.into_iter().map(composite).collect::<Vec<_>>(),
        })
    })
}

proptest! {
    #[test]
    fn a_walk_finds_what_looking_up_every_path_finds(policy in policy(), body in body()) {
        let rules = rules(&policy);
        let value = Value::from_json(body.to_string().as_bytes()).unwrap();
        prop_assert_eq!(keys(&rules, &body), expected(&rules, &value), "{}", policy);
    }
}

#[test]
fn the_feed_stands_for_the_stamp_of_an_item_that_was_written_once() {
    let policy = json!({
        "includedPaths": [{ "path": "/_ts/?" }, { "path": "/v/?" }],
        "excludedPaths": [{ "path": "/*" }],
        "compositeIndexes": [[{ "path": "/v" }, { "path": "/_ts", "order": "descending" }]],
    });
    let later = item(r#"{"id":"a","v":2}"#);
    let number = ItemNumber::new(3, later.stamp.lsn, later.stamp.operation);
    let first = Item { stamp: Stamp { number, ..later.stamp }, ..later.clone() };
    let others = ["/id=\"a\"", "/v=2", "/v, /_ts DESC=2, 1000"];
    assert_eq!(described_of(&rules(&policy), &first), others);
    assert_eq!(described_of(&rules(&policy), &later), [&["/_ts=1000"], &others[..]].concat());
}

#[test]
fn wildcards_do_not_reach_computed_properties_and_listed_ones_take_the_computed_value() {
    let policy = json!({
        "includedPaths": [{ "path": "/*" }, { "path": "/lower/?" }, { "path": "/absent/?" }],
        "compositeIndexes": [[{ "path": "/lower" }, { "path": "/v" }]],
    });
    let rules = rules(&policy).with_computed([
        ("lower", "SELECT VALUE LOWER(c.lower) FROM c"),
        ("absent", "SELECT VALUE c.none FROM c"),
        ("unlisted", "SELECT VALUE true FROM c"),
    ]);
    let body = json!({ "id": "a", "lower": "STORED", "unlisted": 1, "v": 2 });
    assert_eq!(
        described(&rules, &body),
        [
            "/_ts=1000",
            "/absent=undefined",
            "/id=\"a\"",
            "/lower=\"stored\"",
            "/v=2",
            "/lower, /v=\"stored\", 2"
        ]
    );
}

#[test]
fn computed_values_are_entered_as_far_as_the_policy_reaches() {
    let policy = json!({
        "includedPaths": [{ "path": "/whole/*" }, { "path": "/part/a/?" }, { "path": "/e/[]/?" }],
        "excludedPaths": [{ "path": "/*" }, { "path": "/whole/b/*" }],
    });
    let rules = rules(&policy).with_computed([
        ("whole", "SELECT VALUE {a: [c.v, 0/0], b: c.v} FROM c"),
        ("part", "SELECT VALUE {a: -1/0, b: c.v} FROM c"),
        ("e", "SELECT VALUE [c._ts, {x: c.v}, 'two'] FROM c"),
    ]);
    let body = json!({ "id": "a", "whole": { "c": 1 }, "v": 2 });
    assert_eq!(
        described(&rules, &body),
        [
            "/_ts=1000",
            "/e/[]=1000",
            "/e/[]=\"two\"",
            "/e/[]={…}",
            "/id=\"a\"",
            "/part/a=-inf",
            "/whole={…}",
            "/whole/a=[…]",
            "/whole/a/[]=NaN…",
            "/whole/a/[]=2"
        ]
    );
}

#[test]
fn what_takes_too_long_to_compute_is_undefined() {
    let long = format!("SELECT VALUE [{}] FROM c", ["c.v || c.v"; 20].join(", "));
    let rules = rules(&json!({ "includedPaths": [{ "path": "/*" }, { "path": "/long/?" }] }))
        .with_computed([("long", &*long)]);
    for (bytes, entry) in [(100, "/long=[…]"), (1 << 20, "/long=undefined")] {
        let body = json!({ "id": "a", "v": "x".repeat(bytes) });
        let entries = described(&rules, &body);
        assert!(entries.contains(&entry.to_string()), "{bytes}");
    }
}

#[test]
fn paths_too_long_for_a_key_are_not_indexed() {
    let rules = rules(&json!({}));
    for (bytes, is_indexed) in [(path::PATH_BYTES_MAX - 4, true), (path::PATH_BYTES_MAX - 3, false)]
    {
        let name = "n".repeat(bytes);
        let body = Json::Object([(name.clone(), json!(1))].into_iter().collect());
        assert_eq!(IndexPath::new(&[Step::from(name.as_str())]).is_some(), is_indexed);
        let value = Value::from_json(body.to_string().as_bytes()).unwrap();
        let keys = keys(&rules, &body);
        assert_eq!(keys, expected(&rules, &value), "{bytes}");
        assert_eq!(keys.len(), 1 + usize::from(is_indexed), "{bytes}");
    }
}

#[test]
fn equal_arrays_and_objects_share_an_entry_whatever_the_order_of_members() {
    let rules = rules(&json!({}));
    let body = json!({ "l": [{ "a": 1, "b": [2] }, { "b": [2.0], "a": 1 }, { "b": [3], "a": 1 }] });
    let entries = described(&rules, &body);
    assert_eq!(entries.iter().filter(|entry| *entry == "/l/[]={…}").count(), 2);
}

#[test]
fn a_body_that_is_no_json_is_a_fault() {
    let (extractor, item) = (Extractor::new(&rules(&json!({}))), item("{\"a\":"));
    let changes = &mut EntryChanges::default();
    let version = (CONTAINER, &item.stamp, &item.body[..]);
    assert!(extractor.change(changes, ChangeKind::Put, &GENERATION, version).is_err());
}
