//! Keeping the index: entries change with the versions they are made of, in the same batch, and so do
//! those of unique keys.
//!
//! A write takes away the entries of the old version and puts those of the new one; what comes to
//! nothing is not written (`indexing::EntryChanges`). A sweep leaves entries that tell where their items are
//! swept (`garbage`).
//! While a new generation is built beside the one that serves, items behind the cursor have no entries
//! of it: the build comes to them later, and finds them as they are then. The leader looks ahead, and each entry says
//! how far the next step goes.

use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::apply::Draft;
use super::{ItemRef, PartitionView};
use crate::charge::Charge;
use crate::command::CommandEffect;
use crate::engine::Fault;
use crate::indexing::{Build, BuildProgress, ChangeKind, IndexRules};
use crate::item::{ItemKey, Stamp};
use crate::ttl::PolicyEpoch;

/// Bytes of bodies that one entry may walk when it builds, and operations of computed properties: they bound the time
/// of one apply, whatever items have.
const BUILD_BYTES_MAX: usize = 4 << 20;
const BUILD_OPERATIONS_MAX: u64 = 1_000_000;

/// The next step of building an index, as the leader has found it; by default one of nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildStep {
    /// The generation that is built.
    generation: u32,
    /// Up to which item; none: up to the last.
    through: Option<ItemKey>,
}

impl PartitionView {
    /// The next step of building, so many items at most; none if nothing is built. What is written meanwhile is
    /// entered as well.
    pub fn build_step(&self, limit: NonZeroU32) -> Result<Option<BuildStep>, Fault> {
        let Some(build) = self.contents.index.building() else { return Ok(None) };
        let (mut items, mut bytes) = (0, 0);
        let through = self.look_ahead(&build.rows(self.keys, self.spec.slots), |item| {
            let ItemRef { body, .. } = item;
            items += 1;
            bytes += body.len();
            let is_full = items == limit.get() || bytes >= BUILD_BYTES_MAX;
            Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(Some(BuildStep { generation: build.generation.number(), through }))
    }
}

/// A version whose entries change: where its item stands, its stamp, its body.
pub(super) type Version<'a> = (&'a ItemKey, &'a Stamp, &'a [u8]);

impl Draft<'_> {
    /// True if a version may have entries that do not go by themselves when it is swept, so that its body
    /// must be read.
    pub(super) fn has_lasting_entries(&self, item: &[u8], stamp: &Stamp) -> bool {
        !self.unique_keys.is_empty()
            || (!stamp.tells_place && self.index.holding(item).next().is_some())
    }

    /// Enters a version, or takes its entries away, wherever its item has entries.
    pub(super) fn index(&mut self, kind: ChangeKind, version: Version<'_>) -> Result<(), Fault> {
        self.enter_unique(kind, version)?;
        self.enter_generations(kind, version)
    }

    /// Takes away the entries of a version that is swept, but for those that go by themselves.
    pub(super) fn unindex_swept(&mut self, version: Version<'_>) -> Result<(), Fault> {
        let (_, stamp, _) = version;
        self.enter_unique(ChangeKind::Delete, version)?;
        if stamp.tells_place {
            return Ok(());
        }
        self.enter_generations(ChangeKind::Delete, version)
    }

    fn enter_generations(
        &mut self,
        kind: ChangeKind,
        (key, stamp, body): Version<'_>,
    ) -> Result<(), Fault> {
        let (spec, changes) = (&self.partition.spec, &mut self.entries);
        for generation in self.index.holding(key.as_bytes()) {
            let prefix = generation.prefix(spec.group);
            let version = (spec.container, stamp, body);
            let spent = generation.extractor().change(changes, kind, &prefix, version)?;
            self.operations = self.operations.saturating_sub(spent);
        }
        Ok(())
    }

    pub(super) fn set_index_policy(
        &mut self,
        epoch: PolicyEpoch,
        rules: IndexRules,
    ) -> CommandEffect {
        let (group, items) = (self.partition.spec.group, self.state.items);
        let index = Arc::make_mut(&mut self.index);
        index.set_policy(&mut self.batch, group, epoch, rules, items);
        CommandEffect::IndexPolicySet(self.index.epoch())
    }

    /// Enters the next items into the generation that is being built; behind the last one it serves. A step that comes
    /// late, or twice, does no harm.
    pub(super) fn build_index(&mut self, step: &BuildStep) -> Result<CommandEffect, Fault> {
        let (partition, index) = (self.partition, self.index.clone());
        let (mut items, mut charge) = (0, Charge::ZERO);
        let is_next = |build: &&Build| {
            let is_late =
                step.through.as_ref().is_some_and(|through| build.covers(through.as_bytes()));
            build.generation.number() == step.generation && !is_late
        };
        let Some(build) = index.building().filter(is_next) else {
            return Ok(CommandEffect::IndexBuilt { items, more: index.is_building(), charge });
        };
        let (mut done, generation) = (build.done.clone(), &build.generation);
        let prefix = generation.prefix(partition.spec.group);
        let mut range = build.rows(partition.keys, partition.spec.slots);
        if let Some(through) = &step.through {
            range = range.through(&partition.keys.item(through));
        }
        let (mut bytes, mut operations, mut is_whole) = (0, 0, true);
        for version in partition.kept_items(&range, self.state.swept) {
            if bytes >= BUILD_BYTES_MAX || operations >= BUILD_OPERATIONS_MAX {
                is_whole = false;
                break;
            }
            let (key, item) = version?;
            let version = (partition.spec.container, &item.stamp, &item.body[..]);
            let changes = &mut self.entries;
            operations +=
                generation.extractor().change(changes, ChangeKind::Put, &prefix, version)?;
            bytes += item.body.len();
            charge += Charge::index(item.body.len(), item.stamp.indexed_values);
            items += 1;
            done = BuildProgress { through: Some(key), items: done.items + 1 };
        }
        let group = partition.spec.group;
        let index = Arc::make_mut(&mut self.index);
        let more = match &step.through {
            None if is_whole => {
                index.switch(&mut self.batch, group);
                false
            }
            through => {
                if is_whole {
                    done.through.clone_from(through);
                }
                index.note_progress(&mut self.batch, group, done);
                true
            }
        };
        Ok(CommandEffect::IndexBuilt { items, more, charge })
    }
}
