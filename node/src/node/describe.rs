//! What a node says of itself.

use std::sync::atomic::Ordering;

use ephemeris_raft::GroupStatus;
use ephemeris_store::ids::GroupId;

use super::Node;
use crate::partition::Gauges;
use crate::requests::{NodeDescription, ReplicaDescription, Stored};

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
            ("clocks agree", self.inner.clock.now().is_sure()),
            ("not draining", !self.inner.draining.load(Ordering::SeqCst)),
        ]
    }

    /// Brings the gauges up to date, for whoever reads metrics now.
    #[expect(clippy::cast_precision_loss, reason = "gauges are doubles")]
    pub(crate) fn record_gauges(&self) {
        let log = self.inner.storage.wal.stats();
        metrics::counter!("log_syncs_total").absolute(log.syncs);
        metrics::counter!("log_entries_total").absolute(log.entries);
        metrics::counter!("log_bytes_total").absolute(log.bytes);
        metrics::gauge!("log_segments").set(log.segments as f64);
        let usage = self.inner.storage.engine.usage();
        metrics::gauge!("state_disk_bytes").set(usage.disk_bytes as f64);
        metrics::gauge!("state_unflushed_bytes").set(usage.unflushed_bytes as f64);
        let replicas = self.local_partitions();
        let leads = replicas.iter().filter(|local| local.group().leadership().is_me).count();
        let items: u64 = replicas.iter().map(|local| local.group().machine().state().items()).sum();
        metrics::gauge!("partition_replicas").set(replicas.len() as f64);
        metrics::gauge!("partition_leaders").set(leads as f64);
        let resting = replicas.iter().filter(|local| local.group().status().is_resting).count();
        metrics::gauge!("partition_replicas_resting").set(resting as f64);
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
            url: self.inner.url.clone(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            clock: self.inner.quorum.as_ref().and_then(|clock| clock.status()),
            draining: self.inner.draining.load(Ordering::SeqCst),
            replicas,
        }
    }
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
        learners: status.learners,
        stopped: status.stopped,
    }
}
