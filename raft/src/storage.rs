//! What all groups of a node share: engine, log, snapshot files, and threads that may block.

use std::io;
use std::sync::Arc;

use ephemeris_store::engine::{Engine, Fault, KeyRange};
use ephemeris_store::ids::GroupId;
use ephemeris_store::machine::drop_rows;

use crate::brief::Turn;
use crate::disk::Disk;
use crate::ending::Stop;
use crate::snapshot::SnapshotStore;
use crate::state_machine::storage_error;
use crate::wal::{self, Wal};

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

    /// Runs `work` that should be brief: right here, which spares two threads waking each other, if the
    /// process can do without this one should it take long after all.
    pub async fn run_brief<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        if self == Executor::Threads
            && let Some(_turn) = Turn::take()
        {
            return work();
        }
        self.run(work).await
    }
}

impl Storage {
    /// Makes everything written to the engine so far durable.
    pub async fn flush(&self) -> Result<(), Fault> {
        let engine = self.engine.clone();
        self.executor.run(move || engine.flush()).await
    }

    /// Removes what is left of a replica that does not run: its log, its snapshot files, and its rows, which are
    /// in these ranges.
    pub async fn remove_leftover(&self, group: GroupId, ranges: Vec<KeyRange>) -> io::Result<()> {
        let snapshots = SnapshotStore::new(self.snapshots.clone(), group, Stop::default());
        self.remove_replica(snapshots, ranges).await
    }

    /// The same, of a replica that has stopped.
    ///
    /// The engine may flush at any time. So the log is gone for good first: what was purged from it is nowhere
    /// once the rows are gone, and nobody could go on with the rest.
    pub(crate) async fn remove_replica(
        &self,
        snapshots: SnapshotStore,
        ranges: Vec<KeyRange>,
    ) -> io::Result<()> {
        let group = snapshots.group();
        wal::durable(|done| self.wal.drop_group(group, done)).await?;
        let engine = self.engine.clone();
        let remove = move || {
            drop_rows(&engine, group, ranges).map_err(|fault| storage_error(&fault))?;
            snapshots.clear(&*engine)
        };
        self.executor.run(remove).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use openraft::AsyncRuntime as _;

    use super::*;
    use crate::runtime::Runtime;

    /// Whether brief work runs on the thread of the task that asks for it.
    async fn runs_here(work: impl FnOnce() + Send + 'static) -> bool {
        let asks = async {
            let here = thread::current().id();
            let runs = move || {
                work();
                thread::current().id()
            };
            Executor::Threads.run_brief(runs).await == here
        };
        Runtime::spawn(asks).await.expect("it does not panic")
    }

    fn two_workers() -> tokio::runtime::Runtime {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(2).enable_time().build().expect("threads can be made")
    }

    #[test]
    fn one_worker_of_several_at_a_time_runs_brief_work() {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let alone = runtime.worker_threads(1).build().expect("threads can be made");
        assert!(!alone.block_on(runs_here(|| ())), "who is alone goes on");

        two_workers().block_on(async {
            let (begin, has_begun) = tokio::sync::oneshot::channel();
            let (end, is_over) = mpsc::channel::<()>();
            let slow = Runtime::spawn(runs_here(move || {
                begin.send(()).expect("the test waits for it");
                is_over.recv().expect("the test ends it");
            }));
            has_begun.await.expect("it begins");
            assert!(!runs_here(|| ()).await, "the other worker goes on");
            end.send(()).expect("it waits for it");
            assert!(slow.await.expect("it does not panic"));
            assert!(runs_here(|| ()).await, "the turn is given back");
        });
    }

    /// A worker runs next what it has woken last, and nobody else can take that from it.
    #[test]
    fn brief_work_that_takes_long_holds_up_nobody_who_was_woken_before_it() {
        two_workers().block_on(async {
            for _ in 0..5 {
                let (wake, is_woken) = tokio::sync::oneshot::channel();
                let (wait, waits) = tokio::sync::oneshot::channel();
                let (run, has_run) = mpsc::channel();
                let woken = Runtime::spawn(async move {
                    wait.send(()).expect("it is waited for");
                    is_woken.await.expect("it is woken");
                    run.send(()).expect("it is waited for");
                });
                waits.await.expect("it waits");
                let work = Runtime::spawn(async move {
                    wake.send(()).expect("it waits");
                    let here = thread::current().id();
                    let work = move || {
                        let patience = Duration::from_secs(10);
                        has_run.recv_timeout(patience).expect("whoever was woken runs");
                        thread::current().id()
                    };
                    Executor::Threads.run_brief(work).await == here
                });
                assert!(work.await.expect("it does not panic"));
                woken.await.expect("it does not panic");
            }
        });
    }

    /// The worker that looked for work last is the only one that is awake, and a timer is due while it waits for
    /// a disk.
    #[test]
    fn brief_work_that_takes_long_holds_up_no_timers() {
        two_workers().block_on(async {
            for _ in 0..5 {
                let (fire, has_fired) = mpsc::channel();
                let work = Runtime::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    runs_here(move || {
                        let patience = Duration::from_secs(10);
                        has_fired.recv_timeout(patience).expect("timers fire");
                    })
                    .await
                });
                tokio::time::sleep(Duration::from_millis(60)).await;
                fire.send(()).expect("it is waited for");
                assert!(work.await.expect("it does not panic"));
            }
        });
    }
}
