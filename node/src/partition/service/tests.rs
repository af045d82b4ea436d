//! Readings far ahead of the partition clock: they are counted, whatever becomes of them.

use ephemeris_raft::testing::simulate;
use ephemeris_store::ttl::{JUMP_MAX, Vouchers};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use super::super::throttling::{SEED, World};
use super::*;
use crate::clock::Clock;

/// A clock that is ahead, as are some others of three.
struct Ahead {
    now: Millis,
    clocks: usize,
}

impl Clock for Ahead {
    fn now(&self) -> Reading {
        Reading::sure(ClockInterval::exact(self.now))
    }

    fn vouching(&self) -> Vouchers {
        Vouchers { readings: vec![self.now; self.clocks], nodes: 3 }
    }
}

/// How many jumps were guarded, and how many vouched for.
fn counted(shown: &PrometheusHandle) -> [u64; 2] {
    let text = shown.render();
    let value = |line: &str, name: &str| line.strip_prefix(name)?.trim().parse::<u64>().ok();
    ["clock_jumps_guarded_total", "clock_jumps_vouched_total"]
        .map(|name| text.lines().find_map(|line| value(line, name)).unwrap_or(0))
}

#[test]
fn t4_jumps_are_counted_whether_a_majority_vouches_for_them_or_not() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let shown = recorder.handle();
    let told = async {
        let world = World::start(1, Burst::Off).await;
        let service = world.leader().await;
        let clock = || service.group().machine().state().ttl().clock();
        let now = Millis(clock().0 + 2 * JUMP_MAX.0);
        let by =
            |clocks| PartitionService { clock: Arc::new(Ahead { now, clocks }), ..service.clone() };
        assert_eq!(counted(&shown), [0, 0], "the first reading of all is no jump");

        by(1).propose(Command::AdvanceClock).await.unwrap();
        assert_eq!((counted(&shown), clock() < now), ([1, 0], true));

        let leader = by(2);
        let both = [leader.propose(Command::AdvanceClock), leader.propose(Command::AdvanceClock)];
        for done in futures_util::future::join_all(both).await {
            done.unwrap();
        }
        assert_eq!((counted(&shown), clock()), ([1, 1], now), "it is one jump");
    };
    metrics::with_local_recorder(&recorder, || simulate(SEED, told));
}

/// The partition clock would stay where it is, and with it the floors that keep what has expired dead for good.
#[test]
fn t4_a_policy_does_not_change_at_a_time_that_too_few_clocks_have_come_to() {
    simulate(SEED, async {
        let world = World::start(1, Burst::Off).await;
        let service = world.leader().await;
        let now = Millis(service.group().machine().state().ttl().clock().0 + 2 * JUMP_MAX.0);
        let set = |clocks, policy, epoch| {
            let by = PartitionService { clock: Arc::new(Ahead { now, clocks }), ..service.clone() };
            async move { by.set_ttl_policy(PolicyEpoch(epoch), policy, None).await }
        };
        let refused = set(1, TtlPolicy::Off, 2).await;
        assert!(matches!(refused, Err(PartitionError::Doubtful(_))), "{refused:?}");
        assert!(service.group().machine().state().ttl().policy().is_on());
        assert_eq!(set(2, TtlPolicy::Off, 2).await.unwrap(), PolicyEpoch(2));
        assert_eq!(service.group().machine().state().ttl().clock(), now);
        // Where nothing expires there is nothing to come back.
        assert_eq!(set(1, TtlPolicy::NoDefault, 3).await.unwrap(), PolicyEpoch(3));
    });
}
