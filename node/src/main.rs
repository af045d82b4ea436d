//! The `ephemeris` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    ephemeris_node::cli::main()
}
