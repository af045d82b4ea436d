//! What is dead and not swept yet: for operators, counted up to a limit.

use serde::{Deserialize, Serialize};

use super::PartitionView;
use crate::engine::{Fault, KeyRange, Table};
use crate::item::{FeedRow, feed_key};
use crate::partition::PartitionSpec;
use crate::time::Seconds;
use crate::ttl::{ItemTtl, TtlPolicy};

/// Dead items that still have rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backlog {
    /// How many, at least.
    pub items: u64,
    /// True if counting ended at the limit.
    pub more: bool,
    /// When the oldest of them expired.
    pub oldest: Option<Seconds>,
}

impl Backlog {
    fn add(&mut self, expired: Seconds) {
        self.items += 1;
        self.oldest = Some(self.oldest.map_or(expired, |oldest| oldest.min(expired)));
    }
}

impl PartitionView {
    /// Counts what the sweeper has before it, looking at up to `limit` rows.
    pub fn backlog(&self, spec: &PartitionSpec, limit: u64) -> Result<Backlog, Fault> {
        let mut backlog = Backlog::default();
        let mut rows_left = limit;
        self.count_own(spec, &mut rows_left, &mut backlog)?;
        self.count_inheriting(spec, &mut rows_left, &mut backlog)?;
        backlog.more = rows_left == 0;
        Ok(backlog)
    }

    fn count_own(
        &self,
        spec: &PartitionSpec,
        rows_left: &mut u64,
        backlog: &mut Backlog,
    ) -> Result<(), Fault> {
        let Some(through) = self.state().ttl().own_dead_through() else { return Ok(()) };
        let from = self.state().swept.own.map_or(Seconds(0), |swept| swept.plus(1));
        for slot in spec.slots.slots() {
            let start = self.keys().expiry_from(slot, from);
            let end = Some(self.keys().expiry_from(slot, through.plus(1)));
            for row in self.scan(&KeyRange { table: Table::Expiry, start, end }) {
                if *rows_left == 0 {
                    return Ok(());
                }
                *rows_left -= 1;
                backlog.add(self.keys().expiry_of(&row?.0)?.0);
            }
        }
        Ok(())
    }

    fn count_inheriting(
        &self,
        spec: &PartitionSpec,
        rows_left: &mut u64,
        backlog: &mut Backlog,
    ) -> Result<(), Fault> {
        let ttl = self.state().ttl();
        let Some(through) = ttl.inheriting_dead_through() else { return Ok(()) };
        let lived = match ttl.policy() {
            TtlPolicy::Default(seconds) => seconds.get(),
            // They died under an earlier policy; when is not remembered.
            TtlPolicy::Off | TtlPolicy::NoDefault => 0,
        };
        let feed = KeyRange::prefix(Table::Feed, spec.group.0.to_be_bytes().to_vec());
        let feed = match self.state().swept.inheriting {
            Some(passed) => feed.after(&feed_key(spec.group, passed)),
            None => feed,
        };
        for row in self.scan(&feed) {
            let row = FeedRow::decode(&row?.1)?;
            if row.ts > through || *rows_left == 0 {
                return Ok(());
            }
            *rows_left -= 1;
            if row.ttl == ItemTtl::Inherit {
                backlog.add(row.ts.plus(lived));
            }
        }
        Ok(())
    }
}
