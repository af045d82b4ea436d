//! Who follows the feed of all versions and deletes knows what is stored: the story, put together again.

use std::collections::BTreeMap;

use ephemeris_store::change_feed::{HistoryStart, read_history};
use ephemeris_store::engine::Table;
use ephemeris_store::partition::Partition;
use ephemeris_store::partition_key::SlotRange;
use ephemeris_store::query::{PageLimits, Scope};
use ephemeris_store::timeline::FeedPosition;
use serde_json::Value as Json;

use crate::world::{World, serial};

/// Items by id: the serial of their version, and the entry that wrote it.
type Items = BTreeMap<String, (u64, u64)>;

/// A reader of the feed.
#[derive(Default)]
pub(crate) struct Reader {
    /// Where it is; nowhere before there is a feed.
    at: Option<FeedPosition>,
    items: Items,
}

impl Reader {
    /// Reads on, and compares; says what is wrong.
    pub(crate) fn follow(&mut self, world: &World) -> Result<(), String> {
        let partition = &world.leader.partition;
        let Some(at) = self.at else {
            if partition.state().remembers() {
                self.at = Some(FeedPosition::end_of(partition.state().lsn()));
                self.items = stored(partition);
            }
            return Ok(());
        };
        self.at = Some(self.read(world, at)?);
        let stored = stored(partition);
        if self.items == stored { Ok(()) } else { Err(format!("{:?} is {stored:?}", self.items)) }
    }

    fn read(&mut self, world: &World, mut at: FeedPosition) -> Result<FeedPosition, String> {
        let (view, key) = (world.leader.partition.snapshot(), world.rules.key());
        let limits = PageLimits { rows: 2, bytes: usize::MAX, items: usize::MAX };
        loop {
            let start = HistoryStart::After(at);
            let page = read_history(&view, key, start, &Scope::default(), limits);
            let page = page.expect("the engine in memory does not fail");
            let page = page.map_err(|refusal| refusal.to_string())?;
            for row in &page.rows {
                let row: Json = serde_json::from_slice(row).expect("rows are JSON");
                self.take(world, &row).map_err(|wrong| format!("{wrong}: {row}"))?;
            }
            at = page.through;
            if !page.more {
                return Ok(at);
            }
        }
    }

    fn take(&mut self, world: &World, row: &Json) -> Result<(), &'static str> {
        let (current, previous, metadata) = (&row["current"], &row["previous"], &row["metadata"]);
        let id = |json: &Json| json["id"].as_str().expect("an id").to_string();
        let version = |json: &Json, lsn: &Json| {
            (json["v"].as_u64().expect("a serial"), lsn.as_u64().expect("a place"))
        };
        let before = || version(previous, &metadata["previousImageLSN"]);
        let known = match metadata["operationType"].as_str() {
            Some("create" | "replace") => {
                self.items.insert(id(current), version(current, &metadata["lsn"]))
            }
            Some("delete") => self.items.remove(&id(metadata)),
            _ => return Err("an unknown operation"),
        };
        let expected = (metadata["operationType"] != "create").then(before);
        if known != expected {
            return Err("another version was there before");
        }
        let Some((serial, _)) = known.filter(|_| metadata["operationType"] == "delete") else {
            return Ok(());
        };
        let is_expired = metadata["timeToLiveExpired"].as_bool().expect("deletes say why");
        let end = if is_expired {
            world.model.has_expired(serial)
        } else {
            world.model.was_deleted(serial)
        };
        if end { Ok(()) } else { Err("it did not end that way") }
    }
}

/// What lies in the table of items.
fn stored(partition: &Partition) -> Items {
    let view = partition.snapshot();
    let range = view.keys().slots(Table::Items, SlotRange::ALL);
    let items = view.items(&range).map(|found| {
        let (key, item) = found.expect("the engine in memory does not fail");
        let id = key.parts(1).expect("keys of one component").id;
        (id, (serial(&item.body), item.stamp.lsn.0))
    });
    items.collect()
}
