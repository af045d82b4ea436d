//! Gathers commands on their way into the log.
//!
//! A message between nodes and a sync of a disk have a price of their own, whatever they carry. If every
//! caller proposed by itself, most would carry one command. So only so many batches of a group are under
//! way at a time, and what comes meanwhile goes together in the next one. Nobody waits for a clock: who
//! finds room goes at once.
//!
//! A batch that takes long, because a disk is slow or the leader cannot reach the others, holds nobody back:
//! what comes then goes its own way, and learns by itself what there is to learn.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ephemeris_store::machine::Machine;
use futures_util::StreamExt as _;
use openraft::AsyncRuntime as _;
use openraft::Raft;
use openraft::errors::{ClientWriteError, ForwardToLeader};
use tokio::sync::oneshot;

use crate::group::ProposeError;
use crate::runtime::Runtime;
use crate::state_machine::StateMachine;
use crate::types::{Answer, Command, TypeConfig};

/// Batches of a group under way at a time: while one is on its way to the disks the other is applied and
/// answered.
const BATCHES_MAX: usize = 2;
/// A batch is closed once it has reached this size.
const BATCH_BYTES_TARGET: usize = 1 << 20;
/// How long a batch counts as under way: a few times what it takes where disks and network do well.
const PATIENCE: Duration = Duration::from_millis(20);

type Outcome = Result<Answer, ProposeError>;

struct Proposal {
    command: Command,
    answer: oneshot::Sender<Outcome>,
}

/// Commands on their way into the log of one group. Clones share them.
pub(crate) struct Proposals<M: Machine> {
    raft: Raft<TypeConfig, StateMachine<M>>,
    line: Arc<Mutex<Line>>,
}

impl<M: Machine> Clone for Proposals<M> {
    fn clone(&self) -> Self {
        Self { raft: self.raft.clone(), line: self.line.clone() }
    }
}

/// Who waits.
#[derive(Default)]
struct Line {
    waiting: Vec<Proposal>,
    under_way: usize,
}

impl Line {
    /// The next batch; if there is none, its place is free again.
    fn next(&mut self) -> Option<Vec<Proposal>> {
        let mut bytes = 0;
        let mut fits = |proposal: &Proposal| {
            let has_room = bytes < BATCH_BYTES_TARGET;
            bytes += proposal.command.0.len();
            has_room
        };
        let end = self.waiting.iter().take_while(|proposal| fits(proposal)).count();
        if end == 0 {
            self.under_way -= 1;
            return None;
        }
        let rest = self.waiting.split_off(end);
        Some(std::mem::replace(&mut self.waiting, rest))
    }

    /// True if a batch may start, which then counts as under way.
    fn starts(&mut self) -> bool {
        let starts = self.under_way < BATCHES_MAX && !self.waiting.is_empty();
        self.under_way += usize::from(starts);
        starts
    }
}

impl<M: Machine> Proposals<M> {
    pub(crate) fn new(raft: Raft<TypeConfig, StateMachine<M>>) -> Self {
        Self { raft, line: Arc::default() }
    }

    /// Proposes an encoded command; its outcome comes when it is applied here, and none if the replica has
    /// stopped.
    pub(crate) fn propose(&self, encoded: Vec<u8>) -> oneshot::Receiver<Outcome> {
        let (answer, outcome) = oneshot::channel();
        let command = Command(Bytes::from(encoded));
        let starts = {
            let mut line = self.line();
            line.waiting.push(Proposal { command, answer });
            line.starts()
        };
        if starts {
            self.start();
        }
        outcome
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) {
        drop(Runtime::spawn(self.clone().run()));
    }

    /// Sends one batch after the other, until nobody waits.
    async fn run(self) {
        loop {
            let Some(batch) = self.line().next() else { return };
            let mut sending = std::pin::pin!(self.send(batch));
            if tokio::time::timeout(PATIENCE, &mut sending).await.is_err() {
                let starts = {
                    let mut line = self.line();
                    line.under_way -= 1;
                    line.starts()
                };
                if starts {
                    self.start();
                }
                return sending.await;
            }
        }
    }

    async fn send(&self, batch: Vec<Proposal>) {
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
