//! Conflicts: there is one history, and so there are none.

use ephemeris_store::ids::ResourceId;

use super::error::{ApiError, Failure};
use super::path::ContainerPath;
use super::reply::Reply;
use super::{Call, Gateway, feed};

/// The feed of a container, which holds nothing.
pub(super) async fn list(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Reply, Failure> {
    let rid = rid(gateway, call, path).await?;
    feed::list(gateway, call, (&rid, "Conflicts"), Vec::new())
}

/// What a query finds among them.
pub(super) async fn query(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Reply, Failure> {
    let rid = rid(gateway, call, path).await?;
    if call.headers.partition_key()?.is_none() && !call.headers.crosses_partitions() {
        return Err(ApiError::CrossPartition.into());
    }
    feed::query(gateway, call, (&rid, "Conflicts"), Vec::new())
}

async fn rid(gateway: &Gateway, call: &Call, path: &ContainerPath) -> Result<String, Failure> {
    let container = gateway.container(call, path).await?.container.number;
    Ok(ResourceId::Container(container).to_string())
}
