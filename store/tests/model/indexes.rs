//! What the index must hold: the entries of every stored item, by a reading of few policies.

use std::collections::{BTreeMap, BTreeSet};

use ephemeris_store::engine::Table;
use ephemeris_store::indexing::{self, IndexRules};
use ephemeris_store::item::Item;
use ephemeris_store::partition::Partition;
use ephemeris_store::partition_key::SlotRange;
use ephemeris_store::timeline::SweepPlace;
use serde_json::Value as Json;

/// A policy, and the entries it gives an item: values by their paths, as they are described.
pub(crate) struct Policy {
    json: &'static str,
    entries: fn(&Json) -> Vec<(&'static str, String)>,
}

/// All values; some that are listed by themselves; a composite index; another one of the same paths;
/// nothing.
pub(crate) const POLICIES: [Policy; 5] = [
    Policy { json: "{}", entries: everything },
    Policy {
        json: r#"{"includedPaths":[{"path":"/v/?"},{"path":"/ttl/?"}],"excludedPaths":[{"path":"/*"}]}"#,
        entries: |item| vec![("/v", shown(&item["v"])), ("/ttl", shown(&item["ttl"]))],
    },
    Policy {
        json: r#"{"excludedPaths":[{"path":"/*"}],
            "compositeIndexes":[[{"path":"/pk"},{"path":"/ttl","order":"descending"}]]}"#,
        entries: |item| {
            vec![("/pk, /ttl DESC", format!("{}, {}", shown(&item["pk"]), shown(&item["ttl"])))]
        },
    },
    Policy {
        json: r#"{"excludedPaths":[{"path":"/*"}],
            "compositeIndexes":[[{"path":"/ttl"},{"path":"/_ts"}]]}"#,
        entries: |item| {
            vec![("/ttl, /_ts", format!("{}, {}", shown(&item["ttl"]), shown(&item["_ts"])))]
        },
    },
    Policy { json: r#"{"indexingMode":"none"}"#, entries: |_| Vec::new() },
];

fn everything(item: &Json) -> Vec<(&'static str, String)> {
    let mut entries: Vec<_> = [("/v", "v"), ("/u", "u"), ("/pk", "pk")]
        .map(|(path, name)| (path, shown(&item[name])))
        .into();
    if !item["ttl"].is_null() {
        entries.push(("/ttl", shown(&item["ttl"])));
    }
    entries
}

/// As entries are described: what is not there is undefined.
fn shown(value: &Json) -> String {
    if value.is_null() { "undefined".to_string() } else { value.to_string() }
}

/// An entry: path, value, item number.
pub(crate) type Entry = (String, String, u64);

impl Policy {
    pub(crate) fn rules(&self) -> IndexRules {
        let policy = serde_json::from_str(self.json).expect("a policy is JSON");
        let policy = indexing::complete(Some(&policy)).expect("a valid policy");
        IndexRules::new(&policy).expect("it compiles")
    }

    /// The entries of these items, `id` and `_ts` included unless there are none at all, the latter as long as the feed
    /// does not stand for it.
    fn entries(&self, items: &[Item]) -> BTreeSet<Entry> {
        let mut entries = BTreeSet::new();
        for item in items {
            let mut body: Json = serde_json::from_slice(&item.body).expect("bodies are JSON");
            body["_ts"] = item.stamp.ts.0.into();
            let mut values = (self.entries)(&body);
            if !self.rules().is_empty() {
                values.push(("/id", shown(&body["id"])));
                if !item.stamp.is_first() {
                    values.push(("/_ts", shown(&body["_ts"])));
                }
            }
            let number = item.stamp.number.0;
            entries.extend(values.into_iter().map(|(path, value)| (path.into(), value, number)));
        }
        entries
    }
}

/// What is wrong with the index of a partition, of which one policy serves and another may be being
/// built: nothing should be.
pub(crate) fn complaint(partition: &Partition, serving: usize, wanted: usize) -> Option<String> {
    let items = stored(partition);
    let mut found = match generations(partition, &items) {
        Ok(found) => found,
        Err(complaint) => return Some(complaint),
    };
    let (serving_number, building_number) = partition.index().generation_numbers();
    let mut take = |number: Option<u32>| number.and_then(|n| found.remove(&n)).unwrap_or_default();
    let (served, building) = (take(serving_number), take(building_number));
    if !found.is_empty() {
        return Some(format!("{found:?} are of no use"));
    }
    let expected = POLICIES[serving].entries(&items);
    if served != expected {
        return Some(format!("{served:?} instead of {expected:?}"));
    }
    // The items that are built are the first ones, in the order of their keys.
    let is_id = |number, (path, _, of): &Entry| path == "/id" && *of == number;
    let is_built = |item: &&Item| building.iter().any(|entry| is_id(item.stamp.number.0, entry));
    let built: Vec<Item> = items.iter().take_while(is_built).cloned().collect();
    let expected = POLICIES[wanted].entries(&built);
    (building != expected).then(|| format!("{building:?} instead of {expected:?}, being built"))
}

fn stored(partition: &Partition) -> Vec<Item> {
    let view = partition.snapshot();
    let range = view.keys().slots(Table::Items, SlotRange::ALL);
    view.items(&range).map(|row| row.expect("the engine in memory does not fail").1).collect()
}

/// The entries of every generation that has any. Each tells where its item is swept, as the last write of it
/// left that.
fn generations(
    partition: &Partition,
    items: &[Item],
) -> Result<BTreeMap<u32, BTreeSet<Entry>>, String> {
    let places: BTreeMap<u64, Vec<u8>> = items
        .iter()
        .map(|item| (item.stamp.number.0, SweepPlace::in_entries_of(&item.stamp)))
        .collect();
    let rows = partition.snapshot().index_rows().expect("the engine in memory does not fail");
    let mut generations: BTreeMap<u32, BTreeSet<Entry>> = BTreeMap::new();
    for (key, place) in rows {
        let number = u32::from_be_bytes(key[8..12].try_into().expect("four bytes"));
        let (path, value, item) =
            indexing::describe_entry(&key[12..]).expect("an entry like all others");
        if places.get(&item.0) != Some(&place) {
            return Err(format!("{path} = {value} of {item:?} is swept at {place:?}: {places:?}"));
        }
        generations.entry(number).or_default().insert((path, value, item.0));
    }
    Ok(generations)
}
