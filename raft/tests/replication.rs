//! Election, replication, snapshots, restarts and membership, one scenario each.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{Cluster, Loss, NodeOptions, replica, simulate};
use ephemeris_raft::disk::Disk as _;
use ephemeris_raft::testing::Weather;
use ephemeris_raft::{ProposeError, ReadError};
use ephemeris_store::ids::NodeId;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

/// Runs a scenario with a few seeds.
fn for_seeds(scenario: impl AsyncFn(u64)) {
    for seed in 0..5 {
        simulate(seed, scenario(seed));
    }
}

#[test]
fn a_formed_group_elects_a_leader_and_replicates() {
    for_seeds(async |seed| {
        let cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        for serial in 0..50 {
            cluster.upsert(leader, &format!("i{}", serial % 7), serial).await.unwrap();
        }
        assert_eq!(cluster.read(leader, "i0").await, Ok(Some(49)));
        cluster.wait_for_agreement().await;
    });
}

#[test]
fn a_single_node_leads_itself() {
    for_seeds(async |seed| {
        let cluster = Cluster::start(1, seed).await;
        let leader = cluster.wait_for_leader().await;
        cluster.upsert(leader, "a", 1).await.unwrap();
        assert_eq!(cluster.read(leader, "a").await, Ok(Some(1)));
    });
}

#[test]
fn followers_name_the_leader_and_execute_nothing() {
    for_seeds(async |seed| {
        let cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        cluster.wait_for_agreement().await;
        let follower = leader % 3 + 1;
        let refused = cluster.upsert(follower, "a", 1).await;
        let expected = Some(replica(leader));
        assert_eq!(refused.unwrap_err(), ProposeError::NotLeader { leader: expected });
        let refused = cluster.read(follower, "a").await;
        assert_eq!(refused, Err(ReadError::NotLeader { leader: expected }));
    });
}

/// Whatever the leader has acknowledged its followers show, too, though they learn of it later.
#[test]
fn followers_read_what_was_acknowledged() {
    for_seeds(async |seed| {
        for count in [3, 5] {
            let cluster = Cluster::start(count, seed).await;
            let leader = cluster.wait_for_leader().await;
            for serial in 0..30 {
                cluster.upsert(leader, "a", serial).await.unwrap();
                for follower in (1..=count).filter(|node| *node != leader) {
                    assert_eq!(cluster.read_following(follower, "a").await, Ok(Some(serial)));
                }
            }
            let refused = cluster.read_following(leader, "a").await;
            assert_eq!(refused, Err(ReadError::NotLeader { leader: None }), "it is no follower");
        }
    });
}

/// Of three nodes the follower and its leader are a majority: the third one is not asked.
#[test]
fn a_follower_that_reads_counts_for_its_leader() {
    for_seeds(async |seed| {
        let cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        cluster.upsert(leader, "a", 1).await.unwrap();
        cluster.wait_for_agreement().await;
        let (follower, third) = (leader % 3 + 1, (leader + 1) % 3 + 1);
        cluster.network.isolate(NodeId(third));
        let asked = Instant::now();
        assert_eq!(cluster.read_following(follower, "a").await, Ok(Some(1)));
        let took = asked.elapsed();
        assert!(took <= Weather::FAIR.delay_max * 2, "{took:?}");
        let cut_off = cluster.read_following(third, "a").await;
        assert_eq!(cut_off, Err(ReadError::NotLeader { leader: Some(replica(leader)) }));
    });
}

/// Of five nodes the follower and its leader are none, and the others may have another leader.
#[test]
fn a_follower_cut_off_with_its_leader_reads_nothing() {
    for_seeds(async |seed| {
        let cluster = Cluster::start(5, seed).await;
        let old = cluster.wait_for_leader().await;
        cluster.upsert(old, "a", 1).await.unwrap();
        cluster.wait_for_agreement().await;
        let follower = old % 5 + 1;
        let minority = [old, follower];
        for other in (1..=5).filter(|node| !minority.contains(node)) {
            for one in minority {
                cluster.network.cut(NodeId(one), NodeId(other));
                cluster.network.cut(NodeId(other), NodeId(one));
            }
        }
        let lease = cluster.options.group.election_max;
        let end = Instant::now() + lease * 20;
        while Instant::now() < end {
            let found = cluster.read_following(follower, "a").await;
            assert!(found.is_err(), "nobody confirms that its leader leads: {found:?}");
            sleep(lease / 20).await;
        }
        let new = cluster.leader().expect("the others have elected one");
        assert!(!minority.contains(&new));
        cluster.upsert(new, "a", 2).await.unwrap();
        cluster.network.heal();
        cluster.wait_for_agreement().await;
        let follower = new % 5 + 1;
        assert_eq!(cluster.read_following(follower, "a").await, Ok(Some(2)));
    });
}

#[test]
fn a_group_in_which_nothing_happens_rests_until_something_does() {
    for_seeds(async |seed| {
        let cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        cluster.upsert(leader, "a", 1).await.unwrap();
        cluster.wait_for_rest().await;
        let term = || cluster.node(leader).group().leadership();
        let before = term();
        for _ in 0..600 {
            sleep(Duration::from_millis(100)).await;
            assert!(cluster.is_at_rest(), "{}", cluster.describe());
        }
        cluster.upsert(leader, "a", 2).await.unwrap();
        let written = Instant::now();
        cluster.wait_for_agreement().await;
        assert!(written.elapsed() < 3 * cluster.options.group.heartbeat, "followers learn of it");
        cluster.wait_for_rest().await;
        assert_eq!(cluster.read(leader, "a").await, Ok(Some(2)));
        assert!(cluster.is_at_rest(), "a reader wakes nobody");
        assert_eq!(term(), before);
    });
}

#[test]
fn another_leader_takes_over_from_one_that_ended_at_rest() {
    for_seeds(async |seed| {
        let mut cluster = Cluster::start(3, seed).await;
        for round in 0..5 {
            let leader = cluster.wait_for_leader().await;
            cluster.upsert(leader, "a", round).await.unwrap();
            cluster.wait_for_rest().await;
            cluster.crash(leader).await;
            let ended = Instant::now();
            let next = cluster.wait_for_leader().await;
            let longest = 4 * cluster.options.group.election_max;
            assert!(ended.elapsed() < longest, "{:?}", ended.elapsed());
            assert_eq!(cluster.read(next, "a").await, Ok(Some(round)));
            sleep(Duration::from_secs(5)).await;
            let is_resting = cluster.running().any(|node| node.group().status().is_resting);
            assert!(!is_resting, "one of its members is down");
            cluster.restart(leader).await;
        }
        cluster.wait_for_agreement().await;
    });
}

#[test]
fn a_leader_that_stands_still_for_a_moment_goes_on_leading_at_rest() {
    for_seeds(async |seed| {
        let cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        cluster.wait_for_rest().await;
        let before = cluster.node(leader).group().leadership();
        let host = cluster.node(leader).host().clone();
        host.freeze();
        sleep(cluster.options.group.election_max).await;
        host.thaw();
        sleep(Duration::from_secs(5)).await;
        assert!(cluster.is_at_rest(), "{}", cluster.describe());
        assert_eq!(cluster.node(leader).group().leadership(), before);
    });
}

#[test]
fn a_leader_at_rest_hands_over() {
    for_seeds(async |seed| {
        let cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        cluster.upsert(leader, "a", 1).await.unwrap();
        cluster.wait_for_rest().await;
        let next = leader % 3 + 1;
        cluster.node(leader).group().transfer_leadership(replica(next)).await;
        let leads = || async { (cluster.leader() == Some(next)).then_some(()) };
        cluster.wait_until("the other to lead", leads).await;
        cluster.wait_for_leader().await;
        cluster.upsert(next, "a", 2).await.unwrap();
        cluster.wait_for_rest().await;
    });
}

#[test]
fn a_leader_does_not_rest_while_a_follower_is_down() {
    for_seeds(async |seed| {
        let mut cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        cluster.wait_for_rest().await;
        let before = cluster.node(leader).group().leadership();
        let follower = leader % 3 + 1;
        cluster.crash(follower).await;
        sleep(Duration::from_secs(5)).await;
        assert!(!cluster.node(leader).group().status().is_resting);
        cluster.upsert(leader, "a", 1).await.unwrap();
        cluster.restart(follower).await;
        cluster.wait_for_rest().await;
        assert_eq!(cluster.node(leader).group().leadership(), before);
        assert_eq!(cluster.peek(follower, "a"), Some(1));
    });
}

#[test]
fn a_follower_that_does_not_hear_its_leader_disturbs_nobody_at_rest() {
    for_seeds(async |seed| {
        let cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        cluster.wait_for_rest().await;
        let before = cluster.node(leader).group().leadership();
        cluster.network.cut(NodeId(leader), NodeId(leader % 3 + 1));
        for _ in 0..100 {
            sleep(Duration::from_millis(100)).await;
            assert_eq!(cluster.node(leader).group().leadership(), before);
        }
        assert!(!cluster.is_at_rest());
        cluster.network.heal();
        cluster.wait_for_rest().await;
        assert_eq!(cluster.node(leader).group().leadership(), before);
    });
}

#[test]
fn another_leader_takes_over_and_nothing_acknowledged_is_lost() {
    for_seeds(async |seed| {
        let mut cluster = Cluster::start(3, seed).await;
        for round in 0..5 {
            let leader = cluster.wait_for_leader().await;
            cluster.upsert(leader, "a", round).await.unwrap();
            cluster.crash(leader).await;
            let next = cluster.wait_for_leader().await;
            assert_ne!(next, leader);
            assert_eq!(cluster.read(next, "a").await, Ok(Some(round)));
            cluster.restart(leader).await;
        }
        cluster.wait_for_agreement().await;
    });
}

#[test]
fn all_nodes_lose_power_at_once() {
    for_seeds(async |seed| {
        let mut cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        for serial in 0..30 {
            cluster.upsert(leader, "a", serial).await.unwrap();
            if serial == 15 {
                cluster.checkpoint(leader).await;
            }
        }
        for id in 1..=3 {
            cluster.crash(id).await;
        }
        for id in 1..=3 {
            cluster.restart(id).await;
        }
        let leader = cluster.wait_for_leader().await;
        assert_eq!(cluster.read(leader, "a").await, Ok(Some(29)));
        cluster.wait_for_agreement().await;
    });
}

#[test]
fn a_leader_cut_off_serves_nothing() {
    for_seeds(async |seed| {
        let cluster = Cluster::start(3, seed).await;
        let old = cluster.wait_for_leader().await;
        cluster.upsert(old, "a", 1).await.unwrap();
        cluster.network.isolate(NodeId(old));
        let others = cluster.wait_until("a new leader", || async {
            let leader = cluster.leader().filter(|leader| *leader != old)?;
            cluster.upsert(leader, "a", 2).await.ok()?;
            Some(leader)
        });
        let new = others.await;
        let stale = timeout(Duration::from_secs(5), cluster.read(old, "a")).await;
        assert!(!matches!(stale, Ok(Ok(_))), "a stale read: {stale:?}");
        let lost = timeout(Duration::from_secs(5), cluster.upsert(old, "a", 3)).await;
        assert!(!matches!(lost, Ok(Ok(_))), "an acknowledged write without a majority");
        cluster.network.heal();
        cluster.wait_for_agreement().await;
        assert_eq!(cluster.read(cluster.wait_for_leader().await, "a").await, Ok(Some(2)));
        let _ = new;
    });
}

/// It is heard, so that nobody else would stand for election: it must give way by itself.
#[test]
fn a_leader_that_hears_nobody_gives_way() {
    for_seeds(async |seed| {
        let cluster = Cluster::start(3, seed).await;
        let old = cluster.wait_for_leader().await;
        let options = cluster.options.group.clone();
        sleep(options.election_max).await;
        for other in (1..=3).filter(|other| *other != old) {
            cluster.network.cut(NodeId(other), NodeId(old));
        }
        let deaf = Instant::now();
        let client = cluster.client(old);
        // It goes on sending what it is asked to write.
        let busy = tokio::spawn(async move {
            for serial in 0..1000 {
                let write = client.upsert("b", serial, None);
                let _ = timeout(Duration::from_millis(10), write).await;
            }
        });
        let others = cluster.wait_until("a new leader", || async {
            let leader = cluster.leader().filter(|leader| *leader != old)?;
            cluster.upsert(leader, "a", 1).await.ok()
        });
        others.await;
        // The others hear its heartbeats for a while yet: without its help they would take longer.
        let limit = options.election_max + options.election_min + options.heartbeat * 2;
        assert!(deaf.elapsed() < limit, "it took {:?}", deaf.elapsed());
        busy.abort();
        cluster.network.heal();
        cluster.wait_for_agreement().await;
    });
}

/// A leader must not trust that its followers remember when they last heard it: one that restarted
/// does not, and votes for another (openraft's lease, `docs/TESTING.md`, mutant 5).
#[test]
fn a_follower_that_forgot_its_leader_makes_no_stale_read() {
    for_seeds(async |seed| {
        let mut cluster = Cluster::start(3, seed).await;
        let (old, _) = elect_unnoticed(&mut cluster).await;
        let stale = timeout(Duration::from_secs(5), cluster.read(old, "a")).await;
        assert!(!matches!(stale, Ok(Ok(_))), "a stale read: {stale:?}");
    });
}

/// A leader that nobody has told yet asks for its readers, and is told so.
#[test]
fn a_follower_that_has_another_leader_confirms_no_read() {
    for_seeds(async |seed| {
        let mut cluster = Cluster::start(3, seed).await;
        let (old, next) = elect_unnoticed(&mut cluster).await;
        cluster.network.heal();
        cluster.network.cut(NodeId(old), NodeId(next));
        cluster.network.cut(NodeId(next), NodeId(old));
        let stale = timeout(Duration::from_secs(5), cluster.read(old, "a")).await;
        assert!(!matches!(stale, Ok(Ok(Some(1)))), "a stale read: {stale:?}");
    });
}

/// Readers ask one follower first: if it says nothing, they ask the other soon, and later ones ask that first.
#[test]
fn a_follower_that_says_nothing_holds_readers_up_once_and_not_for_long() {
    for_seeds(async |seed| {
        let cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        cluster.upsert(leader, "a", 1).await.expect("it leads");
        cluster.wait_for_agreement().await;
        let read = async || {
            let asked = Instant::now();
            assert_eq!(cluster.read(leader, "a").await, Ok(Some(1)));
            asked.elapsed()
        };
        for silent in (1..=3).filter(|other| *other != leader) {
            cluster.network.heal();
            read().await;
            cluster.network.cut(NodeId(silent), NodeId(leader));
            let (first, next) = (read().await, read().await);
            assert!(first < cluster.options.group.heartbeat, "{first:?}");
            assert!(next <= Weather::FAIR.delay_max * 4, "{next:?}");
        }
    });
}

/// Has another leader elected, by a follower that forgot the old one, which hears nothing and still believes;
/// the new one has overwritten `a`. Returns both.
async fn elect_unnoticed(cluster: &mut Cluster) -> (u32, u32) {
    let old = cluster.wait_for_leader().await;
    cluster.upsert(old, "a", 1).await.expect("it leads");
    cluster.wait_for_agreement().await;
    let (forgetful, next) = (old % 3 + 1, (old + 1) % 3 + 1);
    // One follower has not heard the leader for long, and would stand if the other let it.
    cluster.network.cut(NodeId(old), NodeId(next));
    cluster.network.cut(NodeId(next), NodeId(old));
    let lease = cluster.options.group.election_max;
    sleep(lease * 4).await;
    assert_eq!(cluster.leader(), Some(old), "the other follower hears the leader");
    let cut = Instant::now();
    cluster.network.isolate(NodeId(old));
    cluster.lose(forgetful, Loss::Process { flushed: 0 });
    cluster.restart(forgetful).await;
    cluster.node(next).group().stand_for_election().await;
    let others = cluster.wait_until("a new leader", || async {
        let leader = cluster.leader().filter(|leader| *leader != old)?;
        cluster.upsert(leader, "a", 2).await.ok()
    });
    others.await;
    assert!(cut.elapsed() < lease, "the old leader still believes, {:?}", cut.elapsed());
    (old, next)
}

/// A process that stood still goes on as if nothing had happened; the others did not wait.
#[test]
fn a_leader_that_stood_still_answers_nothing_old() {
    for_seeds(async |seed| {
        let cluster = Cluster::start(3, seed).await;
        let old = cluster.wait_for_leader().await;
        cluster.upsert(old, "a", 1).await.unwrap();
        let host = cluster.node(old).host().clone();
        host.freeze();
        let client = cluster.client(old);
        let asked = tokio::spawn(async move { client.read("a").await });
        let others = cluster.wait_until("a new leader", || async {
            let leader = cluster.leader().filter(|leader| *leader != old)?;
            cluster.upsert(leader, "a", 2).await.ok()
        });
        others.await;
        assert!(!asked.is_finished(), "nothing runs on a machine that stands still");
        let client = cluster.client(old);
        let asked_later = tokio::spawn(async move { client.read("a").await });
        host.thaw();
        for answer in [asked.await.unwrap(), asked_later.await.unwrap()] {
            assert!(!matches!(answer, Ok(Some(1))), "a stale read: {answer:?}");
        }
        cluster.wait_for_agreement().await;
    });
}

#[test]
fn a_follower_that_was_away_catches_up_by_snapshot() {
    for_seeds(async |seed| {
        let mut cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        let away = leader % 3 + 1;
        cluster.upsert(leader, "a", 0).await.unwrap();
        cluster.crash(away).await;
        for serial in 0..200 {
            cluster.upsert(leader, &format!("i{serial}"), serial).await.unwrap();
        }
        for id in 1..=3 {
            cluster.checkpoint(id).await;
        }
        cluster.wait_until_purged(leader, 150).await;
        cluster.restart(away).await;
        cluster.wait_for_agreement().await;
        assert_eq!(cluster.peek(away, "i199"), Some(199));
        assert_eq!(cluster.peek(away, "a"), Some(0));
    });
}

#[test]
fn a_snapshot_transfer_survives_interruptions() {
    for_seeds(async |seed| {
        let mut cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        let away = leader % 3 + 1;
        cluster.crash(away).await;
        for serial in 0..300 {
            cluster.upsert(leader, &format!("i{serial}"), serial).await.unwrap();
        }
        for id in 1..=3 {
            cluster.checkpoint(id).await;
        }
        // So that nothing but a snapshot can bring what is missing.
        cluster.wait_until_purged(leader, 250).await;
        cluster.network.set_weather(Weather::FOUL);
        cluster.restart(away).await;
        for _ in 0..5 {
            sleep(Duration::from_millis(400)).await;
            cluster.network.isolate(NodeId(away));
            sleep(Duration::from_millis(400)).await;
            cluster.network.heal();
        }
        sleep(Duration::from_secs(1)).await;
        cluster.crash(away).await;
        cluster.restart(away).await;
        cluster.network.set_weather(Weather::FAIR);
        cluster.wait_for_agreement().await;
        assert_eq!(cluster.peek(away, "i299"), Some(299));
    });
}

/// It answers in time, so that openraft goes on sending it entries, and keeps those that it may still have to send.
#[test]
fn a_follower_that_lags_for_good_does_not_pin_the_log() {
    for_seeds(async |seed| {
        let options = NodeOptions { segment_bytes: 2048, ..NodeOptions::default() };
        let cluster = Cluster::start_with(3, seed, options).await;
        let leader = cluster.wait_for_leader().await;
        let slow = leader % 3 + 1;
        cluster.upsert(leader, "a", 0).await.unwrap();
        cluster.network.delay(NodeId(slow), Duration::from_millis(400));
        let mut most = 0;
        for serial in 0..2000 {
            cluster.client(leader).upsert_large("large", serial, 2000).await.unwrap();
            if serial % 10 == 0 {
                cluster.checkpoint(leader).await;
                cluster.node(leader).purge_overdue().await;
                most = most.max(cluster.node(leader).log_segments());
            }
        }
        assert!((64..200).contains(&most), "{most} segments");
        cluster.network.delay(NodeId(slow), Duration::ZERO);
        cluster.wait_for_agreement().await;
        assert_eq!(cluster.peek(slow, "large"), Some(1999));
    });
}

/// Whoever has a part of a snapshot comes back for the rest of the same one, though the leader has gone on, and
/// might have let its log go up to there.
#[test]
fn a_broken_snapshot_transfer_goes_on_where_it_was_though_the_leader_flushes_meanwhile() {
    for_seeds(async |seed| {
        let mut cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        let away = leader % 3 + 1;
        cluster.crash(away).await;
        for serial in 0..40 {
            let id = format!("i{serial}");
            cluster.client(leader).upsert_large(&id, serial, 200_000).await.unwrap();
        }
        for serial in 0..200 {
            cluster.upsert(leader, "many", serial).await.unwrap();
        }
        for id in 1..=3 {
            cluster.checkpoint(id).await;
        }
        cluster.wait_until_purged(leader, 150).await;
        let (delay_min, delay_max) = (Duration::from_millis(100), Duration::from_millis(120));
        cluster.network.set_weather(Weather { delay_min, delay_max, ..Weather::FAIR });
        cluster.restart(away).await;
        let disk = cluster.node(away).snapshot_disk.clone();
        let staged = || {
            let name = disk.list().unwrap().pop()?;
            let bytes = disk.open(&name).unwrap().length().unwrap();
            Some((name, bytes))
        };
        let part = async || staged().filter(|(_, bytes)| *bytes > 2 << 20);
        let (name, arrived) = cluster.wait_until("a part of a snapshot", part).await;
        cluster.network.isolate(NodeId(away));
        cluster.network.set_weather(Weather::FAIR);
        for serial in 0..20 {
            // It refuses them for a moment, because answers come slowly.
            let write = async || cluster.upsert(leader, "meanwhile", serial).await.ok();
            cluster.wait_until("a write", write).await;
            cluster.checkpoint(leader).await;
            // Simulated; all together longer than a chunk may take, so that the transfer breaks.
            sleep(Duration::from_secs(1)).await;
        }
        cluster.network.heal();
        let goes_on = async || match staged() {
            Some((now, bytes)) => {
                assert_eq!(now, name, "it begins anew");
                assert!(bytes >= arrived, "{bytes} bytes of {arrived} are left");
                None
            }
            None => Some(()),
        };
        cluster.wait_until("the snapshot to be installed", goes_on).await;
        cluster.wait_for_agreement().await;
        assert_eq!(cluster.peek(away, "i39"), Some(39));
        assert_eq!(cluster.peek(away, "meanwhile"), Some(19));
    });
}

/// The log goes on being purged meanwhile; if what follows the snapshot went too, another one would be needed, and
/// another one.
#[test]
fn a_follower_catches_up_by_one_snapshot_while_clients_write() {
    for_seeds(async |seed| {
        let mut cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        let away = leader % 3 + 1;
        cluster.crash(away).await;
        let write = async |cluster: &Cluster, round: usize| {
            let client = cluster.client(leader);
            let write = |number| {
                let (client, id) = (client.clone(), format!("i{number}"));
                async move { client.upsert(&id, 0, None).await }
            };
            for written in join_all((round * 50..(round + 1) * 50).map(write)).await {
                written.unwrap();
            }
            cluster.checkpoint(leader).await;
        };
        for round in 0..4 {
            write(&cluster, round).await;
        }
        cluster.wait_until_purged(leader, 150).await;
        let (delay_min, delay_max) = (Duration::from_millis(100), Duration::from_millis(120));
        cluster.network.set_weather(Weather { delay_min, delay_max, ..Weather::FAIR });
        cluster.restart(away).await;
        let last = |id: u32| cluster.node(id).group().status().last.unwrap_or(0);
        let mut rounds = 4..40;
        while last(away) + 50 < last(leader) {
            write(&cluster, rounds.next().expect("it catches up by and by")).await;
        }
        cluster.network.set_weather(Weather::FAIR);
        cluster.wait_for_agreement().await;
    });
}

#[test]
fn a_new_replica_joins_and_an_old_one_leaves() {
    for_seeds(async |seed| {
        let mut cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        for serial in 0..100 {
            cluster.upsert(leader, &format!("i{serial}"), serial).await.unwrap();
        }
        cluster.checkpoint(leader).await;
        cluster.add(4).await;
        let group = cluster.node(leader).group().clone();
        group.add_learner(replica(4)).await.unwrap();
        assert_eq!(group.status().learners, BTreeSet::from([replica(4)]));
        let leaving = leader % 3 + 1;
        let staying = (1..=4).filter(|id| *id != leaving).map(replica).collect();
        group.change_voters(staying).await.unwrap();
        assert!(!group.status().voters.contains(&replica(leaving)));
        cluster.crash(leaving).await;
        cluster.upsert(leader, "i0", 1000).await.unwrap();
        cluster.wait_for_agreement().await;
        assert_eq!(cluster.peek(4, "i0"), Some(1000));
    });
}

/// However short the log is that it lacks: of two that vote both are needed.
#[test]
fn a_new_replica_is_able_to_vote_once_it_has_caught_up() {
    for_seeds(async |seed| {
        for entries in [1, 2000] {
            let mut cluster = Cluster::start(1, seed).await;
            let leader = cluster.wait_for_leader().await;
            for serial in 0..entries {
                cluster.upsert(leader, "a", serial).await.unwrap();
            }
            cluster.add(2).await;
            cluster.network.isolate(NodeId(2));
            let (group, both) = (cluster.node(leader).group().clone(), [1, 2].map(replica).into());
            group.add_learner(replica(2)).await.unwrap();
            sleep(Duration::from_secs(10)).await;
            assert_eq!(group.status().able_to_vote(&both), BTreeSet::from([replica(1)]));
            cluster.upsert(leader, "a", entries).await.unwrap();

            cluster.network.heal();
            let is_able = || async { (group.status().able_to_vote(&both) == both).then_some(()) };
            cluster.wait_until("the replica to catch up", is_able).await;
            group.change_voters(both.clone()).await.unwrap();
            assert!(group.status().are_voters(&both));
        }
    });
}

/// Its data is removed once it is told that it is none.
#[test]
fn a_replica_is_a_member_until_its_removal_is_committed() {
    for_seeds(async |seed| {
        let mut cluster = Cluster::start(3, seed).await;
        let old = cluster.wait_for_leader().await;
        let group = cluster.node(old).group().clone();
        cluster.add(4).await;
        group.add_learner(replica(4)).await.unwrap();
        cluster.network.isolate(NodeId(old));
        let learner = BTreeSet::from([replica(4)]);
        let removing = timeout(Duration::from_millis(100), group.remove_learners(learner.clone()));
        assert!(removing.await.is_err(), "it is not committed");
        assert_eq!(group.status().learners, BTreeSet::new(), "it is in effect");
        assert_eq!(group.members(), (1..=4).map(replica).collect());
        let another = async || cluster.leader().filter(|leader| *leader != old);
        cluster.wait_until("another leader", another).await;
        cluster.network.heal();
        cluster.wait_for_agreement().await;
        assert_eq!(group.members(), (1..=4).map(replica).collect(), "it is undone");
        let group = cluster.node(cluster.wait_for_leader().await).group();
        group.remove_learners(learner).await.unwrap();
        assert_eq!(group.members(), (1..=3).map(replica).collect());
    });
}

#[test]
fn a_change_of_voters_that_a_dead_leader_began_can_be_told_and_finished() {
    for_seeds(async |seed| {
        let mut cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        cluster.wait_for_agreement().await;
        let group = cluster.node(leader).group().clone();
        for joining in [4, 5] {
            cluster.add(joining).await;
            group.add_learner(replica(joining)).await.unwrap();
        }
        // Of the five, two hear of the change: not enough for it.
        let (hears, away) = (leader % 3 + 1, (leader + 1) % 3 + 1);
        cluster.crash(away).await;
        for joining in [4, 5] {
            cluster.network.isolate(NodeId(joining));
        }
        let all: BTreeSet<_> = (1..=5).map(replica).collect();
        let changing = timeout(Duration::from_millis(300), group.change_voters(all.clone()));
        assert!(changing.await.is_err(), "it is not committed");
        cluster.crash(leader).await;
        cluster.network.heal();
        cluster.restart(away).await;

        let next = cluster.wait_for_leader().await;
        assert_eq!(next, hears);
        cluster.upsert(next, "a", 1).await.unwrap();
        let group = cluster.node(next).group().clone();
        let status = group.status();
        assert!(status.voters == all && !status.are_voters(&all), "{status:?}");
        group.change_voters(all.clone()).await.unwrap();
        assert!(group.status().are_voters(&all));
        // One of the three of before is left.
        cluster.crash(away).await;
        cluster.upsert(next, "a", 2).await.unwrap();
    });
}

#[test]
fn leadership_is_handed_over_on_request() {
    for_seeds(async |seed| {
        let cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        cluster.wait_for_agreement().await;
        let next = leader % 3 + 1;
        cluster.node(leader).group().transfer_leadership(replica(next)).await;
        let handed_over = cluster
            .wait_until("the handover", || async { cluster.upsert(next, "a", 1).await.ok() });
        handed_over.await;
        assert_eq!(cluster.leader(), Some(next));
    });
}

#[test]
fn leadership_can_be_watched() {
    for_seeds(async |seed| {
        let mut cluster = Cluster::start(3, seed).await;
        let leader = cluster.wait_for_leader().await;
        let follower = leader % 3 + 1;
        let mut watch = cluster.node(follower).group().watch_leadership();
        let first = watch.changed().await.unwrap();
        assert!(!first.is_me);
        cluster.crash(leader).await;
        let found = timeout(Duration::from_secs(30), async {
            loop {
                let now = watch.changed().await.expect("the replica runs");
                if now.term > first.term && now.leader.is_some() {
                    return now;
                }
            }
        });
        assert_ne!(found.await.unwrap().leader, Some(replica(leader)));
    });
}
