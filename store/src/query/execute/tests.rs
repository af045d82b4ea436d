//! Pages of sorted results: together they are the whole result, and each is as small as was asked.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::codec;
use crate::command::{Action, Command, ItemWrite, Precondition, Proposal};
use crate::document::DocumentRules;
use crate::engine::MemoryEngine;
use crate::ids::{DatabaseNumber, GroupId, ItemId};
use crate::indexing::{self, IndexRules};
use crate::machine::{Entry, LogId, Machine as _};
use crate::partition::{PageOutcome, Partition, PartitionSpec};
use crate::partition_key::KeyKind;
use crate::query::{ComputedProperties, Parameters};
use crate::time::ClockInterval;

const CONTAINER: ContainerNumber = ContainerNumber { database: DatabaseNumber(1), number: 1 };

fn rules() -> DocumentRules {
    let key = KeyDefinition { kind: KeyKind::HashV2, paths: vec![vec!["pk".into()]] };
    DocumentRules::new(key, IndexRules::new(&indexing::complete(None).unwrap()).unwrap())
}

/// A partition with an item for each `v`, `fill` bytes of filling in each.
fn partition(items: &[(serde_json::Value, usize)]) -> Partition {
    let spec = PartitionSpec { group: GroupId(1), container: CONTAINER, slots: SlotRange::ALL };
    let partition = Partition::open(Arc::new(MemoryEngine::new()), spec).unwrap();
    let rules = rules();
    let write = |(at, (v, fill)): (usize, &(serde_json::Value, usize))| {
        let body = serde_json::json!({ "pk": at, "v": v, "fill": "x".repeat(*fill) });
        let parsed = rules.parse(body.to_string().as_bytes()).unwrap();
        let id = ItemId::try_from(format!("i{at}")).unwrap();
        let key = ItemKey::new(&rules.key().place(&parsed.key), &parsed.key, &id);
        let action = Action::Upsert(parsed.document);
        ItemWrite { key, precondition: Precondition::None, action }
    };
    let command = Command::Write(items.iter().enumerate().map(write).collect());
    let now = ClockInterval::exact(Millis(1000));
    let bytes = codec::encode(&Proposal { now, vouchers: None, command });
    partition.apply(LogId { term: 1, index: 0 }, Entry::Command(&bytes)).unwrap();
    partition
}

fn pages(partition: &Partition, text: &str, limits: PageLimits) -> Vec<Vec<QueryRow>> {
    let rules = rules();
    let (parameters, computed) = (Parameters::default(), ComputedProperties::default());
    let query = CompiledQuery::new(text, &parameters, rules.index(), &computed).unwrap();
    let (mut pages, mut resume) = (Vec::new(), None);
    loop {
        let view = partition.snapshot();
        let (key, scope, hi) = (rules.key(), Scope::default(), Millis(1000));
        let outcome = run_page(
            &view,
            SlotRange::ALL,
            key,
            CONTAINER,
            &query,
            &scope,
            resume.as_ref(),
            limits,
            hi,
        );
        let PageOutcome::Page(page) = outcome.unwrap() else { panic!("nothing here expires") };
        pages.push(page.rows);
        match page.next {
            None => return pages,
            next => resume = next,
        }
    }
}

fn sizes(pages: &[Vec<QueryRow>]) -> Vec<usize> {
    pages.iter().map(Vec::len).collect()
}

#[test]
fn a_page_counts_what_it_is_sorted_by() {
    let items: Vec<_> = (0..6).map(|at| (format!("{at}{}", "k".repeat(999)).into(), 0)).collect();
    let limits = PageLimits { rows: 100, bytes: 2500, items: 100 };
    let pages = pages(&partition(&items), "SELECT VALUE 1 FROM c ORDER BY c.v", limits);
    assert_eq!(sizes(&pages), [2, 2, 2]);
}

#[test]
fn a_row_larger_than_a_page_has_a_page_of_its_own() {
    let items = [(1.into(), 10), (2.into(), 5000), (3.into(), 10), (4.into(), 10)];
    let limits = PageLimits { rows: 100, bytes: 1000, items: 100 };
    let pages = pages(&partition(&items), "SELECT c.fill FROM c ORDER BY c.v", limits);
    assert_eq!(sizes(&pages), [1, 1, 2]);
}

/// A large row that does not fit must hold back the small ones that come after it.
#[test]
fn pages_have_no_gaps() {
    let items = [(1.into(), 10), (5.into(), 10), (3.into(), 900), (4.into(), 10)];
    let limits = PageLimits { rows: 100, bytes: 500, items: 100 };
    let pages = pages(&partition(&items), "SELECT c.v, c.fill FROM c ORDER BY c.v", limits);
    let rows = pages.concat().into_iter().map(|row| row.json[..6].to_vec());
    assert_eq!(rows.collect::<Vec<_>>().concat(), br#"{"v":1{"v":3{"v":4{"v":5"#);
}

proptest! {
    #[test]
    fn small_pages_make_up_the_one_large_page(
        items in prop::collection::vec((0_u8..4, 0_usize..300), 0..25),
        rows in 1_usize..6,
        bytes in 1_usize..700,
        descending in any::<bool>(),
    ) {
        let items: Vec<_> = items.into_iter().map(|(v, fill)| (v.into(), fill)).collect();
        let partition = partition(&items);
        let direction = if descending { "DESC" } else { "ASC" };
        let text = format!("SELECT * FROM c ORDER BY c.v {direction}");
        let everything = PageLimits { rows: usize::MAX, bytes: usize::MAX, items: usize::MAX };
        let whole = pages(&partition, &text, everything);
        prop_assert_eq!(sizes(&whole), [items.len()]);
        let small = pages(&partition, &text, PageLimits { rows, bytes, items: 1 });
        for page in &small {
            let sent: usize = page.iter().map(|row| row.json.len()).sum();
            prop_assert!(page.len() <= rows);
            prop_assert!(sent <= bytes || page.len() == 1);
        }
        let numbers = |pages: Vec<Vec<QueryRow>>| -> Vec<ItemNumber> {
            pages.concat().into_iter().map(|row| row.number).collect()
        };
        prop_assert_eq!(numbers(small), numbers(whole));
    }

    /// However many rows go by, those held together fit a page.
    #[test]
    fn what_is_held_fits_a_page(
        rows in prop::collection::vec((0_u32..50, 1_usize..400), 1..60),
        bytes_max in 1_usize..1000,
    ) {
        let limits = PageLimits { rows: 10, bytes: bytes_max, items: 1 };
        let mut first = FirstRows::new(limits, false);
        for (number, (v, bytes)) in (0_u64..).zip(rows) {
            let key = Some(SortKey(Value::Number(crate::query::Number::Int(v.into()))));
            first.add(QueryRow { json: vec![b'x'; bytes], key, number: ItemNumber(number) });
            let held: usize = first.rows.iter().map(|held| held.row.json.len()).sum();
            prop_assert!(held <= bytes_max || first.rows.len() == 1);
            prop_assert!(first.rows.len() <= limits.rows);
        }
    }
}
