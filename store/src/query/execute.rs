//! Runs a compiled query over one partition, a page at a time, all of it at one instant.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::ControlFlow::{Break, Continue};

use serde::{Deserialize, Serialize};

use super::compiled::{CompiledQuery, SortOrder, Window};
use super::error::QueryError;
use super::functions::Moment;
use super::run::Run;
use super::value::{Value, as_bytes};
use crate::charge::QueryWork;
use crate::engine::{Fault, KeyRange, Table};
use crate::ids::{ContainerNumber, ItemNumber};
use crate::item::{Item, ItemKey};
use crate::partition::{PageOutcome, PartitionView};
use crate::partition_key::{Epk, KeyDefinition, PartitionKey, SlotRange};
use crate::time::Millis;
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
    /// Bytes of rows to return, with what they are sorted by; one row may exceed them.
    pub bytes: usize,
    /// Items to look at. A sorted result looks at all: any of them may come first.
    pub items: usize,
}

/// A value to sort by.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SortKey(#[serde(with = "as_bytes")] pub Value);

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
    /// Why the query was given up, if it was.
    pub refused: Option<QueryError>,
}

/// How the pages of a query are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paging {
    /// Item by item, in key order.
    Walk,
    /// By one sort key.
    Sorted,
    /// Not at all: everything is in the first page. Over several partitions there is no answer yet.
    Whole,
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
) -> Result<PageOutcome<Page>, Fault> {
    let source = Source { view, key, container, hi };
    let mut range = item_range(view, slots, key, scope);
    if let Some(Resume::AfterItem(item)) = resume {
        range = range.after(&view.keys().item(item));
    }
    let run = Run::new(Moment::new(hi, hi, hi.0));
    let outcome = match (query.paging(), query.order.first()) {
        (Paging::Sorted, Some(order)) => {
            sorted_page(source, &range, (query, order, &run), scope, resume, limits)
        }
        (Paging::Walk, _) => plain_page(source, &range, (query, &run), scope, limits),
        (Paging::Whole | Paging::Sorted, _) => whole_page(source, &range, (query, &run), scope),
    };
    Ok(match outcome? {
        PageOutcome::InDoubt(expiry) => PageOutcome::InDoubt(expiry),
        PageOutcome::Page(page) => {
            let refused = page.refused.or_else(|| run.exceeded());
            PageOutcome::Page(Page { refused, ..page })
        }
    })
}

impl CompiledQuery {
    /// How its pages are made.
    pub fn paging(&self) -> Paging {
        let simple = self.window == Window::default() && !self.distinct && self.has_source();
        let grouped = self.is_aggregate() || self.is_grouped();
        match self.order.as_slice() {
            [] if simple && (!grouped || self.is_plain_count()) => Paging::Walk,
            [_] if simple && self.is_one_to_one() => Paging::Sorted,
            _ => Paging::Whole,
        }
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

    /// What of the item the query needs.
    fn read(self, query: &CompiledQuery, item: &Item) -> Result<Value, Fault> {
        Value::read_item(&item.body, &item.stamp, self.container, query.needed())
            .map_err(|error| Fault::corrupt("items", error))
    }

    fn life(self, item: &Item) -> Life {
        self.view.state().ttl().judge(item.stamp.ttl, item.stamp.ts, self.hi)
    }
}

fn plain_page(
    source: Source<'_>,
    range: &KeyRange,
    (query, run): (&CompiledQuery, &Run),
    scope: &Scope,
    limits: PageLimits,
) -> Result<PageOutcome<Page>, Fault> {
    let mut page = Page::empty();
    let mut bytes = 0;
    let mut last = None;
    for (looked_at, found) in source.view.items(range).enumerate() {
        let (key, item) = found?;
        let full = page.rows.len() >= limits.rows || bytes >= limits.bytes;
        if full || looked_at >= limits.items || run.is_over() {
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
                    let before = page.rows.len();
                    add_rows(source, (query, run), &item, &mut page)?;
                    bytes += page.rows[before..].iter().map(|row| row.json.len()).sum::<usize>();
                }
            }
        }
        last = Some(key);
    }
    page.work.rows = page.rows.len() as u64;
    Ok(PageOutcome::Page(page))
}

/// Adds the rows an item makes; a plain count only counts them.
fn add_rows(
    source: Source<'_>,
    (query, run): (&CompiledQuery, &Run),
    item: &Item,
    page: &mut Page,
) -> Result<(), Fault> {
    let number = item.stamp.number;
    let value = source.read(query, item)?;
    query.for_each_row(&value, number, run, &mut |row| {
        if query.is_plain_count() {
            let mut sums = query.accumulators();
            query.accumulate(&mut sums, row, run);
            page.count += sums.total_count();
        } else if query.is_star() {
            let json = item.to_json(source.container);
            page.rows.push(QueryRow { json, key: None, number });
        } else if let Some(row) = query.project(row, run) {
            page.rows.push(QueryRow { json: row.to_json(), key: None, number });
        }
        if run.is_over() { Break(()) } else { Continue(()) }
    });
    Ok(())
}

/// Everything at once: what cannot be cut into pages yet.
fn whole_page(
    source: Source<'_>,
    range: &KeyRange,
    (query, run): (&CompiledQuery, &Run),
    scope: &Scope,
) -> Result<PageOutcome<Page>, Fault> {
    let mut page = Page::empty();
    let mut values = Vec::new();
    for found in source.view.items(range) {
        let (key, item) = found?;
        match source.life(&item) {
            Life::Dead => continue,
            Life::InDoubt(expiry) => return Ok(PageOutcome::InDoubt(expiry)),
            Life::Alive => {}
        }
        if source.in_scope(&key, scope)? {
            page.work.items_loaded += 1;
            page.work.bytes_loaded += item.body.len() as u64;
            values.push((item.stamp.number, source.value(&item)?));
        }
    }
    match query.select(values.into_iter(), run) {
        Err(error) => page.refused = Some(error),
        Ok(selected) => {
            page.rows = (0..)
                .map(ItemNumber)
                .zip(&selected)
                .map(|(number, one)| QueryRow { json: one.value.to_json(), key: None, number })
                .collect();
        }
    }
    page.work.rows = page.rows.len() as u64;
    Ok(PageOutcome::Page(page))
}

impl Page {
    fn empty() -> Self {
        let (rows, work) = (Vec::new(), QueryWork::default());
        Self { rows, count: 0, next: None, work, refused: None }
    }
}

impl CompiledQuery {
    /// Runs over values at hand as `select` does; rows that are neither sorted nor made item by item
    /// are numbered as they come.
    pub fn select_rows_of(
        &self,
        values: impl Iterator<Item = (ItemNumber, Value)>,
        run: &Run,
    ) -> Result<Vec<QueryRow>, QueryError> {
        let paging = self.paging();
        let one_to_one = self.is_one_to_one() && !self.is_plain_count();
        let selected = self.select(values, run)?;
        let row = |(at, one): (u64, super::Selected)| {
            let number = match paging {
                Paging::Walk if one_to_one => one.number,
                Paging::Sorted => one.number,
                Paging::Walk | Paging::Whole => ItemNumber(at),
            };
            let key = one.keys.into_iter().next().filter(|_| paging == Paging::Sorted);
            QueryRow { json: one.value.to_json(), key: key.map(SortKey), number }
        };
        Ok((0..).zip(selected).map(row).collect())
    }
}

impl QueryRow {
    fn sorted_by(&self) -> &SortKey {
        self.key.as_ref().expect("sorted rows have keys")
    }
}

/// The first rows of a sorted result, as many as fit one page.
///
/// Never more bytes than the page's and those of the row just added are held, however many rows go
/// by.
struct FirstRows {
    /// The last of them is on top.
    rows: BinaryHeap<Candidate>,
    bytes: usize,
    /// The first row that did not fit, without its text. What comes after it does not fit either,
    /// however small it is: the page would have a gap.
    end: Option<Candidate>,
    limits: PageLimits,
    descending: bool,
}

impl FirstRows {
    fn new(limits: PageLimits, descending: bool) -> Self {
        assert!(limits.rows > 0, "a page has room for a row");
        Self { rows: BinaryHeap::new(), bytes: 0, end: None, limits, descending }
    }

    /// True if a row in this place would still be on the page.
    fn reaches(&self, key: &SortKey, number: ItemNumber) -> bool {
        self.end.as_ref().is_none_or(|end| {
            compare_rows(key, number, end.key(), end.row.number, self.descending).is_lt()
        })
    }

    fn add(&mut self, row: QueryRow) {
        let row = Candidate::new(row, self.descending);
        if !self.reaches(row.key(), row.row.number) {
            return;
        }
        self.bytes += row.bytes;
        self.rows.push(row);
        while self.is_too_large() {
            let mut last = self.rows.pop().expect("a page with one row is not too large");
            self.bytes -= last.bytes;
            last.row.json = Vec::new();
            self.end = Some(last);
        }
    }

    fn is_too_large(&self) -> bool {
        let rows = self.rows.len();
        rows > self.limits.rows || (self.bytes > self.limits.bytes && rows > 1)
    }

    /// The rows in order, and where the next page begins.
    fn into_page(self) -> (Vec<QueryRow>, Option<Resume>) {
        let more = self.end.is_some();
        let rows: Vec<QueryRow> =
            self.rows.into_sorted_vec().into_iter().map(|candidate| candidate.row).collect();
        let next = rows.last().filter(|_| more).map(|last| {
            let key = last.key.clone().expect("sorted rows have keys");
            Resume::AfterRow(key, last.number)
        });
        (rows, next)
    }
}

/// A row that can be compared, and its size.
struct Candidate {
    row: QueryRow,
    bytes: usize,
    descending: bool,
}

impl Candidate {
    fn new(row: QueryRow, descending: bool) -> Self {
        let bytes = row.json.len() + row.sorted_by().0.size();
        Self { row, bytes, descending }
    }

    fn key(&self) -> &SortKey {
        self.row.sorted_by()
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
    (query, order, run): (&CompiledQuery, &SortOrder, &Run),
    scope: &Scope,
    resume: Option<&Resume>,
    limits: PageLimits,
) -> Result<PageOutcome<Page>, Fault> {
    let mut page = Page::empty();
    let mut first = FirstRows::new(limits, order.descending);
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
        page.work.items_loaded += 1;
        page.work.bytes_loaded += item.body.len() as u64;
        let (value, number) = (source.read(query, &item)?, item.stamp.number);
        query.for_each_row(&value, number, run, &mut |row| {
            let Some(key) = query.sort_keys(row, run).and_then(|mut keys| keys.pop()) else {
                return Continue(());
            };
            let key = SortKey(key);
            let is_on_page =
                is_behind(&key, number, order.descending, resume) && first.reaches(&key, number);
            let json = match is_on_page {
                false => None,
                true if query.is_star() => Some(item.to_json(source.container)),
                true => query.project(row, run).map(|row| row.to_json()),
            };
            if let Some(json) = json {
                first.add(QueryRow { json, key: Some(key), number });
            }
            Continue(())
        });
        if run.is_over() {
            break;
        }
    }
    (page.rows, page.next) = first.into_page();
    page.work.rows = page.rows.len() as u64;
    Ok(PageOutcome::Page(page))
}

/// True if a row comes after the place where the last page ended.
fn is_behind(key: &SortKey, number: ItemNumber, descending: bool, resume: Option<&Resume>) -> bool {
    match resume {
        None | Some(Resume::AfterItem(_)) => true,
        Some(Resume::AfterRow(after, after_number)) => {
            compare_rows(key, number, after, *after_number, descending).is_gt()
        }
    }
}

#[cfg(test)]
mod tests;
