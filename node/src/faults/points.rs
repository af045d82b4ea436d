//! Places at which the process ends if it is told to: a crash at the worst moment.

use std::io;
use std::sync::Arc;

use ephemeris_raft::disk::{Disk, DiskFile};
use serde::Deserialize;

use super::Now;

/// Where the process ends the next time it comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Point {
    /// A batch of the log was written, and is not durable.
    LogWritten,
    /// Half of it is durable.
    LogTorn,
    /// It is durable, and nobody has been told.
    LogSynced,
    /// An entry was applied, and nobody has been answered.
    StateWritten,
    /// The state is durable, and the log has not been let go.
    StateFlushed,
    /// A snapshot is durable, and not installed.
    SnapshotReceived,
    /// The rows it replaces are gone.
    SnapshotBegun,
    /// It is installed, and its file is still there.
    SnapshotInstalled,
}

impl Now {
    /// True if this is where the process is to end.
    pub(super) fn ends_at(&self, point: Point) -> bool {
        self.get().0.crash == Some(point)
    }

    /// Ends the process if this is where it is to end.
    pub(super) fn pass(&self, point: Point) {
        if self.ends_at(point) {
            eprintln!("the process ends at {point:?}, as it was told");
            std::process::abort();
        }
    }
}

/// The directory of snapshots on their way in, whose process may end when one has come.
pub(super) struct CrashingDisk {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) now: Arc<Now>,
}

impl CrashingDisk {
    fn watch(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(CrashingFile { file, now: self.now.clone() })
    }
}

impl Disk for CrashingDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.create(name, bytes).map(|file| self.watch(file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(name).map(|file| self.watch(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    /// A file goes when it was installed, or when another has taken its place.
    fn remove(&self, name: &str) -> io::Result<()> {
        self.now.pass(Point::SnapshotInstalled);
        self.disk.remove(name)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.disk.sync_directory()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }
}

struct CrashingFile {
    file: Arc<dyn DiskFile>,
    now: Arc<Now>,
}

impl DiskFile for CrashingFile {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()?;
        self.now.pass(Point::SnapshotReceived);
        Ok(())
    }
}
