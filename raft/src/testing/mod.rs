//! What tests and simulations put in place of disks, networks and machines.

mod determinism;
mod disk;
mod network;
mod simulate;

pub use determinism::check_determinism;
pub use disk::MemoryDisk;
pub use network::{MemoryNetwork, Weather};
#[cfg(tokio_unstable)]
pub use simulate::simulate;
