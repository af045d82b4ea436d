//! W8: sessions read what they wrote, on any replica, and never less than they have read.
//!
//! Every client has items of its own, which nobody else writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use anyhow::Result;
use ephemeris_cluster_tests::checker::Tolerance;
use ephemeris_cluster_tests::client::{Call, Container};
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{Doing, Finding, Kind, TWO_PARTITIONS, Workload, create_container, store};
use crate::hand::{Asked, Hand, Reply, locked};

const ITEMS: usize = 4;
const HANDS: u32 = 3;

/// What a client knows of an item.
#[derive(Default)]
struct Item {
    /// The serial that was written or shown last.
    last: u64,
    /// Serials of writes that may be done yet, however late.
    unknown: BTreeSet<u64>,
}

/// What a client knows.
#[derive(Default)]
struct Known {
    serial: u64,
    items: [Item; ITEMS],
    /// The session, by range.
    tokens: BTreeMap<u32, u64>,
    reads: usize,
    wrong: Vec<String>,
}

pub(super) struct Session {
    container: Container,
    clients: Vec<Mutex<Known>>,
}

impl Session {
    pub(super) fn new() -> Self {
        let clients = (0..HANDS).map(|_| Mutex::default()).collect();
        Self { container: Kind::Session.container(), clients }
    }

    async fn write(&self, which: u32, at: usize, hand: &mut Hand) {
        let known = &self.clients[which as usize];
        let serial = {
            let mut known = locked(known);
            known.serial += 1;
            known.serial
        };
        let item = json!({ "id": id(which, at), "pk": key(which, at), "serial": serial });
        let asked = hand.ask(&store(&self.container, &item, true)).await;
        let mut known = locked(known);
        match &asked.reply {
            Reply::Answered(_) => {
                known.items[at].last = serial;
                known.learn(&asked);
            }
            Reply::Unknown => {
                known.items[at].unknown.insert(serial);
            }
            Reply::Refused => {}
        }
    }

    async fn read(&self, which: u32, at: usize, hand: &mut Hand) {
        let known = &self.clients[which as usize];
        let token = {
            let known = locked(known);
            let tokens = known.tokens.iter().map(|(range, lsn)| format!("{range}:-1#{lsn}"));
            tokens.collect::<Vec<_>>().join(",")
        };
        let mut call = Call::get(self.container.item(&id(which, at)))
            .key(&key(which, at))
            .header("x-ms-consistency-level", "Session");
        if !token.is_empty() {
            call = call.header("x-ms-session-token", token.clone());
        }
        let asked = hand.ask(&call).await;
        let Reply::Answered(answer) = &asked.reply else { return };
        let shown = answer.json()["serial"].as_u64().unwrap_or(0);
        let mut known = locked(known);
        known.reads += 1;
        let item = &mut known.items[at];
        if shown != item.last {
            if !item.unknown.remove(&shown) {
                let what = format!("{} shows {shown}, not {}", id(which, at), item.last);
                let by = format!("by node {} for {token}", asked.node);
                known.wrong.push(format!("{what}, {by}"));
            }
            known.items[at].last = shown;
        }
        known.learn(&asked);
    }
}

impl Known {
    fn learn(&mut self, asked: &Asked) {
        if let Some((range, lsn)) = asked.entry() {
            let seen = self.tokens.entry(range).or_default();
            *seen = lsn.max(*seen);
        }
    }
}

fn id(which: u32, at: usize) -> String {
    format!("s{which}-{at}")
}

fn key(which: u32, at: usize) -> Value {
    json!(format!("p{which}-{at}"))
}

impl Workload for Session {
    fn name(&self) -> &'static str {
        "session"
    }

    fn hands(&self) -> u32 {
        HANDS
    }

    fn set_up<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(create_container(hand, &self.container, TWO_PARTITIONS, json!({})))
    }

    fn step<'a>(&'a self, which: u32, hand: &'a mut Hand) -> Doing<'a> {
        Box::pin(async move {
            let at = hand.rng.random_range(0..ITEMS);
            if hand.rng.random_bool(0.3) {
                self.write(which, at, hand).await;
            } else {
                self.read(which, at, hand).await;
            }
        })
    }

    fn settle<'a>(&'a self, hand: &'a mut Hand) -> Doing<'a, Result<()>> {
        Box::pin(async {
            for which in 0..HANDS {
                for at in 0..ITEMS {
                    self.read(which, at, hand).await;
                }
            }
            Ok(())
        })
    }

    fn judge(&self, _tolerance: Tolerance) -> Vec<Finding> {
        let all = self.clients.iter().map(|one| locked(one));
        let (mut reads, mut wrong) = (0, Vec::new());
        for known in all {
            reads += known.reads;
            wrong.extend(known.wrong.iter().cloned());
        }
        vec![Finding::new("session: reads what it wrote and read", reads, wrong)]
    }
}
