//! What each metric means, as Prometheus shows it. `docs/OPERATIONS.md` tells more.

use metrics::{counter, describe_counter, describe_gauge, describe_histogram};

/// Tells the recorder of all metrics. Counters begin with 0, so that a first event is seen as a change.
pub(super) fn describe() {
    for (name, meaning) in COUNTERS {
        describe_counter!(*name, *meaning);
        counter!(*name).increment(0);
    }
    for (name, meaning) in COUNTERS_WITH_LABELS {
        describe_counter!(*name, *meaning);
    }
    for reason in ["rate", "not_executed"] {
        counter!("ru_throttled_total", "reason" => reason).increment(0);
    }
    for (name, meaning) in GAUGES {
        describe_gauge!(*name, *meaning);
    }
    for (name, meaning) in HISTOGRAMS {
        describe_histogram!(*name, *meaning);
    }
}

type Meanings = &'static [(&'static str, &'static str)];

const COUNTERS: Meanings = &[
    ("log_syncs_total", "Syncs of the write-ahead log."),
    ("log_entries_total", "Entries written to the log, of all groups."),
    ("log_bytes_total", "Bytes written to the log."),
    ("follower_reads_total", "Reads that a replica here answered without leading."),
    ("follower_reads_passed_on_total", "Reads that such a replica left to the leader."),
    (
        "ru_charged_total",
        "Request units of requests that this node answered, as leader or follower.",
    ),
    ("ttl_sweep_ru_total", "Request units of sweeping and index building, charged to nobody."),
    ("ttl_swept_items_total", "Expired items that this node removed as leader."),
    (
        "cleared_items_removed_total",
        "Items deleted by partition key that this node removed as leader.",
    ),
    ("index_built_items_total", "Items entered into new indexes by this node as leader."),
    ("ttl_doubt_waits_total", "Reads that waited for the partition clock."),
    ("ttl_clock_advances_total", "Entries that say how late it is, for such reads."),
    ("ttl_invalid_stored_total", "Writes that stored an invalid ttl while expiry was off."),
    (
        "clock_jumps_vouched_total",
        "Jumps of a partition's clock that a majority of clocks vouched for.",
    ),
    ("clock_jumps_guarded_total", "Jumps of a partition's clock that were not believed."),
    ("clock_steps_distrusted_total", "Steps of the wall clock that a node alone did not believe."),
];

const COUNTERS_WITH_LABELS: Meanings = &[
    ("http_requests_total", "Requests answered, by class of status."),
    ("ru_throttled_total", "Requests answered 429, by reason."),
];

const GAUGES: Meanings = &[
    ("build_info", "1; the labels tell version, protocol and format of the running program."),
    ("ready", "1 if a condition of /readyz holds, else 0."),
    ("log_segments", "Files of the log in use."),
    ("state_disk_bytes", "Bytes of RocksDB's files."),
    ("state_unflushed_bytes", "Bytes applied and not flushed."),
    ("partition_replicas", "Replicas on this node, the catalog apart."),
    ("partition_leaders", "Of them, those that lead."),
    ("partition_replicas_resting", "Of them, those at rest: nothing happens in their groups."),
    (
        "replica_lag_entries_max",
        "Log entries that the replica farthest behind a leader here lacks.",
    ),
    ("items_stored", "Items with rows here, expired and unswept ones included."),
    ("ru_burst_bank", "Request units saved for bursts by the partitions led here."),
    ("ttl_leftover_ru", "Request units left over for background work of the partitions led here."),
    ("ttl_backlog_items", "Expired items not yet removed, in the partitions led here."),
    ("ttl_oldest_overdue_seconds", "Seconds since the oldest of them expired."),
    ("clock_width_alarm", "1 while the clocks are far apart or never agreed, else 0."),
    ("clock_width_seconds", "Width of the interval in which the time is."),
    ("clock_agreed_seconds_ago", "Seconds since a majority of the clocks agreed."),
    (
        "clock_offset_seconds",
        "How far another node's clock is ahead of this one's; NaN once it is gone.",
    ),
];

const HISTOGRAMS: Meanings =
    &[("http_request_seconds", "Seconds from a request's head to its reply's.")];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    fn all() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        [COUNTERS, COUNTERS_WITH_LABELS, GAUGES, HISTOGRAMS].into_iter().flatten()
    }

    fn files(directory: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn counters_are_there_with_their_meaning_before_anything_happens() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let shown = recorder.handle();
        metrics::with_local_recorder(&recorder, describe);
        let shown = shown.render();
        for (name, meaning) in COUNTERS {
            assert!(shown.contains(&format!("# HELP {name} {meaning}\n")), "{name}: {shown}");
            assert!(shown.contains(&format!("\n{name} 0\n")), "{name}: {shown}");
        }
        for reason in ["rate", "not_executed"] {
            let sample = format!("\nru_throttled_total{{reason=\"{reason}\"}} 0\n");
            assert!(shown.contains(&sample), "{shown}");
        }
    }

    #[test]
    fn every_metric_has_a_meaning_here_and_in_the_docs() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let docs = fs::read_to_string(root.join("../docs/OPERATIONS.md")).unwrap();
        for (name, _) in all() {
            let row = format!("| `{name}");
            assert!(docs.contains(&row), "docs/OPERATIONS.md has no row of {name}");
        }
        let mut found = 0;
        for file in files(&root.join("src")) {
            let source = fs::read_to_string(&file).unwrap();
            for macro_name in ["counter!(\"", "gauge!(\"", "histogram!(\""] {
                for (at, _) in source.match_indices(macro_name) {
                    let rest = &source[at + macro_name.len()..];
                    let (name, _) = rest.split_once('"').unwrap();
                    found += 1;
                    assert!(all().any(|(known, _)| *known == name), "{name} has no meaning");
                }
            }
        }
        assert!(found > 20, "only {found} were found");
    }
}
