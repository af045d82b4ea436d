//! What a leader's sweeper and indexer do with their partition: see what there is to do, propose it, and rest.

use std::time::Duration;

use ephemeris_raft::wait_aligned;
use ephemeris_store::catalog::Sweeping;
use ephemeris_store::command::{Command, CommandEffect};
use ephemeris_store::engine::Fault;
use ephemeris_store::time::Millis;
use tracing::debug;

use super::super::PartitionError;
use super::PartitionService;
use crate::clock::Reading;

/// How often they see whether there is something to do, while something happens in the partition.
pub(in super::super) const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often left-over request units are collected.
pub(in super::super) const COLLECT_EVERY: Duration = Duration::from_millis(100);
/// Pause after something came to nothing.
pub(in super::super) const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// A proposal that a leader cut off from the others has taken may never come to anything; a second one
/// does no harm.
const PROPOSAL_DEADLINE: Duration = Duration::from_secs(10);

impl PartitionService {
    /// Waits for so long; while nothing happens in the group, until something does, or for `idle` at most.
    pub(in super::super) async fn nap(&self, active: Duration, idle: Duration) {
        wait_aligned(active.min(idle)).await;
        if let Some(more) = idle.checked_sub(active) {
            tokio::select! {
                biased;
                () = self.group.await_activity() => {}
                () = wait_aligned(more) => {}
            }
        }
    }

    /// The node's clock.
    pub(in super::super) fn now(&self) -> Reading {
        self.clock.now()
    }

    /// How long the dead are kept after a jump of the clock.
    pub(in super::super) fn purge_grace(&self) -> Millis {
        self.purge_grace
    }

    /// True if what has expired may be removed; otherwise it stays for a while, and nobody sees it.
    pub(in super::super) fn may_sweep(&self) -> bool {
        match self.directory.current().state().sweeping() {
            Sweeping::Running => {
                !self.group.machine().state().ttl().keeps_the_dead(self.purge_grace)
            }
            Sweeping::Paused => false,
        }
    }

    /// What a scan finds; one that cannot read ends the process.
    pub(in super::super) async fn scan<T: Send + 'static>(
        &self,
        scan: impl FnOnce() -> Result<T, Fault> + Send + 'static,
    ) -> T {
        match self.executor.run(scan).await {
            Ok(found) => found,
            Err(fault) => crate::supervisor::fault(&fault.to_string()),
        }
    }

    /// The effect of a command, and how long applying it took; none, after a pause, if it was not executed.
    pub(in super::super) async fn propose_or_pause(
        &self,
        command: Command,
    ) -> Option<(CommandEffect, Duration)> {
        let proposing = tokio::time::timeout(PROPOSAL_DEADLINE, self.propose_timed(command));
        let lost = Err(PartitionError::Unknown("no outcome in time".to_string()));
        match proposing.await.unwrap_or(lost) {
            Ok((outcome, applying)) => Some((outcome.effect, applying)),
            Err(PartitionError::Fault(reason)) => crate::supervisor::fault(&reason),
            Err(error) => {
                debug!(group = %self.group.group(), %error, "not executed");
                tokio::time::sleep(RETRY_PAUSE).await;
                None
            }
        }
    }
}
