//! A simulated node: what survives a crash, what runs, and how it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ephemeris_raft::testing::{MemoryDisk, MemoryNetwork};
use ephemeris_raft::wal::{SyncTime, Wal, WalError, WalOptions};
use ephemeris_raft::{Executor, Group, GroupOptions, Host, Quiescence, Router, Storage};
use ephemeris_store::engine::{Fault, KeyRange, MemoryEngine, Table};
use ephemeris_store::ids::NodeId;
use ephemeris_store::partition::Partition;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::{GROUP, replica, spec};

/// How long a batch takes on a disk that is well.
pub(crate) const SYNC_TIME: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub(crate) struct NodeOptions {
    pub(crate) group: GroupOptions,
    /// Size of a log segment.
    pub(crate) segment_bytes: u64,
}

/// What a node loses when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Loss {
    /// The process: what was written stays, what the engine had not flushed does not.
    Process { flushed: u64 },
    /// The power: what was not synced is gone.
    Everything,
    /// The power: of what was not synced some is gone, by seed.
    Some { seed: u64 },
}

pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) log_disk: MemoryDisk,
    pub(crate) snapshot_disk: MemoryDisk,
    pub(crate) engine: MemoryEngine,
    pub(crate) sync_time: SyncTime,
    /// True if a disk was given a fault that may stop the replica.
    pub(crate) is_excused: bool,
    /// True if a disk has no room left, which a restart does not change.
    pub(crate) is_full: bool,
    /// True if its disk fails because the power is about to go.
    pub(crate) is_losing_power: bool,
    running: Option<Running>,
}

struct Running {
    host: Host,
    group: Group<Partition>,
    storage: Storage,
    writer: JoinHandle<std::io::Result<()>>,
    /// Set when a checkpoint failed.
    failed: Arc<AtomicBool>,
}

impl Node {
    pub(crate) fn new(id: u32) -> Self {
        Self {
            id: NodeId(id),
            log_disk: MemoryDisk::new(),
            snapshot_disk: MemoryDisk::new(),
            engine: MemoryEngine::new(),
            sync_time: SyncTime::from(SYNC_TIME),
            is_excused: false,
            is_full: false,
            is_losing_power: false,
            running: None,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    fn process(&self) -> &Running {
        self.running.as_ref().expect("the node runs")
    }

    pub(crate) fn group(&self) -> &Group<Partition> {
        &self.process().group
    }

    pub(crate) fn host(&self) -> &Host {
        &self.process().host
    }

    pub(crate) async fn start(
        &mut self,
        network: &MemoryNetwork,
        options: &NodeOptions,
    ) -> Result<(), String> {
        assert!(self.running.is_none(), "the node does not run yet");
        let host = Host::new();
        let wal_options =
            WalOptions { segment_bytes: options.segment_bytes, cache_bytes: 4096, segments_max: 4 };
        let (wal, writer) = match Wal::open(Arc::new(self.log_disk.clone()), wal_options) {
            Ok(opened) => opened,
            Err(WalError::Io(error)) => return Err(error.to_string()),
            Err(error @ WalError::Corrupt { .. }) => panic!("{}: {error}", self.id),
        };
        let (sync_time, on) = (self.sync_time.clone(), host.clone());
        let writer = tokio::spawn(async move { on.run(writer.run_as_task(sync_time)).await });
        let engine = Arc::new(self.engine.clone());
        let storage = Storage {
            engine: engine.clone(),
            wal,
            snapshots: Arc::new(self.snapshot_disk.clone()),
            executor: Executor::Inline,
        };
        let router = Router::new();
        let transport = network.connect_host(self.id, host.clone(), router.clone());
        let machine = Partition::open(engine, spec()).expect("the partition opens");
        let me = replica(self.id.0);
        let quiescence = Quiescence {
            router: router.clone(),
            transport: transport.clone(),
            options: options.group.clone(),
        };
        let group =
            Group::start(GROUP, me, machine, storage.clone(), transport, router, &options.group);
        let group = host.run(group).await.map_err(|error| error.to_string())?;
        let on = host.clone();
        tokio::spawn(async move { on.run(quiescence.run()).await });
        self.is_excused = self.is_full;
        self.running = Some(Running { host, group, storage, writer, failed: Arc::default() });
        Ok(())
    }

    /// Ends the process at once, and loses what is lost with it.
    pub(crate) fn lose(&mut self, loss: Loss) {
        if let Some(running) = self.running.take() {
            running.host.kill();
        }
        self.is_losing_power = false;
        match loss {
            Loss::Process { flushed } => {
                self.log_disk.end_process();
                self.snapshot_disk.end_process();
                self.crash_engine(flushed);
            }
            Loss::Everything => {
                self.log_disk.lose_power();
                self.snapshot_disk.lose_power();
                self.engine.crash();
            }
            Loss::Some { seed } => {
                self.log_disk.lose_power_partly(seed);
                self.snapshot_disk.lose_power_partly(!seed);
                self.crash_engine(seed);
            }
        }
    }

    /// Every other time the engine had flushed some of its last writes by itself.
    fn crash_engine(&self, seed: u64) {
        let writes = self.engine.unflushed_writes() as u64;
        let flushed = if seed.is_multiple_of(2) { 0 } else { (seed >> 1) % (writes + 1) };
        self.engine.crash_after(usize::try_from(flushed).expect("few writes"));
    }

    /// Flushes the engine, and after a while lets the log go up to there. Runs on its own.
    pub(crate) fn checkpoint(
        &self,
        pause: Duration,
    ) -> impl Future<Output = Result<(), Fault>> + Send + use<> {
        let Running { host, group, storage, failed, .. } = self.process();
        let (host, group, storage, failed) =
            (host.clone(), group.clone(), storage.clone(), failed.clone());
        let work = async move {
            let progress = group.progress();
            let flushed = storage.flush().await;
            failed.store(flushed.is_err(), Ordering::SeqCst);
            sleep(pause).await;
            if flushed.is_ok() {
                group.mark_durable(progress).await;
            }
            flushed
        };
        async move { host.run(work).await }
    }

    /// How many segments the log has.
    pub(crate) fn log_segments(&self) -> u64 {
        self.process().storage.wal.stats().segments
    }

    /// Lets entries go that are too old, as a node does from time to time.
    pub(crate) async fn purge_overdue(&self) {
        let Running { group, storage, .. } = self.process();
        for (_, upto) in storage.wal.overdue() {
            group.purge(upto).await;
        }
    }

    /// Puts the disks right; a replica that has stopped stays stopped.
    pub(crate) fn repair(&mut self) {
        self.log_disk.repair();
        self.snapshot_disk.repair();
        self.engine.fail_after(u64::MAX);
        self.sync_time.set(SYNC_TIME);
        self.is_full = false;
    }

    /// Why the process would have ended by itself, if it would.
    pub(crate) fn failure(&self) -> Option<String> {
        let running = self.running.as_ref()?;
        if running.writer.is_finished() {
            return Some("the log's writer has ended".to_string());
        }
        if running.failed.load(Ordering::SeqCst) {
            return Some("a flush has failed".to_string());
        }
        running.group.status().stopped
    }

    /// Every row of every table, but for garbage, while the node runs.
    pub(crate) fn rows(&self) -> Vec<(Table, Vec<u8>, Vec<u8>)> {
        let view = self.group().machine().snapshot();
        let rows = |table| {
            let rows = view.kept_rows(&KeyRange::prefix(table, Vec::new()));
            let rows = rows.expect("memory reads").into_iter();
            rows.map(move |(key, value)| (table, key, value))
        };
        Table::ALL.into_iter().flat_map(rows).collect()
    }

    /// What the replica says of itself.
    pub(crate) fn describe(&self) -> String {
        match &self.running {
            Some(running) => format!("{:?}\n", running.group.status()),
            None => format!("{} is down\n", self.id),
        }
    }
}
