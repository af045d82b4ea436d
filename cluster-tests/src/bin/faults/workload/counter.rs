//! W6: increments are done once.

use std::sync::Mutex;

use anyhow::Result;
use ephemeris_cluster_tests::checker::{Counts, Tolerance};
use ephemeris_cluster_tests::client::{Answer, Call, Container};
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{
    Doing, Finding, Kind, ONE_PARTITION, RECOVERY, Workload, create_container, patch, store_all,
};
use crate::hand::{Hand, Reply, locked};

const COUNTERS: usize = 4;

pub(super) struct Counter {
    container: Container,
    counters: Mutex<Vec<Counts>>,
}

impl Counter {
    pub(super) fn new() -> Self {
        let counters = Mutex::new(vec![Counts::default(); COUNTERS]);
        Self { container: Kind::Counter.container(), counters }
    }

    fn read(&self, which: usize) -> Call {
        Call::get(self.container.item(&format!("c{which}"))).key(&key(which))
    }
}

fn key(which: usize) -> Value {
    json!(format!("p{which}"))
}

/// What a counter shows; none if there is none.
fn shown(answer: &Answer) -> Option<u64> {
    answer.json()["n"].as_u64()
}

impl Workload for Counter {
    fn name(&self) -> &'static str {
        "counter"
    }

    fn hands(&self) -> u32 {
        3
    }

    fn set_up<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            create_container(hand, &self.container, ONE_PARTITION, json!({})).await?;
            let counter = |which| json!({ "id": format!("c{which}"), "pk": key(which), "n": 0 });
            store_all(hand, &self.container, (0..COUNTERS).map(counter)).await
        })
    }

    fn step<'a>(&'a self, _which: u32, hand: &'a mut Hand) -> Doing<'a> {
        Box::pin(async {
            let which = hand.rng.random_range(0..COUNTERS);
            if hand.rng.random_bool(0.4) {
                let asked = hand.ask(&self.read(which)).await;
                let Reply::Answered(answer) = &asked.reply else { return };
                match shown(answer) {
                    Some(n) => {
                        locked(&self.counters)[which].reads.push((asked.call, asked.ret, n));
                    }
                    None => hand.shared.complain(format!("a counter: {}", answer.describe())),
                }
                return;
            }
            let increment = json!([{ "op": "incr", "path": "/n", "value": 1 }]);
            let call = patch(&self.container, &key(which), &format!("c{which}"), &increment);
            let asked = hand.ask(&call).await;
            let counts = &mut locked(&self.counters)[which];
            match asked.reply {
                Reply::Answered(answer) if answer.status == 200 => {
                    counts.increments.push((asked.call, Some(asked.ret)));
                }
                Reply::Answered(answer) => {
                    hand.shared.complain(format!("an increment: {}", answer.describe()));
                }
                Reply::Unknown => counts.increments.push((asked.call, None)),
                Reply::Refused => {}
            }
        })
    }

    fn settle<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            for which in 0..COUNTERS {
                let call = hand.now();
                let answer = hand.insist_answer(&self.read(which), RECOVERY).await?;
                let ret = hand.now();
                let counts = &mut locked(&self.counters)[which];
                match shown(&answer) {
                    Some(n) => counts.reads.push((call, ret, n)),
                    None => counts.gone = Some(answer.describe()),
                }
            }
            Ok(())
        })
    }

    fn judge(&self, _tolerance: Tolerance) -> Vec<Finding> {
        let counters = locked(&self.counters);
        let checked = counters.iter().map(Counts::len).sum();
        let wrong = counters.iter().enumerate().flat_map(|(which, one)| {
            one.wrong().into_iter().map(move |wrong| format!("c{which}: {wrong}"))
        });
        vec![Finding::new("counter: each increment once", checked, wrong.collect())]
    }
}
