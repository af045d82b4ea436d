//! One seed is one run, in every process.

use ephemeris_raft::testing::{check_determinism, simulate};
use tracing_subscriber::filter::LevelFilter;

use super::{number, run};

/// Seeds run when nothing else is said.
const SEEDS: u64 = 10;
const TEST: &str = "partition::simulation::determinism::\
                    a_seed_of_expiry_is_the_same_run_in_every_process";

#[test]
fn a_seed_of_expiry_is_the_same_run_in_every_process() {
    let seeds = number("SEEDS").unwrap_or(SEEDS);
    check_determinism(TEST, LevelFilter::TRACE, seeds, |seed| {
        simulate(seed, run(seed));
    });
}
