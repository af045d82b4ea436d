//! Writes past the page cache (`O_DIRECT`): the kernel copies nothing, and has nothing to look for when it syncs.
//!
//! Such writes come in whole blocks, from memory aligned like them. What is appended mostly starts within the
//! block in which the last write ended: that one is still in memory, and is written once more, with the same
//! bytes in front.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;
use tracing::info;

use super::BLOCK_BYTES;

/// What is longer is written in several pieces: as much memory as a busy log's batches take.
const PIECE_BYTES: usize = 256 << 10;
/// A piece may begin and end within a block, and what is before the first aligned byte is left out.
const MEMORY_BYTES: usize = PIECE_BYTES + 2 * BLOCK_BYTES;

/// A file that is written past the page cache.
pub(super) struct DirectFile {
    file: File,
    /// A block must not end behind this: the file would grow.
    length: u64,
    /// Tells it from other files that share the buffer.
    number: u64,
    buffer: Arc<WriteBuffer>,
}

/// Memory for one write after the other. The files of a directory share it.
#[derive(Default)]
pub(super) struct WriteBuffer(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    bytes: Vec<u8>,
    ended: Option<Ended>,
    files: u64,
    /// True if the file system has no such writes after all.
    is_refused: bool,
}

/// Where the last write ended.
struct Ended {
    number: u64,
    offset: u64,
    /// Where the block that it ended in lies in memory.
    block: usize,
}

impl DirectFile {
    /// Opens a file of `length` bytes; nothing if its file system has no such writes.
    pub(super) fn open(
        path: &Path,
        length: u64,
        buffer: &Arc<WriteBuffer>,
    ) -> io::Result<Option<Self>> {
        let mut inner = buffer.lock();
        if inner.is_refused {
            return Ok(None);
        }
        let flags = i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)?;
        let file = OpenOptions::new().write(true).custom_flags(flags).open(path);
        let Some(file) = inner.accept(file)? else { return Ok(None) };
        inner.files += 1;
        Ok(Some(Self { file, length, number: inner.files, buffer: buffer.clone() }))
    }

    /// Writes bytes at `offset`, and zeros behind them to the end of the block. `cached` is the same file, to read
    /// what is before them in the first block. False if all of them must be written there instead.
    pub(super) fn write_at(&self, cached: &File, offset: u64, bytes: &[u8]) -> io::Result<bool> {
        let mut inner = self.buffer.lock();
        let end = offset + bytes.len() as u64;
        if inner.is_refused || end.next_multiple_of(BLOCK_BYTES as u64) > self.length {
            inner.ended = None;
            return Ok(false);
        }
        let mut offset = offset;
        for piece in bytes.chunks(PIECE_BYTES) {
            let written = self.write_piece(&mut inner, cached, offset, piece);
            if inner.accept(written)?.is_none() {
                return Ok(false);
            }
            offset += piece.len() as u64;
        }
        Ok(true)
    }

    fn write_piece(
        &self,
        inner: &mut Inner,
        cached: &File,
        offset: u64,
        piece: &[u8],
    ) -> io::Result<()> {
        let block = offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let start = usize::try_from(offset - block).expect("less than a block");
        let end = start + piece.len();
        let here = (self.number, offset);
        // Should this fail, nobody goes by what is in memory.
        let ended = inner.ended.take().filter(|ended| (ended.number, ended.offset) == here);
        let memory = inner.memory();
        match ended {
            Some(ended) => memory.copy_within(ended.block..ended.block + start, 0),
            None => cached.read_exact_at(&mut memory[..start], block)?,
        }
        memory[start..end].copy_from_slice(piece);
        let blocks = end.next_multiple_of(BLOCK_BYTES);
        memory[end..blocks].fill(0);
        self.file.write_all_at(&memory[..blocks], block)?;
        inner.ended = Some(Ended {
            number: self.number,
            offset: offset + piece.len() as u64,
            block: end / BLOCK_BYTES * BLOCK_BYTES,
        });
        Ok(())
    }
}

impl WriteBuffer {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The memory, from where it is aligned.
    fn memory(&mut self) -> &mut [u8] {
        if self.bytes.is_empty() {
            self.bytes = vec![0; MEMORY_BYTES];
        }
        let start = self.bytes.as_ptr().align_offset(BLOCK_BYTES);
        &mut self.bytes[start..]
    }

    /// Nothing if the file system has no such writes, or wants them aligned otherwise: then nobody tries again.
    fn accept<T>(&mut self, result: io::Result<T>) -> io::Result<Option<T>> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(error)
                if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) =>
            {
                info!(%error, "this file system has no writes past the page cache; they go through it");
                self.is_refused = true;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    const FILE_BYTES: usize = 1 << 20;

    /// A file full of what was there before.
    struct Fixture {
        directory: TempDir,
        cached: File,
        buffer: Arc<WriteBuffer>,
    }

    impl Fixture {
        fn new() -> Self {
            Self::sharing(Arc::default())
        }

        fn sharing(buffer: Arc<WriteBuffer>) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("file");
            fs::write(&path, vec![b'o'; FILE_BYTES]).unwrap();
            let cached = OpenOptions::new().read(true).write(true).open(path).unwrap();
            Self { directory, cached, buffer }
        }

        fn open(&self) -> DirectFile {
            let path = self.directory.path().join("file");
            let length = self.cached.metadata().unwrap().len();
            let file = DirectFile::open(&path, length, &self.buffer).unwrap();
            file.expect("tests run where files can be written so")
        }

        fn read(&self) -> Vec<u8> {
            fs::read(self.directory.path().join("file")).unwrap()
        }
    }

    #[test]
    fn a_write_that_would_make_the_file_longer_is_left_to_the_cache() {
        let fixture = Fixture::new();
        fixture.cached.set_len(5000).unwrap();
        let file = fixture.open();
        assert!(file.write_at(&fixture.cached, 4000, &[b'1'; 96]).unwrap());
        assert!(!file.write_at(&fixture.cached, 4096, &[b'2'; 904]).unwrap());
        let found = fixture.read();
        assert_eq!(found.len(), 5000);
        assert_eq!(found[4096..], [b'o'; 904]);
    }

    #[test]
    fn what_was_written_through_the_cache_meanwhile_stays() {
        let fixture = Fixture::new();
        fixture.cached.set_len(5000).unwrap();
        let file = fixture.open();
        assert!(file.write_at(&fixture.cached, 0, &[b'1'; 100]).unwrap());
        assert!(!file.write_at(&fixture.cached, 50, &[b'2'; 4950]).unwrap());
        fixture.cached.write_all_at(&[b'2'; 4950], 50).unwrap();
        assert!(file.write_at(&fixture.cached, 100, &[b'3'; 10]).unwrap());
        assert_eq!(fixture.read()[..110], [&[b'1'; 50][..], &[b'2'; 50], &[b'3'; 10]].concat());
    }

    #[test]
    fn files_that_take_turns_keep_what_is_before() {
        let one = Fixture::new();
        let other = Fixture::sharing(one.buffer.clone());
        let (file, another) = (one.open(), other.open());
        assert!(file.write_at(&one.cached, 0, &[b'1'; 100]).unwrap());
        assert!(another.write_at(&other.cached, 100, &[b'2'; 100]).unwrap());
        assert!(file.write_at(&one.cached, 100, &[b'3'; 50]).unwrap());
        assert!(file.write_at(&one.cached, 10, &[b'4'; 10]).unwrap());
        let behind = [0; BLOCK_BYTES - 20];
        let expected = [&[b'1'; 10][..], &[b'4'; 10], &behind, b"o"].concat();
        assert_eq!(one.read()[..=BLOCK_BYTES], expected);
        assert_eq!(other.read()[..200], [[b'o'; 100], [b'2'; 100]].concat());
    }

    #[test]
    fn a_file_system_that_refuses_is_not_asked_again() {
        let fixture = Fixture::new();
        let mut file = fixture.open();
        // It takes a small number only.
        file.file = OpenOptions::new().write(true).open("/proc/self/oom_score_adj").unwrap();
        assert!(!file.write_at(&fixture.cached, 0, b"no number").unwrap());
        let path = fixture.directory.path().join("file");
        assert!(DirectFile::open(&path, 0, &fixture.buffer).unwrap().is_none());
        let refusing = Path::new("/proc/self/comm");
        assert!(DirectFile::open(refusing, 0, &Arc::default()).unwrap().is_none());
        assert!(DirectFile::open(Path::new("/missing"), 0, &Arc::default()).is_err());
    }

    /// How many bytes come next, and whether somebody opens the file for them.
    fn appends() -> impl Strategy<Value = Vec<(usize, bool)>> {
        let length = prop_oneof![
            4 => 1..200_usize,
            4 => 1..3 * BLOCK_BYTES,
            1 => Just(BLOCK_BYTES),
            1 => PIECE_BYTES - BLOCK_BYTES..PIECE_BYTES + 2 * BLOCK_BYTES,
        ];
        prop::collection::vec((length, prop::bool::weighted(0.1)), 1..30)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_file_holds_what_was_appended_and_little_behind_it_is_touched(
            skipped in 0..2 * BLOCK_BYTES,
            appends in appends(),
        ) {
            let fixture = Fixture::new();
            let mut file = fixture.open();
            let mut expected = vec![b'o'; skipped];
            for (number, (length, opened)) in appends.into_iter().enumerate() {
                if opened {
                    file = fixture.open();
                }
                let bytes = vec![u8::try_from(number).unwrap(); length];
                let offset = expected.len() as u64;
                if (expected.len() + length).next_multiple_of(BLOCK_BYTES) > FILE_BYTES {
                    prop_assert!(!file.write_at(&fixture.cached, offset, &bytes).unwrap());
                    break;
                }
                prop_assert!(file.write_at(&fixture.cached, offset, &bytes).unwrap());
                expected.extend(bytes);
            }
            let found = fixture.read();
            prop_assert_eq!(found.len(), FILE_BYTES);
            let (written, behind) = found.split_at(expected.len());
            prop_assert!(written == expected);
            let (zeros, old) = behind.split_at(expected.len().next_multiple_of(BLOCK_BYTES) - expected.len());
            prop_assert!(zeros.iter().all(|byte| *byte == 0));
            prop_assert!(old.iter().all(|byte| *byte == b'o'));
        }
    }
}
