//! Deletes expired items, on the leader only, when there is something to delete.
//!
//! 1. Learn when the next item falls due.
//! 2. Wait until it surely has.
//! 3. Propose `Sweep`.
//! 4. Every replica removes the same dead items while applying.
//! 5. Rest, so that sweeping takes at most a tenth of the time.

use std::num::NonZeroU32;
use std::time::Duration;

use ephemeris_raft::Executor;
use ephemeris_store::command::{Command, CommandEffect};
use ephemeris_store::time::Seconds;
use tracing::{debug, info};

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

/// Runs until its leader term ends.
pub(super) async fn run(
    service: PartitionService,
    clock: SharedClock,
    executor: Executor,
    term: u64,
) {
    let group = service.group().group();
    info!(%group, term, "leader starts expiring items");
    loop {
        wait_until_due(&service, &clock, executor).await;
        let started = clock::monotonic();
        match service.propose(Command::Sweep { limit: BATCH_ITEMS }).await {
            Ok(outcome) => {
                if let CommandEffect::Swept { removed, more } = outcome.effect {
                    metrics::counter!("ttl_swept_items_total").increment(u64::from(removed));
                    debug!(%group, removed, more, "swept");
                    if !more {
                        look_up(&service, executor).await;
                    }
                }
                tokio::time::sleep(started.elapsed() * REST_FACTOR).await;
            }
            Err(PartitionError::Fault(reason)) => crate::supervisor::fault(&reason),
            Err(error) => {
                debug!(%group, %error, "a sweep was not executed");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

async fn wait_until_due(service: &PartitionService, clock: &SharedClock, executor: Executor) {
    loop {
        match service.group().machine().due() {
            // Nobody has looked yet.
            Some(Seconds(0)) => look_up(service, executor).await,
            Some(due) if clock.now().lo() >= due.start() => return,
            Some(due) => {
                let left =
                    Duration::from_millis(due.start().0 - clock.now().lo().0.min(due.start().0));
                tokio::time::sleep(left.min(LOOK_EVERY)).await;
            }
            None => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

async fn look_up(service: &PartitionService, executor: Executor) {
    let machine = service.group().machine().clone();
    if let Err(fault) = executor.run(move || machine.find_due()).await {
        crate::supervisor::fault(&fault.to_string());
    }
}
