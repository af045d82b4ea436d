//! What every node can be told, whatever it runs in.

use std::any::Any;
use std::net::SocketAddr;
use std::process::ExitStatus;

use super::disk::Disk;

/// Lines of a log shown when a test fails.
const TAIL_LINES: usize = 60;

/// Something a node cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Room for files.
    Disk,
    /// Memory.
    Memory,
    /// Descriptors of files and connections: no further one can be opened.
    Descriptors,
    /// Time of processors: with so little it hardly moves.
    Processor,
}

/// A node that may be running.
pub(super) trait Node: Any + Send + Sync {
    /// Where clients connect.
    fn http(&self) -> SocketAddr;

    /// Where a crowd of clients connects.
    fn http_of_crowds(&self) -> SocketAddr {
        self.http()
    }

    /// Starts it over its data; the log goes on.
    fn start(&mut self);

    /// True until its end is seen.
    fn is_running(&self) -> bool;

    /// Ends it at once, and waits for its end. It must not have ended by itself.
    fn kill(&mut self);

    /// The same of a node whose disk has just lost its power, by which it may have ended.
    fn kill_without_power(&mut self) {
        self.kill();
    }

    /// Sends it SIGTERM.
    fn terminate(&self);

    /// Stops it in its tracks.
    fn pause(&self);

    /// Lets it go on.
    fn resume(&self);

    /// How it ended, if it has.
    fn try_wait(&mut self) -> Option<ExitStatus>;

    /// Everything it has logged.
    fn log(&self) -> String;

    /// The last lines of its log.
    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// Its own disk, if it has one.
    fn disk(&self) -> Option<&Disk>;

    /// The process that ends in the same moment as the disk under it; none if the node stands still from now
    /// on, and sees nothing of it.
    fn hold_for_power_loss(&self) -> Option<u32>;

    /// Leaves it so little of something that it ends, or hardly moves.
    fn exhaust(&mut self, resource: Resource);

    /// Gives it enough again.
    fn relieve(&mut self, resource: Resource);
}
