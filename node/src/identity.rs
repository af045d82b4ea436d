//! Which node a data directory belongs to, and that no other process uses it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use ephemeris_store::catalog::ClusterId;
use ephemeris_store::ids::{NodeId, ReplicaId};
use serde::{Deserialize, Serialize};

const IDENTITY_FILE: &str = "identity.json";
const LOCK_FILE: &str = "lock";
/// Layout of the data directory; a directory of another is refused.
const FORMAT: u32 = 1;

/// What `identity.json` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    format: u32,
    /// The node.
    pub node: NodeId,
    /// Drawn when the directory was made: a new directory is a new life.
    pub directory: String,
    /// The cluster, once it is known.
    pub cluster: Option<String>,
    /// The node's replica of the catalog, once it is a member.
    pub catalog_replica: Option<u64>,
}

/// A data directory that this process owns.
#[derive(Debug)]
pub struct DataDirectory {
    path: PathBuf,
    identity: Identity,
    /// Held as long as the directory is.
    _lock: File,
}

impl DataDirectory {
    /// Opens a directory, or makes a new one for `node`.
    pub fn open(path: &Path, node: NodeId, random: u128) -> anyhow::Result<Self> {
        fs::create_dir_all(path)
            .with_context(|| format!("the data directory {} cannot be made", path.display()))?;
        let lock = File::create(path.join(LOCK_FILE))?;
        lock.try_lock().with_context(|| {
            format!("{} is in use by another process; end it first", path.display())
        })?;
        let file = path.join(IDENTITY_FILE);
        let identity = if file.exists() { read(&file)? } else { Identity::new(node, random) };
        ensure!(
            identity.format == FORMAT,
            "{} has format {}, this version of Ephemeris reads format {FORMAT}",
            path.display(),
            identity.format
        );
        ensure!(
            identity.node == node,
            "{} belongs to node {}, not to node {node}; start with --node-id {0} or another \
             --data-dir",
            path.display(),
            identity.node
        );
        let directory = Self { path: path.to_path_buf(), identity, _lock: lock };
        directory.save()?;
        Ok(directory)
    }

    /// Who this is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// A subdirectory or file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Remembers the cluster.
    pub fn set_cluster(&mut self, cluster: ClusterId) -> anyhow::Result<()> {
        self.identity.cluster = Some(format!("{:032x}", cluster.0));
        self.save()
    }

    /// Remembers the node's replica of the catalog.
    pub fn set_catalog_replica(&mut self, replica: ReplicaId) -> anyhow::Result<()> {
        self.identity.catalog_replica = Some(replica.as_u64());
        self.save()
    }

    /// Writes the file so that a crash leaves the old one or the new one.
    fn save(&self) -> anyhow::Result<()> {
        let temporary = self.path.join("identity.json.new");
        let mut file = File::create(&temporary)?;
        file.write_all(serde_json::to_string_pretty(&self.identity)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, self.path.join(IDENTITY_FILE))?;
        File::open(&self.path)?.sync_all()?;
        Ok(())
    }
}

impl Identity {
    fn new(node: NodeId, random: u128) -> Self {
        let directory = format!("{random:032x}");
        Self { format: FORMAT, node, directory, cluster: None, catalog_replica: None }
    }

    /// The number drawn for the directory.
    pub fn directory(&self) -> u128 {
        u128::from_str_radix(&self.directory, 16).unwrap_or_default()
    }

    /// The cluster, if it is known.
    pub fn cluster(&self) -> Option<ClusterId> {
        let text = self.cluster.as_deref()?;
        u128::from_str_radix(text, 16).ok().map(ClusterId)
    }

    /// The node's replica of the catalog, if it is a member.
    pub fn catalog_replica(&self) -> Option<ReplicaId> {
        self.catalog_replica.map(ReplicaId::from_u64)
    }
}

fn read(file: &Path) -> anyhow::Result<Identity> {
    let text = fs::read_to_string(file)?;
    let identity = serde_json::from_str(&text);
    identity.with_context(|| format!("{} is damaged", file.display()))
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
