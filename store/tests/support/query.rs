//! Asks partitions for a query's pages, as the gateway does, but in one thread.

use ephemeris_store::document::DocumentRules;
use ephemeris_store::partition::{PageOutcome, Partition};
use ephemeris_store::partition_key::SlotRange;
use ephemeris_store::query::{
    Anchor, Anchored, CompiledQuery, Course, Halt, Merged, Moment, Page, PageLimits, Position,
    Question, Resume, Run, Scope, Signal, Source, Value, Walk, Window, merge_distinct_groups,
    merge_keyed, merge_sorted, merge_unique, rows_wanted, run_page,
};
use ephemeris_store::time::{Millis, Seconds};

/// A query over partitions, in the order of the hash space, at one instant.
pub(crate) struct Asking<'a> {
    pub(crate) query: &'a CompiledQuery,
    pub(crate) partitions: &'a [&'a Partition],
    pub(crate) rules: &'a DocumentRules,
    pub(crate) scope: &'a Scope,
    pub(crate) limits: PageLimits,
    pub(crate) hi: Millis,
}

/// Why there is no page.
#[derive(Debug)]
#[allow(dead_code, reason = "not every test that asks tells them apart")]
pub(crate) enum NoPage {
    InDoubt(Seconds),
    Halt(Halt),
}

impl Asking<'_> {
    /// Every page, each as the JSON of its rows.
    #[allow(dead_code, reason = "not every test that asks wants all of them")]
    pub(crate) fn pages(&self) -> Result<Vec<Vec<Vec<u8>>>, NoPage> {
        let (mut pages, mut at) = (Vec::new(), None);
        loop {
            let Merged { rows, next } = self.page(at)?;
            pages.push(rows);
            match next {
                None => return Ok(pages),
                next => at = next,
            }
        }
    }

    /// One page.
    pub(crate) fn page(&self, at: Option<(Position, Window)>) -> Result<Merged, NoPage> {
        let run = Run::new(Moment::new(self.hi, self.hi, 1));
        let page = self.merged(at, &run)?;
        match run.exceeded() {
            Some(error) => Err(NoPage::Halt(Halt::Refused(error))),
            None => Ok(page),
        }
    }

    fn merged(&self, at: Option<(Position, Window)>, run: &Run) -> Result<Merged, NoPage> {
        let (at, left) = match at {
            None => (None, self.query.window),
            Some((Position::Anchored(anchored), left)) => (self.found(&anchored), left),
            Some((at, left)) => (Some(at), left),
        };
        if left.take == Some(0) {
            return Ok(Merged { rows: Vec::new(), next: None });
        }
        let partitions =
            if self.query.has_source() { self.partitions } else { &self.partitions[..1] };
        let resume = match (self.query.course(), at) {
            (Course::Walk | Course::Sums, at) => {
                let mut walk = Walk::new(self.query, at, left, self.limits);
                let end = partitions.last().map_or(SlotRange::ALL, |last| last.spec().slots);
                'pages: for partition in partitions {
                    let slots = partition.spec().slots;
                    while walk.awaits(slots) {
                        let limits = walk.limits(1000);
                        let page = self.ask(partition, walk.resume(slots).as_ref(), limits)?;
                        if walk.take(slots, page) {
                            break 'pages;
                        }
                    }
                }
                return Ok(walk.end(end, run));
            }
            (Course::Unique, at) => {
                let after = match &at {
                    Some(Position::Behind(place) | Position::From(place)) => Some(place),
                    _ => None,
                };
                let limits = PageLimits { rows: usize::MAX, bytes: usize::MAX, ..self.limits };
                let pages = partitions.iter().map(|partition| self.ask(partition, None, limits));
                let pages = pages.collect::<Result<Vec<_>, _>>()?;
                return Ok(merge_unique(self.query, pages, after, left, self.limits.rows));
            }
            (_, None) => None,
            (_, Some(Position::Behind(place))) => Some(Resume::Behind(place)),
            (_, Some(Position::From(place))) => Some(Resume::From(place)),
            (_, Some(Position::Digest(digest))) => Some(Resume::Digest(digest)),
            (_, Some(Position::Walk { .. })) => panic!("only walks go on with a walk"),
            (_, Some(Position::Anchored(_))) => panic!("it was found"),
        };
        let after = match resume {
            Some(Resume::Digest(after)) => Some(after),
            _ => None,
        };
        if self.query.needs_all_groups() {
            let limits = PageLimits { rows: usize::MAX, bytes: usize::MAX, ..self.limits };
            let pages = partitions.iter().map(|partition| self.ask(partition, None, limits));
            let pages = pages.collect::<Result<Vec<_>, _>>()?;
            return merge_distinct_groups(self.query, pages, after, left, self.limits.rows, run)
                .map_err(|error| NoPage::Halt(Halt::Refused(error)));
        }
        let rows = rows_wanted(left, self.limits.rows, 1000);
        let limits = PageLimits { rows, ..self.limits };
        let pages = partitions.iter().map(|partition| self.ask(partition, resume.as_ref(), limits));
        let pages = pages.collect::<Result<Vec<_>, _>>()?;
        Ok(if self.query.course() == Course::Keyed {
            merge_keyed(self.query, pages, after, left, self.limits.rows, run)
        } else {
            merge_sorted(self.query, pages, left, self.limits.rows)
        })
    }

    /// Where a result goes on whose place is told by items.
    fn found(&self, anchored: &Anchored) -> Option<Position> {
        let run = Run::new(Moment::new(self.hi, self.hi, 1));
        let behind = |anchor: &Anchor| {
            let slot = anchor.number.slot();
            let holds = |partition: &&&Partition| partition.spec().slots.contains(slot);
            let partition = self.partitions.iter().find(holds)?;
            let found = partition.snapshot().item_numbered(anchor.number);
            let (_, item) = found.expect("the engine in memory does not fail")?;
            let json = item.to_json(partition.spec().container);
            let item = Value::from_json(&json).expect("an item is JSON");
            Anchored::behind(self.query, *anchor, &item, &run)
        };
        anchored.anchors.iter().find_map(behind).or_else(|| anchored.clone().start())
    }

    /// The first page of the first partition.
    #[allow(dead_code, reason = "not every test that asks looks at it")]
    pub(crate) fn first_page(&self) -> Result<Page, NoPage> {
        self.ask(self.partitions[0], None, self.limits)
    }

    fn ask(
        &self,
        partition: &Partition,
        resume: Option<&Resume>,
        limits: PageLimits,
    ) -> Result<Page, NoPage> {
        let view = partition.snapshot();
        let (spec, key, hi) = (partition.spec(), self.rules.key(), self.hi);
        let source = Source { view: &view, spec, key, hi };
        let question = Question { query: self.query, scope: self.scope, resume, limits };
        let run = Run::new(Moment::new(hi, hi, 1));
        let outcome = run_page(source, question, &run, &|| Signal::Go);
        match outcome.expect("the engine in memory does not fail") {
            PageOutcome::InDoubt(expiry) => Err(NoPage::InDoubt(expiry)),
            PageOutcome::Page(Err(halt)) => Err(NoPage::Halt(halt)),
            PageOutcome::Page(Ok(page)) => {
                assert!(page.suits(self.query), "{page:?}");
                Ok(page)
            }
        }
    }
}
