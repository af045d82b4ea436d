//! The clauses of a query or subquery.

use std::ops::Range;

use super::super::ast::{Query, Select, SubqueryKind, UnaryOp};
use super::super::compiled::SortOrder;
use super::super::error::{QueryError, Span};
use super::super::op::{Block, Op, RowsTo};
use super::super::value::Value;
use super::{Compiler, Purity};
use crate::indexing::IndexRules;

/// What a subquery's WHERE is to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    AsWritten,
    /// For ALL: rows for which it is false.
    Negated,
}

impl<'q> Compiler<'q> {
    /// The query itself, with what only it may have.
    pub(super) fn outermost(
        &mut self,
        query: &'q Query,
        index: &IndexRules,
    ) -> (Block, Vec<SortOrder>) {
        if self.purity == Purity::Any {
            self.refuse_gathering(query);
        }
        let mut order = Vec::new();
        let block = self.block(query, Condition::AsWritten, &mut |compiler, grouped| {
            order = compiler.order(query, index, grouped);
        });
        (block, order)
    }

    /// A subquery whose rows become a value.
    pub(super) fn subquery(&mut self, kind: SubqueryKind, query: &'q Query, span: Span) -> Op {
        let condition = match kind {
            SubqueryKind::All => Condition::Negated,
            SubqueryKind::Scalar
            | SubqueryKind::Exists
            | SubqueryKind::Array
            | SubqueryKind::First
            | SubqueryKind::Last => Condition::AsWritten,
        };
        let block = self.inner_block(query, condition);
        if kind == SubqueryKind::Scalar && block.may_give_several() {
            let message =
                "The cardinality of a scalar subquery result set cannot be greater than one.";
            return self.refuse(QueryError::at(message, span));
        }
        let to = match kind {
            SubqueryKind::Scalar | SubqueryKind::First => RowsTo::First,
            SubqueryKind::Last => RowsTo::Last,
            SubqueryKind::Array => RowsTo::Array,
            SubqueryKind::Exists => RowsTo::Exists,
            SubqueryKind::All => RowsTo::Absent,
        };
        Op::Subquery(to, Box::new(block))
    }

    /// A subquery that rows come from.
    pub(super) fn source_block(&mut self, query: &'q Query) -> Block {
        self.inner_block(query, Condition::AsWritten)
    }

    fn inner_block(&mut self, query: &'q Query, condition: Condition) -> Block {
        self.refuse_outermost_clauses(query);
        if !query.group_by.is_empty() {
            self.grouped_subquery = Some(query.clauses.group_by);
        }
        self.block(query, condition, &mut |_, _| ())
    }

    fn refuse_outermost_clauses(&mut self, query: &Query) {
        let clauses = &query.clauses;
        let refuse = |code: &str, clause: &str, span| {
            QueryError::coded(code, format!("'{clause}' is not supported in subqueries."), span)
        };
        if query.rank.is_some() {
            let error = refuse("SC2228", "ORDER BY RANK", clauses.order_by);
            self.errors.push(error);
        } else if !query.order_by.is_empty() {
            self.errors.push(refuse("SC2202", "ORDER BY", clauses.order_by));
        }
        if query.top.is_some() {
            self.errors.push(refuse("SC2203", "TOP", clauses.top));
        }
        if query.offset_limit.is_some() {
            let message = "'OFFSET LIMIT' clause is not supported in subqueries.";
            self.errors.push(QueryError::coded("SC2204", message, clauses.offset_limit));
        }
    }

    /// Compiles the clauses in the order of evaluation; `order` is called where ORDER BY comes, and
    /// told whether rows have become groups.
    fn block(
        &mut self,
        query: &'q Query,
        condition: Condition,
        order: &mut dyn FnMut(&mut Self, bool),
    ) -> Block {
        let (names, slots) = (self.names.len(), self.slots);
        let outer_groups = self.groups.take();
        let outer_grouped_subquery = self.grouped_subquery.take();

        let sources = self.sources(query);
        let filter = self.filter(query, condition);
        let due = due(filter.as_ref(), slots..self.slots);
        let star = self.star(query, names);
        let grouping = self.grouping(query);
        order(self, grouping.is_some());
        if grouping.is_some() {
            self.enter_groups(query, names, slots);
        }
        let select = self.projection(&query.select, star.filter(|_| grouping.is_none()));
        if let (Some(span), Some(_)) = (self.grouped_subquery, &grouping) {
            let message = "GROUP BY in a subquery cannot be combined with an outer aggregate.";
            self.errors.push(QueryError::at(message, span));
        }

        self.grouped_subquery = self.grouped_subquery.or(outer_grouped_subquery);
        self.groups = outer_groups;
        self.slots = slots;
        self.names.truncate(names);
        let distinct = query.distinct.is_some();
        Block { first_slot: slots, sources, filter, due, grouping, select, distinct }
    }

    fn filter(&mut self, query: &'q Query, condition: Condition) -> Option<Op> {
        let filter = query.filter.as_ref().map(|filter| self.op(filter));
        match condition {
            Condition::AsWritten => filter,
            Condition::Negated => {
                let holds = filter.unwrap_or(Op::constant(Value::Bool(true)));
                let negated = Op::Unary(UnaryOp::Not, Box::new(holds));
                Some(self.fold(negated))
            }
        }
    }

    /// The slot that `SELECT *` means; none, if it means anything else or nothing.
    fn star(&mut self, query: &Query, first_name: usize) -> Option<usize> {
        let Select::Star(span) = &query.select else { return None };
        if !query.group_by.is_empty() {
            let message = "'SELECT *' is not allowed with GROUP BY.";
            self.errors.push(QueryError::coded("SC2041", message, *span));
            return None;
        }
        let message = match &self.names[first_name..] {
            [only] => return Some(only.slot),
            [] => "'SELECT *' is not valid if FROM clause is omitted.",
            [_, _, ..] => "'SELECT *' is only valid with a single input set.",
        };
        self.errors.push(QueryError::at(message, *span));
        None
    }
}

/// Which operands of a filter's AND can be evaluated first behind no source, behind the first of those
/// that fill these slots, and so on.
fn due(filter: Option<&Op>, slots: Range<usize>) -> Vec<Vec<usize>> {
    let mut due = vec![Vec::new(); slots.len() + 1];
    for (number, operand) in filter.map_or(&[][..], Op::conjuncts).iter().enumerate() {
        due[operand.reach(slots.end).saturating_sub(slots.start)].push(number);
    }
    due
}
