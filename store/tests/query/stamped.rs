//! Queries by `_ts`: the feed has what was written once, and the index all else, in one order.

use ephemeris_store::time::Seconds;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::laws::gives;
use crate::world::World;

/// What happens to a container.
#[derive(Clone, Debug)]
enum Step {
    /// Items are written, so many seconds later.
    Write { later: u64, items: Vec<(u8, u8)> },
    /// An item is deleted.
    Delete(u8),
    /// The indexing policy comes to be known, and what there is enters the index.
    Index,
}

fn step() -> impl Strategy<Value = Step> {
    let items = prop::collection::vec((0_u8..12, 0_u8..3), 1..8);
    prop_oneof![
        8 => (0_u64..3, items).prop_map(|(later, items)| Step::Write { later, items }),
        2 => (0_u8..12).prop_map(Step::Delete),
        1 => Just(Step::Index),
    ]
}

/// Queries about the seconds between two; and whether their rows have an order.
const QUERIES: [(&str, bool); 10] = [
    ("SELECT VALUE c.id FROM c WHERE c._ts >= {a} AND c._ts < {b}", false),
    ("SELECT VALUE c.id FROM c WHERE c._ts = {a} AND c.v = 1", false),
    ("SELECT VALUE c.id FROM c WHERE c._ts IN ({a}, {b}) AND c.v > 0", false),
    ("SELECT VALUE c.id FROM c WHERE c._ts < {a} OR c._ts > {b}", false),
    ("SELECT DISTINCT VALUE c._ts FROM c WHERE c._ts < {b}", false),
    ("SELECT VALUE COUNT(1) FROM c WHERE c._ts > {a}", true),
    ("SELECT VALUE MAX(c._ts) FROM c WHERE c.v = 1 AND c._ts < {b}", true),
    ("SELECT VALUE [c.id, c._ts] FROM c WHERE c._ts <= {b} ORDER BY c._ts", true),
    ("SELECT VALUE [c.id, c._ts] FROM c WHERE c._ts > {a} ORDER BY c._ts DESC", true),
    ("SELECT VALUE c.id FROM c WHERE c.v = 1 ORDER BY c._ts DESC", true),
];

/// An item with this number and value.
fn item((number, v): (u8, u8)) -> Value {
    json!({ "id": format!("i{number}"), "pk": number % 2, "v": v })
}

proptest! {
    #[test]
    fn an_index_of_ts_changes_nothing(
        steps in prop::collection::vec(step(), 1..16),
        (query, is_ordered) in prop::sample::select(&QUERIES[..]),
        (from, length) in (0_u64..20, 0_u64..12),
        rows in 1_usize..6,
    ) {
        let worlds = [World::unindexed(&json!({}), &[], 1), World::unindexed(&json!({}), &[], 1)];
        let [indexed, plain] = &worlds;
        let mut second = Seconds(1);
        for step in steps {
            match step {
                Step::Write { later, items } => {
                    second.0 += later;
                    let items: Vec<Value> = items.into_iter().map(item).collect();
                    for world in &worlds {
                        world.write_at(second.start(), &items);
                    }
                }
                Step::Delete(number) => {
                    for world in &worlds {
                        world.delete(&format!("i{number}"));
                    }
                }
                Step::Index => {
                    indexed.change_policy();
                    indexed.build();
                }
            }
        }
        indexed.change_policy();
        indexed.build();
        let (a, b) = (from.to_string(), (from + length).to_string());
        let query = query.replace("{a}", &a).replace("{b}", &b);
        gives(indexed, (&query, is_ordered), rows, plain.rows(&query))?;
    }
}

#[test]
fn items_are_found_by_the_second_they_were_written_in_first_or_last() {
    let world = World::new(&json!({}), &[], 1);
    for second in 1..=50_u8 {
        let items: Vec<Value> = (0..4).map(|at| item((4 * second + at, at))).collect();
        world.write_at(Seconds(second.into()).start(), &items);
    }
    world.write_at(Seconds(60).start(), &[item((4 * 7, 1)), item((4 * 8, 2))]);
    for (filter, ids) in [
        ("c._ts = 7", "i29 i30 i31"),
        ("c._ts >= 50", "i200 i201 i202 i203 i28 i32"),
        ("c._ts > 6 AND c._ts < 9 AND c.v = 3", "i31 i35"),
    ] {
        let text = format!("SELECT VALUE c.id FROM c WHERE {filter}");
        let page = world.first_page(&text);
        assert!(page.followed.iter().any(|path| path == "/_ts/?"), "{filter}: {:?}", page.followed);
        let ids: Vec<String> = ids.split(' ').map(|id| format!("\"{id}\"")).collect();
        let mut rows = world.rows(&text);
        rows.sort();
        assert_eq!(rows, ids, "{filter}");
    }
    let text = "SELECT VALUE c.id FROM c ORDER BY c._ts DESC OFFSET 0 LIMIT 3";
    assert_eq!(world.rows(text)[2..], ["\"i203\""]);
}
