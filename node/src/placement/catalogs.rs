//! Catalogs for tests, of one node and one container.

use std::sync::Arc;

use ephemeris_store::catalog::{
    Catalog, CatalogCommand, CatalogProposal, ContainerDefinition, ReplicaPlan, Throughput,
};
use ephemeris_store::codec;
use ephemeris_store::engine::MemoryEngine;
use ephemeris_store::ids::{DatabaseNumber, NodeId, ResourceName};
use ephemeris_store::machine::{Entry, LogId, Machine as _};
use ephemeris_store::time::{ClockInterval, Millis};
use serde_json::Value;

/// A catalog to which this has happened.
pub(crate) fn catalog(commands: &[CatalogCommand]) -> Catalog {
    let catalog = Catalog::open(Arc::new(MemoryEngine::new())).unwrap();
    for command in commands {
        apply(&catalog, command);
    }
    catalog
}

/// Lets a catalog apply a command that it does not refuse.
pub(crate) fn apply(catalog: &Catalog, command: &CatalogCommand) {
    let now = ClockInterval::exact(Millis(1000));
    let bytes = codec::encode(&CatalogProposal { now, command: command.clone() });
    let index = catalog.progress().applied.map_or(0, |applied| applied.index + 1);
    let applied = catalog.apply(LogId { term: 1, index }, Entry::Command(&bytes));
    applied.unwrap().unwrap().result.unwrap();
}

/// What makes node 1, and container 1 of database 1 with so many partitions on that node.
pub(crate) fn a_container(
    definition: &Value,
    partitions: usize,
    throughput: Option<Throughput>,
) -> [CatalogCommand; 3] {
    let definition = ContainerDefinition::parse(definition).unwrap();
    let node = NodeId(1);
    [
        CatalogCommand::RegisterNode {
            node,
            directory: 1,
            peer: String::new(),
            url: String::new(),
            founder: true,
        },
        CatalogCommand::CreateDatabase {
            name: ResourceName::try_from("d".to_string()).unwrap(),
            throughput: None,
        },
        CatalogCommand::CreateContainer {
            database: DatabaseNumber(1),
            definition: serde_json::to_string(definition.json()).unwrap(),
            throughput,
            placement: vec![ReplicaPlan(vec![node]); partitions],
        },
    ]
}
