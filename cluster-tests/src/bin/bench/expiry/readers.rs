//! Readers that look at random due items, one through every node.

use std::net::SocketAddr;
use std::time::Duration;

use ephemeris_cluster_tests::checker::{Due, Margin, Read};
use ephemeris_cluster_tests::client::AccountKey;
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::load::{Connection, Look, Readers, Request};

use super::fill::DueItems;
use crate::sources::read_request;

/// Pause of a reader between two reads: they watch, and leave the processors to the load.
const PAUSE: Duration = Duration::from_millis(5);
/// What the nodes' clocks may be apart, and some more.
const MARGIN: Margin = Margin { before_ms: 0, after_ms: 50 };

/// Starts one for every node.
pub(super) fn start(nodes: &[SocketAddr], key: &AccountKey, items: &DueItems) -> Readers {
    let reader = |node: &SocketAddr| {
        let (key, items) = (key.clone(), items.clone());
        Reader { node: *node, key, items, connection: None }
    };
    Readers::start(nodes.iter().map(reader), MARGIN, PAUSE)
}

struct Reader {
    node: SocketAddr,
    key: AccountKey,
    items: DueItems,
    connection: Option<Connection>,
}

impl Look for Reader {
    async fn look(&mut self) -> (Due, Read) {
        let request = self.request(rand::random_range(0..self.items.count));
        let started_ms = clock::wall_ms();
        let status = self.exchange(&request).await;
        (self.items.due, Read { started_ms, finished_ms: clock::wall_ms(), status })
    }
}

impl Reader {
    fn request(&self, number: u32) -> Request {
        let (id, key) = (self.items.id(number), self.items.key(number));
        read_request(self.node, &self.items.container, &self.key, &id, &key)
    }

    /// The status of the answer; 0 if the connection broke.
    async fn exchange(&mut self, request: &Request) -> u16 {
        let mut open = match self.connection.take() {
            Some(open) => open,
            None => match Connection::open(self.node).await {
                Ok(open) => open,
                Err(_) => return 0,
            },
        };
        match open.exchange(request.bytes()).await {
            Ok(status) => {
                self.connection = Some(open);
                status
            }
            Err(_) => 0,
        }
    }
}
