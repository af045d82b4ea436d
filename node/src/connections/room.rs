//! How many clients there is room for: what a node stores and says to others comes first.
//!
//! A log that cannot open its next file ends the process. So clients get what is left of the file
//! descriptors the process may have, and the rest of them wait in the kernel.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, warn};

/// Connections at the same time; more wait in the kernel.
pub(crate) const CONNECTIONS_MAX: usize = 16_384;
/// TLS handshakes under way at the same time; more wait in the kernel.
pub(crate) const HANDSHAKES_MAX: usize = 1024;
/// Descriptors kept for files and other nodes: 512 of the state's tables, a dozen of the log, eight
/// connections with each other node, as many again while they are replaced, and 128 of who has not said yet that it
/// is one.
const DESCRIPTORS_KEPT: u64 = 768;
/// Even where the limit is so low that these may be wanted elsewhere.
const CONNECTIONS_MIN: usize = 16;
/// The part of the room that handshakes get.
const HANDSHAKES_PART: u64 = 8;

/// Room for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// For connections.
    pub(crate) connections: usize,
    /// For TLS handshakes.
    pub(crate) handshakes: usize,
}

impl Room {
    /// Raises the limit of descriptors as far as the system lets us, and says what clients may have of it.
    pub(crate) fn take() -> Self {
        let room = Self::within(raise_limit());
        if room.connections < CONNECTIONS_MAX {
            warn!(
                connections = room.connections,
                "the limit of open files is low: more clients than these wait"
            );
        }
        room
    }

    fn within(descriptors: Option<u64>) -> Self {
        let Some(descriptors) = descriptors else {
            return Self { connections: CONNECTIONS_MAX, handshakes: HANDSHAKES_MAX };
        };
        let left = descriptors.saturating_sub(DESCRIPTORS_KEPT);
        let part = |of: u64, most: usize| {
            usize::try_from(of).unwrap_or(usize::MAX).clamp(CONNECTIONS_MIN, most)
        };
        let handshakes = part(left / HANDSHAKES_PART, HANDSHAKES_MAX);
        let connections = part(left.saturating_sub(handshakes as u64), CONNECTIONS_MAX);
        Self { connections, handshakes }
    }
}

/// The limit as it is then; none if there is none.
fn raise_limit() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(error) => {
            debug!(%error, "the limit of open files stays as it is");
            current
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_what_is_left_of_the_descriptors() {
        let room = |descriptors| {
            let Room { connections, handshakes } = Room::within(descriptors);
            (connections, handshakes)
        };
        assert_eq!(room(None), (16_384, 1024));
        assert_eq!(room(Some(1_048_576)), (16_384, 1024));
        assert_eq!(room(Some(4096)), (2912, 416));
        assert_eq!(room(Some(1024)), (224, 32));
        assert_eq!(room(Some(256)), (16, 16));
    }

    #[test]
    fn the_limit_is_raised_to_the_most_there_may_be() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        assert_eq!(raise_limit(), maximum);
        assert_eq!(getrlimit(Resource::Nofile).current, maximum);
    }
}
