//! Commands on their way into the log: what comes together is one batch for the log and for the others.

use bytes::Bytes;
use ephemeris_store::machine::Machine;
use futures_util::StreamExt as _;
use openraft::Raft;
use openraft::errors::{ClientWriteError, ForwardToLeader};
use tokio::sync::oneshot;

use crate::gathering::{Carrier, Gathering};
use crate::group::ProposeError;
use crate::state_machine::StateMachine;
use crate::types::{Answer, Command, TypeConfig};

/// A batch is closed once it has reached this size.
const BATCH_BYTES_TARGET: usize = 1 << 20;

type Outcome = Result<Answer, ProposeError>;

/// A command, and who waits for what it does.
pub(crate) struct Proposal {
    command: Command,
    answer: oneshot::Sender<Outcome>,
}

/// Takes commands into the log of one group.
pub(crate) struct Proposer<M: Machine> {
    raft: Raft<TypeConfig, StateMachine<M>>,
}

/// Commands of one group.
pub(crate) type Proposals<M> = Gathering<Proposer<M>>;

impl<M: Machine> Proposals<M> {
    pub(crate) fn of(raft: Raft<TypeConfig, StateMachine<M>>) -> Self {
        Self::new(Proposer { raft })
    }

    /// Proposes an encoded command; its outcome comes when it is applied here, and none if the replica has
    /// stopped.
    pub(crate) fn propose(&self, encoded: Vec<u8>) -> oneshot::Receiver<Outcome> {
        let (answer, outcome) = oneshot::channel();
        // The log keeps it for a while: without the room that encoding left.
        let command = Command(Bytes::from(encoded.into_boxed_slice()));
        self.add(Proposal { command, answer });
        outcome
    }
}

impl<M: Machine> Carrier for Proposer<M> {
    type Load = Proposal;

    /// While one is on its way to the disks the other is applied and answered.
    const BATCHES_MAX: usize = 2;

    const CROWD: usize = 8;

    fn fitting(proposals: &[Proposal]) -> usize {
        let mut bytes = 0;
        let mut fits = |proposal: &&Proposal| {
            let has_room = bytes < BATCH_BYTES_TARGET;
            bytes += proposal.command.0.len();
            has_room
        };
        proposals.iter().take_while(|proposal| fits(proposal)).count()
    }

    async fn carry(&self, batch: Vec<Proposal>) {
        let batch = batch.into_iter().map(|Proposal { command, answer }| (command, answer));
        let (commands, answers): (Vec<_>, Vec<_>) = batch.unzip();
        // Without outcomes the replica has stopped, and whoever waits learns it when `answers` go.
        let Ok(mut outcomes) = self.raft.client_write_many(commands).await else { return };
        for answer in answers {
            let Some(Ok(outcome)) = outcomes.next().await else { return };
            let outcome = outcome.map(|written| written.response).map_err(refused);
            // Nobody waits any more if the deadline has passed.
            let _ = answer.send(outcome);
        }
    }
}

fn refused(error: ClientWriteError<TypeConfig>) -> ProposeError {
    match error {
        ClientWriteError::ForwardToLeader(ForwardToLeader { leader_id, .. }) => {
            ProposeError::NotLeader { leader: leader_id }
        }
        error @ (ClientWriteError::LogEntryDiscarded(_)
        | ClientWriteError::ChangeMembershipError(_)
        | ClientWriteError::PreconditionFailed(_)) => ProposeError::Unknown(error.to_string()),
    }
}
