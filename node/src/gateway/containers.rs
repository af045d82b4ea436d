//! Containers: create, read, replace, list, query, delete.

use std::sync::Arc;

use axum::http::{HeaderName, StatusCode};
use ephemeris_store::catalog::{
    CatalogCommand, CatalogRefusal, Container, ContainerDefinition, Created, PartitionRecord,
    Throughput,
};
use ephemeris_store::charge::Charge;
use ephemeris_store::ids::{ContainerNumber, DatabaseNumber, ResourceId, container_link};
use ephemeris_store::ttl::PolicyEpoch;
use futures_util::future::join_all;
use serde_json::{Map, Value, json};

use super::error::{ApiError, Failure};
use super::path::ContainerPath;
use super::reply::{Reply, with_system_properties};
use super::resolve::{Purpose, Resolved};
use super::{Call, Gateway, feed};
use crate::partition::{PartitionRequest, PartitionResponse, PartitionStatistics, Policies};
use crate::placement::{able_nodes, plan_container};
use crate::requests::RequestError;

/// How often a placement that went out of date is planned again.
const PLANS_MAX: usize = 5;
const BYTES_PER_KB: u64 = 1024;

const INDEX_PROGRESS: HeaderName =
    HeaderName::from_static("x-ms-documentdb-collection-index-transformation-progress");
const RESOURCE_QUOTA: HeaderName = HeaderName::from_static("x-ms-resource-quota");
const RESOURCE_USAGE: HeaderName = HeaderName::from_static("x-ms-resource-usage");

/// A container as clients see it.
fn to_json(container: &Container) -> Map<String, Value> {
    let rid = ResourceId::Container(container.number).to_string();
    let link = container_link(container.number);
    let definition = container.definition.json().clone();
    let resource = container.resource;
    let mut json = with_system_properties(definition, &rid, &link, resource.etag, resource.ts.0);
    for below in ["docs", "sprocs", "triggers", "udfs", "conflicts"] {
        json.insert(format!("_{below}"), json!(format!("{below}/")));
    }
    json
}

fn reply(status: StatusCode, resolved: &Resolved, json: Map<String, Value>) -> Reply {
    Reply::json(status, Value::Object(json).to_string())
        .etag(resolved.container.resource.etag)
        .data(resolved.headers())
}

/// `POST /dbs/d/colls`
pub(crate) async fn create(
    gateway: &Gateway,
    call: &Call,
    database: &str,
) -> Result<Reply, Failure> {
    let definition = ContainerDefinition::parse(&call.json()?).map_err(Failure::in_body)?;
    let throughput = call.headers.throughput()?;
    let (_, database) = gateway.database(call, database, Purpose::Owner).await?;
    let (number, epoch) =
        create_in_catalog(gateway, call, database.number, &definition, throughput).await?;
    let resolved = resolved(gateway, number)?;
    // The container exists. Its partitions take items once they know its policy, which their leaders
    // also see to by themselves: nothing is lost if this takes longer than the client waits.
    let partitions = resolved.partitions();
    let _ = set_policies(gateway, call, partitions, epoch, &definition).await;
    let json = to_json(&resolved.container);
    Ok(reply(StatusCode::CREATED, &resolved, json).charge(Charge::METADATA_WRITE))
}

async fn create_in_catalog(
    gateway: &Gateway,
    call: &Call,
    database: DatabaseNumber,
    definition: &ContainerDefinition,
    throughput: Option<Throughput>,
) -> Result<(ContainerNumber, PolicyEpoch), Failure> {
    let text = Value::Object(definition.json().clone()).to_string();
    let partitions = throughput.map_or(1, Throughput::partitions);
    let able = able_nodes(&gateway.node).await;
    for _ in 0..PLANS_MAX {
        let view = gateway.node.directory().current();
        let placement = plan_container(view.state(), &able, partitions);
        let definition = text.clone();
        let command =
            CatalogCommand::CreateContainer { database, definition, throughput, placement };
        match gateway.try_change_catalog(call, command).await? {
            Ok(Created::Container { container, policy_epoch }) => {
                return Ok((container, policy_epoch));
            }
            Ok(
                other @ (Created::Nothing
                | Created::Database(_)
                | Created::Offer(_)
                | Created::Script
                | Created::User(_)
                | Created::Permission(_)
                | Created::Node(_)),
            ) => return Err(not_a_container(&other).into()),
            Err(CatalogRefusal::StalePlan) => {
                gateway.fresh_view(call).await?;
            }
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Err(CatalogRefusal::StalePlan.into())
}

/// The catalog's leader answered another question than it was asked.
fn not_a_container(created: &Created) -> RequestError {
    RequestError::Fault(format!("the catalog answered {created:?}, which is no container"))
}

/// The container a change just made or replaced.
fn resolved(gateway: &Gateway, number: ContainerNumber) -> Result<Resolved, ApiError> {
    let view = gateway.node.directory().current();
    Resolved::of(&view, number)
        .ok_or_else(|| ApiError::Timeout("The container was deleted meanwhile.".to_string()))
}

/// Sets the policies at all partitions; fails unless they are in force at every one.
async fn set_policies(
    gateway: &Gateway,
    call: &Call,
    partitions: &[Arc<PartitionRecord>],
    epoch: PolicyEpoch,
    definition: &ContainerDefinition,
) -> Result<(), RequestError> {
    let policies = Box::new(Policies::of(definition));
    let requests = partitions.iter().map(|partition| {
        let request = PartitionRequest::SetPolicies { epoch, policies: policies.clone() };
        gateway.node.ask_partition(partition.group, request, call.deadline)
    });
    for response in join_all(requests).await {
        let PartitionResponse::PolicySet(in_force) = response? else {
            unreachable!("`ask_partition` checks what is answered")
        };
        if in_force < epoch {
            let reason = format!("a partition answered with the policy of epoch {}", in_force.0);
            return Err(RequestError::Fault(reason));
        }
    }
    Ok(())
}

/// `GET /dbs/d/colls/c`
pub(crate) async fn read(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Reply, Failure> {
    let condition = call.headers.read_condition()?;
    let resolved = gateway.container_itself(call, path).await?;
    let etag = resolved.container.resource.etag;
    let wants_statistics = call.headers.flag("x-ms-documentdb-populatepartitionstatistics");
    let wants_quota = call.headers.flag("x-ms-documentdb-populatequotainfo");
    let mut json = to_json(&resolved.container);
    if !wants_statistics && !wants_quota {
        let reply = reply(StatusCode::OK, &resolved, json).charge(Charge::METADATA_READ);
        return Ok(reply.unless_known(condition, etag));
    }
    let statistics = statistics(gateway, call, resolved.partitions()).await?;
    if wants_statistics {
        json.insert("statistics".into(), statistics_json(&resolved, &statistics));
    }
    let reply = reply(StatusCode::OK, &resolved, json).charge(Charge::METADATA_READ);
    let reply = if wants_quota { with_quota(reply, &statistics) } else { reply };
    Ok(reply.unless_known(condition, etag))
}

async fn statistics(
    gateway: &Gateway,
    call: &Call,
    partitions: &[Arc<PartitionRecord>],
) -> Result<Vec<PartitionStatistics>, Failure> {
    let requests = partitions.iter().map(|partition| {
        let request = PartitionRequest::Statistics;
        gateway.node.ask_partition(partition.group, request, call.deadline)
    });
    let mut statistics = Vec::with_capacity(partitions.len());
    for response in join_all(requests).await {
        let PartitionResponse::Statistics(partition) = response? else {
            unreachable!("`ask_partition` checks what is answered")
        };
        statistics.push(partition);
    }
    Ok(statistics)
}

fn statistics_json(resolved: &Resolved, statistics: &[PartitionStatistics]) -> Value {
    let partitions = resolved.partitions().iter().zip(statistics).map(|(partition, statistics)| {
        json!({
            "id": partition.range.to_string(),
            "sizeInKB": statistics.bytes.div_ceil(BYTES_PER_KB),
            "documentCount": statistics.items,
            "sampledDistinctPartitionKeyCount": 0,
            "partitionKeys": [],
        })
    });
    Value::Array(partitions.collect())
}

fn with_quota(reply: Reply, statistics: &[PartitionStatistics]) -> Reply {
    let bytes: u64 = statistics.iter().map(|partition| partition.bytes).sum();
    let items: u64 = statistics.iter().map(|partition| partition.items).sum();
    let kb = bytes.div_ceil(BYTES_PER_KB);
    let mb = kb.div_ceil(BYTES_PER_KB);
    let usage =
        format!("documentSize={mb};documentsSize={kb};documentsCount={items};collectionSize={kb};");
    let indexed = statistics.iter().map(|partition| partition.indexed_percent).min();
    let reply = reply.header(INDEX_PROGRESS, indexed.unwrap_or(100).to_string());
    reply.header(RESOURCE_USAGE, &usage).header(RESOURCE_QUOTA, "documentsCount=-1;")
}

/// `PUT /dbs/d/colls/c`
///
/// Answers 200 only when every partition has applied the new definition.
pub(crate) async fn replace(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Reply, Failure> {
    let definition = ContainerDefinition::parse(&call.json()?).map_err(Failure::in_body)?;
    let precondition = call.headers.precondition()?;
    let container = gateway.container_itself(call, path).await?.container.number;
    let text = Value::Object(definition.json().clone()).to_string();
    let command = CatalogCommand::ReplaceContainer { container, definition: text, precondition };
    let created = gateway.change_catalog(call, command).await?;
    let Created::Container { policy_epoch, .. } = created else {
        return Err(not_a_container(&created).into());
    };
    let resolved = resolved(gateway, container)?;
    let partitions = resolved.partitions();
    if let Err(error) = set_policies(gateway, call, partitions, policy_epoch, &definition).await {
        return Err(ApiError::Timeout(format!(
            "The definition was changed, but not every partition has applied it yet ({error}). \
             They will; send the request again to be told when."
        ))
        .into());
    }
    let json = to_json(&resolved.container);
    Ok(reply(StatusCode::OK, &resolved, json).charge(Charge::METADATA_WRITE))
}

/// `DELETE /dbs/d/colls/c`
pub(crate) async fn delete(
    gateway: &Gateway,
    call: &Call,
    path: &ContainerPath,
) -> Result<Reply, Failure> {
    let resolved = gateway.container_itself(call, path).await?;
    let precondition = call.headers.precondition()?;
    let container = resolved.container.number;
    let command = CatalogCommand::DeleteContainer { container, precondition };
    gateway.change_catalog(call, command).await?;
    Ok(Reply::empty(StatusCode::NO_CONTENT).charge(Charge::METADATA_WRITE))
}

/// `GET /dbs/d/colls`, or `POST` with a query
pub(crate) async fn list(gateway: &Gateway, call: &Call, database: &str) -> Result<Reply, Failure> {
    let (view, database) = gateway.database(call, database, Purpose::Owner).await?;
    let rid = ResourceId::Database(database.number).to_string();
    let listed =
        |container: &Arc<Container>| (u64::from(container.number.number), to_json(container));
    let containers = view.state().containers(database.number).map(listed);
    feed::answer(gateway, call, (&rid, "DocumentCollections"), containers)
}
