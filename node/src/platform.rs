//! What a node runs on: the operating system, or a simulated machine.
//!
//! Files, threads, sockets and clocks come to a node through a `Platform` that it is handed at its
//! start. What is drawn at random comes from `ephemeris_raft::random`, and a fault ends the process
//! through `supervisor`; both know by themselves when they are part of a simulation.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ephemeris_raft::disk::{Disk, RealDisk, create_private};
use ephemeris_raft::wal::{Wal, WalError, WalOptions};
use ephemeris_raft::{Executor, Storage};
use ephemeris_store::engine::{Fault, RocksEngine, RocksOptions};
use ephemeris_store::ids::NodeId;
use futures_util::future::BoxFuture;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::warn;

use crate::clock::{MachineTime, TimeSource};
use crate::config::NodeConfig;
use crate::supervisor;
use crate::tls::PeerKeys;
use crate::transport::Tcp;

/// What a node runs on.
pub(crate) trait Platform: Send + Sync + 'static {
    /// The data directory itself, which no other process uses.
    fn data(&self) -> Arc<dyn Disk>;

    /// Opens what all groups share, and lets the log's writer run. If there must be data, none is made.
    fn open_storage(&self, must_be: bool) -> Result<Storage, StorageError>;

    /// The way to other processes.
    fn network(&self) -> Arc<dyn Network>;

    /// The machine's clocks.
    fn time(&self) -> Arc<dyn TimeSource>;
}

/// Connects processes: TCP, or a simulation of it.
pub(crate) trait Network: Send + Sync + 'static {
    /// Takes connections at an address.
    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Listener>>>;

    /// Connects to `HOST:PORT`.
    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Stream>>;
}

/// Takes connections.
pub(crate) trait Listener: Send + 'static {
    /// The next connection.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Arriving>>;
}

/// A connection that was taken: it may have to be encrypted yet, which nobody else waits for.
pub(crate) type Arriving = BoxFuture<'static, io::Result<Stream>>;

/// What comes in on a connection.
pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;

/// What goes out on a connection, once it is flushed.
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// One end of a connection. It sends small messages at once, and notices when what it sent is not
/// acknowledged.
pub(crate) struct Stream {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
}

/// Why a node's storage cannot be used.
#[derive(Debug, Error)]
pub(crate) enum StorageError {
    /// The state engine is not usable.
    #[error("the state cannot be opened: {0}")]
    State(Fault),
    /// What was acknowledged may not be what is on disk.
    #[error(
        "{detail}. Nothing of {directory} is served. `ephemeris rebuild-node {node} --data-dir \
         {directory} --http URL`, with the URL of a healthy node, throws the damaged data away; then \
         start node {node} again, and it copies everything from the others. A node alone has a backup \
         or nothing"
    )]
    Damaged {
        /// What is wrong.
        detail: String,
        /// The data directory.
        directory: String,
        /// Whose it is.
        node: NodeId,
    },
    /// The state is not there, though the node was a member.
    #[error(
        "node {node} is a member of the cluster, but its state is gone from {directory}. Restore the data \
         directory as a whole; or run `ephemeris rebuild-node {node} --data-dir {directory} --http URL`, \
         with the URL of a healthy node, and start again. A node alone has a backup or nothing"
    )]
    Lost {
        /// The data directory.
        directory: String,
        /// Whose it is.
        node: NodeId,
    },
    /// A directory, or a file in it, is not usable.
    #[error(
        "{path} cannot be opened: {source}. Is its disk mounted, has it room, and does it belong to \
         the node's user?"
    )]
    Io {
        /// The directory or file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A thread could not be made.
    #[error(
        "a thread for the log cannot be started: {0}. May the node's user have more (`ulimit -u`)?"
    )]
    Thread(#[source] io::Error),
}

/// Why a data directory cannot be used.
#[derive(Debug, Error)]
pub(crate) enum DirectoryError {
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
}

/// A log that was not written for so long never will be: a node that starts anew says what its disk does, and the
/// others go on without one that does not.
const LOG_HANGS_MAX: Duration = Duration::from_secs(30);
/// How often it is looked at.
const LOG_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Held by whoever uses a data directory; stays in it.
pub(crate) const LOCK_FILE: &str = "lock";
/// What a data directory holds of a replicated state: the engine, the log, and snapshots on their way in.
pub(crate) const STATE_DIRECTORY: &str = "state";
pub(crate) const LOG_DIRECTORY: &str = "log";
pub(crate) const SNAPSHOT_DIRECTORY: &str = "snapshots";
/// Beside the engine's files once one of them was found to be damaged; says what was found.
const DAMAGE_FILE: &str = "DAMAGED";

/// Threads that flush and compact, at most.
const BACKGROUND_THREADS_MAX: u8 = 8;

/// Takes the machine that a node is to run on.
pub(crate) type TakeMachine = fn(&NodeConfig) -> Result<Box<dyn Platform>, DirectoryError>;

/// The operating system, with the directory it keeps for the node.
pub(crate) struct OperatingSystem {
    node: NodeId,
    path: PathBuf,
    data: Arc<RealDisk>,
    options: RocksOptions,
    peer_keys: Option<Arc<PeerKeys>>,
    /// Held as long as the directory is used.
    _lock: File,
}

impl OperatingSystem {
    /// Takes the data directory for this process alone; makes it if it is not there.
    pub(crate) fn take(config: &NodeConfig) -> Result<Self, DirectoryError> {
        let path = config.data_dir.clone();
        let lock = lock_directory(&path)?;
        let data = Arc::new(RealDisk::open(&path).map_err(|source| unusable(&path, source))?);
        let options = RocksOptions {
            block_cache_bytes: config.block_cache_bytes,
            write_buffer_bytes: config.write_buffer_bytes,
            background_threads: background_threads(),
        };
        let peer_keys = config.peer_keys.clone();
        Ok(Self { node: config.node, path, data, options, peer_keys, _lock: lock })
    }
}

/// One for each processor: fewer would fall behind what all processors together can write.
fn background_threads() -> NonZero<u8> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = u8::try_from(processors).unwrap_or(u8::MAX).min(BACKGROUND_THREADS_MAX);
    NonZero::new(threads).unwrap_or(NonZero::<u8>::MIN)
}

impl OperatingSystem {
    /// The same as `open_storage`, on what somebody makes of the log's disk.
    pub(crate) fn open_storage_on(
        &self,
        must_be: bool,
        on: impl FnOnce(Arc<dyn Disk>) -> Arc<dyn Disk>,
    ) -> Result<Storage, StorageError> {
        let engine = Arc::new(self.open_engine(must_be)?);
        let log_directory = self.path.join(LOG_DIRECTORY);
        let log = open_disk(&log_directory, RealDisk::open_direct)?;
        let snapshots = open_disk(&self.path.join(SNAPSHOT_DIRECTORY), RealDisk::open)?;
        // What is durable in directories that a loss of power takes away is gone with them.
        self.data.sync_directory().map_err(|source| not_opened(&self.path, source))?;
        let (wal, writer) =
            Wal::open(on(log), WalOptions::default()).map_err(|error| match error {
                WalError::Corrupt { .. } => self.damaged(error.to_string()),
                WalError::Io(source) => not_opened(&log_directory, source),
            })?;
        let run = move || match catch_unwind(AssertUnwindSafe(|| writer.run())) {
            Ok(Ok(())) => {}
            // A disk that did not write what it was told must not be trusted again.
            Ok(Err(error)) => {
                supervisor::fault(&format!("the write-ahead log has failed: {error}"));
            }
            // Whoever waits for it would wait for ever. The panic itself is in the log.
            Err(_) => supervisor::fault("the write-ahead log has failed: its writer has panicked"),
        };
        let named = |name: &str| thread::Builder::new().name(name.to_string());
        named("wal").spawn(run).map_err(StorageError::Thread)?;
        let watched = wal.clone();
        let watch = move || watch_log(&watched);
        named("wal-watch").spawn(watch).map_err(StorageError::Thread)?;
        Ok(Storage { engine, wal, snapshots, executor: Executor::Threads })
    }

    /// Opens the state, unless it was found to be damaged. Should that turn out later, the process ends,
    /// and no later one serves what is left: a row that nobody has read yet may be as wrong.
    fn open_engine(&self, must_be: bool) -> Result<RocksEngine, StorageError> {
        let directory = self.path.join(STATE_DIRECTORY);
        if must_be && !RocksEngine::is_in(&directory) {
            let directory = self.path.display().to_string();
            return Err(StorageError::Lost { directory, node: self.node });
        }
        let mark = directory.join(DAMAGE_FILE);
        match fs::read_to_string(&mark) {
            Ok(detail) => return Err(self.damaged(detail)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(not_opened(&mark, error)),
        }
        let noted_in = directory.clone();
        let on_damage = Box::new(move |fault: &Fault| {
            let noted = RealDisk::open(&noted_in).and_then(|state| note_damage(&state, fault));
            if let Err(error) = noted {
                warn!(%error, "damage could not be noted: the next start will not know of it");
            }
            supervisor::fault(&fault.to_string());
        });
        RocksEngine::open(&directory, self.options, on_damage).map_err(|fault| match fault {
            Fault::Corrupt { .. } => self.damaged(fault.to_string()),
            Fault::Engine(_) => StorageError::State(fault),
        })
    }

    fn damaged(&self, detail: String) -> StorageError {
        let directory = self.path.display().to_string();
        StorageError::Damaged { detail, directory, node: self.node }
    }
}

fn open_disk(
    directory: &Path,
    open: fn(&Path) -> io::Result<RealDisk>,
) -> Result<Arc<dyn Disk>, StorageError> {
    let disk = open(directory).map_err(|source| not_opened(directory, source))?;
    Ok(Arc::new(disk))
}

fn not_opened(path: &Path, source: io::Error) -> StorageError {
    StorageError::Io { path: path.display().to_string(), source }
}

/// Leaves the mark so that no crash takes it away. One without a text counts, too.
fn note_damage(state: &dyn Disk, fault: &Fault) -> io::Result<()> {
    let mark = state.create(DAMAGE_FILE, 0)?;
    mark.write_at(0, fault.to_string().as_bytes())?;
    mark.sync()?;
    state.sync_directory()
}

impl Platform for OperatingSystem {
    fn data(&self) -> Arc<dyn Disk> {
        self.data.clone()
    }

    fn open_storage(&self, must_be: bool) -> Result<Storage, StorageError> {
        self.open_storage_on(must_be, |disk| disk)
    }

    fn network(&self) -> Arc<dyn Network> {
        Arc::new(Tcp { keys: self.peer_keys.clone() })
    }

    fn time(&self) -> Arc<dyn TimeSource> {
        Arc::new(MachineTime)
    }
}

/// Ends the process if the log's disk hangs, which fails nothing. A thread of its own: whoever writes hangs, too, and
/// that may be a worker of the runtime.
fn watch_log(wal: &Wal) {
    let mut looks = 0;
    while !wal.is_over() {
        thread::sleep(LOG_LOOK_EVERY);
        looks = looks_in_vain(looks, wal.waits());
        if LOG_LOOK_EVERY * looks >= LOG_HANGS_MAX {
            supervisor::fault(&format!(
                "the write-ahead log has not been written for {LOG_HANGS_MAX:?}: its disk hangs. \
                 Look for errors of the disk in the kernel's messages (dmesg), and at the storage \
                 behind it if it is a remote one"
            ));
        }
    }
}

/// Counted rather than measured: a process that stood still has not waited for its disk.
fn looks_in_vain(before: u32, waits: Duration) -> u32 {
    if waits > LOG_LOOK_EVERY * before { before + 1 } else { 0 }
}

/// Makes the directory if it is not there, durably, and keeps everybody else out.
pub(crate) fn lock_directory(path: &Path) -> Result<File, DirectoryError> {
    let lie_in = parents_of_missing(path).map_err(|source| unusable(path, source))?;
    let open = || {
        create_private(path)?;
        File::create(path.join(LOCK_FILE))
    };
    let lock = open().map_err(|source| unusable(path, source))?;
    let sync = |parent: &PathBuf| File::open(parent)?.sync_all();
    lie_in.iter().try_for_each(sync).map_err(|source| unusable(path, source))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => {
            Err(DirectoryError::InUse { path: path.display().to_string() })
        }
        Err(fs::TryLockError::Error(source)) => Err(unusable(path, source)),
    }
}

/// What the directories lie in that are to be made for a path, itself included.
fn parents_of_missing(path: &Path) -> io::Result<Vec<PathBuf>> {
    let path = std::path::absolute(path)?;
    let missing = path.ancestors().take_while(|directory| !directory.exists());
    Ok(missing.filter_map(Path::parent).map(Path::to_path_buf).collect())
}

fn unusable(path: &Path, source: io::Error) -> DirectoryError {
    DirectoryError::Io { path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use ephemeris_raft::testing::MemoryDisk;

    use super::*;

    #[test]
    fn a_directory_has_one_user_at_a_time() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        let first = lock_directory(&path).unwrap();
        assert!(matches!(lock_directory(&path), Err(DirectoryError::InUse { .. })));
        drop(first);
        lock_directory(&path).unwrap();
    }

    #[test]
    fn every_directory_that_is_made_is_synced_where_it_lies() {
        let parent = tempfile::tempdir().unwrap();
        let (above, path) = (parent.path().join("a"), parent.path().join("a/data"));
        assert_eq!(parents_of_missing(&path).unwrap(), [above.as_path(), parent.path()]);
        lock_directory(&path).unwrap();
        assert!(parents_of_missing(&path).unwrap().is_empty());
        let here = std::env::current_dir().unwrap();
        assert_eq!(parents_of_missing(Path::new("not-there")).unwrap(), [here]);
    }

    #[test]
    fn a_note_of_damage_survives_a_loss_of_power() {
        let mut disk = MemoryDisk::new();
        note_damage(&disk, &Fault::Engine("a bad block".to_string())).unwrap();
        disk.lose_power();
        let mark = disk.open(DAMAGE_FILE).unwrap();
        let mut text = vec![0; usize::try_from(mark.length().unwrap()).unwrap()];
        mark.read_at(0, &mut text).unwrap();
        assert!(String::from_utf8(text).unwrap().contains("a bad block"));
    }

    #[test]
    fn only_a_log_that_is_not_written_at_many_looks_in_a_row_hangs() {
        let second = LOG_LOOK_EVERY.as_millis();
        let looks = |waits_ms: &[u128]| {
            let waits = |ms: &u128| Duration::from_millis(u64::try_from(*ms).unwrap());
            waits_ms.iter().map(waits).fold(0, looks_in_vain)
        };
        assert_eq!(looks(&[0, 0, 0]), 0);
        assert_eq!(looks(&[1, second + 1, 2 * second + 1]), 3, "it hangs");
        assert_eq!(looks(&[1, second + 1, 1]), 0, "it goes on");
        assert_eq!(looks(&[0, 60 * second]), 1, "the process stood still");
        assert_eq!(looks(&[0, 60 * second, 1]), 0);
    }
}
