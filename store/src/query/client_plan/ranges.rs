//! The parts of the hash space that can hold what a query's filter keeps.
//!
//! Each path of the partition key is looked at alone: which values can it have? Equality, IN, AND
//! and OR say something about that, everything else says nothing.
#![expect(clippy::wildcard_enum_match_arm, reason = "asks for one form among many")]

use serde::Serialize;

use crate::partition_key::{Component, Epk, KeyDefinition, PartitionKey, VALUE_BYTES_MAX};
use crate::query::compiled::{CompiledQuery, component, equality, leads_to};
use crate::query::op::Op;
use crate::query::value::Value;

/// Keys told one by one; a filter that allows more is answered by everything. Bounds the work of
/// intersecting long lists, too.
const KEYS_MAX: usize = 256;

/// A part of the hash space.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueryRange {
    /// The lower end, in hexadecimal digits.
    pub min: String,
    /// The upper end.
    pub max: String,
    is_min_inclusive: bool,
    is_max_inclusive: bool,
}

impl QueryRange {
    fn between(min: &Epk, max: &Epk) -> Self {
        let (min, max) = (min.to_string(), max.to_string());
        Self { min, max, is_min_inclusive: true, is_max_inclusive: false }
    }

    fn point(epk: &Epk) -> Self {
        let at = epk.to_string();
        Self { min: at.clone(), max: at, is_min_inclusive: true, is_max_inclusive: true }
    }
}

/// The ranges to ask, in order and apart; never none.
pub(super) fn of(query: &CompiledQuery, key: &KeyDefinition) -> Vec<QueryRange> {
    // One row, wherever it comes from.
    if !query.has_source() {
        return vec![QueryRange::point(&Epk::min())];
    }
    match prefixes(query, key) {
        None => vec![QueryRange::between(&Epk::min(), &Epk::max())],
        // Nothing can be found; the first range says so.
        Some(prefixes) if prefixes.is_empty() => vec![QueryRange::point(&Epk::min())],
        Some(prefixes) => {
            let mut ranges: Vec<_> = prefixes.iter().map(|prefix| range(prefix, key)).collect();
            ranges.sort();
            ranges.dedup();
            ranges
        }
    }
}

fn range(prefix: &PartitionKey, key: &KeyDefinition) -> QueryRange {
    if prefix.0.len() == key.paths.len() {
        return QueryRange::point(&key.place(prefix).epk);
    }
    let (start, end) = key.prefix_range(prefix);
    QueryRange::between(&start, &end)
}

/// The keys, or first components of keys, that items can have; none if the filter does not say.
fn prefixes(query: &CompiledQuery, key: &KeyDefinition) -> Option<Vec<PartitionKey>> {
    let filter = query.filter()?;
    let mut prefixes = vec![PartitionKey(Vec::new())];
    for path in &key.paths {
        let Some(values) = values(filter, path) else { break };
        if prefixes.len().saturating_mul(values.len()) > KEYS_MAX {
            break;
        }
        let with = |prefix: &PartitionKey, value: &Component| {
            PartitionKey(prefix.0.iter().chain([value]).cloned().collect())
        };
        prefixes = prefixes
            .iter()
            .flat_map(|prefix| values.iter().map(|value| with(prefix, value)))
            .collect();
    }
    let says_nothing = prefixes.iter().any(|prefix| prefix.0.is_empty());
    (!says_nothing).then_some(prefixes)
}

/// The values a path can have where this holds; none if it may have any, or too many.
fn values(filter: &Op, path: &[String]) -> Option<Vec<Component>> {
    let values = match filter {
        Op::And(operands) => {
            let sets = operands.iter().filter_map(|operand| values(operand, path));
            sets.reduce(|mut a, b| {
                a.retain(|value| b.contains(value));
                a
            })
        }
        Op::Or(operands) => {
            let sets: Option<Vec<_>> =
                operands.iter().map(|operand| values(operand, path)).collect();
            sets.map(|sets| sets.into_iter().flatten().collect())
        }
        Op::In(value, list) if leads_to(value, path) => {
            let entries = list.iter().filter(|entry| !is_no_key(entry));
            entries.take(KEYS_MAX + 1).map(constant).collect()
        }
        other => {
            let value = equality(other, path).filter(|value| !is_too_long(value));
            value.and_then(component).map(|value| vec![value])
        }
    };
    values.filter(|values: &Vec<Component>| values.len() <= KEYS_MAX)
}

fn constant(entry: &Op) -> Option<Component> {
    match entry {
        Op::Constant(value) => component(value),
        _ => None,
    }
}

/// What is undefined equals nothing, and what is longer than any key no key.
fn is_no_key(entry: &Op) -> bool {
    matches!(entry, Op::Constant(value) if !value.is_defined() || is_too_long(value))
}

/// No item has a text of this length in its key; nor is it copied for nothing.
fn is_too_long(value: &Value) -> bool {
    matches!(value, Value::Text(text) if text.len() > VALUE_BYTES_MAX)
}
