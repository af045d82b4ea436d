//! A query ready to be run, and what whoever runs it asks of it.
//!
//! 1. `for_each_row` turns an item into rows: FROM, JOIN, WHERE.
//! 2. Rows are projected, or sorted by `sort_keys` and then projected; or, if `is_grouped` or
//!    `is_aggregate`, accumulated by `group_key` and finished group by group.
//! 3. Then come DISTINCT (`distinct`, equal values share `Value::key`), and `window`.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::aggregate::{Accumulators, AggregateKind};
use super::ast::BinaryOp;
use super::compile::{Purity, Setting, compile};
use super::computed::ComputedProperties;
use super::conditions::Condition;
use super::error::QueryError;
use super::evaluate::Row;
use super::functions::{Metric, Moment};
use super::needed::Needed;
use super::op::{Aggregate, Block, Op, ROOT};
use super::parameters::Parameters;
use super::parser::parse;
use super::run::{COMPUTED_BYTES_MAX, COMPUTED_OPERATIONS_MAX, Run, Tariff};
use super::value::Value;
use crate::ids::ItemNumber;
use crate::indexing::{self, IndexRules};
use crate::partition_key::{Component, KeyDefinition, PartitionKey};
use crate::time::Millis;

/// Aggregates of a query with GROUP BY that spans partitions.
pub const AGGREGATES_MAX: usize = 21;

/// Ranges of index entries that are looked at in no time.
const SOON_PLANNED_RANGES: usize = 16;

/// A query ready to be run.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts about the text that say nothing of each other"
)]
pub struct CompiledQuery {
    pub(super) block: Block,
    /// How rows are ordered; empty without ORDER BY.
    pub order: Vec<SortOrder>,
    /// Equal results count once.
    pub distinct: bool,
    /// Which of the results are wanted.
    pub window: Window,
    pub(super) has_source: bool,
    /// What the filter demands of single paths.
    pub(super) conditions: Vec<Condition>,
    /// True if the filter demands nothing else.
    pub(super) conditions_are_all: bool,
    /// True if what rows are sorted by is part of what is selected.
    pub(super) selects_order: bool,
    pub(super) composes_aggregates: bool,
    pub(super) needed: Needed,
    pub(super) effort: Effort,
    /// What it takes for a computed property: an index must hold the same.
    pub(super) computed: ComputedProperties,
}

/// What the text alone tells about the time that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Operations that compiling it has taken.
    pub compiling: u64,
    /// True if it calls a function that may take longer than replicas agreed to count.
    pub takes_longer: bool,
}

/// One key of ORDER BY.
#[derive(Clone, Debug)]
pub struct SortOrder {
    /// The path of the item, or the name of the computed property, that is sorted by.
    pub path: Vec<String>,
    /// `DESC`
    pub descending: bool,
    /// True if items without the property are returned too, before everything else.
    pub keeps_undefined: bool,
    /// What computes it.
    pub(super) key: Op,
}

/// TOP, OFFSET and LIMIT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Results to leave out at the start.
    pub skip: u64,
    /// Results to give then, at most; none: all.
    pub take: Option<u64>,
}

impl CompiledQuery {
    /// Parses and compiles a query text for a container with these index rules and computed
    /// properties.
    pub fn new(
        text: &str,
        parameters: &Parameters,
        index: &IndexRules,
        computed: &ComputedProperties,
    ) -> Result<Self, QueryError> {
        let metric = index.metric();
        let setting = Setting { parameters, computed, purity: Purity::Any, metric };
        compile(text, &parse(text)?, &setting, index)
    }

    /// Every item as it is: what a read feed returns.
    pub fn everything() -> Self {
        Self::new(
            "SELECT * FROM c",
            &Parameters::default(),
            &any_index(),
            &ComputedProperties::default(),
        )
        .expect("the simplest query compiles")
    }

    /// The condition of a patch: `FROM … WHERE …`, which sees nothing but the item.
    pub fn condition(text: &str, metric: Metric) -> Result<Self, QueryError> {
        let text = format!("SELECT * {text}");
        let query = parse(&text)?;
        if !query.group_by.is_empty() || !query.order_by.is_empty() || query.offset_limit.is_some()
        {
            return Err(QueryError::at("A condition has only FROM and WHERE.", query.span));
        }
        let (parameters, computed) = (Parameters::default(), ComputedProperties::default());
        let setting =
            Setting { parameters: &parameters, computed: &computed, purity: Purity::Pure, metric };
        compile(&text, &query, &setting, &any_index())
    }

    /// What the text alone tells about the time that it takes.
    pub fn effort(&self) -> Effort {
        self.effort
    }

    /// True if an item satisfies a condition. It has the budget of a computed property, because every replica evaluates
    /// it while applying; past that it does not hold. It takes from the operations that are left: all of them, if it
    /// needs more.
    pub fn keeps(&self, item: &Value, left: &mut u64) -> bool {
        let moment = Moment::new(Millis(0), Millis(0), 0);
        let operations = (*left).min(COMPUTED_OPERATIONS_MAX);
        let run = Run::with_budget(moment, Tariff::Agreed, operations, COMPUTED_BYTES_MAX);
        let mut kept = false;
        self.for_each_row(item, ItemNumber(0), &run, &mut |_| {
            kept = true;
            ControlFlow::Break(())
        });
        let is_cut_short = run.lacks_operations() && operations < COMPUTED_OPERATIONS_MAX;
        *left -= if is_cut_short { operations } else { run.spent() };
        kept && !run.is_over()
    }

    /// The partition key that every item satisfying the filter has, if the filter says so.
    pub fn pinned_key(&self, definition: &KeyDefinition) -> Option<PartitionKey> {
        let conjuncts = self.filter()?.conjuncts();
        let pinned = |path: &Vec<String>| {
            conjuncts.iter().find_map(|op| equality(op, path).and_then(component))
        };
        definition.paths.iter().map(pinned).collect::<Option<Vec<_>>>().map(PartitionKey)
    }

    /// What a row must satisfy.
    pub(super) fn filter(&self) -> Option<&Op> {
        self.block.filter.as_ref()
    }

    /// False without FROM: then there is exactly one row, whatever the container holds.
    pub fn has_source(&self) -> bool {
        self.has_source
    }

    /// True if each row's result is the item as clients see it: its stored bytes can be copied, and
    /// `needed` leaves out what they alone would need. `project` must then not be called with less
    /// than the whole item.
    pub fn is_star(&self) -> bool {
        self.block.selects_item()
    }

    /// True if an item gives at most one row.
    pub fn is_one_to_one(&self) -> bool {
        self.block.sources.is_empty()
    }

    /// What of an item must be read.
    pub fn needed(&self) -> &Needed {
        &self.needed
    }

    /// True for aggregates without GROUP BY: there is exactly one result.
    pub fn is_aggregate(&self) -> bool {
        self.block.grouping.as_ref().is_some_and(|grouping| grouping.keys.is_empty())
    }

    /// True with GROUP BY.
    pub fn is_grouped(&self) -> bool {
        self.block.grouping.as_ref().is_some_and(|grouping| !grouping.keys.is_empty())
    }

    /// True if an aggregate is only part of what is selected, as in `MAX(c.a) - 1`. Where a query
    /// spans partitions that is refused: "Compositions of aggregates …".
    pub fn composes_aggregates(&self) -> bool {
        self.composes_aggregates
    }

    /// How many aggregates there are; at most `AGGREGATES_MAX` where groups span partitions.
    pub fn aggregates(&self) -> usize {
        self.block.grouping.as_ref().map_or(0, |grouping| grouping.aggregates.len())
    }

    /// True if all it asks is how many items the filter keeps.
    pub(super) fn counts_items(&self) -> bool {
        let Some(grouping) = &self.block.grouping else { return false };
        let is_count = |one: &Aggregate| {
            one.kind == AggregateKind::Count
                && matches!(&one.argument, Op::Constant(value) if value.is_defined())
        };
        grouping.keys.is_empty()
            && self.is_one_to_one()
            && matches!(grouping.aggregates.as_slice(), [one] if is_count(one))
    }

    /// True if choosing the way to its items takes no time to speak of.
    pub fn is_soon_planned(&self) -> bool {
        self.conditions.iter().map(Condition::ranges).sum::<usize>() <= SOON_PLANNED_RANGES
    }

    /// Refuses what cannot be added up over partitions.
    pub fn check_spanning(&self) -> Result<(), QueryError> {
        if self.composes_aggregates {
            let message = "Compositions of aggregates and other expressions are not allowed.";
            return Err(QueryError::Plain(message.to_string()));
        }
        if self.is_grouped() && self.aggregates() > AGGREGATES_MAX {
            let message = format!(
                "A query with GROUP BY that spans partitions has at most {AGGREGATES_MAX} \
                 aggregates."
            );
            return Err(QueryError::Plain(message));
        }
        Ok(())
    }

    /// Shows each row of an item that satisfies the filter, until `each` breaks off. Ask
    /// `run.exceeded` afterwards.
    pub fn for_each_row(
        &self,
        item: &Value,
        number: ItemNumber,
        run: &Run,
        each: &mut dyn FnMut(&Row<'_>) -> ControlFlow<()>,
    ) {
        run.refill();
        let _ = self.block.rows(&Row::of(item, number), run, each);
    }

    /// The same, telling also of rows that do not satisfy it.
    pub(super) fn for_each_tried(
        &self,
        item: &Value,
        number: ItemNumber,
        run: &Run,
        each: &mut dyn FnMut(Option<&Row<'_>>) -> ControlFlow<()>,
    ) {
        run.refill();
        let _ = self.block.rows_tried(&Row::of(item, number), run, each);
    }

    /// What is selected from a row; none if it falls away.
    pub fn project(&self, row: &Row<'_>, run: &Run) -> Option<Value> {
        assert!(self.block.grouping.is_none(), "groups are finished, not projected");
        self.block.select.of(row, run)
    }

    /// What a row is sorted by; none if it is left out.
    pub fn sort_keys(&self, row: &Row<'_>, run: &Run) -> Option<Vec<Value>> {
        let key = |sort: &SortOrder| {
            let key = run.own(sort.key.evaluate(row, run));
            (key.is_defined() || sort.keeps_undefined).then_some(key)
        };
        self.order.iter().map(key).collect()
    }

    /// What a row is grouped by; empty without GROUP BY.
    pub fn group_key(&self, row: &Row<'_>, run: &Run) -> Vec<Value> {
        self.block.grouping.as_ref().map_or(Vec::new(), |grouping| grouping.keys_of(row, run))
    }

    /// The sums of a group without rows.
    pub fn accumulators(&self) -> Accumulators {
        let aggregates = self.block.grouping.as_ref().map(|grouping| &grouping.aggregates[..]);
        Accumulators::new(aggregates.unwrap_or_default())
    }

    /// True if sums are those of this query.
    pub fn adds_up_to(&self, sums: &Accumulators) -> bool {
        self.block.grouping.as_ref().is_some_and(|grouping| sums.suit(&grouping.aggregates))
    }

    /// Adds a row to the sums of its group.
    pub fn accumulate(&self, into: &mut Accumulators, row: &Row<'_>, run: &Run) {
        if let Some(grouping) = &self.block.grouping {
            grouping.add(into, row, run);
        }
    }

    /// What is selected from a group; none if it falls away. Ask `run.exceeded` afterwards.
    pub fn finish(&self, key: &[Value], sums: &Accumulators, run: &Run) -> Option<Value> {
        run.refill();
        let no_item = Value::Undefined;
        self.block.finish(&Row::of(&no_item, ItemNumber(0)), key, sums, run)
    }
}

/// Rules for where no index matters.
fn any_index() -> IndexRules {
    let policy = indexing::complete(None).expect("the default policy is valid");
    IndexRules::new(&policy).expect("the default policy is valid")
}

/// The value an item has at a path if it satisfies `op`.
pub(super) fn equality<'o>(op: &'o Op, path: &[String]) -> Option<&'o Value> {
    let Op::Binary(BinaryOp::Equal, left, right) = op else { return None };
    match (left.as_ref(), right.as_ref()) {
        (Op::Constant(value), other) | (other, Op::Constant(value)) if leads_to(other, path) => {
            Some(value)
        }
        _ => None,
    }
}

/// The component of a partition key that a value is; none if it is a component's absence.
pub(super) fn component(value: &Value) -> Option<Component> {
    match value {
        Value::Null => Some(Component::Null),
        Value::Bool(truth) => Some(Component::Bool(*truth)),
        Value::Number(number) => Some(Component::number(number.as_f64())),
        Value::Text(text) => Some(Component::Text(text.clone())),
        Value::Undefined | Value::Array(_) | Value::Object(_) => None,
    }
}

/// True if it is what lies at this path of the item.
pub(super) fn leads_to(op: &Op, path: &[String]) -> bool {
    matches!(op, Op::Path(found) if found.slot == ROOT && found.names().as_deref() == Some(path))
}

#[cfg(test)]
mod tests;
