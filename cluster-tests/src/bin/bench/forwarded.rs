//! What it costs to ask a node that does not lead: the same requests to the leader and to the others.
//!
//! At Strong consistency, unless the command line says otherwise: at other levels followers answer reads
//! by themselves, and nothing is forwarded but writes.

use serde_json::json;

use crate::arguments::Arguments;
use crate::servers::{Servers, Way};
use crate::subject::{Numbers, Stock, Subject, unique_container};
use crate::turns::{Beside, Entrant, creates_and_reads};

/// Requests under way at the same time, unless the command line says how many.
const CONCURRENCY: [usize; 1] = [64];
/// How fresh reads are, unless the command line says.
const CONSISTENCY: &str = "Strong";

/// Measures both ways at each concurrency.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Vec<Beside>> {
    let arguments = &arguments.at_consistency(CONSISTENCY);
    let (key, container) = (arguments.account_key(), unique_container("forwarded"));
    let servers = Servers::nodes(arguments, &key, &container, json!({})).await?;
    let (stock, mut numbers) = (Stock::of(arguments.read_items()), Numbers::default());
    let targets = servers.targets_of(&container, Way::Direct).await?;
    let direct = Subject::new(&container, &key, &targets, stock, &mut numbers);
    direct.store().await?;
    let forwarded = direct.through(&servers.targets_of(&container, Way::Forwarded).await?);
    let entrants = [("direct", direct), ("forwarded", forwarded)].map(|(name, subject)| Entrant {
        name: name.to_string(),
        servers: &servers,
        subjects: vec![subject],
    });
    creates_and_reads(arguments, &CONCURRENCY, &entrants, &mut numbers).await
}
