//! What must hold of every query text, however it came about.

use std::ops::ControlFlow;

use ephemeris_store::ids::ItemNumber;
use ephemeris_store::indexing::{self, IndexRules};
use ephemeris_store::partition_key::{KeyDefinition, KeyKind};
use ephemeris_store::query::client_plan::{ClientPlan, Features};
use ephemeris_store::query::functions::Moment;
use ephemeris_store::query::{
    CompiledQuery, ComputedProperties, Metric, Parameters, Run, Value, parse,
};
use ephemeris_store::time::Millis;

pub mod grammar;

/// Checks a text: it is read or refused; what was read is printed, and reads again as the same. It
/// is planned and compiled, or refused, and what was compiled gives rows of an item. So it is with
/// the text as a condition.
pub fn check(text: &str, item: &Value) {
    check_printing(text);
    let (parameters, computed) = (parameters(), computed());
    let key = KeyDefinition {
        kind: KeyKind::MultiHash,
        paths: vec![vec!["a".to_string()], vec!["b".to_string(), "c".to_string()]],
    };
    let policy = indexing::complete(None).expect("the default policy is valid");
    let index = IndexRules::new(&policy).expect("it compiles");
    let plan = ClientPlan::new(text, &parameters, &index, &computed, &key, &Features::all());
    let compiled = CompiledQuery::new(text, &parameters, &index, &computed);
    assert!(compiled.is_ok() || plan.is_err(), "what cannot be run has no plan: {text}");
    if let Ok(query) = &compiled {
        query.pinned_key(&key);
        give_rows(query, item);
    }
    let condition = format!("FROM c WHERE {text}");
    if let Ok(condition) = CompiledQuery::condition(&condition, Metric::default()) {
        condition.keeps(item, &mut { u64::MAX });
    }
}

fn check_printing(text: &str) {
    let Ok(query) = parse(text) else { return };
    let printed = query.to_string();
    match parse(&printed) {
        Ok(again) => assert_eq!(again.to_string(), printed, "{text}"),
        // Parentheses that had not been written may be one level, or some bytes, too many.
        Err(error) => {
            let error = error.to_string();
            let is_limit = ["nested", "exceeds", "More than", "more than"]
                .iter()
                .any(|word| error.contains(word));
            assert!(is_limit, "{text}\n{printed}\n{error}");
        }
    }
}

/// Runs a query over one item, as a page over one item would.
fn give_rows(query: &CompiledQuery, item: &Value) {
    let run = Run::new(Moment::new(Millis(1_700_000_000_000), Millis(0), 1));
    let mut sums = query.accumulators();
    let mut groups: Vec<Vec<Value>> = Vec::new();
    query.for_each_row(item, ItemNumber(1), &run, &mut |row| {
        if query.is_aggregate() || query.is_grouped() {
            groups.push(query.group_key(row, &run));
            query.accumulate(&mut sums, row, &run);
        } else {
            query.sort_keys(row, &run);
            if let Some(value) = query.project(row, &run) {
                let json = value.to_json();
                Value::from_json(&json).expect("rows are JSON");
            }
        }
        if run.exceeded().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    for key in groups.iter().take(3) {
        query.finish(key, &sums, &run);
    }
}

/// Values for some names.
fn parameters() -> Parameters {
    let mut parameters = Parameters::default();
    for (name, json) in [("@p", "5"), ("@q", "\"x\""), ("@list", "[1,[2],{}]"), ("@n", "null")] {
        let value = Value::from_json(json.as_bytes()).expect("it is JSON");
        parameters.add(name, value).expect("it is a name");
    }
    parameters
}

fn computed() -> ComputedProperties {
    let definition =
        serde_json::json!([{ "name": "Value1", "query": "SELECT VALUE c.a || 'x' FROM c" }]);
    ComputedProperties::parse(Some(&definition)).expect("it is valid")
}
