//! A disk in memory that knows what a power loss would take away, and can be full or broken.
//!
//! What survives a loss of power: everything that was synced, always; of the rest nothing
//! (`lose_power`), or some of it (`lose_power_partly`): of each file a part of the sectors written
//! since its last sync, of the directory a first part of the changes since its last sync, for file
//! systems keep those in order. A sync that fails, of a file or of the directory, has lost what it should
//! have made durable: the next one does not try again, as Linux does not.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::disk::{BLOCK_BYTES, Disk, DiskFile};

/// What a disk writes as a whole or not at all, most of the time.
const SECTOR_BYTES: usize = 512;

/// Files in memory. Clones share them, until the power is lost or the process ends: then the clones
/// made before belong to a process that is dead, and fail.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    shared: Arc<Mutex<Shared>>,
    life: u64,
}

type Names = BTreeMap<String, Arc<Mutex<Content>>>;

#[derive(Default)]
struct Shared {
    /// The directory as the process sees it.
    names: Names,
    /// The directory as a power loss would leave it.
    durable_names: Names,
    /// What happened to the directory since it was synced, in order.
    unsynced: Vec<NameChange>,
    syncs: u64,
    sync_failures: SyncFailures,
    /// All files together may hold this many bytes.
    capacity: Option<u64>,
    /// Operations left until every one fails.
    operations_left: Option<u64>,
    /// Counts losses of power and ends of processes.
    life: u64,
}

#[derive(Default, PartialEq, Eq)]
enum SyncFailures {
    #[default]
    None,
    Next,
    All,
}

/// A file gets a name, instead of the one it had, or is removed.
#[derive(Clone)]
struct NameChange {
    content: Arc<Mutex<Content>>,
    name: Option<String>,
}

#[derive(Clone, Default)]
struct Content {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors written since the last sync.
    dirty: BTreeSet<usize>,
    writes: u64,
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

    /// The shared state, for an operation that changes something: one less is left.
    fn change(&self) -> io::Result<MutexGuard<'_, Shared>> {
        let mut shared = self.live()?;
        shared.count_operation()?;
        Ok(shared)
    }

    /// Loses everything that was not synced; this handle is the one that lives on.
    pub fn lose_power(&mut self) {
        self.next_life(|_| 0, |content| content.dirty.clear());
    }

    /// Loses a part of what was not synced, by seed; this handle is the one that lives on.
    pub fn lose_power_partly(&mut self, seed: u64) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let kept: u64 = rng.random();
        self.next_life(
            |changes| kept % (changes as u64 + 1),
            |content| content.keep_some(&mut rng),
        );
    }

    /// Ends the process that uses the disk, not the machine: what was written stays, synced or not.
    pub fn end_process(&mut self) {
        let mut shared = lock(&self.shared);
        shared.life += 1;
        self.life = shared.life;
        shared.operations_left = None;
    }

    fn next_life(
        &mut self,
        names_kept: impl FnOnce(usize) -> u64,
        mut keep: impl FnMut(&mut Content),
    ) {
        let mut shared = lock(&self.shared);
        shared.life += 1;
        self.life = shared.life;
        let changes = std::mem::take(&mut shared.unsynced);
        let kept = usize::try_from(names_kept(changes.len())).expect("few changes");
        changes.into_iter().take(kept).for_each(|change| change.make(&mut shared.durable_names));
        shared.names = shared.durable_names.clone();
        for content in shared.names.values() {
            let mut content = lock(content);
            keep(&mut content);
            let Content { now, durable, dirty, .. } = &mut *content;
            dirty.clear();
            now.clone_from(durable);
        }
        shared.sync_failures = SyncFailures::None;
        shared.operations_left = None;
    }

    /// From now on every sync fails, until the power is lost.
    pub fn fail_syncs(&self) {
        lock(&self.shared).sync_failures = SyncFailures::All;
    }

    /// The next sync fails, those after it do not.
    pub fn fail_next_sync(&self) {
        lock(&self.shared).sync_failures = SyncFailures::Next;
    }

    /// Leaves room for this many bytes.
    pub fn fill(&self, bytes_left: u64) {
        let mut shared = lock(&self.shared);
        shared.capacity = Some(shared.used() + bytes_left);
    }

    /// Puts the disk right: there is room without end, and nothing fails.
    pub fn repair(&self) {
        let mut shared = lock(&self.shared);
        shared.capacity = None;
        shared.sync_failures = SyncFailures::None;
        shared.operations_left = None;
    }

    /// Lets this many more writes, syncs, creations, renames and removals succeed; then all fail, as
    /// when the power is about to go: the first that fails may leave its mark all the same.
    pub fn fail_after(&self, operations: u64) {
        lock(&self.shared).operations_left = Some(operations);
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
        let shared = lock(&self.shared);
        let copy = |content: &Arc<Mutex<Content>>| {
            let content = lock(content);
            Arc::new(Mutex::new(content.clone()))
        };
        let names: Names =
            shared.names.iter().map(|(name, content)| (name.clone(), copy(content))).collect();
        let fork = Shared { durable_names: names.clone(), names, ..Shared::default() };
        Self { shared: Arc::new(Mutex::new(fork)), life: 0 }
    }
}

impl Shared {
    fn used(&self) -> u64 {
        self.names.values().map(|content| lock(content).now.len() as u64).sum()
    }

    /// Bytes that files may still grow by.
    fn room(&self) -> u64 {
        self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.used()))
    }

    fn count_operation(&mut self) -> io::Result<()> {
        match &mut self.operations_left {
            None => Ok(()),
            Some(0) => Err(io::Error::other("the power is going")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    /// Gives a file a name, or removes it, and notes that.
    fn rename(&mut self, content: Arc<Mutex<Content>>, name: Option<&str>) {
        let change = NameChange { content, name: name.map(str::to_string) };
        change.clone().make(&mut self.names);
        self.unsynced.push(change);
    }

    fn content(&self, name: &str) -> io::Result<Arc<Mutex<Content>>> {
        self.names.get(name).cloned().ok_or_else(|| missing(name))
    }

    fn check_sync(&mut self) -> io::Result<()> {
        match self.sync_failures {
            SyncFailures::None => return Ok(()),
            SyncFailures::Next => self.sync_failures = SyncFailures::None,
            SyncFailures::All => {}
        }
        Err(io::Error::other("injected sync failure"))
    }
}

impl NameChange {
    fn make(self, names: &mut Names) {
        names.retain(|_, content| !Arc::ptr_eq(content, &self.content));
        if let Some(name) = self.name {
            names.insert(name, self.content);
        }
    }
}

impl Content {
    /// Grows to `length`, and puts bytes at `start`.
    fn put(&mut self, start: usize, bytes: &[u8]) {
        let end = start + bytes.len();
        if self.now.len() < end {
            self.dirty.extend(self.now.len() / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES));
            self.now.resize(end, 0);
        }
        self.dirty.extend(start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES));
        self.now[start..end].copy_from_slice(bytes);
    }

    /// After every other write, leaves zeros from `start` to the end of its block, as one past the page cache does.
    fn blank(&mut self, start: usize) {
        let end = start.next_multiple_of(BLOCK_BYTES).min(self.now.len());
        self.writes += 1;
        if self.writes.is_multiple_of(2) && start < end {
            self.dirty.extend(start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES));
            self.now[start..end].fill(0);
        }
    }

    /// Makes a part of a sector durable, and the length up to there.
    fn keep(&mut self, part: Range<usize>) {
        let part = part.start..part.end.min(self.now.len());
        if self.durable.len() < part.end {
            self.durable.resize(part.end, 0);
        }
        self.durable[part.clone()].copy_from_slice(&self.now[part]);
    }

    fn keep_sector(&mut self, sector: usize) {
        self.keep(sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES);
    }

    fn sync(&mut self) {
        for sector in std::mem::take(&mut self.dirty) {
            self.keep_sector(sector);
        }
    }

    /// What a loss of power leaves: nothing, a first part, some sectors, or everything.
    fn keep_some(&mut self, rng: &mut SmallRng) {
        let dirty: Vec<usize> = std::mem::take(&mut self.dirty).into_iter().collect();
        match rng.random_range(0..4) {
            _ if dirty.is_empty() => {}
            0 => {}
            1 => {
                let whole = rng.random_range(0..dirty.len());
                dirty[..whole].iter().for_each(|sector| self.keep_sector(*sector));
                let torn = dirty[whole] * SECTOR_BYTES;
                self.keep(torn..torn + rng.random_range(0..SECTOR_BYTES));
            }
            2 => {
                let some: Vec<usize> = dirty.into_iter().filter(|_| rng.random_bool(0.5)).collect();
                for sector in some {
                    self.keep_sector(sector);
                }
            }
            _ => dirty.into_iter().for_each(|sector| self.keep_sector(sector)),
        }
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no file {name}"))
}

fn full() -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, "no space left on the simulated device")
}

fn small(bytes: u64) -> usize {
    usize::try_from(bytes).expect("files in memory are small")
}

impl Disk for MemoryDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.live()?.names.keys().cloned().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut shared = self.change()?;
        let fits = bytes.min(shared.room());
        let mut content = Content::default();
        content.put(0, &vec![0; small(fits)]);
        let content = Arc::new(Mutex::new(content));
        shared.rename(content.clone(), Some(name));
        if fits < bytes {
            return Err(full());
        }
        Ok(Arc::new(MemoryFile { content, disk: self.clone() }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let content = self.live()?.content(name)?;
        Ok(Arc::new(MemoryFile { content, disk: self.clone() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut shared = self.change()?;
        let content = shared.content(from)?;
        shared.rename(content, Some(to));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut shared = self.change()?;
        let content = shared.content(name)?;
        shared.rename(content, None);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut shared = self.change()?;
        let checked = shared.check_sync();
        let changes = std::mem::take(&mut shared.unsynced);
        if checked.is_ok() {
            for change in changes {
                change.make(&mut shared.durable_names);
            }
        }
        checked
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
        let found = content.now.get(small(offset)..small(offset) + buffer.len());
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut shared = self.disk.live()?;
        let counted = shared.count_operation();
        let room = shared.room();
        let mut content = lock(&self.content);
        let growth = (offset + bytes.len() as u64).saturating_sub(content.now.len() as u64);
        let missing = growth.saturating_sub(room);
        let fits = (bytes.len() as u64).saturating_sub(missing);
        content.put(small(offset), &bytes[..small(fits)]);
        content.blank(small(offset + fits));
        counted?;
        if missing > 0 { Err(full()) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        let mut shared = self.disk.change()?;
        shared.syncs += 1;
        let checked = shared.check_sync();
        let mut content = lock(&self.content);
        match checked {
            Ok(()) => content.sync(),
            // The kernel counts pages it could not write as clean.
            Err(_) => content.dirty.clear(),
        }
        checked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_was_not_synced_any_part_may_survive_and_the_rest_always_does() {
        let (mut lengths, mut texts) = (BTreeSet::new(), BTreeSet::new());
        for seed in 0..200 {
            let mut disk = MemoryDisk::new();
            let file = disk.create("a", 2048).unwrap();
            file.write_at(0, &[1; 700]).unwrap();
            file.sync().unwrap();
            disk.sync_directory().unwrap();
            file.write_at(700, &[2; 2000]).unwrap();
            disk.lose_power_partly(seed);
            let file = disk.open("a").unwrap();
            let length = small(file.length().unwrap());
            let mut bytes = vec![0; length];
            file.read_at(0, &mut bytes).unwrap();
            assert_eq!(bytes[..700], [1; 700], "seed {seed}");
            assert!(bytes[700..].iter().all(|byte| [0, 2].contains(byte)), "seed {seed}");
            lengths.insert(length);
            texts.insert(bytes);
        }
        assert!(lengths.contains(&2048) && lengths.contains(&2700), "{lengths:?}");
        assert!(texts.len() > 20, "{} different outcomes", texts.len());
    }

    #[test]
    fn what_is_behind_a_write_may_become_zeros_but_only_in_its_block() {
        let disk = MemoryDisk::new();
        let file = disk.create("a", 0).unwrap();
        file.write_at(0, &[1; 2 * BLOCK_BYTES]).unwrap();
        file.write_at(0, &[2; 10]).unwrap();
        file.write_at(20, &[3; 10]).unwrap();
        let mut bytes = [9; 2 * BLOCK_BYTES];
        file.read_at(0, &mut bytes).unwrap();
        let (first, second) = bytes.split_at(BLOCK_BYTES);
        assert_eq!(first[..40], [[2; 10], [0; 10], [3; 10], [0; 10]].concat());
        assert_eq!((&first[40..], second), (&[0; BLOCK_BYTES - 40][..], &[1; BLOCK_BYTES][..]));
    }

    #[test]
    fn names_survive_in_the_order_they_were_changed() {
        let mut kept = BTreeSet::new();
        for seed in 0..50 {
            let mut disk = MemoryDisk::new();
            disk.create("a", 0).unwrap();
            disk.sync_directory().unwrap();
            disk.create("b", 0).unwrap();
            disk.rename("a", "c").unwrap();
            disk.remove("b").unwrap();
            disk.lose_power_partly(seed);
            kept.insert(disk.list().unwrap().join(" "));
        }
        assert_eq!(kept, ["a", "a b", "b c", "c"].map(String::from).into());
    }

    #[test]
    fn a_failed_sync_has_lost_what_was_written() {
        let mut disk = MemoryDisk::new();
        let file = disk.create("a", 0).unwrap();
        disk.sync_directory().unwrap();
        file.write_at(0, b"lost").unwrap();
        disk.fail_next_sync();
        assert!(file.sync().is_err());
        file.sync().expect("the next one has nothing to do");
        disk.lose_power();
        assert_eq!(disk.open("a").unwrap().length().unwrap(), 0);
    }

    #[test]
    fn a_failed_sync_of_the_directory_has_lost_its_changes() {
        let mut disk = MemoryDisk::new();
        disk.create("lost", 0).unwrap();
        disk.create("renamed", 0).unwrap();
        disk.fail_next_sync();
        assert!(disk.sync_directory().is_err());
        disk.rename("renamed", "kept").unwrap();
        disk.sync_directory().expect("the next one knows of one change");
        disk.lose_power();
        assert_eq!(disk.list().unwrap(), ["kept"]);
    }

    #[test]
    fn a_full_disk_takes_what_fits_and_has_room_for_what_is_there() {
        let disk = MemoryDisk::new();
        let file = disk.create("a", 100).unwrap();
        disk.fill(50);
        file.write_at(0, &[1; 100]).expect("in its place");
        let error = file.write_at(90, &[2; 100]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.length().unwrap(), 150);
        assert!(disk.create("b", 1).is_err());
        disk.repair();
        disk.create("b", 1000).unwrap();
    }
}
