//! Tells the operating system how a node's threads take turns on its processors.
//!
//! A thread that wakes mostly interrupts the one that runs, and both find their caches cold, many thousand times a
//! second where requests, log and replication hand work to each other. So here nobody interrupts anybody: who wakes
//! waits until a processor is free, or somebody's slice is over. On a processor that is free it makes no difference.

use rustix::process::getpriority_process;
use thread_priority::unix::{
    NormalThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};
use thread_priority::{ThreadPriority, ThreadPriorityValue};
use tracing::debug;

/// The nicest that threads can be, and how many steps there are from the least nice.
const NICENESS_MAX: i32 = 19;
const NICENESS_RANGE: u32 = 39;

/// From now on the calling thread, and those that it starts, interrupt nobody when they wake.
pub(crate) fn interrupt_nobody() {
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Batch);
    let set = set_thread_priority_and_policy(thread_native_id(), same_niceness(), policy);
    if let Err(error) = set {
        debug!(?error, "threads take turns as the system has them do");
    }
}

/// What the library calls the niceness that the thread has, which it sets together with the policy: it spreads all
/// niceness over its values, the other way round.
fn same_niceness() -> ThreadPriority {
    let niceness = getpriority_process(None).unwrap_or_default();
    let value = u32::from(*ThreadPriorityValue::MAX) * niceness.abs_diff(NICENESS_MAX);
    let value = value.saturating_sub(1) / NICENESS_RANGE;
    let value =
        u8::try_from(value).ok().and_then(|value| ThreadPriorityValue::try_from(value).ok());
    ThreadPriority::Crossplatform(value.expect("it is between the library's bounds"))
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use rustix::process::setpriority_process;

    use super::*;

    /// Where the policy stands behind a thread's name.
    const POLICY_FIELD: usize = 38;
    /// Batch, as the kernel numbers policies.
    const BATCH: &str = "3";

    fn policy() -> String {
        let fields = fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = fields.rsplit_once(") ").unwrap();
        fields.split(' ').nth(POLICY_FIELD).unwrap().to_string()
    }

    #[test]
    fn threads_interrupt_nobody_and_are_as_nice_as_before() {
        for niceness in -20..=NICENESS_MAX {
            let test = move || {
                if setpriority_process(None, niceness).is_err() {
                    // Only some may be less nice than they are.
                    return;
                }
                interrupt_nobody();
                assert_eq!(getpriority_process(None).unwrap(), niceness);
                assert_eq!(policy(), BATCH);
                assert_eq!(thread::spawn(policy).join().unwrap(), BATCH, "others inherit it");
            };
            thread::spawn(test).join().unwrap();
        }
    }
}
