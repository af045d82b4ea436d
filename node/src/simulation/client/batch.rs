//! Transactional batches: all of one happens, at one instant, or nothing of it.

use std::collections::BTreeSet;

use rand::RngExt as _;
use serde_json::{Value, json};

use super::super::http::{Answer, Ask, Lost};
use super::super::laws::Span;
use super::items::Version;
use super::{Client, is_taken};

/// An operation that writes an item.
struct Operation {
    which: usize,
    /// True if the item must be there.
    replaces: bool,
    version: Version,
}

impl Client {
    /// Writes the items of a logical partition, one of them twice, and reads that one.
    pub(super) async fn batch(&mut self, which: usize) {
        let mut headers = vec![self.items[which].key_header()];
        headers.push(("x-ms-cosmos-is-batch-request", "True".to_string()));
        headers.push(("x-ms-cosmos-batch-atomic", "True".to_string()));
        let (operations, body) = self.operations(which);
        let path = self.items_path();
        let ask = Ask { verb: "POST", path: &path, headers, body: body.to_string() };
        let (span, answer) = self.ask(ask).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(Lost::NotSent) => return,
            Err(Lost::NoAnswer) => return self.lose_all(&operations),
        };
        match answer.status {
            200 => self.carried_out(span, &operations, &answer),
            207 => self.refused(span, &operations, &answer),
            // Surely nothing was done.
            403 | 429 | 503 => {}
            408 => self.lose_all(&operations),
            _ => panic!("a batch is not answered with {answer:?}"),
        }
    }

    fn operations(&mut self, which: usize) -> (Vec<Operation>, Value) {
        let partition_key = &self.items[which].partition_key;
        let is_there = |other: &usize| self.items[*other].partition_key == *partition_key;
        let mut targets: Vec<usize> = (0..self.items.len()).filter(is_there).collect();
        targets.push(which);
        let (mut operations, mut sent) = (Vec::new(), Vec::new());
        for target in targets {
            let replaces = self.rng.random_bool(0.5);
            let (version, body) = self.body(target);
            let kind = if replaces { "Replace" } else { "Upsert" };
            let id = &self.items[target].id;
            sent.push(json!({ "operationType": kind, "id": id, "resourceBody": body }));
            operations.push(Operation { which: target, replaces, version });
        }
        sent.push(json!({ "operationType": "Read", "id": self.items[which].id }));
        (operations, Value::Array(sent))
    }

    fn carried_out(&mut self, span: Span, operations: &[Operation], answer: &Answer) {
        self.world.count("batch");
        let lsn = self.learn(answer);
        let rows = rows(operations, answer);
        for (operation, row) in operations.iter().zip(&rows) {
            let Operation { which, replaces, version } = operation;
            let key = &mut self.items[*which].key;
            match row["statusCode"].as_u64() {
                Some(201) if !replaces => key.saw_gone(span, "created in a batch"),
                Some(200) => key.saw_alive_at_apply(span, "replaced in a batch"),
                _ => panic!("a write of a batch is not answered with {row}"),
            }
            self.wrote_as(*which, span, *version, lsn, &row["resourceBody"]);
        }
        let last = operations.last().expect("a batch writes something");
        let read = rows.last().expect("and reads it");
        assert_eq!(read["resourceBody"]["serial"], last.version.serial, "it reads what it wrote");
    }

    /// One operation says why nothing was done, the others that it was not they.
    fn refused(&mut self, span: Span, operations: &[Operation], answer: &Answer) {
        self.world.count("batch refused");
        let rows = rows(operations, answer);
        let told: Vec<usize> =
            (0..rows.len()).filter(|at| rows[*at]["statusCode"] != 424).collect();
        let [at] = told[..] else { panic!("one operation is refused, not {told:?}: {rows:?}") };
        let Some(Operation { which, replaces, version }) = operations.get(at) else {
            panic!("what a batch has written is there to be read: {rows:?}")
        };
        let (before, row) = (&operations[..at], &rows[at]);
        let is_own = before.iter().any(|one| one.which == *which);
        // What another operation has taken just before.
        let took = |one: &Operation| one.which != *which && one.version.slot == version.slot;
        match row["statusCode"].as_u64() {
            Some(404) if *replaces => {
                assert!(!is_own, "what a batch has written is there to be replaced: {rows:?}");
                self.learn(answer);
                self.items[*which].key.saw_gone(span, "was not there to replace in a batch");
            }
            Some(409) if is_taken(row) && before.iter().any(took) => {
                self.learn(answer);
            }
            Some(409) if is_taken(row) => self.saw_taken(*which, span, *version, answer),
            _ => panic!("a write of a batch is not refused with {row}"),
        }
    }

    /// A batch of unknown outcome may still change every item of it.
    fn lose_all(&mut self, operations: &[Operation]) {
        let items: BTreeSet<usize> = operations.iter().map(|operation| operation.which).collect();
        for which in items {
            self.lose(which);
        }
    }
}

/// What each operation was answered, and the read behind them.
fn rows(operations: &[Operation], answer: &Answer) -> Vec<Value> {
    let Value::Array(rows) = answer.json() else { panic!("{answer:?} has no rows") };
    assert_eq!(rows.len(), operations.len() + 1, "each operation is answered");
    rows
}
