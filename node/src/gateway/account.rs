//! `GET /`: the account, with every node as a region, so that SDKs fail over by themselves; or, where
//! a load balancer does that for them, with its address as the only one.

use axum::http::{HeaderMap, StatusCode};
use ephemeris_store::charge::Charge;
use ephemeris_store::ids::NodeId;
use serde_json::{Value, json};

use super::reply::Reply;
use super::{Call, Gateway};

/// The account's name, where clients see one.
const ACCOUNT: &str = "ephemeris";

/// Answers `GET /`.
pub(crate) fn read(gateway: &Gateway, call: &Call) -> Reply {
    let locations = locations(gateway, call.headers.raw());
    let level = gateway.node.config().consistency.name();
    let document = json!({
        "id": ACCOUNT,
        "_rid": format!("{ACCOUNT}.local"),
        "_self": "",
        "media": "//media/",
        "addresses": "//addresses/",
        "_dbs": "//dbs/",
        "writableLocations": locations,
        "readableLocations": locations,
        "enableMultipleWriteLocations": locations.len() > 1,
        "userConsistencyPolicy": { "defaultConsistencyLevel": level },
        "userReplicationPolicy": replication(gateway),
        "systemReplicationPolicy": replication(gateway),
        "readPolicy": { "primaryReadCoefficient": 1, "secondaryReadCoefficient": 1 },
        "continuousBackupEnabled": false,
        "enableNRegionSynchronousCommit": false,
        "enablePerPartitionFailoverBehavior": false,
        "queryEngineConfiguration": query_engine_configuration().to_string(),
    });
    Reply::json(StatusCode::OK, document.to_string()).charge(Charge::METADATA_READ)
}

fn replication(gateway: &Gateway) -> Value {
    let nodes = gateway.node.directory().current().state().nodes().count();
    let replicas = nodes.clamp(1, crate::placement::REPLICATION_FACTOR);
    json!({ "minReplicaSetSize": replicas, "maxReplicasetSize": replicas })
}

/// The account's one endpoint, if it has one. Else all nodes, the one that answers first: clients send
/// changes of the catalog to the first.
fn locations(gateway: &Gateway, headers: &HeaderMap) -> Vec<Value> {
    let location = |name: &str, url: &str| json!({ "name": name, "databaseAccountEndpoint": url });
    if let Some(url) = &gateway.node.config().account_endpoint {
        return vec![location(ACCOUNT, url)];
    }
    let me = gateway.node.node_id();
    let of_node = |node: NodeId, url: &str| location(&format!("node{node}"), url);
    let mut locations = vec![of_node(me, &own_url(gateway, headers))];
    for record in gateway.node.directory().current().state().nodes() {
        if record.node != me {
            locations.push(of_node(record.node, &record.url));
        }
    }
    locations
}

/// The URL this node is set to advertise, or else the one the client used.
fn own_url(gateway: &Gateway, headers: &HeaderMap) -> String {
    if let Some(url) = &gateway.node.config().advertise {
        return url.clone();
    }
    let host = headers.get("host").and_then(|host| host.to_str().ok());
    let scheme = gateway.node.config().scheme();
    host.map_or_else(|| gateway.node.url().to_string(), |host| format!("{scheme}://{host}/"))
}

/// What SDKs look for here: .NET refuses to query if it is empty. They are the service's limits; ours stand in
/// docs/QUERY.md.
fn query_engine_configuration() -> Value {
    json!({
        "allowNewKeywords": true,
        "maxJoinsPerSqlQuery": 10,
        "maxLogicalAndPerSqlQuery": 2000,
        "maxLogicalOrPerSqlQuery": 2000,
        "maxInExpressionItemsCount": 16000,
        "maxQueryRequestTimeoutFraction": 0.9,
        "maxSpatialQueryCells": 12,
        "maxSqlQueryInputLength": 524_288,
        "maxUdfRefPerSqlQuery": 10,
        "queryMaxInMemorySortDocumentCount": 500,
        "spatialMaxGeometryPointCount": 256,
        "sqlAllowAggregateFunctions": true,
        "sqlAllowGroupByClause": true,
        "sqlAllowLike": true,
        "sqlAllowNonFiniteNumbers": false,
        "sqlAllowScalarSubQuery": true,
        "sqlAllowSubQuery": true,
        "sqlAllowTop": true,
        "sqlDisableFilterPlanOptimization": false,
        "sqlDisableQueryILOptimization": false,
    })
}
