//! A simulated machine: its process can be stopped for a while, as by SIGSTOP, or killed, or end by
//! itself.
//!
//! Everything of the process runs inside `Host::run`, and what it spawns through openraft's runtime
//! is inside too. While the process is frozen none of its tasks is polled: not the ones that wait
//! for a timer, nor those of its log, nor those that answer messages. Time goes on, messages to it
//! pile up in the network, those it sent before still arrive. After the thaw every timer that came
//! due is overdue and everything that came in meanwhile is there at once.
//!
//! Not frozen: what is spawned from inside without `inherit`; and what other tasks see of it in
//! memory, its metrics for one.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

thread_local! {
    /// The machine whose task is being polled.
    static CURRENT: RefCell<Option<Host>> = const { RefCell::new(None) };
}

/// A machine. Clones are the same one.
#[derive(Clone, Default)]
pub struct Host {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    state: State,
    /// Who wants to run on after the thaw.
    waiting: Vec<Waker>,
    /// Why the process ended by itself, if it did.
    ended: Option<String>,
}

/// What unwinds the task that ends its process.
struct Ended;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Running,
    Frozen,
    Killed,
}

impl Host {
    /// A machine whose process runs.
    pub fn new() -> Self {
        Self::default()
    }

    /// The machine whose process the caller is a part of, if that is a simulated one.
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Option::clone)
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the process; it is thawed later, or killed.
    pub fn freeze(&self) {
        let mut shared = self.lock();
        if shared.state == State::Running {
            shared.state = State::Frozen;
        }
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        let waiting = {
            let mut shared = self.lock();
            if shared.state != State::Frozen {
                return;
            }
            shared.state = State::Running;
            std::mem::take(&mut shared.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Ends the process for good, at once: nothing of it runs any more, not even to clean up.
    pub fn kill(&self) {
        let waiting = {
            let mut shared = self.lock();
            shared.state = State::Killed;
            std::mem::take(&mut shared.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Ends the process from inside, as by an exit with a message; the calling task goes no further.
    pub fn end_process(&self, reason: &str) -> ! {
        self.lock().ended.get_or_insert_with(|| reason.to_string());
        self.kill();
        std::panic::resume_unwind(Box::new(Ended));
    }

    /// Why the process ended by itself, if it did.
    pub fn ended(&self) -> Option<String> {
        self.lock().ended.clone()
    }

    /// True while the process stands still and will go on.
    pub fn is_frozen(&self) -> bool {
        self.lock().state == State::Frozen
    }

    /// Waits while the process stands still; false if it has ended.
    pub(crate) async fn thawed(&self) -> bool {
        poll_fn(|context| self.poll_thawed(context)).await
    }

    /// Ready when the process does not stand still; false if it has ended.
    pub fn poll_thawed(&self, context: &mut Context<'_>) -> Poll<bool> {
        let mut shared = self.lock();
        if shared.state == State::Frozen {
            shared.waiting.push(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(shared.state == State::Running)
    }

    /// Runs a future as part of the process.
    pub fn run<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        run_on(Some(self.clone()), future)
    }

    fn poll<F: Future>(
        &self,
        future: std::pin::Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        {
            let mut shared = self.lock();
            match shared.state {
                State::Running => {}
                State::Frozen => {
                    shared.waiting.push(context.waker().clone());
                    return Poll::Pending;
                }
                State::Killed => return Poll::Pending,
            }
        }
        let _inside = Inside(CURRENT.replace(Some(self.clone())));
        future.poll(context)
    }
}

/// While it lives a task of some machine is being polled; it remembers what was before.
struct Inside(Option<Host>);

impl Drop for Inside {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Runs a future as part of the process that spawns it, if that is a simulated one.
pub fn inherit<F: Future>(future: F) -> impl Future<Output = F::Output> + use<F> {
    run_on(Host::current(), future)
}

async fn run_on<F: Future>(host: Option<Host>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| match &host {
        None => future.as_mut().poll(context),
        Some(host) => host.poll(future.as_mut(), context),
    })
    .await
}
