//! Load: writers that keep a journal while faults happen, a closed loop that costs little, a large item that is
//! rewritten, and readers of what expires.

mod closed_loop;
mod crowd;
mod readers;
mod rewrites;
mod wire;
mod writers;

pub use closed_loop::{ClosedLoop, Measured, Source};
pub use crowd::{Crowd, storm};
pub use readers::{Look, Readers, Seen};
pub use rewrites::{large_item, rewrite_large};
pub use wire::{Connection, Request, Signed, Wire, WireError};
pub use writers::{Acknowledged, Journal, Writers};
