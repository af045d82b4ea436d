//! Time to live: what it means, and the rule that decides whether a version has expired.
//!
//! The rule and its replicated state are `docs/TTL.md`, "The model": a partition clock that never goes
//! back, the container's policy, and two floors that remember in two integers everything that was ever
//! dead under an earlier policy. Whether an item exists also depends on deletes of whole logical
//! partitions: `partition::liveness` asks for both, and every path asks there.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::time::{ClockInterval, Millis, Seconds};

/// Largest time to live, in seconds.
pub const TTL_SECONDS_MAX: u32 = i32::MAX as u32;

/// A valid `ttl` or `defaultTtl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimeToLive {
    /// `-1`: on an item, kept until deleted; on a container, no default but expiry is on.
    Forever,
    /// `n`: expires `n` seconds after the last write.
    Seconds(NonZeroU32),
}

/// A value that is not `-1` or `1..=2147483647`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "the value {value} of '{property}' is not allowed: it must be -1 or an integer \
     between 1 and {TTL_SECONDS_MAX}"
)]
pub struct InvalidTtl {
    /// `ttl` or `defaultTtl`.
    pub property: &'static str,
    /// What was there, as JSON, shortened.
    pub value: String,
}

impl TimeToLive {
    /// Checks an integral number of seconds.
    pub fn from_seconds(seconds: i64) -> Option<Self> {
        if seconds == -1 {
            return Some(TimeToLive::Forever);
        }
        let seconds = u32::try_from(seconds).ok().filter(|n| *n <= TTL_SECONDS_MAX)?;
        NonZeroU32::new(seconds).map(TimeToLive::Seconds)
    }

    /// Checks a JSON number: `1.0` and `1e3` are integers too (`docs/TTL.md` R5).
    pub fn from_f64(number: f64) -> Option<Self> {
        let in_range = (-1.0..=f64::from(TTL_SECONDS_MAX)).contains(&number);
        if !in_range || number.fract() != 0.0 {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "range and fraction were checked")]
        Self::from_seconds(number as i64)
    }
}

/// What an item itself says about its time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ItemTtl {
    /// No `ttl` property: the container's default holds.
    Inherit,
    /// `-1`, or a value stored while expiry was off that is not valid: never expires (R6).
    Never,
    /// Its own number of seconds.
    Own(NonZeroU32),
}

impl From<TimeToLive> for ItemTtl {
    fn from(ttl: TimeToLive) -> Self {
        match ttl {
            TimeToLive::Forever => ItemTtl::Never,
            TimeToLive::Seconds(seconds) => ItemTtl::Own(seconds),
        }
    }
}

/// The `ttl` property of a body that a client wants to store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TtlField {
    /// Not there.
    Absent,
    /// Valid.
    Valid(TimeToLive),
    /// Not valid; refused while expiry is on, inert while it is off (R5, R6). The value as JSON.
    Invalid(String),
}

/// A container's setting, from its `defaultTtl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TtlPolicy {
    /// Absent or null: nothing expires.
    Off,
    /// `-1`: only items with their own `ttl` expire.
    NoDefault,
    /// `n`: items without their own `ttl` expire `n` seconds after their last write.
    Default(NonZeroU32),
}

impl TtlPolicy {
    /// The policy behind a checked `defaultTtl`.
    pub fn from_default_ttl(default_ttl: Option<TimeToLive>) -> Self {
        match default_ttl {
            None => TtlPolicy::Off,
            Some(TimeToLive::Forever) => TtlPolicy::NoDefault,
            Some(TimeToLive::Seconds(seconds)) => TtlPolicy::Default(seconds),
        }
    }

    /// True if anything can expire.
    pub fn is_on(self) -> bool {
        match self {
            TtlPolicy::Off => false,
            TtlPolicy::NoDefault | TtlPolicy::Default(_) => true,
        }
    }
}

/// Counts the changes of a container's policy, so that an old change replayed is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PolicyEpoch(pub u64);

/// A partition clock moves further than this at once only if a majority of the nodes' clocks vouch
/// for it.
pub const JUMP_MAX: Millis = Millis(3_600_000);
/// A clock vouches for an instant that it reads, or is about to.
const VOUCH_SLACK: Millis = Millis(2000);

/// What the nodes' clocks read when a jump was proposed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vouchers {
    /// What each clock that is known reads, at the least.
    pub readings: Vec<Millis>,
    /// How many nodes there are.
    pub nodes: u32,
}

impl Vouchers {
    /// True if enough of the nodes' clocks have come to `at`.
    pub fn vouch_for(&self, at: Millis) -> bool {
        let reached = |reading: &&Millis| reading.0.saturating_add(VOUCH_SLACK.0) >= at.0;
        let reached = self.readings.iter().filter(reached).count();
        reached >= clocks_needed(self.nodes as usize, self.readings.len())
    }
}

/// How many of the known clocks must agree, so that one of them is right wherever a majority of all nodes' clocks
/// is, and that what they say may be that majority's: more than may be wrong together, and with those that are not
/// known a majority. A clock never vouches for itself alone where there are others.
pub fn clocks_needed(nodes: usize, known: usize) -> usize {
    let majority = nodes / 2 + 1;
    let unknown = nodes.saturating_sub(known);
    nodes.div_ceil(2).max(nodes.min(2)).max(majority.saturating_sub(unknown))
}

/// Everything a partition replicates about expiry. Changed only by applying log entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TtlState {
    /// The partition clock; never decreases.
    clock: Millis,
    /// The newest `_ts` given out; never decreases.
    last_ts: Seconds,
    policy: TtlPolicy,
    epoch: PolicyEpoch,
    /// Inheriting items with `_ts` at or below are dead for good.
    dead_inheriting: Option<Seconds>,
    /// Items whose own expiry is at or below are dead for good.
    dead_own: Option<Seconds>,
    /// Where the clock came to by its last jump while expiry was on.
    jumped_to: Option<Millis>,
}

impl Default for TtlState {
    fn default() -> Self {
        Self {
            clock: Millis(0),
            last_ts: Seconds(0),
            policy: TtlPolicy::Off,
            epoch: PolicyEpoch(0),
            dead_inheriting: None,
            dead_own: None,
            jumped_to: None,
        }
    }
}

/// What a reader may conclude about a version of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It exists, whatever the true time within the reader's interval is.
    Alive,
    /// It does not exist, and the log says so.
    Dead,
    /// It may have expired at this second, and the log does not say so yet: advance the clock.
    InDoubt(Seconds),
}

impl TtlState {
    /// The partition clock.
    pub fn clock(&self) -> Millis {
        self.clock
    }

    /// The newest stamp given out.
    pub fn last_ts(&self) -> Seconds {
        self.last_ts
    }

    /// The policy in force.
    pub fn policy(&self) -> TtlPolicy {
        self.policy
    }

    /// Which change of the policy is in force.
    pub fn epoch(&self) -> PolicyEpoch {
        self.epoch
    }

    /// First step of applying any entry: takes the proposer's reading of the time.
    ///
    /// The clock follows `lo`, so it is never ahead of the true time; stamps follow `hi`, rounded
    /// up, so no item lives less than its `ttl`. Neither ever goes back. A jump that nobody vouches
    /// for leaves the clock where it is.
    pub fn advance(&mut self, now: ClockInterval, vouchers: Option<&Vouchers>) {
        let jumps = self.is_jump(now.lo());
        let clock = if jumps && !vouchers.is_some_and(|vouchers| vouchers.vouch_for(now.lo())) {
            self.clock
        } else {
            self.clock.max(now.lo())
        };
        // A first reading is no jump of anything.
        if jumps && clock > self.clock && self.clock > Millis(0) && self.policy.is_on() {
            self.jumped_to = Some(clock);
        }
        let last_ts = self.last_ts.max(now.hi().max(clock).ceil_seconds());
        assert!(clock >= self.clock, "the partition clock never goes back");
        assert!(last_ts >= self.last_ts, "stamps never go back");
        self.clock = clock;
        self.last_ts = last_ts;
    }

    /// True if the clock would have to be vouched for to come to `at`.
    pub fn is_jump(&self, at: Millis) -> bool {
        at.0 > self.clock.0.saturating_add(JUMP_MAX.0)
    }

    /// Where the clock came to by its last jump while expiry was on.
    pub fn jumped_to(&self) -> Option<Millis> {
        self.jumped_to
    }

    /// True while dead items are kept, for an operator to look at a jump of the clock.
    pub fn keeps_the_dead(&self, grace: Millis) -> bool {
        self.jumped_to.is_some_and(|to| self.clock.0 < to.0.saturating_add(grace.0))
    }

    /// The rule: true if the time of a version written at `ts` with this `ttl` is over.
    pub fn has_expired(&self, ttl: ItemTtl, ts: Seconds) -> bool {
        let clock = self.clock.floor_seconds();
        match ttl {
            ItemTtl::Never => false,
            ItemTtl::Own(seconds) => {
                let expiry = ts.plus(seconds.get());
                (self.policy.is_on() && expiry <= clock)
                    || self.dead_own.is_some_and(|floor| expiry <= floor)
            }
            ItemTtl::Inherit => {
                let by_clock = match self.policy {
                    TtlPolicy::Default(seconds) => ts.plus(seconds.get()) <= clock,
                    TtlPolicy::Off | TtlPolicy::NoDefault => false,
                };
                by_clock || self.dead_inheriting.is_some_and(|floor| ts <= floor)
            }
        }
    }

    /// When a version that is not dead will expire under the policy in force.
    pub fn expiry(&self, ttl: ItemTtl, ts: Seconds) -> Option<Seconds> {
        let seconds = match (ttl, self.policy) {
            (ItemTtl::Own(seconds), TtlPolicy::NoDefault | TtlPolicy::Default(_))
            | (ItemTtl::Inherit, TtlPolicy::Default(seconds)) => seconds,
            (ItemTtl::Never, _)
            | (_, TtlPolicy::Off)
            | (ItemTtl::Inherit, TtlPolicy::NoDefault) => return None,
        };
        Some(ts.plus(seconds.get()))
    }

    /// Judges what time has made of a version, for a reader whose clock may read as late as `hi`.
    pub fn judge(&self, ttl: ItemTtl, ts: Seconds, hi: Millis) -> Life {
        if self.has_expired(ttl, ts) {
            return Life::Dead;
        }
        match self.expiry(ttl, ts) {
            Some(expiry) if hi >= expiry.start() => Life::InDoubt(expiry),
            Some(_) | None => Life::Alive,
        }
    }

    /// Changes the policy; returns false, changing nothing, if the epoch is not newer.
    ///
    /// What is dead under the old policy is first captured in the floors, so that it stays dead
    /// under any later one; what is alive is not touched. O(1): no item is rewritten.
    pub fn set_policy(&mut self, policy: TtlPolicy, epoch: PolicyEpoch) -> bool {
        if epoch <= self.epoch {
            return false;
        }
        let clock = self.clock.floor_seconds();
        if let TtlPolicy::Default(seconds) = self.policy
            && let Some(floor) = clock.0.checked_sub(u64::from(seconds.get()))
        {
            self.dead_inheriting = self.dead_inheriting.max(Some(Seconds(floor)));
        }
        if self.policy.is_on() {
            self.dead_own = self.dead_own.max(Some(clock));
        }
        self.policy = policy;
        self.epoch = epoch;
        true
    }

    /// Items with their own `ttl` whose expiry is at or below this second are dead.
    pub fn own_dead_through(&self) -> Option<Seconds> {
        let by_clock = self.policy.is_on().then(|| self.clock.floor_seconds());
        by_clock.max(self.dead_own)
    }

    /// Inheriting items whose `_ts` is at or below this second are dead.
    pub fn inheriting_dead_through(&self) -> Option<Seconds> {
        let by_clock = match self.policy {
            TtlPolicy::Default(seconds) => {
                self.clock.floor_seconds().0.checked_sub(u64::from(seconds.get())).map(Seconds)
            }
            TtlPolicy::Off | TtlPolicy::NoDefault => None,
        };
        by_clock.max(self.dead_inheriting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(seconds: u32) -> ItemTtl {
        ItemTtl::Own(NonZeroU32::new(seconds).unwrap())
    }

    fn default(seconds: u32) -> TtlPolicy {
        TtlPolicy::Default(NonZeroU32::new(seconds).unwrap())
    }

    fn at(seconds: u64) -> ClockInterval {
        ClockInterval::exact(Seconds(seconds).start())
    }

    /// A clock that vouches for everything.
    fn vouched() -> Vouchers {
        Vouchers { readings: vec![Millis(u64::MAX)], nodes: 1 }
    }

    fn state(policy: TtlPolicy, clock: u64) -> TtlState {
        let mut state = TtlState::default();
        state.set_policy(policy, PolicyEpoch(1));
        state.advance(at(clock), Some(&vouched()));
        state
    }

    #[test]
    fn r1_equality_is_expired() {
        assert!(!state(default(10), 109).has_expired(ItemTtl::Inherit, Seconds(100)));
        assert!(state(default(10), 110).has_expired(ItemTtl::Inherit, Seconds(100)));
    }

    #[test]
    fn r5_valid_values_are_minus_one_and_positive_31_bit_integers() {
        assert_eq!(TimeToLive::from_seconds(-1), Some(TimeToLive::Forever));
        assert!(TimeToLive::from_seconds(i64::from(i32::MAX)).is_some());
        for wrong in [0, -2, 1 << 31, i64::MIN, i64::MAX] {
            assert_eq!(TimeToLive::from_seconds(wrong), None, "{wrong}");
        }
        assert!(TimeToLive::from_f64(1e3).is_some());
        for wrong in [1.5, f64::NAN, f64::INFINITY, -1.5, 0.0, 2_147_483_648.0] {
            assert_eq!(TimeToLive::from_f64(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn r10_stamps_round_up_and_never_go_back() {
        let mut state = state(TtlPolicy::Off, 100);
        state.advance(ClockInterval::new(Millis(100_001), Millis(100_400)), Some(&vouched()));
        assert_eq!(state.last_ts(), Seconds(101));
        state.advance(at(50), Some(&vouched()));
        assert_eq!((state.clock(), state.last_ts()), (Millis(100_001), Seconds(101)));
    }

    #[test]
    fn r10_the_longest_ttl_does_not_overflow() {
        let state = state(default(TTL_SECONDS_MAX), 4_000_000_000);
        assert!(!state.has_expired(ItemTtl::Inherit, Seconds(3_999_999_999)));
    }

    #[test]
    fn doubt_begins_when_the_reader_may_be_past_the_expiry() {
        let state = state(default(10), 109);
        let judge = |hi| state.judge(ItemTtl::Inherit, Seconds(100), Millis(hi));
        assert_eq!(judge(109_999), Life::Alive);
        assert_eq!(judge(110_000), Life::InDoubt(Seconds(110)));
    }

    #[test]
    fn what_is_dead_stays_dead_when_expiry_is_turned_off() {
        let mut state = state(default(10), 200);
        assert!(state.has_expired(ItemTtl::Inherit, Seconds(190)));
        assert!(state.has_expired(own(5), Seconds(195)));
        assert!(state.set_policy(TtlPolicy::Off, PolicyEpoch(2)));
        assert!(state.has_expired(ItemTtl::Inherit, Seconds(190)));
        assert!(state.has_expired(own(5), Seconds(195)));
        assert!(!state.has_expired(ItemTtl::Inherit, Seconds(191)));
        assert!(!state.has_expired(own(5), Seconds(196)));
        state.advance(at(10_000), Some(&vouched()));
        assert!(!state.has_expired(ItemTtl::Inherit, Seconds(191)), "survivors are immortal now");
    }

    #[test]
    fn an_old_epoch_changes_nothing() {
        let mut state = state(default(10), 200);
        assert!(!state.set_policy(TtlPolicy::Off, PolicyEpoch(1)));
        assert_eq!(state.policy(), default(10));
    }

    #[test]
    fn a_longer_default_does_not_revive() {
        let mut state = state(default(10), 200);
        state.set_policy(default(1000), PolicyEpoch(2));
        assert!(state.has_expired(ItemTtl::Inherit, Seconds(190)));
        assert!(!state.has_expired(ItemTtl::Inherit, Seconds(191)));
    }

    #[test]
    fn t4_a_jump_counts_only_if_a_majority_vouches() {
        let hour = 3600;
        let mut state = state(default(10), 1000);
        let jump = at(1000 + hour + 1);
        let vouchers = |ahead: usize| {
            let reading = |n| if n < ahead { jump.lo() } else { Seconds(1000).start() };
            Some(Vouchers { readings: (0..3).map(reading).collect(), nodes: 3 })
        };
        for vouchers in [None, vouchers(0), vouchers(1)] {
            state.advance(jump, vouchers.as_ref());
            assert_eq!(state.clock(), Seconds(1000).start());
            assert!(state.last_ts() >= Seconds(1000 + hour + 1), "stamps err on the late side");
        }
        let unheard = Some(Vouchers { readings: vec![jump.lo()], nodes: 3 });
        state.advance(jump, unheard.as_ref());
        assert_eq!(state.clock(), Seconds(1000).start(), "silence does not vouch");
        state.advance(at(1000 + hour), None);
        assert_eq!(state.clock(), Seconds(1000 + hour).start(), "an hour is no jump");
        let mut state = self::state(default(10), 1000);
        state.advance(jump, vouchers(2).as_ref());
        assert_eq!(state.clock(), jump.lo());
    }

    #[test]
    fn half_of_an_even_number_of_clocks_is_enough_where_the_others_say_nothing() {
        let needed = |nodes: usize| -> Vec<usize> {
            (1..=nodes).map(|known| clocks_needed(nodes, known)).collect()
        };
        assert_eq!(needed(1), [1]);
        assert_eq!(needed(2), [2, 2]);
        assert_eq!(needed(3), [2, 2, 2]);
        assert_eq!(needed(4), [2, 2, 2, 3]);
        assert_eq!(needed(5), [3, 3, 3, 3, 3]);
        assert_eq!(needed(6), [3, 3, 3, 3, 3, 4]);
    }

    #[test]
    fn t4_no_minority_of_wrong_clocks_vouches_whoever_is_silent() {
        let (truth, far) = (Millis(1_000_000), Millis(90_000_000));
        for nodes in 1..=9_u32 {
            let wrong_max = nodes - (nodes / 2 + 1);
            for wrong in 0..=wrong_max {
                for right in 0..=nodes - wrong {
                    let readings =
                        [vec![far; wrong as usize], vec![truth; right as usize]].concat();
                    let vouchers = Vouchers { readings, nodes };
                    assert!(!vouchers.vouch_for(far), "{wrong} of {nodes}, {right} right ones");
                }
            }
        }
    }

    #[test]
    fn a_first_reading_is_no_jump() {
        let grace = Millis(3_600_000);
        let mut state = TtlState::default();
        assert!(state.set_policy(default(10), PolicyEpoch(1)));
        let today = at(1_764_000_000);
        state.advance(today, Some(&Vouchers { readings: vec![today.lo()], nodes: 1 }));
        assert_eq!((state.clock(), state.jumped_to()), (today.lo(), None));
        assert!(!state.keeps_the_dead(grace));
    }

    #[test]
    fn after_a_jump_the_dead_are_kept_for_a_while() {
        let grace = Millis(3_600_000);
        let mut state = state(default(10), 1000);
        state.advance(at(100_000), Some(&vouched()));
        assert_eq!(state.jumped_to(), Some(Seconds(100_000).start()));
        assert!(state.keeps_the_dead(grace));
        assert!(!state.keeps_the_dead(Millis(0)));
        state.advance(at(103_599), None);
        assert!(state.keeps_the_dead(grace));
        state.advance(at(103_600), None);
        assert!(!state.keeps_the_dead(grace));
    }
}
