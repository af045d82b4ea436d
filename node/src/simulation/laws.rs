//! What a client may be told about a key that nobody else writes, one request after the other.
//!
//! So everything it may be told is known exactly:
//!
//! - never early: a version is gone only at or after `_ts + ttl`;
//! - never late: a read that starts at or after `_ts + ttl` does not show it;
//! - irreversible: told to be gone once, it is never shown again;
//! - nothing acknowledged is lost, and nothing is done twice.
//!
//! All times are true ones, in microseconds since 1970.

use std::collections::BTreeMap;
use std::time::Duration;

use ephemeris_store::ids::Lsn;
use ephemeris_store::time::Seconds;

/// Wider than this a clock moves nothing; so far may the clock lag by which a write is decided.
pub(crate) const WIDTH_MAX: Duration = Duration::from_secs(2);

const MICROS: i64 = 1_000_000;

/// A stamp may be so far behind the answer: rounded up, and given by the late end of a clock.
const LATE_MICROS: i64 = 3 * MICROS;

/// A version that does not expire.
pub(crate) const NEVER: i64 = i64::MAX;

/// A request's true times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Before the first byte was sent.
    pub(crate) call: i64,
    /// After the last byte had come.
    pub(crate) ret: i64,
}

/// A container's time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Nothing expires.
    Off,
    /// What has a time to live of its own expires.
    NoDefault,
    /// So does, after so many seconds, what has none.
    Default(u32),
}

impl Policy {
    /// The first instant at which a version is gone.
    fn expiry(self, version: Stamped) -> i64 {
        let seconds = match (self, version.ttl) {
            (Policy::Off, _) | (Policy::NoDefault, None) | (_, Some(-1)) => return NEVER,
            (Policy::Default(seconds), None) => i64::from(seconds),
            (Policy::NoDefault | Policy::Default(_), Some(ttl)) => ttl,
        };
        version.ts + seconds * MICROS
    }
}

/// When a version was written, and its own time to live.
#[derive(Clone, Copy, Debug)]
struct Stamped {
    ts: i64,
    ttl: Option<i64>,
}

/// What is known of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// There is no item.
    Absent,
    /// This version, until it expires.
    Version {
        /// Which it is.
        serial: u64,
        /// The first instant at which it is gone.
        expiry: i64,
    },
}

/// A key, as the client knows it that alone writes it.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    name: String,
    known: Known,
    /// The entry that made the key what is known of it.
    changed: Lsn,
    /// What every entry that changed the key made of it: a version, by its serial, or nothing.
    changes: BTreeMap<Lsn, Option<u64>>,
    /// Each of the key's versions, by serial, and when it expires.
    versions: BTreeMap<u64, (Stamped, i64)>,
}

impl Key {
    /// A key that was never written.
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            known: Known::Absent,
            changed: Lsn(0),
            changes: BTreeMap::new(),
            versions: BTreeMap::new(),
        }
    }

    /// Its name, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What is known.
    pub(crate) fn known(&self) -> Known {
        self.known
    }

    /// The entry that made the key what is known of it.
    pub(crate) fn changed(&self) -> Lsn {
        self.changed
    }

    /// The serials of all its versions, in order.
    pub(crate) fn serials(&self) -> impl Iterator<Item = u64> {
        self.versions.keys().copied()
    }

    /// A version was written by an entry, and stamped, under a policy.
    pub(crate) fn written(
        &mut self,
        span: Span,
        (serial, ts, ttl): (u64, Seconds, Option<i64>),
        policy: Policy,
        lsn: Lsn,
    ) {
        let ts = i64::try_from(ts.0).expect("a stamp is a date") * MICROS;
        assert!(ts >= span.call, "{} was stamped {} µs early", self.name, span.call - ts);
        let late = ts - span.ret;
        assert!(late <= LATE_MICROS, "{} was stamped {late} µs late", self.name);
        let version = Stamped { ts, ttl };
        let expiry = policy.expiry(version);
        self.known = Known::Version { serial, expiry };
        self.changed = lsn;
        self.changes.insert(lsn, Some(serial));
        self.versions.insert(serial, (version, expiry));
    }

    /// The container has another policy; false if nobody can tell whether the version had expired
    /// before. If it surely had, it stays gone, whatever the policy says.
    pub(crate) fn adopt(&mut self, span: Span, policy: Policy) -> bool {
        let Known::Version { serial, expiry } = self.known else { return true };
        if late_at_apply(span, expiry) > 0 {
            self.known = Known::Absent;
            return true;
        }
        let (version, expires) = self.versions.get_mut(&serial).expect("versions are kept");
        *expires = policy.expiry(*version);
        self.known = Known::Version { serial, expiry: *expires };
        expiry > span.ret
    }

    /// A delete was carried out.
    pub(crate) fn deleted(&mut self, span: Span, lsn: Lsn) {
        self.saw_alive_at_apply(span, "deleted");
        (self.known, self.changed) = (Known::Absent, lsn);
        self.changes.insert(lsn, None);
    }

    /// Judges a read that was answered as of an entry by what this client did up to there; a
    /// linearizable one by everything.
    pub(crate) fn read(&mut self, span: Span, lsn: Lsn, shown: Option<u64>) {
        if lsn >= self.changed {
            self.read_last(span, lsn, shown);
        } else {
            self.read_earlier(span, lsn, shown);
        }
    }

    /// Judges a read that must have been answered with everything that this client did.
    pub(crate) fn read_last(&mut self, span: Span, lsn: Lsn, shown: Option<u64>) {
        let (name, changed) = (&self.name, self.changed);
        assert!(lsn >= changed, "{name} was changed by {changed} and read as of {lsn}");
        match (shown, self.known) {
            (None, _) => self.saw_gone(span, "was not found"),
            (Some(shown), Known::Absent) => panic!("{name} is back with serial {shown}"),
            (Some(shown), Known::Version { serial, expiry }) => {
                assert_eq!(shown, serial, "{name} shows its last version");
                let late = i128::from(span.call) - i128::from(expiry);
                assert!(late < 0, "{name} was shown {late} µs late");
            }
        }
    }

    /// Judges a read that was answered with less: it shows what the key was then, unless that has expired.
    fn read_earlier(&self, span: Span, lsn: Lsn, shown: Option<u64>) {
        let name = &self.name;
        let then = self.changes.range(..=lsn).next_back().and_then(|(_, serial)| *serial);
        let expiry = then.map_or(NEVER, |serial| self.versions[&serial].1);
        if shown.is_some() {
            assert_eq!(shown, then, "{name} was read as of {lsn}");
            let late = i128::from(span.call) - i128::from(expiry);
            assert!(late < 0, "{name} was shown {late} µs late, as of {lsn}");
        } else if then.is_some() {
            let early = i128::from(expiry) - i128::from(span.ret);
            assert!(early <= 0, "{name} was not found as of {lsn}, {early} µs early");
        }
    }

    /// The version is gone, and stays so.
    pub(crate) fn saw_gone(&mut self, span: Span, what: &str) {
        if let Known::Version { expiry, .. } = self.known {
            let early = i128::from(expiry) - i128::from(span.ret);
            assert!(early <= 0, "{} {what} {early} µs early", self.name);
        }
        self.known = Known::Absent;
    }

    /// Whoever proposed the write took the version to be alive, by a clock that may lag.
    pub(crate) fn saw_alive_at_apply(&self, span: Span, what: &str) {
        match self.known {
            Known::Absent => panic!("{} {what}, but it was gone", self.name),
            Known::Version { expiry, .. } => {
                let late = late_at_apply(span, expiry);
                assert!(late <= 0, "{} {what} {late} µs late", self.name);
            }
        }
    }

    /// True if whoever proposes a write may take the version to be alive, by a clock that may lag.
    pub(crate) fn may_be_alive_at_apply(&self, span: Span) -> bool {
        match self.known {
            Known::Absent => false,
            Known::Version { expiry, .. } => late_at_apply(span, expiry) <= 0,
        }
    }

    /// True if the version is alive for as long as the request takes.
    pub(crate) fn is_surely_alive(&self, span: Span) -> bool {
        match self.known {
            Known::Absent => false,
            Known::Version { expiry, .. } => expiry > span.ret,
        }
    }
}

/// How much later than the clock may lag a request began that takes a version to be alive, in microseconds.
fn late_at_apply(span: Span, expiry: i64) -> i128 {
    let lag = i128::try_from(WIDTH_MAX.as_micros()).expect("seconds");
    i128::from(span.call) - i128::from(expiry) - lag
}
