//! What the tests share: clients of a running cluster, databases of their own, and waits.

use std::env;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use azure_core::credentials::Secret;
use azure_core::http::Etag;
use azure_data_cosmos::clients::{ContainerClient, DatabaseClient};
use azure_data_cosmos::feed::FeedScope;
use azure_data_cosmos::models::{
    ContainerProperties, ThroughputProperties, TimeToLive, TransactionalBatchOperationResult,
    TransactionalBatchResponse,
};
use azure_data_cosmos::options::{
    ContentResponseOnWrite, CreateContainerOptions, ItemWriteOptions, MaxItemCountHint,
    OperationOptions, OperationOptionsBuilder, Precondition, Region,
};
use azure_data_cosmos::{
    AccountEndpoint, AccountReference, CosmosClient, CosmosError, CosmosRuntime, Query,
    RoutingStrategy,
};
use futures_util::{FutureExt, TryStreamExt};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

/// The nodes of the cluster, which the SDK takes for regions.
pub const NODES: [&str; 3] = ["node1", "node2", "node3"];
/// As much makes a container of two partitions.
pub const TWO_PARTITIONS_RU: u64 = 12_000;
/// The longest that anything may take that is waited for.
pub const WAIT_MAX: Duration = Duration::from_mins(1);
/// How often it is looked at.
pub const POLL: Duration = Duration::from_millis(10);
/// Nodes and tests share one clock; an expired item may still be seen for as long as a read takes.
pub const LATE_MAX: Duration = Duration::from_millis(500);

const URL: &str = "http://127.0.0.1:8081";
const EMULATOR_KEY: &str =
    "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw==";

/// A client that asks the first node, and goes on with another one when it dies.
pub async fn connect() -> Result<CosmosClient> {
    connect_to(0).await
}

/// A client that asks one of [`NODES`] first.
pub async fn connect_to(node: usize) -> Result<CosmosClient> {
    connect_with(node, &env::var("EPHEMERIS_KEY").unwrap_or_else(|_| EMULATOR_KEY.into())).await
}

/// A client with a key of the caller's choice.
pub async fn connect_with(node: usize, key: &str) -> Result<CosmosClient> {
    let url = env::var("EPHEMERIS_URL").unwrap_or_else(|_| URL.into());
    let endpoint: AccountEndpoint = url.parse()?;
    let account = AccountReference::with_authentication_key(endpoint, Secret::from(key.to_owned()));
    let mut nodes = NODES.map(Region::from).to_vec();
    nodes.rotate_left(node);
    let writes_answer = OperationOptionsBuilder::new()
        .with_content_response_on_write(ContentResponseOnWrite::Enabled);
    // The tasks of the SDK's runtime end with the test that it was made for.
    let client = CosmosClient::builder()
        .with_runtime(CosmosRuntime::builder().build().await?)
        .with_default_operation_options(writes_answer.build())
        .build(account, RoutingStrategy::PreferredRegions(nodes))
        .await?;
    Ok(client)
}

/// Sends a request to one of [`NODES`] and to no other.
pub fn through(node: &str) -> OperationOptions {
    let others = NODES.into_iter().filter(|other| *other != node).map(Region::from);
    OperationOptionsBuilder::new().with_excluded_regions(others.collect()).build()
}

/// A database that is there for one test.
pub struct Database {
    /// Who made it.
    pub client: CosmosClient,
    /// Its unique name.
    pub name: String,
}

impl Database {
    /// The database itself.
    pub fn here(&self) -> DatabaseClient {
        self.client.database_client(&self.name)
    }

    /// Makes a container without a throughput, and so without a limit.
    pub async fn create(&self, properties: ContainerProperties) -> Result<ContainerClient> {
        self.create_with(properties, None).await
    }

    /// Makes a container with a throughput.
    pub async fn create_with(
        &self,
        properties: ContainerProperties,
        throughput: Option<ThroughputProperties>,
    ) -> Result<ContainerClient> {
        let name = properties.id.clone().into_owned();
        let options = throughput.map(|it| CreateContainerOptions::default().with_throughput(it));
        self.here().create_container(properties, options).await?;
        Ok(self.here().container_client(name, None).await?)
    }
}

/// Runs a test on a database of its own, which is deleted however the test ends.
pub async fn with_database(test: impl AsyncFnOnce(&Database) -> Result<()>) -> Result<()> {
    let database = Database { client: connect().await?, name: format!("rust-{}", Uuid::new_v4()) };
    database.client.create_database(&database.name, None).await?;
    let ended = AssertUnwindSafe(test(&database)).catch_unwind().await;
    let deleted = database.here().delete(None).await;
    ended.unwrap_or_else(|panic| resume_unwind(panic))?;
    deleted?;
    Ok(())
}

/// Runs a test on a container of its own.
pub async fn with_container(test: impl AsyncFnOnce(&ContainerClient) -> Result<()>) -> Result<()> {
    with_database(async |database| test(&database.create(definition("c")).await?).await).await
}

/// A container with partition keys at `/pk`, whose items expire if they have a `ttl`.
pub fn definition(name: &str) -> ContainerProperties {
    ContainerProperties::new(name.to_owned(), "/pk".into()).with_default_ttl(TimeToLive::NoDefault)
}

/// The status of a call that must be refused.
#[track_caller]
pub fn refused<T>(call: Result<T, CosmosError>) -> u16 {
    match call {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error.status().into(),
    }
}

/// Everything that a query finds.
pub async fn find(
    items: &ContainerClient,
    query: impl Into<Query>,
    scope: FeedScope,
) -> Result<Vec<Value>, CosmosError> {
    items.query_items(query, scope, None).await?.try_collect().await
}

/// Whether every operation of a batch was done.
pub fn all_done(batch: &TransactionalBatchResponse) -> bool {
    batch.results().iter().all(TransactionalBatchOperationResult::is_success)
}

/// Holds as long as nobody else has written the item.
pub fn unchanged(item: &Value) -> Precondition {
    Precondition::if_match(Etag::from(text(item, "_etag").to_owned()))
}

/// Writes only if nobody else has written the item.
pub fn if_unchanged(item: &Value) -> ItemWriteOptions {
    ItemWriteOptions::default().with_precondition(unchanged(item))
}

/// Pages of at most so many rows.
pub fn rows_max(rows: u32) -> MaxItemCountHint {
    MaxItemCountHint::Limit(NonZeroU32::new(rows).expect("a page has at least one row"))
}

/// The time since 1970, which `_ts` counts in seconds.
pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970")
}

/// Waits until a second has come.
pub async fn await_second(second: u64) {
    sleep(Duration::from_secs(second).saturating_sub(now())).await;
}

/// Waits until something is true.
pub async fn await_that(
    what: &str,
    mut condition: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + WAIT_MAX;
    while !condition().await? {
        anyhow::ensure!(Instant::now() < deadline, "in {WAIT_MAX:?} it did not happen: {what}");
        sleep(POLL).await;
    }
    Ok(())
}

/// The instant, in seconds since 1970, at which an item expires that has a `ttl` of its own.
pub fn due(item: &Value) -> u64 {
    number(item, "_ts") + number(item, "ttl")
}

/// A whole number that an item holds.
#[track_caller]
pub fn number(item: &Value, name: &str) -> u64 {
    item[name].as_u64().unwrap_or_else(|| panic!("{name} is no number: {item}"))
}

/// A text that an item holds.
#[track_caller]
pub fn text<'a>(item: &'a Value, name: &str) -> &'a str {
    item[name].as_str().unwrap_or_else(|| panic!("{name} is no text: {item}"))
}

/// Polls until an item of the partition key `a` is gone: not before `due`, and not noticeably after.
pub async fn await_expiry(items: &ContainerClient, id: &str, due: u64) -> Result<()> {
    let due = Duration::from_secs(due);
    loop {
        let asked = now();
        match items.read_item("a", id, None).await {
            Ok(_) => assert!(asked < due + LATE_MAX, "{id} is still there"),
            Err(error) if error.status().is_not_found() => {
                assert!(now() >= due, "{id} is gone too early");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        sleep(POLL).await;
    }
}
