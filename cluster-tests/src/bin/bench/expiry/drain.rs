//! What each replica stores, expired items included, and when that is what it should be.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::bail;
use ephemeris_cluster_tests::checker::Due;
use ephemeris_cluster_tests::client::{Client, Container};
use ephemeris_cluster_tests::cluster::Status;
use ephemeris_cluster_tests::{clock, wait};

/// Pause between two looks; what a drain's length is exact to.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long replicas may take to start, or lag behind what was acknowledged.
const LEVEL_DEADLINE: Duration = Duration::from_secs(30);

/// Replicas a partition has, if there are as many nodes.
const REPLICATION_FACTOR: usize = 3;

/// Items by the node of their replica.
type Items = BTreeMap<u32, u64>;

/// Replicas of a container, and what they stored at first.
pub(super) struct Replicas {
    node: Client,
    container: Container,
    first: Items,
}

impl Replicas {
    /// The replicas as they are now, by one node's word, once all of them run.
    pub(super) async fn of(node: &Client, container: &Container) -> Self {
        let first = wait::until("every replica", LEVEL_DEADLINE, async || {
            let status = Status::of(node).await?;
            let replicas = status.nodes.len().min(REPLICATION_FACTOR);
            stored(&status, container).filter(|items| items.len() >= replicas)
        });
        Self { first: first.await, node: node.clone(), container: container.clone() }
    }

    /// Waits until every replica stores exactly so many items more than at first.
    pub(super) async fn await_level(&self, more: u64) -> anyhow::Result<()> {
        if self.wait(LEVEL_DEADLINE, |first, now| now == first + more).await {
            return Ok(());
        }
        let now = Status::of(&self.node).await.and_then(|seen| stored(&seen, &self.container));
        bail!("replicas stored {:?}, should have {more} more, and store {now:?}", self.first)
    }

    /// Waits until no replica stores more than at first, but for what was sent since; answers how
    /// long after the due second that was, or nothing if it was not within `limit`.
    ///
    /// What was sent may not be stored yet, which hides as many due items as there are requests
    /// under way, or entries a follower lags behind: few.
    pub(super) async fn await_drained(
        &self,
        due: Due,
        limit: Duration,
        sent: &AtomicU64,
    ) -> Option<Duration> {
        tokio::time::sleep(due.remaining()).await;
        let drained = |first, now| now <= first + sent.load(Ordering::SeqCst);
        self.wait(limit, drained).await.then(|| due.elapsed())
    }

    /// True once every replica is good; false if that takes too long.
    async fn wait(&self, limit: Duration, good: impl Fn(u64, u64) -> bool) -> bool {
        let started = clock::monotonic();
        loop {
            let status = Status::of(&self.node).await;
            let now = status.and_then(|status| stored(&status, &self.container));
            if now.as_ref().is_some_and(|now| all(&self.first, now, &good)) {
                return true;
            }
            if started.elapsed() > limit {
                return false;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// True if the same replicas are there, and each of them is good.
fn all(first: &Items, now: &Items, good: impl Fn(u64, u64) -> bool) -> bool {
    first.keys().eq(now.keys()) && first.values().zip(now.values()).all(|(f, n)| good(*f, *n))
}

/// What each replica of a container stores; none if there is one that does not tell.
fn stored(status: &Status, container: &Container) -> Option<Items> {
    let mut items = Items::new();
    for replica in status.partitions(container).iter().flat_map(|group| &group.replicas) {
        *items.entry(replica.node).or_default() += replica.items?;
    }
    (!items.is_empty()).then_some(items)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(items: &[Option<u64>]) -> Status {
        let replica = |(at, items)| json!({ "node": at, "lag": 0, "items": items });
        let replicas: Vec<_> = (1..).zip(items).map(replica).collect();
        let of = json!({ "database": "bench", "container": "items" });
        let group = json!({ "group": 1, "of": of, "leader": 1, "replicas": replicas });
        let status = json!({ "cluster": null, "nodes": [], "groups": [group] });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn a_container_is_drained_when_all_of_its_replicas_are() {
        let container = Container::new("bench", "items");
        let items = |items: &[Option<u64>]| stored(&status(items), &container);
        let first = items(&[Some(5), Some(5)]).unwrap();
        let good = |first, now| now <= first + 2;
        assert!(all(&first, &items(&[Some(7), Some(6)]).unwrap(), good));
        assert!(!all(&first, &items(&[Some(7), Some(8)]).unwrap(), good));
        assert!(!all(&first, &items(&[Some(5)]).unwrap(), good));
        assert_eq!(items(&[Some(5), None]), None);
        assert_eq!(items(&[]), None);
    }
}
