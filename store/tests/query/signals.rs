//! A page under way asks now and then whether to go on, whatever it does: nobody waits for what takes
//! long, and what nobody waits for ends.

use std::cell::Cell;

use ephemeris_store::query::{Course, Halt, Harvest, Page, PageLimits, Resume, Signal};
use serde_json::{Value, json};

use crate::world::{EVERYTHING, World};

const ITEMS: usize = 5000;

fn world() -> World {
    let item = |n: usize| json!({ "n": n, "s": format!("s{n:05}"), "x": n % 7, "t": [n] });
    let items: Vec<Value> = (0..ITEMS).map(item).collect();
    let policy = json!({
        "includedPaths": [{ "path": "/*" }],
        "excludedPaths": [{ "path": "/x/?" }],
        "compositeIndexes": [[{ "path": "/n" }, { "path": "/s" }]],
    });
    World::new(&policy, &items, 1)
}

/// Queries of every course, each along items, an index, or both.
const QUERIES: [&str; 15] = [
    "SELECT VALUE c.n FROM c",
    "SELECT VALUE c.n FROM c WHERE c.x = 9",
    "SELECT VALUE c.n FROM c WHERE c.n >= 0",
    "SELECT VALUE c.n FROM c WHERE CONTAINS(c.s, 'none')",
    "SELECT VALUE c.n FROM c WHERE CONTAINS(c.s, 's03500')",
    "SELECT VALUE SUM(c.n) FROM c WHERE CONTAINS(c.s, 's03500')",
    "SELECT VALUE t FROM c JOIN t IN c.t",
    "SELECT VALUE SUM(c.n) FROM c",
    "SELECT VALUE COUNT(1) FROM c WHERE c.n >= 0",
    "SELECT VALUE COUNT(1) FROM c WHERE ENDSWITH(c.s, '9')",
    "SELECT VALUE c.n FROM c ORDER BY c.s",
    "SELECT VALUE c.n FROM c WHERE c.x = 9 ORDER BY c.n, c.s",
    "SELECT DISTINCT VALUE c.x FROM c",
    "SELECT DISTINCT VALUE c.x FROM c ORDER BY c.n, c.s",
    "SELECT c.x, COUNT(1) AS count FROM c GROUP BY c.x",
];

#[test]
fn what_nobody_waits_for_ends_soon() {
    let world = world();
    for query in QUERIES {
        let asked = Cell::new(0);
        let signal = || {
            asked.set(asked.get() + 1);
            Signal::Stop
        };
        let page = world.told_page(query, None, EVERYTHING, &signal);
        assert!(matches!(page, Err(Halt::Stopped)), "{query}: {page:?}");
        assert_eq!(asked.get(), 1, "{query} ends at once");
    }
}

#[test]
fn large_items_are_not_passed_unasked() {
    let items: Vec<Value> = (0..10).map(|_| json!({ "s": "x".repeat(300 << 10) })).collect();
    let world = World::new(&json!({}), &items, 1);
    let asked = Cell::new(0);
    let signal = || {
        asked.set(asked.get() + 1);
        Signal::Go
    };
    world.told_page("SELECT VALUE 1 FROM c", None, EVERYTHING, &signal).expect("a page");
    assert!(asked.get() >= 9, "asked {} times", asked.get());
}

#[test]
fn items_that_take_long_are_not_passed_unasked() {
    let item = || json!({ "t": (0..100).collect::<Vec<_>>() });
    let items: Vec<Value> = (0..10).map(|_| item()).collect();
    let world = World::new(&json!({}), &items, 1);
    for query in [
        "SELECT VALUE COUNT(1) FROM c JOIN a IN c.t JOIN b IN c.t",
        "SELECT DISTINCT VALUE a + b FROM c JOIN a IN c.t JOIN b IN c.t",
        "SELECT VALUE a FROM c JOIN a IN c.t JOIN b IN c.t WHERE b < 0 ORDER BY c._ts",
    ] {
        let asked = Cell::new(0);
        let signal = || {
            asked.set(asked.get() + 1);
            Signal::Go
        };
        world.told_page(query, None, EVERYTHING, &signal).expect("a page");
        assert!(asked.get() >= 9, "{query}: asked {} times", asked.get());
    }
}

#[test]
fn ranges_without_entries_are_not_passed_unasked() {
    let items: Vec<Value> = (0..2000).map(|n| json!({ "n": n })).collect();
    let world = World::new(&json!({}), &items, 1);
    let list = (1..900).map(|second| second.to_string()).collect::<Vec<_>>().join(",");
    let query = format!("SELECT VALUE c.n FROM c WHERE c._ts IN ({list}) ORDER BY c._ts DESC");
    let page = world.first_page_within(&query, PageLimits { rows: 1, ..EVERYTHING });
    assert_eq!(page.followed, ["/_ts/?"]);
    let asked = Cell::new(0);
    let signal = || {
        asked.set(asked.get() + 1);
        Signal::Go
    };
    world.told_page(&query, None, PageLimits { rows: 1, ..EVERYTHING }, &signal).expect("a page");
    assert!(asked.get() >= 900 / 64, "asked {} times", asked.get());
}

#[test]
fn what_is_passed_over_is_not_passed_unasked() {
    let policy = json!({ "includedPaths": [{ "path": "/*" }] });
    let long = "x".repeat(200);
    let item = |_| json!({ "a": 1, "b": 1, "s": long, "ttl": 10 });
    let items: Vec<Value> = (0..ITEMS).map(item).collect();
    let (world, swept) = (World::new(&policy, &items, 1), World::swept(&policy, &items, 1));
    let page = |world: &World, query: &str, resume: Option<&Resume>, signal| {
        let asked = Cell::new(0);
        let signal = || {
            asked.set(asked.get() + 1);
            signal
        };
        let page = world.told_page(query, resume, EVERYTHING, &signal);
        (page, asked.get())
    };

    let repeats = "SELECT VALUE 1 FROM c WHERE c.a = 1 OR c.b = 1";
    let limits = PageLimits { rows: ITEMS, ..EVERYTHING };
    let all = world.told_page(repeats, None, limits, &|| Signal::Go).expect("a page");
    assert!(all.next.is_some(), "entries of the items that were found already are left");
    let (rest, asked) = page(&world, repeats, all.next.as_ref(), Signal::Go);
    assert!(matches!(rest.expect("a page").harvest, Harvest::Rows(rows) if rows.is_empty()));
    assert!(asked >= ITEMS / 100, "entries of the same items again: asked {asked} times");

    let few = World::new(&policy, &items[..ITEMS / 5], 1);
    let unsure = "SELECT VALUE COUNT(1) FROM c WHERE STARTSWITH(c.s, 'xx')";
    let (counted, _) = page(&few, unsure, None, Signal::Stop);
    assert!(matches!(counted, Err(Halt::Stopped)), "items that are looked at: {counted:?}");

    let joined = "SELECT VALUE 1 FROM c WHERE c.a = 1 AND c.b = 1";
    let (found, _) = page(&swept, joined, None, Signal::Stop);
    assert!(matches!(found, Err(Halt::Stopped)), "garbage in both: {found:?}");
}

#[test]
fn an_item_with_many_rows_is_left_when_nobody_waits() {
    let item = json!({ "t": (0..100).collect::<Vec<_>>() });
    let world = World::new(&json!({}), &[item], 1);
    let asked = Cell::new(0);
    let signal = || {
        asked.set(asked.get() + 1);
        Signal::Stop
    };
    let joins = "SELECT VALUE COUNT(1) FROM c JOIN a IN c.t JOIN b IN c.t JOIN d IN c.t";
    for filter in ["true", "a + b + d < 0"] {
        asked.set(0);
        let page = world.told_page(&format!("{joins} WHERE {filter}"), None, EVERYTHING, &signal);
        assert!(matches!(page, Err(Halt::Stopped)), "{filter}: {page:?}");
        assert_eq!(asked.get(), 1, "{filter}");
    }
}

#[test]
fn a_page_that_pauses_loses_nothing_and_one_that_cannot_goes_on() {
    let world = world();
    for query in QUERIES {
        let course = world.compile(query).course();
        let (mut rows, mut sums, mut pages, mut next) = (Vec::new(), Vec::new(), 0, None::<Resume>);
        loop {
            let page = world.told_page(query, next.as_ref(), EVERYTHING, &|| Signal::Pause);
            let Page { harvest, next: then, .. } = page.expect("a page");
            match harvest {
                Harvest::Rows(found) => rows.extend(found.into_iter().map(|row| row.json)),
                Harvest::Sums(found) => sums.push(found),
                Harvest::Keyed(_) => {}
            }
            pages += 1;
            next = then;
            if next.is_none() {
                break;
            }
        }
        let is_count = query.contains("COUNT(1) FROM c WHERE");
        let can_pause = matches!(course, Course::Walk | Course::Sums) && !is_count;
        assert_eq!(pages > 1, can_pause, "{query}: {pages} pages");
        if course == Course::Walk {
            let rows: Vec<String> =
                rows.into_iter().map(|row| String::from_utf8(row).expect("JSON")).collect();
            assert_eq!(rows, world.rows(query), "{query}");
        }
        if let Some(sums) = sums.into_iter().reduce(|mut all, one| {
            all.merge(one);
            all
        }) {
            let page = world.told_page(query, None, EVERYTHING, &|| Signal::Go).expect("a page");
            assert!(matches!(page.harvest, Harvest::Sums(whole) if whole == sums), "{query}");
        }
    }
}

#[test]
fn pages_pass_the_many_entries_of_an_item_and_go_on_behind_them() {
    let numbers: Vec<u64> = (0..900).collect();
    let with_many = [json!({ "n": 1, "t": numbers }), json!({ "n": 2, "t": [5000] })];
    let others = (0..5000).map(|_| json!({ "n": 0 }));
    let world = World::new(&json!({}), &with_many.into_iter().chain(others).collect::<Vec<_>>(), 1);
    let contains = |n: u64| format!("ARRAY_CONTAINS(c.t, {n})");
    let filter = (0..900).chain([5000]).map(contains).collect::<Vec<_>>().join(" OR ");
    let query = format!("SELECT VALUE c.n FROM c WHERE {filter}");
    let limits = PageLimits { items: 100, ..EVERYTHING };
    let (mut rows, mut pages, mut next) = (Vec::new(), 0, None::<Resume>);
    loop {
        let page = world.told_page(&query, next.as_ref(), limits, &|| Signal::Go).expect("a page");
        let Harvest::Rows(found) = page.harvest else { panic!("these are rows") };
        rows.extend(found.into_iter().map(|row| row.json));
        pages += 1;
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(rows, [b"1", b"2"]);
    assert!((8..=12).contains(&pages), "{pages} pages for 901 entries, 100 at a time");
}

#[test]
fn ways_are_not_compared_unasked_and_no_farther_than_needed() {
    let items: Vec<Value> = (0..1000).map(|n| json!({ "a": 0, "b": 0, "n": n })).collect();
    let world = World::new(&json!({}), &items, 1);
    let asked = Cell::new(0);
    let asks = |values: std::ops::Range<usize>, signal| {
        let list = values.map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        let query = format!("SELECT VALUE c.n FROM c WHERE c.a IN ({list}) AND c.b IN ({list})");
        let signal = || {
            asked.set(asked.get() + 1);
            signal
        };
        let page = world.told_page(&query, None, PageLimits { rows: 1, ..EVERYTHING }, &signal);
        (asked.take(), page)
    };
    let (_, page) = asks(1..1000, Signal::Stop);
    assert!(matches!(page, Err(Halt::Stopped)), "a thousand ranges without entries: {page:?}");
    let (asked, page) = asks(0..1000, Signal::Go);
    assert_eq!(asked, 0, "the first range has as many entries as are counted");
    assert!(matches!(page.expect("a page").harvest, Harvest::Rows(rows) if rows.len() == 1));
}
