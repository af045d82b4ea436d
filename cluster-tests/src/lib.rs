//! Black-box tests: real `ephemeris` processes, spoken to over HTTP and nothing else.
//!
//! `cluster` starts, kills, pauses and separates nodes; `client` signs and sends; `load` writes while
//! faults happen; `measure` counts what it cost; `checker` judges what clients saw. The tests are in
//! `tests/`, the benchmark and the fault tests in `src/bin`.

pub mod checker;
pub mod client;
pub mod clock;
pub mod cluster;
pub mod history;
pub mod load;
pub mod measure;
pub mod wait;
