//! What a reader sees of a partition: every item, a query over all of them, the change feed.

use ephemeris_store::change_feed::{FeedStart, RowForm, read_changes};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use ephemeris_store::engine::Table;
use ephemeris_store::ids::ItemNumber;
use ephemeris_store::item::ItemKey;
use ephemeris_store::partition::{PageOutcome, Partition};
use ephemeris_store::partition_key::SlotRange;
use ephemeris_store::query::{
    CompiledQuery, ComputedProperties, Merged, PageLimits, Parameters, Position, Scope, Window,
};
use ephemeris_store::time::{Millis, Seconds};
use ephemeris_store::ttl::Life;

use crate::naive::{Model, Number, Version};
use crate::support::{Asking, NoPage};
use crate::world::{World, serial};

/// What is seen of one item, or of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen<T> {
    Alive(T),
    Dead,
    /// It may have expired at this second.
    InDoubt(u64),
}

/// A version as a reader identifies it: its serial and its stamp.
pub(crate) type Shown = (u64, u64);

fn shown(version: &Version) -> Shown {
    (version.serial, version.ts)
}

/// What a point read at this instant must see.
pub(crate) fn expected_read(model: &Model, id: u8, hi: u64) -> Seen<Shown> {
    let Some(version) = model.find(id) else { return Seen::Dead };
    match model.expiry(version) {
        Some(expiry) if expiry * 1000 <= hi => Seen::InDoubt(expiry),
        Some(_) | None => Seen::Alive(shown(version)),
    }
}

/// What a point read at this instant sees.
pub(crate) fn read(world: &World, partition: &Partition, id: u8, hi: u64) -> Seen<Shown> {
    let key = world.key(id);
    let fetched = partition.fetch(&key).expect("the engine in memory does not fail");
    match fetched.judge(Millis(hi)) {
        Life::Dead => Seen::Dead,
        Life::InDoubt(Seconds(expiry)) => Seen::InDoubt(expiry),
        Life::Alive => {
            let item = fetched.into_item().expect("what is alive was found");
            Seen::Alive((serial(&item.body), item.stamp.ts.0))
        }
    }
}

/// What everything that reads all items must see, in the order of the writes; none if in doubt.
pub(crate) fn expected_all(model: &Model, hi: u64) -> Option<Vec<Shown>> {
    let is_sure = |version: &&Version| model.expiry(version).is_none_or(|e| hi < e * 1000);
    let live = model.live();
    live.iter().all(is_sure).then(|| live.into_iter().map(shown).collect())
}

/// The change feed from its beginning, in pages of two rows.
pub(crate) fn feed(world: &World, partition: &Partition, hi: u64) -> Option<Vec<Shown>> {
    let (view, spec) = (partition.snapshot(), *partition.spec());
    let limits = PageLimits { rows: 2, bytes: usize::MAX, items: usize::MAX };
    let (mut start, mut rows) = (FeedStart::Beginning, Vec::new());
    loop {
        let (key, scope) = (world.rules.key(), Scope::default());
        let start_in = (start, RowForm::Flat);
        let outcome = read_changes(&view, &spec, key, start_in, &scope, limits, Millis(hi));
        let page = match outcome.expect("the engine in memory does not fail") {
            PageOutcome::InDoubt(_) => return None,
            PageOutcome::Page(page) => page,
        };
        rows.extend(page.rows.iter().map(|row| row_of(row)));
        if !page.more {
            return Some(rows);
        }
        start = FeedStart::After(page.through.lsn);
    }
}

/// A query over all items, in pages of two rows, sorted by serial.
pub(crate) fn query(world: &World, partition: &Partition, hi: u64) -> Option<Vec<Shown>> {
    let limits = PageLimits { rows: 2, bytes: usize::MAX, items: usize::MAX };
    let pages = pages(world, partition, "SELECT * FROM c ORDER BY c.v", limits, hi)?;
    Some(pages.concat().iter().map(|row| row_of(row)).collect())
}

/// COUNT over all items.
pub(crate) fn count(world: &World, partition: &Partition, hi: u64) -> Option<u64> {
    let limits = PageLimits { rows: 100, bytes: usize::MAX, items: 2 };
    let rows = pages(world, partition, "SELECT VALUE COUNT(1) FROM c", limits, hi)?.concat();
    let [count] = rows.as_slice() else { panic!("one row counts all") };
    Some(String::from_utf8_lossy(count).parse().expect("a count is a number"))
}

/// Every page of a query; none if in doubt.
fn pages(
    world: &World,
    partition: &Partition,
    text: &str,
    limits: PageLimits,
    hi: u64,
) -> Option<Vec<Vec<Vec<u8>>>> {
    let (mut pages, mut at) = (Vec::new(), None);
    loop {
        let Merged { rows, next } = page(world, partition, text, at, limits, hi)?;
        pages.push(rows);
        match next {
            None => return Some(pages),
            next => at = next,
        }
    }
}

/// One page of a query; none if in doubt.
pub(crate) fn page(
    world: &World,
    partition: &Partition,
    text: &str,
    at: Option<(Position, Window)>,
    limits: PageLimits,
    hi: u64,
) -> Option<Merged> {
    let rules = &world.rules;
    let (parameters, computed) = (Parameters::default(), ComputedProperties::default());
    let query = CompiledQuery::new(text, &parameters, rules.index(), &computed);
    let query = query.expect("it compiles");
    let (scope, hi) = (Scope::default(), Millis(hi));
    let partitions = &[partition];
    match (Asking { query: &query, partitions, rules, scope: &scope, limits, hi }).page(at) {
        Ok(page) => Some(page),
        Err(NoPage::InDoubt(_)) => None,
        Err(NoPage::Halt(halt)) => panic!("{halt:?}"),
    }
}

/// What a row shows.
pub(crate) fn row_of(json: &[u8]) -> Shown {
    let row: serde_json::Value = serde_json::from_slice(json).expect("rows are JSON");
    (row["v"].as_u64().expect("a serial"), row["_ts"].as_u64().expect("a stamp"))
}

/// Items by number, and what a reader may conclude of them.
pub(crate) type Lives = BTreeMap<ItemNumber, Life>;

/// What `overdue` shows at this instant.
pub(crate) fn overdue(partition: &Partition, hi: u64) -> Lives {
    let mut lives = Lives::new();
    let shown = partition.snapshot().overdue(Millis(hi), |number, life| {
        if life != Life::Alive {
            assert_eq!(lives.insert(number, life), None, "each item once");
        }
        ControlFlow::Continue(())
    });
    shown.expect("the engine in memory does not fail");
    lives
}

/// What it must show: what is found by looking at every item.
pub(crate) fn expected_overdue(partition: &Partition, hi: u64) -> Lives {
    let view = partition.snapshot();
    let range = view.keys().slots(Table::Items, SlotRange::ALL);
    let lives = view.items(&range).map(|found| {
        let (key, item) = found.expect("the engine in memory does not fail");
        (item.stamp.number, view.judge(key.as_bytes(), &item.stamp, Millis(hi)))
    });
    lives.filter(|(_, life)| *life != Life::Alive).collect()
}

/// The entries of the unique key: numbers and ids of the items they lead to.
pub(crate) fn unique(partition: &Partition) -> Vec<(Number, u8)> {
    let ranges = Partition::ranges_of(partition.spec());
    let range = ranges.into_iter().find(|range| range.table == Table::Unique);
    let range = range.expect("unique keys are part of a partition");
    let rows = partition.snapshot().rows(&range).expect("the engine in memory does not fail");
    let entry = |(key, item): &(Vec<u8>, Vec<u8>)| {
        let number = u64::from_be_bytes(*key.last_chunk().expect("a number at its end"));
        (self::number(ItemNumber(number)), id_of(&ItemKey::from_bytes(item).expect("a key")))
    };
    rows.iter().map(entry).collect()
}

/// The number as the model counts.
pub(crate) fn number(number: ItemNumber) -> Number {
    let (lsn, operation) = number.creation();
    (lsn.0, operation)
}

/// Ids of the items with rows, dead or alive.
pub(crate) fn stored(partition: &Partition) -> Vec<u8> {
    let view = partition.snapshot();
    let range = view.keys().slots(Table::Items, SlotRange::ALL);
    let ids = view.items(&range);
    ids.map(|found| id_of(&found.expect("the engine in memory does not fail").0)).collect()
}

fn id_of(key: &ItemKey) -> u8 {
    let parts = key.parts(1).expect("keys of one component");
    parts.id[1..].parse().expect("ids are numbers behind a letter")
}
