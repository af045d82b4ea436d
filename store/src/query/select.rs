//! Runs a query over values at hand, all of it at once: for lists that are short, and for tests.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow::{Break, Continue};

use super::aggregate::Accumulators;
use super::compiled::{CompiledQuery, Window};
use super::error::QueryError;
use super::run::Run;
use super::value::Value;
use crate::ids::ItemNumber;

/// A result, and the item it was made from; of a group the first.
#[derive(Clone, Debug)]
pub struct Selected {
    /// The result.
    pub value: Value,
    /// What it is sorted by, a value for each key of ORDER BY.
    pub keys: Vec<Value>,
    /// The item.
    pub number: ItemNumber,
}

impl CompiledQuery {
    /// Everything a query gives over these values; each comes with the number of its item.
    pub fn select(
        &self,
        values: impl Iterator<Item = (ItemNumber, Value)>,
        run: &Run,
    ) -> Result<Vec<Selected>, QueryError> {
        let mut results = if self.is_aggregate() || self.is_grouped() {
            self.select_groups(values, run)?
        } else {
            self.select_rows(values, run)?
        };
        if self.distinct {
            let mut seen = BTreeSet::new();
            results.retain(|one| seen.insert(one.value.key()));
        }
        Ok(self.window.of(results))
    }

    /// The items, or the one empty row of a query without FROM.
    fn walk(
        &self,
        values: impl Iterator<Item = (ItemNumber, Value)>,
        run: &Run,
        each: &mut dyn FnMut(&super::Row<'_>, ItemNumber),
    ) -> Result<(), QueryError> {
        let mut one = |number, value: &Value| {
            self.for_each_row(value, number, run, &mut |row| {
                each(row, number);
                if run.is_over() { Break(()) } else { Continue(()) }
            });
            run.exceeded().map_or(Ok(()), Err)
        };
        if !self.has_source() {
            return one(ItemNumber(0), &Value::Undefined);
        }
        for (number, value) in values {
            one(number, &value)?;
        }
        Ok(())
    }

    fn select_rows(
        &self,
        values: impl Iterator<Item = (ItemNumber, Value)>,
        run: &Run,
    ) -> Result<Vec<Selected>, QueryError> {
        let mut results = Vec::new();
        self.walk(values, run, &mut |row, number| {
            let Some(keys) = self.sort_keys(row, run) else { return };
            if let Some(value) = self.project(row, run) {
                results.push(Selected { value, keys, number });
            }
        })?;
        if !self.order.is_empty() {
            results.sort_by(|a, b| self.compare(&a.keys, a.number, &b.keys, b.number));
        }
        Ok(results)
    }

    /// The order of ORDER BY: key by key, then by item; its direction is the first key's.
    pub fn compare(
        &self,
        a: &[Value],
        a_number: ItemNumber,
        b: &[Value],
        b_number: ItemNumber,
    ) -> Ordering {
        let directed = |order: Ordering, descending: bool| {
            if descending { order.reverse() } else { order }
        };
        let by_key = self
            .order
            .iter()
            .zip(a.iter().zip(b))
            .map(|(sort, (a, b))| directed(a.sort_compare(b), sort.descending));
        let by_keys = by_key.fold(Ordering::Equal, Ordering::then);
        let descending = self.order.first().is_some_and(|sort| sort.descending);
        by_keys.then(directed(a_number.cmp(&b_number), descending))
    }

    fn select_groups(
        &self,
        values: impl Iterator<Item = (ItemNumber, Value)>,
        run: &Run,
    ) -> Result<Vec<Selected>, QueryError> {
        struct Group {
            keys: Vec<Value>,
            sums: Accumulators,
            first: ItemNumber,
        }
        let group = |keys, first| Group { keys, sums: self.accumulators(), first };
        let mut groups: Vec<Group> = Vec::new();
        if self.is_aggregate() {
            groups.push(group(Vec::new(), ItemNumber(0)));
        }
        let mut known: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        self.walk(values, run, &mut |row, number| {
            let keys = self.group_key(row, run);
            let at = if self.is_aggregate() {
                0
            } else {
                let next = groups.len();
                *known.entry(keys.iter().flat_map(Value::key).collect()).or_insert(next)
            };
            if at == groups.len() {
                groups.push(group(keys, number));
            }
            self.accumulate(&mut groups[at].sums, row, run);
        })?;
        let mut results = Vec::new();
        for Group { keys, sums, first } in &groups {
            let finished = self.finish(keys, sums, run);
            if let Some(error) = run.exceeded() {
                return Err(error);
            }
            let number = *first;
            let selected = |value| Selected { value, keys: Vec::new(), number };
            results.extend(finished.map(selected));
        }
        Ok(results)
    }
}

impl Window {
    /// The part of all results that is wanted.
    pub fn of<T>(&self, results: Vec<T>) -> Vec<T> {
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let take = self.take.map_or(usize::MAX, count);
        results.into_iter().skip(count(self.skip)).take(take).collect()
    }
}
