//! The `ephemeris` program.

use std::process::ExitCode;

/// Requests allocate and free much, on many threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Of a huge page whoever touches a part takes the whole: a third of the memory, for no time saved. A
    // kernel that does not know the setting has no such pages.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    ephemeris_node::cli::main()
}
