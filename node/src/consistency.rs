//! The levels of consistency a client can ask for, as Cosmos names them.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How fresh reads are; the strongest level is the greatest.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[value(rename_all = "PascalCase")]
pub(crate) enum ConsistencyLevel {
    /// Any state the partition was ever in.
    Eventual,
    /// The same: replicas go through the states of their partition in one order.
    ConsistentPrefix,
    /// What the client was told before, as its session token says, and perhaps more.
    #[default]
    Session,
    /// Everything acknowledged: the bound of staleness is zero.
    BoundedStaleness,
    /// Everything acknowledged.
    Strong,
}

/// Why a client's wish for a level is refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum RefusedLevel {
    /// No such level.
    #[error("the value '{0}' is not a consistency level")]
    Unknown(String),
    /// No such strategy.
    #[error("the value '{0}' is not a read consistency strategy")]
    UnknownStrategy(String),
    /// What every region has acknowledged is known only where each acknowledges every write.
    #[error(
        "The read consistency strategy GlobalStrong needs an account whose consistency level is \
         Strong, and this one's is {0}. LatestCommitted reads all that was acknowledged at every \
         account."
    )]
    NotGlobal(&'static str),
    /// Two wishes that may contradict each other.
    #[error(
        "A request names a consistency level or a read consistency strategy, not both: \
         x-ms-consistency-level and x-ms-cosmos-read-consistency-strategy."
    )]
    Both,
    /// The account promises less.
    #[error(
        "ConsistencyLevel {wanted} specified in the request is invalid when service is configured \
         with consistency level {account}. Ensure the request consistency level is not stronger \
         than the service consistency level."
    )]
    Stronger {
        /// What the client wants.
        wanted: &'static str,
        /// The account's default.
        account: &'static str,
    },
}

impl ConsistencyLevel {
    const ALL: [Self; 5] = [
        Self::Eventual,
        Self::ConsistentPrefix,
        Self::Session,
        Self::BoundedStaleness,
        Self::Strong,
    ];

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Eventual => "Eventual",
            Self::ConsistentPrefix => "ConsistentPrefix",
            Self::Session => "Session",
            Self::BoundedStaleness => "BoundedStaleness",
            Self::Strong => "Strong",
        }
    }

    /// The level of a request, at an account with this default: clients can weaken it, and have a session
    /// wherever they bring its tokens.
    pub(crate) fn asked_for(self, wanted: Option<&str>) -> Result<Self, RefusedLevel> {
        let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else { return Ok(self) };
        let known = Self::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(wanted));
        match known {
            None => Err(RefusedLevel::Unknown(wanted.to_string())),
            Some(level) if level > self.max(Self::Session) => {
                Err(RefusedLevel::Stronger { wanted: level.name(), account: self.name() })
            }
            Some(level) => Ok(level),
        }
    }

    /// The level of a request that names a strategy, at an account with this default. Unlike a level,
    /// a strategy may ask for more than the account promises.
    pub(crate) fn by_strategy(self, strategy: &str) -> Result<Self, RefusedLevel> {
        match strategy {
            "Eventual" => Ok(Self::Eventual),
            "Session" => Ok(Self::Session),
            "LatestCommitted" => Ok(Self::BoundedStaleness),
            "GlobalStrong" if self == Self::Strong => Ok(Self::Strong),
            "GlobalStrong" => Err(RefusedLevel::NotGlobal(self.name())),
            unknown => Err(RefusedLevel::UnknownStrategy(unknown.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_may_weaken_and_never_strengthen_beyond_a_session() {
        let session = 2;
        for (at, account) in ConsistencyLevel::ALL.into_iter().enumerate() {
            assert_eq!(account.asked_for(None), Ok(account));
            assert_eq!(account.asked_for(Some("")), Ok(account));
            for (wanted_at, wanted) in ConsistencyLevel::ALL.into_iter().enumerate() {
                let asked = account.asked_for(Some(wanted.name()));
                assert_eq!(
                    asked.is_ok(),
                    wanted_at <= at.max(session),
                    "{wanted:?} at {account:?}"
                );
                assert!(asked.is_err() || asked == Ok(wanted));
            }
        }
    }

    #[test]
    fn a_stronger_level_is_refused_in_the_words_of_cosmos() {
        let refused = ConsistencyLevel::Session.asked_for(Some("Strong")).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "ConsistencyLevel Strong specified in the request is invalid when service is \
             configured with consistency level Session. Ensure the request consistency level is \
             not stronger than the service consistency level."
        );
    }

    #[test]
    fn a_strategy_may_ask_for_more_than_the_account_promises() {
        for account in ConsistencyLevel::ALL {
            let level = |strategy| account.by_strategy(strategy);
            assert_eq!(level("Eventual"), Ok(ConsistencyLevel::Eventual));
            assert_eq!(level("Session"), Ok(ConsistencyLevel::Session));
            assert_eq!(level("LatestCommitted"), Ok(ConsistencyLevel::BoundedStaleness));
            let global = level("GlobalStrong");
            match account {
                ConsistencyLevel::Strong => assert_eq!(global, Ok(ConsistencyLevel::Strong)),
                ConsistencyLevel::Eventual
                | ConsistencyLevel::ConsistentPrefix
                | ConsistencyLevel::Session
                | ConsistencyLevel::BoundedStaleness => {
                    assert_eq!(global, Err(RefusedLevel::NotGlobal(account.name())));
                }
            }
            for unknown in ["Strong", "BoundedStaleness", "latestcommitted", "Default", ""] {
                let refused = Err(RefusedLevel::UnknownStrategy(unknown.to_string()));
                assert_eq!(level(unknown), refused);
            }
        }
    }

    #[test]
    fn levels_are_known_by_name_and_by_nothing_else() {
        for known in ["Eventual", "eventual", "CONSISTENTPREFIX"] {
            assert!(ConsistencyLevel::Session.asked_for(Some(known)).is_ok(), "{known}");
        }
        for unknown in ["Weak", "1", " Session", "Consistent Prefix", "\u{e9}"] {
            let refused = ConsistencyLevel::Strong.asked_for(Some(unknown)).unwrap_err();
            assert_eq!(refused, RefusedLevel::Unknown(unknown.to_string()));
        }
    }

    #[test]
    fn settings_name_levels_as_headers_do() {
        for level in ConsistencyLevel::ALL {
            assert_eq!(serde_json::to_value(level).unwrap(), level.name());
            let value = clap::ValueEnum::to_possible_value(&level).unwrap();
            assert_eq!(value.get_name(), level.name());
        }
    }
}
