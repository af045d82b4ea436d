//! What a run pays for: whatever goes deep, or does a product, costs accordingly.

use std::borrow::Cow;

use super::*;
use crate::query::run::Tariff;

/// Operations that the first row of an item takes.
fn spent(expr: &str, item: &str) -> u64 {
    let query = compile(&format!("SELECT VALUE {expr} FROM c"))
        .unwrap_or_else(|error| panic!("{expr}: {error}"));
    let item = Value::from_json(item.as_bytes()).unwrap();
    let run = Run::new(functions::Moment::new(Millis(0), Millis(0), 0));
    query.for_each_row(&item, ItemNumber(0), &run, &mut |row| {
        query.project(row, &run);
        std::ops::ControlFlow::Break(())
    });
    run.spent()
}

/// An array of a thousand of these.
fn thousand(element: &str) -> String {
    format!("[{}]", vec![element; 1000].join(","))
}

#[test]
fn comparing_costs_what_is_gone_over() {
    let pairs = thousand("[1,2]");
    let item = format!(r#"{{"a":{pairs},"b":{pairs},"less":[{pairs}],"n":1,"o":{{"x":{pairs}}}}}"#);
    for equal in ["c.a = c.b", "c.a != c.b", "c.a IN (1, c.b)", "[c.a] = c.less", "c.o = c.o"] {
        assert!(spent(equal, &item) > 3000 / 16, "{equal}");
    }
    for unlike in ["c.a = c.n", "c.a = c.less", "c.a = c.o", "c.a < c.b"] {
        assert!(spent(unlike, &item) < 10, "{unlike}");
    }
}

#[test]
fn names_are_gone_over_too() {
    let name = "x".repeat(16_000);
    let item = format!(r#"{{"a":{{"{name}":1}},"b":{{"{name}":1}}}}"#);
    assert!(spent("c.a = c.b", &item) > 1000);
}

#[test]
fn ways_down_cost_their_names_and_steps() {
    let item = r#"{"a":{"b":1},"n":null}"#;
    let near = spent("c.a.b", item);
    assert_eq!(spent(&format!("c.{}", "x".repeat(63)), item), near);
    let name = "x".repeat(64_000);
    assert_eq!(spent(&format!("c['{name}']"), item), near + 1000);
    assert_eq!(spent(&format!("({{a: c.a}})['{name}']"), item) - spent("({a: c.a}).b", item), 1000);
    assert_eq!(spent(&format!("c{}", ".a".repeat(160)), item), near + 10);
}

#[test]
fn functions_that_go_deep_cost_what_is_there() {
    let deep = thousand("[[1,2,3,4]]");
    let item = format!(r#"{{"a":{deep},"s":[[[1,2,3,4]]],"o":{{"x":{deep}}}}}"#);
    for call in [
        "ARRAY_CONTAINS(c.a, [[1,2,3]])",
        "ARRAY_CONTAINS(c.a, {'x': [1]}, true)",
        "ARRAY_CONTAINS_ANY(c.a, 1, [])",
        "ARRAY_CONTAINS_ALL(c.a, [[1,2,3,4]])",
        "ARRAY_CONCAT(c.a, c.s)",
        "SetUnion(c.a, c.s)",
        "SetIntersect(c.a, c.s)",
        "SetDifference(c.s, c.a)",
        "SetEqual(c.s, c.a)",
        "ToString(c.a)",
        "ObjectToArray(c.o)",
    ] {
        assert!(spent(call, &item) > 4000 / 16, "{call}");
    }
}

#[test]
fn functions_that_compare_texts_cost_what_is_in_them() {
    let texts = format!(r#"["{}"]"#, vec!["x".repeat(16_000); 20].join("\",\""));
    let item = format!(r#"{{"t":{texts}}}"#);
    for call in [
        "ARRAY_CONTAINS(c.t, 'y')",
        "ARRAY_CONTAINS_ANY(c.t, 'y')",
        "ARRAY_MIN(c.t)",
        "ARRAY_MAX(c.t)",
        "(SELECT VALUE MIN(t) FROM t IN c.t)",
        "(SELECT VALUE MAX(t) FROM t IN c.t)",
    ] {
        assert!(spent(call, &item) > 19_000, "{call}");
    }
}

#[test]
fn what_is_sought_again_and_again_costs_as_often() {
    let item = format!(r#"{{"t":"{}","l":{}}}"#, "x".repeat(16_000), thousand("1"));
    let sought = vec!["'y'"; 20].join(", ");
    for name in ["CONTAINS_ANY_CI", "CONTAINS_ANY_CS", "CONTAINS_ALL_CI", "CONTAINSALLCS"] {
        assert!(spent(&format!("{name}(c.t, {sought})"), &item) > 19_000, "{name}");
    }
    for name in ["ARRAY_CONTAINS_ANY", "ARRAY_CONTAINS_ALL"] {
        assert!(spent(&format!("{name}(c.l, {sought})"), &item) > 20_000 / 16, "{name}");
    }
}

#[test]
fn shapes_cost_what_is_compared() {
    let ring: Vec<String> = (0..1000).map(|n| format!("[0.{n:03},{}]", n % 2)).collect();
    let polygon = format!("[[{},[0.000,0]]]", ring.join(","));
    let item = format!(r#"{{"g":{{"type":"Polygon","coordinates":{polygon}}}}}"#);
    let point = "{'type': 'Point', 'coordinates': [5, 5]}";
    for name in ["ST_DISTANCE", "ST_WITHIN", "ST_INTERSECTS"] {
        assert!(spent(&format!("{name}(c.g, c.g)"), &item) > 200_000, "{name}");
        assert!(spent(&format!("{name}(c.g, {point})"), &item) < 3000, "{name}");
    }
}

#[test]
fn a_pattern_that_is_computed_is_paid_for_each_time() {
    let item = r#"{"s":"abc","p":"b|x","large":"(a{50}){50}"}"#;
    for _ in 0..2 {
        assert!(spent("REGEXMATCH(c.s, c.p)", item) > 1000);
        assert!(spent("REGEXMATCH(c.s, c.large)", item) > 4000);
    }
    assert!(spent("REGEXMATCH(c.s, 'b|x')", item) < 10);
}

#[test]
fn a_larger_pattern_costs_more_for_the_same_text() {
    let item = format!(r#"{{"s":"{}"}}"#, "x".repeat(16_000));
    let small = spent("REGEXMATCH(c.s, 'ab')", &item);
    let large = spent("REGEXMATCH(c.s, '(a{50}){50}')", &item);
    assert!(small >= 1000 && large >= 4 * 1000, "{small}, {large}");
}

#[test]
fn a_condition_has_the_budget_of_a_computed_property() {
    let text = "FROM c WHERE NOT EXISTS(SELECT VALUE 1 FROM a IN c.t JOIN b IN c.t WHERE a > b)";
    let condition = CompiledQuery::condition(text, Metric::default()).unwrap();
    let keeps = |count: usize| {
        let item = format!(r#"{{"t":[{}]}}"#, vec!["1"; count].join(","));
        condition.keeps(&Value::from_json(item.as_bytes()).unwrap(), &mut { u64::MAX })
    };
    assert!(keeps(100));
    assert!(!keeps(1000), "a million rows are beyond its budget");
}

#[test]
fn what_a_subquery_gathers_is_paid_for_by_its_place_in_memory() {
    let text = |from: &str| format!("SELECT VALUE ARRAY_LENGTH({from}) FROM c");
    let item =
        format!(r#"{{"t":[{}]}}"#, (0..1100).map(|n| n.to_string()).collect::<Vec<_>>().join(","));
    let item = Value::from_json(item.as_bytes()).unwrap();
    let exceeded = |expr: &str| {
        let query = compile(&text(expr)).unwrap();
        let run = Run::new(functions::Moment::new(Millis(0), Millis(0), 0));
        let _ = query.select(std::iter::once((ItemNumber(0), item.clone())), &run);
        run.exceeded().map(|error| error.to_string())
    };
    assert_eq!(exceeded("ARRAY(SELECT VALUE 'x' FROM a IN c.t)"), None);
    for expr in [
        "ARRAY(SELECT VALUE '' FROM a IN c.t JOIN b IN c.t)",
        "ARRAY(SELECT VALUE COUNT(1) FROM a IN c.t JOIN b IN c.t GROUP BY a, b)",
    ] {
        let message = exceeded(expr).unwrap_or_default();
        assert!(message.contains("bytes of values"), "{expr}: {message}");
    }
}

#[test]
fn groups_may_share_one_budget() {
    let long = vec!["REPLICATE(c.g, 10000)"; 100].join(",");
    let query = format!("SELECT VALUE LENGTH(CONCAT({long})) FROM c GROUP BY c.g, c.n");
    let query = compile(&query).unwrap();
    let item =
        |n: i64| Value::Object(vec![("g".into(), "x".into()), ("n".into(), n.into())].into());
    let items = || (0..40).map(|n: i64| (ItemNumber(n.unsigned_abs()), item(n)));
    let moment = || functions::Moment::new(Millis(0), Millis(0), 0);
    assert_eq!(query.select(items(), &Run::new(moment())).unwrap().len(), 40);
    let refused = query.select(items(), &Run::undivided(moment())).unwrap_err().to_string();
    assert!(refused.ends_with("to finish its result."), "{refused}");
}

/// An item with something of every kind.
fn mixed() -> Value {
    let wide: Vec<String> = (0..100).map(|n| format!("\"m{n}\":{n}")).collect();
    let wide = wide.join(",");
    let ring = "[[[0,0],[170,0],[10,80],[0,0]]]";
    let item = format!(
        r#"{{"n":5,"s":"[[],[],{{}},1]","t":[1,2,3,[],{{}}],"e":[[],{{}},[[]]],
            "w":{{{wide},"last":1}},"v":{{{wide},"last":1}},
            "g":{{"type":"Polygon","coordinates":{ring}}},
            "p":{{"type":"Point","coordinates":[1,1]}}}}"#
    );
    Value::from_json(item.as_bytes()).unwrap()
}

/// Tells that a filter is decided within so many operations and bytes, and within no less.
fn assert_needs(query: &CompiledQuery, tariff: Tariff, operations: u64, bytes: usize) {
    let item = mixed();
    let is_decided = |operations: u64, bytes: usize| {
        let moment = functions::Moment::new(Millis(0), Millis(0), 0);
        let run = Run::with_budget(moment, tariff, operations, bytes);
        query.for_each_row(&item, ItemNumber(0), &run, &mut |_| std::ops::ControlFlow::Break(()));
        run.exceeded().is_none()
    };
    let filter = query.filter();
    assert!(is_decided(operations, bytes), "{filter:?}");
    assert!(!is_decided(operations - 1, bytes), "{filter:?}");
    assert!(bytes == 0 || !is_decided(operations, bytes - 1), "{filter:?}");
}

/// Replicas of all versions apply the same patches: none of these numbers may ever change.
#[test]
fn conditions_of_patches_cost_what_replicas_agreed_on() {
    let polygon = "{'type':'Polygon','coordinates':[[[0,0],[170,0],[10,80],[0,0]]]}";
    for (filter, operations, bytes) in [
        ("c.w.last = 1", 3, 0),
        ("c.w = c.v", 122, 0),
        ("[c.n, [], [c.e]] != c.t", 7, 24),
        ("{a: c.n, b: {c: c.e}} != c.t", 6, 25),
        ("ARRAY_LENGTH(SetUnion(c.t, c.e)) > 1", 8, 49),
        ("IS_ARRAY(StringToArray(c.s))", 3, 28),
        (
            "IS_OBJECT(c.e[0] ?? c.e)
                OR ARRAY_LENGTH(ARRAY(SELECT VALUE [t, c.e] FROM t IN c.t)) = 5",
            24,
            274,
        ),
        ("ARRAY_LENGTH(ARRAY(SELECT t AS a, c.e AS b FROM t IN c.t)) = 5", 15, 276),
        ("ARRAY_LENGTH(ARRAY(SELECT DISTINCT VALUE t FROM t IN c.t)) = 5", 10, 233),
        (
            "ARRAY_LENGTH(ARRAY(SELECT t, COUNT(1) AS n, MAKELIST(c.e) AS l
                                FROM t IN c.t GROUP BY t)) = 5",
            35,
            1431,
        ),
        (
            "EXISTS(SELECT VALUE 1 FROM t IN c.t JOIN u IN c.t
                   WHERE t = 3 AND c.n = 5 AND u = t AND u > 2)",
            28,
            8,
        ),
        ("ARRAY_CONTAINS([{'m': [1,2]}, [], {}], c.t) = false", 5, 8),
        ("ST_AREA(c.g) > 0", 7, 8),
        ("ST_WITHIN(c.p, c.g)", 7, 8),
        (&format!("ST_AREA({polygon}) > c.n"), 3, 0),
    ] {
        let condition = format!("FROM c WHERE {filter}");
        let condition = CompiledQuery::condition(&condition, Metric::default()).unwrap();
        assert_needs(&condition, Tariff::Agreed, operations, bytes);
    }
}

#[test]
fn what_a_query_builds_is_counted_as_memory_holds_it() {
    for (filter, operations, bytes) in [
        ("[c.n, [], [c.e]] != c.t", 7, 8 + 8 + (4 * 32 + 32) + 3 * 32),
        ("{a: c.n, b: {c: c.e}} != c.t", 6, 3 + 8 + 4 * 32 + 3 * 56),
        ("IS_ARRAY(StringToArray(c.s))", 3, 4 * 32 + 8),
        (
            "ARRAY_LENGTH(ARRAY(SELECT t AS a, c.e AS b FROM t IN c.t)) = 5",
            15,
            5 * (2 + 8 + 4 * 32 + 2 * 56 + 32) + 8,
        ),
        (
            "ARRAY_LENGTH(ARRAY(SELECT DISTINCT VALUE t FROM t IN c.t)) = 5",
            10,
            3 * 9 + 2 * 5 + 5 * (8 + 24 + 32) + 8,
        ),
        ("ARRAY_CONTAINS([{'m': [1,2]}, [], {}], c.t) = false", 5, 8),
    ] {
        let query = compile(&format!("SELECT * FROM c WHERE {filter}")).unwrap();
        assert_needs(&query, Tariff::Actual, operations, bytes);
    }
    let item = format!(r#"{{"a":[{}]}}"#, vec!["[]"; 400_000].join(","));
    let item = Value::from_json(item.as_bytes()).unwrap();
    let refused = |expr: &str| {
        let query = compile(&format!("SELECT VALUE {expr} FROM c")).unwrap();
        let run = Run::new(functions::Moment::new(Millis(0), Millis(0), 0));
        let found = query.select(std::iter::once((ItemNumber(0), item.clone())), &run);
        found.err().map(|error| error.to_string())
    };
    assert_eq!(refused("[c.a, c.a]"), None);
    let message = refused("[c.a, c.a, c.a]").unwrap_or_default();
    assert!(message.contains("bytes of values"), "{message}");
}

#[test]
fn geodesics_and_pieces_of_long_edges_are_paid_for() {
    let query = compile("SELECT * FROM c WHERE ST_AREA(c.g) > 0").unwrap();
    // Of 170, 99.4 and 80.2 degrees, 5.73 to a piece.
    assert_needs(&query, Tariff::Actual, 7 + 4 * (30 + 18 + 14), 8);
    let item = r#"{"p":{"type":"Point","coordinates":[1,2]},"q":{"type":"Point","coordinates":[3,4]},
        "l":{"type":"LineString","coordinates":[[1,1],[2,2]]}}"#;
    assert!((1000..1100).contains(&spent("ST_DISTANCE(c.p, c.l)", item)));
    assert!((1000..1100).contains(&spent("ST_DISTANCE(c.l, c.l)", item)));
    assert!(spent("ST_DISTANCE(c.p, c.q)", item) < 20);
    assert!(spent("ST_DISTANCE(c.none, c.l)", item) < 20);
    let plane = functions::find("ST_DISTANCE", Metric::Geometry).unwrap();
    let shapes = Value::from_json(item.as_bytes()).unwrap();
    let args = ["p", "l"].map(|name| Cow::Borrowed(shapes.member(name)));
    assert!((plane.cost)(&args) < 20);
}

/// If each lookup went over all of them, this would go over twelve thousand million.
#[test]
fn members_of_a_wide_object_are_soon_found() {
    let members: Vec<String> = (0..200_000).map(|n| format!("\"m{n}\":1")).collect();
    let members = members.join(",");
    let item = format!(r#"{{{members},"t":[{}],"last":0}}"#, vec!["0"; 60_000].join(","));
    let item = Value::from_json(item.as_bytes()).unwrap();
    let text = "FROM c WHERE NOT EXISTS(SELECT VALUE 1 FROM t IN c.t WHERE t != c.last)";
    assert!(
        CompiledQuery::condition(text, Metric::default()).unwrap().keeps(&item, &mut { u64::MAX })
    );
}
