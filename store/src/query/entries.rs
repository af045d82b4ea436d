//! Follows an index: from entries to items, in the order of the entries.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use super::access::{Followed, FollowedLeg, InOrder};
use super::conditions::{Entered, ValueTest};
use super::execute::{Halt, Interrupt, Pager, Sink};
use super::functions::spatial::cells_of;
use super::joined::Entries;
use super::page::{EntryPlace, Place, Resume};
use super::run::Run;
use super::value::Value;
use crate::engine::{Direction, Fault};
use crate::ids::ItemNumber;
use crate::indexing::{EncodedRef, EncodedValue, IndexRange, Step};
use crate::keycode::MalformedKey;
use crate::partition::{EntryRef, IndexEntry};
use crate::ttl::Life;

/// Rows looked at for dead items, which are held to be left out of a count; with more of them the items are
/// counted, page by page.
const OVERDUE_MAX: usize = 100_000;
/// Entries passed over between two looks at the signal.
pub(super) const ENTRIES_BETWEEN_SIGNALS: u64 = 4096;
/// Ranges of entries begun between two looks: to find where one begins takes several seeks.
const RANGES_BETWEEN_SIGNALS: u64 = 64;

/// Items of which a page remembers where they stand first.
const FIRSTS_MAX: usize = 1000;

fn corrupt(error: MalformedKey) -> Fault {
    Fault::corrupt("index", error)
}

impl Pager<'_> {
    /// Walks along the entries of a condition; where the next page begins.
    pub(super) fn walk_entries(
        &mut self,
        followed: &Followed,
    ) -> Result<Option<Resume>, Interrupt> {
        let mut tested = self.tested(followed)?;
        let next = self.walk_tested(followed, &mut tested)?;
        self.work.values_scanned += tested.values;
        Ok(next)
    }

    fn walk_tested(
        &mut self,
        followed: &Followed,
        tested: &mut Tested<'_>,
    ) -> Result<Option<Resume>, Interrupt> {
        let start = match self.question.resume {
            Some(Resume::Entry(place)) => Some(place.clone()),
            _ => None,
        };
        let (mut last, mut passed, mut firsts) = (None, 0_u64, Firsts::default());
        for (leg, FollowedLeg { ranges, .. }) in followed.legs.iter().enumerate() {
            let leg = u16::try_from(leg).expect("a condition has few legs");
            let start = start.as_ref().filter(|start| start.leg >= leg);
            if start.is_some_and(|start| start.leg > leg) {
                continue;
            }
            let after = start.map(entry_before);
            for (nth, range) in (1_u64..).zip(ranges) {
                if nth.is_multiple_of(RANGES_BETWEEN_SIGNALS) {
                    self.stop_if_told()?;
                }
                let view = self.source.view;
                let mut entries = Entries::new(view, range, after.as_ref(), &followed.joined);
                while let Some((value, number, has_all)) = entries.next_entry()? {
                    let place = |taken| EntryPlace {
                        condition: followed.number,
                        leg,
                        value: value.as_bytes().to_vec(),
                        number,
                        taken,
                    };
                    if !has_all || !tested.admits(value, number)? {
                        passed += 1;
                        let is_due = passed.is_multiple_of(ENTRIES_BETWEEN_SIGNALS);
                        if (is_due || self.has_computed_much()) && self.pauses()? {
                            return Ok(Some(Resume::Entry(place(None))));
                        }
                        continue;
                    }
                    // Without a place to go on from the page goes on itself, by one item at least.
                    if self.is_page_full()?
                        && let Some(last) = last.take()
                    {
                        return Ok(Some(Resume::Entry(last)));
                    }
                    let is_begun = |start: &&EntryPlace| {
                        start.number == number && start.value == value.as_bytes()
                    };
                    let skip = start.filter(is_begun).and_then(|start| start.taken).unwrap_or(0);
                    if followed.may_repeat && !firsts.may_be(number, leg, value) {
                        self.looked_at += 1;
                        last = Some(place(None));
                        continue;
                    }
                    let entry = (leg, value, number);
                    if let Some(taken) = self.look_at_entry(followed, entry, skip, &mut firsts)? {
                        return Ok(Some(Resume::Entry(place(Some(taken)))));
                    }
                    last = Some(place(None));
                }
            }
        }
        Ok(None)
    }

    /// The test of a condition, about to be made.
    fn tested<'t>(&self, followed: &Followed) -> Result<Tested<'t>, Interrupt>
    where
        Self: 't,
    {
        let condition = &self.question.query.conditions[usize::from(followed.number)];
        let test = condition.test.as_ref();
        // Values that only dead items have are looked at by nobody.
        let dead =
            if test.is_some() { self.overdue()?.unwrap_or_default() } else { BTreeSet::new() };
        Ok(Tested { test, dead, run: self.run, value: Vec::new(), admits: false, values: 0 })
    }

    /// Takes up the item of an entry, unless another entry comes first for it.
    fn look_at_entry(
        &mut self,
        followed: &Followed,
        (leg, value, number): (u16, EncodedRef<'_>, ItemNumber),
        skip: u64,
        firsts: &mut Firsts,
    ) -> Result<Option<u64>, Interrupt> {
        let Some((key, item)) = self.source.view.item_numbered(number)? else {
            return Err(Fault::corrupt("index", "an entry without its item").into());
        };
        if followed.may_repeat {
            let shown = Value::from_json(&item.to_json(self.source.spec.container));
            let shown = shown.map_err(|error| Fault::corrupt("items", error))?;
            let shown = self.question.query.computed.shown_in(shown);
            let first = followed.first_entry(&shown);
            let is_first = first == Some((leg, value.to_owned()));
            firsts.note(number, first);
            if !is_first {
                self.looked_at += 1;
                self.bytes_passed += item.body.len() as u64;
                return Ok(None);
            }
        }
        self.look_at(key.as_bytes(), &item.stamp, &item.body, skip)
    }

    /// Reads an index that has the order of the result, until nothing more fits the page.
    pub(super) fn read_in_order(&mut self, order: &InOrder) -> Result<Option<Resume>, Interrupt> {
        let start = match self.question.resume {
            Some(Resume::Behind(place) | Resume::From(place)) => Some(place),
            _ => None,
        };
        let start = start.map(|place| order.start(place)).transpose().map_err(corrupt)?;
        let has_numbers = self.has_order_of_numbers(order);
        let ranges: Vec<&IndexRange> = match order.direction {
            Direction::Forward => order.ranges.iter().collect(),
            Direction::Backward => order.ranges.iter().rev().collect(),
        };
        for (nth, range) in (1_u64..).zip(ranges) {
            if nth.is_multiple_of(RANGES_BETWEEN_SIGNALS) {
                self.stop_if_told()?;
            }
            let range = match (&start, order.direction) {
                (None, _) => range.clone(),
                (Some(start), Direction::Forward) => range.clone().from(&start.in_order),
                (Some(start), Direction::Backward) => range.clone().through(&start.in_order),
            };
            let after = start.as_ref().filter(|_| has_numbers);
            let after = after.and_then(|start| start.after(order.direction));
            let view = self.source.view;
            let mut passed = 0_u64;
            for entry in view.scan_index(&range, order.direction, after.as_ref()) {
                let Some(entry) = entry? else {
                    passed += 1;
                    if passed.is_multiple_of(ENTRIES_BETWEEN_SIGNALS) {
                        self.stop_if_told()?;
                    }
                    continue;
                };
                if self.is_out_of_reach(order, &entry)? {
                    return Ok(None);
                }
                self.is_page_full()?;
                let Some((key, item)) = view.item_numbered(entry.number)? else {
                    return Err(Fault::corrupt("index", "an entry without its item").into());
                };
                self.look_at(key.as_bytes(), &item.stamp, &item.body, 0)?;
            }
        }
        Ok(None)
    }

    /// True if neither this entry nor any behind it can give a row that still fits the page.
    fn is_out_of_reach(&mut self, order: &InOrder, entry: &IndexEntry) -> Result<bool, Fault> {
        let Sink::Sorted(first) = &self.sink else { panic!("only sorted results have an order") };
        let Some(end) = first.end() else { return Ok(false) };
        let decoded = order.path.decode(entry.value.as_ref()).map_err(corrupt)?;
        let end = order.start(end).map_err(corrupt)?;
        let in_order = decoded.in_order(entry.value.as_ref());
        let is_in_place = decoded.is_exact() && self.has_order_of_numbers(order);
        Ok(is_in_place || in_order != end.in_order)
    }

    /// True if equal entries come in the order of the result. They come in the order of their
    /// numbers, which is that of the result if the first key has the direction of the index.
    fn has_order_of_numbers(&self, order: &InOrder) -> bool {
        let query = self.question.query;
        let descending = query.order.first().is_some_and(|first| first.descending);
        descending == (order.direction == Direction::Backward) && !query.distinct
    }

    /// Counts the entries of a condition that says all there is to the filter, leaving out what is
    /// dead; none if there is too much of that.
    pub(super) fn count_entries(&mut self, followed: &Followed) -> Result<Option<u64>, Interrupt> {
        let Some(dead) = self.overdue()? else { return Ok(None) };
        let view = self.source.view;
        let mut tested = self.tested(followed)?;
        let (mut count, mut seen, mut unsure) = (0, 0, Vec::new());
        let ranges = followed.legs.iter().flat_map(|leg| &leg.ranges);
        for (nth, range) in (1_u64..).zip(ranges) {
            if nth.is_multiple_of(RANGES_BETWEEN_SIGNALS) {
                self.stop_if_told()?;
            }
            let mut cursor = view.index_cursor(range, Direction::Forward, None);
            while let Some(EntryRef { value, number, is_void }) = cursor.next_entry()? {
                seen += 1;
                if seen % ENTRIES_BETWEEN_SIGNALS == 0 || self.has_computed_much() {
                    self.stop_if_told()?;
                }
                if is_void || (!dead.is_empty() && dead.contains(&number)) {
                    continue;
                }
                if !tested.admits(value, number)? {
                    continue;
                }
                if value.component().map_err(corrupt)?.is_exact() {
                    count += 1;
                } else {
                    unsure.push(number);
                }
            }
            for number in unsure.drain(..) {
                self.is_page_full()?;
                if let Some((key, item)) = view.item_numbered(number)? {
                    self.look_at(key.as_bytes(), &item.stamp, &item.body, 0)?;
                }
            }
        }
        self.work.values_scanned += tested.values;
        Ok(Some(count))
    }

    /// How many items there are that are not dead; none if too many are.
    pub(super) fn count_items(&mut self) -> Result<Option<u64>, Interrupt> {
        let dead = self.overdue()?;
        let items = self.source.view.state().items();
        Ok(dead.map(|dead| items - dead.len() as u64))
    }

    /// The items that are dead and were not swept yet; none if there is too much to look at for them.
    fn overdue(&self) -> Result<Option<BTreeSet<ItemNumber>>, Interrupt> {
        let (mut looked_at, mut dead, mut doubt) = (0, BTreeSet::new(), None);
        self.source.view.overdue(self.source.hi, |number, life| {
            looked_at += 1;
            match life {
                Life::Alive => {}
                Life::Dead => {
                    dead.insert(number);
                }
                Life::InDoubt(expiry) => doubt = Some(expiry),
            }
            if doubt.is_some() || looked_at > OVERDUE_MAX {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        match doubt {
            Some(expiry) => Err(Interrupt::InDoubt(expiry)),
            None => Ok(Some(dead).filter(|_| looked_at <= OVERDUE_MAX)),
        }
    }
}

/// Where items stand first along a condition, as far as a page has seen: one may have very many entries.
#[derive(Default)]
struct Firsts(BTreeMap<ItemNumber, Option<(u16, EncodedValue)>>);

impl Firsts {
    /// False if an item is known to stand first elsewhere.
    fn may_be(&self, number: ItemNumber, leg: u16, value: EncodedRef<'_>) -> bool {
        let is_here = |(first, at): &(u16, EncodedValue)| *first == leg && at.as_ref() == value;
        self.0.get(&number).is_none_or(|first| first.as_ref().is_some_and(is_here))
    }

    fn note(&mut self, number: ItemNumber, first: Option<(u16, EncodedValue)>) {
        if self.0.len() == FIRSTS_MAX {
            self.0.clear();
        }
        self.0.insert(number, first);
    }
}

/// The test of a condition under way, and what its last value came to: equal values are neighbours.
struct Tested<'t> {
    /// None if every value passes.
    test: Option<&'t ValueTest>,
    /// Items that are not looked at.
    dead: BTreeSet<ItemNumber>,
    run: &'t Run,
    value: Vec<u8>,
    admits: bool,
    /// How many values were looked at.
    values: u64,
}

impl Tested<'_> {
    /// True if a value passes, as far as its entry tells it.
    fn admits(&mut self, value: EncodedRef<'_>, number: ItemNumber) -> Result<bool, Interrupt> {
        let Some(test) = self.test else { return Ok(true) };
        if self.dead.contains(&number) {
            return Ok(false);
        }
        if self.values == 0 || self.value != value.as_bytes() {
            self.value.clear();
            self.value.extend_from_slice(value.as_bytes());
            self.values += 1;
            let told = value.component().map_err(corrupt)?.value();
            self.admits = told.is_none_or(|told| test.admits(&told, self.run));
            if let Some(error) = self.run.exceeded() {
                return Err(Interrupt::Halt(Halt::Refused(error)));
            }
        }
        Ok(self.admits)
    }
}

impl Followed {
    /// The first entry an item has along the condition.
    fn first_entry(&self, item: &Value) -> Option<(u16, EncodedValue)> {
        (0..).zip(&self.legs).find_map(|(number, leg)| {
            let encoded =
                values_at(item, &leg.path).into_iter().flat_map(|value| leg.encoded(value));
            let is_inside =
                |value: &EncodedValue| leg.ranges.iter().any(|range| range.contains(value));
            encoded.filter(is_inside).min().map(|value| (number, value))
        })
    }
}

impl FollowedLeg {
    /// What the entries of a value are.
    fn encoded(&self, value: &Value) -> Vec<EncodedValue> {
        match self.entered {
            Entered::Values => vec![EncodedValue::new(value)],
            Entered::Shapes(metric) => {
                let cells = cells_of(value, metric);
                cells.iter().map(|cell| EncodedValue::of_cell(cell.digits())).collect()
            }
        }
    }
}

/// The values an item has at a path.
fn values_at<'v>(item: &'v Value, steps: &[Step]) -> Vec<&'v Value> {
    let mut values = vec![item];
    for step in steps {
        values = values
            .into_iter()
            .flat_map(|value| match (step, value) {
                (Step::Member(name), value) => vec![value.member(name)],
                (Step::Elements, Value::Array(elements)) => elements.iter().collect(),
                (Step::Elements, _) => Vec::new(),
            })
            .filter(|value| value.is_defined())
            .collect();
    }
    values
}

/// The entry right before the one at a place, or at it if the place is behind it.
fn entry_before(place: &EntryPlace) -> IndexEntry {
    let number = match place.taken {
        None => place.number,
        Some(_) => ItemNumber(place.number.0.saturating_sub(1)),
    };
    IndexEntry { value: EncodedValue::from_bytes(place.value.clone()), number }
}

/// Where a place of the result stands in the index.
struct Start {
    value: EncodedValue,
    in_order: Vec<u8>,
    /// The item, if the entry tells all values.
    number: Option<ItemNumber>,
}

impl InOrder {
    fn start(&self, place: &Place) -> Result<Start, MalformedKey> {
        let values: Vec<Value> = place.keys.iter().map(|key| key.0.clone()).collect();
        let value = self.path.encode(&values);
        let decoded = self.path.decode(value.as_ref())?;
        let in_order = decoded.in_order(value.as_ref()).to_vec();
        let number = decoded.is_exact().then_some(place.number);
        Ok(Start { value, in_order, number })
    }
}

impl Start {
    /// The entry behind which a page goes on: right before that of the item it ended with, which may
    /// have more rows.
    fn after(&self, direction: Direction) -> Option<IndexEntry> {
        let number = self.number?;
        let number = match direction {
            Direction::Forward => ItemNumber(number.0.checked_sub(1)?),
            Direction::Backward => ItemNumber(number.0.checked_add(1)?),
        };
        Some(IndexEntry { value: self.value.clone(), number })
    }
}
