//! A machine that lies, for tests of real processes: its wall clock is wrong, its disks are slow, full or
//! broken, and that of the log loses what was not synced when the process ends.
//!
//! The program `ephemeris-faulty` runs a node on it; `ephemeris` has no way here. A file that
//! `EPHEMERIS_FAULTS` names says what is wrong, in JSON, and is looked at every ten milliseconds:
//! `{"wall": {"ahead_ms": 3600000, "pace": 2.0}, "log": "failing_syncs"}`. Without it all is well, except
//! that the power fails at every end of the process. `{"crash": "log-synced"}` ends it at one of the
//! `points`. What was understood is written to a file beside it, `faults.seen`; what cannot be understood ends the
//! process with 78: a test must not go on as if its fault were there.

mod points;
mod state;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ephemeris_raft::Storage;
use ephemeris_raft::disk::{Disk, DiskFile};
use serde::Deserialize;

use crate::clock::{MachineTime, TimeSource};
use crate::config::NodeConfig;
use crate::platform::{DirectoryError, Network, OperatingSystem, Platform, StorageError};
use points::{CrashingDisk, Point};
use state::{Faulty, StateDisk};

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How the process ends if it cannot understand the file: `EX_CONFIG`.
const EXIT_NOT_UNDERSTOOD: i32 = 78;
/// Where it says what it takes from the file.
const SEEN: &str = "faults.seen";
/// How long a clock that strobes shows the same side, in microseconds.
const STROBE_MICROS: i64 = 15_000;

const NO_SPACE: i32 = rustix::io::Errno::NOSPC.raw_os_error();
const TOO_MANY_FILES: i32 = rustix::io::Errno::MFILE.raw_os_error();
const BROKEN: i32 = rustix::io::Errno::IO.raw_os_error();

/// Runs the program on a machine that lies.
pub fn main() -> ExitCode {
    crate::cli::main_on(|config| Ok(Box::new(FaultyMachine::take(config)?)))
}

/// What is wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Faults {
    wall: WallClock,
    log: LogDisk,
    state: StateDisk,
    crash: Option<Point>,
}

/// A wall clock that was set, and goes on at a pace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WallClock {
    ahead_ms: i64,
    /// 1 is right, 0 stands still.
    pace: f64,
    /// So far it is ahead and behind, in turns of a few milliseconds.
    strobe_ms: i64,
}

impl Default for WallClock {
    fn default() -> Self {
        Self { ahead_ms: 0, pace: 1.0, strobe_ms: 0 }
    }
}

/// The disk under the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LogDisk {
    #[default]
    Whole,
    /// There is no room.
    Full,
    /// Nothing can be written.
    FailingWrites,
    /// Nothing can be made durable.
    FailingSyncs,
    /// To make something durable takes so many milliseconds.
    Slow(u64),
}

/// What is wrong at the moment, and since when.
struct Now {
    faults: Mutex<(Faults, i64)>,
    /// Reads of a state that is slow.
    reads: AtomicU64,
}

impl Now {
    fn new() -> Self {
        let faults = Mutex::new((Faults::default(), MachineTime.boot_micros()));
        Self { faults, reads: AtomicU64::new(0) }
    }

    fn set(&self, faults: Faults) {
        let mut now = locked(&self.faults);
        if now.0 != faults {
            *now = (faults, MachineTime.boot_micros());
        }
    }

    fn get(&self) -> (Faults, i64) {
        *locked(&self.faults)
    }

    /// Looks at the file again and again, as long as somebody has use for it.
    fn follow(now: &Weak<Self>, mut file: FaultsFile) {
        while let Some(now) = now.upgrade() {
            now.look(&mut file);
            drop(now);
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Takes what the file says, or ends the process.
    fn look(&self, file: &mut FaultsFile) {
        match file.read() {
            Ok(Some(faults)) => self.set(faults),
            Ok(None) => {}
            // A node without descriptors can open nothing: it goes on as it was told last.
            Err(why) if why.raw_os_error() == Some(TOO_MANY_FILES) => {}
            Err(why) => {
                eprintln!("{} cannot be followed: {why}", file.path.display());
                std::process::exit(EXIT_NOT_UNDERSTOOD);
            }
        }
    }
}

/// The file that says what is wrong. Whoever writes it renames it into its place: nobody reads half of it.
struct FaultsFile {
    path: PathBuf,
    /// What it said last.
    text: Option<Vec<u8>>,
}

impl FaultsFile {
    fn new(path: PathBuf) -> Self {
        Self { path, text: None }
    }

    /// What it says, if that is new, and tells that it was understood. No file says nothing.
    fn read(&mut self) -> io::Result<Option<Faults>> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if self.text.as_ref() == Some(&text) {
            return Ok(None);
        }
        let faults = serde_json::from_slice(&text)?;
        tell(&self.path.with_file_name(SEEN), &text)?;
        self.text = Some(text);
        Ok(Some(faults))
    }
}

/// Replaces a file at once.
fn tell(file: &Path, text: &[u8]) -> io::Result<()> {
    let new = file.with_extension("told");
    fs::write(&new, text)?;
    fs::rename(new, file)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct FaultyMachine {
    machine: OperatingSystem,
    now: Arc<Now>,
}

impl FaultyMachine {
    fn take(config: &NodeConfig) -> Result<Self, DirectoryError> {
        let now = Arc::new(Now::new());
        if let Some(file) = std::env::var_os("EPHEMERIS_FAULTS").map(PathBuf::from) {
            let mut file = FaultsFile::new(file);
            now.look(&mut file);
            let followed = Arc::downgrade(&now);
            let follow = move || Now::follow(&followed, file);
            let thread = std::thread::Builder::new().name("faults".into()).spawn(follow);
            thread
                .map_err(|source| DirectoryError::Io { path: "EPHEMERIS_FAULTS".into(), source })?;
        }
        Ok(Self { machine: OperatingSystem::take(config)?, now })
    }
}

impl Platform for FaultyMachine {
    fn data(&self) -> Arc<dyn Disk> {
        self.machine.data()
    }

    fn open_storage(&self, must_be: bool) -> Result<Storage, StorageError> {
        let now = || self.now.clone();
        let storage = self
            .machine
            .open_storage_on(must_be, |disk| Arc::new(VolatileDisk::new(disk, now())))?;
        let Storage { engine, wal, snapshots, executor } = storage;
        let engine = Arc::new(Faulty { state: engine, now: now() });
        let snapshots = Arc::new(CrashingDisk { disk: snapshots, now: now() });
        Ok(Storage { engine, wal, snapshots, executor })
    }

    fn network(&self) -> Arc<dyn Network> {
        self.machine.network()
    }

    fn time(&self) -> Arc<dyn TimeSource> {
        Arc::new(WrongTime(self.now.clone()))
    }
}

/// The machine's clocks, of which that on the wall may be wrong.
struct WrongTime(Arc<Now>);

impl TimeSource for WrongTime {
    fn boot_micros(&self) -> i64 {
        MachineTime.boot_micros()
    }

    fn wall_micros(&self) -> i64 {
        let (Faults { wall, .. }, since) = self.0.get();
        wall.shown(MachineTime.wall_micros(), MachineTime.boot_micros() - since)
    }
}

impl WallClock {
    /// What it shows so many microseconds after it was set.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "minutes in microseconds"
    )]
    fn shown(self, right: i64, passed: i64) -> i64 {
        let side = if passed / STROBE_MICROS % 2 == 0 { 1 } else { -1 };
        let off_ms = self.ahead_ms + side * self.strobe_ms;
        right + off_ms * 1000 + (passed as f64 * (self.pace - 1.0)) as i64
    }
}

/// A directory whose files keep what was written to them in memory until it is synced.
struct VolatileDisk {
    disk: Arc<dyn Disk>,
    now: Arc<Now>,
    /// Files that are open: whoever opens one again sees the same.
    files: Mutex<BTreeMap<String, Weak<VolatileFile>>>,
}

impl VolatileDisk {
    fn new(disk: Arc<dyn Disk>, now: Arc<Now>) -> Self {
        Self { disk, now, files: Mutex::default() }
    }

    fn keep(&self, name: &str, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let (now, unsynced) = (self.now.clone(), Mutex::default());
        let file = Arc::new(VolatileFile { file, now, unsynced });
        locked(&self.files).insert(name.to_string(), Arc::downgrade(&file));
        file
    }
}

impl Disk for VolatileDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.now.check_write()?;
        Ok(self.keep(name, self.disk.create(name, bytes)?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let open = locked(&self.files).get(name).and_then(Weak::upgrade);
        match open {
            Some(file) => Ok(file),
            None => Ok(self.keep(name, self.disk.open(name)?)),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)?;
        let mut files = locked(&self.files);
        match files.remove(from) {
            Some(file) => files.insert(to.to_string(), file),
            None => files.remove(to),
        };
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        locked(&self.files).remove(name);
        self.disk.remove(name)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.now.check_sync()?;
        self.disk.sync_directory()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }
}

impl Now {
    fn check_write(&self) -> io::Result<()> {
        match self.get().0.log {
            LogDisk::Full => Err(io::Error::from_raw_os_error(NO_SPACE)),
            LogDisk::FailingWrites => Err(io::Error::from_raw_os_error(BROKEN)),
            LogDisk::Whole | LogDisk::FailingSyncs | LogDisk::Slow(_) => Ok(()),
        }
    }

    fn check_sync(&self) -> io::Result<()> {
        match self.get().0.log {
            LogDisk::FailingSyncs => return Err(io::Error::from_raw_os_error(BROKEN)),
            LogDisk::Slow(millis) => std::thread::sleep(Duration::from_millis(millis)),
            LogDisk::Whole | LogDisk::Full | LogDisk::FailingWrites => {}
        }
        Ok(())
    }
}

struct VolatileFile {
    file: Arc<dyn DiskFile>,
    now: Arc<Now>,
    /// What was written since the last sync, in this order.
    unsynced: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl DiskFile for VolatileFile {
    fn length(&self) -> io::Result<u64> {
        let ends = locked(&self.unsynced).iter().map(|(at, bytes)| at + bytes.len() as u64).max();
        Ok(self.file.length()?.max(ends.unwrap_or(0)))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let unsynced = locked(&self.unsynced);
        let end = offset + buffer.len() as u64;
        let durable = self.file.length()?.clamp(offset, end) - offset;
        let durable = usize::try_from(durable).expect("it is part of the buffer");
        let known = unsynced.iter().map(|(at, bytes)| at + bytes.len() as u64).max();
        if end > offset + durable as u64 && known.is_none_or(|known| known < end) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer.fill(0);
        self.file.read_at(offset, &mut buffer[..durable])?;
        for (at, bytes) in unsynced.iter() {
            let (from, to) = (offset.max(*at), end.min(at + bytes.len() as u64));
            if from < to {
                let place =
                    |of: u64, start: u64| usize::try_from(of - start).expect("it is inside");
                buffer[place(from, offset)..place(to, offset)]
                    .copy_from_slice(&bytes[place(from, *at)..place(to, *at)]);
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.now.check_write()?;
        locked(&self.unsynced).push((offset, bytes.to_vec()));
        self.now.pass(Point::LogWritten);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.now.check_sync()?;
        let mut unsynced = locked(&self.unsynced);
        if self.now.ends_at(Point::LogTorn)
            && let Some((_, last)) = unsynced.last_mut()
        {
            last.truncate(last.len() / 2);
        }
        for (offset, bytes) in unsynced.drain(..) {
            self.file.write_at(offset, &bytes)?;
        }
        self.file.sync()?;
        self.now.pass(Point::LogTorn);
        self.now.pass(Point::LogSynced);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ephemeris_raft::disk::RealDisk;

    use super::*;

    fn disk(directory: &tempfile::TempDir) -> (VolatileDisk, Arc<Now>) {
        let now = Arc::new(Now::new());
        let disk = Arc::new(RealDisk::open(directory.path()).unwrap());
        (VolatileDisk::new(disk, now.clone()), now)
    }

    fn read(file: &dyn DiskFile, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut buffer = vec![9; bytes];
        file.read_at(offset, &mut buffer).map(|()| buffer)
    }

    #[test]
    fn what_was_not_synced_is_seen_and_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let (first, _) = disk(&directory);
        let file = first.create("a", 4).unwrap();
        file.write_at(0, b"durable").unwrap();
        file.sync().unwrap();
        file.write_at(3, b"ABCDEFGH").unwrap();
        file.write_at(4, b"-").unwrap();
        let again = first.open("a").unwrap();
        assert_eq!(read(again.as_ref(), 0, 11).unwrap(), b"durA-CDEFGH");
        assert_eq!(read(again.as_ref(), 4, 2).unwrap(), b"-C");
        assert!(read(again.as_ref(), 0, 12).is_err(), "beyond the end");
        assert_eq!(again.length().unwrap(), 11);
        let (second, _) = disk(&directory);
        let file = second.open("a").unwrap();
        assert_eq!(
            (file.length().unwrap(), read(file.as_ref(), 0, 7).unwrap()),
            (7, b"durable".into())
        );
    }

    #[test]
    fn a_file_is_the_same_under_its_new_name() {
        let directory = tempfile::tempdir().unwrap();
        let (disk, _) = disk(&directory);
        let file = disk.create("a", 0).unwrap();
        file.write_at(0, b"x").unwrap();
        disk.rename("a", "b").unwrap();
        assert_eq!(read(disk.open("b").unwrap().as_ref(), 0, 1).unwrap(), b"x");
        assert!(disk.open("a").is_err());
    }

    #[test]
    fn a_disk_fails_as_it_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let (disk, now) = disk(&directory);
        let file = disk.create("a", 0).unwrap();
        let told = |text: &str| now.set(serde_json::from_str(text).unwrap());
        told(r#"{"log": "full"}"#);
        assert_eq!(file.write_at(0, b"x").unwrap_err().raw_os_error(), Some(NO_SPACE));
        told(r#"{"log": "failing_writes"}"#);
        assert_eq!(file.write_at(0, b"x").unwrap_err().raw_os_error(), Some(BROKEN));
        told(r#"{"log": "failing_syncs"}"#);
        file.write_at(0, b"x").unwrap();
        assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(BROKEN));
        told(r#"{"log": {"slow": 1}}"#);
        file.sync().unwrap();
        assert!(serde_json::from_str::<Faults>(r#"{"log": "odd"}"#).is_err());
        let crash = serde_json::from_str::<Faults>(r#"{"crash": "log-synced"}"#).unwrap().crash;
        assert_eq!(crash, Some(Point::LogSynced));
    }

    #[test]
    fn a_wall_clock_is_ahead_fast_slow_or_stands_still() {
        let shown = |ahead_ms, pace| {
            let clock = WallClock { ahead_ms, pace, ..WallClock::default() };
            clock.shown(5_000_000, 1_000_000)
        };
        assert_eq!(shown(0, 1.0), 5_000_000);
        assert_eq!(shown(-1000, 1.0), 4_000_000);
        assert_eq!(shown(0, 2.0), 6_000_000);
        assert_eq!(shown(0, 0.0), 4_000_000);
    }

    #[test]
    fn a_clock_that_strobes_is_on_either_side_in_turns() {
        let clock: WallClock = serde_json::from_str(r#"{"strobe_ms": 500}"#).unwrap();
        let off = |passed_ms: i64| clock.shown(0, passed_ms * 1000) / 1000;
        assert_eq!([0, 14, 15, 29, 30, 44, 45].map(off), [500, 500, -500, -500, 500, 500, -500]);
    }

    #[test]
    fn what_is_understood_is_told_and_nothing_else_passes() {
        let directory = tempfile::tempdir().unwrap();
        let (path, seen) = (directory.path().join("faults.json"), directory.path().join(SEEN));
        let mut file = FaultsFile::new(path.clone());
        assert_eq!(file.read().unwrap(), None, "there is no file");
        let full = r#"{"log": "full"}"#;
        fs::write(&path, full).unwrap();
        assert_eq!(file.read().unwrap().map(|faults| faults.log), Some(LogDisk::Full));
        assert_eq!(fs::read_to_string(&seen).unwrap(), full);
        assert_eq!(file.read().unwrap(), None, "it is nothing new");
        for wrong in [r#"{"wall": {"ahead": 1}}"#, r#"{"disk": "full"}"#, "{", ""] {
            fs::write(&path, wrong).unwrap();
            assert!(file.read().is_err(), "{wrong}");
            assert_eq!(fs::read_to_string(&seen).unwrap(), full, "{wrong}");
        }
    }
}
