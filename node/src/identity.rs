//! Which node a data directory belongs to, and that no other process uses it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use ephemeris_store::catalog::ClusterId;
use ephemeris_store::ids::{NodeId, ReplicaId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

const IDENTITY_FILE: &str = "identity.json";
const LOCK_FILE: &str = "lock";
/// Layout of the data directory; a directory of another is refused.
const FORMAT: u32 = 1;

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
    /// Somebody else uses it.
    #[error("the data directory {path} is in use by another process; end it first")]
    InUse {
        /// The directory.
        path: String,
    },
    /// Written by another version.
    #[error("{path} has format {found}, this version of Ephemeris reads format {FORMAT}")]
    Format {
        /// The directory.
        path: String,
        /// Its format.
        found: u32,
    },
    /// Another node's.
    #[error(
        "{path} belongs to node {owner}, not to node {node}; start with --node-id {owner} or \
         another --data-dir"
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
    #[error("{path}/identity.json is damaged: {detail}")]
    Damaged {
        /// The directory.
        path: String,
        /// What is wrong.
        detail: String,
    },
}

/// A data directory that this process owns.
#[derive(Debug)]
pub(crate) struct DataDirectory {
    path: PathBuf,
    identity: Identity,
    /// Held as long as the directory is.
    _lock: File,
}

impl DataDirectory {
    /// Opens a directory, or makes a new one for `node`.
    pub(crate) fn open(path: &Path, node: NodeId, random: u128) -> Result<Self, IdentityError> {
        let shown = path.display().to_string();
        let lock = take_lock(path)?;
        let file = path.join(IDENTITY_FILE);
        let identity = if file.exists() { read(path, &file)? } else { Identity::new(node, random) };
        if identity.format != FORMAT {
            return Err(IdentityError::Format { path: shown, found: identity.format });
        }
        if identity.node != node {
            return Err(IdentityError::AnotherNode { path: shown, owner: identity.node, node });
        }
        let directory = Self { path: path.to_path_buf(), identity, _lock: lock };
        directory.save()?;
        Ok(directory)
    }

    /// Who this is.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// A subdirectory or file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
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

    /// Writes the file so that a crash leaves the old one or the new one.
    fn save(&self) -> Result<(), IdentityError> {
        let write = || {
            let temporary = self.path.join("identity.json.new");
            let mut file = File::create(&temporary)?;
            file.write_all(&serde_json::to_vec_pretty(&self.identity)?)?;
            file.sync_all()?;
            fs::rename(&temporary, self.path.join(IDENTITY_FILE))?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|source| unusable(&self.path, source))
    }
}

fn unusable(path: &Path, source: io::Error) -> IdentityError {
    IdentityError::Io { path: path.display().to_string(), source }
}

/// Makes the directory if it is not there, and keeps everybody else out.
fn take_lock(path: &Path) -> Result<File, IdentityError> {
    let open = || {
        fs::create_dir_all(path)?;
        File::create(path.join(LOCK_FILE))
    };
    let lock = open().map_err(|source| unusable(path, source))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => {
            Err(IdentityError::InUse { path: path.display().to_string() })
        }
        Err(fs::TryLockError::Error(source)) => Err(unusable(path, source)),
    }
}

impl Identity {
    fn new(node: NodeId, random: u128) -> Self {
        let directory = format!("{random:032x}");
        Self { format: FORMAT, node, directory, cluster: None, catalog_replica: None }
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
}

fn read(path: &Path, file: &Path) -> Result<Identity, IdentityError> {
    let text = fs::read_to_string(file).map_err(|source| unusable(path, source))?;
    serde_json::from_str(&text).map_err(|error| {
        let detail = error.to_string();
        IdentityError::Damaged { path: path.display().to_string(), detail }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_remembers_whose_it_is() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        let mut first = DataDirectory::open(&path, NodeId(2), 42).unwrap();
        first.set_cluster(ClusterId(7)).unwrap();
        assert!(DataDirectory::open(&path, NodeId(2), 1).is_err(), "it is locked");
        drop(first);
        let again = DataDirectory::open(&path, NodeId(2), 1).unwrap();
        assert_eq!(again.identity().directory(), 42);
        assert_eq!(again.identity().cluster(), Some(ClusterId(7)));
        drop(again);
        let message = DataDirectory::open(&path, NodeId(3), 1).unwrap_err().to_string();
        assert!(message.contains("belongs to node 2"), "{message}");
    }

    #[test]
    fn a_damaged_identity_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(IDENTITY_FILE), "{").unwrap();
        assert!(DataDirectory::open(directory.path(), NodeId(1), 1).is_err());
    }
}
