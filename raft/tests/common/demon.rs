//! What can break in a simulated world, and how some of it is put right again.

use std::time::Duration;

use ephemeris_raft::testing::Weather;
use ephemeris_store::ids::NodeId;
use rand::RngExt as _;
use rand::rngs::SmallRng;
use tokio::time::sleep;

use super::world::World;
use super::{Loss, node::SYNC_TIME, replica};

/// Kinds of faults, and two operations that are rarer in most clusters than faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    Kill,
    PowerLoss,
    TornPowerLoss,
    PowerLossOfAll,
    Disk(DiskFault),
    SlowDisk,
    Freeze,
    Isolation,
    OneWayCut,
    FoulWeather,
    HandOver,
    Checkpoint,
}

/// Faults of disks, which a replica may stop for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskFault {
    PowerGoing,
    SyncFails,
    LogFull,
    SnapshotsFull,
    SnapshotSyncFails,
    EngineFails,
}

use DiskFault as D;

use FaultKind as F;

impl FaultKind {
    pub(crate) const ALL: [FaultKind; 17] = [
        F::Kill,
        F::PowerLoss,
        F::TornPowerLoss,
        F::PowerLossOfAll,
        F::Disk(D::PowerGoing),
        F::Disk(D::SyncFails),
        F::Disk(D::LogFull),
        F::Disk(D::SnapshotsFull),
        F::Disk(D::SnapshotSyncFails),
        F::Disk(D::EngineFails),
        F::SlowDisk,
        F::Freeze,
        F::Isolation,
        F::OneWayCut,
        F::FoulWeather,
        F::HandOver,
        F::Checkpoint,
    ];

    /// A selection; checkpoints are always in it, for without them no log is ever purged.
    pub(super) fn some(rng: &mut SmallRng) -> Vec<Self> {
        let chosen = |kind: &Self| *kind == F::Checkpoint || rng.random_bool(0.4);
        Self::ALL.into_iter().filter(chosen).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            F::Kill => "kill",
            F::PowerLoss => "power loss",
            F::TornPowerLoss => "torn power loss",
            F::PowerLossOfAll => "power loss of all",
            F::Disk(D::PowerGoing) => "power going",
            F::Disk(D::SyncFails) => "failed sync",
            F::Disk(D::LogFull) => "full log",
            F::Disk(D::SnapshotsFull) => "full snapshots",
            F::Disk(D::SnapshotSyncFails) => "failed snapshot sync",
            F::Disk(D::EngineFails) => "failing engine",
            F::SlowDisk => "slow disk",
            F::Freeze => "freeze",
            F::Isolation => "isolation",
            F::OneWayCut => "one-way cut",
            F::FoulWeather => "foul weather",
            F::HandOver => "hand-over",
            F::Checkpoint => "checkpoint",
        }
    }
}

impl World {
    pub(super) fn break_something(&mut self) {
        let kind = self.kinds[self.rng.random_range(0..self.kinds.len())];
        self.note(kind.name());
        let seed = self.rng.random();
        match kind {
            F::Kill => self.end_one(Loss::Process { flushed: seed }),
            F::PowerLoss => self.end_one(Loss::Everything),
            F::TornPowerLoss => self.end_one(Loss::Some { seed }),
            F::PowerLossOfAll => {
                for id in 1..=self.count {
                    let seed = self.rng.random();
                    self.cluster.lose(id, Loss::Some { seed });
                }
            }
            F::Disk(fault) => self.break_disk(fault),
            F::SlowDisk => {
                let id = self.any_node();
                let millis = self.rng.random_range(1000..5000);
                self.cluster.node(id).sync_time.set(Duration::from_millis(millis));
            }
            F::Freeze => self.freeze(),
            F::Isolation => {
                let id = self.any_node();
                self.cluster.network.isolate(NodeId(id));
            }
            F::OneWayCut => {
                let (from, to) = (self.any_node(), self.any_node());
                self.cluster.network.cut(NodeId(from), NodeId(to));
            }
            F::FoulWeather => self.cluster.network.set_weather(Weather::FOUL),
            F::HandOver => self.hand_over(),
            F::Checkpoint => self.checkpoint(),
        }
    }

    fn end_one(&mut self, loss: Loss) {
        let id = self.any_node();
        self.cluster.lose(id, loss);
    }

    fn break_disk(&mut self, fault: DiskFault) {
        let Some(id) = self.any_running() else { return };
        let (operations, bytes) = (self.rng.random_range(0..12), self.rng.random_range(0..5000));
        let node = self.cluster.node_mut(id);
        node.is_excused = true;
        match fault {
            D::PowerGoing => {
                node.is_losing_power = true;
                node.log_disk.fail_after(operations);
            }
            D::SyncFails => node.log_disk.fail_next_sync(),
            D::LogFull => {
                node.is_full = true;
                node.log_disk.fill(bytes);
            }
            D::SnapshotsFull => {
                node.is_full = true;
                node.snapshot_disk.fill(bytes);
            }
            D::SnapshotSyncFails => node.snapshot_disk.fail_next_sync(),
            D::EngineFails => node.engine.fail_after(operations),
        }
    }

    /// Stops a process for one, three or ten election timeouts.
    fn freeze(&mut self) {
        let Some(id) = self.any_running() else { return };
        let times = [1, 3, 10][self.rng.random_range(0..3)];
        let host = self.cluster.node(id).host().clone();
        host.freeze();
        let length = self.cluster.options.group.election_max * times;
        tokio::spawn(async move {
            sleep(length).await;
            host.thaw();
        });
    }

    fn hand_over(&mut self) {
        let to = self.any_node();
        let Some(from) = self.any_running() else { return };
        let node = self.cluster.node(from);
        let (host, group) = (node.host().clone(), node.group().clone());
        tokio::spawn(async move { host.run(group.transfer_leadership(replica(to))).await });
    }

    /// The mark comes some time after the flush.
    fn checkpoint(&mut self) {
        let Some(id) = self.any_running() else { return };
        let pause = Duration::from_millis(self.rng.random_range(0..800));
        tokio::spawn(self.cluster.node(id).checkpoint(pause));
    }

    pub(super) async fn repair(&mut self) {
        let id = self.any_node();
        match self.rng.random_range(0..10) {
            0..6 if !self.cluster.node(id).is_running() => self.restart(id).await,
            0..2 => self.cluster.network.set_weather(Weather::FAIR),
            2..6 => self.cluster.network.heal(),
            _ => {
                let node = self.cluster.node_mut(id);
                node.sync_time.set(SYNC_TIME);
                if node.is_full {
                    node.repair();
                }
            }
        }
    }
}
