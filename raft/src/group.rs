//! A replica of one group: propose, read, change members, hand over leadership, stop; `inbound` answers to the others.

mod inbound;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ephemeris_store::ids::{GroupId, NodeId, ReplicaId};
use ephemeris_store::machine::{LogId, Machine, Progress};
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::errors::{ClientWriteError, InitializeError, RaftError};
use openraft::{ChangeMembers, Config, Raft, SnapshotPolicy};
use thiserror::Error;
use tokio::sync::Mutex;
use tracing::{debug, info};

use crate::barriers::{Asker, Barriers, ask_with_heartbeats};
use crate::check_quorum::CheckQuorum;
use crate::clock;
use crate::ending::{Ending, Stop};
use crate::inquiries::{Inquirer, Inquiries};
use crate::lag::Lag;
use crate::log_store::LogStore;
use crate::network::{GivenUp, Network};
use crate::pace::Pace;
use crate::proposals::Proposals;
use crate::quiescence::Rest;
use crate::router::Router;
use crate::snapshot::{Offers, ResumeError, SnapshotStore};
use crate::state_machine::{Durable, StateMachine};
use crate::storage::Storage;
use crate::transport::Transport;
use crate::types::TypeConfig;
use crate::wal::WalStats;

/// Segments of the log that a transfer of a snapshot, or a slow follower, may hold.
const HELD_SEGMENTS_MAX: u64 = 64;
/// Entries of the log that either may hold: each takes memory, too. Entries of half a kilobyte reach both limits.
const HELD_ENTRIES_MAX: u64 = 2 << 20;

/// How fast a group notices that its leader is gone, and how much it keeps.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// A leader shows that it lives this often.
    pub heartbeat: Duration,
    /// A follower stands for election after `election_max`, openraft's lease, and then this long without a
    /// sign, at the earliest …
    pub election_min: Duration,
    /// … and at the latest.
    pub election_max: Duration,
    /// Entries kept behind the last flushed one, for followers that were away shortly.
    pub log_entries_kept: u64,
    /// A group in which nothing happens for so long does without heartbeats of its own, if a `Quiescence`
    /// speaks for it.
    pub quiet_after: Duration,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(150),
            election_min: Duration::from_millis(450),
            election_max: Duration::from_millis(600),
            log_entries_kept: 2000,
            quiet_after: Duration::from_secs(1),
        }
    }
}

/// Commands that may wait to be applied: a few bytes each, since entries are read from the log.
const COMMANDS_MAX: u64 = 64 << 10;
/// A replica whose log lacks more of the leader's entries does not come to vote: as many as a fast leader may
/// have under way, and few enough to be there within a moment.
const LAG_ENTRIES_MAX: u64 = 1000;

impl GroupOptions {
    fn config(&self, group: GroupId) -> Config {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Config {
            cluster_name: format!("group {group}"),
            heartbeat_interval: millis(self.heartbeat),
            heartbeat_min_interval: Some(millis(self.heartbeat) / 2),
            election_timeout_min: millis(self.election_min),
            election_timeout_max: millis(self.election_max),
            enable_pre_vote: Some(true),
            // `CheckQuorum` sees to leaders that no majority answers. openraft would count as silence, too,
            // what was quiescence, and hold heartbeats back after it.
            quorum_loss_probe_interval: None,
            // A restarted leader asks for votes like everybody else.
            enable_leader_restore: Some(false),
            max_payload_entries: 1024,
            // While the engine stands still the log goes on, and who has waited for it is answered later: with as
            // many commands waiting openraft would answer nobody any more.
            state_machine_channel_size: Some(COMMANDS_MAX),
            // Snapshots are marks, set by `mark_durable` and by nothing else.
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: self.log_entries_kept,
            install_snapshot_timeout: 600_000,
            ..Config::default()
        }
    }
}

/// Why a group could not be started or formed.
#[derive(Debug, Error)]
pub enum StartError {
    /// Its storage is not usable.
    #[error("group {group}: {detail}")]
    Storage {
        /// The group.
        group: GroupId,
        /// Why.
        detail: String,
    },
    /// Its state was being replaced by a snapshot that is gone.
    #[error(
        "group {group}: a snapshot was being installed when this node stopped, and its file {file} \
         is missing or damaged, so this replica is lost. Run `ephemeris rebuild-node {node} --data-dir \
         DIR --http URL`, with this node's data directory and the URL of a healthy node, and start this \
         node again; it will copy everything from the others"
    )]
    LostSnapshot {
        /// The group.
        group: GroupId,
        /// This node.
        node: NodeId,
        /// The snapshot's file.
        file: String,
    },
}

/// Why a command has no outcome.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProposeError {
    /// This replica does not lead; nothing was executed.
    #[error("this replica does not lead")]
    NotLeader {
        /// Who does, as far as is known.
        leader: Option<ReplicaId>,
    },
    /// The command may be executed, or not.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
}

/// Why a read cannot be served here.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ReadError {
    /// This replica does not lead, or cannot prove that it does.
    #[error("this replica does not lead")]
    NotLeader {
        /// Who does, as far as is known.
        leader: Option<ReplicaId>,
    },
    /// The replica has stopped.
    #[error("the replica has stopped: {0}")]
    Stopped(String),
}

/// Why members could not be changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("members could not be changed: {0}")]
pub struct ChangeError(String);

/// Who leads a group, as one replica sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The term.
    pub term: u64,
    /// The leader of that term, if it is known.
    pub leader: Option<ReplicaId>,
    /// True if it is this replica.
    pub is_me: bool,
}

/// What a replica knows of its group.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// This replica.
    pub replica: ReplicaId,
    /// Who leads.
    pub leadership: Leadership,
    /// The last entry in the log.
    pub last: Option<u64>,
    /// The last entry known to be committed.
    pub committed: Option<u64>,
    /// The last entry applied.
    pub applied: Option<u64>,
    /// The last entry purged.
    pub purged: Option<u64>,
    /// Replicas that vote.
    pub voters: BTreeSet<ReplicaId>,
    /// True while the group changes from other voters to these, and needs a majority of either. A change
    /// that its leader did not finish is finished by another call of `change_voters`, and by nothing else.
    pub is_joint: bool,
    /// Replicas that only follow.
    pub learners: BTreeSet<ReplicaId>,
    /// The entry that made these the members.
    pub members_since: Option<u64>,
    /// On the leader: how far each replica's log reaches.
    pub matching: BTreeMap<ReplicaId, Option<u64>>,
    /// True while the replica does not tick, because nothing happens in its group.
    pub is_resting: bool,
    /// Why the replica has stopped, if it has.
    pub stopped: Option<String>,
}

impl GroupStatus {
    /// True if these vote, and no change of the voters is under way.
    pub fn are_voters(&self, wanted: &BTreeSet<ReplicaId>) -> bool {
        self.voters == *wanted && !self.is_joint
    }

    /// On the leader: those of the wanted voters that vote already, or may. A replica that has to catch up
    /// first would count for majorities, and have them wait for it.
    pub fn able_to_vote(&self, wanted: &BTreeSet<ReplicaId>) -> BTreeSet<ReplicaId> {
        let able =
            |replica: &ReplicaId| self.voters.contains(replica) || self.has_caught_up(*replica);
        wanted.iter().copied().filter(able).collect()
    }

    /// On the leader: true if a replica has synced what made it a member, however short the log is, and lacks little.
    pub fn has_caught_up(&self, replica: ReplicaId) -> bool {
        let matching = self.matching.get(&replica).copied().flatten();
        let lacks = self.last.unwrap_or(0).saturating_sub(matching.unwrap_or(0));
        matching.is_some() && matching >= self.members_since && lacks <= LAG_ENTRIES_MAX
    }
}

/// A handle to a running replica. Clones share it.
pub struct Group<M: Machine> {
    shared: Arc<Shared<M>>,
}

struct Shared<M: Machine> {
    raft: Raft<TypeConfig, StateMachine<M>>,
    proposals: Proposals<M>,
    barriers: Barriers<M>,
    inquiries: Inquiries,
    rest: Rest<M>,
    machine: Arc<M>,
    id: GroupId,
    replica: ReplicaId,
    storage: Storage,
    /// A log that keeps others waiting longer for a vote is not well.
    vote_patience: Duration,
    router: Router,
    snapshots: SnapshotStore,
    durable: Durable,
    offers: Offers,
    given_up: GivenUp,
    ending: Ending,
    lag: Lag,
    /// Who leads, as far as this replica knows.
    server: openraft::alias::WatchReceiverOf<TypeConfig, ServerMetrics>,
    /// Held while a snapshot is installed; whoever asks again waits here.
    installing: Mutex<()>,
}

impl<M: Machine> Clone for Group<M> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<M: Machine> Group<M> {
    /// Starts a replica over what storage holds of it.
    pub async fn start(
        group: GroupId,
        replica: ReplicaId,
        machine: M,
        storage: Storage,
        transport: Arc<dyn Transport>,
        router: Router,
        options: &GroupOptions,
    ) -> Result<Self, StartError> {
        let failed = |detail: String| StartError::Storage { group, detail };
        let machine = Arc::new(machine);
        let stop = Stop::default();
        let snapshots = SnapshotStore::new(storage.snapshots.clone(), group, stop.clone());
        let resume = {
            let (snapshots, engine, machine) =
                (snapshots.clone(), storage.engine.clone(), machine.clone());
            move || snapshots.resume(&engine, &*machine)
        };
        storage.executor.run(resume).await.map_err(|error| match error {
            ResumeError::Io(error) => failed(error.to_string()),
            ResumeError::Lost(file) => StartError::LostSnapshot { group, node: replica.node, file },
        })?;
        let (durable, offers) = (Durable::default(), Offers::default());
        let (work, ending) = Ending::of_work(stop);
        let state_machine = StateMachine::new(
            machine.clone(),
            storage.clone(),
            snapshots.clone(),
            durable.clone(),
            work,
        );
        let given_up = GivenUp::default();
        let network = Network {
            transport: transport.clone(),
            group,
            machine: machine.clone(),
            executor: storage.executor,
            offers: offers.clone(),
            pace: Pace::default(),
            given_up: given_up.clone(),
        };
        let config = options.config(group).validate().map_err(|error| failed(error.to_string()))?;
        let log = LogStore::new(storage.wal.clone(), group, storage.executor);
        log.follow(machine.progress().applied).map_err(|error| failed(error.to_string()))?;
        let raft = Raft::build(replica, Arc::new(config), network, log, state_machine)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let asker = Asker {
            raft: raft.clone(),
            machine: machine.clone(),
            transport: transport.clone(),
            group,
            me: replica,
            patience: options.heartbeat,
            answered: std::sync::Mutex::default(),
        };
        let inquirer = Inquirer {
            wal: storage.wal.clone(),
            transport: transport.clone(),
            group,
            me: replica,
            patience: options.heartbeat,
        };
        let shared = Shared {
            proposals: Proposals::of(raft.clone()),
            barriers: Barriers::new(asker),
            inquiries: Inquiries::new(inquirer),
            rest: Rest::of(raft.clone(), (group, replica), options),
            server: raft.server_metrics(),
            raft,
            machine,
            id: group,
            replica,
            storage,
            vote_patience: options.heartbeat,
            router,
            snapshots,
            durable,
            offers,
            given_up,
            ending,
            lag: Lag::default(),
            installing: Mutex::default(),
        };
        let handle = Self { shared: Arc::new(shared) };
        handle.shared.router.add(group, Arc::new(handle.clone()));
        handle.shared.raft.run();
        let check = CheckQuorum {
            metrics: handle.shared.raft.metrics(),
            server: handle.shared.server.clone(),
            is_resting: handle.shared.rest.watch(),
            wal: handle.shared.storage.wal.clone(),
            transport,
            group,
            me: replica,
            patience: options.election_max + options.election_min,
            every: options.heartbeat,
        };
        check.run();
        debug!(%group, %replica, "replica started");
        Ok(handle)
    }

    /// Forms the group of these members; does nothing if it has been formed already. Safe to call
    /// on every member, with the same members.
    pub async fn form(&self, members: &[ReplicaId]) -> Result<(), StartError> {
        let members: BTreeSet<ReplicaId> = members.iter().copied().collect();
        match self.shared.raft.initialize(members).await {
            Ok(()) => {
                info!(group = %self.shared.id, "group formed");
                Ok(())
            }
            Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => {
                let (group, detail) = (self.shared.id, error.to_string());
                Err(StartError::Storage { group, detail })
            }
        }
    }

    /// True once the group was formed, here or elsewhere.
    pub async fn is_formed(&self) -> bool {
        self.shared.raft.is_initialized().await.unwrap_or(false)
    }

    /// The group's number.
    pub fn group(&self) -> GroupId {
        self.shared.id
    }

    /// This replica.
    pub fn replica(&self) -> ReplicaId {
        self.shared.replica
    }

    /// The state machine, to read from.
    pub fn machine(&self) -> &Arc<M> {
        &self.shared.machine
    }

    /// Proposes an encoded command and waits until it is applied here.
    ///
    /// Dropping the future does not take the command back.
    pub async fn propose(&self, encoded: Vec<u8>) -> Result<M::Outcome, ProposeError> {
        self.propose_timed(encoded).await.map(|(outcome, _)| outcome)
    }

    /// Does the same, and tells how long applying the command took here, with those behind it that were
    /// written together with it.
    pub async fn propose_timed(
        &self,
        encoded: Vec<u8>,
    ) -> Result<(M::Outcome, Duration), ProposeError> {
        if !self.takes_entries() {
            return Err(ProposeError::NotLeader { leader: None });
        }
        if self.is_behind() {
            // One that does not lead knows who does.
            let leader = self.leadership().leader.filter(|leader| *leader != self.shared.replica);
            return Err(ProposeError::NotLeader { leader });
        }
        self.get_in_touch().await;
        let stopped = |_| ProposeError::Unknown("the replica has stopped".to_string());
        let answer = self.shared.proposals.propose(encoded).await.map_err(stopped)??;
        let timed = answer.0.expect("commands have outcomes").downcast::<(M::Outcome, Duration)>();
        Ok(*timed.expect("the machine answers with its own outcome"))
    }

    /// False while the log has too much to write already, or none of it gets written: nothing should be added.
    fn takes_entries(&self) -> bool {
        !self.shared.storage.wal.is_choked() && !self.is_stuck()
    }

    /// True while the machine is so far behind the log that whoever added to it would wait in vain.
    fn is_behind(&self) -> bool {
        let index = |last: Option<LogId>| last.map_or(0, |last| last.index);
        let applied = || index(self.shared.machine.progress().applied);
        self.shared.lag.is_long(clock::monotonic(), || index(self.last_logged()), applied)
    }

    /// True while openraft waits for the log to save a vote, and that takes long: until then it does nothing
    /// else, and goes on saying what it was before.
    fn is_stuck(&self) -> bool {
        let Shared { storage, vote_patience, server, id, .. } = &*self.shared;
        let known = || server.borrow_watched().vote.leader_id().term;
        storage.wal.waits() > *vote_patience
            && storage.wal.vote(*id).is_some_and(|vote| vote.term > known())
    }

    /// Has a majority answer if nobody was asked for long: openraft takes entries only from a leader that was
    /// answered lately. If none answers, it refuses what comes next.
    async fn get_in_touch(&self) {
        if self.shared.rest.is_out_of_touch() {
            self.shared.rest.wake();
            if Box::pin(ask_with_heartbeats(&self.shared.raft)).await.is_ok() {
                self.shared.rest.note_touch();
            }
        }
    }

    /// Returns when everything that was committed before the call is applied here, and this replica
    /// was still the leader after the call. Then the machine may be read.
    pub async fn read_barrier(&self) -> Result<(), ReadError> {
        if self.is_stuck() {
            return Err(ReadError::NotLeader { leader: None });
        }
        let stopped = |_| ReadError::Stopped("nobody answers its readers".to_string());
        self.shared.barriers.read_index().await.map_err(stopped)?.map(|_| ())
    }

    /// An entry that the machine must have applied to hold everything that was committed before the call, as
    /// this replica's leader tells. Not answered while this replica leads: readers pass the barrier then.
    pub async fn read_index(&self) -> Result<u64, ReadError> {
        let stopped = |_| ReadError::Stopped("nobody asks the leader for its readers".to_string());
        self.shared.inquiries.read_index().await.map_err(stopped)?
    }

    /// Waits until an entry is applied here, for so long at most; true if it is.
    pub async fn await_applied(&self, index: u64, longest: Duration) -> bool {
        let waiting = self.shared.raft.wait(Some(longest));
        let applied = waiting.applied_index_at_least(Some(index), "a reader waits for it");
        // Boxed, because it is large, and whoever waits for it holds it.
        Box::pin(applied).await.is_ok()
    }

    /// Who leads, as far as this replica knows.
    pub fn leadership(&self) -> Leadership {
        let known = leadership(self.shared.replica, &self.shared.server.borrow_watched());
        // It has voted for another since.
        if self.is_stuck() { Leadership { leader: None, is_me: false, ..known } } else { known }
    }

    /// Follows changes of leadership.
    pub fn watch_leadership(&self) -> LeadershipWatch {
        LeadershipWatch {
            replica: self.shared.replica,
            metrics: self.shared.server.clone(),
            seen: None,
        }
    }

    /// Returns once something happens in the group: at once, unless this replica rests.
    pub async fn await_activity(&self) {
        let mut is_resting = self.shared.rest.watch();
        // It can fail only if the replica were gone, which this handle keeps.
        let _ = is_resting.wait_for(|is_resting| !is_resting).await;
    }

    /// Writes an empty entry; when it is applied, this leader has applied all of its predecessors'.
    pub async fn settle(&self) -> Result<(), ProposeError> {
        self.get_in_touch().await;
        match self.shared.raft.write_blank().await {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => {
                Err(ProposeError::NotLeader { leader: forward.leader_id })
            }
            Err(error) => Err(ProposeError::Unknown(error.to_string())),
        }
    }

    /// Stands for election at once: for tests.
    pub async fn stand_for_election(&self) {
        // An error means that the replica has stopped, which its status tells.
        let _ = self.shared.raft.trigger().elect(true).await;
    }

    /// What this replica knows of the group.
    pub fn status(&self) -> GroupStatus {
        let metrics = self.shared.raft.metrics().borrow_watched().clone();
        let leadership = self.leadership();
        let membership = metrics.membership_config.membership();
        let index = |id: Option<crate::types::RaftLogId>| id.map(|id| id.index());
        let matching = metrics.replication.map(|replication| {
            replication.into_iter().map(|(replica, matched)| (replica, index(matched))).collect()
        });
        GroupStatus {
            replica: self.shared.replica,
            leadership,
            last: metrics.last_log_index,
            committed: index(metrics.local_committed),
            applied: index(metrics.last_applied),
            purged: index(metrics.purged),
            voters: membership.voter_ids().collect(),
            is_joint: membership.get_joint_config().len() > 1,
            learners: membership.learner_ids().collect(),
            members_since: index(*metrics.membership_config.log_id()),
            matching: matching.unwrap_or_default(),
            is_resting: self.shared.rest.is_resting(),
            stopped: metrics.running_state.err().map(|fatal| fatal.to_string()),
        }
    }

    /// Replicas that belong to the group, by the list of members that is committed, or by the one in effect: that
    /// one may still be undone.
    pub fn members(&self) -> BTreeSet<ReplicaId> {
        let metrics = self.shared.raft.metrics().borrow_watched().clone();
        let lists = [&metrics.committed_membership_config, &metrics.membership_config];
        let members = lists.into_iter().flat_map(|list| list.nodes());
        members.map(|(replica, ())| *replica).collect()
    }

    /// Waits until the replica has stopped; returns why. If nobody called `stop`, storage has failed or
    /// an invariant is broken.
    pub async fn stopped(&self) -> String {
        // They end with the replica; the metrics that tell why change with every entry, and would wake us.
        let mut server = self.shared.server.clone();
        while server.changed().await.is_ok() {}
        match &self.shared.raft.metrics().borrow_watched().running_state {
            Err(fatal) => fatal.to_string(),
            Ok(()) => "openraft has panicked".to_string(),
        }
    }

    /// Adds a replica that follows without voting; `able_to_vote` tells when it has caught up.
    pub async fn add_learner(&self, replica: ReplicaId) -> Result<(), ChangeError> {
        self.get_in_touch().await;
        let added = self.shared.raft.add_learner(replica, (), false).await;
        added.map(|_| ()).map_err(|error| ChangeError(error.to_string()))
    }

    /// Makes exactly these replicas the voters; all of them must be members already, and able to vote. Others
    /// that voted are removed.
    pub async fn change_voters(&self, voters: BTreeSet<ReplicaId>) -> Result<(), ChangeError> {
        self.get_in_touch().await;
        let change = ChangeMembers::ReplaceAllVoters(voters);
        let changed = self.shared.raft.change_membership(change, false).await;
        changed.map(|_| ()).map_err(|error| ChangeError(error.to_string()))
    }

    /// Removes replicas that only follow.
    pub async fn remove_learners(&self, replicas: BTreeSet<ReplicaId>) -> Result<(), ChangeError> {
        self.get_in_touch().await;
        let change = ChangeMembers::RemoveNodes(replicas);
        let changed = self.shared.raft.change_membership(change, false).await;
        changed.map(|_| ()).map_err(|error| ChangeError(error.to_string()))
    }

    /// Asks another voter to take over; watch leadership to see whether it does.
    pub async fn transfer_leadership(&self, to: ReplicaId) {
        info!(group = %self.shared.id, %to, "handing leadership over");
        self.shared.rest.note_hand_over();
        // An error means that the replica has stopped, which its status tells.
        let _ = self.shared.raft.trigger().transfer_leader(to).await;
    }

    /// The last entry in the log, committed or not.
    pub fn last_logged(&self) -> Option<LogId> {
        self.shared.storage.wal.bounds(self.shared.id).last
    }

    /// How far the machine has come, to be passed to `mark_durable` after the next flush.
    pub fn progress(&self) -> Progress {
        self.shared.machine.progress()
    }

    /// Notes that the engine was flushed after this progress was read; the log may be purged up to
    /// there, and no further.
    pub async fn mark_durable(&self, progress: Progress) {
        // Nor may the mark go on meanwhile: whoever comes back for the rest of a snapshot has one of before it.
        if self.holds_the_log() {
            return;
        }
        self.shared.durable.set(progress);
        // An error means that the replica has stopped, which its status tells.
        let _ = self.shared.raft.trigger().snapshot().await;
        let (snapshots, flushed) =
            (self.shared.snapshots.clone(), self.shared.durable.get().applied);
        let tidied = self.shared.storage.executor.run(move || snapshots.tidy(flushed)).await;
        if let Err(error) = tidied {
            // They do no harm, and are tried again after the next flush.
            debug!(group = %self.shared.id, %error, "files of old snapshots stay");
        }
    }

    /// Lets the log go up to an entry, but no further than `mark_durable` does: a replica elsewhere that still
    /// needs it will get a snapshot. One that is being sent it may have it, as long as that does not take too much.
    pub async fn purge(&self, upto: LogId) {
        if self.holds_the_log() {
            return;
        }
        if let Some(flushed) = self.shared.durable.get().applied
            && !may_be_held(&self.shared.storage.wal.stats())
        {
            self.shared.given_up.set(upto.index.min(flushed.index));
        }
        // An error means that the replica has stopped, which its status tells.
        let _ = self.shared.raft.trigger().purge_log(upto.index).await;
    }

    /// True while the log stays, though it might go: somebody is being sent a snapshot, or may come back for the
    /// rest of one, and will need the entries behind it. Were they gone by then it would need another one, and so on for as long as clients write.
    /// A transfer that takes too much of the disk, or of memory, is given up to that.
    fn holds_the_log(&self) -> bool {
        self.shared.offers.are_under_way() && may_be_held(&self.shared.storage.wal.stats())
    }

    /// Stops the replica; its storage stays. Nothing changes it any more when this returns.
    pub async fn stop(&self) {
        self.shared.router.remove(self.shared.id);
        if let Err(error) = self.shared.raft.shutdown().await {
            debug!(group = %self.shared.id, %error, "the replica had stopped by itself");
        }
        self.shared.ending.reach().await;
    }

    /// Stops the replica and removes everything storage holds of it.
    pub async fn remove(&self) -> io::Result<()> {
        self.stop().await;
        let (snapshots, ranges) = (self.shared.snapshots.clone(), self.shared.machine.ranges());
        self.shared.storage.remove_replica(snapshots, ranges).await
    }
}

fn may_be_held(log: &WalStats) -> bool {
    log.segments < HELD_SEGMENTS_MAX && log.live_entries < HELD_ENTRIES_MAX
}

type ServerMetrics = openraft::metrics::RaftServerMetrics<TypeConfig>;

fn leadership(replica: ReplicaId, metrics: &ServerMetrics) -> Leadership {
    let leads = metrics.state == openraft::ServerState::Leader;
    let leader = if leads { Some(replica) } else { metrics.current_leader };
    Leadership {
        term: metrics.vote.leader_id().term,
        leader: leader.filter(|leader| leads || *leader != replica),
        is_me: leads,
    }
}

/// Follows changes of a group's leadership.
pub struct LeadershipWatch {
    replica: ReplicaId,
    metrics: openraft::alias::WatchReceiverOf<TypeConfig, ServerMetrics>,
    seen: Option<Leadership>,
}

impl LeadershipWatch {
    /// The next leadership that differs from the last one returned; none once the replica has
    /// stopped.
    pub async fn changed(&mut self) -> Option<Leadership> {
        loop {
            let metrics = self.metrics.borrow_and_update().clone();
            let now = leadership(self.replica, &metrics);
            if self.seen != Some(now) {
                self.seen = Some(now);
                return Some(now);
            }
            self.metrics.changed().await.ok()?;
        }
    }
}

#[cfg(test)]
mod removal;
#[cfg(test)]
mod tests;
