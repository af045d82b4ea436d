//! What SDKs read in a plan, member by member; the scripts `query/plan_*` tell the rest.

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::indexing;
use crate::partition_key::{Component, Epk, KeyKind, PartitionKey};
use crate::query::{Metric, Value};

fn key(paths: &[&str]) -> KeyDefinition {
    let kind = if paths.len() > 1 { KeyKind::MultiHash } else { KeyKind::HashV2 };
    KeyDefinition { kind, paths: paths.iter().map(|path| vec![(*path).to_string()]).collect() }
}

/// Rules by which everything of these tests can be sorted.
fn index() -> IndexRules {
    let both = json!([{ "path": "/a" }, { "path": "/b" }]);
    let policy = json!({ "compositeIndexes": [both], "includedPaths": [{ "path": "/*" }] });
    IndexRules::new(&indexing::complete(Some(&policy)).unwrap()).unwrap()
}

fn plan_with(
    text: &str,
    parameters: &Parameters,
    computed: &Json,
    paths: &[&str],
    client: &Features,
) -> Result<ClientPlan, PlanRefusal> {
    let computed = ComputedProperties::parse(Some(computed)).unwrap();
    ClientPlan::new(text, parameters, &index(), &computed, &key(paths), client)
}

fn plan_for(text: &str, client: &Features) -> Result<ClientPlan, PlanRefusal> {
    plan_with(text, &Parameters::default(), &Json::Null, &["pk"], client)
}

fn plan(text: &str) -> ClientPlan {
    plan_for(text, &Features::all()).unwrap()
}

#[test]
fn a_plan_has_every_member_that_clients_know() {
    let plan = serde_json::to_value(plan("SELECT * FROM c")).unwrap();
    let expected = json!({
        "partitionedQueryExecutionInfoVersion": 2,
        "queryInfo": {
            "distinctType": "None",
            "top": null,
            "offset": null,
            "limit": null,
            "orderBy": [],
            "orderByExpressions": [],
            "groupByExpressions": [],
            "groupByAliases": [],
            "aggregates": [],
            "groupByAliasToAggregateType": {},
            "rewrittenQuery": "",
            "hasSelectValue": false,
            "dCountInfo": null,
            "hasNonStreamingOrderBy": false,
        },
        "queryRanges": [
            { "min": "", "max": "FF", "isMinInclusive": true, "isMaxInclusive": false },
        ],
        "hybridSearchQueryInfo": null,
    });
    assert_eq!(plan, expected);
}

#[test]
fn members_are_told_in_the_order_of_the_row() {
    let text = "SELECT COUNT(1) AS z, c.a, AVG(c.b) FROM c GROUP BY c.a";
    let plan = serde_json::to_string(&plan(text)).unwrap();
    let map = r#""groupByAliasToAggregateType":{"z":"Count","a":null,"$1":"Average"}"#;
    assert!(plan.contains(map), "{plan}");
}

/// What the SDKs of Python and Rust say they can do, in releases 4.17.1 and 1.1.0-beta.1.
const PYTHON: &str = "Aggregate,CompositeAggregate,Distinct,MultipleOrderBy,OffsetAndLimit,OrderBy,\
                      Top,NonStreamingOrderBy,HybridSearch,CountIf,WeightedRankFusion";
const RUST: &str = "Distinct, MultipleOrderBy, NonStreamingOrderBy, OffsetAndLimit, OrderBy, Top";

#[test]
fn a_client_is_told_what_it_cannot_do() {
    let refused = |text, client| {
        let Err(PlanRefusal::Unsupported(features)) = plan_for(text, &Features::parse(client))
        else {
            return Vec::new();
        };
        features
    };
    let count = "SELECT VALUE COUNT(1) FROM c";
    assert_eq!(refused(count, PYTHON), []);
    assert_eq!(refused(count, RUST), [Feature::Aggregate]);
    let groups = "SELECT c.a, COUNT(1), AVG(c.b) FROM c GROUP BY c.a";
    let missing = [Feature::GroupBy, Feature::MultipleAggregates, Feature::NonValueAggregate];
    assert_eq!(refused(groups, PYTHON), missing);
    let all = "SELECT DISTINCT TOP 5 c.a FROM c ORDER BY c.a, c.b";
    assert_eq!(refused(all, RUST), []);
    assert_eq!(refused(all, "Top"), [Feature::Distinct, Feature::MultipleOrderBy]);
    assert_eq!(refused("SELECT * FROM c", ""), []);
}

#[test]
fn what_is_missing_is_told_in_the_words_of_the_service() {
    let refusal = plan_for("SELECT * FROM c ORDER BY c.a", &Features::default()).unwrap_err();
    let expected = "Query contains 1 or more unsupported features. Upgrade your SDK to a version \
                    that does support the requested features:\nQuery contained OrderBy, which the \
                    calling client does not support.";
    assert_eq!(refusal.to_string(), expected);
}

#[test]
fn every_feature_is_known_by_its_name() {
    let names = "aggregate,DISTINCT,GroupBy,MultipleAggregates,MultipleOrderBy,OffsetAndLimit,\
                 OrderBy,Top,NonValueAggregate,ListAndSetAggregate,CountIf,Unheard";
    assert_eq!(Features::parse(names), Features::all());
}

#[test]
fn what_a_range_is_sent_is_a_query() {
    for text in [
        "SELECT c.a, [c[\"b c\"], 1] AS d FROM c JOIN t IN c.tags WHERE t = 'x' OR c.b ORDER BY c.a",
        "SELECT VALUE c.a ?? 0 FROM c WHERE c.a ?? false ORDER BY c[\"order\"].x DESC",
        "SELECT VALUE MIN(c.a - 1) FROM c JOIN (SELECT VALUE 1) AS one",
        "SELECT c.a, MAX(c.a) AS hi FROM c GROUP BY c.a, c.b || 'x' OFFSET 1 LIMIT 2",
        "SELECT DISTINCT TOP 5 VALUE c.a FROM c",
        "SELECT * FROM c OFFSET 5 LIMIT 10",
    ] {
        let rewritten = plan(text).query_info.rewritten_query;
        let sent = rewritten.replace("{documentdb-formattableorderbyquery-filter}", "true");
        assert_ne!(sent, "", "{text}");
        assert_eq!(parse(&sent).unwrap().to_string(), sent.replace("(true)", "true"), "{text}");
    }
}

fn places(text: &str, paths: &[&str], parameters: &Parameters) -> Vec<(String, String)> {
    let plan = plan_with(text, parameters, &Json::Null, paths, &Features::all()).unwrap();
    plan.query_ranges.into_iter().map(|range| (range.min, range.max)).collect()
}

#[test]
fn a_pinned_key_is_the_point_where_it_lies() {
    let mut parameters = Parameters::default();
    parameters.add("@pk", Value::Text("hello".to_string())).unwrap();
    let places =
        |filter: &str| places(&format!("SELECT * FROM c WHERE {filter}"), &["pk"], &parameters);
    let hello = "0A8B5792B7BA3C7C47B0D1305A3C6F8A".to_string();
    let point = vec![(hello.clone(), hello)];
    assert_eq!(places("c.pk = 'hello'"), point);
    assert_eq!(places("@pk = c['pk'] AND c.n > 3"), point);
    assert_eq!(places("c.pk IN ('a', @pk, undefined) AND c.pk = @pk"), point);
    assert_eq!(places("c.pk = ('hel' || 'lo')"), point);
    let everything = vec![(String::new(), "FF".to_string())];
    for open in [
        "c.pk != 'hello'",
        "NOT (c.pk = 'hello')",
        "c.pk = 'hello' OR c.n = 1",
        "c.pk NOT IN ('hello')",
        "c.pk = c.n",
        "c.pk = []",
        "c.pk.x = 'hello'",
        "c.x.pk = 'hello'",
        "c.tags[0] = 'hello'",
        "c.pk IN ('hello', c.n)",
        "c.pk IN ('hello', [])",
    ] {
        assert_eq!(places(open), everything, "{open}");
    }
}

#[test]
fn a_computed_property_hides_the_key() {
    let text = "SELECT * FROM c WHERE c.pk = 'hello'";
    let max = |name: &str| {
        let computed = json!([{ "name": name, "query": "SELECT VALUE c.id FROM c" }]);
        let (parameters, client) = (Parameters::default(), Features::all());
        let plan = plan_with(text, &parameters, &computed, &["pk"], &client).unwrap();
        plan.query_ranges[0].max.clone()
    };
    assert_ne!(max("other"), "FF");
    assert_eq!(max("pk"), "FF");
}

#[test]
fn long_lists_are_answered_by_everything() {
    let list: Vec<_> = (0..300).map(|number| number.to_string()).collect();
    let plan = plan(&format!("SELECT * FROM c WHERE c.pk IN ({})", list.join(", ")));
    assert_eq!(plan.query_ranges.len(), 1);
    assert_eq!(plan.query_ranges[0].max, "FF");
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (-3_i32..3).prop_map(|number| Value::float(f64::from(number))),
        "[ab]{0,2}".prop_map(Value::Text),
    ]
}

fn condition() -> impl Strategy<Value = String> {
    let value = || scalar().prop_map(|value| String::from_utf8(value.to_json()).unwrap());
    let path = || prop::sample::select(vec!["c.a", "c['b']", "c.n"]);
    let leaf = prop_oneof![
        (path(), value()).prop_map(|(path, value)| format!("{path} = {value}")),
        (path(), value()).prop_map(|(path, value)| format!("{value} = {path}")),
        (path(), value()).prop_map(|(path, value)| format!("{path} != {value}")),
        (path(), prop::collection::vec(value(), 1..4))
            .prop_map(|(path, values)| format!("{path} IN ({})", values.join(", "))),
    ];
    leaf.prop_recursive(4, 16, 2, |inner| {
        (inner.clone(), prop::sample::select(vec!["AND", "OR"]), inner)
            .prop_map(|(left, operator, right)| format!("({left} {operator} {right})"))
    })
}

fn component(value: &Value) -> Component {
    match value {
        Value::Null => Component::Null,
        Value::Bool(truth) => Component::Bool(*truth),
        Value::Number(number) => Component::number(number.as_f64()),
        Value::Text(text) => Component::Text(text.clone()),
        Value::Undefined | Value::Array(_) | Value::Object(_) => Component::Undefined,
    }
}

proptest! {
    #[test]
    fn what_a_filter_keeps_lies_in_the_ranges(
        condition in condition(), a in scalar(), b in scalar(), n in scalar(),
    ) {
        let text = format!("SELECT * FROM c WHERE {condition}");
        let members = [("a", &a), ("b", &b), ("n", &n)];
        let members = members.map(|(name, value)| (name.to_string(), value.clone()));
        let item = Value::Object(members.into_iter().collect());
        let query = crate::query::CompiledQuery::condition(
            &format!("FROM c WHERE {condition}"),
            Metric::default(),
        );
        if query.unwrap().keeps(&item, &mut { u64::MAX }) {
            let epk = key(&["a", "b"]).place(&PartitionKey(vec![component(&a), component(&b)])).epk;
            let places = places(&text, &["a", "b"], &Parameters::default());
            let holds = |(min, max): &(String, String)| {
                let (min, max) = (Epk::parse(min).unwrap(), Epk::parse(max).unwrap());
                min <= epk && (epk < max || (min == max && epk == max))
            };
            prop_assert!(places.iter().any(holds), "{} not in {:?}", epk, places);
        }
    }

    #[test]
    fn ranges_come_in_order_and_apart(condition in condition()) {
        let text = format!("SELECT * FROM c WHERE {condition}");
        let places = places(&text, &["a", "b"], &Parameters::default());
        prop_assert!(!places.is_empty());
        prop_assert!(places.is_sorted_by(|(_, end), (start, _)| end < start), "{:?}", places);
    }

    #[test]
    fn any_query_is_planned_or_refused(text in ".*") {
        let _ = plan_for(&text, &Features::all());
    }
}
