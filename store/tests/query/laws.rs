//! A container gives the same rows however it is cut into partitions.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::paging::{QUERIES, item};
use crate::world::World;

/// Rows in an order that says nothing, for results that have none.
fn as_set(mut rows: Vec<String>) -> Vec<String> {
    rows.sort();
    rows
}

proptest! {
    #[test]
    fn partitions_add_up_to_one(
        items in prop::collection::vec(item(), 0..25),
        query in prop::sample::select(&QUERIES[..]),
        partitions in 2_u16..5,
    ) {
        let without_rids = |rows: Vec<String>| rows.iter().map(|row| strip(row)).collect();
        let one = without_rids(World::new(&json!({}), &items, 1).rows(query));
        let many = without_rids(World::new(&json!({}), &items, partitions).rows(query));
        // Equal keys come in the order of numbers, which each partition counts for itself.
        prop_assert_eq!(as_set(many), as_set(one), "{}", query);
    }
}

/// A row without what depends on the partition that holds the item.
fn strip(row: &str) -> String {
    let mut row: Value = serde_json::from_str(row).expect("rows are JSON");
    if let Some(members) = row.as_object_mut() {
        members.retain(|name, _| !name.starts_with('_'));
    }
    row.to_string()
}
