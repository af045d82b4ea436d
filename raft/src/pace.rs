//! Which of two followers gets entries at once, and which one in fewer, larger messages.
//!
//! With its leader one follower of two is a majority. Under load the other one need not get every batch by itself: each
//! costs a message, a sync, and an answer. So the one that is not the first to answer waits a little between messages
//! that carry several entries, and then gets all that has come meanwhile. If the prompt one falls silent, nobody waits,
//! and who answers then is the prompt one. A learner counts as a follower: while there are one voter and one learner,
//! or where the leader's own disk is slow, a commit may wait for that pause.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ephemeris_store::ids::ReplicaId;

use crate::clock::{self, Instant};

/// How long the other follower waits between messages.
pub(crate) const PAUSE: Duration = Duration::from_millis(4);
/// A message with so many entries is of a group under load.
pub(crate) const ENTRIES_MIN: usize = 8;
/// The prompt follower is silent if it answers nothing for so long, while the other one does.
const SILENCE: Duration = Duration::from_millis(12);

/// The pace of a leader's followers. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Pace {
    followers: Arc<AtomicUsize>,
    prompt: Arc<Mutex<Option<Prompt>>>,
}

struct Prompt {
    follower: ReplicaId,
    /// The last entry that it answered for.
    index: u64,
    answered: Instant,
}

/// A follower, for as long as it is one.
pub(crate) struct Follower {
    pace: Pace,
    replica: ReplicaId,
}

impl Pace {
    /// Another follower.
    pub(crate) fn follower(&self, replica: ReplicaId) -> Follower {
        self.followers.fetch_add(1, Ordering::Relaxed);
        Follower { pace: self.clone(), replica }
    }

    fn prompt(&self) -> MutexGuard<'_, Option<Prompt>> {
        self.prompt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Follower {
    /// It has answered that it has all entries up to one.
    pub(crate) fn answered(&self, index: u64) {
        let now = clock::monotonic();
        let mut prompt = self.pace.prompt();
        let takes_over = match &*prompt {
            None => true,
            Some(prompt) if prompt.follower == self.replica => true,
            Some(prompt) => index > prompt.index && now - prompt.answered > SILENCE,
        };
        if takes_over {
            *prompt = Some(Prompt { follower: self.replica, index, answered: now });
        }
    }

    /// True if a majority does without it, so that its next entries may wait.
    pub(crate) fn may_wait(&self) -> bool {
        if self.pace.followers.load(Ordering::Relaxed) != 2 {
            return false;
        }
        let now = clock::monotonic();
        let prompt = self.pace.prompt();
        prompt.as_ref().is_some_and(|prompt| {
            prompt.follower != self.replica && now - prompt.answered <= SILENCE
        })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.pace.followers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use ephemeris_store::ids::NodeId;

    use super::*;

    fn replica(node: u32) -> ReplicaId {
        ReplicaId { node: NodeId(node), incarnation: 0 }
    }

    #[tokio::test(start_paused = true)]
    async fn the_follower_that_answers_first_never_waits() {
        let pace = Pace::default();
        let (one, other) = (pace.follower(replica(2)), pace.follower(replica(3)));
        assert!(!one.may_wait() && !other.may_wait(), "nobody has answered");
        one.answered(10);
        other.answered(12);
        assert!(!one.may_wait() && other.may_wait(), "it is still the first one's");
        tokio::time::advance(SILENCE + Duration::from_millis(1)).await;
        assert!(!one.may_wait() && !other.may_wait(), "the first one is silent");
        other.answered(10);
        assert!(!one.may_wait(), "nothing new");
        other.answered(14);
        assert!(one.may_wait() && !other.may_wait(), "now it is the other");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_where_more_or_fewer_are_needed() {
        let pace = Pace::default();
        let one = pace.follower(replica(2));
        let others: Vec<Follower> = (3..6).map(|node| pace.follower(replica(node))).collect();
        one.answered(10);
        assert!(!others[0].may_wait(), "two of four are needed");
        drop(others);
        let only = pace.follower(replica(3));
        assert!(only.may_wait());
        drop(one);
        assert!(!only.may_wait(), "it is alone");
    }
}
