//! The `ephemeris` program.

use std::process::ExitCode;

/// Requests allocate and free much, on many threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ephemeris_node::cli::main()
}
