//! Read barriers (ReadIndex): readers that come while the others are being asked whether this replica still
//! leads wait for the next time that they are, together.
//!
//! 1. The leader notes its vote, its voters and its commit index, which must be of its own term.
//! 2. It asks the other voters whether they still have that vote. If a majority does, itself included, nobody
//!    else had been elected when it was noted: one of them would have had to vote otherwise before.
//! 3. What was committed then has to be applied, and the readers go.
//!
//! A voter answers by what its log holds, where its vote stands before anybody learns of it: beside openraft's
//! core, which would append nothing, look at its timers and publish its metrics. Where that does not help,
//! because this replica does not lead, or a majority does not answer soon, openraft asks with heartbeats, and
//! knows why it is in vain.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ephemeris_store::codec;
use ephemeris_store::ids::{GroupId, ReplicaId};
use ephemeris_store::machine::{LogId, Machine};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use openraft::errors::{LinearizableReadError, RaftError};
use openraft::{Raft, RaftState, ReadPolicy, ServerState};
use tokio::sync::oneshot;

use crate::gathering::{Carrier, Gathering};
use crate::group::ReadError;
use crate::state_machine::StateMachine;
use crate::transport::{Lane, Transport};
use crate::types::{TypeConfig, Vote, from_raft_id, from_raft_vote};
use crate::wire::{Confirm, Message};

type Outcome = Result<(), ReadError>;

/// Asks the others for the readers of one group.
pub(crate) struct Asker<M: Machine> {
    pub(crate) raft: Raft<TypeConfig, StateMachine<M>>,
    pub(crate) machine: Arc<M>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) group: GroupId,
    pub(crate) me: ReplicaId,
    /// How long they may take.
    pub(crate) patience: Duration,
}

/// Readers of one group that wait.
pub(crate) type Barriers<M> = Gathering<Asker<M>>;

impl<M: Machine> Barriers<M> {
    /// Answers once everything that was committed before the call is applied here, and this replica was
    /// still the leader after the call; not at all if the replica has stopped.
    pub(crate) fn pass(&self) -> oneshot::Receiver<Outcome> {
        let (answer, outcome) = oneshot::channel();
        self.add(answer);
        outcome
    }
}

impl<M: Machine> Carrier for Asker<M> {
    type Load = oneshot::Sender<Outcome>;

    const BATCHES_MAX: usize = 1;

    const CROWD: usize = 8;

    fn fitting(readers: &[Self::Load]) -> usize {
        readers.len()
    }

    async fn carry(&self, readers: Vec<Self::Load>) {
        let outcome = match self.ask().await {
            Some(committed) => self.await_applied(committed).await,
            None => ask_with_heartbeats(&self.raft).await,
        };
        for reader in readers {
            // Nobody waits any more if the deadline has passed.
            let _ = reader.send(outcome.clone());
        }
    }
}

impl<M: Machine> Asker<M> {
    /// What was committed when a majority still had this leader's vote; none if that cannot be told.
    async fn ask(&self) -> Option<LogId> {
        let me = self.me;
        let term = self.raft.with_raft_state(move |state| Term::of(state, me)).await.ok()??;
        let ask = |to: ReplicaId| {
            let message = Message::Confirm(Confirm { group: self.group, to, vote: term.vote });
            let (lane, message) = (Lane::Control, message.encode());
            let answering = self.transport.call(to.node, lane, message, self.patience);
            async move {
                let answer = answering.await.ok();
                let confirms = answer.and_then(|answer| codec::decode(&answer).ok());
                (to, confirms.unwrap_or(false))
            }
        };
        let mut asked: FuturesUnordered<_> = term.others(me).map(ask).collect();
        let mut confirmed = BTreeSet::from([me]);
        while !term.is_majority(&confirmed) {
            let (voter, confirms) = asked.next().await?;
            confirmed.extend(confirms.then_some(voter));
        }
        Some(term.committed)
    }

    async fn await_applied(&self, committed: LogId) -> Outcome {
        if self.machine.progress().applied < Some(committed) {
            let applied = self.raft.wait(None);
            let applied = applied.applied_index_at_least(Some(committed.index), "readers wait");
            applied.await.map_err(|error| ReadError::Stopped(error.to_string()))?;
        }
        Ok(())
    }
}

/// Has openraft ask the others, by heartbeats that they take for a sign of their leader, as it does itself of
/// their answers.
pub(crate) async fn ask_with_heartbeats<M: Machine>(
    raft: &Raft<TypeConfig, StateMachine<M>>,
) -> Outcome {
    match raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
        Ok(_) => Ok(()),
        Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
            Err(ReadError::NotLeader { leader: forward.leader_id })
        }
        Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => {
            Err(ReadError::NotLeader { leader: None })
        }
        Err(RaftError::Fatal(fatal)) => Err(ReadError::Stopped(fatal.to_string())),
    }
}

/// A leader's term at one moment.
#[derive(Debug)]
struct Term {
    vote: Vote,
    /// Of its own term: what earlier leaders committed stands before that.
    committed: LogId,
    /// One set, or two while they change.
    voters: Vec<BTreeSet<ReplicaId>>,
}

impl Term {
    /// None unless this replica leads, and has committed an entry of its own.
    fn of(state: &RaftState<TypeConfig>, me: ReplicaId) -> Option<Self> {
        let vote = from_raft_vote(state.vote_ref());
        // The vote alone does not tell: a leader that has restarted kept it, and has to be elected again.
        let leads = state.server_state == ServerState::Leader
            && vote.committed
            && vote.replica == me.as_u64();
        let committed = state.local_committed().copied().map(from_raft_id)?;
        let voters = state.membership_state.effective().membership().get_joint_config().clone();
        (leads && committed.term == vote.term).then_some(Self { vote, committed, voters })
    }

    fn others(&self, me: ReplicaId) -> impl Iterator<Item = ReplicaId> {
        let voters: BTreeSet<ReplicaId> = self.voters.iter().flatten().copied().collect();
        voters.into_iter().filter(move |voter| *voter != me)
    }

    fn is_majority(&self, replicas: &BTreeSet<ReplicaId>) -> bool {
        let has_majority =
            |voters: &BTreeSet<_>| voters.intersection(replicas).count() > voters.len() / 2;
        self.voters.iter().all(has_majority)
    }
}
