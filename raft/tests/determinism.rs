//! One seed is one run. `SEEDS=1000 cargo nextest run --workspace -E 'binary(determinism)'` runs more of them.

mod common;

use common::{simulate, world};
use ephemeris_raft::testing::check_determinism;
use tracing_subscriber::filter::LevelFilter;

/// Seeds run when nothing else is said.
const SEEDS: u64 = 50;
const TEST: &str = "a_seed_is_the_same_run_in_every_process";

#[test]
fn a_seed_is_the_same_run_in_every_process() {
    let seeds = std::env::var("SEEDS").map_or(SEEDS, |text| text.parse().expect("a number"));
    check_determinism(TEST, LevelFilter::TRACE, seeds, |seed| {
        let summary = simulate(seed, world::run(seed));
        tracing::info!(digest = summary.digest, "what is left in the end");
    });
}
