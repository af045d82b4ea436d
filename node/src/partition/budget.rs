//! A partition's request units: what requests may spend, what is saved for bursts, and what is left
//! over for expiry. It reads no clock; whoever asks says what time it is.
//!
//! 1. Units come in at the partition's rate and fill the balance, up to one second's worth.
//! 2. What flows over a full balance goes to the sweeper while it has something to do, up to one
//!    second's worth; the rest goes to the bank, up to five minutes' worth, if the rate is small.
//! 3. A request runs while the balance is above zero, or else on the bank. It may leave a debt, so
//!    none is too big.
//! 4. The sweeper spends what flowed over, and never draws on the balance or the bank.

use std::num::NonZeroU32;
use std::time::Duration;

use ephemeris_store::charge::{Charge, Rate};

use crate::clock::Instant;

/// Whether a partition saves unused units for bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Burst {
    /// If its rate is small.
    Saved,
    /// Never.
    Off,
}

/// Partitions with this rate or more save nothing, and none spends more in a second of its bank:
/// 3000 request units, as in Azure.
const BURST_RATE: Charge = Charge(3_000_000_000);
/// How much a bank holds, in seconds of the partition's rate.
const BANK_SECONDS: i64 = 300;
const SECOND: Duration = Duration::from_secs(1);
const NANOS_PER_SECOND: u128 = 1_000_000_000;
const MILLIS_PER_SECOND: u128 = 1000;

/// Where a request's units come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purse {
    /// What the rate brings in.
    Balance,
    /// What was saved.
    Bank,
}

/// What the sweeper has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sweeper {
    /// Nothing: what flows over is saved.
    Idle,
    /// Dead items wait.
    Waits,
}

/// The units of one partition, in millionths. A debt is below zero.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    rate: Rate,
    burst: Burst,
    balance: i64,
    bank: i64,
    left_over: i64,
    sweeper: Sweeper,
    filled_at: Instant,
    /// What came in since, in millionths of a request unit times nanoseconds.
    fraction: u128,
    second: ThisSecond,
}

/// What was spent in the current second: bursts have a limit.
#[derive(Clone, Copy, Debug)]
struct ThisSecond {
    began: Instant,
    spent: i64,
}

/// Permission to sweep, and what was taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowance {
    /// The most items to remove.
    pub(super) items: NonZeroU32,
    /// What they are expected to cost.
    pub(super) charge: Charge,
}

impl Budget {
    /// The budget of a leader that has just begun.
    pub(super) fn new(rate: Rate, burst: Burst, now: Instant) -> Self {
        Self {
            rate,
            burst,
            balance: units(rate.per_second()),
            bank: 0,
            left_over: 0,
            sweeper: Sweeper::Idle,
            filled_at: now,
            fraction: 0,
            second: ThisSecond { began: now, spent: 0 },
        }
    }

    /// Sets the rate by which units come in from now on.
    pub(super) fn set_rate(&mut self, rate: Rate, now: Instant) {
        if rate == self.rate {
            return;
        }
        self.refill(now);
        self.rate = rate;
        self.balance = self.balance.min(self.second_worth());
        self.left_over = self.left_over.min(self.second_worth());
        self.bank = self.bank.min(self.bank_max());
    }

    /// Draws what a request is expected to cost; or says when it is worth trying again.
    pub(super) fn admit(&mut self, estimate: Charge, now: Instant) -> Result<Purse, Duration> {
        self.refill(now);
        let purse = if self.balance > 0 {
            Purse::Balance
        } else if self.bank > 0 && self.may_burst() {
            Purse::Bank
        } else {
            return Err(self.retry_after());
        };
        self.spend(purse, units(estimate));
        Ok(purse)
    }

    /// Corrects what was drawn for a request by what it did cost.
    pub(super) fn settle(&mut self, purse: Purse, estimate: Charge, cost: Charge, now: Instant) {
        self.refill(now);
        let (estimate, cost) = (units(estimate), units(cost));
        if cost >= estimate {
            return self.spend(purse, cost - estimate);
        }
        match purse {
            Purse::Balance => self.pour(estimate - cost),
            Purse::Bank => {
                let bank_max = self.bank_max();
                fill(&mut self.bank, estimate - cost, bank_max);
            }
        }
    }

    /// Takes left-over units for up to `batch` expiries of about this cost. From here on what flows
    /// over is collected for the sweeper, until it is told to rest.
    pub(super) fn take_left_over(
        &mut self,
        mean: Charge,
        batch: NonZeroU32,
        now: Instant,
    ) -> Option<Allowance> {
        self.refill(now);
        self.sweeper = Sweeper::Waits;
        // An item that costs more than can be collected is removed all the same, on credit.
        let mean = units(mean).max(1);
        if self.left_over < mean.min(self.second_worth()) {
            return None;
        }
        let affordable = u32::try_from(self.left_over / mean).unwrap_or(u32::MAX);
        let items = NonZeroU32::new(affordable).unwrap_or(NonZeroU32::MIN).min(batch);
        let charge = mean.saturating_mul(i64::from(items.get()));
        self.left_over = self.left_over.saturating_sub(charge);
        Some(Allowance { items, charge: Charge(charge.unsigned_abs()) })
    }

    /// Corrects what was taken for a sweep by what it did cost.
    pub(super) fn settle_left_over(&mut self, taken: Charge, cost: Charge) {
        let (taken, cost, brim) = (units(taken), units(cost), self.second_worth());
        if cost >= taken {
            self.left_over = self.left_over.saturating_sub(cost - taken);
        } else {
            fill(&mut self.left_over, taken - cost, brim);
        }
    }

    /// Nothing dead is left: what flows over is saved again.
    pub(super) fn rest_sweeper(&mut self, now: Instant) {
        if self.sweeper == Sweeper::Idle {
            return;
        }
        self.refill(now);
        self.sweeper = Sweeper::Idle;
        let spare = self.left_over.max(0);
        self.left_over -= spare;
        let bank_max = self.bank_max();
        fill(&mut self.bank, spare, bank_max);
    }

    /// What is saved for bursts.
    pub(super) fn bank(&self) -> Charge {
        Charge(self.bank.max(0).unsigned_abs())
    }

    /// What work in the background may spend.
    pub(super) fn left_over(&self) -> Charge {
        Charge(self.left_over.max(0).unsigned_abs())
    }

    /// Takes in what came since the last time.
    pub(super) fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.filled_at);
        self.filled_at = self.filled_at.max(now);
        let came = u128::from(self.rate.per_second().0) * elapsed.as_nanos() + self.fraction;
        self.fraction = came % NANOS_PER_SECOND;
        self.pour(i64::try_from(came / NANOS_PER_SECOND).unwrap_or(i64::MAX));
        let in_second = now.saturating_duration_since(self.second.began);
        if in_second >= SECOND {
            let into_this = Duration::from_nanos(u64::from(in_second.subsec_nanos()));
            self.second = ThisSecond { began: now - into_this, spent: 0 };
        }
    }

    fn pour(&mut self, came: i64) {
        let second_worth = self.second_worth();
        let over = fill(&mut self.balance, came, second_worth);
        let brim = match self.sweeper {
            Sweeper::Waits => second_worth,
            // What an earlier sweep cost too much is still owed.
            Sweeper::Idle => 0,
        };
        let over = fill(&mut self.left_over, over, brim);
        let bank_max = self.bank_max();
        fill(&mut self.bank, over, bank_max);
    }

    fn spend(&mut self, purse: Purse, amount: i64) {
        self.second.spent = self.second.spent.saturating_add(amount);
        let from_bank = match purse {
            Purse::Balance => 0,
            Purse::Bank => amount.min(self.bank),
        };
        self.bank -= from_bank;
        self.balance = self.balance.saturating_sub(amount - from_bank);
    }

    fn may_burst(&self) -> bool {
        self.second.spent < units(BURST_RATE)
    }

    fn second_worth(&self) -> i64 {
        units(self.rate.per_second())
    }

    fn bank_max(&self) -> i64 {
        match self.burst {
            Burst::Saved if self.rate.per_second() < BURST_RATE => {
                self.second_worth().saturating_mul(BANK_SECONDS)
            }
            Burst::Saved | Burst::Off => 0,
        }
    }

    /// How long it takes until the balance is above zero, in whole milliseconds.
    fn retry_after(&self) -> Duration {
        let missing = u128::from(1_i64.saturating_sub(self.balance).max(1).unsigned_abs());
        let per_second = u128::from(self.rate.per_second().0);
        let millis = (missing * MILLIS_PER_SECOND).div_ceil(per_second);
        Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
    }
}

fn units(charge: Charge) -> i64 {
    i64::try_from(charge.0).unwrap_or(i64::MAX)
}

/// Fills a vessel up to the brim; returns what flows over.
fn fill(vessel: &mut i64, came: i64, brim: i64) -> i64 {
    let taken = brim.saturating_sub(*vessel).clamp(0, came);
    *vessel += taken;
    came - taken
}

#[cfg(test)]
mod tests;
