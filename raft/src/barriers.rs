//! Read barriers (ReadIndex): readers that come while the others are being asked whether this replica still
//! leads wait for the next time that they are, together.
//!
//! 1. The leader notes its vote, its voters and its commit index, which must be of its own term.
//! 2. It asks other voters whether they still have that vote. If a majority does, itself included, nobody
//!    else had been elected when it was noted: one of them would have had to vote otherwise before. So it asks
//!    no more than that takes, first those who answered last, and the others where that does not help soon.
//! 3. What was committed then has to be applied, and the readers go.
//!
//! Readers of a follower have it ask its leader for the commit index (`inquiries`), which takes that for
//! a voter's answer.
//!
//! A voter answers by what its log holds, where its vote stands before anybody learns of it: beside openraft's
//! core, which would append nothing, look at its timers and publish its metrics. Where that does not help,
//! because this replica does not lead, or a majority does not answer soon, openraft asks with heartbeats, and
//! knows why it is in vain.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ephemeris_store::codec;
use ephemeris_store::ids::{GroupId, ReplicaId};
use ephemeris_store::machine::{LogId, Machine};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use openraft::errors::{LinearizableReadError, RaftError};
use openraft::{Raft, RaftState, ReadPolicy, ServerState};

use crate::gathering::Gathering;
use crate::group::ReadError;
use crate::readers::{Ask, ReadIndex};
use crate::state_machine::StateMachine;
use crate::transport::{Lane, Transport};
use crate::types::{TypeConfig, Vote, from_raft_id, from_raft_vote};
use crate::wire::{Confirm, Message};

/// How long those who are asked first may take before the others are asked, too: longer than they do where
/// disks and network do well.
const FIRST_PATIENCE: Duration = Duration::from_millis(10);

/// Asks the others for the readers of one group.
pub(crate) struct Asker<M: Machine> {
    pub(crate) raft: Raft<TypeConfig, StateMachine<M>>,
    pub(crate) machine: Arc<M>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) group: GroupId,
    pub(crate) me: ReplicaId,
    /// How long they may take.
    pub(crate) patience: Duration,
    /// Who answered the last time.
    pub(crate) answered: Mutex<BTreeSet<ReplicaId>>,
}

/// Readers of one group that wait.
pub(crate) type Barriers<M> = Gathering<Asker<M>>;

impl<M: Machine> Barriers<M> {
    /// The commit index for the readers of a follower that asked when it had this vote; none if this replica
    /// does not lead.
    pub(crate) async fn read_index_for(&self, follower: ReplicaId, vote: Vote) -> Option<u64> {
        match self.carrier().committed_with(follower, vote).await {
            Some(committed) => Some(committed.index),
            None => self.read_index().await.ok()?.ok(),
        }
    }
}

impl<M: Machine> Ask for Asker<M> {
    /// Once everything that was committed before the call is applied here, and this replica was still the leader
    /// after the call.
    async fn ask(&self) -> ReadIndex {
        match self.ask_voters().await {
            Some(committed) => self.await_applied(committed).await.map(|()| committed.index),
            None => ask_with_heartbeats(&self.raft).await,
        }
    }
}

impl<M: Machine> Asker<M> {
    /// What was committed when a majority still had this leader's vote; none if that cannot be told.
    async fn ask_voters(&self) -> Option<LogId> {
        let me = self.me;
        let term = self.term().await?;
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
        let (first, others) = term.in_turn(me, &self.answered());
        let mut asked: FuturesUnordered<_> = first.into_iter().map(&ask).collect();
        let mut others = others.into_iter().map(&ask);
        let mut soon = pin!(tokio::time::sleep(FIRST_PATIENCE));
        let mut confirmed = BTreeSet::from([me]);
        while !term.is_majority(&confirmed) {
            tokio::select! {
                biased;
                answer = asked.next() => {
                    let (voter, confirms) = answer?;
                    if confirms {
                        confirmed.insert(voter);
                    } else {
                        asked.extend(&mut others);
                    }
                }
                () = &mut soon, if others.len() > 0 => asked.extend(&mut others),
            }
        }
        *self.answered() = confirmed;
        Some(term.committed)
    }

    /// What is committed, if this replica and a follower that had this vote when it asked are a majority.
    async fn committed_with(&self, follower: ReplicaId, vote: Vote) -> Option<LogId> {
        let term = self.term().await?;
        let confirmed = BTreeSet::from([self.me, follower]);
        (term.vote == vote && term.is_majority(&confirmed)).then_some(term.committed)
    }

    async fn term(&self) -> Option<Term> {
        let me = self.me;
        self.raft.with_raft_state(move |state| Term::of(state, me)).await.ok()?
    }

    fn answered(&self) -> MutexGuard<'_, BTreeSet<ReplicaId>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn await_applied(&self, committed: LogId) -> Result<(), ReadError> {
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
) -> ReadIndex {
    match raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
        Ok(read) => Ok(read.index()),
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

    /// The others: those who are to be asked first, just enough for a majority, and the rest.
    fn in_turn(
        &self,
        me: ReplicaId,
        answered: &BTreeSet<ReplicaId>,
    ) -> (Vec<ReplicaId>, Vec<ReplicaId>) {
        let voters: BTreeSet<ReplicaId> = self.voters.iter().flatten().copied().collect();
        let mut others: Vec<_> = voters.into_iter().filter(|voter| *voter != me).collect();
        others.sort_by_key(|voter| !answered.contains(voter));
        let is_enough = |count: &usize| {
            self.is_majority(&others[..*count].iter().copied().chain([me]).collect())
        };
        let enough = (0..others.len()).find(is_enough).unwrap_or(others.len());
        let rest = others.split_off(enough);
        (others, rest)
    }

    fn is_majority(&self, replicas: &BTreeSet<ReplicaId>) -> bool {
        let has_majority =
            |voters: &BTreeSet<_>| voters.intersection(replicas).count() > voters.len() / 2;
        self.voters.iter().all(has_majority)
    }
}

#[cfg(test)]
mod tests {
    use ephemeris_store::ids::NodeId;

    use super::*;

    fn replica(node: u32) -> ReplicaId {
        ReplicaId { node: NodeId(node), incarnation: 0 }
    }

    /// Whom replica 1 asks first and then, of these voters, after these answered.
    fn turns(voters: &[&[u32]], answered: &[u32]) -> (Vec<u32>, Vec<u32>) {
        let replicas = |nodes: &[u32]| nodes.iter().copied().map(replica).collect();
        let term = Term {
            vote: Vote { term: 1, replica: replica(1).as_u64(), committed: true },
            committed: LogId { term: 1, index: 1 },
            voters: voters.iter().map(|voters| replicas(voters)).collect(),
        };
        let (first, rest) = term.in_turn(replica(1), &replicas(answered));
        let nodes = |replicas: Vec<ReplicaId>| replicas.iter().map(|one| one.node.0).collect();
        (nodes(first), nodes(rest))
    }

    #[test]
    fn so_many_are_asked_first_as_a_majority_takes_and_those_who_answered_before_others() {
        assert_eq!(turns(&[&[1]], &[]), (vec![], vec![]));
        assert_eq!(turns(&[&[1, 2]], &[]), (vec![2], vec![]));
        assert_eq!(turns(&[&[1, 2, 3]], &[]), (vec![2], vec![3]));
        assert_eq!(turns(&[&[1, 2, 3]], &[1, 3]), (vec![3], vec![2]));
        assert_eq!(turns(&[&[1, 2, 3, 4, 5]], &[1, 3, 5]), (vec![3, 5], vec![2, 4]));
        // While voters change, a majority of the old and of the new ones.
        assert_eq!(turns(&[&[1, 2, 3], &[3, 4, 5]], &[1]), (vec![2, 3, 4], vec![5]));
        // It leads until others do, though it is no voter any more.
        assert_eq!(turns(&[&[2, 3]], &[]), (vec![2, 3], vec![]));
    }
}
