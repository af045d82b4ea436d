//! Partitions with items in them, and queries over all of them.

use std::num::NonZeroU32;
use std::sync::Arc;

use ephemeris_store::codec;
use ephemeris_store::command::{Action, Command, ItemWrite, Precondition, Proposal};
use ephemeris_store::document::DocumentRules;
use ephemeris_store::engine::{MemoryEngine, Table};
use ephemeris_store::ids::{ContainerNumber, DatabaseNumber, GroupId, ItemId, ItemNumber};
use ephemeris_store::indexing::{self, IndexRules};
use ephemeris_store::item::{ItemKey, LogicalPartition};
use ephemeris_store::machine::{Entry, LogId, Machine as _};
use ephemeris_store::partition::{PageOutcome, Partition, PartitionSpec};
use ephemeris_store::partition_key::{KeyDefinition, KeyKind, PartitionKey, SlotRange};
use ephemeris_store::query::{
    CompiledQuery, ComputedProperties, Halt, Merged, Metric, Moment, Page, PageLimits, Parameters,
    Position, Question, Resume, Run, Scope, Signal, Source, run_page,
};
use ephemeris_store::time::{ClockInterval, Millis};
use ephemeris_store::ttl::{PolicyEpoch, TtlPolicy};
use serde_json::Value;

use crate::support::{Asking, NoPage};

const CONTAINER: ContainerNumber = ContainerNumber { database: DatabaseNumber(1), number: 1 };

/// When items are stored, and when those of them are swept that expire within a minute.
const STORED_AT: Millis = Millis(1000);
const SWEPT_AT: Millis = Millis(60_000);

/// A page without limits.
pub(crate) const EVERYTHING: PageLimits =
    PageLimits { rows: usize::MAX, bytes: usize::MAX, items: usize::MAX };

/// A container cut into partitions.
pub(crate) struct World {
    pub(crate) rules: DocumentRules,
    pub(crate) partitions: Vec<Partition>,
    computed: ComputedProperties,
}

impl World {
    /// A container with this indexing policy, these items, and so many partitions, all indexed.
    pub(crate) fn new(policy: &Value, items: &[Value], partitions: u16) -> Self {
        Self::indexed(Self::empty(policy, partitions), items)
    }

    /// The same with one partition, where coordinates mean this.
    pub(crate) fn in_space(metric: Metric, policy: &Value, items: &[Value]) -> Self {
        Self::indexed(Self::empty(policy, 1).with_metric(metric), items)
    }

    /// The same without an index.
    pub(crate) fn unindexed_in_space(metric: Metric, policy: &Value, items: &[Value]) -> Self {
        Self::filled(Self::empty(policy, 1).with_metric(metric), items)
    }

    /// The same with one partition and these computed properties.
    pub(crate) fn computing(computed: &Value, policy: &Value, items: &[Value]) -> Self {
        Self::indexed(Self::empty(policy, 1).with_computed(computed), items)
    }

    /// The same without an index.
    pub(crate) fn unindexed_computing(computed: &Value, policy: &Value, items: &[Value]) -> Self {
        Self::filled(Self::empty(policy, 1).with_computed(computed), items)
    }

    /// The same container and index, for who knows these computed properties.
    pub(crate) fn with_computed(mut self, computed: &Value) -> Self {
        self.computed = ComputedProperties::parse(Some(computed)).expect("valid definitions");
        let index = self.rules.index().clone().with_computed(self.computed.definitions());
        self.rules = DocumentRules::new(self.rules.key().clone(), index);
        self
    }

    fn indexed(world: Self, items: &[Value]) -> Self {
        for partition in &world.partitions {
            Self::apply(partition, world.policy(1));
            world.fill(partition, items);
        }
        world
    }

    /// The same, in which what has a `ttl` was swept; its rows stay.
    pub(crate) fn swept(policy: &Value, items: &[Value], partitions: u16) -> Self {
        let world = Self::empty(policy, partitions);
        let epoch = PolicyEpoch(1);
        let expiry = Command::SetTtlPolicy { epoch, policy: TtlPolicy::NoDefault, retention: None };
        let limit = NonZeroU32::new(1000).expect("more than nothing");
        let sweep = Command::Sweep { limit, grace: Millis(0) };
        for partition in &world.partitions {
            Self::apply(partition, world.policy(1));
            Self::apply(partition, expiry.clone());
            world.fill(partition, items);
            loop {
                let left = partition.state().items();
                Self::apply_at(SWEPT_AT, partition, sweep.clone());
                if partition.state().items() == left {
                    break;
                }
            }
        }
        let left: u64 = world.partitions.iter().map(|partition| partition.state().items()).sum();
        assert!(left < items.len() as u64, "some have a `ttl`");
        world
    }

    /// Tells the partitions the policy and the computed properties of now.
    pub(crate) fn change_policy(&self) {
        for partition in &self.partitions {
            Self::apply(partition, self.policy(partition.index().epoch().0 + 1));
        }
    }

    /// Builds what a changed policy asks for.
    pub(crate) fn build(&self) {
        let limit = NonZeroU32::new(1000).expect("more than nothing");
        for partition in &self.partitions {
            while partition.index().is_building() {
                let step = partition.snapshot().build_step(limit).expect("memory does not fail");
                Self::apply(partition, Command::BuildIndex(step.expect("it is being built")));
            }
        }
    }

    fn policy(&self, epoch: u64) -> Command {
        Command::SetIndexPolicy { epoch: PolicyEpoch(epoch), rules: self.rules.index().clone() }
    }

    /// The same without an index: partitions that never heard of a policy.
    pub(crate) fn unindexed(policy: &Value, items: &[Value], partitions: u16) -> Self {
        Self::filled(Self::empty(policy, partitions), items)
    }

    fn filled(world: Self, items: &[Value]) -> Self {
        for partition in &world.partitions {
            world.fill(partition, items);
        }
        world
    }

    fn empty(policy: &Value, partitions: u16) -> Self {
        let key = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
        let policy = indexing::complete(Some(policy)).expect("a valid policy");
        let rules = DocumentRules::new(key, IndexRules::new(&policy).expect("it compiles"));
        let open = |(slots, group): (SlotRange, u64)| {
            let spec = PartitionSpec { group: GroupId(group), container: CONTAINER, slots };
            Partition::open(Arc::new(MemoryEngine::new()), spec).expect("memory opens")
        };
        let slots = SlotRange::split_all(partitions).into_iter().zip(1..);
        let computed = ComputedProperties::default();
        Self { rules, partitions: slots.map(open).collect(), computed }
    }

    fn with_metric(mut self, metric: Metric) -> Self {
        let index = self.rules.index().clone().with_metric(metric);
        self.rules = DocumentRules::new(self.rules.key().clone(), index);
        self
    }

    fn apply(partition: &Partition, command: Command) {
        Self::apply_at(STORED_AT, partition, command);
    }

    fn apply_at(now: Millis, partition: &Partition, command: Command) {
        let index = partition.progress().applied.map_or(0, |applied| applied.index + 1);
        let now = ClockInterval::exact(now);
        let bytes = codec::encode(&Proposal { now, vouchers: None, command });
        let position = LogId { term: 1, index };
        partition.apply(position, Entry::Command(&bytes)).expect("memory does not fail");
    }

    fn fill(&self, partition: &Partition, items: &[Value]) {
        self.write_to(partition, STORED_AT, items);
    }

    /// Writes items, over those of the same ids.
    pub(crate) fn write_at(&self, now: Millis, items: &[Value]) {
        self.partitions.iter().for_each(|partition| self.write_to(partition, now, items));
    }

    fn write_to(&self, partition: &Partition, now: Millis, items: &[Value]) {
        let write = |(at, item): (usize, &Value)| {
            let mut item = item.clone();
            if item.get("id").is_none() {
                item["id"] = format!("i{at}").into();
            }
            if item.get("pk").is_none() {
                item["pk"] = at.into();
            }
            let parsed = self.rules.parse(item.to_string().as_bytes()).expect("an item");
            let id = item["id"].as_str().expect("an id is text").to_string();
            let id = ItemId::try_from(id).expect("an id");
            let key = ItemKey::new(&self.rules.key().place(&parsed.key), &parsed.key, &id);
            let action = Action::Upsert(parsed.document);
            ItemWrite { key, precondition: Precondition::None, action }
        };
        let slots = partition.spec().slots;
        let writes = items.iter().enumerate().map(write);
        let writes: Vec<_> = writes.filter(|one| slots.contains(one.key.slot())).collect();
        for some in writes.chunks(ItemNumber::OPERATIONS_MAX) {
            Self::apply_at(now, partition, Command::Write(some.to_vec()));
        }
    }

    /// Deletes what has this partition key; its rows stay.
    pub(crate) fn clear(&self, pk: &Value) {
        let value = PartitionKey::parse(&format!("[{pk}]")).expect("a valid key");
        let logical_partition = LogicalPartition::new(&self.rules.key().place(&value), &value);
        let holds =
            |partition: &&Partition| partition.spec().slots.contains(logical_partition.slot());
        let partition = self.partitions.iter().find(holds).expect("every slot has a partition");
        Self::apply(partition, Command::Clear(logical_partition.clone()));
    }

    /// Deletes the item with an id, wherever it is, if it is there.
    pub(crate) fn delete(&self, id: &str) {
        for partition in &self.partitions {
            let view = partition.snapshot();
            let slots = view.keys().slots(Table::Items, partition.spec().slots);
            let mut cursor = view.item_cursor(&slots);
            let mut found = None;
            while let Some(item) = cursor.next_item().expect("memory does not fail") {
                let key = item.to_key().expect("a key");
                if key.parts(1).expect("a key").id.as_str() == id {
                    found = Some(key);
                }
            }
            let Some(key) = found else { continue };
            let delete =
                ItemWrite { key, precondition: Precondition::None, action: Action::Delete };
            Self::apply(partition, Command::Write(vec![delete]));
        }
    }

    /// Compiles a query.
    pub(crate) fn compile(&self, text: &str) -> CompiledQuery {
        let (parameters, index) = (Parameters::default(), self.rules.index());
        let compiled = CompiledQuery::new(text, &parameters, index, &self.computed);
        compiled.unwrap_or_else(|error| panic!("{text}: {}", error.to_message()))
    }

    fn asking<T>(
        &self,
        text: &str,
        limits: PageLimits,
        ask: impl FnOnce(&Asking<'_>) -> Result<T, NoPage>,
    ) -> T {
        let (query, scope) = (self.compile(text), Scope::default());
        let partitions: Vec<&Partition> = self.partitions.iter().collect();
        let asking = Asking {
            query: &query,
            partitions: &partitions,
            rules: &self.rules,
            scope: &scope,
            limits,
            hi: Millis(1000),
        };
        ask(&asking).expect("nothing here expires")
    }

    /// The pages of a query, as text.
    #[expect(clippy::redundant_closure_for_method_calls, reason = "a path has one lifetime")]
    pub(crate) fn pages(&self, text: &str, limits: PageLimits) -> Vec<Vec<String>> {
        let pages = self.asking(text, limits, |asking| asking.pages());
        let text = |row: Vec<u8>| String::from_utf8(row).expect("rows are JSON");
        pages.into_iter().map(|page| page.into_iter().map(text).collect()).collect()
    }

    /// Shows each page of a query, and where the next one begins, before it is asked for.
    pub(crate) fn each_page(
        &self,
        text: &str,
        limits: PageLimits,
        mut show: impl FnMut(Vec<String>, Option<&Position>),
    ) {
        self.asking(text, limits, |asking| {
            let mut at = None;
            loop {
                let Merged { rows, next } = asking.page(at)?;
                let text = |row: Vec<u8>| String::from_utf8(row).expect("rows are JSON");
                show(rows.into_iter().map(text).collect(), next.as_ref().map(|(at, _)| at));
                match next {
                    None => return Ok(()),
                    next => at = next,
                }
            }
        });
    }

    /// A query's first page at its first partition: which indexes it follows, and what it costs.
    pub(crate) fn first_page(&self, text: &str) -> Page {
        self.first_page_within(text, EVERYTHING)
    }

    /// The same within these limits.
    #[expect(clippy::redundant_closure_for_method_calls, reason = "a path has one lifetime")]
    pub(crate) fn first_page_within(&self, text: &str, limits: PageLimits) -> Page {
        self.asking(text, limits, |asking| asking.first_page())
    }

    /// The first page of a query that is about one partition key, told when to end.
    pub(crate) fn scoped_page(
        &self,
        text: &str,
        pk: &Value,
        limits: PageLimits,
        signal: &dyn Fn() -> Signal,
    ) -> Result<Page, Halt> {
        let value = PartitionKey::parse(&format!("[{pk}]")).expect("a valid key");
        let scope = Scope { key: Some(value), epks: None };
        self.told_page_of(text, &scope, None, limits, signal)
    }

    /// A page of the first partition that is told when to end.
    pub(crate) fn told_page(
        &self,
        text: &str,
        resume: Option<&Resume>,
        limits: PageLimits,
        signal: &dyn Fn() -> Signal,
    ) -> Result<Page, Halt> {
        self.told_page_of(text, &Scope::default(), resume, limits, signal)
    }

    fn told_page_of(
        &self,
        text: &str,
        scope: &Scope,
        resume: Option<&Resume>,
        limits: PageLimits,
        signal: &dyn Fn() -> Signal,
    ) -> Result<Page, Halt> {
        let (query, hi) = (self.compile(text), Millis(1000));
        let partition = &self.partitions[0];
        let (view, spec) = (partition.snapshot(), partition.spec());
        let source = Source { view: &view, spec, key: self.rules.key(), hi };
        let question = Question { query: &query, scope, resume, limits };
        let run = Run::new(Moment::new(hi, hi, 1));
        match run_page(source, question, &run, signal).expect("memory does not fail") {
            PageOutcome::Page(page) => page,
            PageOutcome::InDoubt(_) => panic!("nothing here expires"),
        }
    }

    /// All rows of a query.
    pub(crate) fn rows(&self, text: &str) -> Vec<String> {
        self.pages(text, EVERYTHING).concat()
    }
}
