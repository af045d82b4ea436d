//! A container with items in it, and the requests that go there.

use std::net::SocketAddr;

use anyhow::ensure;
use ephemeris_cluster_tests::client::{AccountKey, Container};
use ephemeris_cluster_tests::load::ClosedLoop;

use crate::sources::{Creates, ITEM_BYTES, Mix, Reads};

/// Requests under way while items are stored.
const STORE_CONCURRENCY: usize = 64;
/// Past so many items, they are stored in batches of as many as there may be in one.
pub(crate) const SINGLE_ITEMS_MAX: u32 = 100_000;
const BATCH_ITEMS: u32 = 100;
const BATCH_CONCURRENCY: usize = 8;
/// Items that are read, of all that are stored: their requests are kept.
const READ_ITEMS_MAX: usize = 50_000;
/// Runs of one benchmark, stores included, and workers of one run: each has a number of its own.
const RUNS_MAX: u64 = 1 << 10;
pub(crate) const WORKERS_MAX: u64 = 1 << 14;

/// Numbers for workers, so that no two of them ever create the same item.
#[derive(Default)]
pub(crate) struct Numbers {
    runs_begun: u64,
}

impl Numbers {
    /// The first of `WORKERS_MAX` numbers nobody else has.
    pub(crate) fn next_run(&mut self) -> u64 {
        assert!(self.runs_begun < RUNS_MAX, "there are fewer than {RUNS_MAX} runs");
        self.runs_begun += 1;
        (self.runs_begun - 1) * WORKERS_MAX
    }
}

/// A container with a name of its own, so that ids are new even on nodes that were measured before.
pub(crate) fn unique_container(name: &str) -> Container {
    Container::new("bench", &format!("{name}-{:08x}", rand::random::<u32>()))
}

/// Items that are stored before anything is measured.
#[derive(Clone, Copy)]
pub(crate) struct Stock {
    pub(crate) items: u32,
    pub(crate) item_bytes: usize,
}

impl Stock {
    /// So many of usual size.
    pub(crate) fn of(items: u32) -> Self {
        Self { items, item_bytes: ITEM_BYTES }
    }

    fn in_batches(self) -> bool {
        self.items > SINGLE_ITEMS_MAX && self.item_bytes == ITEM_BYTES
    }

    pub(crate) fn workers(self) -> usize {
        let most = if self.in_batches() { BATCH_CONCURRENCY } else { STORE_CONCURRENCY };
        most.min(self.items as usize)
    }

    /// Requests of each worker that stores them.
    pub(crate) fn requests_each(self) -> u64 {
        let items_each = u64::from(self.items).div_ceil(self.workers() as u64);
        if self.in_batches() { items_each.div_ceil(BATCH_ITEMS.into()) } else { items_each }
    }

    /// The items of all workers from `base` on; every so many, if there are very many.
    pub(crate) fn ids(self, base: u64) -> Vec<String> {
        let each = self.requests_each();
        let requests =
            (base..).take(self.workers()).flat_map(|run| (0..each).map(move |n| (run, n)));
        if self.in_batches() {
            let id = |(run, n)| format!("{}-{}", Creates::id(run, n), n % u64::from(BATCH_ITEMS));
            requests.map(id).take(READ_ITEMS_MAX).collect()
        } else {
            let ids = requests.map(|(run, n)| Creates::id(run, n));
            let step = (self.items as usize).div_ceil(READ_ITEMS_MAX);
            ids.step_by(step).take(READ_ITEMS_MAX).collect()
        }
    }
}

/// A container with items in it, and the nodes that are asked for them.
pub(crate) struct Subject {
    container: Container,
    key: AccountKey,
    stock: Stock,
    /// Number of the first worker that stores items.
    base: u64,
    ids: Vec<String>,
    targets: Vec<(SocketAddr, Reads)>,
}

impl Subject {
    /// A container whose items are not stored yet.
    pub(crate) fn new(
        container: &Container,
        key: &AccountKey,
        targets: &[SocketAddr],
        stock: Stock,
        numbers: &mut Numbers,
    ) -> Self {
        let base = numbers.next_run();
        let (container, key) = (container.clone(), key.clone());
        let subject =
            Self { container, key, stock, base, ids: stock.ids(base), targets: Vec::new() };
        subject.through(targets)
    }

    /// The same, by way of other nodes.
    pub(crate) fn through(&self, targets: &[SocketAddr]) -> Self {
        let (container, key, ids) = (self.container.clone(), self.key.clone(), self.ids.clone());
        let reads = |target: &SocketAddr| (*target, Reads::new(*target, &container, &key, &ids));
        let targets = targets.iter().map(reads).collect();
        Self { container, key, ids, targets, ..*self }
    }

    /// Stores the items that are read, by way of the first node.
    pub(crate) async fn store(&self) -> anyhow::Result<()> {
        let target = self.targets[0].0;
        let each = self.stock.requests_each();
        let workers = (self.base..).take(self.stock.workers());
        let source = |run| -> (SocketAddr, Creates) { (target, self.storing(target, run)) };
        let measured = ClosedLoop::requests(each).run(workers.map(source).collect()).await;
        let all = each * self.stock.workers() as u64;
        let stored = measured.latencies.count();
        ensure!(stored == all, "items were not stored: {:?}", measured.unexpected);
        Ok(())
    }

    fn storing(&self, target: SocketAddr, run: u64) -> Creates {
        if self.stock.in_batches() {
            Creates::batches(target, &self.container, &self.key, BATCH_ITEMS, run)
        } else {
            self.creates(target, run)
        }
    }

    fn creates(&self, target: SocketAddr, run: u64) -> Creates {
        Creates::sized(target, &self.container, &self.key, self.stock.item_bytes, run)
    }

    /// What workers with these numbers send, and where to; creates are a part from 0 to 1 of it.
    pub(crate) fn sources(
        &self,
        creates_share: f64,
        workers: impl Iterator<Item = u64>,
    ) -> Vec<(SocketAddr, Mix)> {
        let source = |(run, (target, reads)): (u64, &(SocketAddr, Reads))| {
            let creates = self.creates(*target, run);
            (*target, Mix::new(creates_share, creates, reads.seeded(run), run))
        };
        workers.zip(self.targets.iter().cycle()).map(source).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_runs_have_the_same_workers() {
        let mut numbers = Numbers::default();
        assert_eq!([(); 3].map(|()| numbers.next_run()), [0, WORKERS_MAX, 2 * WORKERS_MAX]);
    }

    #[test]
    fn what_is_read_is_some_of_what_is_stored() {
        let few = Stock::of(640).ids(7);
        assert_eq!(few.len(), 640);
        assert_eq!(few[639], Creates::id(70, 9));
        let many = Stock::of(100_000).ids(0);
        assert!(many.len() <= READ_ITEMS_MAX, "{}", many.len());
        let batched = Stock::of(200_000).ids(0);
        assert_eq!(batched[101], format!("{}-1", Creates::id(0, 101)));
    }
}
