//! Files behind a trait, so that simulation can lose what was not synced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One directory of files.
pub trait Disk: Send + Sync + 'static {
    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates a file of `bytes` zeros; its name is durable after `sync_directory`.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file, over another one if need be; durable after `sync_directory`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file; durable after `sync_directory`.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes creations, renames and removals durable.
    fn sync_directory(&self) -> io::Result<()>;

    /// Where the directory is, for messages.
    fn describe(&self) -> String;
}

/// An open file.
pub trait DiskFile: Send + Sync + 'static {
    /// The file's length.
    fn length(&self) -> io::Result<u64>;

    /// Fills `buffer` from `offset`; an error if the file ends before.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes all bytes at `offset`; durable after `sync`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything written before durable. Never to be retried after an error: the kernel may
    /// have dropped the pages it could not write.
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the operating system.
pub struct RealDisk {
    directory: PathBuf,
}

impl RealDisk {
    /// Opens a directory, creating it if need be.
    pub fn open(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        Ok(Self { directory: directory.to_path_buf() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// Zeros are written in pieces of this size.
const ZERO_BYTES: usize = 1 << 20;

impl Disk for RealDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let mut file = options.open(self.path(name))?;
        // Real zeros, not a hole: syncing into allocated blocks spares the journal.
        let zeros = vec![0; ZERO_BYTES];
        let mut left = bytes;
        while left > 0 {
            let piece = left.min(ZERO_BYTES as u64);
            file.write_all(&zeros[..usize::try_from(piece).expect("at most a megabyte")])?;
            left -= piece;
        }
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.path(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    fn describe(&self) -> String {
        self.directory.display().to_string()
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
