//! A disk in memory that knows what a power loss would take away.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskFile};

/// Files in memory. Clones share them, until the power is lost: then the clones made before belong
/// to a process that is dead, and fail.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    shared: Arc<Mutex<Shared>>,
    life: u64,
}

#[derive(Default)]
struct Shared {
    /// The directory as the process sees it.
    names: BTreeMap<String, Arc<Mutex<Content>>>,
    /// The directory as a power loss would leave it.
    durable_names: BTreeMap<String, Arc<Mutex<Content>>>,
    sync_fails: bool,
    syncs: u64,
    /// Counts power losses.
    life: u64,
}

#[derive(Default)]
struct Content {
    now: Vec<u8>,
    durable: Vec<u8>,
}

struct MemoryFile {
    content: Arc<Mutex<Content>>,
    disk: MemoryDisk,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// The shared state, for a process that still lives.
    fn live(&self) -> io::Result<MutexGuard<'_, Shared>> {
        let shared = lock(&self.shared);
        if shared.life == self.life { Ok(shared) } else { Err(io::Error::other("power was lost")) }
    }

    /// Loses everything that was not synced; this handle is the one that lives on.
    pub fn lose_power(&mut self) {
        let mut shared = lock(&self.shared);
        shared.life += 1;
        self.life = shared.life;
        shared.names = shared.durable_names.clone();
        for content in shared.names.values() {
            let Content { now, durable } = &mut *lock(content);
            now.clone_from(durable);
        }
        shared.sync_fails = false;
    }

    /// From now on every sync fails.
    pub fn fail_syncs(&self) {
        lock(&self.shared).sync_fails = true;
    }

    /// How often a file was synced.
    pub fn syncs(&self) -> u64 {
        lock(&self.shared).syncs
    }

    /// Flips one bit of a file, on the platter and in every cache.
    pub fn flip_bit(&self, name: &str, bit: usize) {
        let shared = lock(&self.shared);
        let mut content = lock(shared.names.get(name).expect("the file exists"));
        content.now[bit / 8] ^= 1 << (bit % 8);
        content.durable[bit / 8] ^= 1 << (bit % 8);
    }

    /// A copy that shares nothing.
    #[must_use]
    pub fn fork(&self) -> Self {
        let copy = |names: &BTreeMap<String, Arc<Mutex<Content>>>| {
            names
                .iter()
                .map(|(name, content)| {
                    let content = lock(content);
                    let (now, durable) = (content.now.clone(), content.durable.clone());
                    (name.clone(), Arc::new(Mutex::new(Content { now, durable })))
                })
                .collect::<BTreeMap<_, _>>()
        };
        let shared = lock(&self.shared);
        let names = copy(&shared.names);
        let durable_names = names.clone();
        let fork = Shared { names, durable_names, ..Shared::default() };
        Self { shared: Arc::new(Mutex::new(fork)), life: 0 }
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no file {name}"))
}

fn range(offset: u64, length: usize) -> std::ops::Range<usize> {
    let start = usize::try_from(offset).expect("files in memory are small");
    start..start + length
}

impl Disk for MemoryDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.live()?.names.keys().cloned().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let now = vec![0; range(0, 0).start + usize::try_from(bytes).expect("small files")];
        let content = Arc::new(Mutex::new(Content { durable: now.clone(), now }));
        self.live()?.names.insert(name.to_string(), content.clone());
        Ok(Arc::new(MemoryFile { content, disk: self.clone() }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let content = self.live()?.names.get(name).cloned().ok_or_else(|| missing(name))?;
        Ok(Arc::new(MemoryFile { content, disk: self.clone() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut shared = self.live()?;
        let content = shared.names.remove(from).ok_or_else(|| missing(from))?;
        shared.names.insert(to.to_string(), content);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.live()?.names.remove(name).map(|_| ()).ok_or_else(|| missing(name))
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut shared = self.live()?;
        shared.durable_names = shared.names.clone();
        Ok(())
    }

    fn describe(&self) -> String {
        "memory".to_string()
    }
}

impl DiskFile for MemoryFile {
    fn length(&self) -> io::Result<u64> {
        Ok(lock(&self.content).now.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let content = lock(&self.content);
        let found = content.now.get(range(offset, buffer.len()));
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        drop(self.disk.live()?);
        let range = range(offset, bytes.len());
        let mut content = lock(&self.content);
        if content.now.len() < range.end {
            content.now.resize(range.end, 0);
        }
        content.now[range].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut shared = self.disk.live()?;
        shared.syncs += 1;
        if shared.sync_fails {
            return Err(io::Error::other("injected sync failure"));
        }
        let Content { now, durable } = &mut *lock(&self.content);
        durable.clone_from(now);
        Ok(())
    }
}
