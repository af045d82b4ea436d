//! Deletes expired items, on the leader only, when there is something to delete.
//!
//! 1. Learn when the next item falls due.
//! 2. Wait until it surely has, by the clock that a majority of the nodes agrees on.
//! 3. Propose `Sweep`.
//! 4. Every replica removes the same dead items while applying.
//! 5. Rest, if anybody else wants the partition: then sweeping takes at most a tenth of the time.

use std::num::NonZeroU32;
use std::time::Duration;

use ephemeris_raft::Executor;
use ephemeris_store::catalog::Sweeping;
use ephemeris_store::command::{Command, CommandEffect};
use ephemeris_store::time::{Millis, Seconds};
use ephemeris_store::ttl::JUMP_MAX;
use tracing::{debug, info, warn};

use super::{PartitionError, PartitionService};
use crate::clock::{self, SharedClock};
use crate::placement::Directory;

/// Items removed by one entry, at first and at most.
const BATCH_ITEMS: NonZeroU32 = NonZeroU32::new(500).expect("not zero");
const BATCH_ITEMS_MAX: NonZeroU32 = NonZeroU32::new(2000).expect("not zero");
/// An entry that takes longer than this, replication included, is followed by a smaller one; one
/// that takes less than half of it by a larger one. So applying it takes less.
const BATCH_TIME_MAX: Duration = Duration::from_millis(10);
/// How often the alarm is looked at: a write may have set it earlier.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Pause after a batch, in times what it took, while requests come.
const REST_FACTOR: u32 = 9;
/// Longest such pause: a proposal that waited for the network was not busy meanwhile.
const REST_MAX: Duration = Duration::from_millis(500);
/// A proposal that a leader cut off from the others has taken may never come to anything; a second one
/// does no harm.
const PROPOSAL_DEADLINE: Duration = Duration::from_secs(10);
/// Pause after a proposal that came to nothing.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// An idle partition's clock is advanced this often, so that its next entry is no jump.
const ADVANCE_EVERY: Millis = Millis(JUMP_MAX.0 / 2);

/// Expires the items of one partition, during one term of its leader.
pub(super) struct Sweeper {
    /// The partition.
    pub(super) service: PartitionService,
    /// Says whether sweeping is paused.
    pub(super) directory: Directory,
    /// The node's clock.
    pub(super) clock: SharedClock,
    /// Where scans run.
    pub(super) executor: Executor,
    /// How long the dead are kept after a jump of the clock.
    pub(super) grace: Millis,
    /// The leader's term.
    pub(super) term: u64,
}

/// What there is to do.
enum Duty {
    /// Something has fallen due.
    Sweep,
    /// The partition clock is far behind.
    Advance,
    /// Nothing, for so long.
    Rest(Duration),
}

impl Sweeper {
    /// Runs until the term ends.
    pub(super) async fn run(self) {
        let group = self.service.group().group();
        info!(%group, term = self.term, "leader starts expiring items");
        let mut limit = BATCH_ITEMS;
        loop {
            match self.duty().await {
                Duty::Sweep => limit = self.sweep(limit).await,
                Duty::Advance => self.advance().await,
                Duty::Rest(pause) => tokio::time::sleep(pause).await,
            }
        }
    }

    async fn duty(&self) -> Duty {
        let machine = self.service.group().machine();
        let now = self.clock.now();
        if !now.is_sure() {
            return Duty::Rest(LOOK_EVERY);
        }
        let (state, now) = (machine.state(), now.interval.lo());
        let due = match machine.due() {
            // Nobody has looked yet.
            Some(Seconds(0)) => {
                self.look_up().await;
                return Duty::Rest(Duration::ZERO);
            }
            due => due,
        };
        let may_sweep = match self.directory.current().state().sweeping() {
            Sweeping::Running => !state.ttl().keeps_the_dead(self.grace),
            Sweeping::Paused => false,
        };
        if may_sweep && due.is_some_and(|due| now >= due.start()) {
            return Duty::Sweep;
        }
        let behind = now.0.saturating_sub(state.ttl().clock().0);
        if state.ttl().policy().is_on() && behind >= ADVANCE_EVERY.0 {
            return Duty::Advance;
        }
        let left = due.map(|due| Duration::from_millis(due.start().0.saturating_sub(now.0)));
        Duty::Rest(left.filter(|left| !left.is_zero()).unwrap_or(LOOK_EVERY).min(LOOK_EVERY))
    }

    /// Removes one batch; how large the next one should be.
    async fn sweep(&self, limit: NonZeroU32) -> NonZeroU32 {
        let group = self.service.group().group();
        let (started, asked_before) = (clock::monotonic(), self.service.requests_seen());
        let command = Command::Sweep { limit, grace: self.grace };
        let swept = self.propose(command).await;
        let Some(CommandEffect::Swept { removed, trimmed, more, charge: _ }) = swept else {
            return BATCH_ITEMS;
        };
        let took = started.elapsed();
        metrics::counter!("ttl_swept_items_total").increment(u64::from(removed));
        debug!(%group, removed, trimmed, more, ?took, "swept");
        if !more {
            self.look_up().await;
        }
        if removed == 0 && trimmed == 0 {
            // Something fell due that apply did not take for dead: nobody vouched for the time yet.
            tokio::time::sleep(RETRY_PAUSE).await;
        } else if self.service.requests_seen() != asked_before {
            tokio::time::sleep((took * REST_FACTOR).min(REST_MAX)).await;
        }
        adapted(limit, took)
    }

    async fn advance(&self) {
        let state = || self.service.group().machine().state();
        let jumped_before = state().ttl().jumped_to();
        self.propose(Command::AdvanceClock).await;
        let jumped_to = state().ttl().jumped_to();
        if jumped_to != jumped_before {
            let group = self.service.group().group();
            metrics::counter!("clock_jumps_vouched_total").increment(1);
            warn!(
                %group,
                clock = jumped_to.map(|to| to.to_string()),
                grace_ms = self.grace.0,
                "the partition clock has jumped; expired items are kept on disk for a while"
            );
        }
    }

    /// The effect of a command; none, after a pause, if it was not executed.
    async fn propose(&self, command: Command) -> Option<CommandEffect> {
        let proposing = tokio::time::timeout(PROPOSAL_DEADLINE, self.service.propose(command));
        let lost = Err(PartitionError::Unknown("no outcome in time".to_string()));
        match proposing.await.unwrap_or(lost) {
            Ok(outcome) => Some(outcome.effect),
            Err(PartitionError::Fault(reason)) => crate::supervisor::fault(&reason),
            Err(error) => {
                debug!(group = %self.service.group().group(), %error, "not executed");
                tokio::time::sleep(RETRY_PAUSE).await;
                None
            }
        }
    }

    async fn look_up(&self) {
        let machine = self.service.group().machine().clone();
        if let Err(fault) = self.executor.run(move || machine.find_due()).await {
            crate::supervisor::fault(&fault.to_string());
        }
    }
}

/// The size of the batch after one of this size that took so long.
fn adapted(limit: NonZeroU32, took: Duration) -> NonZeroU32 {
    if took > BATCH_TIME_MAX {
        NonZeroU32::new(limit.get() / 2).unwrap_or(limit).max(BATCH_ITEMS)
    } else if took < BATCH_TIME_MAX / 2 {
        limit.saturating_mul(NonZeroU32::new(2).expect("not zero")).min(BATCH_ITEMS_MAX)
    } else {
        limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_while_they_are_quick_and_shrink_when_they_are_not() {
        let quick = Duration::from_millis(1);
        let mut limit = BATCH_ITEMS;
        for _ in 0..10 {
            limit = adapted(limit, quick);
        }
        assert_eq!(limit, BATCH_ITEMS_MAX);
        assert_eq!(adapted(limit, BATCH_TIME_MAX), limit);
        for _ in 0..10 {
            limit = adapted(limit, BATCH_TIME_MAX * 2);
        }
        assert_eq!(limit, BATCH_ITEMS);
    }
}
