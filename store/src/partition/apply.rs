//! Applying log entries: the only place where items change.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::unique::UniqueChanges;
use super::{Cleared, Contents, Partition, PartitionState};
use crate::charge::Charge;
use crate::codec;
use crate::command::{
    Action, Command, CommandEffect, Effect, ItemWrite, Outcome, Precondition, Proposal, Refusal,
    Refused, TRANSACTION_BYTES_MAX, TRANSACTION_ENTRIES_BYTES_MAX, TRANSACTION_OPERATIONS_MAX,
    Written,
};
use crate::document::Document;
use crate::engine::{Batch, Fault, Table};
use crate::ids::{Etag, ItemNumber, Lsn};
use crate::indexing::{ChangeKind, EntryChanges, IndexState, UniqueKeys};
use crate::item::{Item, ItemKey, Stamp};
use crate::machine::{self, Entry, LogId, Membership, MetaTag};
use crate::patch::{PatchFailure, PatchRequest};
use crate::query;
use crate::time::Seconds;
use crate::timeline::{FeedPosition, OwnExpiry, VersionRow, expiry_key, feed_key};
use crate::ttl::{ItemTtl, TtlField};

/// Changes of neighbouring writes are gathered into one engine batch until they have this size: their
/// answers wait as long as it is written.
const BATCH_BYTES_TARGET: usize = 256 << 10;

/// So many entries are decoded ahead, and so many items looked up together: should they be there, they are held
/// in memory.
pub(super) const LOOK_AHEAD: usize = 32;

/// Entries being applied: a copy of the state, and the changes so far.
pub(super) struct Draft<'p> {
    pub(super) partition: &'p Partition,
    pub(super) state: PartitionState,
    pub(super) index: Arc<IndexState>,
    pub(super) unique_keys: Arc<UniqueKeys>,
    pub(super) cleared: Arc<Cleared>,
    pub(super) batch: Batch,
    /// Changes of index entries: the last ones of the batch.
    pub(super) entries: EntryChanges,
    /// Changes of entries of unique keys, for the later writes of this entry to see.
    pub(super) unique: UniqueChanges,
    pub(super) lsn: Lsn,
    /// Where the changes of the entry begin in the batch, behind those of the entries before it.
    begun: usize,
    /// What the entries answer.
    outcomes: Vec<Option<Outcome>>,
    /// Bytes of the bodies among the answers.
    shown: usize,
    /// No further entry shares the batch.
    is_full: bool,
    membership: Option<Membership>,
    /// The earliest expiry among the items written.
    due: Option<Seconds>,
    /// What deleting the items that were swept would have cost a user.
    pub(super) swept: Charge,
    /// Bytes of the bodies that the writes of this entry work on: of what they find alive, and of what they store.
    handled: usize,
    /// The same of what they replace that is dead and not swept yet.
    handled_dead: usize,
    /// Operations that are left to them, for conditions of patches and computed properties.
    pub(super) operations: u64,
    /// What the writes of this entry did so far, for the later ones to see.
    touched: Vec<(ItemKey, Option<Item>)>,
    /// What the entries before it did, as far as it is in the same batch.
    written: BTreeMap<ItemKey, Option<Item>>,
    /// What the engine holds of items that this entry and those behind it create, in their order, with the keys of
    /// their rows.
    found: VecDeque<(Vec<u8>, Option<Item>)>,
    /// How many changes this entry has recorded.
    pub(super) recorded: u16,
}

/// What an operation that is not refused comes to.
enum Step {
    /// A new version.
    Store { document: Document, effect: Effect, shows_body: bool },
    /// A new version in another place than this one.
    Move { from: Item, to: ItemKey, document: Document },
    /// No version.
    Remove(Item),
    /// Nothing new: the version is shown.
    Look(Item),
    /// Nothing new, and the client has the version.
    LookAway(Stamp),
}

/// An entry, decoded.
enum Task<'a> {
    Blank,
    Membership(&'a [u8]),
    Command(Proposal),
}

impl<'a> Task<'a> {
    fn decode(entry: Entry<'a>) -> Result<Self, Fault> {
        Ok(match entry {
            Entry::Blank => Task::Blank,
            Entry::Membership(members) => Task::Membership(members),
            Entry::Command(bytes) => {
                let proposal: Proposal =
                    codec::decode(bytes).map_err(|error| Fault::corrupt("log entry", error))?;
                if !proposal.now.is_valid() {
                    let reason = "a clock interval that ends before it starts";
                    return Err(Fault::corrupt("log entry", reason));
                }
                Task::Command(proposal)
            }
        })
    }

    /// The items it creates.
    fn created(&self) -> impl Iterator<Item = &ItemKey> {
        let writes = match self {
            Task::Command(Proposal { command: Command::Write(writes), .. }) => &writes[..],
            Task::Command(_) | Task::Blank | Task::Membership(_) => &[],
        };
        let creates = writes.iter().filter(|write| matches!(write.action, Action::Create(_)));
        creates.map(|write| &write.key)
    }

    /// True if it reads nothing but what a draft remembers of the entries before it, so that it may share
    /// their batch.
    fn writes_items(&self) -> bool {
        match self {
            Task::Command(proposal) => matches!(proposal.command, Command::Write(_)),
            Task::Blank | Task::Membership(_) => false,
        }
    }
}

impl Partition {
    /// Applies entries in order. Neighbouring writes share an engine batch, which changes nothing but its
    /// price: their rows, stamps and digest are those of each one by itself.
    pub(super) fn apply_entries(
        &self,
        entries: &mut dyn Iterator<Item = (LogId, Entry<'_>)>,
        answer: &mut dyn FnMut(Option<Outcome>),
    ) -> Result<(), Fault> {
        let (mut draft, mut tasks) = (None, VecDeque::new());
        loop {
            for (position, entry) in entries.take(LOOK_AHEAD - tasks.len()) {
                tasks.push_back((position, Task::decode(entry)?));
            }
            let Some((position, task)) = tasks.pop_front() else { break };
            let stands_alone = !task.writes_items();
            if let Some(done) = draft.take_if(|draft: &mut Draft<'_>| stands_alone || draft.is_full)
            {
                self.publish(done, answer)?;
            }
            let draft = draft.get_or_insert_with(|| Draft::new(self));
            if draft.found.is_empty() {
                let next = tasks.iter().map(|(_, task)| task);
                draft.look_ahead(std::iter::once(&task).chain(next))?;
            }
            draft.apply(position, task)?;
            let bytes = draft.batch.bytes() + draft.shown;
            draft.is_full = stands_alone || bytes >= BATCH_BYTES_TARGET;
        }
        draft.map_or(Ok(()), |done| self.publish(done, answer))
    }

    /// Writes the batch and the state as one step for every reader.
    fn publish(
        &self,
        draft: Draft<'_>,
        answer: &mut dyn FnMut(Option<Outcome>),
    ) -> Result<(), Fault> {
        let Draft { state, index, unique_keys, cleared, mut batch, .. } = draft;
        machine::put_meta(&mut batch, self.spec.group, MetaTag::State, &state);
        let membership = draft.membership.or_else(|| self.published.now().membership.clone());
        let contents = Contents { state, index, unique_keys, cleared, membership };
        self.published.publish(&*self.engine, batch, contents)?;
        self.due.note(draft.due);
        draft.outcomes.into_iter().for_each(answer);
        Ok(())
    }
}

impl<'p> Draft<'p> {
    fn new(partition: &'p Partition) -> Self {
        let contents = partition.published.now();
        Self {
            partition,
            state: contents.state,
            index: contents.index.clone(),
            unique_keys: contents.unique_keys.clone(),
            cleared: contents.cleared.clone(),
            lsn: contents.state.lsn(),
            batch: Batch::default(),
            entries: EntryChanges::default(),
            unique: UniqueChanges::default(),
            begun: 0,
            outcomes: Vec::new(),
            shown: 0,
            is_full: false,
            membership: None,
            due: None,
            swept: Charge::ZERO,
            handled: 0,
            handled_dead: 0,
            operations: TRANSACTION_OPERATIONS_MAX,
            touched: Vec::new(),
            written: BTreeMap::new(),
            found: VecDeque::new(),
            recorded: 0,
        }
    }

    fn apply(&mut self, position: LogId, task: Task<'_>) -> Result<(), Fault> {
        machine::assert_next(self.state.applied, position);
        self.state.applied = Some(position);
        self.lsn = Lsn(position.index);
        (self.begun, self.recorded) = (self.batch.bytes(), 0);
        let effect = match task {
            Task::Blank => None,
            Task::Membership(members) => {
                self.set_membership(position, members);
                None
            }
            Task::Command(proposal) => Some(self.carry_out(proposal)?),
        };
        self.unique.finish(&mut self.batch);
        self.entries.finish(&mut self.batch);
        self.state.digest = self.batch.digest(self.begun, self.state.digest);
        self.written.extend(self.touched.drain(..));
        self.outcomes.push(effect.map(|effect| Outcome { lsn: self.lsn, effect }));
        Ok(())
    }

    /// Looks whether the engine holds what the next entries create: together, which costs less than one by one.
    /// Nothing there changes before the batch is written.
    fn look_ahead<'t>(&mut self, tasks: impl Iterator<Item = &'t Task<'t>>) -> Result<(), Fault> {
        let created = tasks.take_while(|task| task.writes_items()).flat_map(Task::created);
        let keys = created.take(LOOK_AHEAD).map(|item| self.partition.keys.item(item));
        let keys: Vec<_> = keys.collect();
        if keys.len() >= 2 {
            let stored = self.stored_each(&keys)?;
            self.found.extend(keys.into_iter().zip(stored));
        }
        Ok(())
    }

    /// The versions, dead or alive, that the engine holds in rows with these keys.
    pub(super) fn stored_each(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Item>>, Fault> {
        let rows = self.partition.engine.get_each(Table::Items, keys)?;
        rows.into_iter().map(|row| self.state.swept.kept(row)).collect()
    }

    fn set_membership(&mut self, position: LogId, members: &[u8]) {
        let membership = Membership { log_id: Some(position), members: members.to_vec() };
        let group = self.partition.spec.group;
        machine::put_meta(&mut self.batch, group, MetaTag::Membership, &membership);
        self.membership = Some(membership);
    }

    fn carry_out(&mut self, proposal: Proposal) -> Result<CommandEffect, Fault> {
        let Proposal { now, vouchers, command } = proposal;
        self.state.ttl.advance(now, vouchers.as_ref());
        match command {
            Command::Write(writes) => self.write(writes).map(CommandEffect::Write),
            Command::SetTtlPolicy { epoch, policy, retention } => {
                if self.state.ttl.set_policy(policy, epoch) {
                    self.state.set_retention(retention, FeedPosition::end_of(self.lsn));
                    // Anything may be due under the new policy.
                    self.due = Some(Seconds(0));
                }
                Ok(CommandEffect::PolicySet(self.state.ttl.epoch()))
            }
            Command::AdvanceClock => Ok(CommandEffect::ClockAdvanced),
            Command::Clear(logical_partition) => Ok(self.clear(logical_partition)),
            Command::SweepCleared(rows) => self.sweep_cleared(&rows),
            Command::Sweep { limit, grace } => self.sweep(limit, grace),
            Command::SetIndexPolicy { epoch, rules } => Ok(self.set_index_policy(epoch, rules)),
            Command::BuildIndex(step) => self.build_index(&step),
            Command::SetUniqueKeys(keys) => Ok(self.set_unique_keys(keys)),
        }
    }

    /// Carries out a transaction; a refusal takes back every write before it.
    fn write(&mut self, writes: Vec<ItemWrite>) -> Result<Result<Vec<Written>, Refused>, Fault> {
        let before = self.state;
        (self.handled, self.handled_dead, self.operations) = (0, 0, TRANSACTION_OPERATIONS_MAX);
        let mut written = Vec::with_capacity(writes.len());
        for (operation, write) in (0_u16..).zip(writes) {
            let done = if usize::from(operation) < ItemNumber::OPERATIONS_MAX {
                self.write_item(operation, write)?
            } else {
                Err((Refusal::TransactionTooLarge, Charge::ZERO))
            };
            match done {
                Ok(one) => written.push(one),
                Err((refusal, charge)) => {
                    self.state = before;
                    self.batch.truncate(self.begun);
                    self.entries.clear();
                    self.unique.take_back();
                    self.touched.clear();
                    self.recorded = 0;
                    let spent: Charge = written.iter().map(|one: &Written| one.charge).sum();
                    // Units that nobody wants are what the sweeper needs to get there.
                    let is_free = refusal == Refusal::SweepAwaited;
                    let charge = if is_free { Charge::ZERO } else { spent + charge };
                    return Ok(Err(Refused { operation, refusal, charge }));
                }
            }
        }
        self.shown +=
            written.iter().filter_map(|one| one.body.as_ref()).map(Bytes::len).sum::<usize>();
        Ok(Ok(written))
    }

    fn write_item(
        &mut self,
        operation: u16,
        write: ItemWrite,
    ) -> Result<Result<Written, (Refusal, Charge)>, Fault> {
        let ItemWrite { key, precondition, action } = write;
        if !self.owns(&key, &action) {
            return Ok(Err((Refusal::WrongPartition, Charge::ZERO)));
        }
        let stored = self.stored(&key)?;
        let live = stored.as_ref().filter(|item| !self.is_dead(&key, item));
        if let Err(too_much) = self.handle(live.map_or(0, |item| item.body.len())) {
            return Ok(Err(too_much));
        }
        if live.is_some_and(|item| !precondition.means(item.stamp.number)) {
            return Ok(Err((Refusal::NotFound, Charge::NOT_FOUND)));
        }
        let number = live.map(|item| item.stamp.number);
        let step = match self.decide(action, precondition, live) {
            Ok(step) => step,
            Err(refused) => return Ok(Err(refused)),
        };
        Ok(Ok(match step {
            Step::Store { document, effect, shows_body } => {
                let replaced = if live.is_none() { stored.as_ref() } else { None };
                if let Err(too_much) = self.handle_store(&document, replaced) {
                    return Ok(Err(too_much));
                }
                if let Err(taken) = self.check_unique(&key, number, &document.body)? {
                    return Ok(Err(taken));
                }
                let written = stored_as(effect, &document, shows_body);
                written(self.store(operation, key, stored.as_ref(), number, document)?)
            }
            Step::Move { from, to, document } => {
                let stored = self.stored(&to)?;
                if let Some(taken) = stored.as_ref().filter(|item| !self.is_dead(&to, item)) {
                    let looked_at = Charge::point_read(taken.body.len());
                    return Ok(Err((Refusal::Conflict, looked_at)));
                }
                if let Err(too_much) = self.handle_store(&document, stored.as_ref()) {
                    return Ok(Err(too_much));
                }
                let number = Some(from.stamp.number);
                if let Err(taken) = self.check_unique(&to, number, &document.body)? {
                    return Ok(Err(taken));
                }
                self.delete(key, &from)?;
                let written = stored_as(Effect::Replaced, &document, false);
                written(self.store(operation, to, stored.as_ref(), number, document)?)
            }
            Step::Remove(item) => {
                let stamp = item.stamp;
                let charge = Charge::create(item.body.len(), stamp.indexed_values);
                self.delete(key, &item)?;
                let effect = Effect::Deleted;
                Written { effect, stamp, charge, body: None, has_inert_ttl: false }
            }
            Step::Look(item) => {
                let charge = Charge::point_read(item.body.len());
                let (effect, stamp) = (Effect::Read, item.stamp);
                Written { effect, stamp, charge, body: Some(item.body), has_inert_ttl: false }
            }
            Step::LookAway(stamp) => Written {
                effect: Effect::NotModified,
                stamp,
                charge: Charge::NOT_MODIFIED,
                body: None,
                has_inert_ttl: false,
            },
        }))
    }

    /// Notes that a write works on so many bytes of bodies more; refuses what would hold replicas up. One write by
    /// itself never does.
    fn handle(&mut self, bytes: usize) -> Result<(), (Refusal, Charge)> {
        self.handled += bytes;
        let is_too_much = self.handled + self.handled_dead > TRANSACTION_BYTES_MAX
            || self.entries.added() > TRANSACTION_ENTRIES_BYTES_MAX
            || self.operations == 0;
        if is_too_much { Err((self.too_large(), Charge::point_read(bytes))) } else { Ok(()) }
    }

    /// The same for a write that stores a document, perhaps over a dead version.
    fn handle_store(
        &mut self,
        document: &Document,
        dead: Option<&Item>,
    ) -> Result<(), (Refusal, Charge)> {
        self.handled_dead += dead.map_or(0, |item| item.body.len());
        self.handle(document.body.len())
    }

    /// Why what is too much is refused: nobody can see what is dead, so if it is for that, once it is swept the answer
    /// is another one.
    fn too_large(&self) -> Refusal {
        let may_fit = self.handled_dead > 0 && self.handled <= TRANSACTION_BYTES_MAX;
        if may_fit { Refusal::SweepAwaited } else { Refusal::TransactionTooLarge }
    }

    /// True if everything a write touches lies in this partition. A renamed item must stay in its
    /// slot, which its number names.
    fn owns(&self, key: &ItemKey, action: &Action) -> bool {
        let owns = |key: &ItemKey| key.is_valid() && self.partition.spec.slots.contains(key.slot());
        match action {
            Action::Rename { to, .. } => owns(key) && owns(to) && key.slot() == to.slot(),
            Action::Create(_)
            | Action::Replace(_)
            | Action::Upsert(_)
            | Action::Patch(_)
            | Action::Delete
            | Action::Read => owns(key),
        }
    }

    /// Decides what an operation comes to, given the live version of its item.
    fn decide(
        &mut self,
        action: Action,
        precondition: Precondition,
        live: Option<&Item>,
    ) -> Result<Step, (Refusal, Charge)> {
        if let Action::Create(document)
        | Action::Replace(document)
        | Action::Upsert(document)
        | Action::Rename { document, .. } = &action
        {
            self.check_ttl(document)?;
        }
        let Some(live) = live else {
            return match action {
                Action::Create(document) | Action::Upsert(document) => {
                    Ok(Step::Store { document, effect: Effect::Created, shows_body: false })
                }
                Action::Replace(_)
                | Action::Patch(_)
                | Action::Delete
                | Action::Read
                | Action::Rename { .. } => Err((Refusal::NotFound, Charge::NOT_FOUND)),
            };
        };
        let looked_at = Charge::point_read(live.body.len());
        let replaced =
            |document| Step::Store { document, effect: Effect::Replaced, shows_body: false };
        match (action, precondition.allows(live.stamp.etag)) {
            (Action::Create(_), _) => Err((Refusal::Conflict, looked_at)),
            (Action::Read, false) if precondition.is_none_match() => Ok(Step::LookAway(live.stamp)),
            (
                Action::Replace(_)
                | Action::Upsert(_)
                | Action::Patch(_)
                | Action::Delete
                | Action::Read
                | Action::Rename { .. },
                false,
            ) => Err((Refusal::PreconditionFailed, looked_at)),
            (Action::Replace(document) | Action::Upsert(document), true) => Ok(replaced(document)),
            (Action::Patch(request), true) => self.patch(&request, live),
            (Action::Delete, true) => Ok(Step::Remove(live.clone())),
            (Action::Read, true) => Ok(Step::Look(live.clone())),
            (Action::Rename { to, document }, true) => {
                Ok(Step::Move { from: live.clone(), to, document })
            }
        }
    }

    fn patch(&mut self, request: &PatchRequest, live: &Item) -> Result<Step, (Refusal, Charge)> {
        let container = self.partition.spec.container;
        let shown = |needed: &query::Needed| {
            let item = query::Value::read_item(&live.body, &live.stamp, container, needed);
            item.expect("a stored body is JSON")
        };
        match request.carry_out(&live.body, shown, &mut self.operations) {
            Ok(document) => {
                self.check_ttl(&document)?;
                Ok(Step::Store { document, effect: Effect::Replaced, shows_body: true })
            }
            Err(PatchFailure::Condition) if self.operations == 0 => {
                Err((self.too_large(), Charge::point_read(live.body.len())))
            }
            Err(PatchFailure::Condition) => {
                Err((Refusal::PreconditionFailed, Charge::point_read(live.body.len())))
            }
            Err(failure) => Err((Refusal::PatchFailed(failure), Charge::REFUSED_BODY)),
        }
    }

    /// While expiry is on, a `ttl` must be valid (R5); while it is off, it is inert (R6).
    fn check_ttl(&self, document: &Document) -> Result<(), (Refusal, Charge)> {
        match &document.ttl {
            TtlField::Invalid(value) if self.state.ttl.policy().is_on() => {
                Err((Refusal::InvalidTtl { value: value.clone() }, Charge::REFUSED_BODY))
            }
            TtlField::Invalid(_) | TtlField::Absent | TtlField::Valid(_) => Ok(()),
        }
    }

    /// The version with rows, dead or alive, as the writes before this one left it.
    pub(super) fn stored(&mut self, key: &ItemKey) -> Result<Option<Item>, Fault> {
        if let Some((_, item)) = self.touched.iter().rev().find(|(touched, _)| touched == key) {
            return Ok(item.clone());
        }
        if let Some(item) = self.written.get(key) {
            return Ok(item.clone());
        }
        let keys = self.partition.keys;
        if let Some(at) = self.found.iter().position(|(row, _)| keys.is_item(row, key)) {
            let found = self.found.drain(..=at).next_back();
            return Ok(found.and_then(|(_, item)| item));
        }
        let row = self.partition.engine.get(Table::Items, &keys.item(key))?;
        self.state.swept.kept(row)
    }

    /// Writes a version over whatever is there; returns its stamp.
    ///
    /// An item that replaces a live one keeps its number, and so its `_rid`; one that replaces a
    /// dead or missing one is a new item.
    fn store(
        &mut self,
        operation: u16,
        key: ItemKey,
        stored: Option<&Item>,
        number: Option<ItemNumber>,
        document: Document,
    ) -> Result<Stamp, Fault> {
        let is_first = number.is_none();
        let number = number.unwrap_or_else(|| ItemNumber::new(key.slot(), self.lsn, operation));
        let ttl = match &document.ttl {
            TtlField::Absent => ItemTtl::Inherit,
            TtlField::Valid(ttl) => ItemTtl::from(*ttl),
            TtlField::Invalid(_) => ItemTtl::Never,
        };
        let ts = self.state.ttl.last_ts();
        let stamp = Stamp {
            lsn: self.lsn,
            operation,
            ts,
            ttl,
            etag: Etag::new(self.partition.spec.group, self.lsn, operation),
            number,
            indexed_values: document.indexed_values,
            tells_place: is_first && self.state.ttl.expiry(ttl, ts).is_some(),
        };
        let item = Item { stamp, body: document.body };
        if let Some(old) = stored {
            self.index(ChangeKind::Delete, (&key, &old.stamp, &old.body))?;
            if self.is_dead(&key, old) {
                self.record_removed(&key, old);
            }
            let version = VersionRow::new(&key, old);
            self.leave_orders(&version);
            self.count_out(version.body_bytes);
        }
        self.lead_to(&key, &stamp, stored.map(|old| &old.stamp));
        self.index(ChangeKind::Put, (&key, &item.stamp, &item.body))?;
        self.record_stored(&key, &item, stored.filter(|old| !self.is_dead(&key, old)));
        self.add(&key, &item);
        self.touched.push((key, Some(item)));
        Ok(stamp)
    }

    /// Sees to it that the number of a version, and no longer that of the one it replaces, leads to its key.
    fn lead_to(&mut self, key: &ItemKey, stamp: &Stamp, replaced: Option<&Stamp>) {
        let keys = self.partition.keys;
        let known = replaced.filter(|old| !old.is_first()).map(|old| old.number);
        if let Some(other) = known.filter(|known| *known != stamp.number) {
            self.batch.delete(Table::Numbers, &keys.number(other));
        }
        if !stamp.is_first() && known != Some(stamp.number) {
            self.batch.put(Table::Numbers, &keys.number(stamp.number), key.as_bytes());
        }
    }

    /// Sees to it that somebody looks at the partition then.
    pub(super) fn note_due(&mut self, second: Seconds) {
        self.due = Some(self.due.map_or(second, |due| due.min(second)));
    }

    /// Writes every row of a version.
    fn add(&mut self, key: &ItemKey, item: &Item) {
        let Stamp { ts, ttl, .. } = item.stamp;
        let (keys, group) = (self.partition.keys, self.partition.spec.group);
        self.batch.put_with(Table::Items, &keys.item(key), |value| item.put(value));
        let put_row = |value: &mut Vec<u8>| VersionRow::put(key, item, value);
        if let Some(expiry) = OwnExpiry::of(&item.stamp) {
            self.batch.put_with(Table::Expiry, &expiry_key(group, expiry), put_row);
        }
        let position = FeedPosition::of(&item.stamp);
        self.batch.put_with(Table::Feed, &feed_key(group, position), put_row);
        if let Some(expiry) = self.state.ttl.expiry(ttl, ts) {
            self.note_due(expiry);
        }
        self.state.items += 1;
        self.state.bytes += item.body.len() as u64;
    }

    /// Removes a version, for the writes after this one, too.
    fn delete(&mut self, key: ItemKey, item: &Item) -> Result<(), Fault> {
        self.remove(&key, item)?;
        self.touched.push((key, None));
        Ok(())
    }

    /// Removes every row of a version.
    pub(super) fn remove(&mut self, key: &ItemKey, item: &Item) -> Result<(), Fault> {
        self.record_removed(key, item);
        self.index(ChangeKind::Delete, (key, &item.stamp, &item.body))?;
        let version = VersionRow::new(key, item);
        self.leave_orders(&version);
        self.remove_places(&version);
        self.count_out(version.body_bytes);
        Ok(())
    }

    /// Removes the rows of a version in the orders in which items die.
    fn leave_orders(&mut self, version: &VersionRow) {
        self.leave_feed(FeedPosition::of(&version.stamp));
        if let Some(expiry) = OwnExpiry::of(&version.stamp) {
            self.batch.delete(Table::Expiry, &expiry_key(self.partition.spec.group, expiry));
        }
    }

    /// Removes a version's row in the feed.
    pub(super) fn leave_feed(&mut self, position: FeedPosition) {
        self.batch.delete(Table::Feed, &feed_key(self.partition.spec.group, position));
    }

    /// Removes the rows of a version by which it is found: the last ones beside its index entries. It
    /// may be unread.
    pub(super) fn remove_places(&mut self, version: &VersionRow) {
        let keys = self.partition.keys;
        self.batch.delete(Table::Items, &keys.item(&version.item));
        if !version.stamp.is_first() {
            self.batch.delete(Table::Numbers, &keys.number(version.stamp.number));
        }
    }

    /// A version with a body of so many bytes is no longer among what is stored.
    pub(super) fn count_out(&mut self, body_bytes: u32) {
        let (state, bytes) = (&mut self.state, u64::from(body_bytes));
        state.items = state.items.checked_sub(1).expect("only stored items are removed");
        state.bytes = state.bytes.checked_sub(bytes).expect("only stored bytes are removed");
    }
}

/// What storing a document comes to, once it has a stamp.
fn stored_as(
    effect: Effect,
    document: &Document,
    shows_body: bool,
) -> impl FnOnce(Stamp) -> Written + use<> {
    let (bytes, indexed_values) = (document.body.len(), document.indexed_values);
    let charge = match effect {
        Effect::Created => Charge::create(bytes, indexed_values),
        Effect::Replaced | Effect::Deleted | Effect::Read | Effect::NotModified => {
            Charge::replace(bytes, indexed_values)
        }
    };
    let has_inert_ttl = matches!(document.ttl, TtlField::Invalid(_));
    let body = shows_body.then(|| document.body.clone());
    move |stamp| Written { effect, stamp, charge, body, has_inert_ttl }
}
