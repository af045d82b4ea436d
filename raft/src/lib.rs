//! One replicated group: log, consensus, snapshots, applying commands to a `store` machine.

pub mod disk;
mod runtime;
pub mod testing;
mod types;
pub mod wal;

pub use runtime::seed_randomness;
pub use types::{LogEntry, Payload, Vote};
