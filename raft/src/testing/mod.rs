//! What tests and simulations put in place of disks and networks.

mod disk;
mod network;

pub use disk::MemoryDisk;
pub use network::{MemoryNetwork, Weather};
