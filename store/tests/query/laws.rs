//! A container gives the same rows however it is cut into partitions, and whatever is indexed.

use ephemeris_store::query::PageLimits;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::paging::{QUERIES, item};
use crate::world::{EVERYTHING, World};

/// Rows in an order that says nothing, for results that have none.
fn as_set(mut rows: Vec<String>) -> Vec<String> {
    rows.sort();
    rows
}

proptest! {
    #[test]
    fn partitions_add_up_to_one(
        items in prop::collection::vec(item(), 0..25),
        query in prop::sample::select(&QUERIES[..]),
        partitions in 2_u16..5,
    ) {
        let without_rids = |rows: Vec<String>| rows.iter().map(|row| strip(row)).collect();
        let one = without_rids(World::new(&json!({}), &items, 1).rows(query));
        let many = without_rids(World::new(&json!({}), &items, partitions).rows(query));
        // Equal keys come in the order of numbers, which each partition counts for itself.
        prop_assert_eq!(as_set(many), as_set(one), "{}", query);
    }

    #[test]
    fn partitions_are_merged_in_one_order(
        items in prop::collection::vec(item(), 0..25),
        query in prop::sample::select(&SORTED[..]),
        partitions in 2_u16..5,
    ) {
        let both = json!([[{ "path": "/v", "order": "descending" }, { "path": "/id" }]]);
        let policy = json!({ "compositeIndexes": both });
        let one = World::new(&policy, &items, 1).rows(query);
        let many = World::new(&policy, &items, partitions).rows(query);
        prop_assert_eq!(many, one, "{}", query);
    }
}

/// Queries whose rows are what they are sorted by.
const SORTED: [&str; 5] = [
    "SELECT VALUE c.v FROM c ORDER BY c.v",
    "SELECT VALUE c.v FROM c ORDER BY c.v DESC",
    "SELECT TOP 7 VALUE c.v FROM c ORDER BY c.v DESC",
    "SELECT VALUE {v: c.v, id: c.id} FROM c ORDER BY c.v DESC, c.id",
    "SELECT VALUE c.v FROM c JOIN t IN c.t ORDER BY c.v",
];

#[test]
fn an_index_is_followed_where_it_helps() {
    let items: Vec<Value> = (0..10).map(|v| json!({ "v": v, "w": v % 2, "t": [v] })).collect();
    let composite = json!([[{ "path": "/v" }, { "path": "/w", "order": "descending" }]]);
    let policy = json!({
        "includedPaths": [{ "path": "/*" }, { "path": "/v/?" }],
        "excludedPaths": [{ "path": "/x/?" }],
        "compositeIndexes": composite,
    });
    let world = World::new(&policy, &items, 1);
    for (query, followed) in [
        ("SELECT * FROM c WHERE c.v = 3", "/v/?"),
        ("SELECT * FROM c WHERE c.w = 1 AND c.v IN (3, 4)", "/v/?"),
        ("SELECT * FROM c WHERE c.v > 3 AND c.x = 1", "/v/?"),
        ("SELECT * FROM c WHERE ARRAY_CONTAINS(c.t, 3)", "/t/[]/?"),
        ("SELECT * FROM c WHERE c.v = 3 OR c.w = 7", "/v/? /w/?"),
        ("SELECT * FROM c WHERE c['x, y'].z = 3", "/\"x, y\"/z/?"),
        ("SELECT * FROM c ORDER BY c.v", "/v/?"),
        ("SELECT * FROM c ORDER BY c.v DESC, c.w", "/v DESC,/w ASC"),
        ("SELECT VALUE COUNT(1) FROM c WHERE c.v >= 2", "/v/?"),
        ("SELECT * FROM c WHERE CONTAINS(c.s, 'a')", "/s/?"),
        ("SELECT * FROM c WHERE c.s LIKE '%a' AND c.x = 1", "/s/?"),
        ("SELECT VALUE COUNT(1) FROM c WHERE ENDSWITH(c.s, 'a')", "/s/?"),
        ("SELECT * FROM c WHERE CONTAINS(c.s, 'a') AND c.v = 3", "/v/?"),
        ("SELECT * FROM c WHERE CONTAINS(c.s, c.w)", ""),
        ("SELECT * FROM c WHERE NOT CONTAINS(c.s, 'a')", ""),
        ("SELECT * FROM c WHERE c.x = 1", ""),
        ("SELECT * FROM c WHERE c.v = 3 OR c.x = 7", ""),
        ("SELECT * FROM c WHERE NOT (c.v = 3)", ""),
        ("SELECT * FROM c WHERE c.v + 1 = 3", ""),
        ("SELECT * FROM c WHERE c._etag = 'x'", ""),
        ("SELECT * FROM c", ""),
    ] {
        assert_eq!(world.first_page(query).followed.join(" "), followed, "{query}");
    }
}

#[test]
fn only_items_that_meet_all_conditions_of_an_index_are_loaded() {
    let item = |n: i64| {
        let text = format!("{}{n}", n % 5);
        json!({ "a": n % 2, "b": n % 3, "even": n % 2 == 0, "n": n, "s": text })
    };
    let items: Vec<Value> = (0..3000).map(item).collect();
    let world = World::new(&json!({}), &items, 1);
    for (query, loaded, scanned) in [
        ("SELECT * FROM c WHERE c.a = 1", 1500, 0),
        // Entries of single values are joined.
        ("SELECT * FROM c WHERE c.a = 1 AND c.b = 2", 500, 0),
        ("SELECT * FROM c WHERE c.b IN (2, 7) AND c.a = 1 AND c.n >= 0", 500, 0),
        ("SELECT * FROM c WHERE c.a = 1 AND c.b = 3", 0, 0),
        ("SELECT * FROM c WHERE c.even IN (false, true) AND c.a = 1", 1500, 0),
        // Conditions on one path are one.
        ("SELECT * FROM c WHERE c.n > 10 AND c.n <= 20", 10, 0),
        ("SELECT * FROM c WHERE c.n > 20 AND c.n <= 10", 0, 0),
        ("SELECT * FROM c WHERE (c.n > 10 AND c.n < 20) OR c.n = 2999", 10, 0),
        ("SELECT VALUE COUNT(1) FROM c WHERE c.n > 10 AND c.n <= 20", 0, 0),
        // Values are tested one by one; those of one path are as many as are distinct.
        ("SELECT * FROM c WHERE CONTAINS(c.s, '299')", 15, 3000),
        ("SELECT VALUE COUNT(1) FROM c WHERE CONTAINS(c.s, '299')", 0, 3000),
        ("SELECT * FROM c WHERE c.s LIKE '42%9'", 111, 222),
        ("SELECT * FROM c WHERE c.n + 0 = 5", 3000, 0),
    ] {
        let work = world.first_page(query).work;
        assert_eq!((work.items_loaded, work.values_scanned), (loaded, scanned), "{query}");
    }
}

#[test]
fn counts_leave_out_what_was_deleted_by_its_partition_key() {
    let item = |n: i64| json!({ "pk": n % 2, "n": n });
    let items: Vec<Value> = (0..20).map(item).collect();
    let world = World::new(&json!({}), &items, 1);
    world.clear(&json!(1));
    world.clear(&json!(1));
    for (query, count) in [
        ("SELECT VALUE COUNT(1) FROM c", "10"),
        ("SELECT VALUE COUNT(1) FROM c WHERE c.n >= 5", "7"),
        ("SELECT VALUE COUNT(1) FROM c WHERE c.pk = 1", "0"),
    ] {
        let page = world.first_page(query);
        assert_eq!(page.work.items_loaded, 0, "{query} reads no items");
        assert_eq!(world.rows(query), [count], "{query}");
    }
}

#[test]
fn thousands_of_conditions_are_no_burden() {
    let items: Vec<Value> = (0..100).map(|n| json!({ "n": n, "s": n.to_string() })).collect();
    let world = World::new(&json!({}), &items, 1);
    let filter = |one: fn(usize) -> String| (0..1900).map(one).collect::<Vec<_>>().join(" AND ");
    for (filter, rows) in [
        (filter(|n| format!("c.n > {}", n % 90)), 10),
        (filter(|n| format!("c.missing{n} = {n}")), 0),
        (filter(|_| "CONTAINS(c.s, REPLICATE('7', 1))".to_string()), 19),
        (format!("{} OR c.n = 1", filter(|n| format!("c.n > {}", n % 90))), 11),
    ] {
        let found = world.rows(&format!("SELECT * FROM c WHERE {filter}"));
        assert_eq!(found.len(), rows, "{}", &filter[..40]);
    }
}

/// Policies that index everything, something, or nothing that helps.
fn policy() -> impl Strategy<Value = Value> {
    let all = json!([{ "path": "/*" }]);
    let composite = json!([[{ "path": "/v" }, { "path": "/w", "order": "descending" }]]);
    prop_oneof![
        Just(json!({})),
        Just(json!({ "includedPaths": [{ "path": "/*" }, { "path": "/v/?" }] })),
        Just(json!({ "includedPaths": all, "excludedPaths": [{ "path": "/w/?" }] })),
        Just(json!({ "includedPaths": [{ "path": "/v/?" }], "excludedPaths": [{ "path": "/*" }] })),
        Just(json!({ "includedPaths": all, "compositeIndexes": composite })),
    ]
}

/// A condition on one path, of a kind that an index may answer.
fn condition() -> impl Strategy<Value = String> {
    let path = prop::sample::select(vec!["c.v", "c.w", "c.s", "c['v']", "c.v[0]", "c.missing"]);
    let operator = prop::sample::select(vec!["=", "!=", "<", "<=", ">", ">="]);
    let value = prop::sample::select(vec![
        "0",
        "1",
        "2",
        "3.0",
        "1.5",
        "-1",
        "null",
        "true",
        "false",
        "'one'",
        "'x'",
        "[1]",
        "undefined",
        "9007199254740993",
        "{\"a\":1}",
    ]);
    let compare = (path.clone(), operator, value.clone())
        .prop_map(|(path, operator, value)| format!("{path} {operator} {value}"));
    let between = (path.clone(), value.clone(), value.clone())
        .prop_map(|(path, low, high)| format!("{path} BETWEEN {low} AND {high}"));
    let within = (path.clone(), prop::collection::vec(value.clone(), 1..4))
        .prop_map(|(path, values)| format!("{path} IN ({})", values.join(", ")));
    let functions = prop::sample::select(vec![
        "IS_DEFINED(c.v)",
        "NOT IS_DEFINED(c.w)",
        "IS_NUMBER(c.v)",
        "IS_STRING(c.s)",
        "IS_NULL(c.v)",
        "IS_ARRAY(c.v)",
        "IS_OBJECT(c.v)",
        "STARTSWITH(c.s, 'x')",
        "STARTSWITH(c.s, 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\
         xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx')",
        "c.s LIKE 'x%'",
        "c.s LIKE 'x_'",
        "c.s LIKE 'x%y'",
        "ARRAY_CONTAINS(c.t, 1)",
        "ARRAY_CONTAINS(c.t, c.v)",
        "c.v",
        "NOT c.v",
        "CONTAINS(c.s, 'y')",
        "CONTAINS(c.s, 'Y', true)",
        "ENDSWITH(c.s, 'xy')",
        "REGEXMATCH(c.s, '^x+y?$')",
        "STRINGEQUALS(c.s, 'XY', true)",
        "STARTSWITH(c.s, 'X', true)",
        "NOT CONTAINS(c.s, 'y')",
        "c.s LIKE '%y'",
        "c.s NOT LIKE '%y'",
        "c.w + 1 = 2",
    ]);
    prop_oneof![4 => compare, 1 => between, 1 => within, 2 => functions.prop_map(String::from)]
}

fn filter() -> impl Strategy<Value = String> {
    condition().prop_recursive(3, 8, 3, |inner| {
        let joined = (inner.clone(), prop::sample::select(vec!["AND", "OR"]), inner.clone());
        prop_oneof![
            joined.prop_map(|(a, operator, b)| format!("({a}) {operator} ({b})")),
            inner.prop_map(|one| format!("NOT ({one})")),
        ]
    })
}

/// Queries with a filter in them, and whether their rows come in an order.
const FILTERED: [(&str, bool); 8] = [
    ("SELECT VALUE c.id FROM c WHERE {}", false),
    ("SELECT * FROM c WHERE {}", false),
    ("SELECT VALUE COUNT(1) FROM c WHERE {}", true),
    ("SELECT MIN(c.v) AS l, MAX(c.s) AS h, COUNT(c.w) AS n FROM c WHERE {}", true),
    ("SELECT VALUE [c.id, t] FROM c JOIN t IN c.t WHERE {}", false),
    ("SELECT VALUE c.id FROM c WHERE {} ORDER BY c.v", true),
    ("SELECT VALUE c.id FROM c WHERE {} ORDER BY c.v DESC", true),
    ("SELECT c.w, COUNT(1) AS n FROM c WHERE {} GROUP BY c.w", false),
];

/// Text, some of it longer than an index keeps.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[xy]{0,3}".prop_map(String::from),
        "[xy]{0,2}".prop_map(|end| format!("{}{end}", "x".repeat(130))),
        Just("x".repeat(100)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn an_index_changes_nothing(
        items in prop::collection::vec((item(), prop::option::of(text())), 0..20),
        policy in policy(),
        (query, is_ordered) in prop::sample::select(&FILTERED[..]),
        filter in filter(),
        rows in 1_usize..8,
    ) {
        let with_text = |(mut item, text): (Value, Option<String>)| {
            if let Some(text) = text {
                item["s"] = text.into();
            }
            item
        };
        let items: Vec<Value> = items.into_iter().map(with_text).collect();
        let query = query.replace("{}", &filter);
        let indexed = World::new(&policy, &items, 1);
        let expected = World::unindexed(&policy, &items, 1).rows(&query);
        gives(&indexed, (&query, is_ordered), rows, expected)?;
    }

    #[test]
    fn what_is_deleted_by_its_partition_key_changes_nothing(
        items in prop::collection::vec((item(), 0..3_u8), 0..20),
        policy in policy(),
        (query, is_ordered) in prop::sample::select(&FILTERED[..]),
        filter in prop_oneof![Just("true".to_string()), filter()],
        rows in 1_usize..8,
    ) {
        let named = |(at, (mut item, pk)): (usize, (Value, u8))| {
            (item["id"], item["pk"]) = (format!("i{at}").into(), pk.into());
            item
        };
        let items: Vec<Value> = items.into_iter().enumerate().map(named).collect();
        let kept: Vec<Value> = items.iter().filter(|item| item["pk"] != 0).cloned().collect();
        let query = query.replace("{}", &filter);
        let cleared = World::new(&policy, &items, 1);
        cleared.clear(&json!(0));
        let expected = World::unindexed(&policy, &kept, 1).rows(&query);
        gives(&cleared, (&query, is_ordered), rows, expected)?;
    }

    #[test]
    fn a_composite_index_gives_its_order(
        items in prop::collection::vec(item(), 0..20),
        turned in any::<bool>(),
        rows in 1_usize..8,
    ) {
        let composite = json!([[{ "path": "/v" }, { "path": "/w", "order": "descending" }]]);
        let policy = json!({ "includedPaths": [{ "path": "/*" }], "compositeIndexes": composite });
        let order = if turned { "c.v DESC, c.w" } else { "c.v, c.w DESC" };
        let query = format!("SELECT VALUE c.id FROM c ORDER BY {order}");
        let limits = PageLimits { rows, ..EVERYTHING };
        let found = World::new(&policy, &items, 1).pages(&query, limits).concat();
        let expected = World::unindexed(&policy, &items, 1).rows(&query);
        prop_assert_eq!(found, expected);
    }
}

/// Of a beginning that is longer than what an index keeps.
#[test]
fn a_text_is_not_found_by_a_beginning_that_it_only_begins() {
    let text = |length| json!({ "s": "x".repeat(length) });
    let items: Vec<Value> = [99, 100, 101, 149, 150, 151].into_iter().map(text).collect();
    let world = World::new(&json!({}), &items, 1);
    for (length, count) in [(99, "6"), (100, "5"), (101, "4"), (150, "2"), (152, "0")] {
        let beginning = "x".repeat(length);
        for filter in
            [format!("STARTSWITH(c.s, '{beginning}')"), format!("c.s LIKE '{beginning}%'")]
        {
            let query = format!("SELECT VALUE COUNT(1) FROM c WHERE {filter}");
            assert_eq!(world.rows(&query), [count], "{length}");
        }
    }
}

/// Items without a property have entries of a path that the policy lists.
#[test]
fn nothing_is_equal_to_what_is_undefined() {
    let policy = json!({
        "includedPaths": [{ "path": "/v/?" }], "excludedPaths": [{ "path": "/*" }]
    });
    let world = World::new(&policy, &[json!({}), json!({ "v": -1 })], 1);
    for (filter, count) in
        [("c.v = undefined", 0), ("c.v = undefined OR c.v < 0", 1), ("c.v IN (undefined, -1)", 1)]
    {
        let query = format!("SELECT VALUE COUNT(1) FROM c WHERE {filter}");
        assert_eq!(world.rows(&query), [count.to_string()], "{filter}");
    }
}

/// Fails unless pages of so many rows have these rows, in their order if the query has one.
pub(crate) fn gives(
    world: &World,
    (query, is_ordered): (&str, bool),
    rows: usize,
    expected: Vec<String>,
) -> Result<(), TestCaseError> {
    let found = world.pages(query, PageLimits { rows, ..EVERYTHING }).concat();
    let without = |rows: Vec<String>| rows.iter().map(|row| strip(row)).collect::<Vec<_>>();
    let (found, expected) = (without(found), without(expected));
    if is_ordered {
        prop_assert_eq!(found, expected, "{}", query);
    } else {
        prop_assert_eq!(as_set(found), as_set(expected), "{}", query);
    }
    Ok(())
}

/// A row without what depends on the partition that holds the item.
fn strip(row: &str) -> String {
    let mut row: Value = serde_json::from_str(row).expect("rows are JSON");
    if let Some(members) = row.as_object_mut() {
        members.retain(|name, _| !name.starts_with('_'));
    }
    row.to_string()
}
