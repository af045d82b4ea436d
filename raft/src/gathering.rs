//! Lets go together what comes together.
//!
//! A message between nodes and a sync of a disk have a price of their own, whatever they carry. If every
//! caller went by itself, most would carry one thing. So only so many batches are under way at a time, and
//! what comes meanwhile goes together in the next one. Nobody waits for a clock: who finds room goes at
//! once.
//!
//! A batch that takes long, because a disk is slow or the leader cannot reach the others, holds nobody back:
//! what comes then goes its own way, and learns by itself what there is to learn.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use openraft::AsyncRuntime as _;

use crate::runtime::Runtime;

/// How long a batch counts as under way: a few times what it takes where disks and network do well.
const PATIENCE: Duration = Duration::from_millis(20);

/// Takes batches where they go.
pub(crate) trait Carrier: Send + Sync + 'static {
    /// What a batch consists of.
    type Load: Send + 'static;

    /// Batches under way at a time.
    const BATCHES_MAX: usize;

    /// How many of these the next batch takes, in their order: at least one.
    fn fitting(loads: &[Self::Load]) -> usize;

    /// Takes a batch there; returns when that is done.
    fn carry(&self, batch: Vec<Self::Load>) -> impl Future<Output = ()> + Send;
}

/// Gathers what a carrier takes. Clones gather together.
pub(crate) struct Gathering<C: Carrier> {
    carrier: Arc<C>,
    line: Arc<Mutex<Line<C>>>,
}

impl<C: Carrier> Clone for Gathering<C> {
    fn clone(&self) -> Self {
        Self { carrier: self.carrier.clone(), line: self.line.clone() }
    }
}

/// Who waits.
struct Line<C: Carrier> {
    waiting: Vec<C::Load>,
    under_way: usize,
}

impl<C: Carrier> Line<C> {
    /// The next batch; if there is none, its place is free again.
    fn next(&mut self) -> Option<Vec<C::Load>> {
        if self.waiting.is_empty() {
            self.under_way -= 1;
            return None;
        }
        let rest = self.waiting.split_off(C::fitting(&self.waiting));
        Some(std::mem::replace(&mut self.waiting, rest))
    }

    /// True if a batch may start, which then counts as under way.
    fn starts(&mut self) -> bool {
        let starts = self.under_way < C::BATCHES_MAX && !self.waiting.is_empty();
        self.under_way += usize::from(starts);
        starts
    }
}

impl<C: Carrier> Gathering<C> {
    pub(crate) fn new(carrier: C) -> Self {
        let line = Line { waiting: Vec::new(), under_way: 0 };
        Self { carrier: Arc::new(carrier), line: Arc::new(Mutex::new(line)) }
    }

    /// Adds a load, which goes with a batch that starts after this call.
    pub(crate) fn add(&self, load: C::Load) {
        let starts = {
            let mut line = self.line();
            line.waiting.push(load);
            line.starts()
        };
        if starts {
            self.start();
        }
    }

    fn line(&self) -> MutexGuard<'_, Line<C>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) {
        drop(Runtime::spawn(self.clone().run()));
    }

    /// Takes one batch after the other, until nobody waits.
    async fn run(self) {
        loop {
            let Some(batch) = self.line().next() else { return };
            let mut carrying = std::pin::pin!(self.carrier.carry(batch));
            if tokio::time::timeout(PATIENCE, &mut carrying).await.is_err() {
                let starts = {
                    let mut line = self.line();
                    line.under_way -= 1;
                    line.starts()
                };
                if starts {
                    self.start();
                }
                return carrying.await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    /// Keeps batches under way until it is let go on.
    struct Ferry {
        taken: Arc<Mutex<Vec<Vec<u32>>>>,
        passes: Arc<Semaphore>,
    }

    impl Carrier for Ferry {
        type Load = u32;

        const BATCHES_MAX: usize = 1;

        fn fitting(loads: &[u32]) -> usize {
            loads.len().min(2)
        }

        async fn carry(&self, batch: Vec<u32>) {
            self.taken.lock().unwrap().push(batch);
            self.passes.acquire().await.unwrap().forget();
        }
    }

    struct World {
        gathering: Gathering<Ferry>,
        taken: Arc<Mutex<Vec<Vec<u32>>>>,
        passes: Arc<Semaphore>,
    }

    impl World {
        fn new() -> Self {
            let (taken, passes) = (Arc::default(), Arc::new(Semaphore::new(0)));
            let gathering =
                Gathering::new(Ferry { taken: Arc::clone(&taken), passes: passes.clone() });
            Self { gathering, taken, passes }
        }

        async fn await_batches(&self, count: usize) -> Vec<Vec<u32>> {
            while self.taken.lock().unwrap().len() < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            self.taken.lock().unwrap().clone()
        }
    }

    #[tokio::test]
    async fn what_comes_while_a_batch_is_under_way_goes_together_as_far_as_it_fits() {
        let world = World::new();
        world.gathering.add(1);
        assert_eq!(world.await_batches(1).await, [[1]]);
        (2..=4).for_each(|load| world.gathering.add(load));
        world.passes.add_permits(2);
        assert_eq!(world.await_batches(3).await, [vec![1], vec![2, 3], vec![4]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_takes_long_holds_nobody_back() {
        let world = World::new();
        world.gathering.add(1);
        world.await_batches(1).await;
        world.gathering.add(2);
        tokio::time::timeout(2 * PATIENCE, world.await_batches(2)).await.unwrap();
        world.passes.add_permits(2);
        world.gathering.add(3);
        assert_eq!(world.await_batches(3).await, [[1], [2], [3]]);
    }
}
