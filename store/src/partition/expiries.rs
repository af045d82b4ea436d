//! What expired and when, for the change feed that shows every version (`docs/TTL.md` R13).
//!
//! Only where the container retains it. A version that expired is recorded when its rows go, which
//! happens once: by a sweep, or by a write that takes its place, and then before that write.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::apply::Draft;
use super::{Partition, PartitionSpec, PartitionState, PartitionView};
use crate::codec;
use crate::engine::{Fault, KeyRange, Table};
use crate::item::{FeedPosition, Item, ItemKey, feed_key, feed_position};
use crate::time::Seconds;

/// How long a container remembers what happened, in minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention(pub NonZeroU32);

const SECONDS_PER_MINUTE: u64 = 60;

impl Retention {
    /// True if what was recorded at `at` is not kept any more.
    fn is_over(self, at: Seconds, now: Seconds) -> bool {
        at.0.saturating_add(u64::from(self.0.get()) * SECONDS_PER_MINUTE) <= now.0
    }
}

/// A version that expired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiryRecord {
    /// When its rows were removed: the stamp of that entry.
    pub removed: Seconds,
    /// The item.
    pub key: ItemKey,
    /// The version, as it was stored.
    #[serde(with = "serde_bytes")]
    pub version: Vec<u8>,
}

impl PartitionSpec {
    fn expiry_records(&self) -> KeyRange {
        KeyRange::prefix(Table::Expired, self.group.0.to_be_bytes().to_vec())
    }
}

impl PartitionState {
    /// True if a record is not kept any more.
    fn drops(&self, record: &ExpiryRecord) -> bool {
        let now = self.ttl.clock().floor_seconds();
        self.retention.is_none_or(|retention| retention.is_over(record.removed, now))
    }
}

fn decode(bytes: &[u8]) -> Result<ExpiryRecord, Fault> {
    codec::decode(bytes).map_err(|error| Fault::corrupt("expired", error))
}

impl Draft<'_> {
    /// Records that a version has expired, if it has and the container wants to know. Its rows must go
    /// with this entry.
    pub(super) fn record_if_expired(&mut self, key: &ItemKey, item: &Item) {
        if self.state.retention.is_none() || !self.is_dead(item) {
            return;
        }
        let removed = self.state.ttl.last_ts();
        let record = ExpiryRecord { removed, key: key.clone(), version: item.encode() };
        let position = FeedPosition { lsn: self.lsn, operation: self.expired };
        self.expired =
            self.expired.checked_add(1).expect("one entry removes fewer items than 2^16");
        let row = feed_key(self.partition.spec.group, position);
        self.batch.put(Table::Expired, &row, &codec::encode(&record));
    }

    /// Removes up to `limit` of the oldest records, as one range, if they are not kept any more;
    /// returns how many, and whether there are more of them.
    pub(super) fn trim_expiries(&mut self, limit: u32) -> Result<(u32, bool), Fault> {
        let records = self.partition.spec.expiry_records();
        let (mut end, mut trimmed, mut more) = (records.start.clone(), 0, false);
        for row in self.partition.engine.scan(&records) {
            let (key, record) = row?;
            if !self.state.drops(&decode(&record)?) {
                break;
            }
            if trimmed == limit {
                more = true;
                break;
            }
            end = key;
            end.push(0);
            trimmed += 1;
        }
        self.batch.delete_range(&KeyRange { end: Some(end), ..records });
        Ok((trimmed, more))
    }
}

impl Partition {
    /// When the oldest record is to be removed.
    pub(super) fn due_to_trim(&self) -> Result<Option<Seconds>, Fault> {
        let state = self.state();
        let first = self.engine.scan(&self.spec.expiry_records()).next().transpose()?;
        let Some((_, record)) = first else { return Ok(None) };
        let removed = decode(&record)?.removed;
        Ok(Some(match state.retention {
            None => state.ttl.clock().floor_seconds(),
            Some(Retention(minutes)) => {
                Seconds(removed.0.saturating_add(u64::from(minutes.get()) * SECONDS_PER_MINUTE))
            }
        }))
    }
}

impl PartitionView {
    /// The versions that expired and are remembered, in the order in which their rows were removed,
    /// with the entry that removed them.
    pub fn expiries(
        &self,
        spec: &PartitionSpec,
    ) -> impl Iterator<Item = Result<(FeedPosition, ExpiryRecord), Fault>> + use<'_> {
        self.scan(&spec.expiry_records()).map(|row| {
            let (key, record) = row?;
            Ok((feed_position(&key)?, decode(&record)?))
        })
    }
}
