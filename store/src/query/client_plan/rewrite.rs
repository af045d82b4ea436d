//! The text a range is sent, so that its answer can be merged with those of other ranges.

use std::fmt::Write as _;

use super::DistinctType;
use super::outline::{Column, Columns, Outline, alias};
use crate::query::aggregate::AggregateKind;
use crate::query::ast::{Count, CountValue, Query, Select};
use crate::query::error::Span;
use crate::query::print::{List, Quoted};

/// Stands where a client puts the filter by which it goes on behind a row, or `true`.
const RESUME_PLACE: &str = "({documentdb-formattableorderbyquery-filter})";

/// Most rows that LIMIT can ask for.
const ROWS_MAX: u64 = u32::MAX as u64;

/// What each range is sent; empty if it is the query as it is.
pub(super) fn of(outline: &Outline<'_>) -> String {
    let query = outline.query;
    match &outline.columns {
        Columns::Merged(members) => merged(query, &payload(members)),
        Columns::MergedValue(column) => merged_value(query, column),
        Columns::Plain if !query.order_by.is_empty() => sorted(outline),
        Columns::Plain if outline.distinct != DistinctType::None => {
            // Rows are counted when repeated ones are gone, and that is when all ranges answered.
            let is_counted = query.top.is_some() || query.offset_limit.is_some();
            if is_counted { without_window(query).to_string() } else { String::new() }
        }
        Columns::Plain => match share(outline) {
            Some(rows) => {
                let offset_limit = Some((count(0), count(rows)));
                Query { offset_limit, ..without_window(query) }.to_string()
            }
            None => String::new(),
        },
    }
}

/// How many rows a range that skips none sends at most, for OFFSET and LIMIT.
fn share(outline: &Outline<'_>) -> Option<u64> {
    let take = outline.window.take.filter(|_| outline.query.offset_limit.is_some())?;
    Some((outline.window.skip + take).min(ROWS_MAX))
}

/// Aggregates or groups with named members.
fn merged(query: &Query, payload: &str) -> String {
    if query.group_by.is_empty() {
        return with_tail(format!("SELECT {payload} AS payload"), query);
    }
    let keys = items(query.group_by.iter().map(ToString::to_string));
    with_tail(format!("SELECT {keys} AS groupByItems, {payload} AS payload"), query)
}

/// Aggregates or groups that are bare values.
fn merged_value(query: &Query, column: &Column<'_>) -> String {
    let payload = match column {
        Column::Plain(expr) => expr.to_string(),
        Column::Aggregate { .. } => format!("[{}]", partial(column)),
    };
    if query.group_by.is_empty() {
        return with_tail(format!("SELECT VALUE {payload}"), query);
    }
    merged(query, &payload)
}

/// The clauses that merging does not concern.
fn with_tail(mut text: String, query: &Query) -> String {
    let written = from(&mut text, query).and_then(|()| {
        if let Some(filter) = &query.filter {
            write!(text, " WHERE {filter}")?;
        }
        if !query.group_by.is_empty() {
            write!(text, " GROUP BY {}", List(&query.group_by))?;
        }
        Ok(())
    });
    written.expect("writing to a string cannot fail");
    text
}

fn from(text: &mut String, query: &Query) -> std::fmt::Result {
    query.from.iter().enumerate().try_for_each(|(at, source)| {
        write!(text, " {} {source}", if at == 0 { "FROM" } else { "JOIN" })
    })
}

/// `{"name": partial aggregate or expression, …}`
fn payload(members: &[(String, Column<'_>)]) -> String {
    let members =
        members.iter().map(|(name, column)| format!("{}: {}", Quoted(name), partial(column)));
    format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
}

/// What a range knows of an aggregate; of an average the sum and the count.
fn partial(column: &Column<'_>) -> String {
    let (kind, call, argument) = match column {
        Column::Plain(expr) => return expr.to_string(),
        Column::Aggregate { kind, call, argument } => (kind, call, argument),
    };
    match kind {
        AggregateKind::Average => {
            format!(r#"{{"item": {{"sum": SUM({argument}), "count": COUNT({argument})}}}}"#)
        }
        // How many values there were tells no value from an undefined one.
        AggregateKind::Min | AggregateKind::Max => {
            let name = if *kind == AggregateKind::Min { "min" } else { "max" };
            let with_count = format!(r#"{{"{name}": {call}, "count": COUNT({argument})}}"#);
            format!(r#"{{"item": {call}, "item2": {with_count}}}"#)
        }
        AggregateKind::Count
        | AggregateKind::CountIf
        | AggregateKind::Sum
        | AggregateKind::List
        | AggregateKind::Set => format!(r#"{{"item": {call}}}"#),
    }
}

/// Rows with what they are sorted by, and a place for a filter to go on from.
fn sorted(outline: &Outline<'_>) -> String {
    let query = outline.query;
    let root = query.from.first().and_then(alias).unwrap_or_default();
    let (payload, is_defined) = match &query.select {
        Select::Star(_) => (root.to_string(), String::new()),
        // A row whose value is undefined is none.
        Select::Value(expr) => (expr.to_string(), format!(" AND IS_DEFINED({expr})")),
        Select::List(list) => {
            let columns = list.iter().map(|item| Column::Plain(&item.expr));
            let members: Vec<_> = Outline::names(query, list).into_iter().zip(columns).collect();
            (payload(&members), String::new())
        }
    };
    // How many rows of a range are needed is known only where none of them falls away later.
    let is_exact = outline.distinct == DistinctType::None;
    let limit = share(outline).filter(|_| is_exact);
    let top = outline.window.take.filter(|_| is_exact && query.offset_limit.is_none());
    let top = top.map_or(String::new(), |top| format!("TOP {top} "));
    let limit = limit.map_or(String::new(), |rows| format!(" OFFSET 0 LIMIT {rows}"));
    let keys = items(query.order_by.iter().map(|sort| sort.expr.to_string()));
    let mut text = format!("SELECT {top}{root}._rid, {keys} AS orderByItems, {payload} AS payload");
    from(&mut text, query).expect("writing to a string cannot fail");
    let filter = query.filter.as_ref().map_or(String::new(), |filter| format!("({filter}) AND "));
    let sorts = List(&query.order_by);
    text + &format!(" WHERE {filter}{RESUME_PLACE}{is_defined} ORDER BY {sorts}{limit}")
}

/// `[{"item": key}, …]`
fn items(keys: impl Iterator<Item = String>) -> String {
    let keys = keys.map(|key| format!(r#"{{"item": {key}}}"#));
    format!("[{}]", keys.collect::<Vec<_>>().join(", "))
}

fn without_window(query: &Query) -> Query {
    Query { top: None, offset_limit: None, ..query.clone() }
}

fn count(number: u64) -> Count {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    let value = CountValue::Literal(number as f64);
    Count { value, span: Span::default() }
}
