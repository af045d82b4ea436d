//! What a node says of itself.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ephemeris_raft::GroupStatus;
use ephemeris_store::ids::GroupId;

use super::Node;
use crate::identity::FORMAT;
use crate::partition::Gauges;
use crate::requests::{NodeDescription, ReplicaDescription, Stored};
use crate::transport::PROTOCOL;

/// For so long after its log hung a node leads nothing more than it must: what it led went elsewhere, and one that
/// has hung will again.
const HUNG_FOR: Duration = Duration::from_secs(30);

impl Node {
    /// What must hold before this node is sent requests: each by name, and whether it does.
    pub(crate) fn readiness(&self) -> Vec<(&'static str, bool)> {
        let directory = self.inner.directory.current();
        let state = directory.state();
        let registered = state
            .node(self.node_id())
            .is_some_and(|record| record.directory == self.inner.directory_id);
        let led = self.inner.catalog.leadership().leader.is_some();
        let replicas = state.partitions().all(|record| {
            record.replica_on(self.node_id()).is_none()
                || self.local_partition(record.group).is_some()
        });
        vec![
            ("catalog has a leader", led),
            ("node is registered", registered && state.cluster().is_some()),
            ("catalog is caught up", self.is_caught_up()),
            ("replicas are running", replicas),
            (
                "a majority answers",
                self.inner.quorum.as_ref().is_none_or(|clock| clock.hears_majority()),
            ),
            ("clocks agree", self.inner.clock.now().is_sure()),
            ("log is written", self.is_log_written()),
            ("not draining", !self.inner.draining.load(Ordering::SeqCst)),
        ]
    }

    /// False while the disk of the log hangs.
    fn is_log_written(&self) -> bool {
        !self.inner.storage.wal.has_hung(Duration::ZERO)
    }

    /// Brings the gauges up to date, for whoever reads metrics now.
    #[expect(clippy::cast_precision_loss, reason = "gauges are doubles")]
    pub(crate) fn record_gauges(&self) {
        let (protocol, format) = (PROTOCOL.to_string(), FORMAT.to_string());
        let version = env!("CARGO_PKG_VERSION");
        metrics::gauge!("build_info", "version" => version, "protocol" => protocol, "format" => format)
            .set(1.0);
        for (condition, holds) in self.readiness() {
            metrics::gauge!("ready", "condition" => condition).set(f64::from(u8::from(holds)));
        }
        let log = self.inner.storage.wal.stats();
        metrics::counter!("log_syncs_total").absolute(log.syncs);
        metrics::counter!("log_entries_total").absolute(log.entries);
        metrics::counter!("log_bytes_total").absolute(log.bytes);
        metrics::gauge!("log_segments").set(log.segments as f64);
        let usage = self.inner.storage.engine.usage();
        metrics::gauge!("state_disk_bytes").set(usage.disk_bytes as f64);
        metrics::gauge!("state_unflushed_bytes").set(usage.unflushed_bytes as f64);
        let replicas = self.local_partitions();
        let statuses: Vec<GroupStatus> =
            replicas.iter().map(|local| local.group().status()).collect();
        let leads = statuses.iter().filter(|status| status.leadership.is_me).count();
        let items: u64 = replicas.iter().map(|local| local.group().machine().state().items()).sum();
        metrics::gauge!("partition_replicas").set(replicas.len() as f64);
        metrics::gauge!("partition_leaders").set(leads as f64);
        let resting = statuses.iter().filter(|status| status.is_resting).count();
        metrics::gauge!("partition_replicas_resting").set(resting as f64);
        let lag = statuses.iter().chain([&self.inner.catalog.status()]).map(lag_max).max();
        metrics::gauge!("replica_lag_entries_max").set(lag.unwrap_or_default() as f64);
        metrics::gauge!("items_stored").set(items as f64);
        let gauges: Vec<Gauges> =
            replicas.iter().filter_map(|local| local.service().gauges()).collect();
        let request_units = |charges: u64| charges as f64 / 1e6;
        let bank = gauges.iter().map(|leader| leader.bank.0).sum();
        metrics::gauge!("ru_burst_bank").set(request_units(bank));
        let left_over = gauges.iter().map(|leader| leader.left_over.0).sum();
        metrics::gauge!("ttl_leftover_ru").set(request_units(left_over));
        let backlog: u64 = gauges.iter().map(|leader| leader.backlog.items).sum();
        metrics::gauge!("ttl_backlog_items").set(backlog as f64);
        let oldest = gauges.iter().filter_map(|leader| leader.backlog.oldest).min();
        let now = self.inner.clock.now().interval.lo().floor_seconds();
        let overdue = oldest.map_or(0, |oldest| now.0.saturating_sub(oldest.0));
        metrics::gauge!("ttl_oldest_overdue_seconds").set(overdue as f64);
    }

    /// What this node runs.
    pub(crate) fn describe(&self) -> NodeDescription {
        let mut replicas =
            vec![describe_replica(GroupId::CATALOG, self.inner.catalog.status(), None)];
        for local in self.local_partitions() {
            let state = local.group().machine().state();
            let stored =
                Stored { entry: state.lsn().0, items: state.items(), digest: state.digest() };
            let status = local.group().status();
            replicas.push(describe_replica(local.group().group(), status, Some(stored)));
        }
        replicas.sort_by_key(|replica| replica.group);
        NodeDescription {
            node: self.node_id(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            clock: self.inner.quorum.as_ref().and_then(|clock| clock.status()),
            draining: self.inner.draining.load(Ordering::SeqCst),
            hung: self.inner.storage.wal.has_hung(HUNG_FOR),
            replicas,
        }
    }
}

/// How many entries the replica that is farthest behind lacks, if this one leads.
fn lag_max(status: &GroupStatus) -> u64 {
    let last = status.last.unwrap_or_default();
    let lag = |matched: &Option<u64>| last.saturating_sub(matched.unwrap_or_default());
    status.matching.values().map(lag).max().unwrap_or_default()
}

fn describe_replica(
    group: GroupId,
    status: GroupStatus,
    stored: Option<Stored>,
) -> ReplicaDescription {
    ReplicaDescription {
        group,
        replica: status.replica,
        leader: status.leadership.leader,
        term: status.leadership.term,
        last: status.last,
        applied: status.applied,
        stored,
        voters: status.voters,
        is_joint: status.is_joint,
        stopped: status.stopped,
    }
}

#[cfg(test)]
mod tests {
    use ephemeris_store::ids::{NodeId, ReplicaId};
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::config::{NodeConfig, Settings};
    use crate::platform::OperatingSystem;
    use crate::supervisor::Tasks;

    async fn a_node(directory: &tempfile::TempDir) -> Node {
        let data_dir = directory.path().join("data");
        let config = NodeConfig::single(&Settings { data_dir, ..Settings::default() }).unwrap();
        let machine = OperatingSystem::take(&config).unwrap();
        Node::start(&machine, config.clone(), config.http, Tasks::new()).await.unwrap()
    }

    #[tokio::test]
    async fn gauges_tell_what_runs_and_what_it_lacks_to_be_ready() {
        let directory = tempfile::tempdir().unwrap();
        let node = a_node(&directory).await;
        while !node.readiness().iter().all(|(_, holds)| *holds) {
            tokio::task::yield_now().await;
        }
        let recorder = PrometheusBuilder::new().build_recorder();
        let shown = || {
            metrics::with_local_recorder(&recorder, || node.record_gauges());
            recorder.handle().render()
        };
        let ready = shown();
        assert!(ready.contains("\nready{condition=\"not draining\"} 1\n"), "{ready}");
        assert!(ready.contains(&format!("protocol=\"{PROTOCOL}\"")), "{ready}");
        assert!(ready.contains("\nreplica_lag_entries_max 0\n"), "{ready}");
        node.inner.draining.store(true, Ordering::SeqCst);
        let draining = shown();
        assert!(draining.contains("\nready{condition=\"not draining\"} 0\n"), "{draining}");
        assert!(draining.contains("\nready{condition=\"clocks agree\"} 1\n"), "{draining}");
        node.stop().await;
    }

    #[tokio::test]
    async fn lag_is_that_of_the_replica_farthest_behind() {
        let directory = tempfile::tempdir().unwrap();
        let node = a_node(&directory).await;
        let mut status = node.inner.catalog.status();
        node.stop().await;
        status.last = Some(10);
        let replica = |node| ReplicaId { node: NodeId(node), incarnation: 0 };
        status.matching = [(replica(1), Some(10)), (replica(2), Some(4))].into();
        assert_eq!(lag_max(&status), 6);
        status.matching.insert(replica(3), None);
        assert_eq!(lag_max(&status), 10, "it has nothing");
        status.matching.clear();
        assert_eq!(lag_max(&status), 0, "it does not lead");
    }
}
