//! What transactional batches gain: creates in batches of 100, next to the same creates one by one.

use std::fmt;

use anyhow::bail;
use ephemeris_cluster_tests::client::Container;
use serde::Serialize;
use serde_json::json;

use crate::arguments::Arguments;
use crate::plan::measure;
use crate::report::{Run, Server, shown};
use crate::servers::Servers;
use crate::sources::Creates;
use crate::subject::WORKERS_MAX;

/// Items of one batch: the most there may be.
const BATCH_ITEMS: u32 = 100;
/// Requests under way at the same time, unless the command line says how many.
const CONCURRENCY: [usize; 2] = [1, 16];

/// What was found.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) runs: Vec<Run>,
    pub(crate) gains: Vec<BatchGain>,
}

/// Items stored by batches, next to as many requests that store one each.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BatchGain {
    concurrency: usize,
    single_items_per_second: f64,
    batch_items_per_second: f64,
    /// Processor time of all nodes for one item; none if they are not on this machine.
    single_cpu_us: Option<f64>,
    batch_cpu_us: Option<f64>,
}

impl BatchGain {
    fn new(single: &Run, batch: &Run) -> Self {
        let items = f64::from(BATCH_ITEMS);
        Self {
            concurrency: batch.concurrency,
            single_items_per_second: single.per_second,
            batch_items_per_second: batch.per_second * items,
            single_cpu_us: single.server_cpu_per_operation(),
            batch_cpu_us: batch.server_cpu_per_operation().map(|cpu| cpu / items),
        }
    }

    fn ratio(&self) -> f64 {
        self.batch_items_per_second / self.single_items_per_second.max(f64::MIN_POSITIVE)
    }

    /// The line above all gains.
    pub(crate) fn write_head(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            ("batch", "conc", "single items/s", "batch items/s", "ratio", "CPU µs", "CPU µs");
        let (batch, concurrency, single, batched, ratio, single_cpu, batch_cpu) = names;
        writeln!(
            f,
            "{batch:<9} {concurrency:>5} {single:>14} {single_cpu:>7} {batched:>14} {batch_cpu:>7} \
             {ratio:>7}"
        )
    }
}

impl fmt::Display for BatchGain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<9} {:>5} {:>14.0} {:>7} {:>14.0} {:>7} {:>7.1}",
            "",
            self.concurrency,
            self.single_items_per_second,
            shown(self.single_cpu_us, 1),
            self.batch_items_per_second,
            shown(self.batch_cpu_us, 1),
            self.ratio(),
        )
    }
}

/// Creates items one by one and in batches, at each concurrency.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Found> {
    let key = arguments.account_key();
    let container = Container::new("bench", &format!("batch-{:08x}", rand::random::<u32>()));
    let servers = Servers::nodes(arguments, &key, &container, json!({})).await?;
    let target = servers.targets[0];
    let create = |worker| (target, Creates::new(target, &container, &key, worker));
    let create_batch =
        |worker| (target, Creates::batches(target, &container, &key, BATCH_ITEMS, worker));
    let mut found = Found::default();
    for (round, concurrency) in (0..).zip(arguments.concurrency_or(&CONCURRENCY)) {
        // Numbers that no other run's workers have.
        let workers = |run: u64| (run * WORKERS_MAX..).take(*concurrency);
        let sources = workers(2 * round).map(create).collect();
        let single = measure(arguments, &servers, Server::Ephemeris, "single", sources).await;
        let sources = workers(2 * round + 1).map(create_batch).collect();
        let batch = measure(arguments, &servers, Server::Ephemeris, "batch", sources).await;
        for run in [&single, &batch] {
            if !run.unexpected.is_empty() {
                bail!("{} was answered badly: {:?}", run.workload, run.unexpected);
            }
        }
        found.gains.push(BatchGain::new(&single, &batch));
        found.runs.extend([single, batch]);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;

    #[test]
    fn a_gain_is_told_by_items_not_by_requests() {
        let single = run(Server::Ephemeris, 1000.0, 100);
        let batch = run(Server::Ephemeris, 80.0, 2000);
        let line = BatchGain::new(&single, &batch).to_string();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["4", "1000", "100.0", "8000", "20.0", "8.0"]);
    }
}
