//! A small disk in a file: it can be filled, and nobody else's is.

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use super::command;

/// Its size: enough for a run.
const BYTES: u64 = 1 << 30;
/// How often the rest of its room is asked for.
const TRIES_MAX: u32 = 100;
/// Whom nodes run as in containers.
const USER: u32 = 65532;

/// A disk, mounted as long as this lives.
#[derive(Debug)]
pub(super) struct Disk {
    mounted_at: PathBuf,
}

impl Disk {
    /// Makes an empty disk. Needs root.
    pub(super) fn make(at: &Path) -> anyhow::Result<Self> {
        let image = at.with_extension("img");
        File::create(&image)?.set_len(BYTES)?;
        fs::create_dir_all(at)?;
        command::run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image))?;
        command::run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(at))?;
        let disk = Self { mounted_at: at.to_path_buf() };
        chown(at, Some(USER), Some(USER))?;
        Ok(disk)
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
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = command::run(Command::new("umount").arg(&self.mounted_at)) {
            eprintln!("{} stays mounted: {error:#}", self.mounted_at.display());
        }
    }
}
