//! One seed is one run, in every process.

use ephemeris_raft::testing::simulate;
use tracing_subscriber::filter::LevelFilter;

use super::run;
use crate::simulation::determinism::check;

const TEST: &str = "partition::simulation::determinism::\
                    a_seed_of_expiry_is_the_same_run_in_every_process";

#[test]
fn a_seed_of_expiry_is_the_same_run_in_every_process() {
    check(TEST, LevelFilter::TRACE, |seed| {
        simulate(seed, run(seed));
    });
}
