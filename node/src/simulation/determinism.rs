//! One seed is one run, in every process. `SEEDS=100 cargo nextest run --workspace the_same_run_in_every_process`
//! runs more of them.

use ephemeris_raft::testing::{check_determinism, simulate};
use tracing_subscriber::filter::LevelFilter;

/// Seeds run when nothing else is said.
const SEEDS: u64 = 10;
const TEST: &str =
    "simulation::determinism::a_seed_of_whole_nodes_is_the_same_run_in_every_process";

/// Of the finest events there are none but openraft's, and very many of those.
#[test]
fn a_seed_of_whole_nodes_is_the_same_run_in_every_process() {
    let seeds = super::number("SEEDS").unwrap_or(SEEDS);
    check_determinism(TEST, LevelFilter::DEBUG, seeds, |seed| {
        simulate(seed, super::run(seed));
    });
}
