//! The system around the log: leaders, entries that arrive late, a reader that follows the doubt
//! protocol, and a witness who knows the true time.
//!
//! What is not there, and why nothing is lost by it:
//! - Who leads. Any node may propose at any moment, as if it had just been elected.
//! - The log. All that matters of it is what it made of the replicas.
//! - The way from a read's barrier to its fetch. A read that passes the barrier when it fetches is
//!   judged more strictly, for more has been answered before.
//! - The second look of a read in doubt. A new read does the same and is judged more strictly.

use std::hash::{Hash, Hasher};

use ephemeris_store::time::{ClockInterval, Millis};
use ephemeris_store::ttl::Life;
use stateright::{Model, Property};

use crate::clocks::{self, LAG_MAX, Skews, TICK, truth};
use crate::replica::{Command, Effect, Policy, Replica, Ttl, Variant};
use crate::witness::{Promise, Witness};

/// What is explored.
#[derive(Clone)]
pub(crate) struct Exploration {
    pub(crate) variant: Variant,
    /// How far the clocks are off; some histories begin with each.
    pub(crate) skews: Vec<Skews>,
    /// Who may lead.
    pub(crate) leaders: Vec<u8>,
    /// The settings the container may have, at first and later.
    pub(crate) policies: Vec<Policy>,
    /// What items may say about their time to live.
    pub(crate) ttls: Vec<Ttl>,
    pub(crate) ticks_max: u8,
    pub(crate) writes_max: u8,
    pub(crate) policy_changes_max: u8,
    /// How many proposals may be on their way at once.
    pub(crate) pending_max: usize,
    pub(crate) onlooker: Onlooker,
}

/// Who looks on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Onlooker {
    /// A client that reads.
    Reader,
    /// A replica that lags.
    Follower,
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct System {
    /// The true time, which nobody knows.
    ticks: u8,
    skews: Skews,
    /// What everybody holds who has caught up.
    replica: Replica,
    /// Proposals that may be committed at any time, whoever leads, or never.
    pending: Vec<Proposal>,
    /// The last policy change that was proposed.
    epoch: u8,
    reader: Reader,
    follower: Option<Follower>,
    witness: Witness,
}

/// A proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Proposal {
    lo: u64,
    hi: u64,
    command: Command,
    /// Of a write: versions below were gone when it was asked for. Of a sweep: versions below had
    /// been written.
    since: u8,
}

/// A replica that lags.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Follower {
    replica: Replica,
    /// Entries it has not applied.
    behind: Vec<Proposal>,
}

/// Where the client's read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reader {
    Idle,
    /// This node has passed the read barrier and fetched; it has not looked at the clock.
    Fetched(u8, Fetched),
    /// The version may have expired at this instant.
    InDoubt(u8, Fetched, u64),
}

/// What a read has fetched, and what the witness noted then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fetched {
    replica: Replica,
    witness: Witness,
    /// The version had expired, by the true time and the policy in force.
    overdue: bool,
    /// What the clock read before; only one variant looks at it.
    early_hi: Option<u64>,
}

impl Hash for Fetched {
    /// Of what was fetched all that matters is the verdict it will lead to, and who was told what.
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self { replica, witness, overdue, early_hi } = self;
        let item = replica.item;
        item.map(|item| (item.serial, replica.is_dead(item), replica.expiry(item))).hash(hasher);
        (replica.written, witness, overdue, early_hi).hash(hasher);
    }
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Time passes.
    Tick,
    /// This node leads, proposes this, and it is committed at once.
    Commit(u8, Command),
    /// This node led, and what it proposed is on its way.
    Send(u8, Command),
    /// A proposal that was on its way is committed.
    Arrive(usize),
    /// A proposal that was on its way is lost.
    Lose(usize),
    /// A read passes the barrier at this node, and fetches.
    Fetch(u8),
    /// The reader looks at the clock.
    Judge,
    /// The reader, in doubt, has the clock advanced.
    Advance(Fate),
    /// The reader, in doubt, answers 503.
    GiveUp,
    /// The follower applies an entry.
    CatchUp,
    /// The follower is given a snapshot.
    Install,
}

/// What becomes of a proposal at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Committed,
    OnItsWay,
}

impl Model for Exploration {
    type State = System;
    type Action = Action;

    fn init_states(&self) -> Vec<System> {
        let system = |(skews, policy): (Skews, Policy)| {
            let replica = Replica::new(policy);
            let follower = match self.onlooker {
                Onlooker::Reader => None,
                Onlooker::Follower => Some(Follower { replica, behind: Vec::new() }),
            };
            System {
                ticks: 0,
                skews,
                replica,
                pending: Vec::new(),
                epoch: 1,
                reader: Reader::Idle,
                follower,
                witness: Witness::default(),
            }
        };
        let policies = |skews| self.policies.iter().map(move |policy| (skews, *policy));
        self.skews.iter().copied().flat_map(policies).map(system).collect()
    }

    fn actions(&self, system: &System, actions: &mut Vec<Action>) {
        if system.witness.broken().is_some() {
            return;
        }
        if system.ticks < self.ticks_max {
            actions.push(Action::Tick);
        }
        let has_room = system.pending.len() < self.pending_max;
        for command in self.commands(system) {
            actions.extend(self.leaders.iter().map(|node| Action::Commit(*node, command)));
            if has_room {
                actions.extend(self.leaders.iter().map(|node| Action::Send(*node, command)));
            }
        }
        for at in 0..system.pending.len() {
            actions.extend([Action::Arrive(at), Action::Lose(at)]);
        }
        match self.onlooker {
            Onlooker::Reader => self.reader_actions(system, has_room, actions),
            Onlooker::Follower => actions.extend([Action::CatchUp, Action::Install]),
        }
    }

    fn next_state(&self, system: &System, action: Action) -> Option<System> {
        let mut next = system.clone();
        match action {
            Action::Tick => next.ticks += 1,
            Action::Commit(node, command) => {
                let proposal = self.propose(&mut next, node, command);
                self.commit(&mut next, proposal, Fate::Committed);
            }
            Action::Send(node, command) => {
                let proposal = self.propose(&mut next, node, command);
                next.pending.push(proposal);
            }
            Action::Arrive(at) => {
                let proposal = next.pending.remove(at);
                self.commit(&mut next, proposal, Fate::OnItsWay);
            }
            Action::Lose(at) => {
                next.pending.remove(at);
            }
            Action::Fetch(_) | Action::Judge | Action::Advance(_) | Action::GiveUp => {
                self.read(&mut next, action);
            }
            Action::CatchUp => {
                let follower = next.follower.as_mut()?;
                let entry = follower.behind.first()?;
                follower.replica.apply(self.variant, entry.now(), entry.command);
                follower.behind.remove(0);
            }
            Action::Install => {
                let replica = next.replica.through_a_snapshot();
                next.follower = Some(Follower { replica, behind: Vec::new() });
            }
        }
        next.witness.watch(next.is_overdue(0));
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("never early", |_, system: &System| system.keeps(Promise::Early)),
            Property::always("irreversible", |_, system: &System| system.keeps(Promise::ForGood)),
            Property::always("never late", |_, system: &System| system.keeps(Promise::Late)),
            Property::always("a sweep removes only the dead", |_, system: &System| {
                system.keeps(Promise::Sweep)
            }),
            Property::always("the partition clock is not ahead", |_, system: &System| {
                system.replica.clock() <= truth(system.ticks)
            }),
            Property::always("replicas at the same entry are equal", |_, system: &System| {
                system.follower.as_ref().is_none_or(|follower| {
                    !follower.behind.is_empty() || follower.replica == system.replica
                })
            }),
            Property::sometimes("the dead lie there after a change of the policy", |_, system| {
                let System { replica, epoch, .. } = system;
                let outlives = |item| replica.is_dead(item) && !replica.is_dead_by_clock(item);
                *epoch > 1 && replica.item.is_some_and(outlives)
            }),
        ];
        if self.pending_max > 0 {
            properties.push(Property::sometimes("a sweep is late", |_, system: &System| {
                let is_late = |proposal: &Proposal| {
                    proposal.command == Command::Sweep && proposal.since < system.replica.written
                };
                system.pending.iter().any(is_late)
            }));
        }
        match self.onlooker {
            Onlooker::Reader => properties.extend([
                Property::sometimes("a read is in doubt", |_, system: &System| {
                    matches!(system.reader, Reader::InDoubt(..))
                }),
                Property::sometimes("somebody was told of an expiry", |_, system: &System| {
                    let is_told = |serial| serial < system.witness.gone_below();
                    system.replica.item.is_some_and(|item| is_told(item.serial))
                }),
            ]),
            Onlooker::Follower => properties.push(Property::sometimes(
                "a follower lags over a change",
                |_, system: &System| {
                    let follower = system.follower.as_ref();
                    follower.is_some_and(|follower| follower.replica.item != system.replica.item)
                },
            )),
        }
        properties
    }

    fn within_boundary(&self, system: &System) -> bool {
        system.follower.as_ref().is_none_or(|follower| follower.behind.len() <= 2)
    }
}

impl Exploration {
    fn now(&self, system: &System, node: u8) -> ClockInterval {
        match self.variant {
            Variant::OwnClock => clocks::own(system.skews, node, system.ticks),
            Variant::Real
            | Variant::NoFloors
            | Variant::UnloggedNotFound
            | Variant::DoubtIsAlive
            | Variant::ClockBeforeFetch
            | Variant::SweepNamesItems => clocks::quorum(system.skews, node, system.ticks),
        }
    }

    /// What may be proposed, beside what a read in doubt proposes.
    fn commands(&self, system: &System) -> Vec<Command> {
        let mut commands = Vec::new();
        if system.replica.written < self.writes_max {
            for ttl in &self.ttls {
                commands.extend([Command::Create(*ttl), Command::Upsert(*ttl)]);
            }
        }
        if system.epoch <= self.policy_changes_max {
            let change = |policy: &Policy| Command::SetPolicy(*policy, system.epoch + 1);
            commands.extend(self.policies.iter().map(change));
        }
        let is_dead = |item| system.replica.is_dead(item);
        if self.variant != Variant::SweepNamesItems || system.replica.item.is_some_and(is_dead) {
            commands.push(Command::Sweep);
        }
        commands
    }

    fn reader_actions(&self, system: &System, has_room: bool, actions: &mut Vec<Action>) {
        match &system.reader {
            Reader::Idle => actions.extend(self.leaders.iter().copied().map(Action::Fetch)),
            Reader::Fetched(..) => actions.push(Action::Judge),
            Reader::InDoubt(node, _, expiry) => {
                actions.push(Action::GiveUp);
                if self.now(system, *node).lo().0 >= *expiry {
                    actions.push(Action::Advance(Fate::Committed));
                    if has_room {
                        actions.push(Action::Advance(Fate::OnItsWay));
                    }
                }
            }
        }
    }

    fn propose(&self, system: &mut System, node: u8, command: Command) -> Proposal {
        let since = match command {
            Command::Create(_) | Command::Upsert(_) => system.witness.gone_below(),
            Command::Sweep => system.replica.written,
            Command::SetPolicy(_, epoch) => {
                system.epoch = epoch;
                0
            }
            Command::Advance => 0,
        };
        let now = self.now(system, node);
        Proposal { lo: now.lo().0, hi: now.hi().0, command, since }
    }

    /// The next entry of the log; who asked for it has the answer at once.
    fn commit(&self, system: &mut System, proposal: Proposal, fate: Fate) {
        let overdue = fate == Fate::Committed && system.is_overdue(LAG_MAX * TICK);
        let before = system.replica;
        let effect = system.replica.apply(self.variant, proposal.now(), proposal.command);
        if let Some(follower) = &mut system.follower {
            follower.behind.push(proposal);
        }
        let witness = &mut system.witness;
        match effect {
            Effect::Nothing => {}
            Effect::Created { over: dead } => {
                let ripe = dead.is_none() || witness.is_ripe();
                witness.hears_gone(before.written, ripe);
            }
            Effect::SawAlive(serial) => witness.hears_alive(serial, proposal.since, overdue),
            Effect::Removed => witness.sees_removal(),
        }
        if system.replica.item != before.item {
            system.witness.forgets_the_version();
        }
    }

    fn read(&self, system: &mut System, action: Action) {
        system.reader = match (system.reader, action) {
            (Reader::Idle, Action::Fetch(node)) => {
                let hi = self.now(system, node).hi().0;
                let early_hi = (self.variant == Variant::ClockBeforeFetch).then_some(hi);
                Reader::Fetched(node, system.fetch(early_hi))
            }
            (Reader::Fetched(node, asked), Action::Judge) => {
                let (fetched, hi) = match asked.early_hi {
                    None => (asked, self.now(system, node).hi().0),
                    Some(hi) => (system.fetch(None), hi),
                };
                self.judge(system, node, fetched, hi)
            }
            (Reader::InDoubt(_, fetched, _), Action::Advance(_))
                if self.variant == Variant::UnloggedNotFound =>
            {
                system.answer_gone(fetched)
            }
            (Reader::InDoubt(node, ..), Action::Advance(fate)) => {
                let proposal = self.propose(system, node, Command::Advance);
                match fate {
                    Fate::Committed => self.commit(system, proposal, fate),
                    Fate::OnItsWay => system.pending.push(proposal),
                }
                Reader::Idle
            }
            (Reader::InDoubt(..), Action::GiveUp) => Reader::Idle,
            (reader, action) => unreachable!("{reader:?} does not {action:?}"),
        };
    }

    fn judge(&self, system: &mut System, node: u8, fetched: Fetched, hi: u64) -> Reader {
        match fetched.replica.judge(Millis(hi)) {
            Life::Alive => system.answer_alive(fetched),
            Life::Dead => system.answer_gone(fetched),
            Life::InDoubt(_) if self.variant == Variant::DoubtIsAlive => {
                system.answer_alive(fetched)
            }
            Life::InDoubt(expiry) => Reader::InDoubt(node, fetched, expiry.start().0),
        }
    }
}

impl Proposal {
    fn now(self) -> ClockInterval {
        ClockInterval::new(Millis(self.lo), Millis(self.hi))
    }
}

impl System {
    /// True if the stored version expired so long ago, by the true time and the policy in force.
    fn is_overdue(&self, by: u64) -> bool {
        let expiry = self.replica.item.and_then(|item| self.replica.expiry(item));
        expiry.is_some_and(|expiry| expiry.0 + by <= truth(self.ticks).0)
    }

    fn keeps(&self, promise: Promise) -> bool {
        self.witness.broken() != Some(promise)
    }

    fn fetch(&self, early_hi: Option<u64>) -> Fetched {
        let (replica, witness) = (self.replica, self.witness);
        Fetched { replica, witness, overdue: self.is_overdue(0), early_hi }
    }

    fn answer_alive(&mut self, fetched: Fetched) -> Reader {
        let item = fetched.replica.item.expect("what is alive was found");
        self.witness.hears_alive(item.serial, fetched.witness.gone_below(), fetched.overdue);
        Reader::Idle
    }

    fn answer_gone(&mut self, fetched: Fetched) -> Reader {
        let Fetched { replica, witness, .. } = fetched;
        let has_expired = |item| {
            let expiry = replica.expiry(item);
            witness.is_ripe() || expiry.is_some_and(|expiry| expiry <= truth(self.ticks))
        };
        let ripe = replica.item.is_none_or(has_expired);
        self.witness.hears_gone(replica.written, ripe);
        Reader::Idle
    }
}
