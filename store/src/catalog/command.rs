//! What a leader proposes to the catalog, and what applying it answers.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::state::{ClusterId, ScriptKind, Sweeping};
use super::throughput::Throughput;
use crate::command::Precondition;
use crate::ids::{
    ContainerNumber, DatabaseNumber, GroupId, Lsn, NodeId, PermissionNumber, ReplicaId,
    ResourceName, UserNumber,
};
use crate::time::ClockInterval;
use crate::ttl::PolicyEpoch;

/// A command with the proposing leader's reading of the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogProposal {
    /// What the leader's clock said.
    pub now: ClockInterval,
    /// What to do.
    pub command: CatalogCommand,
}

/// Where the replicas of one partition shall live; the first forms the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaPlan(pub Vec<NodeId>);

/// A change of the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CatalogCommand {
    /// Gives the cluster its identity; the first one wins.
    FormCluster {
        /// Drawn by the proposer.
        cluster: ClusterId,
        /// The nodes that it is formed of. Until they are registered, each is awaited.
        founders: BTreeSet<NodeId>,
    },
    /// Makes a node known, or updates its addresses.
    RegisterNode {
        /// Its number.
        node: NodeId,
        /// Its data directory.
        directory: u128,
        /// Where other nodes reach it.
        peer: String,
        /// Where clients reach it.
        url: String,
        /// True for the nodes the cluster is formed of, whose catalog replica is number 0.
        founder: bool,
    },
    /// Forgets a node that will not come back with the data it had.
    ForgetNode {
        /// Its number.
        node: NodeId,
    },
    /// Starts or stops the sweepers of all partitions; what has expired stays invisible either way.
    SetSweeping(Sweeping),
    /// Creates a database.
    CreateDatabase {
        /// Its name.
        name: ResourceName,
        /// Throughput shared by its containers.
        throughput: Option<Throughput>,
    },
    /// Deletes a database and everything in it.
    DeleteDatabase {
        /// Which.
        database: DatabaseNumber,
        /// What must hold.
        precondition: Precondition,
    },
    /// Creates a container.
    CreateContainer {
        /// Where.
        database: DatabaseNumber,
        /// The completed definition as JSON.
        definition: String,
        /// Its own throughput.
        throughput: Option<Throughput>,
        /// One plan for each partition.
        placement: Vec<ReplicaPlan>,
    },
    /// Replaces the whole definition of a container.
    ReplaceContainer {
        /// Which.
        container: ContainerNumber,
        /// The completed definition as JSON.
        definition: String,
        /// What must hold.
        precondition: Precondition,
    },
    /// Deletes a container and its items.
    DeleteContainer {
        /// Which.
        container: ContainerNumber,
        /// What must hold.
        precondition: Precondition,
    },
    /// Changes provisioned throughput.
    ReplaceThroughput {
        /// Which offer.
        offer: u32,
        /// How much.
        throughput: Throughput,
        /// What must hold.
        precondition: Precondition,
    },
    /// Creates a script.
    CreateScript {
        /// Where.
        container: ContainerNumber,
        /// What it is.
        kind: ScriptKind,
        /// Its name.
        name: ResourceName,
        /// The definition as JSON.
        body: String,
    },
    /// Replaces a script.
    ReplaceScript {
        /// Where.
        container: ContainerNumber,
        /// What it is.
        kind: ScriptKind,
        /// Its name.
        name: ResourceName,
        /// The definition as JSON.
        body: String,
        /// What must hold.
        precondition: Precondition,
    },
    /// Deletes a script.
    DeleteScript {
        /// Where.
        container: ContainerNumber,
        /// What it is.
        kind: ScriptKind,
        /// Its name.
        name: ResourceName,
        /// What must hold.
        precondition: Precondition,
    },
    /// Moves the replicas of a partition.
    SetReplicas {
        /// The partition.
        group: GroupId,
        /// Where they shall live.
        plan: ReplicaPlan,
    },
    /// Changes the users of a database, or what they are permitted.
    ChangeUsers {
        /// Whose users.
        database: DatabaseNumber,
        /// What to change.
        change: UserChange,
    },
}

/// A change of a database's users or of their permissions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserChange {
    /// Creates a user.
    Create {
        /// Its name.
        name: ResourceName,
        /// What if there is one of that name.
        if_taken: IfTaken,
    },
    /// Replaces a user, of which only the name can change.
    Rename {
        /// Which.
        user: UserNumber,
        /// Its name.
        name: ResourceName,
        /// What must hold.
        precondition: Precondition,
    },
    /// Deletes a user and its permissions.
    Delete {
        /// Which.
        user: UserNumber,
        /// What must hold.
        precondition: Precondition,
    },
    /// Creates a permission.
    CreatePermission {
        /// Whose.
        user: UserNumber,
        /// The checked definition as JSON.
        definition: String,
        /// What if the user has one of that name.
        if_taken: IfTaken,
    },
    /// Replaces a permission, its name included.
    ReplacePermission {
        /// Which.
        permission: PermissionNumber,
        /// The checked definition as JSON.
        definition: String,
        /// What must hold.
        precondition: Precondition,
    },
    /// Deletes a permission.
    DeletePermission {
        /// Which.
        permission: PermissionNumber,
        /// What must hold.
        precondition: Precondition,
    },
}

/// What creating something does where the name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IfTaken {
    /// Nothing: it is refused.
    Refuse,
    /// Replaces what bears the name: an upsert.
    Replace,
}

/// What a command made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Created {
    /// Nothing with an identity of its own.
    Nothing,
    /// A database.
    Database(DatabaseNumber),
    /// A container, or a new definition of one.
    Container {
        /// Its number.
        container: ContainerNumber,
        /// The policy epoch all its partitions must reach before the client is answered.
        policy_epoch: PolicyEpoch,
    },
    /// An offer.
    Offer(u32),
    /// A script.
    Script,
    /// A node's replica of the catalog: the same however often the node registers.
    Node(ReplicaId),
    /// A user.
    User(UserNumber),
    /// A permission.
    Permission(PermissionNumber),
}

/// What applying a command answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogOutcome {
    /// The entry's place in the log.
    pub lsn: Lsn,
    /// What it made, or why not.
    pub result: Result<Created, CatalogRefusal>,
}

/// An answer that is the same on every replica: the command changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum CatalogRefusal {
    /// There is no such resource.
    #[error("Resource Not Found.")]
    NotFound,
    /// What should hold the resource does not exist.
    #[error("Owner resource does not exist.")]
    OwnerNotFound,
    /// The name is taken.
    #[error("Resource with specified id, name, or unique index already exists.")]
    Conflict,
    /// A condition does not hold.
    #[error("Operation cannot be performed because one of the specified precondition is not met.")]
    PreconditionFailed,
    /// A replacement changes what cannot change.
    #[error("'{0}' cannot be changed once the container exists.")]
    Immutable(String),
    /// The database or account holds as much as it may.
    #[error("{0}")]
    Limit(String),
    /// The plan names nodes that are not there: plan again.
    #[error("the placement plan is out of date")]
    StalePlan,
    /// The node is known with another data directory.
    #[error(
        "node {node} is known with another data directory: its data was lost or replaced. \
         Run `ephemeris rebuild-node {node} --data-dir DIR --http URL`, with its data directory and \
         the URL of a healthy node, then start it again as a new one"
    )]
    AnotherDirectory {
        /// The node.
        node: NodeId,
    },
    /// Without the node too few replicas would be left that hold what was acknowledged.
    #[error(
        "node {node} cannot be forgotten: no majority of the replicas that hold the data would be \
         left of {}, and what was acknowledged could be lost. Start the missing nodes with their \
         data directories and wait until the replicas have caught up; or, if the data is lost for \
         good, delete the containers first",
        list(.groups)
    )]
    StillNeeded {
        /// The node.
        node: NodeId,
        /// The groups; the catalog's is 0.
        groups: Vec<GroupId>,
    },
    /// A replacement computes a property that was stored and listed for indexing so far.
    #[error(
        "The computed property '{0}' cannot be added: the indexing policy lists a stored property \
         of this name."
    )]
    ComputedOverListed(String),
}

/// Groups named one by one in a message.
const GROUPS_NAMED_MAX: usize = 20;

fn list(groups: &[GroupId]) -> String {
    let name = |group: &GroupId| match *group {
        GroupId::CATALOG => "the catalog".to_string(),
        group => format!("partition {group}"),
    };
    let named: Vec<String> = groups.iter().take(GROUPS_NAMED_MAX).map(name).collect();
    match groups.len().saturating_sub(GROUPS_NAMED_MAX) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}
