//! The real thing, driven by a history: two replicas, their log, and the model beside them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use ephemeris_store::codec;
use ephemeris_store::command::{
    Action, Command, CommandEffect, Effect as RealEffect, ItemWrite, Outcome, Precondition,
    Proposal, Refusal, Written,
};
use ephemeris_store::document::{Document, DocumentRules};
use ephemeris_store::engine::{Engine, KeyRange, MemoryEngine, Row, Table};
use ephemeris_store::ids::{ContainerNumber, DatabaseNumber, Etag, GroupId, ItemId, Lsn};
use ephemeris_store::indexing::{self, IndexRules, UniqueKeys};
use ephemeris_store::item::{ItemKey, LogicalPartition};
use ephemeris_store::machine::{self, Entry, LogId, Machine as _, Progress};
use ephemeris_store::partition::{BuildStep, Partition, PartitionSpec, Retention};
use ephemeris_store::partition_key::{KeyDefinition, KeyKind, PartitionKey, SlotRange};
use ephemeris_store::patch::PatchRequest;
use ephemeris_store::snapshot::{Chunk, Exporter, Installer, Received};
use ephemeris_store::time::{ClockInterval, Millis};
use ephemeris_store::ttl::{PolicyEpoch, TimeToLive, TtlPolicy, Vouchers};

use crate::history::{Act, ClockMove, Condition, KEYS, Operation, Step, Which, Write};
use crate::indexes::POLICIES;
use crate::looks;
use crate::naive::{Answer, Effect, Model, NODES, Number, Refused};

/// Where every history begins: closer to 1970 than a jump.
const START: u64 = 1_000_000;

/// The policy of no index: also that of a partition that was told of none.
const NO_INDEX: usize = POLICIES.len() - 1;

/// A copy of the partition, and the disk below it.
pub(crate) struct Replica {
    engine: MemoryEngine,
    pub(crate) partition: Partition,
}

/// A snapshot that is being built.
pub(crate) struct Snapshot {
    exporter: Exporter,
    applied: Option<LogId>,
}

/// Two replicas of one log, and what the model makes of it.
pub(crate) struct World {
    pub(crate) model: Model,
    pub(crate) leader: Replica,
    pub(crate) follower: Replica,
    /// Entries, and what they came to at the leader.
    log: Vec<(Vec<u8>, Outcome)>,
    now: u64,
    serial: u64,
    etags: BTreeMap<u8, Etag>,
    pub(crate) rules: DocumentRules,
    /// The policies whose entries serve and are wanted: places in `indexes::POLICIES`.
    pub(crate) index: Index,
    /// How long the container remembers what happens, once it has a policy.
    retention: Option<Retention>,
}

/// What the history asked of the index.
pub(crate) struct Index {
    pub(crate) serving: usize,
    pub(crate) wanted: usize,
    epoch: u64,
    /// What a leader found to be the next step of a build, some time ago.
    seen: Option<BuildStep>,
}

/// What the leader's clock reads, and who vouches for it.
pub(crate) type Reading = (ClockInterval, Option<Vouchers>);

/// An answer as the model gives it; the serial only if a body was shown.
pub(crate) type RealAnswer = (Effect, u64, Option<u64>, Number);

/// Whose rows a sweep removes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dead {
    Expired,
    Cleared,
}

/// What a step came to.
pub(crate) enum Done {
    Written {
        expected: Result<Vec<Answer>, (usize, Refused)>,
        found: Result<Vec<RealAnswer>, (usize, Refused)>,
    },
    Swept {
        dead: Dead,
        removed: u32,
        more: bool,
        /// True if the dead were to be kept.
        kept: bool,
    },
    Other,
}

impl Done {
    /// How a write was answered otherwise than by the model; nothing if it was not.
    pub(crate) fn difference(&self) -> Option<String> {
        let Done::Written { expected, found } = self else { return None };
        let is_same = |((effect, ts, serial, number), real): (&Answer, &RealAnswer)| {
            *real == (*effect, *ts, real.2.map(|_| *serial), *number)
        };
        let agrees = match (expected, found) {
            (Ok(expected), Ok(found)) => {
                expected.len() == found.len() && expected.iter().zip(found).all(is_same)
            }
            (Err(expected), Err(found)) => expected == found,
            (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
        };
        (!agrees).then(|| format!("{found:?} instead of {expected:?}"))
    }
}

impl Replica {
    fn new(engine: MemoryEngine, spec: PartitionSpec) -> Self {
        let partition = open(&engine, spec);
        Self { engine, partition }
    }

    fn group(&self) -> GroupId {
        self.partition.spec().group
    }

    /// Applies the log up to its end, or so many entries of it; each must come to the same again, though
    /// the leader applied one by one what is applied together here.
    fn catch_up(&mut self, log: &[(Vec<u8>, Outcome)], entries_max: usize) {
        let next = self.partition.progress().applied.map_or(0, |applied| applied.index + 1);
        let from = usize::try_from(next).expect("a short log");
        let log = &log[from..];
        let log = &log[..entries_max.min(log.len())];
        let commands = log.iter().map(|(entry, _)| Entry::Command(entry));
        let mut entries =
            (next..).zip(commands).map(|(index, entry)| (LogId { term: 1, index }, entry));
        let mut again = Vec::new();
        let applied = self.partition.apply_all(&mut entries, &mut |outcome| again.push(outcome));
        applied.expect("the engine in memory does not fail");
        let expected = log.iter().map(|(_, outcome)| Some(outcome));
        assert!(again.iter().map(Option::as_ref).eq(expected), "entries from {next} on, replayed");
    }

    fn crash(&mut self) {
        self.engine.crash();
        self.partition = open(&self.engine, *self.partition.spec());
    }

    /// Begins to build a snapshot.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let (view, Progress { applied, .. }) = self.partition.view();
        let exporter = Exporter::new(view, self.group(), self.partition.ranges());
        Snapshot { exporter, applied }
    }

    /// Builds a snapshot to its end and takes it up; may crash after some chunks, to begin again.
    pub(crate) fn install(
        &mut self,
        snapshot: Snapshot,
        chunk_bytes: usize,
        crash_after: Option<usize>,
    ) {
        let Snapshot { exporter, applied } = snapshot;
        let (group, ranges) = (self.group(), self.partition.ranges());
        let (mut received, mut chunks) = (Received::default(), Vec::new());
        while !received.complete {
            let chunk = exporter.chunk(&received, chunk_bytes);
            let chunk = chunk.expect("the engine in memory does not fail");
            received.add(&chunk);
            chunks.push(chunk.encode());
        }
        let begin = |engine: &MemoryEngine| {
            Installer::begin(Arc::new(engine.clone()), group, ranges.clone(), "snapshot")
                .expect("the engine in memory does not fail")
        };
        let decoded = || chunks.iter().map(|chunk| Chunk::decode(chunk).expect("undamaged"));
        if let Some(crash_after) = crash_after {
            let mut installer = begin(&self.engine);
            decoded().take(crash_after).for_each(|chunk| {
                installer.write(chunk).expect("the engine in memory does not fail");
            });
            self.engine.crash();
            let interrupted = Installer::interrupted(&self.engine, group)
                .expect("the engine in memory does not fail");
            assert_eq!(interrupted.as_deref(), Some("snapshot"));
        }
        let mut installer = begin(&self.engine);
        decoded()
            .for_each(|chunk| installer.write(chunk).expect("the engine in memory does not fail"));
        installer.finish().expect("the engine in memory does not fail");
        self.partition.reload().expect("the engine in memory does not fail");
        assert_eq!(self.partition.progress().applied, applied);
    }

    /// The disk.
    pub(crate) fn engine(&self) -> Arc<dyn Engine> {
        Arc::new(self.engine.clone())
    }

    /// Every row but garbage, and the state, as they lie in the engine.
    pub(crate) fn contents(&self) -> Vec<(Table, Vec<Row>)> {
        let view = self.partition.snapshot();
        let mut ranges = self.partition.ranges();
        ranges.push(machine::meta_range(self.group()));
        let rows =
            |range: &KeyRange| view.kept_rows(range).expect("the engine in memory does not fail");
        ranges.iter().map(|range| (range.table, rows(range))).collect()
    }
}

/// The partition of the container with this number, and its group's.
pub(crate) fn spec(group: u64, container: u32) -> PartitionSpec {
    let container = ContainerNumber { database: DatabaseNumber(1), number: container };
    PartitionSpec { group: GroupId(group), container, slots: SlotRange::ALL }
}

fn open(engine: &MemoryEngine, spec: PartitionSpec) -> Partition {
    Partition::open(Arc::new(engine.clone()), spec).expect("the engine in memory does not fail")
}

impl World {
    pub(crate) fn new() -> Self {
        Self::over(MemoryEngine::new(), spec(1, 1))
    }

    /// A world that remembers what happens, and for long.
    pub(crate) fn that_remembers() -> Self {
        Self { retention: Some(Retention(NonZeroU32::MAX)), ..Self::new() }
    }

    /// Another partition, on the same disk as this one's leader.
    pub(crate) fn beside(&self, spec: PartitionSpec) -> Self {
        Self::over(self.leader.engine.clone(), spec)
    }

    /// An empty partition that has learned its unique key: what no two items of a logical partition have
    /// in common is `u`.
    fn over(engine: MemoryEngine, spec: PartitionSpec) -> Self {
        let key = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
        let policy = indexing::complete(None).expect("the default policy is valid");
        let index = IndexRules::new(&policy).expect("it compiles");
        let mut world = Self {
            model: Model::default(),
            leader: Replica::new(engine, spec),
            follower: Replica::new(MemoryEngine::new(), spec),
            log: Vec::new(),
            now: START,
            serial: 0,
            etags: BTreeMap::new(),
            rules: DocumentRules::new(key, index),
            index: Index { serving: NO_INDEX, wanted: NO_INDEX, epoch: 0, seen: None },
            retention: None,
        };
        let keys = UniqueKeys::new(1, vec![vec![vec!["u".into()]]]);
        let nothing = (ClockInterval::exact(Millis(0)), None);
        let effect = world.propose(Command::SetUniqueKeys(keys), &nothing);
        assert_eq!(effect, CommandEffect::UniqueKeysSet);
        world
    }

    /// Does one step, with the partition and with the model.
    pub(crate) fn step(&mut self, step: &Step) -> Done {
        let reading = self.read_clock(step);
        self.act(&step.act, &reading)
    }

    /// Does one thing, proposed with this reading of the clock.
    pub(crate) fn act(&mut self, act: &Act, reading: &Reading) -> Done {
        match act {
            Act::Write(writes) => self.write(writes, reading),
            Act::SetPolicy { default_ttl, epoch } => {
                self.set_policy(*default_ttl, epoch.after(self.model.epoch), reading)
            }
            Act::Advance => self.advance(reading),
            Act::Sweep { limit, grace } => self.sweep(*limit, *grace, reading),
            Act::SetIndexPolicy { policy, epoch } => {
                self.set_index_policy(*policy, epoch.after(self.index.epoch), reading)
            }
            Act::BuildIndex(limit) => self.build_index(*limit, reading),
            Act::Clear { key } => self.clear(*key, reading),
            Act::SweepCleared { limit } => self.sweep_cleared(*limit, reading),
            Act::Flush(which) => {
                self.replica(*which).engine.flush().expect("the engine in memory does not fail");
                Done::Other
            }
            Act::Crash(Which::Leader) => {
                self.leader.crash();
                self.leader.catch_up(&self.log, usize::MAX);
                Done::Other
            }
            Act::Crash(Which::Follower) => {
                self.follower.crash();
                Done::Other
            }
            Act::CatchUp(entries) => {
                self.follower.catch_up(&self.log, *entries);
                Done::Other
            }
            Act::Snapshot { chunk_bytes, crash_after } => {
                self.follower.install(self.leader.snapshot(), *chunk_bytes, *crash_after);
                Done::Other
            }
        }
    }

    /// The follower applies so many entries.
    pub(crate) fn catch_up(&mut self, entries_max: usize) {
        self.follower.catch_up(&self.log, entries_max);
    }

    /// How many entries there are.
    pub(crate) fn entries(&self) -> usize {
        self.log.len()
    }

    /// What the last entry came to.
    pub(crate) fn last_outcome(&self) -> Option<&Outcome> {
        self.log.last().map(|(_, outcome)| outcome)
    }

    /// The last instant at which the leader's clock read anything.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    fn replica(&mut self, which: Which) -> &mut Replica {
        match which {
            Which::Leader => &mut self.leader,
            Which::Follower => &mut self.follower,
        }
    }

    fn read_clock(&mut self, step: &Step) -> Reading {
        let jump = self.model.clock.max(self.now) + 3_600_001;
        let lo = match step.clock {
            ClockMove::Stand => self.now,
            ClockMove::Forward(by) => self.now + by,
            ClockMove::Back(by) => self.now - by.min(self.now),
            ClockMove::NextSecond(off) => {
                ((self.now / 1000 + 1) * 1000).checked_add_signed(off).expect("far from 1970")
            }
            ClockMove::Jump(by) | ClockMove::Spike(by) => jump + by,
        };
        match step.clock {
            ClockMove::Spike(_) => {}
            ClockMove::Stand
            | ClockMove::Forward(_)
            | ClockMove::Back(_)
            | ClockMove::NextSecond(_)
            | ClockMove::Jump(_) => self.now = lo,
        }
        let reading = |behind: &u64| Millis(lo - behind.min(&lo));
        let readings: Vec<Millis> = step.vouchers.iter().map(reading).collect();
        let nodes = u32::try_from(NODES).expect("a few");
        let vouchers = (!readings.is_empty()).then_some(Vouchers { readings, nodes });
        (ClockInterval::new(Millis(lo), Millis(lo + step.width)), vouchers)
    }

    /// Puts a command into the log, and has the leader and the model apply it.
    fn propose(&mut self, command: Command, reading: &Reading) -> CommandEffect {
        let (now, vouchers) = reading.clone();
        let readings = vouchers.as_ref().map_or(&[][..], |vouchers| &vouchers.readings);
        let readings: Vec<u64> = readings.iter().map(|reading| reading.0).collect();
        self.model.advance(now.lo().0, now.hi().0, &readings);
        let entry = codec::encode(&Proposal { now, vouchers, command });
        let index = self.log.len() as u64;
        let applied = self.leader.partition.apply(LogId { term: 1, index }, Entry::Command(&entry));
        let outcome =
            applied.expect("the engine in memory does not fail").expect("commands have outcomes");
        assert_eq!(outcome.lsn, Lsn(index));
        self.log.push((entry, outcome.clone()));
        outcome.effect
    }

    fn set_policy(&mut self, default_ttl: Option<i64>, epoch: u64, reading: &Reading) -> Done {
        let ttl = default_ttl.map(|ttl| TimeToLive::from_seconds(ttl).expect("a valid default"));
        let policy = TtlPolicy::from_default_ttl(ttl);
        let epoch_set = PolicyEpoch(epoch);
        let retention = self.retention;
        let command = Command::SetTtlPolicy { epoch: epoch_set, policy, retention };
        let effect = self.propose(command, reading);
        self.model.set_policy(default_ttl, epoch);
        assert_eq!(effect, CommandEffect::PolicySet(PolicyEpoch(self.model.epoch)));
        Done::Other
    }

    /// Moves the partition clock.
    pub(crate) fn advance(&mut self, reading: &Reading) -> Done {
        let effect = self.propose(Command::AdvanceClock, reading);
        assert_eq!(effect, CommandEffect::ClockAdvanced);
        Done::Other
    }

    /// Removes some of the dead.
    pub(crate) fn sweep(&mut self, limit: u32, grace: u64, reading: &Reading) -> Done {
        let limit = NonZeroU32::new(limit).expect("a sweep removes something");
        let effect = self.propose(Command::Sweep { limit, grace: Millis(grace) }, reading);
        let CommandEffect::Swept { removed, trimmed: 0, more, charge: _ } = effect else {
            panic!("{effect:?}")
        };
        Done::Swept { dead: Dead::Expired, removed, more, kept: self.model.keeps_the_dead(grace) }
    }

    fn set_index_policy(&mut self, policy: usize, epoch: u64, reading: &Reading) -> Done {
        let rules = POLICIES[policy].rules();
        let set = PolicyEpoch(epoch);
        let effect = self.propose(Command::SetIndexPolicy { epoch: set, rules }, reading);
        if epoch > self.index.epoch {
            (self.index.epoch, self.index.wanted) = (epoch, policy);
        }
        assert_eq!(effect, CommandEffect::IndexPolicySet(PolicyEpoch(self.index.epoch)));
        self.learn_what_serves()
    }

    /// Enters some items into the index that is being built. With an even limit the step is one that was looked for at
    /// the attempt before: others have written since, or done it already.
    pub(crate) fn build_index(&mut self, limit: u32, reading: &Reading) -> Done {
        let is_late = limit.is_multiple_of(2);
        let limit = NonZeroU32::new(limit).expect("a build enters something");
        let found =
            self.leader.partition.snapshot().build_step(limit).expect("memory does not fail");
        let before = std::mem::replace(&mut self.index.seen, found.clone());
        let step = if is_late { before } else { found };
        let effect = self.propose(Command::BuildIndex(step.unwrap_or_default()), reading);
        let CommandEffect::IndexBuilt { items, more, charge: _ } = effect else {
            panic!("{effect:?}")
        };
        assert!(is_late || items <= limit.get(), "it does what it is asked");
        assert!(is_late || items == limit.get() || !more, "it does all that it is asked");
        assert_eq!(more, self.leader.partition.index().is_building());
        self.learn_what_serves()
    }

    fn learn_what_serves(&mut self) -> Done {
        if !self.leader.partition.index().is_building() {
            self.index.serving = self.index.wanted;
        }
        Done::Other
    }

    fn clear(&mut self, key: u8, reading: &Reading) -> Done {
        let value = partition_key(key);
        let logical_partition = LogicalPartition::new(&self.rules.key().place(&value), &value);
        let effect = self.propose(Command::Clear(logical_partition), reading);
        assert_eq!(effect, CommandEffect::Cleared(Ok(())));
        self.model.clear(|id| id % KEYS == key);
        Done::Other
    }

    /// Removes some of what was cleared.
    pub(crate) fn sweep_cleared(&mut self, limit: u32, reading: &Reading) -> Done {
        let limit = NonZeroU32::new(limit).expect("a sweep removes something");
        let rows =
            self.leader.partition.snapshot().cleared_rows(limit).expect("memory does not fail");
        let effect = self.propose(Command::SweepCleared(rows.unwrap_or_default()), reading);
        let CommandEffect::Swept { removed, trimmed: 0, more, charge: _ } = effect else {
            panic!("{effect:?}")
        };
        Done::Swept { dead: Dead::Cleared, removed, more, kept: false }
    }

    fn write(&mut self, writes: &[Write], reading: &Reading) -> Done {
        let (lsn, first_serial) = (Lsn(self.log.len() as u64), self.serial + 1);
        self.serial += writes.len() as u64;
        let (group, mut etags) = (self.leader.group(), self.etags.clone());
        let mut items = Vec::new();
        for (operation, (write, serial)) in (0_u16..).zip(writes.iter().zip(first_serial..)) {
            items.push(self.item_write(write, serial, &etags));
            let stored = match write.operation {
                Operation::Rename(to) => to,
                Operation::Delete | Operation::Read => continue,
                Operation::Create
                | Operation::Replace
                | Operation::Upsert
                | Operation::Patch
                | Operation::PatchTtl
                | Operation::PatchTtlAway => write.id,
            };
            etags.insert(stored, Etag::new(group, lsn, operation));
        }
        let effect = self.propose(Command::Write(items), reading);
        let CommandEffect::Write(found) = effect else { panic!("{effect:?}") };
        if found.is_ok() {
            self.etags = etags;
        }
        let found = match found {
            Ok(written) => Ok(written.iter().map(answer).collect()),
            Err(refused) => Err((usize::from(refused.operation), refusal(&refused.refusal))),
        };
        Done::Written { expected: self.model.write(writes, first_serial), found }
    }

    fn item_write(&self, write: &Write, serial: u64, etags: &BTreeMap<u8, Etag>) -> ItemWrite {
        let Write { id, operation, ttl, tag, condition } = *write;
        let document = |id| self.document(id, ttl, tag, serial);
        let patch = |change: serde_json::Value| {
            let v = serde_json::json!({ "op": "set", "path": "/v", "value": serial });
            let u = serde_json::json!({ "op": "set", "path": "/u", "value": unique(tag, serial) });
            let operations = [vec![v, u], change.as_array().expect("a list").clone()].concat();
            let text = serde_json::json!({ "operations": operations }).to_string().into_bytes();
            Action::Patch(PatchRequest { text, rules: self.rules.clone().into() })
        };
        let action = match operation {
            Operation::Create => Action::Create(document(id)),
            Operation::Replace => Action::Replace(document(id)),
            Operation::Upsert => Action::Upsert(document(id)),
            Operation::PatchTtl if ttl.is_some() => {
                patch(serde_json::json!([{ "op": "set", "path": "/ttl", "value": ttl }]))
            }
            Operation::Patch | Operation::PatchTtl => patch(serde_json::json!([])),
            Operation::PatchTtlAway => {
                patch(serde_json::json!([{ "op": "remove", "path": "/ttl" }]))
            }
            Operation::Delete => Action::Delete,
            Operation::Read => Action::Read,
            Operation::Rename(to) => Action::Rename { to: self.key(to), document: document(to) },
        };
        let last = etags.get(&id).copied();
        let precondition = match condition {
            Condition::None => Precondition::None,
            Condition::IfMatchLast => Precondition::IfMatch(last),
            Condition::IfMatchOther => Precondition::IfMatch(None),
            Condition::IfNoneMatchLast => Precondition::IfNoneMatch(last),
        };
        ItemWrite { key: self.key(id), precondition, action }
    }

    fn document(&self, id: u8, ttl: Option<i64>, tag: Option<u8>, serial: u64) -> Document {
        let u = unique(tag, serial);
        let mut body = serde_json::json!({ "id": name(id), "pk": id % KEYS, "v": serial, "u": u });
        if let Some(ttl) = ttl {
            body["ttl"] = ttl.into();
        }
        let parsed = self.rules.parse(body.to_string().as_bytes());
        parsed.expect("a body like any other").document
    }

    /// Where an item stands.
    pub(crate) fn key(&self, id: u8) -> ItemKey {
        let value = partition_key(id % KEYS);
        let id = ItemId::try_from(name(id)).expect("a valid id");
        ItemKey::new(&self.rules.key().place(&value), &value, &id)
    }
}

fn partition_key(key: u8) -> PartitionKey {
    PartitionKey::parse(&format!("[{key}]")).expect("a valid key")
}

/// What the item is called.
pub(crate) fn name(id: u8) -> String {
    format!("i{id}")
}

/// What an item has of the unique key.
pub(crate) fn unique(tag: Option<u8>, serial: u64) -> u64 {
    tag.map_or(1000 + serial, u64::from)
}

/// The serial in a body.
pub(crate) fn serial(body: &[u8]) -> u64 {
    let body: serde_json::Value = serde_json::from_slice(body).expect("bodies are JSON");
    body["v"].as_u64().expect("every body has its serial")
}

fn answer(written: &Written) -> RealAnswer {
    let effect = match written.effect {
        RealEffect::Created => Effect::Created,
        RealEffect::Replaced => Effect::Replaced,
        RealEffect::Deleted => Effect::Deleted,
        RealEffect::Read => Effect::Read,
        RealEffect::NotModified => Effect::NotModified,
    };
    let number = looks::number(written.stamp.number);
    (effect, written.stamp.ts.0, written.body.as_deref().map(serial), number)
}

fn refusal(refusal: &Refusal) -> Refused {
    match refusal {
        Refusal::NotFound => Refused::NotFound,
        Refusal::Conflict => Refused::Conflict,
        Refusal::UniqueKeyTaken { .. } => Refused::UniqueKeyTaken,
        Refusal::PreconditionFailed => Refused::PreconditionFailed,
        Refusal::InvalidTtl { .. } => Refused::InvalidTtl,
        Refusal::PatchFailed(_) => Refused::PatchFailed,
        Refusal::WrongPartition => panic!("all items lie in the one partition"),
        Refusal::TransactionTooLarge | Refusal::SweepAwaited => panic!("all items are small"),
    }
}
