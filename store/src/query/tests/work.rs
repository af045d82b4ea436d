//! What a run pays for: whatever goes deep, or does a product, costs accordingly.

use super::*;

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
        condition.keeps(&Value::from_json(item.as_bytes()).unwrap())
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
    let item = |n: i64| Value::Object(vec![("g".into(), "x".into()), ("n".into(), n.into())]);
    let items = || (0..40).map(|n: i64| (ItemNumber(n.unsigned_abs()), item(n)));
    let moment = || functions::Moment::new(Millis(0), Millis(0), 0);
    assert_eq!(query.select(items(), &Run::new(moment())).unwrap().len(), 40);
    let refused = query.select(items(), &Run::undivided(moment())).unwrap_err().to_string();
    assert!(refused.ends_with("to finish its result."), "{refused}");
}
