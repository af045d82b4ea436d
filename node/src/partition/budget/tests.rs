//! The budget at work: rates, bursts, debts, and what is left over.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::clock;

/// Request units a second of most tests.
const RATE: u32 = 400;

fn ru(units: u64) -> Charge {
    Charge(units * 1_000_000)
}

fn rate(request_units: u32) -> Rate {
    Rate::share(request_units, NonZeroU32::MIN)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn budget(burst: Burst) -> (Budget, Instant) {
    let now = clock::monotonic();
    (Budget::new(rate(RATE), burst, now), now)
}

/// Runs a request whose cost is known beforehand.
fn run(budget: &mut Budget, cost: Charge, now: Instant) -> Result<Purse, Duration> {
    let purse = budget.admit(cost, now)?;
    budget.settle(purse, cost, cost, now);
    Ok(purse)
}

/// Offers requests of this cost at this rate; how many units were granted.
fn offer(
    budget: &mut Budget,
    cost: Charge,
    request_units: u32,
    from: Instant,
    lasting: Duration,
) -> Charge {
    let every = Duration::from_nanos(cost.0 * 1000 / u64::from(request_units));
    let (mut granted, mut now) = (Charge::ZERO, from);
    while now < from + lasting {
        if run(budget, cost, now).is_ok() {
            granted += cost;
        }
        now += every;
    }
    granted
}

fn assert_near(found: Charge, expected: Charge, percent: u64) {
    let off = found.0.abs_diff(expected.0);
    assert!(off * 100 <= expected.0 * percent, "{found} RU, not {expected} RU ± {percent} %");
}

#[test]
fn a_minute_at_twice_the_rate_is_granted_the_rate() {
    let (mut budget, start) = budget(Burst::Off);
    let granted = offer(&mut budget, ru(5), 2 * RATE, start, Duration::from_mins(1));
    assert_near(granted, ru(60 * u64::from(RATE)), 2);
}

#[test]
fn a_minute_at_twice_the_rate_is_granted_the_rate_and_the_bank() {
    let (mut budget, start) = budget(Burst::Saved);
    let start = start + Duration::from_secs(30);
    let granted = offer(&mut budget, ru(5), 2 * RATE, start, Duration::from_mins(1));
    assert_near(granted, ru((60 + 30) * u64::from(RATE)), 2);
    assert_eq!(budget.bank(), Charge::ZERO);
}

#[test]
fn five_idle_minutes_are_saved_and_spent_at_three_thousand_a_second() {
    let (mut budget, start) = budget(Burst::Saved);
    let idle = start + Duration::from_hours(1);
    budget.refill(idle);
    assert_eq!(budget.bank(), ru(300 * u64::from(RATE)));
    let granted = offer(&mut budget, ru(5), 20_000, idle, Duration::from_secs(10));
    // What comes in meanwhile is spent beside what is saved.
    let (least, most) = (ru(10 * 3000), ru(10 * (3000 + u64::from(RATE))));
    assert!((least..=most).contains(&granted), "{granted} RU");
    let rest =
        offer(&mut budget, ru(5), 20_000, idle + Duration::from_secs(10), Duration::from_mins(1));
    assert_near(granted + rest, ru((300 + 70) * u64::from(RATE)), 2);
}

#[test]
fn nothing_is_saved_with_a_high_rate_or_with_bursts_off() {
    let now = clock::monotonic();
    let hour = now + Duration::from_hours(1);
    for (request_units, burst) in [(3000, Burst::Saved), (10_000, Burst::Saved), (400, Burst::Off)]
    {
        let mut budget = Budget::new(rate(request_units), burst, now);
        budget.refill(hour);
        assert_eq!(budget.bank(), Charge::ZERO, "{request_units} {burst:?}");
    }
    let mut budget = Budget::new(rate(2900), Burst::Saved, now);
    budget.refill(hour);
    assert_eq!(budget.bank(), ru(300 * 2900));
}

#[test]
fn no_request_is_too_big_and_its_debt_is_paid_off() {
    let (mut budget, start) = budget(Burst::Off);
    assert_eq!(run(&mut budget, ru(4000), start), Ok(Purse::Balance));
    let wait = budget.admit(ru(1), start).unwrap_err();
    assert_eq!(wait, millis(9001), "3600 RU at 400 RU/s, until there is something again");
    assert!(budget.admit(ru(1), start + wait - millis(1)).is_err());
    assert_eq!(budget.admit(ru(1), start + wait), Ok(Purse::Balance));
}

#[test]
fn what_a_request_did_not_cost_comes_back_and_what_it_cost_more_is_owed() {
    let (mut budget, start) = budget(Burst::Off);
    let purse = budget.admit(ru(400), start).unwrap();
    assert!(budget.admit(ru(1), start).is_err(), "everything is drawn");
    budget.settle(purse, ru(400), ru(10), start);
    let purse = budget.admit(ru(2), start).unwrap();
    budget.settle(purse, ru(2), ru(800), start);
    assert_eq!(budget.admit(ru(1), start), Err(millis(1026)), "410 RU are owed");
}

#[test]
fn a_request_on_the_bank_that_costs_more_than_the_bank_holds_owes_the_rest() {
    let (mut budget, start) = budget(Burst::Saved);
    let later = start + Duration::from_secs(1);
    run(&mut budget, ru(400), later).unwrap();
    assert_eq!(budget.admit(ru(2), later), Ok(Purse::Bank));
    budget.settle(Purse::Bank, ru(2), ru(500), later);
    assert_eq!(budget.bank(), Charge::ZERO);
    assert_eq!(budget.admit(ru(1), later), Err(millis(251)), "100 RU are owed");
}

#[test]
fn a_failover_throttles_nobody() {
    let (mut budget, start) = budget(Burst::Off);
    run(&mut budget, ru(100_000), start).unwrap();
    assert!(budget.admit(ru(1), start).is_err());
    let mut successor = Budget::new(rate(RATE), Burst::Off, start);
    let granted = offer(&mut successor, ru(5), RATE, start, Duration::from_secs(10));
    assert_eq!(granted, ru(10 * u64::from(RATE)), "all that came");
}

#[test]
fn a_changed_rate_counts_from_the_next_refill() {
    let (mut budget, start) = budget(Burst::Saved);
    let later = start + Duration::from_mins(10);
    budget.set_rate(rate(800), later);
    assert_eq!(budget.bank(), ru(300 * 400), "saved at the old rate");
    let saved_more = later + Duration::from_secs(2);
    budget.refill(saved_more);
    assert_eq!(budget.bank(), ru(300 * 400 + 800 + 400), "the balance was filled first");
    budget.set_rate(rate(5000), saved_more);
    assert_eq!(budget.bank(), Charge::ZERO);
    budget.set_rate(rate(400), saved_more);
    assert_eq!(run(&mut budget, ru(400), saved_more), Ok(Purse::Balance));
    assert!(budget.admit(ru(1), saved_more).is_err(), "the balance holds a second's worth");
}

#[test]
fn a_rate_that_is_no_whole_number_loses_nothing_to_rounding() {
    let start = clock::monotonic();
    let third = Rate::share(400, NonZeroU32::new(3).unwrap());
    let mut budget = Budget::new(third, Burst::Saved, start);
    for step in 1..=3_000_000_u64 {
        budget.refill(start + Duration::from_nanos(step * 1_000));
    }
    assert_eq!(budget.bank(), Charge(3 * 133_333_333));
}

fn batch() -> NonZeroU32 {
    NonZeroU32::new(500).unwrap()
}

/// The cost of expiring a 1 KB item with 10 indexed values.
fn expiry() -> Charge {
    Charge::create(1024, 10)
}

/// Sweeps whenever it may, every 100 ms; how many items.
fn sweep(budget: &mut Budget, from: Instant, lasting: Duration) -> u32 {
    let (mut swept, mut now) = (0, from);
    while now < from + lasting {
        if let Some(allowance) = budget.take_left_over(expiry(), batch(), now) {
            budget.settle_left_over(
                allowance.charge,
                Charge(expiry().0 * u64::from(allowance.items.get())),
            );
            swept += allowance.items.get();
        }
        now += millis(100);
    }
    swept
}

#[test]
fn an_idle_partition_expires_what_its_rate_pays_for() {
    for (request_units, a_second) in [(400, 44.7), (10_000, 1117.3)] {
        let start = clock::monotonic();
        let mut budget = Budget::new(rate(request_units), Burst::Saved, start);
        let swept = f64::from(sweep(&mut budget, start, Duration::from_mins(1)));
        let expected = 60.0 * a_second;
        assert!((swept - expected).abs() < 0.05 * expected, "{swept}, not {expected}");
        assert_eq!(budget.bank(), Charge::ZERO, "the sweeper is served before the bank");
    }
}

#[test]
fn a_partition_at_its_rate_sweeps_nothing() {
    let (mut budget, start) = budget(Burst::Saved);
    run(&mut budget, ru(u64::from(RATE)), start).unwrap();
    assert_eq!(budget.take_left_over(expiry(), batch(), start), None);
    let mut now = start;
    for _ in 0..6000 {
        now += millis(10);
        let _ = run(&mut budget, ru(4), now);
        assert_eq!(budget.take_left_over(expiry(), batch(), now), None);
    }
}

#[test]
fn the_sweeper_may_take_a_second_s_worth_at_most() {
    let (mut budget, start) = budget(Burst::Saved);
    assert_eq!(budget.take_left_over(expiry(), batch(), start), None);
    let later = start + Duration::from_mins(1);
    let taken = budget.take_left_over(expiry(), batch(), later).unwrap();
    assert_eq!(taken.items.get(), 44);
    assert_eq!(budget.bank(), ru(59 * u64::from(RATE)), "the rest is saved");
    let few = budget.take_left_over(expiry(), NonZeroU32::MIN, later + Duration::from_mins(1));
    assert_eq!(few.unwrap().items, NonZeroU32::MIN, "and no more than the batch");
}

#[test]
fn an_expiry_that_costs_more_than_a_second_s_worth_is_paid_off() {
    let (mut budget, start) = budget(Burst::Off);
    let mut swept = 0;
    for tenth in 0..600 {
        let now = start + millis(100 * tenth);
        swept += budget.take_left_over(ru(2000), batch(), now).map_or(0, |taken| taken.items.get());
    }
    assert_eq!(swept, 12, "one in five seconds, and the first after one");
}

#[test]
fn a_sweep_that_cost_more_than_was_taken_is_owed() {
    let (mut budget, start) = budget(Burst::Off);
    budget.take_left_over(ru(10), batch(), start);
    let later = start + Duration::from_secs(1);
    let taken = budget.take_left_over(ru(10), batch(), later).unwrap();
    assert_eq!((taken.items.get(), taken.charge), (40, ru(400)));
    budget.settle_left_over(taken.charge, ru(800));
    assert_eq!(budget.take_left_over(ru(10), batch(), later + Duration::from_secs(1)), None);
    assert!(budget.take_left_over(ru(10), batch(), later + millis(1025)).is_some());
    // Having nothing more to do does not pay the debt.
    budget.settle_left_over(ru(0), ru(800));
    budget.rest_sweeper(later + millis(1025));
    assert_eq!(budget.left_over(), Charge::ZERO);
    assert_eq!(budget.take_left_over(ru(10), batch(), later + Duration::from_secs(3)), None);
}

#[test]
fn what_the_sweeper_does_not_need_is_saved() {
    let (mut budget, start) = budget(Burst::Saved);
    budget.take_left_over(expiry(), batch(), start);
    let later = start + Duration::from_secs(1);
    budget.rest_sweeper(later);
    assert_eq!((budget.left_over(), budget.bank()), (Charge::ZERO, ru(400)));
}

/// Something that happens to a budget.
#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Request { estimate: u64, cost: u64 },
    Sweep { cost: u64 },
    Rest,
}

fn step() -> impl Strategy<Value = Step> {
    let micro = 0..2_000_000_000_u64;
    prop_oneof![
        4 => (0..2000_u64).prop_map(Step::Wait),
        6 => (micro.clone(), micro.clone())
            .prop_map(|(estimate, cost)| Step::Request { estimate, cost }),
        2 => micro.prop_map(|cost| Step::Sweep { cost }),
        1 => Just(Step::Rest),
    ]
}

/// What became of a budget and of those who asked it.
struct Ran {
    budget: Budget,
    elapsed: Duration,
    admitted: Vec<Option<Purse>>,
    spent: u64,
}

fn carry_out(steps: &[Step], burst: Burst, sweeps: bool) -> Ran {
    let (budget, start) = budget(burst);
    let mut ran = Ran { budget, elapsed: Duration::ZERO, admitted: Vec::new(), spent: 0 };
    for step in steps {
        let now = start + ran.elapsed;
        match step {
            Step::Wait(pause) => ran.elapsed += millis(*pause),
            Step::Request { estimate, cost } => {
                let purse = ran.budget.admit(Charge(*estimate), now).ok();
                if let Some(purse) = purse {
                    ran.budget.settle(purse, Charge(*estimate), Charge(*cost), now);
                    ran.spent += cost;
                }
                ran.admitted.push(purse);
            }
            Step::Sweep { cost } if sweeps => {
                if let Some(taken) = ran.budget.take_left_over(expiry(), batch(), now) {
                    let cost = (*cost).min(taken.charge.0);
                    ran.budget.settle_left_over(taken.charge, Charge(cost));
                    ran.spent += cost;
                }
            }
            Step::Rest if sweeps => ran.budget.rest_sweeper(now),
            Step::Sweep { .. } | Step::Rest => {}
        }
    }
    ran.budget.refill(start + ran.elapsed);
    ran
}

proptest! {
    #[test]
    fn sweeping_never_costs_a_request_its_admission(steps in prop::collection::vec(step(), 1..200)) {
        let with = carry_out(&steps, Burst::Off, true);
        let without = carry_out(&steps, Burst::Off, false);
        prop_assert_eq!(with.admitted, without.admitted);
        prop_assert_eq!(with.budget.balance, without.budget.balance);
    }

    #[test]
    fn no_more_is_spent_than_comes_in(
        steps in prop::collection::vec(step(), 1..200),
        saves in any::<bool>(),
    ) {
        let ran = carry_out(&steps, if saves { Burst::Saved } else { Burst::Off }, true);
        let Budget { balance, bank, left_over, .. } = ran.budget;
        let came = i128::from(RATE) * (1_000_000 + i128::try_from(ran.elapsed.as_micros()).unwrap());
        let held = i128::from(balance) + i128::from(bank) + i128::from(left_over);
        prop_assert!(i128::from(ran.spent) + held <= came, "{} + {held} > {came}", ran.spent);
        let second = i64::from(RATE) * 1_000_000;
        prop_assert!(balance <= second && left_over <= second);
        prop_assert!((0..=300 * second).contains(&bank));
    }

    #[test]
    fn whoever_waits_as_told_is_admitted(
        steps in prop::collection::vec(step(), 1..100),
        estimate in 0..1_000_000_000_u64,
    ) {
        let mut ran = carry_out(&steps, Burst::Saved, true);
        let now = ran.budget.filled_at;
        let before = ran.budget.clone();
        if let Err(wait) = ran.budget.admit(Charge(estimate), now) {
            prop_assert!(wait >= millis(1));
            prop_assert!(before.clone().admit(Charge(estimate), now + wait).is_ok());
            prop_assert!(before.clone().admit(Charge(estimate), now + wait - millis(1)).is_err()
                || before.bank > 0, "and has not waited too long");
        }
    }
}
