//! GROUP BY and aggregates: behind them a row is a group, of which only its keys and what its rows
//! add up to can be told.

use std::collections::HashMap;

use super::super::aggregate::AggregateKind;
use super::super::ast::{Expr, ExprKind, Query, Select};
use super::super::error::{QueryError, Span};
use super::super::functions::Arity;
use super::super::op::{Aggregate, Grouping, Op};
use super::super::value::Value;
use super::Compiler;
use super::tree::{Then, same, visit, visit_select};

/// Where the parts of a group are.
#[derive(Debug)]
pub(super) struct Groups<'q> {
    keys: &'q [Expr],
    /// The slot of the first key; behind the keys come the aggregates.
    first_slot: usize,
    /// The slots of the aggregates by their places, which tell them apart.
    aggregates: HashMap<Span, usize>,
}

impl<'q> Compiler<'q> {
    /// How rows are brought together, if they are.
    pub(super) fn grouping(&mut self, query: &'q Query) -> Option<Grouping> {
        let calls = aggregate_calls(&query.select);
        if query.group_by.is_empty() && calls.is_empty() {
            return None;
        }
        let keys = query.group_by.iter().map(|key| self.key(key)).collect();
        let aggregates = calls.iter().map(|call| self.aggregate(call)).collect();
        Some(Grouping { keys, aggregates })
    }

    /// From here on groups are selected from.
    pub(super) fn enter_groups(&mut self, query: &'q Query, first_name: usize, first_slot: usize) {
        for name in &mut self.names[first_name..] {
            name.grouped_away = true;
        }
        let calls = aggregate_calls(&query.select);
        let first_aggregate = first_slot + query.group_by.len();
        self.slots = first_aggregate + calls.len();
        let places = calls.into_iter().map(|call| call.whole.span);
        let aggregates = places.zip(first_aggregate..).collect();
        self.groups = Some(Groups { keys: &query.group_by, first_slot, aggregates });
    }

    /// The slot of a key, or of an aggregate, where a group is selected from.
    pub(super) fn grouped_slot(&mut self, expr: &Expr) -> Option<usize> {
        let Groups { keys, first_slot, aggregates } = self.groups.as_ref()?;
        if let Some(aggregate) = as_aggregate(expr).and_then(|_| aggregates.get(&expr.span)) {
            return Some(*aggregate);
        }
        if self.comparisons == 0 {
            return None;
        }
        let key = keys.iter().position(|key| same(key, expr, &mut self.comparisons));
        if self.comparisons == 0 {
            let message =
                "The query has too many expressions to be compared with those of GROUP BY.";
            self.errors.push_instead(QueryError::at(message, expr.span));
        }
        key.map(|key| first_slot + key)
    }

    fn key(&mut self, key: &'q Expr) -> Op {
        let mut unfit = None;
        visit(key, &mut |part| {
            if as_aggregate(part).is_some() {
                unfit = Some("An aggregate function is not allowed in GROUP BY.");
            } else if matches!(part.kind, ExprKind::Subquery(..)) {
                unfit = Some("A subquery is not allowed in GROUP BY.");
            }
            Then::Descend
        });
        if let Some(message) = unfit {
            return self.refuse(QueryError::at(message, key.span));
        }
        let errors = self.errors.len();
        let op = self.op(key);
        let mut refers = false;
        op.visit(&mut |op| refers |= matches!(op, Op::Path(_) | Op::Computed(_)));
        if !refers && self.errors.len() == errors {
            let message = "A GROUP BY expression must refer to at least one property.";
            return self.refuse(QueryError::at(message, key.span));
        }
        op
    }

    fn aggregate(&mut self, call: &AggregateCall<'q>) -> Aggregate {
        let AggregateCall { kind, args, whole } = *call;
        self.check_arity(kind.name(), Arity { least: 1, most: Some(1) }, args.len(), whole.span);
        let nests = args.iter().any(|arg| {
            let mut nests = false;
            visit(arg, &mut |part| {
                nests |=
                    as_aggregate(part).is_some() || matches!(part.kind, ExprKind::Subquery(..));
                Then::Descend
            });
            nests
        });
        let argument = if nests {
            let message = "Cannot perform an aggregate function on an expression containing an \
                           aggregate or a subquery.";
            self.refuse(QueryError::coded("SC2101", message, whole.span))
        } else {
            let mut args = self.all(args);
            if args.is_empty() { Op::constant(Value::Undefined) } else { args.swap_remove(0) }
        };
        Aggregate { kind, argument }
    }
}

/// True if an aggregate is only a part of a selected expression.
pub(super) fn composes(select: &Select) -> bool {
    let mut composes = false;
    let whole: Vec<&Expr> = match select {
        Select::Star(_) => Vec::new(),
        Select::Value(expr) => vec![expr],
        Select::List(items) => items.iter().map(|item| &item.expr).collect(),
    };
    for expr in whole.into_iter().filter(|expr| as_aggregate(expr).is_none()) {
        visit(expr, &mut |part| {
            composes |= as_aggregate(part).is_some();
            Then::Descend
        });
    }
    composes
}

/// A call of an aggregate function.
struct AggregateCall<'e> {
    kind: AggregateKind,
    args: &'e [Expr],
    whole: &'e Expr,
}

fn as_aggregate(expr: &Expr) -> Option<AggregateCall<'_>> {
    let ExprKind::Call { name, user_defined: false, args, .. } = &expr.kind else { return None };
    AggregateKind::named(name).map(|kind| AggregateCall { kind, args, whole: expr })
}

/// True if rows become one result, or one for each group.
pub(super) fn has_aggregates(select: &Select) -> bool {
    !aggregate_calls(select).is_empty()
}

/// The aggregates of a select list, those inside others left out.
fn aggregate_calls(select: &Select) -> Vec<AggregateCall<'_>> {
    let mut calls = Vec::new();
    visit_select(select, &mut |expr| match as_aggregate(expr) {
        Some(call) => {
            calls.push(call);
            Then::Skip
        }
        None => Then::Descend,
    });
    calls
}
