//! W2: what was inserted is there in the end, once, and nothing else.

use std::collections::BTreeSet;
use std::sync::Mutex;

use anyhow::Result;
use ephemeris_cluster_tests::checker::Tolerance;
use ephemeris_cluster_tests::client::{Call, Container};
use serde_json::json;

use super::{
    Created, Doing, Finding, Kind, ONE_PARTITION, Workload, create_container, drain, store,
};
use crate::hand::{Hand, locked};

#[derive(Default)]
struct Inserts {
    made: u64,
    created: Created,
    found: Vec<String>,
}

pub(super) struct Set {
    container: Container,
    inserts: Mutex<Inserts>,
}

impl Set {
    pub(super) fn new() -> Self {
        Self { container: Kind::Set.container(), inserts: Mutex::default() }
    }
}

impl Workload for Set {
    fn name(&self) -> &'static str {
        "set"
    }

    fn hands(&self) -> u32 {
        3
    }

    fn set_up<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(create_container(hand, &self.container, ONE_PARTITION, json!({})))
    }

    fn step<'a>(&'a self, _which: u32, hand: &'a mut Hand) -> Doing<'a> {
        Box::pin(async {
            let number = {
                let mut inserts = locked(&self.inserts);
                inserts.made += 1;
                inserts.made
            };
            let id = format!("i{number}");
            let item = json!({ "id": id, "pk": format!("p{}", number % 8) });
            let asked = hand.ask(&store(&self.container, &item, false)).await;
            if let Some(answer) = locked(&self.inserts).created.note(id, asked.reply) {
                hand.shared.complain(format!("a new id: {}", answer.describe()));
            }
        })
    }

    fn settle<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            let feed = Call::get(self.container.items()).header("x-ms-max-item-count", "1000");
            let rows = drain(hand, &feed).await?;
            let id = |row: &serde_json::Value| row["id"].as_str().map(String::from);
            locked(&self.inserts).found = rows.iter().filter_map(id).collect();
            Ok(())
        })
    }

    fn judge(&self, _tolerance: Tolerance) -> Vec<Finding> {
        let inserts = locked(&self.inserts);
        let Inserts { created, found, .. } = &*inserts;
        let shown: BTreeSet<&String> = found.iter().collect();
        let mut wrong = created.wrong(&shown);
        if shown.len() != found.len() {
            wrong.push(format!("{} items twice", found.len() - shown.len()));
        }
        vec![Finding::new("set: nothing lost, nothing twice", created.acknowledged.len(), wrong)]
    }
}
