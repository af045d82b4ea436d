//! Removes the rows of items that are no more, on the leader only, with request units that nobody else
//! wanted.
//!
//! 1. Learn when the next item falls due.
//! 2. Wait until it surely has, by the clock that a majority of the nodes agrees on.
//! 3. Take what is left over of the partition's request units; without any, wait for some.
//! 4. Propose `Sweep`.
//! 5. Every replica removes the same dead items while applying.
//! 6. Settle what that did cost. A leader that is deposed before loses what it took.
//!
//! What is due may have to stay: while sweeping is paused, after a jump of the clock, or for want of request
//! units. Then the log is made to say all the same that it is dead, and it is counted.
//!
//! What was deleted with its logical partition needs no clock: `SweepCleared` takes turns with `Sweep`,
//! and goes on while expiry is paused or waits.
//!
//! Without an offer there are no units to take: then, while requests come, sweeping takes at most a
//! tenth of the time, and a fifth once something has waited for a minute.

use std::num::NonZeroU32;
use std::time::Duration;

use ephemeris_store::charge::Charge;
use ephemeris_store::command::{Command, CommandEffect};
use ephemeris_store::partition::Backlog;
use ephemeris_store::time::{Millis, Seconds};
use ephemeris_store::ttl::JUMP_MAX;
use futures_util::future::join_all;
use tracing::{debug, info};

use super::NAP_MAX;
use super::meter::Grant;
use super::service::{COLLECT_EVERY, LOOK_EVERY, PartitionService, RETRY_PAUSE};
use crate::clock;

/// Items that one entry may remove: at first, at most, and however long applying takes.
const BATCH_ITEMS: NonZeroU32 = NonZeroU32::new(250).expect("not zero");
const BATCH_ITEMS_MAX: NonZeroU32 = NonZeroU32::new(2000).expect("not zero");
const BATCH_ITEMS_MIN: NonZeroU32 = NonZeroU32::new(25).expect("not zero");
/// An entry that takes longer to apply is followed by a smaller one; one that takes less than half of it
/// by a larger one. Whatever else the partition does waits as long.
const APPLY_TIME_MAX: Duration = Duration::from_millis(5);
/// Entries under way at the same time, while no request comes and a backlog waits: the next one is
/// replicated while one is applied.
const BATCHES_AT_ONCE: u32 = 3;
/// What an expiry is taken to cost before one was seen, in bytes and indexed values.
const ITEM_BYTES: usize = 1024;
const ITEM_VALUES: u32 = 10;
/// How many rows are looked at to count the backlog, once a second.
const COUNT_ROWS_MAX: u64 = 10_000;
/// Pause after a batch, in times what applying it took, while requests come; at least as long as all of it
/// took.
const REST_FACTOR: u32 = 9;
/// The same once something is late: a peak may take its time, but a backlog must not grow for ever.
const REST_FACTOR_LATE: u32 = 4;
/// How long what is due may wait until it counts as late.
const LATE: Seconds = Seconds(60);
/// Longest such pause: a proposal that waited for the network was not busy meanwhile.
const REST_MAX: Duration = Duration::from_millis(500);
/// An idle partition's clock is advanced this often, so that its next entry is no jump.
const ADVANCE_EVERY: Millis = Millis(JUMP_MAX.0 / 2);

/// Removes dead items of one partition, during one term of its leader.
pub(super) struct Sweeper {
    /// The partition.
    pub(super) service: PartitionService,
    /// The leader's term.
    pub(super) term: u64,
}

/// Whose rows are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dead {
    /// Those of items whose time is over.
    Expired,
    /// Those of items that were deleted with their logical partition.
    Cleared,
}

/// What a sweeper has learned from its batches.
struct Pace {
    /// What the last batch removed.
    last: Dead,
    /// How many items an entry may remove.
    batch: NonZeroU32,
    /// What removing one costs.
    mean: Charge,
    /// The second in which the backlog was counted last, and that in which what has to stay was seen to.
    counted_in: Seconds,
    kept_in: Seconds,
    /// True if a backlog waits, and the last batch was in nobody's way.
    is_free: bool,
}

impl Default for Pace {
    fn default() -> Self {
        let mean = Charge::create(ITEM_BYTES, ITEM_VALUES);
        let (counted_in, kept_in) = (Seconds(0), Seconds(0));
        Self { last: Dead::Cleared, batch: BATCH_ITEMS, mean, counted_in, kept_in, is_free: false }
    }
}

/// What became of some entries.
struct Swept {
    /// How many items each might remove.
    limit: NonZeroU32,
    removed: u32,
    trimmed: u32,
    more: bool,
    charge: Charge,
    /// The longest that applying one of them took, and all of them together.
    applying: Duration,
    applying_all: Duration,
    /// All of it, from the proposal on.
    took: Duration,
}

impl Swept {
    /// Adds what an entry did, and how long applying it took.
    fn and(self, (effect, applying): &(CommandEffect, Duration)) -> Self {
        let &CommandEffect::Swept { removed, trimmed, more, charge } = effect else {
            unreachable!("a sweep answers with what it removed")
        };
        Self {
            removed: self.removed + removed,
            trimmed: self.trimmed + trimmed,
            more: self.more && more,
            charge: self.charge + charge,
            applying: self.applying.max(*applying),
            applying_all: self.applying_all + *applying,
            ..self
        }
    }
}

/// What there is to do.
enum Duty {
    /// Rows wait to be removed.
    Sweep(Dead),
    /// The partition clock is far behind.
    Advance,
    /// Nothing, for so long, unless something happens.
    Rest(Duration),
}

impl Sweeper {
    /// Runs until the term ends.
    pub(super) async fn run(self) {
        let group = self.service.group().group();
        info!(%group, term = self.term, "leader starts expiring items");
        let mut pace = Pace::default();
        loop {
            match self.duty(&mut pace).await {
                Duty::Sweep(dead) => self.sweep(&mut pace, dead).await,
                Duty::Advance => self.advance().await,
                Duty::Rest(pause) => {
                    // What is left over is collected for whoever builds an index, too.
                    if let Some(moment) = self.service.moment()
                        && !self.service.group().machine().index().is_building()
                    {
                        self.service.meter().rest_sweeper(moment);
                    }
                    self.service.nap(LOOK_EVERY, pause).await;
                }
            }
        }
    }

    /// Moves the partition clock; after a pause is the next try, if nobody vouches for the time.
    async fn advance(&self) {
        let clock = || self.service.group().machine().state().ttl().clock();
        let before = clock();
        if self.service.propose_or_pause(Command::AdvanceClock).await.is_some() && clock() == before
        {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// What there is to do: the two kinds of the dead take turns.
    async fn duty(&self, pace: &mut Pace) -> Duty {
        let is_clearing = self.service.group().machine().is_clearing();
        let is_turn_of_cleared = is_clearing && pace.last == Dead::Expired;
        match self.duty_by_time(pace).await {
            Duty::Sweep(_) if is_turn_of_cleared => Duty::Sweep(Dead::Cleared),
            Duty::Rest(_) if is_clearing => Duty::Sweep(Dead::Cleared),
            duty @ (Duty::Sweep(_) | Duty::Advance | Duty::Rest(_)) => duty,
        }
    }

    /// What there is to do as far as time tells.
    async fn duty_by_time(&self, pace: &mut Pace) -> Duty {
        let machine = self.service.group().machine();
        let now = self.service.now();
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
        let is_due = due.is_some_and(|due| now >= due.start());
        if is_due && self.service.may_sweep() {
            return Duty::Sweep(Dead::Expired);
        }
        let behind = now.0.saturating_sub(state.ttl().clock().0);
        // Also while the dead are kept for a while: that ends by the partition clock.
        let goes_on =
            state.ttl().policy().is_on() || state.ttl().keeps_the_dead(self.service.purge_grace());
        if goes_on && behind >= ADVANCE_EVERY.0 {
            return Duty::Advance;
        }
        if is_due {
            self.keep(pace).await;
            return Duty::Rest(LOOK_EVERY);
        }
        let left = due.map(|due| Duration::from_millis(due.start().0.saturating_sub(now.0)));
        Duty::Rest(left.map_or(NAP_MAX, |left| left.min(NAP_MAX)))
    }

    /// Removes one batch, if it can be paid, and rests as long as it should.
    async fn sweep(&self, pace: &mut Pace, dead: Dead) {
        pace.last = dead;
        let moment = self.service.moment();
        let grant = moment.map_or(Grant::Unlimited, |moment| {
            self.service.meter().take_left_over(moment, pace.mean, pace.batch)
        });
        let limit = match grant {
            Grant::Unlimited => pace.batch,
            Grant::LeftOver(taken) => taken.items,
            Grant::Nothing => {
                self.keep(pace).await;
                return tokio::time::sleep(COLLECT_EVERY).await;
            }
        };
        let asked_before = self.service.requests_seen();
        let at_once = match grant {
            Grant::Unlimited if pace.is_free => BATCHES_AT_ONCE,
            Grant::Unlimited | Grant::LeftOver(_) | Grant::Nothing => 1,
        };
        pace.is_free = false;
        let Some(swept) = self.sweep_batches(dead, limit, at_once).await else {
            pace.batch = pace.batch.min(BATCH_ITEMS);
            return;
        };
        if let Some(moment) = moment {
            self.service.meter().settle_left_over(moment.term, grant, swept.charge);
        }
        match dead {
            Dead::Expired if swept.more => self.count_backlog(pace, self.second()).await,
            Dead::Expired => {
                self.look_up().await;
                self.service.meter().note_backlog(Backlog::default());
            }
            Dead::Cleared => {}
        }
        pace.learn(&swept);
        let disturbs = self.service.requests_seen() != asked_before;
        pace.is_free = swept.more && !disturbs;
        if dead == Dead::Expired && swept.removed == 0 && swept.trimmed == 0 && !swept.more {
            // Something fell due that apply did not take for dead: nobody vouched for the time yet.
            return tokio::time::sleep(RETRY_PAUSE).await;
        }
        let factor = rest_factor(self.service.meter().oldest_due(), self.second());
        tokio::time::sleep(pause_after(&swept, grant, disturbs.then_some(factor))).await;
    }

    /// What some entries did together; none, after a pause, if one was not executed.
    async fn sweep_batches(&self, dead: Dead, limit: NonZeroU32, entries: u32) -> Option<Swept> {
        let started = clock::monotonic();
        let sweep = Command::Sweep { limit, grace: self.service.purge_grace() };
        let (commands, removed_total) = match dead {
            Dead::Expired => (vec![sweep; entries as usize], "ttl_swept_items_total"),
            Dead::Cleared => (self.sweep_cleared(limit).await, "cleared_items_removed_total"),
        };
        if commands.is_empty() {
            // What was deleted is not what this replica shows yet.
            tokio::time::sleep(RETRY_PAUSE).await;
            return None;
        }
        let proposed = commands.into_iter().map(|command| self.service.propose_or_pause(command));
        let effects: Option<Vec<_>> = join_all(proposed).await.into_iter().collect();
        let took = started.elapsed();
        let nothing = Swept {
            limit,
            removed: 0,
            trimmed: 0,
            more: true,
            charge: Charge::ZERO,
            applying: Duration::ZERO,
            applying_all: Duration::ZERO,
            took,
        };
        let swept = effects?.iter().fold(nothing, Swept::and);
        metrics::counter!(removed_total).increment(u64::from(swept.removed));
        if dead == Dead::Expired {
            self.service.meter().note_removed(swept.removed, clock::monotonic());
        }
        let (Swept { removed, trimmed, more, .. }, group) = (&swept, self.service.group().group());
        debug!(%group, ?dead, entries, removed, trimmed, more, ?took, "swept");
        Some(swept)
    }

    /// What removes the next of what was deleted with its logical partition, if there is any.
    async fn sweep_cleared(&self, limit: NonZeroU32) -> Vec<Command> {
        let view = self.service.group().machine().snapshot();
        let rows = self.service.scan(move || view.cleared_rows(limit)).await;
        rows.map(Command::SweepCleared).into_iter().collect()
    }

    /// The last second that has surely begun.
    fn second(&self) -> Seconds {
        self.service.now().interval.lo().floor_seconds()
    }

    /// What is due stays for now. Once a second the log is made to say that it is dead, as by a sweep, so
    /// that no reader waits for that; and it is counted.
    async fn keep(&self, pace: &mut Pace) {
        let second = self.second();
        if pace.kept_in == second {
            return;
        }
        pace.kept_in = second;
        let machine = self.service.group().machine().clone();
        let next = self.service.scan(move || machine.next_due()).await;
        if next.is_some_and(|next| next <= second) {
            self.service.propose_or_pause(Command::AdvanceClock).await;
        }
        self.count_backlog(pace, second).await;
    }

    /// Counts what waits, for the gauges, if that was not done in this second.
    async fn count_backlog(&self, pace: &mut Pace, second: Seconds) {
        if pace.counted_in == second {
            return;
        }
        pace.counted_in = second;
        let machine = self.service.group().machine();
        let (view, spec) = (machine.snapshot(), *machine.spec());
        let backlog = self.service.scan(move || view.backlog(&spec, COUNT_ROWS_MAX)).await;
        self.service.meter().note_backlog(backlog);
    }

    async fn look_up(&self) {
        let machine = self.service.group().machine().clone();
        self.service.scan(move || machine.find_due()).await;
    }
}

impl Pace {
    fn learn(&mut self, swept: &Swept) {
        // One that the budget or the end of the backlog cut short may have been quick for that.
        let is_whole = swept.limit == self.batch && swept.more;
        if is_whole || swept.applying > APPLY_TIME_MAX {
            self.batch = adapted(self.batch, swept.applying);
        }
        if let Some(removed) = NonZeroU32::new(swept.removed) {
            self.mean = Charge(swept.charge.0.div_ceil(u64::from(removed.get())));
        }
    }
}

/// How long to rest while requests come, in times what applying takes, if this is when the oldest of the dead
/// fell due.
fn rest_factor(oldest: Option<Seconds>, now: Seconds) -> u32 {
    let is_late = oldest.is_some_and(|oldest| now.0.saturating_sub(oldest.0) > LATE.0);
    if is_late { REST_FACTOR_LATE } else { REST_FACTOR }
}

/// How long to rest after a batch: in times what applying it took, if a request came meanwhile.
fn pause_after(swept: &Swept, grant: Grant, factor: Option<u32>) -> Duration {
    match grant {
        Grant::LeftOver(_) if swept.removed > 0 => COLLECT_EVERY,
        // Living items were passed, or records dropped: that costs time, and no units.
        Grant::LeftOver(_) | Grant::Unlimited | Grant::Nothing => {
            let rest = |factor| (swept.applying_all * factor).max(swept.took).min(REST_MAX);
            factor.map(rest).unwrap_or_default()
        }
    }
}

/// The size of the batch after one of this size that took so long to apply.
fn adapted(limit: NonZeroU32, applying: Duration) -> NonZeroU32 {
    if applying > APPLY_TIME_MAX {
        NonZeroU32::new(limit.get() / 2).unwrap_or(limit).max(BATCH_ITEMS_MIN)
    } else if applying < APPLY_TIME_MAX / 2 {
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
        assert_eq!(adapted(limit, APPLY_TIME_MAX), limit);
        for _ in 0..10 {
            limit = adapted(limit, APPLY_TIME_MAX * 2);
        }
        assert_eq!(limit, BATCH_ITEMS_MIN);
    }

    fn swept(limit: u32, removed: u32, charge: Charge) -> Swept {
        let (limit, took) = (NonZeroU32::new(limit).unwrap(), Duration::from_millis(1));
        let (applying, applying_all) = (took, took);
        Swept { limit, removed, trimmed: 0, more: true, charge, applying, applying_all, took }
    }

    #[test]
    fn a_batch_grows_only_after_a_whole_one_and_shrinks_after_any_that_takes_long() {
        let mut pace = Pace::default();
        let whole = swept(BATCH_ITEMS.get(), BATCH_ITEMS.get(), Charge(1));
        pace.learn(&Swept { more: false, ..swept(BATCH_ITEMS.get(), 9, Charge(1)) });
        assert_eq!(pace.batch, BATCH_ITEMS, "what was left was less");
        pace.learn(&whole);
        assert_eq!(pace.batch.get(), 2 * BATCH_ITEMS.get());
        let long = Swept { more: false, applying: APPLY_TIME_MAX * 2, ..whole };
        pace.learn(&long);
        pace.learn(&long);
        assert_eq!(pace.batch.get(), BATCH_ITEMS.get() / 2, "not the size it had at first");
    }

    #[test]
    fn the_mean_cost_is_that_of_the_last_items_removed() {
        let mut pace = Pace::default();
        assert_eq!(pace.mean.to_string(), "8.95");
        pace.learn(&swept(4, 3, Charge(30_000_001)));
        assert_eq!(pace.mean, Charge(10_000_001));
        pace.learn(&swept(4, 0, Charge::ZERO));
        assert_eq!(pace.mean, Charge(10_000_001), "nothing was learned");
        assert_eq!(pace.batch, BATCH_ITEMS, "a batch cut short by the budget says nothing of time");
    }

    #[test]
    fn without_an_offer_sweeping_takes_a_tenth_of_the_time_while_requests_come_or_a_fifth_if_late()
    {
        let swept = swept(500, 500, Charge(1));
        let pause = |factor| pause_after(&swept, Grant::Unlimited, factor);
        let factor = |now| Some(rest_factor(Some(Seconds(100)), Seconds(now)));
        assert_eq!(pause(factor(160)), Duration::from_millis(9));
        assert_eq!(pause(factor(161)), Duration::from_millis(4));
        assert_eq!(pause(Some(rest_factor(None, Seconds(161)))), Duration::from_millis(9));
        assert_eq!(pause(None), Duration::ZERO);
    }
}
