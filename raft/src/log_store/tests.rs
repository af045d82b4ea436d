//! What is committed comes whole and in order to be applied, however much it is.

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};

use super::*;
use crate::testing::MemoryDisk;
use crate::types::{LogEntry, Payload};
use crate::wal::WalOptions;

const GROUP: GroupId = GroupId(1);
const ENTRY_BYTES: usize = 100 << 10;
/// Entries that make several pieces.
const MANY: u64 = 40;

/// A log of `MANY` entries, none of which is on disk.
fn log(executor: Executor) -> LogStore {
    let disk = std::sync::Arc::new(MemoryDisk::new());
    let (wal, _) = Wal::open(disk, WalOptions::default()).unwrap();
    let entry = |index| LogEntry {
        id: LogId { term: 1, index },
        payload: Payload::Command(Bytes::from(vec![0; ENTRY_BYTES])),
    };
    wal.append(GROUP, (0..MANY).map(entry).collect(), Box::new(|_| {})).unwrap();
    LogStore::new(wal, GROUP, executor)
}

/// What openraft gets to apply.
async fn entries(log: &mut LogStore, range: impl RangeBounds<u64> + Clone + Debug + Send) -> Read {
    let entries: Vec<_> = log.entries_stream(range).await.collect().await;
    entries.into_iter().map(|entry| entry.map(|entry| entry.log_id.index)).collect()
}

type Read = io::Result<Vec<u64>>;

#[tokio::test]
async fn a_long_range_comes_whole_and_in_order_piece_by_piece() {
    for executor in [Executor::Inline, Executor::Threads] {
        let mut log = log(executor);
        let pieces: Vec<Vec<RaftEntry>> = log.pieces(3, MANY).try_collect().await.unwrap();
        assert!(pieces.len() > 2, "{} pieces", pieces.len());
        for piece in pieces {
            assert!(piece.len() <= READ_BYTES_TARGET.div_ceil(ENTRY_BYTES), "{}", piece.len());
        }
        assert!(entries(&mut log, 3..MANY).await.unwrap().into_iter().eq(3..MANY));
    }
}

/// There is no runtime here, and so nobody to run anything elsewhere.
#[test]
fn what_is_one_piece_is_read_at_once_and_on_the_spot() {
    let mut log = log(Executor::Threads);
    let found = entries(&mut log, 3..=8).now_or_never().expect("nothing is waited for");
    assert_eq!(found.unwrap(), [3, 4, 5, 6, 7, 8]);
    assert!(entries(&mut log, 3..3).now_or_never().unwrap().unwrap().is_empty());
}

#[test]
fn a_hole_is_an_error() {
    let mut log = log(Executor::Inline);
    log.wal.purge(GROUP, LogId { term: 1, index: 4 }).unwrap();
    assert!(entries(&mut log, 4..MANY).now_or_never().unwrap().is_err(), "it would begin too late");
    assert_eq!(entries(&mut log, 5..7).now_or_never().unwrap().unwrap(), [5, 6]);
    let behind = entries(&mut log, MANY - 1..MANY + 5).now_or_never().unwrap();
    assert_eq!(behind.unwrap(), [MANY - 1], "behind the last entry there is no hole");

    let mut pieces = Box::pin(log.pieces(5, MANY));
    pieces.next().now_or_never().unwrap().expect("there is one").unwrap();
    log.wal.drop_group(GROUP, Box::new(|_| {})).unwrap();
    let next = pieces.next().now_or_never().unwrap().expect("it does not end as if it were whole");
    assert!(next.is_err(), "{next:?}");
}
