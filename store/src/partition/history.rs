//! What happened to items, version by version, for the change feed of all versions and deletes
//! (`docs/TTL.md` R13): only where the container retains it, and for so long.
//!
//! 1. Every version that comes, is replaced or goes leaves a record, in the entry that did it and in the
//!    order in which it happened. A version that expired, or was deleted with its logical partition, is
//!    recorded when its rows go, which happens once: by a sweep, or by a write that takes its place, and
//!    then before that write.
//! 2. A sweep drops the oldest records when their time is over.
//! 3. `history_start` says from where on nothing is missing: who read less far than that has lost
//!    changes, and is told so.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::apply::Draft;
use super::liveness::End;
use super::{Partition, PartitionSpec, PartitionState, PartitionView};
use crate::codec;
use crate::engine::{Fault, KeyRange, Table};
use crate::item::{Item, ItemKey};
use crate::time::Seconds;
use crate::timeline::{FeedPosition, feed_key, feed_position};

/// How long a container remembers what happened, in minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention(pub NonZeroU32);

const SECONDS_PER_MINUTE: u64 = 60;
/// Records that one sweep may drop, and bytes of them that it may read: bounds the time of one apply.
const TRIMMED_MAX: u32 = 2000;
const TRIMMED_BYTES_MAX: usize = 4 << 20;

impl Retention {
    /// When what was recorded at `at` is not kept any more.
    fn end(self, at: Seconds) -> Seconds {
        Seconds(at.0.saturating_add(u64::from(self.0.get()) * SECONDS_PER_MINUTE))
    }
}

/// Something that happened to an item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeRecord {
    /// When: the stamp of the entry.
    pub at: Seconds,
    /// The item.
    pub key: ItemKey,
    /// What happened.
    pub change: Change,
}

/// What happened, with the versions it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// There was no such item.
    Created {
        /// What is there now.
        current: Image,
    },
    /// There was one.
    Replaced {
        /// What is there now.
        current: Image,
        /// What was there before.
        previous: Image,
    },
    /// A client deleted it.
    Deleted {
        /// What was there.
        previous: Image,
    },
    /// Its time was over.
    Expired {
        /// What was there.
        previous: Image,
    },
}

impl Change {
    /// Bytes of its versions.
    pub fn bytes(&self) -> usize {
        match self {
            Change::Created { current: Image(one) }
            | Change::Deleted { previous: Image(one) }
            | Change::Expired { previous: Image(one) } => one.len(),
            Change::Replaced { current: Image(one), previous: Image(other) } => {
                one.len() + other.len()
            }
        }
    }
}

/// A version, as it was stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image(#[serde(with = "serde_bytes")] Vec<u8>);

impl Image {
    fn of(item: &Item) -> Self {
        Self(item.encode())
    }

    /// The version.
    pub fn decode(&self) -> Result<Item, Fault> {
        Item::decode(self.0.clone())
    }
}

impl PartitionSpec {
    fn history(&self) -> KeyRange {
        KeyRange::prefix(Table::History, self.group.0.to_be_bytes().to_vec())
    }
}

impl PartitionState {
    /// True if what happens is remembered.
    pub fn remembers(&self) -> bool {
        self.retention.is_some()
    }

    /// Everything behind this place is remembered, if anything is.
    pub fn history_start(&self) -> FeedPosition {
        self.history_start
    }

    /// Takes over how long what happens is remembered, from this place on if it was not before.
    pub(super) fn set_retention(&mut self, retention: Option<Retention>, here: FeedPosition) {
        if self.retention.is_none() {
            self.history_start = here;
        }
        self.retention = retention;
    }

    /// When a record is not kept any more.
    fn end_of(&self, record: &ChangeRecord) -> Seconds {
        self.retention.map_or(Seconds(0), |retention| retention.end(record.at))
    }
}

fn decode(bytes: &[u8]) -> Result<ChangeRecord, Fault> {
    codec::decode(bytes).map_err(|error| Fault::corrupt("history", error))
}

impl Draft<'_> {
    /// Records that a version has come, in place of the live one if there was one.
    pub(super) fn record_stored(&mut self, key: &ItemKey, item: &Item, replaced: Option<&Item>) {
        self.record(key, || {
            let current = Image::of(item);
            match replaced.map(Image::of) {
                None => Change::Created { current },
                Some(previous) => Change::Replaced { current, previous },
            }
        });
    }

    /// Records that a version goes, and its rows with this entry: that it has expired, or that it is
    /// deleted, now or since its logical partition was.
    pub(super) fn record_removed(&mut self, key: &ItemKey, item: &Item) {
        let end = self.end(key.as_bytes(), &item.stamp).unwrap_or(End::Deleted);
        self.record(key, || {
            let previous = Image::of(item);
            match end {
                End::Expired => Change::Expired { previous },
                End::Deleted => Change::Deleted { previous },
            }
        });
    }

    fn record(&mut self, key: &ItemKey, change: impl FnOnce() -> Change) {
        let Some(retention) = self.state.retention else { return };
        let at = self.state.ttl.last_ts();
        let record = ChangeRecord { at, key: key.clone(), change: change() };
        let position = FeedPosition { lsn: self.lsn, operation: self.recorded };
        let next = self.recorded.checked_add(1);
        self.recorded = next.expect("one entry changes fewer than 2^16 versions");
        let row = feed_key(self.partition.spec.group, position);
        self.batch.put(Table::History, &row, &codec::encode(&record));
        self.note_due(retention.end(at));
    }

    /// Removes some of the oldest records, as one range, if they are not kept any more; returns how
    /// many, and whether there are more of them.
    pub(super) fn trim_history(&mut self) -> Result<(u32, bool), Fault> {
        let records = self.partition.spec.history();
        let now = self.state.ttl.clock().floor_seconds();
        let (mut end, mut trimmed, mut bytes, mut more) = (None, 0, 0, false);
        for row in self.partition.engine.scan(&records) {
            let (key, record) = row?;
            bytes += record.len();
            if self.state.end_of(&decode(&record)?) > now {
                break;
            }
            if trimmed == TRIMMED_MAX || (trimmed > 0 && bytes > TRIMMED_BYTES_MAX) {
                more = true;
                break;
            }
            end = Some(key);
            trimmed += 1;
        }
        if let Some(mut end) = end {
            self.state.history_start = self.state.history_start.max(feed_position(&end)?);
            end.push(0);
            self.batch.delete_range(&KeyRange { end: Some(end), ..records });
        }
        Ok((trimmed, more))
    }
}

impl Partition {
    /// When the oldest record is to be removed.
    pub(super) fn due_to_trim(&self) -> Result<Option<Seconds>, Fault> {
        let state = self.state();
        let first = self.engine.scan(&self.spec.history()).next().transpose()?;
        let Some((_, record)) = first else { return Ok(None) };
        Ok(Some(state.end_of(&decode(&record)?).max(Seconds(1))))
    }
}

impl PartitionView {
    /// What happened behind this place and is remembered, in the order in which it did.
    pub fn history(
        &self,
        after: FeedPosition,
    ) -> impl Iterator<Item = Result<(FeedPosition, ChangeRecord), Fault>> + use<'_> {
        let records = self.spec.history().after(&feed_key(self.spec.group, after));
        self.scan(&records).map(|row| {
            let (key, record) = row?;
            Ok((feed_position(&key)?, decode(&record)?))
        })
    }
}
