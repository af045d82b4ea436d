//! A simulated machine: clocks that may be wrong, disks that lose what was not synced, and what a
//! node that runs on it can reach.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ephemeris_raft::disk::Disk;
use ephemeris_raft::testing::MemoryDisk;
use ephemeris_raft::wal::{SyncTime, Wal, WalOptions};
use ephemeris_raft::{Executor, Storage};
use ephemeris_store::engine::MemoryEngine;

use super::network::Interface;
use crate::clock::{Instant, TimeSource};
use crate::platform::{Network, Platform, StorageError};
use crate::supervisor::{self, Tasks};

/// The true date at which simulations begin.
pub(super) const EPOCH_MICROS: i64 = 1_700_000_000_000_000;
/// How long a batch takes on a disk that is well.
pub(super) const SYNC_TIME: Duration = Duration::from_millis(1);
/// Small segments are filled, recycled and purged within a simulated minute.
const WAL_OPTIONS: WalOptions =
    WalOptions { segment_bytes: 64 << 10, cache_bytes: 16 << 10, segments_max: 4 };
const MILLION: i64 = 1_000_000;

/// A machine's address.
pub(super) fn node_ip(number: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, u8::try_from(number).expect("few nodes")))
}

/// The address of a machine that clients run on.
pub(super) fn client_ip(number: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 1, u8::try_from(number).expect("few clients")))
}

/// A machine's clocks: true time, and what is wrong with them.
pub(super) struct SimulatedTime {
    started: Instant,
    boot: Walk,
    wall: Mutex<Walk>,
}

/// How a clock goes: what it showed at some moment, and how fast it is.
#[derive(Clone, Copy)]
struct Walk {
    since: i64,
    shown: i64,
    /// Parts per million by which it is fast; minus a million is a clock that stands still.
    ppm: i64,
}

impl Walk {
    fn at(self, elapsed: i64) -> i64 {
        let passed = elapsed - self.since;
        self.shown + passed + passed * self.ppm / MILLION
    }
}

impl SimulatedTime {
    /// Clocks of a machine that was switched on some time before; the wall clock is right.
    pub(super) fn new(started: Instant, boot_ppm: i64) -> Self {
        let boot = Walk { since: 0, shown: MILLION, ppm: boot_ppm };
        let wall = Walk { since: 0, shown: EPOCH_MICROS, ppm: 0 };
        Self { started, boot, wall: Mutex::new(wall) }
    }

    fn elapsed(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_micros()).expect("simulations end")
    }

    fn wall(&self) -> MutexGuard<'_, Walk> {
        self.wall.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the wall clock: how far it is off now, and how fast it is from now on.
    pub(super) fn set_wall(&self, error: i64, ppm: i64) {
        let since = self.elapsed();
        *self.wall() = Walk { since, shown: EPOCH_MICROS + since + error, ppm };
    }
}

impl TimeSource for SimulatedTime {
    fn boot_micros(&self) -> i64 {
        self.boot.at(self.elapsed())
    }

    fn wall_micros(&self) -> i64 {
        self.wall().at(self.elapsed()).max(0)
    }
}

/// A machine's disks, and the engine on one of them.
pub(super) struct Disks {
    pub(super) data: MemoryDisk,
    pub(super) log: MemoryDisk,
    pub(super) snapshots: MemoryDisk,
    pub(super) engine: MemoryEngine,
    /// How long a batch of the log takes.
    pub(super) sync_time: SyncTime,
}

/// What a node loses when it ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loss {
    /// The process: what was written stays, what the engine had not flushed may not.
    Process { seed: u64 },
    /// The power: what was not synced is gone.
    Everything,
    /// The power: of what was not synced some is gone, by seed.
    Some { seed: u64 },
}

impl Disks {
    /// Empty disks.
    pub(super) fn new() -> Self {
        Self {
            data: MemoryDisk::new(),
            log: MemoryDisk::new(),
            snapshots: MemoryDisk::new(),
            engine: MemoryEngine::new(),
            sync_time: SyncTime::from(SYNC_TIME),
        }
    }

    fn each(&mut self) -> [&mut MemoryDisk; 3] {
        [&mut self.data, &mut self.log, &mut self.snapshots]
    }

    /// Loses what is lost when a process ends, or the power fails.
    pub(super) fn lose(&mut self, loss: Loss) {
        match loss {
            Loss::Process { seed } => {
                self.each().into_iter().for_each(MemoryDisk::end_process);
                self.crash_engine(seed);
            }
            Loss::Everything => {
                self.each().into_iter().for_each(MemoryDisk::lose_power);
                self.engine.crash();
            }
            Loss::Some { seed } => {
                for (disk, seed) in self.each().into_iter().zip(seed..) {
                    disk.lose_power_partly(seed);
                }
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

    /// Puts the disks right.
    pub(super) fn repair(&mut self) {
        self.each().into_iter().for_each(|disk| disk.repair());
        self.engine.fail_after(u64::MAX);
        self.sync_time.set(SYNC_TIME);
    }

    /// A copy that shares nothing.
    pub(super) fn fork(&self) -> Self {
        Self {
            data: self.data.fork(),
            log: self.log.fork(),
            snapshots: self.snapshots.fork(),
            engine: self.engine.fork(),
            sync_time: SyncTime::from(SYNC_TIME),
        }
    }

    /// What a process finds.
    pub(super) fn machine(&self, time: Arc<SimulatedTime>, interface: Interface) -> Machine {
        Machine {
            data: self.data.clone(),
            log: self.log.clone(),
            snapshots: self.snapshots.clone(),
            engine: self.engine.clone(),
            sync_time: self.sync_time.clone(),
            time,
            interface,
        }
    }
}

/// A machine, as one process on it sees it.
pub(super) struct Machine {
    data: MemoryDisk,
    log: MemoryDisk,
    snapshots: MemoryDisk,
    engine: MemoryEngine,
    sync_time: SyncTime,
    time: Arc<SimulatedTime>,
    interface: Interface,
}

impl Platform for Machine {
    fn data(&self) -> Arc<dyn Disk> {
        Arc::new(self.data.clone())
    }

    fn open_storage(&self, _must_be: bool) -> Result<Storage, StorageError> {
        let opened = Wal::open(Arc::new(self.log.clone()), WAL_OPTIONS);
        let (wal, writer) = opened.map_err(|error| StorageError::Io {
            path: self.log.describe(),
            source: io::Error::other(error),
        })?;
        let writing = writer.run_as_task(self.sync_time.clone());
        // It ends when the log is closed, or with the process.
        Tasks::new().spawn_orderly("wal", async move {
            if let Err(error) = writing.await {
                supervisor::fault(&format!("the write-ahead log has failed: {error}"));
            }
        });
        Ok(Storage {
            engine: Arc::new(self.engine.clone()),
            wal,
            snapshots: Arc::new(self.snapshots.clone()),
            executor: Executor::Inline,
        })
    }

    fn network(&self) -> Arc<dyn Network> {
        Arc::new(self.interface.clone())
    }

    fn time(&self) -> Arc<dyn TimeSource> {
        self.time.clone()
    }
}
