//! Everything a client can be told instead of an answer, and the one place that makes it a status.
//!
//! A `Refusal` comes from `store`, is the same on every replica, and says what is wrong with the
//! request. A `RequestError` says that nobody could carry the request out.

use std::time::Duration;

use axum::http::StatusCode;
use ephemeris_store::binary_json::InvalidBinaryJson;
use ephemeris_store::catalog::{
    CatalogRefusal, InvalidDefinition, InvalidPermission, InvalidThroughput,
};
use ephemeris_store::charge::Charge;
use ephemeris_store::command::Refusal;
use ephemeris_store::document::InvalidDocument;
use ephemeris_store::ids::InvalidName;
use ephemeris_store::partition_key::InvalidKey;
use ephemeris_store::patch::{InvalidPatch, PatchFailure};
use ephemeris_store::query::QueryError;
use ephemeris_store::query::client_plan::PlanRefusal;
use thiserror::Error;

use super::headers::malformed;
use super::reply::DataHeaders;
use crate::consistency::RefusedLevel;
use crate::partition::Price;
use crate::requests::RequestError;

/// How long a client should wait before it sends again what nobody could execute.
const NOT_EXECUTED_PAUSE: Duration = Duration::from_millis(200);

/// Why a request was not answered as the client hoped.
#[derive(Debug, Error)]
pub(crate) enum ApiError {
    /// Something in path, headers or body is wrong.
    #[error("{0}")]
    BadRequest(String),
    /// A query is wrong.
    #[error("{}", .0.to_message())]
    BadQuery(QueryError),
    /// The partition key of the header is not that of the body.
    #[error("PartitionKey extracted from document doesn't match the one specified in the header.")]
    KeyMismatch,
    /// The partition key of the header has more or fewer components than the container's.
    #[error(
        "Partition key provided either doesn't correspond to definition in the collection or \
         doesn't match partition key field values specified in the document."
    )]
    KeyShape,
    /// A query about all partitions, by a client that did not say it meant that.
    #[error(
        "Cross partition query is required but disabled. Please set \
         x-ms-documentdb-query-enablecrosspartition to true, specify \
         x-ms-documentdb-partitionkey, or revise your query to avoid this exception."
    )]
    CrossPartition,
    /// A query that this client could not merge from the answers of several ranges.
    #[error("{0}")]
    FeaturesMissing(String),
    /// The container was deleted and made again since the client looked.
    #[error("The container was re-created: its resource id is not the one that the request names.")]
    ContainerRecreated,
    /// Not signed, or not with a key of this account.
    #[error("{0}")]
    Unauthorized(String),
    /// Signed, and not allowed.
    #[error("{0}")]
    Forbidden(String),
    /// The path names nothing that could exist.
    #[error("'/{0}' is not a resource of the Cosmos DB API.")]
    UnknownPath(String),
    /// There is no such resource.
    #[error("{0}")]
    NotFound(String),
    /// What should hold the resource does not exist.
    #[error("Owner resource does not exist.")]
    OwnerNotFound,
    /// The resource is there, but cannot be used that way.
    #[error("The method {method} is not allowed on this resource.")]
    MethodNotAllowed {
        /// What was tried.
        method: String,
        /// What can be done, as the header `Allow` has it.
        allowed: &'static str,
    },
    /// A write that may have been executed, or not.
    #[error("{0}")]
    Timeout(String),
    /// A query that takes longer than a page may take, and cannot be cut into shorter pages.
    #[error(
        "The query took too long. Make its filter narrower, index what it filters and sorts by, or \
         ask partition by partition."
    )]
    QueryTimeout,
    /// The name is taken.
    #[error("{0}")]
    Conflict(String),
    /// The key range was split or never existed.
    #[error("The partition key range '{0}' does not exist any more.")]
    RangeGone(String),
    /// A condition does not hold.
    #[error("Operation cannot be performed because one of the specified precondition is not met.")]
    PreconditionFailed,
    /// More bytes than allowed.
    #[error("Request size is too large. {0}")]
    TooLarge(String),
    /// Nobody could execute it in time; surely not executed.
    #[error("The request was not executed: {0}. Try again.")]
    NotExecuted(String),
    /// The map of partitions by which the request was sent out is old; surely not executed. The
    /// gateway looks again before it tells a client.
    #[error("The request was not executed: the container has just changed. Try again.")]
    StaleMap,
    /// The partition's request units are spent; surely not executed.
    #[error(
        "Request rate is large. More Request Units may be needed, so no changes were made. Please \
         retry this request later."
    )]
    Throttled {
        /// When there are some again.
        retry_after: Duration,
    },
    /// Part of the API, and not served by this version.
    #[error("{0} is not supported by this version of Ephemeris.")]
    NotSupported(String),
    /// Something needed is not available; surely not executed.
    #[error("{0}")]
    Unavailable(String),
}

/// What a client reads in the status line and in `code`.
pub(crate) struct Answer {
    /// The status.
    pub(crate) status: StatusCode,
    /// Tells apart what one status means; 0 is the usual.
    pub(crate) substatus: u32,
    /// The word in the body.
    pub(crate) code: &'static str,
}

impl ApiError {
    /// Without its cluster a node can neither make tokens nor tell ours from others'.
    pub(crate) fn unknown_cluster() -> Self {
        Self::NotExecuted("this node does not know yet which cluster it belongs to".to_string())
    }

    /// The status of every error: nowhere else is one chosen.
    pub(crate) fn answer(&self) -> Answer {
        let (status, substatus, code) = match self {
            ApiError::BadRequest(_) | ApiError::BadQuery(_) | ApiError::CrossPartition => {
                (StatusCode::BAD_REQUEST, 0, "BadRequest")
            }
            ApiError::KeyMismatch | ApiError::KeyShape => {
                (StatusCode::BAD_REQUEST, 1001, "BadRequest")
            }
            ApiError::FeaturesMissing(_) => (StatusCode::BAD_REQUEST, 1004, "BadRequest"),
            ApiError::ContainerRecreated => (StatusCode::BAD_REQUEST, 1024, "BadRequest"),
            ApiError::Unauthorized(_) => (StatusCode::UNAUTHORIZED, 0, "Unauthorized"),
            ApiError::Forbidden(_) => (StatusCode::FORBIDDEN, 0, "Forbidden"),
            ApiError::UnknownPath(_) | ApiError::NotFound(_) => {
                (StatusCode::NOT_FOUND, 0, "NotFound")
            }
            ApiError::OwnerNotFound => (StatusCode::NOT_FOUND, 1003, "NotFound"),
            ApiError::MethodNotAllowed { .. } => {
                (StatusCode::METHOD_NOT_ALLOWED, 0, "MethodNotAllowed")
            }
            ApiError::Timeout(_) | ApiError::QueryTimeout => {
                (StatusCode::REQUEST_TIMEOUT, 0, "RequestTimeout")
            }
            ApiError::Conflict(_) => (StatusCode::CONFLICT, 0, "Conflict"),
            ApiError::RangeGone(_) => (StatusCode::GONE, 1002, "Gone"),
            ApiError::PreconditionFailed => {
                (StatusCode::PRECONDITION_FAILED, 0, "PreconditionFailed")
            }
            ApiError::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, 0, "RequestEntityTooLarge"),
            ApiError::NotExecuted(_) | ApiError::StaleMap | ApiError::Throttled { .. } => {
                (StatusCode::TOO_MANY_REQUESTS, 3200, "TooManyRequests")
            }
            ApiError::NotSupported(_) => (StatusCode::NOT_IMPLEMENTED, 0, "NotImplemented"),
            ApiError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, 0, "ServiceUnavailable"),
        };
        Answer { status, substatus, code }
    }

    /// When a client should send again what was surely not executed; none for other errors.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            ApiError::Throttled { retry_after } => Some(*retry_after),
            ApiError::NotExecuted(_) | ApiError::StaleMap => Some(NOT_EXECUTED_PAUSE),
            ApiError::BadRequest(_)
            | ApiError::BadQuery(_)
            | ApiError::KeyMismatch
            | ApiError::KeyShape
            | ApiError::CrossPartition
            | ApiError::FeaturesMissing(_)
            | ApiError::ContainerRecreated
            | ApiError::Unauthorized(_)
            | ApiError::Forbidden(_)
            | ApiError::UnknownPath(_)
            | ApiError::NotFound(_)
            | ApiError::OwnerNotFound
            | ApiError::MethodNotAllowed { .. }
            | ApiError::Timeout(_)
            | ApiError::QueryTimeout
            | ApiError::Conflict(_)
            | ApiError::RangeGone(_)
            | ApiError::PreconditionFailed
            | ApiError::TooLarge(_)
            | ApiError::NotSupported(_)
            | ApiError::Unavailable(_) => None,
        }
    }

    /// The methods that the resource has, if another was tried.
    pub(crate) fn allowed(&self) -> Option<&'static str> {
        if let ApiError::MethodNotAllowed { allowed, .. } = self { Some(allowed) } else { None }
    }

    /// Counts a request that was put off, by why it was.
    pub(crate) fn count_if_put_off(&self) {
        if self.retry_after().is_none() {
            return;
        }
        let is_rate = matches!(self, ApiError::Throttled { .. });
        let reason = if is_rate { "rate" } else { "not_executed" };
        metrics::counter!("ru_throttled_total", "reason" => reason).increment(1);
    }
}

/// An error on its way to the client, with what it cost and where it happened.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What happened.
    pub(crate) error: ApiError,
    /// What was done all the same.
    pub(crate) charge: Charge,
    /// The partition that answered, if one did.
    pub(crate) data: Option<Box<DataHeaders>>,
}

impl Failure {
    /// An error that cost something.
    pub(crate) fn charged(error: impl Into<ApiError>, charge: Charge) -> Self {
        Self { error: error.into(), charge, data: None }
    }

    /// Makes a read cost what it does at its price.
    pub(crate) fn priced(mut self, price: Price) -> Self {
        self.charge = price.times(self.charge);
        self
    }

    /// An error in a body that was read to find it.
    pub(crate) fn in_body(error: impl Into<ApiError>) -> Self {
        Self::charged(error, Charge::REFUSED_BODY)
    }
}

impl<E: Into<ApiError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { error: error.into(), charge: Charge::ZERO, data: None }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::NotFound => ApiError::NotFound(message),
            Refusal::Conflict | Refusal::UniqueKeyTaken { .. } => ApiError::Conflict(message),
            Refusal::PreconditionFailed => ApiError::PreconditionFailed,
            Refusal::InvalidTtl { .. } => ApiError::BadRequest(message),
            Refusal::PatchFailed(failure) => failure.into(),
            Refusal::WrongPartition => ApiError::StaleMap,
            Refusal::TransactionTooLarge => ApiError::TooLarge(message),
            Refusal::SweepAwaited => ApiError::NotExecuted(message),
        }
    }
}

impl From<PatchFailure> for ApiError {
    fn from(failure: PatchFailure) -> Self {
        let message = failure.to_string();
        match failure {
            PatchFailure::Condition => ApiError::PreconditionFailed,
            PatchFailure::Operation { .. } | PatchFailure::Result(_) => {
                ApiError::BadRequest(message)
            }
            PatchFailure::TooLarge(message) => ApiError::TooLarge(message),
        }
    }
}

impl From<InvalidPatch> for ApiError {
    fn from(error: InvalidPatch) -> Self {
        ApiError::BadRequest(error.to_string())
    }
}

impl From<CatalogRefusal> for ApiError {
    fn from(refusal: CatalogRefusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            CatalogRefusal::NotFound => ApiError::NotFound(message),
            CatalogRefusal::OwnerNotFound => ApiError::OwnerNotFound,
            CatalogRefusal::Conflict
            | CatalogRefusal::AnotherDirectory { .. }
            | CatalogRefusal::StillNeeded { .. } => ApiError::Conflict(message),
            CatalogRefusal::PreconditionFailed => ApiError::PreconditionFailed,
            CatalogRefusal::Immutable(property) if property == "uniqueKeyPolicy" => {
                ApiError::Forbidden(message)
            }
            CatalogRefusal::Immutable(_) | CatalogRefusal::ComputedOverListed(_) => {
                ApiError::BadRequest(message)
            }
            CatalogRefusal::Limit(_) => ApiError::Forbidden(message),
            CatalogRefusal::StalePlan => ApiError::NotExecuted(message),
        }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let message = error.to_string();
        match error {
            RequestError::NotExecuted => ApiError::NotExecuted(message),
            RequestError::Gone => ApiError::StaleMap,
            RequestError::Throttled { retry_after } => ApiError::Throttled { retry_after },
            RequestError::Unknown(reason) => ApiError::Timeout(format!(
                "The outcome of the write is unknown: {reason}. Read before you send it again."
            )),
            RequestError::Doubtful(reason) => ApiError::Unavailable(format!(
                "Whether the item has expired cannot be settled right now: {reason}. Nothing was \
                 executed; try again."
            )),
            RequestError::Fault(_) => ApiError::Unavailable(message),
        }
    }
}

impl From<InvalidDocument> for ApiError {
    fn from(error: InvalidDocument) -> Self {
        let message = error.to_string();
        match error {
            InvalidDocument::Json(_) => ApiError::BadRequest(message),
            InvalidDocument::TooLarge { .. } => ApiError::TooLarge(message),
        }
    }
}

impl From<InvalidBinaryJson> for ApiError {
    fn from(error: InvalidBinaryJson) -> Self {
        let message = format!("The body is not valid Cosmos binary JSON: {error}.");
        match error {
            InvalidBinaryJson::TooLarge => ApiError::TooLarge(message),
            InvalidBinaryJson::NoPreamble
            | InvalidBinaryJson::Truncated { .. }
            | InvalidBinaryJson::Trailing { .. }
            | InvalidBinaryJson::Marker { .. }
            | InvalidBinaryJson::UserString { .. }
            | InvalidBinaryJson::Length { .. }
            | InvalidBinaryJson::NotText { .. }
            | InvalidBinaryJson::Reference { .. }
            | InvalidBinaryJson::NotFinite { .. }
            | InvalidBinaryJson::TooDeep { .. } => ApiError::BadRequest(message),
        }
    }
}

impl From<InvalidDefinition> for ApiError {
    fn from(error: InvalidDefinition) -> Self {
        ApiError::BadRequest(format!("The container definition is not valid: {error}."))
    }
}

impl From<InvalidPermission> for ApiError {
    fn from(error: InvalidPermission) -> Self {
        ApiError::BadRequest(format!("The permission is not valid: {error}."))
    }
}

impl From<RefusedLevel> for ApiError {
    fn from(error: RefusedLevel) -> Self {
        match error {
            RefusedLevel::Unknown(level) => malformed("x-ms-consistency-level", &level),
            RefusedLevel::UnknownStrategy(strategy) => {
                malformed("x-ms-cosmos-read-consistency-strategy", &strategy)
            }
            RefusedLevel::Stronger { .. } | RefusedLevel::NotGlobal(_) | RefusedLevel::Both => {
                ApiError::BadRequest(error.to_string())
            }
        }
    }
}

impl From<InvalidName> for ApiError {
    fn from(error: InvalidName) -> Self {
        ApiError::BadRequest(format!("The 'id' is not valid: {error}."))
    }
}

impl From<InvalidKey> for ApiError {
    fn from(error: InvalidKey) -> Self {
        ApiError::BadRequest(format!(
            "The header x-ms-documentdb-partitionkey is not valid: {error}."
        ))
    }
}

impl From<InvalidThroughput> for ApiError {
    fn from(error: InvalidThroughput) -> Self {
        ApiError::BadRequest(format!("The throughput is not valid: {error}."))
    }
}

impl From<QueryError> for ApiError {
    fn from(error: QueryError) -> Self {
        ApiError::BadQuery(error)
    }
}

impl From<PlanRefusal> for ApiError {
    fn from(refusal: PlanRefusal) -> Self {
        match refusal {
            PlanRefusal::Query(error) => error.into(),
            PlanRefusal::Unsupported(_) => ApiError::FeaturesMissing(refusal.to_string()),
        }
    }
}
