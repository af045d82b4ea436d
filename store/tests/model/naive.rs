//! The rules of `docs/TTL.md`, sections 1 to 3, as a naive reader would follow them: every version
//! and every setting there ever was is kept, in plain integers, and looked through each time anew.

use crate::history::{Condition, IDS, KEYS, Operation, Write};
use crate::world::unique;

/// How far the partition clock moves at once without vouchers, and how far one may lag; milliseconds.
const JUMP: u64 = 3_600_000;
const VOUCH_SLACK: u64 = 2000;
/// Nodes whose clocks can vouch.
pub(crate) const NODES: usize = 3;

/// Everything that ever happened.
#[derive(Clone, Default)]
pub(crate) struct Model {
    versions: Vec<Version>,
    /// The clock in seconds, and the `defaultTtl` in force: at first, and after every entry.
    moments: Vec<(u64, Option<i64>)>,
    pub(crate) clock: u64,
    pub(crate) last_ts: u64,
    pub(crate) default_ttl: Option<i64>,
    pub(crate) epoch: u64,
    jumped_to: Option<u64>,
    /// How many entries there were.
    entries: u64,
}

/// A version of an item.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) id: u8,
    pub(crate) ts: u64,
    pub(crate) ttl: Option<i64>,
    pub(crate) serial: u64,
    pub(crate) number: Number,
    /// What it has of the unique key.
    pub(crate) unique: u64,
    /// The first moment it saw, and the first that it did not, if it was deleted.
    since: usize,
    deleted: Option<usize>,
    /// True if it was deleted with its logical partition.
    cleared: bool,
}

/// What a write answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Created,
    Replaced,
    Deleted,
    Read,
    NotModified,
}

/// What a write is refused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    NotFound,
    Conflict,
    UniqueKeyTaken,
    PreconditionFailed,
    InvalidTtl,
    PatchFailed,
}

/// What an item is known by: the entry that created it, and the operation of that.
pub(crate) type Number = (u64, u16);

/// An effect, and the version it is about: stamp, serial, number of the item.
pub(crate) type Answer = (Effect, u64, u64, Number);

/// The matrix: when a version expires under a container's `defaultTtl`.
fn expiry(default_ttl: Option<i64>, version: &Version) -> Option<u64> {
    let seconds = version.ttl.or(default_ttl).filter(|_| default_ttl.is_some())?;
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(|seconds| version.ts + seconds)
}

impl Model {
    /// R1, and the first promise: dead is what had expired at any moment since it was written, unless
    /// it was deleted before.
    pub(crate) fn is_dead(&self, version: &Version) -> bool {
        let until = version.deleted.unwrap_or(self.moments.len());
        self.moments[version.since..until].iter().any(|(clock, default_ttl)| {
            expiry(*default_ttl, version).is_some_and(|expiry| expiry <= *clock)
        })
    }

    /// When a version expires, if nothing else happens.
    pub(crate) fn expiry(&self, version: &Version) -> Option<u64> {
        expiry(self.default_ttl, version)
    }

    /// What exists, in the order in which it was written.
    pub(crate) fn live(&self) -> Vec<&Version> {
        let mut live: Vec<_> = (0..IDS).filter_map(|id| self.find(id)).collect();
        live.sort_by_key(|version| version.serial);
        live
    }

    /// True for a version that another one of its item came before.
    pub(crate) fn is_later(&self, version: &Version) -> bool {
        self.versions.iter().filter(|other| other.number == version.number).count() > 1
    }

    /// The version that exists of an item.
    pub(crate) fn find(&self, id: u8) -> Option<&Version> {
        let last = self.versions.iter().rfind(|version| version.id == id)?;
        (last.deleted.is_none() && !self.is_dead(last)).then_some(last)
    }

    /// True if the version with this serial is dead.
    pub(crate) fn has_expired(&self, serial: u64) -> bool {
        self.versions.iter().any(|version| version.serial == serial && self.is_dead(version))
    }

    /// True if somebody deleted the version with this serial, in time.
    pub(crate) fn was_deleted(&self, serial: u64) -> bool {
        let is_deleted = |version: &Version| version.serial == serial && version.deleted.is_some();
        self.versions.iter().any(is_deleted) && !self.has_expired(serial)
    }

    /// True if the last version of an item was deleted with its logical partition.
    pub(crate) fn is_cleared(&self, id: u8) -> bool {
        self.versions.iter().rfind(|version| version.id == id).is_some_and(|last| last.cleared)
    }

    /// The first step of every entry.
    pub(crate) fn advance(&mut self, lo: u64, hi: u64, readings: &[u64]) {
        self.entries += 1;
        let jumps = lo > self.clock + JUMP;
        let vouching = readings.iter().filter(|reading| **reading + VOUCH_SLACK >= lo).count();
        if !jumps || vouching * 2 > NODES {
            // A first reading is no jump of anything.
            if jumps && self.clock > 0 && self.default_ttl.is_some() {
                self.jumped_to = Some(lo);
            }
            self.clock = self.clock.max(lo);
        }
        self.last_ts = self.last_ts.max(hi.max(self.clock).div_ceil(1000));
        self.moments.push((self.clock / 1000, self.default_ttl));
    }

    /// R4; a change that is not newer is no change.
    pub(crate) fn set_policy(&mut self, default_ttl: Option<i64>, epoch: u64) {
        if epoch > self.epoch {
            (self.default_ttl, self.epoch) = (default_ttl, epoch);
            self.moments.push((self.clock / 1000, default_ttl));
        }
    }

    /// True while a sweep removes nothing, because the clock has jumped.
    pub(crate) fn keeps_the_dead(&self, grace: u64) -> bool {
        self.jumped_to.is_some_and(|to| self.clock < to + grace)
    }

    /// Deletes these items, dead or alive.
    pub(crate) fn clear(&mut self, is_cleared: impl Fn(u8) -> bool) {
        let now = self.moments.len();
        for version in self.versions.iter_mut().filter(|version| is_cleared(version.id)) {
            if version.deleted.is_none() {
                (version.deleted, version.cleared) = (Some(now), true);
            }
        }
    }

    /// A transaction: all writes happen, or none does.
    pub(crate) fn write(
        &mut self,
        writes: &[Write],
        first_serial: u64,
    ) -> Result<Vec<Answer>, (usize, Refused)> {
        let before = self.clone();
        let mut answers = Vec::new();
        for ((at, write), serial) in (0_u16..).zip(writes).zip(first_serial..) {
            match self.write_one((self.entries - 1, at), write, serial) {
                Ok(answer) => answers.push(answer),
                Err(refused) => {
                    *self = before;
                    return Err((at.into(), refused));
                }
            }
        }
        Ok(answers)
    }

    fn write_one(&mut self, new: Number, write: &Write, serial: u64) -> Result<Answer, Refused> {
        let Write { id, operation, ttl, tag, condition } = *write;
        let unique = unique(tag, serial);
        match operation {
            Operation::Create | Operation::Replace | Operation::Upsert | Operation::Rename(_) => {
                self.check(ttl)?;
            }
            Operation::Patch
            | Operation::PatchTtl
            | Operation::PatchTtlAway
            | Operation::Delete
            | Operation::Read => {}
        }
        let Some(live) = self.find(id).cloned() else {
            return match operation {
                Operation::Create | Operation::Upsert => self.create(new, id, ttl, serial, unique),
                Operation::Replace
                | Operation::Rename(_)
                | Operation::Patch
                | Operation::PatchTtl
                | Operation::PatchTtlAway
                | Operation::Delete
                | Operation::Read => Err(Refused::NotFound),
            };
        };
        if operation == Operation::Create {
            return Err(Refused::Conflict);
        }
        let answer = |effect| Ok((effect, live.ts, live.serial, live.number));
        match condition {
            Condition::None | Condition::IfMatchLast => {}
            Condition::IfNoneMatchLast if operation == Operation::Read => {
                return answer(Effect::NotModified);
            }
            Condition::IfMatchOther | Condition::IfNoneMatchLast => {
                return Err(Refused::PreconditionFailed);
            }
        }
        match operation {
            Operation::Create => unreachable!("a conflict"),
            Operation::Read => answer(Effect::Read),
            Operation::Delete => {
                self.delete(id);
                answer(Effect::Deleted)
            }
            Operation::Replace | Operation::Upsert => self.replace(&live, id, ttl, serial, unique),
            Operation::Rename(to) => {
                if self.find(to).is_some() {
                    return Err(Refused::Conflict);
                }
                self.delete(id);
                self.replace(&live, to, ttl, serial, unique)
            }
            Operation::Patch => self.patch(&live, live.ttl, serial, unique),
            Operation::PatchTtl => self.patch(&live, ttl.or(live.ttl), serial, unique),
            Operation::PatchTtlAway => match live.ttl {
                None => Err(Refused::PatchFailed),
                Some(_) => self.patch(&live, None, serial, unique),
            },
        }
    }

    fn patch(
        &mut self,
        live: &Version,
        ttl: Option<i64>,
        serial: u64,
        unique: u64,
    ) -> Result<Answer, Refused> {
        self.check(ttl)?;
        self.replace(live, live.id, ttl, serial, unique)
    }

    /// No two items that exist in one logical partition have the same.
    fn check_unique(&self, id: u8, number: Option<Number>, unique: u64) -> Result<(), Refused> {
        let is_taken = |other: &&Version| {
            other.id % KEYS == id % KEYS && Some(other.number) != number && other.unique == unique
        };
        if self.live().iter().any(is_taken) { Err(Refused::UniqueKeyTaken) } else { Ok(()) }
    }

    /// R5 while expiry is on, R6 while it is off.
    fn check(&self, ttl: Option<i64>) -> Result<(), Refused> {
        let is_valid = ttl.is_none_or(|ttl| ttl == -1 || ttl > 0);
        if is_valid || self.default_ttl.is_none() { Ok(()) } else { Err(Refused::InvalidTtl) }
    }

    fn delete(&mut self, id: u8) {
        let last = self.versions.iter_mut().rfind(|version| version.id == id);
        last.expect("what is deleted was there").deleted = Some(self.moments.len());
    }

    fn create(
        &mut self,
        number: Number,
        id: u8,
        ttl: Option<i64>,
        serial: u64,
        unique: u64,
    ) -> Result<Answer, Refused> {
        self.check_unique(id, None, unique)?;
        self.store(id, ttl, serial, unique, number);
        Ok((Effect::Created, self.last_ts, serial, number))
    }

    fn replace(
        &mut self,
        live: &Version,
        id: u8,
        ttl: Option<i64>,
        serial: u64,
        unique: u64,
    ) -> Result<Answer, Refused> {
        self.check_unique(id, Some(live.number), unique)?;
        self.store(id, ttl, serial, unique, live.number);
        Ok((Effect::Replaced, self.last_ts, serial, live.number))
    }

    fn store(&mut self, id: u8, ttl: Option<i64>, serial: u64, unique: u64, number: Number) {
        let (ts, since) = (self.last_ts, self.moments.len() - 1);
        let (deleted, cleared) = (None, false);
        let version = Version { id, ts, ttl, serial, number, unique, since, deleted, cleared };
        self.versions.push(version);
    }
}
