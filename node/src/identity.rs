//! Which node a data directory belongs to.

use std::io;
use std::sync::Arc;

use ephemeris_raft::disk::Disk;
use ephemeris_store::catalog::ClusterId;
use ephemeris_store::ids::{NodeId, ReplicaId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Where it is said.
pub(crate) const IDENTITY_FILE: &str = "identity.json";
/// What becomes of it once it is whole.
const NEW_FILE: &str = "identity.json.new";
/// More than an identity ever takes; what is longer is damaged.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Layout of the data directory, and what entries of the log do to it; a directory of another is refused.
pub(crate) const FORMAT: u32 = 16;

/// What `identity.json` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    format: u32,
    /// The node.
    pub(crate) node: NodeId,
    /// Drawn when the directory was made: a new directory is a new life.
    pub(crate) directory: String,
    /// The cluster, once it is known.
    pub(crate) cluster: Option<String>,
    /// The node's replica of the catalog, once it is a member.
    pub(crate) catalog_replica: Option<u64>,
    /// True once the catalog has shown the node as registered.
    #[serde(default)]
    registered: bool,
}

/// What it says in every version.
#[derive(Deserialize)]
struct Versioned {
    format: u32,
}

/// Why a data directory cannot be used.
#[derive(Debug, Error)]
pub(crate) enum IdentityError {
    /// The file system refuses.
    #[error("the data directory {path} cannot be used: {source}")]
    Io {
        /// The directory.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// Written by another version.
    #[error(
        "{path} has format {found}, and this version of Ephemeris, {}, reads format {FORMAT} only. Run the \
         version that wrote it: CHANGELOG.md tells the format of each, `ephemeris --version` that of the \
         program. To change to another format, copy the data through the API",
        env!("CARGO_PKG_VERSION")
    )]
    Format {
        /// The directory.
        path: String,
        /// Its format.
        found: u32,
    },
    /// Another node's.
    #[error(
        "{path} belongs to node {owner}, not to node {node}; use another --data-dir, or run node {owner} by \
         `ephemeris start --node-id {owner}`"
    )]
    AnotherNode {
        /// The directory.
        path: String,
        /// Whose it is.
        owner: NodeId,
        /// Who wants it.
        node: NodeId,
    },
    /// `identity.json` is not what was written.
    #[error(
        "{path}/identity.json is damaged: {detail}. Put the file back; or run `ephemeris rebuild-node {node} \
         --data-dir {path} --http URL`, with the URL of a healthy node, and start the node again: it copies \
         everything from the others"
    )]
    Damaged {
        /// The directory.
        path: String,
        /// Who wants it.
        node: NodeId,
        /// What is wrong.
        detail: String,
    },
}

/// A data directory, and whose it is.
pub(crate) struct DataDirectory {
    disk: Arc<dyn Disk>,
    identity: Identity,
}

impl DataDirectory {
    /// Opens a directory, or makes a new one for `node`.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        node: NodeId,
        random: u128,
    ) -> Result<Self, IdentityError> {
        let path = disk.describe();
        let identity = read(disk.as_ref(), node)?.unwrap_or_else(|| Identity::new(node, random));
        if identity.node != node {
            return Err(IdentityError::AnotherNode { path, owner: identity.node, node });
        }
        let directory = Self { disk, identity };
        directory.save()?;
        Ok(directory)
    }

    /// Who this is.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Remembers the cluster.
    pub(crate) fn set_cluster(&mut self, cluster: ClusterId) -> Result<(), IdentityError> {
        self.identity.cluster = Some(format!("{:032x}", cluster.0));
        self.save()
    }

    /// Remembers the node's replica of the catalog.
    pub(crate) fn set_catalog_replica(&mut self, replica: ReplicaId) -> Result<(), IdentityError> {
        self.identity.catalog_replica = Some(replica.as_u64());
        self.save()
    }

    /// Remembers that the catalog has shown the node as registered.
    pub(crate) fn set_registered(&mut self) -> Result<(), IdentityError> {
        self.identity.registered = true;
        self.save()
    }

    /// Writes the file so that a crash leaves the old one or the new one.
    fn save(&self) -> Result<(), IdentityError> {
        let write = || {
            let file = self.disk.create(NEW_FILE, 0)?;
            file.write_at(0, &serde_json::to_vec_pretty(&self.identity)?)?;
            file.sync()?;
            self.disk.rename(NEW_FILE, IDENTITY_FILE)?;
            self.disk.sync_directory()
        };
        write().map_err(|source| unusable(self.disk.as_ref(), source))
    }
}

fn unusable(disk: &dyn Disk, source: io::Error) -> IdentityError {
    IdentityError::Io { path: disk.describe(), source }
}

impl Identity {
    fn new(node: NodeId, random: u128) -> Self {
        let directory = format!("{random:032x}");
        let (cluster, catalog_replica, registered) = (None, None, false);
        Self { format: FORMAT, node, directory, cluster, catalog_replica, registered }
    }

    /// The number drawn for the directory.
    pub(crate) fn directory(&self) -> u128 {
        u128::from_str_radix(&self.directory, 16).unwrap_or_default()
    }

    /// The cluster, if it is known.
    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        let text = self.cluster.as_deref()?;
        u128::from_str_radix(text, 16).ok().map(ClusterId)
    }

    /// The node's replica of the catalog, if it is a member.
    pub(crate) fn catalog_replica(&self) -> Option<ReplicaId> {
        self.catalog_replica.map(ReplicaId::from_u64)
    }

    /// True if the cluster has known the node. One that joined got its replica of the catalog by being registered.
    pub(crate) fn was_registered(&self) -> bool {
        self.registered || self.catalog_replica().is_some_and(|replica| replica.incarnation != 0)
    }
}

/// What the file says, if there is one.
fn read(disk: &dyn Disk, node: NodeId) -> Result<Option<Identity>, IdentityError> {
    let read = || {
        if !disk.list()?.iter().any(|name| name == IDENTITY_FILE) {
            return Ok(None);
        }
        let file = disk.open(IDENTITY_FILE)?;
        let length = file.length()?.min(FILE_BYTES_MAX);
        let mut text = vec![0; usize::try_from(length).expect("a few kilobytes")];
        file.read_at(0, &mut text)?;
        Ok(Some(text))
    };
    let Some(text) = read().map_err(|source| unusable(disk, source))? else { return Ok(None) };
    let path = disk.describe();
    // By itself: the rest of another version's may look otherwise.
    if let Ok(Versioned { format: found }) = serde_json::from_slice(&text)
        && found != FORMAT
    {
        return Err(IdentityError::Format { path, found });
    }
    serde_json::from_slice(&text).map(Some).map_err(|error| IdentityError::Damaged {
        path,
        node,
        detail: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use ephemeris_raft::disk::RealDisk;
    use ephemeris_raft::testing::MemoryDisk;

    use super::*;

    fn open(disk: &(impl Disk + Clone), node: u32) -> Result<DataDirectory, IdentityError> {
        DataDirectory::open(Arc::new(disk.clone()), NodeId(node), u128::from(node) + 40)
    }

    fn remembers_whose_it_is(disk: &dyn Fn() -> Arc<dyn Disk>) {
        let open = |node, random| DataDirectory::open(disk(), NodeId(node), random);
        open(2, 42).unwrap().set_cluster(ClusterId(7)).unwrap();
        let again = open(2, 1).unwrap();
        assert_eq!(again.identity().directory(), 42);
        assert_eq!(again.identity().cluster(), Some(ClusterId(7)));
        let message = open(3, 1).err().unwrap().to_string();
        assert!(message.contains("belongs to node 2"), "{message}");
    }

    #[test]
    fn a_directory_remembers_whose_it_is() {
        let directory = tempfile::tempdir().unwrap();
        remembers_whose_it_is(&|| Arc::new(RealDisk::open(directory.path()).unwrap()));
        let disk = MemoryDisk::new();
        remembers_whose_it_is(&|| Arc::new(disk.clone()));
    }

    #[test]
    fn a_damaged_identity_is_refused() {
        let disk = MemoryDisk::new();
        disk.create(IDENTITY_FILE, 0).unwrap().write_at(0, b"{").unwrap();
        assert!(matches!(open(&disk, 1), Err(IdentityError::Damaged { .. })));
    }

    #[test]
    fn a_directory_of_another_format_is_refused_whatever_else_it_says() {
        let disk = MemoryDisk::new();
        let text = br#"{ "format": 99, "owner": "n1" }"#;
        disk.create(IDENTITY_FILE, 0).unwrap().write_at(0, text).unwrap();
        assert!(matches!(open(&disk, 1), Err(IdentityError::Format { found: 99, .. })));
    }

    #[test]
    fn a_crash_leaves_the_old_identity_or_the_new_one() {
        let (mut olds, mut news) = (0, 0);
        for operations in 0..12 {
            let mut disk = MemoryDisk::new();
            let mut directory = open(&disk, 1).unwrap();
            disk.fail_after(operations);
            let saved = directory.set_cluster(ClusterId(7)).is_ok();
            disk.lose_power_partly(operations);
            match open(&disk, 1).unwrap().identity().cluster() {
                Some(found) => assert_eq!(found, ClusterId(7)),
                None => assert!(!saved, "what was saved is durable"),
            }
            *if saved { &mut news } else { &mut olds } += 1;
        }
        assert!(olds > 0 && news > 0, "{olds} crashes before the end, {news} after it");
    }
}
