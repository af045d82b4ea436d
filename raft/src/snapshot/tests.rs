//! A snapshot arrives whole, and its file is there as long as it is all that a replica has.

use std::sync::atomic::{AtomicBool, Ordering};

use ephemeris_store::catalog::Catalog;
use ephemeris_store::engine::{KeyRange, MemoryEngine, Read};
use ephemeris_store::machine::Entry;

use super::*;
use crate::testing::MemoryDisk;

const GROUP: GroupId = GroupId::CATALOG;
const FIRST: Option<LogId> = Some(LogId { term: 1, index: 0 });
const SECOND: Option<LogId> = Some(LogId { term: 1, index: 7 });

/// The only chunk of a replica that has applied one entry.
fn last_chunk() -> Bytes {
    let replica = Catalog::open(Arc::new(MemoryEngine::new())).unwrap();
    replica.apply(LogId { term: 1, index: 0 }, Entry::Blank).unwrap();
    Offer::new(&replica, GROUP).chunk(&Received::default()).unwrap()
}

struct Fixture {
    disk: MemoryDisk,
    store: SnapshotStore,
    engine: Arc<dyn Engine>,
    machine: Catalog,
}

impl Fixture {
    fn new() -> Self {
        let disk = MemoryDisk::new();
        let store = SnapshotStore::new(Arc::new(disk.clone()), GROUP, Stop::default());
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let machine = Catalog::open(engine.clone()).unwrap();
        Self { disk, store, engine, machine }
    }

    /// Receives what another replica has after one entry, as the snapshot of `position`.
    fn receive(&self, position: Option<LogId>) {
        let received = self.store.begin(position).unwrap();
        let received = self.store.stage(position, &received, &last_chunk()).unwrap();
        assert!(received.complete);
    }

    fn install(&self, name: &str) -> io::Result<()> {
        self.store.install(&self.engine, &self.machine, name)
    }

    fn resume(&self) -> Result<(), ResumeError> {
        self.store.resume(&self.engine, &self.machine)
    }

    /// Leaves what a crash in the middle of an installation leaves.
    fn interrupt(&self, name: &str) {
        let ranges = self.machine.ranges();
        Installer::begin(self.engine.clone(), GROUP, ranges, name).unwrap();
    }

    /// Another process finds what the engine and the disk have kept.
    fn lose_power_while_installing(&mut self, name: &str) {
        self.interrupt(name);
        self.disk.lose_power();
        self.store = SnapshotStore::new(Arc::new(self.disk.clone()), GROUP, Stop::default());
    }
}

#[test]
fn a_file_handed_over_to_be_installed_outlives_the_next_transfer() {
    let f = Fixture::new();
    f.receive(FIRST);
    let name = f.store.staged(FIRST).unwrap();
    f.receive(SECOND);
    assert!(f.disk.list().unwrap().contains(&name));
    f.install(&name).unwrap();
    assert_eq!(f.machine.progress().applied, FIRST);
    let next = f.store.staged(SECOND).unwrap();
    assert_eq!(f.disk.list().unwrap(), [next]);
}

#[test]
fn a_file_that_openraft_did_not_want_goes_with_the_next_transfer() {
    let f = Fixture::new();
    f.receive(FIRST);
    let name = f.store.staged(FIRST).unwrap();
    f.store.release(&name);
    f.receive(SECOND);
    assert!(!f.disk.list().unwrap().contains(&name));
}

/// A replica that gets by its log what a broken transfer was about has no use for it, and it may be large.
#[test]
fn a_part_of_a_snapshot_goes_once_the_replica_has_come_as_far_without_it() {
    let f = Fixture::new();
    let received = f.store.begin(SECOND).unwrap();
    f.store.tidy(FIRST).unwrap();
    assert_eq!(f.store.begin(SECOND).unwrap(), received);
    let later = SnapshotStore::new(Arc::new(f.disk.clone()), GROUP, Stop::default());
    later.tidy(FIRST).unwrap();
    assert_eq!(f.disk.list().unwrap().len(), 1, "a transfer may go on in another process");
    later.tidy(SECOND).unwrap();
    assert_eq!(f.disk.list().unwrap(), Vec::<String>::new());
    f.store.tidy(SECOND).unwrap();
    assert!(matches!(f.store.stage(SECOND, &received, &last_chunk()), Err(StageError::Unknown)));
}

#[test]
fn a_file_handed_over_to_be_installed_is_not_tidied_away() {
    let f = Fixture::new();
    f.receive(FIRST);
    let name = f.store.staged(FIRST).unwrap();
    f.store.tidy(SECOND).unwrap();
    f.install(&name).unwrap();
    assert_eq!(f.machine.progress().applied, FIRST);
}

#[test]
fn a_file_that_is_gone_at_the_end_does_not_undo_the_installation() {
    let f = Fixture::new();
    f.receive(FIRST);
    let name = f.store.staged(FIRST).unwrap();
    let opened = f.disk.open(&name).unwrap();
    let gone = SnapshotStore::new(Arc::new(Vanishing(opened)), GROUP, Stop::default());
    gone.install(&f.engine, &f.machine, &name).unwrap();
    assert_eq!(f.machine.progress().applied, FIRST);
    f.resume().expect("no marker is left");
}

/// A disk whose one file can be opened, and cannot be removed.
struct Vanishing(Arc<dyn DiskFile>);

impl Disk for Vanishing {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
    fn create(&self, _: &str, _: u64) -> io::Result<Arc<dyn DiskFile>> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn open(&self, _: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.0.clone())
    }
    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn remove(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }
    fn describe(&self) -> String {
        "vanishing".to_string()
    }
}

/// A disk on which files cannot be opened for a moment, for want of descriptors.
struct Exhausted(MemoryDisk);

impl Disk for Exhausted {
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.0.create(name, bytes)
    }
    fn open(&self, _: &str) -> io::Result<Arc<dyn DiskFile>> {
        Err(io::Error::other("too many open files"))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }
    fn sync_directory(&self) -> io::Result<()> {
        self.0.sync_directory()
    }
    fn describe(&self) -> String {
        "exhausted".to_string()
    }
}

#[test]
fn a_file_that_cannot_be_opened_for_a_moment_is_not_made_anew() {
    let f = Fixture::new();
    f.receive(FIRST);
    let name = f.store.staged(FIRST).unwrap();
    let exhausted = Arc::new(Exhausted(f.disk.clone()));
    let store = SnapshotStore::new(exhausted, GROUP, Stop::default());
    assert!(matches!(store.begin(FIRST), Err(StageError::Io(_))));
    f.install(&name).expect("its rows are still there");
    assert_eq!(f.machine.progress().applied, FIRST);
}

/// A machine whose rows may be replaced only while nobody reads them.
struct Guarded(Catalog, AtomicBool);

impl Machine for Guarded {
    type Outcome = <Catalog as Machine>::Outcome;

    fn progress(&self) -> Progress {
        self.0.progress()
    }
    fn apply(&self, at: LogId, entry: Entry<'_>) -> Result<Option<Self::Outcome>, Fault> {
        self.0.apply(at, entry)
    }
    fn ranges(&self) -> Vec<KeyRange> {
        assert!(self.1.load(Ordering::SeqCst), "rows are replaced while nobody reads");
        self.0.ranges()
    }
    fn view(&self) -> (Arc<dyn Read>, Progress) {
        self.0.view()
    }
    fn unload(&self) {
        self.1.store(true, Ordering::SeqCst);
    }
    fn reload(&self) -> Result<(), Fault> {
        self.1.store(false, Ordering::SeqCst);
        self.0.reload()
    }
}

#[test]
fn nobody_reads_while_rows_are_replaced() {
    let f = Fixture::new();
    f.receive(FIRST);
    let name = f.store.staged(FIRST).unwrap();
    let machine = Guarded(Catalog::open(f.engine.clone()).unwrap(), AtomicBool::new(false));
    f.store.install(&f.engine, &machine, &name).unwrap();
    assert!(!machine.1.load(Ordering::SeqCst), "and then they do again");
    assert_eq!(machine.progress().applied, FIRST);
}

#[test]
fn an_interrupted_installation_is_finished_from_its_file() {
    let f = Fixture::new();
    f.receive(FIRST);
    let name = f.store.staged(FIRST).unwrap();
    f.interrupt(&name);
    f.resume().unwrap();
    assert_eq!(f.machine.progress().applied, FIRST);
    assert!(f.disk.list().unwrap().is_empty());
}

#[test]
fn an_interrupted_installation_without_its_whole_file_is_lost() {
    let f = Fixture::new();
    f.interrupt("gone.snapshot");
    let error = f.resume().unwrap_err();
    assert!(matches!(&error, ResumeError::Lost(name) if name == "gone.snapshot"), "{error}");
    f.disk.create("gone.snapshot", 10).unwrap();
    let error = f.resume().unwrap_err();
    assert!(matches!(error, ResumeError::Lost(_)), "{error}");
}

#[test]
fn a_file_whose_sync_failed_is_received_again() {
    let mut f = Fixture::new();
    let bytes = last_chunk();
    let nothing = Received::default();
    assert_eq!(f.store.begin(FIRST).unwrap(), nothing);
    f.disk.fail_next_sync();
    assert!(f.store.stage(FIRST, &nothing, &bytes).is_err());
    assert_eq!(f.store.begin(FIRST).unwrap(), nothing, "nothing of it counts");
    f.store.stage(FIRST, &nothing, &bytes).unwrap();
    let name = f.store.staged(FIRST).unwrap();
    f.lose_power_while_installing(&name);
    f.resume().expect("the file is durable");
}

/// The next transfer would find the file, and the disk would not have its name.
#[test]
fn a_file_whose_name_could_not_be_made_durable_is_made_anew() {
    let mut f = Fixture::new();
    f.disk.fail_next_sync();
    assert!(f.store.begin(FIRST).is_err());
    f.receive(FIRST);
    let name = f.store.staged(FIRST).unwrap();
    f.lose_power_while_installing(&name);
    f.resume().expect("the file is durable");
}

/// A process may end after it made the file and before its name was durable: the next one goes on with it.
#[test]
fn a_file_has_a_durable_name_before_it_is_all_there_is() {
    let mut f = Fixture::new();
    let name = f.store.file_name(FIRST);
    f.disk.create(&name, 0).unwrap();
    f.receive(FIRST);
    assert_eq!(f.store.staged(FIRST).as_ref(), Some(&name));
    f.store.make_durable(&name).unwrap();
    f.lose_power_while_installing(&name);
    f.resume().expect("the file is durable");
}

#[test]
fn a_file_that_cannot_be_synced_is_not_installed() {
    let f = Fixture::new();
    f.receive(FIRST);
    let name = f.store.staged(FIRST).unwrap();
    f.disk.fail_next_sync();
    assert!(f.install(&name).is_err());
    assert_eq!(f.machine.progress().applied, None);
    assert!(f.disk.list().unwrap().is_empty(), "it is received again");
    f.resume().expect("the installation has not begun");
}

/// A process may end after it wrote the last chunk and before it synced: the next one finds the
/// file complete, in memory only.
#[test]
fn a_file_is_on_disk_before_the_marker_is() {
    let f = Fixture::new();
    f.receive(FIRST);
    let name = f.store.staged(FIRST).unwrap();
    let before = f.disk.syncs();
    f.install(&name).unwrap();
    assert_eq!(f.disk.syncs(), before + 1);
}
