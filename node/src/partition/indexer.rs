//! Builds a new index, on the leader only, with request units that nobody else wanted.
//!
//! 1. See whether the indexing policy has changed.
//! 2. Let the sweeper go first, and take what is left over of the partition's request units.
//! 3. Look for the next items, and propose `BuildIndex`: every replica enters them while applying.
//! 4. Rest, if requests came meanwhile. When the last item is entered the new index serves.

use std::num::NonZeroU32;
use std::time::Duration;

use ephemeris_store::charge::Charge;
use ephemeris_store::command::{Command, CommandEffect};
use ephemeris_store::time::Seconds;
use tracing::{debug, info};

use super::NAP_MAX;
use super::meter::Grant;
use super::service::{COLLECT_EVERY, LOOK_EVERY, PartitionService, RETRY_PAUSE};
use crate::clock;

/// Items entered by one log entry, at first and at most.
const BATCH_ITEMS: NonZeroU32 = NonZeroU32::new(100).expect("not zero");
const BATCH_ITEMS_MAX: NonZeroU32 = NonZeroU32::new(2000).expect("not zero");
/// A log entry that takes longer than this, replication included, is followed by a smaller one; one
/// that takes less than half of it by a larger one.
const BATCH_TIME_MAX: Duration = Duration::from_millis(10);
/// What entering an item is taken to cost before one was entered.
const ITEM_CHARGE: Charge = Charge(4_000_000);
/// Pause after a batch, in times what it took, while requests come.
const REST_FACTOR: u32 = 4;
/// Longest such pause.
const REST_MAX: Duration = Duration::from_millis(200);

/// Builds the index of one partition, during one term of its leader.
pub(super) struct Indexer {
    /// The partition.
    pub(super) service: PartitionService,
}

/// How many items an entry may enter, and what entering one costs.
struct Pace {
    batch: NonZeroU32,
    mean: Charge,
}

impl Indexer {
    /// Runs until the term ends.
    pub(super) async fn run(self) {
        let mut pace = Pace { batch: BATCH_ITEMS, mean: ITEM_CHARGE };
        loop {
            if !self.service.group().machine().index().is_building() {
                self.service.nap(LOOK_EVERY, NAP_MAX).await;
            } else if self.something_is_due() {
                tokio::time::sleep(COLLECT_EVERY).await;
            } else {
                let pause = self.build(&mut pace).await;
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// True if the sweeper has work: it goes first.
    fn something_is_due(&self) -> bool {
        let machine = self.service.group().machine();
        let is_due =
            |due: Seconds| due > Seconds(0) && self.service.now().interval.lo() >= due.start();
        machine.is_clearing() || machine.due().is_some_and(is_due) && self.service.may_sweep()
    }

    /// Enters one batch, if it can be paid; how long to rest then.
    async fn build(&self, pace: &mut Pace) -> Duration {
        let moment = self.service.moment();
        let grant = moment.map_or(Grant::Unlimited, |moment| {
            self.service.meter().take_left_over(moment, pace.mean, pace.batch)
        });
        let limit = match grant {
            Grant::Unlimited => pace.batch,
            Grant::LeftOver(taken) => taken.items,
            Grant::Nothing => return COLLECT_EVERY,
        };
        let (asked_before, started) = (self.service.requests_seen(), clock::monotonic());
        let view = self.service.group().machine().snapshot();
        let Some(step) = self.service.scan(move || view.build_step(limit)).await else {
            pace.batch = BATCH_ITEMS;
            return RETRY_PAUSE;
        };
        let Some((effect, _)) = self.service.propose_or_pause(Command::BuildIndex(step)).await
        else {
            pace.batch = BATCH_ITEMS;
            return Duration::ZERO;
        };
        let CommandEffect::IndexBuilt { items, more, charge } = effect else {
            unreachable!("a build answers with what it entered")
        };
        if let Some(moment) = moment {
            self.service.meter().settle_left_over(moment.term, grant, charge);
        }
        let (took, group) = (started.elapsed(), self.service.group().group());
        metrics::counter!("index_built_items_total").increment(u64::from(items));
        debug!(%group, items, more, ?took, "entered items into the new index");
        if !more {
            info!(%group, "the new index serves");
        }
        pace.learn(limit, items, charge, took);
        match grant {
            Grant::LeftOver(_) => COLLECT_EVERY,
            Grant::Unlimited | Grant::Nothing => {
                let disturbs = self.service.requests_seen() != asked_before;
                let rest = if disturbs { took * REST_FACTOR } else { Duration::ZERO };
                rest.min(REST_MAX)
            }
        }
    }
}

impl Pace {
    fn learn(&mut self, limit: NonZeroU32, items: u32, charge: Charge, took: Duration) {
        if let Some(items) = NonZeroU32::new(items) {
            self.mean = Charge(charge.0.div_ceil(u64::from(items.get())).max(1));
        }
        if limit != self.batch {
            return;
        }
        if took > BATCH_TIME_MAX {
            let half = NonZeroU32::new(self.batch.get() / 2).unwrap_or(self.batch);
            self.batch = half.max(BATCH_ITEMS);
        } else if took < BATCH_TIME_MAX / 2 {
            let two = NonZeroU32::new(2).expect("not zero");
            self.batch = self.batch.saturating_mul(two).min(BATCH_ITEMS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_takes_long_is_followed_by_a_smaller_one() {
        let mut pace = Pace { batch: BATCH_ITEMS, mean: ITEM_CHARGE };
        for _ in 0..10 {
            pace.learn(pace.batch, pace.batch.get(), Charge(1000), Duration::from_millis(1));
        }
        assert_eq!((pace.batch, pace.mean), (BATCH_ITEMS_MAX, Charge(1)));
        pace.learn(pace.batch, 2, Charge(9_000_001), BATCH_TIME_MAX * 2);
        assert_eq!((pace.batch.get(), pace.mean), (1000, Charge(4_500_001)));
        let cut = NonZeroU32::new(3).expect("not zero");
        pace.learn(cut, 3, Charge(3), Duration::ZERO);
        assert_eq!(pace.batch.get(), 1000, "a batch cut short by the budget says nothing of time");
    }
}
