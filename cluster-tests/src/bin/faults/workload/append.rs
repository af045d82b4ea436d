//! W4: lists that grow at their end.
//!
//! Every value is appended once. What a read shows is a beginning of what the last one shows: so there is
//! one order of all values, and it must be that of time.

use std::collections::HashMap;
use std::sync::Mutex;

use anyhow::Result;
use ephemeris_cluster_tests::checker::Tolerance;
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

/// What happened to a list.
#[derive(Default)]
struct List {
    /// Calls and returns by value; none where nobody knows what came of it.
    appends: HashMap<u64, (Nanos, Option<Nanos>)>,
    reads: Vec<(Nanos, Nanos, Vec<u64>)>,
}

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

impl List {
    fn wrong(&self) -> Vec<String> {
        let Some((looked, _, last)) = self.reads.iter().max_by_key(|(call, ..)| *call) else {
            return Vec::new();
        };
        let mut wrong = Vec::new();
        let places: HashMap<u64, usize> =
            last.iter().enumerate().map(|(at, value)| (*value, at)).collect();
        if places.len() != last.len() {
            wrong.push("a value is there twice".to_string());
        }
        for (value, (_, ret)) in &self.appends {
            if ret.is_some_and(|ret| ret < *looked) && !places.contains_key(value) {
                wrong.push(format!("{value} was acknowledged and is lost"));
            }
        }
        wrong.extend(
            last.iter()
                .filter(|value| !self.appends.contains_key(value))
                .map(|value| format!("{value} was refused and is there")),
        );
        for (call, ret, values) in &self.reads {
            if ret < looked && !last.starts_with(values) {
                wrong.push(format!("{values:?} is no beginning of {last:?}"));
            }
            let is_missing = |(_, done): &(Nanos, Option<Nanos>)| done.is_some_and(|at| at < *call);
            let due = self.appends.iter().filter(|(_, times)| is_missing(times));
            let missing = due.filter(|(value, _)| !values.contains(value));
            wrong.extend(missing.map(|(value, _)| format!("a read does not show {value}")));
            let of_later = values
                .iter()
                .filter(|value| self.appends.get(value).is_some_and(|(begun, _)| begun > ret));
            wrong.extend(of_later.map(|value| format!("{value} was shown before it was sent")));
        }
        // In the order of the list, nothing is called after what is behind it has returned.
        let times = last.iter().filter_map(|value| self.appends.get(value).map(|at| (value, at)));
        let mut latest_call = (0, 0);
        for (value, (call, ret)) in times {
            if ret.is_some_and(|ret| ret < latest_call.0) {
                wrong
                    .push(format!("{value} stands behind {}, which was sent later", latest_call.1));
            }
            latest_call = latest_call.max((*call, *value));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(reads: &[(Nanos, Nanos, &[u64])]) -> usize {
        let appends = [(1, (10, Some(20))), (2, (30, None)), (3, (40, Some(50)))];
        let reads = reads.iter().map(|(call, ret, values)| (*call, *ret, values.to_vec()));
        List { appends: HashMap::from(appends), reads: reads.collect() }.wrong().len()
    }

    #[test]
    fn reads_show_beginnings_of_one_list() {
        assert_eq!(judged(&[(15, 18, &[]), (21, 35, &[1]), (60, 61, &[1, 3])]), 0);
        assert_eq!(judged(&[(35, 45, &[1, 2]), (60, 61, &[1, 2, 3])]), 0);
    }

    #[test]
    fn what_is_lost_doubled_turned_round_or_stale_is_found() {
        assert_eq!(judged(&[(60, 61, &[1])]), 2, "lost, and not shown");
        assert_eq!(judged(&[(25, 26, &[]), (60, 61, &[1, 3])]), 1, "not there for a while");
        assert_eq!(judged(&[(60, 61, &[1, 3, 3])]), 1, "twice");
        assert_eq!(judged(&[(60, 61, &[3, 1])]), 1, "turned round");
        assert_eq!(judged(&[(55, 56, &[1]), (60, 61, &[1, 3])]), 1, "stale");
        assert_eq!(judged(&[(60, 61, &[1, 3, 4])]), 1, "from nowhere");
        assert_eq!(judged(&[(12, 14, &[1, 3]), (60, 61, &[1, 3])]), 1, "before it was sent");
    }
}
