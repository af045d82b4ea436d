//! W5: transfers in batches leave the sum as it is, and are counted, each once.

use std::sync::Mutex;

use anyhow::Result;
use ephemeris_cluster_tests::checker::{Counts, Tolerance};
use ephemeris_cluster_tests::client::{Answer, Call, Container};
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{
    Doing, Finding, Kind, ONE_PARTITION, PAGE_ROWS, RECOVERY, Workload, create_container, page,
    query, rows, store_all,
};
use crate::hand::{Hand, Reply, locked};

const ACCOUNTS: usize = 8;
const BALANCE: i64 = 100;
/// The item that every transfer counts itself in: a sum stays the same if a transfer is lost as a whole, or done
/// twice.
const TALLY: &str = "tally";

pub(super) struct Bank {
    container: Container,
    /// The balances that reads have shown.
    reads: Mutex<Vec<Vec<i64>>>,
    /// Transfers, and what was shown of their number.
    tally: Mutex<Counts>,
}

impl Bank {
    pub(super) fn new() -> Self {
        Self { container: Kind::Bank.container(), reads: Mutex::default(), tally: Mutex::default() }
    }

    fn read(&self) -> Call {
        // The tally has none: what is undefined is no row.
        query(&self.container, "SELECT VALUE c.balance FROM c", PAGE_ROWS).key(&key())
    }

    fn read_tally(&self) -> Call {
        Call::get(self.container.item(TALLY)).key(&key())
    }

    /// Notes the balances of an answer; one without rows shows none, and is judged like the others, unless the
    /// node had no time for all of them.
    fn note(&self, answer: &Answer) {
        if answer.continuation().is_some() {
            return;
        }
        locked(&self.reads).push(balances_of(answer));
    }
}

fn balances_of(answer: &Answer) -> Vec<i64> {
    rows(answer).iter().filter_map(Value::as_i64).collect()
}

/// What the tally shows; none if it is gone.
fn counted(answer: &Answer) -> Option<u64> {
    answer.json()["n"].as_u64()
}

fn key() -> Value {
    json!("bank")
}

fn id(account: usize) -> String {
    format!("a{account}")
}

impl Workload for Bank {
    fn name(&self) -> &'static str {
        "bank"
    }

    fn hands(&self) -> u32 {
        2
    }

    fn set_up<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            create_container(hand, &self.container, ONE_PARTITION, json!({})).await?;
            let account = |number| json!({ "id": id(number), "pk": key(), "balance": BALANCE });
            let tally = json!({ "id": TALLY, "pk": key(), "n": 0 });
            store_all(hand, &self.container, (0..ACCOUNTS).map(account).chain([tally])).await
        })
    }

    fn step<'a>(&'a self, _which: u32, hand: &'a mut Hand) -> Doing<'a> {
        Box::pin(async {
            if hand.rng.random_bool(0.3) {
                if let Reply::Answered(answer) = hand.ask(&self.read()).await.reply {
                    self.note(&answer);
                }
                return;
            }
            if hand.rng.random_bool(0.2) {
                let asked = hand.ask(&self.read_tally()).await;
                let Reply::Answered(answer) = &asked.reply else { return };
                match counted(answer) {
                    Some(n) => locked(&self.tally).reads.push((asked.call, asked.ret, n)),
                    None => hand.shared.complain(format!("a tally: {}", answer.describe())),
                }
                return;
            }
            let from = hand.rng.random_range(0..ACCOUNTS);
            let to = (from + hand.rng.random_range(1..ACCOUNTS)) % ACCOUNTS;
            let amount = hand.rng.random_range(1..10);
            let add = |id: &str, member: &str, amount: i64| {
                let operations = json!([{ "op": "incr", "path": member, "value": amount }]);
                json!({
                    "operationType": "Patch",
                    "id": id,
                    "resourceBody": { "operations": operations },
                })
            };
            let batch = json!([
                add(&id(from), "/balance", -amount),
                add(&id(to), "/balance", amount),
                add(TALLY, "/n", 1),
            ]);
            let call = Call::post(self.container.items(), batch.to_string())
                .header("content-type", "application/json")
                .header("x-ms-cosmos-is-batch-request", "True")
                .header("x-ms-cosmos-batch-atomic", "True")
                .header("x-ms-cosmos-batch-continue-on-error", "False")
                .key(&key());
            let asked = hand.ask(&call).await;
            let done = match asked.reply {
                Reply::Answered(answer) if answer.status == 200 => Some(asked.ret),
                Reply::Answered(answer) => {
                    return hand.shared.complain(format!("a transfer: {}", answer.describe()));
                }
                Reply::Unknown => None,
                Reply::Refused => return,
            };
            locked(&self.tally).increments.push((asked.call, done));
        })
    }

    fn settle<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            // Nobody transfers any more: pages of different instants show one sum, too.
            let (mut balances, mut next) = (Vec::new(), None::<String>);
            loop {
                let page = page(&self.read(), next.as_deref());
                let answer = hand.insist_answer(&page, RECOVERY).await?;
                balances.extend(balances_of(&answer));
                next = answer.continuation().map(String::from);
                if next.is_none() {
                    break;
                }
            }
            locked(&self.reads).push(balances);
            let call = hand.now();
            let answer = hand.insist_answer(&self.read_tally(), RECOVERY).await?;
            let ret = hand.now();
            let tally = &mut *locked(&self.tally);
            match counted(&answer) {
                Some(n) => tally.reads.push((call, ret, n)),
                None => tally.gone = Some(answer.describe()),
            }
            Ok(())
        })
    }

    fn judge(&self, _tolerance: Tolerance) -> Vec<Finding> {
        let (reads, tally) = (locked(&self.reads), locked(&self.tally));
        vec![
            Finding::new("bank: the sum stays", reads.len(), wrong(&reads)),
            Finding::new("bank: each transfer once", tally.len(), tally.wrong()),
        ]
    }
}

/// Reads that do not show every balance, or show another sum.
fn wrong(reads: &[Vec<i64>]) -> Vec<String> {
    let sum = BALANCE * ACCOUNTS.cast_signed() as i64;
    let is_right =
        |balances: &Vec<i64>| balances.len() == ACCOUNTS && balances.iter().sum::<i64>() == sum;
    let wrong = reads.iter().filter(|balances| !is_right(balances));
    wrong.map(|balances| format!("{balances:?}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_read_shows_all_balances_and_one_sum() {
        let untouched = vec![BALANCE; ACCOUNTS];
        let mut moved = untouched.clone();
        (moved[0], moved[1]) = (-7, 2 * BALANCE + 7);
        assert_eq!(wrong(&[untouched, moved]), Vec::<String>::new());
    }

    #[test]
    fn half_a_transfer_and_an_account_that_is_gone_are_found() {
        let mut half = vec![BALANCE; ACCOUNTS];
        half[0] += 1;
        let mut gone = vec![BALANCE; ACCOUNTS - 1];
        gone[0] += BALANCE;
        assert_eq!(wrong(&[half, gone, Vec::new()]).len(), 3);
    }
}
