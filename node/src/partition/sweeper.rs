//! Deletes expired items, on the leader only, when there is something to delete.
//!
//! 1. Learn when the next item falls due.
//! 2. Wait until it surely has, by the clock that a majority of the nodes agrees on.
//! 3. Propose `Sweep`.
//! 4. Every replica removes the same dead items while applying.
//! 5. Rest, so that sweeping takes at most a tenth of the time.

use std::num::NonZeroU32;
use std::time::Duration;

use ephemeris_raft::Executor;
use ephemeris_store::command::{Command, CommandEffect};
use ephemeris_store::time::{Millis, Seconds};
use ephemeris_store::ttl::JUMP_MAX;
use tracing::{debug, info, warn};

use super::{PartitionError, PartitionService};
use crate::clock::{self, SharedClock};

/// Items removed by one entry: keeps one apply within a few milliseconds.
const BATCH_ITEMS: NonZeroU32 = NonZeroU32::new(500).expect("not zero");
/// How often the alarm is looked at: a write may have set it earlier.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Sweeping takes one part in so many of the time.
const REST_FACTOR: u32 = 9;
/// Pause after a proposal that came to nothing.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// An idle partition's clock is advanced this often, so that its next entry is no jump.
const ADVANCE_EVERY: Millis = Millis(JUMP_MAX.0 / 2);

/// Expires the items of one partition, during one term of its leader.
pub(super) struct Sweeper {
    /// The partition.
    pub(super) service: PartitionService,
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
        loop {
            match self.duty().await {
                Duty::Sweep => self.sweep().await,
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
        if due.is_some_and(|due| now >= due.start()) && !state.ttl().keeps_the_dead(self.grace) {
            return Duty::Sweep;
        }
        let behind = now.0.saturating_sub(state.ttl().clock().0);
        if state.ttl().policy().is_on() && behind >= ADVANCE_EVERY.0 {
            return Duty::Advance;
        }
        let left = due.map(|due| Duration::from_millis(due.start().0.saturating_sub(now.0)));
        Duty::Rest(left.filter(|left| !left.is_zero()).unwrap_or(LOOK_EVERY).min(LOOK_EVERY))
    }

    async fn sweep(&self) {
        let group = self.service.group().group();
        let started = clock::monotonic();
        let command = Command::Sweep { limit: BATCH_ITEMS, grace: self.grace };
        if let Some(CommandEffect::Swept { removed, more }) = self.propose(command).await {
            metrics::counter!("ttl_swept_items_total").increment(u64::from(removed));
            debug!(%group, removed, more, "swept");
            if !more {
                self.look_up().await;
            }
            tokio::time::sleep(started.elapsed() * REST_FACTOR).await;
        }
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
        match self.service.propose(command).await {
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
