//! Black-box tests: real `ephemeris` processes, spoken to over HTTP and nothing else.
//!
//! `cluster` starts, kills and pauses nodes; `client` signs and sends; `load` writes while faults
//! happen; `measure` counts what it cost. The tests are in `tests/`, the benchmark in `src/bin`.

pub mod client;
pub mod clock;
pub mod cluster;
pub mod load;
pub mod measure;
pub mod wait;
