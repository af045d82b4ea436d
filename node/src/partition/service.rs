//! Answers requests at a replica of a partition, in the request's own task.
//!
//! A read: (1) pass the read barrier, (2) fetch, (3) only then read the clock, (4) if the item may
//! have expired and the log does not say so yet, wait until it surely has, advance the partition
//! clock through the log, and look again. So a 404 for expiry is always backed by the log.
//!
//! A weaker read does without the barrier and without the leader: it (1) waits until the entry that
//! the client has seen is applied here, and does the same from there, but (4) leaves what is in doubt
//! to the leader. What this replica shows has not expired by its own clock; what it says is gone, is
//! gone by the entries it has applied, and the last of those is in the session token it answers with.
//!
//! A read at a follower that needs the barrier has the leader tell which entry that must be, and goes on as a
//! weaker one.
//!
//! Before a client's request runs, what it is expected to cost is drawn from the partition's budget,
//! which its leader keeps; if there is nothing to draw from, it is refused, and nothing of it happens.
//! A replica that does not lead answers reads at the partition's rate, too, and leaves the rest to the
//! leader.

mod background;
mod pages;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ephemeris_raft::{Executor, Group, ProposeError, ReadError};
use ephemeris_store::catalog::Container;
use ephemeris_store::charge::Charge;
use ephemeris_store::command::{
    Action, Command, CommandEffect, ItemWrite, Outcome, Proposal, TooManyCleared, Written,
};
use ephemeris_store::engine::Fault;
use ephemeris_store::ids::Lsn;
use ephemeris_store::item::{ItemKey, LogicalPartition};
use ephemeris_store::partition::{Partition, PartitionState, Retention};
use ephemeris_store::time::{ClockInterval, Millis, Seconds};
use ephemeris_store::ttl::{Life, PolicyEpoch, TtlPolicy, TtlState, Vouchers};
use tokio::sync::Mutex;
use tracing::warn;

pub(super) use self::background::{COLLECT_EVERY, LOOK_EVERY, RETRY_PAUSE};
use super::meter::{Draw, Gauges, Meter, Moment};
use super::{
    Burst, PartitionError, PartitionRequest, PartitionResponse, PartitionStatistics, Policies,
    Price, ReadLevel, TtlStatus, cost,
};
use crate::clock::{self, Reading, SharedClock, Trust};
use crate::placement::Directory;

/// How often a read looks again after advancing the clock: an item can be written anew meanwhile.
const LOOKS_MAX: u32 = 5;

/// How long a replica waits for an entry that the client has seen, before the leader is asked: entries
/// come within milliseconds, or not for a while.
const CATCH_UP_MAX: Duration = Duration::from_millis(10);
/// How long a reader waits for its turn to have the partition clock advanced, and then for that: a leader that
/// is cut off may wait for ever.
const ADVANCE_DEADLINE: Duration = Duration::from_secs(2);
/// Rows looked at to count what waits to be swept.
const BACKLOG_ROWS_MAX: u64 = 100_000;
/// How long a client should wait while too many deleted logical partitions have rows: about as long as
/// it takes to remove those of a small one.
const CLEARED_PAUSE: Duration = Duration::from_secs(1);

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
    /// The last entry in the log when this replica started. Before it is applied the replica is behind
    /// itself, and answers nobody.
    logged_at_start: Lsn,
    /// The last entry that clients of this node were told of.
    told: Arc<AtomicU64>,
    /// Lets one reader at a time advance the partition clock; the others find it advanced.
    advancing: Arc<Mutex<()>>,
    /// Where the partition clock came to by the last jump that was counted.
    jumped_to: Arc<AtomicU64>,
    /// What clients and the sweeper may spend, while this replica leads.
    meter: Meter,
    /// What clients may spend on reads that this replica answers while another one leads.
    reads: Meter,
}

/// What was drawn for a request, and from whose budget.
struct Paid {
    draw: Draw,
    by: Meter,
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
        burst: Burst,
    ) -> Self {
        let logged_at_start = Lsn(group.last_logged().map_or(0, |last| last.index));
        Self {
            group,
            clock,
            directory,
            executor,
            purge_grace,
            requests: Arc::default(),
            logged_at_start,
            told: Arc::default(),
            advancing: Arc::default(),
            jumped_to: Arc::default(),
            meter: Meter::new(burst),
            reads: Meter::new(Burst::Off),
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

    /// The last entry that clients of this node were told of.
    pub(crate) fn told(&self) -> Lsn {
        Lsn(self.told.load(Ordering::Relaxed))
    }

    /// Notes that a client of this node is told of an entry.
    pub(crate) fn tell(&self, lsn: Lsn) {
        self.told.fetch_max(lsn.0, Ordering::Relaxed);
    }

    /// What the gauges show, if this replica leads.
    pub(crate) fn gauges(&self) -> Option<Gauges> {
        Some(self.meter.gauges(self.moment()?))
    }

    /// What is spent and counted.
    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// What holds for this replica now, if it leads.
    pub(super) fn moment(&self) -> Option<Moment> {
        let leadership = self.group.leadership();
        leadership.is_me.then(|| self.moment_of(leadership.term))
    }

    fn moment_of(&self, term: u64) -> Moment {
        let container = self.group.machine().spec().container;
        let rate = self.directory.current().rate(container);
        Moment { term, rate, now: clock::monotonic() }
    }

    /// Draws what a request is expected to cost: from the partition's budget if this replica leads,
    /// and of reads that it may answer all the same, from its own. What that cannot pay for goes to the
    /// leader; and so does everything else, to draw from there.
    fn admit(&self, estimate: Charge, level: ReadLevel) -> Result<Option<Paid>, PartitionError> {
        if let Some(moment) = self.moment() {
            return match self.meter.admit(moment, estimate) {
                Ok(draw) => Ok(Some(Paid { draw, by: self.meter.clone() })),
                Err(retry_after) => Err(PartitionError::Throttled { retry_after }),
            };
        }
        match level {
            ReadLevel::Linearizable => Ok(None),
            ReadLevel::AtLeast(_) | ReadLevel::Any => {
                let moment = self.moment_of(self.group.leadership().term);
                let draw = self.reads.admit(moment, estimate).map_err(|_| self.pass_on())?;
                Ok(Some(Paid { draw, by: self.reads.clone() }))
            }
        }
    }

    /// Answers a client of this node that reads, whoever leads; what this replica cannot answer is for the leader.
    ///
    /// A follower asks the leader how far it must have come to be as fresh as that is.
    pub(crate) async fn answer_here(
        &self,
        request: PartitionRequest,
        level: ReadLevel,
    ) -> Result<PartitionResponse, PartitionError> {
        let price = Price::of(level);
        let level = match level {
            ReadLevel::Linearizable if !self.group.leadership().is_me => {
                ReadLevel::AtLeast(Lsn(self.group.read_index().await?))
            }
            ReadLevel::Linearizable | ReadLevel::AtLeast(_) | ReadLevel::Any => level,
        };
        self.answer(request, level, price).await
    }

    /// Answers a request, if what it costs can be paid; the level is that of reads, all others are for
    /// the leader.
    pub(crate) async fn answer(
        &self,
        request: PartitionRequest,
        level: ReadLevel,
        price: Price,
    ) -> Result<PartitionResponse, PartitionError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let Some(estimate) = cost::estimate(&request) else {
            return self.carry_out(request, level).await;
        };
        let paid = self.admit(price.times(estimate), level)?;
        let answer = self.carry_out(request, level).await;
        if let (Some(Paid { draw, by }), Some(charge)) = (paid, cost::charge(&answer)) {
            by.settle(draw, price.times(charge), clock::monotonic());
        }
        answer
    }

    async fn carry_out(
        &self,
        request: PartitionRequest,
        level: ReadLevel,
    ) -> Result<PartitionResponse, PartitionError> {
        match request {
            PartitionRequest::Write(writes) => self.write(writes).await,
            PartitionRequest::Read(key) => self.read(key, level).await,
            PartitionRequest::Find(number) => {
                self.group.read_barrier().await?;
                Ok(PartitionResponse::Found(self.group.machine().find(number)?))
            }
            // What is large is boxed, or every request would take as much room.
            PartitionRequest::Query(request) => Box::pin(self.query(*request, level)).await,
            PartitionRequest::Changes(request) => Box::pin(self.changes(*request, level)).await,
            PartitionRequest::Clear(logical_partition) => self.clear(logical_partition).await,
            PartitionRequest::SetPolicies { epoch, policies } => {
                let set = Box::pin(self.set_policies(epoch, *policies));
                set.await.map(PartitionResponse::PolicySet)
            }
            PartitionRequest::TtlStatus => self.ttl_status().await,
            PartitionRequest::Statistics => {
                self.group.read_barrier().await?;
                let machine = self.group.machine();
                let (state, index) = (machine.state(), machine.index());
                let (items, bytes) = (state.items(), state.bytes());
                let indexed_percent = index.percent(items);
                let statistics = PartitionStatistics { items, bytes, indexed_percent };
                Ok(PartitionResponse::Statistics(statistics))
            }
        }
    }

    /// Proposes a command with the node clock's reading.
    pub(crate) async fn propose(&self, command: Command) -> Result<Outcome, PartitionError> {
        self.propose_timed(command).await.map(|(outcome, _)| outcome)
    }

    /// Does the same, and tells how long applying the command took here.
    pub(super) async fn propose_timed(
        &self,
        command: Command,
    ) -> Result<(Outcome, Duration), PartitionError> {
        let (now, before) = (self.clock.now(), *self.group.machine().state().ttl());
        check_clock(now, before.policy(), &command)?;
        let now = stamping(now);
        let jumps = before.is_jump(now.lo());
        let vouchers = jumps.then(|| self.clock.vouching());
        check_jump(now.lo(), vouchers.as_ref(), before.policy(), &command)?;
        let proposal = Proposal { now, vouchers, command };
        let proposed = self.group.propose_timed(proposal.encode()).await;
        let timed = proposed.map_err(|error| match error {
            ProposeError::NotLeader { leader } => PartitionError::NotLeader { leader },
            ProposeError::Unknown(reason) => PartitionError::Unknown(reason),
        })?;
        if jumps {
            self.count_jump(&before, now.lo());
        }
        Ok(timed)
    }

    /// Counts an entry that would have the partition clock jump: whether a majority vouched for it, or not,
    /// and its reading was ignored.
    fn count_jump(&self, before: &TtlState, to: Millis) {
        let after = *self.group.machine().state().ttl();
        if after.clock() < to {
            metrics::counter!("clock_jumps_guarded_total").increment(1);
            return;
        }
        let Some(clock) = after.jumped_to() else { return };
        // Entries that were under way together have all seen it.
        let is_new = before.jumped_to() != Some(clock)
            && self.jumped_to.fetch_max(clock.0, Ordering::Relaxed) < clock.0;
        if is_new {
            metrics::counter!("clock_jumps_vouched_total").increment(1);
            warn!(
                group = %self.group.group(),
                %clock,
                grace_ms = self.purge_grace.0,
                "the partition clock has jumped; expired items are kept on disk for a while"
            );
        }
    }

    /// A replica that need not have every entry must at least have the policy that the catalog tells
    /// of: the leader may have found items dead by it.
    fn check_policy(&self, state: &PartitionState, level: ReadLevel) -> Result<(), PartitionError> {
        check_ready(state)?;
        match level {
            ReadLevel::Linearizable => Ok(()),
            ReadLevel::AtLeast(_) | ReadLevel::Any => {
                let directory = self.directory.current();
                let container = directory.container(self.group.machine().spec().container);
                let is_old =
                    |container: &Arc<Container>| state.ttl().epoch() < container.policy_epoch;
                if container.is_some_and(is_old) { Err(self.pass_on()) } else { Ok(()) }
            }
        }
    }

    /// Returns when this replica is as fresh as a reader wants it to be.
    async fn catch_up(&self, level: ReadLevel) -> Result<(), PartitionError> {
        match level {
            ReadLevel::Linearizable => Ok(self.group.read_barrier().await?),
            ReadLevel::Any => self.catch_up_with(self.own_past()).await,
            ReadLevel::AtLeast(lsn) => self.catch_up_with(lsn.max(self.own_past())).await,
        }
    }

    /// What this replica may have shown before it started: the end of its log then, unless that was never
    /// committed, and a leader has taken it away.
    fn own_past(&self) -> Lsn {
        if self.group.machine().state().lsn() >= self.logged_at_start {
            return self.logged_at_start;
        }
        let logged = Lsn(self.group.last_logged().map_or(0, |last| last.index));
        self.logged_at_start.min(logged)
    }

    async fn catch_up_with(&self, lsn: Lsn) -> Result<(), PartitionError> {
        let is_here = self.group.machine().state().lsn() >= lsn
            || self.group.await_applied(lsn.0, CATCH_UP_MAX).await;
        if is_here { Ok(()) } else { Err(self.pass_on()) }
    }

    /// The leader knows.
    fn pass_on(&self) -> PartitionError {
        PartitionError::NotLeader { leader: self.group.leadership().leader }
    }

    async fn write(&self, writes: Vec<ItemWrite>) -> Result<PartitionResponse, PartitionError> {
        check_ready(&self.group.machine().state())?;
        self.settle_reads(&writes).await?;
        let outcome = self.propose(Command::Write(writes)).await?;
        let CommandEffect::Write(result) = outcome.effect else {
            unreachable!("a write answers with what it wrote")
        };
        count_inert_ttls(result.as_deref().unwrap_or_default());
        Ok(PartitionResponse::Written { lsn: outcome.lsn, result })
    }

    /// Ends the doubt about what a transaction looks at, as other readers do: it is judged by the partition
    /// clock, which may stand still. What is written meanwhile lives for a second at least.
    async fn settle_reads(&self, writes: &[ItemWrite]) -> Result<(), PartitionError> {
        for write in writes.iter().filter(|write| matches!(write.action, Action::Read)) {
            let fetched = self.group.machine().fetch(&write.key)?;
            let now = self.clock.now();
            if let Life::InDoubt(expiry) = fetched.judge(now.latest()) {
                Box::pin(self.settle(ReadLevel::Linearizable, now, expiry.start())).await?;
            }
        }
        Ok(())
    }

    async fn read(
        &self,
        key: ItemKey,
        level: ReadLevel,
    ) -> Result<PartitionResponse, PartitionError> {
        self.catch_up(level).await?;
        let machine = self.group.machine();
        for _ in 0..LOOKS_MAX {
            let fetched = machine.fetch(&key)?;
            self.check_policy(fetched.state(), level)?;
            let lsn = fetched.lsn();
            // After the fetch: a clock read before could pass a version that was dead on arrival.
            let now = self.clock.now();
            let item = match fetched.judge(now.latest()) {
                Life::Alive => fetched.into_item(),
                Life::Dead => None,
                Life::InDoubt(expiry) => {
                    Box::pin(self.settle(level, now, expiry.start())).await?;
                    continue;
                }
            };
            return Ok(PartitionResponse::Read { lsn, item: item.map(Into::into) });
        }
        Err(PartitionError::Doubtful("the item is rewritten faster than it can be read".into()))
    }

    /// Ends the doubt of a reader, whose clock said `now`, about what expires until `at`.
    async fn settle(
        &self,
        level: ReadLevel,
        now: Reading,
        at: Millis,
    ) -> Result<(), PartitionError> {
        match level {
            ReadLevel::Linearizable => {}
            ReadLevel::AtLeast(_) | ReadLevel::Any => return Err(self.pass_on()),
        }
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
        self.propose_advance(at).await
    }

    /// Has the log say that `at` has passed, unless another reader had it say so.
    async fn propose_advance(&self, at: Millis) -> Result<(), PartitionError> {
        let too_late = |_| {
            let reason = "the partition clock was not advanced in time";
            PartitionError::Doubtful(reason.to_string())
        };
        let turn = tokio::time::timeout(ADVANCE_DEADLINE, self.advancing.lock());
        let _one_at_a_time = turn.await.map_err(too_late)?;
        if self.group.machine().state().ttl().clock() >= at {
            return Ok(());
        }
        let proposing = self.propose(Command::AdvanceClock);
        match tokio::time::timeout(ADVANCE_DEADLINE, proposing).await.map_err(too_late)? {
            Ok(_) if self.group.machine().state().ttl().clock() >= at => {
                metrics::counter!("ttl_clock_advances_total").increment(1);
                Ok(())
            }
            Ok(_) => {
                let reason = "no majority of the nodes' clocks vouches for so large a step";
                Err(PartitionError::Doubtful(reason.to_string()))
            }
            // Nothing of the reader's was executed, whatever became of the advance.
            Err(PartitionError::Unknown(reason)) => Err(PartitionError::Doubtful(reason)),
            Err(error) => Err(error),
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
            swept_per_second: self.meter.removed_per_second(clock::monotonic()),
            due: machine.due().filter(|due| *due > Seconds(0)),
            clock: state.ttl().clock(),
            now: now.interval.hi(),
            clock_is_sure: now.is_sure(),
            clock_width_ms: self.clock.width_ms(),
            keeps_the_dead: state.ttl().keeps_the_dead(self.purge_grace),
        }))
    }

    /// Deletes what a logical partition holds; the sweeper removes the rows.
    async fn clear(
        &self,
        logical_partition: LogicalPartition,
    ) -> Result<PartitionResponse, PartitionError> {
        check_ready(&self.group.machine().state())?;
        let outcome = self.propose(Command::Clear(logical_partition)).await?;
        let CommandEffect::Cleared(result) = outcome.effect else {
            unreachable!("a clear answers whether it was done")
        };
        match result {
            Ok(()) => Ok(PartitionResponse::Cleared(outcome.lsn)),
            Err(TooManyCleared) => Err(PartitionError::Throttled { retry_after: CLEARED_PAUSE }),
        }
    }

    /// Sets what the container's definition says; answers which is in force, which may be newer.
    ///
    /// Unique keys and index come first: a partition takes items once it has its time-to-live policy;
    /// all its items must have been unique, and an index without items needs no building.
    pub(crate) async fn set_policies(
        &self,
        epoch: PolicyEpoch,
        policies: Policies,
    ) -> Result<PolicyEpoch, PartitionError> {
        let Policies { ttl, retention, index, unique_keys } = policies;
        let machine = self.group.machine();
        if *machine.unique_keys() != unique_keys {
            self.propose(Command::SetUniqueKeys(unique_keys)).await?;
        }
        if machine.index().epoch() < epoch {
            self.propose(Command::SetIndexPolicy { epoch, rules: index }).await?;
        }
        self.set_ttl_policy(epoch, ttl, retention).await
    }

    /// Sets the time-to-live policy.
    pub(super) async fn set_ttl_policy(
        &self,
        epoch: PolicyEpoch,
        policy: TtlPolicy,
        retention: Option<Retention>,
    ) -> Result<PolicyEpoch, PartitionError> {
        let command = Command::SetTtlPolicy { epoch, policy, retention };
        let outcome = self.propose(command).await?;
        let CommandEffect::PolicySet(in_force) = outcome.effect else {
            unreachable!("a policy change answers with its epoch")
        };
        Ok(in_force)
    }
}

/// Refuses what needs a better clock: items need one for their stamps; and what is dead under a policy must be
/// known to be so before another one counts, or it would come back.
fn check_clock(now: Reading, policy: TtlPolicy, command: &Command) -> Result<(), PartitionError> {
    let reason = match (command, now.trust) {
        // Also where nothing expires: that can change, and a stamp stays.
        (Command::Write(_), Trust::Unsettled) => {
            "the nodes' clocks have not agreed yet, and an item needs a stamp"
        }
        (Command::Write(_), Trust::Behind) if policy.is_on() => {
            "a majority of the nodes' clocks is ahead of this one, and what it stamps would die early"
        }
        (Command::SetTtlPolicy { .. }, _) if policy.is_on() && !now.is_sure() => {
            "the nodes' clocks leave too much doubt about what has expired before the change"
        }
        _ => return Ok(()),
    };
    Err(PartitionError::Doubtful(reason.to_string()))
}

/// Refuses to change a policy at a time that the partition clock would not come to: what had expired under the old
/// one would be alive for good.
fn check_jump(
    to: Millis,
    vouchers: Option<&Vouchers>,
    policy: TtlPolicy,
    command: &Command,
) -> Result<(), PartitionError> {
    let is_vouched_for = vouchers.is_none_or(|vouchers| vouchers.vouch_for(to));
    if is_vouched_for || !policy.is_on() || !matches!(command, Command::SetTtlPolicy { .. }) {
        return Ok(());
    }
    let reason =
        "too few of the nodes' clocks are known to tell what has expired before the change";
    Err(PartitionError::Doubtful(reason.to_string()))
}

/// What a reading puts into an entry: nothing, if it is the guess of one clock. A guess that is ahead
/// would be in every later stamp of the partition, for stamps never go back.
fn stamping(now: Reading) -> ClockInterval {
    match now.trust {
        Trust::Sure | Trust::Wide | Trust::Contradicted | Trust::Behind => now.interval,
        Trust::Unsettled => ClockInterval::exact(Millis(0)),
    }
}

/// A partition takes items only once it has learned its container's policy: before that it could not
/// tell an invalid `ttl` from an inert one. While its rows are replaced by a snapshot it has none.
fn check_ready(state: &PartitionState) -> Result<(), PartitionError> {
    if state.ttl().epoch() > PolicyEpoch(0) { Ok(()) } else { Err(PartitionError::NotHere) }
}

/// Counts values of `ttl` that mean "never" should expiry be turned on (R6): somebody may have meant
/// something else.
fn count_inert_ttls(written: &[Written]) {
    let inert = written.iter().filter(|one| one.has_inert_ttl).count();
    if inert > 0 {
        metrics::counter!("ttl_invalid_stored_total").increment(inert as u64);
    }
}

#[cfg(test)]
mod tests;
