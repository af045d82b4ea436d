//! The log keeps what it acknowledged: over restarts, power losses, flipped bits and failed syncs.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::disk::RealDisk;
use crate::log_store::LogStore;
use crate::storage::Executor;
use crate::testing::MemoryDisk;
use crate::types::Payload;

const GROUP: GroupId = GroupId(1);
const OTHER: GroupId = GroupId(2);

fn small() -> WalOptions {
    WalOptions { segment_bytes: 4096, cache_bytes: 512, segments_max: 3 }
}

fn entry(term: u64, index: u64) -> LogEntry {
    let text = format!("command {term}.{index}");
    LogEntry { id: LogId { term, index }, payload: Payload::Command(Bytes::from(text)) }
}

fn long_entry(bytes: u64) -> LogEntry {
    let command = vec![0; usize::try_from(bytes).unwrap()];
    LogEntry { id: LogId { term: 1, index: 0 }, payload: Payload::Command(command.into()) }
}

/// Calls an operation and waits for its callback.
fn wait(start: impl FnOnce(Callback) -> io::Result<()>) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel();
    start(Box::new(move |result| sender.send(result).unwrap()))?;
    receiver.recv().unwrap()
}

/// A log with its writer on a thread.
struct Running {
    wal: Wal,
    thread: Option<thread::JoinHandle<io::Result<()>>>,
}

impl Running {
    fn open(disk: &MemoryDisk) -> Result<Self, WalError> {
        Self::open_with(Arc::new(disk.clone()), small())
    }

    fn open_with(disk: Arc<dyn Disk>, options: WalOptions) -> Result<Self, WalError> {
        let (wal, writer) = Wal::open(disk, options)?;
        let thread = Some(thread::spawn(move || writer.run()));
        Ok(Self { wal, thread })
    }

    fn append(&self, group: GroupId, entries: Vec<LogEntry>) {
        wait(|done| self.wal.append(group, entries, done)).unwrap();
    }

    fn append_range(&self, group: GroupId, range: std::ops::Range<u64>) {
        self.append(group, range.map(|index| entry(1, index)).collect());
    }

    fn vote(&self, group: GroupId, term: u64) {
        let vote = Vote { term, replica: 1, committed: false };
        wait(|done| self.wal.save_vote(group, vote, done)).unwrap();
    }

    fn entries(&self, group: GroupId) -> Vec<LogEntry> {
        self.wal.read(group, 0, u64::MAX, usize::MAX).unwrap()
    }

    fn close(mut self) {
        wait(|done| {
            self.wal.close(done);
            Ok(())
        })
        .unwrap();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

fn range(entries: &[LogEntry]) -> Option<(u64, u64)> {
    Some((entries.first()?.id.index, entries.last()?.id.index))
}

#[test]
fn entries_are_readable_at_once_and_after_a_restart() {
    let mut disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    log.append_range(GROUP, 0..100);
    log.append(OTHER, vec![LogEntry { id: LogId { term: 1, index: 0 }, payload: Payload::Blank }]);
    log.vote(GROUP, 7);
    let before = (log.entries(GROUP), log.entries(OTHER));
    assert_eq!(range(&before.0), Some((0, 99)));
    log.close();
    disk.lose_power();
    let log = Running::open(&disk).unwrap();
    assert_eq!((log.entries(GROUP), log.entries(OTHER)), before);
    assert_eq!(log.wal.vote(GROUP).unwrap().term, 7);
    assert_eq!(log.wal.groups(), [GROUP, OTHER]);
}

#[test]
fn reads_are_bounded_by_bytes_but_never_empty() {
    let disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    log.append_range(GROUP, 0..50);
    assert_eq!(range(&log.wal.read(GROUP, 10, 20, 1).unwrap()), Some((10, 10)));
    assert_eq!(range(&log.wal.read(GROUP, 10, 20, 30).unwrap()), Some((10, 12)));
    assert_eq!(range(&log.wal.read(GROUP, 40, 99, usize::MAX).unwrap()), Some((40, 49)));
    assert!(log.wal.read(GROUP, 50, 60, 1).unwrap().is_empty());
    assert!(log.wal.read(OTHER, 0, 60, 1).unwrap().is_empty());
}

#[test]
fn truncated_entries_do_not_come_back() {
    let disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    log.append_range(GROUP, 0..10);
    log.wal.truncate(GROUP, Some(LogId { term: 1, index: 4 })).unwrap();
    log.append(GROUP, vec![entry(2, 5), entry(2, 6)]);
    let expected: Vec<_> =
        (0..5).map(|index| entry(1, index)).chain([entry(2, 5), entry(2, 6)]).collect();
    assert_eq!(log.entries(GROUP), expected);
    log.close();
    assert_eq!(Running::open(&disk).unwrap().entries(GROUP), expected);
}

#[test]
fn purged_segments_are_recycled_and_votes_survive_them() {
    let mut disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    log.vote(GROUP, 3);
    for round in 0..40 {
        log.append_range(GROUP, round * 50..(round + 1) * 50);
        log.wal.purge(GROUP, LogId { term: 1, index: round * 50 + 40 }).unwrap();
    }
    log.append_range(GROUP, 2000..2001);
    let stats = log.wal.stats();
    assert!(stats.segments <= 2, "{stats:?}");
    assert!(disk.list().unwrap().len() <= 4, "{:?}", disk.list());
    log.close();
    disk.lose_power();
    let log = Running::open(&disk).unwrap();
    assert_eq!(log.wal.vote(GROUP).unwrap().term, 3);
    assert_eq!(range(&log.entries(GROUP)), Some((1991, 2000)));
    assert_eq!(log.wal.bounds(GROUP).purged, Some(LogId { term: 1, index: 1990 }));
}

#[test]
fn what_keeps_too_many_segments_is_overdue() {
    let disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    // More than is moved, and the last of it in the second segment.
    log.append_range(OTHER, 0..100);
    assert_eq!(log.wal.overdue(), []);
    let segments = || log.wal.stats().segments;
    let mut next = 0;
    while segments() < small().segments_max as u64 + 2 {
        log.append_range(GROUP, next..next + 10);
        next += 10;
    }
    let overdue: BTreeMap<GroupId, LogId> = log.wal.overdue().into_iter().collect();
    assert_eq!(overdue[&OTHER], LogId { term: 1, index: 99 });
    assert!(overdue.get(&GROUP).is_none_or(|last| last.index < next - 10), "{overdue:?}");
    for (group, upto) in overdue {
        log.wal.purge(group, upto).unwrap();
    }
    // The writer frees segments behind the next batch.
    log.append_range(GROUP, next..next + 1);
    log.append_range(GROUP, next + 1..next + 2);
    assert_eq!(segments(), small().segments_max as u64);
    assert_eq!(log.wal.overdue(), []);
}

#[test]
fn a_lagging_group_does_not_pin_the_log() {
    let disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    log.append_range(OTHER, 0..3);
    for round in 0..40 {
        log.append_range(GROUP, round * 50..(round + 1) * 50);
        log.wal.purge(GROUP, LogId { term: 1, index: round * 50 + 40 }).unwrap();
    }
    log.append_range(GROUP, 2000..2001);
    assert!(log.wal.stats().segments <= 4, "{:?}", log.wal.stats());
    assert_eq!(range(&log.entries(OTHER)), Some((0, 2)));
    log.close();
    let log = Running::open(&disk).unwrap();
    assert_eq!(range(&log.entries(OTHER)), Some((0, 2)));
    log.append_range(OTHER, 3..5);
    assert_eq!(range(&log.entries(OTHER)), Some((0, 4)));
}

/// One that has lost its majority has entries that it can neither commit nor let go.
#[test]
fn a_group_that_lets_nothing_go_does_not_pin_the_log() {
    let disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    // More than is moved of a segment.
    log.append_range(OTHER, 0..100);
    for round in 0..200 {
        log.append_range(GROUP, round * 50..(round + 1) * 50);
        log.wal.purge(GROUP, LogId { term: 1, index: round * 50 + 40 }).unwrap();
    }
    let needed = log.wal.stats();
    assert!(needed.segments <= 32, "{needed:?}");
    assert_eq!(range(&log.entries(OTHER)), Some((0, 99)));
    log.close();
    let log = Running::open(&disk).unwrap();
    assert_eq!(range(&log.entries(OTHER)), Some((0, 99)));
}

#[test]
fn a_dropped_group_leaves_nothing() {
    let disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    log.append_range(GROUP, 0..10);
    log.vote(GROUP, 3);
    wait(|done| log.wal.drop_group(GROUP, done)).unwrap();
    log.append_range(OTHER, 0..1);
    log.close();
    let log = Running::open(&disk).unwrap();
    assert_eq!(log.wal.groups(), [OTHER]);
    log.append_range(GROUP, 0..2);
    assert_eq!(range(&log.entries(GROUP)), Some((0, 1)));
}

/// What is purged says of entries that others stood in their place: once it is durable, they are void.
#[test]
fn a_segment_does_not_begin_with_what_follows_from_the_batch_behind() {
    let at = |term, index| LogId { term, index };
    let full = small().segment_bytes;
    let mut begins_segments = false;
    // One of these lengths leaves room for the states, and none for the batch.
    for filler in (full - 1200..full - 400).step_by(16) {
        for operations in 0.. {
            let mut disk = MemoryDisk::new();
            let log = Running::open(&disk).unwrap();
            log.append(GROUP, (0..16).map(|index| entry(2, index)).collect());
            log.append(OTHER, vec![long_entry(filler)]);
            log.close();
            let (wal, writer) = Wal::open(Arc::new(disk.clone()), small()).unwrap();
            let segments = wal.stats().segments;
            wal.truncate(GROUP, Some(at(2, 9))).unwrap();
            wal.purge(GROUP, at(3, 10)).unwrap();
            wal.close(Box::new(|_| ()));
            disk.fail_after(operations);
            let is_written = writer.run().is_ok();
            begins_segments |= wal.stats().segments > segments;
            disk.lose_power();
            let log = Running::open(&disk).unwrap();
            LogStore::new(log.wal.clone(), GROUP, Executor::Inline)
                .follow(Some(at(3, 10)))
                .unwrap();
            let found = log.wal.bounds(GROUP);
            let expected = LogBounds { purged: Some(at(3, 10)), last: Some(at(3, 10)) };
            assert_eq!(found, expected, "{filler} bytes, {operations} operations");
            log.append(GROUP, vec![entry(3, 11)]);
            log.close();
            if is_written {
                break;
            }
        }
    }
    assert!(begins_segments);
}

#[test]
fn commit_indexes_ride_along() {
    let disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    log.append_range(GROUP, 0..10);
    log.wal.save_committed(GROUP, LogId { term: 1, index: 8 }).unwrap();
    log.append_range(OTHER, 0..1);
    log.close();
    let log = Running::open(&disk).unwrap();
    assert_eq!(log.wal.committed(GROUP), Some(LogId { term: 1, index: 8 }));
    assert_eq!(log.wal.committed(OTHER), None);
}

/// Entries of an earlier term may stand where a later one has committed its own.
#[test]
fn committed_is_what_the_log_shows_to_be() {
    let disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    log.append_range(GROUP, 0..4);
    log.append(GROUP, vec![entry(2, 4), entry(2, 5)]);
    let committed = |term, index| {
        log.wal.save_committed(GROUP, LogId { term, index }).unwrap();
        log.wal.committed(GROUP).map(|id| (id.term, id.index))
    };
    assert_eq!(committed(1, 2), Some((1, 2)));
    assert_eq!(committed(2, 4), Some((2, 4)));
    assert_eq!(committed(2, 9), Some((2, 5)), "its leader appended all before it");
    assert_eq!(committed(1, 9), None);
    assert_eq!(committed(3, 4), None);
    assert_eq!(committed(3, 9), None);
    log.wal.purge(GROUP, LogId { term: 1, index: 1 }).unwrap();
    assert_eq!(committed(3, 9), Some((1, 1)), "only what is committed is purged");
    assert_eq!(committed(2, 5), Some((2, 5)));
}

/// A follower may learn that entries are committed while its writer is at another batch: one that holds neither them,
/// nor that others in their place are void.
#[test]
fn what_is_replaced_is_not_committed_by_a_crash() {
    let disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    log.append_range(GROUP, 0..4);
    log.append(GROUP, vec![entry(2, 4), entry(2, 5)]);
    log.close();

    let (wal, writer) = Wal::open(Arc::new(disk.clone()), small()).unwrap();
    let (crashed, at_the_crash) = mpsc::channel();
    let replace = {
        let wal = wal.clone();
        move |result: io::Result<()>| {
            result.unwrap();
            wal.truncate(GROUP, Some(LogId { term: 1, index: 3 })).unwrap();
            wal.append(GROUP, vec![entry(3, 4)], Box::new(|result| result.unwrap())).unwrap();
            wal.save_committed(GROUP, LogId { term: 3, index: 4 }).unwrap();
        }
    };
    let crash = move |result: io::Result<()>| {
        result.unwrap();
        crashed.send(disk.fork()).unwrap();
    };
    // It fills a batch; what follows it goes into the next one.
    let large = LogEntry {
        id: LogId { term: 1, index: 0 },
        payload: Payload::Command(Bytes::from(vec![7; 5 << 20])),
    };
    wal.append(OTHER, vec![large], Box::new(replace)).unwrap();
    wal.append(OTHER, vec![entry(1, 1)], Box::new(crash)).unwrap();
    let thread = thread::spawn(move || writer.run());
    let found = Running::open(&at_the_crash.recv().unwrap()).unwrap();
    assert_eq!(found.entries(GROUP).last(), Some(&entry(2, 5)), "the crash came before");
    assert_eq!(found.entries(OTHER).len(), 2, "and behind the batch with the commit index");
    assert_eq!(found.wal.committed(GROUP), None);
    wait(|done| {
        wal.close(done);
        Ok(())
    })
    .unwrap();
    thread.join().unwrap().unwrap();
    assert_eq!(wal.committed(GROUP), Some(LogId { term: 3, index: 4 }));
}

/// Somebody has looked up where entries lie, and comes to read them when others lie there.
#[test]
fn a_slow_reader_follows_entries_that_are_moved() {
    let log = Running::open(&MemoryDisk::new()).unwrap();
    log.append_range(OTHER, 0..3);
    log.append_range(GROUP, 0..50);
    let found = log.wal.locate(OTHER, 0, 3, usize::MAX);
    let gone = log.wal.locate(GROUP, 0, 3, usize::MAX);
    for round in 1..40 {
        log.append_range(GROUP, round * 50..(round + 1) * 50);
        log.wal.purge(GROUP, LogId { term: 1, index: round * 50 + 40 }).unwrap();
    }
    for (id, place) in &found {
        let Place::Disk(file, location) = place else { panic!("{id} is still in memory") };
        assert!(read_entry(OTHER, *id, &**file, *location).is_err(), "others lie there");
    }
    assert_eq!(range(&log.wal.fetch(OTHER, found).unwrap()), Some((0, 2)));
    assert_eq!(log.wal.fetch(GROUP, gone).unwrap(), []);
}

#[test]
fn batches_larger_than_a_segment_fit() {
    let disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    let large = Payload::Command(Bytes::from(vec![7; 50_000]));
    log.append_range(GROUP, 0..1);
    log.append(GROUP, vec![LogEntry { id: LogId { term: 1, index: 1 }, payload: large.clone() }]);
    log.append_range(GROUP, 2..3);
    log.close();
    let entries = Running::open(&disk).unwrap().entries(GROUP);
    assert_eq!(range(&entries), Some((0, 2)));
    assert_eq!(entries[1].payload, large);
}

#[test]
fn many_waiters_share_a_sync() {
    let disk = MemoryDisk::new();
    let (wal, writer) = Wal::open(Arc::new(disk.clone()), WalOptions::default()).unwrap();
    let (sender, receiver) = mpsc::channel();
    for group in 0..100 {
        let sender = sender.clone();
        let done: Callback = Box::new(move |result| sender.send(result).unwrap());
        wal.append(GroupId(group), vec![entry(1, 0)], done).unwrap();
    }
    let thread = thread::spawn(move || writer.run());
    for _ in 0..100 {
        receiver.recv().unwrap().unwrap();
    }
    assert_eq!(wal.stats().syncs, 1, "one batch for everything that was queued");
    wal.close(Box::new(|_| {}));
    thread.join().unwrap().unwrap();
}

#[test]
fn a_failed_sync_is_final() {
    let mut disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    log.append_range(GROUP, 0..5);
    disk.fail_syncs();
    let result = wait(|done| log.wal.append(GROUP, vec![entry(1, 5)], done));
    assert!(result.is_err());
    let later = log.wal.append(GROUP, vec![entry(1, 6)], Box::new(|_| panic!("never called")));
    assert!(later.unwrap_err().to_string().contains("injected sync failure"));
    assert!(
        log.wal
            .save_vote(GROUP, Vote { term: 1, replica: 1, committed: true }, Box::new(|_| {}))
            .is_err()
    );
    disk.lose_power();
    assert_eq!(range(&Running::open(&disk).unwrap().entries(GROUP)), Some((0, 4)));
}

/// Writes a batch whose sync fails; then the process ends, and the machine does not.
fn end_process_after_a_failed_sync(disk: &mut MemoryDisk) {
    let log = Running::open(disk).unwrap();
    log.append_range(GROUP, 0..5);
    disk.fail_next_sync();
    let result = wait(|done| log.wal.append(GROUP, vec![entry(1, 5)], done));
    assert!(result.is_err(), "what was not synced is not acknowledged");
    let later = log.wal.append(GROUP, vec![entry(1, 6)], Box::new(|_| panic!("never called")));
    assert!(later.is_err(), "and the sync is not tried again");
    disk.end_process();
}

#[test]
fn what_a_process_found_in_the_log_is_durable() {
    let mut disk = MemoryDisk::new();
    end_process_after_a_failed_sync(&mut disk);
    let log = Running::open(&disk).unwrap();
    let found = log.entries(GROUP);
    assert_eq!(range(&found), Some((0, 5)), "the kernel still has what it could not write");
    disk.lose_power();
    assert_eq!(Running::open(&disk).unwrap().entries(GROUP), found);
}

#[test]
fn a_failed_sync_leaves_no_hole_behind() {
    let mut disk = MemoryDisk::new();
    end_process_after_a_failed_sync(&mut disk);
    let log = Running::open(&disk).unwrap();
    log.append_range(GROUP, 6..8);
    disk.lose_power();
    assert_eq!(range(&Running::open(&disk).unwrap().entries(GROUP)), Some((0, 7)));
}

#[test]
fn a_torn_tail_is_forgotten_and_written_over() {
    let disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    log.append_range(GROUP, 0..5);
    let synced = usize::try_from(log.wal.stats().bytes).unwrap() + format::SEGMENT_HEADER_BYTES;
    log.append_range(GROUP, 5..6);
    log.close();
    disk.flip_bit("0000000000000001.log", (synced + format::BATCH_HEADER_BYTES + 9) * 8);
    let log = Running::open(&disk).unwrap();
    assert_eq!(range(&log.entries(GROUP)), Some((0, 4)));
    log.append(GROUP, vec![entry(2, 5)]);
    log.close();
    let entries = Running::open(&disk).unwrap().entries(GROUP);
    assert_eq!(entries[5], entry(2, 5));
}

#[test]
fn a_missing_segment_is_named() {
    let disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    log.append_range(GROUP, 0..500);
    log.append_range(GROUP, 500..1000);
    log.append_range(GROUP, 1000..1500);
    log.close();
    assert!(disk.list().unwrap().len() >= 3, "{:?}", disk.list());
    disk.remove("0000000000000002.log").unwrap();
    let message = Running::open(&disk).err().unwrap().to_string();
    assert!(message.contains("0000000000000002.log"), "{message}");
    assert!(message.contains("missing"), "{message}");
}

/// What a crash can leave of segment 2, which was just being made: its header is there.
fn unfinished_segments() -> Vec<Vec<u8>> {
    let bytes = usize::try_from(small().segment_bytes).unwrap();
    let header = format::segment_header(2, bytes as u64, 2);
    let mut batch = format::BatchWriter::new();
    batch.put(GROUP, &format::Record::Vote(Vote { term: 3, replica: 1, committed: true }));
    let batch = batch.finish(2, 2);
    // Padded with up to seven zeros, which are there already: with less missing it is whole.
    let torn_batch = (0..batch.len() - 8).step_by(5);
    torn_batch
        .map(|torn| {
            let mut file = [&header[..], &batch[..torn]].concat();
            file.resize(bytes, 0);
            file
        })
        .collect()
}

#[test]
fn a_segment_that_was_never_finished_is_made_anew() {
    for unfinished in unfinished_segments() {
        for entry_bytes in [10, 9000] {
            let mut disk = MemoryDisk::new();
            let log = Running::open(&disk).unwrap();
            log.vote(GROUP, 7);
            log.append_range(GROUP, 0..3);
            log.close();
            let file = disk.create("0000000000000002.log", 0).unwrap();
            file.write_at(0, &unfinished).unwrap();
            file.sync().unwrap();
            disk.sync_directory().unwrap();
            let payload = Payload::Command(Bytes::from(vec![7; entry_bytes]));
            for index in 3..9 {
                let log = Running::open(&disk).unwrap();
                assert_eq!(range(&log.entries(GROUP)), Some((0, index - 1)));
                let id = LogId { term: 1, index };
                log.append(GROUP, vec![LogEntry { id, payload: payload.clone() }]);
                log.close();
                disk.lose_power();
            }
            let log = Running::open(&disk).unwrap();
            assert_eq!(range(&log.entries(GROUP)), Some((0, 8)));
            log.wal.purge(GROUP, LogId { term: 1, index: 8 }).unwrap();
            for index in 9..80 {
                log.append(GROUP, vec![entry(1, index)]);
            }
            log.close();
            let log = Running::open(&disk).unwrap();
            assert_eq!(range(&log.entries(GROUP)), Some((9, 79)));
            assert_eq!(log.wal.vote(GROUP).map(|vote| vote.term), Some(7));
        }
    }
}

#[test]
fn an_unfinished_segment_does_not_hide_damage_in_the_one_before() {
    let original = MemoryDisk::new();
    let log = Running::open(&original).unwrap();
    let mut ends = vec![format::SEGMENT_HEADER_BYTES];
    for first in [0, 2, 4] {
        log.append_range(GROUP, first..first + 2);
        ends.push(format::SEGMENT_HEADER_BYTES + usize::try_from(log.wal.stats().bytes).unwrap());
    }
    log.close();
    let unfinished = format::segment_header(2, 100, 3);
    original.create("0000000000000002.log", 100).unwrap().write_at(0, &unfinished).unwrap();
    assert!(Running::open(&original.fork()).is_ok());
    for batch in ends.windows(2) {
        // Its padding is not checked.
        for bit in batch[0] * 8..(batch[1] - 8) * 8 {
            let disk = original.fork();
            disk.flip_bit("0000000000000001.log", bit);
            let message = Running::open(&disk).err().expect("a batch is lost").to_string();
            assert!(message.contains("the next segment begins with 3"), "{message}");
            assert!(message.contains(&batch[0].to_string()), "{message}");
        }
    }
}

/// A copy may end early because a disk was full. What is missing may have been acknowledged.
#[test]
fn a_segment_that_was_cut_is_refused() {
    let original = MemoryDisk::new();
    let log = Running::open(&original).unwrap();
    for index in 0..60 {
        log.append_range(GROUP, index..index + 1);
    }
    log.close();
    let names = original.list().unwrap();
    assert!(names.len() >= 2, "{names:?}");
    for name in &names {
        let file = original.open(name).unwrap();
        let mut whole = vec![0; usize::try_from(file.length().unwrap()).unwrap()];
        file.read_at(0, &mut whole).unwrap();
        for length in (0..whole.len()).step_by(17) {
            let disk = original.fork();
            let cut = disk.create(name, length as u64).unwrap();
            cut.write_at(0, &whole[..length]).unwrap();
            let message = Running::open(&disk).err().expect("something is missing").to_string();
            assert!(message.contains(name) && message.contains("cut"), "{length}: {message}");
        }
    }
}

/// A copy of a directory may have cut it: nothing is lost, as long as nobody writes into it.
#[test]
fn a_spare_file_that_was_cut_is_not_used() {
    let disk = MemoryDisk::new();
    Running::open(&disk).unwrap().close();
    disk.create("0000000000000001.spare", 100).unwrap();
    let log = Running::open(&disk).unwrap();
    log.append_range(GROUP, 0..60);
    log.append_range(GROUP, 60..120);
    log.close();
    let names = disk.list().unwrap();
    assert!(!names.iter().any(|name| name.ends_with(recovery::SPARE_SUFFIX)), "{names:?}");
    assert_eq!(range(&Running::open(&disk).unwrap().entries(GROUP)), Some((0, 119)));
}

/// A full disk, or a crash, may come before a new segment has its length.
#[test]
fn a_file_that_was_to_become_a_segment_is_made_anew() {
    let disk = MemoryDisk::new();
    Running::open(&disk).unwrap().close();
    disk.create(recovery::NEW_NAME, 9).unwrap();
    let log = Running::open(&disk).unwrap();
    assert!(!disk.list().unwrap().contains(&recovery::NEW_NAME.to_string()));
    log.append_range(GROUP, 0..300);
    log.append_range(GROUP, 300..301);
    log.close();
    assert_eq!(range(&Running::open(&disk).unwrap().entries(GROUP)), Some((0, 300)));
}

#[test]
fn an_empty_segment_elsewhere_than_at_the_end_is_refused() {
    let original = MemoryDisk::new();
    let log = Running::open(&original).unwrap();
    for index in 0..200 {
        log.append_range(GROUP, index..index + 1);
    }
    log.close();
    let names = original.list().unwrap();
    assert!(names.len() >= 3, "{names:?}");
    let empty = |disk: &MemoryDisk, name: &str, bytes: u64| {
        disk.create(name, bytes).unwrap();
        disk.sync_directory().unwrap();
        Running::open(disk).err().map(|error| error.to_string())
    };
    for bytes in [0, 64, 4096] {
        for name in &names[..names.len() - 1] {
            let message = empty(&original.fork(), name, bytes).expect("the middle is gone");
            assert!(message.contains(name), "{message}");
        }
        let disk = original.fork();
        names[..names.len() - 1].iter().for_each(|name| disk.remove(name).unwrap());
        let last = &names[names.len() - 1];
        let message = empty(&disk, last, bytes).expect("all is gone");
        assert!(message.contains(last), "{message}");
    }
}

/// A flipped bit may make the log refuse to open, or cost its last batch; it never yields an entry
/// that was not written, nor takes one from the middle.
#[test]
fn a_bit_flipped_anywhere_never_yields_a_wrong_entry() {
    let original = MemoryDisk::new();
    let log = Running::open(&original).unwrap();
    log.vote(GROUP, 1);
    for index in 0..60 {
        log.append_range(GROUP, index..index + 1);
    }
    log.close();
    let good = Running::open(&original).unwrap().entries(GROUP);
    assert_eq!(good.len(), 60);
    let names = original.list().unwrap();
    assert!(names.len() >= 2, "{names:?}");
    let (mut refused, mut shortened, mut unharmed) = (0, 0, 0);
    for name in names {
        let bits = original.open(&name).unwrap().length().unwrap() * 8;
        for bit in 0..bits {
            let disk = original.fork();
            disk.flip_bit(&name, usize::try_from(bit).unwrap());
            match Wal::open(Arc::new(disk), small()) {
                Err(WalError::Corrupt { .. }) => refused += 1,
                Err(WalError::Io(error)) => panic!("{error}"),
                Ok((wal, _)) => {
                    let entries = wal.read(GROUP, 0, u64::MAX, usize::MAX).unwrap();
                    let lost = good.len() - entries.len();
                    assert!(lost <= 1, "{name} bit {bit} lost {lost} entries");
                    assert_eq!(entries, good[..entries.len()]);
                    if lost == 1 { shortened += 1 } else { unharmed += 1 }
                }
            }
        }
    }
    assert!(refused > 0 && shortened > 0 && unharmed > 0, "{refused} {shortened} {unharmed}");
}

#[test]
fn real_files_behave_like_those_in_memory() {
    let options = WalOptions { segment_bytes: 64 << 10, ..small() };
    let large = Payload::Command(vec![b'x'; 100_000].into());
    for open in [RealDisk::open, RealDisk::open_direct] {
        let directory = tempfile::tempdir().unwrap();
        let disk = Arc::new(open(directory.path()).unwrap());
        let mut log = Running::open_with(disk.clone(), options).unwrap();
        let mut expected = Vec::new();
        for round in 0..120 {
            let first = round * 50;
            let mut entries: Vec<_> = (first..first + 50).map(|index| entry(1, index)).collect();
            if round % 40 == 5 {
                entries[7].payload = large.clone();
            }
            log.append(GROUP, entries.clone());
            expected.extend(entries);
            assert_eq!(log.entries(GROUP), expected);
            if round % 10 == 9 {
                log.wal.purge(GROUP, LogId { term: 1, index: first }).unwrap();
                expected.drain(..expected.len() - 49);
            }
            if round % 8 == 7 {
                log.close();
                log = Running::open_with(disk.clone(), options).unwrap();
                assert_eq!(log.entries(GROUP), expected);
            }
        }
        let names = disk.list().unwrap();
        assert!(names.iter().any(|name| **name > *"0000000000000004.log"), "{names:?}");
        log.close();
    }
}

/// What a random history does to the log.
#[derive(Clone, Debug)]
enum Step {
    Append { group: u64, count: u64 },
    Vote { group: u64 },
    Truncate { group: u64, keep: u64 },
    Purge { group: u64, part: u64 },
    Drop { group: u64 },
    Restart { lose_power: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let group = 0..3_u64;
    prop_oneof![
        8 => (group.clone(), 1..30_u64).prop_map(|(group, count)| Step::Append { group, count }),
        1 => group.clone().prop_map(|group| Step::Vote { group }),
        1 => (group.clone(), 0..20_u64).prop_map(|(group, keep)| Step::Truncate { group, keep }),
        2 => (group.clone(), 1..5_u64).prop_map(|(group, part)| Step::Purge { group, part }),
        1 => group.prop_map(|group| Step::Drop { group }),
        2 => any::<bool>().prop_map(|lose_power| Step::Restart { lose_power }),
    ]
}

/// What the log should hold of one group.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    entries: Vec<LogEntry>,
    purged: Option<LogId>,
    term: u64,
}

impl Model {
    fn next(&self) -> u64 {
        let last = self.entries.last().map(|entry| entry.id).or(self.purged);
        last.map_or(0, |id| id.index + 1)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_happens_the_log_holds_what_it_acknowledged(
        steps in prop::collection::vec(step(), 1..80)
    ) {
        let mut disk = MemoryDisk::new();
        let mut log = Running::open(&disk).unwrap();
        let mut model: BTreeMap<u64, Model> = BTreeMap::new();
        for (at, step) in steps.into_iter().enumerate() {
            let term = at as u64 + 1;
            match step {
                Step::Append { group, count } => {
                    let state = model.entry(group).or_default();
                    let first = state.next();
                    let entries: Vec<_> = (first..first + count).map(|i| entry(term, i)).collect();
                    state.entries.extend(entries.clone());
                    log.append(GroupId(group), entries);
                }
                Step::Vote { group } => {
                    model.entry(group).or_default().term = term;
                    log.vote(GroupId(group), term);
                }
                Step::Truncate { group, keep } => {
                    let state = model.entry(group).or_default();
                    let keep = usize::try_from(keep).unwrap().min(state.entries.len());
                    state.entries.truncate(keep);
                    let after = state.entries.last().map(|entry| entry.id).or(state.purged);
                    log.wal.truncate(GroupId(group), after).unwrap();
                }
                Step::Purge { group, part } => {
                    let state = model.entry(group).or_default();
                    let count = state.entries.len() / usize::try_from(part).unwrap();
                    if count > 0 {
                        let upto = state.entries[count - 1].id;
                        state.entries.drain(..count);
                        state.purged = Some(upto);
                        log.wal.purge(GroupId(group), upto).unwrap();
                    }
                }
                Step::Drop { group } => {
                    model.remove(&group);
                    wait(|done| log.wal.drop_group(GroupId(group), done)).unwrap();
                }
                Step::Restart { lose_power } => {
                    // Operations without a callback are durable once a later one is.
                    log.vote(GroupId(9), term);
                    if !lose_power {
                        log.close();
                    }
                    disk.lose_power();
                    log = Running::open(&disk).unwrap();
                }
            }
            for (group, state) in &model {
                prop_assert_eq!(&log.entries(GroupId(*group)), &state.entries);
                let found = log.wal.vote(GroupId(*group)).map_or(0, |vote| vote.term);
                prop_assert_eq!(found, state.term);
            }
        }
        // What comes before a vote is done once that is durable.
        log.vote(GroupId(9), u64::MAX);
        assert_live_entries_are_counted(&log.wal);
    }
}

fn assert_live_entries_are_counted(wal: &Wal) {
    let inner = wal.shared.lock();
    for (number, segment) in &inner.segments {
        let held = inner.index.entries_in(*number);
        let bytes: u64 = held.iter().map(|(.., location)| u64::from(location.bytes)).sum();
        assert_eq!((segment.live, segment.live_bytes), (held.len() as u64, bytes), "{number}");
    }
}

/// A runtime of two workers, so that one can do brief work.
fn two_workers() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap()
}

/// Appends one entry after the other from a task, until one is written by a worker of the runtime: for that the
/// disk must have been fast, and no other test at work. Returns how many there are.
async fn append_until_a_worker_writes(wal: &Wal) -> u64 {
    for index in 0..100_000 {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let done: Callback = Box::new(move |result| {
            sender.send((result, thread::current().name().map(str::to_string))).unwrap();
        });
        wal.append(GROUP, vec![entry(1, index)], done).unwrap();
        let (result, by) = receiver.await.unwrap();
        result.unwrap();
        if by.is_some_and(|name| name.starts_with("tokio")) {
            return index + 1;
        }
    }
    panic!("the thread writes everything")
}

#[test]
fn a_worker_writes_what_comes_when_nothing_is_being_written() {
    let disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    let (runtime, wal) = (two_workers(), log.wal.clone());
    let task = runtime.spawn(async move { append_until_a_worker_writes(&wal).await });
    let count = runtime.block_on(task).unwrap();
    log.close();
    assert_eq!(range(&Running::open(&disk).unwrap().entries(GROUP)), Some((0, count - 1)));
}

/// Many tasks append at once, some with workers, some with the thread: nobody is forgotten.
#[test]
fn whoever_writes_forgets_nobody() {
    let disk = MemoryDisk::new();
    let log = Running::open(&disk).unwrap();
    let runtime = two_workers();
    let tasks: Vec<_> = (0..16)
        .map(|group| {
            let wal = log.wal.clone();
            runtime.spawn(async move {
                for index in 0..500 {
                    let (sender, receiver) = tokio::sync::oneshot::channel();
                    let done: Callback = Box::new(|result| sender.send(result).unwrap());
                    wal.append(GroupId(group), vec![entry(1, index)], done).unwrap();
                    receiver.await.unwrap().unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    log.close();
    let log = Running::open(&disk).unwrap();
    for group in 0..16 {
        assert_eq!(range(&log.entries(GroupId(group))), Some((0, 499)));
    }
}

/// A panic in a task ends nothing by itself; the log must not wait for its writer for ever.
#[test]
fn a_log_whose_writer_panicked_has_failed() {
    let log = Running::open(&MemoryDisk::new()).unwrap();
    let runtime = two_workers();
    let wal = log.wal.clone();
    runtime
        .block_on(runtime.spawn(async move {
            let next = append_until_a_worker_writes(&wal).await;
            wal.append(GROUP, vec![entry(1, next)], Box::new(|_| panic!("a bug"))).unwrap();
        }))
        .unwrap();
    let ended = log.thread.unwrap().join();
    assert!(!matches!(ended, Ok(Ok(()))), "whoever runs it learns of it");
    let later = log.wal.append(GROUP, vec![entry(1, 1 << 20)], Box::new(|_| ()));
    assert!(later.unwrap_err().to_string().contains("panicked"));
}

/// The runtime may end before a worker has come.
#[test]
fn what_no_worker_comes_for_the_thread_writes() {
    for _ in 0..20 {
        let disk = MemoryDisk::new();
        let log = Running::open(&disk).unwrap();
        let runtime = two_workers();
        let wal = log.wal.clone();
        let task = runtime.spawn(async move { append_until_a_worker_writes(&wal).await });
        let next = runtime.block_on(task).unwrap();
        let (sender, receiver) = mpsc::channel();
        {
            let _inside = runtime.enter();
            let done: Callback = Box::new(move |result| sender.send(result).unwrap());
            log.wal.append(GROUP, vec![entry(1, next)], done).unwrap();
        }
        runtime.shutdown_background();
        let patience = std::time::Duration::from_secs(30);
        receiver.recv_timeout(patience).expect("somebody writes it").unwrap();
    }
}
