//! Damages what a node that does not run has stored.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Behind the head of a segment, in front of most of what was acknowledged.
const IN_THE_LOG: u64 = 4096;
/// More than what fills up the space between two batches.
const DAMAGED_BYTES: usize = 16;

/// Changes what was acknowledged long ago, in the oldest segment of the log.
pub(super) fn damage_log(data: &Path) {
    let segments = files(&data.join("log"), "log");
    let oldest = segments.iter().min().expect("a node that was started has a log");
    change(oldest, IN_THE_LOG, DAMAGED_BYTES);
}

/// Changes a byte of a row that was flushed and not compressed yet.
pub(super) fn damage_row(data: &Path, text: &str) {
    for file in files(&data.join("state"), "sst") {
        let bytes = fs::read(&file).expect("the file can be read");
        let place = bytes.windows(text.len()).position(|window| window == text.as_bytes());
        if let Some(place) = place {
            return change(&file, place as u64, 1);
        }
    }
    panic!("no table file holds {text}");
}

fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("the directory can be read");
    let paths = entries.map(|entry| entry.expect("the directory can be read").path());
    paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

fn change(path: &Path, offset: u64, bytes: usize) {
    let file = File::options().read(true).write(true).open(path).expect("the file can be opened");
    let mut changed = vec![0; bytes];
    file.read_exact_at(&mut changed, offset).expect("the file is so long");
    for byte in &mut changed {
        *byte ^= 0x55;
    }
    file.write_all_at(&changed, offset).expect("the file can be written");
}
