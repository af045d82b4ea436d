//! Runs a compiled query over one partition, a page at a time, all of it at one instant.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use super::compile::{CompiledQuery, Projection, SortOrder};
use super::value::{Value, as_text};
use crate::charge::QueryWork;
use crate::engine::{Fault, KeyRange, Table};
use crate::ids::{ContainerNumber, ItemNumber};
use crate::item::{Item, ItemKey};
use crate::partition::PartitionView;
use crate::partition_key::{Epk, KeyDefinition, PartitionKey, SlotRange};
use crate::time::{Millis, Seconds};
use crate::ttl::Life;

/// Which items of a partition a query is about.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Scope {
    /// Only items with this partition key value, or prefix of one.
    pub key: Option<PartitionKey>,
    /// Only items whose effective partition key lies in `[start, end)`.
    pub epks: Option<(Epk, Epk)>,
}

impl Scope {
    /// True if an item is one of those.
    pub fn admits(&self, item: &ItemKey, definition: &KeyDefinition) -> Result<bool, Fault> {
        if self.key.is_none() && self.epks.is_none() {
            return Ok(true);
        }
        let parts = item.parts(definition.paths.len());
        let parts = parts.map_err(|error| Fault::corrupt("items", error))?;
        let has_key = self.key.as_ref().is_none_or(|key| parts.key.0.starts_with(&key.0));
        let in_range =
            self.epks.as_ref().is_none_or(|(start, end)| *start <= parts.epk && parts.epk < *end);
        Ok(has_key && in_range)
    }
}

/// How much one page may be.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PageLimits {
    /// Rows to return.
    pub rows: usize,
    /// Bytes of rows to return.
    pub bytes: usize,
    /// Items to look at.
    pub items: usize,
}

/// A value to sort by.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SortKey(#[serde(with = "as_text")] pub Value);

/// Where a page ended, and so where the next one begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Resume {
    /// Behind this item, in key order.
    AfterItem(ItemKey),
    /// Behind this row of a sorted result.
    AfterRow(SortKey, ItemNumber),
}

/// A row of a result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QueryRow {
    /// The row as JSON.
    #[serde(with = "serde_bytes")]
    pub json: Vec<u8>,
    /// What it is sorted by, in a sorted result.
    pub key: Option<SortKey>,
    /// The item it was made from.
    pub number: ItemNumber,
}

/// A page of rows, or part of an aggregate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Page {
    /// The rows.
    pub rows: Vec<QueryRow>,
    /// How many items an aggregate counted.
    pub count: u64,
    /// Where to go on; none if there is no more.
    pub next: Option<Resume>,
    /// What it took.
    pub work: QueryWork,
}

/// A page, or the reason why there is none yet.
#[derive(Clone, Debug)]
pub enum PageOutcome {
    /// The page.
    Page(Page),
    /// An item may have expired at this second: advance the partition clock and run again.
    InDoubt(Seconds),
}

/// What a query needs to know of the container.
#[derive(Clone, Copy)]
struct Source<'a> {
    view: &'a PartitionView,
    key: &'a KeyDefinition,
    container: ContainerNumber,
    hi: Millis,
}

/// Runs one page of a query over a partition's view, judging life at `hi`.
#[expect(clippy::too_many_arguments, reason = "a page is defined by all of these")]
pub fn run_page(
    view: &PartitionView,
    slots: SlotRange,
    key: &KeyDefinition,
    container: ContainerNumber,
    query: &CompiledQuery,
    scope: &Scope,
    resume: Option<&Resume>,
    limits: PageLimits,
    hi: Millis,
) -> Result<PageOutcome, Fault> {
    let source = Source { view, key, container, hi };
    let mut range = item_range(view, slots, key, scope);
    if let Some(Resume::AfterItem(item)) = resume {
        range = range.after(&view.keys().item(item));
    }
    match &query.order {
        Some(order) => sorted_page(source, &range, query, order, scope, resume, limits),
        None => plain_page(source, &range, query, scope, limits),
    }
}

fn item_range(
    view: &PartitionView,
    slots: SlotRange,
    key: &KeyDefinition,
    scope: &Scope,
) -> KeyRange {
    match &scope.key {
        Some(value) if !value.0.is_empty() && value.0.len() == key.paths.len() => {
            view.keys().logical_partition(&key.place(value), value)
        }
        _ => view.keys().slots(Table::Items, slots),
    }
}

impl Source<'_> {
    /// False if the scope leaves the item out.
    fn in_scope(self, item: &ItemKey, scope: &Scope) -> Result<bool, Fault> {
        let prefix = scope.key.as_ref().filter(|key| key.0.len() < self.key.paths.len());
        if prefix.is_none() && scope.epks.is_none() {
            return Ok(true);
        }
        scope.admits(item, self.key)
    }

    /// The item as a value, system properties included.
    fn value(self, item: &Item) -> Result<Value, Fault> {
        Value::from_json(&item.to_json(self.container))
            .map_err(|error| Fault::corrupt("items", error))
    }

    fn life(self, item: &Item) -> Life {
        self.view.state().ttl().judge(item.stamp.ttl, item.stamp.ts, self.hi)
    }
}

fn plain_page(
    source: Source<'_>,
    range: &KeyRange,
    query: &CompiledQuery,
    scope: &Scope,
    limits: PageLimits,
) -> Result<PageOutcome, Fault> {
    let mut page = Page { rows: Vec::new(), count: 0, next: None, work: QueryWork::default() };
    let mut bytes = 0;
    let mut last = None;
    for (looked_at, found) in source.view.items(range).enumerate() {
        let (key, item) = found?;
        if page.rows.len() >= limits.rows || bytes >= limits.bytes || looked_at >= limits.items {
            page.next = last.map(Resume::AfterItem);
            break;
        }
        match source.life(&item) {
            Life::Dead => {}
            Life::InDoubt(expiry) => return Ok(PageOutcome::InDoubt(expiry)),
            Life::Alive => {
                if source.in_scope(&key, scope)? {
                    page.work.items_loaded += 1;
                    page.work.bytes_loaded += item.body.len() as u64;
                    if let Some(row) = project(source, query, &item, &mut page.count)? {
                        bytes += row.json.len();
                        page.rows.push(row);
                    }
                }
            }
        }
        last = Some(key);
    }
    page.work.rows = page.rows.len() as u64;
    Ok(PageOutcome::Page(page))
}

/// The row an item makes, if it satisfies the filter; an aggregate only counts it.
fn project(
    source: Source<'_>,
    query: &CompiledQuery,
    item: &Item,
    count: &mut u64,
) -> Result<Option<QueryRow>, Fault> {
    let number = item.stamp.number;
    if query.filter.is_none()
        && let Projection::Star = query.projection
    {
        let json = item.to_json(source.container);
        return Ok(Some(QueryRow { json, key: None, number }));
    }
    let value = source.value(item)?;
    if !query.keeps(&value) {
        return Ok(None);
    }
    if let Projection::Count(argument) = &query.projection {
        *count += u64::from(argument.evaluate(&value).is_defined());
        return Ok(None);
    }
    let row = projected(&query.projection, &value);
    Ok(row.map(|row| QueryRow { json: row.to_json(), key: None, number }))
}

/// The projected value; none if the row falls away.
fn projected(projection: &Projection, item: &Value) -> Option<Value> {
    match projection {
        Projection::Star => Some(item.clone()),
        Projection::Value(op) => Some(op.evaluate(item)).filter(Value::is_defined),
        Projection::List(list) => {
            let members = list.iter().map(|(name, op)| (name.clone(), op.evaluate(item)));
            Some(Value::Object(members.filter(|(_, value)| value.is_defined()).collect()))
        }
        Projection::Count(_) => None,
    }
}

impl CompiledQuery {
    /// Runs over values at hand, all at once.
    pub fn select(&self, values: impl Iterator<Item = Value>) -> Vec<Vec<u8>> {
        let mut values: Vec<Value> = values.filter(|value| self.keeps(value)).collect();
        if let Some(order) = &self.order {
            let key = |value: &Value| order.key.evaluate(value);
            values.retain(|value| order.keeps_undefined || key(value).is_defined());
            values.sort_by(|a, b| {
                let ascending = key(a).sort_compare(&key(b));
                if order.descending { ascending.reverse() } else { ascending }
            });
        }
        if let Projection::Count(argument) = &self.projection {
            let counted = values.iter().filter(|value| argument.evaluate(value).is_defined());
            return vec![counted.count().to_string().into_bytes()];
        }
        let rows = values.iter().filter_map(|value| projected(&self.projection, value));
        rows.map(|row| row.to_json()).collect()
    }
}

/// A row waiting in the heap of the best ones so far; the worst is on top.
struct Candidate {
    row: QueryRow,
    descending: bool,
}

impl Candidate {
    fn key(&self) -> &SortKey {
        self.row.key.as_ref().expect("sorted rows have keys")
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (self.key(), other.key());
        compare_rows(a, self.row.number, b, other.row.number, self.descending)
    }
}

/// The order of a sorted result: by key, then by item number; DESC turns both round.
pub fn compare_rows(
    a: &SortKey,
    a_number: ItemNumber,
    b: &SortKey,
    b_number: ItemNumber,
    descending: bool,
) -> Ordering {
    let ascending = a.0.sort_compare(&b.0).then(a_number.cmp(&b_number));
    if descending { ascending.reverse() } else { ascending }
}

fn sorted_page(
    source: Source<'_>,
    range: &KeyRange,
    query: &CompiledQuery,
    order: &SortOrder,
    scope: &Scope,
    resume: Option<&Resume>,
    limits: PageLimits,
) -> Result<PageOutcome, Fault> {
    let mut work = QueryWork::default();
    let mut best = BinaryHeap::new();
    let mut more = false;
    for found in source.view.items(range) {
        let (key, item) = found?;
        match source.life(&item) {
            Life::Dead => continue,
            Life::InDoubt(expiry) => return Ok(PageOutcome::InDoubt(expiry)),
            Life::Alive => {}
        }
        if !source.in_scope(&key, scope)? {
            continue;
        }
        work.items_loaded += 1;
        work.bytes_loaded += item.body.len() as u64;
        let Some(row) = sorted_row(source, query, order, &item)? else { continue };
        if !is_behind(&row, order.descending, resume) {
            continue;
        }
        best.push(Candidate { row, descending: order.descending });
        if best.len() > limits.rows {
            best.pop();
            more = true;
        }
    }
    let mut rows: Vec<QueryRow> =
        best.into_sorted_vec().into_iter().map(|candidate| candidate.row).collect();
    more |= cut_to_bytes(&mut rows, limits.bytes);
    let next = rows.last().filter(|_| more).map(|last| {
        let key = last.key.clone().expect("sorted rows have keys");
        Resume::AfterRow(key, last.number)
    });
    work.rows = rows.len() as u64;
    Ok(PageOutcome::Page(Page { rows, count: 0, next, work }))
}

fn sorted_row(
    source: Source<'_>,
    query: &CompiledQuery,
    order: &SortOrder,
    item: &Item,
) -> Result<Option<QueryRow>, Fault> {
    let value = source.value(item)?;
    if !query.keeps(&value) {
        return Ok(None);
    }
    let key = order.key.evaluate(&value);
    if !key.is_defined() && !order.keeps_undefined {
        return Ok(None);
    }
    let row = projected(&query.projection, &value);
    let key = Some(SortKey(key));
    Ok(row.map(|row| QueryRow { json: row.to_json(), key, number: item.stamp.number }))
}

/// True if a row comes after the place where the last page ended.
fn is_behind(row: &QueryRow, descending: bool, resume: Option<&Resume>) -> bool {
    let key = row.key.as_ref().expect("sorted rows have keys");
    match resume {
        None | Some(Resume::AfterItem(_)) => true,
        Some(Resume::AfterRow(after, number)) => {
            compare_rows(key, row.number, after, *number, descending).is_gt()
        }
    }
}

/// Keeps at least one row; true if some were cut.
fn cut_to_bytes(rows: &mut Vec<QueryRow>, bytes_max: usize) -> bool {
    let mut bytes = 0;
    let fits = rows.iter().position(|row| {
        bytes += row.json.len();
        bytes > bytes_max
    });
    let before = rows.len();
    rows.truncate(fits.map_or(before, |keep| keep.max(1)));
    rows.len() < before
}
