//! How the rows of several ranges are merged, as the query's words tell it.
#![expect(clippy::wildcard_enum_match_arm, reason = "asks for one form among many")]

use super::DistinctType;
use crate::query::aggregate::AggregateKind;
use crate::query::ast::{Collection, Expr, ExprKind, PathStep, Query, Select, Sort, Source};
use crate::query::compile::tree::{Then, visit};
use crate::query::compiled::{CompiledQuery, Window};
use crate::query::error::QueryError;
use crate::query::names::{last_of_each, select_names};

/// A query that compiles, and how its rows are merged.
#[derive(Debug)]
pub(super) struct Outline<'q> {
    pub(super) query: &'q Query,
    pub(super) distinct: DistinctType,
    pub(super) window: Window,
    pub(super) columns: Columns<'q>,
}

/// What a row is made of.
#[derive(Debug)]
pub(super) enum Columns<'q> {
    /// A range's rows are rows of the result.
    Plain,
    /// `VALUE` of an aggregate or of a group.
    MergedValue(Column<'q>),
    /// Members with their names, some of which are aggregates or all of which describe a group.
    Merged(Vec<(String, Column<'q>)>),
}

/// An expression of a select list.
#[derive(Debug)]
pub(super) enum Column<'q> {
    /// The same in every row that is merged.
    Plain(&'q Expr),
    /// What all rows add up to.
    Aggregate {
        kind: AggregateKind,
        /// As it is called.
        call: &'q Expr,
        argument: &'q Expr,
    },
}

impl<'q> Outline<'q> {
    pub(super) fn of(query: &'q Query, compiled: &CompiledQuery) -> Result<Self, QueryError> {
        if compiled.composes_aggregates() {
            let message = "Compositions of aggregates and other expressions are not allowed.";
            return Err(QueryError::Plain(message.to_string()));
        }
        let (distinct, columns) = (distinct_type(query), Columns::of(query));
        Ok(Self { query, distinct, window: compiled.window, columns })
    }

    /// What rows are merged by. What all rows add up to is one, and has no order.
    pub(super) fn sorts(&self) -> &'q [Sort] {
        match self.columns {
            Columns::MergedValue(_) | Columns::Merged(_) => &[],
            Columns::Plain => &self.query.order_by,
        }
    }

    pub(super) fn selects_value(&self) -> bool {
        matches!(self.query.select, Select::Value(_))
    }

    /// A name for each item of the select list.
    pub(super) fn names(query: &Query, items: &[crate::query::ast::SelectItem]) -> Vec<String> {
        let is_source = |name: &str| query.from.iter().any(|source| alias(source) == Some(name));
        select_names(items, &is_source)
    }
}

/// The name that a source goes by.
pub(super) fn alias(source: &Source) -> Option<&str> {
    match (&source.alias, &source.collection) {
        (Some(alias), _) => Some(alias),
        (None, Collection::Subquery(_)) => None,
        (None, Collection::Path { root, steps }) => {
            let names = steps.iter().rev().filter_map(|step| match step {
                PathStep::Name(name) => Some(name),
                PathStep::Index(_) => None,
            });
            names.chain([root]).next().map(String::as_str)
        }
    }
}

impl<'q> Columns<'q> {
    fn of(query: &'q Query) -> Self {
        let grouped = !query.group_by.is_empty();
        match &query.select {
            Select::Star(_) => Columns::Plain,
            Select::Value(expr) => match Column::of(expr) {
                Column::Plain(_) if !grouped => Columns::Plain,
                column => Columns::MergedValue(column),
            },
            Select::List(items) => {
                let columns: Vec<_> = items.iter().map(|item| Column::of(&item.expr)).collect();
                if !grouped && columns.iter().all(|column| column.aggregate().is_none()) {
                    return Columns::Plain;
                }
                let names = Outline::names(query, items);
                Columns::Merged(last_of_each(names.into_iter().zip(columns).collect()))
            }
        }
    }
}

impl<'q> Column<'q> {
    pub(super) fn of(expr: &'q Expr) -> Self {
        match &expr.kind {
            ExprKind::Call { name, user_defined: false, args, .. } => {
                match (AggregateKind::named(name), args.as_slice()) {
                    (Some(kind), [argument]) => Column::Aggregate { kind, call: expr, argument },
                    _ => Column::Plain(expr),
                }
            }
            _ => Column::Plain(expr),
        }
    }

    pub(super) fn aggregate(&self) -> Option<AggregateKind> {
        match self {
            Column::Plain(_) => None,
            Column::Aggregate { kind, .. } => Some(*kind),
        }
    }
}

/// Repeated rows follow each other if the one value of a row is what rows are sorted by.
fn distinct_type(query: &Query) -> DistinctType {
    if query.distinct.is_none() {
        return DistinctType::None;
    }
    match (&query.select, query.order_by.as_slice()) {
        (Select::Value(value), _) if query.from.is_empty() && is_constant(value) => {
            DistinctType::None
        }
        (Select::Value(value), [sort]) if value.to_string() == sort.expr.to_string() => {
            DistinctType::Ordered
        }
        _ => DistinctType::Unordered,
    }
}

fn is_constant(expr: &Expr) -> bool {
    let mut depends = false;
    visit(expr, &mut |part| {
        depends |= matches!(
            part.kind,
            ExprKind::Name(_)
                | ExprKind::Parameter(_)
                | ExprKind::Call { .. }
                | ExprKind::Subquery(..)
        );
        Then::Descend
    });
    !depends
}
