//! Lets go together what comes together.
//!
//! A message between nodes and a sync of a disk have a price of their own, whatever they carry. If every
//! caller went by itself, most would carry one thing. So only so many batches are under way at a time, and
//! what comes meanwhile goes together in the next one: as soon as none is under way, or a crowd waits that
//! is as large as what is under way.
//!
//! Callers that were answered together often ask again together. So a batch of less than a crowd waits for
//! those whom the last one answered: their turn, and where batches take longer than timers tick, as on a
//! busy machine, a part of what the last one took. Whoever is alone waits for nobody.
//!
//! A batch that takes long, because a disk is slow or the leader cannot reach the others, holds nobody back:
//! what comes then goes its own way, and learns by itself what there is to learn.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use openraft::AsyncRuntime as _;
use tokio::sync::Notify;

use crate::clock;
use crate::runtime::Runtime;

/// How long a batch counts as under way: a few times what it takes where disks and network do well.
const PATIENCE: Duration = Duration::from_millis(20);

/// How long a batch waits for company at most, and no longer than half of what the last one took.
const COMPANY_PATIENCE: Duration = Duration::from_millis(5);

/// Timers tick this often: whoever sets one for less sleeps longer than meant.
const TICK: Duration = Duration::from_millis(1);

/// Takes batches where they go.
pub(crate) trait Carrier: Send + Sync + 'static {
    /// What a batch consists of.
    type Load: Send + 'static;

    /// Batches under way at a time.
    const BATCHES_MAX: usize;

    /// So many share the price of a batch well: it waits for nobody, and another may go beside it.
    const CROWD: usize;

    /// How many of these the next batch takes, in their order: at least one.
    fn fitting(loads: &[Self::Load]) -> usize;

    /// Takes a batch there; returns when that is done.
    fn carry(&self, batch: Vec<Self::Load>) -> impl Future<Output = ()> + Send;
}

/// Gathers what a carrier takes. Clones gather together.
pub(crate) struct Gathering<C: Carrier> {
    carrier: Arc<C>,
    line: Arc<Mutex<Line<C>>>,
    /// Told when all have come for whom a batch waits.
    all_here: Arc<Notify>,
}

impl<C: Carrier> Clone for Gathering<C> {
    fn clone(&self) -> Self {
        Self {
            carrier: self.carrier.clone(),
            line: self.line.clone(),
            all_here: self.all_here.clone(),
        }
    }
}

/// Who waits, and what is under way.
struct Line<C: Carrier> {
    waiting: Vec<C::Load>,
    /// Batches under way, and what they carry together.
    batches: usize,
    loads: usize,
    /// True if one of them has not yet taken what waits.
    is_forming: bool,
    /// True if there was more than the last one could take.
    is_full: bool,
    /// How many are to be expected: who waited when a batch ended, and whom it answered.
    expected: usize,
    /// How long the next batch waits for them.
    patience: Duration,
}

impl<C: Carrier> Line<C> {
    /// True if a batch starts: it counts as under way, and takes what waits when it runs.
    fn starts(&mut self) -> bool {
        let crowd = if self.loads == 0 || self.is_full { 1 } else { C::CROWD };
        let is_worth_it = self.waiting.len() >= self.loads.max(crowd);
        let starts = is_worth_it && !self.is_forming && self.batches < C::BATCHES_MAX;
        self.batches += usize::from(starts);
        self.is_forming |= starts;
        starts
    }

    /// How many the batch that forms still waits for.
    fn missing(&self) -> usize {
        self.expected.min(C::CROWD).saturating_sub(self.waiting.len())
    }

    /// What the batch that has started carries.
    fn take(&mut self) -> Vec<C::Load> {
        let rest = self.waiting.split_off(C::fitting(&self.waiting));
        self.is_full = !rest.is_empty();
        let batch = std::mem::replace(&mut self.waiting, rest);
        self.loads += batch.len();
        self.is_forming = false;
        batch
    }

    /// A batch that carries so much counts no longer, because it was answered after some time or for
    /// another reason; true if the next one starts.
    fn ends(&mut self, loads: usize, answered: Option<Duration>) -> bool {
        self.batches -= 1;
        self.loads -= loads;
        self.expected = if answered.is_some() { self.waiting.len() + loads } else { 0 };
        self.patience = answered.map_or(Duration::ZERO, |took| (took / 2).min(COMPANY_PATIENCE));
        self.starts()
    }
}

impl<C: Carrier> Gathering<C> {
    pub(crate) fn new(carrier: C) -> Self {
        let line = Line {
            waiting: Vec::new(),
            batches: 0,
            loads: 0,
            is_forming: false,
            is_full: false,
            expected: 0,
            patience: Duration::ZERO,
        };
        Self {
            carrier: Arc::new(carrier),
            line: Arc::new(Mutex::new(line)),
            all_here: Arc::default(),
        }
    }

    pub(crate) fn carrier(&self) -> &C {
        &self.carrier
    }

    /// Adds a load, which a batch takes after this call.
    pub(crate) fn add(&self, load: C::Load) {
        let (starts, are_all_here) = {
            let mut line = self.line();
            line.waiting.push(load);
            (line.starts(), line.is_forming && line.missing() == 0)
        };
        if starts {
            self.start();
        } else if are_all_here {
            self.all_here.notify_one();
        }
    }

    fn line(&self) -> MutexGuard<'_, Line<C>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) {
        drop(Runtime::spawn(self.clone().run()));
    }

    /// The next batch, and whether another one starts beside it.
    fn take(&self) -> (UnderWay<'_, C>, Vec<C::Load>, bool) {
        let (batch, is_more) = {
            let mut line = self.line();
            (line.take(), line.starts())
        };
        (UnderWay { gathering: self, loads: Some(batch.len()) }, batch, is_more)
    }

    /// Takes one batch after the other, until none starts.
    async fn run(self) {
        loop {
            self.await_company().await;
            let (under_way, batch, is_more) = self.take();
            if is_more {
                self.start();
            }
            let begun = clock::monotonic();
            let mut carrying = std::pin::pin!(self.carrier.carry(batch));
            let is_slow = tokio::time::timeout(PATIENCE, &mut carrying).await.is_err();
            if is_slow {
                drop(under_way);
                return carrying.await;
            }
            if !under_way.end(begun.elapsed()) {
                return;
            }
        }
    }

    /// Waits for those who are to be expected.
    async fn await_company(&self) {
        let patience = {
            let line = self.line();
            if line.missing() == 0 {
                return;
            }
            line.patience
        };
        tokio::task::yield_now().await;
        if patience >= TICK {
            let all_here = async {
                while self.line().missing() > 0 {
                    self.all_here.notified().await;
                }
            };
            // If they do not come, it goes without them.
            let _ = tokio::time::timeout(patience, all_here).await;
        }
    }
}

/// A batch that counts as under way until this is dropped: also by a panic, or nobody would go any more.
struct UnderWay<'g, C: Carrier> {
    gathering: &'g Gathering<C>,
    /// How much it carries; none once it counts no longer.
    loads: Option<usize>,
}

impl<C: Carrier> UnderWay<'_, C> {
    /// The batch was answered, which took so long; true if the caller takes the next one.
    fn end(mut self, took: Duration) -> bool {
        self.loads.take().is_some_and(|loads| self.gathering.line().ends(loads, Some(took)))
    }
}

impl<C: Carrier> Drop for UnderWay<'_, C> {
    fn drop(&mut self) {
        if let Some(loads) = self.loads.take()
            && self.gathering.line().ends(loads, None)
        {
            self.gathering.start();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    /// What one ferry carries.
    const LOADS_MAX: usize = 2;

    /// With this aboard a ferry sinks.
    const LEAD: u32 = u32::MAX;

    /// Keeps batches under way until it is let go on.
    struct Ferry<const PLACES: usize> {
        taken: Arc<Mutex<Vec<Vec<u32>>>>,
        passes: Arc<Semaphore>,
    }

    impl<const PLACES: usize> Carrier for Ferry<PLACES> {
        type Load = u32;

        const BATCHES_MAX: usize = PLACES;

        const CROWD: usize = LOADS_MAX;

        fn fitting(loads: &[u32]) -> usize {
            loads.len().min(LOADS_MAX)
        }

        async fn carry(&self, batch: Vec<u32>) {
            let sinks = batch.contains(&LEAD);
            self.taken.lock().unwrap().push(batch);
            assert!(!sinks, "a ferry sinks");
            self.passes.acquire().await.unwrap().forget();
        }
    }

    struct World<const PLACES: usize> {
        gathering: Gathering<Ferry<PLACES>>,
        taken: Arc<Mutex<Vec<Vec<u32>>>>,
        passes: Arc<Semaphore>,
    }

    impl<const PLACES: usize> World<PLACES> {
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

        async fn await_end(&self) {
            while self.gathering.line().batches > 0 {
                tokio::time::sleep(TICK).await;
            }
        }
    }

    #[tokio::test]
    async fn what_comes_while_a_batch_is_under_way_goes_together_as_far_as_it_fits() {
        let world = World::<1>::new();
        world.gathering.add(1);
        assert_eq!(world.await_batches(1).await, [[1]]);
        (2..=4).for_each(|load| world.gathering.add(load));
        world.passes.add_permits(2);
        assert_eq!(world.await_batches(3).await, [vec![1], vec![2, 3], vec![4]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_takes_long_holds_nobody_back() {
        let world = World::<1>::new();
        world.gathering.add(1);
        world.await_batches(1).await;
        world.gathering.add(2);
        tokio::time::timeout(2 * PATIENCE, world.await_batches(2)).await.unwrap();
        world.passes.add_permits(2);
        world.gathering.add(3);
        assert_eq!(world.await_batches(3).await, [[1], [2], [3]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_panics_holds_nobody_back() {
        let world = World::<1>::new();
        world.passes.add_permits(1);
        for load in [LEAD, 1, 2] {
            world.gathering.add(load);
        }
        assert_eq!(world.await_batches(2).await, [vec![LEAD, 1], vec![2]], "what waited goes next");
        world.gathering.add(LEAD);
        world.await_batches(3).await;
        world.passes.add_permits(1);
        world.gathering.add(3);
        assert_eq!(world.await_batches(4).await[3], [3]);
    }

    #[tokio::test(start_paused = true)]
    async fn another_goes_once_as_much_waits_as_is_under_way() {
        let world = World::<2>::new();
        (1..=2).for_each(|load| world.gathering.add(load));
        assert_eq!(world.await_batches(1).await, [[1, 2]]);
        world.gathering.add(3);
        tokio::time::sleep(PATIENCE / 4).await;
        assert_eq!(world.await_batches(1).await, [[1, 2]], "one waits, two are under way");
        world.gathering.add(4);
        let before = crate::clock::monotonic();
        assert_eq!(world.await_batches(2).await, [[1, 2], [3, 4]]);
        assert!(before.elapsed() < PATIENCE / 4);
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_fit_into_one_batch_goes_with_another_at_once() {
        let world = World::<2>::new();
        (1..=5).for_each(|load| world.gathering.add(load));
        let before = crate::clock::monotonic();
        assert_eq!(world.await_batches(2).await, [[1, 2], [3, 4]]);
        assert!(before.elapsed() < PATIENCE / 4);
    }

    #[tokio::test(start_paused = true)]
    async fn less_than_a_crowd_goes_beside_nobody() {
        let world = World::<2>::new();
        world.gathering.add(1);
        world.await_batches(1).await;
        world.gathering.add(2);
        tokio::time::sleep(PATIENCE / 4).await;
        assert_eq!(world.await_batches(1).await, [[1]], "two would be a crowd");
        world.passes.add_permits(1);
        assert_eq!(world.await_batches(2).await, [[1], [2]]);
    }

    /// A batch of two that takes so long; then one of them comes again.
    async fn answer_two_and_add_one(world: &World<1>, took: Duration) {
        (1..=2).for_each(|load| world.gathering.add(load));
        world.await_batches(1).await;
        tokio::time::sleep(took).await;
        world.passes.add_permits(1);
        world.await_end().await;
        world.gathering.add(3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_waits_until_all_have_come_whom_the_last_one_answered() {
        let world = World::<1>::new();
        answer_two_and_add_one(&world, 6 * TICK).await;
        tokio::time::sleep(TICK).await;
        assert_eq!(world.await_batches(1).await.len(), 1, "a second one is expected");
        let before = clock::monotonic();
        world.gathering.add(4);
        assert_eq!(world.await_batches(2).await[1], [3, 4]);
        assert!(before.elapsed() <= TICK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_goes_without_those_who_do_not_come() {
        let world = World::<1>::new();
        answer_two_and_add_one(&world, 6 * TICK).await;
        let before = clock::monotonic();
        assert_eq!(world.await_batches(2).await[1], [3]);
        assert!(
            (3 * TICK..=5 * TICK).contains(&before.elapsed()),
            "half of what the last one took"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_expected_after_a_batch_that_took_too_long() {
        let world = World::<1>::new();
        answer_two_and_add_one(&world, 2 * PATIENCE).await;
        let before = clock::monotonic();
        assert_eq!(world.await_batches(2).await[1], [3]);
        assert!(before.elapsed() <= TICK);
    }

    /// Adds a load, and another one in a task that has its turn behind the batch that starts.
    fn add_one_after_the_other(world: &World<1>, [first, second]: [u32; 2]) {
        world.gathering.add(first);
        let gathering = world.gathering.clone();
        drop(Runtime::spawn(async move { gathering.add(second) }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_lets_others_come_along_only_if_the_last_one_had_company() {
        let world = World::<1>::new();
        world.passes.add_permits(4);
        add_one_after_the_other(&world, [1, 2]);
        assert_eq!(world.await_batches(2).await, [[1], [2]], "whoever was alone does not wait");
        world.await_end().await;
        (3..=4).for_each(|load| world.gathering.add(load));
        world.await_batches(3).await;
        world.await_end().await;
        add_one_after_the_other(&world, [5, 6]);
        assert_eq!(world.await_batches(4).await, [vec![1], vec![2], vec![3, 4], vec![5, 6]]);
    }
}
