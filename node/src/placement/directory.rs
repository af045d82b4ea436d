//! The catalog at hand: this node's copy, with the maps requests need.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use axum::http::HeaderValue;
use ephemeris_store::catalog::{Catalog, CatalogState, Container, Database, PartitionRecord};
use ephemeris_store::charge::Rate;
use ephemeris_store::ids::{ContainerNumber, DatabaseNumber, Lsn, ResourceId};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// What names look like in a header: as the SDKs themselves encode them.
const NAME_ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'_').remove(b'.').remove(b'-').remove(b'~');

/// The catalog as this node knows it. Clones share it.
#[derive(Clone)]
pub(crate) struct Directory {
    catalog: Arc<Catalog>,
    view: Arc<ArcSwap<DirectoryView>>,
    rebuilding: Arc<Mutex<()>>,
}

/// The catalog as of one entry.
pub(crate) struct DirectoryView {
    lsn: Lsn,
    state: Arc<CatalogState>,
    databases: HashMap<String, Arc<Database>>,
    containers: HashMap<(DatabaseNumber, String), Arc<Container>>,
    partitions: HashMap<ContainerNumber, Vec<Arc<PartitionRecord>>>,
    rates: BTreeMap<ContainerNumber, Rate>,
    links: HashMap<ContainerNumber, Arc<Links>>,
}

/// What every answer about a container's data says of the container.
#[derive(Debug)]
pub(crate) struct Links {
    /// `dbs/<name>/colls/<name>`: without it the Python SDK throws the session token away.
    pub(crate) by_name: HeaderValue,
    /// The container's `_rid`.
    pub(crate) rid: HeaderValue,
}

impl Links {
    /// The links of a container.
    pub(crate) fn new(database: &Database, container: &Container) -> Self {
        let database = utf8_percent_encode(database.name.as_str(), NAME_ENCODED);
        let name = utf8_percent_encode(container.definition.name().as_str(), NAME_ENCODED);
        let header = |text: String| {
            HeaderValue::try_from(text).expect("names are percent-encoded, and a `_rid` is base64")
        };
        let rid = ResourceId::Container(container.number).to_string();
        Self { by_name: header(format!("dbs/{database}/colls/{name}")), rid: header(rid) }
    }
}

impl Directory {
    /// A directory over this node's copy of the catalog.
    pub(crate) fn new(catalog: Arc<Catalog>) -> Self {
        let view = Arc::new(ArcSwap::from_pointee(DirectoryView::build(&catalog)));
        Self { catalog, view, rebuilding: Arc::default() }
    }

    /// The catalog as of the last entry applied here.
    pub(crate) fn current(&self) -> Arc<DirectoryView> {
        let view = self.view.load_full();
        if view.lsn == self.catalog.lsn() {
            return view;
        }
        let _one_at_a_time = self.rebuilding.lock().unwrap_or_else(PoisonError::into_inner);
        let view = self.view.load_full();
        if view.lsn == self.catalog.lsn() {
            return view;
        }
        let view = Arc::new(DirectoryView::build(&self.catalog));
        self.view.store(view.clone());
        view
    }
}

impl DirectoryView {
    fn build(catalog: &Catalog) -> Self {
        let (state, lsn) = catalog.state_and_lsn();
        let databases = state
            .databases()
            .map(|database| (database.name.to_string(), database.clone()))
            .collect();
        let (mut containers, mut links) = (HashMap::new(), HashMap::new());
        for database in state.databases() {
            for container in state.containers(database.number) {
                links.insert(container.number, Arc::new(Links::new(database, container)));
                let name = container.definition.name().to_string();
                containers.insert((database.number, name), container.clone());
            }
        }
        let mut partitions: HashMap<_, Vec<_>> = HashMap::new();
        for partition in state.partitions() {
            partitions.entry(partition.container).or_default().push(partition.clone());
        }
        for records in partitions.values_mut() {
            records.sort_by_key(|record| record.slots.start);
        }
        let rates = state.rates();
        Self { lsn, state, databases, containers, partitions, rates, links }
    }

    /// The entry it is as of.
    pub(crate) fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Everything the catalog says.
    pub(crate) fn state(&self) -> &CatalogState {
        &self.state
    }

    /// A database by its name.
    pub(crate) fn database_named(&self, name: &str) -> Option<&Arc<Database>> {
        self.databases.get(name)
    }

    /// A container by its name.
    pub(crate) fn container_named(
        &self,
        database: DatabaseNumber,
        name: &str,
    ) -> Option<&Arc<Container>> {
        self.containers.get(&(database, name.to_string()))
    }

    /// A container by its number.
    pub(crate) fn container(&self, number: ContainerNumber) -> Option<&Arc<Container>> {
        self.state.container(number)
    }

    /// What answers say of a container.
    pub(crate) fn links(&self, container: ContainerNumber) -> Option<&Arc<Links>> {
        self.links.get(&container)
    }

    /// A container's partitions in the order of the hash space.
    pub(crate) fn partitions(&self, container: ContainerNumber) -> &[Arc<PartitionRecord>] {
        self.partitions.get(&container).map_or(&[], Vec::as_slice)
    }

    /// What each of a container's partitions may spend; none if there is no limit.
    pub(crate) fn rate(&self, container: ContainerNumber) -> Option<Rate> {
        self.rates.get(&container).copied()
    }

    /// The partition that holds a slot.
    pub(crate) fn partition_of(
        &self,
        container: ContainerNumber,
        slot: u8,
    ) -> Option<&Arc<PartitionRecord>> {
        self.partitions(container).iter().find(|record| record.slots.contains(slot))
    }
}
