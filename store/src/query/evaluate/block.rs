//! Walks through the clauses of a query: FROM and JOIN, WHERE, GROUP BY, SELECT, DISTINCT.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow::{self, Break, Continue};
use std::slice;

use super::Row;
use crate::query::aggregate::Accumulators;
use crate::query::op::{Block, Grouping, Projection, Source};
use crate::query::run::Run;
use crate::query::value::Value;

/// What to do with each row; `Break` ends the walk.
pub(in crate::query) type EachRow<'e> = &'e mut dyn FnMut(&Row<'_>) -> ControlFlow<()>;
/// What to do with each row that was tried; none for one that fell away.
pub(in crate::query) type EachTried<'e> = &'e mut dyn FnMut(Option<&Row<'_>>) -> ControlFlow<()>;
/// What to do with each result.
type EachValue<'e> = &'e mut dyn FnMut(Value) -> ControlFlow<()>;

/// A group of a subquery: its keys and its sums.
type Group = (Vec<Value>, Accumulators);

impl Source {
    /// Shows each value of the source.
    fn walk(
        &self,
        row: &Row<'_>,
        run: &Run,
        each: &mut dyn FnMut(&Value) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match self {
            Source::One(op) => {
                let value = op.evaluate(row, run);
                if value.is_defined() { each(&value) } else { Continue(()) }
            }
            Source::Elements(op) => elements(&op.evaluate(row, run), each),
            Source::Rows(block) => block.results(row, run, &mut |value| each(&value)),
            Source::RowElements(block) => {
                block.results(row, run, &mut |value| elements(&value, each))
            }
        }
    }
}

fn elements(value: &Value, each: &mut dyn FnMut(&Value) -> ControlFlow<()>) -> ControlFlow<()> {
    match value {
        Value::Array(elements) => elements.iter().try_for_each(each),
        Value::Undefined
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::Text(_)
        | Value::Object(_) => Continue(()),
    }
}

impl Block {
    /// Shows each row that FROM, JOIN and WHERE let through.
    pub(in crate::query) fn rows(
        &self,
        row: &Row<'_>,
        run: &Run,
        each: EachRow<'_>,
    ) -> ControlFlow<()> {
        self.rows_tried(row, run, &mut |row| row.map_or(Continue(()), &mut *each))
    }

    /// The same, telling also of rows that fell away: there may be millions of them, one after the
    /// other.
    pub(in crate::query) fn rows_tried(
        &self,
        row: &Row<'_>,
        run: &Run,
        each: EachTried<'_>,
    ) -> ControlFlow<()> {
        self.join(0, row, run, each)
    }

    fn join<'r>(
        &'r self,
        joined: usize,
        row: &'r Row<'r>,
        run: &Run,
        each: EachTried<'_>,
    ) -> ControlFlow<()> {
        if !self.admits(joined, row, run) {
            return each(None);
        }
        let Some(source) = self.sources.get(joined) else { return each(Some(row)) };
        source.walk(row, run, &mut |value| {
            if run.is_over() {
                return Break(());
            }
            let next = row.with(self.first_slot + joined, slice::from_ref(value));
            self.join(joined + 1, &next, run, each)
        })
    }

    /// False if what of the filter can be evaluated here, and could not before, is not true.
    ///
    /// A condition on the item alone is not looked at again for every element of a JOIN.
    fn admits(&self, joined: usize, row: &Row<'_>, run: &Run) -> bool {
        let Some(filter) = &self.filter else { return true };
        let operands = filter.conjuncts();
        self.due[joined].iter().all(|number| operands[*number].evaluate(row, run).is_true())
    }

    /// Shows each result.
    fn results(&self, row: &Row<'_>, run: &Run, each: EachValue<'_>) -> ControlFlow<()> {
        if !self.distinct {
            return self.all_results(row, run, each);
        }
        let mut seen = BTreeSet::new();
        self.all_results(row, run, &mut |value| {
            let key = value.key();
            let place = size_of_val(&key);
            let is_new = run.build(key.len()) && seen.insert(key) && run.build_beside(place);
            if is_new { each(value) } else { Continue(()) }
        })
    }

    fn all_results(&self, row: &Row<'_>, run: &Run, each: EachValue<'_>) -> ControlFlow<()> {
        if let Some(grouping) = &self.grouping {
            let groups = self.groups(grouping, row, run);
            return groups.into_iter().try_for_each(|(keys, sums)| {
                match self.finish(row, &keys, &sums, run) {
                    Some(value) => each(value),
                    None => Continue(()),
                }
            });
        }
        self.rows(row, run, &mut |row| match self.select.of(row, run) {
            Some(value) => each(value),
            None => Continue(()),
        })
    }

    /// All groups, in the order of their first rows.
    fn groups(&self, grouping: &Grouping, row: &Row<'_>, run: &Run) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let mut known: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        if grouping.keys.is_empty() {
            groups.push((Vec::new(), Accumulators::new(&grouping.aggregates)));
            known.insert(Vec::new(), 0);
        }
        let _ = self.rows(row, run, &mut |row| {
            let keys = grouping.keys_of(row, run);
            let name: Vec<u8> = keys.iter().flat_map(Value::key).collect();
            let next = groups.len();
            let bytes = name.len() + size_of::<Group>() + grouping.accumulators_size();
            let bytes_beside = size_of_val(&name) + size_of_val(keys.as_slice());
            let at = *known.entry(name).or_insert(next);
            if at == next {
                run.build(bytes);
                run.build_beside(bytes_beside);
                groups.push((keys, Accumulators::new(&grouping.aggregates)));
            }
            grouping.add(&mut groups[at].1, row, run);
            if run.is_over() { Break(()) } else { Continue(()) }
        });
        groups
    }

    /// What is selected from a group; `row` is the one around the block.
    pub(in crate::query) fn finish(
        &self,
        row: &Row<'_>,
        keys: &[Value],
        sums: &Accumulators,
        run: &Run,
    ) -> Option<Value> {
        let results = sums.results(run);
        let row = row.with(self.first_slot, keys);
        self.select.of(&row.with(self.first_slot + keys.len(), &results), run)
    }

    pub(super) fn first(&self, row: &Row<'_>, run: &Run) -> Value {
        let mut first = Value::Undefined;
        let _ = self.results(row, run, &mut |value| {
            first = value;
            Break(())
        });
        first
    }

    pub(super) fn last(&self, row: &Row<'_>, run: &Run) -> Value {
        let mut last = Value::Undefined;
        let _ = self.results(row, run, &mut |value| {
            last = value;
            Continue(())
        });
        last
    }

    pub(super) fn array(&self, row: &Row<'_>, run: &Run) -> Value {
        let mut values = Vec::new();
        let _ = self.results(row, run, &mut |value| {
            let bytes_beside = self.select.places(&value);
            values.push(value);
            let is_paid = run.build(size_of::<Value>()) && run.build_beside(bytes_beside);
            if is_paid { Continue(()) } else { Break(()) }
        });
        Value::Array(values)
    }

    pub(super) fn exists(&self, row: &Row<'_>, run: &Run) -> bool {
        self.results(row, run, &mut |_| Break(())).is_break()
    }
}

impl Grouping {
    /// Bytes that a group's sums take in memory before there are any.
    fn accumulators_size(&self) -> usize {
        self.aggregates.len() * Accumulators::SIZE_OF_EACH
    }

    /// What a row is grouped by.
    pub(in crate::query) fn keys_of(&self, row: &Row<'_>, run: &Run) -> Vec<Value> {
        self.keys.iter().map(|key| run.own(key.evaluate(row, run))).collect()
    }

    /// Adds a row to the sums of its group.
    pub(in crate::query) fn add(&self, sums: &mut Accumulators, row: &Row<'_>, run: &Run) {
        sums.add(self.aggregates.iter().map(|one| one.argument.evaluate(row, run)), run);
    }
}

impl Projection {
    /// What is selected from a row; none if it falls away.
    pub(in crate::query) fn of(&self, row: &Row<'_>, run: &Run) -> Option<Value> {
        match self {
            Projection::Value(op) => Some(run.own(op.evaluate(row, run))).filter(Value::is_defined),
            Projection::List(list) => Some(super::object(list, row, run)),
        }
    }

    /// Bytes that a result takes which were not paid for: most results are not kept for long.
    fn places(&self, result: &Value) -> usize {
        match self {
            Projection::Value(_) => 0,
            Projection::List(_) => result.places(),
        }
    }
}
