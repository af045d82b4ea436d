//! Free loopback ports that nobody else takes while a node is down.
//!
//! They lie below the range the kernel gives to outgoing connections, and a locked file for each
//! keeps other test processes away.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// Ports tests may use.
const PORTS: std::ops::Range<u16> = 12_000..32_000;
/// Ports tried before it is given up.
const TRIES_MAX: u32 = 1000;

/// A port that is ours until this is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Locked as long as the port is ours.
    _lock: File,
}

impl Port {
    /// Takes a free one.
    pub fn take() -> Self {
        let directory = std::env::temp_dir().join("ephemeris-test-ports");
        fs::create_dir_all(&directory).expect("the temporary directory is writable");
        for _ in 0..TRIES_MAX {
            let number = rand::random_range(PORTS);
            let lock = File::create(directory.join(number.to_string()));
            let lock = lock.expect("lock files can be made");
            let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok();
            if lock.try_lock().is_ok() && free() {
                return Self { number, _lock: lock };
            }
        }
        panic!("no free port among {TRIES_MAX} tried");
    }

    /// The port on the loopback interface.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_taken_once() {
        let ports: Vec<Port> = (0..50).map(|_| Port::take()).collect();
        let numbers: std::collections::BTreeSet<u16> = ports.iter().map(|p| p.number).collect();
        assert_eq!(numbers.len(), ports.len());
    }
}
