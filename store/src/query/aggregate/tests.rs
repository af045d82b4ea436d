//! Sums of parts, sent on and merged, are the sums of the whole.

use proptest::prelude::*;

use super::*;
use crate::codec;
use crate::ids::ItemNumber;
use crate::query::functions::Moment;
use crate::query::{CompiledQuery, ComputedProperties, Parameters};
use crate::time::Millis;

const ALL: &str = "SELECT COUNT(c.v) AS a, COUNTIF(c.v) AS b, SUM(c.v) AS c, AVG(c.v) AS d, \
                   MIN(c.v) AS e, MAX(c.v) AS f, MAKELIST(c.v) AS g, MAKESET(c.v) AS h FROM c";

fn query(text: &str) -> CompiledQuery {
    let policy = crate::indexing::complete(None).unwrap();
    let index = crate::indexing::IndexRules::new(&policy).unwrap();
    let (parameters, computed) = (Parameters::default(), ComputedProperties::default());
    CompiledQuery::new(text, &parameters, &index, &computed).unwrap()
}

fn run() -> Run {
    Run::new(Moment::new(Millis(0), Millis(0), 0))
}

fn sums(query: &CompiledQuery, items: &[Value]) -> Accumulators {
    let (mut sums, run) = (query.accumulators(), run());
    for item in items {
        query.for_each_row(item, ItemNumber(0), &run, &mut |row| {
            query.accumulate(&mut sums, row, &run);
            std::ops::ControlFlow::Continue(())
        });
    }
    assert_eq!(run.exceeded(), None);
    sums
}

fn shown(query: &CompiledQuery, sums: &Accumulators) -> String {
    format!("{:?}", query.finish(&[], sums, &run()))
}

fn item() -> impl Strategy<Value = Value> {
    let values = prop::sample::select(vec![
        "1",
        "-2",
        "3",
        "0",
        "2.5",
        "true",
        "false",
        "null",
        "\"a\"",
        "\"b\"",
        "[1]",
        "{\"x\":1}",
        "{}",
    ]);
    // Mostly numbers, so that sums are not mostly undefined.
    let value = prop_oneof![6 => (-5_i32..5).prop_map(|n| n.to_string()), 1 => values.prop_map(String::from)];
    prop_oneof![9 => value.prop_map(|v| format!("{{\"v\":{v}}}")), 1 => Just("{}".to_string())]
        .prop_map(|json| Value::from_json(json.as_bytes()).unwrap())
}

proptest! {
    #[test]
    fn parts_sent_and_merged_are_the_whole(
        items in prop::collection::vec(item(), 0..20), cut in 0_usize..20,
    ) {
        let query = query(ALL);
        let (left, right) = items.split_at(cut.min(items.len()));
        let mut merged = query.accumulators();
        for part in [left, right, &[]] {
            let sent = codec::encode(&sums(&query, part));
            merged.merge(codec::decode(&sent).unwrap());
        }
        prop_assert_eq!(shown(&query, &merged), shown(&query, &sums(&query, &items)));
    }
}

#[test]
fn what_json_cannot_say_is_sent_as_well() {
    let query = query("SELECT MAX(0/c.v) AS nan, MAX(c.v/0) AS most, SUM(c.v/0) AS sum FROM c");
    let item = |json: &str| Value::from_json(json.as_bytes()).unwrap();
    let zero = sums(&query, &[item(r#"{"v":0}"#)]);
    let one = sums(&query, &[item(r#"{"v":1}"#)]);
    let (zero, one): (Accumulators, Accumulators) = (
        codec::decode(&codec::encode(&zero)).unwrap(),
        codec::decode(&codec::encode(&one)).unwrap(),
    );
    let json = |sums: &Accumulators| {
        String::from_utf8(query.finish(&[], sums, &run()).unwrap().to_json()).unwrap()
    };
    assert_eq!(json(&zero), r#"{"nan":"NaN","most":"NaN","sum":"NaN"}"#);
    assert_eq!(json(&one), r#"{"nan":0,"most":"Infinity","sum":"Infinity"}"#);
    let mut both = zero;
    both.merge(one);
    assert_eq!(json(&both), r#"{"nan":0,"most":"Infinity","sum":"NaN"}"#);
}

#[test]
fn lists_are_limited_also_when_merged() {
    let query = query("SELECT MAKELIST(c.v) AS l FROM c");
    let text = "x".repeat(GATHERED_BYTES_MAX / 2);
    let item = Value::Object(vec![("v".to_string(), Value::Text(text))].into());
    let one = sums(&query, std::slice::from_ref(&item));
    let two = sums(&query, &[item.clone(), item.clone()]);
    let mut three = one.clone();
    three.merge(two.clone());
    let exceeded = |sums: &Accumulators| {
        let run = run();
        query.finish(&[], sums, &run);
        run.exceeded().is_some()
    };
    assert!(!exceeded(&one));
    assert!(!exceeded(&two));
    assert!(exceeded(&three));
    assert!(three.size() <= GATHERED_BYTES_MAX + 8);
}

#[test]
fn what_is_gathered_counts_by_its_place_in_memory_and_together() {
    let finished = |text: &str, items: &[Value]| {
        let (query, run) = (query(text), run());
        query.finish(&[], &sums(&query, items), &run);
        run.exceeded().map(|error| error.to_string())
    };
    let item = |text: &str| Value::Object(vec![("v".to_string(), text.into())].into());
    let empty = vec![item(""); GATHERED_BYTES_MAX / size_of::<Value>() + 1];
    let large = vec![item(&"x".repeat(300_000)); 2];
    for (text, items) in [
        ("SELECT MAKELIST(c.v) AS a FROM c", &empty),
        ("SELECT MAKELIST(c.v) AS a, MAKELIST(c.v) AS b FROM c", &large),
    ] {
        let message = finished(text, items).unwrap_or_default();
        assert!(message.contains("gathers more than"), "{text}: {message}");
    }
    assert_eq!(finished("SELECT MAKELIST(c.v) AS a FROM c", &empty[1..]), None);
    assert_eq!(finished("SELECT MAKESET(c.v) AS a, MAKESET(c.v) AS b FROM c", &large), None);
}

#[test]
fn the_texts_that_aggregates_keep_are_limited_together() {
    let text = vec!["MAX(c.v)"; 20].join(", ");
    let query = query(&format!("SELECT {text} FROM c"));
    let (mut sums, run) = (query.accumulators(), run());
    let item = Value::Object(vec![("v".to_string(), "x".repeat(1 << 20).into())].into());
    query.for_each_row(&item, ItemNumber(0), &run, &mut |row| {
        query.accumulate(&mut sums, row, &run);
        std::ops::ControlFlow::Continue(())
    });
    let message = run.exceeded().map(|error| error.to_string()).unwrap_or_default();
    assert!(message.contains("aggregates"), "{message}");
}
