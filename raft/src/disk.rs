//! Files behind a trait, so that simulation can lose what was not synced.

mod direct;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use direct::{DirectFile, WriteBuffer};

/// Disks write in blocks of this size, or of a part of it.
pub const BLOCK_BYTES: usize = 4096;

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

    /// Writes all bytes at `offset`; durable after `sync`. What is behind them, up to the next multiple of
    /// `BLOCK_BYTES`, may become zeros: files are written from front to back.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything written before durable. Never to be retried after an error: the kernel may
    /// have dropped the pages it could not write.
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the operating system.
pub struct RealDisk {
    directory: PathBuf,
    /// For writes past the page cache.
    buffer: Option<Arc<WriteBuffer>>,
}

impl RealDisk {
    /// Opens a directory, creating it if need be.
    pub fn open(directory: &Path) -> io::Result<Self> {
        create_private(directory)?;
        Ok(Self { directory: directory.to_path_buf(), buffer: None })
    }

    /// Opens one whose files are written past the page cache, if the file system can: for files that nobody will
    /// read soon, and of which every write is synced.
    pub fn open_direct(directory: &Path) -> io::Result<Self> {
        Ok(Self { buffer: Some(Arc::default()), ..Self::open(directory)? })
    }

    fn file(&self, name: &str, file: File) -> io::Result<Arc<dyn DiskFile>> {
        let direct = match &self.buffer {
            Some(buffer) => DirectFile::open(&self.path(name), file.metadata()?.len(), buffer)?,
            None => None,
        };
        Ok(Arc::new(RealFile { file, direct }))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// Makes a directory that only its owner can enter, if it is not there; one that is there stays as it is. The
/// directories above it are made as usual.
pub fn create_private(directory: &Path) -> io::Result<()> {
    if let Some(parent) = directory.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(PRIVATE_MODE).create(directory) {
        Err(_) if directory.is_dir() => Ok(()),
        made => made,
    }
}

/// Read, write and enter, for the owner.
const PRIVATE_MODE: u32 = 0o700;

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
        self.file(name, file)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.path(name))?;
        self.file(name, file)
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

struct RealFile {
    file: File,
    direct: Option<DirectFile>,
}

impl DiskFile for RealFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if let Some(direct) = &self.direct
            && direct.write_at(&self.file, offset, bytes)?
        {
            return Ok(());
        }
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_new_directory_is_its_owners_and_an_old_one_stays_as_it_is() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("above").join("data");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        RealDisk::open(&directory).unwrap();
        assert_eq!(mode(&directory), 0o700);
        assert_ne!(mode(&parent.path().join("above")), 0o700, "it is not ours");
        fs::set_permissions(&directory, Permissions::from_mode(0o750)).unwrap();
        RealDisk::open(&directory).unwrap();
        assert_eq!(mode(&directory), 0o750);
        fs::write(parent.path().join("file"), "").unwrap();
        assert!(RealDisk::open(&parent.path().join("file")).is_err());
    }
}
