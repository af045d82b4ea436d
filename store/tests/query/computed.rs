//! Indexes of computed properties: followed where they hold what the query computes, and of no effect
//! on what it gives.

use ephemeris_store::query::PageLimits;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::{EVERYTHING, World};

fn definitions() -> Value {
    json!([
        { "name": "low", "query": "SELECT VALUE LOWER(c.s) FROM c" },
        { "name": "ratio", "query": "SELECT VALUE c.a / c.b FROM c" },
        { "name": "tags", "query": "SELECT VALUE ARRAY_CONCAT(c.tags, [c.a]) FROM c" },
        { "name": "both", "query": "SELECT VALUE {a: c.a, s: c.s} FROM c" },
        { "name": "unlisted", "query": "SELECT VALUE c.s FROM c" },
    ])
}

/// Names all of them but one.
fn policy() -> Value {
    let paths = ["/*", "/low/?", "/ratio/?", "/tags/[]/?", "/both/*"];
    json!({
        "includedPaths": paths.map(|path| json!({ "path": path })),
        "compositeIndexes": [[{ "path": "/low" }, { "path": "/a", "order": "descending" }]],
    })
}

/// What a query's first page follows.
fn followed(world: &World, query: &str) -> String {
    world.first_page(query).followed.join(" ")
}

#[test]
fn their_index_is_followed_where_it_helps() {
    let items: Vec<Value> = (0..10).map(|n| json!({ "s": format!("S{n}"), "a": n })).collect();
    let world = World::computing(&definitions(), &policy(), &items);
    for (query, path) in [
        ("SELECT * FROM c WHERE c.low = 's3'", "/low/?"),
        ("SELECT * FROM c WHERE STARTSWITH(c.low, 's')", "/low/?"),
        ("SELECT * FROM c WHERE ARRAY_CONTAINS(c.tags, 3)", "/tags/[]/?"),
        ("SELECT * FROM c WHERE c.both.a > 3", "/both/a/?"),
        ("SELECT VALUE COUNT(1) FROM c WHERE c.low > 's3'", "/low/?"),
        ("SELECT * FROM c ORDER BY c.low", "/low/?"),
        ("SELECT * FROM c ORDER BY c.ratio DESC", "/ratio/?"),
        ("SELECT * FROM c ORDER BY c.low DESC, c.a", "/low DESC,/a ASC"),
        ("SELECT * FROM c WHERE c.unlisted = 's3'", ""),
    ] {
        assert_eq!(followed(&world, query), path, "{query}");
    }
}

#[test]
fn the_first_of_many_are_found_without_looking_at_all() {
    let items: Vec<Value> = (0..500).map(|n| json!({ "s": format!("{n:03}") })).collect();
    let world = World::computing(&definitions(), &policy(), &items);
    let limits = PageLimits { rows: 3, ..EVERYTHING };
    let page = world.first_page_within("SELECT VALUE c.low FROM c ORDER BY c.low", limits);
    assert!(page.work.items_loaded < 10, "{:?}", page.work);
}

#[test]
fn what_takes_too_long_is_undefined_with_and_without_an_index() {
    let query = format!("SELECT VALUE [{}] FROM c", ["c.s || c.s"; 20].join(", "));
    let long = json!([{ "name": "long", "query": query }]);
    let policy = json!({ "includedPaths": [{ "path": "/*" }, { "path": "/long/?" }] });
    let items: Vec<Value> = [1, 1 << 20].map(|bytes| json!({ "s": "x".repeat(bytes) })).into();
    let indexed = World::computing(&long, &policy, &items);
    let unindexed = World::unindexed_computing(&long, &policy, &items);
    for (query, ids) in [
        ("SELECT VALUE c.id FROM c ORDER BY c.long", &[r#""i1""#, r#""i0""#][..]),
        ("SELECT VALUE c.id FROM c WHERE IS_DEFINED(c.long)", &[r#""i0""#]),
    ] {
        assert_eq!(indexed.rows(query), ids, "{query}");
        assert_eq!(unindexed.rows(query), ids, "{query}");
    }
}

#[test]
fn an_index_of_another_definition_is_not_followed() {
    let items: Vec<Value> = (0..5).map(|n| json!({ "s": format!("S{n}"), "t": 9 - n })).collect();
    let world = World::computing(&definitions(), &policy(), &items);
    let ordered = "SELECT VALUE c.t FROM c ORDER BY c.low";
    let equal = "SELECT VALUE c.t FROM c WHERE c.low = 9";
    assert_eq!(followed(&world, ordered), "/low/?");

    // The gateway has heard of a new definition; the partition has not yet.
    let mut changed = definitions();
    changed[0]["query"] = "SELECT VALUE c.t FROM c".into();
    let world = world.with_computed(&changed);
    for steps in ["unheard", "building", "built"] {
        match steps {
            "building" => world.change_policy(),
            "built" => world.build(),
            _ => {}
        }
        let path = if steps == "built" { "/low/?" } else { "" };
        assert_eq!(followed(&world, ordered), path, "{steps}");
        assert_eq!(followed(&world, equal), path, "{steps}");
        assert_eq!(world.rows(ordered), ["5", "6", "7", "8", "9"], "{steps}");
        assert_eq!(world.rows(equal), ["9"], "{steps}");
    }

    // And the other way round: it is a stored property again.
    let world = world.with_computed(&json!([]));
    assert_eq!(followed(&world, equal), "");
    assert_eq!(world.rows(equal), [""; 0]);
    assert_eq!(world.rows("SELECT VALUE c.t FROM c ORDER BY c.low").len(), 5);
}

#[test]
fn stored_values_are_not_taken_for_computed_ones() {
    let items = [json!({ "low": "x", "s": "Y" }), json!({ "low": "y", "s": "X" })];
    let policy = json!({});
    let world = World::new(&policy, &items, 1).with_computed(&definitions());
    let query = "SELECT VALUE c.s FROM c WHERE c.low = 'x'";
    assert_eq!(world.rows(query), [r#""X""#]);
    assert_eq!(followed(&world, query), "");
}

#[test]
fn entries_go_with_their_items() {
    let item = |n: i64| json!({ "id": format!("i{n}"), "s": format!("S{n}") });
    let items: Vec<Value> = (0..5).map(item).collect();
    let world = World::computing(&definitions(), &policy(), &items);
    world.delete("i2");
    let rows = world.rows("SELECT VALUE c.low FROM c ORDER BY c.low");
    assert_eq!(rows, [r#""s0""#, r#""s1""#, r#""s3""#, r#""s4""#]);
}

/// An item with properties that are there, or not, or of another type.
fn item() -> impl Strategy<Value = Value> {
    let scalar = || {
        prop_oneof![
            Just(json!(null)),
            Just(json!(true)),
            (-2..3_i64).prop_map(|n| json!(n)),
            "[xX]{0,2}".prop_map(|text| json!(text)),
        ]
    };
    let property = || prop::option::of(scalar());
    let tags = prop::option::of(prop::collection::vec(scalar(), 0..3));
    let names = ["s", "a", "b", "low", "tags"];
    (property(), property(), property(), property(), tags).prop_map(move |(s, a, b, low, tags)| {
        let values = [s, a, b, low, tags.map(Value::from)];
        let members = names.iter().zip(values);
        members.filter_map(|(name, value)| Some((name.to_string(), value?))).collect()
    })
}

/// Filters and orders of computed properties.
fn query() -> impl Strategy<Value = (String, bool)> {
    let filter = prop::sample::select(vec![
        "true",
        "c.low = 'x'",
        "c.low != 'x'",
        "c.low IN ('x', '', 1)",
        "c.low LIKE 'x%'",
        "CONTAINS(c.low, 'xx')",
        "c.ratio < 1",
        "c.ratio >= 0",
        "c.ratio = 0",
        "c.ratio IN (1, -1)",
        "NOT IS_DEFINED(c.ratio)",
        "IS_NUMBER(c.ratio)",
        "ARRAY_CONTAINS(c.tags, 1)",
        "ARRAY_CONTAINS(c.tags, 1) OR c.low = 'x'",
        "c.both.a = 1",
        "c.both.a = 1 AND c.low = 'x'",
        "c.both.s > 'X' OR c.b = 1",
        "c.both = {a: 1, s: 'x'}",
        "c.unlisted = 'x'",
    ]);
    let order = prop::sample::select(vec![
        "",
        "",
        "ORDER BY c.low",
        "ORDER BY c.low DESC",
        "ORDER BY c.ratio",
        "ORDER BY c.ratio DESC",
        "ORDER BY c.low, c.a DESC",
        "ORDER BY c.low DESC, c.a",
    ]);
    let select = prop::sample::select(vec!["c.id", "[c.id, c.low, c.ratio]", "COUNT(1)"]);
    (select, filter, order).prop_map(|(select, filter, order)| {
        let query = format!("SELECT VALUE {select} FROM c WHERE {filter} {order}");
        (query, !order.is_empty())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn their_index_changes_nothing(
        items in prop::collection::vec(item(), 0..12),
        (query, is_ordered) in query(),
        rows in 1_usize..8,
    ) {
        let limits = PageLimits { rows, ..EVERYTHING };
        let world = World::computing(&definitions(), &policy(), &items);
        let mut found = world.pages(&query, limits).concat();
        let mut expected = World::unindexed_computing(&definitions(), &policy(), &items).rows(&query);
        if !is_ordered {
            found.sort();
            expected.sort();
        }
        prop_assert_eq!(found, expected, "{}", query);
    }
}
