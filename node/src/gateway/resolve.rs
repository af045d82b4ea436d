//! From names or `_rid`s in a path to what the catalog knows.

use std::sync::Arc;

use axum::http::HeaderName;
use ephemeris_store::catalog::{Container, Database, PartitionRecord};
use ephemeris_store::ids::{ContainerNumber, ItemNumber, ResourceId};

use super::error::{ApiError, Failure};
use super::path::ContainerPath;
use super::reply::DataHeaders;
use super::{Call, Gateway};
use crate::placement::{DirectoryView, Links};

static INTENDED_COLLECTION: HeaderName =
    HeaderName::from_static("x-ms-cosmos-intended-collection-rid");

/// A container as this node's copy of the catalog knows it.
pub(crate) struct Resolved {
    /// The catalog as of one entry.
    pub(crate) view: Arc<DirectoryView>,
    /// The container.
    pub(crate) container: Arc<Container>,
    /// What answers say of it.
    links: Arc<Links>,
    /// True if the path named it by its `_rid`.
    by_rid: bool,
}

impl Resolved {
    /// Headers that every answer about this container's data carries.
    pub(crate) fn headers(&self) -> DataHeaders {
        DataHeaders::new(self.links.clone())
    }

    /// A container by its number, as a change that was just made left it.
    pub(crate) fn of(view: &Arc<DirectoryView>, number: ContainerNumber) -> Option<Self> {
        let container = view.container(number)?.clone();
        let links = view.links(number)?.clone();
        Some(Self { view: view.clone(), container, links, by_rid: false })
    }

    /// The partition that holds a slot.
    pub(crate) fn partition(&self, slot: u8) -> Result<&Arc<PartitionRecord>, ApiError> {
        self.view.partition_of(self.container.number, slot).ok_or(ApiError::StaleMap)
    }

    /// The partitions in the order of the hash space.
    pub(crate) fn partitions(&self) -> &[Arc<PartitionRecord>] {
        self.view.partitions(self.container.number)
    }

    /// The `_rid` in a path's last segment, if the path is made of `_rid`s.
    pub(crate) fn child(&self, segment: &str) -> Option<ResourceId> {
        if !self.by_rid {
            return None;
        }
        let rid = ResourceId::parse(segment).ok()?;
        match rid {
            ResourceId::Child(container, _) if container == self.container.number => Some(rid),
            ResourceId::Child(..)
            | ResourceId::Container(_)
            | ResourceId::Database(_)
            | ResourceId::User(_)
            | ResourceId::Permission(_) => None,
        }
    }

    /// The number of the item that a path's last segment names by its `_rid`.
    pub(crate) fn item_number(&self, segment: &str) -> Option<ItemNumber> {
        self.child(segment)?.item_number()
    }
}

/// What a lookup is for: it decides how a missing thing is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// What is looked up is itself asked for.
    Target,
    /// Something in it is asked for.
    Owner,
}

impl Purpose {
    /// What a client is told of what is not there.
    pub(crate) fn missing(self) -> ApiError {
        match self {
            Purpose::Target => ApiError::NotFound("Resource Not Found.".to_string()),
            Purpose::Owner => ApiError::OwnerNotFound,
        }
    }
}

impl Gateway {
    /// The catalog with everything that was committed before the call.
    pub(crate) async fn fresh_view(&self, call: &Call) -> Result<Arc<DirectoryView>, Failure> {
        self.node.catalog_barrier(call.deadline).await?;
        Ok(self.node.directory().current())
    }

    /// Finds a database, in a copy of the catalog that is up to date.
    pub(crate) async fn database(
        &self,
        call: &Call,
        segment: &str,
        purpose: Purpose,
    ) -> Result<(Arc<DirectoryView>, Arc<Database>), Failure> {
        let view = self.fresh_view(call).await?;
        match find_database(&view, segment) {
            Some((database, _)) => Ok((view, database)),
            None => Err(purpose.missing().into()),
        }
    }

    /// Finds a container, in a copy of the catalog that is up to date.
    pub(crate) async fn container_itself(
        &self,
        call: &Call,
        path: &ContainerPath,
    ) -> Result<Resolved, Failure> {
        let view = self.fresh_view(call).await?;
        let found = find_container(&view, path).ok_or_else(|| missing_container(&view, path))?;
        call.access.check_container(found.container.number)?;
        Ok(found)
    }

    /// Finds the container that holds what is asked for; only what is missing, or other than the
    /// client expects, is looked up again in an up-to-date copy.
    pub(crate) async fn container(
        &self,
        call: &Call,
        path: &ContainerPath,
    ) -> Result<Resolved, Failure> {
        let expected = call.headers.text(&INTENDED_COLLECTION)?;
        let expected = expected.filter(|expected| !expected.is_empty());
        let is_expected = |resolved: &Resolved| {
            let rid = ResourceId::Container(resolved.container.number);
            expected.is_none_or(|expected| expected == rid.to_string())
        };
        let known = find_container(&self.node.directory().current(), path);
        if let Some(known) = known.filter(is_expected) {
            call.access.check_container(known.container.number)?;
            return Ok(known);
        }
        let view = self.fresh_view(call).await?;
        let found = find_container(&view, path).ok_or_else(|| Purpose::Owner.missing())?;
        call.access.check_container(found.container.number)?;
        if is_expected(&found) { Ok(found) } else { Err(ApiError::ContainerRecreated.into()) }
    }
}

/// A database by its name, or else by its `_rid`; true if it was the `_rid`.
fn find_database(view: &DirectoryView, segment: &str) -> Option<(Arc<Database>, bool)> {
    if let Some(database) = view.database_named(segment) {
        return Some((database.clone(), false));
    }
    match ResourceId::parse(segment) {
        Ok(ResourceId::Database(number)) => {
            view.state().database(number).map(|database| (database.clone(), true))
        }
        Ok(
            ResourceId::Container(_)
            | ResourceId::Child(..)
            | ResourceId::User(_)
            | ResourceId::Permission(_),
        )
        | Err(_) => None,
    }
}

/// Why a container that was asked for is not there: its database may be what is missing.
fn missing_container(view: &DirectoryView, path: &ContainerPath) -> ApiError {
    let database = find_database(view, &path.database);
    let purpose = if database.is_some() { Purpose::Target } else { Purpose::Owner };
    purpose.missing()
}

fn find_container(view: &Arc<DirectoryView>, path: &ContainerPath) -> Option<Resolved> {
    let (database, by_rid) = find_database(view, &path.database)?;
    let rid = by_rid.then(|| ResourceId::parse(&path.container));
    let number = match rid {
        Some(Ok(ResourceId::Container(number))) if number.database == database.number => {
            Some(number)
        }
        Some(Ok(_) | Err(_)) | None => None,
    };
    let container = match number {
        Some(number) => view.container(number),
        None => view.container_named(database.number, &path.container),
    };
    let container = container?.clone();
    let links = view.links(container.number)?.clone();
    Some(Resolved { view: view.clone(), container, links, by_rid: number.is_some() })
}

#[cfg(test)]
pub(super) mod tests {
    use ephemeris_store::ids::DatabaseNumber;

    use super::*;
    use crate::placement::{Directory, catalogs};

    /// A container with so many partitions, whose partition key is at these paths.
    pub(in crate::gateway) fn container(partitions: usize, key_paths: &[&str]) -> Resolved {
        let kind = if key_paths.len() > 1 { "MultiHash" } else { "Hash" };
        let definition = serde_json::json!({
            "id": "c",
            "partitionKey": { "paths": key_paths, "kind": kind, "version": 2 },
        });
        let catalog = catalogs::catalog(&catalogs::a_container(&definition, partitions, None));
        let number = ContainerNumber { database: DatabaseNumber(1), number: 1 };
        Resolved::of(&Directory::new(Arc::new(catalog)).current(), number).unwrap()
    }

    #[test]
    fn every_slot_has_its_partition() {
        let resolved = container(3, &["/pk"]);
        assert_eq!(resolved.partitions().len(), 3);
        for slot in [0, 85, 170, 255] {
            assert!(resolved.partition(slot).unwrap().slots.contains(slot));
        }
    }
}
