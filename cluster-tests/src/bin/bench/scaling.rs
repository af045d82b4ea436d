//! How cost grows: creates and reads while one thing is varied and all others stay.
//!
//! Each point has a cluster of its own: nodes, containers of one partition each, items stored over them.
//! Once the nodes have put them away, 64 connections create, and then read. What is varied begins at the
//! same point, so that its lines can be put next to each other.

use std::fmt;

use anyhow::ensure;
use clap::ValueEnum;
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::json;

use crate::arguments::{Arguments, Workload};
use crate::plan::{Cell, measure};
use crate::report::{Run, Server, float, shown};
use crate::servers::Servers;
use crate::sources::ITEM_BYTES;
use crate::subject::{Numbers, Stock, Subject, unique_container};
use crate::turns::Entrant;

/// Requests under way at the same time, unless the command line says how many.
const CONCURRENCY: [usize; 1] = [64];
/// Items that differ in size: few, for the largest take 100 KB.
const SIZED_ITEMS: u32 = 1000;

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Axis {
    /// 1, 3 and 5 nodes.
    Nodes,
    /// 1 to 64 partitions.
    Partitions,
    /// 10,000 to 2,000,000 items.
    Items,
    /// Items of 100 bytes to 100 KB.
    Bytes,
}

impl Axis {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Nodes, Self::Partitions, Self::Items, Self::Bytes];

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Axis::Nodes => "nodes",
            Axis::Partitions => "partitions",
            Axis::Items => "items",
            Axis::Bytes => "bytes",
        }
    }

    /// Its points.
    fn points(self) -> Vec<Point> {
        match self {
            Axis::Nodes => [1, 3, 5].map(|nodes| Point { nodes, ..BASE }).to_vec(),
            Axis::Partitions => {
                [1, 4, 16, 64].map(|partitions| Point { partitions, ..BASE }).to_vec()
            }
            Axis::Items => [10_000, 100_000, 1_000_000, 2_000_000]
                .map(|items| Point { items, ..BASE })
                .to_vec(),
            Axis::Bytes => {
                let sized = |item_bytes| Point { items: SIZED_ITEMS, item_bytes, ..BASE };
                [100, ITEM_BYTES, 10_000, 100_000].map(sized).to_vec()
            }
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Everything that can be varied.
#[derive(Clone, Copy, Debug, Serialize)]
struct Point {
    nodes: u32,
    partitions: u32,
    items: u32,
    item_bytes: usize,
}

/// Where each axis begins, or what it passes.
const BASE: Point = Point { nodes: 3, partitions: 1, items: 10_000, item_bytes: ITEM_BYTES };

/// Creates and reads at one point.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Scaled {
    axis: Axis,
    point: Point,
    create: Run,
    read: Run,
}

impl Scaled {
    /// The line above all of these.
    pub(crate) fn write_head(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<10} {:>5} {:>10} {:>8} {:>7} {:>5} {:>9} {:>7} {:>9} {:>9} {:>7} {:>9} {:>6}",
            "scaling",
            "nodes",
            "partitions",
            "items",
            "bytes",
            "conc",
            "creates/s",
            "p99 ms",
            "CPU µs/op",
            "reads/s",
            "p99 ms",
            "CPU µs/op",
            "MB",
        )
    }
}

impl fmt::Display for Scaled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Point { nodes, partitions, items, item_bytes } = self.point;
        let millis = |run: &Run| run.p99.as_secs_f64() * 1e3;
        let cpu = |run: &Run| shown(run.server_cpu_per_operation(), 1);
        let megabytes = self.read.resident_bytes.map(|bytes| float(bytes) / 1e6);
        writeln!(
            f,
            "{:<10} {:>5} {:>10} {:>8} {:>7} {:>5} {:>9.0} {:>7.1} {:>9} {:>9.0} {:>7.1} {:>9} {:>6}",
            self.axis.name(),
            nodes,
            partitions,
            items,
            item_bytes,
            self.create.concurrency,
            self.create.per_second,
            millis(&self.create),
            cpu(&self.create),
            self.read.per_second,
            millis(&self.read),
            cpu(&self.read),
            shown(megabytes, 0),
        )
    }
}

/// Measures every point of every axis that is wanted, of no more items than `--items`.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Vec<Scaled>> {
    ensure!(arguments.urls.is_empty(), "scaling starts its nodes by itself");
    let progress = ProgressBar::new_spinner();
    let mut scaled = Vec::new();
    for axis in &arguments.axis {
        let points = axis.points().into_iter();
        for point in points.filter(|point| point.items <= arguments.items_or(u32::MAX)) {
            progress.set_message(format!("{axis}: {point:?}"));
            progress.tick();
            scaled.extend(measure_point(arguments, *axis, point).await?);
        }
    }
    progress.finish_and_clear();
    Ok(scaled)
}

async fn measure_point(
    arguments: &Arguments,
    axis: Axis,
    point: Point,
) -> anyhow::Result<Vec<Scaled>> {
    let arguments = &arguments.of_nodes(point.nodes);
    let (key, first) = (arguments.account_key(), unique_container("scaling"));
    let servers = Servers::nodes(arguments, &key, &first, json!({})).await?;
    let mut containers = vec![first];
    containers.extend(servers.make_containers(point.partitions - 1).await?);
    if containers.len() > 1 {
        servers.await_spread().await?;
    }
    let items = point.items.div_ceil(point.partitions);
    let (stock, mut numbers) = (Stock { items, item_bytes: point.item_bytes }, Numbers::default());
    let mut subjects = Vec::new();
    for container in &containers {
        let targets = servers.targets_of(container, arguments.way()).await?;
        let subject = Subject::new(container, &key, &targets, stock, &mut numbers);
        subject.store().await?;
        subjects.push(subject);
    }
    let entrant = Entrant { name: axis.to_string(), servers: &servers, subjects };
    let mut scaled = Vec::new();
    for concurrency in arguments.concurrency_or(&CONCURRENCY) {
        let mut measured = async |workload: Workload| {
            servers.rest().await;
            let cell = Cell::new(workload, *concurrency);
            let sources = entrant.sources(cell, &mut numbers);
            let run =
                measure(arguments, &servers, Server::Ephemeris, workload.name(), sources).await;
            let bad = &run.unexpected;
            ensure!(bad.is_empty(), "{point:?} was answered badly: {bad:?}");
            anyhow::Ok(run)
        };
        let create = measured(Workload::Create).await?;
        let read = measured(Workload::Read).await?;
        scaled.push(Scaled { axis, point, create, read });
    }
    Ok(scaled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;

    #[test]
    fn an_axis_varies_one_thing() {
        for axis in Axis::ALL {
            let points = axis.points();
            let differ = |of: fn(&Point) -> u64| points.iter().any(|p| of(p) != of(&points[0]));
            let varied = [
                differ(|point| point.nodes.into()),
                differ(|point| point.partitions.into()),
                differ(|point| point.items.into()),
                differ(|point| point.item_bytes as u64),
            ];
            assert_eq!(varied.iter().filter(|varies| **varies).count(), 1, "{axis}");
        }
    }

    #[test]
    fn a_point_tells_creates_and_reads() {
        let (create, read) = (run(Server::Ephemeris, 100.0, 40), run(Server::Ephemeris, 400.0, 10));
        let line = Scaled { axis: Axis::Nodes, point: BASE, create, read }.to_string();
        let cells: Vec<&str> = line.split_whitespace().collect();
        let expected = [
            "nodes", "3", "1", "10000", "1024", "4", "100", "0.1", "40.0", "400", "0.1", "10.0",
            "5",
        ];
        assert_eq!(cells, expected);
    }
}
