//! What goes wrong, and how it is put right again.

mod crowds;
mod members;

use std::time::Duration;

use clap::ValueEnum;
use ephemeris_cluster_tests::client::Container;
use ephemeris_cluster_tests::cluster::{Ability, Cluster, Link, Passage, Resource};
use ephemeris_cluster_tests::history::Nanos;
use rand::RngExt as _;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use serde_json::{Value, json};

use crate::hand::Timer;

/// Pauses, in election timeouts.
const PAUSES: [u32; 3] = [1, 3, 10];
/// Longest delay of what passes a link.
const DELAY_MAX: Duration = Duration::from_millis(300);
/// By how much a wall clock is set, in milliseconds: a second, an hour, a year.
const JUMPS_MS: [i64; 3] = [1000, 3_600_000, 31_536_000_000];
const STROBE_MS: i64 = 500;
/// What passes a throttled link in a second, in bytes.
const THROTTLED_BYTES: u32 = 100_000;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Mode {
    /// A leader's process ends, as by a crash.
    KillLeader,
    /// Another's does.
    KillFollower,
    /// Those of a majority do at once.
    KillMajority,
    /// All do at once.
    KillAll,
    /// A leader does nothing for a while, and its sockets stay open.
    PauseLeader,
    /// Another does nothing.
    PauseFollower,
    /// A leader hears and says nothing.
    IsolateLeader,
    /// Another hears and says nothing.
    IsolateFollower,
    /// A leader hears, and nobody hears it.
    MuteLeader,
    /// A leader is heard, and hears nothing.
    DeafenLeader,
    /// Two nodes reach each other only by way of the third.
    Bridge,
    /// The leader is cut off and reached again, ten times in short order.
    Flap,
    /// What nodes say arrives late.
    Delay,
    /// Little passes between a leader and another.
    Throttle,
    /// Connections end in the middle of a message.
    Cut,
    /// One after the other is told to end, and started again.
    RollingRestart,
    /// A wall clock is set: by a second, an hour or a year, ahead or back.
    ClockJump,
    /// A wall clock is half a second ahead and half a second behind, in turns.
    ClockStrobe,
    /// A wall clock runs at half or twice its pace.
    ClockDrift,
    /// A wall clock stands still.
    ClockFreeze,
    /// There is no room on a disk: its node must end.
    DiskFull,
    /// There is too little memory for a node: it is killed for that until there is enough.
    MemoryLimit,
    /// A log cannot be written: its node must end.
    WriteError,
    /// A log cannot be made durable: its node must end.
    SyncError,
    /// To make a log durable takes seconds.
    SlowSync,
    /// The storage engine cannot write: its node must end.
    StateWriteError,
    /// The storage engine cannot read: its node must end.
    StateReadError,
    /// Some of what the storage engine reads takes long, wherever that is.
    SlowState,
    /// Clients come by the hundred while all nodes start.
    Storm,
    /// Thousands of clients are connected and say nothing, while a leader's process ends.
    IdleConnections,
    /// A node can open no further file and no further connection.
    Descriptors,
    /// What was acknowledged is damaged in a log: its node must refuse it, and is made anew.
    CorruptRecord,
    /// A node loses its disk, is forgotten, and joins as a new one.
    Membership,
    /// Leaders are asked to hand over, again and again.
    TransferLeader,
    /// A node that was away needs a snapshot, since the others have let their logs go.
    Snapshot,
    /// A process ends at the worst moment: once a log is durable and before anybody is told, and so on.
    CrashPoint,
    /// The same, while a snapshot is installed.
    CrashInSnapshot,
}

impl Mode {
    /// All of them.
    pub(crate) fn all() -> Vec<Mode> {
        Mode::value_variants().to_vec()
    }

    /// What it does to nodes that cannot be done everywhere.
    pub(crate) fn needs(self) -> Option<Ability> {
        match self {
            Mode::KillLeader
            | Mode::KillFollower
            | Mode::KillMajority
            | Mode::KillAll
            | Mode::PauseLeader
            | Mode::PauseFollower
            | Mode::RollingRestart
            | Mode::Storm
            | Mode::IdleConnections
            | Mode::TransferLeader => None,
            Mode::IsolateLeader
            | Mode::IsolateFollower
            | Mode::MuteLeader
            | Mode::DeafenLeader
            | Mode::Bridge
            | Mode::Flap => Some(Ability::Pass(Passage::Held)),
            Mode::Delay => Some(Ability::Pass(Passage::Delayed(DELAY_MAX))),
            Mode::Throttle => Some(Ability::Pass(Passage::Throttled(THROTTLED_BYTES))),
            Mode::Cut => Some(Ability::Pass(Passage::Cut)),
            Mode::ClockJump
            | Mode::ClockStrobe
            | Mode::ClockDrift
            | Mode::ClockFreeze
            | Mode::WriteError
            | Mode::SyncError
            | Mode::SlowSync
            | Mode::StateWriteError
            | Mode::StateReadError
            | Mode::SlowState
            | Mode::CrashPoint
            | Mode::CrashInSnapshot => Some(Ability::Lie),
            Mode::DiskFull => Some(Ability::Exhaust(Resource::Disk)),
            Mode::MemoryLimit => Some(Ability::Exhaust(Resource::Memory)),
            Mode::Descriptors => Some(Ability::Exhaust(Resource::Descriptors)),
            Mode::CorruptRecord | Mode::Membership | Mode::Snapshot => Some(Ability::Own),
        }
    }

    /// True if a process needs a machine that lies for it.
    pub(crate) fn is_of_machine(self) -> bool {
        matches!(self.needs(), Some(Ability::Lie | Ability::Exhaust(Resource::Disk)))
    }

    /// True if others must have let go what a node lacks that was away for a few seconds.
    pub(crate) fn needs_short_log(self) -> bool {
        matches!(self, Mode::Snapshot | Mode::CrashInSnapshot)
    }

    /// Its name on the command line.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value().expect("every mode has a name");
        value.get_name().to_string()
    }
}

/// Breaks a cluster and mends it.
pub(crate) struct Nemesis<'c> {
    pub(crate) cluster: &'c mut Cluster,
    pub(crate) rng: SmallRng,
    /// Whose leader is meant.
    pub(crate) container: &'c Container,
    pub(crate) timer: Timer,
    /// That of the nodes.
    pub(crate) election_timeout: Duration,
    /// When the fault that happens now began, if that was later than its preparations.
    pub(crate) begun: Option<Nanos>,
    /// When it was there.
    pub(crate) installed: Option<Nanos>,
}

/// A fault that is over.
pub(crate) struct Strike {
    pub(crate) targets: Vec<String>,
    /// Before anything was done, when something first was, and after all was put right.
    pub(crate) start: Nanos,
    pub(crate) installed: Nanos,
    pub(crate) stop: Nanos,
}

impl Nemesis<'_> {
    /// Lets a fault happen, and puts it right.
    pub(crate) async fn strike(&mut self, mode: Mode) -> Strike {
        let leader = self.cluster.leader(self.container).await;
        let mut others: Vec<u32> =
            self.cluster.ids().into_iter().filter(|node| *node != leader).collect();
        others.shuffle(&mut self.rng);
        let follower = others[0];
        let either = if self.rng.random_bool(0.5) { leader } else { follower };
        let lasts = Duration::from_millis(self.rng.random_range(1000..5000));
        let most = self.cluster.ids().len() / 2 + 1;
        (self.begun, self.installed) = (None, None);
        let start = self.timer.now();
        let targets = match mode {
            Mode::KillLeader => self.kill(&[leader], lasts).await,
            Mode::KillFollower => self.kill(&[follower], lasts).await,
            Mode::KillMajority => {
                let mut all = self.cluster.ids();
                all.shuffle(&mut self.rng);
                self.kill(&all[..most], lasts).await
            }
            Mode::KillAll => self.kill(&self.cluster.ids(), lasts / 4).await,
            Mode::PauseLeader => self.pause(leader).await,
            Mode::PauseFollower => self.pause(follower).await,
            Mode::IsolateLeader => self.links(&around(leader, &others), Passage::Held, lasts).await,
            Mode::IsolateFollower => {
                let rest: Vec<u32> = others[1..].iter().copied().chain([leader]).collect();
                self.links(&around(follower, &rest), Passage::Held, lasts).await
            }
            Mode::MuteLeader => self.links(&out_of(leader, &others), Passage::Held, lasts).await,
            Mode::DeafenLeader => self.links(&into(leader, &others), Passage::Held, lasts).await,
            Mode::Bridge => {
                let apart = [leader, follower];
                self.links(&around(apart[0], &apart[1..]), Passage::Held, lasts).await
            }
            Mode::Flap => self.flap(leader, &others).await,
            Mode::Delay => {
                let all: Vec<Link> = self.every_link();
                self.links(&all, Passage::Delayed(DELAY_MAX), lasts).await
            }
            Mode::Throttle => {
                let between = around(leader, &[follower]);
                self.links(&between, Passage::Throttled(THROTTLED_BYTES), lasts).await
            }
            Mode::Cut => {
                let all: Vec<Link> = self.every_link();
                self.links(&all, Passage::Cut, lasts / 4).await
            }
            Mode::RollingRestart => self.rolling_restart().await,
            Mode::ClockJump => {
                let ahead = JUMPS_MS[self.rng.random_range(0..JUMPS_MS.len())];
                let sign = if self.rng.random_bool(0.5) { 1 } else { -1 };
                self.lie(either, json!({ "wall": { "ahead_ms": sign * ahead } }), lasts).await
            }
            Mode::ClockStrobe => {
                for turn in 0..20 {
                    let ahead = if turn % 2 == 0 { STROBE_MS } else { -STROBE_MS };
                    let held = Duration::from_millis(100);
                    self.lie(either, json!({ "wall": { "ahead_ms": ahead } }), held).await;
                }
                names(&[either])
            }
            Mode::ClockDrift => {
                let pace = if self.rng.random_bool(0.5) { 0.5 } else { 2.0 };
                self.lie(either, json!({ "wall": { "pace": pace } }), lasts).await
            }
            Mode::ClockFreeze => self.lie(either, json!({ "wall": { "pace": 0.0 } }), lasts).await,
            Mode::DiskFull => self.exhaust(either, Resource::Disk, lasts).await,
            Mode::MemoryLimit => self.exhaust(either, Resource::Memory, lasts).await,
            Mode::WriteError => self.spoil(either, json!({ "log": "failing_writes" }), lasts).await,
            Mode::SyncError => self.spoil(either, json!({ "log": "failing_syncs" }), lasts).await,
            Mode::SlowSync => {
                let takes = self.rng.random_range(1000..5000);
                self.lie(either, json!({ "log": { "slow": takes } }), lasts).await
            }
            Mode::StateWriteError => {
                self.spoil(either, json!({ "state": "failing_writes" }), lasts).await
            }
            Mode::StateReadError => {
                self.spoil(either, json!({ "state": "failing_reads" }), lasts).await
            }
            Mode::SlowState => {
                let takes = self.rng.random_range(50..1000);
                self.lie(either, json!({ "state": { "slow": takes } }), lasts).await
            }
            Mode::Storm => self.storm().await,
            Mode::IdleConnections => self.idle_connections(leader, lasts).await,
            Mode::Descriptors => self.starve(either, lasts).await,
            Mode::CorruptRecord => self.corrupt_record(either).await,
            Mode::Membership => self.replace(either).await,
            Mode::TransferLeader => self.transfer_leaders().await,
            Mode::Snapshot => self.snapshot(follower).await,
            Mode::CrashPoint => self.crash_point(either, lasts).await,
            Mode::CrashInSnapshot => self.crash_in_snapshot(follower).await,
        };
        let installed = self.installed.expect("every fault says when it is there");
        let start = self.begun.unwrap_or(start);
        Strike { targets, start, installed, stop: self.timer.now() }
    }

    /// The fault is there.
    fn note_installed(&mut self) {
        self.installed.get_or_insert(self.timer.now());
    }

    /// Waits while it lasts.
    async fn wait(&mut self, lasts: Duration) {
        self.note_installed();
        tokio::time::sleep(lasts).await;
    }

    fn every_link(&self) -> Vec<Link> {
        let ids = self.cluster.ids();
        let pairs = ids.iter().flat_map(|from| ids.iter().map(move |to| (*from, *to)));
        pairs.filter(|(from, to)| from != to).collect()
    }

    async fn kill(&mut self, nodes: &[u32], lasts: Duration) -> Vec<String> {
        self.cluster.kill_at_once(nodes);
        self.wait(lasts).await;
        for node in nodes {
            self.cluster.spawn(*node);
        }
        for node in nodes {
            self.cluster.await_ready(*node).await;
        }
        names(nodes)
    }

    async fn pause(&mut self, node: u32) -> Vec<String> {
        let times = PAUSES[self.rng.random_range(0..PAUSES.len())];
        self.cluster.pause(node);
        self.wait(self.election_timeout * times).await;
        self.cluster.resume(node);
        names(&[node])
    }

    /// Takes away what a node needs: it ends by itself, and comes back when it has enough again.
    async fn exhaust(&mut self, node: u32, of: Resource, lasts: Duration) -> Vec<String> {
        self.cluster.exhaust(node, of);
        self.note_installed();
        let status = self.cluster.await_exit(node).await;
        assert!(!status.success(), "node {node} ended well though it has too little: {of:?}");
        tokio::time::sleep(lasts).await;
        self.cluster.relieve(node, of);
        self.cluster.await_return(node).await;
        names(&[node])
    }

    async fn links(&mut self, links: &[Link], passage: Passage, lasts: Duration) -> Vec<String> {
        for link in links {
            self.cluster.set_link(*link, passage);
        }
        self.wait(lasts).await;
        self.cluster.heal_links();
        links.iter().map(|(from, to)| format!("n{from}>n{to}")).collect()
    }

    async fn flap(&mut self, node: u32, others: &[u32]) -> Vec<String> {
        for _ in 0..10 {
            let held = Duration::from_millis(self.rng.random_range(50..600));
            self.links(&around(node, others), Passage::Held, held).await;
            let open = Duration::from_millis(self.rng.random_range(50..300));
            tokio::time::sleep(open).await;
        }
        names(&[node])
    }

    /// Lets a machine lie for a while.
    async fn lie(&mut self, node: u32, faults: Value, lasts: Duration) -> Vec<String> {
        self.cluster.set_faults(node, &faults.to_string());
        self.wait(lasts).await;
        self.cluster.set_faults(node, "{}");
        names(&[node])
    }

    /// Breaks a disk: the node ends by itself, and is started when the disk is whole again.
    async fn spoil(&mut self, node: u32, faults: Value, lasts: Duration) -> Vec<String> {
        self.cluster.set_faults(node, &faults.to_string());
        self.note_installed();
        let status = self.cluster.await_exit(node).await;
        assert!(!status.success(), "node {node} ended well though its disk is broken");
        tokio::time::sleep(lasts).await;
        self.cluster.set_faults(node, "{}");
        self.cluster.restart(node).await;
        names(&[node])
    }

    async fn rolling_restart(&mut self) -> Vec<String> {
        let ids = self.cluster.ids();
        for node in &ids {
            self.cluster.terminate(*node);
            self.note_installed();
            self.cluster.await_exit(*node).await;
            self.cluster.restart(*node).await;
        }
        names(&ids)
    }
}

fn names(nodes: &[u32]) -> Vec<String> {
    nodes.iter().map(|node| format!("n{node}")).collect()
}

fn out_of(node: u32, others: &[u32]) -> Vec<Link> {
    others.iter().map(|other| (node, *other)).collect()
}

fn into(node: u32, others: &[u32]) -> Vec<Link> {
    others.iter().map(|other| (*other, node)).collect()
}

fn around(node: u32, others: &[u32]) -> Vec<Link> {
    [out_of(node, others), into(node, others)].concat()
}
