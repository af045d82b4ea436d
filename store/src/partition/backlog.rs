//! What is dead and not swept yet: for operators, counted up to a limit.

use serde::{Deserialize, Serialize};

use super::PartitionView;
use crate::engine::Fault;
use crate::item::Stamp;
use crate::partition::PartitionSpec;
use crate::time::Seconds;
use crate::timeline::{VersionRow, expiry_place};
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
        for row in self.scan(&self.state().swept.unswept_own(spec, through)) {
            if *rows_left == 0 {
                return Ok(());
            }
            *rows_left -= 1;
            backlog.add(expiry_place(&row?.0)?.second);
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
        for row in self.scan(&self.state().swept.unswept_feed(spec)) {
            let Stamp { ts, ttl, .. } = VersionRow::decode(&row?.1)?.stamp;
            if ts > through || *rows_left == 0 {
                return Ok(());
            }
            *rows_left -= 1;
            if ttl == ItemTtl::Inherit {
                backlog.add(ts.plus(lived));
            }
        }
        Ok(())
    }
}
