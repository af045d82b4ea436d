//! Which entries there are: a generation that serves, and one that is being built.
//!
//! A new policy begins a new generation of entries beside the old one. Until it is whole, queries use
//! what both have. A partition that never heard of a policy has no entries, and answers by looking at
//! its items.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::entries::Extractor;
use super::path::{IndexPath, Step};
use super::rules::IndexRules;
use crate::engine::{Batch, Direction, Fault, KeyRange, Read, Table};
use crate::ids::GroupId;
use crate::item::{ContainerKeys, ItemKey};
use crate::machine::{self, MetaTag};
use crate::partition_key::SlotRange;
use crate::query::Metric;
use crate::ttl::PolicyEpoch;

/// What a partition replicates about its index. Changed only by applying log entries.
#[derive(Clone, Debug, Default)]
pub struct IndexState {
    epoch: PolicyEpoch,
    /// How many generations there ever were: the next number.
    generations: u32,
    serving: Option<Generation>,
    building: Option<Build>,
}

/// Entries made by the same rules.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    number: u32,
    rules: Arc<IndexRules>,
    extractor: Arc<Extractor>,
}

/// A generation that lacks the items behind the cursor.
#[derive(Clone, Debug)]
pub(crate) struct Build {
    pub(crate) generation: Generation,
    pub(crate) done: BuildProgress,
}

/// How far building came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BuildProgress {
    /// Up to which item all have entries; none before the first.
    pub(crate) through: Option<ItemKey>,
    /// How many items were walked.
    pub(crate) items: u64,
}

/// A path whose entries may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The path.
    pub path: IndexPath,
    /// True if items without the property have an entry as well.
    pub has_undefined: bool,
}

/// The stored form; how far building came has a row of its own, which changes more often.
#[derive(Serialize, Deserialize)]
struct Stored {
    epoch: PolicyEpoch,
    generations: u32,
    serving: Option<(u32, IndexRules)>,
    building: Option<(u32, IndexRules)>,
}

impl Generation {
    pub(crate) fn new(number: u32, rules: IndexRules) -> Self {
        let extractor = Arc::new(Extractor::new(&rules));
        Self { number, rules: Arc::new(rules), extractor }
    }

    /// Which one it is.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// What all keys of its entries begin with.
    pub(crate) fn prefix(&self, group: GroupId) -> [u8; 12] {
        let mut prefix = [0; 12];
        prefix[..8].copy_from_slice(&group.0.to_be_bytes());
        prefix[8..].copy_from_slice(&self.number.to_be_bytes());
        prefix
    }

    /// All its entries.
    pub(crate) fn rows(&self, group: GroupId) -> KeyRange {
        KeyRange::prefix(Table::Index, self.prefix(group).to_vec())
    }

    pub(crate) fn extractor(&self) -> &Extractor {
        &self.extractor
    }
}

impl Build {
    /// The rows of the items that lack entries.
    pub(crate) fn rows(&self, keys: ContainerKeys, slots: SlotRange) -> KeyRange {
        let rows = keys.slots(Table::Items, slots);
        match &self.done.through {
            Some(through) => rows.after(&keys.item(through)),
            None => rows,
        }
    }

    /// True if the item with this key has its entries already.
    pub(crate) fn covers(&self, item: &[u8]) -> bool {
        self.done.through.as_ref().is_some_and(|through| item <= through.as_bytes())
    }
}

impl IndexState {
    /// Reads what the engine holds.
    pub(crate) fn load(read: &dyn Read, group: GroupId) -> Result<Self, Fault> {
        let Some(stored) = machine::read_meta::<Stored>(read, group, MetaTag::Index)? else {
            return Ok(Self::default());
        };
        let Stored { epoch, generations, serving, building } = stored;
        let done = machine::read_meta(read, group, MetaTag::IndexBuild)?.unwrap_or_default();
        let generation = |(number, rules)| Generation::new(number, rules);
        let building = building.map(generation).map(|generation| Build { generation, done });
        Ok(Self { epoch, generations, serving: serving.map(generation), building })
    }

    /// Writes the state, how far building came apart.
    fn put(&self, batch: &mut Batch, group: GroupId) {
        let stored = |generation: &Generation| (generation.number, (*generation.rules).clone());
        let stored = Stored {
            epoch: self.epoch,
            generations: self.generations,
            serving: self.serving.as_ref().map(stored),
            building: self.building.as_ref().map(|build| stored(&build.generation)),
        };
        machine::put_meta(batch, group, MetaTag::Index, &stored);
    }

    /// Which change of the policy is in force; the first is 1.
    pub fn epoch(&self) -> PolicyEpoch {
        self.epoch
    }

    /// True while a new policy is being carried out.
    pub fn is_building(&self) -> bool {
        self.building.is_some()
    }

    /// The numbers of the generation that serves and of the one that is being built: for tests and
    /// tools.
    pub fn generation_numbers(&self) -> (Option<u32>, Option<u32>) {
        let building = self.building.as_ref().map(|build| build.generation.number);
        (self.serving.as_ref().map(|generation| generation.number), building)
    }

    /// How much of the policy is carried out, in percent, in a partition of so many items.
    pub fn percent(&self, items: u64) -> u8 {
        let Some(build) = &self.building else { return 100 };
        let percent = build.done.items.saturating_mul(100) / items.max(1);
        u8::try_from(percent.min(99)).expect("less than a hundred")
    }

    /// The rules a query may rely on: those of what serves, and those of what will.
    fn in_force(&self) -> Option<impl Iterator<Item = &IndexRules>> {
        let serving = &self.serving.as_ref()?.rules;
        let building = self.building.as_ref().map(|build| &build.generation.rules);
        Some(std::iter::once(&**serving).chain(building.map(|rules| &**rules)))
    }

    /// The entries of a path from the root of an item, if they may be used: if every item that has a
    /// value there has an entry, of its own or by the feed. Of a computed property only those are meant that
    /// this query gave.
    pub fn serves(&self, steps: &[Step], computed_by: Option<&str>) -> Option<Served> {
        let mut rules = self.in_force()?;
        let path = IndexPath::new(steps)?;
        let has_undefined = self.serving.as_ref()?.rules.lists(steps);
        let is_served =
            |rules: &IndexRules| rules.includes(steps) && rules.computed().hold(steps, computed_by);
        rules.all(is_served).then_some(Served { path, has_undefined })
    }

    /// The entries of the shapes at a path, if they may be used: if every item that has one there has
    /// entries of it, by what coordinates mean to the one who asks. Computed shapes have none.
    pub fn serves_shapes(&self, steps: &[Step], metric: Metric) -> Option<IndexPath> {
        let is_served = |rules: &IndexRules| {
            rules.includes_shape(steps)
                && rules.metric() == metric
                && !rules.computed().reach(steps)
        };
        let all = self.in_force()?.all(is_served);
        IndexPath::shapes(steps).filter(|_| all)
    }

    /// The entries of a composite index that gives this order, and which way to read them. Every item
    /// has one. `computed_by` tells the query that computes what is at a path, if one does.
    pub fn serves_composite<'q>(
        &self,
        keys: &[(Vec<String>, bool)],
        computed_by: impl Fn(&[Step]) -> Option<&'q str>,
    ) -> Option<(IndexPath, Direction)> {
        let (composite, direction) = self.serving.as_ref()?.rules.composite(keys)?;
        let is_served = |rules: &IndexRules| {
            rules.kept_composites().any(|kept| kept == composite)
                && composite
                    .iter()
                    .all(|(steps, _)| rules.computed().hold(steps, computed_by(steps)))
        };
        let all = self.in_force()?.all(is_served);
        Some((IndexPath::composite(composite).filter(|_| all)?, direction))
    }

    /// The generation that serves.
    pub(crate) fn serving(&self) -> Option<&Generation> {
        self.serving.as_ref()
    }

    /// The generation that is being built.
    pub(crate) fn building(&self) -> Option<&Build> {
        self.building.as_ref()
    }

    /// The generations that hold the entries of an item: what is being built does so up to the cursor.
    pub(crate) fn holding(&self, item: &[u8]) -> impl Iterator<Item = &Generation> {
        let building = self.building.as_ref().filter(|build| build.covers(item));
        self.serving.iter().chain(building.map(|build| &build.generation))
    }

    /// Takes up a policy, if its epoch is newer: entries that the old one has not are built, those
    /// that the new one has not are not used any more. Without items there is nothing to build.
    pub(crate) fn set_policy(
        &mut self,
        batch: &mut Batch,
        group: GroupId,
        epoch: PolicyEpoch,
        rules: IndexRules,
        items: u64,
    ) -> bool {
        if epoch <= self.epoch {
            return false;
        }
        self.epoch = epoch;
        let gives = |generation: &Generation| generation.rules.gives_the_entries_of(&rules);
        let is_built = self.building.as_ref().is_some_and(|build| gives(&build.generation));
        let is_served = self.serving.as_ref().is_some_and(gives);
        if !is_built {
            self.drop_building(batch, group);
        }
        if rules.is_empty() {
            self.drop_serving(batch, group);
        } else if !is_built && !is_served {
            self.generations += 1;
            let generation = Generation::new(self.generations, rules);
            self.building = Some(Build { generation, done: BuildProgress::default() });
            machine::put_meta(batch, group, MetaTag::IndexBuild, &BuildProgress::default());
        }
        if items == 0 {
            self.finish_building(batch, group);
        }
        self.put(batch, group);
        true
    }

    /// Notes how far building came.
    pub(crate) fn note_progress(&mut self, batch: &mut Batch, group: GroupId, done: BuildProgress) {
        machine::put_meta(batch, group, MetaTag::IndexBuild, &done);
        let build = self.building.as_mut().expect("progress is of a build");
        build.done = done;
    }

    /// What was built serves from here on; what served is removed.
    pub(crate) fn switch(&mut self, batch: &mut Batch, group: GroupId) {
        self.finish_building(batch, group);
        self.put(batch, group);
    }

    fn finish_building(&mut self, batch: &mut Batch, group: GroupId) {
        if let Some(build) = self.building.take() {
            batch.delete(Table::Meta, &machine::meta_key(group, MetaTag::IndexBuild));
            self.drop_serving(batch, group);
            self.serving = Some(build.generation);
        }
    }

    fn drop_building(&mut self, batch: &mut Batch, group: GroupId) {
        if let Some(build) = self.building.take() {
            batch.delete(Table::Meta, &machine::meta_key(group, MetaTag::IndexBuild));
            batch.delete_range(&build.generation.rows(group));
        }
    }

    fn drop_serving(&mut self, batch: &mut Batch, group: GroupId) {
        if let Some(generation) = self.serving.take() {
            batch.delete_range(&generation.rows(group));
        }
    }
}
