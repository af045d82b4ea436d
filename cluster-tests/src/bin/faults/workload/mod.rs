//! What clients do while faults happen, and what must hold of what they saw.

mod append;
mod bank;
mod clear;
mod counter;
mod feed;
mod register;
mod session;
mod set;
mod unique;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::ValueEnum;
use ephemeris_cluster_tests::checker::Tolerance;
use ephemeris_cluster_tests::client::{Answer, Call, Container};
use ephemeris_cluster_tests::history::{Nanos, Operation, SECOND};
use serde::Serialize;
use serde_json::{Value, json};

use crate::hand::Hand;

/// How long it may take until everything is answered once all faults are over.
pub(crate) const RECOVERY: Duration = Duration::from_secs(10);

/// Containers begin with a partition for every 6000 request units a second; without an offer they have
/// one, and nothing is throttled.
const ONE_PARTITION: Option<u32> = None;
const TWO_PARTITIONS: Option<u32> = Some(12_000);

/// Rows of a page where nothing is to be learnt from small ones.
const PAGE_ROWS: u32 = 1000;

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
    /// W8: sessions read what they wrote, on any replica, until it expires.
    Session,
    /// W9: a unique value has one owner at a time.
    Unique,
    /// W10: what is deleted by its partition key is gone, all of it.
    Clear,
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
            Kind::Clear => Arc::new(clear::Clear::new()),
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
    pub(crate) fn new(property: &str, checked: usize, wrong: Vec<String>) -> Self {
        let verdict = if wrong.is_empty() { Outcome::Ok } else { Outcome::Illegal(wrong) };
        Self { property: property.to_string(), checked: checked as u64, verdict }
    }

    /// The same, but nobody knows whether it holds if nobody has looked at what there is in the end.
    pub(crate) fn if_looked(self, has_looked: bool) -> Self {
        if has_looked || self.verdict != Outcome::Ok {
            return self;
        }
        let why = "nobody has looked at what there is in the end".to_string();
        Self { verdict: Outcome::Unknown(vec![why]), ..self }
    }
}

fn container(name: &str) -> Container {
    Container::new(DATABASE, name)
}

/// When the time of a version is over.
#[derive(Clone, Copy)]
struct End {
    /// Before that for nobody.
    earliest: Nanos,
    /// For every read that is asked for later.
    for_reads: Nanos,
    /// For every write that is asked for later: it goes by the clock of whoever proposed it, which may lag.
    for_writes: Nanos,
}

impl End {
    const NEVER: Self =
        Self { earliest: Nanos::MAX, for_reads: Nanos::MAX, for_writes: Nanos::MAX };

    /// By a version's stamp and its time to live.
    fn of(ts: u64, ttl: Option<u64>, Tolerance { skew, width }: Tolerance) -> Self {
        let Some(ttl) = ttl else { return Self::NEVER };
        let second = (ts + ttl) * SECOND;
        Self {
            earliest: second.saturating_sub(skew),
            for_reads: second + skew,
            for_writes: second + skew + width,
        }
    }
}

/// An item with its time to live, if it has one.
fn with_ttl(mut item: Value, ttl: Option<u64>) -> Value {
    if let Some(ttl) = ttl {
        item["ttl"] = json!(ttl);
    }
    item
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

/// The request that replaces an item.
fn replace(container: &Container, id: &str, item: &Value) -> Call {
    Call::put(container.item(id), item.to_string())
        .header("content-type", "application/json")
        .key(&item["pk"])
}

/// The request that changes an item's members.
fn patch(container: &Container, key: &Value, id: &str, operations: &Value) -> Call {
    Call::new(reqwest::Method::PATCH, container.item(id))
        .body(json!({ "operations": operations }).to_string())
        .header("content-type", "application/json_patch+json")
        .key(key)
}

fn query(container: &Container, text: &str, page_rows: u32) -> Call {
    Call::post(container.items(), json!({ "query": text, "parameters": [] }).to_string())
        .header("content-type", "application/query+json")
        .header("x-ms-documentdb-isquery", "true")
        .header("x-ms-max-item-count", page_rows.to_string())
}

/// The request for a page: for the first, or for the one where another said to go on.
fn page(call: &Call, token: Option<&str>) -> Call {
    match token {
        Some(token) => call.clone().header("x-ms-continuation", token),
        None => call.clone(),
    }
}

/// The rows of a page.
fn rows(answer: &Answer) -> Vec<Value> {
    let mut body = answer.json();
    let rows = body.get_mut("Documents").and_then(Value::as_array_mut);
    rows.map(std::mem::take).unwrap_or_default()
}

/// All items of a container, once all is well; none if a page was answered as it should not be.
pub(crate) async fn drain(
    hand: &mut Hand,
    container: &Container,
) -> anyhow::Result<Option<Vec<Value>>> {
    let feed = Call::get(container.items()).header("x-ms-max-item-count", PAGE_ROWS.to_string());
    let (mut items, mut next) = (Vec::new(), None::<String>);
    loop {
        let answer = hand.insist_answer(&page(&feed, next.as_deref()), RECOVERY).await?;
        if answer.status != 200 {
            hand.shared.complain(format!("a page was answered by {}", answer.describe()));
            return Ok(None);
        }
        items.extend(rows(&answer));
        next = answer.continuation().map(String::from);
        if next.is_none() {
            return Ok(Some(items));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_looked_at_is_not_known_to_be_right() {
        let right = || Finding::new("all is well", 3, Vec::new());
        assert_eq!(right().if_looked(true).verdict, Outcome::Ok);
        assert!(matches!(right().if_looked(false).verdict, Outcome::Unknown(_)));
        let wrong = Finding::new("all is well", 3, vec!["lost".to_string()]);
        assert!(matches!(wrong.if_looked(false).verdict, Outcome::Illegal(_)));
    }

    #[test]
    fn a_version_is_over_at_its_second_for_reads_and_a_little_later_for_writes() {
        let tolerance = Tolerance { skew: 1, width: 10 };
        let end = End::of(5, Some(2), tolerance);
        let second = 7 * SECOND;
        assert_eq!(
            (end.earliest, end.for_reads, end.for_writes),
            (second - 1, second + 1, second + 11)
        );
        assert_eq!(End::of(5, None, tolerance).for_reads, Nanos::MAX);
    }
}
