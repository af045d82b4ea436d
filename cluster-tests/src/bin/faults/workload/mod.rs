//! What clients do while faults happen, and what must hold of what they saw.

mod append;
mod bank;
mod counter;
mod feed;
mod register;
mod session;
mod set;
mod unique;

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::ValueEnum;
use ephemeris_cluster_tests::checker::Tolerance;
use ephemeris_cluster_tests::client::{Answer, Call, Container};
use ephemeris_cluster_tests::history::Operation;
use serde::Serialize;
use serde_json::{Value, json};

use crate::hand::{Hand, Reply};

/// How long it may take until everything is answered once all faults are over.
pub(crate) const RECOVERY: Duration = Duration::from_secs(10);

/// Containers begin with a partition for every 6000 request units a second; without an offer they have
/// one, and nothing is throttled.
const ONE_PARTITION: Option<u32> = None;
const TWO_PARTITIONS: Option<u32> = Some(12_000);

/// The database of all workloads.
const DATABASE: &str = "faults";

/// Something that is being done.
pub(crate) type Doing<'a, T = ()> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What is done, by its number in the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
    /// W1, W3: items that expire, single operations and queries, against a machine that does one thing
    /// after the other.
    Register,
    /// W2: what was inserted is there in the end.
    Set,
    /// W4: lists that grow at their end.
    Append,
    /// W5: transfers in batches leave the sum as it is.
    Bank,
    /// W6: increments are done once.
    Counter,
    /// W7: the feed of all versions has every change once, in order.
    Feed,
    /// W8: sessions read what they wrote, on any replica.
    Session,
    /// W9: a unique value has one owner.
    Unique,
}

impl Kind {
    /// All of them.
    pub(crate) fn all() -> Vec<Kind> {
        Kind::value_variants().to_vec()
    }

    /// Its name on the command line.
    pub(crate) fn option(self) -> String {
        let value = self.to_possible_value().expect("every kind has a name");
        value.get_name().to_string()
    }

    /// The container that it uses, or the first of them.
    pub(crate) fn container(self) -> Container {
        container(&self.option())
    }

    pub(crate) fn workload(self) -> Arc<dyn Workload> {
        match self {
            Kind::Register => Arc::new(register::Register::new()),
            Kind::Set => Arc::new(set::Set::new()),
            Kind::Append => Arc::new(append::Append::new()),
            Kind::Bank => Arc::new(bank::Bank::new()),
            Kind::Counter => Arc::new(counter::Counter::new()),
            Kind::Feed => Arc::new(feed::Feed::new()),
            Kind::Session => Arc::new(session::Session::new()),
            Kind::Unique => Arc::new(unique::Unique::new()),
        }
    }
}

/// What clients do.
pub(crate) trait Workload: Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// How many clients do it.
    fn hands(&self) -> u32;

    /// Makes what it needs, while all is well.
    fn set_up<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, anyhow::Result<()>>;

    /// What a client does next; `which` of them it is.
    fn step<'a>(&'a self, which: u32, hand: &'a mut Hand) -> Doing<'a>;

    /// Looks at everything once more, when all is well again.
    fn settle<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, anyhow::Result<()>>;

    /// Judges what was seen, with clocks that may be off by so much.
    fn judge(&self, tolerance: Tolerance) -> Vec<Finding>;

    /// Requests by key, if it keeps them.
    fn histories(&self) -> Vec<Vec<Operation>> {
        Vec::new()
    }
}

/// What was found out about a property.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    /// As `register: linearizable`.
    pub(crate) property: String,
    /// How many operations it was asked of.
    pub(crate) checked: u64,
    pub(crate) verdict: Outcome,
}

/// A verdict, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Ok,
    Illegal(Vec<String>),
    Unknown(Vec<String>),
}

impl Finding {
    /// A property that holds unless there are reasons why not.
    fn new(property: &str, checked: usize, wrong: Vec<String>) -> Self {
        let verdict = if wrong.is_empty() { Outcome::Ok } else { Outcome::Illegal(wrong) };
        Self { property: property.to_string(), checked: checked as u64, verdict }
    }
}

fn container(name: &str) -> Container {
    Container::new(DATABASE, name)
}

/// Items that clients have created, each under an id of its own.
#[derive(Default)]
struct Created {
    acknowledged: BTreeSet<String>,
    /// Nobody knows.
    unknown: BTreeSet<String>,
}

impl Created {
    /// Takes what came of an attempt; an answer that says it was not created is for the caller to judge.
    fn note(&mut self, id: String, reply: Reply) -> Option<Answer> {
        match reply {
            Reply::Answered(answer) if answer.status != 201 => return Some(answer),
            Reply::Answered(_) => {
                self.acknowledged.insert(id);
            }
            Reply::Unknown => {
                self.unknown.insert(id);
            }
            Reply::Refused => {}
        }
        None
    }

    /// What should be among these and is not, and what should not be and is.
    fn wrong(&self, found: &BTreeSet<&String>) -> Vec<String> {
        let lost = self.acknowledged.iter().filter(|id| !found.contains(id));
        let is_known = |id: &String| self.acknowledged.contains(id) || self.unknown.contains(id);
        let refused = found.iter().filter(|id| !is_known(id));
        lost.map(|id| format!("{id} was acknowledged and is lost"))
            .chain(refused.map(|id| format!("{id} was refused and is there")))
            .collect()
    }
}

/// Stores items that are to be there from the beginning.
async fn store_all(
    hand: &mut Hand,
    container: &Container,
    items: impl Iterator<Item = Value>,
) -> anyhow::Result<()> {
    for item in items {
        let made = hand.insist_answer(&store(container, &item, true), RECOVERY).await?;
        ensure!(made.status < 300, "{item} was answered by {}", made.describe());
    }
    Ok(())
}

/// Makes a container with so many request units a second, and its database if need be.
async fn create_container(
    hand: &mut Hand,
    container: &Container,
    request_units: Option<u32>,
    extra: Value,
) -> anyhow::Result<()> {
    let database = Call::post("/dbs", json!({ "id": DATABASE }).to_string());
    let made = hand.insist_answer(&database, RECOVERY).await?;
    ensure!(matches!(made.status, 201 | 409), "no database: {}", made.describe());
    let mut call = Call::post(format!("/dbs/{DATABASE}/colls"), definition(container, extra));
    if let Some(request_units) = request_units {
        call = call.header("x-ms-offer-throughput", request_units.to_string());
    }
    let made = hand.insist_answer(&call, RECOVERY).await?;
    ensure!(matches!(made.status, 201 | 409), "no container: {}", made.describe());
    Ok(())
}

fn definition(container: &Container, extra: Value) -> String {
    let key = json!({ "paths": ["/pk"], "kind": "Hash", "version": 2 });
    let mut definition = json!({ "id": container.name(), "partitionKey": key });
    if let (Value::Object(extra), Some(members)) = (extra, definition.as_object_mut()) {
        members.extend(extra);
    }
    definition.to_string()
}

/// The request that creates an item, or replaces it if it may.
fn store(container: &Container, item: &Value, may_replace: bool) -> Call {
    let call = Call::post(container.items(), item.to_string())
        .header("content-type", "application/json")
        .key(&item["pk"]);
    if may_replace { call.header("x-ms-documentdb-is-upsert", "True") } else { call }
}

/// The request that changes an item's members.
fn patch(container: &Container, key: &Value, id: &str, operations: &Value) -> Call {
    Call::new(reqwest::Method::PATCH, container.item(id))
        .body(json!({ "operations": operations }).to_string())
        .header("content-type", "application/json_patch+json")
        .key(key)
}

fn query(container: &Container, text: &str) -> Call {
    Call::post(container.items(), json!({ "query": text, "parameters": [] }).to_string())
        .header("content-type", "application/query+json")
        .header("x-ms-documentdb-isquery", "true")
        .header("x-ms-max-item-count", "1000")
}

/// All rows of a query or feed, once all is well.
async fn drain(hand: &mut Hand, call: &Call) -> anyhow::Result<Vec<Value>> {
    let (mut rows, mut next) = (Vec::new(), None::<String>);
    loop {
        let page = match &next {
            Some(token) => call.clone().header("x-ms-continuation", token.clone()),
            None => call.clone(),
        };
        let answer = hand.insist_answer(&page, RECOVERY).await?;
        ensure!(answer.status == 200, "a page was answered by {}", answer.describe());
        let mut body = answer.json();
        rows.append(body["Documents"].as_array_mut().unwrap_or(&mut Vec::new()));
        next = answer.continuation().map(String::from);
        if next.is_none() {
            return Ok(rows);
        }
    }
}
