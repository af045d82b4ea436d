//! The one rule that decides whether a version of an item exists.
//!
//! A version ends in one of two ways: its time is over (`TtlState`), or its logical partition is
//! deleted (`Cleared`). Its rows go later; every path asks here, so that nobody can tell.

use super::apply::Draft;
use super::{Cleared, Contents, Fetched, PartitionView};
use crate::item::{Item, ItemKey, Stamp};
use crate::time::Millis;
use crate::ttl::{Life, TtlState};

/// How a version ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its time was over.
    Expired,
    /// It was deleted with its logical partition, in time.
    Deleted,
}

/// What a partition knows of the ends of versions.
#[derive(Clone, Copy)]
struct Liveness<'a> {
    ttl: &'a TtlState,
    cleared: &'a Cleared,
}

impl<'a> Liveness<'a> {
    fn by(contents: &'a Contents) -> Self {
        Self { ttl: contents.state.ttl(), cleared: &contents.cleared }
    }

    /// How a version ended, as far as the log says; none if it exists. What comes first counts.
    fn end(&self, item: &[u8], stamp: &Stamp) -> Option<End> {
        let clearing = self.cleared.clearing(item, stamp.lsn);
        let ttl = clearing.map_or(self.ttl, |clearing| &clearing.ttl);
        if ttl.has_expired(stamp.ttl, stamp.ts) {
            return Some(End::Expired);
        }
        clearing.map(|_| End::Deleted)
    }

    /// Judges a version for a reader whose clock may read as late as `hi`.
    fn judge(&self, item: &[u8], stamp: &Stamp, hi: Millis) -> Life {
        match self.cleared.clearing(item, stamp.lsn) {
            Some(_) => Life::Dead,
            None => self.ttl.judge(stamp.ttl, stamp.ts, hi),
        }
    }
}

impl Draft<'_> {
    /// How a stored version ended, by the bytes of its `ItemKey` and its stamp; none if it exists.
    pub(super) fn end(&self, item: &[u8], stamp: &Stamp) -> Option<End> {
        let liveness = Liveness { ttl: self.state.ttl(), cleared: &self.cleared };
        liveness.end(item, stamp)
    }

    pub(super) fn is_dead(&self, key: &ItemKey, item: &Item) -> bool {
        self.end(key.as_bytes(), &item.stamp).is_some()
    }
}

impl PartitionView {
    /// Judges a version, by the bytes of its `ItemKey` and its stamp, for a reader whose clock may read
    /// as late as `hi`.
    pub fn judge(&self, item: &[u8], stamp: &Stamp, hi: Millis) -> Life {
        Liveness::by(&self.contents).judge(item, stamp, hi)
    }
}

impl Fetched<'_> {
    /// Judges what was fetched for a reader whose clock may read as late as `hi`.
    pub fn judge(&self, hi: Millis) -> Life {
        let Some(item) = &self.item else { return Life::Dead };
        Liveness::by(&self.contents).judge(self.key.as_bytes(), &item.stamp, hi)
    }
}
