//! What no call may do, whatever its arguments: panic, run on, or invent a value.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::query::value::Number;

/// Values that some function looks at twice.
fn telling() -> impl Strategy<Value = Value> {
    let texts = [
        "",
        "a",
        "aB",
        "ß",
        "a😀b",
        " x ",
        "yyyy",
        "mm",
        "day",
        "ns",
        "2024-02-29",
        "2024-02-29T23:59:59.9999999Z",
        "0001-01-01",
        "9999-12-31T23:59:59.9999999",
        "1601-01-01",
        "[1]",
        "{\"a\":1}",
        "(a|b)*c$",
        "[^\\w]+",
        "(?i)x{2,3}",
        "i",
        "yyyy-MM-dd HH:mm:ss.fff",
    ];
    let numbers = [
        Number::Int(0),
        Number::Int(1),
        Number::Int(-1),
        Number::Int(3),
        Number::Int(i64::MAX),
        Number::Int(i64::MIN),
        Number::Float(0.5),
        Number::Float(-0.0),
        Number::Float(1e300),
        Number::Float(f64::NAN),
        Number::Float(f64::INFINITY),
        Number::Float(-1e19),
        Number::Int(62_135_596_800_000),
        Number::Int(999_999_999_999),
    ];
    prop_oneof![
        prop::sample::select(texts.to_vec()).prop_map(Value::from),
        prop::sample::select(numbers.to_vec()).prop_map(Value::Number),
        Just(Value::Undefined),
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
    ]
}

fn shape() -> impl Strategy<Value = Value> {
    let degrees = prop_oneof![
        (-180..=180_i64).prop_map(Value::from),
        prop::sample::select(vec![-180.0, -90.0, 0.0, 1e-9, 45.5, 90.0, 180.0])
            .prop_map(Value::from),
    ];
    let position = prop::collection::vec(degrees, 2..=3).prop_map(Value::from);
    let line = prop::collection::vec(position.clone(), 0..8);
    let ring = line.clone().prop_map(|mut ring| {
        ring.extend(ring.first().cloned());
        Value::from(ring)
    });
    let polygon = prop::collection::vec(ring, 0..3).prop_map(Value::from);
    let many = prop::collection::vec(polygon.clone(), 0..3).prop_map(Value::from);
    let typed = |kind: &'static str| {
        move |coordinates: Value| {
            let kind = ("type".to_string(), Value::from(kind));
            Value::Object(vec![kind, ("coordinates".to_string(), coordinates)].into())
        }
    };
    prop_oneof![
        position.prop_map(typed("Point")),
        line.prop_map(Value::from).prop_map(typed("LineString")),
        polygon.prop_map(typed("Polygon")),
        many.prop_map(typed("MultiPolygon")),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => telling(),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        2 => ".{0,12}".prop_map(Value::from),
        2 => shape(),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        let defined = inner.prop_filter("arrays and objects hold what is there", Value::is_defined);
        prop_oneof![
            prop::collection::vec(defined.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[a-d]", defined, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Undefined and NaN aside, what JSON can tell.
fn is_whole(value: &Value) -> bool {
    match value {
        Value::Array(elements) => elements.iter().all(|one| one.is_defined() && is_whole(one)),
        Value::Object(members) => {
            let names: BTreeSet<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
            names.len() == members.len()
                && members.iter().all(|(_, value)| value.is_defined() && is_whole(value))
        }
        Value::Undefined | Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_function_takes_any_arguments(args in prop::collection::vec(value(), 8)) {
        for (metric, function) in METRICS.iter().flat_map(|metric| all(*metric).map(move |one| (*metric, one))) {
            let most = function.arity.most.unwrap_or(args.len());
            for count in function.arity.least..=most {
                let result = apply_in(metric, function.name, &args[..count]);
                prop_assert!(is_whole(&result), "{}: {:?}", function.name, result);
            }
        }
    }

    #[test]
    fn spatial_functions_take_any_shapes(a in shape(), b in shape()) {
        for metric in METRICS {
            for name in ["ST_DISTANCE", "ST_WITHIN", "ST_INTERSECTS"] {
                prop_assert!(is_whole(&apply_in(metric, name, &[a.clone(), b.clone()])));
            }
        }
    }

    #[test]
    fn patterns_are_compiled_or_refused(
        pattern in r"[abc()|?*+{}\[\]^$.\\,0-9:<>=!imsx#\- ]{0,24}|.{0,16}",
        modifiers in "[imsx]{0,3}",
    ) {
        if let Ok(regex) = regex::compiled(&pattern, &modifiers).result {
            let _ = regex.is_match("abcabc 123\n");
        }
    }
}

#[test]
fn no_two_functions_have_one_name() {
    let mut names = BTreeSet::new();
    for function in all(Metric::default()) {
        assert_eq!(function.name, function.name.to_ascii_uppercase());
        assert!(names.insert(function.name), "{} is there twice", function.name);
        let Arity { least, most } = function.arity;
        assert!(most.is_none_or(|most| least <= most), "{}", function.name);
    }
}

#[test]
fn names_ignore_case_and_mind_underscores() {
    let metric = Metric::default();
    assert_eq!(find("is_Defined", metric).map(|function| function.name), Some("IS_DEFINED"));
    assert_eq!(find("DateTimeAdd", metric).map(|function| function.name), Some("DATETIMEADD"));
    for unknown in ["ISDEFINED", "", "IS_DEFINED ", "COUNT", "REGEXEXTRACT", "_"] {
        assert!(find(unknown, metric).is_none(), "{unknown}");
    }
}

#[test]
fn every_function_is_in_the_documentation() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/FUNCTIONS.md");
    let page = std::fs::read_to_string(path).expect("the page is there").to_ascii_uppercase();
    for function in all(Metric::default()) {
        assert!(page.contains(&format!("`{}", function.name)), "{}", function.name);
    }
}

#[test]
fn only_distances_depend_on_the_processor() {
    for metric in METRICS {
        let not = all(metric).filter(|one| !one.reproducible()).map(|one| one.name);
        assert_eq!(not.collect::<Vec<_>>(), ["ST_DISTANCE"]);
    }
}
