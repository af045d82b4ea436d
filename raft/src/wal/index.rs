//! What the log holds, in memory: where every entry lies, and the newest entries themselves.

use std::collections::{BTreeMap, VecDeque};

use ephemeris_store::ids::GroupId;
use ephemeris_store::machine::LogId;

use super::LogBounds;
use crate::types::{LogEntry, Vote};

/// Where an entry lies on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) segment: u64,
    pub(super) offset: u32,
    pub(super) bytes: u32,
}

/// One entry.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) id: LogId,
    /// Bytes of the payload.
    pub(super) bytes: usize,
    /// The entry, while it is young or not yet on disk: boxed, for most are neither.
    pub(super) cached: Option<Box<LogEntry>>,
    pub(super) location: Option<Location>,
}

#[derive(Default)]
struct Group {
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    /// Contiguous, the first behind `purged`.
    slots: VecDeque<Slot>,
}

#[derive(Default)]
pub(super) struct Index {
    groups: BTreeMap<GroupId, Group>,
    /// Entries in memory, oldest first; those truncated or purged since are still named here.
    cached: VecDeque<(GroupId, LogId, usize)>,
    cached_bytes: usize,
}

impl Group {
    fn first(&self) -> Option<u64> {
        self.slots.front().map(|slot| slot.id.index)
    }

    fn last(&self) -> Option<LogId> {
        self.slots.back().map(|slot| slot.id).or(self.purged)
    }

    fn position(&self, index: u64) -> Option<usize> {
        let at = usize::try_from(index.checked_sub(self.first()?)?).ok()?;
        (at < self.slots.len()).then_some(at)
    }
}

impl Index {
    fn group(&mut self, group: GroupId) -> &mut Group {
        self.groups.entry(group).or_default()
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = GroupId> + use<'_> {
        self.groups.keys().copied()
    }

    pub(super) fn bounds(&self, group: GroupId) -> LogBounds {
        self.groups.get(&group).map_or_else(LogBounds::default, |group| LogBounds {
            purged: group.purged,
            last: group.last(),
        })
    }

    pub(super) fn vote(&self, group: GroupId) -> Option<Vote> {
        self.groups.get(&group)?.vote
    }

    pub(super) fn set_vote(&mut self, group: GroupId, vote: Vote) {
        self.group(group).vote = Some(vote);
    }

    /// The last entry here that is known to be committed. What was saved may have reached the disk before the
    /// entries it counts, and before those in their place were made void: it says nothing of these.
    pub(super) fn committed(&self, group: GroupId) -> Option<LogId> {
        let group = self.groups.get(&group)?;
        let (committed, last) = (group.committed?, group.last()?);
        let is_here =
            group.position(committed.index).is_some_and(|at| group.slots[at].id == committed);
        // A term has one log: all that comes before a committed entry of it is committed.
        let leads_there = last.term == committed.term && last.index < committed.index;
        match (is_here, leads_there) {
            (true, _) => Some(committed),
            (false, true) => Some(last),
            (false, false) => group.purged,
        }
    }

    pub(super) fn set_committed(&mut self, group: GroupId, committed: LogId) {
        self.group(group).committed = Some(committed);
    }

    pub(super) fn append(&mut self, group: GroupId, entries: &[LogEntry]) {
        for entry in entries {
            let bytes = entry.payload.bytes();
            let cached = Some(Box::new(entry.clone()));
            self.push(group, Slot { id: entry.id, bytes, cached, location: None });
            self.cached.push_back((group, entry.id, bytes));
            self.cached_bytes += bytes;
        }
    }

    /// Adds an entry that recovery found on disk, or one that was just appended.
    pub(super) fn push(&mut self, group: GroupId, slot: Slot) {
        let group = self.group(group);
        if let Some(last) = group.last() {
            assert_eq!(slot.id.index, last.index + 1, "a log has no holes");
        }
        group.slots.push_back(slot);
    }

    /// Removes the entries behind `after`; returns where they lay.
    pub(super) fn truncate(&mut self, group: GroupId, after: Option<u64>) -> Vec<Location> {
        let group = self.group(group);
        let keep = match (after, group.first()) {
            (Some(after), Some(first)) => (after + 1).saturating_sub(first),
            (None, _) | (_, None) => 0,
        };
        let keep = usize::try_from(keep).unwrap_or(usize::MAX).min(group.slots.len());
        group.slots.drain(keep..).filter_map(|slot| slot.location).collect()
    }

    /// Removes the entries up to `upto`; returns where they lay.
    pub(super) fn purge(&mut self, group: GroupId, upto: LogId) -> Vec<Location> {
        let group = self.group(group);
        group.purged = group.purged.max(Some(upto));
        let gone = match group.first() {
            Some(first) => (upto.index + 1).saturating_sub(first),
            None => 0,
        };
        let gone = usize::try_from(gone).unwrap_or(usize::MAX).min(group.slots.len());
        let freed = group.slots.drain(..gone).filter_map(|slot| slot.location).collect();
        // Entries wait for a flush by the hundred thousand, and are gone with it.
        group.slots.shrink_to(2 * group.slots.len());
        freed
    }

    pub(super) fn drop_group(&mut self, group: GroupId) -> Vec<Location> {
        let slots = self.groups.remove(&group).map(|group| group.slots).unwrap_or_default();
        slots.into_iter().filter_map(|slot| slot.location).collect()
    }

    /// The entries `[start, end)` that are there.
    pub(super) fn slots(
        &self,
        group: GroupId,
        start: u64,
        end: u64,
    ) -> impl Iterator<Item = &Slot> + use<'_> {
        let range = self.groups.get(&group).and_then(|group| {
            let first = group.first()?;
            let from = usize::try_from(start.saturating_sub(first)).ok()?;
            let to = usize::try_from(end.saturating_sub(first)).ok()?.min(group.slots.len());
            (from < to).then(|| group.slots.range(from..to))
        });
        range.into_iter().flatten()
    }

    /// The entry, unless it was truncated or purged.
    pub(super) fn slot_mut(&mut self, group: GroupId, id: LogId) -> Option<&mut Slot> {
        let group = self.groups.get_mut(&group)?;
        let position = group.position(id.index)?;
        let slot = &mut group.slots[position];
        (slot.id == id).then_some(slot)
    }

    /// Forgets the oldest entries in memory until about `bytes_max` are left; what is not yet on
    /// disk stays.
    pub(super) fn shrink_cache(&mut self, bytes_max: usize) {
        while self.cached_bytes > bytes_max {
            let Some(&(group, id, bytes)) = self.cached.front() else { return };
            if let Some(group) = self.groups.get_mut(&group)
                && let Some(position) = group.position(id.index)
                && group.slots[position].id == id
            {
                let slot = &mut group.slots[position];
                if slot.location.is_none() {
                    return;
                }
                slot.cached = None;
            }
            self.cached.pop_front();
            self.cached_bytes -= bytes;
        }
    }

    /// The entries that lie in `segment`, with their groups.
    pub(super) fn entries_in(&self, segment: u64) -> Vec<(GroupId, LogId, Location)> {
        let mut found = Vec::new();
        for (group, state) in &self.groups {
            // Entries lie in the order of their indexes, moved ones apart, which lie later: so those
            // in the oldest segment are among the first.
            for slot in &state.slots {
                match slot.location {
                    Some(location) if location.segment == segment => {
                        found.push((*group, slot.id, location));
                    }
                    Some(_) | None => {}
                }
            }
        }
        found
    }

    /// The last entry of each group that lies in a segment up to this one.
    pub(super) fn last_entries(&self, segment: u64) -> Vec<(GroupId, LogId)> {
        let lies_there =
            |slot: &&Slot| slot.location.is_some_and(|location| location.segment <= segment);
        let groups = self.groups.iter();
        let last = groups.filter_map(|(group, state)| {
            Some((*group, state.slots.iter().rev().find(lies_there)?.id))
        });
        last.collect()
    }
}
