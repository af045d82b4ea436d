//! What is stored, to the byte: commands as they stand in the log, and the rows they lead to.
//!
//! A story with every command, told to a partition and to a catalog, must leave what `data/format.txt` says. Where
//! it does not, data directories of before would be misread: raise `FORMAT` in `node/src/identity.rs`, and `PROTOCOL` in
//! `node/src/transport/hello.rs` if commands have changed, and let `UPDATE_GOLDENFILES=1` write the file anew.

use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use ephemeris_store::catalog::{
    Catalog, CatalogCommand, CatalogProposal, ClusterId, IfTaken, ReplicaPlan, ScriptKind,
    Sweeping, Throughput, UserChange,
};
use ephemeris_store::codec;
use ephemeris_store::command::{Action, Command, CommandEffect, ItemWrite, Precondition, Proposal};
use ephemeris_store::document::{Document, DocumentRules};
use ephemeris_store::engine::{KeyRange, MemoryEngine, Read as _, Table};
use ephemeris_store::ids::{
    ContainerNumber, DatabaseNumber, Etag, GroupId, ItemId, NodeId, PermissionNumber, ResourceName,
    UserNumber,
};
use ephemeris_store::indexing::{self, IndexRules, UniqueKeys};
use ephemeris_store::item::{ItemKey, LogicalPartition};
use ephemeris_store::machine::{Entry, LogId, Machine};
use ephemeris_store::partition::{Partition, PartitionSpec, Retention};
use ephemeris_store::partition_key::{KeyDefinition, KeyKind, PartitionKey, SlotRange};
use ephemeris_store::patch::PatchRequest;
use ephemeris_store::time::{ClockInterval, Millis};
use ephemeris_store::ttl::{PolicyEpoch, TimeToLive, TtlPolicy, Vouchers};
use serde_json::{Value, json};

const DATABASE: DatabaseNumber = DatabaseNumber(1);
const CONTAINER: ContainerNumber = ContainerNumber { database: DATABASE, number: 1 };
const GROUP: GroupId = GroupId(1);
const LIMIT: NonZeroU32 = NonZeroU32::new(100).expect("not zero");

/// What is written down of a machine: the entries it was given, and the rows it has then.
struct Record<M> {
    engine: MemoryEngine,
    machine: M,
    text: String,
}

impl<M: Machine> Record<M> {
    fn apply(&mut self, what: &str, entry: Entry<'_>) -> Option<M::Outcome> {
        let index = self.machine.progress().applied.map_or(0, |applied| applied.index + 1);
        let bytes = match entry {
            Entry::Blank => &[][..],
            Entry::Membership(bytes) | Entry::Command(bytes) => bytes,
        };
        writeln!(self.text, "entry {index} {what} {}", hex(bytes)).expect("text grows");
        self.machine.apply(LogId { term: 1, index }, entry).expect("memory does not fail")
    }

    /// The entries, and all rows.
    fn finish(mut self) -> String {
        for table in Table::ALL {
            for row in self.engine.scan(&KeyRange::prefix(table, Vec::new())) {
                let (key, value) = row.expect("memory does not fail");
                writeln!(self.text, "{} {} {}", table.name(), hex(&key), hex(&value))
                    .expect("text grows");
            }
        }
        self.text
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("text grows");
        text
    })
}

/// What a command is called: the beginning of what it looks like for developers.
fn name(command: &impl std::fmt::Debug) -> String {
    let shown = format!("{command:?}");
    shown.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_string()
}

/// A partition, and how items are read there.
struct Story {
    record: Record<Partition>,
    rules: DocumentRules,
    now: Millis,
}

impl Story {
    fn new(policy: &Value) -> Self {
        let engine = MemoryEngine::new();
        let spec = PartitionSpec { group: GROUP, container: CONTAINER, slots: SlotRange::ALL };
        let machine = Partition::open(Arc::new(engine.clone()), spec).expect("memory opens");
        let record = Record { engine, machine, text: String::new() };
        Self { record, rules: rules(policy), now: Millis(1_000_000) }
    }

    fn tell(&mut self, command: Command) -> CommandEffect {
        let now = ClockInterval::new(self.now, Millis(self.now.0 + 5));
        let vouchers = Some(Vouchers { readings: vec![self.now, self.now], nodes: 3 });
        let name = name(&command);
        let bytes = Proposal { now, vouchers, command }.encode();
        let outcome = self.record.apply(&name, Entry::Command(&bytes)).expect("it has one");
        assert!(!matches!(outcome.effect, CommandEffect::Write(Err(_))), "{outcome:?}");
        self.now.0 += 250;
        outcome.effect
    }

    fn write(&self, id: &str, precondition: Precondition, action: Action) -> ItemWrite {
        ItemWrite { key: self.key(id), precondition, action }
    }

    fn key(&self, id: &str) -> ItemKey {
        let value = PartitionKey::parse(r#"["p"]"#).expect("a key");
        let id = ItemId::try_from(id.to_string()).expect("an id");
        ItemKey::new(&self.rules.key().place(&value), &value, &id)
    }
}

fn rules(policy: &Value) -> DocumentRules {
    let key = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
    let policy = indexing::complete(Some(policy)).expect("a valid policy");
    DocumentRules::new(key, IndexRules::new(&policy).expect("it compiles"))
}

fn document(rules: &DocumentRules, id: &str, more: Value) -> Document {
    let mut body = more;
    body["id"] = id.into();
    body["pk"] = "p".into();
    body["email"] = id.into();
    rules.parse(body.to_string().as_bytes()).expect("an item").document
}

/// Every command, every action, and every condition.
fn partition() -> String {
    let composite = json!([[{ "path": "/a" }, { "path": "/b", "order": "descending" }]]);
    let spatial = json!([{ "path": "/at/*", "types": ["Point"] }]);
    let mut story =
        Story::new(&json!({ "compositeIndexes": composite, "spatialIndexes": spatial }));
    let rules = story.rules.clone();
    let document = |id: &str, more: Value| document(&rules, id, more);
    let epoch = PolicyEpoch(1);
    for (what, entry) in [("blank", Entry::Blank), ("members", Entry::Membership(b"members"))] {
        assert_eq!(story.record.apply(what, entry), None);
    }
    story.tell(Command::SetUniqueKeys(UniqueKeys::new(1, vec![vec![vec!["email".into()]]])));
    story.tell(Command::SetIndexPolicy { epoch, rules: rules.index().clone() });
    let policy = TtlPolicy::from_default_ttl(TimeToLive::from_seconds(60));
    let retention = NonZeroU32::new(10).map(Retention);
    story.tell(Command::SetTtlPolicy { epoch, policy, retention });

    let values = json!({
        "a": 1, "b": "text", "c": [true, null, 2.5], "d": { "e": "é" },
        "at": { "type": "Point", "coordinates": [8.5, 47.4] }, "long": "x".repeat(200),
    });
    let create = |id, more| story.write(id, Precondition::None, Action::Create(document(id, more)));
    let writes = vec![
        create("inherits", values),
        create("own", json!({ "ttl": 5 })),
        create("never", json!({ "ttl": -1, "b": 2 })),
        create("renamed", json!({ "ttl": 1000 })),
        create("deleted", json!({})),
        create("swept", json!({ "ttl": 5 })),
    ];
    let written = story.tell(Command::Write(writes));
    let CommandEffect::Write(Ok(written)) = written else { panic!("{written:?}") };
    let etag = Etag::new(GROUP, story.record.machine.state().lsn(), 1);
    let patch = br#"{"operations":[{"op":"add","path":"/n","value":1}]}"#;
    let rules_of_patch = rules.clone().into();
    let patch = Action::Patch(PatchRequest { text: patch.to_vec(), rules: rules_of_patch });
    let (to, renamed) = (story.key("again"), document("again", json!({})));
    let writes = vec![
        story.write("own", Precondition::IfMatch(Some(etag)), patch),
        story.write("never", Precondition::IfMatchAny, {
            Action::Replace(document("never", json!({ "ttl": -1, "b": 3 })))
        }),
        story.write("upserted", Precondition::IfNoneMatch(None), {
            Action::Upsert(document("upserted", json!({ "a": [], "ttl": 500 })))
        }),
        story.write("renamed", Precondition::None, Action::Rename { to, document: renamed }),
        story.write("deleted", Precondition::None, Action::Delete),
        story.write("inherits", Precondition::IfNoneMatch(Some(etag)), Action::Read),
        story.write("new", Precondition::IfNoneMatchAny, {
            Action::Create(document("new", json!({ "at": 7 })))
        }),
    ];
    story.tell(Command::Write(writes));
    let is_item = Precondition::IsItem(written[0].stamp.number);
    story.tell(Command::Write(vec![story.write("inherits", is_item, Action::Read)]));
    story.now.0 += 10_000;
    story.tell(Command::AdvanceClock);
    story.tell(Command::Sweep { limit: LIMIT, grace: Millis(1000) });
    let other = rules_without_values();
    story.tell(Command::SetIndexPolicy { epoch: PolicyEpoch(2), rules: other.index().clone() });
    let step = story.record.machine.snapshot().build_step(NonZeroU32::MIN);
    let step = step.expect("memory does not fail").expect("an index is being built");
    story.tell(Command::BuildIndex(step));
    let value = PartitionKey::parse(r#"["q"]"#).expect("a key");
    let cleared = LogicalPartition::new(&rules.key().place(&value), &value);
    story.tell(Command::Clear(cleared));
    let rows = story.record.machine.snapshot().cleared_rows(LIMIT).expect("memory does not fail");
    story.tell(Command::SweepCleared(rows.expect("something was deleted")));
    story.record.finish()
}

fn rules_without_values() -> DocumentRules {
    rules(&json!({ "includedPaths": [{ "path": "/a/?" }], "excludedPaths": [{ "path": "/*" }] }))
}

fn name_of(text: &str) -> ResourceName {
    ResourceName::try_from(text.to_string()).expect("a name")
}

/// Every change of users.
fn changes_of_users() -> Vec<CatalogCommand> {
    let user = UserNumber { database: DATABASE, number: 1 };
    let (permission, precondition) = (PermissionNumber { user, number: 1 }, Precondition::None);
    let permitted = |mode: &str| {
        json!({ "id": "p", "permissionMode": mode, "resource": "dbs/db/colls/items" }).to_string()
    };
    let users = |change| CatalogCommand::ChangeUsers { database: DATABASE, change };
    vec![
        users(UserChange::Create { name: name_of("user"), if_taken: IfTaken::Refuse }),
        users(UserChange::Rename { user, name: name_of("other"), precondition }),
        users(UserChange::CreatePermission {
            user,
            definition: permitted("Read"),
            if_taken: IfTaken::Replace,
        }),
        users(UserChange::ReplacePermission {
            permission,
            definition: permitted("All"),
            precondition,
        }),
        users(UserChange::DeletePermission {
            permission: PermissionNumber { user, number: 9 },
            precondition,
        }),
        users(UserChange::Delete {
            user: UserNumber { database: DATABASE, number: 9 },
            precondition,
        }),
    ]
}

/// Every command of the catalog.
fn catalog() -> String {
    let engine = MemoryEngine::new();
    let machine = Catalog::open(Arc::new(engine.clone())).expect("memory opens");
    let mut record = Record { engine, machine, text: String::new() };
    let precondition = Precondition::None;
    let kind = ScriptKind::Trigger;
    let definition = |ttl: i64| {
        json!({ "id": "items", "partitionKey": { "paths": ["/pk"], "kind": "Hash", "version": 2 },
            "defaultTtl": ttl })
        .to_string()
    };
    let register = |node: u32| CatalogCommand::RegisterNode {
        node: NodeId(node),
        directory: 7,
        peer: "peer:1".to_string(),
        url: "http://url".to_string(),
        founder: node == 1,
    };
    let script = |body: &str| CatalogCommand::ReplaceScript {
        container: CONTAINER,
        kind,
        name: name_of("script"),
        body: body.to_string(),
        precondition,
    };
    let commands = [
        CatalogCommand::FormCluster {
            cluster: ClusterId(5),
            founders: [1, 2, 3].map(NodeId).into(),
        },
        register(1),
        register(2),
        CatalogCommand::SetSweeping(Sweeping::Paused),
        CatalogCommand::CreateDatabase {
            name: name_of("db"),
            throughput: Some(Throughput::Manual(400)),
        },
        CatalogCommand::CreateContainer {
            database: DATABASE,
            definition: definition(-1),
            throughput: Some(Throughput::Manual(1000)),
            placement: vec![ReplicaPlan(vec![NodeId(1)])],
        },
        CatalogCommand::ReplaceContainer {
            container: CONTAINER,
            definition: definition(60),
            precondition: Precondition::IfMatchAny,
        },
        CatalogCommand::ReplaceThroughput {
            offer: 2,
            throughput: Throughput::Manual(2000),
            precondition,
        },
        CatalogCommand::CreateScript {
            container: CONTAINER,
            kind,
            name: name_of("script"),
            body: r#"{"id":"script","body":"1"}"#.to_string(),
        },
        script(r#"{"id":"script","body":"2"}"#),
        CatalogCommand::SetReplicas { group: GROUP, plan: ReplicaPlan(vec![NodeId(1), NodeId(2)]) },
    ];
    let last = [
        CatalogCommand::DeleteScript {
            container: CONTAINER,
            kind,
            name: name_of("none"),
            precondition,
        },
        CatalogCommand::DeleteContainer {
            container: ContainerNumber { database: DATABASE, number: 9 },
            precondition,
        },
        CatalogCommand::DeleteDatabase { database: DatabaseNumber(9), precondition },
        CatalogCommand::ForgetNode { node: NodeId(9) },
    ];
    assert_eq!(record.apply("blank", Entry::Blank), None);
    for (second, command) in
        (1000..).zip(commands.into_iter().chain(changes_of_users()).chain(last))
    {
        let (what, now) = (name(&command), ClockInterval::exact(Millis(second * 1000)));
        let bytes = codec::encode(&CatalogProposal { now, command });
        record.apply(&what, Entry::Command(&bytes)).expect("it has an outcome");
    }
    record.finish()
}

#[test]
fn what_is_stored_has_the_form_it_had() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/format.txt");
    let found = format!("partition\n{}catalog\n{}", partition(), catalog());
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        fs::write(&file, found).expect("the file can be written");
        return;
    }
    let expected = fs::read_to_string(&file).expect("the file is there");
    for (number, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
        assert_eq!(found, expected, "line {}: what to do says the head of this test", number + 1);
    }
    assert_eq!(found.len(), expected.len());
}
