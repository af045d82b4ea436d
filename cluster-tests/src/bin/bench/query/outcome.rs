//! What queries cost, as lines of a table and as JSON.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::per_core_second;
use crate::report::shown;
use crate::servers::Reading;

/// One query, asked again and again.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct QueryCost {
    name: &'static str,
    /// Items it passes over.
    items: u64,
    queries: u64,
    /// From one answer to the next, in microseconds.
    apart_us: f64,
    /// Processor time of all nodes, in microseconds; none if they are not on this machine.
    server_cpu_us: Option<f64>,
    /// Items passed in a second of processor time.
    items_per_core_second: Option<f64>,
    /// Memory of all nodes afterwards.
    resident_bytes: Option<u64>,
}

#[expect(clippy::cast_precision_loss, reason = "counts stay below 2^52")]
fn each(total: Duration, count: u64) -> f64 {
    total.as_secs_f64() * 1e6 / count.max(1) as f64
}

impl QueryCost {
    pub(super) fn new(
        name: &'static str,
        items: u64,
        queries: u64,
        elapsed: Duration,
        before: Reading,
        after: Reading,
    ) -> Self {
        let used = after.usage.zip(before.usage).map(|(after, before)| after - before);
        Self {
            name,
            items,
            queries,
            apart_us: each(elapsed, queries),
            server_cpu_us: used.map(|used| each(used.cpu, queries)),
            items_per_core_second: used.map(|used| per_core_second(items * queries, used.cpu)),
            resident_bytes: used.map(|used| used.resident_bytes),
        }
    }

    /// Writes a table; the first line is that of point reads, to which others are compared.
    pub(crate) fn write_table(costs: &[Self], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<15} {:>9} {:>8} {:>12} {:>12} {:>8} {:>14} {:>8}",
            "query", "items", "queries", "apart us", "CPU us", "x read", "items/s core", "RSS MB"
        )?;
        let read = costs.first().and_then(|read| read.server_cpu_us);
        for cost in costs {
            let ratio = cost.server_cpu_us.zip(read).map(|(cost, read)| cost / read);
            #[expect(clippy::cast_precision_loss, reason = "memory stays below 2^52 bytes")]
            let resident = cost.resident_bytes.map(|bytes| bytes as f64 / 1e6);
            writeln!(
                f,
                "{:<15} {:>9} {:>8} {:>12.0} {:>12} {:>8} {:>14} {:>8}",
                cost.name,
                cost.items,
                cost.queries,
                cost.apart_us,
                shown(cost.server_cpu_us, 0),
                shown(ratio, 2),
                shown(cost.items_per_core_second, 0),
                shown(resident, 0),
            )?;
        }
        Ok(())
    }
}
