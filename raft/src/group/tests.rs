//! What a replica says it has, it still has after a loss of power.

use bytes::Bytes;
use ephemeris_store::catalog::{Catalog, CatalogCommand, CatalogProposal};
use ephemeris_store::codec;
use ephemeris_store::engine::{Engine as _, MemoryEngine, Read as _};
use ephemeris_store::machine::Entry;
use ephemeris_store::time::{ClockInterval, Millis};
use tokio::time::{sleep, timeout};

use super::*;
use crate::disk::Disk;
use crate::router::Inbound as _;
use crate::storage::Executor;
use crate::testing::{MemoryDisk, MemoryNetwork, simulate};
use crate::types::{LogEntry, Payload, Vote};
use crate::wal::{SyncTime, UNSYNCED_BYTES_MAX, Wal, WalOptions};
use crate::wire::{Confirm, Message, Request, Response};

const GROUP: GroupId = GroupId::CATALOG;
const PATIENCE: Duration = Duration::from_secs(30);

/// What survives of a node.
#[derive(Clone, Default)]
struct Disks {
    log: MemoryDisk,
    snapshots: MemoryDisk,
    engine: MemoryEngine,
}

fn me() -> ReplicaId {
    ReplicaId { node: NodeId(1), incarnation: 0 }
}

impl Disks {
    fn open_log(&self, sync_time: SyncTime) -> Wal {
        let log: Arc<dyn Disk> = Arc::new(self.log.clone());
        let (wal, writer) = Wal::open(log, WalOptions::default()).unwrap();
        tokio::task::spawn_local(async move { writer.run_as_task(sync_time).await.unwrap() });
        wal
    }

    fn catalog(&self) -> Catalog {
        Catalog::open(Arc::new(self.engine.clone())).unwrap()
    }

    /// A replica that leads its group alone.
    async fn lead(&self, sync_time: SyncTime) -> Group<Catalog> {
        let group = self.start(sync_time).await;
        group.form(&[me()]).await.unwrap();
        settle(&group).await;
        group
    }

    /// Starts the only replica of a group.
    async fn start(&self, sync_time: SyncTime) -> Group<Catalog> {
        let storage = Storage {
            engine: Arc::new(self.engine.clone()),
            wal: self.open_log(sync_time),
            snapshots: Arc::new(self.snapshots.clone()),
            executor: Executor::Inline,
        };
        let router = Router::new();
        let transport = MemoryNetwork::new(1).connect(me().node, router.clone());
        let options = GroupOptions::default();
        let started =
            Group::start(GROUP, me(), self.catalog(), storage, transport, router, &options);
        started.await.unwrap()
    }
}

/// A proposal that a catalog takes as often as it comes, encoded.
fn proposal() -> Vec<u8> {
    let command = CatalogCommand::ForgetNode { node: NodeId(9) };
    codec::encode(&CatalogProposal { now: ClockInterval::exact(Millis(1)), command })
}

/// The group's only member, encoded.
fn members() -> Bytes {
    let members = BTreeSet::from([me()]);
    let membership = openraft::Membership::new(vec![members.clone()], members).unwrap();
    crate::types::encode_membership(&membership)
}

/// Writes the first entries of a log, those behind the first of this term, and a vote of the next one; waits until
/// all is durable.
async fn write_log(wal: &Wal, length: u64, term: u64) {
    let payload = |index| match index {
        0 => Payload::Membership(members()),
        _ => Payload::Blank,
    };
    let id = |index| LogId { term: if index == 0 { 1 } else { term }, index };
    let entry = |index| LogEntry { id: id(index), payload: payload(index) };
    wal.append(GROUP, (0..length).map(entry).collect(), Box::new(|_| {})).unwrap();
    let vote = Vote { term: term + 1, replica: me().as_u64(), committed: true };
    let (sender, receiver) = tokio::sync::oneshot::channel();
    wal.save_vote(GROUP, vote, Box::new(|result| sender.send(result).unwrap())).unwrap();
    receiver.await.unwrap().unwrap();
}

/// Waits until a replica leads and can commit.
async fn settle(group: &Group<Catalog>) {
    let settled = async {
        while group.settle().await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, settled).await.expect("it leads");
}

/// The engine had flushed entries by itself that replaced others, and the log had not synced them.
#[test]
fn a_log_that_went_another_way_than_the_machine_follows_it() {
    for length in 1..6 {
        check_that_a_log_follows((length, 1), 2);
    }
}

/// The same, where the log is shorter, and ends with what a leader of a later term had never committed.
#[test]
fn a_shorter_log_of_a_later_term_follows_the_machine() {
    for length in 1..6 {
        check_that_a_log_follows((length, 3), 8);
    }
}

/// Starts a replica with a log of this length and term, whose machine has applied entries of term 2 up to an index:
/// nothing may be left of the log up to there.
fn check_that_a_log_follows((length, term): (u64, u64), applied: u64) {
    simulate(1, async {
        let mut disks = Disks::default();
        write_log(&disks.open_log(SyncTime::from(Duration::ZERO)), length, term).await;
        disks.log.lose_power();
        let machine = disks.catalog();
        let entry = |term, index| LogId { term, index };
        machine.apply(entry(1, 0), Entry::Membership(&members())).unwrap();
        for index in 1..=applied {
            machine.apply(entry(2, index), Entry::Blank).unwrap();
        }
        disks.engine.flush().unwrap();
        let group = disks.start(SyncTime::from(Duration::from_millis(1))).await;
        settle(&group).await;
        let wal = &group.shared.storage.wal;
        assert_eq!(wal.bounds(GROUP).purged, Some(entry(2, applied)), "{length} entries");
        let log = wal.read(GROUP, 0, u64::MAX, usize::MAX).unwrap();
        let is_new = |id: LogId| id.term > 2 && id.index > applied;
        assert!(log.iter().all(|entry| is_new(entry.id)), "{length} entries: {log:?}");
    });
}

/// A leader that is told that its snapshot is installed never sends those entries again.
#[test]
fn a_snapshot_that_counts_as_installed_is_durable() {
    simulate(1, async {
        let disks = Disks::default();
        let group = disks.lead(SyncTime::from(Duration::from_millis(1))).await;
        let progress = group.progress();
        assert!(progress.applied.is_some());
        let vote = Vote { term: 9, replica: 9, committed: true };
        assert_eq!(group.install_snapshot(vote, &progress).await, Ok(vote));
        disks.engine.crash();
        assert_eq!(disks.catalog().progress().applied, progress.applied);
    });
}

/// It would take the answer for a sign that it still leads, and answer reads.
#[test]
fn a_deposed_leader_whose_snapshot_is_not_needed_learns_it() {
    simulate(1, async {
        let disks = Disks::default();
        let group = disks.lead(SyncTime::from(Duration::from_millis(1))).await;
        let progress = group.progress();
        let own = group.vote().unwrap();
        assert!(own.term > 0);
        let deposed = Vote { term: own.term - 1, replica: 9, committed: true };
        assert_eq!(group.install_snapshot(deposed, &progress).await, Ok(own));
    });
}

/// A log that came back after a crash would miss what was purged from it, and nobody could go on with the rest.
#[test]
fn a_replicas_log_is_gone_for_good_before_its_rows_go() {
    simulate(1, async {
        let (mut disks, sync_time) = (Disks::default(), SyncTime::from(Duration::from_millis(1)));
        let group = disks.lead(sync_time.clone()).await;
        let engine = disks.engine.clone();
        let rows = || engine.scan(&ephemeris_store::machine::meta_range(GROUP)).count();
        sync_time.set(Duration::from_secs(1));
        let removing = tokio::task::spawn_local(async move { group.remove().await });
        sleep(Duration::from_millis(500)).await;
        assert_ne!(rows(), 0, "the log has not synced it");
        removing.await.unwrap().unwrap();
        assert_eq!(rows(), 0);
        disks.log.lose_power();
        assert_eq!(disks.open_log(sync_time).groups(), []);
    });
}

/// What comes while a batch is under way goes together in the next one, but nobody waits for a disk that is slow.
#[test]
fn what_comes_meanwhile_goes_together_and_waits_for_no_slow_disk() {
    simulate(1, async {
        let (disks, sync_time) = (Disks::default(), SyncTime::from(Duration::from_millis(1)));
        let group = disks.lead(sync_time.clone()).await;
        sync_time.set(Duration::from_secs(1));
        let encoded = proposal();
        let logged = || group.last_logged().unwrap().index;
        let before = logged();
        let mut outcomes = Vec::new();
        for _ in 0..6 {
            let (group, encoded) = (group.clone(), encoded.clone());
            outcomes.push(tokio::task::spawn_local(async move { group.propose(encoded).await }));
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(logged(), before + 1, "less than a crowd waits");
        sleep(Duration::from_millis(20)).await;
        assert_eq!(logged(), before + 6);
        for outcome in outcomes {
            outcome.await.unwrap().unwrap();
        }
    });
}

/// What was refused may be tried again: it is not done.
#[test]
fn a_leader_whose_machine_is_far_behind_takes_no_more() {
    simulate(1, async {
        let (disks, sync_time) = (Disks::default(), SyncTime::from(Duration::from_millis(1)));
        let group = disks.lead(sync_time.clone()).await;
        let encoded = proposal();
        group.propose(encoded.clone()).await.unwrap();
        sync_time.set(Duration::from_secs(8));
        sleep(Duration::from_secs(1)).await;
        let mut taken = Vec::new();
        for _ in 0..2 {
            let (group, encoded) = (group.clone(), encoded.clone());
            taken.push(tokio::task::spawn_local(async move { group.propose(encoded).await }));
            sleep(Duration::from_secs(1)).await;
        }
        sleep(Duration::from_secs(3)).await;
        let logged = group.last_logged();
        let refused = group.propose(encoded.clone()).await;
        assert!(matches!(refused, Err(ProposeError::NotLeader { .. })), "{refused:?}");
        assert_eq!(group.last_logged(), logged);
        for outcome in taken {
            outcome.await.unwrap().unwrap();
        }
        group.propose(encoded).await.unwrap();
    });
}

/// Its own, once it is in the log, and before it is synced: nobody learns of it earlier.
#[test]
fn a_replica_confirms_its_vote_until_it_has_another() {
    simulate(1, async {
        let (disks, sync_time) = (Disks::default(), SyncTime::from(Duration::from_millis(1)));
        let group = disks.lead(sync_time).await;
        let (router, wal) = (&group.shared.router, &group.shared.storage.wal);
        let confirms = async |group, to, vote| {
            let asked = Message::Confirm(Confirm { group, to, vote }).encode();
            codec::decode::<bool>(&router.receive(&asked).await.unwrap()).unwrap()
        };
        let vote = wal.vote(GROUP).unwrap();
        assert!(confirms(GROUP, me(), vote).await);
        let earlier = ReplicaId { incarnation: 1, ..me() };
        assert!(!confirms(GROUP, earlier, vote).await, "another replica of the node");
        assert!(!confirms(GroupId(7), me(), vote).await, "another group");
        let before = Vote { term: vote.term - 1, ..vote };
        assert!(!confirms(GROUP, me(), before).await, "an earlier leader's");
        let next = Vote { term: vote.term + 1, committed: false, ..vote };
        wal.save_vote(GROUP, next, Box::new(|_| ())).unwrap();
        assert!(!confirms(GROUP, me(), vote).await, "it has voted");
    });
}

#[test]
fn a_transfer_holds_no_more_of_the_log_than_disk_and_memory_have_room_for() {
    let log = |segments, live_entries| WalStats { segments, live_entries, ..WalStats::default() };
    assert!(may_be_held(&log(HELD_SEGMENTS_MAX - 1, HELD_ENTRIES_MAX - 1)));
    assert!(!may_be_held(&log(HELD_SEGMENTS_MAX, 1)), "few large entries");
    assert!(!may_be_held(&log(1, HELD_ENTRIES_MAX)), "many small ones");
}

/// Without a limit it would take what it is offered until there is no memory left. What it has refused is not done.
#[test]
fn a_log_that_does_not_get_written_takes_only_so_much() {
    simulate(1, async {
        let (disks, sync_time) = (Disks::default(), SyncTime::from(Duration::from_millis(1)));
        let group = disks.lead(sync_time.clone()).await;
        let wal = &group.shared.storage.wal;
        let refuses = async |entries| {
            let vote = Vote { term: 0, replica: 9, committed: true };
            let append = Request::Append { vote, previous: None, entries, committed: None };
            matches!(group.handle(append).await, Response::Failed(_))
        };
        let entry = LogEntry { id: LogId { term: 0, index: 0 }, payload: Payload::Blank };
        assert!(!refuses(vec![entry.clone()]).await);

        sync_time.set(Duration::from_hours(1));
        // Nothing of it is applied, whatever it says.
        let (length, mut taken) = (4 << 20, Vec::new());
        for _ in 0..2 * UNSYNCED_BYTES_MAX / length {
            let group = group.clone();
            let propose = async move { group.propose(vec![0; length]).await };
            taken.push(tokio::task::spawn_local(propose));
            sleep(Duration::from_millis(50)).await;
        }
        assert!(wal.unsynced_bytes() >= UNSYNCED_BYTES_MAX);
        assert!(wal.unsynced_bytes() < UNSYNCED_BYTES_MAX + 2 * length);
        let (last, before) = (taken.pop().unwrap(), group.last_logged());
        let not_done = ProposeError::NotLeader { leader: None };
        assert_eq!(timeout(PATIENCE, last).await.unwrap().unwrap().unwrap_err(), not_done);
        assert_eq!(group.last_logged(), before);
        assert!(refuses(vec![entry]).await);
        assert!(!refuses(Vec::new()).await, "nobody is to miss a leader for that");
    });
}
