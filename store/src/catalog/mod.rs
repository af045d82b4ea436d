//! The catalog: what exists in the cluster and where it lives. Replicated by group 0 on every node.
//!
//! It holds nodes, databases, containers with their full definitions, throughput offers, scripts,
//! users and their permissions, and for every partition its slots, parents and replicas. The state is a persistent map, so that a
//! reader takes a whole consistent copy for the price of a pointer.

mod apply;
mod apply_users;
mod command;
mod definition;
mod permission;
mod rates;
mod state;
mod throughput;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

pub use command::{
    CatalogCommand, CatalogOutcome, CatalogProposal, CatalogRefusal, Created, IfTaken, ReplicaPlan,
    UserChange,
};
pub use definition::{ContainerDefinition, InvalidDefinition};
pub use permission::{
    InvalidPermission, PermissionDefinition, PermissionMode, ResourceLink, Scope, ScopePart,
};
pub use state::{
    CatalogState, ClusterId, Container, Database, NodeRecord, Offer, OfferTarget, PartitionRecord,
    Permission, Resource, Script, ScriptKind, Sweeping, User,
};
pub use throughput::{Autoscale, InvalidThroughput, PARTITION_RU_AT_CREATION, Throughput};

use crate::engine::{Engine, Fault, KeyRange, Read, Table};
use crate::ids::{GroupId, Lsn};
use crate::machine::{self, Entry, LogId, Machine, Membership, MetaTag, Progress};

/// One node's copy of the catalog.
pub struct Catalog {
    engine: Arc<dyn Engine>,
    /// Never held while the engine is written to, which may take long: every request looks here.
    shared: RwLock<Shared>,
    /// Held until what is written to the engine is shown.
    writing: Mutex<()>,
}

#[derive(Clone, Default)]
struct Shared {
    state: Arc<CatalogState>,
    applied: Option<LogId>,
    membership: Option<Membership>,
}

impl Catalog {
    /// Opens the catalog over what the engine holds of it.
    pub fn open(engine: Arc<dyn Engine>) -> Result<Self, Fault> {
        let shared = Shared::load(engine.as_ref())?;
        Ok(Self { engine, shared: RwLock::new(shared), writing: Mutex::default() })
    }

    /// The catalog as of the last entry applied.
    pub fn state(&self) -> Arc<CatalogState> {
        self.read_shared().state.clone()
    }

    /// The last entry applied.
    pub fn lsn(&self) -> Lsn {
        self.read_shared().lsn()
    }

    /// The catalog and the entry it is as of.
    pub fn state_and_lsn(&self) -> (Arc<CatalogState>, Lsn) {
        let shared = self.read_shared();
        (shared.state.clone(), shared.lsn())
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_shared(&self) -> std::sync::RwLockReadGuard<'_, Shared> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn lsn(&self) -> Lsn {
        Lsn(self.applied.map_or(0, |applied| applied.index))
    }

    fn load(engine: &dyn Engine) -> Result<Self, Fault> {
        let header: Option<state::Header> =
            machine::read_meta(engine, GroupId::CATALOG, MetaTag::State)?;
        let header = header.unwrap_or_default();
        let state = CatalogState::load(engine, &header)?;
        let membership = machine::read_meta(engine, GroupId::CATALOG, MetaTag::Membership)?;
        Ok(Self { state: Arc::new(state), applied: header.applied, membership })
    }
}

impl Machine for Catalog {
    type Outcome = CatalogOutcome;

    fn progress(&self) -> Progress {
        let shared = self.read_shared();
        Progress { applied: shared.applied, membership: shared.membership.clone() }
    }

    fn apply(&self, position: LogId, entry: Entry<'_>) -> Result<Option<CatalogOutcome>, Fault> {
        self.apply_entry(position, entry)
    }

    fn ranges(&self) -> Vec<KeyRange> {
        vec![KeyRange::prefix(Table::Catalog, Vec::new())]
    }

    fn view(&self) -> (Arc<dyn Read>, Progress) {
        let _writing = self.writing();
        let shared = self.read_shared();
        let progress = Progress { applied: shared.applied, membership: shared.membership.clone() };
        (self.engine.view(), progress)
    }

    /// The catalog is read from memory, which stays whole.
    fn unload(&self) {}

    fn reload(&self) -> Result<(), Fault> {
        let loaded = Shared::load(self.engine.as_ref())?;
        *self.shared.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
