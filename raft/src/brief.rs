//! Brief work: what should take less than a millisecond, though a slow disk may make it take long. A worker of the runtime
//! does it by itself, which spares two threads waking each other.
//!
//! One worker at a time, so that the others go on. But they may sleep: tokio wakes one for timers and sockets
//! only when a worker looks for work, and the one that looked last is busy here. So a watcher wakes another one
//! if a turn takes long. It looks every few milliseconds while turns are taken, and sleeps while there are none.

use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;

/// The watcher looks this often: a turn that is under way at two looks takes long.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// After so many looks without a new turn the watcher sleeps.
const IDLE_LOOKS_MAX: u32 = 20;

/// A worker's turn, until it is dropped.
pub(crate) struct Turn(());

/// The turns of this process.
struct Turns {
    /// The runtime of the worker that has its turn.
    taken_by: Option<Handle>,
    /// How many there were.
    count: u64,
    is_watched: bool,
}

static TURNS: Mutex<Turns> = Mutex::new(Turns { taken_by: None, count: 0, is_watched: false });
static IS_WATCHED: Condvar = Condvar::new();
static WATCHER: Once = Once::new();

fn turns() -> MutexGuard<'static, Turns> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The runtime that the caller works for, if it has workers enough for one of them to do brief work.
pub(crate) fn runtime() -> Option<Handle> {
    let runtime = Handle::try_current().ok()?;
    (runtime.metrics().num_workers() > 1).then_some(runtime)
}

/// Lets others run what the calling worker was to run next: it goes on with work that may take long, and nobody
/// else could take that one task from it.
pub(crate) fn let_others_run() {
    if let Ok(runtime) = Handle::try_current() {
        // A worker is to run next what it has just started; what it was to run before is for anybody.
        drop(runtime.spawn(async {}));
    }
}

impl Turn {
    /// The calling worker's turn; none if another one has it, or there is none beside it.
    pub(crate) fn take() -> Option<Self> {
        let worker_of = runtime()?;
        let mut turns = turns();
        if turns.taken_by.is_some() {
            return None;
        }
        turns.taken_by = Some(worker_of);
        turns.count += 1;
        if !turns.is_watched {
            turns.is_watched = true;
            IS_WATCHED.notify_one();
            WATCHER.call_once(|| {
                let watcher = thread::Builder::new().name("brief-watch".to_string());
                // Without it a slow disk holds up more than it should, until it is done.
                let _ = watcher.spawn(watch);
            });
        }
        drop(turns);
        let_others_run();
        Some(Self(()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        turns().taken_by = None;
    }
}

/// Wakes another worker where a turn takes long.
fn watch() {
    let (mut seen, mut idle_looks) = (0, 0);
    loop {
        thread::sleep(LOOK_EVERY);
        let mut turns = turns();
        idle_looks = if turns.count == seen { idle_looks + 1 } else { 0 };
        match &turns.taken_by {
            // From outside of the runtime a task wakes a worker, which then waits for timers and sockets.
            Some(worker_of) if idle_looks > 0 => drop(worker_of.spawn(async {})),
            Some(_) => {}
            None if idle_looks < IDLE_LOOKS_MAX => {}
            None => {
                turns.is_watched = false;
                while !turns.is_watched {
                    turns = IS_WATCHED.wait(turns).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        seen = turns.count;
    }
}
