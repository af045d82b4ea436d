//! The records of the catalog, and the maps that hold them.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::definition::ContainerDefinition;
use super::permission::{PermissionMode, Scope};
use super::throughput::Throughput;
use crate::codec;
use crate::engine::{Fault, KeyRange, Read, Table};
use crate::ids::{
    ContainerNumber, DatabaseNumber, Etag, GroupId, Lsn, NodeId, PermissionNumber, RangeId,
    ReplicaId, ResourceName, UserNumber,
};
use crate::machine::LogId;
use crate::partition_key::{PartitionKey, SlotRange};
use crate::time::{Millis, Seconds};
use crate::ttl::PolicyEpoch;

/// Tells one cluster's data from another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterId(pub u128);

/// What every resource has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    /// `_ts`: the last write.
    pub ts: Seconds,
    /// `_etag`: new on every write.
    pub etag: Etag,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Its number.
    pub node: NodeId,
    /// Which data directory: a node that comes back with another one has lost its data.
    pub directory: u128,
    /// Where other nodes reach it.
    pub peer: String,
    /// Where clients reach it.
    pub url: String,
    /// Its replica of the catalog.
    pub catalog_replica: ReplicaId,
    /// The entry that made it known as it is here.
    pub registered: Lsn,
}

/// A database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Database {
    /// Its number.
    pub number: DatabaseNumber,
    /// Its name.
    pub name: ResourceName,
    /// Stamp and tag.
    pub resource: Resource,
    /// How many containers it ever had: the next number.
    pub containers_created: u32,
}

/// A container.
#[derive(Clone, Debug)]
pub struct Container {
    /// Its number.
    pub number: ContainerNumber,
    /// What it is.
    pub definition: ContainerDefinition,
    /// Stamp and tag.
    pub resource: Resource,
    /// Counts the changes of what its partitions act upon: time to live, retention, index.
    pub policy_epoch: PolicyEpoch,
    /// How many key ranges it ever had: the next id.
    pub ranges_created: u32,
    /// How many scripts it ever had: the next number.
    pub scripts_created: u32,
}

/// How a container is stored: the definition as JSON, which bincode cannot hold otherwise.
#[derive(Serialize, Deserialize)]
struct StoredContainer {
    number: ContainerNumber,
    definition: String,
    resource: Resource,
    policy_epoch: PolicyEpoch,
    ranges_created: u32,
    scripts_created: u32,
}

/// A partition: one key range of a container and the Raft group that holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionRecord {
    /// The group.
    pub group: GroupId,
    /// The container.
    pub container: ContainerNumber,
    /// The range's id, as clients see it.
    pub range: RangeId,
    /// The slots it owns.
    pub slots: SlotRange,
    /// All ranges it descends from by splits.
    pub parents: Vec<RangeId>,
    /// Its replicas; the first is where the group was formed.
    pub replicas: Vec<ReplicaId>,
}

impl PartitionRecord {
    /// The replica on this node, if there is one.
    pub fn replica_on(&self, node: NodeId) -> Option<ReplicaId> {
        self.replicas.iter().copied().find(|replica| replica.node == node)
    }
}

/// Whose throughput an offer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OfferTarget {
    /// A database's, shared by its containers.
    Database(DatabaseNumber),
    /// A container's own.
    Container(ContainerNumber),
}

/// Provisioned throughput.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Its number, never reused.
    pub number: u32,
    /// Whose it is.
    pub target: OfferTarget,
    /// How much.
    pub throughput: Throughput,
    /// Stamp and tag.
    pub resource: Resource,
}

/// What a script is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ScriptKind {
    /// A stored procedure.
    StoredProcedure,
    /// A trigger.
    Trigger,
    /// A user-defined function.
    UserDefinedFunction,
}

/// A script: stored and listed, never run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// The container.
    pub container: ContainerNumber,
    /// What it is.
    pub kind: ScriptKind,
    /// Its number within the container, never reused.
    pub number: u32,
    /// Its name, unique in container and kind.
    pub name: ResourceName,
    /// The definition as JSON.
    pub body: String,
    /// Stamp and tag.
    pub resource: Resource,
}

/// Somebody to whom permissions are given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Its number.
    pub number: UserNumber,
    /// Its name, unique in the database.
    pub name: ResourceName,
    /// Stamp and tag.
    pub resource: Resource,
}

/// What a user may do with what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Permission {
    /// Its number.
    pub number: PermissionNumber,
    /// Its name, unique among its user's.
    pub name: ResourceName,
    /// What may be done.
    pub mode: PermissionMode,
    /// With which resource.
    pub scope: Scope,
    /// With which of its items, by their partition key; with all if there is none.
    pub partition_key: Option<PartitionKey>,
    /// The definition as JSON.
    pub json: String,
    /// Stamp and tag.
    pub resource: Resource,
}

/// Counters and clock, stored with the applied position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) applied: Option<LogId>,
    pub(super) cluster: Option<ClusterId>,
    /// Founders that are not registered yet.
    pub(super) awaited: BTreeSet<NodeId>,
    pub(super) clock: Millis,
    pub(super) last_ts: Seconds,
    pub(super) databases_created: u32,
    pub(super) groups_created: u64,
    pub(super) offers_created: u32,
    pub(super) sweeping: Sweeping,
}

/// Whether dead items are removed from disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sweeping {
    /// As they fall due.
    #[default]
    Running,
    /// Not until an operator says so.
    Paused,
}

/// Everything the catalog says, at one moment.
#[derive(Clone, Debug, Default)]
pub struct CatalogState {
    pub(super) header: Header,
    pub(super) nodes: OrdMap<NodeId, Arc<NodeRecord>>,
    pub(super) databases: OrdMap<DatabaseNumber, Arc<Database>>,
    pub(super) containers: OrdMap<ContainerNumber, Arc<Container>>,
    pub(super) partitions: OrdMap<GroupId, Arc<PartitionRecord>>,
    pub(super) offers: OrdMap<u32, Arc<Offer>>,
    pub(super) scripts: OrdMap<(ContainerNumber, ScriptKind, u32), Arc<Script>>,
    pub(super) users: OrdMap<UserNumber, Arc<User>>,
    pub(super) permissions: OrdMap<PermissionNumber, Arc<Permission>>,
}

/// A record with a row of its own.
pub(super) trait Record: Sized {
    /// First byte of the row's key.
    const KIND: u8;
    /// The rest of the key.
    fn key(&self) -> Vec<u8>;
    fn encode(&self) -> Vec<u8>;
    fn decode(bytes: &[u8]) -> Result<Self, Fault>;

    fn row_key(&self) -> Vec<u8> {
        let mut key = vec![Self::KIND];
        key.extend(self.key());
        key
    }
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    codec::decode(bytes).map_err(|error| Fault::corrupt("catalog", error))
}

macro_rules! plain_record {
    ($type:ty, $kind:literal, $record:ident => $key:expr) => {
        impl Record for $type {
            const KIND: u8 = $kind;

            fn key(&self) -> Vec<u8> {
                let $record = self;
                $key
            }

            fn encode(&self) -> Vec<u8> {
                codec::encode(self)
            }

            fn decode(bytes: &[u8]) -> Result<Self, Fault> {
                decode(bytes)
            }
        }
    };
}

plain_record!(NodeRecord, 1, r => r.node.0.to_be_bytes().to_vec());
plain_record!(Database, 2, r => r.number.0.to_be_bytes().to_vec());
plain_record!(PartitionRecord, 4, r => r.group.0.to_be_bytes().to_vec());
plain_record!(Offer, 5, r => r.number.to_be_bytes().to_vec());
plain_record!(Script, 6, r => {
    let mut key = r.container.to_bytes().to_vec();
    key.push(r.kind as u8);
    key.extend(r.number.to_be_bytes());
    key
});
plain_record!(User, 7, r => r.number.to_bytes().to_vec());
plain_record!(Permission, 8, r => {
    let mut key = r.number.user.to_bytes().to_vec();
    key.extend(r.number.number.to_be_bytes());
    key
});

impl Record for Container {
    const KIND: u8 = 3;

    fn key(&self) -> Vec<u8> {
        self.number.to_bytes().to_vec()
    }

    fn encode(&self) -> Vec<u8> {
        let Container { number, definition, resource, policy_epoch, .. } = self;
        codec::encode(&StoredContainer {
            number: *number,
            definition: serde_json::to_string(definition.json()).expect("JSON serialises"),
            resource: *resource,
            policy_epoch: *policy_epoch,
            ranges_created: self.ranges_created,
            scripts_created: self.scripts_created,
        })
    }

    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let stored: StoredContainer = decode(bytes)?;
        let corrupt = |error: &dyn std::fmt::Display| Fault::corrupt("catalog", error);
        let json = serde_json::from_str(&stored.definition).map_err(|error| corrupt(&error))?;
        let definition = ContainerDefinition::restore(&json).map_err(|error| corrupt(&error))?;
        Ok(Self {
            number: stored.number,
            definition,
            resource: stored.resource,
            policy_epoch: stored.policy_epoch,
            ranges_created: stored.ranges_created,
            scripts_created: stored.scripts_created,
        })
    }
}

fn load<R: Record, K: Ord + Clone>(
    read: &dyn Read,
    key: impl Fn(&R) -> K,
) -> Result<OrdMap<K, Arc<R>>, Fault> {
    let range = KeyRange::prefix(Table::Catalog, vec![R::KIND]);
    read.scan(&range)
        .map(|row| {
            let record = R::decode(&row?.1)?;
            Ok((key(&record), Arc::new(record)))
        })
        .collect()
}

impl CatalogState {
    pub(super) fn load(read: &dyn Read, header: &Header) -> Result<Self, Fault> {
        Ok(Self {
            header: header.clone(),
            nodes: load(read, |record: &NodeRecord| record.node)?,
            databases: load(read, |record: &Database| record.number)?,
            containers: load(read, |record: &Container| record.number)?,
            partitions: load(read, |record: &PartitionRecord| record.group)?,
            offers: load(read, |record: &Offer| record.number)?,
            scripts: load(read, |record: &Script| (record.container, record.kind, record.number))?,
            users: load(read, |record: &User| record.number)?,
            permissions: load(read, |record: &Permission| record.number)?,
        })
    }

    /// The cluster, once it was formed.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.header.cluster
    }

    /// Founders that were never registered, nor forgotten: they vote on the catalog, and their clocks count.
    pub fn awaited(&self) -> impl Iterator<Item = NodeId> {
        self.header.awaited.iter().copied()
    }

    /// True if the node is one of the cluster, registered or awaited.
    pub fn counts(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node) || self.header.awaited.contains(&node)
    }

    /// Whether dead items are removed from disk.
    pub fn sweeping(&self) -> Sweeping {
        self.header.sweeping
    }

    /// The nodes by number.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<NodeRecord>> {
        self.nodes.values()
    }

    /// A node.
    pub fn node(&self, node: NodeId) -> Option<&Arc<NodeRecord>> {
        self.nodes.get(&node)
    }

    /// The databases in the order they were created.
    pub fn databases(&self) -> impl Iterator<Item = &Arc<Database>> {
        self.databases.values()
    }

    /// A database by its number.
    pub fn database(&self, number: DatabaseNumber) -> Option<&Arc<Database>> {
        self.databases.get(&number)
    }

    /// A database by its name.
    pub fn database_named(&self, name: &str) -> Option<&Arc<Database>> {
        self.databases.values().find(|database| database.name.as_str() == name)
    }

    /// The containers of a database in the order they were created.
    pub fn containers(&self, database: DatabaseNumber) -> impl Iterator<Item = &Arc<Container>> {
        let first = ContainerNumber { database, number: 0 };
        let last = ContainerNumber { database, number: u32::MAX };
        self.containers.range(first..=last).map(|(_, container)| container)
    }

    /// A container by its number.
    pub fn container(&self, number: ContainerNumber) -> Option<&Arc<Container>> {
        self.containers.get(&number)
    }

    /// A container by its name.
    pub fn container_named(&self, database: DatabaseNumber, name: &str) -> Option<&Arc<Container>> {
        self.containers(database).find(|container| container.definition.name().as_str() == name)
    }

    /// Every partition by group.
    pub fn partitions(&self) -> impl Iterator<Item = &Arc<PartitionRecord>> {
        self.partitions.values()
    }

    /// A partition by its group.
    pub fn partition(&self, group: GroupId) -> Option<&Arc<PartitionRecord>> {
        self.partitions.get(&group)
    }

    /// The groups that would lose the majority of their replicas with this node.
    pub fn groups_that_need(&self, node: NodeId) -> Vec<GroupId> {
        let keeps_majority = |staying: usize, all: usize| 2 * staying > all;
        let nodes = self.nodes.len() + self.header.awaited.len();
        let catalog = self.counts(node) && !keeps_majority(nodes - 1, nodes);
        let partitions = self.partitions.values().filter(|partition| {
            let replicas = partition.replicas.len();
            partition.replica_on(node).is_some() && !keeps_majority(replicas - 1, replicas)
        });
        let catalog = catalog.then_some(GroupId::CATALOG);
        catalog.into_iter().chain(partitions.map(|partition| partition.group)).collect()
    }

    /// The partitions of a container in the order of the hash space.
    pub fn partitions_of(&self, container: ContainerNumber) -> Vec<Arc<PartitionRecord>> {
        let mut partitions: Vec<_> = self
            .partitions
            .values()
            .filter(|partition| partition.container == container)
            .cloned()
            .collect();
        partitions.sort_by_key(|partition| partition.slots.start);
        partitions
    }

    /// True if this copy of the catalog has seen the group being created: if it does not know it any
    /// more, it was deleted.
    pub fn has_created(&self, group: GroupId) -> bool {
        group.0 <= self.header.groups_created
    }

    /// The offers in the order they were created.
    pub fn offers(&self) -> impl Iterator<Item = &Arc<Offer>> {
        self.offers.values()
    }

    /// The offer of a database or container.
    pub fn offer_of(&self, target: OfferTarget) -> Option<&Arc<Offer>> {
        self.offers.values().find(|offer| offer.target == target)
    }

    /// The scripts of one kind of a container in the order they were created.
    pub fn scripts(
        &self,
        container: ContainerNumber,
        kind: ScriptKind,
    ) -> impl Iterator<Item = &Arc<Script>> {
        let range = (container, kind, 0)..=(container, kind, u32::MAX);
        self.scripts.range(range).map(|(_, script)| script)
    }

    /// A script by its name.
    pub fn script_named(
        &self,
        container: ContainerNumber,
        kind: ScriptKind,
        name: &str,
    ) -> Option<&Arc<Script>> {
        self.scripts(container, kind).find(|script| script.name.as_str() == name)
    }

    /// The users of a database in the order they were created.
    pub fn users(&self, database: DatabaseNumber) -> impl Iterator<Item = &Arc<User>> {
        let first = UserNumber { database, number: 0 };
        let last = UserNumber { database, number: u32::MAX };
        self.users.range(first..=last).map(|(_, user)| user)
    }

    /// A user by its number.
    pub fn user(&self, number: UserNumber) -> Option<&Arc<User>> {
        self.users.get(&number)
    }

    /// A user by its name.
    pub fn user_named(&self, database: DatabaseNumber, name: &str) -> Option<&Arc<User>> {
        self.users(database).find(|user| user.name.as_str() == name)
    }

    /// The permissions of a user in the order they were created.
    pub fn permissions(&self, user: UserNumber) -> impl Iterator<Item = &Arc<Permission>> {
        let first = PermissionNumber { user, number: 0 };
        let last = PermissionNumber { user, number: u32::MAX };
        self.permissions.range(first..=last).map(|(_, permission)| permission)
    }

    /// A permission by its number.
    pub fn permission(&self, number: PermissionNumber) -> Option<&Arc<Permission>> {
        self.permissions.get(&number)
    }

    /// A permission by its name.
    pub fn permission_named(&self, user: UserNumber, name: &str) -> Option<&Arc<Permission>> {
        self.permissions(user).find(|permission| permission.name.as_str() == name)
    }
}
