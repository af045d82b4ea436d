//! What all groups of a node share: engine, log, snapshot files, and threads that may block.

use std::sync::Arc;

use ephemeris_store::engine::{Engine, Fault};

use crate::disk::Disk;
use crate::wal::Wal;

/// A node's storage. Clones share it.
#[derive(Clone)]
pub struct Storage {
    /// Where machines keep their rows.
    pub engine: Arc<dyn Engine>,
    /// The log of all groups.
    pub wal: Wal,
    /// Where snapshots are put while they arrive.
    pub snapshots: Arc<dyn Disk>,
    /// Where blocking work runs.
    pub executor: Executor,
}

/// Where work runs that may block: engine writes, scans, snapshot files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    /// On tokio's blocking threads.
    Threads,
    /// Right here: for simulations on one thread.
    Inline,
}

impl Executor {
    /// Runs `work` and waits for it.
    pub async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> T {
        match self {
            Executor::Inline => work(),
            Executor::Threads => match tokio::task::spawn_blocking(work).await {
                Ok(result) => result,
                // A panic in apply is a broken invariant: it must not be survived in silence.
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
        }
    }
}

impl Storage {
    /// Makes everything written to the engine so far durable.
    pub async fn flush(&self) -> Result<(), Fault> {
        let engine = self.engine.clone();
        self.executor.run(move || engine.flush()).await
    }
}
