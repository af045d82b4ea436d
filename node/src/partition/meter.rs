//! Admits requests by a partition's budget, settles what they did cost, and keeps count.
//!
//! The budget lives with a leader's term, in memory: a new leader begins with a full balance, and what
//! belongs to an earlier term is dropped. Without an offer there is no budget, only the count.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ephemeris_store::charge::{Charge, Rate};
use ephemeris_store::partition::Backlog;
use ephemeris_store::time::Seconds;
use metrics::Counter;

use super::budget::{Allowance, Budget, Burst, Purse};
use crate::clock::Instant;

const MILLIONTHS: u64 = 1_000_000;
/// How long a sweep counts in the rate of sweeping, in seconds.
const RATE_SECONDS: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// Meters one partition. Clones share it.
#[derive(Clone)]
pub(super) struct Meter {
    burst: Burst,
    shared: Arc<Mutex<Shared>>,
    /// Of all partitions.
    charged: Counter,
}

#[derive(Default)]
struct Shared {
    term: u64,
    /// None without an offer.
    budget: Option<Budget>,
    charged: WholeUnits,
    swept: WholeUnits,
    backlog: Backlog,
    removed: RemovedLately,
}

/// What holds for the leader at the moment of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Its term.
    pub(super) term: u64,
    /// What the partition may spend; none if there is no limit.
    pub(super) rate: Option<Rate>,
    /// When it is.
    pub(super) now: Instant,
}

/// What was drawn for a request.
///
/// If it is never settled, because the request was given up half-way, the estimate stays paid: a
/// write may be committed after all.
#[derive(Debug)]
#[must_use = "what was drawn is settled by what it did cost"]
pub(super) struct Draw {
    term: u64,
    purse: Option<Purse>,
    estimate: Charge,
}

/// What work in the background may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// There is no offer, and no limit but time.
    Unlimited,
    /// So much is left over.
    LeftOver(Allowance),
    /// Too little is left over.
    Nothing,
}

/// What a leader's gauges show.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauges {
    /// Saved for bursts.
    pub(crate) bank: Charge,
    /// What work in the background may spend.
    pub(crate) left_over: Charge,
    /// Dead items, as the sweeper saw them last.
    pub(crate) backlog: Backlog,
}

impl Meter {
    /// A meter that has not seen a term yet.
    pub(super) fn new(burst: Burst) -> Self {
        let charged = metrics::counter!("ru_charged_total");
        Self { burst, shared: Arc::default(), charged }
    }

    /// Draws what a request is expected to cost; or says when it is worth trying again.
    pub(super) fn admit(&self, at: Moment, estimate: Charge) -> Result<Draw, Duration> {
        let mut shared = self.shared_at(at);
        let purse = match &mut shared.budget {
            Some(budget) => Some(budget.admit(estimate, at.now)?),
            None => None,
        };
        Ok(Draw { term: at.term, purse, estimate })
    }

    /// Corrects what was drawn by what the request did cost.
    #[expect(clippy::needless_pass_by_value, reason = "what was drawn is settled once")]
    pub(super) fn settle(&self, draw: Draw, cost: Charge, now: Instant) {
        let mut shared = self.lock();
        let whole = shared.charged.add(cost);
        self.charged.increment(whole);
        let Draw { term, purse, estimate } = draw;
        if term == shared.term
            && let (Some(budget), Some(purse)) = (&mut shared.budget, purse)
        {
            budget.settle(purse, estimate, cost, now);
        }
    }

    /// Takes left-over units for up to `batch` expiries of about this cost.
    pub(super) fn take_left_over(&self, at: Moment, mean: Charge, batch: NonZeroU32) -> Grant {
        match &mut self.shared_at(at).budget {
            None => Grant::Unlimited,
            Some(budget) => {
                let taken = budget.take_left_over(mean, batch, at.now);
                taken.map_or(Grant::Nothing, Grant::LeftOver)
            }
        }
    }

    /// Corrects what a sweep was granted in this term by what it did cost.
    pub(super) fn settle_left_over(&self, term: u64, grant: Grant, cost: Charge) {
        let mut shared = self.lock();
        let whole = shared.swept.add(cost);
        metrics::counter!("ttl_sweep_ru_total").increment(whole);
        if term == shared.term
            && let (Some(budget), Grant::LeftOver(taken)) = (&mut shared.budget, grant)
        {
            budget.settle_left_over(taken.charge, cost);
        }
    }

    /// Nothing dead is left, or nothing may be removed: what flows over is saved.
    pub(super) fn rest_sweeper(&self, at: Moment) {
        if let Some(budget) = &mut self.shared_at(at).budget {
            budget.rest_sweeper(at.now);
        }
    }

    /// Notes what the sweeper has before it.
    pub(super) fn note_backlog(&self, backlog: Backlog) {
        self.lock().backlog = backlog;
    }

    /// When the oldest of the dead fell due, when they were counted last.
    pub(super) fn oldest_due(&self) -> Option<Seconds> {
        self.lock().backlog.oldest
    }

    /// Notes that the sweeper has removed dead items.
    pub(super) fn note_removed(&self, items: u32, now: Instant) {
        self.lock().removed.add(items, now);
    }

    /// Dead items removed in a second, on average of the last ones.
    pub(super) fn removed_per_second(&self, now: Instant) -> f64 {
        self.lock().removed.per_second(now)
    }

    /// What the gauges show.
    pub(super) fn gauges(&self, at: Moment) -> Gauges {
        let mut shared = self.shared_at(at);
        let backlog = shared.backlog;
        let Some(budget) = &mut shared.budget else {
            return Gauges { backlog, ..Gauges::default() };
        };
        budget.refill(at.now);
        Gauges { bank: budget.bank(), left_over: budget.left_over(), backlog }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The budget as the term and the offer want it.
    fn shared_at(&self, at: Moment) -> MutexGuard<'_, Shared> {
        let mut shared = self.lock();
        // A moment may have been read before another one of a newer term.
        if shared.term < at.term {
            let Shared { charged, swept, .. } = std::mem::take(&mut *shared);
            *shared = Shared { term: at.term, charged, swept, ..Shared::default() };
        }
        match (&mut shared.budget, at.rate) {
            (Some(budget), Some(rate)) => budget.set_rate(rate, at.now),
            (budget, rate) => *budget = rate.map(|rate| Budget::new(rate, self.burst, at.now)),
        }
        shared
    }
}

/// Counts in whole request units, as counters do; the rest is kept for the next time.
#[derive(Clone, Copy, Debug, Default)]
struct WholeUnits {
    rest: u64,
}

impl WholeUnits {
    fn add(&mut self, charge: Charge) -> u64 {
        let sum = self.rest.saturating_add(charge.0);
        self.rest = sum % MILLIONTHS;
        sum / MILLIONTHS
    }
}

/// How many items were removed in each of the last seconds in which some were.
#[derive(Debug, Default)]
struct RemovedLately(VecDeque<(Instant, u32)>);

impl RemovedLately {
    fn add(&mut self, items: u32, now: Instant) {
        self.forget(now);
        match self.0.back_mut() {
            Some((began, sum)) if now < *began + SECOND => *sum = sum.saturating_add(items),
            Some(_) | None => self.0.push_back((now, items)),
        }
    }

    fn per_second(&mut self, now: Instant) -> f64 {
        self.forget(now);
        let sum = self.0.iter().fold(0_u32, |sum, (_, items)| sum.saturating_add(*items));
        f64::from(sum) / f64::from(RATE_SECONDS)
    }

    fn forget(&mut self, now: Instant) {
        while self.0.front().is_some_and(|(began, _)| *began + SECOND * RATE_SECONDS <= now) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const COST: Charge = Charge(400_000_000);

    fn moment(term: u64, request_units: Option<u32>, now: Instant) -> Moment {
        let rate = request_units.map(|units| Rate::share(units, NonZeroU32::MIN));
        Moment { term, rate, now }
    }

    #[test]
    fn a_new_term_begins_with_a_full_balance_and_forgets_what_came_before() {
        let (meter, now) = (Meter::new(Burst::Off), clock::monotonic());
        let first = moment(1, Some(400), now);
        let late = meter.admit(first, Charge(1)).unwrap();
        let draw = meter.admit(first, COST).unwrap();
        meter.settle(draw, Charge(100 * COST.0), now);
        assert!(meter.admit(first, COST).is_err());

        let second = moment(2, Some(400), now);
        let draw = meter.admit(second, Charge(1)).unwrap();
        meter.settle(late, Charge(100 * COST.0), now);
        meter.settle(draw, Charge(1), now);
        assert!(meter.admit(second, COST).is_ok(), "an earlier term's debt is not this one's");
    }

    #[test]
    fn what_a_deposed_leader_took_to_sweep_is_lost() {
        let (meter, start) = (Meter::new(Burst::Off), clock::monotonic());
        let (mean, batch) = (Charge(4_000_000), NonZeroU32::new(500).unwrap());
        assert_eq!(meter.take_left_over(moment(1, Some(400), start), mean, batch), Grant::Nothing);
        let later = start + Duration::from_secs(1);
        let grant = meter.take_left_over(moment(1, Some(400), later), mean, batch);
        assert!(matches!(grant, Grant::LeftOver(taken) if taken.items.get() == 100));
        let next = moment(2, Some(400), later);
        assert_eq!(meter.take_left_over(next, mean, batch), Grant::Nothing);
        meter.settle_left_over(1, grant, Charge::ZERO);
        assert_eq!(meter.take_left_over(next, mean, batch), Grant::Nothing, "not given back");
    }

    #[test]
    fn without_an_offer_nothing_is_limited() {
        let (meter, now) = (Meter::new(Burst::Saved), clock::monotonic());
        let at = moment(1, None, now);
        for _ in 0..1000 {
            let draw = meter.admit(at, COST).unwrap();
            meter.settle(draw, COST, now);
        }
        assert_eq!(meter.take_left_over(at, COST, NonZeroU32::MIN), Grant::Unlimited);
    }

    #[test]
    fn an_offer_that_comes_or_goes_counts_at_once() {
        let (meter, now) = (Meter::new(Burst::Saved), clock::monotonic());
        let _unlimited = meter.admit(moment(1, None, now), Charge(100 * COST.0)).unwrap();
        let _limited = meter.admit(moment(1, Some(400), now), COST).unwrap();
        assert!(meter.admit(moment(1, Some(400), now), COST).is_err());
        assert!(meter.admit(moment(1, None, now), COST).is_ok());
    }

    #[test]
    fn the_rate_of_sweeping_is_that_of_the_last_ten_seconds() {
        let (meter, start) = (Meter::new(Burst::Off), clock::monotonic());
        let tenths = |millis| {
            let rate = meter.removed_per_second(start + Duration::from_millis(millis));
            format!("{rate:.1}")
        };
        assert_eq!(tenths(0), "0.0");
        for millis in (0..5000).step_by(100) {
            meter.note_removed(7, start + Duration::from_millis(millis));
        }
        assert_eq!(tenths(5000), "35.0");
        assert_eq!(tenths(9999), "35.0");
        assert_eq!(tenths(12_000), "14.0");
        assert_eq!(tenths(15_000), "0.0");
    }

    #[test]
    fn counters_count_whole_units_and_lose_nothing() {
        let mut units = WholeUnits::default();
        let counted: u64 = (0..10).map(|_| units.add(Charge(2_750_000))).sum();
        assert_eq!((counted, units.rest), (27, 500_000));
    }
}
