//! Chooses how the items of a page are found: one after the other, or along an index.
//!
//! 1. A page that goes on with another goes the same way, which its place tells.
//! 2. If some condition of the filter leads to few entries, the one with the fewest is followed.
//! 3. A sorted result follows the index that has its order, unless it is about one logical
//!    partition with few items.
//! 4. Otherwise a condition that asks for single values is followed, together with all others that
//!    ask for one; or else one whose values are tested one by one.
//! 5. Otherwise the items are walked.

use std::cell::Cell;

use super::compiled::{CompiledQuery, SortOrder};
use super::conditions::{Condition, Entered};
use super::entries::ENTRIES_BETWEEN_SIGNALS;
use super::execute::{Interrupt, Question, Source, policy_path};
use super::page::{Course, Resume};
use crate::engine::Direction;
use crate::indexing::{IndexPath, IndexRange, Step};

/// Entries counted to see how many a condition leads to. As many items are looked up faster than a
/// small container is walked.
const PROBED_MAX: u64 = 1000;
/// Items of one logical partition are counted up to here.
const COUNTED_MAX: u64 = 10 * PROBED_MAX;

/// So much garbage, or so many void entries, are passed over while an item is looked at, about.
const PASSED_PER_ITEM: u64 = 8;

/// A condition about shapes is followed if it leads to less than one entry for so many items.
const ITEMS_PER_SHAPE: u64 = 8;

/// To find the first entry of a range takes as long as to count so many.
const ENTRIES_PER_RANGE: u64 = 16;

/// How items are found.
#[derive(Clone, Debug)]
pub(super) enum Access {
    /// In the order of their keys.
    Items,
    /// Along the entries of a condition.
    Condition(Followed),
    /// Along an index that has the order of the result.
    Order(InOrder),
}

/// A condition, and where its entries are.
#[derive(Clone, Debug)]
pub(super) struct Followed {
    /// Which condition of the filter.
    pub(super) number: u16,
    pub(super) legs: Vec<FollowedLeg>,
    /// True if an item may have several entries there.
    pub(super) may_repeat: bool,
    /// Each is one value of another path that the items must have, too.
    pub(super) joined: Vec<IndexRange>,
}

/// A leg of a condition, and where its entries are.
#[derive(Clone, Debug)]
pub(super) struct FollowedLeg {
    /// The path, from the item.
    pub(super) path: Vec<Step>,
    /// Which of its entries are followed.
    pub(super) entered: Entered,
    /// In order, and without overlaps.
    pub(super) ranges: Vec<IndexRange>,
}

/// An index that is read in the order of the result.
#[derive(Clone, Debug)]
pub(super) struct InOrder {
    pub(super) path: IndexPath,
    /// Ranges in the order of the index that do not overlap.
    pub(super) ranges: Vec<IndexRange>,
    pub(super) direction: Direction,
}

impl Followed {
    /// The paths, as indexing policies write them.
    pub(super) fn names(&self) -> Vec<String> {
        let name = |step: &Step| match step {
            Step::Member(name) => name.clone(),
            Step::Elements => "[]".to_string(),
        };
        let paths = self.legs.iter().map(|leg| leg.path.iter().map(name).collect::<Vec<_>>());
        paths.map(|names| policy_path(&names)).collect()
    }
}

impl InOrder {
    /// The path, or those of a composite index, as the metrics tell them.
    pub(super) fn name(query: &CompiledQuery) -> String {
        match query.order.as_slice() {
            [key] => policy_path(&key.path),
            keys => {
                let key = |key: &SortOrder| {
                    let path = policy_path(&key.path);
                    let path = path.trim_end_matches("/?");
                    format!("{path} {}", if key.descending { "DESC" } else { "ASC" })
                };
                keys.iter().map(key).collect::<Vec<_>>().join(",")
            }
        }
    }
}

/// Chooses. `go_on` is asked now and then, as far as that takes long.
pub(super) fn choose(
    source: &Source<'_>,
    question: &Question<'_>,
    go_on: &dyn Fn() -> Result<(), Interrupt>,
) -> Result<Access, Interrupt> {
    let index = source.view.index();
    let follow = |number: usize| follow(source, question, number);
    let probe = Probe { source, go_on, unasked: Cell::new(0) };
    match question.resume {
        Some(Resume::Item(_)) => return Ok(Access::Items),
        Some(Resume::Entry(place)) => {
            let followed = follow(usize::from(place.condition));
            let followed = followed.map(|followed| join(source, question, followed));
            return Ok(followed.map_or(Access::Items, Access::Condition));
        }
        None | Some(Resume::Behind(_) | Resume::From(_) | Resume::Digest(_)) => {}
    }
    if index.serves(&[Step::from("id")], None).is_none() {
        return Ok(Access::Items);
    }
    let mut best: Option<(u64, usize, Followed)> = None;
    let conditions = question.query.conditions.as_slice();
    for (number, condition) in conditions.iter().enumerate() {
        if condition.test.is_some() {
            continue;
        }
        let Some(followed) = follow(number) else { continue };
        // Nothing else could be followed.
        let is_only = conditions.len() == 1 && question.query.course() != Course::Sorted;
        if is_only && condition.is_seek() && !is_scoped(source, question) {
            return Ok(Access::Condition(followed));
        }
        let entries = probe.entries_of(&followed, PROBED_MAX)?;
        let rank = usize::from(!condition.is_seek());
        let is_better = |(known, known_rank, _): &(u64, usize, Followed)| {
            (entries, rank) < (*known, *known_rank)
        };
        if best.as_ref().is_none_or(is_better) {
            best = Some((entries, rank, followed));
        }
    }
    let in_order = || in_order(source, question);
    Ok(match best {
        Some((entries, _, followed)) if entries < PROBED_MAX => {
            Access::Condition(join(source, question, followed))
        }
        best => match (question.query.course(), in_order(), best) {
            (Course::Sorted, Some(in_order), _) if is_short(&probe, question, &in_order)? => {
                Access::Items
            }
            (Course::Sorted, Some(in_order), _) => Access::Order(in_order),
            _ if is_scoped(source, question) => Access::Items,
            (_, _, Some((_, 0, followed))) => Access::Condition(join(source, question, followed)),
            _ => {
                let mut found = near(&probe, question)?;
                if found.is_none() {
                    let conditions = conditions.iter().enumerate();
                    let mut tested = conditions.filter(|(_, condition)| condition.test.is_some());
                    found = tested.find_map(|(number, _)| follow(number));
                }
                found.map_or(Access::Items, Access::Condition)
            }
        },
    })
}

/// The condition about where shapes are that leads to a small part of all items, if one does: asking each
/// item where it is costs more than looking some up.
fn near(probe: &Probe<'_>, question: &Question<'_>) -> Result<Option<Followed>, Interrupt> {
    let entries_max = probe.source.view.state().items() / ITEMS_PER_SHAPE;
    for (number, condition) in question.query.conditions.iter().enumerate() {
        if condition.is_of_space()
            && let Some(followed) = follow(probe.source, question, number)
            && probe.entries_of(&followed, entries_max)? < entries_max
        {
            return Ok(Some(followed));
        }
    }
    Ok(None)
}

/// Joins to a condition that asks for single values all others that ask for one.
fn join(source: &Source<'_>, question: &Question<'_>, followed: Followed) -> Followed {
    let mut ranges = followed.legs.iter().flat_map(|leg| &leg.ranges);
    if !ranges.all(IndexRange::is_one_value) {
        return followed;
    }
    let others = (0..question.query.conditions.len())
        .filter(|number| *number != usize::from(followed.number))
        .filter_map(|number| follow(source, question, number));
    let only_value = |other: Followed| match other.legs.as_slice() {
        [leg] => match leg.ranges.as_slice() {
            [range] if range.is_one_value() => Some(range.clone()),
            _ => None,
        },
        _ => None,
    };
    Followed { joined: others.filter_map(only_value).collect(), ..followed }
}

/// True if the items of one logical partition are asked for, which stand side by side.
fn is_scoped(source: &Source<'_>, question: &Question<'_>) -> bool {
    let key = question.scope.key.as_ref();
    key.is_some_and(|key| key.0.len() == source.key.paths.len())
}

/// True if the items of one logical partition are asked for, and are sooner all looked at than
/// found in an index that those of others are in, too.
///
/// A page of `rows` rows goes along `rows * all / own` entries if its items are spread evenly, and
/// so pays off from about `sqrt(rows * all)` own items on; or from as many as there are entries that
/// the filter leaves. More than a few thousand are not counted, for each page begins with it. Garbage among them
/// counts for what passing over it costs.
fn is_short(
    probe: &Probe<'_>,
    question: &Question<'_>,
    in_order: &InOrder,
) -> Result<bool, Interrupt> {
    let source = probe.source;
    let key = question.scope.key.as_ref();
    let Some(key) = key.filter(|_| is_scoped(source, question)) else { return Ok(false) };
    let rows = u64::try_from(question.limits.rows).unwrap_or(u64::MAX);
    let even = rows.saturating_mul(source.view.state().items()).isqrt();
    let mut most = even.clamp(PROBED_MAX, COUNTED_MAX);
    let range = source.view.keys().logical_partition(&source.key.place(key), key);
    let mut cursor = source.view.item_cursor(&range);
    let (mut own, mut seen) = (0, 0);
    while own < most
        && let Some(item) = cursor.next_item()?
    {
        seen += 1;
        if seen % PROBED_MAX == 0 {
            (probe.go_on)()?;
        }
        if item.is_garbage && seen % PASSED_PER_ITEM != 0 {
            continue;
        }
        own += 1;
        if own == PROBED_MAX {
            most = probe.count(&in_order.ranges, most)?;
        }
    }
    Ok(own < most)
}

/// A condition with its entries; none if an index does not serve it.
pub(super) fn follow(
    source: &Source<'_>,
    question: &Question<'_>,
    number: usize,
) -> Option<Followed> {
    let condition = question.query.conditions.get(number)?;
    let index = source.view.index();
    let computed_by = |path: &[Step]| question.query.computed.query_of(path);
    let legs = condition.legs.iter().map(|leg| {
        let path = match leg.entered {
            Entered::Values => index.serves(&leg.path, computed_by(&leg.path))?.path,
            Entered::Shapes(_) if computed_by(&leg.path).is_some() => return None,
            Entered::Shapes(metric) => index.serves_shapes(&leg.path, metric)?,
        };
        let ranges = leg.entries(&path);
        Some(FollowedLeg { path: leg.path.clone(), entered: leg.entered, ranges })
    });
    let legs = legs.collect::<Option<Vec<_>>>()?;
    let number = u16::try_from(number).ok()?;
    Some(Followed { number, legs, may_repeat: condition.may_repeat(), joined: Vec::new() })
}

/// Counts entries, and asks now and then whether to go on with that.
struct Probe<'a> {
    source: &'a Source<'a>,
    go_on: &'a dyn Fn() -> Result<(), Interrupt>,
    /// Entries counted since it was asked.
    unasked: Cell<u64>,
}

impl Probe<'_> {
    /// How much stepping over the entries of a condition takes, in entries that lead to items, counted up to so many.
    fn entries_of(&self, followed: &Followed, entries_max: u64) -> Result<u64, Interrupt> {
        self.count(followed.legs.iter().flat_map(|leg| &leg.ranges), entries_max)
    }

    fn count<'r>(
        &self,
        ranges: impl IntoIterator<Item = &'r IndexRange>,
        entries_max: u64,
    ) -> Result<u64, Interrupt> {
        let (mut entries, mut passed) = (0, 0_u64);
        for range in ranges {
            if entries >= entries_max {
                break;
            }
            self.pass(ENTRIES_PER_RANGE)?;
            let mut cursor = self.source.view.index_cursor(range, Direction::Forward, None);
            while entries < entries_max
                && let Some(entry) = cursor.next_entry()?
            {
                passed += 1;
                self.pass(1)?;
                if !entry.is_void || passed % PASSED_PER_ITEM == 0 {
                    entries += 1;
                }
            }
        }
        Ok(entries)
    }

    fn pass(&self, entries: u64) -> Result<(), Interrupt> {
        let unasked = self.unasked.get() + entries;
        if unasked < ENTRIES_BETWEEN_SIGNALS {
            self.unasked.set(unasked);
            return Ok(());
        }
        self.unasked.set(0);
        (self.go_on)()
    }
}

/// The index that has the order of a sorted result, if one has it and every row in it.
fn in_order(source: &Source<'_>, question: &Question<'_>) -> Option<InOrder> {
    let index = source.view.index();
    let computed_by = |path: &[Step]| question.query.computed.query_of(path);
    match question.query.order.as_slice() {
        [] => None,
        [key] => {
            let steps: Vec<Step> = key.path.iter().cloned().map(Step::Member).collect();
            let served = index.serves(&steps, computed_by(&steps))?;
            if key.keeps_undefined && !served.has_undefined {
                return None;
            }
            let all = || {
                let path = served.path.clone();
                vec![if key.keeps_undefined {
                    IndexRange::all(path)
                } else {
                    IndexRange::defined(path)
                }]
            };
            let is_about_it = |condition: &&Condition| match condition.legs.as_slice() {
                [leg] => leg.path == steps && leg.entered == Entered::Values,
                _ => false,
            };
            let condition = question.query.conditions.iter().find(is_about_it);
            let filtered = condition.map(|condition| condition.legs[0].entries(&served.path));
            let direction = if key.descending { Direction::Backward } else { Direction::Forward };
            let ranges = filtered.unwrap_or_else(all);
            Some(InOrder { path: served.path, ranges, direction })
        }
        keys => {
            let wanted: Vec<(Vec<String>, bool)> =
                keys.iter().map(|key| (key.path.clone(), key.descending)).collect();
            let (path, direction) = index.serves_composite(&wanted, computed_by)?;
            let ranges = vec![IndexRange::all(path.clone())];
            Some(InOrder { path, ranges, direction })
        }
    }
}
