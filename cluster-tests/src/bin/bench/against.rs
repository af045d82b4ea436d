//! Two builds of the program in turns: the machine's moods come over both.
//!
//! Each has a cluster of its own, and both run all the time. Before a cell is measured on one, both have
//! put away what they were given.

use std::path::Path;

use anyhow::ensure;
use serde_json::json;

use crate::arguments::Arguments;
use crate::plan;
use crate::servers::Servers;
use crate::subject::{Numbers, Stock, Subject, unique_container};
use crate::turns::{Beside, Entrant, measure_in_turns};

/// Measures every cell on this build next to the `other` one.
pub(crate) async fn run(arguments: &Arguments, other: &Path) -> anyhow::Result<Vec<Beside>> {
    ensure!(other.is_file(), "{} is no file", other.display());
    ensure!(arguments.urls.is_empty(), "--against starts both clusters by itself");
    let cells = plan::cells(arguments)?;
    ensure!(!cells.is_empty(), "--against needs a --workload of requests: create, read or mixed");
    let (key, container) = (arguments.account_key(), unique_container("items"));
    let (stock, mut numbers) = (Stock::of(arguments.read_items()), Numbers::default());
    let builds = [arguments.of_binary(other), arguments.clone()];
    let mut clusters = Vec::new();
    for build in &builds {
        clusters.push(Servers::nodes(build, &key, &container, json!({})).await?);
    }
    let mut entrants = Vec::new();
    for (name, servers) in ["other", "this"].into_iter().zip(&clusters) {
        let subject = Subject::new(&container, &key, &servers.targets, stock, &mut numbers);
        subject.store().await?;
        entrants.push(Entrant { name: name.to_string(), servers, subjects: vec![subject] });
    }
    let mut lines = Vec::new();
    for cell in cells {
        lines.extend(measure_in_turns(arguments, cell, &entrants, &mut numbers).await?);
    }
    Ok(lines)
}
