//! Makes one page out of what partitions found, and says where the next page begins.
//!
//! A sorted or keyed result takes from each partition its next rows, and of these as many as are
//! surely in order: nothing that comes after the last row of a partition that has more. A walk takes
//! partitions one after the other, in the order of the hash space, and sums are added up in that
//! order too. So a page asks each partition at most once and sees each at one instant.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::aggregate::Accumulators;
use super::anchors::Anchored;
use super::compiled::{CompiledQuery, Window};
use super::digest;
use super::error::QueryError;
use super::page::{Content, Course, Harvest, Keyed, Page, PageLimits, Place, QueryRow, Resume};
use super::run::Run;
use super::value::Value;
use crate::codec;
use crate::partition_key::SlotRange;
use crate::time::Millis;

/// Bytes that the position of a sum may take: what a token has room for beside its seal, the window
/// and the instant.
const POSITION_BYTES_MAX: usize = 700;

/// Where a result is gone on with: what a continuation token holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// The place.
    pub at: Position,
    /// What is left of TOP, OFFSET and LIMIT.
    pub left: Window,
    /// The instant of the first page.
    pub first: Millis,
}

/// A place in a result over several partitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Position {
    /// A walk, at the beginning of a slot or somewhere in the partition that holds it.
    Walk {
        /// The slot.
        slot: u16,
        /// Where in the partition.
        within: Option<Resume>,
        /// What was added up before.
        sums: Option<Accumulators>,
    },
    /// Behind this place of a sorted result, in every partition.
    Behind(Place),
    /// At this place of a sorted result.
    From(Place),
    /// Behind a place of a sorted result with long keys: its anchors are to be looked up.
    Anchored(Anchored),
    /// Behind this digest, in every partition.
    Digest(u128),
}

impl Position {
    /// True if a result of this query can be gone on with here. A seal tells that the cluster wrote
    /// a token, or who knows its id.
    pub fn suits(&self, query: &CompiledQuery) -> bool {
        let is_sorted_by = |place: &Place| place.keys.len() == query.order.len();
        match (query.course(), self) {
            (course @ (Course::Walk | Course::Sums), Position::Walk { slot: _, within, sums }) => {
                let is_walk = matches!(within, None | Some(Resume::Item(_) | Resume::Entry(_)));
                let fits = |sums| course == Course::Sums && query.adds_up_to(sums);
                is_walk && sums.as_ref().is_none_or(fits)
            }
            (Course::Sorted | Course::Unique, Position::Behind(place) | Position::From(place)) => {
                is_sorted_by(place)
            }
            (Course::Sorted | Course::Unique, Position::Anchored(anchored)) => {
                anchored.place().is_none_or(is_sorted_by)
            }
            (Course::Keyed, Position::Digest(_)) => true,
            (Course::Walk | Course::Sums | Course::Sorted | Course::Unique | Course::Keyed, _) => {
                false
            }
        }
    }
}

/// A page of the whole result.
#[derive(Clone, Debug)]
pub struct Merged {
    /// Its rows, as JSON.
    pub rows: Vec<Vec<u8>>,
    /// Where the next page begins, and what is left of the window; none if there is no more.
    pub next: Option<(Position, Window)>,
}

/// Lets through what the window and the page have room for.
struct Gate {
    rows: Vec<Vec<u8>>,
    left: Window,
    limit: usize,
}

impl Gate {
    fn new(left: Window, limit: usize) -> Self {
        assert!(limit > 0, "a page has room for a row");
        Self { rows: Vec::new(), left, limit }
    }

    /// True once nothing more may pass, on this page or any other.
    fn is_closed(&self) -> bool {
        self.left.take == Some(0)
    }

    fn is_full(&self) -> bool {
        self.rows.len() >= self.limit || self.is_closed()
    }

    fn pass(&mut self, row: Vec<u8>) {
        assert!(!self.is_full(), "callers ask before");
        if self.left.skip > 0 {
            self.left.skip -= 1;
            return;
        }
        if let Some(take) = &mut self.left.take {
            *take -= 1;
        }
        self.rows.push(row);
    }

    /// Lets through what is sure of some rows in order; what marks those that passed or fell away.
    fn fill<M, R>(
        &mut self,
        rows: impl IntoIterator<Item = (M, R)>,
        is_sure: impl Fn(&M) -> bool,
        finish: impl Fn(R) -> Option<Vec<u8>>,
    ) -> Vec<M> {
        let mut taken = Vec::new();
        for (mark, row) in rows {
            if self.is_full() || !is_sure(&mark) {
                break;
            }
            if let Some(row) = finish(row) {
                self.pass(row);
            }
            taken.push(mark);
        }
        taken
    }

    fn close(self, next: Option<Position>) -> Merged {
        let next = if self.is_closed() { None } else { next };
        Merged { rows: self.rows, next: next.map(|position| (position, self.left)) }
    }
}

/// How many rows a partition has to send so that a page of `limit` rows can be full.
///
/// With an OFFSET some of them are only counted; `most` bounds them, and then a page may be empty.
pub fn rows_wanted(left: Window, limit: usize, most: usize) -> usize {
    let skip = usize::try_from(left.skip).unwrap_or(usize::MAX);
    let take = left.take.map_or(usize::MAX, |take| usize::try_from(take).unwrap_or(usize::MAX));
    limit.min(take).saturating_add(skip).min(most.max(limit)).max(1)
}

/// Merges the partitions' next rows of a sorted result.
pub fn sorted(query: &CompiledQuery, pages: Vec<Page>, left: Window, limit: usize) -> Merged {
    let directions = query.directions();
    let compare = |a: &Place, b: &Place| a.compare(b, &directions);
    let mut rows: Vec<(Place, Vec<u8>)> = Vec::new();
    let mut sure: Option<Place> = None;
    for page in pages {
        let end = page.next.map(|next| match next {
            Resume::Behind(place) => place,
            Resume::Item(_) | Resume::Entry(_) | Resume::From(_) | Resume::Digest(_) => {
                panic!("a sorted page ends at a place")
            }
        });
        if let Some(end) = end
            && sure.as_ref().is_none_or(|sure| compare(&end, sure).is_lt())
        {
            sure = Some(end);
        }
        rows.extend(placed(page.harvest));
    }
    rows.sort_by(|(a, _), (b, _)| compare(a, b));
    if query.distinct {
        rows.dedup_by(|(a, _), (b, _)| compare(a, b).is_eq());
    }
    let is_sure = |place: &Place| sure.as_ref().is_none_or(|sure| compare(place, sure).is_le());
    let available = rows.len();
    let mut gate = Gate::new(left, limit);
    let mut taken = gate.fill(rows, is_sure, Some);
    let has_more = sure.is_some() || taken.len() < available;
    if !gate.is_full() {
        // Nothing was taken of a page that has more only if all its rows fell away: go on behind them.
        taken.extend(sure);
    }
    gate.close(Position::behind(&taken, &directions).filter(|_| has_more))
}

fn placed(harvest: Harvest) -> impl Iterator<Item = (Place, Vec<u8>)> {
    let Harvest::Rows(rows) = harvest else { panic!("a sorted page has rows") };
    rows.into_iter().map(|QueryRow { json, place }| (place.expect("sorted rows have places"), json))
}

/// Merges all rows of all partitions, of equal ones the first, and takes those behind a place.
pub fn unique(
    query: &CompiledQuery,
    pages: Vec<Page>,
    after: Option<&Place>,
    left: Window,
    limit: usize,
) -> Merged {
    let directions = query.directions();
    let mut rows: Vec<(Place, Vec<u8>)> =
        pages.into_iter().flat_map(|page| placed(page.harvest)).collect();
    rows.sort_by(|(a, _), (b, _)| a.compare(b, &directions));
    let mut seen = BTreeSet::new();
    rows.retain(|(place, _)| seen.insert(place.tie));
    rows.retain(|(place, _)| after.is_none_or(|after| place.compare(after, &directions).is_gt()));
    let available = rows.len();
    let mut gate = Gate::new(left, limit);
    let taken = gate.fill(rows, |_| true, Some);
    gate.close(Position::behind(&taken, &directions).filter(|_| taken.len() < available))
}

/// Rows or groups of all pages by digest, each with a number that says which was found first; and the
/// digest up to which they are all there.
fn by_digest(pages: Vec<Page>) -> (Vec<(usize, Keyed)>, Option<u128>) {
    let mut all: Vec<(usize, Keyed)> = Vec::new();
    let mut sure: Option<u128> = None;
    for page in pages {
        if let Some(Resume::Digest(end)) = page.next {
            sure = Some(sure.map_or(end, |sure| sure.min(end)));
        }
        let Harvest::Keyed(found) = page.harvest else { panic!("a keyed page has digests") };
        let numbered = found.into_iter().enumerate();
        let known = all.len();
        all.extend(numbered.map(|(at, one)| (known + at, one)));
    }
    all.sort_by_key(|(found, one)| (one.digest, *found));
    let mut merged: Vec<(usize, Keyed)> = Vec::with_capacity(all.len());
    for (found, one) in all {
        match merged.last_mut() {
            Some((_, last)) if last.digest == one.digest => last.content.merge(one.content),
            _ => merged.push((found, one)),
        }
    }
    (merged, sure)
}

/// Merges all groups of all partitions, and takes of equal results one each.
pub fn distinct_groups(
    query: &CompiledQuery,
    pages: Vec<Page>,
    after: Option<u128>,
    left: Window,
    limit: usize,
    run: &Run,
) -> Result<Merged, QueryError> {
    let (mut merged, sure) = by_digest(pages);
    if sure.is_some() {
        let message = "The query has too many groups for DISTINCT. Make its filter narrower.";
        return Err(QueryError::Plain(message.to_string()));
    }
    merged.sort_by_key(|(found, _)| *found);
    let mut rows: Vec<(u128, Vec<u8>)> = Vec::new();
    let mut seen = BTreeSet::new();
    for (_, one) in merged {
        if let Some(row) = one.content.finish_value(query, run) {
            let digest = digest::of(&row);
            if seen.insert(digest) {
                rows.push((digest, row.to_json()));
            }
        }
    }
    if after.is_some() || rows.len() > limit {
        rows.sort_by_key(|(digest, _)| *digest);
        rows.retain(|(digest, _)| after.is_none_or(|after| *digest > after));
    }
    let available = rows.len();
    let mut gate = Gate::new(left, limit);
    let taken = gate.fill(rows, |_| true, Some);
    let last = taken.last().filter(|_| taken.len() < available);
    Ok(gate.close(last.copied().map(Position::Digest)))
}

/// Merges the partitions' next rows or groups by digest. A result that fits the first page comes in
/// the order in which it was found.
pub fn keyed(
    query: &CompiledQuery,
    pages: Vec<Page>,
    after: Option<u128>,
    left: Window,
    limit: usize,
    run: &Run,
) -> Merged {
    let (mut merged, sure) = by_digest(pages);
    let available = merged.len();
    let is_whole = after.is_none() && sure.is_none() && available <= limit;
    if is_whole {
        merged.sort_by_key(|(found, _)| *found);
    }
    let mut gate = Gate::new(left, limit);
    let taken = gate.fill(
        merged.into_iter().map(|(_, one)| (one.digest, one.content)),
        |digest| sure.is_none_or(|sure| *digest <= sure),
        |content| content.finish(query, run),
    );
    let last = taken.last().copied();
    let last = if gate.is_full() { last } else { sure.or(last) };
    let has_more = sure.is_some() || taken.len() < available;
    gate.close(last.filter(|_| has_more).map(Position::Digest))
}

impl Content {
    fn merge(&mut self, other: Content) {
        match (self, other) {
            (Content::Row(_), Content::Row(_)) => {}
            (Content::Group(_, sums), Content::Group(_, more)) => sums.merge(more),
            (Content::Row(_), Content::Group(..)) | (Content::Group(..), Content::Row(_)) => {
                panic!("one query has rows or groups")
            }
        }
    }

    fn finish(self, query: &CompiledQuery, run: &Run) -> Option<Vec<u8>> {
        match self {
            Content::Row(json) => Some(json),
            group @ Content::Group(..) => group.finish_value(query, run).map(|row| row.to_json()),
        }
    }

    fn finish_value(self, query: &CompiledQuery, run: &Run) -> Option<Value> {
        let Content::Group(key, sums) = self else { panic!("a grouped query has groups") };
        let key: Vec<Value> = key.into_iter().map(|key| key.0).collect();
        query.finish(&key, &sums, run)
    }
}

/// A page that walks through partitions in the order of the hash space.
pub struct Walk<'q> {
    query: &'q CompiledQuery,
    gate: Gate,
    bytes_left: usize,
    items_left: usize,
    sums: Option<Accumulators>,
    slot: u16,
    within: Option<Resume>,
}

impl<'q> Walk<'q> {
    /// Begins a page at a position.
    pub fn new(
        query: &'q CompiledQuery,
        position: Option<Position>,
        left: Window,
        limits: PageLimits,
    ) -> Self {
        let (slot, within, sums) = match position {
            Some(Position::Walk { slot, within, sums }) => (slot, within, sums),
            None
            | Some(
                Position::Behind(_)
                | Position::From(_)
                | Position::Anchored(_)
                | Position::Digest(_),
            ) => (0, None, None),
        };
        let adds_up = query.course() == Course::Sums;
        let sums = sums.or_else(|| adds_up.then(|| query.accumulators()));
        let (bytes_left, items_left) = (limits.bytes, limits.items);
        let gate = Gate::new(left, limits.rows);
        Self { query, gate, bytes_left, items_left, sums, slot, within }
    }

    /// True if a partition with these slots is still to be asked.
    pub fn awaits(&self, slots: SlotRange) -> bool {
        slots.end > self.slot
    }

    /// Where a partition with these slots is to begin.
    pub fn resume(&self, slots: SlotRange) -> Option<Resume> {
        self.within.clone().filter(|_| (slots.start..slots.end).contains(&self.slot))
    }

    /// How much the next partition may send.
    pub fn limits(&self, most: usize) -> PageLimits {
        let room = self.gate.limit - self.gate.rows.len();
        PageLimits {
            rows: rows_wanted(self.gate.left, room, most),
            bytes: self.bytes_left.max(1),
            items: if self.may_end() { self.items_left.max(1) } else { usize::MAX },
        }
    }

    /// Takes up what the next partition found. True if the page ends here; else the partition goes on
    /// if it is still awaited.
    pub fn take(&mut self, slots: SlotRange, page: Page) -> bool {
        let items = usize::try_from(page.work.items_loaded).unwrap_or(usize::MAX);
        self.items_left = self.items_left.saturating_sub(items);
        match (page.harvest, &mut self.sums) {
            (Harvest::Rows(rows), None) => {
                for row in rows {
                    self.bytes_left = self.bytes_left.saturating_sub(row.json.len());
                    if !self.gate.is_full() {
                        self.gate.pass(row.json);
                    }
                }
            }
            (Harvest::Sums(more), Some(sums)) => sums.merge(more),
            _ => panic!("a walk has rows, or sums if it adds up"),
        }
        (self.slot, self.within) = match page.next {
            Some(next) => (slots.start.max(self.slot), Some(next)),
            None => (slots.end, None),
        };
        let pauses = self.within.is_some() || self.bytes_left == 0 || self.items_left == 0;
        self.gate.is_full() || (pauses && self.may_end())
    }

    /// True if it stands between partitions, and adds up what they say: what the next ones have answered is not
    /// asked for again.
    pub fn adds_up(&self) -> bool {
        self.sums.is_some() && self.within.is_none()
    }

    /// True if a token can tell where the page would end, and what was added up so far.
    pub fn may_end(&self) -> bool {
        self.sums.as_ref().is_none_or(|sums| {
            let told = || codec::encode(&(self.slot, &self.within, sums)).len();
            sums.size() <= POSITION_BYTES_MAX && told() <= POSITION_BYTES_MAX
        })
    }

    /// The page; `last` are the last slots there are.
    pub fn end(self, last: SlotRange, run: &Run) -> Merged {
        let Self { query, mut gate, sums, slot, within, .. } = self;
        if within.is_some() || slot < last.end {
            return gate.close(Some(Position::Walk { slot, within, sums }));
        }
        if let Some(sums) = sums
            && let Some(row) = query.finish(&[], &sums, run)
            && !gate.is_closed()
        {
            gate.pass(row.to_json());
        }
        gate.close(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge::QueryWork;
    use crate::item::ItemKey;
    use crate::query::page::{ItemPlace, SortKey};
    use crate::query::{ComputedProperties, Moment, Parameters};

    fn compile(text: &str) -> CompiledQuery {
        let policy = crate::indexing::complete(None).unwrap();
        let index = crate::indexing::IndexRules::new(&policy).unwrap();
        let (parameters, computed) = (Parameters::default(), ComputedProperties::default());
        CompiledQuery::new(text, &parameters, &index, &computed).unwrap()
    }

    fn sums(query: &CompiledQuery, text: &str) -> Accumulators {
        let (mut sums, run) =
            (query.accumulators(), Run::new(Moment::new(Millis(0), Millis(0), 0)));
        let item = Value::Object(vec![("t".to_string(), text.into())].into());
        query.for_each_row(&item, crate::ids::ItemNumber(0), &run, &mut |row| {
            query.accumulate(&mut sums, row, &run);
            std::ops::ControlFlow::Continue(())
        });
        sums
    }

    /// What the gateway puts into a token has 738 bytes: 1000 characters, less the seal.
    #[test]
    fn a_sum_pauses_only_where_a_token_can_tell_it() {
        let query = compile("SELECT VALUE MAX(c.t) FROM c");
        let mut paused = 0;
        for (text, key) in [(10, 10), (300, 390), (360, 390), (480, 10), (480, 390), (2000, 10)] {
            let limits = PageLimits { rows: 1, bytes: 1, items: 1 };
            let left = Window { skip: u64::MAX, take: Some(u64::MAX) };
            let mut walk = Walk::new(&query, None, left, limits);
            let key = ItemKey::from_bytes(&vec![7; key]).unwrap();
            let at = ItemPlace { key, anchors: Vec::new(), taken: Some(u64::MAX) };
            let harvest = Harvest::Sums(sums(&query, &"x".repeat(text)));
            let work = QueryWork { items_loaded: 9, ..QueryWork::default() };
            let (next, followed) = (Some(Resume::Item(at)), Vec::new());
            if walk.take(SlotRange::ALL, Page { harvest, next, work, followed }) {
                let run = Run::new(Moment::new(Millis(0), Millis(0), 0));
                let (at, left) = walk.end(SlotRange::ALL, &run).next.unwrap();
                let told = codec::encode(&Progress { at, left, first: Millis(u64::MAX) }).len();
                assert!(told <= 738, "{told} bytes for a text of {text}");
                paused += 1;
            }
        }
        assert_eq!(paused, 2);
    }

    #[test]
    fn a_place_of_another_query_is_none() {
        let text = "SELECT VALUE MAX(c.t) FROM c";
        let query = compile(text);
        let at = |sums| Position::Walk { slot: 0, within: None, sums };
        assert!(at(Some(query.accumulators())).suits(&query));
        for other in
            ["SELECT VALUE MIN(c.t) FROM c", "SELECT MAX(c.t), MAX(c.t) FROM c", "SELECT * FROM c"]
        {
            let other = compile(other);
            assert!(!at(Some(query.accumulators())).suits(&other));
            assert!(at(None).suits(&other));
        }
        let within = Some(Resume::Digest(1));
        assert!(!Position::Walk { slot: 0, within, sums: None }.suits(&query));
        let sorted = compile("SELECT * FROM c ORDER BY c.t");
        let place = |keys| {
            let keys = vec![SortKey(Value::Null); keys];
            Place::of_item(keys, None, false, &sorted.directions())
        };
        assert!(Position::Behind(place(1)).suits(&sorted));
        assert!(!Position::Behind(place(2)).suits(&sorted));
        assert!(!Position::Digest(1).suits(&sorted));
    }
}
