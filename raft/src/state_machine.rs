//! A `store` machine, as openraft wants to see it.
//!
//! Applying writes to the engine without a journal, so what is applied is not yet durable: it becomes
//! so when the engine is flushed. openraft purges the log up to its latest snapshot, therefore our
//! "snapshot" is a mere mark at the last flushed position; rows are read only when a follower needs
//! them, from the state as it is then.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use ephemeris_store::engine::Fault;
use ephemeris_store::machine::{Entry, Machine, Progress};
use futures_util::{Stream, StreamExt as _};
use openraft::OptionalSend;
use openraft::storage::{
    ApplyResponder, EntryResponder, RaftSnapshotBuilder, RaftStateMachine, SnapshotMeta,
};

use crate::clock;
use crate::ending::Work;
use crate::snapshot::SnapshotStore;
use crate::storage::Storage;
use crate::types::{
    Answer, LogEntry, Payload, RaftLogId, RaftStoredMembership, TypeConfig, from_raft_entry,
    to_raft_id, to_stored_membership,
};
use ephemeris_store::ids::ReplicaId;
use openraft::vote::leader_id_std::CommittedLeaderId;

/// Entries applied by one visit to a blocking thread.
const APPLY_ENTRIES_MAX: usize = 256;

/// So few entries that are brief each are brief together.
const BRIEF_ENTRIES_MAX: usize = 64;

/// What a snapshot is to openraft.
#[derive(Clone, Debug)]
pub(crate) enum SnapshotData {
    /// Our own state; its rows are read when they are sent.
    Mark,
    /// A file that came from the leader, complete and checked.
    Staged(String),
}

pub(crate) type RaftSnapshotMeta = SnapshotMeta<CommittedLeaderId<u64>, ReplicaId, ()>;
pub(crate) type RaftSnapshot =
    openraft::Snapshot<CommittedLeaderId<u64>, ReplicaId, (), SnapshotData>;

/// How far a machine's state would survive a crash.
#[derive(Clone, Default)]
pub(crate) struct Durable(Arc<Mutex<Progress>>);

impl Durable {
    pub(crate) fn get(&self) -> Progress {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, progress: Progress) {
        let mut durable = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.applied > durable.applied {
            *durable = progress;
        }
    }
}

pub(crate) struct StateMachine<M> {
    machine: Arc<M>,
    storage: Storage,
    snapshots: SnapshotStore,
    durable: Durable,
    work: Work,
}

impl<M: Machine> StateMachine<M> {
    pub(crate) fn new(
        machine: Arc<M>,
        storage: Storage,
        snapshots: SnapshotStore,
        durable: Durable,
        work: Work,
    ) -> Self {
        durable.set(machine.progress());
        Self { machine, storage, snapshots, durable, work }
    }

    /// True if entries are applied so fast that it is not worth another thread.
    fn is_brief(&self, batch: &[(LogEntry, Waiting)]) -> bool {
        let is_brief = |(entry, _): &(LogEntry, Waiting)| match &entry.payload {
            Payload::Command(command) => self.machine.is_brief(command),
            Payload::Blank | Payload::Membership(_) => false,
        };
        batch.len() <= BRIEF_ENTRIES_MAX && batch.iter().all(is_brief)
    }
}

/// Work that changes a machine. A panic, which is a broken invariant, becomes an error like a fault:
/// openraft stops the replica for an error, and would not notice a panic.
fn guarded(work: impl FnOnce() -> io::Result<()>) -> impl FnOnce() -> io::Result<()> {
    move || {
        let done = catch_unwind(AssertUnwindSafe(work));
        done.unwrap_or_else(|panic| Err(io::Error::other(describe_panic(&*panic))))
    }
}

fn describe_panic(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("an invariant is broken: {}", text.unwrap_or("a panic without a message"))
}

pub(crate) fn storage_error(fault: &Fault) -> io::Error {
    io::Error::other(fault.to_string())
}

pub(crate) fn snapshot_meta(progress: &Progress) -> io::Result<RaftSnapshotMeta> {
    Ok(RaftSnapshotMeta {
        last_log_id: progress.applied.map(to_raft_id),
        last_membership: to_stored_membership(progress.membership.as_ref())
            .map_err(io::Error::other)?,
    })
}

type Waiting = Option<ApplyResponder<TypeConfig>>;

/// Applies entries. Each outcome is sent with the time since the answer before it, which is what its entry
/// took; of entries that were written together the first has the time of all.
fn apply_batch<M: Machine>(machine: &M, batch: Vec<(LogEntry, Waiting)>) -> Result<(), io::Error> {
    let (entries, waiting): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
    let mut entries = entries.iter().map(|LogEntry { id, payload }| (*id, entry_of(payload)));
    let mut waiting = waiting.into_iter();
    let mut answered = clock::monotonic();
    let mut answer = |outcome: Option<M::Outcome>| {
        let waiting: Waiting = waiting.next().expect("each entry is answered once");
        let took = answered.elapsed();
        answered += took;
        if let Some(waiting) = waiting {
            let timed =
                |outcome: M::Outcome| Box::new((outcome, took)) as Box<dyn Any + Send + Sync>;
            waiting.send(Answer(outcome.map(timed)));
        }
    };
    machine.apply_all(&mut entries, &mut answer).map_err(|fault| storage_error(&fault))
}

fn entry_of(payload: &Payload) -> Entry<'_> {
    match payload {
        Payload::Blank => Entry::Blank,
        Payload::Membership(members) => Entry::Membership(members),
        Payload::Command(command) => Entry::Command(command),
    }
}

impl<M: Machine> RaftStateMachine<TypeConfig> for StateMachine<M> {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = MarkBuilder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<RaftLogId>, RaftStoredMembership), io::Error> {
        let meta = snapshot_meta(&self.machine.progress())?;
        Ok((meta.last_log_id, meta.last_membership))
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut batches = entries.ready_chunks(APPLY_ENTRIES_MAX);
        while let Some(batch) = batches.next().await {
            self.work.stop.check()?;
            let batch = batch
                .into_iter()
                .map(|entry| entry.map(|(entry, waiting)| (from_raft_entry(entry), waiting)))
                .collect::<Result<Vec<_>, _>>()?;
            let (machine, executor) = (self.machine.clone(), self.storage.executor);
            let is_brief = self.is_brief(&batch);
            let apply = guarded(move || apply_batch(&*machine, batch));
            if is_brief { executor.run_brief(apply).await } else { executor.run(apply).await }?;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> MarkBuilder {
        MarkBuilder(self.durable.clone())
    }

    async fn install_snapshot(
        &mut self,
        _meta: &RaftSnapshotMeta,
        snapshot: SnapshotData,
    ) -> Result<(), io::Error> {
        match snapshot {
            SnapshotData::Mark => Ok(()),
            SnapshotData::Staged(name) => {
                let machine = self.machine.clone();
                let (engine, snapshots) = (self.storage.engine.clone(), self.snapshots.clone());
                let install = move || snapshots.install(&engine, &*machine, &name);
                self.storage.executor.run(guarded(install)).await?;
                self.durable.set(self.machine.progress());
                Ok(())
            }
        }
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<RaftSnapshot>, io::Error> {
        let durable = self.durable.get();
        if durable.applied.is_none() {
            return Ok(None);
        }
        let meta = snapshot_meta(&durable)?;
        Ok(Some(RaftSnapshot { meta, snapshot: SnapshotData::Mark }))
    }
}

/// "Builds" a snapshot: marks the last flushed position.
pub(crate) struct MarkBuilder(Durable);

impl RaftSnapshotBuilder<TypeConfig> for MarkBuilder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> Result<RaftSnapshot, io::Error> {
        let meta = snapshot_meta(&self.0.get())?;
        Ok(RaftSnapshot { meta, snapshot: SnapshotData::Mark })
    }
}
