//! When the next item falls due: derived from the state, kept in memory, never replicated.
//!
//! The leader's sweeper sleeps until then. Writes can only bring the moment closer, which `apply`
//! notes; a sweep or a change of policy moves it, which a few seeks find out. So do they when the item
//! behind those that are dead falls due, for a sweeper that may not remove them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::feed::find_place;
use super::{Partition, PartitionState, SweepCursors};
use crate::engine::{Fault, KeyRange};
use crate::item::Stamp;
use crate::time::Seconds;
use crate::timeline::{OwnExpiry, VersionRow, expiry_place};
use crate::ttl::TtlPolicy;

/// The earliest second in which something may fall due; unknown at first, which counts as now.
pub(super) struct Due(AtomicU64);

const NOTHING: u64 = u64::MAX;
/// Later than any item expires.
const SECOND_MAX: Seconds = Seconds(u64::MAX - 1);

impl Default for Due {
    fn default() -> Self {
        Due(AtomicU64::new(0))
    }
}

impl Due {
    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    /// Something was written that expires in this second.
    pub(super) fn note(&self, expiry: Option<Seconds>) {
        if let Some(Seconds(expiry)) = expiry {
            self.0.fetch_min(expiry, Ordering::SeqCst);
        }
    }

    fn get(&self) -> Option<Seconds> {
        let second = self.0.load(Ordering::SeqCst);
        (second != NOTHING).then_some(Seconds(second))
    }
}

impl Partition {
    /// The earliest second in which an item may fall due or wait to be swept, or a record of what happened
    /// to be dropped, as far as is known; none if nothing ever will, unless something is written.
    pub fn due(&self) -> Option<Seconds> {
        self.due.get()
    }

    /// Looks up when the next item falls due, and remembers it.
    pub fn find_due(&self) -> Result<Option<Seconds>, Fault> {
        // Cleared first: what is written while we look is noted on top, or seen by us.
        self.due.0.store(NOTHING, Ordering::SeqCst);
        let found = [self.due_own()?, self.due_inheriting()?, self.due_to_trim()?];
        let found = found.into_iter().flatten().min();
        self.due.note(found);
        Ok(self.due())
    }

    /// The earliest second behind the partition clock's in which an item may fall due, whatever waits to be
    /// swept; none if nothing ever will, unless something is written.
    pub fn next_due(&self) -> Result<Option<Seconds>, Fault> {
        let state = self.state();
        let default = match state.ttl.policy() {
            TtlPolicy::Off => return Ok(None),
            TtlPolicy::NoDefault => None,
            TtlPolicy::Default(seconds) => Some(seconds.get()),
        };
        let dead = OwnExpiry::end_of(state.ttl.clock().floor_seconds());
        let behind = SweepCursors { own: Some(dead), ..state.swept };
        let own = self.first_expiry(&behind.unswept_own(&self.spec, SECOND_MAX))?;
        let inheriting = match default {
            Some(seconds) => self.first_undead(&state)?.map(|ts| ts.plus(seconds)),
            None => None,
        };
        Ok([own, inheriting].into_iter().flatten().min())
    }

    /// The first expiry among the items with their own `ttl` that were not swept.
    fn due_own(&self) -> Result<Option<Seconds>, Fault> {
        let state = self.state();
        let through = match state.ttl.policy() {
            TtlPolicy::Off => match state.ttl.own_dead_through() {
                Some(floor) => floor,
                None => return Ok(None),
            },
            TtlPolicy::NoDefault | TtlPolicy::Default(_) => SECOND_MAX,
        };
        self.first_expiry(&state.swept.unswept_own(&self.spec, through))
    }

    /// The earliest second in which an inheriting item can fall due: items die in the order of their
    /// last write, so the first one that was not passed bounds them all.
    fn due_inheriting(&self) -> Result<Option<Seconds>, Fault> {
        let state = self.state();
        let default = match state.ttl.policy() {
            TtlPolicy::Default(seconds) => Some(seconds.get()),
            TtlPolicy::Off | TtlPolicy::NoDefault => None,
        };
        let through = state.ttl.inheriting_dead_through();
        if default.is_none() && through.is_none() {
            return Ok(None);
        }
        let first = self.first_version(&state.swept.unswept_feed(&self.spec))?;
        let Some(first) = first.map(|version| version.stamp.ts) else { return Ok(None) };
        if through.is_some_and(|through| first <= through) {
            return Ok(Some(state.ttl.clock().floor_seconds()));
        }
        Ok(default.map(|seconds| first.plus(seconds)))
    }

    /// The stamp of the first version in the feed that would not be dead if it inherited.
    fn first_undead(&self, state: &PartitionState) -> Result<Option<Seconds>, Fault> {
        let through = state.ttl.inheriting_dead_through();
        let feed = state.swept.unswept_feed(&self.spec);
        let passed = state.swept.inheriting.map_or(0, |passed| passed.lsn.0);
        let entries = passed..state.lsn().0 + 1;
        let is_dead = |stamp: &Stamp| Ok(through.is_some_and(|through| stamp.ts <= through));
        let place = find_place(&*self.engine, self.spec.group, &feed, entries, passed, is_dead)?;
        Ok(place.first.map(|stamp| stamp.ts))
    }

    /// The second of the first row in a part of the order of expiry.
    fn first_expiry(&self, range: &KeyRange) -> Result<Option<Seconds>, Fault> {
        let first = self.engine.scan(range).next().transpose()?;
        first.map(|(key, _)| Ok(expiry_place(&key)?.second)).transpose()
    }

    /// The first row in a part of the feed.
    fn first_version(&self, range: &KeyRange) -> Result<Option<VersionRow>, Fault> {
        let first = self.engine.scan(range).next().transpose()?;
        first.map(|(_, version)| VersionRow::decode(&version)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use super::*;
    use crate::codec;
    use crate::command::{Action, Command, ItemWrite, Precondition, Proposal};
    use crate::document::Document;
    use crate::engine::MemoryEngine;
    use crate::ids::{ContainerNumber, DatabaseNumber, GroupId, ItemId, Lsn};
    use crate::item::ItemKey;
    use crate::machine::{Entry, LogId, Machine as _};
    use crate::partition::PartitionSpec;
    use crate::partition_key::{KeyDefinition, KeyKind, PartitionKey, SlotRange};
    use crate::time::{ClockInterval, Millis};
    use crate::timeline::FeedPosition;
    use crate::ttl::{PolicyEpoch, TimeToLive, TtlField};

    fn partition() -> Partition {
        let container = ContainerNumber { database: DatabaseNumber(1), number: 1 };
        let spec = PartitionSpec { group: GroupId(1), container, slots: SlotRange::ALL };
        Partition::open(Arc::new(MemoryEngine::new()), spec).unwrap()
    }

    fn apply(partition: &Partition, second: u64, command: Command) {
        let now = ClockInterval::exact(Seconds(second).start());
        let bytes = codec::encode(&Proposal { now, vouchers: None, command });
        let index = partition.progress().applied.map_or(0, |applied| applied.index + 1);
        partition.apply(LogId { term: 1, index }, Entry::Command(&bytes)).unwrap();
    }

    fn upsert(id: &str, ttl: Option<i64>) -> Command {
        let definition = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
        let value = PartitionKey::parse("[1]").unwrap();
        let id = ItemId::try_from(id.to_string()).unwrap();
        let key = ItemKey::new(&definition.place(&value), &value, &id);
        let valid = |ttl| TtlField::Valid(TimeToLive::from_seconds(ttl).unwrap());
        let ttl = ttl.map_or(TtlField::Absent, valid);
        let action = Action::Upsert(Document { body: b"{}"[..].into(), ttl, indexed_values: 0 });
        Command::Write(vec![ItemWrite { key, precondition: Precondition::None, action }])
    }

    fn set_default(seconds: u32, epoch: u64) -> Command {
        let policy = TtlPolicy::Default(NonZeroU32::new(seconds).unwrap());
        Command::SetTtlPolicy { epoch: PolicyEpoch(epoch), policy, retention: None }
    }

    #[test]
    fn what_falls_due_next_is_found_behind_what_is_dead_and_not_swept() {
        let partition = partition();
        let next = || partition.next_due().unwrap().map(|Seconds(second)| second);
        apply(&partition, 100, upsert("off", Some(5)));
        assert_eq!(next(), None, "nothing expires");
        apply(&partition, 100, set_default(50, 1));
        assert_eq!(next(), Some(105));
        for second in 101..=120 {
            apply(&partition, second, upsert(&format!("default{second}"), None));
        }
        apply(&partition, 120, upsert("own", Some(32)));
        // "off" is dead, and nobody sweeps. Its row in the feed stands for 150.
        let mut seen = Vec::new();
        while let Some(second) = next() {
            seen.push(second);
            apply(&partition, second, Command::AdvanceClock);
        }
        assert_eq!(seen, (150..=170).collect::<Vec<u64>>());
        assert_eq!(partition.find_due().unwrap(), Some(Seconds(105)), "all of it is to be swept");

        let sweep = Command::Sweep { limit: NonZeroU32::new(10).unwrap(), grace: Millis(0) };
        apply(&partition, 170, sweep);
        apply(&partition, 170, upsert("late", None));
        assert_eq!(next(), Some(220), "half of the dead are gone");
    }

    #[test]
    fn sweeps_leave_behind_what_was_removed_before_the_first_row_that_stays() {
        let partition = partition();
        let sweep = || Command::Sweep { limit: NonZeroU32::new(10).unwrap(), grace: Millis(0) };
        let passed = || partition.state().swept.inheriting;
        apply(&partition, 100, set_default(50, 1));
        for second in 101..=103 {
            apply(&partition, second, upsert(&format!("own{second}"), Some(5)));
        }
        apply(&partition, 104, upsert("stays", None));
        apply(&partition, 105, upsert("own105", Some(5)));
        let at = |lsn: u64| Some(FeedPosition::end_of(Lsn(lsn)));
        let last = partition.state().lsn().0;
        apply(&partition, 110, sweep());
        assert_eq!(passed(), at(last - 5), "the first row goes with this sweep");
        apply(&partition, 111, sweep());
        assert_eq!(passed(), at(last - 2), "the first row is the one that stays");
        apply(&partition, 154, sweep());
        assert_eq!(passed(), at(last + 3), "no row is left behind the sweep itself");
        assert_eq!(partition.state().items(), 0);
        apply(&partition, 155, upsert("late", None));
        assert_eq!(partition.find_due().unwrap(), Some(Seconds(205)));
    }
}
