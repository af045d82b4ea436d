//! Read barriers: readers that come while the others are being asked whether this replica still leads wait
//! for the next time that they are, together.

use ephemeris_store::machine::Machine;
use openraft::errors::{LinearizableReadError, RaftError};
use openraft::{Raft, ReadPolicy};
use tokio::sync::oneshot;

use crate::gathering::{Carrier, Gathering};
use crate::group::ReadError;
use crate::state_machine::StateMachine;
use crate::types::TypeConfig;

type Outcome = Result<(), ReadError>;

/// Asks the others for the readers of one group.
pub(crate) struct Asker<M: Machine> {
    raft: Raft<TypeConfig, StateMachine<M>>,
}

/// Readers of one group that wait.
pub(crate) type Barriers<M> = Gathering<Asker<M>>;

impl<M: Machine> Barriers<M> {
    pub(crate) fn of(raft: Raft<TypeConfig, StateMachine<M>>) -> Self {
        Self::new(Asker { raft })
    }

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
        let outcome = self.ask().await;
        for reader in readers {
            // Nobody waits any more if the deadline has passed.
            let _ = reader.send(outcome.clone());
        }
    }
}

impl<M: Machine> Asker<M> {
    async fn ask(&self) -> Outcome {
        match self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
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
}
