//! W9: a unique value has one owner at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use anyhow::Result;
use ephemeris_cluster_tests::checker::Tolerance;
use ephemeris_cluster_tests::client::{Call, Container};
use rand::RngExt as _;
use serde_json::json;

use super::{
    Created, Doing, Finding, Kind, ONE_PARTITION, Workload, create_container, drain, store,
};
use crate::hand::{Hand, locked};

/// Attempts to own a value, after which another takes its place.
const ATTEMPTS: u64 = 6;

/// Who owns a value.
#[derive(Default)]
struct Owners {
    created: Created,
    /// Items that have it in the end.
    found: BTreeSet<String>,
}

#[derive(Default)]
struct Values {
    attempts: u64,
    owners: BTreeMap<String, Owners>,
}

pub(super) struct Unique {
    container: Container,
    values: Mutex<Values>,
}

impl Unique {
    pub(super) fn new() -> Self {
        Self { container: Kind::Unique.container(), values: Mutex::default() }
    }
}

impl Workload for Unique {
    fn name(&self) -> &'static str {
        "unique"
    }

    fn hands(&self) -> u32 {
        4
    }

    fn set_up<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        let policy = json!({ "uniqueKeyPolicy": { "uniqueKeys": [{ "paths": ["/mail"] }] } });
        Box::pin(create_container(hand, &self.container, ONE_PARTITION, policy))
    }

    fn step<'a>(&'a self, _which: u32, hand: &'a mut Hand) -> Doing<'a> {
        Box::pin(async {
            let attempt = {
                let mut values = locked(&self.values);
                values.attempts += 1;
                values.attempts
            };
            let (id, mail) = (format!("i{attempt}"), format!("m{}", attempt / ATTEMPTS));
            let may_replace = hand.rng.random_bool(0.3);
            let item = json!({ "id": id, "pk": "p", "mail": mail });
            let asked = hand.ask(&store(&self.container, &item, may_replace)).await;
            let mut values = locked(&self.values);
            let owners = values.owners.entry(mail).or_default();
            if let Some(answer) = owners.created.note(id, asked.reply)
                && answer.status != 409
            {
                hand.shared.complain(format!("a unique value: {}", answer.describe()));
            }
        })
    }

    fn settle<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            let feed = Call::get(self.container.items()).header("x-ms-max-item-count", "1000");
            let rows = drain(hand, &feed).await?;
            let mut values = locked(&self.values);
            for row in &rows {
                let text = |name: &str| row[name].as_str().map(String::from).unwrap_or_default();
                values.owners.entry(text("mail")).or_default().found.insert(text("id"));
            }
            Ok(())
        })
    }

    fn judge(&self, _tolerance: Tolerance) -> Vec<Finding> {
        let values = locked(&self.values);
        let wrong = values.owners.iter().flat_map(|(value, owners)| {
            owners.wrong().into_iter().map(move |wrong| format!("{value}: {wrong}"))
        });
        let checked = usize::try_from(values.attempts).unwrap_or(usize::MAX);
        vec![Finding::new("unique: one owner", checked, wrong.collect())]
    }
}

impl Owners {
    fn wrong(&self) -> Vec<String> {
        let Self { created, found } = self;
        let mut wrong = created.wrong(&found.iter().collect());
        if created.acknowledged.len() > 1 || found.len() > 1 {
            wrong.push(format!("owned by {:?}, found with {found:?}", created.acknowledged));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_one_owner_who_was_not_refused() {
        let judged = |acknowledged: &[&str], unknown: &[&str], found: &[&str]| {
            let [acknowledged, unknown, found] = [acknowledged, unknown, found]
                .map(|ids| ids.iter().map(|id| (*id).to_string()).collect::<BTreeSet<_>>());
            Owners { created: Created { acknowledged, unknown }, found }.wrong().len()
        };
        assert_eq!(judged(&["a"], &["b"], &["a"]), 0);
        assert_eq!(judged(&[], &["b"], &["b"]), 0);
        assert_eq!(judged(&[], &["b"], &[]), 0);
        assert_eq!(judged(&["a", "b"], &[], &["a", "b"]), 1);
        assert_eq!(judged(&["a"], &[], &[]), 1);
        assert_eq!(judged(&[], &[], &["c"]), 1);
    }
}
