//! Owns the tasks of the node. Connections and handshakes are in `JoinSet`s of their own, and replicas see to theirs.
//!
//! A task that panics has broken an invariant; the process then ends, because a node that starts
//! clean is safer than one that goes on with a part missing.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::thread;
use std::time::Duration;

use ephemeris_raft::{Host, inherit};
use ephemeris_store::ids::{GroupId, ReplicaId};
use futures_util::FutureExt as _;
use rustix::process::{Signal, getpid, kill_process};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, warn};

/// Exit code after a broken invariant or a failed disk.
pub(crate) const EXIT_FAULT: i32 = 70;
/// How long the process may take to exit once it must: it waits for nothing that matters.
const EXIT_PATIENCE: Duration = Duration::from_secs(2);
/// How long tasks may take to end once they are told to.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// A family of tasks that end together. Clones share it; children end with their parents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
    token: CancellationToken,
}

impl Tasks {
    /// A family without tasks.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A family that ends when this one does, or before.
    #[must_use]
    pub(crate) fn child(&self) -> Self {
        Self { tracker: TaskTracker::new(), token: self.token.child_token() }
    }

    /// Tells when to end.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Runs a task until it ends by itself or the family does.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let token = self.token.clone();
        let guarded = AssertUnwindSafe(task).catch_unwind();
        self.tracker.spawn(inherit(async move {
            tokio::select! {
                biased;
                () = token.cancelled() => {}
                result = guarded => {
                    if result.is_err() {
                        fault(&format!("task '{name}' panicked"));
                    }
                }
            }
        }));
    }

    /// Runs a task that ends by itself when the token says so, and must not be cut off.
    pub(crate) fn spawn_orderly(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let guarded = AssertUnwindSafe(task).catch_unwind();
        self.tracker.spawn(inherit(async move {
            if guarded.await.is_err() {
                fault(&format!("task '{name}' panicked"));
            }
        }));
    }

    /// Ends all tasks and waits for them.
    pub(crate) async fn stop(&self) {
        self.token.cancel();
        self.tracker.close();
        if tokio::time::timeout(STOP_DEADLINE, self.tracker.wait()).await.is_err() {
            warn!(tasks = self.tracker.len(), "some tasks did not end in time");
        }
    }
}

/// Ends the process after a replica stopped by itself: its storage failed, or an invariant is broken.
/// Neither is survived by the replicas beside it, which share the storage and the code.
pub(crate) fn replica_fault(group: GroupId, replica: ReplicaId, reason: &str) -> ! {
    fault(&format!("replica {replica} of group {group} has stopped: {reason}"))
}

/// Ends the process after a fault: it must not go on, and must not tidy up either.
pub(crate) fn fault(reason: &str) -> ! {
    if let Some(simulated) = Host::current() {
        error!(reason, "fault: the process ends");
        simulated.end_process(reason);
    }
    // Before anything that may take long, and be it a message to somebody who does not read it.
    kill_after(EXIT_PATIENCE);
    error!(reason, "fault: the process ends");
    std::process::exit(EXIT_FAULT);
}

/// Ends the process without a reason of its own.
pub(crate) fn exit() -> ! {
    kill_after(EXIT_PATIENCE);
    std::process::exit(EXIT_FAULT);
}

/// Kills the process if it has not ended by then: before it does, RocksDB finishes what it compacts, which takes
/// long, and on a disk that hangs for ever. Meanwhile the other threads would go on answering.
fn kill_after(patience: Duration) {
    let kill = move || {
        thread::sleep(patience);
        // There is nobody left to tell.
        let _ = kill_process(getpid(), Signal::KILL);
    };
    // Without it the process ends a little later.
    let _ = thread::Builder::new().name("exit".into()).spawn(kill);
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, ExitStatus};

    use super::*;

    /// What the process that has a fault does at its exit.
    const AT_EXIT: &str = "EPHEMERIS_TEST_AT_EXIT";

    /// Whoever drops it waits for ever, as an exit handler may.
    struct Hangs;

    impl Drop for Hangs {
        fn drop(&mut self) {
            loop {
                thread::park();
            }
        }
    }

    thread_local! {
        static HANGS: Hangs = const { Hangs };
    }

    /// Not a test of its own: what the process does that the next one starts.
    #[test]
    fn a_fault() {
        let Ok(at_exit) = std::env::var(AT_EXIT) else { return };
        if at_exit == "hang" {
            HANGS.with(|_| ());
        }
        fault("a test");
    }

    fn end_by_a_fault(at_exit: &str) -> ExitStatus {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new(program);
        child.args(["--exact", "supervisor::tests::a_fault"]).env(AT_EXIT, at_exit);
        child.output().unwrap().status
    }

    #[test]
    fn a_process_that_must_end_does_so_whatever_its_exit_waits_for() {
        assert_eq!(end_by_a_fault("").code(), Some(EXIT_FAULT));
        assert_eq!(end_by_a_fault("hang").signal(), Some(Signal::KILL.as_raw()));
    }
}
