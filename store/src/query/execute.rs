//! Runs a compiled query over one partition, a page at a time, all of it at one instant.
//!
//! Items come from an `Access`: the table of items in key order, or an index. Each is judged, read
//! as far as the query needs it, and taken through FROM, JOIN and WHERE; what comes out flows into
//! the page's `Sink`, which knows when the page is full.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use super::access::{self, Access, InOrder};
use super::anchors::{ANCHORS_MAX, Anchor};
use super::compiled::CompiledQuery;
use super::error::QueryError;
use super::evaluate::Row;
use super::page::{Course, Harvest, ItemPlace, Page, PageLimits, Place, QueryRow, Resume, Scope};
use super::run::Run;
use super::sinks::{FirstKeyed, FirstPlaces, FirstRows};
use super::value::Value;
use crate::charge::QueryWork;
use crate::engine::{Fault, KeyRange, Table};
use crate::ids::{ContainerNumber, ItemNumber};
use crate::item::{ItemKey, Stamp, client_json};
use crate::partition::{ItemRef, PageOutcome, PartitionSpec, PartitionView};
use crate::partition_key::KeyDefinition;
use crate::time::{Millis, Seconds};
use crate::ttl::Life;

/// Items looked at between two looks at the signal, bytes of them, and operations on them: a
/// millisecond's worth of each.
const ITEMS_BETWEEN_SIGNALS: usize = 64;
const BYTES_BETWEEN_SIGNALS: u64 = 256 << 10;
const OPERATIONS_BETWEEN_SIGNALS: u64 = 10_000;
/// Rows of one item that are tried between two looks: there may be a million of them. What a subquery
/// tries is bounded by what an item may spend.
const ROWS_BETWEEN_SIGNALS: u64 = 4096;

/// A partition as a query sees it.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Its rows and its state, of one moment.
    pub view: &'a PartitionView,
    /// Which partition it is.
    pub spec: &'a PartitionSpec,
    /// The partition key of the container.
    pub key: &'a KeyDefinition,
    /// The instant at which life is judged.
    pub hi: Millis,
}

/// What is asked of a partition.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// The query.
    pub query: &'a CompiledQuery,
    /// Which items it is about.
    pub scope: &'a Scope,
    /// Where to go on; none at the beginning.
    pub resume: Option<&'a Resume>,
    /// How much to return.
    pub limits: PageLimits,
}

/// What the caller wants of a page under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Go on.
    Go,
    /// End it here if it can be gone on with.
    Pause,
    /// End it: nobody waits any more.
    Stop,
}

/// Why there is no page.
#[derive(Clone, Debug)]
pub enum Halt {
    /// The query went over a limit.
    Refused(QueryError),
    /// It was told to stop before it had anything that could be gone on with.
    Stopped,
}

/// What ends a page early.
pub(super) enum Interrupt {
    Fault(Fault),
    InDoubt(Seconds),
    Halt(Halt),
}

impl From<Fault> for Interrupt {
    fn from(fault: Fault) -> Self {
        Interrupt::Fault(fault)
    }
}

/// Runs one page. `signal` is asked now and then whether to go on.
pub fn run_page(
    source: Source<'_>,
    question: Question<'_>,
    run: &Run,
    signal: &dyn Fn() -> Signal,
) -> Result<PageOutcome<Result<Page, Halt>>, Fault> {
    let mut pager = Pager::new(source, question, run, signal);
    match pager.fill() {
        Ok(next) => Ok(PageOutcome::Page(Ok(pager.finish(next)))),
        Err(Interrupt::Halt(halt)) => Ok(PageOutcome::Page(Err(halt))),
        Err(Interrupt::InDoubt(expiry)) => Ok(PageOutcome::InDoubt(expiry)),
        Err(Interrupt::Fault(fault)) => Err(fault),
    }
}

/// A page being filled.
pub(super) struct Pager<'a> {
    pub(super) source: Source<'a>,
    pub(super) question: Question<'a>,
    pub(super) run: &'a Run,
    signal: &'a dyn Fn() -> Signal,
    pub(super) sink: Sink<'a>,
    pub(super) looked_at: usize,
    /// Bytes of items that were read again, and not taken up: they are not charged.
    pub(super) bytes_passed: u64,
    /// Bytes read when the signal was looked at, and operations spent.
    bytes_at_signal: u64,
    operations_at_signal: u64,
    /// False if nothing but what is in scope is met.
    checks_scope: bool,
    pub(super) work: QueryWork,
    /// Index paths that are followed.
    followed: Vec<String>,
}

impl<'a> Pager<'a> {
    fn new(
        source: Source<'a>,
        question: Question<'a>,
        run: &'a Run,
        signal: &'a dyn Fn() -> Signal,
    ) -> Self {
        let sink = Sink::new(question.query, question.resume, question.limits);
        let Scope { key, epks } = question.scope;
        let checks_scope = key.is_some() || epks.is_some();
        let work = QueryWork::default();
        let followed = Vec::new();
        let (looked_at, bytes_at_signal, operations_at_signal) = (0, 0, run.spent());
        Self {
            source,
            question,
            run,
            signal,
            sink,
            looked_at,
            bytes_passed: 0,
            bytes_at_signal,
            operations_at_signal,
            checks_scope,
            work,
            followed,
        }
    }

    /// Fills the page; where the next one begins.
    fn fill(&mut self) -> Result<Option<Resume>, Interrupt> {
        if !self.question.query.has_source() {
            let nothing = Stored { value: &Value::Undefined, number: ItemNumber(0), star: None };
            self.rows_of(&nothing, 0)?;
            return Ok(None);
        }
        if let Some(count) = self.count()? {
            let Sink::Sums(sums) = &mut self.sink else { panic!("a count is a sum") };
            sums.add_count(count);
            return Ok(None);
        }
        match access::choose(&self.source, &self.question, &|| self.stop_if_told())? {
            Access::Items => self.walk_items(),
            Access::Condition(followed) => {
                self.followed = followed.names();
                self.walk_entries(&followed)
            }
            Access::Order(in_order) => {
                self.followed = vec![InOrder::name(self.question.query)];
                self.read_in_order(&in_order)
            }
        }
    }

    /// What a query that only counts items comes to, if nobody need look at them.
    fn count(&mut self) -> Result<Option<u64>, Interrupt> {
        let query = self.question.query;
        if !query.counts_items() || self.question.resume.is_some() {
            return Ok(None);
        }
        match query.conditions.as_slice() {
            [] if query.filter().is_none() && self.checks_scope => self.count_in_scope().map(Some),
            [] if query.filter().is_none() => self.count_items(),
            _ if self.checks_scope => Ok(None),
            [condition] if query.conditions_are_all && !condition.may_repeat() => {
                let Some(followed) = access::follow(&self.source, &self.question, 0) else {
                    return Ok(None);
                };
                self.followed = followed.names();
                self.count_entries(&followed)
            }
            _ => Ok(None),
        }
    }

    /// How many items there are in scope, of which nothing but keys and stamps is looked at.
    fn count_in_scope(&mut self) -> Result<u64, Interrupt> {
        let range = self.item_range()?;
        let Source { view, hi, .. } = self.source;
        let (mut cursor, mut count, mut seen) = (view.item_cursor(&range), 0, 0);
        while let Some(ItemRef { key, stamp, is_garbage, .. }) = cursor.next_item()? {
            seen += 1;
            if seen % ITEMS_BETWEEN_SIGNALS == 0 {
                self.stop_if_told()?;
            }
            if is_garbage {
                continue;
            }
            match view.judge(key, &stamp, hi) {
                Life::Dead => {}
                Life::InDoubt(expiry) => return Err(Interrupt::InDoubt(expiry)),
                Life::Alive => count += u64::from(self.is_in_scope(key)?),
            }
        }
        Ok(count)
    }

    /// Ends the page at once if nobody waits for it.
    pub(super) fn stop_if_told(&self) -> Result<(), Interrupt> {
        match (self.signal)() {
            Signal::Go | Signal::Pause => Ok(()),
            Signal::Stop => Err(Interrupt::Halt(Halt::Stopped)),
        }
    }

    /// The rows of `Table::Items` the question is about.
    fn item_range(&mut self) -> Result<KeyRange, Interrupt> {
        if let Some(Resume::Entry(_)) = self.question.resume {
            let message = "The index that this query went along is there no more. Start it anew.";
            return Err(Interrupt::Halt(Halt::Refused(QueryError::Plain(message.to_string()))));
        }
        let Source { view, spec, key, .. } = self.source;
        let scope = self.question.scope;
        let range = match &scope.key {
            Some(value) if !value.0.is_empty() && value.0.len() == key.paths.len() => {
                self.checks_scope = scope.epks.is_some();
                self.followed = key.paths.iter().map(|path| policy_path(path)).collect();
                view.keys().logical_partition(&key.place(value), value)
            }
            _ => view.keys().slots(Table::Items, spec.slots),
        };
        Ok(range)
    }

    /// Takes up one item after the other, in the order of their keys.
    fn walk_items(&mut self) -> Result<Option<Resume>, Interrupt> {
        let (mut range, keys) = (self.item_range()?, self.source.view.keys());
        let mut begun = None;
        if let Some(Resume::Item(place)) = self.question.resume {
            let ItemPlace { key, taken, .. } = self.found(place)?;
            range = match taken {
                None => range.after(&keys.item(&key)),
                Some(_) => range.from(keys.item(&key)),
            };
            begun = taken.map(|taken| (key, taken));
        }
        let mut cursor = self.source.view.item_cursor(&range);
        let (mut last, mut recent) = (Vec::new(), VecDeque::with_capacity(ANCHORS_MAX));
        while let Some(ItemRef { key, stamp, body, is_garbage }) = cursor.next_item()? {
            // Where nothing but garbage was met, no item tells a place with a long key.
            let is_told = !recent.is_empty() || !ItemPlace::is_long(&last);
            if self.is_page_full()? && is_told {
                return self.item_place(&last, None, &recent);
            }
            let begun = begun.as_ref().filter(|(begun, _)| begun.as_bytes() == key);
            let skip = begun.map_or(0, |(_, taken)| *taken);
            // The numbers of garbage lead nowhere. It is as dead as what was not swept yet.
            if !is_garbage {
                recent.truncate(ANCHORS_MAX - 1);
                recent.push_front(stamp.number);
            }
            if let Some(taken) = self.look_at(key, &stamp, body, skip)? {
                return self.item_place(key, Some(taken), &recent);
            }
            last.clear();
            last.extend_from_slice(key);
        }
        Ok(None)
    }

    /// The place of the item that was met last, in the walk that met `recent`, this one first.
    fn item_place(
        &self,
        key: &[u8],
        taken: Option<u64>,
        recent: &VecDeque<ItemNumber>,
    ) -> Result<Option<Resume>, Interrupt> {
        if key.is_empty() {
            return Ok(None);
        }
        let mut keyed = Vec::new();
        if ItemPlace::is_long(key) {
            for number in recent {
                let item = self.source.view.item_numbered(*number)?;
                keyed.extend(item.map(|(key, _)| (*number, key)));
            }
        }
        let key = ItemKey::from_bytes(key).map_err(|error| Fault::corrupt("items", error))?;
        Ok(Some(Resume::Item(ItemPlace::new(key, taken, &keyed))))
    }

    /// A place with the whole key of an item: of the first anchor that still is where it was.
    fn found(&self, place: &ItemPlace) -> Result<ItemPlace, Fault> {
        for (at, anchor) in place.anchors.iter().enumerate() {
            let item = self.source.view.item_numbered(anchor.number)?;
            let key = item
                .map(|(key, _)| key)
                .filter(|key| Anchor::of_item(anchor.number, key) == *anchor);
            if let Some(key) = key {
                let taken = place.taken.filter(|_| at == 0);
                return Ok(ItemPlace { key, anchors: Vec::new(), taken });
            }
        }
        // No item has the beginning of a key for its key, so that nothing is behind it but those.
        Ok(place.clone())
    }

    /// True if the page is told to end here, and can.
    pub(super) fn pauses(&self) -> Result<bool, Interrupt> {
        match (self.signal)() {
            Signal::Go => Ok(false),
            Signal::Pause => Ok(self.sink.may_pause()),
            Signal::Stop => Err(Interrupt::Halt(Halt::Stopped)),
        }
    }

    /// True if so much was computed since the signal was last looked at that it is time again, for whoever does so
    /// now.
    pub(super) fn has_computed_much(&mut self) -> bool {
        let spent = self.run.spent();
        let is_much = spent - self.operations_at_signal >= OPERATIONS_BETWEEN_SIGNALS;
        if is_much {
            self.operations_at_signal = spent;
        }
        is_much
    }

    /// True if the page ends before the next item.
    pub(super) fn is_page_full(&mut self) -> Result<bool, Interrupt> {
        let read = self.work.bytes_loaded + self.bytes_passed;
        let bytes = read - self.bytes_at_signal;
        let operations = self.run.spent() - self.operations_at_signal;
        if (self.looked_at > 0 && self.looked_at.is_multiple_of(ITEMS_BETWEEN_SIGNALS))
            || bytes >= BYTES_BETWEEN_SIGNALS
            || operations >= OPERATIONS_BETWEEN_SIGNALS
        {
            self.bytes_at_signal = read;
            self.operations_at_signal = self.run.spent();
            if self.pauses()? {
                return Ok(true);
            }
        }
        let has_looked = self.looked_at >= self.question.limits.items && self.sink.may_pause();
        Ok(has_looked || self.sink.is_full(self.question.limits))
    }

    /// Takes up an item; if the page ends among its rows, how many of them were taken.
    pub(super) fn look_at(
        &mut self,
        key: &[u8],
        stamp: &Stamp,
        body: &[u8],
        skip: u64,
    ) -> Result<Option<u64>, Interrupt> {
        self.looked_at += 1;
        let Source { view, hi, spec, .. } = self.source;
        match view.judge(key, stamp, hi) {
            Life::Dead => return Ok(None),
            Life::InDoubt(expiry) => return Err(Interrupt::InDoubt(expiry)),
            Life::Alive => {}
        }
        if !self.is_in_scope(key)? {
            return Ok(None);
        }
        self.work.items_loaded += 1;
        self.work.bytes_loaded += body.len() as u64;
        let query = self.question.query;
        let star = query.is_star().then_some((stamp, body, spec.container));
        let value = if query.needed().is_nothing() {
            Value::Undefined
        } else {
            Value::read_item(body, stamp, spec.container, query.needed())
                .map_err(|error| Fault::corrupt("items", error))?
        };
        self.rows_of(&Stored { value: &value, number: stamp.number, star }, skip)
    }

    /// False if the scope leaves the item out. A whole partition key is in the range already, if it
    /// is the table that is walked.
    fn is_in_scope(&self, key: &[u8]) -> Result<bool, Fault> {
        if !self.checks_scope {
            return Ok(true);
        }
        let key = ItemKey::from_bytes(key).map_err(|error| Fault::corrupt("items", error))?;
        self.question.scope.admits(&key, self.source.key)
    }

    /// Takes up the rows of an item behind the first `skip`.
    fn rows_of(&mut self, item: &Stored<'_>, skip: u64) -> Result<Option<u64>, Interrupt> {
        let Self { question, run, sink, work, signal, .. } = self;
        let (query, limits) = (question.query, question.limits);
        let (mut tried, mut rows, mut ended, mut is_stopped) = (0_u64, 0, None, false);
        query.for_each_tried(item.value, item.number, run, &mut |row| {
            tried += 1;
            if tried.is_multiple_of(ROWS_BETWEEN_SIGNALS) && matches!(signal(), Signal::Stop) {
                is_stopped = true;
                return ControlFlow::Break(());
            }
            let Some(row) = row else { return ControlFlow::Continue(()) };
            let at = rows;
            rows += 1;
            if at < skip {
                return ControlFlow::Continue(());
            }
            if sink.is_full(limits) {
                ended = Some(at);
                return ControlFlow::Break(());
            }
            sink.take(query, item, row, at, run);
            ControlFlow::Continue(())
        });
        if !query.is_one_to_one() {
            work.tuples += rows;
        }
        if is_stopped {
            return Err(Interrupt::Halt(Halt::Stopped));
        }
        let too_large = matches!(sink, Sink::Unique(first) if first.is_too_large());
        match run.exceeded().or(too_large.then(too_many_distinct)) {
            Some(error) => Err(Interrupt::Halt(Halt::Refused(error))),
            None => Ok(ended),
        }
    }

    fn finish(self, next: Option<Resume>) -> Page {
        let Self { sink, mut work, followed, .. } = self;
        let (harvest, end) = sink.into_harvest();
        let next = next.or(end);
        work.rows = match &harvest {
            Harvest::Rows(rows) => rows.len() as u64,
            Harvest::Keyed(keyed) => keyed.len() as u64,
            Harvest::Sums(_) => u64::from(next.is_none()),
        };
        Page { harvest, next, work, followed }
    }
}

fn too_many_distinct() -> QueryError {
    let message = "The query has too many distinct rows to be sorted by what it does not select. \
                   Select what it is sorted by, or make its filter narrower.";
    QueryError::Plain(message.to_string())
}

/// An item as far as it was read, and what a `SELECT *` copies.
struct Stored<'i> {
    value: &'i Value,
    number: ItemNumber,
    star: Option<(&'i Stamp, &'i [u8], ContainerNumber)>,
}

impl Stored<'_> {
    /// What is selected from a row of the item, as JSON; none if the row falls away.
    fn show(&self, query: &CompiledQuery, row: &Row<'_>, run: &Run) -> Option<Vec<u8>> {
        match self.star {
            Some((stamp, body, container)) => Some(client_json(body, stamp, container)),
            None => query.project(row, run).map(|value| value.to_json()),
        }
    }
}

/// Where rows flow.
pub(super) enum Sink<'a> {
    Walk { rows: Vec<QueryRow>, bytes: usize },
    Sorted(FirstRows),
    Unique(FirstPlaces),
    Keyed(FirstKeyed<'a>),
    Sums(super::aggregate::Accumulators),
}

impl<'a> Sink<'a> {
    fn new(query: &'a CompiledQuery, resume: Option<&Resume>, limits: PageLimits) -> Self {
        match query.course() {
            Course::Walk => Sink::Walk { rows: Vec::new(), bytes: 0 },
            Course::Sorted => {
                Sink::Sorted(FirstRows::new(limits, query.directions(), resume.cloned()))
            }
            Course::Unique => Sink::Unique(FirstPlaces::new(limits, query.directions())),
            Course::Keyed => Sink::Keyed(FirstKeyed::new(query, limits, resume)),
            Course::Sums => Sink::Sums(query.accumulators()),
        }
    }

    /// True if the page can end at any item, because rows come in the order of items, and a place
    /// may be able to tell what was added up so far.
    fn may_pause(&self) -> bool {
        match self {
            Sink::Walk { .. } => true,
            Sink::Sums(sums) => sums.may_fit_a_place(),
            Sink::Sorted(_) | Sink::Unique(_) | Sink::Keyed(_) => false,
        }
    }

    /// True if nothing more fits. What picks the first rows out of all always has room.
    fn is_full(&self, limits: PageLimits) -> bool {
        match self {
            Sink::Walk { rows, bytes } => rows.len() >= limits.rows || *bytes >= limits.bytes,
            Sink::Sorted(_) | Sink::Unique(_) | Sink::Keyed(_) | Sink::Sums(_) => false,
        }
    }

    fn take(
        &mut self,
        query: &CompiledQuery,
        item: &Stored<'_>,
        row: &Row<'_>,
        at: u64,
        run: &Run,
    ) {
        match self {
            Sink::Walk { rows, bytes } => {
                if let Some(json) = item.show(query, row, run) {
                    *bytes += json.len();
                    rows.push(QueryRow { json, place: None });
                }
            }
            Sink::Sorted(first) => {
                let Some(keys) = query.sort_keys(row, run) else { return };
                let place = Place::of_row(keys, item.number, at, first.directions());
                if query.distinct {
                    if let Some(value) = query.project(row, run) {
                        first.offer_distinct(place, &value);
                    }
                } else {
                    first.offer(place, || item.show(query, row, run));
                }
            }
            Sink::Unique(first) => {
                let Some(keys) = query.sort_keys(row, run) else { return };
                let place = Place::of_row(keys, item.number, at, first.directions());
                if let Some(value) = query.project(row, run) {
                    first.offer(place, &value);
                }
            }
            Sink::Keyed(first) => first.offer(row, run),
            Sink::Sums(sums) => query.accumulate(sums, row, run),
        }
    }

    fn into_harvest(self) -> (Harvest, Option<Resume>) {
        match self {
            Sink::Walk { rows, .. } => (Harvest::Rows(rows), None),
            Sink::Sorted(first) => first.into_harvest(),
            Sink::Unique(first) => (first.into_harvest(), None),
            Sink::Keyed(first) => first.into_harvest(),
            Sink::Sums(sums) => (Harvest::Sums(sums), None),
        }
    }
}

/// A path as indexing policies write it.
pub(super) fn policy_path(names: &[String]) -> String {
    let is_plain = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let step = |name: &String| {
        if name == "[]" || is_plain(name) { format!("/{name}") } else { format!("/{name:?}") }
    };
    names.iter().map(step).collect::<String>() + "/?"
}
