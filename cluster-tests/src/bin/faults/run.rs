//! A run, from the first node's start to the verdict.

use std::any::Any;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use ephemeris_cluster_tests::checker::Tolerance;
use ephemeris_cluster_tests::client::Container;
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::cluster::Cluster;
use ephemeris_cluster_tests::history::{Nanos, Operation};
use ephemeris_cluster_tests::measure::write_lag;
use futures_util::FutureExt as _;
use indicatif::{ProgressBar, ProgressStyle};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::JoinSet;

use crate::arguments::{Ends, Options, Place, Plan};
use crate::end_state;
use crate::hand::{Hand, Shared};
use crate::nemesis::{Mode, Nemesis, Strike};
use crate::report::{End, FaultWindow, HISTORY, Results, Sample, Summary};
use crate::settings::Settings;
use crate::sometimes::{self, Before, Counts, FOLLOWER_OF_SESSION};
use crate::workload::{Finding, Kind, Outcome, RECOVERY, Workload};

/// All nodes and all clients read the same clock, whose readings are whole milliseconds.
const SKEW: Duration = Duration::from_millis(2);
/// Nothing expires while the nodes' clocks leave more doubt than this: their own setting.
const WIDTH: Duration = Duration::from_secs(2);

/// How long clients work before the first fault, and at least so many requests in a second.
const WARM_UP: Duration = Duration::from_secs(5);
const RATE_MIN: f64 = 100.0;
/// Pause between the end of a fault and the next.
const BREATH_MS: std::ops::Range<u64> = 500..3000;
/// Every request must be answered for so long before a cluster counts as recovered, and for so long after.
const RECOVERED: Duration = Duration::from_secs(1);
const RELAPSES_WITHIN: Duration = Duration::from_secs(2);
/// Reasons that are told why a cluster did not recover.
const FAILURES_SHOWN: usize = 10;
/// How often it is told how far a run is where nobody sees the line that moves.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// How often the harness looks whether it keeps pace.
const TICK: Duration = Duration::from_millis(10);

const NANOS_PER_MILLI: u64 = 1_000_000;

/// Runs all that was asked for; true if all is well.
pub(crate) async fn all(plan: &Plan) -> anyhow::Result<bool> {
    let begun = clock::monotonic();
    let mut seed = plan.options.seed.unwrap_or_else(|| u64::from(rand::random::<u16>()));
    let file = plan.options.output.join(format!("{}-{seed}-summary.json", plan.place.name()));
    let mut summary = Summary::default();
    while plan.ends.go_on(summary.runs, begun.elapsed(), summary.is_ok()) {
        let results = one(plan, seed).await.with_context(|| format!("seed {seed}"))?;
        results.print();
        summary.add(&results);
        summary.write(&file)?;
        seed += 1;
    }
    if summary.runs > 1 {
        summary.print();
        println!("{}", file.display());
    }
    Ok(summary.is_ok())
}

/// Clients at work.
struct Work {
    workloads: Vec<Arc<dyn Workload>>,
    shared: Arc<Shared>,
    hands: JoinSet<()>,
    stop: Arc<AtomicBool>,
    /// Longest pause of a client.
    pause: Duration,
    /// The container whose leaders are broken.
    broken: Container,
}

/// What a run has shown, as far as it came.
#[derive(Default)]
struct Observed {
    /// Modes that can be done here.
    modes: Vec<Mode>,
    /// Those that cannot, and why.
    skipped: BTreeMap<String, String>,
    faults: Vec<FaultWindow>,
    samples: Vec<Sample>,
    rate_before_faults: f64,
    recovery: Option<Recovery>,
    /// Why requests failed after the last fault.
    failures: BTreeMap<String, u64>,
    late_ms_max: u64,
    /// For how long a write may see what has expired, if nodes have told how uncertain their clocks were.
    write_lag: Option<Duration>,
    /// What nodes counted and logged.
    sometimes: BTreeMap<&'static str, u64>,
    /// What is wrong with the nodes in the end, and what the nemesis saw.
    wrong: Vec<String>,
    /// True if the nodes were looked at in the end.
    has_looked: bool,
    /// What the harness itself could not do.
    harness: Vec<String>,
}

/// When all requests were answered again.
#[derive(Clone, Copy)]
struct Recovery {
    /// After the last fault was over, in milliseconds.
    after_ms: u64,
    /// From here on none may fail.
    seen_at: Nanos,
}

async fn one(plan: &Plan, seed: u64) -> anyhow::Result<Results> {
    let begun = clock::monotonic();
    let progress = ProgressBar::new_spinner();
    progress.set_style(ProgressStyle::with_template("{spinner} {elapsed} {msg}")?);
    progress.enable_steady_tick(Duration::from_millis(200));
    progress.set_message("starting nodes");
    let mut cluster = cluster(plan, seed)?;
    let mut work = Work::new(&plan.options, &cluster);
    let mut observed = Observed::default();
    // What was seen until then is judged and kept, whatever becomes of the harness.
    let through = work_through(plan, seed, (&mut cluster, &mut work), &mut observed, &progress);
    match AssertUnwindSafe(through).catch_unwind().await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => observed.harness.push(format!("{error:#}")),
        Err(panic) => observed.harness.push(said_by(&*panic)),
    }
    if !observed.harness.is_empty() {
        // What was asked for is waited for: it may have been done.
        match work.end().await {
            Ok(samples) => observed.samples.extend(samples),
            Err(error) => observed.harness.push(format!("{error:#}")),
        }
    }

    progress.set_message("judging");
    let findings = judged(work.workloads.clone(), tolerance(&observed)).await?;
    let histories: Vec<Vec<Operation>> =
        work.workloads.iter().flat_map(|workload| workload.histories()).collect();
    observed.sometimes.extend(sometimes::of_histories(&histories));
    let results = results(plan, seed, begun.elapsed(), (&observed, findings), &work);
    progress.set_message("writing");
    let directory = directory(plan, seed);
    results.write(&directory, &observed.samples, &histories, failing(&results).as_deref())?;
    if results.is_ok() && matches!(plan.ends, Ends::Soak { .. }) {
        // A night's histories would fill the disk.
        std::fs::remove_file(directory.join(HISTORY))?;
    }
    if !results.is_ok() {
        for node in cluster.ids() {
            std::fs::write(directory.join(format!("node{node}.log")), cluster.log(node))?;
        }
    }
    progress.finish_and_clear();
    println!("{}", directory.display());
    Ok(results)
}

fn settings(plan: &Plan, seed: u64) -> Settings {
    Settings::of(plan.place, seed, &plan.options.modes())
}

/// Nodes that do not run yet.
fn cluster(plan: &Plan, seed: u64) -> anyhow::Result<Cluster> {
    if plan.place == Place::Compose {
        return Cluster::compose();
    }
    let settings = settings(plan, seed);
    let arguments = settings.arguments();
    let arguments: Vec<&str> = ["--consistency", "Strong"]
        .into_iter()
        .chain(arguments.iter().map(String::as_str))
        .collect();
    let mut cluster = Cluster::breakable_with(settings.nodes, &arguments);
    if plan.options.modes().into_iter().any(Mode::is_of_machine) {
        cluster.make_faulty();
    }
    if plan.options.modes().into_iter().any(Mode::loses_power) {
        cluster.give_disks();
    }
    Ok(cluster)
}

/// What a panic said.
fn said_by(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_string()
}

/// Lets clients work, breaks the cluster, mends it, and looks at everything once more.
async fn work_through(
    plan: &Plan,
    seed: u64,
    (cluster, work): (&mut Cluster, &mut Work),
    observed: &mut Observed,
    progress: &ProgressBar,
) -> anyhow::Result<()> {
    cluster.start_all().await;
    (observed.modes, observed.skipped) = can_and_cannot(&plan.options, cluster);
    let mut rng = SmallRng::seed_from_u64(seed);
    let pace = Pace::start();
    let counts = Counts::follow(cluster);
    let mut own = work.hand(0, rng.random());
    for workload in &work.workloads {
        progress.set_message(format!("{}: setting up", workload.name()));
        workload.set_up(&mut own).await?;
    }
    work.shared.take_samples();
    work.begin(&mut rng);
    progress.set_message("warming up");
    tokio::time::sleep(WARM_UP).await;
    observed.rate_before_faults = float(work.shared.done()) / WARM_UP.as_secs_f64();

    let rng_of_nemesis = SmallRng::seed_from_u64(rng.random());
    let mut nemesis = Nemesis {
        cluster,
        rng: rng_of_nemesis,
        container: &work.broken,
        timer: work.shared.timer,
        election_timeout: settings(plan, seed).election_timeout(),
        begun: None,
        installed: None,
        healed: None,
        in_vain: None,
        skew: skew(&observed.modes),
        leaders_first: seed.is_multiple_of(2),
        struck: BTreeMap::new(),
        wrong: &mut observed.wrong,
    };
    let time = Duration::from_secs_f64(plan.minutes * 60.0);
    let modes_and_faults = (observed.modes.as_slice(), &mut observed.faults);
    break_things(time, &mut nemesis, (&work.shared, &mut rng), modes_and_faults, progress).await;
    progress.set_message("recovering");
    observed.recovery = work.recovery(observed.faults.last().map(|fault| fault.stop)).await;
    observed.samples = work.end().await?;

    progress.set_message("looking at everything once more");
    end_state::note_fallen(cluster, &mut observed.wrong);
    cluster.await_settled().await;
    let mut of_session = 0;
    for workload in &work.workloads {
        // Nobody else reads meanwhile.
        let before = sometimes::follower_reads(cluster).await;
        if let Err(error) = workload.settle(&mut own).await {
            observed.harness.push(format!("{} at its end: {error:#}", workload.name()));
        }
        if workload.name() == Kind::Session.option() {
            of_session = sometimes::follower_reads(cluster).await.saturating_sub(before);
        }
    }
    observed.failures = work.shared.failures();
    end_state::note_differences(cluster, &mut own, &mut observed.wrong).await?;
    end_state::note_fallen(cluster, &mut observed.wrong);
    observed.has_looked = true;
    observed.late_ms_max = pace.late_ms_max();
    counts.check();
    observed.sometimes = counts.totals();
    observed.sometimes.extend(sometimes::logged(cluster));
    observed.sometimes.insert(FOLLOWER_OF_SESSION, of_session);
    let logs: Vec<String> = cluster.ids().into_iter().map(|node| cluster.log(node)).collect();
    observed.write_lag = Some(write_lag(&logs, counts.width_seconds(), WIDTH));
    Ok(())
}

/// The modes that can be done here, and why others cannot.
fn can_and_cannot(
    options: &Options,
    cluster: &mut Cluster,
) -> (Vec<Mode>, BTreeMap<String, String>) {
    let (mut modes, mut skipped) = (Vec::new(), BTreeMap::new());
    for mode in options.modes() {
        match mode.needs().and_then(|ability| cluster.lacks(ability)) {
            None => modes.push(mode),
            Some(why) => drop(skipped.insert(mode.name(), why)),
        }
    }
    (modes, skipped)
}

/// By how much the modes of a run may move what the cluster takes the time to be.
fn skew(modes: &[Mode]) -> Duration {
    modes.iter().map(|mode| mode.skew()).fold(SKEW, Duration::max)
}

/// What is allowed for. Where clocks are set so that they may be believed, widths say nothing of it.
fn tolerance(observed: &Observed) -> Tolerance {
    let skew = skew(&observed.modes);
    let width = observed.write_lag.filter(|_| skew == SKEW).unwrap_or(WIDTH);
    Tolerance { skew: nanos(skew), width: nanos(width) }
}

async fn judged(
    workloads: Vec<Arc<dyn Workload>>,
    tolerance: Tolerance,
) -> anyhow::Result<Vec<Finding>> {
    let judge =
        move || workloads.iter().flat_map(|workload| workload.judge(tolerance)).collect::<Vec<_>>();
    Ok(tokio::task::spawn_blocking(judge).await?)
}

fn results(
    plan: &Plan,
    seed: u64,
    time: Duration,
    (observed, findings): (&Observed, Vec<Finding>),
    work: &Work,
) -> Results {
    let count = |end: End| observed.samples.iter().filter(|one| one.end == end).count() as u64;
    let mut coverage: BTreeMap<String, u64> = BTreeMap::new();
    for fault in observed.faults.iter().filter(|fault| fault.in_vain.is_none()) {
        *coverage.entry(fault.mode.clone()).or_default() += 1;
    }
    let mut rejected = rejections(&plan.options, observed, &coverage);
    rejected.extend(sometimes::missing(&observed.faults));
    rejected.extend(sometimes::missing_of(&observed.sometimes, &plan.options.kinds()));
    let unasked = findings.iter().filter(|finding| finding.checked == 0);
    rejected.extend(unasked.map(|finding| format!("nothing was asked of {}", finding.property)));
    let mut sometimes = work.shared.sometimes();
    sometimes.extend(&observed.sometimes);
    let settings = settings(plan, seed);
    Results {
        mode: plan.place.name(),
        seed,
        revision: revision(),
        nodes: settings.nodes,
        settings: settings.to_string(),
        workloads: work.workloads.iter().map(|workload| workload.name()).collect(),
        seconds: time.as_secs_f64(),
        done: count(End::Done),
        refused: count(End::Refused),
        throttled: count(End::Throttled),
        unknown: count(End::Unknown),
        rate_before_faults: observed.rate_before_faults,
        recovery_ms: observed.recovery.map(|recovery| recovery.after_ms),
        late_ms_max: observed.late_ms_max,
        write_tolerance_ms: tolerance(observed).width / NANOS_PER_MILLI,
        coverage,
        skipped: observed.skipped.clone(),
        faults: observed.faults.clone(),
        findings: findings.into_iter().chain([at_the_end(observed)]).collect(),
        harness: observed.harness.clone(),
        unexpected: work.shared.unexpected(),
        sometimes,
        rejected,
        again: again(plan, &observed.modes, (seed, settings)),
    }
}

/// Lets one fault after the other happen, each mode as often as any other.
async fn break_things(
    time: Duration,
    nemesis: &mut Nemesis<'_>,
    (shared, rng): (&Arc<Shared>, &mut SmallRng),
    (modes, faults): (&[Mode], &mut Vec<FaultWindow>),
    progress: &ProgressBar,
) {
    let begun = clock::monotonic();
    let mut told = Duration::ZERO;
    let mut waiting: Vec<Mode> = Vec::new();
    while begun.elapsed() < time && nemesis.all_run() {
        if waiting.is_empty() {
            waiting = modes.to_vec();
            waiting.shuffle(rng);
        }
        let Some(mode) = waiting.pop() else { break };
        let message = format!(
            "{:.0} of {:.0} s: {}, fault {}; {} requests answered",
            begun.elapsed().as_secs_f64(),
            time.as_secs_f64(),
            mode.name(),
            faults.len() + 1,
            shared.done(),
        );
        if progress.is_hidden() && begun.elapsed() >= told {
            println!("{message}");
            told = begun.elapsed() + TELL_EVERY;
        }
        progress.set_message(message);
        let before = Before::of(mode, nemesis.cluster);
        let Strike { targets, role, start, installed, stop, healed, in_vain } =
            nemesis.strike(mode).await;
        tokio::time::sleep(Duration::from_millis(rng.random_range(BREATH_MS))).await;
        let logged = match before {
            Some(before) => before.since(mode, (nemesis.cluster, &targets)).await,
            None => BTreeMap::new(),
        };
        faults.push(FaultWindow {
            mode: mode.name(),
            targets,
            role,
            start,
            installed,
            stop,
            write_gap_ms: None,
            read_gap_ms: None,
            healed,
            healed_gap_ms: None,
            logged,
            in_vain,
        });
    }
    let next_starts: Vec<Option<Nanos>> =
        faults.iter().skip(1).map(|next| Some(next.start)).chain([None]).collect();
    for (fault, next) in faults.iter_mut().zip(next_starts) {
        let went_on = shared.answered_after(fault.healed, true);
        let went_on = went_on.filter(|at| next.is_none_or(|next| *at < next));
        fault.healed_gap_ms = went_on.map(|at| (at - fault.healed) / NANOS_PER_MILLI);
        let gap = |is_write| {
            let answered = shared.answered_after(fault.installed, is_write)?;
            Some((answered - fault.start) / NANOS_PER_MILLI)
        };
        (fault.write_gap_ms, fault.read_gap_ms) = (gap(true), gap(false));
    }
}

impl Work {
    fn new(options: &Options, cluster: &Cluster) -> Self {
        let kinds = options.kinds();
        let broken = kinds.first().map_or(Kind::Register, |kind| *kind).container();
        let nodes = cluster.ids().into_iter().map(|node| (node, cluster.client(node))).collect();
        Self {
            workloads: kinds.iter().map(|kind| kind.workload()).collect(),
            shared: Arc::new(Shared::new(nodes, &broken)),
            hands: JoinSet::new(),
            stop: Arc::new(AtomicBool::new(false)),
            pause: Duration::from_millis(options.pause_ms),
            broken,
        }
    }

    fn hand(&self, number: u32, seed: u64) -> Hand {
        let rng = SmallRng::seed_from_u64(seed);
        Hand { number, rng, shared: self.shared.clone(), pause: self.pause }
    }

    fn begin(&mut self, rng: &mut SmallRng) {
        let mut number = 0;
        for workload in &self.workloads {
            for which in 0..workload.hands() {
                number += 1;
                let mut hand = self.hand(number, rng.random());
                let (workload, stop) = (workload.clone(), self.stop.clone());
                self.hands.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        workload.step(which, &mut hand).await;
                        hand.rest().await;
                    }
                });
            }
        }
    }

    /// How long it takes until every request is answered for a while, and none waits for longer; nothing
    /// if that is too long.
    async fn recovery(&self, healed: Option<Nanos>) -> Option<Recovery> {
        let healed = healed.unwrap_or(self.shared.timer.now());
        self.shared.expect_answers();
        let deadline = healed + nanos(RECOVERY + RECOVERED);
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = self.shared.timer.now();
            let failed_at = self.shared.last_failure().unwrap_or(0).max(healed);
            let recently = now.saturating_sub(nanos(RECOVERED));
            let none_waits = self.shared.waits_since().is_none_or(|since| since >= recently);
            if failed_at <= recently && none_waits {
                let after_ms = (failed_at - healed) / NANOS_PER_MILLI;
                tokio::time::sleep(RELAPSES_WITHIN).await;
                return Some(Recovery { after_ms, seen_at: now });
            }
            if now > deadline {
                return None;
            }
        }
    }

    /// Lets all clients end what they are at.
    async fn end(&mut self) -> anyhow::Result<Vec<Sample>> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.hands.join_next().await {
            ended.context("a client panicked")?;
        }
        Ok(self.shared.take_samples())
    }
}

/// What the nodes hold, and how they fared.
fn at_the_end(observed: &Observed) -> Finding {
    Finding::new(
        "nodes: whole, alike and swept in the end",
        observed.faults.len(),
        observed.wrong.clone(),
    )
    .if_looked(observed.has_looked)
}

/// Why a run does not count.
fn rejections(
    options: &Options,
    observed: &Observed,
    coverage: &BTreeMap<String, u64>,
) -> Vec<String> {
    let Observed {
        modes, skipped, faults, samples, rate_before_faults, recovery, failures, ..
    } = observed;
    let mut rejected = Vec::new();
    if *rate_before_faults < RATE_MIN {
        rejected.push(format!("{rate_before_faults:.0} requests a second are too few"));
    }
    let is_failure = |one: &&Sample| matches!(one.end, End::Refused | End::Unknown);
    let relapses = match recovery {
        None => {
            let count: u64 = failures.values().sum();
            Some(format!(
                "not every request was answered within ten seconds of the last fault: {count} were not"
            ))
        }
        Some(Recovery { seen_at, .. }) => {
            let later = samples.iter().filter(|one| one.ret >= *seen_at);
            let count = later.filter(is_failure).count();
            let what = "requests failed after all had been answered again";
            (count > 0).then(|| format!("{count} {what}"))
        }
    };
    if let Some(relapses) = relapses {
        rejected.push(relapses);
        let mut most: Vec<(&String, &u64)> = failures.iter().collect();
        most.sort_by_key(|(_, times)| Reverse(**times));
        let most = most.into_iter().take(FAILURES_SHOWN);
        rejected.extend(most.map(|(what, times)| format!("    {times} × {what}")));
    }
    let missing = modes.iter().map(|mode| mode.name());
    rejected.extend(missing.filter(|mode| !coverage.contains_key(mode)).map(|mode| {
        match faults.iter().find(|fault| fault.mode == mode) {
            None => format!("there was no time for {mode}: give it more --minutes"),
            Some(fault) => {
                let why = fault.in_vain.as_deref().unwrap_or("nobody knows why");
                format!("{mode} happened, and always in vain: {why}")
            }
        }
    }));
    if !options.nemesis.is_empty() {
        let asked_for = skipped.iter();
        rejected.extend(asked_for.map(|(mode, why)| format!("{mode} cannot be done here: {why}")));
    }
    let writes: Vec<&Sample> = samples.iter().filter(|one| one.is_write).collect();
    let is_written_during = |fault: &&FaultWindow| {
        writes.iter().any(|one| one.call < fault.stop && one.ret > fault.start)
    };
    let idle = faults.iter().filter(|fault| !is_written_during(fault));
    rejected.extend(idle.map(|fault| format!("nobody wrote during {}", fault.mode)));
    // What was under way before says nothing.
    let is_acknowledged_during = |fault: &&FaultWindow| {
        let during = fault.installed..fault.stop;
        writes.iter().any(|one| one.end == End::Done && during.contains(&one.call))
    };
    let acknowledged = faults.iter().filter(is_acknowledged_during);
    let acknowledged: BTreeSet<&String> = acknowledged.map(|fault| &fault.mode).collect();
    let without = coverage.keys().filter(|mode| !acknowledged.contains(mode));
    rejected.extend(without.map(|mode| format!("no write was acknowledged during any {mode}")));
    rejected
}

/// The smallest part of a history that is wrong.
fn failing(results: &Results) -> Option<Vec<Operation>> {
    let reasons = results.findings.iter().filter_map(|finding| match &finding.verdict {
        Outcome::Illegal(reasons) => Some(reasons),
        Outcome::Ok | Outcome::Unknown(_) => None,
    });
    let operations = |reason: &String| {
        reason.lines().map(|line| serde_json::from_str(line).ok()).collect::<Option<Vec<_>>>()
    };
    reasons.flatten().find_map(operations)
}

fn directory(plan: &Plan, seed: u64) -> PathBuf {
    plan.options.output.join(format!("{}-{seed}", plan.place.name()))
}

fn again(plan: &Plan, modes: &[Mode], (seed, settings): (u64, Settings)) -> String {
    let Plan { options, place, minutes, .. } = plan;
    let place = match place {
        Place::Local { chosen: true, .. } => format!("local --nodes {}", settings.nodes),
        Place::Local { chosen: false, .. } => {
            format!("local --nodes {} --defaults", settings.nodes)
        }
        Place::Compose => "compose".to_string(),
    };
    let kinds: Vec<String> = options.kinds().into_iter().map(Kind::option).collect();
    // What was asked for by name is asked for again, even if it cannot be done.
    let modes = if options.nemesis.is_empty() { modes } else { &options.nemesis };
    let modes: Vec<String> = modes.iter().map(|mode| mode.name()).collect();
    format!(
        "cargo run --package ephemeris-cluster-tests --bin faults -- {place} --seed {seed} \
         --minutes {minutes} --pause-ms {} --workload {} --nemesis {}",
        options.pause_ms,
        kinds.join(","),
        modes.join(",")
    )
}

/// The commit that is tested, as far as git knows it, and whether it is not all that is.
fn revision() -> String {
    let describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"];
    let output = Command::new("git").args(describe).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    text.map_or("unknown".to_string(), |text| String::from_utf8_lossy(&text).trim().to_string())
}

/// Looks whether the harness keeps pace: on a busy machine it measures itself.
struct Pace {
    late_ms: Arc<AtomicU64>,
    /// Ends with the run.
    _task: JoinSet<()>,
}

impl Pace {
    fn start() -> Self {
        let late_ms = Arc::new(AtomicU64::new(0));
        let most = late_ms.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                let begun = clock::monotonic();
                tokio::time::sleep(TICK).await;
                let late = begun.elapsed().saturating_sub(TICK);
                let late = u64::try_from(late.as_millis()).unwrap_or(u64::MAX);
                most.fetch_max(late, Ordering::Relaxed);
            }
        });
        Self { late_ms, _task: task }
    }

    fn late_ms_max(&self) -> u64 {
        self.late_ms.load(Ordering::Relaxed)
    }
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).expect("a few seconds")
}

#[expect(clippy::cast_precision_loss, reason = "shown to people")]
fn float(count: u64) -> f64 {
    count as f64
}
