//! What goes wrong, and how it is put right again.

mod crowds;
mod expiry;
mod links;
mod machines;
mod members;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use ephemeris_cluster_tests::client::Container;
use ephemeris_cluster_tests::cluster::{Ability, Cluster, Passage, Resource};
use ephemeris_cluster_tests::history::Nanos;
use rand::RngExt as _;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use serde_json::json;

use crate::hand::Timer;
use links::{
    DELAY_MAX, LOST_PERCENT_MAX, THROTTLED_BYTES, around, beside_ring, between, every, into, out_of,
};
use machines::NUDGE_SKEW;

/// Pauses, in election timeouts.
const PAUSES: [u32; 3] = [1, 3, 10];
/// Of so many, a majority is left if one is replaced and another hears nothing.
const SPARE_TWO: usize = 5;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Mode {
    /// A leader's process ends, as by a crash.
    KillLeader,
    /// Another's does, or those of as many others as a majority can do without.
    KillFollower,
    /// Those of a majority do at once.
    KillMajority,
    /// All do at once.
    KillAll,
    /// A leader's machine loses its power: what was not synced is gone, in all of its files.
    PowerLeader,
    /// Those of a majority do at once.
    PowerMajority,
    /// All do at once.
    PowerAll,
    /// A leader does nothing for a while, and its sockets stay open.
    PauseLeader,
    /// Another does nothing, or as many others as a majority can do without.
    PauseFollower,
    /// A leader does nothing, and the connections of all others end.
    PauseAndCut,
    /// A leader hears and says nothing.
    IsolateLeader,
    /// Another hears and says nothing, or as many others as a majority can do without.
    IsolateFollower,
    /// A leader hears, and nobody hears it.
    MuteLeader,
    /// A leader is heard, and hears nothing.
    DeafenLeader,
    /// Nothing passes between one half of the nodes and the other.
    Halves,
    /// Nodes stand in a ring and hear only the one before them; of five or more, both neighbours.
    Ring,
    /// Nodes are cut off one after the other, and come back in another order.
    Swizzle,
    /// Two nodes reach each other only by way of the third.
    Bridge,
    /// The leader is cut off and reached again, ten times in short order.
    Flap,
    /// What nodes say arrives late.
    Delay,
    /// Little passes between a leader and another.
    Throttle,
    /// Some of what nodes say is lost, and sent again.
    Loss,
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
    /// The wall clocks of a majority are off by half a second at most, and may be believed.
    ClockMajority,
    /// All are.
    ClockAll,
    /// There is no room on a disk: its node must end.
    DiskFull,
    /// There is too little memory for a node: it is killed for that until there is enough.
    MemoryLimit,
    /// A node gets a tenth of a processor.
    SlowCpu,
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
    /// The same, while another hears and says nothing.
    CutWhileReplaced,
    /// Leaders are asked to hand over, again and again.
    TransferLeader,
    /// A node that was away needs a snapshot, since the others have let their logs go.
    Snapshot,
    /// A process ends at the worst moment: once a log is durable and before anybody is told, and so on.
    CrashPoint,
    /// The same, while a snapshot is installed.
    CrashInSnapshot,
    /// Ten thousand items expire in the same second, and just then their leader hands over or is killed.
    Bomb,
}

/// Whom a mode hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whom {
    Leader,
    /// Another, or as many others as a majority can do without.
    Follower,
    /// A leader or another, in turns.
    Either,
    /// More than can be told in a word.
    Several,
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
            | Mode::TransferLeader
            | Mode::Bomb => None,
            Mode::PowerLeader | Mode::PowerMajority | Mode::PowerAll => Some(Ability::PowerLoss),
            Mode::IsolateLeader
            | Mode::IsolateFollower
            | Mode::MuteLeader
            | Mode::DeafenLeader
            | Mode::Halves
            | Mode::Ring
            | Mode::Swizzle
            | Mode::Bridge
            | Mode::Flap => Some(Ability::Pass(Passage::Held)),
            Mode::Delay => Some(Ability::Pass(Passage::Delayed(DELAY_MAX))),
            Mode::Throttle => Some(Ability::Pass(Passage::Throttled(THROTTLED_BYTES))),
            Mode::Loss => Some(Ability::Pass(Passage::Lossy(LOST_PERCENT_MAX))),
            Mode::Cut | Mode::PauseAndCut => Some(Ability::Pass(Passage::Cut)),
            Mode::ClockJump
            | Mode::ClockStrobe
            | Mode::ClockDrift
            | Mode::ClockFreeze
            | Mode::ClockMajority
            | Mode::ClockAll
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
            Mode::SlowCpu => Some(Ability::Exhaust(Resource::Processor)),
            // So many nodes are processes, whose files are ours.
            Mode::CutWhileReplaced => Some(Ability::Nodes(SPARE_TWO)),
            Mode::CorruptRecord | Mode::Membership | Mode::Snapshot => Some(Ability::Own),
        }
    }

    /// True if a process needs a machine that lies for it.
    pub(crate) fn is_of_machine(self) -> bool {
        matches!(self.needs(), Some(Ability::Lie | Ability::Exhaust(Resource::Disk)))
    }

    /// True if it is of what nodes say to each other, in bytes that a proxy sees.
    fn is_of_links(self) -> bool {
        matches!(self.needs(), Some(Ability::Pass(_)))
    }

    /// True if the nodes need disks that can lose their power.
    pub(crate) fn loses_power(self) -> bool {
        self.needs() == Some(Ability::PowerLoss)
    }

    /// By how much it may move what the cluster takes the time to be, and so what may be seen of expiry: only
    /// a majority of the clocks can.
    pub(crate) fn skew(self) -> Duration {
        if matches!(self, Mode::ClockMajority | Mode::ClockAll) {
            NUDGE_SKEW
        } else {
            Duration::ZERO
        }
    }

    /// True if it hits a leader and others in turns.
    pub(crate) fn alternates(self) -> bool {
        self.whom() == Whom::Either
    }

    fn whom(self) -> Whom {
        match self {
            Mode::KillLeader
            | Mode::PowerLeader
            | Mode::PauseLeader
            | Mode::IsolateLeader
            | Mode::MuteLeader
            | Mode::DeafenLeader
            | Mode::Flap
            | Mode::IdleConnections
            | Mode::Bomb => Whom::Leader,
            Mode::KillFollower
            | Mode::PauseFollower
            | Mode::IsolateFollower
            | Mode::Snapshot
            | Mode::CrashInSnapshot => Whom::Follower,
            Mode::ClockJump
            | Mode::ClockStrobe
            | Mode::ClockDrift
            | Mode::ClockFreeze
            | Mode::DiskFull
            | Mode::MemoryLimit
            | Mode::SlowCpu
            | Mode::WriteError
            | Mode::SyncError
            | Mode::SlowSync
            | Mode::StateWriteError
            | Mode::StateReadError
            | Mode::SlowState
            | Mode::Descriptors
            | Mode::CorruptRecord
            | Mode::Membership
            | Mode::CrashPoint => Whom::Either,
            Mode::KillMajority
            | Mode::KillAll
            | Mode::PowerMajority
            | Mode::PowerAll
            | Mode::PauseAndCut
            | Mode::Halves
            | Mode::Ring
            | Mode::Swizzle
            | Mode::Bridge
            | Mode::Delay
            | Mode::Throttle
            | Mode::Loss
            | Mode::Cut
            | Mode::RollingRestart
            | Mode::ClockMajority
            | Mode::ClockAll
            | Mode::Storm
            | Mode::CutWhileReplaced
            | Mode::TransferLeader => Whom::Several,
        }
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
    /// When processes were last started, or links opened, that it had ended or held.
    pub(crate) healed: Option<Nanos>,
    /// Why it has done nothing, if so.
    pub(crate) in_vain: Option<String>,
    /// By how much what the cluster takes the time to be may be off in this run.
    pub(crate) skew: Duration,
    /// Whether modes that hit a leader and others in turns begin with the leader.
    pub(crate) leaders_first: bool,
    /// Whether they have hit a leader last.
    pub(crate) struck: BTreeMap<Mode, bool>,
    /// What it saw that nobody should see.
    pub(crate) wrong: &'c mut Vec<String>,
}

/// A fault that is over.
pub(crate) struct Strike {
    pub(crate) targets: Vec<String>,
    /// What they were: `leader`, `follower` or `several`.
    pub(crate) role: &'static str,
    /// Before anything was done, when something first was, and after all was put right.
    pub(crate) start: Nanos,
    pub(crate) installed: Nanos,
    pub(crate) stop: Nanos,
    /// When everything was told to go on; nodes may not have been ready yet.
    pub(crate) healed: Nanos,
    /// Why it does not count, if so.
    pub(crate) in_vain: Option<String>,
}

/// Who may be hit.
struct Cast {
    /// All nodes, in random order.
    all: Vec<u32>,
    /// How many of them are a majority.
    majority: usize,
    /// All but the leader.
    others: Vec<u32>,
    /// One of these, or as many as a majority can do without.
    followers: Vec<u32>,
    /// The leader or another, as the mode's turn is.
    either: u32,
    /// The same, and others up to what a majority can do without.
    few: Vec<u32>,
    /// What those are that are hit.
    role: &'static str,
}

impl Nemesis<'_> {
    /// False if a node has ended that nobody has told to.
    pub(crate) fn all_run(&mut self) -> bool {
        let ended = self.cluster.ended_by_themselves();
        self.wrong.extend(ended.iter().map(|(node, status)| {
            format!("node {node} has ended by itself between two faults: {status}")
        }));
        ended.is_empty()
    }

    /// Lets a fault happen, and puts it right.
    pub(crate) async fn strike(&mut self, mode: Mode) -> Strike {
        let leader = self.cluster.leader(self.container).await;
        let Cast { all, majority, others, followers, either, few, role } = self.cast(mode, leader);
        let (follower, majority) = (others[0], &all[..majority]);
        let lasts = Duration::from_millis(self.rng.random_range(1000..5000));
        (self.begun, self.installed, self.healed, self.in_vain) = (None, None, None, None);
        let touched = self.cluster.bytes_touched();
        let start = self.timer.now();
        let targets = match mode {
            Mode::KillLeader => self.kill(&[leader], lasts).await,
            Mode::KillFollower => self.kill(&followers, lasts).await,
            Mode::KillMajority => self.kill(majority, lasts).await,
            Mode::KillAll => self.kill(&all, lasts / 4).await,
            Mode::PowerLeader => self.lose_power(&[leader], lasts).await,
            Mode::PowerMajority => self.lose_power(majority, lasts).await,
            Mode::PowerAll => self.lose_power(&all, lasts / 4).await,
            Mode::PauseLeader => self.pause(&[leader]).await,
            Mode::PauseFollower => self.pause(&followers).await,
            Mode::PauseAndCut => self.pause_and_cut(leader, &others).await,
            Mode::IsolateLeader => self.hold(&around(leader, &others), lasts).await,
            Mode::IsolateFollower => self.isolate(&followers, &all, lasts).await,
            Mode::MuteLeader => self.hold(&out_of(leader, &others), lasts).await,
            Mode::DeafenLeader => {
                // A leader notices after two election timeouts that it hears nobody.
                let noticed = lasts.max(self.election_timeout * 3);
                self.hold(&into(leader, &others), noticed).await
            }
            Mode::Halves => self.hold(&between(&all), lasts).await,
            Mode::Ring => self.hold(&beside_ring(&all), lasts).await,
            Mode::Swizzle => self.swizzle(&all).await,
            Mode::Bridge => self.hold(&around(leader, &[follower]), lasts).await,
            Mode::Flap => self.flap(leader, &others).await,
            Mode::Delay => self.links(&every(&all), Passage::Delayed(DELAY_MAX), lasts).await,
            Mode::Throttle => {
                let pair = around(leader, &[follower]);
                self.links(&pair, Passage::Throttled(THROTTLED_BYTES), lasts).await
            }
            Mode::Loss => self.lose_packets(&all, lasts).await,
            Mode::Cut => self.links(&every(&all), Passage::Cut, lasts / 4).await,
            Mode::RollingRestart => self.rolling_restart().await,
            Mode::ClockJump => self.jump_clocks(&few, lasts).await,
            Mode::ClockStrobe => self.strobe_clocks(&few).await,
            Mode::ClockDrift => self.drift_clocks(&few, lasts).await,
            Mode::ClockFreeze => self.lie(&few, json!({ "wall": { "pace": 0.0 } }), lasts).await,
            Mode::ClockMajority => self.nudge_clocks(majority).await,
            Mode::ClockAll => self.nudge_clocks(&all).await,
            Mode::DiskFull => self.exhaust(either, Resource::Disk, lasts).await,
            Mode::MemoryLimit => self.exhaust(either, Resource::Memory, lasts).await,
            Mode::SlowCpu => self.slow_down(either, lasts).await,
            Mode::WriteError => self.spoil(either, json!({ "log": "failing_writes" }), lasts).await,
            Mode::SyncError => self.spoil(either, json!({ "log": "failing_syncs" }), lasts).await,
            Mode::SlowSync => self.slow_logs(&few, lasts).await,
            Mode::StateWriteError => {
                self.spoil(either, json!({ "state": "failing_writes" }), lasts).await
            }
            Mode::StateReadError => {
                self.spoil(either, json!({ "state": "failing_reads" }), lasts).await
            }
            Mode::SlowState => self.slow_states(&few, lasts).await,
            Mode::Storm => self.storm().await,
            Mode::IdleConnections => self.idle_connections(leader, lasts).await,
            Mode::Descriptors => self.starve(either, lasts).await,
            Mode::CorruptRecord => self.corrupt_record(either).await,
            Mode::Membership => self.replace(either).await,
            Mode::CutWhileReplaced => self.replace_while_cut(follower, others[1], lasts).await,
            Mode::TransferLeader => self.transfer_leaders().await,
            Mode::Snapshot => self.snapshot(follower).await,
            Mode::CrashPoint => self.crash_point(either, lasts).await,
            Mode::CrashInSnapshot => self.crash_in_snapshot(follower).await,
            Mode::Bomb => self.bomb().await,
        };
        let installed = self.installed.expect("every fault says when it is there");
        let start = self.begun.unwrap_or(start);
        let stop = self.timer.now();
        if mode.is_of_links() && touched.is_some() && touched == self.cluster.bytes_touched() {
            self.in_vain = Some("no byte was on its way".to_string());
        }
        let (healed, in_vain) = (self.healed.unwrap_or(stop), self.in_vain.take());
        Strike { targets, role, start, installed, stop, healed, in_vain }
    }

    /// Everything that was put right so far goes on from here.
    fn note_healed(&mut self) {
        self.healed = Some(self.timer.now());
    }

    /// Starts a node that does not run, and waits until it is ready.
    async fn restart(&mut self, node: u32) {
        self.cluster.spawn(node);
        self.note_healed();
        self.cluster.await_ready(node).await;
    }

    /// Who may be hit by a mode.
    fn cast(&mut self, mode: Mode, leader: u32) -> Cast {
        let mut all = self.cluster.ids();
        all.shuffle(&mut self.rng);
        let others: Vec<u32> = all.iter().copied().filter(|node| *node != leader).collect();
        let majority = all.len() / 2 + 1;
        let count = self.rng.random_range(1..=all.len() - majority);
        let (either, role) = match mode.whom() {
            Whom::Either if is_leaders_turn(&mut self.struck, mode, self.leaders_first) => {
                (leader, "leader")
            }
            Whom::Leader => (leader, "leader"),
            Whom::Either | Whom::Follower => (others[0], "follower"),
            Whom::Several => (others[0], "several"),
        };
        let rest = others.iter().copied().filter(|node| *node != either).take(count - 1);
        let few = std::iter::once(either).chain(rest).collect();
        let followers = others[..count].to_vec();
        Cast { all, majority, others, followers, either, few, role }
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

    async fn kill(&mut self, nodes: &[u32], lasts: Duration) -> Vec<String> {
        self.cluster.kill_at_once(nodes);
        self.wait(lasts).await;
        self.bring_back(nodes).await;
        names(nodes)
    }

    /// Starts nodes that do not run.
    async fn bring_back(&mut self, nodes: &[u32]) {
        for node in nodes {
            self.cluster.spawn(*node);
        }
        self.note_healed();
        for node in nodes {
            self.cluster.await_ready(*node).await;
        }
    }

    async fn pause(&mut self, nodes: &[u32]) -> Vec<String> {
        let times = PAUSES[self.rng.random_range(0..PAUSES.len())];
        for node in nodes {
            self.cluster.pause(*node);
        }
        self.wait(self.election_timeout * times).await;
        for node in nodes {
            self.cluster.resume(*node);
        }
        self.note_healed();
        names(nodes)
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

    async fn rolling_restart(&mut self) -> Vec<String> {
        let ids = self.cluster.ids();
        for node in &ids {
            self.cluster.terminate(*node);
            self.note_installed();
            let status = self.cluster.await_exit(*node).await;
            if !status.success() {
                self.wrong.push(format!("node {node} was told to end, and failed: {status}"));
            }
            self.restart(*node).await;
        }
        names(&ids)
    }
}

/// Whether a mode hits the leader this time: as it is said at first, then in turns.
fn is_leaders_turn(struck: &mut BTreeMap<Mode, bool>, mode: Mode, leaders_first: bool) -> bool {
    let turn = struck.get(&mode).map_or(leaders_first, |last| !last);
    struck.insert(mode, turn);
    turn
}

fn names(nodes: &[u32]) -> Vec<String> {
    nodes.iter().map(|node| format!("n{node}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_hits_a_leader_and_others_in_turns_and_each_mode_for_itself() {
        let mut struck = BTreeMap::new();
        let mut turn = |mode, leaders_first| is_leaders_turn(&mut struck, mode, leaders_first);
        assert!(turn(Mode::SlowSync, true));
        assert!(!turn(Mode::Descriptors, false));
        assert!(!turn(Mode::SlowSync, true));
        assert!(turn(Mode::Descriptors, false));
        assert!(turn(Mode::SlowSync, false));
    }

    #[test]
    fn only_clocks_of_a_majority_move_the_time() {
        let moving = Mode::all().into_iter().filter(|mode| mode.skew() > Duration::ZERO);
        assert_eq!(moving.collect::<Vec<_>>(), [Mode::ClockMajority, Mode::ClockAll]);
    }
}
