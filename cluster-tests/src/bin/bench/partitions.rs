//! What many partitions cost: requests that are dealt to 16 of them instead of one, and 100 of which
//! nobody wants anything.
//!
//! 1. `active`: containers of one partition each, on one cluster, once their leaders are spread. One
//!    container alone and all of them get the same load in turns.
//! 2. `idle`: a cluster of its own is left alone for a while, before and after it has that many
//!    partitions with an item in each.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use ephemeris_cluster_tests::client::{AccountKey, Container};
use serde::Serialize;
use serde_json::json;

use crate::arguments::Arguments;
use crate::report::float;
use crate::servers::{Servers, Way};
use crate::subject::{Numbers, Stock, Subject, unique_container};
use crate::turns::{Beside, Entrant, creates_and_reads};

/// Requests under way at the same time, unless the command line says how many.
const CONCURRENCY: [usize; 1] = [64];

/// What was found.
pub(crate) struct Found {
    /// One partition, and the same load on many.
    pub(crate) active: Vec<Beside>,
    pub(crate) idle: IdlePartitions,
}

/// What nodes use while nobody asks for anything, all of them together.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct IdlePartitions {
    partitions: u32,
    seconds: f64,
    /// Processor time in percent of one processor, before there were partitions and with them.
    cpu_percent_before: f64,
    cpu_percent: f64,
    resident_bytes_before: u64,
    resident_bytes: u64,
}

impl IdlePartitions {
    /// The line above all of these.
    pub(crate) fn write_head(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ("idle", "partitions", "seconds", "CPU % before", "CPU %", "MB before", "MB");
        let (idle, partitions, seconds, cpu_before, cpu, before, after) = names;
        writeln!(
            f,
            "{idle:<9} {partitions:>10} {seconds:>7} {cpu_before:>12} {cpu:>7} {before:>9} {after:>9}"
        )
    }
}

impl fmt::Display for IdlePartitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<9} {:>10} {:>7.0} {:>12.2} {:>7.2} {:>9.1} {:>9.1}",
            "",
            self.partitions,
            self.seconds,
            self.cpu_percent_before,
            self.cpu_percent,
            float(self.resident_bytes_before) / 1e6,
            float(self.resident_bytes) / 1e6,
        )
    }
}

/// Measures active and idle partitions.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Found> {
    Ok(Found { active: active(arguments).await?, idle: idle(arguments).await? })
}

async fn active(arguments: &Arguments) -> anyhow::Result<Vec<Beside>> {
    let (key, mut numbers) = (arguments.account_key(), Numbers::default());
    let one = unique_container("one");
    let servers = Servers::nodes(arguments, &key, &one, json!({})).await?;
    let many = servers.make_containers(arguments.partitions).await?;
    servers.await_spread().await?;
    let mut made = async |container: &Container, items| {
        let targets = servers.targets_of(container, Way::Direct).await?;
        let subject = Subject::new(container, &key, &targets, Stock::of(items), &mut numbers);
        subject.store().await?;
        anyhow::Ok(subject)
    };
    let alone = vec![made(&one, arguments.read_items()).await?];
    let mut dealt = Vec::new();
    for container in &many {
        dealt.push(made(container, arguments.read_items().div_ceil(arguments.partitions)).await?);
    }
    let entrant = |name: String, subjects| Entrant { name, servers: &servers, subjects };
    let entrants = [
        entrant("1 partition".to_string(), alone),
        entrant(format!("{} partitions", arguments.partitions), dealt),
    ];
    creates_and_reads(arguments, &CONCURRENCY, &entrants, &mut numbers).await
}

async fn idle(arguments: &Arguments) -> anyhow::Result<IdlePartitions> {
    ensure!(arguments.urls.is_empty(), "idle partitions are measured on nodes of their own");
    let (key, first) = (arguments.account_key(), unique_container("idle"));
    let servers = Servers::nodes(arguments, &key, &first, json!({})).await?;
    let duration = Duration::from_secs(arguments.idle_seconds);
    let (cpu_before, bytes_before) = left_alone(&servers, duration).await?;
    let containers = servers.make_containers(arguments.idle_partitions).await?;
    servers.await_spread().await?;
    store_one_each(&servers, &key, &containers).await?;
    let (cpu, bytes) = left_alone(&servers, duration).await?;
    let percent = |cpu: Duration| 100.0 * cpu.as_secs_f64() / duration.as_secs_f64();
    Ok(IdlePartitions {
        partitions: arguments.idle_partitions,
        seconds: duration.as_secs_f64(),
        cpu_percent_before: percent(cpu_before),
        cpu_percent: percent(cpu),
        resident_bytes_before: bytes_before,
        resident_bytes: bytes,
    })
}

/// An item in every partition, so that none is as it was made.
async fn store_one_each(
    servers: &Servers,
    key: &AccountKey,
    containers: &[Container],
) -> anyhow::Result<()> {
    let mut numbers = Numbers::default();
    for container in containers {
        let targets = servers.targets_of(container, Way::Direct).await?;
        Subject::new(container, key, &targets, Stock::of(1), &mut numbers).store().await?;
    }
    Ok(())
}

/// Processor time that nodes use while nobody asks for anything, and their memory afterwards.
async fn left_alone(servers: &Servers, duration: Duration) -> anyhow::Result<(Duration, u64)> {
    servers.rest().await;
    let here = "what nodes use is told on their machine";
    let before = servers.usage().context(here)?;
    tokio::time::sleep(duration).await;
    let used = servers.usage().context(here)? - before;
    Ok((used.cpu, used.resident_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_partitions_are_told_in_percent_of_a_processor() {
        let idle = IdlePartitions {
            partitions: 100,
            seconds: 20.0,
            cpu_percent_before: 0.25,
            cpu_percent: 2.5,
            resident_bytes_before: 50_000_000,
            resident_bytes: 62_000_000,
        };
        let line = idle.to_string();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["100", "20", "0.25", "2.50", "50.0", "62.0"]);
    }
}
