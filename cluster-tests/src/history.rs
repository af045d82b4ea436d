//! What clients of one key saw: requests with their times and answers.
//!
//! Every body that is written carries a number of its own, the serial, so that a read tells which write
//! it shows. Preconditions name serials, too: a client sends only etags it was shown.

use serde::{Deserialize, Serialize};

/// Nanoseconds since 1970, by the clock of the machine that runs the clients.
pub type Nanos = u64;

/// A second, in nanoseconds.
pub const SECOND: Nanos = 1_000_000_000;

/// A container's time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Nothing expires.
    Off,
    /// What has a time to live of its own expires.
    NoDefault,
    /// So does, after so many seconds, what has none.
    Default(u32),
}

/// What an item says of its time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ttl {
    /// What the container says.
    Inherit,
    /// It stays.
    Never,
    /// So many seconds.
    Own(u32),
}

impl Policy {
    /// How many seconds after its stamp a version expires; none if it does not.
    pub fn lifetime(self, ttl: Ttl) -> Option<u32> {
        match (self, ttl) {
            (Policy::Off, _) | (_, Ttl::Never) | (Policy::NoDefault, Ttl::Inherit) => None,
            (Policy::Default(seconds), Ttl::Inherit)
            | (Policy::NoDefault | Policy::Default(_), Ttl::Own(seconds)) => Some(seconds),
        }
    }
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Action {
    /// A read of the item.
    Read {
        /// Not if it is this version.
        if_none_match: Option<u64>,
    },
    /// An item where there is none.
    Create {
        /// The version to write.
        serial: u64,
        /// Its time to live.
        ttl: Ttl,
    },
    /// An item, whether there is one or not.
    Upsert {
        /// The version to write.
        serial: u64,
        /// Its time to live.
        ttl: Ttl,
        /// Only over this version.
        if_match: Option<u64>,
    },
    /// An item where there is one.
    Replace {
        /// The version to write.
        serial: u64,
        /// Its time to live.
        ttl: Ttl,
        /// Only over this version.
        if_match: Option<u64>,
    },
    /// Another serial for the item, and the same time to live.
    Patch {
        /// The version to write.
        serial: u64,
        /// Only over this version.
        if_match: Option<u64>,
    },
    /// No item.
    Delete {
        /// Only if it is this version.
        if_match: Option<u64>,
    },
    /// Another time to live for the whole container.
    Policy {
        /// Which.
        policy: Policy,
    },
}

impl Action {
    /// The version it writes, if it does.
    pub fn serial(self) -> Option<u64> {
        match self {
            Action::Create { serial, .. }
            | Action::Upsert { serial, .. }
            | Action::Replace { serial, .. }
            | Action::Patch { serial, .. } => Some(serial),
            Action::Read { .. } | Action::Delete { .. } | Action::Policy { .. } => None,
        }
    }

    /// The version that must be there for it.
    pub fn if_match(self) -> Option<u64> {
        match self {
            Action::Upsert { if_match, .. }
            | Action::Replace { if_match, .. }
            | Action::Patch { if_match, .. }
            | Action::Delete { if_match } => if_match,
            Action::Read { .. } | Action::Create { .. } | Action::Policy { .. } => None,
        }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "saw", rename_all = "snake_case")]
pub enum Outcome {
    /// Nobody knows: it may have been done, and it may yet be.
    Unknown,
    /// A version, with its stamp in seconds.
    Found {
        /// Which.
        serial: u64,
        /// Its `_ts`.
        ts: u64,
    },
    /// The version that was named is still there.
    NotModified,
    /// There is no item.
    NotFound,
    /// The version was written where there was none, with this stamp.
    Created {
        /// Its `_ts`.
        ts: u64,
    },
    /// The version was written over another, with this stamp.
    Replaced {
        /// Its `_ts`.
        ts: u64,
    },
    /// There was an item.
    Deleted,
    /// There is an item already.
    Conflict,
    /// There is another version than the one that was named.
    PreconditionFailed,
    /// The container has the new time to live.
    PolicyChanged,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Who asked.
    pub client: u32,
    /// Which node.
    pub node: u32,
    /// The key: no other has the same name.
    pub key: String,
    /// What was asked for.
    #[serde(flatten)]
    pub action: Action,
    /// Before the first byte was sent.
    pub call: Nanos,
    /// After the last byte of the answer had come; none where the outcome is not known.
    pub ret: Option<Nanos>,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The range that answered, and the entry it answered as of.
    pub entry: Option<(u32, u64)>,
}

impl Operation {
    /// The version it showed to be there, if it did, and the stamp if that was shown.
    pub fn seen(&self) -> Option<(u64, Option<u64>)> {
        match (self.outcome, self.action) {
            (Outcome::Found { serial, ts }, _) => Some((serial, Some(ts))),
            (Outcome::NotModified, Action::Read { if_none_match }) => {
                if_none_match.map(|serial| (serial, None))
            }
            (Outcome::Replaced { .. } | Outcome::Deleted, action) => {
                action.if_match().map(|serial| (serial, None))
            }
            _ => None,
        }
    }

    /// The version whose stamp it tells, with the stamp.
    pub fn told(&self) -> Option<(u64, u64)> {
        self.written().or_else(|| self.seen().and_then(|(serial, ts)| Some((serial, ts?))))
    }

    /// The version that it has surely written, with its stamp.
    pub fn written(&self) -> Option<(u64, u64)> {
        let (Outcome::Created { ts } | Outcome::Replaced { ts }) = self.outcome else {
            return None;
        };
        self.action.serial().map(|serial| (serial, ts))
    }
}
