//! Places with long keys: told in few bytes, and found again.

use ephemeris_store::codec;
use ephemeris_store::query::{PageLimits, Position, Progress, Window};
use ephemeris_store::time::Millis;
use serde_json::{Value, json};

use crate::world::{EVERYTHING, World};

/// Bytes of a place that fit a token of less than 1 KB.
const PLACE_BYTES_MAX: usize = 700;
const ITEMS: usize = 30;

fn id(n: usize) -> String {
    format!("{}{n:03}", "i".repeat(900))
}

/// Items that differ only behind much that is the same.
fn items() -> Vec<Value> {
    let long = |at: usize| format!("{}\u{FFFF}\u{10FFFF}{}", "k".repeat(800), at * 7 % 10);
    let item = |n: usize| {
        let any = match n % 5 {
            0 => json!(long(n)),
            1 => json!([long(n)]),
            2 => json!({ "o": long(n) }),
            3 => json!(n % 2),
            _ => json!(format!("{}{n}", "\u{FFFF}".repeat(500))),
        };
        let pk = format!("{}{}", "p".repeat(500), n % 2);
        json!({ "id": id(n), "pk": pk, "n": n, "w": n % 3, "t": [1, 2], "name": long(n), "any": any })
    };
    (0..ITEMS).map(item).collect()
}

fn policy() -> Value {
    let composite = json!([[{ "path": "/w", "order": "descending" }, { "path": "/name" }]]);
    json!({
        "includedPaths": [{ "path": "/*" }, { "path": "/name/?" }, { "path": "/any/?" }],
        "compositeIndexes": composite,
    })
}

fn world() -> World {
    World::new(&policy(), &items(), 2)
}

/// Queries whose rows are items, told by `n`.
const QUERIES: [&str; 8] = [
    "SELECT VALUE c.n FROM c",
    "SELECT VALUE c.n FROM c JOIN t IN c.t WHERE t = 2",
    "SELECT VALUE c.n FROM c ORDER BY c.name",
    "SELECT VALUE c.n FROM c ORDER BY c.name DESC",
    "SELECT VALUE c.n FROM c ORDER BY c.any",
    "SELECT VALUE c.n FROM c ORDER BY c.any DESC",
    "SELECT VALUE c.n FROM c ORDER BY c.w DESC, c.name",
    "SELECT DISTINCT VALUE c.n FROM c ORDER BY c.name",
];

/// Queries that are not about single items.
const OTHERS: [&str; 7] = [
    "SELECT DISTINCT VALUE c.name FROM c ORDER BY c.name",
    "SELECT DISTINCT VALUE c.name FROM c ORDER BY c.name DESC",
    "SELECT DISTINCT VALUE c.w FROM c ORDER BY c.name",
    "SELECT VALUE [c.n, t] FROM c JOIN t IN c.t ORDER BY c.name DESC",
    "SELECT VALUE [c.n, t] FROM c JOIN t IN c.t",
    "SELECT MIN(c.name) AS least, COUNT(1) AS n FROM c",
    "SELECT VALUE MAX(c.any) FROM c",
];

fn check_size(position: &Position) {
    let progress = Progress { at: position.clone(), left: Window::default(), first: Millis(1) };
    let bytes = codec::encode(&progress).len();
    assert!(bytes <= PLACE_BYTES_MAX, "{bytes} bytes: {position:?}");
}

fn limits(rows: usize) -> PageLimits {
    PageLimits { rows, items: rows, ..EVERYTHING }
}

/// All rows, page by page; between pages some of what was given out last is deleted.
fn rows(world: &World, text: &str, rows: usize, deleted: usize) -> Vec<String> {
    let mut given: Vec<String> = Vec::new();
    world.each_page(text, limits(rows), |page, next| {
        given.extend(page);
        next.into_iter().for_each(check_size);
        for row in given.iter().rev().take(deleted) {
            world.delete(&id(row.parse().expect("rows are numbers")));
        }
    });
    given
}

#[test]
fn long_keys_take_few_bytes_and_nothing_is_lost() {
    let world = world();
    for text in QUERIES.iter().chain(&OTHERS) {
        let whole = world.rows(text);
        for page in [1, 2, 7] {
            assert_eq!(rows(&world, text, page, 0), whole, "{text}");
        }
    }
}

#[test]
fn what_stands_at_a_place_may_be_gone() {
    for text in QUERIES {
        for (page, deleted) in [(1, 1), (2, 1), (3, 2), (10, 7)] {
            let world = world();
            let whole = world.rows(text);
            assert_eq!(rows(&world, text, page, deleted), whole, "{text}, {deleted} of {page}");
        }
    }
}

#[test]
fn nothing_is_left_out_if_all_that_stood_there_is_gone() {
    for text in QUERIES {
        let world = world();
        let mut whole = world.rows(text);
        let mut found = rows(&world, text, 10, 9);
        whole.sort();
        found.sort();
        found.dedup();
        assert_eq!(found, whole, "{text}");
    }
}

#[test]
fn where_only_garbage_was_met_a_page_goes_on_to_what_tells_its_place() {
    let mut items = items();
    for (n, item) in items.iter_mut().enumerate() {
        if !n.is_multiple_of(9) {
            item["ttl"] = 10.into();
        }
    }
    let world = World::swept(&policy(), &items, 2);
    for text in QUERIES.iter().chain(&OTHERS) {
        let whole = world.rows(text);
        for page in [1, 2, 7] {
            assert_eq!(rows(&world, text, page, 0), whole, "{text}");
        }
    }
}
