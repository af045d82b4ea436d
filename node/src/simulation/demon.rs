//! What can break in a simulated world, and how some of it is put right again.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use ephemeris_raft::testing::Weather;
use ephemeris_store::ids::GroupId;
use rand::RngExt as _;
use rand::rngs::SmallRng;
use tokio::time::sleep;

use super::client::CLIENTS;
use super::machine::{Loss, SYNC_TIME, client_ip, node_ip};
use super::world::{ERROR_MICROS, World};
use crate::clock::monotonic;

/// Kinds of faults, and some operations that are rarer in most clusters than faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    Kill,
    PowerLoss,
    TornPowerLoss,
    PowerLossOfAll,
    Stop,
    Freeze,
    Isolation,
    OneWayCut,
    Clients,
    FoulWeather,
    Clock,
    SlowDisk,
    FailedSync,
    FullLog,
    FailingEngine,
    HandOver,
    Checkpoint,
}

use FaultKind as F;

impl FaultKind {
    pub(super) const ALL: [FaultKind; 17] = [
        F::Kill,
        F::PowerLoss,
        F::TornPowerLoss,
        F::PowerLossOfAll,
        F::Stop,
        F::Freeze,
        F::Isolation,
        F::OneWayCut,
        F::Clients,
        F::FoulWeather,
        F::Clock,
        F::SlowDisk,
        F::FailedSync,
        F::FullLog,
        F::FailingEngine,
        F::HandOver,
        F::Checkpoint,
    ];

    /// A selection; checkpoints are always in it, for without them no log is ever purged.
    fn some(rng: &mut SmallRng) -> Vec<Self> {
        let chosen = |kind: &Self| *kind == F::Checkpoint || rng.random_bool(0.4);
        Self::ALL.into_iter().filter(chosen).collect()
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            F::Kill => "kill",
            F::PowerLoss => "power loss",
            F::TornPowerLoss => "torn power loss",
            F::PowerLossOfAll => "power loss of all",
            F::Stop => "orderly end",
            F::Freeze => "freeze",
            F::Isolation => "isolation",
            F::OneWayCut => "one-way cut",
            F::Clients => "clients cut off",
            F::FoulWeather => "foul weather",
            F::Clock => "wrong clock",
            F::SlowDisk => "slow disk",
            F::FailedSync => "failed sync",
            F::FullLog => "full log",
            F::FailingEngine => "failing engine",
            F::HandOver => "hand-over",
            F::Checkpoint => "checkpoint",
        }
    }
}

/// Breaks things, by its own luck.
pub(super) struct Demon {
    world: Rc<World>,
    rng: SmallRng,
    kinds: Vec<FaultKind>,
    /// The nodes whose wall clocks may be wrong: a minority, and the same for the whole run. A sample is
    /// good for a minute, so clocks that are wrong in the same minute can all count as wrong at once, and
    /// nobody promises to survive it if those are most.
    bad_clocks: BTreeSet<u32>,
}

impl Demon {
    pub(super) fn new(world: Rc<World>, mut rng: SmallRng) -> Self {
        let kinds = FaultKind::some(&mut rng);
        let count = rng.random_range(1..=(world.options.nodes - 1) / 2);
        let mut bad_clocks = BTreeSet::new();
        while bad_clocks.len() < count as usize {
            bad_clocks.insert(rng.random_range(world.numbers()));
        }
        Self { world, rng, kinds, bad_clocks }
    }

    /// Breaks something and repairs something, for so long.
    pub(super) async fn run(mut self, time: Duration) {
        let end = monotonic() + time;
        while monotonic() < end {
            self.world.check();
            if self.rng.random_bool(0.4) {
                self.break_something().await;
            } else {
                self.repair_something();
            }
            let pause = Duration::from_millis(self.rng.random_range(100..3000));
            sleep(pause).await;
        }
    }

    fn any_node(&mut self) -> u32 {
        self.rng.random_range(self.world.numbers())
    }

    async fn break_something(&mut self) {
        let kind = self.kinds[self.rng.random_range(0..self.kinds.len())];
        self.world.count(kind.name());
        self.world.note(format_args!("{}", kind.name()));
        let (seed, node) = (self.rng.random(), self.any_node());
        match kind {
            F::Kill => self.end(node, Loss::Process { seed }),
            F::PowerLoss => self.end(node, Loss::Everything),
            F::TornPowerLoss => self.end(node, Loss::Some { seed }),
            F::PowerLossOfAll => {
                for number in self.world.numbers() {
                    let seed = self.rng.random();
                    self.end(number, Loss::Some { seed });
                }
            }
            F::Stop => self.world.stop(node).await,
            F::Freeze => self.freeze(node),
            F::Isolation => self.isolate(node),
            F::OneWayCut => {
                let to = self.any_node();
                self.world.network.cut(node_ip(node), node_ip(to));
            }
            F::Clients => {
                for client in 0..CLIENTS {
                    self.world.network.cut(node_ip(node), client_ip(client));
                }
            }
            F::FoulWeather => self.world.network.set_weather(Weather::FOUL),
            F::Clock => self.set_clocks(),
            F::SlowDisk => {
                let millis = self.rng.random_range(100..3000);
                self.world.slow_disk(node, Duration::from_millis(millis));
            }
            F::FailedSync => self.world.break_disks(node, |disks| disks.log.fail_next_sync()),
            F::FullLog => {
                let bytes = self.rng.random_range(0..5000);
                self.world.break_disks(node, |disks| disks.log.fill(bytes));
            }
            F::FailingEngine => {
                let writes = self.rng.random_range(0..12);
                self.world.break_disks(node, |disks| disks.engine.fail_after(writes));
            }
            F::HandOver => self.hand_over(node),
            F::Checkpoint => self.world.on(node, |node| async move { node.flush().await }),
        }
    }

    /// A machine that is down already has nothing more to lose.
    fn end(&self, node: u32, loss: Loss) {
        if self.world.host(node).is_some() {
            self.world.end(node, loss);
        }
    }

    /// Stops a process for one, three or ten election timeouts.
    fn freeze(&mut self, node: u32) {
        let times = [1, 3, 10][self.rng.random_range(0..3)];
        let length = self.world.options.election_timeout * times;
        let Some(host) = self.world.host(node) else { return };
        host.freeze();
        tokio::task::spawn_local(async move {
            sleep(length).await;
            host.thaw();
        });
    }

    /// Cuts a node off from the others, but not from clients.
    fn isolate(&self, node: u32) {
        for other in self.world.numbers().filter(|other| *other != node) {
            self.world.network.cut(node_ip(node), node_ip(other));
            self.world.network.cut(node_ip(other), node_ip(node));
        }
    }

    /// Sets the run's bad wall clocks, all alike or each in its own way, and moves the others within what
    /// counts as right.
    fn set_clocks(&mut self) {
        let alike = self.rng.random_bool(0.5).then(|| self.some_wrong());
        for number in self.world.numbers() {
            let small = self.rng.random_range(-ERROR_MICROS..=ERROR_MICROS);
            let (error, pace) = if self.bad_clocks.contains(&number) {
                alike.unwrap_or_else(|| self.some_wrong())
            } else {
                (0, 0)
            };
            tracing::debug!(target: "simulation", number, error, pace, "a wall clock is set");
            self.world.time(number).set_wall(error + small, pace);
        }
    }

    /// How far a bad clock is off and how fast it is: wrong or right, fast, slow or standing still.
    fn some_wrong(&mut self) -> (i64, i64) {
        let year = 365 * 86_400_000_000_i64;
        let errors = [0, 1_000_000, 5_000_000, 3_600_000_000, year, 80 * year];
        let error = errors[self.rng.random_range(0..errors.len())];
        let sign = if self.rng.random_bool(0.5) { 1 } else { -1 };
        let paces = [0, 0, 0, -1_000_000, -500_000, 500_000, 1_000_000];
        (sign * error, paces[self.rng.random_range(0..paces.len())])
    }

    /// Has a node hand a group to another.
    fn hand_over(&mut self, node: u32) {
        let luck = self.rng.random_range(0..1000);
        self.world.on(node, |node| async move {
            let directory = node.directory().current();
            let groups: Vec<_> = directory.state().partitions().cloned().collect();
            if let Some(record) = groups.get(luck % (groups.len() + 1)) {
                let to = record.replicas[luck % record.replicas.len()];
                node.transfer_leadership(record.group, to).await;
            } else {
                let nodes: Vec<_> = directory.state().nodes().cloned().collect();
                let Some(to) = nodes.get(luck % nodes.len().max(1)) else { return };
                node.transfer_leadership(GroupId::CATALOG, to.catalog_replica).await;
            }
        });
    }

    fn repair_something(&mut self) {
        let node = self.any_node();
        match self.rng.random_range(0..10) {
            0..6 if self.world.host(node).is_none() => {
                self.world.count("boot");
                self.world.boot(node);
            }
            0..2 => self.world.network.set_weather(Weather::FAIR),
            2..6 => self.world.network.heal(),
            _ => self.world.slow_disk(node, SYNC_TIME),
        }
    }
}
