//! Whether what the faults are for has happened at all: what nodes count and what they log.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ephemeris_cluster_tests::client::Client;
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::cluster::Cluster;
use ephemeris_cluster_tests::history::{Operation, Outcome};
use ephemeris_cluster_tests::measure::Metrics;
use tokio::task::JoinSet;

use crate::hand::locked;
use crate::nemesis::Mode;
use crate::report::FaultWindow;
use crate::workload::Kind;

/// How often nodes are asked for what they count; a process that ends takes the last of it along.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long one may take to answer.
const PATIENCE: Duration = Duration::from_millis(400);

/// Lines of logs, what each means, and the modes each of which brings it about: on a node that it hits.
const LOGGED: [(&str, &str, &[Mode]); 9] = [
    ("installed a snapshot", "a snapshot was installed", &[Mode::Snapshot]),
    (
        "the process ends at ",
        "a process ended where it was told to",
        &[Mode::CrashPoint, Mode::CrashInSnapshot],
    ),
    ("the write-ahead log is damaged", "a damaged log was refused", &[Mode::CorruptRecord]),
    ("with another data directory", "a node without its data was refused", &[Mode::Membership]),
    // By a group; a node that ends says so whatever it leads.
    (
        "group: handing leadership over",
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
    ("follower_reads_total", "a follower answered a read", None),
    ("follower_reads_passed_on_total", "a follower left a read to the leader", None),
    ("clock_jumps_vouched_total", "a majority vouched for a jump of the clock", None),
    ("clock_jumps_guarded_total", "a jump of the clock was not believed", None),
];
/// What is counted while nobody but a session reads.
pub(crate) const FOLLOWER_OF_SESSION: &str = "a follower answered a session's read";
/// How uncertain a node's clock is.
const WIDTH: &str = "clock_width_seconds";
/// What a node that has just been hit may yet log.
const LOGGED_WITHIN: Duration = Duration::from_secs(10);
/// What histories show.
const SEEN_LATER: &str = "a write of unknown outcome was seen later";

/// Follows what nodes count, over the ends of their processes.
pub(crate) struct Counts {
    seen: Arc<Mutex<BTreeMap<(u32, &'static str), Counter>>>,
    /// The widest that any clock was.
    width_seconds: Arc<Mutex<f64>>,
    /// They end with the run.
    tasks: Mutex<JoinSet<()>>,
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
        let width_seconds: Arc<Mutex<f64>> = Arc::default();
        let mut tasks = JoinSet::new();
        for node in cluster.ids() {
            let (client, seen) = (cluster.client(node), seen.clone());
            let widest = width_seconds.clone();
            tasks.spawn(async move {
                loop {
                    if let Some(metrics) = ask(&client).await {
                        let mut seen = locked(&seen);
                        for (name, ..) in COUNTED {
                            seen.entry((node, name)).or_default().note(metrics.count(name));
                        }
                        let mut widest = locked(&widest);
                        *widest = widest.max(metrics.value(WIDTH));
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            });
        }
        Self { seen, width_seconds, tasks: Mutex::new(tasks) }
    }

    /// Panics if a node was not followed to the end.
    pub(crate) fn check(&self) {
        assert!(locked(&self.tasks).try_join_next().is_none(), "every node is followed to the end");
    }

    /// The widest that any node's clock was seen.
    pub(crate) fn width_seconds(&self) -> f64 {
        *locked(&self.width_seconds)
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

/// How many reads followers have answered, by all nodes that say so.
pub(crate) async fn follower_reads(cluster: &Cluster) -> u64 {
    let mut reads = 0;
    for client in cluster.clients(&cluster.running()) {
        reads += ask(&client).await.map_or(0, |metrics| metrics.count("follower_reads_total"));
    }
    reads
}

/// How often each thing that is logged was.
pub(crate) fn logged(cluster: &Cluster) -> BTreeMap<&'static str, u64> {
    logged_by(cluster, &cluster.ids())
}

fn logged_by(cluster: &Cluster, nodes: &[u32]) -> BTreeMap<&'static str, u64> {
    let logs: Vec<String> = nodes.iter().map(|node| cluster.log(*node)).collect();
    let count = |line: &str| logs.iter().map(|log| log.matches(line).count() as u64).sum();
    LOGGED.iter().map(|(line, what, _)| (*what, count(line))).collect()
}

/// What nodes had logged before a fault.
pub(crate) struct Before(BTreeMap<u32, BTreeMap<&'static str, u64>>);

impl Before {
    /// Before one of this mode; nothing if it brings nothing about that is logged.
    pub(crate) fn of(mode: Mode, cluster: &Cluster) -> Option<Self> {
        wanted_of(mode).next()?;
        let by_node = cluster.ids().into_iter().map(|node| (node, logged_by(cluster, &[node])));
        Some(Self(by_node.collect()))
    }

    /// How often each thing was logged since by nodes that were hit, once all that should be was, or it is late.
    pub(crate) async fn since(
        &self,
        mode: Mode,
        (cluster, targets): (&Cluster, &[String]),
    ) -> BTreeMap<&'static str, u64> {
        let begun = clock::monotonic();
        let hit = hit(targets);
        loop {
            let mut since: BTreeMap<&'static str, u64> = BTreeMap::new();
            for (node, before) in self.0.iter().filter(|(node, _)| hit.contains(node)) {
                for (what, now) in logged_by(cluster, &[*node]) {
                    let new = now.saturating_sub(before.get(what).copied().unwrap_or_default());
                    *since.entry(what).or_default() += new;
                }
            }
            since.retain(|_, times| *times > 0);
            let is_complete = wanted_of(mode).all(|what| since.contains_key(what));
            if is_complete || begun.elapsed() > LOGGED_WITHIN {
                return since;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// What a mode brings about that is logged.
fn wanted_of(mode: Mode) -> impl Iterator<Item = &'static str> {
    LOGGED.iter().filter(move |(.., modes)| modes.contains(&mode)).map(|(_, what, _)| *what)
}

/// The nodes that targets name, as `n1`, `n1>n3` or `n1 at log-synced`.
fn hit(targets: &[String]) -> BTreeSet<u32> {
    let words = targets.iter().flat_map(|target| target.split([' ', '>', ',']));
    words.filter_map(|word| word.strip_prefix('n')?.parse().ok()).collect()
}

/// What should have happened in one fault at least of a mode that was there, and has not.
pub(crate) fn missing(faults: &[FaultWindow]) -> Vec<String> {
    let mut missing = Vec::new();
    for mode in Mode::all() {
        let name = mode.name();
        let of_mode: Vec<&FaultWindow> = faults.iter().filter(|one| one.mode == name).collect();
        if of_mode.is_empty() {
            continue;
        }
        for what in wanted_of(mode) {
            if !of_mode.iter().any(|fault| fault.logged.contains_key(what)) {
                missing.push(format!("it never happened in any {name} that {what}"));
            }
        }
    }
    missing
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
    let missing = missing.map(|(_, what, _)| *what);
    let of_session = kinds.contains(&Kind::Session).then_some(FOLLOWER_OF_SESSION);
    let of_session = of_session.filter(|what| happened.get(what).is_none_or(|times| *times == 0));
    missing.chain(of_session).map(|what| format!("it never happened that {what}")).collect()
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
        let fault = |mode: Mode, logged: &[&'static str]| FaultWindow {
            logged: logged.iter().map(|what| (*what, 1)).collect(),
            ..FaultWindow::example(&mode.name(), 0, 0)
        };
        assert_eq!(missing(&[]), Vec::<String>::new());
        assert_eq!(missing(&[fault(Mode::KillLeader, &[])]), Vec::<String>::new());
        let installed = ["a snapshot was installed"];
        // Another mode's snapshot is no sign that this one did anything.
        assert_eq!(
            missing(&[fault(Mode::Snapshot, &[]), fault(Mode::KillLeader, &installed)]),
            ["it never happened in any snapshot that a snapshot was installed"]
        );
        let twice = [fault(Mode::Snapshot, &[]), fault(Mode::Snapshot, &installed)];
        assert_eq!(missing(&twice), Vec::<String>::new());
    }

    #[test]
    fn targets_name_those_that_were_hit() {
        let targets = ["n1>n3", "n2 at log-synced", "5 of 100 packets", "n4 by -3 ms"];
        assert_eq!(hit(&targets.map(str::to_string)), BTreeSet::from([1, 2, 3, 4]));
    }

    #[test]
    fn what_a_workload_brings_about_is_missed_only_if_clients_did_it() {
        let nothing = BTreeMap::new();
        assert_eq!(missing_of(&nothing, &[Kind::Bank]), Vec::<String>::new());
        assert_eq!(
            missing_of(&nothing, &[Kind::Session]),
            ["it never happened that a follower answered a session's read"]
        );
        let happened = BTreeMap::from([(FOLLOWER_OF_SESSION, 1)]);
        assert_eq!(missing_of(&happened, &[Kind::Session]), Vec::<String>::new());
    }
}
