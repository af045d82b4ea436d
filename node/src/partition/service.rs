//! Answers requests at a partition's leader, in the request's own task.
//!
//! A read: (1) pass the read barrier, (2) fetch, (3) only then read the clock, (4) if the item may
//! have expired and the log does not say so yet, wait until it surely has, advance the partition
//! clock through the log, and look again. So a 404 for expiry is always backed by the log.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ephemeris_raft::{Executor, Group, ProposeError, ReadError};
use ephemeris_store::catalog::Container;
use ephemeris_store::change_feed::{FeedStart, read_changes};
use ephemeris_store::codec;
use ephemeris_store::command::{Command, CommandEffect, ItemWrite, Outcome, Proposal, Written};
use ephemeris_store::engine::Fault;
use ephemeris_store::ids::Lsn;
use ephemeris_store::item::{ItemKey, LogicalPartition};
use ephemeris_store::partition::{PageOutcome, Partition, PartitionView, Retention};
use ephemeris_store::query::{CompiledQuery, run_page};
use ephemeris_store::time::{Millis, Seconds};
use ephemeris_store::ttl::{Life, PolicyEpoch, TtlPolicy};
use tokio::sync::Mutex;

use super::{
    ChangesRequest, PartitionError, PartitionRequest, PartitionResponse, PartitionStatistics,
    QueryRequest, TtlStatus,
};
use crate::clock::{self, Reading, SharedClock, Trust};
use crate::placement::Directory;

/// How often a read looks again after advancing the clock: an item can be written anew meanwhile.
const LOOKS_MAX: u32 = 5;

/// Rows looked at to count what waits to be swept.
const BACKLOG_ROWS_MAX: u64 = 100_000;
/// Items removed by one entry when a logical partition is cleared: bounds the time of one apply.
const CLEARED_AT_ONCE: NonZeroU32 = NonZeroU32::new(256).expect("not zero");

/// A partition that may be led from here. Clones share it.
#[derive(Clone)]
pub(crate) struct PartitionService {
    group: Group<Partition>,
    clock: SharedClock,
    directory: Directory,
    executor: Executor,
    purge_grace: Millis,
    /// How many requests came from clients: the sweeper makes room for them.
    requests: Arc<AtomicU64>,
    /// Lets one reader at a time advance the partition clock; the others find it advanced.
    advancing: Arc<Mutex<()>>,
}

impl From<ReadError> for PartitionError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NotLeader { leader } => PartitionError::NotLeader { leader },
            ReadError::Stopped(_) => PartitionError::NotHere,
        }
    }
}

impl From<Fault> for PartitionError {
    fn from(fault: Fault) -> Self {
        PartitionError::Fault(fault.to_string())
    }
}

impl PartitionService {
    /// A service for a running replica.
    pub(crate) fn new(
        group: Group<Partition>,
        clock: SharedClock,
        directory: Directory,
        executor: Executor,
        purge_grace: Millis,
    ) -> Self {
        Self {
            group,
            clock,
            directory,
            executor,
            purge_grace,
            requests: Arc::default(),
            advancing: Arc::default(),
        }
    }

    /// How many requests came from clients so far.
    pub(crate) fn requests_seen(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The replica.
    pub(crate) fn group(&self) -> &Group<Partition> {
        &self.group
    }

    /// Answers a request.
    pub(crate) async fn answer(
        &self,
        request: PartitionRequest,
    ) -> Result<PartitionResponse, PartitionError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match request {
            PartitionRequest::Write(writes) => self.write(writes).await,
            PartitionRequest::Read(key) => self.read(key).await,
            PartitionRequest::Find(number) => {
                self.group.read_barrier().await?;
                Ok(PartitionResponse::Found(self.group.machine().find(number)?))
            }
            PartitionRequest::Query(request) => self.query(*request).await,
            PartitionRequest::Changes(request) => self.changes(*request).await,
            PartitionRequest::Clear(logical_partition) => self.clear(logical_partition).await,
            PartitionRequest::SetTtlPolicy { epoch, policy, retention } => {
                let set = self.set_ttl_policy(epoch, policy, retention);
                set.await.map(PartitionResponse::PolicySet)
            }
            PartitionRequest::TtlStatus => self.ttl_status().await,
            PartitionRequest::Statistics => {
                self.group.read_barrier().await?;
                let state = self.group.machine().state();
                let (items, bytes) = (state.items(), state.bytes());
                Ok(PartitionResponse::Statistics(PartitionStatistics { items, bytes }))
            }
        }
    }

    /// Proposes a command with the node clock's reading.
    pub(crate) async fn propose(&self, command: Command) -> Result<Outcome, PartitionError> {
        let now = self.clock.now().interval;
        let jumps = self.group.machine().state().ttl().is_jump(now.lo());
        let vouchers = jumps.then(|| self.clock.vouching());
        let proposal = Proposal { now, vouchers, command };
        match self.group.propose(codec::encode(&proposal)).await {
            Ok(outcome) => Ok(outcome),
            Err(ProposeError::NotLeader { leader }) => Err(PartitionError::NotLeader { leader }),
            Err(ProposeError::Unknown(reason)) => Err(PartitionError::Unknown(reason)),
        }
    }

    /// A partition takes items only once it has learned its container's policy: before that it could
    /// not tell an invalid `ttl` from an inert one.
    fn check_ready(&self) -> Result<(), PartitionError> {
        if self.group.machine().state().ttl().epoch() > PolicyEpoch(0) {
            Ok(())
        } else {
            Err(PartitionError::NotHere)
        }
    }

    async fn write(&self, writes: Vec<ItemWrite>) -> Result<PartitionResponse, PartitionError> {
        self.check_ready()?;
        let expires = self.group.machine().state().ttl().policy().is_on();
        if expires && self.clock.now().trust == Trust::Unsettled {
            let reason = "the nodes' clocks have not agreed yet, and items here can expire";
            return Err(PartitionError::Doubtful(reason.to_string()));
        }
        let outcome = self.propose(Command::Write(writes)).await?;
        match outcome.effect {
            CommandEffect::Write(result) => {
                count_inert_ttls(result.as_deref().unwrap_or_default());
                Ok(PartitionResponse::Written { lsn: outcome.lsn, result })
            }
            CommandEffect::PolicySet(_)
            | CommandEffect::ClockAdvanced
            | CommandEffect::Cleared { .. }
            | CommandEffect::Swept { .. } => unreachable!("a write answers with what it wrote"),
        }
    }

    async fn read(&self, key: ItemKey) -> Result<PartitionResponse, PartitionError> {
        self.check_ready()?;
        self.group.read_barrier().await?;
        let machine = self.group.machine();
        for _ in 0..LOOKS_MAX {
            let fetched = machine.fetch(&key)?;
            let lsn = fetched.lsn();
            // After the fetch: a clock read before could pass a version that was dead on arrival.
            let now = self.clock.now();
            let item = match fetched.judge(now.latest()) {
                Life::Alive => fetched.into_item(),
                Life::Dead => None,
                Life::InDoubt(expiry) => {
                    self.settle(now, expiry.start()).await?;
                    continue;
                }
            };
            return Ok(PartitionResponse::Read { lsn, item: item.map(Into::into) });
        }
        Err(PartitionError::Doubtful("the item is rewritten faster than it can be read".into()))
    }

    /// Reads a page, all of it at one instant: now; or, if something may have expired by now and the
    /// log does not say so yet, once it does, at the partition clock, where nothing is in doubt.
    async fn read_page<P, R>(
        &self,
        reader: impl Fn(PartitionView, Millis) -> R,
    ) -> Result<(Lsn, P), PartitionError>
    where
        P: Send + 'static,
        R: FnOnce() -> Result<PageOutcome<P>, Fault> + Send + 'static,
    {
        let view = self.group.machine().snapshot();
        let (lsn, now) = (view.state().lsn(), self.clock.now());
        if let PageOutcome::Page(page) = self.executor.run(reader(view, now.latest())).await? {
            return Ok((lsn, page));
        }
        self.settle(now, now.latest()).await?;
        let view = self.group.machine().snapshot();
        let (lsn, clock) = (view.state().lsn(), view.state().ttl().clock());
        match self.executor.run(reader(view, clock)).await? {
            PageOutcome::Page(page) => Ok((lsn, page)),
            PageOutcome::InDoubt(_) => unreachable!("nothing is in doubt at the partition clock"),
        }
    }

    /// Ends the doubt of a reader, whose clock said `now`, about what expires until `at`.
    async fn settle(&self, now: Reading, at: Millis) -> Result<(), PartitionError> {
        metrics::counter!("ttl_doubt_waits_total").increment(1);
        // A reading that is good for nothing doubts everything: there is nothing to wait for.
        if !now.is_sure() {
            let reason = "the nodes' clocks leave too much doubt";
            return Err(PartitionError::Doubtful(reason.to_string()));
        }
        self.advance_clock(at).await
    }

    /// Waits until `at` has surely passed, and has the log say so.
    async fn advance_clock(&self, at: Millis) -> Result<(), PartitionError> {
        if !clock::wait_until(self.clock.as_ref(), at).await {
            let reason = "the nodes' clocks leave too much doubt";
            return Err(PartitionError::Doubtful(reason.to_string()));
        }
        let _one_at_a_time = self.advancing.lock().await;
        if self.group.machine().state().ttl().clock() >= at {
            return Ok(());
        }
        match self.propose(Command::AdvanceClock).await {
            Ok(_) if self.group.machine().state().ttl().clock() >= at => Ok(()),
            Ok(_) => {
                let reason = "no majority of the nodes' clocks vouches for so large a step";
                Err(PartitionError::Doubtful(reason.to_string()))
            }
            // Nothing of the reader's was executed, whatever became of the advance.
            Err(PartitionError::Unknown(reason)) => Err(PartitionError::Doubtful(reason)),
            Err(error) => Err(error),
        }
    }

    /// The container, as the catalog knows it here.
    fn container(&self) -> Result<Arc<Container>, PartitionError> {
        let directory = self.directory.current();
        let number = self.group.machine().spec().container;
        directory.container(number).cloned().ok_or(PartitionError::NotHere)
    }

    async fn query(&self, request: QueryRequest) -> Result<PartitionResponse, PartitionError> {
        self.check_ready()?;
        self.group.read_barrier().await?;
        let spec = *self.group.machine().spec();
        let rules = self.container()?.definition.rules().clone();
        let query = match &request.query {
            None => CompiledQuery::everything(),
            Some((text, parameters)) => match CompiledQuery::new(text, parameters, rules.index()) {
                Ok(query) => query,
                Err(error) => return Ok(PartitionResponse::QueryRefused(error)),
            },
        };
        let shared = Arc::new((request, query, rules.key().clone()));
        let page = self.read_page(|view, hi| {
            let shared = shared.clone();
            move || {
                let (request, query, key) = &*shared;
                run_page(
                    &view,
                    spec.slots,
                    key,
                    spec.container,
                    query,
                    &request.scope,
                    request.resume.as_ref(),
                    request.limits,
                    hi,
                )
            }
        });
        let (lsn, page) = page.await?;
        Ok(PartitionResponse::Page { lsn, page })
    }

    /// Reads changes; a page is empty only if there are none.
    async fn changes(&self, request: ChangesRequest) -> Result<PartitionResponse, PartitionError> {
        self.check_ready()?;
        self.group.read_barrier().await?;
        let spec = *self.group.machine().spec();
        let key = self.container()?.definition.key().clone();
        let ChangesRequest { mut start, scope, limits } = request;
        let shared = Arc::new((scope, key));
        loop {
            let page = self.read_page(|view, hi| {
                let shared = shared.clone();
                move || read_changes(&view, &spec, &shared.1, start, &shared.0, limits, hi)
            });
            let (lsn, page) = page.await?;
            if page.rows.is_empty() && page.more {
                start = FeedStart::After(page.through);
            } else {
                return Ok(PartitionResponse::Changes { lsn, page });
            }
        }
    }

    async fn ttl_status(&self) -> Result<PartitionResponse, PartitionError> {
        self.group.read_barrier().await?;
        let (machine, now) = (self.group.machine(), self.clock.now());
        let (view, spec) = (machine.snapshot(), *machine.spec());
        let state = *view.state();
        let backlog = self.executor.run(move || view.backlog(&spec, BACKLOG_ROWS_MAX)).await?;
        Ok(PartitionResponse::TtlStatus(TtlStatus {
            policy: state.ttl().policy(),
            items: state.items(),
            backlog,
            due: machine.due().filter(|due| *due > Seconds(0)),
            clock: state.ttl().clock(),
            now: now.interval.hi(),
            clock_is_sure: now.is_sure(),
            keeps_the_dead: state.ttl().keeps_the_dead(self.purge_grace),
        }))
    }

    /// Removes a logical partition's items, some with every entry, until there are none.
    async fn clear(
        &self,
        logical_partition: LogicalPartition,
    ) -> Result<PartitionResponse, PartitionError> {
        self.check_ready()?;
        loop {
            let logical_partition = logical_partition.clone();
            let command = Command::Clear { logical_partition, limit: CLEARED_AT_ONCE };
            let outcome = self.propose(command).await?;
            match outcome.effect {
                CommandEffect::Cleared { more: true, .. } => {}
                CommandEffect::Cleared { more: false, .. } => {
                    return Ok(PartitionResponse::Cleared(outcome.lsn));
                }
                CommandEffect::Write(_)
                | CommandEffect::PolicySet(_)
                | CommandEffect::ClockAdvanced
                | CommandEffect::Swept { .. } => {
                    unreachable!("clearing answers with what it removed")
                }
            }
        }
    }

    /// Sets the policy; answers which is in force, which may be a newer one.
    pub(crate) async fn set_ttl_policy(
        &self,
        epoch: PolicyEpoch,
        policy: TtlPolicy,
        retention: Option<Retention>,
    ) -> Result<PolicyEpoch, PartitionError> {
        let command = Command::SetTtlPolicy { epoch, policy, retention };
        let outcome = self.propose(command).await?;
        match outcome.effect {
            CommandEffect::PolicySet(in_force) => Ok(in_force),
            CommandEffect::Write(_)
            | CommandEffect::ClockAdvanced
            | CommandEffect::Cleared { .. }
            | CommandEffect::Swept { .. } => unreachable!("a policy change answers with its epoch"),
        }
    }
}

/// Counts values of `ttl` that mean "never" should expiry be turned on (R6): somebody may have meant
/// something else.
fn count_inert_ttls(written: &[Written]) {
    let inert = written.iter().filter(|one| one.has_inert_ttl).count();
    if inert > 0 {
        metrics::counter!("ttl_invalid_stored_total").increment(inert as u64);
    }
}
