//! W4: lists that grow at their end.
//!
//! Every value is appended once. What a read shows is a beginning of what the last one shows: so there is
//! one order of all values, and it must be that of time. No read shows less than one before it.

use std::sync::Mutex;

use anyhow::Result;
use ephemeris_cluster_tests::checker::{List, Tolerance};
use ephemeris_cluster_tests::client::{Answer, Call, Container};
use ephemeris_cluster_tests::history::Nanos;
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{
    Doing, Finding, Kind, ONE_PARTITION, RECOVERY, Workload, create_container, patch, store,
};
use crate::hand::{Hand, Reply, locked};

/// Lists that grow at the same time.
const LISTS: usize = 3;
/// Values after which another list goes on in place of one.
const VALUES: u64 = 200;

struct Lists {
    next_value: u64,
    /// Numbers of the lists that grow.
    growing: [usize; LISTS],
    all: Vec<List>,
}

pub(super) struct Append {
    container: Container,
    lists: Mutex<Lists>,
}

impl Append {
    pub(super) fn new() -> Self {
        let all = (0..LISTS).map(|_| List::default()).collect();
        let lists = Lists { next_value: 0, growing: std::array::from_fn(|at| at), all };
        Self { container: Kind::Append.container(), lists: Mutex::new(lists) }
    }

    fn read(&self, list: usize) -> Call {
        Call::get(self.container.item(&id(list))).key(&key(list))
    }

    /// Notes what an answer shows of a list. One that nobody has made yet has no values.
    fn note(&self, hand: &Hand, list: usize, (call, ret): (Nanos, Nanos), answer: &Answer) {
        let values: Vec<u64> = match (answer.status, answer.json()["list"].as_array()) {
            (200, Some(values)) => values.iter().filter_map(Value::as_u64).collect(),
            (404, None) => Vec::new(),
            _ => return hand.shared.complain(format!("a list: {}", answer.describe())),
        };
        locked(&self.lists).all[list].reads.push((call, ret, values));
    }

    /// A list, and a value for it that nobody has.
    fn next(&self, at: usize) -> (usize, u64) {
        let lists = &mut *locked(&self.lists);
        if lists.all[lists.growing[at]].appends.len() as u64 >= VALUES {
            lists.growing[at] = lists.all.len();
            lists.all.push(List::default());
        }
        lists.next_value += 1;
        (lists.growing[at], lists.next_value)
    }
}

fn id(list: usize) -> String {
    format!("l{list}")
}

fn key(list: usize) -> Value {
    json!(format!("p{}", list % 4))
}

impl Workload for Append {
    fn name(&self) -> &'static str {
        "append"
    }

    fn hands(&self) -> u32 {
        4
    }

    fn set_up<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(create_container(hand, &self.container, ONE_PARTITION, json!({})))
    }

    fn step<'a>(&'a self, _which: u32, hand: &'a mut Hand) -> Doing<'a> {
        Box::pin(async {
            let (list, value) = self.next(hand.rng.random_range(0..LISTS));
            if hand.rng.random_bool(0.4) {
                let asked = hand.ask(&self.read(list)).await;
                if let Reply::Answered(answer) = &asked.reply {
                    self.note(hand, list, (asked.call, asked.ret), answer);
                }
                return;
            }
            let add = json!([{ "op": "add", "path": "/list/-", "value": value }]);
            let asked = hand.ask(&patch(&self.container, &key(list), &id(list), &add)).await;
            match asked.reply {
                Reply::Answered(answer) if answer.status == 200 => {
                    let times = (asked.call, Some(asked.ret));
                    locked(&self.lists).all[list].appends.insert(value, times);
                }
                Reply::Answered(answer) if answer.status == 404 => {
                    self.note(hand, list, (asked.call, asked.ret), &answer);
                    // It does not matter who makes it, nor what comes of this.
                    let item = json!({ "id": id(list), "pk": key(list), "list": [] });
                    hand.ask(&store(&self.container, &item, false)).await;
                }
                Reply::Answered(answer) => {
                    hand.shared.complain(format!("an append: {}", answer.describe()));
                }
                Reply::Unknown => {
                    locked(&self.lists).all[list].appends.insert(value, (asked.call, None));
                }
                Reply::Refused => {}
            }
        })
    }

    fn settle<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            let lists = locked(&self.lists).all.len();
            for list in 0..lists {
                let call = hand.now();
                let answer = hand.insist_answer(&self.read(list), RECOVERY).await?;
                self.note(hand, list, (call, hand.now()), &answer);
            }
            Ok(())
        })
    }

    fn judge(&self, _tolerance: Tolerance) -> Vec<Finding> {
        let lists = locked(&self.lists);
        let checked = lists.all.iter().map(|one| one.appends.len() + one.reads.len()).sum();
        let wrong = lists.all.iter().enumerate().flat_map(|(number, list)| {
            list.wrong().into_iter().map(move |wrong| format!("{}: {wrong}", id(number)))
        });
        vec![Finding::new("append: one order, that of time", checked, wrong.collect())]
    }
}
