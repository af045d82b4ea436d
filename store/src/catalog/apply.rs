//! Applying log entries to the catalog.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use super::command::{
    CatalogCommand, CatalogOutcome, CatalogProposal, CatalogRefusal, Created, ReplicaPlan,
};
use super::definition::ContainerDefinition;
use super::state::{
    CatalogState, ClusterId, Container, Database, NodeRecord, Offer, OfferTarget, PartitionRecord,
    Record, Resource, Script, ScriptKind,
};
use super::throughput::Throughput;
use super::{Catalog, Shared};
use crate::codec;
use crate::command::Precondition;
use crate::engine::{Batch, Fault, Table};
use crate::ids::{
    ContainerNumber, DatabaseNumber, Etag, GroupId, Lsn, NodeId, RangeId, ReplicaId, ResourceName,
};
use crate::machine::{self, Entry, LogId, Membership, MetaTag};
use crate::partition_key::{SLOTS, SlotRange};
use crate::time::{ClockInterval, Seconds};
use crate::ttl::PolicyEpoch;

/// Most databases and containers together, as in Azure.
const RESOURCES_MAX: usize = 500;
/// Most scripts of one kind in a container: every node has all of them in memory.
pub(super) const SCRIPTS_MAX: usize = 100;

pub(super) type Result<T, E = CatalogRefusal> = std::result::Result<T, E>;

/// An entry being applied: a copy of the state, and the rows it changes.
pub(super) struct Draft {
    pub(super) state: CatalogState,
    batch: Batch,
    lsn: Lsn,
}

impl Catalog {
    pub(super) fn apply_entry(
        &self,
        position: LogId,
        entry: Entry<'_>,
    ) -> Result<Option<CatalogOutcome>, Fault> {
        let before = self.read_shared().clone();
        machine::assert_next(before.applied, position);
        let lsn = Lsn(position.index);
        let mut state = (*before.state).clone();
        state.header.applied = Some(position);
        let mut draft = Draft { state, batch: Batch::default(), lsn };
        let mut membership = before.membership;
        let outcome = match entry {
            Entry::Blank => None,
            Entry::Membership(members) => {
                let new = Membership { log_id: Some(position), members: members.to_vec() };
                machine::put_meta(&mut draft.batch, GroupId::CATALOG, MetaTag::Membership, &new);
                membership = Some(new);
                None
            }
            Entry::Command(bytes) => {
                let CatalogProposal { now, command } =
                    codec::decode(bytes).map_err(|error| Fault::corrupt("log entry", error))?;
                if !now.is_valid() {
                    let detail = "a clock interval that ends before it starts";
                    return Err(Fault::corrupt("log entry", detail));
                }
                draft.advance(now);
                let kept = draft.state.clone();
                let result = draft.carry_out(command)?;
                if result.is_err() {
                    draft.state = kept;
                    draft.batch = Batch::default();
                }
                Some(CatalogOutcome { lsn, result })
            }
        };
        self.publish(draft, position, membership)?;
        Ok(outcome)
    }

    fn publish(
        &self,
        draft: Draft,
        position: LogId,
        membership: Option<Membership>,
    ) -> Result<(), Fault> {
        let Draft { state, mut batch, .. } = draft;
        machine::put_meta(&mut batch, GroupId::CATALOG, MetaTag::State, &state.header);
        let new = Shared { state: Arc::new(state), applied: Some(position), membership };
        let _writing = self.writing();
        self.engine.write(batch)?;
        *self.shared.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }
}

impl Draft {
    fn advance(&mut self, now: ClockInterval) {
        let header = &mut self.state.header;
        header.clock = header.clock.max(now.lo());
        header.last_ts = header.last_ts.max(now.hi().max(header.clock).ceil_seconds());
    }

    /// A refusal inside, a fault outside.
    fn carry_out(&mut self, command: CatalogCommand) -> Result<Result<Created>, Fault> {
        Ok(match command {
            CatalogCommand::FormCluster { cluster, founders } => {
                self.form_cluster(cluster, founders);
                Ok(Created::Nothing)
            }
            CatalogCommand::RegisterNode { node, directory, peer, url, founder } => {
                self.register_node(node, directory, peer, url, founder)
            }
            CatalogCommand::ForgetNode { node } => self.forget_node(node),
            CatalogCommand::SetSweeping(sweeping) => {
                self.state.header.sweeping = sweeping;
                Ok(Created::Nothing)
            }
            CatalogCommand::CreateDatabase { name, throughput } => {
                self.create_database(name, throughput)
            }
            CatalogCommand::DeleteDatabase { database, precondition } => {
                self.delete_database(database, precondition)
            }
            CatalogCommand::CreateContainer { database, definition, throughput, placement } => {
                let definition = parse_definition(&definition)?;
                self.create_container(database, definition, throughput, placement)
            }
            CatalogCommand::ReplaceContainer { container, definition, precondition } => {
                let definition = parse_definition(&definition)?;
                self.replace_container(container, definition, precondition)
            }
            CatalogCommand::DeleteContainer { container, precondition } => {
                self.delete_container(container, precondition)
            }
            CatalogCommand::ReplaceThroughput { offer, throughput, precondition } => {
                self.replace_throughput(offer, throughput, precondition)
            }
            CatalogCommand::CreateScript { container, kind, name, body } => {
                self.create_script(container, kind, name, body)
            }
            CatalogCommand::ReplaceScript { container, kind, name, body, precondition } => {
                self.replace_script(container, kind, &name, body, precondition)
            }
            CatalogCommand::DeleteScript { container, kind, name, precondition } => {
                self.delete_script(container, kind, &name, precondition)
            }
            CatalogCommand::SetReplicas { group, plan } => self.set_replicas(group, &plan),
            CatalogCommand::ChangeUsers { database, change } => {
                return self.change_users(database, change);
            }
        })
    }

    pub(super) fn put<R: Record>(&mut self, record: &R) {
        self.batch.put(Table::Catalog, &record.row_key(), &record.encode());
    }

    pub(super) fn delete<R: Record>(&mut self, record: &R) {
        self.batch.delete(Table::Catalog, &record.row_key());
    }

    /// Stamp and tag of what this entry writes; `operation` tells several apart.
    pub(super) fn resource(&self, operation: u16) -> Resource {
        let ts: Seconds = self.state.header.last_ts;
        Resource { ts, etag: Etag::new(GroupId::CATALOG, self.lsn, operation) }
    }

    /// A replica made by this entry: no earlier one has its number.
    fn new_replica(&self, node: NodeId) -> ReplicaId {
        ReplicaId { node, incarnation: self.new_number() }
    }

    /// A number that no earlier entry gave: that of this one.
    pub(super) fn new_number(&self) -> u32 {
        let number = u32::try_from(self.lsn.0).ok().filter(|number| *number < 1 << 31);
        number.expect("the catalog's log stays below 2^31")
    }

    fn form_cluster(&mut self, cluster: ClusterId, founders: BTreeSet<NodeId>) {
        let CatalogState { header, nodes, .. } = &mut self.state;
        if header.cluster.is_none() {
            header.cluster = Some(cluster);
            header.awaited = founders;
            header.awaited.retain(|founder| !nodes.contains_key(founder));
        }
    }

    fn register_node(
        &mut self,
        node: NodeId,
        directory: u128,
        peer: String,
        url: String,
        founder: bool,
    ) -> Result<Created> {
        let known = self.state.nodes.get(&node);
        let catalog_replica = match known {
            Some(known) if known.directory != directory => {
                return Err(CatalogRefusal::AnotherDirectory { node });
            }
            Some(known) => known.catalog_replica,
            None if founder => ReplicaId { node, incarnation: 0 },
            None => self.new_replica(node),
        };
        let registered = self.lsn;
        let record = NodeRecord { node, directory, peer, url, catalog_replica, registered };
        self.put(&record);
        self.state.nodes.insert(node, Arc::new(record));
        self.state.header.awaited.remove(&node);
        Ok(Created::Node(catalog_replica))
    }

    /// Forgets a node, and its replicas with it: should the node come back before they are replaced,
    /// it must not pass an empty replica off as the one that voted and acknowledged.
    ///
    /// A majority of every group's replicas must stay: only a majority holds for certain what was
    /// acknowledged. Who is asked first, in `node`, knows also which of them are well.
    fn forget_node(&mut self, node: NodeId) -> Result<Created> {
        if !self.state.counts(node) {
            return Err(CatalogRefusal::NotFound);
        }
        let groups = self.state.groups_that_need(node);
        if !groups.is_empty() {
            return Err(CatalogRefusal::StillNeeded { node, groups });
        }
        self.state.header.awaited.remove(&node);
        if let Some(record) = self.state.nodes.remove(&node) {
            self.delete(record.as_ref());
        }
        let partitions: Vec<_> = self.state.partitions.values().cloned().collect();
        for partition in partitions {
            let mut partition = (*partition).clone();
            partition.replicas.retain(|replica| replica.node != node);
            if self.state.partitions[&partition.group].replicas == partition.replicas {
                continue;
            }
            assert!(!partition.replicas.is_empty(), "a majority of the replicas stays");
            self.put(&partition);
            self.state.partitions.insert(partition.group, Arc::new(partition));
        }
        Ok(Created::Nothing)
    }

    fn check_room(&self) -> Result<()> {
        if self.state.databases.len() + self.state.containers.len() < RESOURCES_MAX {
            return Ok(());
        }
        let limit = format!("The account holds {RESOURCES_MAX} databases and containers.");
        Err(CatalogRefusal::Limit(limit))
    }

    fn create_database(
        &mut self,
        name: ResourceName,
        throughput: Option<Throughput>,
    ) -> Result<Created> {
        if self.state.database_named(name.as_str()).is_some() {
            return Err(CatalogRefusal::Conflict);
        }
        self.check_room()?;
        self.state.header.databases_created += 1;
        let number = DatabaseNumber(self.state.header.databases_created);
        let database = Database { number, name, resource: self.resource(0), containers_created: 0 };
        self.put(&database);
        self.state.databases.insert(number, Arc::new(database));
        self.add_offer(OfferTarget::Database(number), throughput);
        Ok(Created::Database(number))
    }

    fn delete_database(
        &mut self,
        number: DatabaseNumber,
        precondition: Precondition,
    ) -> Result<Created> {
        let database = self.state.databases.get(&number).ok_or(CatalogRefusal::NotFound)?.clone();
        check(precondition, database.resource)?;
        let containers: Vec<_> = self.state.containers(number).cloned().collect();
        for container in containers {
            self.remove_container(&container);
        }
        let users: Vec<_> = self.state.users(number).map(|user| user.number).collect();
        for user in users {
            self.remove_user(user);
        }
        self.remove_offer(OfferTarget::Database(number));
        self.delete(database.as_ref());
        self.state.databases.remove(&number);
        Ok(Created::Nothing)
    }

    fn create_container(
        &mut self,
        database: DatabaseNumber,
        definition: ContainerDefinition,
        throughput: Option<Throughput>,
        placement: Vec<ReplicaPlan>,
    ) -> Result<Created> {
        let owner = self.state.databases.get(&database).ok_or(CatalogRefusal::OwnerNotFound)?;
        let mut owner = (**owner).clone();
        if self.state.container_named(database, definition.name().as_str()).is_some() {
            return Err(CatalogRefusal::Conflict);
        }
        self.check_room()?;
        owner.containers_created += 1;
        let number = ContainerNumber { database, number: owner.containers_created };
        self.put(&owner);
        self.state.databases.insert(database, Arc::new(owner));
        let partitions = self.place(number, placement)?;
        let container = Container {
            number,
            definition,
            resource: self.resource(0),
            policy_epoch: PolicyEpoch(1),
            ranges_created: partitions,
            scripts_created: 0,
        };
        self.put(&container);
        self.state.containers.insert(number, Arc::new(container));
        self.add_offer(OfferTarget::Container(number), throughput);
        Ok(Created::Container { container: number, policy_epoch: PolicyEpoch(1) })
    }

    /// Creates the partitions of a new container; returns how many.
    fn place(&mut self, container: ContainerNumber, plans: Vec<ReplicaPlan>) -> Result<u32> {
        let count = u16::try_from(plans.len()).ok().filter(|n| (1..=SLOTS).contains(n));
        let count = count.ok_or(CatalogRefusal::StalePlan)?;
        let slots = SlotRange::split_all(count);
        for ((range, slots), plan) in (0_u32..).map(RangeId).zip(slots).zip(plans) {
            self.check_plan(&plan)?;
            self.state.header.groups_created += 1;
            let group = GroupId(self.state.header.groups_created);
            let replicas = plan.0.iter().map(|node| self.new_replica(*node)).collect();
            let partition =
                PartitionRecord { group, container, range, slots, parents: Vec::new(), replicas };
            self.put(&partition);
            self.state.partitions.insert(group, Arc::new(partition));
        }
        Ok(u32::from(count))
    }

    fn check_plan(&self, plan: &ReplicaPlan) -> Result<()> {
        let known = plan.0.iter().all(|node| self.state.nodes.contains_key(node));
        let mut distinct = plan.0.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if known && !plan.0.is_empty() && distinct.len() == plan.0.len() {
            Ok(())
        } else {
            Err(CatalogRefusal::StalePlan)
        }
    }

    fn replace_container(
        &mut self,
        number: ContainerNumber,
        definition: ContainerDefinition,
        precondition: Precondition,
    ) -> Result<Created> {
        let old = self.state.containers.get(&number).ok_or(CatalogRefusal::NotFound)?;
        check(precondition, old.resource)?;
        if let Some(property) = old.definition.immutable_difference(&definition) {
            return Err(CatalogRefusal::Immutable(property.to_string()));
        }
        if let Some(name) = old.definition.listed_and_now_computed(&definition) {
            return Err(CatalogRefusal::ComputedOverListed(name.to_string()));
        }
        let mut container = (**old).clone();
        let acted_upon =
            |of: &ContainerDefinition| (of.ttl(), of.retention(), of.rules().index().clone());
        if acted_upon(&container.definition) != acted_upon(&definition) {
            container.policy_epoch = PolicyEpoch(container.policy_epoch.0 + 1);
        }
        container.definition = definition;
        container.resource = self.resource(0);
        let policy_epoch = container.policy_epoch;
        self.put(&container);
        self.state.containers.insert(number, Arc::new(container));
        Ok(Created::Container { container: number, policy_epoch })
    }

    fn delete_container(
        &mut self,
        number: ContainerNumber,
        precondition: Precondition,
    ) -> Result<Created> {
        let container = self.state.containers.get(&number).ok_or(CatalogRefusal::NotFound)?;
        check(precondition, container.resource)?;
        let container = container.clone();
        self.remove_container(&container);
        Ok(Created::Nothing)
    }

    fn remove_container(&mut self, container: &Container) {
        let number = container.number;
        for partition in self.state.partitions_of(number) {
            self.delete(partition.as_ref());
            self.state.partitions.remove(&partition.group);
        }
        let kinds =
            [ScriptKind::StoredProcedure, ScriptKind::Trigger, ScriptKind::UserDefinedFunction];
        for kind in kinds {
            let scripts: Vec<_> = self.state.scripts(number, kind).cloned().collect();
            for script in scripts {
                self.delete(script.as_ref());
                self.state.scripts.remove(&(number, kind, script.number));
            }
        }
        self.remove_offer(OfferTarget::Container(number));
        self.delete(container);
        self.state.containers.remove(&number);
    }

    fn add_offer(&mut self, target: OfferTarget, throughput: Option<Throughput>) {
        let Some(throughput) = throughput else { return };
        self.state.header.offers_created += 1;
        let number = self.state.header.offers_created;
        let offer = Offer { number, target, throughput, resource: self.resource(1) };
        self.put(&offer);
        self.state.offers.insert(number, Arc::new(offer));
    }

    fn remove_offer(&mut self, target: OfferTarget) {
        if let Some(offer) = self.state.offer_of(target).cloned() {
            self.delete(offer.as_ref());
            self.state.offers.remove(&offer.number);
        }
    }

    fn replace_throughput(
        &mut self,
        number: u32,
        throughput: Throughput,
        precondition: Precondition,
    ) -> Result<Created> {
        let old = self.state.offers.get(&number).ok_or(CatalogRefusal::NotFound)?;
        check(precondition, old.resource)?;
        let offer = Offer { throughput, resource: self.resource(0), ..(**old).clone() };
        self.put(&offer);
        self.state.offers.insert(number, Arc::new(offer));
        Ok(Created::Offer(number))
    }

    fn create_script(
        &mut self,
        number: ContainerNumber,
        kind: ScriptKind,
        name: ResourceName,
        body: String,
    ) -> Result<Created> {
        let owner = self.state.containers.get(&number).ok_or(CatalogRefusal::OwnerNotFound)?;
        if self.state.script_named(number, kind, name.as_str()).is_some() {
            return Err(CatalogRefusal::Conflict);
        }
        if self.state.scripts(number, kind).count() >= SCRIPTS_MAX {
            let limit = format!("The container holds {SCRIPTS_MAX} scripts of this kind.");
            return Err(CatalogRefusal::Limit(limit));
        }
        let mut owner = (**owner).clone();
        owner.scripts_created += 1;
        let resource = self.resource(0);
        let script =
            Script { container: number, kind, number: owner.scripts_created, name, body, resource };
        self.put(&owner);
        self.state.containers.insert(number, Arc::new(owner));
        self.put_script(script);
        Ok(Created::Script)
    }

    fn put_script(&mut self, script: Script) {
        self.put(&script);
        let key = (script.container, script.kind, script.number);
        self.state.scripts.insert(key, Arc::new(script));
    }

    fn script(
        &self,
        container: ContainerNumber,
        kind: ScriptKind,
        name: &ResourceName,
        precondition: Precondition,
    ) -> Result<Script> {
        if !self.state.containers.contains_key(&container) {
            return Err(CatalogRefusal::OwnerNotFound);
        }
        let script = self.state.script_named(container, kind, name.as_str());
        let script = script.ok_or(CatalogRefusal::NotFound)?;
        check(precondition, script.resource)?;
        Ok((**script).clone())
    }

    fn replace_script(
        &mut self,
        container: ContainerNumber,
        kind: ScriptKind,
        name: &ResourceName,
        body: String,
        precondition: Precondition,
    ) -> Result<Created> {
        let old = self.script(container, kind, name, precondition)?;
        let resource = self.resource(0);
        self.put_script(Script { body, resource, ..old });
        Ok(Created::Script)
    }

    fn delete_script(
        &mut self,
        container: ContainerNumber,
        kind: ScriptKind,
        name: &ResourceName,
        precondition: Precondition,
    ) -> Result<Created> {
        let script = self.script(container, kind, name, precondition)?;
        self.delete(&script);
        self.state.scripts.remove(&(container, kind, script.number));
        Ok(Created::Nothing)
    }

    fn set_replicas(&mut self, group: GroupId, plan: &ReplicaPlan) -> Result<Created> {
        self.check_plan(plan)?;
        let old = self.state.partitions.get(&group).ok_or(CatalogRefusal::NotFound)?;
        // With nobody to copy from, new replicas would form an empty group over lost data.
        if !plan.0.iter().any(|node| old.replica_on(*node).is_some()) {
            return Err(CatalogRefusal::StalePlan);
        }
        let mut partition = (**old).clone();
        partition.replicas = plan
            .0
            .iter()
            .map(|node| old.replica_on(*node).unwrap_or_else(|| self.new_replica(*node)))
            .collect();
        self.put(&partition);
        self.state.partitions.insert(group, Arc::new(partition));
        Ok(Created::Nothing)
    }
}

pub(super) fn check(precondition: Precondition, resource: Resource) -> Result<()> {
    if precondition.allows(resource.etag) {
        Ok(())
    } else {
        Err(CatalogRefusal::PreconditionFailed)
    }
}

/// The proposer checked the definition, so one that does not parse is a fault, not an answer.
fn parse_definition(json: &str) -> Result<ContainerDefinition, Fault> {
    let corrupt = |error: &dyn std::fmt::Display| Fault::corrupt("log entry", error);
    let value = serde_json::from_str(json).map_err(|error| corrupt(&error))?;
    ContainerDefinition::restore(&value).map_err(|error| corrupt(&error))
}
