//! One replicated group: log, consensus, snapshots, applying commands to a `store` machine.
//!
//! openraft decides; it is named in this crate only, behind `Group`. The way of one proposal:
//!
//! 1. `Group::propose` hands an encoded command to `proposals`; what comes together goes together
//!    (`gathering`).
//! 2. `log_store` appends to the node's `wal`, one sync for all groups, while `network` carries the
//!    same entries to the followers, who do likewise.
//! 3. Once a majority has them on disk they are committed; `state_machine` applies them to the
//!    machine, on a thread that may block, and the outcome returns to the proposer.
//! 4. `mark_durable` lets the log go up to what the engine has flushed.
//!
//! Groups in which nothing happens rest, and `quiescence` speaks for them.
//!
//! Readers that want to see everything pass `barriers` first, and then read the machine; those of a
//! follower ask its leader by `inquiries` how far that one's machine must have come.

mod barriers;
mod brief;
mod check_quorum;
mod clock;
pub mod disk;
mod ending;
mod gathering;
mod group;
mod host;
mod inquiries;
mod lag;
mod log_store;
mod network;
mod pace;
mod proposals;
mod quiescence;
mod readers;
mod router;
mod runtime;
mod snapshot;
mod state_machine;
mod storage;
pub mod testing;
mod timers;
mod transport;
mod types;
pub mod wal;
mod wire;

pub use group::{
    ChangeError, Group, GroupOptions, GroupStatus, Leadership, LeadershipWatch, ProposeError,
    ReadError, StartError,
};
pub use host::{Host, inherit};
pub use quiescence::Quiescence;
pub use router::{Handling, Router};
pub use runtime::{random, seed_randomness};
pub use storage::{Executor, Storage};
pub use timers::{align_timers, wait_aligned};
pub use transport::{Answering, Lane, Transport, TransportError};
