//! Whether what the faults are for has happened at all: what nodes count and what they log.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ephemeris_cluster_tests::client::Client;
use ephemeris_cluster_tests::cluster::Cluster;
use ephemeris_cluster_tests::history::{Operation, Outcome};
use ephemeris_cluster_tests::measure::Metrics;
use tokio::task::JoinSet;

use crate::hand::locked;
use crate::nemesis::Mode;
use crate::workload::Kind;

/// How often nodes are asked for what they count; a process that ends takes the last of it along.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long one may take to answer.
const PATIENCE: Duration = Duration::from_millis(400);

/// Lines of logs, what each means, and the modes any one of which brings it about.
const LOGGED: [(&str, &str, &[Mode]); 8] = [
    (
        "installed a snapshot",
        "a snapshot was installed",
        &[Mode::Snapshot, Mode::CrashInSnapshot, Mode::Membership, Mode::CorruptRecord],
    ),
    ("the write-ahead log is damaged", "a damaged log was refused", &[Mode::CorruptRecord]),
    ("with another data directory", "a node without its data was refused", &[Mode::Membership]),
    (
        "handing leadership over",
        "leadership was handed over",
        &[Mode::TransferLeader, Mode::RollingRestart],
    ),
    (
        "no majority answers: asking another to lead",
        "a leader that heard nobody gave way",
        &[Mode::DeafenLeader],
    ),
    ("taking back entries", "entries that were not committed were taken back", &[]),
    ("torn by a crash", "the torn end of a log was forgotten", &[]),
    ("no majority of clocks agrees; carrying on", "the clocks had no majority", &[]),
];

/// Counters, what each counts, and the workload that brings it about.
const COUNTED: [(&str, &str, Option<Kind>); 7] = [
    ("ttl_doubt_waits_total", "a read waited for the partition clock", Some(Kind::Register)),
    (
        "ttl_clock_advances_total",
        "the partition clock was advanced for a read",
        Some(Kind::Register),
    ),
    ("ttl_swept_items_total", "a sweep removed an item", Some(Kind::Register)),
    ("follower_reads_total", "a follower answered a read", Some(Kind::Session)),
    ("follower_reads_passed_on_total", "a follower left a read to the leader", None),
    ("clock_jumps_vouched_total", "a majority vouched for a jump of the clock", None),
    ("clock_jumps_guarded_total", "a jump of the clock was not believed", None),
];
/// What histories show.
const SEEN_LATER: &str = "a write of unknown outcome was seen later";

/// Follows what nodes count, over the ends of their processes.
pub(crate) struct Counts {
    seen: Arc<Mutex<BTreeMap<(u32, &'static str), Counter>>>,
    /// Ends with the run.
    _tasks: JoinSet<()>,
}

/// A counter that starts anew with its process.
#[derive(Clone, Copy, Default)]
struct Counter {
    before: u64,
    last: u64,
}

impl Counter {
    fn note(&mut self, now: u64) {
        if now < self.last {
            self.before += self.last;
        }
        self.last = now;
    }

    fn total(self) -> u64 {
        self.before + self.last
    }
}

impl Counts {
    pub(crate) fn follow(cluster: &Cluster) -> Self {
        let seen: Arc<Mutex<BTreeMap<(u32, &'static str), Counter>>> = Arc::default();
        let mut tasks = JoinSet::new();
        for node in cluster.ids() {
            let (client, seen) = (cluster.client(node), seen.clone());
            tasks.spawn(async move {
                loop {
                    if let Some(metrics) = ask(&client).await {
                        let mut seen = locked(&seen);
                        for (name, ..) in COUNTED {
                            seen.entry((node, name)).or_default().note(metrics.count(name));
                        }
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            });
        }
        Self { seen, _tasks: tasks }
    }

    /// How often each happened, on all nodes together.
    pub(crate) fn totals(&self) -> BTreeMap<&'static str, u64> {
        let seen = locked(&self.seen);
        let total = |name: &str| {
            let counters = seen.iter().filter(|((_, counter), _)| *counter == name);
            counters.map(|(_, counter)| counter.total()).sum()
        };
        COUNTED.iter().map(|(name, what, _)| (*what, total(name))).collect()
    }
}

async fn ask(client: &Client) -> Option<Metrics> {
    tokio::time::timeout(PATIENCE, Metrics::try_of(client)).await.ok().flatten()
}

/// How often each thing that is logged was.
pub(crate) fn logged(cluster: &Cluster) -> BTreeMap<&'static str, u64> {
    let logs: Vec<String> = cluster.ids().into_iter().map(|node| cluster.log(node)).collect();
    let count = |line: &str| logs.iter().map(|log| log.matches(line).count() as u64).sum();
    LOGGED.iter().map(|(line, what, _)| (*what, count(line))).collect()
}

/// What should have happened, since a mode that brings it about was there, and has not.
pub(crate) fn missing(
    happened: &BTreeMap<&'static str, u64>,
    coverage: &BTreeMap<String, u64>,
) -> Vec<String> {
    let was_there = |modes: &[Mode]| modes.iter().any(|mode| coverage.contains_key(&mode.name()));
    let wanted = LOGGED.iter().filter(|(.., modes)| was_there(modes));
    let wanted = wanted.filter(|(_, what, _)| happened.get(what).is_none_or(|times| *times == 0));
    wanted.map(|(_, what, _)| format!("it never happened that {what}")).collect()
}

/// How often each thing happened that histories tell of.
pub(crate) fn of_histories(histories: &[Vec<Operation>]) -> BTreeMap<&'static str, u64> {
    let seen_later = |history: &Vec<Operation>| {
        let seen: HashSet<u64> = history.iter().filter_map(|one| Some(one.seen()?.0)).collect();
        let unknown = history.iter().filter(|one| one.outcome == Outcome::Unknown);
        let serials = unknown.filter_map(|one| one.action.serial());
        serials.filter(|serial| seen.contains(serial)).count() as u64
    };
    BTreeMap::from([(SEEN_LATER, histories.iter().map(seen_later).sum())])
}

/// What should have happened, since clients did what brings it about, and has not.
pub(crate) fn missing_of(happened: &BTreeMap<&'static str, u64>, kinds: &[Kind]) -> Vec<String> {
    let wanted = COUNTED.iter().filter(|(.., kind)| kind.is_some_and(|kind| kinds.contains(&kind)));
    let missing = wanted.filter(|(_, what, _)| happened.get(what).is_none_or(|times| *times == 0));
    missing.map(|(_, what, _)| format!("it never happened that {what}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_goes_on_over_the_end_of_its_process() {
        let mut counter = Counter::default();
        for now in [2, 5, 1, 4, 0] {
            counter.note(now);
        }
        assert_eq!(counter.total(), 5 + 4);
    }

    #[test]
    fn what_a_mode_brings_about_is_missed_only_if_the_mode_was_there() {
        let nothing = BTreeMap::new();
        let covered = BTreeMap::from([(Mode::Snapshot.name(), 1)]);
        assert_eq!(missing(&nothing, &BTreeMap::new()), Vec::<String>::new());
        assert_eq!(
            missing(&nothing, &covered),
            ["it never happened that a snapshot was installed"]
        );
        let happened = BTreeMap::from([("a snapshot was installed", 1)]);
        assert_eq!(missing(&happened, &covered), Vec::<String>::new());
    }

    #[test]
    fn what_a_workload_brings_about_is_missed_only_if_clients_did_it() {
        let nothing = BTreeMap::new();
        assert_eq!(missing_of(&nothing, &[Kind::Bank]), Vec::<String>::new());
        assert_eq!(
            missing_of(&nothing, &[Kind::Session]),
            ["it never happened that a follower answered a read"]
        );
        let happened = BTreeMap::from([("a follower answered a read", 1)]);
        assert_eq!(missing_of(&happened, &[Kind::Session]), Vec::<String>::new());
    }
}
