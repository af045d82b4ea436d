//! Quiescence: a group that nobody writes to does without ticks and heartbeats.
//!
//! Every replica ticks some thirty times a second, and every leader shows several times a second that it
//! lives, whether anything happens or not. So a node speaks for all of its quiet groups together:
//!
//! 1. A group is quiet once its last entry has been the last for a while and all of its members have applied
//!    it. Every other heartbeat the leader's node lists its quiet groups to each node that follows in them.
//! 2. A follower that sees its group the same way agrees, and rests: it does not tick for as long as it would
//!    wait for a sign of its leader. The next list prolongs that; without one it ticks again by itself.
//! 3. A leader rests as long as all of its followers have agreed lately. It ticks again when an entry comes,
//!    or when one of them does not answer: the leader of a group with a member that is down does not rest.
//!
//! A replica at rest appends, applies, votes and answers its readers. Before a leader proposes, it asks the
//! others whether it still leads, for openraft has not heard them for long. Only elections and heartbeats wait
//! for ticks, and they only for so long; so whatever goes wrong here may cost time, and never data.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ephemeris_store::codec;
use ephemeris_store::ids::{GroupId, NodeId, ReplicaId};
use ephemeris_store::machine::Machine;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::metrics::RaftMetrics;
use openraft::{Raft, ServerState};
use rand::RngExt as _;
use tokio::sync::watch;

use crate::clock::{Instant, monotonic};
use crate::group::GroupOptions;
use crate::router::Router;
use crate::runtime::random;
use crate::state_machine::StateMachine;
use crate::timers::wait_aligned;
use crate::transport::{Lane, Transport};
use crate::types::{TypeConfig, Vote, from_raft_vote};
use crate::wire::{Message, Quiet};

/// Speaks for the quiet groups of one node.
pub struct Quiescence {
    /// Knows the groups.
    pub router: Router,
    /// The way to other nodes.
    pub transport: Arc<dyn Transport>,
    /// How the groups behave.
    pub options: GroupOptions,
}

/// What other nodes were told, and what they answered.
struct Told {
    quiet: Vec<Quiet>,
    at: Instant,
    /// Those that the other node sees differently; none if it did not answer.
    refused: Option<Vec<GroupId>>,
}

impl Quiescence {
    /// Goes on until it is dropped, which should be together with the groups: those at rest would not wake.
    pub async fn run(self) {
        let mut telling = FuturesUnordered::new();
        for lists in [true, false].into_iter().cycle() {
            let now = monotonic();
            // Looked at every time: a leader with whom somebody agrees no more shows soon that it lives.
            let quiet_groups = self.quiet_groups(now);
            for (node, quiet) in quiet_groups.into_iter().filter(|_| lists) {
                telling.push(self.tell(node, quiet, now));
            }
            let mut pause = std::pin::pin!(wait_aligned(self.options.heartbeat));
            loop {
                tokio::select! {
                    biased;
                    () = &mut pause => break,
                    Some(told) = telling.next(), if !telling.is_empty() => self.note(told),
                }
            }
        }
    }

    /// Looks at every group; returns what there is to tell, by node.
    fn quiet_groups(&self, now: Instant) -> BTreeMap<NodeId, Vec<Quiet>> {
        let mut by_node: BTreeMap<NodeId, Vec<Quiet>> = BTreeMap::new();
        for group in self.router.groups() {
            for quiet in group.look(now) {
                by_node.entry(quiet.to.node).or_default().push(quiet);
            }
        }
        by_node
    }

    fn tell(
        &self,
        node: NodeId,
        quiet: Vec<Quiet>,
        at: Instant,
    ) -> impl Future<Output = Told> + Send + use<> {
        let message = Message::Quiet(quiet.clone()).encode();
        let answering =
            self.transport.call(node, Lane::Control, message, self.options.election_min);
        async move {
            let answer = answering.await.ok();
            let refused = answer.and_then(|answer| codec::decode(&answer).ok());
            Told { quiet, at, refused }
        }
    }

    fn note(&self, Told { quiet, at, refused }: Told) {
        let Some(refused) = refused else { return };
        for quiet in quiet.into_iter().filter(|quiet| !refused.contains(&quiet.group)) {
            if let Some(group) = self.router.group(quiet.group) {
                group.note_agreed(quiet, at);
            }
        }
    }
}

/// Whether one replica rests.
pub(crate) struct Rest<M: Machine> {
    raft: Raft<TypeConfig, StateMachine<M>>,
    group: GroupId,
    me: ReplicaId,
    state: Mutex<State>,
    is_resting: watch::Sender<bool>,
    /// True if this replica leads and has rested, and nobody has made sure since that a majority answers it.
    is_out_of_touch: AtomicBool,
}

impl<M: Machine> Rest<M> {
    /// Of a replica that ticks.
    pub(crate) fn of(
        raft: Raft<TypeConfig, StateMachine<M>>,
        (group, me): (GroupId, ReplicaId),
        options: &GroupOptions,
    ) -> Self {
        let state = Mutex::new(State::new(options));
        let is_resting = watch::Sender::new(false);
        Self { raft, group, me, state, is_resting, is_out_of_touch: AtomicBool::new(false) }
    }

    /// True while the replica does not tick.
    pub(crate) fn is_resting(&self) -> bool {
        *self.is_resting.borrow()
    }

    /// Follows whether it rests.
    pub(crate) fn watch(&self) -> watch::Receiver<bool> {
        self.is_resting.subscribe()
    }

    /// True if openraft takes no entries here until a majority has answered again: its lease has lapsed.
    pub(crate) fn is_out_of_touch(&self) -> bool {
        self.is_out_of_touch.load(Ordering::Relaxed)
    }

    /// There is something to do: the replica ticks, for a while at least.
    pub(crate) fn wake(&self) {
        self.update(|state, _| {
            state.unchanged = None;
            (false, ())
        });
    }

    /// A majority has answered since the replica was woken.
    pub(crate) fn note_touch(&self) {
        let _state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_out_of_touch.store(self.is_resting(), Ordering::Relaxed);
    }

    /// Lets the replica rest or tick as it should; returns what its followers are to agree with.
    pub(crate) fn look(&self, now: Instant) -> Vec<Quiet> {
        self.update(|state, view| {
            let (rests, followers) = state.look(&view, now);
            let quiet = |to| Quiet { group: self.group, to, vote: view.vote, last: view.last };
            (rests, followers.into_iter().map(quiet).collect())
        })
    }

    /// Whether this replica sees its group as its leader does; then it rests.
    pub(crate) fn agree(&self, quiet: &Quiet, now: Instant) -> bool {
        self.update(|state, view| {
            let agrees = state.agree((quiet.vote, quiet.last), &view, now);
            (agrees || self.is_resting(), agrees)
        })
    }

    /// A follower has agreed with what it was told then.
    pub(crate) fn note_agreed(&self, quiet: Quiet, asked: Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.agreed.insert(quiet.to, ((quiet.vote, quiet.last), asked));
    }

    /// This replica, if it leads, is about to ask another to lead.
    pub(crate) fn note_hand_over(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let vote = from_raft_vote(&self.raft.metrics().borrow_watched().vote);
        state.hands_over = Some((vote.term, vote.replica));
    }

    /// Does something with the state that says whether the replica rests.
    fn update<T>(&self, decide: impl FnOnce(&mut State, View) -> (bool, T)) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let view = View::of(&self.raft.metrics().borrow_watched(), self.me);
        let leads = view.leads;
        let (rests, result) = decide(&mut state, view);
        let changes = |resting: &mut bool| std::mem::replace(resting, rests) != rests;
        if rests || !leads {
            self.is_out_of_touch.store(leads, Ordering::Relaxed);
        }
        if self.is_resting.send_if_modified(changes) {
            self.raft.runtime_config().tick(!rests);
        }
        result
    }
}

/// A leader, and the last entry of its group.
type Position = (Vote, Option<u64>);

/// What a replica sees of its group.
#[derive(Clone, Debug)]
struct View {
    vote: Vote,
    /// True if this replica leads.
    leads: bool,
    last: Option<u64>,
    /// True if the last entry is applied: here, and on a leader by what it knows everywhere.
    is_settled: bool,
    /// Whom it leads.
    followers: Vec<ReplicaId>,
}

impl View {
    fn of(metrics: &RaftMetrics<TypeConfig>, me: ReplicaId) -> Self {
        let leads = metrics.state == ServerState::Leader;
        let last = metrics.last_log_index;
        let is_last = |id: Option<crate::types::RaftLogId>| id.map(|id| id.index()) == last;
        let membership = metrics.membership_config.membership();
        let members = membership.nodes().map(|(member, ())| *member);
        let followers: Vec<_> = members.filter(|member| leads && *member != me).collect();
        let has_last = |member: &ReplicaId| {
            metrics
                .replication
                .as_ref()
                .and_then(|matched| matched.get(member))
                .is_some_and(|id| is_last(*id))
        };
        // A leader that has not synced it itself has to see to that first.
        let is_settled = last.is_some()
            && is_last(metrics.last_applied)
            && (!leads || has_last(&me) && followers.iter().all(has_last))
            && membership.get_joint_config().len() == 1;
        Self { vote: from_raft_vote(&metrics.vote), leads, last, is_settled, followers }
    }
}

/// What a replica remembers of its group.
#[derive(Debug)]
struct State {
    /// How long a group does nothing before it is quiet.
    quiet_after: Duration,
    /// How long an agreement holds for the leader: shorter than for the follower, so that the leader shows
    /// that it lives before anybody misses it.
    agreed_for: Duration,
    /// How long it holds for the follower, at least and at most: as long as one that ticks waits for a sign of
    /// its leader, which is openraft's lease and an election timeout.
    rests_for: (Duration, Duration),
    /// On a leader: its position, and since when it is that.
    unchanged: Option<(Position, Instant)>,
    /// On a leader: what followers agreed with, and when they were asked.
    agreed: BTreeMap<ReplicaId, (Position, Instant)>,
    /// On a leader: term and replica of its vote, if it has asked another to lead. Until that happens, it takes
    /// no entries; it may never happen, and then another is elected because this one is silent.
    hands_over: Option<(u64, u64)>,
    /// On a follower: the leader it relies on, how long after a list, and until when.
    relies: Option<(Vote, Duration, Instant)>,
}

impl State {
    fn new(options: &GroupOptions) -> Self {
        Self {
            quiet_after: options.quiet_after,
            agreed_for: options.election_max,
            rests_for: (options.election_max + options.election_min, options.election_max * 2),
            unchanged: None,
            agreed: BTreeMap::new(),
            hands_over: None,
            relies: None,
        }
    }

    /// Whether this replica rests, and whom it should ask whether they may.
    fn look(&mut self, view: &View, now: Instant) -> (bool, Vec<ReplicaId>) {
        if !view.leads {
            (self.unchanged, self.agreed) = (None, BTreeMap::new());
            return (self.relied_on(view.vote, now).is_some(), Vec::new());
        }
        self.relies = None;
        let position = (view.vote, view.last);
        let since = match self.unchanged {
            Some((before, since)) if before == position && view.is_settled => since,
            Some(_) | None => now,
        };
        self.unchanged = Some((position, since));
        let hands_over = self.hands_over == Some((view.vote.term, view.vote.replica));
        if !view.is_settled || hands_over || now < since + self.quiet_after {
            self.agreed.clear();
            return (false, Vec::new());
        }
        let agrees = |follower: &ReplicaId| {
            let agreed = self.agreed.get(follower);
            agreed.is_some_and(|(with, asked)| *with == position && now < *asked + self.agreed_for)
        };
        (view.followers.iter().all(agrees), view.followers.clone())
    }

    /// Whether this follower sees what its leader says; then it rests.
    fn agree(&mut self, (leader, last): Position, view: &View, now: Instant) -> bool {
        let agrees = !view.leads
            && view.is_settled
            && leader.committed
            && (view.vote, view.last) == (leader, last);
        if agrees {
            // Drawn anew for each rest, so that followers seldom stand for election at once.
            let (min, max) = self.rests_for;
            let time = self.relied_on(leader, now);
            let time = time.unwrap_or_else(|| random().random_range(min..=max));
            self.relies = Some((leader, time, now + time));
        }
        agrees
    }

    /// How long after a list this replica relies on this leader, if it does.
    fn relied_on(&mut self, leader: Vote, now: Instant) -> Option<Duration> {
        self.relies = self.relies.filter(|(on, _, until)| *on == leader && now < *until);
        self.relies.map(|(_, time, _)| time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEADER: Vote = Vote { term: 3, replica: 1, committed: true };
    const MS: Duration = Duration::from_millis(1);

    fn replica(node: u32) -> ReplicaId {
        ReplicaId { node: NodeId(node), incarnation: 0 }
    }

    fn state() -> State {
        State::new(&GroupOptions::default())
    }

    fn leader(last: u64) -> View {
        let followers = vec![replica(2), replica(3)];
        View { vote: LEADER, leads: true, last: Some(last), is_settled: true, followers }
    }

    fn follower(last: u64) -> View {
        View { leads: false, followers: Vec::new(), ..leader(last) }
    }

    #[test]
    fn a_leader_rests_once_nothing_happens_and_all_followers_agree() {
        let (mut state, start) = (state(), monotonic());
        let others = vec![replica(2), replica(3)];
        let agree = |state: &mut State, follower, last, asked| {
            state.agreed.insert(replica(follower), ((LEADER, Some(last)), asked));
        };
        assert_eq!(state.look(&leader(7), start), (false, vec![]), "something has just happened");
        let quiet = start + state.quiet_after;
        assert_eq!(state.look(&leader(7), quiet - MS), (false, vec![]));
        assert_eq!(state.look(&leader(7), quiet), (false, others.clone()));
        agree(&mut state, 2, 7, quiet);
        assert!(!state.look(&leader(7), quiet).0, "one has not agreed");
        agree(&mut state, 3, 6, quiet);
        assert!(!state.look(&leader(7), quiet).0, "one has agreed to something else");
        agree(&mut state, 3, 7, quiet);
        assert_eq!(state.look(&leader(7), quiet), (true, others.clone()));
        let late = quiet + state.agreed_for;
        assert!(state.look(&leader(7), late - MS).0);
        assert_eq!(state.look(&leader(7), late), (false, others), "they have not answered since");
        agree(&mut state, 2, 7, late);
        agree(&mut state, 3, 7, late);
        assert_eq!(state.look(&leader(8), late), (false, vec![]), "an entry came");
        let unsettled = View { is_settled: false, ..leader(8) };
        let applied = late + state.quiet_after;
        assert_eq!(state.look(&unsettled, applied), (false, vec![]));
        assert_eq!(state.look(&leader(8), applied + state.quiet_after - MS), (false, vec![]));
    }

    #[test]
    fn a_leader_that_hands_over_does_not_rest_in_that_term() {
        let (mut state, start) = (state(), monotonic());
        let alone = View { followers: Vec::new(), ..leader(1) };
        state.hands_over = Some((LEADER.term, LEADER.replica));
        assert!(!state.look(&alone, start).0);
        assert!(!state.look(&alone, start + state.quiet_after).0);
        let again = View { vote: Vote { term: 5, ..LEADER }, ..alone };
        assert!(!state.look(&again, start + state.quiet_after).0);
        assert!(state.look(&again, start + 2 * state.quiet_after).0);
    }

    #[test]
    fn a_leader_alone_rests_by_itself() {
        let (mut state, start) = (state(), monotonic());
        let alone = View { followers: Vec::new(), ..leader(1) };
        assert!(!state.look(&alone, start).0);
        assert!(state.look(&alone, start + state.quiet_after).0);
    }

    #[test]
    fn a_follower_rests_as_long_as_it_would_wait_for_its_leader_and_longer_than_the_leader_does() {
        let (mut state, start) = (state(), monotonic());
        let options = GroupOptions::default();
        assert!(!state.look(&follower(7), start).0);
        assert!(state.agree((LEADER, Some(7)), &follower(7), start));
        let (min, max) = state.rests_for;
        assert!(min > state.agreed_for + 3 * options.heartbeat / 2, "a look and some ticks later");
        assert!(state.look(&follower(7), start + min - MS).0);
        assert!(!state.look(&follower(7), start + max).0);
    }

    #[test]
    fn a_follower_agrees_with_nothing_that_it_sees_differently() {
        let other = Vote { term: 4, replica: 2, committed: true };
        let candidate = Vote { committed: false, ..LEADER };
        let unsettled = View { is_settled: false, ..follower(7) };
        for (said, view) in [
            ((LEADER, Some(8)), follower(7)),
            ((other, Some(7)), follower(7)),
            ((LEADER, Some(7)), View { vote: other, ..follower(7) }),
            ((candidate, Some(7)), View { vote: candidate, ..follower(7) }),
            ((LEADER, Some(7)), leader(7)),
            ((LEADER, Some(7)), unsettled),
        ] {
            let (mut state, now) = (state(), monotonic());
            assert!(!state.agree(said, &view, now), "{said:?} {view:?}");
            assert!(!state.look(&view, now).0, "{said:?} {view:?}");
        }
    }

    #[test]
    fn who_has_voted_for_another_relies_on_its_leader_no_more() {
        let (mut state, now) = (state(), monotonic());
        assert!(state.agree((LEADER, Some(7)), &follower(7), now));
        let voted = View { vote: Vote { term: 4, replica: 2, committed: false }, ..follower(7) };
        assert!(!state.look(&voted, now).0);
        assert!(!state.look(&follower(7), now).0, "not even if it were the leader again");
    }
}
