//! Pages of results: together they are the whole result, and each is as small as was asked.

use std::cell::Cell;

use ephemeris_store::query::{
    Course, Halt, Harvest, Moment, PageLimits, Run, Signal, merge_distinct_groups,
};
use ephemeris_store::time::Millis;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::{EVERYTHING, World};

/// A partition with an item for each `v`, `fill` bytes of filling in each.
fn filled(items: &[(Value, usize)]) -> World {
    let item = |(v, fill): &(Value, usize)| json!({ "v": v, "fill": "x".repeat(*fill) });
    World::new(&json!({}), &items.iter().map(item).collect::<Vec<_>>(), 1)
}

fn sizes(pages: &[Vec<String>]) -> Vec<usize> {
    pages.iter().map(Vec::len).collect()
}

#[test]
fn a_page_counts_what_it_is_sorted_by() {
    let items: Vec<_> = (0..6).map(|at| (format!("{at}{}", "k".repeat(980)).into(), 0)).collect();
    let limits = PageLimits { rows: 100, bytes: 2500, items: 100 };
    let pages = filled(&items).pages("SELECT VALUE 1 FROM c ORDER BY c.v", limits);
    assert_eq!(sizes(&pages), [2, 2, 2]);
}

#[test]
fn a_row_larger_than_a_page_has_a_page_of_its_own() {
    let items = [(1.into(), 10), (2.into(), 5000), (3.into(), 10), (4.into(), 10)];
    let limits = PageLimits { rows: 100, bytes: 1000, items: 100 };
    let pages = filled(&items).pages("SELECT c.fill FROM c ORDER BY c.v", limits);
    assert_eq!(sizes(&pages), [1, 1, 2]);
}

/// A large row that does not fit must hold back the small ones that come after it.
#[test]
fn pages_have_no_gaps() {
    let items = [(1.into(), 10), (5.into(), 10), (3.into(), 900), (4.into(), 10)];
    let limits = PageLimits { rows: 100, bytes: 500, items: 100 };
    let pages = filled(&items).pages("SELECT c.v, c.fill FROM c ORDER BY c.v", limits);
    let starts: Vec<String> = pages.concat().iter().map(|row| row[..6].to_string()).collect();
    assert_eq!(starts.concat(), r#"{"v":1{"v":3{"v":4{"v":5"#);
}

#[test]
fn a_page_may_end_among_the_rows_of_an_item() {
    let items = [json!({ "t": [1, 2, 3, 4, 5] }), json!({ "t": [6] }), json!({ "t": [] })];
    let world = World::new(&json!({}), &items, 1);
    let text = "SELECT VALUE t FROM c JOIN t IN c.t";
    let limits = PageLimits { rows: 2, ..EVERYTHING };
    let mut rows = world.pages(text, limits).concat();
    rows.sort();
    assert_eq!(rows, ["1", "2", "3", "4", "5", "6"]);
}

/// What was gathered fits no continuation token: the page goes on to its end, in the middle of a partition, too.
#[test]
fn what_is_too_long_for_a_place_is_one_page() {
    let items: Vec<_> = (0..30).map(|at| json!({ "v": format!("{at:0>60}") })).collect();
    let limits = PageLimits { rows: 100, bytes: 1 << 20, items: 14 };
    for partitions in [1, 3] {
        let world = World::new(&json!({}), &items, partitions);
        let pages = world.pages("SELECT VALUE ARRAY_LENGTH(MAKELIST(c.v)) FROM c", limits);
        assert_eq!(pages, [["30"]], "{partitions} partitions");
    }
}

/// An index has the items of all logical partitions: few are not looked for among many.
#[test]
fn a_sorted_result_of_one_logical_partition_follows_an_index_only_if_it_is_large() {
    let item = |n: usize| json!({ "pk": if n < 3000 { 0 } else { n / 50 }, "v": 10_000 - n });
    let items: Vec<Value> = (0..9000).map(item).collect();
    let policy = json!({
        "includedPaths": [{ "path": "/*" }, { "path": "/v/?" }],
        "compositeIndexes": [[{ "path": "/v" }, { "path": "/pk" }]],
    });
    let world = World::new(&policy, &items, 1);
    let limits = PageLimits { rows: 10, ..EVERYTHING };
    for (order, index) in [("c.v", "/v/?"), ("c.v, c.pk", "/v ASC,/pk ASC")] {
        let text = format!("SELECT VALUE c.v FROM c ORDER BY {order}");
        let page = |pk: usize| {
            let page = world.scoped_page(&text, &pk.into(), limits, &|| Signal::Go);
            page.expect("a page")
        };
        let followed = |pk: usize| page(pk).followed;
        assert_eq!(followed(100), ["/pk/?"], "{order}");
        assert_eq!(followed(0), [index], "{order}");
        let Harvest::Rows(rows) = page(100).harvest else { panic!("sorted rows") };
        let rows = rows.into_iter().map(|row| String::from_utf8(row.json).expect("JSON"));
        assert!(rows.eq((4951..4961).map(|v| v.to_string())), "{order}");
        // To look at the items and to count them and the entries before is asked about, too: 3000,
        // 3 thousands, and once for 4242.
        let asked = Cell::new(0);
        let signal = || {
            asked.set(asked.get() + 1);
            Signal::Go
        };
        let limits = PageLimits { rows: 2000, ..EVERYTHING };
        world.scoped_page(&text, &0.into(), limits, &signal).expect("a page");
        assert_eq!(asked.get(), 3000 / 64 + 3 + 1, "{order}");
    }
    // There are more of its items than entries that the filter leaves.
    let text = "SELECT VALUE c.v FROM c WHERE c.v > 8800 ORDER BY c.v";
    let limits = PageLimits { rows: 2000, ..EVERYTHING };
    let page = world.scoped_page(text, &0.into(), limits, &|| Signal::Go).expect("a page");
    assert_eq!(page.followed, ["/v/?"]);
}

/// Queries of every course.
pub(crate) const QUERIES: [&str; 25] = [
    "SELECT * FROM c",
    "SELECT VALUE c.v FROM c WHERE c.v > 1",
    "SELECT VALUE [c.id, t] FROM c JOIN t IN c.t",
    "SELECT c.id, t FROM c JOIN t IN c.t WHERE t != c.v ORDER BY c.v DESC",
    "SELECT * FROM c ORDER BY c.v",
    "SELECT VALUE c.id FROM c ORDER BY c.v DESC",
    "SELECT VALUE c.missing FROM c ORDER BY c.v",
    "SELECT DISTINCT c.v FROM c",
    "SELECT DISTINCT VALUE c.v FROM c",
    "SELECT DISTINCT VALUE c.v FROM c ORDER BY c.v",
    "SELECT DISTINCT VALUE c.v FROM c ORDER BY c.v DESC",
    "SELECT c.v, COUNT(1) AS n, MIN(c.id) AS least FROM c GROUP BY c.v",
    "SELECT VALUE {v: c.v, n: COUNT(t)} FROM c JOIN t IN c.t GROUP BY c.v",
    "SELECT VALUE COUNT(1) FROM c",
    "SELECT COUNT(c.w) AS n, SUM(c.v) AS s, AVG(c.v) AS a, MIN(c.v) AS l, MAX(c.id) AS h FROM c",
    "SELECT VALUE MAX(c.missing) FROM c",
    "SELECT TOP 3 VALUE c.v FROM c ORDER BY c.v",
    "SELECT VALUE c.v FROM c ORDER BY c.v OFFSET 2 LIMIT 4",
    "SELECT DISTINCT VALUE c.v FROM c ORDER BY c.v OFFSET 1 LIMIT 2",
    "SELECT DISTINCT VALUE c.w FROM c ORDER BY c.v",
    "SELECT DISTINCT c.w FROM c ORDER BY c.v DESC OFFSET 1 LIMIT 1",
    "SELECT DISTINCT VALUE COUNT(1) FROM c GROUP BY c.v",
    "SELECT TOP 0 * FROM c",
    "SELECT VALUE 1",
    "SELECT VALUE COUNT(1) FROM c JOIN t IN c.t WHERE c.v < 3",
];

proptest! {
    #[test]
    fn small_pages_make_up_the_one_large_page(
        items in prop::collection::vec(item(), 0..25),
        query in prop::sample::select(&QUERIES[..]),
        partitions in 1_u16..4,
        rows in 1_usize..6,
        bytes in 1_usize..700,
        looks in 1_usize..4,
    ) {
        let world = World::new(&json!({}), &items, partitions);
        let whole = world.pages(query, EVERYTHING);
        prop_assert_eq!(whole.len(), 1);
        let small = world.pages(query, PageLimits { rows, bytes, items: looks });
        for page in &small {
            prop_assert!(page.len() <= rows);
        }
        let (mut small, mut whole) = (small.concat(), whole.concat());
        if world.compile(query).course() == Course::Keyed {
            // What nobody sorted comes in the order of digests, unless one page holds it all.
            small.sort();
            whole.sort();
        }
        prop_assert_eq!(small, whole, "{}", query);
    }

    #[test]
    fn a_page_holds_no_more_bytes_than_it_may(
        items in prop::collection::vec((0_u8..4, 0_usize..300), 0..25),
        bytes in 1_usize..700,
    ) {
        let items: Vec<_> = items.into_iter().map(|(v, fill)| (v.into(), fill)).collect();
        let limits = PageLimits { bytes, ..EVERYTHING };
        for page in filled(&items).pages("SELECT * FROM c ORDER BY c.v", limits) {
            let sent: usize = page.iter().map(String::len).sum();
            prop_assert!(sent <= bytes || page.len() == 1);
        }
    }
}

/// An item with few different values, so that many are equal.
pub(crate) fn item() -> impl Strategy<Value = Value> {
    let v = prop_oneof![
        6 => (0_i64..5).prop_map(Value::from),
        1 => Just(json!(1.5)),
        1 => Just(json!("one")),
        1 => Just(json!(null)),
        1 => Just(json!(true)),
        1 => Just(json!([1])),
        1 => Just(json!({ "a": 1 })),
    ];
    let tags = prop::collection::vec(0_u8..4, 0..4);
    (prop::option::weighted(0.9, v), prop::option::of(0_u8..3), prop::option::of(tags)).prop_map(
        |(v, w, t)| {
            let mut item = json!({});
            for (name, value) in [("v", v), ("w", w.map(Value::from)), ("t", t.map(Value::from))] {
                if let Some(value) = value {
                    item[name] = value;
                }
            }
            item
        },
    )
}

/// What must be held to be sorted by something else, or to be told apart, has the size of a page.
#[test]
fn what_a_page_cannot_hold_is_refused() {
    let items: Vec<Value> = (0..50).map(|n| json!({ "n": n, "v": format!("value {n}") })).collect();
    let world = World::new(&json!({}), &items, 1);
    let limits = PageLimits { bytes: 100, ..EVERYTHING };
    let page = |text| world.told_page(text, None, limits, &|| Signal::Go);

    let sorted = page("SELECT DISTINCT VALUE c.v FROM c ORDER BY c.n");
    let Err(Halt::Refused(error)) = sorted else { panic!("not refused: {sorted:?}") };
    assert!(error.to_message().contains("too many distinct rows"), "{}", error.to_message());

    let text = "SELECT DISTINCT VALUE COUNT(1) FROM c GROUP BY c.v";
    let (query, pages) = (world.compile(text), vec![page(text).expect("some of the groups")]);
    let run = Run::new(Moment::new(Millis(0), Millis(0), 0));
    let merged = merge_distinct_groups(&query, pages, None, query.window, usize::MAX, &run);
    let error = merged.expect_err("not all groups are there").to_message();
    assert!(error.contains("too many groups for DISTINCT"), "{error}");
}

#[test]
fn garbage_does_not_make_a_short_logical_partition_look_long() {
    let other = |n: usize| json!({ "pk": n, "n": n });
    let own = |n: usize| json!({ "pk": "own", "n": n, "ttl": if n < 5 { -1 } else { 10 } });
    let items: Vec<Value> = (0..4000).map(other).chain((0..2000).map(own)).collect();
    let world = World::swept(&json!({}), &items, 1);
    let limits = PageLimits { rows: 100, ..EVERYTHING };
    let text = "SELECT VALUE c.n FROM c ORDER BY c.n";
    let page = world.scoped_page(text, &"own".into(), limits, &|| Signal::Go).expect("a page");
    assert_eq!((page.work.items_loaded, page.followed), (5, vec!["/pk/?".to_string()]));
}
