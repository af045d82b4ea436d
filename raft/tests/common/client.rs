//! What a client of one node does: its requests run inside the node, and stand still with it.

use std::time::Duration;

use ephemeris_raft::Host;
use ephemeris_raft::{Group, ProposeError, ReadError};
use ephemeris_store::codec;
use ephemeris_store::command::{Action, Command, ItemWrite, Outcome, Precondition, Proposal};
use ephemeris_store::document::DocumentRules;
use ephemeris_store::ids::ItemId;
use ephemeris_store::item::ItemKey;
use ephemeris_store::partition::Partition;
use ephemeris_store::partition_key::PartitionKey;
use ephemeris_store::time::{ClockInterval, Millis};
use ephemeris_store::ttl::Vouchers;
use tokio::time::Instant;

use super::Node;

/// The date on which simulations begin.
const EPOCH_MS: u64 = 1_700_000_000_000;

/// How long a reader waits for a follower to apply what is committed.
const CATCH_UP_MAX: Duration = Duration::from_millis(500);

/// A client of one node. Clones share it.
#[derive(Clone)]
pub(crate) struct Client {
    host: Host,
    group: Group<Partition>,
    rules: DocumentRules,
    started: Instant,
}

impl Client {
    pub(crate) fn new(node: &Node, rules: DocumentRules, started: Instant) -> Self {
        Self { host: node.host().clone(), group: node.group().clone(), rules, started }
    }

    /// What the perfect clock of this world says.
    fn now(&self) -> ClockInterval {
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).expect("short runs");
        ClockInterval::exact(Millis(EPOCH_MS + elapsed))
    }

    fn key(&self, id: &str) -> ItemKey {
        let value = PartitionKey::parse("[\"p\"]").expect("a valid key");
        let id = ItemId::try_from(id.to_string()).expect("a valid id");
        ItemKey::new(&self.rules.key().place(&value), &value, &id)
    }

    /// Upserts an item with a serial number, and a `ttl` of its own.
    pub(crate) async fn upsert(
        &self,
        id: &str,
        serial: u64,
        ttl: Option<i64>,
    ) -> Result<Outcome, ProposeError> {
        let mut body = serde_json::json!({ "id": id, "pk": "p", "serial": serial });
        if let Some(ttl) = ttl {
            body["ttl"] = ttl.into();
        }
        self.store(id, &body).await
    }

    /// Upserts an item with a serial number and so many more bytes.
    pub(crate) async fn upsert_large(
        &self,
        id: &str,
        serial: u64,
        bytes: usize,
    ) -> Result<Outcome, ProposeError> {
        let padding = "x".repeat(bytes);
        let body = serde_json::json!({ "id": id, "pk": "p", "serial": serial, "padding": padding });
        self.store(id, &body).await
    }

    async fn store(&self, id: &str, body: &serde_json::Value) -> Result<Outcome, ProposeError> {
        let parsed = self.rules.parse(body.to_string().as_bytes()).expect("a valid body");
        let action = Action::Upsert(parsed.document);
        let write = ItemWrite { key: self.key(id), precondition: Precondition::None, action };
        self.propose(Command::Write(vec![write])).await
    }

    pub(crate) async fn propose(&self, command: Command) -> Result<Outcome, ProposeError> {
        let propose = async {
            let now = self.now();
            let vouchers = Some(Vouchers { readings: vec![now.lo(); 3], nodes: 3 });
            let proposal = Proposal { now, vouchers, command };
            self.group.propose(codec::encode(&proposal)).await
        };
        self.host.run(propose).await
    }

    /// Reads an item's serial number with a read barrier.
    pub(crate) async fn read(&self, id: &str) -> Result<Option<u64>, ReadError> {
        let read = async {
            self.group.read_barrier().await?;
            Ok(self.peek(id))
        };
        self.host.run(read).await
    }

    /// Reads an item's serial number at a follower, once that has applied what its leader says is committed;
    /// nothing if that takes long.
    pub(crate) async fn read_following(&self, id: &str) -> Result<Option<u64>, ReadError> {
        let read = async {
            let index = self.group.read_index().await?;
            if !self.group.await_applied(index, CATCH_UP_MAX).await {
                return Err(ReadError::NotLeader { leader: None });
            }
            Ok(self.peek(id))
        };
        self.host.run(read).await
    }

    /// Reads an item's serial number as the replica has it.
    pub(crate) fn peek(&self, id: &str) -> Option<u64> {
        let item = self.group.machine().fetch(&self.key(id)).expect("memory reads").into_item()?;
        let body: serde_json::Value = serde_json::from_slice(&item.body).expect("stored JSON");
        body["serial"].as_u64()
    }
}
