//! A disk that hangs fails nothing: whoever waits for it learns nothing, and the others must do without.

mod common;

use std::time::Duration;

use common::{Cluster, replica, simulate};
use ephemeris_raft::{ProposeError, ReadError};
use tokio::time::{Instant, timeout};

/// Longer than anybody waits for anybody.
const HANGS: Duration = Duration::from_secs(20);
const SYNC_TIME: Duration = Duration::from_millis(1);

/// Others acknowledge what it sends them, so that it could go on for as long as its memory lasts.
#[test]
fn a_leader_whose_disk_hangs_gives_way_and_refuses_what_it_cannot_do() {
    for seed in 0..5 {
        simulate(seed, async {
            let cluster = Cluster::start(3, seed).await;
            let old = cluster.wait_for_leader().await;
            cluster.upsert(old, "a", 1).await.unwrap();
            cluster.wait_for_agreement().await;
            cluster.node(old).sync_time.set(HANGS);
            cluster.upsert(old, "a", 2).await.unwrap();
            let hung = Instant::now();

            let another = async || cluster.leader().filter(|leader| *leader != old);
            let new = cluster.wait_until("another leader", another).await;
            let options = &cluster.options.group;
            let limit = options.election_max + options.election_min + options.heartbeat * 2;
            assert!(hung.elapsed() < limit, "it took {:?}", hung.elapsed());
            let gives_way = async || {
                let leadership = cluster.node(old).group().leadership();
                (!leadership.is_me).then_some(())
            };
            cluster.wait_until("the old one to give way", gives_way).await;
            cluster.wait_for_leader().await;
            assert_eq!(cluster.read(new, "a").await, Ok(Some(2)));
            cluster.upsert(new, "a", 3).await.unwrap();

            // It waits for its log, and would answer nobody until that is written.
            let refused = timeout(options.heartbeat, cluster.upsert(old, "a", 4)).await;
            assert_eq!(refused, Ok(Err(ProposeError::NotLeader { leader: None })));
            let refused = timeout(options.heartbeat, cluster.read(old, "a")).await;
            assert_eq!(refused, Ok(Err(ReadError::NotLeader { leader: None })));
            assert!(hung.elapsed() < HANGS, "it still hangs");

            cluster.node(old).sync_time.set(SYNC_TIME);
            tokio::time::sleep(HANGS).await;
            cluster.wait_for_agreement().await;
            assert_eq!(cluster.peek(old, "a"), Some(3));
            let leader = cluster.node(old).group().leadership().leader;
            assert_eq!(leader, cluster.leader().map(replica), "it follows");
        });
    }
}

/// Nobody could do without it, and nobody would do better.
#[test]
fn a_leader_that_the_others_need_for_a_majority_stays_whatever_its_disk_takes() {
    for seed in 0..5 {
        simulate(seed, async {
            let mut cluster = Cluster::start(3, seed).await;
            let leader = cluster.wait_for_leader().await;
            cluster.wait_for_agreement().await;
            cluster.crash(leader % 3 + 1).await;
            let before = cluster.node(leader).group().leadership();
            cluster.node(leader).sync_time.set(HANGS);
            cluster.upsert(leader, "a", 1).await.unwrap();
            assert_eq!(cluster.node(leader).group().leadership(), before);
            assert_eq!(cluster.read(leader, "a").await, Ok(Some(1)));
        });
    }
}
