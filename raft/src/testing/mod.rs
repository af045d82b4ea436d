//! What tests and simulations put in place of disks and networks.

mod disk;

pub use disk::MemoryDisk;
