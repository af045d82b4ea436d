//! Pages of queries and change feeds: each is read at one instant.

use std::sync::Arc;

use ephemeris_store::catalog::Container;
use ephemeris_store::change_feed::{read_changes, read_history};
use ephemeris_store::engine::Fault;
use ephemeris_store::ids::Lsn;
use ephemeris_store::partition::{PageOutcome, PartitionSpec, PartitionView};
use ephemeris_store::partition_key::KeyDefinition;
use ephemeris_store::query::{
    CompiledQuery, Halt, Moment, Page, Question, Run, Signal, Source, run_page,
};
use ephemeris_store::time::Millis;

use super::super::waiting::Waiting;
use super::super::{
    ChangesRequest, Feed, PartitionError, PartitionResponse, QueryRequest, ReadLevel,
};
use super::PartitionService;
use crate::clock;

impl PartitionService {
    /// Reads a page of a query.
    pub(super) async fn query(
        &self,
        request: QueryRequest,
        level: ReadLevel,
    ) -> Result<PartitionResponse, PartitionError> {
        self.catch_up(level).await?;
        let spec = *self.group.machine().spec();
        let container = self.container()?;
        let query = match &request.query {
            None => CompiledQuery::everything(),
            Some((text, parameters)) => match container.definition.compile(text, parameters) {
                Ok(query) => query,
                Err(error) => return Ok(PartitionResponse::QueryRefused(error)),
            },
        };
        let first_page = request.resume.is_none();
        let waiting = Waiting::new(clock::monotonic(), request.patience);
        // What queries are told has an end, however much is in doubt.
        let said = self.clock.now().interval.hi();
        let shared = Arc::new(Asked { request, query, key: container.definition.key().clone() });
        let glance = |view: &PartitionView, hi| {
            // With a backlog there is more to look at than the page tells.
            let may_expire = view.state().ttl().policy().is_on();
            let machine = self.group.machine();
            let is_due = || machine.due().is_some_and(|due| due.start() <= hi);
            if (may_expire && is_due()) || machine.is_clearing() || !shared.query.is_soon_planned()
            {
                return Ok(None);
            }
            let run = Run::brief(Moment::new(said, shared.request.first, shared.request.seed));
            let outcome = shared.page(view, &spec, hi, &run, &|| Signal::Stop)?;
            Ok(Some(outcome).filter(|outcome| !matches!(outcome, PageOutcome::Page(Err(_)))))
        };
        let page = self.read_page(level, glance, |view, hi| {
            let (shared, watch) = (shared.clone(), waiting.watch());
            move || {
                let run = Run::new(Moment::new(said, shared.request.first, shared.request.seed));
                shared.page(&view, &spec, hi, &run, &|| watch.signal(clock::monotonic()))
            }
        });
        let (lsn, page) = page.await?;
        match page {
            Ok(mut page) => {
                page.work.first_page = first_page;
                Ok(PartitionResponse::Page { lsn, page })
            }
            Err(Halt::Refused(error)) => Ok(PartitionResponse::QueryRefused(error)),
            Err(Halt::Stopped) => Ok(PartitionResponse::QueryStopped),
        }
    }

    /// Reads a page of changes.
    pub(super) async fn changes(
        &self,
        request: ChangesRequest,
        level: ReadLevel,
    ) -> Result<PartitionResponse, PartitionError> {
        self.catch_up(level).await?;
        let spec = *self.group.machine().spec();
        let key = self.container()?.definition.key().clone();
        let shared = Arc::new((request, key));
        let page = self.read_page(
            level,
            |_, _| Ok(None),
            |view, hi| {
                let shared = shared.clone();
                move || {
                    let (ChangesRequest { feed, scope, limits }, key) = &*shared;
                    match *feed {
                        Feed::LatestVersion(start, form) => {
                            let start = (start, form);
                            let page = read_changes(&view, &spec, key, start, scope, *limits, hi);
                            Ok(page?.map(Ok))
                        }
                        Feed::AllVersions(start) => {
                            let page = read_history(&view, key, start, scope, *limits);
                            page.map(PageOutcome::Page)
                        }
                    }
                }
            },
        );
        let (lsn, page) = page.await?;
        Ok(match page {
            Ok(mut page) => {
                page.work.first_page = true;
                PartitionResponse::Changes { lsn, page }
            }
            Err(refusal) => PartitionResponse::ChangesRefused(refusal),
        })
    }

    /// Reads a page, all of it at one instant: now; or, if something may have expired by now and the
    /// log does not say so yet, once it does, at the partition clock, where nothing is in doubt.
    ///
    /// A page may be found at a `glance`, right here; otherwise a thread that may block reads it.
    async fn read_page<P, R>(
        &self,
        level: ReadLevel,
        glance: impl Fn(&PartitionView, Millis) -> Result<Option<PageOutcome<P>>, Fault>,
        reader: impl Fn(PartitionView, Millis) -> R,
    ) -> Result<(Lsn, P), PartitionError>
    where
        P: Send + 'static,
        R: FnOnce() -> Result<PageOutcome<P>, Fault> + Send + 'static,
    {
        let view = self.view(level)?;
        let (lsn, now) = (view.state().lsn(), self.clock.now());
        let outcome = match glance(&view, now.latest())? {
            Some(outcome) => outcome,
            None => self.executor.run(reader(view, now.latest())).await?,
        };
        if let PageOutcome::Page(page) = outcome {
            return Ok((lsn, page));
        }
        self.settle(level, now, now.latest()).await?;
        let view = self.view(level)?;
        let (lsn, clock) = (view.state().lsn(), view.state().ttl().clock());
        match self.executor.run(reader(view, clock)).await? {
            PageOutcome::Page(page) => Ok((lsn, page)),
            PageOutcome::InDoubt(_) => unreachable!("nothing is in doubt at the partition clock"),
        }
    }

    /// The partition as it is now.
    fn view(&self, level: ReadLevel) -> Result<PartitionView, PartitionError> {
        let view = self.group.machine().snapshot();
        self.check_policy(view.state(), level)?;
        Ok(view)
    }

    /// The container, as the catalog knows it here.
    fn container(&self) -> Result<Arc<Container>, PartitionError> {
        let directory = self.directory.current();
        let number = self.group.machine().spec().container;
        directory.container(number).cloned().ok_or(PartitionError::NotHere)
    }
}

/// A query with all it takes to run it, and the partition key of its container.
struct Asked {
    request: QueryRequest,
    query: CompiledQuery,
    key: KeyDefinition,
}

impl Asked {
    fn page(
        &self,
        view: &PartitionView,
        spec: &PartitionSpec,
        hi: Millis,
        run: &Run,
        signal: &dyn Fn() -> Signal,
    ) -> Result<PageOutcome<Result<Page, Halt>>, Fault> {
        let Asked { request, query, key } = self;
        let source = Source { view, spec, key, hi };
        let (scope, resume, limits) = (&request.scope, request.resume.as_ref(), request.limits);
        run_page(source, Question { query, scope, resume, limits }, run, signal)
    }
}
