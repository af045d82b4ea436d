//! What a time to live costs where nothing expires: the same requests to containers that differ in
//! nothing else.
//!
//! 1. Four containers on one cluster: `off` and `off again` without TTL, `on` with default -1, and
//!    `far` whose items expire in 31 years.
//! 2. They are measured in turns. What `off again` differs from `off` by is chance, and as much may be in
//!    the other numbers.

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::servers::Servers;
use crate::subject::{Numbers, Stock, Subject, unique_container};
use crate::turns::{Beside, Entrant, creates_and_reads};

/// Requests under way at the same time, unless the command line says how many.
const CONCURRENCY: [usize; 1] = [64];
/// A default that is no concern of anybody who measures, in seconds.
const FAR_SECONDS: u32 = 1_000_000_000;

/// The containers, `off` first.
fn definitions() -> [(&'static str, Value); 4] {
    [
        ("off", json!({})),
        ("off again", json!({})),
        ("on", json!({ "defaultTtl": -1 })),
        ("far", json!({ "defaultTtl": FAR_SECONDS })),
    ]
}

/// Measures all containers at each concurrency.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Vec<Beside>> {
    let (key, stock) = (arguments.account_key(), Stock::of(arguments.read_items()));
    let mut numbers = Numbers::default();
    let (mut started, mut subjects) = (None, Vec::new());
    for (name, definition) in definitions() {
        let container = unique_container(&name.replace(' ', "-"));
        let servers: &mut Servers = match &mut started {
            None => started.insert(Servers::nodes(arguments, &key, &container, definition).await?),
            Some(servers) => {
                servers.turn_to(arguments, &container, definition).await?;
                servers
            }
        };
        let subject = Subject::new(&container, &key, &servers.targets, stock, &mut numbers);
        subject.store().await?;
        subjects.push(subject);
    }
    let servers = started.context("there is no container to measure")?;
    let entrant = |((name, _), subject)| {
        let name: &str = name;
        Entrant { name: name.to_string(), servers: &servers, subjects: vec![subject] }
    };
    let entrants: Vec<Entrant> = definitions().into_iter().zip(subjects).map(entrant).collect();
    creates_and_reads(arguments, &CONCURRENCY, &entrants, &mut numbers).await
}
