//! The end of the task that changes a machine, which openraft does not wait for.
//!
//! 1. `Raft::shutdown` returns when openraft's core has ended. Its worker, another task, goes on with what it has
//!    begun, and with what is queued for it.
//! 2. `Ending::reach` has it stop at the next batch of entries, or chunk of a snapshot …
//! 3. … and waits until the worker drops its `Work`. From then on nothing writes the machine's rows.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// Tells those who work for a replica that it is being stopped. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// An error once the replica is being stopped.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::SeqCst) {
            return Err(io::Error::other("the replica is being stopped"));
        }
        Ok(())
    }
}

/// What the worker holds as long as it lives.
pub(crate) struct Work {
    pub(crate) stop: Stop,
    _lives: watch::Sender<()>,
}

/// The end of the worker, for whoever stops a replica.
pub(crate) struct Ending {
    stop: Stop,
    worker: watch::Receiver<()>,
}

impl Ending {
    /// The work of a replica, and its end.
    pub(crate) fn of_work(stop: Stop) -> (Work, Self) {
        let (lives, worker) = watch::channel(());
        (Work { stop: stop.clone(), _lives: lives }, Self { stop, worker })
    }

    /// Has the worker end, and waits until it has.
    pub(crate) async fn reach(&self) {
        self.stop.0.store(true, Ordering::SeqCst);
        let mut worker = self.worker.clone();
        while worker.changed().await.is_ok() {}
    }
}
