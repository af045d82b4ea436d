//! What a computed property may be, and what it gives.

use serde_json::json;

use super::*;
use crate::query::CompiledQuery;

fn parse(name: &str, query: &str) -> Result<ComputedProperties, InvalidComputed> {
    ComputedProperties::parse(Some(&json!([{ "name": name, "query": query }])))
}

#[test]
fn there_may_be_none() {
    for none in [None, Some(json!(null)), Some(json!([]))] {
        assert_eq!(ComputedProperties::parse(none.as_ref()).unwrap().names().count(), 0);
    }
}

#[test]
fn lists_of_other_things_are_refused() {
    for wrong in [
        json!({}),
        json!("x"),
        json!([1]),
        json!([{ "name": "a" }]),
        json!([{ "query": "SELECT VALUE 1 FROM c" }]),
        json!([{ "name": 1, "query": "SELECT VALUE 1 FROM c" }]),
    ] {
        let refused = ComputedProperties::parse(Some(&wrong)).unwrap_err();
        assert_eq!(refused, InvalidComputed::Malformed, "{wrong}");
    }
    let query = |at: usize| json!({ "name": format!("p{at}"), "query": "SELECT VALUE c.x FROM c" });
    let many = |count: usize| json!((0..count).map(query).collect::<Vec<_>>());
    assert!(ComputedProperties::parse(Some(&many(20))).is_ok());
    let refused = ComputedProperties::parse(Some(&many(21))).unwrap_err();
    assert_eq!(refused, InvalidComputed::TooMany(21));
}

#[test]
fn names_are_checked() {
    let query = "SELECT VALUE c.x FROM c";
    assert_eq!(parse("", query).unwrap_err(), InvalidComputed::Unnamed);
    for name in ["id", "_rid", "_self", "_etag", "_attachments", "_ts"] {
        assert_eq!(parse(name, query).unwrap_err(), InvalidComputed::SystemName(name.into()));
    }
    let twice = json!([{ "name": "a", "query": query }, { "name": "a", "query": query }]);
    let refused = ComputedProperties::parse(Some(&twice)).unwrap_err();
    assert_eq!(refused, InvalidComputed::Duplicate("a".into()));
}

#[test]
fn only_one_value_of_the_container_can_be_selected() {
    for query in [
        "SELECT c.x FROM c",
        "SELECT * FROM c",
        "SELECT VALUE 1",
        "SELECT VALUE t FROM t IN c.x",
        "SELECT VALUE x FROM c.x",
        "SELECT VALUE t FROM (SELECT VALUE 1) t",
    ] {
        let refused = parse("a", query).unwrap_err();
        assert_eq!(refused, InvalidComputed::NotAValue("a".into()), "{query}");
    }
    for query in
        ["SELECT VALUE c.x FROM c", "SELECT VALUE d.x FROM root AS d", "select value 1 from c"]
    {
        assert!(parse("a", query).is_ok(), "{query}");
    }
}

#[test]
fn clauses_and_functions_that_look_beyond_the_item_are_refused() {
    for (query, what) in [
        ("SELECT DISTINCT VALUE c.x FROM c", "DISTINCT"),
        ("SELECT TOP 1 VALUE c.x FROM c", "TOP"),
        ("SELECT VALUE c.x FROM c JOIN t IN c.y", "JOIN"),
        ("SELECT VALUE c.x FROM c WHERE c.x > 1", "WHERE"),
        ("SELECT VALUE c.x FROM c GROUP BY c.x", "GROUP BY"),
        ("SELECT VALUE c.x FROM c ORDER BY c.x", "ORDER BY"),
        ("SELECT VALUE c.x FROM c OFFSET 1 LIMIT 1", "OFFSET LIMIT"),
        ("SELECT VALUE (SELECT VALUE 1) FROM c", "a subquery"),
        ("SELECT VALUE [EXISTS(SELECT VALUE 1)] FROM c", "a subquery"),
        ("SELECT VALUE COUNT(c.x) FROM c", "an aggregate"),
        ("SELECT VALUE 1 + MAX(c.x) FROM c", "an aggregate"),
        ("SELECT VALUE ST_AREA(c.x) FROM c", "a spatial function"),
        ("SELECT VALUE udf.f(c.x) FROM c", "a user-defined function"),
        ("SELECT VALUE c[@x] FROM c", "a parameter"),
    ] {
        let refused = parse("a", query).unwrap_err();
        assert_eq!(refused, InvalidComputed::Forbidden { name: "a".into(), what }, "{query}");
    }
    for query in [
        "SELECT VALUE c. FROM c",
        "SELECT VALUE d.x FROM c",
        "SELECT VALUE NOSUCH(c.x) FROM c",
        "SELECT VALUE DOCUMENTID(c) FROM c",
        "SELECT VALUE c.x FROM c ORDER",
    ] {
        assert!(matches!(parse("a", query), Err(InvalidComputed::Query { .. })), "{query}");
    }
}

#[test]
fn one_may_not_refer_to_another() {
    let pair = |second: &str| {
        let list = json!([
            { "name": "a", "query": "SELECT VALUE c.a FROM c" },
            { "name": "b", "query": second },
        ]);
        ComputedProperties::parse(Some(&list))
    };
    for query in ["SELECT VALUE [c.a] FROM c", "SELECT VALUE d['a'].x FROM d"] {
        let refused = InvalidComputed::RefersTo { name: "b".into(), other: "a".into() };
        assert_eq!(pair(query).unwrap_err(), refused, "{query}");
    }
    // Below another property, or on itself, the name is a stored one.
    assert!(pair("SELECT VALUE c.x.a FROM c").is_ok());
    assert!(pair("SELECT VALUE c.b FROM c").is_ok());
}

#[test]
fn an_item_gives_a_value_for_each() {
    let list = json!([
        { "name": "sum", "query": "SELECT VALUE c.x + c.y FROM c" },
        { "name": "none", "query": "SELECT VALUE c.none FROM c" },
        { "name": "z", "query": "SELECT VALUE {was: c.z} FROM c" },
    ]);
    let computed = ComputedProperties::parse(Some(&list)).unwrap();
    let item = Value::from_json(br#"{"x":1,"y":2,"z":1}"#).unwrap();
    let shown: Vec<String> =
        computed.of(&item).into_iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    assert_eq!(shown[0], "sum=Number(Int(3))");
    assert_eq!(shown[1], "none=Undefined");
    assert_eq!(shown[2], r#"z=Object([("was", Number(Int(1)))])"#);
}

#[test]
fn a_query_computes_a_property_at_the_cost_that_indexes_were_built_at() {
    let computed = parse("twice", "SELECT VALUE ARRAY_CONCAT(c.a, c.a) FROM c").unwrap();
    let item = format!(r#"{{"a":[{}]}}"#, vec!["[]"; 400_000].join(","));
    let item = Value::from_json(item.as_bytes()).unwrap();
    // In memory it is more than a property may build.
    let [(_, Value::Array(twice))] = &computed.of(&item)[..] else { panic!("it is defined") };
    assert_eq!(twice.len(), 800_000);
    let index = crate::indexing::complete(None).unwrap();
    let index = crate::indexing::IndexRules::new(&index).unwrap();
    let select = |expr: &str| {
        let text = format!("SELECT VALUE {expr} FROM c");
        let query = CompiledQuery::new(&text, &Parameters::default(), &index, &computed).unwrap();
        let run = Run::new(Moment::new(Millis(0), Millis(0), 0));
        query.select(std::iter::once((ItemNumber(0), item.clone())), &run)
    };
    let length = select("ARRAY_LENGTH(c.twice)").unwrap().remove(0).value;
    assert!(length.equals(&Value::from(800_000_i64)));
    let refused = select("[ARRAY_LENGTH(c.twice), c.a, c.a, c.a]").unwrap_err().to_string();
    assert!(refused.contains("bytes of values"), "{refused}");
}
