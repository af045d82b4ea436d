//! What exists where: the catalog at hand, plans for replicas, and their balance.

mod balancer;
#[cfg(test)]
pub(crate) mod catalogs;
mod directory;
mod plan;

pub(crate) use balancer::{Balancer, able_nodes, describe_nodes};
pub(crate) use directory::{Directory, DirectoryView, Links};
pub(crate) use plan::{REPLICATION_FACTOR, groups_that_need, plan_container};
