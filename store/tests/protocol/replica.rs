//! The replicated part of the model: one item, and the store's own `TtlState` to judge it.

use std::hash::{Hash, Hasher};
use std::num::NonZeroU32;

use ephemeris_store::codec;
use ephemeris_store::time::{ClockInterval, Millis, Seconds};
use ephemeris_store::ttl::{ItemTtl, Life, PolicyEpoch, TtlPolicy, TtlState};

/// What is built in wrongly, to see that the model notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Nothing: the protocol as it is.
    Real,
    /// A change of the policy does not capture what is dead.
    NoFloors,
    /// A doubtful read answers 404 by the reader's clock; the log does not hear of it.
    UnloggedNotFound,
    /// A doubtful read answers 200.
    DoubtIsAlive,
    /// A read takes the clock's reading before it fetches.
    ClockBeforeFetch,
    /// A node trusts its own clock.
    OwnClock,
    /// A sweep names what it removes, and apply does not look at it again.
    SweepNamesItems,
}

/// A version of the one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Version {
    pub(crate) serial: u8,
    pub(crate) ts: Seconds,
    pub(crate) ttl: Ttl,
}

/// What a version says about its time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ttl {
    Inherit,
    Own(u32),
}

impl From<Ttl> for ItemTtl {
    fn from(ttl: Ttl) -> Self {
        match ttl {
            Ttl::Inherit => ItemTtl::Inherit,
            Ttl::Own(seconds) => ItemTtl::Own(NonZeroU32::new(seconds).expect("not zero")),
        }
    }
}

/// A setting of the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Policy {
    Off,
    NoDefault,
    Default(u32),
}

impl From<Policy> for TtlPolicy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Off => TtlPolicy::Off,
            Policy::NoDefault => TtlPolicy::NoDefault,
            Policy::Default(seconds) => {
                TtlPolicy::Default(NonZeroU32::new(seconds).expect("not zero"))
            }
        }
    }
}

/// What is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Command {
    Create(Ttl),
    Upsert(Ttl),
    SetPolicy(Policy, u8),
    Advance,
    Sweep,
}

/// What a command came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// There was no version, or a dead one.
    Created {
        over: Option<Version>,
    },
    /// This version was replaced, or stood in the way.
    SawAlive(u8),
    /// The version is gone from the disk.
    Removed,
    Nothing,
}

/// What all replicas hold behind some entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    ttl: TtlState,
    pub(crate) item: Option<Version>,
    /// How many versions there ever were: the serial of the next.
    pub(crate) written: u8,
}

impl Hash for Replica {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self { ttl, item, written } = self;
        codec::encode(ttl).hash(hasher);
        (item, written).hash(hasher);
    }
}

impl Replica {
    /// An empty partition that has just learned its container's policy.
    pub(crate) fn new(policy: Policy) -> Self {
        let mut ttl = TtlState::default();
        ttl.set_policy(policy.into(), PolicyEpoch(1));
        Self { ttl, item: None, written: 0 }
    }

    /// The partition clock.
    pub(crate) fn clock(&self) -> Millis {
        self.ttl.clock()
    }

    /// Applies an entry.
    pub(crate) fn apply(
        &mut self,
        variant: Variant,
        now: ClockInterval,
        command: Command,
    ) -> Effect {
        self.ttl.advance(now, None);
        match command {
            Command::Create(ttl) => match self.item {
                Some(item) if !self.is_dead(item) => Effect::SawAlive(item.serial),
                dead => self.store(dead, ttl),
            },
            Command::Upsert(ttl) => match self.item {
                Some(item) if !self.is_dead(item) => {
                    self.store(None, ttl);
                    Effect::SawAlive(item.serial)
                }
                dead => self.store(dead, ttl),
            },
            Command::SetPolicy(policy, epoch) => {
                self.set_policy(variant, policy, PolicyEpoch(u64::from(epoch)));
                Effect::Nothing
            }
            Command::Advance => Effect::Nothing,
            Command::Sweep => match self.item {
                Some(item) if self.is_dead(item) || variant == Variant::SweepNamesItems => {
                    self.item = None;
                    Effect::Removed
                }
                Some(_) | None => Effect::Nothing,
            },
        }
    }

    fn store(&mut self, over: Option<Version>, ttl: Ttl) -> Effect {
        self.item = Some(Version { serial: self.written, ts: self.ttl.last_ts(), ttl });
        self.written += 1;
        Effect::Created { over }
    }

    fn set_policy(&mut self, variant: Variant, policy: Policy, epoch: PolicyEpoch) {
        if variant == Variant::NoFloors && epoch > self.ttl.epoch() {
            // As if expiry had never been on before: the same clock and stamps, and no floors.
            let now = ClockInterval::new(self.ttl.clock(), self.ttl.last_ts().start());
            self.ttl = TtlState::default();
            self.ttl.advance(now, None);
        }
        self.ttl.set_policy(policy.into(), epoch);
    }

    /// True if a version no longer exists, by the log.
    pub(crate) fn is_dead(&self, version: Version) -> bool {
        self.ttl.has_expired(version.ttl.into(), version.ts)
    }

    /// The same, if there never had been another policy.
    pub(crate) fn is_dead_by_clock(&self, version: Version) -> bool {
        self.expiry(version).is_some_and(|expiry| expiry <= self.ttl.clock())
    }

    /// When a version expires, if nothing else happens.
    pub(crate) fn expiry(&self, version: Version) -> Option<Millis> {
        self.ttl.expiry(version.ttl.into(), version.ts).map(Seconds::start)
    }

    /// Judges the stored version for a reader whose clock may read as late as `hi`.
    pub(crate) fn judge(&self, hi: Millis) -> Life {
        match self.item {
            None => Life::Dead,
            Some(item) => self.ttl.judge(item.ttl.into(), item.ts, hi),
        }
    }

    /// The same, as another node takes it up from a snapshot.
    pub(crate) fn through_a_snapshot(&self) -> Self {
        let ttl = codec::decode(&codec::encode(&self.ttl)).expect("it was just encoded");
        Self { ttl, ..*self }
    }
}
