//! Queries: what a row shows is read, and so is what is in no row of a result that was seen to its end.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use ephemeris_cluster_tests::client::{Answer, Call, Container};
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::history::{Nanos, Operation, Outcome as Saw};
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{CONTAINERS, History, Key, Keys, PARTITION_KEYS, READ, Register, operation};
use crate::hand::{Asked, Hand, Reply, locked};
use crate::workload::{PAGE_ROWS, RECOVERY, page, query, rows};

/// In the order in which items are stored, where each keeps its place.
const IN_PLACE: &str = "SELECT c.id, c.serial, c._ts FROM c";
/// In an order in which an item moves to the front when it is written.
const LAST_FIRST: &str =
    "SELECT c.id, c.serial, c._ts FROM c WHERE c.serial >= 0 ORDER BY c.serial DESC";
/// How often pages are small, and how many rows these have of a logical partition at most; of a container it
/// is ten times as many.
const SMALL_PROBABILITY: f64 = 0.33;
const SMALL_PAGE_MAX: u32 = 5;
/// Pause after a result that was not seen to its end.
const PAUSE: Duration = Duration::from_millis(20);

/// A query for items of a container.
struct Question {
    container: usize,
    /// Only those of a logical partition.
    partition: Option<Value>,
    text: &'static str,
    page_rows: u32,
}

impl Question {
    fn random(hand: &mut Hand) -> Self {
        let rng = &mut hand.rng;
        let container = rng.random_range(0..CONTAINERS.len());
        let partition = rng
            .random_bool(0.7)
            .then(|| json!(format!("p{}", rng.random_range(0..PARTITION_KEYS))));
        let text = if rng.random_bool(0.5) { IN_PLACE } else { LAST_FIRST };
        let parts: u32 = if partition.is_some() { 1 } else { 10 };
        let page_rows = if rng.random_bool(SMALL_PROBABILITY) {
            parts * rng.random_range(1..=SMALL_PAGE_MAX)
        } else {
            PAGE_ROWS
        };
        Self { container, partition, text, page_rows }
    }

    fn call(&self, container: &Container) -> Call {
        let call = query(container, self.text, self.page_rows);
        match &self.partition {
            Some(key) => call.key(key),
            None => call.header("x-ms-documentdb-query-enablecrosspartition", "true"),
        }
    }

    /// True if it asks for keys of this container with this partition key.
    fn is_about(&self, container: usize, partition: &Value) -> bool {
        let asked = self.partition.as_ref();
        self.container == container && asked.is_none_or(|asked| asked == partition)
    }

    /// True if what is in none of so many pages was not there: nothing moves from one to another.
    fn shows_all_in(&self, pages: usize) -> bool {
        self.text == IN_PLACE || pages == 1
    }
}

impl Keys {
    /// Keys in use that a query asks for.
    fn asked_for(&self, question: &Question) -> Vec<String> {
        let is_asked =
            |key: &&Key| question.is_about(key.container, &key.partition) && !key.is_worn_out();
        self.used.iter().filter(is_asked).map(|key| key.name.clone()).collect()
    }

    /// Every key that a container ever had. Of each another row is kept.
    fn all_of(&mut self, container: usize) -> Vec<String> {
        let of_container = self.histories.iter_mut().filter(|(_, one)| one.container == container);
        let name = |(name, history): (&String, &mut History)| {
            history.rows_left += 1;
            name.clone()
        };
        of_container.map(name).collect()
    }

    /// Records what a row shows; false if it is none of a key that was asked for.
    fn record_row(&mut self, question: &Question, row: Operation) -> bool {
        let history = self.histories.get_mut(&row.key);
        let asked = history.filter(|one| question.is_about(one.container, &one.partition));
        let Some(history) = asked else { return false };
        if history.rows_left > 0 {
            history.rows_left -= 1;
            history.operations.push(row);
        }
        true
    }
}

impl Register {
    /// Asks for all items of a logical partition, or of the container.
    pub(super) async fn query(&self, hand: &mut Hand) {
        let question = Question::random(hand);
        let names = locked(&self.keys).asked_for(&question);
        self.look(&question, &names, hand).await;
    }

    /// Looks at every key that a container ever had, once all is well.
    pub(super) async fn look_at_all(&self, container: usize, hand: &mut Hand) -> Result<()> {
        let question =
            Question { container, partition: None, text: IN_PLACE, page_rows: PAGE_ROWS };
        let names = locked(&self.keys).all_of(container);
        let begun = clock::monotonic();
        while !self.look(&question, &names, hand).await {
            ensure!(begun.elapsed() < RECOVERY, "nobody shows all that is there");
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Looks whether keys are there. A row is seen between call and return of its page; what is in no row
    /// was not there at some instant of the whole walk. False if a page was not answered.
    async fn look(&self, question: &Question, names: &[String], hand: &mut Hand) -> bool {
        let call = question.call(&self.containers[question.container]);
        let (mut shown, mut pages, mut last) = (HashSet::new(), 0, None);
        let (mut next, mut first_call) = (None::<String>, None);
        loop {
            let asked = hand.ask(&page(&call, next.as_deref())).await;
            let Reply::Answered(answer) = &asked.reply else { return false };
            if answer.status != 200 {
                let what = format!("{} was answered by {}", question.text, answer.describe());
                hand.shared.complain(what);
                return true;
            }
            pages += 1;
            if !question.shows_all_in(pages) {
                // What was written since the last page may be shown again.
                shown.clear();
            }
            for (name, serial) in self.note_rows(question, &asked, answer, hand) {
                let before = last.replace(serial);
                if question.text == LAST_FIRST && before.is_some_and(|before| before <= serial) {
                    let what = format!("{LAST_FIRST}: {serial} comes after {before:?}");
                    hand.shared.complain(what);
                }
                if let Some(name) = shown.replace(name) {
                    hand.shared.complain(format!("{name} is twice in the rows of a query"));
                }
            }
            let begun = *first_call.get_or_insert(asked.call);
            next = answer.continuation().map(String::from);
            if next.is_none() {
                if question.shows_all_in(pages) {
                    let missing = names.iter().filter(|name| !shown.contains(*name));
                    self.note_missing(missing, begun, &asked, hand);
                }
                return true;
            }
        }
    }

    /// Notes the rows of a page; returns the keys that they show, and which versions.
    fn note_rows(
        &self,
        question: &Question,
        asked: &Asked,
        answer: &Answer,
        hand: &Hand,
    ) -> Vec<(String, u64)> {
        let mut keys = locked(&self.keys);
        let mut shown = Vec::new();
        for row in rows(answer) {
            let (Some(id), Some(serial), Some(ts)) =
                (row["id"].as_str(), row["serial"].as_u64(), row["_ts"].as_u64())
            else {
                hand.shared.complain(format!("a row is {row}"));
                continue;
            };
            let found = operation(hand, asked, id, READ, Saw::Found { serial, ts });
            if !keys.record_row(question, Operation { entry: None, ..found }) {
                let Question { text, partition, .. } = question;
                hand.shared.complain(format!("{text}, asked of {partition:?}, shows {row}"));
            }
            shown.push((id.to_string(), serial));
        }
        shown
    }

    /// Notes that there was nothing, from an instant to the return of the last page.
    fn note_missing<'n>(
        &self,
        names: impl Iterator<Item = &'n String>,
        begun: Nanos,
        asked: &Asked,
        hand: &Hand,
    ) {
        let mut keys = locked(&self.keys);
        for name in names {
            let missing = operation(hand, asked, name, READ, Saw::NotFound);
            keys.record(Operation { call: begun, entry: None, ..missing });
        }
    }
}
