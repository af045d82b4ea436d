//! The search for an order: of Wing and Gong, with Lowe's cache.
//!
//! Only an operation that was called before any other has returned can be the next one. Of what is left
//! to do and what the machine holds, all that was once found to lead nowhere is not tried again.

use std::collections::HashMap;
use std::time::Instant;

use super::model::{Model, Reached, State, Tolerance};
use crate::clock::monotonic;
use crate::history::{Action, Nanos, Operation, Outcome, Policy};

/// Steps from one look at the clock to the next: a few milliseconds.
const STEPS_BETWEEN_LOOKS: usize = 4096;

/// About what an entry of the cache takes besides words, states and instants: its place in a table that is
/// half empty, and the heads of its lists.
const ENTRY_BYTES: usize = 256;

/// About what a list of instants takes besides these.
const LIST_BYTES: usize = 48;

/// What a search may take; one that takes more is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Most steps: the only limit that is the same on every machine, at every time.
    pub steps_max: usize,
    /// Most memory of what was found to lead nowhere, approximately.
    pub bytes_max: usize,
    /// When it must be over; none if only the others count.
    pub deadline: Option<Instant>,
}

impl Budget {
    /// So many steps, whatever they take.
    pub fn of_steps(steps_max: usize) -> Self {
        Self { steps_max, bytes_max: usize::MAX, deadline: None }
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= monotonic())
    }
}

/// True if there is an order; none if that took too much to find out.
pub(super) fn is_legal(
    operations: &[Operation],
    policy: Policy,
    tolerance: Tolerance,
    budget: Budget,
) -> Option<bool> {
    if budget.is_late() {
        return None;
    }
    // A read without an answer says nothing and does nothing.
    let says_something = |one: &&Operation| {
        !(one.outcome == Outcome::Unknown && matches!(one.action, Action::Read { .. }))
    };
    let operations: Vec<&Operation> = operations.iter().filter(says_something).collect();
    let owned: Vec<Operation> = operations.iter().map(|one| (*one).clone()).collect();
    let Some(model) = Model::new(&owned, tolerance) else { return Some(false) };
    Search { model, operations, seen: HashMap::new(), seen_bytes: 0 }.run(policy, budget)
}

struct Search<'o> {
    model: Model,
    operations: Vec<&'o Operation>,
    /// How early each state was reached with these operations done.
    seen: HashMap<(Done, Vec<State>), Vec<Vec<Nanos>>>,
    /// About what that takes.
    seen_bytes: usize,
}

/// A choice that was made, and what else there is to choose.
struct Frame {
    /// The states before it.
    states: Vec<Reached>,
    /// What may come next, in the order of trying.
    candidates: Vec<usize>,
    /// How many of these were tried.
    tried: usize,
    /// The one that is being tried.
    chosen: Option<usize>,
}

impl Search<'_> {
    fn run(mut self, policy: Policy, budget: Budget) -> Option<bool> {
        let mut left = Left::new(&self.operations);
        let mut done = Done::new(self.operations.len());
        let start = vec![Model::start(policy)];
        let mut frames = Vec::new();
        match self.frame(start, &left) {
            Some(frame) => frames.push(frame),
            None => return Some(true),
        }
        let mut steps = 0;
        while let Some(frame) = frames.last_mut() {
            if let Some(chosen) = frame.chosen.take() {
                left.put_back(chosen);
                done.remove(chosen);
            }
            let Some(candidate) = frame.candidates.get(frame.tried).copied() else {
                frames.pop();
                continue;
            };
            frame.tried += 1;
            steps += 1;
            if self.is_spent(budget, steps) {
                return None;
            }
            let before = frame.states.len();
            let states = self.model.step(self.operations[candidate], &frame.states);
            if states.is_empty() {
                continue;
            }
            if states.len() == before && self.shows_a_version(candidate) {
                // Versions do not come back: what shows the one that is there loses nothing if it is next.
                frame.tried = frame.candidates.len();
            }
            done.insert(candidate);
            if !self.is_new(&done, &states) {
                done.remove(candidate);
                continue;
            }
            frame.chosen = Some(candidate);
            left.take(candidate);
            match self.frame(states, &left) {
                Some(frame) => frames.push(frame),
                None => return Some(true),
            }
        }
        Some(false)
    }

    fn is_spent(&self, budget: Budget, steps: usize) -> bool {
        steps > budget.steps_max
            || self.seen_bytes > budget.bytes_max
            || (steps.is_multiple_of(STEPS_BETWEEN_LOOKS) && budget.is_late())
    }

    /// What may come next; none if nothing has to.
    fn frame(&self, states: Vec<Reached>, left: &Left) -> Option<Frame> {
        let (mut candidates, is_all) = left.candidates();
        let is_unknown = |one: &usize| self.operations[*one].outcome == Outcome::Unknown;
        if is_all && candidates.iter().all(is_unknown) {
            return None;
        }
        // What nobody knows to be done is not needed until something cannot be explained without it; and
        // what shows a version is done at once if it can be.
        candidates.sort_by_key(|one| (is_unknown(one), !self.shows_a_version(*one)));
        Some(Frame { states, candidates, tried: 0, chosen: None })
    }

    fn shows_a_version(&self, operation: usize) -> bool {
        matches!(self.operations[operation].outcome, Outcome::Found { .. } | Outcome::NotModified)
    }

    /// True unless all these states were reached before, no later, with the same done.
    fn is_new(&mut self, done: &Done, reached: &[Reached]) -> bool {
        let states: Vec<State> = reached.iter().map(|one| one.state).collect();
        let since: Vec<Nanos> = reached.iter().map(|one| one.since).collect();
        let key_bytes = size_of_val(done.0.as_slice()) + size_of_val(states.as_slice());
        let list_bytes = LIST_BYTES + size_of_val(since.as_slice());
        let seen = self.seen.entry((done.clone(), states)).or_default();
        let is_no_later = |a: &[Nanos], b: &[Nanos]| a.iter().zip(b).all(|(a, b)| a <= b);
        if seen.iter().any(|earlier| is_no_later(earlier, &since)) {
            return false;
        }
        if seen.is_empty() {
            self.seen_bytes += ENTRY_BYTES + key_bytes;
        }
        self.seen_bytes -= seen.len() * list_bytes;
        seen.retain(|earlier| !is_no_later(&since, earlier));
        seen.push(since);
        self.seen_bytes += seen.len() * list_bytes;
        true
    }
}

/// A set of operations.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Done(Vec<u64>);

impl Done {
    fn new(operations: usize) -> Self {
        Self(vec![0; operations.div_ceil(64)])
    }

    fn insert(&mut self, one: usize) {
        self.0[one / 64] |= 1 << (one % 64);
    }

    fn remove(&mut self, one: usize) {
        self.0[one / 64] &= !(1 << (one % 64));
    }
}

/// Calls and returns of what is left to do, in the order of time: a list in which every entry knows its
/// neighbours, so that an operation can be taken out and put back.
struct Left {
    entries: Vec<Entry>,
    /// Where an operation's call and its return are.
    places: Vec<(usize, Option<usize>)>,
}

#[derive(Clone, Copy)]
struct Entry {
    /// The call of an operation; none for a return, and for both ends of the list.
    call_of: Option<usize>,
    before: usize,
    behind: usize,
}

impl Left {
    fn new(operations: &[&Operation]) -> Self {
        // At the same instant calls come first: such operations may be taken in either order.
        let mut times: Vec<(Nanos, bool, usize)> = Vec::with_capacity(2 * operations.len());
        for (number, one) in operations.iter().enumerate() {
            times.push((one.call, false, number));
            times.extend(one.ret.map(|ret| (ret, true, number)));
        }
        times.sort_unstable();
        let ends = times.len() + 2;
        let mut entries = vec![Entry { call_of: None, before: 0, behind: 1 }; ends];
        let mut places = vec![(0, None); operations.len()];
        for (at, (_, is_return, number)) in times.into_iter().enumerate() {
            let at = at + 1;
            entries[at] = Entry { call_of: (!is_return).then_some(number), before: 0, behind: 0 };
            if is_return {
                places[number].1 = Some(at);
            } else {
                places[number].0 = at;
            }
        }
        for (at, entry) in entries.iter_mut().enumerate() {
            entry.before = at.saturating_sub(1);
            entry.behind = (at + 1).min(ends - 1);
        }
        Self { entries, places }
    }

    /// What was called before anything returned, and whether nothing is left to return.
    fn candidates(&self) -> (Vec<usize>, bool) {
        let end = self.entries.len() - 1;
        let mut candidates = Vec::new();
        let mut at = self.entries[0].behind;
        while at != end {
            match self.entries[at].call_of {
                Some(operation) => candidates.push(operation),
                None => return (candidates, false),
            }
            at = self.entries[at].behind;
        }
        (candidates, true)
    }

    fn take(&mut self, operation: usize) {
        let (call, ret) = self.places[operation];
        for at in ret.into_iter().chain([call]) {
            let Entry { before, behind, .. } = self.entries[at];
            self.entries[before].behind = behind;
            self.entries[behind].before = before;
        }
    }

    /// Undoes the last `take`.
    fn put_back(&mut self, operation: usize) {
        let (call, ret) = self.places[operation];
        for at in [call].into_iter().chain(ret) {
            let Entry { before, behind, .. } = self.entries[at];
            self.entries[before].behind = at;
            self.entries[behind].before = at;
        }
    }
}
