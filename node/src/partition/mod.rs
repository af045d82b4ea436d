//! Partitions as the node runs them: what can be asked of one, and who answers.

mod budget;
mod cost;
mod indexer;
mod meter;
mod replica;
mod service;
#[cfg(test)]
mod simulation;
mod sweeper;
#[cfg(test)]
mod throttling;
mod waiting;

use std::time::Duration;

use bytes::Bytes;
use ephemeris_store::catalog::ContainerDefinition;
use ephemeris_store::change_feed::{FeedPage, FeedRefusal, FeedStart, HistoryStart, RowForm};
use ephemeris_store::charge::Charge;
use ephemeris_store::command::{Action, Effect, ItemWrite, Refused, Written};
use ephemeris_store::ids::{ItemNumber, NodeId};
use ephemeris_store::ids::{Lsn, ReplicaId};
use ephemeris_store::indexing::{IndexRules, UniqueKeys};
use ephemeris_store::item::{Item, ItemKey, LogicalPartition, Stamp};
use ephemeris_store::partition::{Backlog, Retention};
use ephemeris_store::query::{Page, PageLimits, Parameters, QueryError, Resume, Scope};
use ephemeris_store::time::{Millis, Seconds};
use ephemeris_store::timeline::FeedPosition;
use ephemeris_store::ttl::{PolicyEpoch, TtlPolicy};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub(crate) use budget::Burst;
pub(crate) use meter::Gauges;
pub(crate) use replica::{LocalReplica, ReplicaContext, start_replica};
pub(crate) use service::PartitionService;

/// A leader looks after its partition this often though nothing happens in it.
const NAP_MAX: Duration = Duration::from_secs(5);

/// How fresh a replica must be to answer a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadLevel {
    /// As fresh as everything acknowledged before the read: only the leader can tell.
    Linearizable,
    /// At least as fresh as this entry.
    AtLeast(Lsn),
    /// However fresh it is.
    Any,
}

impl ReadLevel {
    /// The level that is as fresh as this entry, too.
    pub(crate) fn and_at_least(self, lsn: Lsn) -> Self {
        match self {
            Self::Linearizable => Self::Linearizable,
            Self::AtLeast(seen) => Self::AtLeast(seen.max(lsn)),
            Self::Any => Self::AtLeast(lsn),
        }
    }
}

/// What a request costs, next to what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Price {
    /// As much.
    Once,
    /// Twice as much: a read that had to be as fresh as everything acknowledged.
    Twice,
}

impl Price {
    /// What a client pays for a read at this level, whoever answers it.
    pub(crate) fn of(level: ReadLevel) -> Self {
        match level {
            ReadLevel::Linearizable => Self::Twice,
            ReadLevel::AtLeast(_) | ReadLevel::Any => Self::Once,
        }
    }

    /// What is paid for what costs so much.
    pub(crate) fn times(self, charge: Charge) -> Charge {
        match self {
            Self::Once => charge,
            Self::Twice => charge + charge,
        }
    }
}

/// What can be asked of a partition: of its leader, and reads of any replica.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum PartitionRequest {
    /// Writes to items, all or none.
    Write(Vec<ItemWrite>),
    /// Reads one item.
    Read(ItemKey),
    /// Finds the item a `_rid` names.
    Find(ItemNumber),
    /// Runs a page of a query.
    Query(Box<QueryRequest>),
    /// Sets what the container's definition says, unless a newer one is set already.
    SetPolicies {
        /// Counts the container's policy changes.
        epoch: PolicyEpoch,
        /// What it says.
        policies: Box<Policies>,
    },
    /// Reads a page of changes.
    Changes(Box<ChangesRequest>),
    /// Deletes all items of a logical partition.
    Clear(LogicalPartition),
    /// How much there is.
    Statistics,
    /// What expires, and what waits to be swept.
    TtlStatus,
}

impl PartitionRequest {
    /// True if a node that speaks our language can give this answer. The gateway relies on it; a node
    /// that answers anything else must not bring this one down.
    pub(crate) fn is_answered_by(&self, response: &PartitionResponse) -> bool {
        match (self, response) {
            (Self::Write(writes), PartitionResponse::Written { result: Ok(written), .. }) => {
                writes.len() == written.len()
                    && writes.iter().zip(written).all(|(write, one)| can_do(write, one.effect))
            }
            (Self::Write(writes), PartitionResponse::Written { result: Err(refused), .. }) => {
                usize::from(refused.operation) < writes.len()
            }
            (Self::Read(_), PartitionResponse::Read { .. })
            | (Self::Find(_), PartitionResponse::Found(_))
            | (
                Self::Query(_),
                PartitionResponse::Page { .. }
                | PartitionResponse::QueryRefused(_)
                | PartitionResponse::QueryStopped,
            )
            | (
                Self::Changes(_),
                PartitionResponse::Changes { .. } | PartitionResponse::ChangesRefused(_),
            )
            | (Self::Clear(_), PartitionResponse::Cleared(_))
            | (Self::SetPolicies { .. }, PartitionResponse::PolicySet(_))
            | (Self::Statistics, PartitionResponse::Statistics(_))
            | (Self::TtlStatus, PartitionResponse::TtlStatus(_)) => true,
            _ => false,
        }
    }
}

/// True if a write can have had this effect.
fn can_do(write: &ItemWrite, effect: Effect) -> bool {
    match &write.action {
        Action::Create(_) => effect == Effect::Created,
        Action::Upsert(_) => matches!(effect, Effect::Created | Effect::Replaced),
        Action::Replace(_) | Action::Patch(_) | Action::Rename { .. } => effect == Effect::Replaced,
        Action::Delete => effect == Effect::Deleted,
        Action::Read => matches!(effect, Effect::Read | Effect::NotModified),
    }
}

/// What a container's definition says of its partitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Policies {
    /// How long items live.
    pub(crate) ttl: TtlPolicy,
    /// How long what happens to items is remembered.
    pub(crate) retention: Option<Retention>,
    /// What is indexed.
    pub(crate) index: IndexRules,
    /// What is unique; it never changes.
    pub(crate) unique_keys: UniqueKeys,
}

impl Policies {
    /// What this definition says.
    pub(crate) fn of(definition: &ContainerDefinition) -> Self {
        Self {
            ttl: definition.ttl(),
            retention: definition.retention(),
            index: definition.rules().index().clone(),
            unique_keys: definition.unique_keys().clone(),
        }
    }
}

/// One page of a query at one partition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct QueryRequest {
    /// The query; none for all items as they are.
    pub(crate) query: Option<(String, Parameters)>,
    /// Which items it is about.
    pub(crate) scope: Scope,
    /// Where to go on.
    pub(crate) resume: Option<Resume>,
    /// How much to return.
    pub(crate) limits: PageLimits,
    /// The instant of the query's first page.
    pub(crate) first: Millis,
    /// Decides what `RAND` gives.
    pub(crate) seed: u64,
    /// How long the one who asks waits for the page.
    pub(crate) patience: Duration,
}

/// One page of the change feed of one partition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ChangesRequest {
    /// Which feed, and where to begin.
    pub(crate) feed: Feed,
    /// Which items it is about.
    pub(crate) scope: Scope,
    /// How much to return.
    pub(crate) limits: PageLimits,
}

/// A mode of the change feed, and where a reader of it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Feed {
    /// The last version of every item.
    LatestVersion(FeedStart, RowForm),
    /// Everything that happened, as far as it is remembered.
    AllVersions(HistoryStart),
}

impl Feed {
    /// The same feed, behind what was read.
    pub(crate) fn behind(self, through: FeedPosition) -> Self {
        match self {
            Self::LatestVersion(_, form) => {
                Self::LatestVersion(FeedStart::After(through.lsn), form)
            }
            Self::AllVersions(_) => Self::AllVersions(HistoryStart::After(through)),
        }
    }
}

/// What a partition answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum PartitionResponse {
    /// What became of writes.
    Written {
        /// The entry that did it.
        lsn: Lsn,
        /// What it did.
        result: Result<Vec<Written>, Refused>,
    },
    /// An item, or that there is none.
    Read {
        /// The last entry applied when it was read.
        lsn: Lsn,
        /// The item.
        item: Option<ReadItem>,
    },
    /// The item a number belongs to.
    Found(Option<ItemKey>),
    /// A page.
    Page {
        /// The last entry applied when it was read.
        lsn: Lsn,
        /// The page.
        page: Page,
    },
    /// The query cannot be answered, here or anywhere.
    QueryRefused(QueryError),
    /// The query takes longer than a page may take, and cannot be cut into shorter ones.
    QueryStopped,
    /// A page of changes.
    Changes {
        /// The last entry applied when it was read.
        lsn: Lsn,
        /// The page.
        page: FeedPage,
    },
    /// There is no such feed, or nothing to go on with.
    ChangesRefused(FeedRefusal),
    /// The logical partition is empty since this entry.
    Cleared(Lsn),
    /// The policy in force.
    PolicySet(PolicyEpoch),
    /// How much there is.
    Statistics(PartitionStatistics),
    /// What expires, and what waits to be swept.
    TtlStatus(TtlStatus),
}

impl PartitionResponse {
    /// How far the partition was, if the client is told.
    pub(crate) fn lsn(&self) -> Option<Lsn> {
        match self {
            Self::Written { lsn, .. }
            | Self::Read { lsn, .. }
            | Self::Page { lsn, .. }
            | Self::Changes { lsn, .. }
            | Self::Cleared(lsn) => Some(*lsn),
            Self::Found(_)
            | Self::ChangesRefused(_)
            | Self::QueryRefused(_)
            | Self::QueryStopped
            | Self::PolicySet(_)
            | Self::Statistics(_)
            | Self::TtlStatus(_) => None,
        }
    }
}

/// An item on its way to the gateway.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReadItem {
    /// What the system keeps of it.
    pub(crate) stamp: Stamp,
    /// What the user wrote.
    pub(crate) body: Bytes,
}

impl From<Item> for ReadItem {
    fn from(item: Item) -> Self {
        Self { stamp: item.stamp, body: item.body }
    }
}

/// How much a partition holds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PartitionStatistics {
    /// Items with rows; expired ones count until they are swept.
    pub(crate) items: u64,
    /// Bytes of their bodies.
    pub(crate) bytes: u64,
    /// How much of the indexing policy is carried out, in percent.
    pub(crate) indexed_percent: u8,
}

/// What expires in a partition, as its leader knows.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct TtlStatus {
    /// The policy in force.
    pub(crate) policy: TtlPolicy,
    /// Items with rows.
    pub(crate) items: u64,
    /// Those of them that are dead.
    pub(crate) backlog: Backlog,
    /// Dead items removed in a second, on average of the last ten.
    pub(crate) swept_per_second: f64,
    /// When something falls due, at the earliest.
    pub(crate) due: Option<Seconds>,
    /// The partition clock.
    pub(crate) clock: Millis,
    /// The node's clock, at the latest.
    pub(crate) now: Millis,
    /// True if something may expire by the node's clock.
    pub(crate) clock_is_sure: bool,
    /// How uncertain that clock is; none if a majority never agreed.
    pub(crate) clock_width_ms: Option<u64>,
    /// True while the dead are kept after a jump of the clock.
    pub(crate) keeps_the_dead: bool,
}

/// Why a partition did not answer.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PartitionError {
    /// There is no such partition here, or it is not ready; nothing was executed.
    #[error("the partition is not here")]
    NotHere,
    /// Another replica leads; nothing was executed.
    #[error("another replica leads")]
    NotLeader {
        /// Which, if it is known.
        leader: Option<ReplicaId>,
    },
    /// A write whose outcome is not known.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// Whether an item has expired could not be settled; nothing was executed.
    #[error("the partition clock could not be advanced: {0}")]
    Doubtful(String),
    /// This node's storage failed.
    #[error("storage: {0}")]
    Fault(String),
    /// The partition's request units are spent; nothing was executed.
    #[error("the request units are spent for {} ms", retry_after.as_millis())]
    Throttled {
        /// When there are some again.
        retry_after: Duration,
    },
}

impl PartitionError {
    /// The node to try next.
    pub(crate) fn leader_hint(&self) -> Option<NodeId> {
        match self {
            PartitionError::NotLeader { leader } => leader.map(|leader| leader.node),
            PartitionError::NotHere
            | PartitionError::Unknown(_)
            | PartitionError::Doubtful(_)
            | PartitionError::Fault(_)
            | PartitionError::Throttled { .. } => None,
        }
    }
}
