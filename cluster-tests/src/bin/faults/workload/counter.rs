//! W6: increments are done once.

use std::sync::Mutex;

use anyhow::Result;
use ephemeris_cluster_tests::checker::Tolerance;
use ephemeris_cluster_tests::client::{Answer, Call, Container};
use ephemeris_cluster_tests::history::Nanos;
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{
    Doing, Finding, Kind, ONE_PARTITION, RECOVERY, Workload, create_container, patch, store_all,
};
use crate::hand::{Hand, Reply, locked};

const COUNTERS: usize = 4;

/// What happened to a counter, or to whatever else is counted.
#[derive(Clone, Default)]
pub(super) struct Counts {
    /// Calls and returns of increments; none where nobody knows what came of them.
    pub(super) increments: Vec<(Nanos, Option<Nanos>)>,
    /// Calls, returns, and what was shown.
    pub(super) reads: Vec<(Nanos, Nanos, u64)>,
    /// What was shown in the end, if it is no counter.
    gone: Option<String>,
}

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
        let checked = counters.iter().map(|one| one.increments.len() + one.reads.len()).sum();
        let wrong = counters.iter().enumerate().flat_map(|(which, one)| {
            one.wrong().into_iter().map(move |wrong| format!("c{which}: {wrong}"))
        });
        vec![Finding::new("counter: each increment once", checked, wrong.collect())]
    }
}

impl Counts {
    /// Reads of less than was acknowledged before, or of more than was ever begun.
    pub(super) fn wrong(&self) -> Vec<String> {
        let mut returns: Vec<Nanos> = self.increments.iter().filter_map(|(_, ret)| *ret).collect();
        let mut calls: Vec<Nanos> = self.increments.iter().map(|(call, _)| *call).collect();
        returns.sort_unstable();
        calls.sort_unstable();
        let gone = self.gone.iter().map(|shown| format!("is gone in the end: {shown}"));
        let mut wrong: Vec<String> = gone.collect();
        for (call, ret, n) in &self.reads {
            let least = returns.partition_point(|at| at < call) as u64;
            let most = calls.partition_point(|at| at < ret) as u64;
            if !(least..=most).contains(n) {
                wrong.push(format!("{n} was read, of {least} to {most}"));
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_between_what_was_acknowledged_and_what_was_begun() {
        let increments = vec![(10, Some(20)), (30, None), (50, Some(60))];
        let judged = |reads: Vec<(Nanos, Nanos, u64)>| {
            Counts { increments: increments.clone(), reads, gone: None }.wrong().len()
        };
        assert_eq!(judged(vec![(0, 5, 0), (25, 28, 1), (61, 70, 2), (61, 70, 3)]), 0);
        assert_eq!(judged(vec![(25, 28, 0)]), 1, "lost");
        assert_eq!(judged(vec![(25, 28, 2)]), 1, "done twice");
        assert_eq!(judged(vec![(61, 70, 4)]), 1, "done twice");
    }

    #[test]
    fn a_counter_that_is_gone_in_the_end_is_wrong() {
        let counts = Counts { gone: Some("404/0".to_string()), ..Counts::default() };
        assert_eq!(counts.wrong().len(), 1);
    }
}
