//! The checker against brute force, and against a server that is right.
#![expect(
    clippy::wildcard_enum_match_arm,
    clippy::single_match_else,
    reason = "asks for some forms and passes all others by"
)]

use std::collections::{BTreeSet, HashMap};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;
use crate::history::{Action, Nanos, Outcome, SECOND, Ttl};

const STEP: Nanos = SECOND / 10;
const START: Nanos = 1000 * SECOND;
const STEPS_MAX: usize = 5_000_000;

/// As `check` does, but the same however fast this machine is.
fn judged(history: &[Operation], policy: Policy, tolerance: Tolerance) -> Verdict {
    check_within(history, policy, tolerance, Budget::of_steps(STEPS_MAX))
}

/// An item, as far as answers depend on it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Item {
    serial: u64,
    ttl: Ttl,
    /// Its stamp, in seconds.
    ts: u64,
}

/// What a server answers and does that holds this item, which is alive; stamps of answers are 0.
fn serve(action: Action, item: Option<Item>, ts: u64) -> (Outcome, Option<Item>) {
    let is_refused = |item: &Item| action.if_match().is_some_and(|serial| serial != item.serial);
    let written = |ttl| action.serial().map(|serial| Item { serial, ttl, ts });
    match (action, item) {
        (Action::Policy { .. }, item) => (Outcome::PolicyChanged, item),
        (Action::Read { if_none_match }, Some(item)) if if_none_match == Some(item.serial) => {
            (Outcome::NotModified, Some(item))
        }
        (Action::Read { .. }, Some(item)) => {
            (Outcome::Found { serial: item.serial, ts: 0 }, Some(item))
        }
        (Action::Create { .. }, Some(item)) => (Outcome::Conflict, Some(item)),
        (Action::Create { ttl, .. } | Action::Upsert { ttl, .. }, None) => {
            (Outcome::Created { ts: 0 }, written(ttl))
        }
        (_, None) => (Outcome::NotFound, None),
        (_, Some(item)) if is_refused(&item) => (Outcome::PreconditionFailed, Some(item)),
        (Action::Upsert { ttl, .. } | Action::Replace { ttl, .. }, Some(_)) => {
            (Outcome::Replaced { ts: 0 }, written(ttl))
        }
        (Action::Patch { .. }, Some(item)) => (Outcome::Replaced { ts: 0 }, written(item.ttl)),
        (Action::Delete { .. }, Some(_)) => (Outcome::Deleted, None),
    }
}

fn without_stamp(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Found { serial, .. } => Outcome::Found { serial, ts: 0 },
        Outcome::Created { .. } => Outcome::Created { ts: 0 },
        Outcome::Replaced { .. } => Outcome::Replaced { ts: 0 },
        other => other,
    }
}

fn expiry(policy: Policy, item: Item) -> Option<Nanos> {
    policy.lifetime(item.ttl).map(|seconds| (item.ts + u64::from(seconds)) * SECOND)
}

/// Tries every order, every instant at which something may change, and both fates of every item.
struct BruteForce<'h> {
    history: &'h [Operation],
    tolerance: Tolerance,
    stamps: HashMap<u64, u64>,
    instants: Vec<Nanos>,
}

impl<'h> BruteForce<'h> {
    fn judges(history: &'h [Operation], policy: Policy, tolerance: Tolerance) -> bool {
        let mut stamps: HashMap<u64, u64> = HashMap::new();
        for one in history {
            if let Some((serial, ts)) = one.told()
                && stamps.insert(serial, ts).is_some_and(|known| known != ts)
            {
                return false;
            }
        }
        let policies = history.iter().filter_map(|one| match one.action {
            Action::Policy { policy } => Some(policy),
            _ => None,
        });
        let policies: Vec<Policy> = policies.chain([policy]).collect();
        let ttls = [Ttl::Inherit, Ttl::Own(1), Ttl::Own(2)];
        let lifetimes: BTreeSet<u64> = policies
            .iter()
            .flat_map(|policy| ttls.iter().filter_map(|ttl| policy.lifetime(*ttl)))
            .map(u64::from)
            .collect();
        let earliest = |one: &Operation| one.call.saturating_sub(tolerance.skew).div_ceil(SECOND);
        let seconds = history.iter().map(earliest).chain(stamps.values().copied());
        let expiries = seconds.flat_map(|second| lifetimes.iter().map(move |more| second + more));
        let instants = expiries.map(|second| second * SECOND - tolerance.skew);
        let instants: BTreeSet<Nanos> =
            instants.chain(history.iter().map(|one| one.call)).collect();
        let all = Self { history, tolerance, stamps, instants: instants.into_iter().collect() };
        let left: Vec<usize> = (0..history.len()).collect();
        all.goes_on(&left, policy, None, 0)
    }

    fn goes_on(&self, left: &[usize], policy: Policy, item: Option<Item>, now: Nanos) -> bool {
        if left.iter().all(|one| self.history[*one].outcome == Outcome::Unknown) {
            return true;
        }
        let returns = left.iter().filter_map(|one| self.history[*one].ret);
        let first_return = returns.min().expect("something has returned");
        let next = left.iter().filter(|one| self.history[**one].call <= first_return);
        next.copied().any(|one| {
            let rest: Vec<usize> = left.iter().copied().filter(|other| *other != one).collect();
            let operation = &self.history[one];
            let last = operation.ret.unwrap_or(Nanos::MAX);
            let from = now.max(operation.call);
            let instants = self.instants.iter().copied().chain([from]);
            let mut instants = instants.filter(|at| (from..=last).contains(at));
            instants.any(|at| {
                self.fates(operation, policy, item, at).into_iter().any(|found| {
                    let (answer, item) = serve(operation.action, found, self.stamp(operation));
                    let fits = operation.outcome == Outcome::Unknown
                        || without_stamp(operation.outcome) == answer;
                    let policy = match operation.action {
                        Action::Policy { policy } => policy,
                        _ => policy,
                    };
                    fits && self.goes_on(&rest, policy, item, at)
                })
            })
        })
    }

    /// What an operation may find at an instant.
    fn fates(
        &self,
        operation: &Operation,
        policy: Policy,
        item: Option<Item>,
        at: Nanos,
    ) -> Vec<Option<Item>> {
        let Some(alive) = item else { return vec![None] };
        let Some(expiry) = expiry(policy, alive) else { return vec![item] };
        let Tolerance { skew, width } = self.tolerance;
        let mut fates = Vec::new();
        let is_stamped = self.stamps.contains_key(&alive.serial);
        let is_in_time = match operation.action {
            Action::Read { .. } => at <= expiry + skew,
            _ => operation.call <= expiry + skew + width,
        };
        if !is_stamped || is_in_time {
            fates.push(item);
        }
        if at + skew >= expiry {
            fates.push(None);
        }
        fates
    }

    fn stamp(&self, operation: &Operation) -> u64 {
        let known = operation.action.serial().and_then(|serial| self.stamps.get(&serial));
        let earliest = operation.call.saturating_sub(self.tolerance.skew).div_ceil(SECOND);
        known.copied().unwrap_or(earliest)
    }
}

/// Histories of a server that is right, though its clock is off.
struct Server {
    rng: SmallRng,
    tolerance: Tolerance,
    /// By how much its clock is ahead, and the tolerance behind.
    ahead: Nanos,
    /// How often nobody knows what came of an operation.
    unknown: f64,
    policy: Policy,
    item: Option<Item>,
    /// All that expires before this instant is gone.
    floor: Nanos,
    last_ts: u64,
}

fn some_policy(rng: &mut SmallRng) -> Policy {
    [Policy::Off, Policy::NoDefault, Policy::Default(1), Policy::Default(2)][rng.random_range(0..4)]
}

impl Server {
    /// So many operations in so many tenths of a second; of some of them nobody knows what came.
    fn history(
        seed: u64,
        operations: u64,
        steps: u64,
        unknown: f64,
    ) -> (Vec<Operation>, Policy, Tolerance) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let tolerance =
            Tolerance { skew: STEP * rng.random_range(0..3), width: STEP * rng.random_range(0..4) };
        let ahead = STEP * rng.random_range(0..=2 * tolerance.skew / STEP);
        let policy = some_policy(&mut rng);
        let mut server =
            Self { rng, tolerance, ahead, unknown, policy, item: None, floor: 0, last_ts: 0 };
        let mut history: Vec<(Nanos, Operation)> =
            (1..=operations).map(|number| server.operation(number, steps)).collect();
        history.sort_by_key(|(at, _)| *at);
        for (at, one) in &mut history {
            server.carry_out(*at, one);
        }
        (history.into_iter().map(|(_, one)| one).collect(), policy, tolerance)
    }

    /// A request, and when it takes effect.
    fn operation(&mut self, number: u64, steps: u64) -> (Nanos, Operation) {
        let rng = &mut self.rng;
        let call = START + STEP * rng.random_range(0..steps);
        let at = call + STEP * rng.random_range(0..12);
        let ret = at + STEP * rng.random_range(0..6);
        let ttl = [Ttl::Inherit, Ttl::Never, Ttl::Own(1), Ttl::Own(2)][rng.random_range(0..4)];
        let other = |rng: &mut SmallRng| rng.random_bool(0.2).then(|| rng.random_range(1..7));
        let action = match rng.random_range(0..14) {
            0..5 => Action::Read { if_none_match: other(rng) },
            5..7 => Action::Create { serial: number, ttl },
            7..10 => Action::Upsert { serial: number, ttl, if_match: other(rng) },
            10 => Action::Replace { serial: number, ttl, if_match: other(rng) },
            11 => Action::Patch { serial: number, if_match: other(rng) },
            12 => Action::Delete { if_match: other(rng) },
            _ => Action::Policy { policy: some_policy(rng) },
        };
        let (key, entry) = ("k".to_string(), None);
        let outcome = Outcome::Unknown;
        (at, Operation { client: 0, node: 1, key, action, call, ret: Some(ret), outcome, entry })
    }

    fn clock(&self, at: Nanos) -> Nanos {
        at + self.ahead - self.tolerance.skew
    }

    fn carry_out(&mut self, at: Nanos, one: &mut Operation) {
        let is_unknown = self.rng.random_bool(self.unknown);
        if is_unknown {
            one.ret = None;
        }
        if is_unknown && self.rng.random_bool(0.5) {
            // It never arrived.
            return;
        }
        // When it was proposed, or looked; then by the early end of an interval.
        let looked = match one.action {
            Action::Read { .. } => self.clock(at),
            _ => {
                let proposed = one.call + STEP * self.rng.random_range(0..=(at - one.call) / STEP);
                let early = STEP * self.rng.random_range(0..=self.tolerance.width / STEP);
                self.clock(proposed) - early
            }
        };
        let found = self.item.filter(|item| {
            expiry(self.policy, *item).is_none_or(|expiry| expiry > looked && expiry > self.floor)
        });
        if found.is_none() {
            self.floor = self.floor.max(looked);
            self.item = None;
        }
        let late = STEP * self.rng.random_range(0..=self.tolerance.width / STEP);
        let ts = (self.clock(one.call) + late).div_ceil(SECOND).max(self.last_ts);
        let (outcome, item) = serve(one.action, found, ts);
        if one.action.serial() == item.map(|item| item.serial) && item.is_some() {
            self.last_ts = ts;
        }
        self.item = item;
        if let Action::Policy { policy } = one.action {
            self.policy = policy;
        }
        if !is_unknown {
            one.outcome = match outcome {
                Outcome::Found { serial, .. } => {
                    Outcome::Found { serial, ts: found.expect("it was found").ts }
                }
                Outcome::Created { .. } => Outcome::Created { ts },
                Outcome::Replaced { .. } => Outcome::Replaced { ts },
                other => other,
            };
        }
    }
}

/// Changes one answer to another that its request may have.
fn falsify(history: &mut [Operation], rng: &mut SmallRng) {
    let at = rng.random_range(0..history.len());
    let stamps: HashMap<u64, u64> = history.iter().filter_map(Operation::written).collect();
    let one = &mut history[at];
    if one.outcome == Outcome::Unknown {
        return;
    }
    let serial = rng.random_range(1..7);
    let ts = stamps.get(&serial).copied().unwrap_or(START / SECOND + 1);
    let own_ts = one.written().map_or(START / SECOND + 3, |(_, ts)| ts);
    let answers: &[Outcome] = match one.action {
        Action::Read { .. } => &[Outcome::Found { serial, ts }, Outcome::NotFound],
        Action::Create { .. } => &[Outcome::Created { ts: own_ts }, Outcome::Conflict],
        Action::Upsert { .. } => &[
            Outcome::Created { ts: own_ts },
            Outcome::Replaced { ts: own_ts },
            Outcome::PreconditionFailed,
        ],
        Action::Replace { .. } | Action::Patch { .. } => {
            &[Outcome::Replaced { ts: own_ts }, Outcome::NotFound, Outcome::PreconditionFailed]
        }
        Action::Delete { .. } => {
            &[Outcome::Deleted, Outcome::NotFound, Outcome::PreconditionFailed]
        }
        Action::Policy { .. } => &[Outcome::PolicyChanged],
    };
    one.outcome = answers[rng.random_range(0..answers.len())];
}

#[test]
fn ten_thousand_histories_are_judged_as_by_brute_force() {
    let mut illegal = 0;
    for seed in 0..10_000 {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0xFA15E);
        let (mut history, policy, tolerance) = Server::history(seed, 1 + seed % 7, 60, 0.15);
        if seed % 3 != 0 {
            falsify(&mut history, &mut rng);
        }
        let expected = BruteForce::judges(&history, policy, tolerance);
        let verdict = judged(&history, policy, tolerance);
        assert_eq!(verdict == Verdict::Ok, expected, "seed {seed}: {verdict:?} {history:#?}");
        assert_ne!(verdict, Verdict::Unknown, "seed {seed}");
        illegal += u32::from(!expected);
    }
    assert!((1000..7000).contains(&illegal), "{illegal} of 10,000 were illegal");
}

#[test]
fn a_server_that_is_right_is_never_accused() {
    // Few operations of which many are unknown, and as many as a key is used for.
    let histories = (0..1000).map(|seed| (seed, Server::history(seed, 40, 60, 0.05)));
    let long = (0..50).map(|seed| (seed, Server::history(seed, 500, 750, 0.02)));
    for (seed, (history, policy, tolerance)) in histories.chain(long) {
        let verdict = judged(&history, policy, tolerance);
        assert_eq!(verdict, Verdict::Ok, "seed {seed}: {history:#?}");
        assert_eq!(came_back(&history), [], "seed {seed}: {history:#?}");
        assert_eq!(wrong_stamps(&history, tolerance), [], "seed {seed}");
    }
}

#[test]
fn what_comes_back_is_illegal_too() {
    let mut found = 0;
    for seed in 0..5000 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut history, policy, tolerance) = Server::history(seed, 12, 60, 0.15);
        falsify(&mut history, &mut rng);
        if !came_back(&history).is_empty() {
            found += 1;
            let verdict = judged(&history, policy, tolerance);
            assert_ne!(verdict, Verdict::Ok, "seed {seed}: {history:#?}");
        }
    }
    assert!(found > 50, "{found} of 5,000");
}

fn operation(action: Action, call: Nanos, ret: Nanos, outcome: Outcome) -> Operation {
    let (call, ret) = (START + call * STEP, Some(START + ret * STEP));
    Operation { client: 1, node: 1, key: "k".into(), action, call, ret, outcome, entry: None }
}

fn unanswered(operation: &Operation) -> Operation {
    Operation { ret: None, outcome: Outcome::Unknown, entry: None, ..operation.clone() }
}

#[test]
fn what_is_illegal_is_told_in_few_words() {
    let ts = START / SECOND;
    let read = Action::Read { if_none_match: None };
    let create = Action::Create { serial: 1, ttl: Ttl::Own(1) };
    let found = Outcome::Found { serial: 1, ts };
    let mut history = vec![operation(create, 0, 1, Outcome::Created { ts })];
    history.extend((2..9).map(|at| operation(read, at, at + 1, found)));
    // A tenth of a second too late, and so is all that follows.
    history.extend((11..40).map(|at| operation(read, at, at + 1, found)));
    let exact = Tolerance { skew: 0, width: 0 };
    let verdict = judged(&history, Policy::NoDefault, exact);
    // It would be too late for one that nobody knows to be done, too.
    let expected = vec![unanswered(&history[0]), operation(read, 11, 12, found)];
    assert_eq!(verdict, Verdict::Illegal(expected));
    let lenient = Tolerance { skew: 40 * STEP, width: 0 };
    assert_eq!(judged(&history, Policy::NoDefault, lenient), Verdict::Ok);
}

/// Three writes one after the other, and a read that shows the second when the third was answered.
fn stale_read() -> Vec<Operation> {
    let ts = START / SECOND;
    let upsert = |serial| Action::Upsert { serial, ttl: Ttl::Never, if_match: None };
    let read = Action::Read { if_none_match: None };
    let first = operation(upsert(1), 0, 1, Outcome::Created { ts });
    vec![
        Operation { entry: Some((0, 1)), ..first },
        operation(upsert(2), 2, 3, Outcome::Replaced { ts }),
        operation(upsert(3), 4, 5, Outcome::Replaced { ts }),
        operation(read, 6, 7, Outcome::Found { serial: 2, ts }),
    ]
}

#[test]
fn an_answer_that_does_not_matter_is_not_told() {
    let history = stale_read();
    let exact = Tolerance { skew: 0, width: 0 };
    // That there was something to replace is needed; when it was written is not.
    let mut expected = history.clone();
    expected[0] = unanswered(&history[0]);
    let verdict = Verdict::Illegal(expected.clone());
    assert_eq!(judged(&history, Policy::Off, exact), verdict);
    assert_eq!(judged(&expected, Policy::Off, exact), verdict);
}

#[test]
fn what_is_told_of_an_illegal_history_is_illegal() {
    let (mut illegal, mut forgotten) = (0, 0);
    for seed in 0..1000 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut history, policy, tolerance) = Server::history(seed, 12, 60, 0.15);
        falsify(&mut history, &mut rng);
        let Verdict::Illegal(told) = judged(&history, policy, tolerance) else { continue };
        illegal += 1;
        let again = judged(&told, policy, tolerance);
        assert!(matches!(again, Verdict::Illegal(_)), "seed {seed}: {history:#?} {told:#?}");
        for one in &told {
            let is_forgotten = |other: &Operation| *one == unanswered(other);
            assert!(history.contains(one) || history.iter().any(is_forgotten), "seed {seed}");
            forgotten += u32::from(!history.contains(one));
        }
    }
    assert!(illegal > 50 && forgotten > 0, "{illegal} of 1,000, {forgotten} answers");
}

#[test]
fn what_there_is_no_time_to_shorten_is_told_whole() {
    let history = stale_read();
    let exact = Tolerance { skew: 0, width: 0 };
    let late = Budget { deadline: Some(monotonic()), ..Budget::of_steps(STEPS_MAX) };
    assert_eq!(shrink::shrunk(&history, Policy::Off, exact, late), history);
}

#[test]
fn a_search_that_takes_too_much_says_so() {
    let ts = START / SECOND;
    let create = Action::Create { serial: 1, ttl: Ttl::Never };
    let read = Action::Read { if_none_match: None };
    let mut history = vec![operation(create, 0, 1, Outcome::Created { ts })];
    let found = Outcome::Found { serial: 1, ts };
    history.extend((2..9).map(|at| operation(read, at, at + 1, found)));
    let exact = Tolerance { skew: 0, width: 0 };
    let ample = Budget::of_steps(STEPS_MAX);
    assert_eq!(check_within(&history, Policy::Off, exact, ample), Verdict::Ok);
    let small = Budget { bytes_max: 0, ..ample };
    let late = Budget { deadline: Some(monotonic()), ..ample };
    for budget in [Budget::of_steps(3), small, late] {
        let verdict = check_within(&history, Policy::Off, exact, budget);
        assert_eq!(verdict, Verdict::Unknown, "{budget:?}");
    }
}

#[test]
fn a_search_without_an_end_is_ended_by_each_limit() {
    let upsert = |serial| Action::Upsert { serial, ttl: Ttl::Never, if_match: None };
    let unknown = |serial| unanswered(&operation(upsert(serial), 0, 1, Outcome::Unknown));
    let mut history: Vec<Operation> = (1..60).map(unknown).collect();
    let read = Action::Read { if_none_match: None };
    let found = Outcome::Found { serial: 99, ts: START / SECOND };
    history.push(operation(read, 2, 3, found));
    let exact = Tolerance { skew: 0, width: 0 };
    let endless = Budget::of_steps(usize::MAX);
    let small = Budget { bytes_max: 1 << 20, ..endless };
    let soon = Budget { deadline: Some(monotonic() + Duration::from_millis(10)), ..endless };
    for budget in [Budget::of_steps(10_000), small, soon] {
        let verdict = check_within(&history, Policy::Off, exact, budget);
        assert_eq!(verdict, Verdict::Unknown, "{budget:?}");
    }
}

#[test]
fn all_keys_are_judged_and_told_in_their_order() {
    // As far off as any of these servers' clocks.
    let tolerance = Tolerance { skew: 2 * STEP, width: 3 * STEP };
    let of_seed = |seed: u64| {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut history, policy, _) = Server::history(seed, 1 + seed * 7 % 30, 60, 0.1);
        if seed.is_multiple_of(2) {
            falsify(&mut history, &mut rng);
        }
        (history, policy)
    };
    let histories: Vec<(Vec<Operation>, Policy)> = (0..100).map(of_seed).collect();
    let given: Vec<(&[Operation], Policy)> =
        histories.iter().map(|(history, policy)| (history.as_slice(), *policy)).collect();
    let one_by_one: Vec<Verdict> =
        given.iter().map(|(history, policy)| check(history, *policy, tolerance)).collect();
    assert_eq!(check_all(&given, tolerance), one_by_one);
    assert!(one_by_one.contains(&Verdict::Ok));
    assert!(one_by_one.iter().any(|verdict| matches!(verdict, Verdict::Illegal(_))));
    assert_eq!(check_all(&[], tolerance), []);
    let too_late = check_all_until(&given, tolerance, monotonic());
    assert_eq!(too_late, vec![Verdict::Unknown; given.len()]);
}

#[test]
fn stamps_and_entries_never_go_back() {
    let ts = START / SECOND;
    let exact = Tolerance { skew: 0, width: 0 };
    let upsert = |serial, call, ts, lsn| {
        let action = Action::Upsert { serial, ttl: Ttl::Never, if_match: None };
        let one = operation(action, call, call + 1, Outcome::Created { ts });
        Operation { entry: Some((0, lsn)), ..one }
    };
    let good = [upsert(1, 0, ts + 1, 5), upsert(2, 5, ts + 1, 6)];
    assert_eq!(wrong_stamps(&good, exact), []);
    let early = upsert(1, 5, ts, 5);
    assert_eq!(wrong_stamps(std::slice::from_ref(&early), exact), [WrongStamp::Early(early)]);
    let late = upsert(1, 5, ts + 2, 5);
    assert_eq!(wrong_stamps(std::slice::from_ref(&late), exact), [WrongStamp::Late(late)]);
    let (before, behind) = (upsert(1, 6, ts + 2, 5), upsert(2, 8, ts + 1, 4));
    // Nobody knew what came of the writes, and reads show them later.
    let read = |ts| {
        let action = Action::Read { if_none_match: None };
        operation(action, 7, 8, Outcome::Found { serial: 1, ts })
    };
    let write = unanswered(&upsert(1, 5, ts + 1, 5));
    assert_eq!(wrong_stamps(&[write.clone(), read(ts + 1)], exact), []);
    let early = [write.clone(), read(ts)];
    assert_eq!(wrong_stamps(&early, exact), [WrongStamp::Early(read(ts))]);
    let late = [write, read(ts + 2)];
    assert_eq!(wrong_stamps(&late, exact), [WrongStamp::Late(read(ts + 2))]);
    let lenient = Tolerance { skew: SECOND, width: 0 };
    let wrong = [WrongStamp::Backwards(behind.clone()), WrongStamp::EntryBackwards(behind.clone())];
    assert_eq!(wrong_stamps(&[before, behind], lenient), wrong);
}
