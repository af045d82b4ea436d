//! A replica of a partition on this node: starts it, forms its group, and does a leader's duties.
//!
//! Leadership, membership, start and stop go through this actor; reads and writes do not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ephemeris_raft::{
    ChangeError, Group, GroupOptions, GroupStatus, Leadership, Router, StartError, Storage,
    Transport,
};
use ephemeris_store::catalog::PartitionRecord;
use ephemeris_store::ids::ReplicaId;
use ephemeris_store::partition::{Partition, PartitionSpec};
use ephemeris_store::time::Millis;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::indexer::Indexer;
use super::sweeper::Sweeper;
use super::{Burst, NAP_MAX, PartitionService, Policies};
use crate::clock::SharedClock;
use crate::placement::Directory;
use crate::supervisor::{self, Tasks};

/// How long the replicas that do not form the group wait for the one that does.
const FORM_DELAY: Duration = Duration::from_secs(3);
/// How often a leader compares what is with what should be, while something happens in its group.
const RECONCILE_EVERY: Duration = Duration::from_millis(500);

/// Pause before a leader that does not take entries yet tries again.
const SETTLE_RETRY: Duration = Duration::from_millis(20);

/// What replicas need of the node.
#[derive(Clone)]
pub(crate) struct ReplicaContext {
    /// Its storage.
    pub(crate) storage: Storage,
    /// The way to other nodes.
    pub(crate) transport: Arc<dyn Transport>,
    /// Hands messages to groups.
    pub(crate) router: Router,
    /// How groups behave.
    pub(crate) options: GroupOptions,
    /// The node's clock.
    pub(crate) clock: SharedClock,
    /// How long expired items are kept after a jump of the clock.
    pub(crate) purge_grace: Millis,
    /// Whether partitions save unused request units for bursts.
    pub(crate) burst: Burst,
    /// The catalog.
    pub(crate) directory: Directory,
    /// Owner of the node's tasks.
    pub(crate) tasks: Tasks,
}

/// A running replica.
pub(crate) struct LocalReplica {
    service: PartitionService,
    tasks: Tasks,
    record: watch::Sender<Arc<PartitionRecord>>,
}

impl LocalReplica {
    /// Answers requests, if it leads.
    pub(crate) fn service(&self) -> &PartitionService {
        &self.service
    }

    /// The replica's group.
    pub(crate) fn group(&self) -> &Group<Partition> {
        self.service.group()
    }

    /// Tells the replica what the catalog says now. A leader compares all of it with what is.
    pub(crate) fn update(&self, record: Arc<PartitionRecord>) {
        self.record.send_replace(record);
    }

    /// Stops the replica; its data stays.
    pub(crate) async fn stop(&self) {
        self.tasks.stop().await;
        self.group().stop().await;
    }

    /// Stops the replica and removes its data.
    pub(crate) async fn remove(&self) {
        self.tasks.stop().await;
        if let Err(error) = self.group().remove().await {
            crate::supervisor::fault(&format!("a replica could not be removed: {error}"));
        }
    }
}

/// Starts a replica over what storage holds of it.
pub(crate) async fn start_replica(
    context: &ReplicaContext,
    replica: ReplicaId,
    record: Arc<PartitionRecord>,
) -> Result<LocalReplica, StartError> {
    let PartitionRecord { group, container, slots, .. } = *record;
    let spec = PartitionSpec { group, container, slots };
    let engine = context.storage.engine.clone();
    let opened = context.storage.executor.run(move || Partition::open(engine, spec)).await;
    let machine =
        opened.map_err(|fault| StartError::Storage { group, detail: fault.to_string() })?;
    let started = Group::start(
        group,
        replica,
        machine,
        context.storage.clone(),
        context.transport.clone(),
        context.router.clone(),
        &context.options,
    );
    let service = PartitionService::new(
        started.await?,
        context.clock.clone(),
        context.directory.clone(),
        context.storage.executor,
        context.purge_grace,
        context.burst,
    );
    let (sender, receiver) = watch::channel(record);
    let tasks = context.tasks.child();
    let actor = Actor {
        context: context.clone(),
        service: service.clone(),
        record: receiver,
        leader_tasks: None,
        tasks: tasks.clone(),
    };
    tasks.spawn("replica", actor.run());
    Ok(LocalReplica { service, tasks, record: sender })
}

struct Actor {
    context: ReplicaContext,
    service: PartitionService,
    record: watch::Receiver<Arc<PartitionRecord>>,
    /// What runs while this replica leads.
    leader_tasks: Option<Tasks>,
    tasks: Tasks,
}

impl Actor {
    async fn run(mut self) {
        self.form().await;
        let mut leadership = self.service.group().watch_leadership();
        while let Some(now) = leadership.changed().await {
            self.end_term().await;
            if now.is_me {
                self.begin_term(now);
            }
        }
        // Whoever stops a replica ends this task first: it has stopped by itself.
        let group = self.service.group();
        supervisor::replica_fault(group.group(), group.replica(), &group.stopped().await);
    }

    /// The first replica forms the group at once; the others only if it seems not to come.
    async fn form(&self) {
        let group = self.service.group();
        if group.is_formed().await {
            return;
        }
        let replicas = self.record.borrow().replicas.clone();
        if !replicas.contains(&group.replica()) {
            return;
        }
        // A replica that joined later hears from its leader; forming is for the founders alone.
        let founded_together =
            replicas.iter().all(|replica| replica.incarnation == group.replica().incarnation);
        if !founded_together {
            return;
        }
        if replicas.first() != Some(&group.replica()) {
            tokio::time::sleep(FORM_DELAY).await;
            if group.is_formed().await {
                return;
            }
        }
        if let Err(error) = group.form(&replicas).await {
            warn!(group = %group.group(), %error, "the group could not be formed");
        }
    }

    fn begin_term(&mut self, leadership: Leadership) {
        let term = leadership.term;
        let tasks = self.tasks.child();
        let duties = Duties {
            service: self.service.clone(),
            directory: self.context.directory.clone(),
            record: self.record.clone(),
        };
        let sweeper = Sweeper { service: self.service.clone(), term };
        let indexer = Indexer { service: self.service.clone() };
        tasks.spawn("leader", async move {
            let group = duties.service.group();
            // What earlier leaders left is applied before anything is decided. A leader is told so a
            // moment before it takes entries; the retries end with the term, which ends this task.
            while let Err(error) = group.settle().await {
                debug!(group = %group.group(), term, %error, "the term has not settled yet");
                tokio::time::sleep(SETTLE_RETRY).await;
            }
            tokio::join!(sweeper.run(), duties.run(), indexer.run());
        });
        self.leader_tasks = Some(tasks);
    }

    async fn end_term(&mut self) {
        if let Some(tasks) = self.leader_tasks.take() {
            tasks.stop().await;
        }
    }
}

/// What a leader keeps in order: its container's policy and its group's members.
struct Duties {
    service: PartitionService,
    directory: Directory,
    record: watch::Receiver<Arc<PartitionRecord>>,
}

impl Duties {
    async fn run(mut self) {
        loop {
            let is_done = self.apply_policy().await & self.apply_members().await;
            let idle = if is_done { NAP_MAX } else { RECONCILE_EVERY };
            // The catalog tells by its changes, and is asked from time to time all the same.
            tokio::select! {
                _ = self.record.changed() => {}
                () = self.service.nap(RECONCILE_EVERY, idle) => {}
            }
        }
    }

    /// Takes over a policy that the gateway that changed it did not bring here; false if that is left to do.
    async fn apply_policy(&self) -> bool {
        let directory = self.directory.current();
        let machine = self.service.group().machine();
        let Some(container) = directory.container(machine.spec().container) else { return true };
        let known = machine.state().ttl().epoch().min(machine.index().epoch());
        if known >= container.policy_epoch {
            return true;
        }
        let policies = Policies::of(&container.definition);
        let set = self.service.set_policies(container.policy_epoch, policies).await;
        if let Err(error) = &set {
            debug!(group = %self.service.group().group(), %error, "a policy was not applied yet");
        }
        set.is_ok()
    }

    /// Makes the group's members what the catalog says they are; false if they were not.
    async fn apply_members(&self) -> bool {
        let group = self.service.group();
        let wanted: BTreeSet<ReplicaId> = self.record.borrow().replicas.iter().copied().collect();
        let status = group.status();
        if wanted.is_empty() || status.are_voters(&wanted) && status.learners.is_empty() {
            return true;
        }
        if let Err(error) = change_members(group, &wanted, &status).await {
            warn!(group = %group.group(), %error, "members were not changed");
        }
        false
    }
}

/// Brings a group's members nearer to what is wanted: new replicas follow first, and vote once they are able to.
/// Nobody leaves for one that is not.
async fn change_members(
    group: &Group<Partition>,
    wanted: &BTreeSet<ReplicaId>,
    status: &GroupStatus,
) -> Result<(), ChangeError> {
    let known: BTreeSet<ReplicaId> = status.voters.union(&status.learners).copied().collect();
    for replica in wanted.difference(&known) {
        info!(group = %group.group(), %replica, "adding a replica");
        group.add_learner(*replica).await?;
    }
    let voters = status.able_to_vote(wanted);
    let may_leave = voters == *wanted || voters.is_superset(&status.voters);
    if may_leave && !status.are_voters(&voters) {
        info!(group = %group.group(), ?voters, "changing who votes");
        group.change_voters(voters).await?;
    }
    let leftover: BTreeSet<ReplicaId> =
        group.status().learners.difference(wanted).copied().collect();
    if leftover.is_empty() {
        return Ok(());
    }
    group.remove_learners(leftover).await
}
