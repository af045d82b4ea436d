//! A partition: the items of one run of slots of one container, and everything that orders them.
//!
//! `apply` is the only way to change it: (1) advance the clock by the proposer's reading, (2) carry
//! out the command against the state at that clock, collecting changes, (3) write one engine batch
//! with the rows, the applied position, the clock and the cursors. Readers see either all of an entry
//! or nothing of it, and never wait for one: `published`.

mod apply;
mod backlog;
mod by_ts;
mod cleared;
mod cursors;
mod due;
mod feed;
mod garbage;
mod history;
mod index;
mod liveness;
mod published;
mod read;
mod scan;
mod sweep;
mod unique;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use backlog::Backlog;
use cleared::Cleared;
pub use cleared::{CLEARED_MAX, ClearedRows};
use cursors::SweepCursors;
pub(crate) use garbage::{Garbage, LITTERED};
pub use history::{Change, ChangeRecord, Image, Retention};
pub use index::BuildStep;
use published::{Contents, Published};
pub use read::{Fetched, PageOutcome, PartitionView};
pub use scan::{EntryRef, IndexCursor, IndexEntry, ItemCursor, ItemRef};

use crate::command::Proposal;
use crate::engine::{Batch, Engine, Fault, KeyRange, Read, Table};
use crate::ids::{ContainerNumber, GroupId, Lsn};
use crate::indexing::{IndexState, UniqueKeys};
use crate::item::ContainerKeys;
use crate::machine::{self, Entry, LogId, Machine, MetaTag, Progress};
use crate::partition_key::SlotRange;
use crate::timeline::FeedPosition;
use crate::ttl::TtlState;

/// What makes a partition this one and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionSpec {
    /// The Raft group that replicates it; also the number of its feed.
    pub group: GroupId,
    /// The container it is part of.
    pub container: ContainerNumber,
    /// The slots of the hash space it owns.
    pub slots: SlotRange,
}

/// Replicated state beside the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionState {
    applied: Option<LogId>,
    ttl: TtlState,
    /// Items that are stored, dead but unswept ones included: no garbage.
    items: u64,
    /// Bytes of their bodies.
    bytes: u64,
    /// How far the sweeper came.
    swept: SweepCursors,
    /// Bytes that items which it removed have left, ever, about.
    left_bytes: u64,
    /// How long what happens to items is remembered; none if it is not.
    retention: Option<Retention>,
    /// Everything behind this place is remembered, if anything is.
    history_start: FeedPosition,
    /// Checksum over everything ever changed; equal on replicas at the same position.
    digest: u32,
}

impl PartitionState {
    /// The last entry applied.
    pub fn applied(&self) -> Option<LogId> {
        self.applied
    }

    /// The last entry applied, as clients count.
    pub fn lsn(&self) -> Lsn {
        Lsn(self.applied.map_or(0, |applied| applied.index))
    }

    /// Clock, policy and floors.
    pub fn ttl(&self) -> &TtlState {
        &self.ttl
    }

    /// Items that are stored, dead but unswept ones included: no garbage.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Bytes of their bodies.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Checksum over everything ever changed.
    pub fn digest(&self) -> u32 {
        self.digest
    }
}

/// One replica's copy of a partition.
pub struct Partition {
    engine: Arc<dyn Engine>,
    spec: PartitionSpec,
    keys: ContainerKeys,
    published: Published,
    due: due::Due,
}

impl Contents {
    fn load(engine: &dyn Engine, group: GroupId) -> Result<Self, Fault> {
        let state = machine::read_meta(engine, group, MetaTag::State)?.unwrap_or_default();
        let membership = machine::read_meta(engine, group, MetaTag::Membership)?;
        let index = Arc::new(IndexState::load(engine, group)?);
        let unique_keys = machine::read_meta(engine, group, MetaTag::UniqueKeys)?;
        let unique_keys = Arc::new(unique_keys.unwrap_or_default());
        let cleared = machine::read_meta(engine, group, MetaTag::Cleared)?;
        let cleared = Arc::new(cleared.unwrap_or_default());
        Ok(Self { state, index, unique_keys, cleared, membership })
    }
}

impl Partition {
    /// Opens a partition over what the engine holds of it; empty if it holds nothing.
    pub fn open(engine: Arc<dyn Engine>, spec: PartitionSpec) -> Result<Self, Fault> {
        remember_spec(engine.as_ref(), &spec)?;
        let published = Published::new(Contents::load(engine.as_ref(), spec.group)?);
        let keys = ContainerKeys::new(spec.container);
        Ok(Self { engine, spec, keys, published, due: due::Due::default() })
    }

    /// Every partition the engine holds rows of, or once held.
    pub fn stored(engine: &dyn Engine) -> Result<Vec<PartitionSpec>, Fault> {
        machine::read_specs(engine)
    }

    /// What makes this partition this one.
    pub fn spec(&self) -> &PartitionSpec {
        &self.spec
    }

    /// The state as of the last entry applied.
    pub fn state(&self) -> PartitionState {
        self.published.now().state
    }

    /// The index as of the last entry applied.
    pub fn index(&self) -> Arc<IndexState> {
        self.published.now().index.clone()
    }

    /// The unique keys as of the last entry applied.
    pub fn unique_keys(&self) -> Arc<UniqueKeys> {
        self.published.now().unique_keys.clone()
    }

    /// Rows of this partition: its items by slot, and what orders them by time.
    pub fn ranges_of(spec: &PartitionSpec) -> Vec<KeyRange> {
        let keys = ContainerKeys::new(spec.container);
        let by_slot = [Table::Items, Table::Numbers];
        let mut ranges: Vec<_> =
            by_slot.into_iter().map(|table| keys.slots(table, spec.slots)).collect();
        for table in [Table::Expiry, Table::Feed, Table::History, Table::Index, Table::Unique] {
            ranges.push(KeyRange::prefix(table, spec.group.0.to_be_bytes().to_vec()));
        }
        ranges
    }
}

/// Writes down which rows are the partition's, before the first of them.
fn remember_spec(engine: &dyn Engine, spec: &PartitionSpec) -> Result<(), Fault> {
    match machine::read_meta::<PartitionSpec>(engine, spec.group, MetaTag::Spec)? {
        Some(known) if known == *spec => Ok(()),
        Some(_) => Err(Fault::corrupt("meta", "the group held another partition")),
        None => {
            let mut batch = Batch::default();
            machine::put_meta(&mut batch, spec.group, MetaTag::Spec, spec);
            engine.write(batch)
        }
    }
}

impl Machine for Partition {
    type Outcome = crate::command::Outcome;

    fn progress(&self) -> Progress {
        self.published.now().progress()
    }

    fn apply(&self, position: LogId, entry: Entry<'_>) -> Result<Option<Self::Outcome>, Fault> {
        let mut outcome = None;
        self.apply_all(&mut std::iter::once((position, entry)), &mut |found| outcome = found)?;
        Ok(outcome)
    }

    fn apply_all(
        &self,
        entries: &mut dyn Iterator<Item = (LogId, Entry<'_>)>,
        answer: &mut dyn FnMut(Option<Self::Outcome>),
    ) -> Result<(), Fault> {
        self.apply_entries(entries, answer)
    }

    fn is_brief(&self, command: &[u8]) -> bool {
        Proposal::is_brief(command)
    }

    fn ranges(&self) -> Vec<KeyRange> {
        Self::ranges_of(&self.spec)
    }

    fn view(&self) -> (Arc<dyn Read>, Progress) {
        let (contents, view) = self.published.view(&*self.engine);
        (view, contents.progress())
    }

    /// Shows a partition that has not learned its container's policy yet, which nobody reads.
    fn unload(&self) {
        self.published.replace(Contents::default());
    }

    fn reload(&self) -> Result<(), Fault> {
        self.published.replace(Contents::load(self.engine.as_ref(), self.spec.group)?);
        self.due.forget();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
