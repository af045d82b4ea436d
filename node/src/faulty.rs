//! The program `ephemeris-faulty`: a node on a machine that lies, for tests. See `faults`.

use std::process::ExitCode;

/// The allocator of `ephemeris`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ephemeris_node::faults::main()
}
