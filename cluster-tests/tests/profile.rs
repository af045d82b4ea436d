//! The compiler's profile is of what is compiled: `docs/BENCHMARKS.md` tells what it is worth.
#![cfg(target_arch = "x86_64")]

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use ephemeris_cluster_tests::cluster::binary;

/// The words of a file that look like symbols of our own functions.
fn symbols(file: &[u8]) -> HashSet<&[u8]> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.$".contains(byte);
    let words = file.split(|byte| !is_part(byte));
    let is_ours = |word: &[u8]| word.windows(10).any(|part| part == b"ephemeris_");
    words.filter(|word| word.starts_with(b"_") && is_ours(word)).collect()
}

/// Another compiler, crate names and versions, or years of changes: each gives functions other symbols, and then
/// the profile does nothing, without a word. Of what it knows more than half is part of its callers in the end.
#[test]
fn a_third_of_the_functions_it_knows_are_in_the_binary() {
    let profile = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cargo/ephemeris.profdata");
    let profile = fs::read(profile).expect("the profile is checked in");
    let built = fs::read(binary()).expect("the binary was built");
    let (known, built) = (symbols(&profile), symbols(&built));
    let there = known.intersection(&built).count();
    assert!(
        !known.is_empty() && 3 * there >= known.len(),
        "of {} functions that .cargo/ephemeris.profdata knows {there} are there: `cargo clean` if what is built is \
         older than .cargo/rustc, else .ci/profile",
        known.len()
    );
}
