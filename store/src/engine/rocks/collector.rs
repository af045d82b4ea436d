//! Drops garbage while RocksDB compacts, and sees to it that it does.
//!
//! A compaction drops rows for everybody, whatever they read. So it goes by what is on disk, which a crash
//! does not undo, and by what every view in use has reached: by a flush that is older than all of them.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rocksdb::compaction_filter::{CompactionFilter, Decision};
use rocksdb::compaction_filter_factory::{CompactionFilterContext, CompactionFilterFactory};

use crate::engine::{Fault, Read, Table};
use crate::ids::GroupId;
use crate::partition::Garbage;

/// So many bytes must have been left, and as many as are stored, before all is compacted for their sake.
const LEFT_MIN: u64 = 16 << 20;

/// Knows what is garbage.
#[derive(Clone, Default)]
pub(super) struct Collector(Arc<Mutex<Known>>);

/// Held by a view: it was made before the next flush.
pub(super) type Age = Arc<()>;

#[derive(Default)]
struct Known {
    /// By this compactions go.
    garbage: Arc<Garbage>,
    /// What a flush has found, until the views that were made before are gone.
    next: Option<(Arc<Garbage>, Weak<()>)>,
    /// That of views that are made now.
    age: Age,
    /// How many bytes each group had left when all was compacted for their sake: none, as far as a process knows
    /// that has just begun. One that came since has left what it had left elsewhere.
    collected: BTreeMap<GroupId, u64>,
    /// True once there was a flush.
    has_begun: bool,
    /// How many groups began anew, or left.
    forgotten: u64,
}

/// What is garbage by what a flush is about to make durable.
pub(super) struct Found {
    garbage: Garbage,
    /// How many groups began anew before it was found.
    forgotten: u64,
}

impl Known {
    /// What a compaction that begins now may drop.
    fn garbage(&mut self) -> Arc<Garbage> {
        if let Some((garbage, _)) = self.next.take_if(|(_, age)| age.strong_count() == 0) {
            self.garbage = garbage;
        }
        self.garbage.clone()
    }
}

impl Collector {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The age of a view that is made hereafter.
    pub(super) fn age(&self) -> Age {
        self.known().age.clone()
    }

    /// A group's rows were removed. If the group is to have others, those begin at a state which is not as far as
    /// this one was.
    pub(super) fn forget(&self, group: GroupId) {
        let mut known = self.known();
        known.forgotten += 1;
        known.collected.remove(&group);
        Arc::make_mut(&mut known.garbage).forget(group);
        if let Some((garbage, _)) = &mut known.next {
            Arc::make_mut(garbage).forget(group);
        }
    }

    /// Finds what is garbage, before a flush, in a view that is made after it was noted what was forgotten.
    pub(super) fn find(&self, view: impl FnOnce() -> Arc<dyn Read>) -> Result<Found, Fault> {
        let forgotten = self.known().forgotten;
        Ok(Found { garbage: Garbage::load(view().as_ref())?, forgotten })
    }

    /// Takes over what was found, once it is durable. True if what is littered should be compacted.
    pub(super) fn flushed(&self, found: Found) -> bool {
        let mut known = self.known();
        known.garbage();
        if !std::mem::replace(&mut known.has_begun, true) {
            known.collected = found.garbage.left().keys().map(|group| (*group, 0)).collect();
        }
        if known.next.is_none() && known.forgotten == found.forgotten {
            let age = std::mem::take(&mut known.age);
            known.next = Some((Arc::new(found.garbage), Arc::downgrade(&age)));
        }
        let garbage = known.garbage();
        let waits = |(group, left): (&GroupId, &u64)| {
            left.saturating_sub(*known.collected.entry(*group).or_insert(*left))
        };
        let waiting: u64 = garbage.left().iter().map(waits).sum();
        waiting >= garbage.stored().max(LEFT_MIN)
    }

    /// All is being compacted for the sake of what is garbage now.
    pub(super) fn collects(&self) {
        let mut known = self.known();
        known.collected = known.garbage().left().clone();
    }
}

/// Makes what drops the garbage of one table.
pub(super) struct FilterFactory {
    pub(super) collector: Collector,
    pub(super) table: Table,
}

impl CompactionFilterFactory for FilterFactory {
    type Filter = Filter;

    fn create(&mut self, _: CompactionFilterContext) -> Filter {
        Filter { garbage: self.collector.known().garbage(), table: self.table }
    }

    fn name(&self) -> &CStr {
        c"garbage"
    }
}

/// Drops garbage from one compaction.
pub(super) struct Filter {
    garbage: Arc<Garbage>,
    table: Table,
}

impl CompactionFilter for Filter {
    fn filter(&mut self, _level: u32, key: &[u8], value: &[u8]) -> Decision {
        let is_garbage = self.garbage.holds(self.table, key, value);
        if is_garbage { Decision::Remove } else { Decision::Keep }
    }

    fn name(&self) -> &CStr {
        c"garbage"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_view_in_use_may_show_is_not_dropped() {
        let collector = Collector::default();
        let dropped_by = || collector.known().garbage().left()[&GROUP];
        let flush = |left| flush(&collector, 0, [left]);
        flush(1);
        assert_eq!(dropped_by(), 1, "nobody reads");
        let (one, other) = (collector.age(), collector.age());
        flush(2);
        flush(3);
        let later = collector.age();
        drop(one);
        assert_eq!(dropped_by(), 1, "a view is in use that has not reached it");
        drop(other);
        assert_eq!(dropped_by(), 2);
        flush(4);
        assert_eq!(dropped_by(), 2);
        drop(later);
        assert_eq!(dropped_by(), 4);
    }

    #[test]
    fn what_was_known_of_a_group_that_begins_anew_is_forgotten() {
        let collector = Collector::default();
        let knows = || !collector.known().garbage().is_empty();
        flush(&collector, 0, [1]);
        assert!(knows());
        let view = collector.age();
        flush(&collector, 0, [2]);
        let forgotten = collector.known().forgotten;
        let found = Found { garbage: Garbage::of(0, [(GROUP, 3)]), forgotten };
        collector.forget(GROUP);
        assert!(!knows());
        drop(view);
        assert!(!knows(), "what a flush had found is forgotten, too");
        collector.flushed(found);
        assert!(!knows(), "and what one had found that ends later");
        flush(&collector, 0, [4]);
        assert!(knows());
    }

    #[test]
    fn all_is_compacted_once_as_much_was_left_as_is_stored() {
        let collector = Collector::default();
        let is_due = |stored, left| flush(&collector, stored, [left]);
        assert!(!is_due(0, LEFT_MIN - 1));
        assert!(is_due(0, LEFT_MIN));
        assert!(is_due(0, LEFT_MIN), "it is not under way");
        collector.collects();
        assert!(!is_due(4 * LEFT_MIN, 5 * LEFT_MIN - 1));
        assert!(is_due(4 * LEFT_MIN, 5 * LEFT_MIN));
    }

    #[test]
    fn what_a_group_left_elsewhere_or_took_away_counts_for_nothing() {
        let collector = Collector::default();
        let is_due = |left| flush(&collector, 0, left);
        assert!(is_due(vec![LEFT_MIN, 0]), "it was there when the process began");
        collector.collects();
        assert!(!is_due(vec![LEFT_MIN, LEFT_MIN - 1, 9 * LEFT_MIN]), "the last one has come");
        collector.forget(GROUP);
        assert!(!is_due(vec![9 * LEFT_MIN, LEFT_MIN - 1, 9 * LEFT_MIN]), "the first, again");
        assert!(is_due(vec![9 * LEFT_MIN, LEFT_MIN, 9 * LEFT_MIN]));
    }

    const GROUP: GroupId = GroupId(1);

    /// A flush that finds so many bytes stored, and so many left by each of some groups.
    fn flush(collector: &Collector, stored: u64, left: impl IntoIterator<Item = u64>) -> bool {
        let forgotten = collector.known().forgotten;
        let left = (GROUP.0..).map(GroupId).zip(left);
        collector.flushed(Found { garbage: Garbage::of(stored, left), forgotten })
    }
}
