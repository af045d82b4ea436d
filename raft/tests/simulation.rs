//! Random faults by seed: whatever happens, nothing acknowledged is lost, no read is stale, and the
//! replicas end up identical.
//!
//! `SEEDS=10000 cargo nextest run -p ephemeris-raft --test simulation` runs more of them; a failure
//! prints its seed, and `SEED=n` runs that one alone.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{demon, simulate, world};

/// Seeds run when nothing else is said.
const SEEDS: u64 = 500;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Time this thread has spent on a core.
fn core_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|text| text.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}

#[test]
fn nothing_acknowledged_is_lost_and_no_read_is_stale() {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(SEEDS),
    };
    let (count, started, mut simulated) = (seeds.end - seeds.start, core_time(), Duration::ZERO);
    let mut events: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in seeds {
        let result = std::panic::catch_unwind(|| simulate(seed, world::run(seed)));
        match result {
            Ok(summary) => {
                simulated += summary.simulated;
                for (event, times) in summary.events {
                    *events.entry(event).or_default() += times;
                }
            }
            Err(panic) => {
                eprintln!(
                    "replay: SEED={seed} cargo nextest run -p ephemeris-raft --test simulation"
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    let spent = core_time().saturating_sub(started);
    let speed = simulated.as_secs_f64() / spent.as_secs_f64();
    println!("{count} seeds: {simulated:.0?} simulated in {spent:.1?}, {speed:.0} per core-second");
    println!("{events:#?}");
    if count >= SEEDS {
        check_coverage(&events);
    }
}

/// A fault that never happens, or operations that never succeed, prove nothing.
fn check_coverage(events: &BTreeMap<&str, u64>) {
    let faults = demon::FaultKind::ALL.map(demon::FaultKind::name);
    let others = ["restart", "replica stopped itself", "snapshot file synced", "replica at rest"];
    for event in faults.into_iter().chain(others) {
        let times = events.get(event).copied().unwrap_or_default();
        assert!(times >= 10, "{event} happened {times} times only");
    }
    for event in ["write acknowledged", "read answered", "read answered by a follower"] {
        let times = events.get(event).copied().unwrap_or_default();
        assert!(times >= 1000, "{event} {times} times only");
    }
}
