//! A replica that was removed writes nothing any more, whatever it was doing.

use std::sync::{Mutex, mpsc};
use std::thread;

use ephemeris_store::catalog::{Catalog, CatalogCommand, CatalogProposal};
use ephemeris_store::codec;
use ephemeris_store::engine::{Fault, KeyRange, MemoryEngine, Read, Table};
use ephemeris_store::machine::Entry;
use ephemeris_store::snapshot::Received;
use ephemeris_store::time::{ClockInterval, Millis};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::*;
use crate::disk::Disk as _;
use crate::snapshot::Offer;
use crate::storage::Executor;
use crate::testing::{MemoryDisk, MemoryNetwork};
use crate::types::Vote;
use crate::wal::{Wal, WalOptions};

const GROUP: GroupId = GroupId::CATALOG;
const ME: ReplicaId = ReplicaId { node: NodeId(1), incarnation: 0 };
const PATIENCE: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(1);
/// How long something must not happen.
const WHILE: Duration = Duration::from_millis(200);

/// A machine that waits at a gate before it applies a command, and before its rows are replaced.
struct Gated {
    catalog: Catalog,
    arrived: UnboundedSender<()>,
    gate: Mutex<mpsc::Receiver<()>>,
}

impl Gated {
    fn wait(&self) {
        self.arrived.send(()).expect("the test waits for it");
        let gate = self.gate.lock().expect("nobody panics here");
        gate.recv_timeout(PATIENCE).expect("the test opens it");
    }
}

impl Machine for Gated {
    type Outcome = <Catalog as Machine>::Outcome;

    fn progress(&self) -> Progress {
        self.catalog.progress()
    }
    fn apply(&self, at: LogId, entry: Entry<'_>) -> Result<Option<Self::Outcome>, Fault> {
        if matches!(entry, Entry::Command(_)) {
            self.wait();
        }
        self.catalog.apply(at, entry)
    }
    fn ranges(&self) -> Vec<KeyRange> {
        self.catalog.ranges()
    }
    fn view(&self) -> (Arc<dyn Read>, Progress) {
        self.catalog.view()
    }
    fn unload(&self) {
        self.wait();
        self.catalog.unload();
    }
    fn reload(&self) -> Result<(), Fault> {
        self.catalog.reload()
    }
}

/// The only replica of a group, on threads.
struct Fixture {
    group: Group<Gated>,
    engine: MemoryEngine,
    snapshots: MemoryDisk,
    arrived: UnboundedReceiver<()>,
    gate: mpsc::Sender<()>,
}

impl Fixture {
    async fn start() -> Self {
        let (engine, snapshots) = (MemoryEngine::new(), MemoryDisk::new());
        let (wal, writer) = Wal::open(Arc::new(MemoryDisk::new()), WalOptions::default()).unwrap();
        thread::spawn(move || writer.run());
        let storage = Storage {
            engine: Arc::new(engine.clone()),
            wal,
            snapshots: Arc::new(snapshots.clone()),
            executor: Executor::Threads,
        };
        let (arrived_sender, arrived) = unbounded_channel();
        let (gate, gate_receiver) = mpsc::channel();
        let machine = Gated {
            catalog: Catalog::open(storage.engine.clone()).unwrap(),
            arrived: arrived_sender,
            gate: Mutex::new(gate_receiver),
        };
        let router = Router::new();
        let transport = MemoryNetwork::new(1).connect(ME.node, router.clone());
        let options = GroupOptions::default();
        let started = Group::start(GROUP, ME, machine, storage, transport, router, &options);
        Self { group: started.await.unwrap(), engine, snapshots, arrived, gate }
    }

    async fn wait_until_at_work(&mut self) {
        timeout(PATIENCE, self.arrived.recv()).await.expect("it is at work");
    }

    /// Removes the replica while the machine is at work, and lets the machine go on.
    async fn remove_at_work(&self) {
        let group = self.group.clone();
        let mut removing = JoinSet::new();
        removing.spawn(async move { group.remove().await });
        let early = timeout(WHILE, removing.join_next()).await;
        assert!(early.is_err(), "it waits for what is under way");
        self.gate.send(()).unwrap();
        let removed = timeout(PATIENCE, removing.join_next()).await.expect("it ends");
        removed.unwrap().unwrap().unwrap();
    }

    fn assert_nothing_is_left(&mut self) {
        assert!(self.arrived.try_recv().is_err(), "what was queued is left undone");
        for table in Table::ALL {
            let rows = self.engine.scan(&KeyRange::prefix(table, Vec::new())).count();
            assert_eq!(rows, 0, "{}", table.name());
        }
        assert_eq!(self.snapshots.list().unwrap(), Vec::<String>::new());
        assert!(self.group.shared.storage.wal.groups().is_empty());
    }
}

fn on_threads(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_time().build().unwrap().block_on(test);
}

fn command() -> Vec<u8> {
    let command = CatalogCommand::ForgetNode { node: NodeId(9) };
    codec::encode(&CatalogProposal { now: ClockInterval::exact(Millis(1)), command })
}

#[test]
fn entries_that_are_being_applied_leave_no_rows_behind() {
    on_threads(async {
        let mut f = Fixture::start().await;
        f.group.form(&[ME]).await.unwrap();
        let settled = async { while f.group.settle().await.is_err() {} };
        timeout(PATIENCE, settled).await.expect("it leads");
        let mut proposals = JoinSet::new();
        let mut propose = |group: Group<Gated>| {
            proposals.spawn(async move { group.propose(command()).await });
        };
        propose(f.group.clone());
        f.wait_until_at_work().await;
        let applying = f.group.last_logged().map(|id| id.index);
        propose(f.group.clone());
        let committed = async {
            while f.group.status().committed <= applying {
                sleep(POLL_EVERY).await;
            }
        };
        timeout(PATIENCE, committed).await.expect("it is queued");
        f.remove_at_work().await;
        f.assert_nothing_is_left();
    });
}

#[test]
fn a_snapshot_that_is_being_installed_leaves_no_rows_behind() {
    on_threads(async {
        let mut f = Fixture::start().await;
        let leader = Catalog::open(Arc::new(MemoryEngine::new())).unwrap();
        leader.apply(LogId { term: 1, index: 0 }, Entry::Blank).unwrap();
        let progress = leader.progress();
        let received = Received::default();
        let chunk = Offer::new(&leader, GROUP).chunk(&received).unwrap();
        let snapshots = &f.group.shared.snapshots;
        assert_eq!(snapshots.begin(progress.applied).unwrap(), received);
        snapshots.stage(progress.applied, &received, &chunk).unwrap();
        let group = f.group.clone();
        let vote = Vote { term: 1, replica: 2, committed: true };
        let mut installing = JoinSet::new();
        installing.spawn(async move { group.install_snapshot(vote, &progress).await });
        f.wait_until_at_work().await;
        f.remove_at_work().await;
        assert!(installing.join_next().await.unwrap().unwrap().is_err());
        f.assert_nothing_is_left();
        f.engine.crash();
        f.assert_nothing_is_left();
        let next = f.group.shared.snapshots.begin(None);
        assert!(next.is_err(), "nor is another one received");
    });
}
