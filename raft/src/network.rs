//! The way from a leader to one follower, as openraft wants to see it.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "every answer but the one asked for, of today or tomorrow, breaks the protocol"
)]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ephemeris_store::ids::{GroupId, ReplicaId};
use ephemeris_store::machine::Machine;
use ephemeris_store::snapshot::Received;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::network::v2::RaftNetworkV2;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
    TransferLeaderError, TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RaftNetworkFactory};

use crate::pace::{ENTRIES_MIN, Follower, PAUSE, Pace};
use crate::snapshot::{Offer, Offers};
use crate::state_machine::{RaftSnapshot, SnapshotData};
use crate::storage::Executor;
use crate::transport::{Lane, Transport, TransportError};
use crate::types::{
    RaftVote, TypeConfig, from_raft_entry, from_raft_id, from_raft_vote, to_raft_id, to_raft_vote,
};
use crate::wire::{AppendResult, Envelope, Message, Request, Response, TransferRefused};

/// Append requests under way to one follower.
const PIPELINE_DEPTH: usize = 32;
/// How long a follower may take for one snapshot chunk.
const CHUNK_DEADLINE: Duration = Duration::from_secs(10);
/// Installing may take longer than any sensible deadline, so it is asked for again and again: so
/// often, this long each time.
const INSTALL_ATTEMPTS_MAX: u32 = 60;
const INSTALL_DEADLINE: Duration = Duration::from_secs(10);
/// Least time for an append: a follower's disk may be slower than a heartbeat.
const APPEND_DEADLINE_MIN: Duration = Duration::from_secs(2);

/// Makes the connections of one replica.
pub(crate) struct Network<M> {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) group: GroupId,
    pub(crate) machine: Arc<M>,
    pub(crate) executor: Executor,
    pub(crate) offers: Offers,
    pub(crate) pace: Pace,
    pub(crate) given_up: GivenUp,
}

/// Up to where the log goes although somebody has not got that far: openraft keeps what a stream of entries may still
/// have to send, and one to a slow follower never ends by itself. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct GivenUp(Arc<AtomicU64>);

impl GivenUp {
    /// Entries up to this one go.
    pub(crate) fn set(&self, index: u64) {
        self.0.fetch_max(index, Ordering::Relaxed);
    }

    /// True if a follower that has everything up to an entry needs a snapshot now.
    fn includes(&self, matching: u64) -> bool {
        matching < self.0.load(Ordering::Relaxed)
    }
}

/// The way to one replica.
pub(crate) struct Peer<M> {
    transport: Arc<dyn Transport>,
    group: GroupId,
    target: ReplicaId,
    lane: Lane,
    machine: Arc<M>,
    executor: Executor,
    offers: Offers,
    given_up: GivenUp,
    /// What it is to others that get entries; none on other lanes.
    follower: Option<Follower>,
}

impl<M: Machine> Network<M> {
    fn peer(&self, target: ReplicaId, lane: Lane) -> Peer<M> {
        Peer {
            transport: self.transport.clone(),
            group: self.group,
            target,
            lane,
            machine: self.machine.clone(),
            executor: self.executor,
            offers: self.offers.clone(),
            given_up: self.given_up.clone(),
            follower: (lane == Lane::Append).then(|| self.pace.follower(target)),
        }
    }
}

impl<M: Machine> RaftNetworkFactory<TypeConfig> for Network<M> {
    type Network = Peer<M>;

    async fn new_client(&mut self, target: ReplicaId, (): &()) -> Peer<M> {
        self.peer(target, Lane::Append)
    }

    async fn new_heartbeat_client(&mut self, target: ReplicaId, (): &()) -> Peer<M> {
        self.peer(target, Lane::Control)
    }

    async fn new_snapshot_client(&mut self, target: ReplicaId, (): &()) -> Peer<M> {
        self.peer(target, Lane::Snapshot)
    }
}

/// Why a call came to nothing.
enum CallError {
    Transport(TransportError),
    Protocol(String),
}

impl From<CallError> for RPCError<TypeConfig> {
    fn from(error: CallError) -> Self {
        match error {
            // Back off: the node is down, or does not know the group yet.
            CallError::Transport(
                error @ (TransportError::Unreachable(_) | TransportError::Refused { .. }),
            ) => RPCError::Unreachable(Unreachable::new(&error)),
            CallError::Transport(error @ TransportError::NoAnswer { .. }) => {
                RPCError::Network(NetworkError::new(&error))
            }
            CallError::Protocol(detail) => RPCError::Network(NetworkError::from_string(detail)),
        }
    }
}

impl From<CallError> for StreamingError<TypeConfig> {
    fn from(error: CallError) -> Self {
        match RPCError::from(error) {
            RPCError::Unreachable(error) => StreamingError::Unreachable(error),
            RPCError::Network(error) => StreamingError::Network(error),
            RPCError::Timeout(error) => StreamingError::Timeout(error),
            RPCError::RemoteError(error) => {
                StreamingError::Network(NetworkError::from_string(error))
            }
        }
    }
}

fn unexpected(response: &Response) -> CallError {
    match response {
        Response::Failed(reason) => CallError::Protocol(reason.clone()),
        other => CallError::Protocol(format!("an answer to another question: {other:?}")),
    }
}

impl<M: Machine> Peer<M> {
    /// Sends a request now; the future waits for the answer.
    fn call(
        &self,
        request: Request,
        deadline: Duration,
    ) -> impl Future<Output = Result<Response, CallError>> + Send + use<M> {
        self.call_in(self.lane, request, deadline)
    }

    fn call_in(
        &self,
        lane: Lane,
        request: Request,
        deadline: Duration,
    ) -> impl Future<Output = Result<Response, CallError>> + Send + use<M> {
        let envelope = Envelope { group: self.group, to: self.target, request };
        let node = self.target.node;
        let message = Message::Replica(envelope).encode();
        let answering = self.transport.call(node, lane, message, deadline);
        async move {
            let bytes: Bytes = answering.await.map_err(CallError::Transport)?;
            Response::decode(&bytes).map_err(|error| CallError::Protocol(error.to_string()))
        }
    }

    fn append(
        &self,
        request: AppendEntriesRequest<TypeConfig>,
        deadline: Duration,
    ) -> impl Future<Output = Result<StreamAppendResult<TypeConfig>, CallError>> + Send + use<M>
    {
        let previous = request.prev_log_id;
        let last = request.entries.last().map(|entry| entry.log_id).or(previous);
        let request = Request::Append {
            vote: from_raft_vote(&request.vote),
            previous: previous.map(from_raft_id),
            entries: request.entries.into_iter().map(from_raft_entry).collect(),
            committed: request.leader_commit.map(from_raft_id),
        };
        let call = self.call(request, deadline);
        async move {
            match call.await? {
                Response::Append(result) => {
                    Ok(append_response(result).into_stream_result(previous, last))
                }
                other => Err(unexpected(&other)),
            }
        }
    }

    /// The requests of a stream, each with all that has come since the one before: after some the next one is
    /// let wait.
    fn paced<S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin>(
        &self,
        input: S,
    ) -> impl Stream<Item = AppendEntriesRequest<TypeConfig>> {
        stream::unfold((input, false), move |(mut input, is_busy)| async move {
            if is_busy && self.follower.as_ref().is_some_and(Follower::may_wait) {
                tokio::time::sleep(PAUSE).await;
            }
            let request = input.next().await?;
            let is_busy = request.entries.len() >= ENTRIES_MIN;
            Some((request, (input, is_busy)))
        })
    }

    async fn ask_vote(
        &self,
        request: Request,
        deadline: Duration,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        // openraft asks with the client that appends: a vote does not wait behind entries.
        match self.call_in(Lane::Control, request, deadline).await? {
            Response::Vote { vote, granted, last } => {
                Ok(VoteResponse::new(to_raft_vote(vote), last.map(to_raft_id), granted))
            }
            other => Err(unexpected(&other).into()),
        }
    }

    /// Sends every chunk the receiver lacks, then has it install them.
    async fn send_snapshot(
        &self,
        vote: RaftVote,
        offer: &Offer,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let progress = offer.progress.clone();
        let position = progress.applied;
        let begin = Request::SnapshotBegin { progress: progress.clone() };
        let answer = self.ask_received(begin).await;
        if let Err(CallError::Transport(TransportError::NoAnswer { .. })) = answer {
            // It may read what it has of it already, which takes longer than a call: it is waited for once.
            offer.note_asked();
        }
        let mut received = answer?;
        while !received.complete {
            let bytes = self.make_chunk(offer, &received).await?;
            let chunk = Request::SnapshotChunk { position, received, bytes };
            received = self.ask_received(chunk).await?;
            offer.note_taken();
        }
        let install = Request::SnapshotInstall { vote: from_raft_vote(&vote), progress };
        let installed = self.install(install).await;
        offer.note_taken();
        Ok(SnapshotResponse::new(installed?))
    }

    /// Has the receiver install what it received, however long it takes.
    async fn install(&self, install: Request) -> Result<RaftVote, CallError> {
        let mut attempt = 1;
        loop {
            match self.call(install.clone(), INSTALL_DEADLINE).await {
                Ok(Response::SnapshotInstalled { vote }) => return Ok(to_raft_vote(vote)),
                Ok(other) => return Err(unexpected(&other)),
                Err(CallError::Transport(TransportError::NoAnswer { .. }))
                    if attempt < INSTALL_ATTEMPTS_MAX =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn ask_received(&self, request: Request) -> Result<Received, CallError> {
        match self.call(request, CHUNK_DEADLINE).await? {
            Response::SnapshotReceived(received) => Ok(received),
            other => Err(unexpected(&other)),
        }
    }

    async fn new_offer(&self) -> Offer {
        let (machine, group) = (self.machine.clone(), self.group);
        self.executor.run(move || Offer::new(&*machine, group)).await
    }

    /// Reads the rows of a chunk on a blocking thread.
    async fn make_chunk(&self, offer: &Offer, received: &Received) -> Result<Bytes, CallError> {
        let (offer, received) = (offer.clone(), received.clone());
        let made = self.executor.run(move || offer.chunk(&received)).await;
        made.map_err(|fault| CallError::Protocol(fault.to_string()))
    }
}

fn append_response(result: AppendResult) -> AppendEntriesResponse<TypeConfig> {
    match result {
        AppendResult::Success => AppendEntriesResponse::Success,
        AppendResult::PartialSuccess(last) => {
            AppendEntriesResponse::PartialSuccess(last.map(to_raft_id))
        }
        AppendResult::Conflict => AppendEntriesResponse::Conflict,
        AppendResult::HigherVote(vote) => AppendEntriesResponse::HigherVote(to_raft_vote(vote)),
    }
}

type AppendItem = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

impl<M: Machine> RaftNetworkV2<TypeConfig> for Peer<M> {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let deadline = option.soft_ttl().max(APPEND_DEADLINE_MIN);
        Ok(self.append(request, deadline).await?.into())
    }

    fn stream_append<S>(
        &mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'_, Result<BoxStream<'_, AppendItem>, RPCError<TypeConfig>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        let deadline = match self.lane {
            Lane::Append => option.soft_ttl().max(APPEND_DEADLINE_MIN),
            Lane::Control | Lane::Snapshot => option.soft_ttl(),
        };
        // Requests leave in order because `append` sends when it is called; answers are awaited in
        // the same order. After the first that is no plain success the stream ends, and also where the follower lags so
        // far behind that the log goes on without it.
        let peer = &*self;
        let requests = peer.paced(input);
        let answers = requests.map(move |request| peer.append(request, deadline));
        let answers = answers.buffered(PIPELINE_DEPTH).boxed();
        let begun = Some((answers, None));
        let stream = stream::unfold(begun, move |state: Option<(_, Option<u64>)>| async move {
            let (mut answers, matching) = state?;
            let is_given_up =
                |matching| peer.follower.is_some() && peer.given_up.includes(matching);
            if matching.is_some_and(is_given_up) {
                let reason = "the log goes on without it, it needs a snapshot";
                return Some((Err(NetworkError::from_string(reason).into()), None));
            }
            match BoxStream::next(&mut answers).await? {
                Ok(Ok(matching)) => {
                    let last = matching.as_ref().map(openraft::LogId::index);
                    if let (Some(follower), Some(last)) = (&peer.follower, last) {
                        follower.answered(last);
                    }
                    Some((Ok(Ok(matching)), Some((answers, last))))
                }
                Ok(Err(refused)) => Some((Ok(Err(refused)), None)),
                Err(error) => Some((Err(error.into()), None)),
            }
        });
        std::future::ready(Ok(stream.boxed())).boxed()
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let message = Request::Vote {
            vote: from_raft_vote(&request.vote),
            last: request.last_log_id.map(from_raft_id),
            transfer: request.leadership_transfer,
        };
        self.ask_vote(message, option.soft_ttl()).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let message = Request::PreVote {
            vote: from_raft_vote(&request.vote),
            last: request.last_log_id.map(from_raft_id),
        };
        self.ask_vote(message, option.soft_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        mark: RaftSnapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let receiver = self.target.as_u64();
        let _under_way = self.offers.begin();
        // openraft will believe that the follower has everything up to the mark, so an offer kept
        // from before the mark will not do.
        let marked = mark.meta.last_log_id.map(from_raft_id);
        let kept = self.offers.take(receiver);
        let offer = match kept.filter(|offer| offer.progress.applied >= marked) {
            Some(offer) => offer,
            None => self.new_offer().await,
        };
        if offer.progress.applied < marked {
            // The machine is being replaced by what another leader has.
            let reason = "there is no snapshot of what its mark says";
            return Err(StreamingError::Network(NetworkError::from_string(reason)));
        }
        let result = tokio::select! {
            biased;
            closed = cancel => Err(StreamingError::Closed(closed)),
            result = self.send_snapshot(vote, &offer) => result,
        };
        if result.is_err() {
            self.offers.keep(receiver, offer);
        }
        result
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let message = Request::TransferLeader {
            from: from_raft_vote(request.from_leader()),
            to: *request.to_node_id(),
            last: request.last_log_id().copied().map(from_raft_id),
        };
        match self.call_in(Lane::Control, message, option.soft_ttl()).await? {
            Response::TransferLeader(Ok(())) => Ok(Ok(())),
            Response::TransferLeader(Err(refused)) => Ok(Err(transfer_refused(refused))),
            other => Err(unexpected(&other).into()),
        }
    }
}

fn transfer_refused(refused: TransferRefused) -> TransferLeaderError<TypeConfig> {
    match refused {
        TransferRefused::VoteChanged { expected, actual } => TransferLeaderError::VoteChanged {
            expected: to_raft_vote(expected),
            actual: to_raft_vote(actual),
        },
        TransferRefused::LogNotFlushed { expected, actual } => TransferLeaderError::LogNotFlushed {
            expected: expected.map(to_raft_id),
            actual: actual.map(to_raft_id),
        },
    }
}
