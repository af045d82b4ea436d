//! W9: a unique value has one owner at a time, who owns it until it expires or is deleted.
//!
//! 1. Several clients try to own a value, each time by an item with an id of its own.
//! 2. An owner that was acknowledged has it from then on, at least until its time to live is over or
//!    somebody asks to delete it: no two have it at the same time.
//! 3. Who is refused has met an owner: one whose end was not sure, or one of whom nobody knows.

use std::sync::Mutex;

use anyhow::Result;
use ephemeris_cluster_tests::checker::Tolerance;
use ephemeris_cluster_tests::client::{Call, Container};
use ephemeris_cluster_tests::history::Nanos;
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{
    Doing, End, Finding, Kind, ONE_PARTITION, Workload, create_container, drain, store, with_ttl,
};
use crate::hand::{Hand, Reply, locked};

/// Values that clients try to own at the same time.
const VALUES: usize = 12;
/// Attempts to own a value, after which another takes its place.
const ATTEMPTS: usize = 40;
/// Seconds that an owner lives at most, if it does not stay.
const TTL_MAX: u64 = 3;
/// How often a client deletes an owner.
const DELETE_PROBABILITY: f64 = 0.15;
/// How often an attempt may replace its item, which is never there.
const UPSERT_PROBABILITY: f64 = 0.3;

/// What came of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// It owns the value, with this stamp, as was known from then on.
    Owner { ts: u64, ret: Nanos },
    /// Another one did.
    Refused { ret: Nanos },
    /// Nobody knows.
    Unknown,
}

/// What came of a request to delete an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deletion {
    Done {
        call: Nanos,
        ret: Nanos,
    },
    /// It was gone already.
    Missing {
        ret: Nanos,
    },
    /// Nobody knows.
    Unknown {
        call: Nanos,
    },
}

/// An attempt to own a value.
#[derive(Debug)]
struct Attempt {
    id: String,
    ttl: Option<u64>,
    call: Nanos,
    came: Came,
    deletion: Option<Deletion>,
    /// True if the item is there in the end.
    is_found: bool,
}

struct Values {
    made: usize,
    /// Numbers of the values that clients try to own.
    tried: [usize; VALUES],
    /// Attempts by value.
    all: Vec<Vec<Attempt>>,
    /// Between which instants all items were looked at in the end, if they were.
    looked: Option<(Nanos, Nanos)>,
    wrong: Vec<String>,
}

pub(super) struct Unique {
    container: Container,
    values: Mutex<Values>,
}

impl Unique {
    pub(super) fn new() -> Self {
        Self { container: Kind::Unique.container(), values: Mutex::new(Values::new()) }
    }

    async fn attempt(&self, at: usize, hand: &mut Hand) {
        let (value, number) = locked(&self.values).next(at);
        let id = format!("i{number}");
        let ttl = hand.rng.random_bool(0.5).then(|| hand.rng.random_range(1..=TTL_MAX));
        let may_replace = hand.rng.random_bool(UPSERT_PROBABILITY);
        let item = json!({ "id": id, "pk": key(), "mail": format!("m{value}") });
        let call = store(&self.container, &with_ttl(item, ttl), may_replace);
        let asked = hand.ask(&call).await;
        let ret = asked.ret;
        let came = match &asked.reply {
            Reply::Answered(answer) => match (answer.status, answer.json()["_ts"].as_u64()) {
                (201, Some(ts)) => Came::Owner { ts, ret },
                (409, _) => Came::Refused { ret },
                _ => {
                    let what = format!("a unique value: {}", answer.describe());
                    return hand.shared.complain(what);
                }
            },
            Reply::Unknown => Came::Unknown,
            Reply::Refused => return,
        };
        let attempt = Attempt { id, ttl, call: asked.call, came, deletion: None, is_found: false };
        locked(&self.values).all[value].push(attempt);
    }

    async fn delete(&self, at: usize, hand: &mut Hand) {
        let owner = locked(&self.values).owner(at, hand.now());
        let Some((value, attempt, id)) = owner else { return };
        let asked = hand.ask(&Call::delete(self.container.item(&id)).key(&key())).await;
        let (call, ret) = (asked.call, asked.ret);
        let deletion = match asked.reply {
            Reply::Answered(answer) if answer.status == 204 => Some(Deletion::Done { call, ret }),
            Reply::Answered(answer) if answer.status == 404 => Some(Deletion::Missing { ret }),
            Reply::Answered(answer) => {
                return hand.shared.complain(format!("a delete: {}", answer.describe()));
            }
            Reply::Unknown => Some(Deletion::Unknown { call }),
            Reply::Refused => None,
        };
        locked(&self.values).all[value][attempt].deletion = deletion;
    }
}

fn key() -> Value {
    json!("p")
}

impl Values {
    fn new() -> Self {
        Self {
            made: 0,
            tried: std::array::from_fn(|at| at),
            all: (0..VALUES).map(|_| Vec::new()).collect(),
            looked: None,
            wrong: Vec::new(),
        }
    }

    /// A value, and the number of an attempt to own it.
    fn next(&mut self, at: usize) -> (usize, usize) {
        if self.all[self.tried[at]].len() >= ATTEMPTS {
            self.tried[at] = self.all.len();
            self.all.push(Vec::new());
        }
        self.made += 1;
        (self.tried[at], self.made)
    }

    /// The last owner of a value that nobody has asked to delete: the value, the attempt, and its id.
    fn owner(&mut self, at: usize, now: Nanos) -> Option<(usize, usize, String)> {
        let value = self.tried[at];
        let attempts = &mut self.all[value];
        let is_owner = |one: &Attempt| matches!(one.came, Came::Owner { .. });
        let last = attempts.iter().rposition(|one| is_owner(one) && one.deletion.is_none())?;
        let owner = &mut attempts[last];
        owner.deletion = Some(Deletion::Unknown { call: now });
        Some((value, last, owner.id.clone()))
    }

    /// The attempt that a row shows the item of.
    fn attempt_of(&mut self, row: &Value) -> Option<&mut Attempt> {
        let value: usize = row["mail"].as_str()?.strip_prefix('m')?.parse().ok()?;
        let id = row["id"].as_str()?;
        self.all.get_mut(value)?.iter_mut().find(|one| one.id == id)
    }

    /// Takes an item that is there in the end.
    fn take(&mut self, row: &Value, ret: Nanos) {
        match self.attempt_of(row) {
            Some(one) if !one.is_found && !matches!(one.came, Came::Refused { .. }) => {
                one.is_found = true;
                if let (Came::Unknown, Some(ts)) = (one.came, row["_ts"].as_u64()) {
                    one.came = Came::Owner { ts, ret };
                }
            }
            Some(_) | None => self.wrong.push(format!("was refused, or is there twice: {row}")),
        }
    }

    fn wrong(&self, tolerance: Tolerance) -> Vec<String> {
        let mut wrong = self.wrong.clone();
        for (value, attempts) in self.all.iter().enumerate() {
            let mut of_value = at_the_same_time(attempts, tolerance);
            of_value.extend(refused_by_nobody(attempts, tolerance));
            of_value.extend(deleted_wrongly(attempts, tolerance));
            of_value.extend(stamped_wrongly(attempts, tolerance));
            if let Some(looked) = self.looked {
                of_value.extend(wrong_in_the_end(attempts, looked, tolerance));
            }
            wrong.extend(of_value.into_iter().map(|what| format!("m{value}: {what}")));
        }
        wrong
    }
}

impl Workload for Unique {
    fn name(&self) -> &'static str {
        "unique"
    }

    fn hands(&self) -> u32 {
        4
    }

    fn set_up<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        let policy = json!({
            "defaultTtl": -1,
            "uniqueKeyPolicy": { "uniqueKeys": [{ "paths": ["/mail"] }] },
        });
        Box::pin(create_container(hand, &self.container, ONE_PARTITION, policy))
    }

    fn step<'a>(&'a self, _which: u32, hand: &'a mut Hand) -> Doing<'a> {
        Box::pin(async {
            let at = hand.rng.random_range(0..VALUES);
            if hand.rng.random_bool(DELETE_PROBABILITY) {
                self.delete(at, hand).await;
            } else {
                self.attempt(at, hand).await;
            }
        })
    }

    fn settle<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            let call = hand.now();
            let Some(rows) = drain(hand, &self.container).await? else { return Ok(()) };
            let ret = hand.now();
            let mut values = locked(&self.values);
            values.looked = Some((call, ret));
            for row in &rows {
                values.take(row, ret);
            }
            Ok(())
        })
    }

    fn judge(&self, tolerance: Tolerance) -> Vec<Finding> {
        let values = locked(&self.values);
        let wrong = values.wrong(tolerance);
        let finding = Finding::new("unique: one owner at a time", values.made, wrong);
        vec![finding.if_looked(values.looked.is_some())]
    }
}

impl Attempt {
    /// When its time to live is over.
    fn expiry(&self, tolerance: Tolerance) -> End {
        match self.came {
            Came::Owner { ts, .. } => End::of(ts, self.ttl, tolerance),
            Came::Refused { .. } | Came::Unknown => End::NEVER,
        }
    }

    /// When it ends, one way or the other.
    fn end(&self, tolerance: Tolerance) -> End {
        let End { earliest, for_reads, for_writes } = self.expiry(tolerance);
        let (asked, done) = match self.deletion {
            None => (Nanos::MAX, Nanos::MAX),
            Some(Deletion::Done { call, ret }) => (call, ret),
            Some(Deletion::Missing { ret }) => (Nanos::MAX, ret),
            Some(Deletion::Unknown { call }) => (call, Nanos::MAX),
        };
        End {
            earliest: earliest.min(asked),
            for_reads: for_reads.min(done),
            for_writes: for_writes.min(done),
        }
    }

    /// True if it may own the value at some instant between these.
    fn may_own(&self, (call, ret): (Nanos, Nanos), tolerance: Tolerance) -> bool {
        match self.came {
            Came::Owner { .. } => self.call <= ret && call <= self.end(tolerance).for_writes,
            Came::Unknown => self.call <= ret,
            Came::Refused { .. } => false,
        }
    }
}

/// Owners of whom each was acknowledged before the other can have ended: then the later one was let in too
/// early, whichever that is.
fn at_the_same_time(attempts: &[Attempt], tolerance: Tolerance) -> Vec<String> {
    let mut wrong = Vec::new();
    for (number, one) in attempts.iter().enumerate() {
        let Came::Owner { ret, .. } = one.came else { continue };
        for other in &attempts[number + 1..] {
            if let Came::Owner { ret: other_ret, .. } = other.came
                && ret < other.end(tolerance).earliest
                && other_ret < one.end(tolerance).earliest
            {
                wrong.push(format!("owned at the same time by {one:?} and {other:?}"));
            }
        }
    }
    wrong
}

/// Attempts that were refused when nobody can have owned the value.
fn refused_by_nobody(attempts: &[Attempt], tolerance: Tolerance) -> Vec<String> {
    let is_right = |one: &Attempt| match one.came {
        Came::Refused { ret } => {
            attempts.iter().any(|other| other.may_own((one.call, ret), tolerance))
        }
        Came::Owner { .. } | Came::Unknown => true,
    };
    let wrong = attempts.iter().filter(|one| !is_right(one));
    wrong.map(|one| format!("refused, and nobody owned it: {one:?}")).collect()
}

/// Owners that were gone before their time was over, or were deleted long after that.
fn deleted_wrongly(attempts: &[Attempt], tolerance: Tolerance) -> Vec<String> {
    let is_right = |one: &Attempt| {
        let expiry = one.expiry(tolerance);
        match one.deletion {
            Some(Deletion::Missing { ret }) => expiry.earliest <= ret,
            Some(Deletion::Done { call, .. }) => call <= expiry.for_writes,
            Some(Deletion::Unknown { .. }) | None => true,
        }
    };
    let wrong = attempts.iter().filter(|one| !is_right(one));
    wrong.map(|one| format!("gone too early, or too late: {one:?}")).collect()
}

/// Owners whose stamps are of before they were asked for, or of after they were there.
fn stamped_wrongly(attempts: &[Attempt], tolerance: Tolerance) -> Vec<String> {
    let is_right = |one: &Attempt| match one.came {
        Came::Owner { ts, ret } => {
            (tolerance.first_stamp(one.call)..=tolerance.last_stamp(ret)).contains(&ts)
        }
        Came::Refused { .. } | Came::Unknown => true,
    };
    let wrong = attempts.iter().filter(|one| !is_right(one));
    wrong.map(|one| format!("stamped too early, or too late: {one:?}")).collect()
}

/// Owners that should be there in the end and are not, or the other way round.
fn wrong_in_the_end(
    attempts: &[Attempt],
    (call, ret): (Nanos, Nanos),
    tolerance: Tolerance,
) -> Vec<String> {
    let is_right = |one: &Attempt| match (one.came, one.end(tolerance)) {
        (Came::Owner { .. }, end) if one.is_found => call <= end.for_reads,
        (Came::Owner { .. }, end) => end.earliest <= ret,
        (Came::Refused { .. } | Came::Unknown, _) => true,
    };
    let wrong = attempts.iter().filter(|one| !is_right(one));
    wrong.map(|one| format!("lost, or there for too long: {one:?}")).collect()
}

#[cfg(test)]
mod tests {
    use ephemeris_cluster_tests::history::SECOND;

    use super::*;

    const EXACT: Tolerance = Tolerance { skew: 0, width: 0 };

    /// An instant, from tenths of a second.
    fn at(tenths: u64) -> Nanos {
        tenths * SECOND / 10
    }

    fn attempt(call: u64, ttl: Option<u64>, came: Came) -> Attempt {
        let id = format!("i{call}");
        Attempt { id, ttl, call: at(call), came, deletion: None, is_found: false }
    }

    /// Acknowledged a tenth of a second later, and stamped with the next second.
    fn owner(call: u64, ttl: Option<u64>) -> Attempt {
        attempt(call, ttl, Came::Owner { ts: call / 10 + 1, ret: at(call + 1) })
    }

    fn refused(call: u64) -> Attempt {
        attempt(call, None, Came::Refused { ret: at(call + 1) })
    }

    fn unknown(call: u64) -> Attempt {
        attempt(call, None, Came::Unknown)
    }

    fn deleted(owner: Attempt, deletion: Deletion) -> Attempt {
        Attempt { deletion: Some(deletion), ..owner }
    }

    fn found(owner: Attempt) -> Attempt {
        Attempt { is_found: true, ..owner }
    }

    fn judged(attempts: Vec<Attempt>, looked: Option<(Nanos, Nanos)>) -> usize {
        let values = Values { all: vec![attempts], looked, ..Values::new() };
        values.wrong(EXACT).len()
    }

    #[test]
    fn an_owner_is_alone_until_its_time_is_over() {
        assert_eq!(judged(vec![owner(100, None), owner(200, None)], None), 1);
        assert_eq!(judged(vec![owner(100, Some(2)), owner(128, None)], None), 1);
        assert_eq!(judged(vec![owner(100, Some(2)), owner(130, None)], None), 0);
        assert_eq!(judged(vec![owner(128, None), owner(100, Some(2))], None), 1, "in any order");
    }

    #[test]
    fn an_owner_is_alone_until_it_may_be_deleted() {
        let done = Deletion::Done { call: at(120), ret: at(122) };
        let unknown = Deletion::Unknown { call: at(120) };
        for deletion in [done, unknown] {
            let early = vec![deleted(owner(100, None), deletion), owner(115, None)];
            assert_eq!(judged(early, None), 1, "{deletion:?}");
            let later = vec![deleted(owner(100, None), deletion), owner(121, None)];
            assert_eq!(judged(later, None), 0, "{deletion:?}");
        }
    }

    #[test]
    fn stamps_are_of_when_owners_were_made() {
        let stamped = |ts| attempt(105, None, Came::Owner { ts, ret: at(106) });
        assert_eq!(judged(vec![stamped(10)], None), 1, "before it was asked for");
        assert_eq!(judged(vec![stamped(11)], None), 0);
        assert_eq!(judged(vec![stamped(12)], None), 1, "later than it was known");
    }

    #[test]
    fn who_is_refused_has_met_an_owner() {
        assert_eq!(judged(vec![owner(100, None), refused(200)], None), 0);
        assert_eq!(judged(vec![refused(100), owner(100, None)], None), 0, "at the same time");
        assert_eq!(judged(vec![refused(100), owner(200, None)], None), 1, "later");
        assert_eq!(judged(vec![owner(100, Some(2)), refused(130)], None), 0, "at the second");
        assert_eq!(judged(vec![owner(100, Some(2)), refused(131)], None), 1, "expired");
        let perhaps = vec![owner(100, Some(2)), unknown(110), refused(141)];
        assert_eq!(judged(perhaps, None), 0, "by the one of whom nobody knows");
        let done = Deletion::Done { call: at(120), ret: at(122) };
        assert_eq!(judged(vec![deleted(owner(100, None), done), refused(123)], None), 1, "deleted");
    }

    #[test]
    fn what_is_deleted_is_there_until_its_time_is_over() {
        let judged = |deletion| judged(vec![deleted(owner(100, Some(2)), deletion)], None);
        assert_eq!(judged(Deletion::Missing { ret: at(129) }), 1, "early");
        assert_eq!(judged(Deletion::Missing { ret: at(130) }), 0);
        assert_eq!(judged(Deletion::Done { call: at(130), ret: at(131) }), 0);
        assert_eq!(judged(Deletion::Done { call: at(131), ret: at(132) }), 1, "late");
    }

    #[test]
    fn owners_are_there_in_the_end_unless_they_may_be_gone() {
        let judged = |one| judged(vec![one], Some((at(200), at(210))));
        assert_eq!(judged(owner(100, None)), 1, "lost");
        assert_eq!(judged(found(owner(100, None))), 0);
        assert_eq!(judged(owner(100, Some(2))), 0);
        assert_eq!(judged(found(owner(100, Some(2)))), 1, "expired");
        let perhaps = Deletion::Unknown { call: at(150) };
        assert_eq!(judged(deleted(owner(100, None), perhaps)), 0);
        assert_eq!(judged(found(deleted(owner(100, None), perhaps))), 0);
        let done = Deletion::Done { call: at(150), ret: at(151) };
        assert_eq!(judged(found(deleted(owner(100, None), done))), 1, "deleted");
    }

    #[test]
    fn what_is_there_in_the_end_was_asked_for_and_is_there_once() {
        let attempts = vec![unknown(100), unknown(101), refused(102)];
        let mut values = Values { all: vec![attempts], ..Values::new() };
        let row = |id: &str| json!({ "id": id, "mail": "m0", "_ts": 11 });
        values.take(&row("i100"), at(210));
        assert_eq!(values.all[0][0].came, Came::Owner { ts: 11, ret: at(210) });
        assert_eq!(values.wrong(EXACT).len(), 0);
        values.take(&row("i100"), at(210));
        values.take(&row("i102"), at(210));
        values.take(&row("i103"), at(210));
        assert_eq!(values.wrong(EXACT).len(), 3, "twice, refused, from nowhere");
        values.take(&row("i101"), at(210));
        assert_eq!(values.wrong(EXACT).len(), 4, "two at the same time");
    }
}
