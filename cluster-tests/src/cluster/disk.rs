//! A small disk in a file: it can be filled, it can lose its power, and nobody else's is.
//!
//! Power is lost in four steps: (1) the file system is shut down as it is, without a word to its journal,
//! and what the kernel holds for it is worth nothing from then on; (2) whoever uses it is killed; (3) it is
//! unmounted; (4) it is mounted again, and its journal is replayed. What was synced is there; what was not is
//! gone, or there in part.

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use super::command;

/// Its size: enough for a run.
const BYTES: u64 = 1 << 30;
/// How often the rest of its room is asked for.
const TRIES_MAX: u32 = 100;
/// Whom nodes run as in containers.
const USER: u32 = 65532;

/// How often it is tried to take a disk away that somebody has used until a moment ago, and the pause
/// between.
const UNMOUNTS_MAX: u32 = 100;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(50);

/// Steps 1 and 2, for directories and process numbers in turns: `EXT4_IOC_SHUTDOWN` with
/// `EXT4_GOING_FLAGS_NOLOGFLUSH`. From Rust it would take `unsafe`.
const LOSE_POWER: &str = "
import fcntl, os, struct, sys
for at, process in zip(sys.argv[1::2], sys.argv[2::2]):
    disk = os.open(at, os.O_RDONLY)
    fcntl.ioctl(disk, 0x8004587D, struct.pack('I', 2))
    if process != '-':
        os.kill(int(process), 9)
";

/// A disk, mounted as long as this lives.
#[derive(Debug)]
pub(super) struct Disk {
    /// The file it is in.
    image: PathBuf,
    mounted_at: PathBuf,
}

impl Disk {
    /// Makes an empty disk. Needs root.
    pub(super) fn make(at: &Path) -> anyhow::Result<Self> {
        let image = at.with_extension("img");
        File::create(&image)?.set_len(BYTES)?;
        fs::create_dir_all(at)?;
        command::run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image))?;
        mount(&image, at)?;
        Ok(Self { image, mounted_at: at.to_path_buf() })
    }

    /// Lets nodes in containers write to it.
    pub(super) fn open_to_containers(self) -> anyhow::Result<Self> {
        chown(&self.mounted_at, Some(USER), Some(USER))?;
        Ok(self)
    }

    /// Where its files are.
    pub(super) fn path(&self) -> &Path {
        &self.mounted_at
    }

    /// Leaves no room on it.
    pub(super) fn fill(&self) {
        let filler = File::create(self.filler()).expect("there is room for a name");
        let mut taken = 0;
        for _ in 0..TRIES_MAX {
            let room = statvfs(&self.mounted_at).expect("the disk is mounted");
            let free = room.f_bavail * room.f_frsize;
            if free == 0 {
                return;
            }
            // What there is is taken, even if it fails: the node may have been faster.
            let _ = fallocate(&filler, FallocateFlags::empty(), taken, free);
            taken += free;
        }
    }

    /// Gives the room back.
    pub(super) fn free(&self) {
        fs::remove_file(self.filler()).expect("the disk was filled");
    }

    fn filler(&self) -> PathBuf {
        self.mounted_at.join("filler")
    }

    /// An error if this machine has not what it takes to lose power.
    pub(super) fn try_power() -> anyhow::Result<()> {
        command::run(Command::new("python3").args(["-c", "import fcntl"])).map(drop)
    }

    /// Takes the power from disks, and from a process of each, at the same time. A disk without a process is
    /// one whose user stands still.
    pub(super) fn lose_power(disks: &[(&Self, Option<u32>)]) -> anyhow::Result<()> {
        let mut python = Command::new("python3");
        python.args(["-c", LOSE_POWER]);
        for (disk, process) in disks {
            let process = process.map_or("-".to_string(), |number| number.to_string());
            python.arg(&disk.mounted_at).arg(process);
        }
        command::run(&mut python).map(drop)
    }

    /// Makes it whole again once it has lost its power and nobody uses it any more.
    pub(super) fn remount(&self) -> anyhow::Result<()> {
        insist(|| {
            if self.is_mounted()? {
                self.unmount()?;
            }
            mount(&self.image, &self.mounted_at)?;
            self.probe()
        })
    }

    fn unmount(&self) -> anyhow::Result<()> {
        command::run(Command::new("umount").arg(&self.mounted_at)).map(drop)
    }

    fn is_mounted(&self) -> anyhow::Result<bool> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let at = self.mounted_at.to_str();
        Ok(mounts.lines().any(|line| line.split(' ').nth(1) == at))
    }

    /// An error if it is still without power: so it stays while anybody else has it mounted, too.
    fn probe(&self) -> anyhow::Result<()> {
        let probe = self.mounted_at.join("probe");
        File::create(&probe)?;
        Ok(fs::remove_file(probe)?)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted().is_ok_and(|is_mounted| !is_mounted)
            || insist(|| self.unmount()).is_ok()
        {
            return;
        }
        // It goes once nobody uses it any more.
        let lazily = command::run(Command::new("umount").arg("--lazy").arg(&self.mounted_at));
        if let Err(error) = lazily {
            eprintln!("{} stays mounted: {error:#}", self.mounted_at.display());
        }
    }
}

fn mount(image: &Path, at: &Path) -> anyhow::Result<()> {
    command::run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(at)).map(drop)
}

/// Tries again until it is done, for some seconds.
fn insist(mut attempt: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    for _ in 1..UNMOUNTS_MAX {
        if attempt().is_ok() {
            return Ok(());
        }
        thread::sleep(UNMOUNT_PAUSE);
    }
    attempt()
}
