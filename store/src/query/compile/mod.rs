//! Compiles a query: binds parameters and names, finds what is wrong, and computes in advance what
//! depends on no row.
//!
//! 1. `block` goes through the clauses of a query or subquery, `sources` through FROM and JOIN.
//! 2. `expressions` and `calls` turn expressions into operations; names become slots.
//! 3. `groups` takes care of GROUP BY and aggregates, `order` of what only the outermost query has.
//!
//! Whatever is wrong is noted and stands for undefined, so that all of it is found at once.

mod block;
mod calls;
mod errors;
mod expressions;
mod fold;
mod groups;
mod order;
mod sources;
pub(super) mod tree;

use errors::Errors;
use groups::Groups;

use super::ast::{Expr, Query, Select};
use super::compiled::{CompiledQuery, Effort};
use super::computed::ComputedProperties;
use super::conditions;
use super::depth;
use super::error::{QueryError, Span};
use super::functions::{Metric, Moment};
use super::names::{last_of_each, select_names};
use super::needed::Needed;
use super::op::{Block, Op, Projection};
use super::parameters::Parameters;
use super::run::{Run, Tariff};
use super::value::{DEPTH_MAX, Value};
use crate::indexing::IndexRules;
use crate::time::Millis;

/// JOINs in a query, those of its subqueries included.
pub const JOINS_MAX: usize = 10;
/// Calls of user-defined functions in a query.
pub const USER_DEFINED_CALLS_MAX: usize = 10;
/// Nodes of expressions that are compared with the keys of GROUP BY.
const COMPARISONS_MAX: u64 = 1_000_000;
/// Operations that computing constants in advance may take: a query text could ask for far more, and
/// is compiled once for each page.
const FOLDING_OPERATIONS_MAX: u64 = 100_000;
/// Bytes of values that it may build, as replicas agreed to count them.
const FOLDING_BYTES_MAX: usize = 256 << 10;
/// The same as memory holds them: up to eight times as many.
const FOLDING_HELD_BYTES_MAX: usize = 2 << 20;
/// Operations that compiling constant patterns may take: of a dozen of the largest, which hold as many
/// MiB. What is beyond that is compiled when it is called.
const PATTERN_OPERATIONS_MAX: u64 = 1_000_000;
/// Bytes of constant texts that may be used as patterns and names, of which each use makes a copy.
/// A text holds less: only parameters, used over and over, come to more.
pub(super) const COPIED_BYTES_MAX: usize = 1 << 20;

/// Whether functions of time, of chance and of the processor, and what only a stored item has, may
/// be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purity {
    /// Everything may.
    Any,
    /// The same item must always and everywhere give the same value.
    Pure,
}

/// A compilation under way.
pub(super) struct Compiler<'q> {
    text: &'q str,
    parameters: &'q Parameters,
    computed: &'q ComputedProperties,
    purity: Purity,
    metric: Metric,
    /// Names in reach, the innermost last.
    names: Vec<Binding>,
    /// How many slots are filled here.
    slots: usize,
    /// Set where a group is selected from.
    groups: Option<Groups<'q>>,
    /// False if the outermost query has no FROM: then there is no item.
    has_item: bool,
    joins: usize,
    user_defined_calls: usize,
    /// Set where a GROUP BY of a subquery was met.
    grouped_subquery: Option<Span>,
    folding: Run,
    /// What is left for compiling patterns.
    pattern_operations: u64,
    /// What is left for copying texts.
    copied_bytes: usize,
    /// What is left for comparing expressions with the keys of GROUP BY.
    comparisons: u64,
    /// True if a function was met that may take longer than replicas agreed to count.
    takes_longer: bool,
    errors: Errors,
}

/// What a name stands for.
#[derive(Clone, Debug)]
struct Binding {
    /// None: a source without an alias.
    name: Option<String>,
    slot: usize,
    /// True where rows have become groups: then it stands for nothing in particular.
    grouped_away: bool,
}

/// What to compile for.
pub(super) struct Setting<'q> {
    pub(super) parameters: &'q Parameters,
    pub(super) computed: &'q ComputedProperties,
    pub(super) purity: Purity,
    /// What coordinates mean in the container.
    pub(super) metric: Metric,
}

/// Compiles a parsed query for a container with these index rules.
pub(super) fn compile(
    text: &str,
    query: &Query,
    setting: &Setting<'_>,
    index: &IndexRules,
) -> Result<CompiledQuery, QueryError> {
    let mut compiler = Compiler::new(text, setting);
    compiler.has_item = !query.from.is_empty();
    let window = compiler.window(query);
    let (block, order) = compiler.outermost(query, index);
    let composes_aggregates = block.grouping.is_some() && groups::composes(&query.select);
    compiler.check_user_defined(query.span);
    let effort = compiler.effort();
    if let Some(error) = compiler.errors.all() {
        return Err(error);
    }
    if depth::of(&block) > DEPTH_MAX {
        let message = format!("The query makes values nested more than {DEPTH_MAX} levels deep.");
        return Err(QueryError::at(message, query.span));
    }
    let selects_order = order::is_selected(&order, &block.select);
    let needed = Needed::by(&block, &order);
    let distinct = query.distinct.is_some();
    let has_source = !query.from.is_empty();
    let (conditions, conditions_are_all) = conditions::of(text, query, setting);
    Ok(CompiledQuery {
        block,
        order,
        distinct,
        window,
        has_source,
        conditions,
        conditions_are_all,
        selects_order,
        composes_aggregates,
        needed,
        effort,
        computed: setting.computed.clone(),
    })
}

/// Compiles an expression over an item that goes by a name.
pub(super) fn compile_over_item<'q>(
    text: &'q str,
    alias: &str,
    expr: &'q Expr,
    setting: &Setting<'q>,
) -> Result<Op, QueryError> {
    let mut compiler = Compiler::new(text, setting);
    compiler.bind(Some(alias.to_string()), super::op::ROOT);
    let op = compiler.op(expr);
    match compiler.errors.all() {
        Some(error) => Err(error),
        None => Ok(op),
    }
}

impl<'q> Compiler<'q> {
    fn new(text: &'q str, setting: &Setting<'q>) -> Self {
        let moment = Moment::new(Millis(0), Millis(0), 0);
        let (tariff, bytes) = match setting.purity {
            Purity::Any => (Tariff::Actual, FOLDING_HELD_BYTES_MAX),
            // What is computed in advance is not paid for later: on that, too, replicas agree.
            Purity::Pure => (Tariff::Agreed, FOLDING_BYTES_MAX),
        };
        Self {
            text,
            parameters: setting.parameters,
            computed: setting.computed,
            purity: setting.purity,
            metric: setting.metric,
            names: Vec::new(),
            slots: 1,
            groups: None,
            has_item: true,
            joins: 0,
            user_defined_calls: 0,
            grouped_subquery: None,
            folding: Run::with_budget(moment, tariff, FOLDING_OPERATIONS_MAX, bytes),
            pattern_operations: PATTERN_OPERATIONS_MAX,
            copied_bytes: COPIED_BYTES_MAX,
            comparisons: COMPARISONS_MAX,
            takes_longer: false,
            errors: Errors::default(),
        }
    }

    fn effort(&self) -> Effort {
        let patterns = PATTERN_OPERATIONS_MAX - self.pattern_operations;
        Effort { compiling: self.folding.spent() + patterns, takes_longer: self.takes_longer }
    }

    /// Notes what is wrong; undefined stands in for it.
    fn refuse(&mut self, error: QueryError) -> Op {
        self.errors.push(error);
        Op::constant(Value::Undefined)
    }

    fn bind(&mut self, name: Option<String>, slot: usize) {
        self.names.push(Binding { name, slot, grouped_away: false });
    }

    /// The slot that a name stands for; none if no source has this name.
    ///
    /// `reference` is the whole of what the name is used in.
    fn lookup(&mut self, name: &str, reference: Span) -> Option<usize> {
        let known = self.names.iter().rev().find(|known| known.name.as_deref() == Some(name))?;
        let (slot, grouped_away) = (known.slot, known.grouped_away);
        if grouped_away && !self.errors.is_full() {
            let shown = reference.of(self.text);
            let message = format!(
                "Property reference '{shown}' is invalid in the select list because it is not \
                 contained in either an aggregate function or the GROUP BY clause."
            );
            self.errors.push(QueryError::coded("SC2102", message, reference));
        }
        Some(slot)
    }

    /// The select list as a projection; `star` is the slot that `*` means.
    fn projection(&mut self, select: &'q Select, star: Option<usize>) -> Projection {
        match select {
            Select::Star(_) => {
                let whole = star.map_or(Op::constant(Value::Undefined), Op::slot);
                Projection::Value(whole)
            }
            Select::Value(expr) => Projection::Value(self.op(expr)),
            Select::List(items) => {
                let is_source =
                    |name: &str| self.names.iter().any(|known| known.name.as_deref() == Some(name));
                let names = select_names(items, &is_source);
                let list = items.iter().zip(names).map(|(item, name)| (name, self.op(&item.expr)));
                Projection::List(last_of_each(list.collect()))
            }
        }
    }
}

impl Op {
    /// A slot as it is.
    pub(super) fn slot(slot: usize) -> Self {
        Op::Path(super::op::Path::slot(slot))
    }
}

impl Block {
    /// True if it can give more than one row, whatever the data.
    fn may_give_several(&self) -> bool {
        use super::op::Source;
        if self.grouping.as_ref().is_some_and(|grouping| grouping.keys.is_empty()) {
            return false;
        }
        self.sources.iter().any(|source| match source {
            Source::One(_) => false,
            Source::Elements(_) | Source::RowElements(_) => true,
            Source::Rows(block) => block.may_give_several(),
        })
    }
}
