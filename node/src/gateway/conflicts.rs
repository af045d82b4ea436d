//! Conflicts: there is one history, and so there are none.

use ephemeris_store::ids::ResourceId;

use super::error::{ApiError, Failure};
use super::path::ContainerPath;
use super::reply::Reply;
use super::{Call, Gateway, Verb, feed};

/// The feed of a container, which holds nothing, or what a query finds in it.
pub(super) async fn list(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Reply, Failure> {
    let container = gateway.container(call, path).await?.container.number;
    let is_addressed = || -> Result<bool, ApiError> {
        Ok(call.headers.partition_key()?.is_some() || call.headers.crosses_partitions())
    };
    if call.verb != Verb::Get && !is_addressed()? {
        return Err(ApiError::CrossPartition.into());
    }
    feed::answer(gateway, call, (&ResourceId::Container(container).to_string(), "Conflicts"), [])
}
