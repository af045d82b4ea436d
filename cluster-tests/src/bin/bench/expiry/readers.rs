//! Readers that look at random due items, one through every node, and judge what they see.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ephemeris_cluster_tests::client::AccountKey;
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::load::{Connection, Request};
use tokio::task::JoinSet;

use super::due::{Read, Verdict};
use super::fill::DueItems;
use crate::sources::read_request;

/// Pause of a reader between two reads: they watch, and leave the processors to the load.
const PAUSE: Duration = Duration::from_millis(5);

/// Readers at work.
pub(super) struct Readers {
    tasks: JoinSet<Seen>,
    stop: Arc<AtomicBool>,
}

/// What readers have seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// All reads.
    pub(super) reads: u64,
    /// Reads that saw an item that had expired.
    pub(super) visible: u64,
    /// Reads that missed an item that had not.
    pub(super) early: u64,
    /// Other answers, by status; 0 stands for a broken connection.
    pub(super) unexpected: BTreeMap<u16, u64>,
}

impl Readers {
    /// Starts one for every node.
    pub(super) fn start(nodes: &[SocketAddr], key: &AccountKey, items: &DueItems) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for node in nodes {
            let reader = Reader { node: *node, key: key.clone(), items: items.clone() };
            tasks.spawn(reader.run(stop.clone()));
        }
        Self { tasks, stop }
    }

    /// Lets every reader finish what it is at; answers what they have seen together.
    pub(super) async fn stop(mut self) -> Seen {
        self.stop.store(true, Ordering::SeqCst);
        let mut all = Seen::default();
        while let Some(seen) = self.tasks.join_next().await {
            all.add(seen.expect("readers do not panic"));
        }
        all
    }
}

struct Reader {
    node: SocketAddr,
    key: AccountKey,
    items: DueItems,
}

impl Reader {
    async fn run(self, stop: Arc<AtomicBool>) -> Seen {
        let (mut seen, mut connection) = (Seen::default(), None);
        while !stop.load(Ordering::SeqCst) {
            let request = self.request(rand::random_range(0..self.items.count));
            let started_ms = clock::wall_ms();
            let status = self.exchange(&mut connection, &request).await;
            let read = Read { started_ms, finished_ms: clock::wall_ms(), status };
            seen.count(self.items.due.judge(read), status);
            tokio::time::sleep(PAUSE).await;
        }
        seen
    }

    fn request(&self, number: u32) -> Request {
        let (id, key) = (self.items.id(number), self.items.key(number));
        read_request(self.node, &self.items.container, &self.key, &id, &key)
    }

    /// The status of the answer; 0 if the connection broke.
    async fn exchange(&self, connection: &mut Option<Connection>, request: &Request) -> u16 {
        let mut open = match connection.take() {
            Some(open) => open,
            None => match Connection::open(self.node).await {
                Ok(open) => open,
                Err(_) => return 0,
            },
        };
        match open.exchange(request.bytes()).await {
            Ok(status) => {
                *connection = Some(open);
                status
            }
            Err(_) => 0,
        }
    }
}

impl Seen {
    fn count(&mut self, verdict: Verdict, status: u16) {
        self.reads += 1;
        match verdict {
            Verdict::Right => {}
            Verdict::Visible => self.visible += 1,
            Verdict::Early => self.early += 1,
            Verdict::Unexpected => *self.unexpected.entry(status).or_default() += 1,
        }
    }

    fn add(&mut self, other: Self) {
        let Self { reads, visible, early, unexpected } = other;
        self.reads += reads;
        self.visible += visible;
        self.early += early;
        for (status, count) in unexpected {
            *self.unexpected.entry(status).or_default() += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_readers_together_have_seen_what_each_has() {
        let mut all = Seen::default();
        for _ in 0..2 {
            let mut one = Seen::default();
            one.count(Verdict::Right, 404);
            one.count(Verdict::Visible, 200);
            one.count(Verdict::Early, 404);
            one.count(Verdict::Unexpected, 503);
            all.add(one);
        }
        let unexpected = BTreeMap::from([(503, 2)]);
        assert_eq!(all, Seen { reads: 8, visible: 2, early: 2, unexpected });
    }
}
