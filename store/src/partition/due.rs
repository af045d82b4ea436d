//! When the next item falls due: derived from the state, kept in memory, never replicated.
//!
//! The leader's sweeper sleeps until then. Writes can only bring the moment closer, which `apply`
//! notes; a sweep or a change of policy moves it, which a few seeks find out.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Partition;
use crate::engine::Fault;
use crate::item::{VersionRow, expiry_place};
use crate::time::Seconds;
use crate::ttl::TtlPolicy;

/// The earliest second in which something may fall due; unknown at first, which counts as now.
pub(super) struct Due(AtomicU64);

const NOTHING: u64 = u64::MAX;

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

    /// The first expiry among the items with their own `ttl` that were not swept.
    fn due_own(&self) -> Result<Option<Seconds>, Fault> {
        let state = self.state();
        let through = match state.ttl.policy() {
            TtlPolicy::Off => match state.ttl.own_dead_through() {
                Some(floor) => floor,
                None => return Ok(None),
            },
            TtlPolicy::NoDefault | TtlPolicy::Default(_) => Seconds(u64::MAX - 1),
        };
        let range = state.swept.unswept_own(&self.spec, through);
        let first = self.engine.scan(&range).next().transpose()?;
        first.map(|(key, _)| Ok(expiry_place(&key)?.second)).transpose()
    }

    /// The earliest second in which an inheriting item can fall due: items die in the order of their
    /// last write, so the first one that was not passed bounds them all.
    fn due_inheriting(&self) -> Result<Option<Seconds>, Fault> {
        let state = self.state();
        let range = state.swept.unswept_feed(&self.spec);
        let Some(row) = self.engine.scan(&range).next() else { return Ok(None) };
        let first = VersionRow::decode(&row?.1)?.stamp.ts;
        if state.ttl.inheriting_dead_through().is_some_and(|through| first <= through) {
            return Ok(Some(state.ttl.clock().floor_seconds()));
        }
        Ok(match state.ttl.policy() {
            TtlPolicy::Default(seconds) => Some(first.plus(seconds.get())),
            TtlPolicy::Off | TtlPolicy::NoDefault => None,
        })
    }
}
