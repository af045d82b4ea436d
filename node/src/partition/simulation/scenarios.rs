//! Scenarios that other stores got wrong, or that are hard to meet by chance, told one by one.
//!
//! The names carry the T-numbers of `docs/TESTING.md`, or the number of the etcd issue in which a
//! lease went wrong.

mod scene;

use ephemeris_store::command::{Action, Command, Effect, ItemWrite, Precondition, Refusal};
use ephemeris_store::time::{ClockInterval, Seconds};

use super::super::ReadLevel::{Any, AtLeast, Linearizable};
use super::*;
use crate::clock::{Reading, Trust};
use scene::{HandClock, PATIENCE, is_doubt, question, scenario, with_clock};

const MILLI: i64 = 1000;
const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3600 * SECOND;
const YEAR: i64 = 365 * 24 * HOUR;
const COUNT: &str = "SELECT VALUE COUNT(1) FROM c";

/// etcd #2508, #2660: a new leader took what it had just learned of for expired.
#[test]
fn etcd_2508_2660_nothing_expires_early_just_after_an_election() {
    scenario(async |scene| {
        let ts = scene.put("a", 8).await;
        for second in 1..8 {
            scene.replace_leader().await;
            assert!(scene.shows("a").await, "alive {second} s before its time");
            scene.until(ts.plus(second), 0).await;
        }
        scene.until(ts.plus(8), -50 * MILLI).await;
        scene.replace_leader().await;
        // The election took longer than what was left.
        scene.until(ts.plus(8), 0).await;
        assert!(!scene.shows("a").await);
    });
}

/// etcd #9395, #13294: every new leader began the countdown anew.
#[test]
fn etcd_9395_13294_a_leader_change_does_not_restart_the_countdown() {
    scenario(async |scene| {
        let ts = scene.put("a", 6).await;
        for second in [2, 4] {
            scene.until(ts.plus(second), 0).await;
            scene.replace_leader().await;
        }
        scene.until(ts.plus(6), -20 * MILLI).await;
        assert!(scene.shows("a").await);
        scene.until(ts.plus(6), 0).await;
        assert!(!scene.shows("a").await, "gone at its second, not at a later one");
    });
}

/// etcd #12528: a leader that was deposed and did not know it revoked leases.
#[test]
fn etcd_12528_a_deposed_leader_deletes_nothing() {
    scenario(async |scene| {
        let ts = scene.put("a", 4).await;
        let old = scene.leader().await;
        scene.until(ts.plus(3), 0).await;
        scene.world.network.isolate(NodeId(u32::try_from(old).unwrap() + 1));
        // Its sweeper goes on, and proposes what falls due.
        let new = loop {
            let leader = scene.leader().await;
            if leader != old {
                break leader;
            }
            sleep(Duration::from_millis(50)).await;
        };
        let rewritten = scene.put("a", 60).await;
        scene.until(ts.plus(10), 0).await;
        scene.world.network.heal();
        scene.until(ts.plus(14), 0).await;
        assert!(scene.shows("a").await, "the version that node {new} took is kept");
        scene.until(rewritten.plus(60), 0).await;
        assert!(!scene.shows("a").await);
    });
}

/// etcd #17132: the remaining time was lost at the third change of leaders.
#[test]
fn etcd_17132_three_leader_changes_and_a_restart_within_one_ttl() {
    scenario(async |scene| {
        let ts = scene.put("a", 16).await;
        for second in [3, 6, 9] {
            scene.until(ts.plus(second), 0).await;
            scene.replace_leader().await;
        }
        for node in 0..NODES as usize {
            scene.world.crash(node).await;
        }
        for node in 0..NODES as usize {
            scene.world.boot(node).await;
        }
        scene.until(ts.plus(16), -20 * MILLI).await;
        assert!(scene.shows("a").await);
        scene.until(ts.plus(16), 0).await;
        assert!(!scene.shows("a").await);
        scene.swept().await;
    });
}

/// T1, T2: whatever told a client that an item is gone, a leader with a slow clock must not bring it back.
#[test]
fn t01_t02_what_a_fast_leader_called_gone_a_slow_one_does_not_bring_back() {
    for skew in [200 * MILLI, SECOND, 5 * SECOND] {
        for observation in ["read", "replace", "delete", "query", "count", "create"] {
            scenario(async |scene| {
                let ts = scene.put("a", 3).await;
                let fast = scene.leader().await;
                scene.set_wall(fast, skew);
                // A write is decided by the earliest the leader's clock allows: some milliseconds late.
                scene.until(ts.plus(3), 100 * MILLI).await;
                match observation {
                    "read" => assert!(!scene.shows("a").await),
                    "replace" => {
                        let replace = scene.write_of("a", None, Action::Replace);
                        assert_eq!(scene.write(replace).await, Err(Refusal::NotFound));
                    }
                    "delete" => {
                        let (key, precondition) = (scene.key("a"), Precondition::None);
                        let delete = ItemWrite { key, precondition, action: Action::Delete };
                        assert_eq!(scene.write(delete).await, Err(Refusal::NotFound));
                    }
                    "query" => {
                        let found = scene.query("SELECT VALUE c.id FROM c").await;
                        assert!(found.is_empty(), "{found:?}");
                    }
                    "count" => assert_eq!(scene.query(COUNT).await, [b"0"]),
                    _ => {
                        let create = scene.write_of("a", Some(1), Action::Create);
                        let (effect, stamp) = scene.write(create).await.unwrap();
                        assert_eq!(effect, Effect::Created);
                        scene.until(stamp.ts.plus(1), 100 * MILLI).await;
                    }
                }
                scene.world.crash(fast).await;
                // One clock is wrong at a time: now that of whoever leads next.
                scene.set_wall(fast, 0);
                let slow = scene.leader().await;
                scene.set_wall(slow, -skew);
                assert_ne!(slow, fast);
                assert!(!scene.shows("a").await, "{observation}, {skew} µs");
                assert_eq!(scene.query(COUNT).await, [b"0"], "{observation}, {skew} µs");
            });
        }
    }
}

/// One wrong clock that nobody has corrected yet, for its node has just started, must not be in the
/// stamps: they never go back, and what is written later would not expire for a year.
#[test]
fn a_guess_of_the_time_is_in_no_stamp() {
    scenario(async |scene| {
        let service = scene.world.service(scene.leader().await).unwrap();
        let last_ts = || service.group().machine().state().ttl().last_ts();
        let ahead = Millis(u64::try_from((scene.world.truth() + YEAR) / MILLI).unwrap());
        let interval = ClockInterval::new(Millis(0), ahead);
        let guess = Reading { interval, trust: Trust::Unsettled };
        let guessing = with_clock(&service, HandClock::new(guess));

        let before = last_ts();
        for policy in [TtlPolicy::Off, TtlPolicy::NoDefault] {
            let epoch = PolicyEpoch(service.group().machine().state().ttl().epoch().0 + 1);
            service.set_ttl_policy(epoch, policy, None).await.unwrap();
            let write = PartitionRequest::Write(vec![scene.write_of("a", Some(3), Action::Upsert)]);
            let refused = guessing.answer(write, Linearizable, Price::Once).await;
            assert!(matches!(refused, Err(PartitionError::Doubtful(_))), "{refused:?}");
        }
        guessing.propose(Command::AdvanceClock).await.unwrap();
        assert_eq!(last_ts(), before, "nothing of it is in the stamps");
        let ts = scene.put("a", 3).await;
        scene.until(ts.plus(3), 0).await;
        assert!(!scene.shows("a").await);
    });
}

/// What has expired stays so whatever becomes of the policy: a leader that does not know the time, because all
/// nodes have just started, does not change it.
#[test]
fn a_clock_that_does_not_know_what_is_dead_changes_no_policy() {
    scenario(async |scene| {
        let ts = scene.put("a", 3).await;
        let service = scene.world.service(scene.leader().await).unwrap();
        scene.until(ts.plus(5), 0).await;
        let next = || PolicyEpoch(service.group().machine().state().ttl().epoch().0 + 1);
        let interval = ClockInterval::new(Millis(0), Millis(u64::MAX / 2));
        for trust in [Trust::Wide, Trust::Contradicted, Trust::Behind, Trust::Unsettled] {
            let doubting = with_clock(&service, HandClock::new(Reading { interval, trust }));
            let refused = doubting.set_ttl_policy(next(), TtlPolicy::Off, None).await;
            assert!(matches!(refused, Err(PartitionError::Doubtful(_))), "{trust:?}: {refused:?}");
        }
        service.set_ttl_policy(next(), TtlPolicy::Off, None).await.unwrap();
        assert!(!scene.shows("a").await, "it had expired");
    });
}

/// A machine that stood still, and learns of it from the others, stamps nothing that expires: it would die
/// before its time.
#[test]
fn r10_a_clock_that_is_behind_stamps_nothing_that_expires() {
    scenario(async |scene| {
        let service = scene.world.service(scene.leader().await).unwrap();
        let behind = Millis(u64::try_from((scene.world.truth() - 600 * SECOND) / MILLI).unwrap());
        let interval = ClockInterval::new(Millis(0), behind);
        let clock = HandClock::new(Reading { interval, trust: Trust::Behind });
        let behind = with_clock(&service, clock);
        let write = || PartitionRequest::Write(vec![scene.write_of("a", None, Action::Upsert)]);
        for (policy, is_refused) in [(TtlPolicy::NoDefault, true), (TtlPolicy::Off, false)] {
            let epoch = PolicyEpoch(service.group().machine().state().ttl().epoch().0 + 1);
            service.set_ttl_policy(epoch, policy, None).await.unwrap();
            let answer = behind.answer(write(), Linearizable, Price::Once).await;
            let refused = matches!(answer, Err(PartitionError::Doubtful(_)));
            assert_eq!(refused, is_refused, "{policy:?}: {answer:?}");
        }
    });
}

/// Where nothing expires nothing is in doubt, and queries are told the time as it is known.
#[test]
fn queries_are_told_the_time_whatever_is_in_doubt() {
    scenario(async |scene| {
        scene.write(scene.write_of("a", None, Action::Upsert)).await.unwrap();
        let service = scene.world.service(scene.leader().await).unwrap();
        let epoch = PolicyEpoch(service.group().machine().state().ttl().epoch().0 + 1);
        service.set_ttl_policy(epoch, TtlPolicy::Off, None).await.unwrap();
        let said = Millis(u64::try_from(scene.world.truth() / MILLI).unwrap());
        let interval = ClockInterval::new(Millis(0), said);
        for trust in [Trust::Wide, Trust::Contradicted, Trust::Behind, Trust::Unsettled] {
            let doubting = with_clock(&service, HandClock::new(Reading { interval, trust }));
            let text = "SELECT VALUE GetCurrentTimestamp() FROM c";
            let answer = doubting.answer(question(text), Linearizable, Price::Once).await.unwrap();
            assert_eq!(scene.found(text, answer), [said.0.to_string().into_bytes()], "{trust:?}");
        }
    });
}

/// A read takes the clock only once it holds what it judges: a version that was written while the
/// reader waited may have been dead on arrival, and a clock from before would show it.
#[test]
fn the_clock_is_read_after_the_fetch() {
    scenario(async |scene| {
        let ts = scene.put("a", 3).await;
        let expiry = i64::try_from(ts.plus(3).0).unwrap() * SECOND;
        let service = scene.world.service(scene.leader().await).unwrap();
        let clock = HandClock::new(HandClock::showing(expiry - SECOND));
        let reader = with_clock(&service, clock.clone());
        let request = PartitionRequest::Read(scene.key("a"));
        let reading = tokio::task::spawn_local(async move {
            reader.answer(request, Linearizable, Price::Twice).await
        });
        // It waits for the others to say that its node still leads, which takes some time.
        tokio::task::yield_now().await;
        clock.set(HandClock::showing(expiry));
        let answer = reading.await.unwrap().unwrap();
        let PartitionResponse::Read { item, .. } = answer else { panic!("{answer:?}") };
        assert!(item.is_none(), "dead by the time it was fetched");
    });
}

/// T3: the leader's clock steps back by an hour; what is due expires all the same.
#[test]
fn t03_a_leader_whose_clock_steps_back_expires_on_time() {
    scenario(async |scene| {
        let ts = scene.put("a", 5).await;
        let leader = scene.leader().await;
        scene.set_wall(leader, -HOUR);
        scene.until(ts.plus(5), -20 * MILLI).await;
        assert!(scene.shows("a").await);
        scene.until(ts.plus(5), 0).await;
        assert!(!scene.shows("a").await);
        assert!(scene.put("b", 1).await >= ts.plus(5), "stamps go on");
        scene.swept().await;
    });
}

/// T4: the leader's clock jumps ahead; nothing expires by it, and nothing is purged.
#[test]
fn t04_a_leader_whose_clock_jumps_ahead_expires_nothing() {
    let (in_2038, in_2106) = (2_147_483_647 * SECOND, 4_294_967_295 * SECOND);
    for jump in [HOUR, YEAR, in_2038 - EPOCH_MICROS, in_2106 - EPOCH_MICROS] {
        scenario(async |scene| {
            let ts = scene.put("a", 30).await;
            let leader = scene.leader().await;
            scene.set_wall(leader, jump);
            for second in [2, 10, 29] {
                scene.until(ts.plus(second), 0).await;
                assert!(scene.shows("a").await, "{second} s, jump {jump}");
                assert_eq!(scene.rows().await, 1);
            }
            let stamped = scene.put("b", 1).await;
            assert!(stamped <= ts.plus(31), "the jump stamps nothing either: {stamped}");
            scene.until(ts.plus(30), 0).await;
            assert!(!scene.shows("a").await);
        });
    }
}

/// T5: two clocks of three are wrong, each in its own way. What was agreed on is carried on, until it is too
/// wide to expire anything by: then doubt is answered as doubt, writes go on, and when the clocks are right
/// again nothing was lost.
#[test]
fn t05_without_a_majority_of_right_clocks_there_is_doubt_and_no_loss() {
    scenario(async |scene| {
        let ts = scene.put("a", 6000).await;
        scene.put("far", 1_000_000).await;
        scene.set_walls([0, HOUR, -HOUR]);
        scene.await_trust(scene.leader().await, Trust::Wide).await;
        scene.until(ts.plus(5990), 0).await;
        assert!(scene.shows("a").await, "the doubt is about less than ten seconds");

        scene.until(ts.plus(6000), 0).await;
        let leader = scene.leader().await;
        let service = scene.world.service(leader).unwrap();
        let clock = || service.group().machine().state().ttl().clock();
        let before = clock();
        for _ in 0..20 {
            let read = scene.finds(leader, "a", Linearizable).await;
            assert!(matches!(read, Err(PartitionError::Doubtful(_))), "{read:?}");
            let follower = (leader + 1) % NODES as usize;
            let read = scene.finds(follower, "a", Any).await;
            assert!(matches!(read, Err(PartitionError::NotLeader { .. })), "{read:?}");
            let look = scene.write_of("a", None, |_| Action::Read);
            let read =
                scene.ask_at(leader, PartitionRequest::Write(vec![look]), Linearizable).await;
            assert!(matches!(read, Err(PartitionError::Doubtful(_))), "in a transaction: {read:?}");
            let look = scene.write_of("far", None, |_| Action::Read);
            let read =
                scene.ask_at(leader, PartitionRequest::Write(vec![look]), Linearizable).await;
            assert!(
                matches!(read, Ok(PartitionResponse::Written { result: Ok(_), .. })),
                "{read:?}"
            );
            assert!(scene.finds(leader, "far", Linearizable).await.unwrap().1);
            assert!(scene.finds(follower, "far", Any).await.unwrap().1);
            sleep(Duration::from_secs(1)).await;
        }
        let new = scene.put("new", 100).await;
        assert!(scene.shows("new").await);
        assert_eq!(clock(), before, "nothing expires by a clock that is too wide");
        assert_eq!(scene.rows().await, 3, "nothing is lost");

        scene.set_walls([0, 0, 0]);
        scene.await_trust(leader, Trust::Sure).await;
        assert!(!scene.shows("a").await);
        assert!(scene.shows("far").await);
        scene.until(new.plus(100), -100 * MILLI).await;
        assert!(scene.shows("new").await);
        scene.until(new.plus(100), 0).await;
        assert!(!scene.shows("new").await);
    });
}

/// T6: a clock that jumps to and fro by half a second, every ten milliseconds, under writes.
#[test]
fn t06_a_strobing_clock_has_no_effect() {
    scenario(async |scene| {
        let strobing = scene.leader().await;
        let strobe = tokio::task::spawn_local({
            let scene = scene.clone();
            async move {
                for turn in 0_i64.. {
                    scene.set_wall(strobing, if turn % 2 == 0 { 1 } else { -1 } * SECOND / 2);
                    sleep(Duration::from_millis(10)).await;
                }
            }
        });
        let mut last = Seconds(0);
        for round in 0..20 {
            let id = format!("i{round}");
            let ts = scene.put(&id, 2).await;
            assert!(ts >= last, "stamps never go back");
            last = ts;
            // Not closer: the strobe may widen the interval, and a read in doubt waits.
            scene.until(ts.plus(2), -700 * MILLI).await;
            assert!(scene.shows(&id).await);
            scene.until(ts.plus(2), 0).await;
            assert!(!scene.shows(&id).await);
        }
        strobe.abort();
        scene.swept().await;
    });
}

/// T8: a leader stands still, for as long as an election takes and for ten times that, while an item
/// expires. What it was asked before it answers after, and by then nothing old.
#[test]
fn t08_a_leader_that_stood_still_shows_nothing_that_expired_meanwhile() {
    for pause in [600, 6000] {
        scenario(async |scene| {
            let ts = scene.put("a", 5).await;
            let old = scene.leader().await;
            scene.until(ts.plus(5), -300 * MILLI).await;
            let host = scene.world.host(old).unwrap();
            host.freeze();
            let service = scene.world.service(old).unwrap();
            let request = PartitionRequest::Read(scene.key("a"));
            let asked =
                host.run(async move { service.answer(request, Linearizable, Price::Twice).await });
            let asked = tokio::task::spawn_local(asked);
            sleep(Duration::from_millis(pause)).await;
            host.thaw();
            // An error is no news: deposed meanwhile, or in doubt.
            let answer = timeout(PATIENCE, asked).await.expect("it answers").unwrap();
            if let Ok(response) = answer {
                let PartitionResponse::Read { item, .. } = response else { panic!("{response:?}") };
                assert!(item.is_none(), "shown {pause} ms after it was asked for");
            }
            assert!(!scene.shows("a").await);
        });
    }
}

/// A leader looks seldom at a partition in which nothing happens.
#[test]
fn what_falls_due_while_nothing_happens_is_swept_in_time() {
    scenario(async |scene| {
        let leader = scene.leader().await;
        let rests = || scene.rests(leader);
        for rested in 1..=4 {
            scene.rested(leader).await;
            sleep(Duration::from_secs(rested)).await;
            assert!(rests());
            let written_at_rest = scene.put("a", 1).await;
            scene.until(written_at_rest.plus(1), SECOND / 2).await;
            assert_eq!(scene.rows().await, 0, "written after {rested} s of rest");
        }
        let due_at_rest = scene.put("b", 33).await;
        scene.until(due_at_rest.plus(33), -SECOND).await;
        assert!(rests());
        assert_eq!(scene.rows().await, 1);
        scene.until(due_at_rest.plus(33), SECOND).await;
        assert_eq!(scene.rows().await, 0);
    });
}

/// A node that starts has applied less than before it stopped, and must not show that to anybody.
#[test]
fn a_replica_behind_its_own_log_answers_nobody() {
    scenario(async |scene| {
        let ts = scene.put("a", 1000).await;
        scene.until(ts.plus(2), 0).await;
        for node in 0..NODES as usize {
            scene.world.crash(node).await;
        }
        scene.world.boot(0).await;
        let alone = scene.ask_at(0, PartitionRequest::Read(scene.key("a")), Any).await;
        assert!(alone.is_err(), "{alone:?}");
        scene.world.boot(1).await;
        assert!(scene.shows("a").await);
    });
}

/// T12: all nodes are down for longer than any item lives.
#[test]
fn t12_after_a_long_outage_the_first_read_finds_the_dead_gone() {
    scenario(async |scene| {
        let ts = scene.put("a", 10).await;
        scene.put("long", 1_000_000).await;
        for node in 0..NODES as usize {
            scene.world.crash(node).await;
        }
        // Longer than a jump that needs no vouching.
        scene.until(ts.plus(20_000), 0).await;
        for node in 0..NODES as usize {
            scene.world.boot(node).await;
        }
        assert!(!scene.shows("a").await);
        assert!(scene.shows("long").await);
    });
}

/// T13: after a restart all wall clocks are behind what the partition has seen.
#[test]
fn t13_stamps_never_decrease_when_all_clocks_start_behind() {
    scenario(async |scene| {
        let ts = scene.put("a", 10_000).await;
        for node in 0..NODES as usize {
            scene.world.crash(node).await;
        }
        scene.set_walls([-HOUR; NODES as usize]);
        for node in 0..NODES as usize {
            scene.world.boot(node).await;
        }
        assert!(scene.put("b", 10_000).await >= ts);
        assert!(scene.shows("a").await);
    });
}

/// T15: a leader that cannot commit the advance answers neither 404 nor 200.
#[test]
fn t15_a_leader_that_cannot_commit_the_advance_answers_nothing() {
    scenario(async |scene| {
        let ts = scene.put("a", 3).await;
        let old = scene.leader().await;
        scene.until(ts.plus(3), -100 * MILLI).await;
        scene.world.network.isolate(NodeId(u32::try_from(old).unwrap() + 1));
        for _ in 0..10 {
            let read = scene.ask(old, PartitionRequest::Read(scene.key("a"))).await;
            let early = scene.world.truth() < i64::try_from(ts.0 + 3).unwrap() * SECOND;
            assert!(early || is_doubt(&read), "{read:?}");
            sleep(Duration::from_millis(50)).await;
        }
        scene.world.crash(old).await;
        assert!(!scene.shows("a").await, "whoever leads now has the log say so");
    });
}

/// T15: one that has asked the others before it is cut off, and proposes the advance, tells after a while
/// that it is in doubt.
#[test]
fn t15_an_advance_that_does_not_commit_is_answered_as_doubt() {
    scenario(async |scene| {
        let ts = scene.put("a", 3).await;
        let expiry = i64::try_from(ts.plus(3).0).unwrap() * SECOND;
        let old = scene.leader().await;
        let service = scene.world.service(old).unwrap();
        let clock = HandClock::new(HandClock::showing(expiry - MILLI));
        let reader = with_clock(&service, clock.clone());
        let request = PartitionRequest::Read(scene.key("a"));
        scene.until(ts.plus(3), -100 * MILLI).await;
        let reading = tokio::task::spawn_local(async move {
            reader.answer(request, Linearizable, Price::Twice).await
        });
        // It looks once to judge the item, and then to see the doubt end.
        let deadline = monotonic() + PATIENCE;
        while clock.looks() < 3 {
            assert!(monotonic() < deadline, "nobody looks:\n{}", scene.world.describe());
            sleep(Duration::from_millis(1)).await;
        }
        scene.world.network.isolate(NodeId(u32::try_from(old).unwrap() + 1));
        clock.set(HandClock::showing(expiry));
        let answer = timeout(DEADLINE, reading).await.expect("nobody waits for ever").unwrap();
        assert!(is_doubt(&answer), "{answer:?}");
        scene.world.crash(old).await;
        scene.until(ts.plus(3), 0).await;
        assert!(!scene.shows("a").await);
    });
}

/// A default that is lowered is what a cut-off follower's clock cannot tell it: here tokens alone help.
#[test]
fn t35_a_token_that_covers_a_404_never_leads_to_the_item() {
    scenario(async |scene| {
        let leader = scene.leader().await;
        let follower = (leader + 1) % NODES as usize;
        let (_, written) = scene.write(scene.write_of("a", None, Action::Upsert)).await.unwrap();
        while scene.finds(follower, "a", AtLeast(written.lsn)).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }

        scene.world.network.isolate(scene.world.nodes.borrow()[follower].id);
        let policy = TtlPolicy::Default(NonZeroU32::new(1).unwrap());
        let service = scene.world.service(leader).unwrap();
        service.set_ttl_policy(PolicyEpoch(2), policy, None).await.unwrap();
        scene.until(written.ts.plus(1), 500 * MILLI).await;
        let (gone, alive) = scene.finds(leader, "a", Linearizable).await.unwrap();
        assert!(!alive, "the leader goes by the new default");
        let (behind, alive) = scene.finds(follower, "a", Any).await.unwrap();
        assert!(behind < gone && alive, "the follower goes by the default it knows");
        let passed_on = scene.finds(follower, "a", AtLeast(gone)).await.unwrap_err();
        assert!(matches!(passed_on, PartitionError::NotLeader { .. }), "{passed_on}");

        scene.world.network.heal();
        let (lsn, alive) = loop {
            match scene.finds(follower, "a", AtLeast(gone)).await {
                Ok(found) => break found,
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        };
        assert!(lsn >= gone && !alive, "as old as the token, and gone");
    });
}

/// What may have expired is for the leader to settle, whatever its replicas are asked for.
#[test]
fn t15_a_follower_leaves_what_is_in_doubt_to_the_leader() {
    scenario(async |scene| {
        let leader = scene.leader().await;
        let follower = (leader + 1) % NODES as usize;
        let (_, written) = scene.write(scene.write_of("a", Some(2), Action::Upsert)).await.unwrap();
        while scene.finds(follower, "a", AtLeast(written.lsn)).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
        scene.world.network.isolate(scene.world.nodes.borrow()[follower].id);
        scene.until(written.ts.plus(2), -100 * MILLI).await;
        assert!(scene.finds(follower, "a", Any).await.unwrap().1, "it has not expired yet");
        scene.until(written.ts.plus(2), 100 * MILLI).await;
        // Its log does not say so: neither there nor gone.
        for level in [Any, AtLeast(written.lsn)] {
            let passed_on = scene.finds(follower, "a", level).await.unwrap_err();
            assert!(matches!(passed_on, PartitionError::NotLeader { .. }), "{passed_on}");
        }
        assert!(!scene.finds(leader, "a", Linearizable).await.unwrap().1);
    });
}
