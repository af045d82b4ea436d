//! Load: writers that keep a journal while faults happen, and a closed loop that costs little.

mod closed_loop;
mod crowd;
mod wire;
mod writers;

pub use closed_loop::{ClosedLoop, Measured, Source};
pub use crowd::{Crowd, storm};
pub use wire::{Connection, Request, Signed, Wire, WireError};
pub use writers::{Acknowledged, Journal, Writers};
