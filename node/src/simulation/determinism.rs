//! One seed is one run, in every process: what a seed found can be found again.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ephemeris_raft::testing::simulate;

/// Seeds run when nothing else is said.
const SEEDS: u64 = 4;
/// Tells a child which seed to run.
const SEED_VARIABLE: &str = "WHOLE_NODES_SEED";
/// Tells a child where to write what happened.
const FILE_VARIABLE: &str = "WHOLE_NODES_FILE";
const TEST: &str =
    "simulation::determinism::a_seed_of_whole_nodes_is_the_same_run_in_every_process";

/// Each seed runs in two fresh processes, whose hash maps have other keys and whose memory lies
/// elsewhere; every request, its answer and the microsecond of both must be the same.
#[test]
fn a_seed_of_whole_nodes_is_the_same_run_in_every_process() {
    if let Some(seed) = super::number(SEED_VARIABLE) {
        let path = std::env::var_os(FILE_VARIABLE).expect("a child is told where to write");
        let file = File::create(path).expect("the file is writable");
        simulate(seed, super::run(seed, Some(file)));
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    for seed in 0..super::number("SEEDS").unwrap_or(SEEDS) {
        let paths = ["first", "second"].map(|name| directory.path().join(name));
        let children = paths.each_ref().map(|path| spawn(seed, path));
        for mut child in children {
            assert!(child.wait().expect("a child ends").success(), "seed {seed} failed");
        }
        let texts = paths.map(|path| fs::read_to_string(path).expect("a child wrote it"));
        let requests = texts[0].lines().filter(|line| line.contains(" client ")).count();
        assert!(requests > 100, "{requests} requests are too few to tell anything");
        let mut lines = texts[0].lines().zip(texts[1].lines());
        let parted = lines.find(|(first, second)| first != second);
        assert_eq!(parted, None, "seed {seed} is two runs");
        assert_eq!(texts[0].len(), texts[1].len(), "seed {seed} is two runs");
    }
}

fn spawn(seed: u64, path: &Path) -> Child {
    let this = std::env::current_exe().expect("tests know what they are");
    let mut command = Command::new(this);
    command.args(["--exact", TEST]).env(SEED_VARIABLE, seed.to_string());
    command.env(FILE_VARIABLE, path).env_remove("RUST_LOG").stdout(Stdio::null());
    command.spawn().expect("a child starts")
}
