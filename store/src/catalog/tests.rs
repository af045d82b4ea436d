//! The catalog's laws: names are unique, deletion cascades, numbers are never reused.

mod users;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::charge::Charge;
use crate::codec;
use crate::command::Precondition;
use crate::engine::MemoryEngine;
use crate::ids::{ContainerNumber, DatabaseNumber, GroupId, NodeId, ReplicaId, ResourceName};
use crate::time::{ClockInterval, Millis, Seconds};
use crate::ttl::PolicyEpoch;

struct Fixture {
    engine: MemoryEngine,
    catalog: Catalog,
}

impl Fixture {
    fn new() -> Self {
        let engine = MemoryEngine::new();
        let catalog = Catalog::open(Arc::new(engine.clone())).unwrap();
        let mut fixture = Self { engine, catalog };
        for node in 1..=3 {
            fixture.register(node, u128::from(node)).unwrap();
        }
        fixture
    }

    fn apply(&mut self, command: CatalogCommand) -> Result<Created, CatalogRefusal> {
        let now = ClockInterval::exact(Millis(1_000_500));
        let bytes = codec::encode(&CatalogProposal { now, command });
        let index = self.catalog.progress().applied.map_or(0, |applied| applied.index + 1);
        let outcome = self.catalog.apply(LogId { term: 1, index }, Entry::Command(&bytes));
        outcome.unwrap().unwrap().result
    }

    fn register(&mut self, node: u32, directory: u128) -> Result<Created, CatalogRefusal> {
        let (peer, url) = (format!("n{node}:7000"), format!("http://n{node}:8081/"));
        let node = NodeId(node);
        self.apply(CatalogCommand::RegisterNode { node, directory, peer, url, founder: true })
    }

    fn create_database(&mut self, name: &str) -> Result<Created, CatalogRefusal> {
        let throughput = Some(Throughput::Manual(400));
        self.apply(CatalogCommand::CreateDatabase { name: resource_name(name), throughput })
    }

    fn create_container(
        &mut self,
        name: &str,
        partitions: usize,
    ) -> Result<Created, CatalogRefusal> {
        self.create_container_with(name, partitions, Some(AUTOSCALE))
    }

    fn create_container_with(
        &mut self,
        name: &str,
        partitions: usize,
        throughput: Option<Throughput>,
    ) -> Result<Created, CatalogRefusal> {
        self.apply(CatalogCommand::CreateContainer {
            database: DatabaseNumber(1),
            definition: definition(name, &json!({})),
            throughput,
            placement: vec![ReplicaPlan(vec![NodeId(1), NodeId(2), NodeId(3)]); partitions],
        })
    }

    /// The state after a restart is the state before it.
    fn reopen(&mut self) {
        let before = self.catalog.state();
        self.catalog = Catalog::open(Arc::new(self.engine.clone())).unwrap();
        assert_eq!(format!("{before:?}"), format!("{:?}", self.catalog.state()));
    }
}

fn resource_name(name: &str) -> ResourceName {
    ResourceName::try_from(name.to_string()).unwrap()
}

fn definition(name: &str, extra: &serde_json::Value) -> String {
    let mut body = json!({ "id": name, "partitionKey": { "paths": ["/pk"] } });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    serde_json::to_string(ContainerDefinition::parse(&body).unwrap().json()).unwrap()
}

const AUTOSCALE: Throughput =
    Throughput::Autoscale(Autoscale { maximum: 1000, increment_percent: None });

const CONTAINER: ContainerNumber = ContainerNumber { database: DatabaseNumber(1), number: 1 };

#[test]
fn names_are_unique_and_numbers_never_reused() {
    let mut f = Fixture::new();
    assert_eq!(f.create_database("db"), Ok(Created::Database(DatabaseNumber(1))));
    assert_eq!(f.create_database("db"), Err(CatalogRefusal::Conflict));
    let database = DatabaseNumber(1);
    let precondition = Precondition::None;
    f.apply(CatalogCommand::DeleteDatabase { database, precondition }).unwrap();
    assert_eq!(f.create_database("db"), Ok(Created::Database(DatabaseNumber(2))));
    f.reopen();
}

#[test]
fn r10_stamps_round_up() {
    let mut f = Fixture::new();
    f.create_database("db").unwrap();
    // The fixture's clock reads 1000.5 seconds.
    let state = f.catalog.state();
    assert_eq!(state.database(DatabaseNumber(1)).unwrap().resource.ts, Seconds(1001));
}

#[test]
fn an_entry_whose_clock_ends_before_it_starts_is_a_fault() {
    let mut f = Fixture::new();
    let now = (Millis(2_000_000), Millis(1_999_999));
    let founders = BTreeSet::new();
    let command = CatalogCommand::FormCluster { cluster: ClusterId(7), founders };
    let bytes = codec::encode(&(now, command));
    let before = f.catalog.progress().applied.unwrap();
    let position = LogId { term: 1, index: before.index + 1 };
    assert!(f.catalog.apply(position, Entry::Command(&bytes)).is_err());
    assert_eq!(f.catalog.progress().applied, Some(before), "nothing was applied");
    f.reopen();
}

#[test]
fn containers_are_cut_into_partitions_that_tile_the_hash_space() {
    let mut f = Fixture::new();
    f.create_database("db").unwrap();
    f.create_container("c", 3).unwrap();
    let state = f.catalog.state();
    let partitions = state.partitions_of(CONTAINER);
    let bounds: Vec<_> =
        partitions.iter().map(|p| (p.range.0, p.slots.start, p.slots.end)).collect();
    assert_eq!(bounds, [(0, 0, 85), (1, 85, 170), (2, 170, 256)]);
    assert!(partitions.iter().all(|p| p.replicas.len() == 3));
    f.reopen();
}

#[test]
fn deleting_a_database_takes_everything_in_it() {
    let mut f = Fixture::new();
    f.create_database("db").unwrap();
    f.create_container("c", 2).unwrap();
    let (container, kind) = (CONTAINER, ScriptKind::Trigger);
    let (name, body) = (resource_name("t"), "{}".to_string());
    f.apply(CatalogCommand::CreateScript { container, kind, name, body }).unwrap();
    let precondition = Precondition::None;
    let database = DatabaseNumber(1);
    f.apply(CatalogCommand::DeleteDatabase { database, precondition }).unwrap();
    let state = f.catalog.state();
    assert_eq!(state.databases().count(), 0);
    assert_eq!(state.partitions().count(), 0);
    assert_eq!(state.offers().count(), 0);
    assert_eq!(state.scripts(CONTAINER, ScriptKind::Trigger).count(), 0);
    f.reopen();
    assert_eq!(f.create_container("c", 1), Err(CatalogRefusal::OwnerNotFound));
}

#[test]
fn a_container_has_so_many_scripts_of_a_kind() {
    let mut f = Fixture::new();
    f.create_database("db").unwrap();
    f.create_container("items", 1).unwrap();
    let created = |number: usize, kind| {
        let (name, body) = (resource_name(&format!("s{number}")), "{}".to_string());
        CatalogCommand::CreateScript { container: CONTAINER, kind, name, body }
    };
    let (trigger, function) = (ScriptKind::Trigger, ScriptKind::UserDefinedFunction);
    for number in 0..apply::SCRIPTS_MAX {
        assert_eq!(f.apply(created(number, trigger)), Ok(Created::Script));
    }
    assert_eq!(f.apply(created(0, trigger)), Err(CatalogRefusal::Conflict));
    let more = created(apply::SCRIPTS_MAX, trigger);
    assert!(matches!(f.apply(more.clone()), Err(CatalogRefusal::Limit(_))));
    assert_eq!(f.apply(created(0, function)), Ok(Created::Script), "each kind has its own");
    f.reopen();
    let (name, precondition) = (resource_name("s0"), Precondition::None);
    let deleted =
        CatalogCommand::DeleteScript { container: CONTAINER, kind: trigger, name, precondition };
    f.apply(deleted).unwrap();
    assert_eq!(f.apply(more), Ok(Created::Script));
}

#[test]
fn replacing_a_container_counts_its_policy_changes() {
    let mut f = Fixture::new();
    f.create_database("db").unwrap();
    f.create_container("c", 1).unwrap();
    let replace = |f: &mut Fixture, extra: serde_json::Value| {
        let (definition, precondition) = (definition("c", &extra), Precondition::None);
        f.apply(CatalogCommand::ReplaceContainer { container: CONTAINER, definition, precondition })
    };
    let epoch =
        |epoch| Created::Container { container: CONTAINER, policy_epoch: PolicyEpoch(epoch) };
    assert_eq!(replace(&mut f, json!({ "defaultTtl": 5 })), Ok(epoch(2)));
    assert_eq!(replace(&mut f, json!({ "defaultTtl": 5 })), Ok(epoch(2)));
    assert_eq!(replace(&mut f, json!({})), Ok(epoch(3)));
    let key = json!({ "partitionKey": { "paths": ["/other"] } });
    assert_eq!(replace(&mut f, key), Err(CatalogRefusal::Immutable("partitionKey".into())));
    let listed = json!({ "includedPaths": [{ "path": "/*" }, { "path": "/low/?" }] });
    let stored = replace(&mut f, json!({ "indexingPolicy": listed }));
    assert_eq!(stored, Ok(epoch(4)), "what is indexed is a policy, too");
    let query = json!([{ "name": "low", "query": "SELECT VALUE c.n FROM c" }]);
    let computed = replace(&mut f, json!({ "computedProperties": query }));
    assert_eq!(computed, Err(CatalogRefusal::ComputedOverListed("low".into())));
    f.reopen();
}

#[test]
fn preconditions_are_judged_against_the_stored_tag() {
    let mut f = Fixture::new();
    f.create_database("db").unwrap();
    let tag = f.catalog.state().database_named("db").unwrap().resource.etag;
    let database = DatabaseNumber(1);
    let precondition = Precondition::IfMatch(None);
    let refused = f.apply(CatalogCommand::DeleteDatabase { database, precondition });
    assert_eq!(refused, Err(CatalogRefusal::PreconditionFailed));
    let precondition = Precondition::IfMatch(Some(tag));
    f.apply(CatalogCommand::DeleteDatabase { database, precondition }).unwrap();
}

#[test]
fn a_node_that_lost_its_disk_is_refused_until_it_is_forgotten() {
    let mut f = Fixture::new();
    let node = NodeId(2);
    assert_eq!(f.register(2, 99), Err(CatalogRefusal::AnotherDirectory { node }));
    f.apply(CatalogCommand::ForgetNode { node }).unwrap();
    let (peer, url) = ("n2".to_string(), "http://n2/".to_string());
    f.apply(CatalogCommand::RegisterNode { node, directory: 99, peer, url, founder: false })
        .unwrap();
    let replica = f.catalog.state().node(node).unwrap().catalog_replica;
    assert!(replica.incarnation > 0, "a new replica has a new number");
}

#[test]
fn a_forgotten_node_gets_none_of_its_old_replicas_back() {
    let mut f = Fixture::new();
    f.create_database("db").unwrap();
    f.create_container("c", 1).unwrap();
    let group = f.catalog.state().partitions_of(CONTAINER)[0].group;
    let nodes = |f: &Fixture| -> Vec<u32> {
        let partition = f.catalog.state().partition(group).unwrap().clone();
        partition.replicas.iter().map(|replica| replica.node.0).collect()
    };
    let before = f.catalog.state().partition(group).unwrap().replica_on(NodeId(3)).unwrap();
    f.apply(CatalogCommand::ForgetNode { node: NodeId(3) }).unwrap();
    assert_eq!(nodes(&f).len(), 2);
    let (node, peer, url) = (NodeId(3), "n3".to_string(), "http://n3/".to_string());
    f.apply(CatalogCommand::RegisterNode { node, directory: 99, peer, url, founder: false })
        .unwrap();
    assert_eq!(nodes(&f).len(), 2, "it has no replica until one is planned anew");
    let plan = ReplicaPlan([1, 2, 3].map(NodeId).to_vec());
    f.apply(CatalogCommand::SetReplicas { group, plan }).unwrap();
    let after = f.catalog.state().partition(group).unwrap().replica_on(NodeId(3)).unwrap();
    assert!(after.incarnation > before.incarnation, "a new replica has a new number");
    f.reopen();
}

#[test]
fn a_node_registers_as_often_as_it_likes_and_stays_the_same_replica() {
    let mut f = Fixture::new();
    let replica = |incarnation| ReplicaId { node: NodeId(2), incarnation };
    assert_eq!(f.register(2, 2), Ok(Created::Node(replica(0))));
    let join = |f: &mut Fixture| {
        let (node, peer, url) = (NodeId(9), "n9".to_string(), "http://n9/".to_string());
        f.apply(CatalogCommand::RegisterNode { node, directory: 9, peer, url, founder: false })
    };
    let first = join(&mut f).unwrap();
    let known = f.catalog.state().node(NodeId(9)).unwrap().catalog_replica;
    assert!(known.incarnation > 0);
    assert_eq!(first, Created::Node(known));
    assert_eq!(join(&mut f), Ok(first), "its first answer may have been lost");
    f.reopen();
}

#[test]
fn a_node_is_not_forgotten_while_a_majority_needs_it() {
    let mut f = Fixture::new();
    f.create_database("db").unwrap();
    for (name, nodes) in [("three", &[1, 2, 3][..]), ("two", &[1, 3]), ("one", &[1])] {
        let placement = vec![ReplicaPlan(nodes.iter().copied().map(NodeId).collect())];
        let (database, definition) = (DatabaseNumber(1), definition(name, &json!({})));
        let throughput = None;
        let create =
            CatalogCommand::CreateContainer { database, definition, throughput, placement };
        f.apply(create).unwrap();
    }
    let forget = |f: &mut Fixture, node| f.apply(CatalogCommand::ForgetNode { node: NodeId(node) });
    let needed = |node, groups: &[u64]| {
        let groups = groups.iter().copied().map(GroupId).collect();
        Err(CatalogRefusal::StillNeeded { node: NodeId(node), groups })
    };
    assert_eq!(forget(&mut f, 1), needed(1, &[2, 3]));
    assert_eq!(forget(&mut f, 3), needed(3, &[2]));
    let message = forget(&mut f, 1).unwrap_err().to_string();
    assert!(message.contains("partition 2, partition 3"), "{message}");
    forget(&mut f, 2).unwrap();
    assert_eq!(forget(&mut f, 2), Err(CatalogRefusal::NotFound));
    assert_eq!(forget(&mut f, 3), needed(3, &[0, 1, 2]));
    let message = forget(&mut f, 3).unwrap_err().to_string();
    assert!(message.contains("of the catalog, partition 1"), "{message}");
    f.reopen();
}

#[test]
fn founders_are_awaited_until_they_are_registered_or_forgotten() {
    let mut f = Fixture::new();
    let awaited = |f: &Fixture| f.catalog.state().awaited().map(|node| node.0).collect::<Vec<_>>();
    let form = |cluster, founders: &[u32]| CatalogCommand::FormCluster {
        cluster: ClusterId(cluster),
        founders: founders.iter().copied().map(NodeId).collect(),
    };
    let known: Vec<u32> = f.catalog.state().nodes().map(|record| record.node.0).collect();
    assert_eq!(known, [1, 2, 3]);
    f.apply(form(7, &[1, 2, 3, 4, 5])).unwrap();
    assert_eq!(awaited(&f), [4, 5]);
    f.apply(form(8, &[1, 2, 3, 4, 5, 6])).unwrap();
    assert_eq!(awaited(&f), [4, 5], "the first one wins");
    f.reopen();
    assert_eq!(awaited(&f), [4, 5]);
    f.register(4, 4).unwrap();
    assert_eq!(awaited(&f), [5]);
    f.apply(CatalogCommand::ForgetNode { node: NodeId(5) }).unwrap();
    assert_eq!(awaited(&f), [0; 0]);
    let again = f.apply(CatalogCommand::ForgetNode { node: NodeId(5) });
    assert_eq!(again, Err(CatalogRefusal::NotFound));
}

#[test]
fn a_plan_keeps_a_replica_that_has_the_data() {
    let mut f = Fixture::new();
    f.register(4, 4).unwrap();
    f.register(5, 5).unwrap();
    f.create_database("db").unwrap();
    f.create_container("c", 1).unwrap();
    let group = f.catalog.state().partitions_of(CONTAINER)[0].group;
    let set = |f: &mut Fixture, nodes: &[u32]| {
        let plan = ReplicaPlan(nodes.iter().copied().map(NodeId).collect());
        f.apply(CatalogCommand::SetReplicas { group, plan })
    };
    assert_eq!(set(&mut f, &[4, 5]), Err(CatalogRefusal::StalePlan));
    set(&mut f, &[3, 4, 5]).unwrap();
}

#[test]
fn moved_replicas_get_new_numbers_and_staying_ones_keep_theirs() {
    let mut f = Fixture::new();
    f.create_database("db").unwrap();
    f.create_container("c", 1).unwrap();
    let group = f.catalog.state().partitions_of(CONTAINER)[0].group;
    let replicas = |f: &Fixture| f.catalog.state().partition(group).unwrap().replicas.clone();
    let before = replicas(&f);
    let plan = |nodes: &[u32]| ReplicaPlan(nodes.iter().copied().map(NodeId).collect());
    f.apply(CatalogCommand::SetReplicas { group, plan: plan(&[1, 2]) }).unwrap();
    f.apply(CatalogCommand::SetReplicas { group, plan: plan(&[1, 2, 3]) }).unwrap();
    let after = replicas(&f);
    assert_eq!(after[..2], before[..2]);
    assert_eq!(after[2].node, before[2].node);
    assert_ne!(after[2], ReplicaId { ..before[2] });
    for wrong in [&[][..], &[1, 1], &[1, 9]] {
        let refused = f.apply(CatalogCommand::SetReplicas { group, plan: plan(wrong) });
        assert_eq!(refused, Err(CatalogRefusal::StalePlan));
    }
}

#[test]
fn throughput_is_kept_with_its_target() {
    let mut f = Fixture::new();
    f.create_database("db").unwrap();
    f.create_container("c", 1).unwrap();
    let offer = |f: &Fixture, target| f.catalog.state().offer_of(target).cloned();
    let shared = offer(&f, OfferTarget::Database(DatabaseNumber(1))).unwrap();
    assert_eq!(shared.throughput, Throughput::Manual(400));
    let own = offer(&f, OfferTarget::Container(CONTAINER)).unwrap();
    let throughput = Throughput::Manual(500);
    let replace =
        |offer, precondition| CatalogCommand::ReplaceThroughput { offer, throughput, precondition };
    let current = Precondition::IfMatch(Some(own.resource.etag));
    f.apply(replace(own.number, current)).unwrap();
    assert_eq!(offer(&f, OfferTarget::Container(CONTAINER)).unwrap().throughput, throughput);
    let stale = f.apply(replace(own.number, current));
    assert_eq!(stale, Err(CatalogRefusal::PreconditionFailed));
    let missing = f.apply(replace(99, Precondition::None));
    assert_eq!(missing, Err(CatalogRefusal::NotFound));
}

#[test]
fn partitions_share_the_rate_of_their_container_or_of_their_database() {
    let mut f = Fixture::new();
    let throughput = Some(Throughput::Manual(600));
    f.apply(CatalogCommand::CreateDatabase { name: resource_name("db"), throughput }).unwrap();
    f.create_container_with("own", 4, Some(AUTOSCALE)).unwrap();
    f.create_container_with("shares", 1, None).unwrap();
    f.create_container_with("shares too", 2, None).unwrap();
    let rate = |f: &Fixture, number| {
        let container = ContainerNumber { database: DatabaseNumber(1), number };
        f.catalog.state().rates().get(&container).map(|rate| rate.per_second())
    };
    let units = |request_units: u64| Some(Charge(request_units * 1_000_000));
    assert_eq!(rate(&f, 1), units(250), "all of autoscale's maximum, by four");
    assert_eq!((rate(&f, 2), rate(&f, 3)), (units(200), units(200)), "by three, of two containers");

    let shared =
        f.catalog.state().offer_of(OfferTarget::Database(DatabaseNumber(1))).unwrap().number;
    let throughput = Throughput::Manual(900);
    let precondition = Precondition::None;
    f.apply(CatalogCommand::ReplaceThroughput { offer: shared, throughput, precondition }).unwrap();
    assert_eq!((rate(&f, 1), rate(&f, 2), rate(&f, 3)), (units(250), units(300), units(300)));
    assert_eq!(rate(&f, 4), None, "no such container");
}

#[test]
fn a_container_without_any_offer_has_no_rate() {
    let mut f = Fixture::new();
    let name = resource_name("db");
    f.apply(CatalogCommand::CreateDatabase { name, throughput: None }).unwrap();
    f.create_container_with("c", 2, None).unwrap();
    assert!(f.catalog.state().rates().is_empty());
}
