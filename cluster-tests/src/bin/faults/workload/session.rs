//! W8: sessions read what they wrote, on any replica, and never less than they have read; what has expired
//! or was deleted stays away.
//!
//! 1. Every client has items of its own, which nobody else writes. It does one thing after the other, so
//!    that it knows what is there, but for time and for writes of which nobody knows.
//! 2. Its reads may be answered by any replica that has come as far as its session.
//! 3. Every answer, of writes and deletes, too, is judged by what the client knew.

use std::collections::BTreeMap;
use std::sync::Mutex;

use anyhow::Result;
use ephemeris_cluster_tests::checker::Tolerance;
use ephemeris_cluster_tests::client::{Answer, Call, Container};
use ephemeris_cluster_tests::history::Nanos;
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{
    Doing, End, Finding, Kind, RECOVERY, TWO_PARTITIONS, Workload, create_container, store,
    with_ttl,
};
use crate::hand::{Asked, Hand, Reply, locked};

/// Items of a client that are in use at a time.
const ITEMS: usize = 4;
const HANDS: u32 = 3;
/// Seconds that a version lives at most, if it does not stay, and how often it does not.
const TTL_MAX: u64 = 4;
const TTL_PROBABILITY: f64 = 0.4;
/// Writes of unknown outcome after which another item takes an item's place: they explain too much.
const UNKNOWN_MAX: usize = 3;

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
enum Request {
    Read,
    Write { serial: u64, ttl: Option<u64> },
    Delete,
}

/// A version of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    serial: u64,
    ts: u64,
    ttl: Option<u64>,
}

/// What an answer says of an item.
#[derive(Clone, Copy, Debug)]
enum What {
    /// It was written where there was none.
    Created(Version),
    /// It was written over another version.
    Replaced(Version),
    /// There was one, and it was deleted.
    Deleted,
    Shown(Version),
    /// There is none.
    Missing,
    /// It may be written, however late.
    PerhapsWritten {
        serial: u64,
        ttl: Option<u64>,
    },
    /// It may be deleted, however late.
    PerhapsDeleted,
}

/// What a client saw, and between which instants.
struct Seen {
    call: Nanos,
    ret: Nanos,
    what: What,
    /// Who answered, and to which session.
    by: String,
}

#[derive(Default)]
struct Item {
    seen: Vec<Seen>,
    /// Writes of unknown outcome.
    unknown: usize,
}

/// What a client has.
struct Client {
    serial: u64,
    /// Numbers of the items in use.
    used: [usize; ITEMS],
    items: Vec<Item>,
    /// The session, by range.
    tokens: BTreeMap<u32, u64>,
}

pub(super) struct Session {
    container: Container,
    clients: Vec<Mutex<Client>>,
}

impl Session {
    pub(super) fn new() -> Self {
        let clients = (0..HANDS).map(|_| Mutex::new(Client::new())).collect();
        Self { container: Kind::Session.container(), clients }
    }

    async fn ask(&self, which: u32, item: usize, request: Request, hand: &mut Hand) {
        let token = self.token(which);
        let asked = hand.ask(&self.call(which, item, request, &token)).await;
        self.take((which, item), request, (&asked, &token), hand);
    }

    fn token(&self, which: u32) -> String {
        locked(&self.clients[which as usize]).token()
    }

    /// Takes what became of a request with this token.
    fn take(
        &self,
        (which, item): (u32, usize),
        request: Request,
        (asked, token): (&Asked, &str),
        hand: &Hand,
    ) {
        let what = match &asked.reply {
            Reply::Answered(answer) => {
                let what = request.answered(answer);
                if what.is_none() {
                    let by = answer.describe();
                    hand.shared.complain(format!("{request:?} was answered by {by}"));
                }
                what
            }
            Reply::Unknown => request.unknown(),
            Reply::Refused => None,
        };
        locked(&self.clients[which as usize]).take(item, asked, what, token);
    }

    fn call(&self, which: u32, item: usize, request: Request, token: &str) -> Call {
        let (id, key) = (id(which, item), key(which, item));
        match request {
            Request::Read => {
                let call = Call::get(self.container.item(&id))
                    .key(&key)
                    .header("x-ms-consistency-level", "Session");
                if token.is_empty() { call } else { call.header("x-ms-session-token", token) }
            }
            Request::Write { serial, ttl } => {
                let item = with_ttl(json!({ "id": id, "pk": key, "serial": serial }), ttl);
                store(&self.container, &item, true)
            }
            Request::Delete => Call::delete(self.container.item(&id)).key(&key),
        }
    }
}

impl Request {
    /// What an answer says; none if it is not one to the request.
    fn answered(self, answer: &Answer) -> Option<What> {
        let body = answer.json();
        let version = || {
            let (serial, ts) = (body["serial"].as_u64()?, body["_ts"].as_u64()?);
            Some(Version { serial, ts, ttl: body["ttl"].as_u64() })
        };
        match (self, answer.status) {
            (Request::Read, 200) => version().map(What::Shown),
            (Request::Write { .. }, 201) => version().map(What::Created),
            (Request::Write { .. }, 200) => version().map(What::Replaced),
            (Request::Delete, 204) => Some(What::Deleted),
            (Request::Read | Request::Delete, 404) => Some(What::Missing),
            _ => None,
        }
    }

    /// What nobody knows of it; none of a read.
    fn unknown(self) -> Option<What> {
        match self {
            Request::Read => None,
            Request::Write { serial, ttl } => Some(What::PerhapsWritten { serial, ttl }),
            Request::Delete => Some(What::PerhapsDeleted),
        }
    }
}

impl Client {
    fn new() -> Self {
        Self {
            serial: 0,
            used: std::array::from_fn(|at| at),
            items: (0..ITEMS).map(|_| Item::default()).collect(),
            tokens: BTreeMap::new(),
        }
    }

    /// What the client does next, and with which item.
    fn next(&mut self, hand: &mut Hand) -> (usize, Request) {
        let used = &mut self.used[hand.rng.random_range(0..ITEMS)];
        if self.items[*used].unknown >= UNKNOWN_MAX {
            *used = self.items.len();
            self.items.push(Item::default());
        }
        let request = match hand.rng.random_range(0..20) {
            0..6 => {
                self.serial += 1;
                let ttl = hand.rng.random_bool(TTL_PROBABILITY);
                let ttl = ttl.then(|| hand.rng.random_range(1..=TTL_MAX));
                Request::Write { serial: self.serial, ttl }
            }
            6 => Request::Delete,
            _ => Request::Read,
        };
        (*used, request)
    }

    fn token(&self) -> String {
        let tokens = self.tokens.iter().map(|(range, lsn)| format!("{range}:-1#{lsn}"));
        tokens.collect::<Vec<_>>().join(",")
    }

    /// Takes an answer to a session, and what it says of an item.
    fn take(&mut self, item: usize, asked: &Asked, what: Option<What>, token: &str) {
        if let Some((range, lsn)) = asked.entry() {
            let seen = self.tokens.entry(range).or_default();
            *seen = lsn.max(*seen);
        }
        let Some(what) = what else { return };
        let item = &mut self.items[item];
        let is_unknown = matches!(what, What::PerhapsWritten { .. } | What::PerhapsDeleted);
        item.unknown += usize::from(is_unknown);
        let by = format!("node {}, for {token}", asked.node);
        item.seen.push(Seen { call: asked.call, ret: asked.ret, what, by });
    }
}

fn id(which: u32, item: usize) -> String {
    format!("s{which}-{item}")
}

fn key(which: u32, item: usize) -> Value {
    json!(format!("p{which}-{}", item % ITEMS))
}

impl Workload for Session {
    fn name(&self) -> &'static str {
        "session"
    }

    fn hands(&self) -> u32 {
        HANDS
    }

    fn set_up<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        let policy = json!({ "defaultTtl": -1 });
        Box::pin(create_container(hand, &self.container, TWO_PARTITIONS, policy))
    }

    fn step<'a>(&'a self, which: u32, hand: &'a mut Hand) -> Doing<'a> {
        Box::pin(async move {
            let (item, request) = locked(&self.clients[which as usize]).next(hand);
            self.ask(which, item, request, hand).await;
        })
    }

    fn settle<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            for which in 0..HANDS {
                let items = locked(&self.clients[which as usize]).items.len();
                for item in 0..items {
                    let token = self.token(which);
                    let call = self.call(which, item, Request::Read, &token);
                    let asked = hand.insist(&call, RECOVERY).await?;
                    self.take((which, item), Request::Read, (&asked, &token), hand);
                }
            }
            Ok(())
        })
    }

    fn judge(&self, tolerance: Tolerance) -> Vec<Finding> {
        let (mut checked, mut wrong) = (0, Vec::new());
        for (which, client) in (0..).zip(&self.clients) {
            for (number, item) in locked(client).items.iter().enumerate() {
                checked += item.seen.len();
                let of_item = contradictions(&item.seen, tolerance).into_iter();
                wrong.extend(of_item.map(|what| format!("{}: {what}", id(which, number))));
            }
        }
        vec![Finding::new("session: reads what it wrote and read", checked, wrong)]
    }
}

/// What a client knows of an item.
#[derive(Default)]
struct Known {
    /// The version that was written or shown last; none if it was deleted, or nothing was shown.
    last: Option<Version>,
    /// Versions that may be written yet, by serial: when that was asked for, and their time to live.
    written: BTreeMap<u64, (Nanos, Option<u64>)>,
    /// Deletes that may be done yet.
    deletes: usize,
}

/// What a client cannot have seen of an item, by what it saw before.
fn contradictions(seen: &[Seen], tolerance: Tolerance) -> Vec<String> {
    let mut known = Known::default();
    let wrong = seen.iter().filter_map(|one| {
        let last = known.last;
        let is_right = known.take(one, tolerance);
        let Seen { what, by, .. } = one;
        (!is_right).then(|| format!("{what:?} by {by}; before that {last:?}"))
    });
    wrong.collect()
}

impl Known {
    /// Takes what was seen; false if that cannot be.
    fn take(&mut self, seen: &Seen, tolerance: Tolerance) -> bool {
        let (is_right, last) = match seen.what {
            What::Created(version) => (self.may_be_gone(seen.ret, tolerance), Some(version)),
            What::Missing => (self.may_be_gone(seen.ret, tolerance), None),
            What::Replaced(version) => (self.may_be_there(seen.call, tolerance), Some(version)),
            What::Deleted => (self.may_be_there(seen.call, tolerance), None),
            What::Shown(version) => (self.may_show(version, seen, tolerance), Some(version)),
            What::PerhapsWritten { serial, ttl } => {
                self.written.insert(serial, (seen.call, ttl));
                return true;
            }
            What::PerhapsDeleted => {
                self.deletes += 1;
                return true;
            }
        };
        self.last = last;
        is_right
    }

    /// True if an answer that came then may have found nothing: what is there, or what may have been
    /// written over it, may have expired; or one of the deletes of which nobody knew was done, and will not
    /// be done again.
    fn may_be_gone(&mut self, ret: Nanos, tolerance: Tolerance) -> bool {
        let Some(last) = self.last else { return true };
        let may_have_expired =
            |ts: u64, ttl: Option<u64>| End::of(ts, ttl, tolerance).earliest <= ret;
        let mut written = self.written.values();
        if may_have_expired(last.ts, last.ttl)
            || written.any(|(call, ttl)| may_have_expired(tolerance.first_stamp(*call), *ttl))
        {
            return true;
        }
        let is_deleted = self.deletes > 0;
        self.deletes -= usize::from(is_deleted);
        is_deleted
    }

    /// True if a write that was asked for then may have found something.
    fn may_be_there(&self, call: Nanos, tolerance: Tolerance) -> bool {
        let is_alive = |last: Version| call <= End::of(last.ts, last.ttl, tolerance).for_writes;
        self.last.is_some_and(is_alive) || !self.written.is_empty()
    }

    /// True if a read may show this version: what is known, or what may have been written, as it was asked for
    /// and with a stamp that it may have.
    fn may_show(&mut self, version: Version, read: &Seen, tolerance: Tolerance) -> bool {
        let Version { serial, ts, ttl } = version;
        let is_known = self.last == Some(version)
            || self.written.remove(&serial).is_some_and(|(call, asked_ttl)| {
                let stamps = tolerance.first_stamp(call)..=tolerance.last_stamp(read.ret);
                ttl == asked_ttl && stamps.contains(&ts)
            });
        is_known && read.call <= End::of(ts, ttl, tolerance).for_reads
    }
}

#[cfg(test)]
mod tests {
    use ephemeris_cluster_tests::history::SECOND;

    use super::What::{Created, Deleted, Missing, PerhapsDeleted, PerhapsWritten, Replaced, Shown};
    use super::*;

    /// Writes may go by a clock that lags by a second.
    const EXACT: Tolerance = Tolerance { skew: 0, width: SECOND };

    /// Version 1 is of second 10, and so on.
    fn version(serial: u64, ttl: Option<u64>) -> Version {
        Version { serial, ts: 9 + serial, ttl }
    }

    /// Judges what was seen, each within a tenth of a second from an instant on, in tenths.
    fn judged(seen: &[(u64, What)]) -> usize {
        let tenths = |tenths: u64| tenths * SECOND / 10;
        let seen = seen.iter().map(|(at, what)| {
            let (call, ret) = (tenths(*at), tenths(at + 1));
            Seen { call, ret, what: *what, by: "node 1".to_string() }
        });
        contradictions(&seen.collect::<Vec<_>>(), EXACT).len()
    }

    #[test]
    fn a_client_reads_what_it_wrote_and_read() {
        let (one, two) = (version(1, None), version(2, None));
        assert_eq!(judged(&[(90, Missing), (95, Created(one)), (200, Shown(one))]), 0);
        assert_eq!(judged(&[(95, Created(one)), (105, Replaced(two)), (200, Shown(two))]), 0);
        assert_eq!(judged(&[(95, Created(one)), (105, Replaced(two)), (200, Shown(one))]), 1);
        assert_eq!(judged(&[(95, Created(one)), (200, Missing)]), 1, "lost");
        assert_eq!(judged(&[(95, Created(one)), (200, Created(two))]), 1, "lost, says a write");
        let stamped_anew = Version { ts: 11, ..one };
        assert_eq!(judged(&[(95, Created(one)), (200, Shown(stamped_anew))]), 1);
    }

    #[test]
    fn what_is_gone_does_not_come_back() {
        let one = version(1, Some(2));
        assert_eq!(judged(&[(95, Created(one)), (120, Missing), (121, Shown(one))]), 1);
        assert_eq!(judged(&[(95, Created(one)), (96, Deleted), (97, Shown(one))]), 1);
        assert_eq!(judged(&[(95, Created(one)), (96, Deleted), (97, Deleted)]), 1, "twice");
        let two = version(2, None);
        assert_eq!(judged(&[(95, Created(one)), (96, Deleted), (105, Replaced(two))]), 1);
        assert_eq!(judged(&[(95, Created(one)), (96, Deleted), (105, Created(two))]), 0);
    }

    #[test]
    fn nothing_expires_early_and_nothing_is_shown_late() {
        let one = version(1, Some(2));
        assert_eq!(judged(&[(95, Created(one)), (118, Missing)]), 1, "early");
        assert_eq!(judged(&[(95, Created(one)), (119, Missing)]), 0, "at the second");
        assert_eq!(judged(&[(95, Created(one)), (120, Shown(one))]), 0, "at the second");
        assert_eq!(judged(&[(95, Created(one)), (121, Shown(one))]), 1, "late");
        assert_eq!(judged(&[(95, Created(one)), (130, Deleted)]), 0, "by a clock that lags");
        assert_eq!(judged(&[(95, Created(one)), (131, Deleted)]), 1, "late, says a delete");
    }

    #[test]
    fn a_write_of_which_nobody_knows_explains_what_it_may_have_done() {
        let (one, two) = (version(1, None), version(2, Some(1)));
        let known = (95, Created(one));
        let perhaps = (105, PerhapsWritten { serial: 2, ttl: Some(1) });
        assert_eq!(judged(&[known, perhaps, (106, Shown(one)), (107, Shown(two))]), 0);
        assert_eq!(judged(&[known, perhaps, (107, Shown(two)), (108, Shown(one))]), 1);
        assert_eq!(judged(&[known, perhaps, (118, Missing)]), 1, "nothing can have expired");
        assert_eq!(judged(&[known, perhaps, (119, Missing)]), 0, "it may have, unseen");
        let (before, after) = (Version { ts: 10, ..two }, Version { ts: 13, ..two });
        assert_eq!(judged(&[known, perhaps, (107, Shown(before))]), 1, "stamped early");
        assert_eq!(judged(&[known, perhaps, (107, Shown(after))]), 1, "stamped late");
        let stays = Version { ttl: None, ..two };
        assert_eq!(judged(&[known, perhaps, (107, Shown(stays))]), 1, "with another time to live");
        assert_eq!(judged(&[perhaps, (107, Shown(one))]), 1, "another one");
    }

    #[test]
    fn a_delete_of_which_nobody_knows_is_done_once() {
        let (one, two) = (version(1, None), version(2, None));
        let known = [(95, Created(one)), (100, PerhapsDeleted)];
        assert_eq!(judged(&[&known[..], &[(101, Shown(one)), (102, Missing)]].concat()), 0);
        let twice = [(102, Missing), (105, Created(two)), (106, Missing)];
        assert_eq!(judged(&[&known[..], &twice].concat()), 1);
    }
}
