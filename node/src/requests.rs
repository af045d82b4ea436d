//! What nodes ask of each other beside Raft, and how a request finds the node that can answer it.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "every answer but the one asked for, of today or tomorrow, is a fault"
)]

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ephemeris_raft::TransportError;
use ephemeris_store::catalog::{CatalogCommand, CatalogOutcome};
use ephemeris_store::codec;
use ephemeris_store::ids::{GroupId, Lsn, NodeId, ReplicaId};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tracing::warn;

use crate::clock::{self, ClockStatus, Instant};
use crate::node::Node;
use crate::partition::{
    LocalReplica, PartitionError, PartitionRequest, PartitionResponse, Price, ReadLevel,
};
use crate::transport::Channel;

/// A request from one node to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum NodeRequest {
    /// For the leader of a partition, at a price.
    Partition(GroupId, PartitionRequest, Price),
    /// For the leader of the catalog: change it.
    Catalog(CatalogCommand),
    /// For the leader of the catalog: how far must a copy be to hold everything committed?
    CatalogBarrier,
    /// For any node: is the cluster formed, and do you know me?
    Probe,
    /// For any node: what do you run?
    Describe,
    /// For any node: answer when your copy of the catalog has this entry.
    AwaitCatalog(Lsn),
    /// For any node: what does your wall clock say?
    Clock,
    /// For the leader of a group: hand over to this replica.
    Transfer(GroupId, ReplicaId),
    /// For the leader of a group: who are the members?
    Members(GroupId),
    /// For the leader of the catalog: with which data directory do you know me?
    KnownDirectory,
}

impl NodeRequest {
    /// True if this is an answer to the request, and not to another one.
    fn is_answered_by(&self, response: &NodeResponse) -> bool {
        match (self, response) {
            (Self::Partition(_, request, _), NodeResponse::Partition(Ok(answer))) => {
                request.is_answered_by(answer)
            }
            (Self::Partition(..), NodeResponse::Partition(Err(_)))
            | (Self::Catalog(_), NodeResponse::Catalog(_))
            | (Self::CatalogBarrier, NodeResponse::CatalogBarrier(_))
            | (Self::Probe, NodeResponse::Probe(_))
            | (Self::Describe, NodeResponse::Describe(_))
            | (Self::AwaitCatalog(_), NodeResponse::AwaitCatalog)
            | (Self::Clock, NodeResponse::Clock(_))
            | (Self::Transfer(..), NodeResponse::Transfer)
            | (Self::Members(_), NodeResponse::Members(_))
            | (Self::KnownDirectory, NodeResponse::KnownDirectory(_)) => true,
            _ => false,
        }
    }
}

/// The answer to one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum NodeResponse {
    /// What the partition answered.
    Partition(Result<PartitionResponse, PartitionError>),
    /// What became of the change.
    Catalog(Result<CatalogOutcome, PartitionError>),
    /// The entry a copy must have applied.
    CatalogBarrier(Result<Lsn, PartitionError>),
    /// What the node knows.
    Probe(Probed),
    /// What the node runs.
    Describe(Box<NodeDescription>),
    /// The entry is there, or does not come.
    AwaitCatalog,
    /// Microseconds since 1970.
    Clock(i64),
    /// The handover was asked for.
    Transfer,
    /// The members, if the node leads the group.
    Members(Result<BTreeSet<ReplicaId>, PartitionError>),
    /// The directory, if the node is known.
    KnownDirectory(Result<Option<u128>, PartitionError>),
}

/// What a node knows of the one that asks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Probed {
    /// True if there is a cluster.
    pub(crate) formed: bool,
    /// The data directory the asking node is known with.
    pub(crate) known_directory: Option<u128>,
}

/// What a node runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeDescription {
    /// The node.
    pub(crate) node: NodeId,
    /// Version of the program.
    pub(crate) version: String,
    /// Its clock; none of a node alone.
    pub(crate) clock: Option<ClockStatus>,
    /// True if it is about to stop.
    pub(crate) draining: bool,
    /// True if its disk hangs, or did a moment ago.
    pub(crate) hung: bool,
    /// Its replicas.
    pub(crate) replicas: Vec<ReplicaDescription>,
}

impl NodeDescription {
    /// True if it may lead, and may get new replicas.
    pub(crate) fn is_able(&self) -> bool {
        !self.draining && !self.hung
    }
}

/// What a replica says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReplicaDescription {
    /// The group.
    pub(crate) group: GroupId,
    /// The replica.
    pub(crate) replica: ReplicaId,
    /// Who leads, as far as it knows.
    pub(crate) leader: Option<ReplicaId>,
    /// The term.
    pub(crate) term: u64,
    /// The last entry in its log.
    pub(crate) last: Option<u64>,
    /// The last entry it applied.
    pub(crate) applied: Option<u64>,
    /// What it stores; none for the catalog.
    pub(crate) stored: Option<Stored>,
    /// Replicas that vote.
    pub(crate) voters: BTreeSet<ReplicaId>,
    /// True while it changes from other voters to these, and needs a majority of either.
    pub(crate) is_joint: bool,
    /// Why it has stopped, if it has.
    pub(crate) stopped: Option<String>,
}

/// What a replica of a partition stores, as of an entry.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Stored {
    /// The last entry that is in it.
    pub(crate) entry: u64,
    /// Items with rows, dead but unswept ones included.
    pub(crate) items: u64,
    /// Checksum over everything ever changed: replicas have the same after the same entry.
    pub(crate) digest: u32,
}

/// Why a request found no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum RequestError {
    /// Nobody could execute it in time; surely not executed.
    #[error("no leader answered in time")]
    NotExecuted,
    /// Whether an item has expired could not be settled; surely not executed.
    #[error("whether the item has expired cannot be settled right now: {0}")]
    Doubtful(String),
    /// The partition does not exist any more; surely not executed.
    #[error("the partition does not exist any more")]
    Gone,
    /// A write that may have been executed, or not.
    #[error("the outcome of the write is unknown: {0}")]
    Unknown(String),
    /// Storage failed where it matters.
    #[error("{0}")]
    Fault(String),
    /// The partition's request units are spent; surely not executed.
    #[error("the partition's request units are spent for {} ms", retry_after.as_millis())]
    Throttled {
        /// When there are some again.
        retry_after: Duration,
    },
}

/// First and longest pause between attempts.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// How long a change of the catalog waits for the nodes that do not lead it.
const SPREAD_DEADLINE: Duration = Duration::from_millis(500);
/// Least time an attempt is given.
const ATTEMPT_MIN: Duration = Duration::from_millis(50);

/// Whether a request that got no answer may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    /// It changes nothing.
    Freely,
    /// Only if it was surely not executed.
    IfNotExecuted,
}

impl Repeat {
    /// What holds for a request to a partition.
    fn of(request: &PartitionRequest) -> Self {
        match request {
            PartitionRequest::Write(_) | PartitionRequest::Clear(_) => Repeat::IfNotExecuted,
            PartitionRequest::Read(_)
            | PartitionRequest::Find(_)
            | PartitionRequest::Query(_)
            | PartitionRequest::Changes(_)
            | PartitionRequest::SetPolicies { .. }
            | PartitionRequest::Statistics
            | PartitionRequest::TtlStatus => Repeat::Freely,
        }
    }
}

/// One attempt's end.
enum Attempt {
    Done(NodeResponse),
    /// Try again, there if it is known where.
    Again(Option<NodeId>),
    Failed(RequestError),
}

impl Node {
    /// Answers a read: by the replica on this node, if it is or becomes as fresh as it must be and nothing it
    /// found is in doubt, or else by the leader.
    pub(crate) async fn read_partition(
        &self,
        group: GroupId,
        request: PartitionRequest,
        level: ReadLevel,
        deadline: Instant,
    ) -> Result<PartitionResponse, RequestError> {
        match self.read_here(group, &request, level, deadline).await {
            Some(response) => Ok(response),
            None => self.ask_leader(group, request, Price::of(level), deadline).await,
        }
    }

    /// What the replica on this node answers; nothing if it is for the leader to answer.
    async fn read_here(
        &self,
        group: GroupId,
        request: &PartitionRequest,
        level: ReadLevel,
        deadline: Instant,
    ) -> Option<PartitionResponse> {
        let local = self.member_here(group)?;
        let leads = local.group().leadership().is_me;
        if leads && level == ReadLevel::Linearizable {
            return None;
        }
        let answering = local.service().answer_here(request.clone(), level);
        let response = tokio::time::timeout_at(deadline, answering).await.ok()?.ok();
        match (&response, leads) {
            (Some(_), false) => metrics::counter!("follower_reads_total").increment(1),
            (None, false) => metrics::counter!("follower_reads_passed_on_total").increment(1),
            (_, true) => {}
        }
        response
    }

    /// The replica on this node, if the catalog counts it as one: another gets no entries any more. Before the
    /// node knows what the catalog decided while it was away, it can tell neither that, nor by which policy
    /// items live.
    fn member_here(&self, group: GroupId) -> Option<Arc<LocalReplica>> {
        if !self.is_caught_up() {
            return None;
        }
        let directory = self.directory().current();
        let record = directory.state().partition(group)?;
        let local = self.local_partition(group)?;
        record.replicas.contains(&local.group().replica()).then_some(local)
    }

    /// The last entry that this node's clients were told of.
    pub(crate) fn told(&self, group: GroupId) -> Lsn {
        self.local_partition(group).map_or(Lsn(0), |local| local.service().told())
    }

    /// Asks a partition's leader, wherever it is, until the deadline.
    pub(crate) async fn ask_partition(
        &self,
        group: GroupId,
        request: PartitionRequest,
        deadline: Instant,
    ) -> Result<PartitionResponse, RequestError> {
        self.ask_leader(group, request, Price::Once, deadline).await
    }

    async fn ask_leader(
        &self,
        group: GroupId,
        request: PartitionRequest,
        price: Price,
        deadline: Instant,
    ) -> Result<PartitionResponse, RequestError> {
        let repeat = Repeat::of(&request);
        let request = NodeRequest::Partition(group, request, price);
        match self.at_leader(group, &request, repeat, deadline).await? {
            NodeResponse::Partition(Ok(response)) => {
                if let (Some(local), Some(lsn)) = (self.local_partition(group), response.lsn()) {
                    local.service().tell(lsn);
                }
                Ok(response)
            }
            other => Err(unexpected(&other, repeat)),
        }
    }

    /// Changes the catalog, wherever its leader is, and waits until this node's copy shows it, or the deadline.
    pub(crate) async fn change_catalog(
        &self,
        command: CatalogCommand,
        deadline: Instant,
    ) -> Result<CatalogOutcome, RequestError> {
        let (group, request) = (GroupId::CATALOG, NodeRequest::Catalog(command));
        let repeat = Repeat::IfNotExecuted;
        match self.at_leader(group, &request, repeat, deadline).await? {
            NodeResponse::Catalog(Ok(outcome)) => {
                // A node that was forgotten hears of nothing any more.
                self.wait_for_catalog(outcome.lsn, deadline).await;
                Ok(outcome)
            }
            other => Err(unexpected(&other, repeat)),
        }
    }

    /// Returns when this node's copy of the catalog holds everything committed before the call.
    pub(crate) async fn catalog_barrier(&self, deadline: Instant) -> Result<(), RequestError> {
        let asked = clock::monotonic();
        let (group, request) = (GroupId::CATALOG, NodeRequest::CatalogBarrier);
        let repeat = Repeat::Freely;
        match self.at_leader(group, &request, repeat, deadline).await? {
            NodeResponse::CatalogBarrier(Ok(lsn)) => {
                if self.wait_for_catalog(lsn, deadline).await {
                    self.note_catalog_as_of(asked);
                    Ok(())
                } else {
                    Err(RequestError::NotExecuted)
                }
            }
            other => Err(unexpected(&other, repeat)),
        }
    }

    /// Tries a group's leader, and whoever may be it, until one answers or time is up.
    async fn at_leader(
        &self,
        group: GroupId,
        request: &NodeRequest,
        repeat: Repeat,
        deadline: Instant,
    ) -> Result<NodeResponse, RequestError> {
        let mut pause = PAUSE_MIN;
        loop {
            let left = deadline.saturating_duration_since(clock::monotonic());
            let target = self.leader_candidate(group);
            let tried = match target {
                Some(target) if !left.is_zero() => {
                    self.attempt(target, request, repeat, left).await
                }
                Some(_) | None => Attempt::Again(None),
            };
            match tried {
                Attempt::Done(response) => return Ok(response),
                Attempt::Failed(error) => {
                    if let (RequestError::Unknown(_), Some(target)) = (&error, target) {
                        self.pass_over(group, target);
                    }
                    return Err(error);
                }
                Attempt::Again(Some(hint)) if Some(hint) != target => {
                    self.hint_leader(group, hint);
                }
                Attempt::Again(_) => {
                    if let Some(target) = target {
                        self.pass_over(group, target);
                    }
                }
            }
            if self.is_gone(group) {
                self.forget_leader(group);
                return Err(RequestError::Gone);
            }
            let left = deadline.saturating_duration_since(clock::monotonic());
            if left <= pause {
                return Err(RequestError::NotExecuted);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Asks one node, which may be this one.
    async fn attempt(
        &self,
        target: NodeId,
        request: &NodeRequest,
        repeat: Repeat,
        left: Duration,
    ) -> Attempt {
        if target != self.node_id() {
            // A node that hangs must leave time to ask another.
            let patience = if is_soon_answered(request, repeat) { left / 2 } else { left };
            return match self.send(target, request, patience.max(ATTEMPT_MIN)).await {
                Ok(response) => judge(request, response, repeat),
                Err(error) => no_answer(&error, repeat),
            };
        }
        match tokio::time::timeout(left, self.answer(target, request.clone())).await {
            Ok(response) => judge(request, response, repeat),
            // Dropped in the middle: a write may have been executed.
            Err(_) => match repeat {
                Repeat::Freely => Attempt::Again(None),
                Repeat::IfNotExecuted => {
                    Attempt::Failed(RequestError::Unknown("no answer in time".into()))
                }
            },
        }
    }

    /// True if the catalog does not know the group any more.
    fn is_gone(&self, group: GroupId) -> bool {
        group != GroupId::CATALOG && self.directory().current().state().partition(group).is_none()
    }

    /// Waits until every node that can be reached shows a change of the catalog, so that a client
    /// finds it through any of them.
    pub(crate) async fn spread_catalog(&self, lsn: Lsn) {
        let directory = self.directory().current();
        let me = self.node_id();
        let others: Vec<NodeId> = directory
            .state()
            .nodes()
            .map(|record| record.node)
            .filter(|node| *node != me)
            .collect();
        let request = NodeRequest::AwaitCatalog(lsn);
        let waits = others.into_iter().map(|node| self.send(node, &request, SPREAD_DEADLINE));
        // A node that does not answer catches up by itself; nobody else waits for it.
        futures_util::future::join_all(waits).await;
    }

    /// Sends a request to another node.
    pub(crate) async fn send(
        &self,
        node: NodeId,
        request: &NodeRequest,
        deadline: Duration,
    ) -> Result<NodeResponse, TransportError> {
        let message = Bytes::from(codec::encode(request));
        let answer = self.transport().send(node, Channel::Requests, message, deadline).await?;
        codec::decode(&answer).map_err(|error| {
            // It is an answer, so the request may have been carried out: no refusal.
            warn!(%node, %error, "an answer cannot be read");
            TransportError::NoAnswer { node, waited: deadline }
        })
    }

    /// Answers another node's request.
    pub(crate) async fn answer(&self, from: NodeId, request: NodeRequest) -> NodeResponse {
        // What is rare is boxed, or a request to a partition would take as much room.
        match request {
            NodeRequest::Partition(group, request, price) => {
                let result = match self.local_partition(group) {
                    Some(local) => {
                        local.service().answer(request, ReadLevel::Linearizable, price).await
                    }
                    None => Err(PartitionError::NotHere),
                };
                NodeResponse::Partition(result)
            }
            NodeRequest::Catalog(command) => {
                NodeResponse::Catalog(Box::pin(self.propose_to_catalog(command)).await)
            }
            NodeRequest::CatalogBarrier => {
                NodeResponse::CatalogBarrier(Box::pin(self.read_catalog_barrier()).await)
            }
            NodeRequest::Probe => {
                let formed = self.cluster().is_some() || Box::pin(self.catalog().is_formed()).await;
                let directory = self.directory().current();
                let known = directory.state().node(from);
                let known_directory = known.map(|record| record.directory);
                NodeResponse::Probe(Probed { formed, known_directory })
            }
            NodeRequest::Describe => NodeResponse::Describe(Box::new(self.describe())),
            NodeRequest::AwaitCatalog(lsn) => {
                let deadline = clock::monotonic() + SPREAD_DEADLINE;
                Box::pin(self.wait_for_catalog(lsn, deadline)).await;
                NodeResponse::AwaitCatalog
            }
            NodeRequest::Clock => NodeResponse::Clock(self.wall_micros()),
            NodeRequest::Transfer(group, to) => {
                Box::pin(self.transfer_leadership(group, to)).await;
                NodeResponse::Transfer
            }
            NodeRequest::Members(group) => NodeResponse::Members(self.members(group)),
            NodeRequest::KnownDirectory => {
                NodeResponse::KnownDirectory(Box::pin(self.known_directory(from)).await)
            }
        }
    }
}

/// True if a request can be sent to another node as well, and an answer that is not there after half of the time
/// will not come: pages of queries take the time that the gateway has told them.
fn is_soon_answered(request: &NodeRequest, repeat: Repeat) -> bool {
    let is_page = matches!(request, NodeRequest::Partition(_, PartitionRequest::Query(_), _));
    repeat == Repeat::Freely && !is_page
}

/// What an answer means for the attempt.
fn judge(request: &NodeRequest, response: NodeResponse, repeat: Repeat) -> Attempt {
    if !request.is_answered_by(&response) {
        return Attempt::Failed(unexpected(&response, repeat));
    }
    let error = match &response {
        NodeResponse::Partition(Err(error))
        | NodeResponse::Catalog(Err(error))
        | NodeResponse::CatalogBarrier(Err(error))
        | NodeResponse::Members(Err(error))
        | NodeResponse::KnownDirectory(Err(error)) => error.clone(),
        NodeResponse::Partition(Ok(_))
        | NodeResponse::Catalog(Ok(_))
        | NodeResponse::CatalogBarrier(Ok(_))
        | NodeResponse::Members(Ok(_))
        | NodeResponse::KnownDirectory(Ok(_))
        | NodeResponse::Probe(_)
        | NodeResponse::Describe(_)
        | NodeResponse::Clock(_)
        | NodeResponse::Transfer
        | NodeResponse::AwaitCatalog => return Attempt::Done(response),
    };
    match error {
        PartitionError::NotHere | PartitionError::NotLeader { .. } => {
            Attempt::Again(error.leader_hint())
        }
        PartitionError::Unknown(reason) => match repeat {
            Repeat::Freely => Attempt::Again(None),
            Repeat::IfNotExecuted => Attempt::Failed(RequestError::Unknown(reason)),
        },
        PartitionError::Doubtful(reason) => Attempt::Failed(RequestError::Doubtful(reason)),
        PartitionError::Fault(reason) => Attempt::Failed(RequestError::Fault(reason)),
        // Whoever waits is the client: no other node has more to give.
        PartitionError::Throttled { retry_after } => {
            Attempt::Failed(RequestError::Throttled { retry_after })
        }
    }
}

/// A node that answers another question than it was asked runs another version, and may have done what it
/// was asked.
fn unexpected(response: &NodeResponse, repeat: Repeat) -> RequestError {
    let reason = format!("a node answered {response:?}, which was not the question");
    match repeat {
        Repeat::Freely => RequestError::Fault(reason),
        Repeat::IfNotExecuted => RequestError::Unknown(reason),
    }
}

fn no_answer(error: &TransportError, repeat: Repeat) -> Attempt {
    match (error, repeat) {
        (TransportError::NoAnswer { .. }, Repeat::IfNotExecuted) => {
            Attempt::Failed(RequestError::Unknown(error.to_string()))
        }
        (
            TransportError::NoAnswer { .. }
            | TransportError::Unreachable(_)
            | TransportError::Refused { .. },
            _,
        ) => Attempt::Again(None),
    }
}

impl crate::transport::RequestHandler for Node {
    fn handle(
        &self,
        from: NodeId,
        request: Bytes,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>> {
        let node = self.clone();
        Box::pin(async move {
            let request = codec::decode(&request).map_err(|error| error.to_string())?;
            Ok(Bytes::from(codec::encode(&node.answer(from, request).await)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(2);

    fn request() -> NodeRequest {
        NodeRequest::Partition(GroupId(1), PartitionRequest::Write(Vec::new()), Price::Once)
    }

    fn refused(error: PartitionError, repeat: Repeat) -> Attempt {
        judge(&request(), NodeResponse::Partition(Err(error)), repeat)
    }

    /// What may have been done must not be done twice: a create would be refused by itself.
    #[test]
    fn a_write_of_unknown_outcome_is_never_sent_again() {
        assert_eq!(Repeat::of(&PartitionRequest::Write(Vec::new())), Repeat::IfNotExecuted);
        let lost = [
            refused(PartitionError::Unknown("cut off".into()), Repeat::IfNotExecuted),
            no_answer(
                &TransportError::NoAnswer { node: NODE, waited: Duration::ZERO },
                Repeat::IfNotExecuted,
            ),
        ];
        for attempt in lost {
            assert!(matches!(attempt, Attempt::Failed(RequestError::Unknown(_))));
        }
    }

    #[test]
    fn what_was_surely_not_executed_is_tried_elsewhere() {
        let leader = Some(ReplicaId { node: NODE, incarnation: 0 });
        let elsewhere = refused(PartitionError::NotLeader { leader }, Repeat::IfNotExecuted);
        assert!(matches!(elsewhere, Attempt::Again(Some(NODE))));
        let unreachable = no_answer(&TransportError::Unreachable(NODE), Repeat::IfNotExecuted);
        assert!(matches!(unreachable, Attempt::Again(None)));
        let lost = TransportError::NoAnswer { node: NODE, waited: Duration::ZERO };
        assert!(matches!(no_answer(&lost, Repeat::Freely), Attempt::Again(None)));
    }

    #[test]
    fn a_doubt_is_told_and_not_sent_about() {
        let doubtful = refused(PartitionError::Doubtful("clocks".into()), Repeat::Freely);
        assert!(matches!(doubtful, Attempt::Failed(RequestError::Doubtful(_))));
    }

    #[test]
    fn an_answer_to_another_question_is_a_fault_and_says_nothing_of_a_write() {
        let other = PartitionResponse::Statistics(crate::partition::PartitionStatistics::default());
        let answers = [
            NodeResponse::Partition(Ok(other)),
            NodeResponse::Transfer,
            NodeResponse::Members(Err(PartitionError::NotHere)),
        ];
        for answer in answers {
            let of_read = judge(&request(), answer.clone(), Repeat::Freely);
            assert!(matches!(of_read, Attempt::Failed(RequestError::Fault(_))), "{answer:?}");
            let of_write = judge(&request(), answer.clone(), Repeat::IfNotExecuted);
            assert!(matches!(of_write, Attempt::Failed(RequestError::Unknown(_))), "{answer:?}");
        }
    }

    #[test]
    fn a_throttled_request_is_not_tried_elsewhere() {
        let request = NodeRequest::Partition(GroupId(1), PartitionRequest::Statistics, Price::Once);
        let retry_after = Duration::from_millis(17);
        for repeat in [Repeat::Freely, Repeat::IfNotExecuted] {
            let refused = Err(PartitionError::Throttled { retry_after });
            let tried = judge(&request, NodeResponse::Partition(refused), repeat);
            let expected = RequestError::Throttled { retry_after };
            assert!(matches!(tried, Attempt::Failed(error) if error == expected), "{repeat:?}");
        }
    }
}
