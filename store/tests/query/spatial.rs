//! A spatial index leads to the items that are there, and changes no result.

use ephemeris_store::query::{Metric, PageLimits};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::{EVERYTHING, World};

fn point(x: f64, y: f64) -> Value {
    json!({ "type": "Point", "coordinates": [x, y] })
}

/// A square around a place.
fn square(x: f64, y: f64, half: f64) -> Value {
    let (left, right, low, high) = (x - half, x + half, y - half, y + half);
    let ring = json!([[left, low], [right, low], [right, high], [left, high], [left, low]]);
    json!({ "type": "Polygon", "coordinates": [ring] })
}

fn policy(path: &str) -> Value {
    let spatial = json!([{ "path": path, "types": ["Point"] }]);
    json!({ "spatialIndexes": spatial, "includedPaths": [{ "path": "/*" }] })
}

/// Cities on a grid of a hundredth of a degree.
fn grid(side: u32) -> Vec<Value> {
    let places = (0..side).flat_map(|x| (0..side).map(move |y| (f64::from(x), f64::from(y))));
    let item =
        |(x, y): (f64, f64)| json!({ "at": point(10.0 + x / 100.0, 50.0 + y / 100.0), "x": x });
    places.map(item).collect()
}

#[test]
fn only_what_may_be_near_is_looked_at() {
    let items = grid(100);
    let world = World::in_space(Metric::Geography, &policy("/at/?"), &items);
    let unindexed = World::unindexed_in_space(Metric::Geography, &policy("/at/?"), &items);
    let here = point(10.5, 50.5);
    for (filter, loaded_max) in [
        (format!("ST_DISTANCE(c.at, {here}) < 3000"), 200),
        (format!("1000 > ST_DISTANCE({here}, c.at)"), 60),
        (format!("ST_DISTANCE(c.at, {here}) BETWEEN 1 AND 3000"), 200),
        (format!("ST_WITHIN(c.at, {})", square(10.5, 50.5, 0.021)), 200),
        (format!("ST_INTERSECTS({}, c.at)", square(10.5, 50.5, 0.021)), 200),
        (format!("ST_DISTANCE(c.at, {here}) < 3000 AND c.x = 50"), 100),
        // A part of the items that is not small is found by looking at all of them, and so is what no
        // place is asked for.
        (format!("ST_DISTANCE(c.at, {here}) < 30000"), 10_000),
        (format!("ST_DISTANCE(c.at, {here}) > 1000"), 10_000),
        (format!("NOT ST_WITHIN(c.at, {})", square(10.5, 50.5, 0.021)), 10_000),
        ("ST_DISTANCE(c.at, c.at) < 1".to_string(), 10_000),
    ] {
        let query = format!("SELECT VALUE c.id FROM c WHERE {filter}");
        let (mut found, mut expected) = (world.rows(&query), unindexed.rows(&query));
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{query}");
        assert!(!found.is_empty(), "{query}");
        let loaded = world.first_page(&query).work.items_loaded;
        assert!(loaded <= loaded_max, "{query}: {loaded} for {}", found.len());
    }
    let near = format!("SELECT * FROM c WHERE ST_DISTANCE(c.at, {here}) < 3000");
    assert_eq!(world.first_page(&near).followed, ["/at/?"]);
}

#[test]
fn hundreds_of_places_are_no_burden() {
    let world = World::in_space(Metric::Geography, &policy("/at/?"), &grid(100));
    let near = |n: u32| {
        let here = point(10.0 + f64::from(n % 20) / 100.0, 50.0);
        format!("ST_DISTANCE(c.at, {here}) < {}", 100 + n / 20)
    };
    // As many as are soon looked up are looked up, and beyond that all items are looked at.
    for (places, is_followed) in [(20, true), (1000, false)] {
        let any = (0..places).map(near).collect::<Vec<_>>().join(" OR ");
        let query = format!("SELECT VALUE c.id FROM c WHERE {any}");
        assert_eq!(world.rows(&query).len(), 20);
        assert_eq!(!world.first_page(&query).followed.is_empty(), is_followed, "{places}");
    }
}

#[test]
fn a_spatial_index_serves_its_paths() {
    let items = [json!({ "at": point(1.0, 1.0), "deep": { "at": point(1.0, 1.0) } })];
    for (path, serves_at, serves_deep) in [
        ("/at/?", true, false),
        ("/at/*", true, false),
        ("/deep/*", false, true),
        ("/deep/at/?", false, true),
        ("/*", true, true),
    ] {
        let world = World::in_space(Metric::Geography, &policy(path), &items);
        for (asked, serves) in [("c.at", serves_at), ("c.deep.at", serves_deep)] {
            let query =
                format!("SELECT * FROM c WHERE ST_DISTANCE({asked}, {}) < 9", items[0]["at"]);
            let followed = world.first_page(&query).followed;
            assert_eq!(!followed.is_empty(), serves, "{path} {asked}: {followed:?}");
            assert_eq!(world.rows(&query).len(), 1);
        }
    }
}

#[test]
fn of_a_shape_with_repeated_names_the_last_count() {
    let items = [json!({ "at": point(0.0, 0.0) }), json!({ "at": point(10.0, 10.0) })];
    let world = World::in_space(Metric::Geography, &policy("/at/?"), &items);
    let unindexed = World::unindexed_in_space(Metric::Geography, &policy("/at/?"), &items);
    for here in [
        r#"{"type": "Point", "coordinates": [0, 0], "coordinates": [10, 10]}"#,
        r#"{"type": c.none, "coordinates": [10, 10], "type": "Point"}"#,
    ] {
        let query = format!("SELECT VALUE c.id FROM c WHERE ST_DISTANCE(c.at, {here}) < 100");
        assert_eq!(world.first_page(&query).followed, ["/at/?"]);
        assert_eq!(world.rows(&query), ["\"i1\""]);
        assert_eq!(unindexed.rows(&query), ["\"i1\""]);
    }
}

/// Coordinates, more often than not near others, near poles or the date line.
fn place(metric: Metric) -> BoxedStrategy<(f64, f64)> {
    let near = prop_oneof![
        Just((0.0, 0.0)),
        Just((179.999, 10.0)),
        Just((-179.999, 10.0)),
        Just((30.0, 89.9)),
        Just((-150.0, -89.9)),
    ];
    let near = (near, -0.001..0.001_f64, -0.05..0.05_f64).prop_map(|((x, y), east, north)| {
        (f64::clamp(x + east, -180.0, 180.0), f64::clamp(y + north, -90.0, 90.0))
    });
    match metric {
        Metric::Geography => prop_oneof![2 => near, 1 => (-180.0..180.0, -90.0..90.0)].boxed(),
        Metric::Geometry => {
            let any = (-1e9..1e9_f64, -1e9..1e9_f64);
            let huge = prop_oneof![Just((1e100, -1e100)), Just((1e-300, 0.0)), Just((-0.0, 0.0))];
            prop_oneof![4 => near, 2 => any, 1 => huge].boxed()
        }
    }
}

fn shape(metric: Metric) -> impl Strategy<Value = Value> {
    let half = prop_oneof![Just(1e-5), Just(0.01), Just(1.0), Just(40.0)];
    let coordinates = prop::collection::vec(place(metric), 2..4)
        .prop_map(|places| places.into_iter().map(|(x, y)| json!([x, y])).collect::<Vec<_>>());
    let line = coordinates.prop_map(|line| json!({ "type": "LineString", "coordinates": line }));
    // A second ring is a hole, wherever it lies.
    let hole = prop::option::of((-1.0..1.0_f64, prop_oneof![Just(0.5), Just(0.01)]));
    let area =
        (place(metric), half, hole, any::<bool>()).prop_map(|((x, y), half, hole, inside_out)| {
            let mut area = square(x, y, half);
            if let Some((east, part)) = hole {
                let hole = square(x + east * half, y, half * part)["coordinates"][0].take();
                area["coordinates"].as_array_mut().expect("rings").push(hole);
            }
            if inside_out {
                area["coordinates"][0].as_array_mut().expect("a ring").reverse();
            }
            area
        });
    let point = place(metric).prop_map(|(x, y)| point(x, y));
    prop_oneof![4 => point, 1 => line, 2 => area, 1 => Just(json!({ "type": "Point" }))]
}

fn spatial_filter(metric: Metric) -> impl Strategy<Value = String> {
    let limit = prop::sample::select(vec!["0", "0.001", "100", "5000", "1e6", "2e7", "-1"]);
    let distance = (shape(metric), limit, any::<bool>()).prop_map(|(shape, limit, inclusive)| {
        let operator = if inclusive { "<=" } else { "<" };
        format!("ST_DISTANCE(c.at, {shape}) {operator} {limit}")
    });
    let meets = (shape(metric), 0..3).prop_map(|(shape, form)| match form {
        0 => format!("ST_WITHIN(c.at, {shape})"),
        1 => format!("ST_WITHIN({shape}, c.at)"),
        _ => format!("ST_INTERSECTS(c.at, {shape})"),
    });
    let one = prop_oneof![distance, meets].boxed();
    let other = prop_oneof![Just("c.n = 1".to_string()), one.clone().prop_map(|one| one)];
    let joined = (one.clone(), prop::sample::select(vec!["AND", "OR"]), other);
    prop_oneof![one, joined.prop_map(|(a, operator, b)| format!("{a} {operator} {b}"))]
}

fn world_and_filter() -> impl Strategy<Value = (Metric, Vec<Value>, String)> {
    prop::sample::select(vec![Metric::Geography, Metric::Geometry]).prop_flat_map(|metric| {
        let item = (shape(metric), 0..3).prop_map(|(at, n)| json!({ "at": at, "n": n }));
        (Just(metric), prop::collection::vec(item, 1..12), spatial_filter(metric))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_spatial_index_changes_nothing(
        (metric, items, filter) in world_and_filter(),
        rows in 1_usize..4,
    ) {
        let policy = policy("/at/*");
        let limits = PageLimits { rows, ..EVERYTHING };
        for query in ["SELECT VALUE c.id FROM c WHERE {}", "SELECT VALUE COUNT(1) FROM c WHERE {}"] {
            let query = query.replace("{}", &filter);
            let mut found = World::in_space(metric, &policy, &items).pages(&query, limits).concat();
            let mut expected = World::unindexed_in_space(metric, &policy, &items).rows(&query);
            found.sort();
            expected.sort();
            prop_assert_eq!(found, expected, "{}", query);
        }
    }
}
