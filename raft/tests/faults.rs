//! A replica that cannot go on stops, and says why: it never skips an entry.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Cluster, Loss, NodeOptions, simulate};
use ephemeris_raft::testing::{MemoryDisk, MemoryNetwork};
use ephemeris_raft::wal::{Wal, WalOptions};
use ephemeris_raft::{Executor, Group, GroupOptions, Router, Storage};
use ephemeris_store::engine::{Engine as _, Fault, KeyRange, MemoryEngine, Read};
use ephemeris_store::ids::GroupId;
use ephemeris_store::machine::{Entry, LogId, Machine, Progress};
use tokio::time::timeout;

/// A machine that does what its commands say.
struct Obedient(Mutex<Progress>);

impl Machine for Obedient {
    type Outcome = ();

    fn progress(&self) -> Progress {
        self.0.lock().expect("nobody panics with it").clone()
    }

    fn apply(&self, position: LogId, entry: Entry<'_>) -> Result<Option<()>, Fault> {
        let outcome = match entry {
            Entry::Command(b"fault") => return Err(Fault::Engine("the disk is gone".into())),
            Entry::Command(b"panic") => panic!("one and one is three"),
            Entry::Command(_) => Some(()),
            Entry::Blank | Entry::Membership(_) => None,
        };
        self.0.lock().expect("nobody panics with it").applied = Some(position);
        Ok(outcome)
    }

    fn ranges(&self) -> Vec<KeyRange> {
        Vec::new()
    }

    fn view(&self) -> (Arc<dyn Read>, Progress) {
        (MemoryEngine::new().view(), self.progress())
    }

    fn unload(&self) {}

    fn reload(&self) -> Result<(), Fault> {
        Ok(())
    }
}

async fn start() -> Group<Obedient> {
    let (wal, writer) =
        Wal::open(Arc::new(MemoryDisk::new()), WalOptions::default()).expect("an empty log opens");
    tokio::spawn(writer.run_as_task(Duration::from_millis(1)));
    let storage = Storage {
        engine: Arc::new(MemoryEngine::new()),
        wal,
        snapshots: Arc::new(MemoryDisk::new()),
        executor: Executor::Inline,
    };
    let (router, replica) = (Router::new(), common::replica(1));
    let transport = MemoryNetwork::new(1).connect(replica.node, router.clone());
    let machine = Obedient(Mutex::default());
    let options = GroupOptions::default();
    let group =
        Group::start(GroupId(1), replica, machine, storage, transport, router, &options).await;
    let group = group.expect("the group starts");
    group.form(&[replica]).await.expect("the group forms");
    while group.propose(b"nothing".to_vec()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    group
}

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_fault_or_a_panic_while_applying_stops_the_replica() {
    for (command, why) in [("fault", "the disk is gone"), ("panic", "one and one is three")] {
        simulate(1, async {
            let group = start().await;
            let mut leadership = group.watch_leadership();
            let proposed = timeout(PATIENCE, group.propose(command.into())).await;
            assert!(proposed.expect("an answer").is_err());
            let reason = timeout(PATIENCE, group.stopped()).await.expect("it stops");
            assert!(reason.contains(why), "{reason}");
            let ended = async { while leadership.changed().await.is_some() {} };
            timeout(PATIENCE, ended).await.expect("those who watch learn it");
            assert!(group.status().stopped.is_some());
        });
    }
}

#[test]
fn a_replica_that_runs_does_not_say_that_it_stopped() {
    simulate(1, async {
        let group = start().await;
        assert!(timeout(PATIENCE, group.stopped()).await.is_err());
        group.stop().await;
        timeout(PATIENCE, group.stopped()).await.expect("now it has");
    });
}

/// A log without room stops the replica; what it acknowledged before is there once it has room, and
/// it goes on.
#[test]
fn a_full_log_acknowledges_nothing_and_goes_on_once_there_is_room() {
    let mut stops = 0;
    for bytes_left in (0..4000).step_by(210) {
        stops += simulate(bytes_left, async {
            let options = NodeOptions { segment_bytes: 2048, ..NodeOptions::default() };
            let mut cluster = Cluster::start_with(1, bytes_left, options).await;
            cluster.wait_for_leader().await;
            cluster.node(1).log_disk.fill(bytes_left);
            let (mut serial, mut stops) = (0, 0);
            for _ in 0..3 {
                let writing = write_until_it_stops(&cluster, &mut serial);
                let why = timeout(PATIENCE, writing).await.expect("it stops");
                assert!(why.contains("no space left"), "{why}");
                stops += 1;
                cluster.lose(1, Loss::Process { flushed: 0 });
                cluster.restart(1).await;
            }
            assert!((3..60).contains(&serial), "{serial} writes fit into {bytes_left} bytes");
            cluster.node_mut(1).repair();
            cluster.lose(1, Loss::Everything);
            cluster.restart(1).await;
            let leader = cluster.wait_for_leader().await;
            let found = cluster.read(leader, "a").await.expect("it answers");
            assert!(found == Some(serial) || found == Some(serial + 1), "{found:?}, {serial}");
            cluster.upsert(leader, "a", serial + 2).await.expect("it goes on");
            stops
        });
    }
    assert_eq!(stops, 60, "the disk was full every time");
}

/// Counts up in one item; returns why the replica stopped.
async fn write_until_it_stops(cluster: &Cluster, serial: &mut u64) -> String {
    loop {
        match cluster.upsert(1, "a", *serial + 1).await {
            Ok(_) => *serial += 1,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
        if let Some(why) = cluster.node(1).group().status().stopped {
            return why;
        }
    }
}
