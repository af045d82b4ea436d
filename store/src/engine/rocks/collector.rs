//! Drops garbage while RocksDB compacts the index, and sees to it that it does.
//!
//! A compaction drops rows for everybody, whatever they read. So it goes by what is on disk, which a crash
//! does not undo, and by what every view in use has reached: by a flush that is older than all of them.

use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rocksdb::compaction_filter::{CompactionFilter, Decision};
use rocksdb::compaction_filter_factory::{CompactionFilterContext, CompactionFilterFactory};

use crate::partition::Garbage;

/// So many items must have gone, and as many as there are, before the index is compacted for their sake.
const GONE_MIN: u64 = 50_000;

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
    /// How many items had gone when the index was compacted for their sake: none, as far as a process knows
    /// that has just begun.
    collected: u64,
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

    /// Takes over what is garbage by what a flush has made durable. True if the index should be compacted.
    pub(super) fn flushed(&self, garbage: Garbage) -> bool {
        let mut known = self.known();
        if known.next.is_none() {
            let age = std::mem::take(&mut known.age);
            known.next = Some((Arc::new(garbage), Arc::downgrade(&age)));
        }
        let (items, gone) = known.garbage().items_and_gone();
        let is_due = gone.saturating_sub(known.collected) >= items.max(GONE_MIN);
        // Fewer have gone if a group has left with all it had.
        if is_due || gone < known.collected {
            known.collected = gone;
        }
        is_due
    }
}

impl CompactionFilterFactory for Collector {
    type Filter = Filter;

    fn create(&mut self, _: CompactionFilterContext) -> Filter {
        Filter(self.known().garbage())
    }

    fn name(&self) -> &CStr {
        c"garbage"
    }
}

/// Drops garbage from one compaction.
pub(super) struct Filter(Arc<Garbage>);

impl CompactionFilter for Filter {
    fn filter(&mut self, _level: u32, key: &[u8], value: &[u8]) -> Decision {
        if self.0.holds(key, value) { Decision::Remove } else { Decision::Keep }
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
        let dropped_by = || collector.known().garbage().items_and_gone();
        let flush = |gone| collector.flushed(Garbage::of(0, gone));
        flush(1);
        assert_eq!(dropped_by(), (0, 1), "nobody reads");
        let (one, other) = (collector.age(), collector.age());
        flush(2);
        flush(3);
        let later = collector.age();
        drop(one);
        assert_eq!(dropped_by(), (0, 1), "a view is in use that has not reached it");
        drop(other);
        assert_eq!(dropped_by(), (0, 2));
        flush(4);
        assert_eq!(dropped_by(), (0, 2));
        drop(later);
        assert_eq!(dropped_by(), (0, 4));
    }

    #[test]
    fn the_index_is_compacted_once_as_many_items_have_gone_as_there_are() {
        let collector = Collector::default();
        let is_due = |items, gone| collector.flushed(Garbage::of(items, gone));
        assert!(!is_due(0, 49_999));
        assert!(is_due(0, 50_000));
        assert!(!is_due(200_000, 249_999));
        assert!(is_due(200_000, 250_000));
        assert!(!is_due(0, 10), "a group has left");
        assert!(is_due(0, 50_010));
    }
}
