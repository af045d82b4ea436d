//! Readers that wait for the same answer, up to which entry they must read: those who come while it is being
//! asked for share the next one.

use std::future::Future;

use tokio::sync::oneshot;

use crate::gathering::{Carrier, Gathering};
use crate::group::ReadError;

/// The index of the last entry that was committed.
pub(crate) type ReadIndex = Result<u64, ReadError>;

/// Asks for readers who wait together.
pub(crate) trait Ask: Send + Sync + 'static {
    /// What was committed before the call, at least.
    fn ask(&self) -> impl Future<Output = ReadIndex> + Send;
}

impl<A: Ask> Carrier for A {
    type Load = oneshot::Sender<ReadIndex>;

    const BATCHES_MAX: usize = 1;

    const CROWD: usize = 8;

    fn fitting(readers: &[Self::Load]) -> usize {
        readers.len()
    }

    async fn carry(&self, readers: Vec<Self::Load>) {
        let index = self.ask().await;
        for reader in readers {
            // Nobody waits any more if the deadline has passed.
            let _ = reader.send(index.clone());
        }
    }
}

impl<A: Ask> Gathering<A> {
    /// Answers with what was committed before the call, or with what is committed since; not at all if the
    /// replica has stopped.
    pub(crate) fn read_index(&self) -> oneshot::Receiver<ReadIndex> {
        let (answer, index) = oneshot::channel();
        self.add(answer);
        index
    }
}
