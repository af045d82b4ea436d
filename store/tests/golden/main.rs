//! Runs the golden scripts: what a partition does, told as commands and what they print.
//!
//! `UPDATE_GOLDENFILES=1 cargo test -p ephemeris-store --test golden` rewrites the expectations;
//! review the difference.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::sync::Arc;

use ephemeris_store::change_feed::{FeedStart, HistoryStart, RowForm, read_changes, read_history};
use ephemeris_store::codec;
use ephemeris_store::command::{
    Action, Command, CommandEffect, ItemWrite, Outcome, Precondition, Proposal,
};
use ephemeris_store::document::{DocumentRules, IdField};
use ephemeris_store::engine::{Engine as _, KeyRange, MemoryEngine, Table};
use ephemeris_store::ids::{
    ContainerNumber, DatabaseNumber, Etag, GroupId, ItemId, ItemNumber, Lsn,
};
use ephemeris_store::indexing::{self, IndexRules, UniqueKeys};
use ephemeris_store::item::{ItemKey, LogicalPartition};
use ephemeris_store::machine::{Entry, LogId, Machine};
use ephemeris_store::partition::{
    Change, ChangeRecord, PageOutcome, Partition, PartitionSpec, Retention,
};
use ephemeris_store::partition_key::{KeyDefinition, KeyKind, PartitionKey, SlotRange, parse_path};
use ephemeris_store::patch::PatchRequest;
use ephemeris_store::query::{ComputedProperties, Metric, PageLimits, Scope};
use ephemeris_store::time::{ClockInterval, Millis, Seconds};
use ephemeris_store::timeline::{FeedPosition, VersionRow, expiry_place};
use ephemeris_store::ttl::{Life, PolicyEpoch, TimeToLive, TtlPolicy, Vouchers};
use goldenscript::{ArgumentConsumer, Command as Line, Context};
use test_each_file::test_each_path;

mod queries;
#[path = "../support/query.rs"]
mod support;

test_each_path! { in "store/tests/scripts" as scripts => run }

fn run(path: &std::path::Path) {
    goldenscript::run(&mut Runner::new(), path).expect("the script prints what it should");
}

/// A partition, a hand on its clock, and the etags seen so far by name.
struct Runner {
    engine: MemoryEngine,
    partition: Partition,
    rules: DocumentRules,
    computed: ComputedProperties,
    now: ClockInterval,
    unvouched: bool,
    epoch: u64,
    last_etags: std::collections::BTreeMap<String, Etag>,
}

type Answer = Result<String, Box<dyn Error>>;

/// `[ttl=JSON] [v=JSON] [w=JSON] [pk=TEXT] [if-match=*|last|other] [if-none-match=*|last|other]`,
/// and of a patch `ops=JSON [if=CONDITION]`
#[derive(Default)]
struct WriteArgs {
    ttl: Option<serde_json::Value>,
    v: Option<serde_json::Value>,
    w: Option<serde_json::Value>,
    pk: Option<String>,
    if_match: Option<String>,
    if_none_match: Option<String>,
    patch: Option<String>,
}

impl WriteArgs {
    fn take(args: &mut ArgumentConsumer<'_>) -> Result<Self, Box<dyn Error>> {
        let condition = args.take_key("if").map(str::to_string);
        let patch = args.take_key("ops").map(|operations| {
            let operations: serde_json::Value = serde_json::from_str(operations)?;
            let request = serde_json::json!({ "operations": operations, "condition": condition });
            Ok::<_, serde_json::Error>(request.to_string())
        });
        Ok(Self {
            patch: patch.transpose()?,
            ttl: args.take_key("ttl").map(serde_json::from_str).transpose()?,
            v: args.take_key("v").map(serde_json::from_str).transpose()?,
            w: args.take_key("w").map(serde_json::from_str).transpose()?,
            pk: args.take_key("pk").map(str::to_string),
            if_match: args.take_key("if-match").map(str::to_string),
            if_none_match: args.take_key("if-none-match").map(str::to_string),
        })
    }
}

impl Runner {
    fn new() -> Self {
        let engine = MemoryEngine::new();
        let key = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
        let policy = indexing::complete(None).expect("the default policy is valid");
        let rules = DocumentRules::new(key, IndexRules::new(&policy).expect("it compiles"));
        let partition = open(&engine);
        Self {
            engine,
            partition,
            rules,
            computed: ComputedProperties::default(),
            now: ClockInterval::exact(Millis(0)),
            unvouched: false,
            epoch: 0,
            last_etags: std::collections::BTreeMap::new(),
        }
    }

    /// `at=100.5 width=0.2`: moves the leader's clock; seconds, the width behind the instant.
    fn set_clock(&mut self, args: &mut ArgumentConsumer<'_>) -> Result<(), Box<dyn Error>> {
        if let Some(at) = args.take_key("at") {
            let width = args.take_key("width").map_or(Ok(Millis(0)), millis)?;
            let lo = millis(at)?;
            self.now = ClockInterval::new(lo, Millis(lo.0 + width.0));
        }
        self.unvouched = args.take_key("unvouched").is_some();
        Ok(())
    }

    fn propose(&mut self, command: Command) -> Result<Outcome, Box<dyn Error>> {
        let bytes = codec::encode(&Proposal { now: self.now, vouchers: self.vouchers(), command });
        let index = self.partition.progress().applied.map_or(0, |applied| applied.index + 1);
        let outcome = self.partition.apply(LogId { term: 1, index }, Entry::Command(&bytes))?;
        Ok(outcome.expect("commands have outcomes"))
    }

    /// Two of three nodes vouch for the leader's clock, unless the script says `unvouched=`.
    fn vouchers(&self) -> Option<Vouchers> {
        let lo = self.now.lo();
        (!self.unvouched).then(|| Vouchers { readings: vec![lo, lo], nodes: 3 })
    }

    fn key(&self, id: &str) -> ItemKey {
        self.key_in("p", id)
    }

    fn key_in(&self, pk: &str, id: &str) -> ItemKey {
        let value = PartitionKey::parse(&format!("[\"{pk}\"]")).expect("a valid key");
        let id = ItemId::try_from(id.to_string()).expect("a valid id");
        ItemKey::new(&self.rules.key().place(&value), &value, &id)
    }

    /// `container ttl=-1|N|off [retention=MINUTES] [unique=/a,/b;/c] [epoch=N]`
    fn container(&mut self, mut args: ArgumentConsumer<'_>) -> Answer {
        if let Some(keys) = args.take_key("unique") {
            let paths = |key: &str| key.split(',').map(parse_path).collect::<Result<_, _>>();
            let keys = keys.split(';').map(paths).collect::<Result<_, _>>()?;
            self.propose(Command::SetUniqueKeys(UniqueKeys::new(1, keys)))?;
        }
        let policy = match args.take_key("ttl") {
            None | Some("off") => TtlPolicy::Off,
            Some(seconds) => {
                let ttl = TimeToLive::from_seconds(seconds.parse()?).ok_or("invalid default")?;
                TtlPolicy::from_default_ttl(Some(ttl))
            }
        };
        self.epoch = args.take_key("epoch").map_or(Ok(self.epoch + 1), str::parse)?;
        let epoch = PolicyEpoch(self.epoch);
        let minutes = args.take_key("retention").map(str::parse).transpose()?;
        let retention = minutes.and_then(NonZeroU32::new).map(Retention);
        let outcome = self.propose(Command::SetTtlPolicy { epoch, policy, retention })?;
        let CommandEffect::PolicySet(epoch) = outcome.effect else { panic!("{outcome:?}") };
        let policy = match self.partition.state().ttl().policy() {
            TtlPolicy::Off => "off".to_string(),
            TtlPolicy::NoDefault => "no default".to_string(),
            TtlPolicy::Default(seconds) => format!("default {seconds}"),
        };
        Ok(format!("policy {policy}, epoch {}\n", epoch.0))
    }

    /// `create|replace|upsert|patch|delete|look ID …` or `rename ID/NEW …`, see `WriteArgs`.
    fn write(&mut self, name: &str, args: &mut ArgumentConsumer<'_>) -> Answer {
        let id = args.next_pos().ok_or("which item?")?.to_string();
        let write = self.item_write(name, &id, WriteArgs::take(args)?)?;
        let label = format!("{name} {id}");
        let outcome = self.propose(Command::Write(vec![write]))?;
        self.describe_writes(&[(label, id)], &outcome)
    }

    fn item_write(
        &self,
        name: &str,
        id: &str,
        args: WriteArgs,
    ) -> Result<ItemWrite, Box<dyn Error>> {
        let (id, new_id) = id.split_once('/').unwrap_or((id, id));
        let pk = args.pk.as_deref().unwrap_or("p");
        let mut body = serde_json::json!({ "id": new_id, "pk": pk });
        for (name, value) in [("ttl", args.ttl), ("v", args.v), ("w", args.w)] {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        let parsed = self.rules.parse(body.to_string().as_bytes())?;
        assert_eq!(parsed.id, IdField::Text(new_id.to_string()), "the id is found in the body");
        let action = match name {
            "create" => Action::Create(parsed.document),
            "replace" => Action::Replace(parsed.document),
            "upsert" => Action::Upsert(parsed.document),
            "patch" => Action::Patch(PatchRequest {
                text: args.patch.ok_or("a patch needs ops")?.into_bytes(),
                rules: self.rules.clone().into(),
            }),
            "delete" => Action::Delete,
            "look" => Action::Read,
            "rename" => Action::Rename { to: self.key_in(pk, new_id), document: parsed.document },
            _ => return Err(format!("no such command: {name}").into()),
        };
        let precondition = match (args.if_match.as_deref(), args.if_none_match.as_deref()) {
            (Some("*"), _) => Precondition::IfMatchAny,
            (Some("last"), _) => Precondition::IfMatch(self.last_etags.get(id).copied()),
            (Some(_), _) => Precondition::IfMatch(None),
            (None, Some("*")) => Precondition::IfNoneMatchAny,
            (None, Some("last")) => Precondition::IfNoneMatch(self.last_etags.get(id).copied()),
            (None, Some(_)) => Precondition::IfNoneMatch(None),
            (None, None) => Precondition::None,
        };
        Ok(ItemWrite { key: self.key_in(pk, id), precondition, action })
    }

    /// `transaction create=a create=b:JSON upsert=c@TTL delete=d`: with the value of `v` and a time to
    /// live, if they are given; these are what a patch sets.
    fn transaction(&mut self, args: &mut ArgumentConsumer<'_>) -> Answer {
        let mut labels = Vec::new();
        let mut writes = Vec::new();
        let json = |text: Option<&str>| text.map(serde_json::from_str).transpose();
        while let Some((name, item)) = args.next_key() {
            let (item, v) = item.split_once(':').map_or((item, None), |(item, v)| (item, Some(v)));
            let (id, ttl) = item.split_once('@').map_or((item, None), |(id, ttl)| (id, Some(ttl)));
            let (v, ttl) = (json(v)?, json(ttl)?);
            let patch =
                (name == "patch").then(|| patch_of([("v", v.as_ref()), ("ttl", ttl.as_ref())]));
            let args = WriteArgs { ttl, v, patch, ..WriteArgs::default() };
            writes.push(self.item_write(name, id, args)?);
            labels.push((format!("{name} {id}"), id.to_string()));
        }
        let outcome = self.propose(Command::Write(writes))?;
        self.describe_writes(&labels, &outcome)
    }

    /// `changes [after=LSN|since=SECOND|now=] [rows=N] [form=flat|apart]`: a page of the change feed; its
    /// rows themselves, if the form is said.
    fn changes(&mut self, args: &mut ArgumentConsumer<'_>) -> Answer {
        let start = match (args.take_key("after"), args.take_key("since"), args.take_key("now")) {
            (Some(lsn), _, _) => FeedStart::After(Lsn(lsn.parse()?)),
            (None, Some(second), _) => FeedStart::At(Seconds(second.parse()?)),
            (None, None, Some(_)) => FeedStart::Now,
            (None, None, None) => FeedStart::Beginning,
        };
        let rows = args.take_key("rows").map_or(Ok(100), str::parse)?;
        let form = match args.take_key("form") {
            None => None,
            Some("flat") => Some(RowForm::Flat),
            Some("apart") => Some(RowForm::Apart),
            Some(other) => return Err(format!("no such form: {other}").into()),
        };
        let start = (start, form.unwrap_or(RowForm::Flat));
        let limits = PageLimits { rows, bytes: usize::MAX, items: usize::MAX };
        let (view, spec) = (self.partition.snapshot(), *self.partition.spec());
        let (key, scope, hi) = (self.rules.key(), Scope::default(), self.now.hi());
        match read_changes(&view, &spec, key, start, &scope, limits, hi)? {
            PageOutcome::InDoubt(expiry) => Ok(format!("in doubt since {expiry}\n")),
            PageOutcome::Page(page) => {
                let mut text = String::new();
                for row in &page.rows {
                    if form.is_some() {
                        writeln!(text, "{}", std::str::from_utf8(row)?)?;
                        continue;
                    }
                    let row: serde_json::Value = serde_json::from_slice(row)?;
                    writeln!(text, "{} written at {}", row["id"], row["_lsn"])?;
                }
                let end = if page.more { "more" } else { "no more" };
                writeln!(text, "through {}, {end}", page.through)?;
                Ok(text)
            }
        }
    }

    /// `backlog [rows=N]`: what the sweeper has before it.
    fn backlog(&self, args: &mut ArgumentConsumer<'_>) -> Answer {
        let rows = args.take_key("rows").map_or(Ok(1000), str::parse)?;
        let backlog = self.partition.snapshot().backlog(self.partition.spec(), rows)?;
        let more = if backlog.more { " or more" } else { "" };
        let oldest = backlog.oldest.map_or(String::new(), |oldest| format!(", since {oldest}"));
        Ok(format!("backlog {}{more}{oldest}\n", backlog.items))
    }

    /// `clear [pk=TEXT]`: deletes what a logical partition holds.
    fn clear(&mut self, args: &mut ArgumentConsumer<'_>) -> Answer {
        let pk = args.take_key("pk").unwrap_or("p");
        let value = PartitionKey::parse(&format!("[\"{pk}\"]"))?;
        let logical_partition = LogicalPartition::new(&self.rules.key().place(&value), &value);
        let outcome = self.propose(Command::Clear(logical_partition))?;
        let CommandEffect::Cleared(result) = outcome.effect else { panic!("{outcome:?}") };
        Ok(result.map_or_else(|refused| format!("refused: {refused}\n"), |()| String::new()))
    }

    fn describe_writes(&mut self, labels: &[(String, String)], outcome: &Outcome) -> Answer {
        let CommandEffect::Write(result) = &outcome.effect else { panic!("{outcome:?}") };
        let mut text = String::new();
        match result {
            Ok(written) => {
                for ((label, id), written) in labels.iter().zip(written) {
                    let effect = format!("{:?}", written.effect).to_lowercase();
                    let (ts, charge) = (written.stamp.ts, written.charge);
                    let number = FeedPosition::of_first(written.stamp.number);
                    let inert = if written.has_inert_ttl { ", inert ttl" } else { "" };
                    writeln!(
                        text,
                        "{label} → {effect}, _ts {ts}, item {number}, {charge} RU{inert}"
                    )?;
                    if let Some(body) = &written.body {
                        writeln!(text, "  {}", String::from_utf8_lossy(body))?;
                    }
                    let id = id.split_once('/').map_or(id.as_str(), |(_, new_id)| new_id);
                    self.last_etags.insert(id.to_string(), written.stamp.etag);
                }
            }
            Err(refused) => {
                let (label, _) = &labels[usize::from(refused.operation)];
                let name = format!("{:?}", refused.refusal);
                let name = name.split([' ', '{']).next().unwrap_or_default();
                writeln!(text, "{label} → refused: {name}, {} RU", refused.charge)?;
            }
        }
        Ok(text)
    }

    /// `read ID…`: judged at the leader's clock, without moving the partition's.
    fn read(&mut self, args: &mut ArgumentConsumer<'_>) -> Answer {
        let mut text = String::new();
        while let Some(id) = args.next_pos() {
            let key = self.key(id);
            let fetched = self.partition.fetch(&key)?;
            match fetched.judge(self.now.hi()) {
                Life::Dead => writeln!(text, "{id} → not found")?,
                Life::InDoubt(expiry) => writeln!(text, "{id} → in doubt since {expiry}")?,
                Life::Alive => {
                    let item = fetched.into_item().expect("what is alive was found");
                    let body = String::from_utf8(item.body.into())?;
                    writeln!(text, "{id} → {body} _ts {}", item.stamp.ts)?;
                }
            }
        }
        Ok(text)
    }

    /// `sweep [cleared] [limit=N] [grace=SECONDS]`: removes what has expired, or what was cleared.
    fn sweep(&mut self, mut args: ArgumentConsumer<'_>) -> Answer {
        let is_of_cleared = args.next_pos().is_some_and(|what| what == "cleared");
        let limit = args.take_key("limit").map_or(Ok(100), str::parse)?;
        let limit = NonZeroU32::new(limit).ok_or("a sweep removes something")?;
        let grace = args.take_key("grace").map_or(Ok(Millis(0)), millis)?;
        let outcome = self.propose(if is_of_cleared {
            let rows = self.partition.snapshot().cleared_rows(limit)?;
            Command::SweepCleared(rows.unwrap_or_default())
        } else {
            Command::Sweep { limit, grace }
        })?;
        let CommandEffect::Swept { removed, trimmed, more, charge: _ } = outcome.effect else {
            panic!("{outcome:?}")
        };
        let trimmed = if trimmed > 0 { format!(", forgot {trimmed}") } else { String::new() };
        Ok(format!("removed {removed}{trimmed}{}\n", if more { ", more to do" } else { "" }))
    }

    /// `insert JSON`: an item of any shape, with the partition key of all others.
    fn insert(&mut self, args: &mut ArgumentConsumer<'_>) -> Answer {
        let body = args.next_pos().ok_or("which item?")?;
        let parsed = self.rules.parse(body.as_bytes())?;
        let IdField::Text(id) = parsed.id else { return Err("an item has an id".into()) };
        let (key, action) = (self.key(&id), Action::Upsert(parsed.document));
        let write = ItemWrite { key, precondition: Precondition::None, action };
        self.propose(Command::Write(vec![write]))?;
        Ok(String::new())
    }

    /// `expiries`: what expired and is remembered.
    fn expiries(&self) -> Answer {
        let mut text = String::new();
        for record in self.partition.snapshot().history(FeedPosition::default()) {
            let (place, ChangeRecord { at, key, change }) = record?;
            let Change::Expired { previous } = change else { continue };
            let item = previous.decode()?;
            let (id, ts, body) =
                (item_id(&key), item.stamp.ts, String::from_utf8(item.body.into())?);
            writeln!(text, "{id} at {place} → {body} _ts {ts}, removed {at}")?;
        }
        Ok(text)
    }

    /// `history [after=PLACE|now=] [rows=N] [bytes=N] [pk=TEXT]`: a page of the change feed of all
    /// versions and deletes.
    fn history(&mut self, args: &mut ArgumentConsumer<'_>) -> Answer {
        let start = match args.take_key("after") {
            Some(place) => HistoryStart::After(FeedPosition::parse(place).ok_or("which place?")?),
            None => HistoryStart::Now,
        };
        let rows = args.take_key("rows").map_or(Ok(100), str::parse)?;
        let bytes = args.take_key("bytes").map_or(Ok(usize::MAX), str::parse)?;
        let limits = PageLimits { rows, bytes, items: usize::MAX };
        let key = args.take_key("pk").map(|pk| PartitionKey::parse(&format!("[\"{pk}\"]")));
        let scope = Scope { key: key.transpose()?, epks: None };
        let (view, rules) = (self.partition.snapshot(), &self.rules);
        let page = match read_history(&view, rules.key(), start, &scope, limits)? {
            Ok(page) => page,
            Err(refusal) => return Ok(format!("refused: {refusal:?}\n")),
        };
        let mut text = String::new();
        for row in &page.rows {
            let mut row: serde_json::Value = serde_json::from_slice(row)?;
            for image in ["current", "previous"] {
                if let Some(image) = row.get_mut(image).and_then(|image| image.as_object_mut()) {
                    image.retain(|name, _| !name.starts_with('_') || name == "_ts");
                }
            }
            writeln!(text, "{row}")?;
        }
        let end = if page.more { "more" } else { "no more" };
        writeln!(text, "through {}, {end}", page.through)?;
        Ok(text)
    }

    /// `policy JSON [space=Geography|Geometry]`: the container's indexing policy, completed.
    fn policy(&mut self, args: &mut ArgumentConsumer<'_>) -> Answer {
        let policy = serde_json::from_str(args.next_pos().ok_or("which policy?")?)?;
        let policy = match indexing::complete(Some(&policy)) {
            Ok(policy) => policy,
            Err(error) => return Ok(format!("refused: {error}\n")),
        };
        let metric = match args.take_key("space").unwrap_or("Geography") {
            "Geography" => Metric::Geography,
            "Geometry" => Metric::Geometry,
            _ => return Err("no such space".into()),
        };
        let computed = self.computed.definitions();
        let rules = IndexRules::new(&policy)?.with_computed(computed).with_metric(metric);
        self.rules = DocumentRules::new(self.rules.key().clone(), rules.clone());
        let next = PolicyEpoch(self.partition.index().epoch().0 + 1);
        let epoch =
            args.take_key("epoch").map_or(Ok(next), |epoch| epoch.parse().map(PolicyEpoch))?;
        let outcome = self.propose(Command::SetIndexPolicy { epoch, rules })?;
        let CommandEffect::IndexPolicySet(epoch) = outcome.effect else { panic!("{outcome:?}") };
        Ok(format!("epoch {}, {}\n", epoch.0, self.progress()))
    }

    fn progress(&self) -> String {
        let (state, index) = (self.partition.state(), self.partition.index());
        format!("{} % built", index.percent(state.items()))
    }

    /// `build [limit=N]`: enters items into the index that the last policy asks for.
    fn build(&mut self, args: &mut ArgumentConsumer<'_>) -> Answer {
        let limit = args.take_key("limit").map_or(Ok(100), str::parse)?;
        let limit = NonZeroU32::new(limit).ok_or("a build enters something")?;
        let step = self.partition.snapshot().build_step(limit)?;
        let outcome = self.propose(Command::BuildIndex(step.unwrap_or_default()))?;
        let CommandEffect::IndexBuilt { items, more, charge } = outcome.effect else {
            panic!("{outcome:?}")
        };
        let more = if more { ", more to do" } else { "" };
        Ok(format!("entered {items}{more}, {charge} RU, {}\n", self.progress()))
    }

    /// `index [PATH…]`: every entry of these paths, or of all.
    fn index(&self, args: &mut ArgumentConsumer<'_>) -> Answer {
        let mut wanted = Vec::new();
        while let Some(path) = args.next_pos() {
            wanted.push(path.to_string());
        }
        let mut text = String::new();
        for (key, _) in self.partition.snapshot().index_rows()? {
            let (prefix, entry) = key.split_at(12);
            let (path, value, number) = indexing::describe_entry(entry)?;
            if wanted.is_empty() || wanted.contains(&path) {
                let (generation, number) = (prefix[11], FeedPosition::of_first(number));
                writeln!(text, "{generation} {path} = {value} → item {number}")?;
            }
        }
        Ok(text)
    }

    /// `unique`: which items the entries of unique keys are of, whatever their values.
    fn unique(&self) -> Answer {
        let range = self.partition.ranges().into_iter().find(|range| range.table == Table::Unique);
        let range = range.expect("unique keys are part of a partition");
        let mut entries = BTreeSet::new();
        for (key, item) in self.partition.snapshot().rows(&range)? {
            let (prefix, number) = key.split_last_chunk().ok_or("an entry ends with a number")?;
            let number = FeedPosition::of_first(ItemNumber(u64::from_be_bytes(*number)));
            entries.insert((prefix[8], number, item_id(&ItemKey::from_bytes(&item)?)));
        }
        let line = |(of, number, id)| format!("key {of}: {id}, item {number}\n");
        Ok(entries.into_iter().map(line).collect())
    }

    /// `rows`: what lies in the tables, but for garbage.
    fn rows(&self) -> Answer {
        let view = self.partition.snapshot();
        let mut text = String::new();
        let is_shown = |range: &KeyRange| {
            !matches!(range.table, Table::History | Table::Index | Table::Unique)
        };
        for range in self.partition.ranges().into_iter().filter(is_shown) {
            let rows = view.kept_rows(&range)?;
            let mut names: Vec<String> = rows
                .iter()
                .map(|(key, value)| match range.table {
                    Table::Feed => Ok(item_id(&VersionRow::decode(value)?.item)),
                    Table::Numbers => Ok(item_id(&ItemKey::from_bytes(value)?)),
                    Table::Items => Ok(item_id(&view.keys().item_of(key)?)),
                    Table::Expiry => {
                        let expiry = expiry_place(key)?.second;
                        Ok(format!("{}@{expiry}", item_id(&VersionRow::decode(value)?.item)))
                    }
                    Table::History
                    | Table::Index
                    | Table::Unique
                    | Table::Meta
                    | Table::Catalog => Ok(String::new()),
                })
                .collect::<Result<_, Box<dyn Error>>>()?;
            if range.table != Table::Feed {
                names.sort();
            }
            writeln!(text, "{}: {}", range.table.name(), names.join(" "))?;
        }
        let state = self.partition.state();
        writeln!(text, "{} items, {} bytes", state.items(), state.bytes())?;
        Ok(text)
    }
}

/// A patch that sets these properties.
fn patch_of(properties: [(&str, Option<&serde_json::Value>); 2]) -> String {
    let mut operations = Vec::new();
    for (name, value) in properties {
        if let Some(value) = value {
            let path = format!("/{name}");
            operations.push(serde_json::json!({ "op": "set", "path": path, "value": value }));
        }
    }
    serde_json::json!({ "operations": operations }).to_string()
}

fn open(engine: &MemoryEngine) -> Partition {
    let container = ContainerNumber { database: DatabaseNumber(1), number: 1 };
    let spec = PartitionSpec { group: GroupId(1), container, slots: SlotRange::ALL };
    Partition::open(Arc::new(engine.clone()), spec).expect("an empty partition opens")
}

fn item_id(key: &ItemKey) -> String {
    key.parts(1).expect("keys have one component here").id
}

fn millis(seconds: &str) -> Result<Millis, Box<dyn Error>> {
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
    let fraction: u64 = format!("{fraction:0<3}").parse()?;
    Ok(Millis(whole.parse::<u64>()? * 1000 + fraction))
}

impl goldenscript::Runner for Runner {
    type Command = Line;

    fn run(&mut self, line: &Line, _: &Context) -> Answer {
        let mut args = line.consume_args();
        self.set_clock(&mut args)?;
        let answer = match line.name.as_str() {
            "container" => return self.container(args),
            "sweep" => return self.sweep(args),
            "query" => return self.query(args),
            "insert" => self.insert(&mut args),
            "plan" => Self::plan(&mut args),
            "value" => self.value(&mut args),
            "computed" => Ok(self.computed(&mut args)),
            "changes" => self.changes(&mut args),
            "clear" => self.clear(&mut args),
            "backlog" => self.backlog(&mut args),
            "rows" => self.rows(),
            "policy" => self.policy(&mut args),
            "build" => self.build(&mut args),
            "index" => self.index(&mut args),
            "unique" => self.unique(),
            "expiries" => self.expiries(),
            "history" => self.history(&mut args),
            "read" => self.read(&mut args),
            "transaction" => self.transaction(&mut args),
            "advance" => {
                self.propose(Command::AdvanceClock)?;
                let state = self.partition.state();
                Ok(format!("clock {}, stamps {}\n", state.ttl().clock(), state.ttl().last_ts()))
            }
            "flush" => {
                self.engine.flush()?;
                Ok(String::new())
            }
            "crash" => {
                self.engine.crash();
                self.partition = open(&self.engine);
                Ok(format!("applied {:?}\n", self.partition.progress().applied.map(|id| id.index)))
            }
            name => self.write(name, &mut args),
        };
        let answer = answer?;
        args.reject_next()?;
        Ok(answer)
    }
}
