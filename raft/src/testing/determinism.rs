//! One seed is one run, in every process: everything that is traced, by openraft and by us, is the same. What
//! a seed found can be found again.
//!
//! Each seed runs in two fresh processes, whose hash maps have other keys and whose memory lies elsewhere.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hasher as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::{Layer, registry};

/// Tells a child which seed to run.
const SEED_VARIABLE: &str = "DETERMINISM_SEED";
/// Tells a child to print what it traces.
const TELL_VARIABLE: &str = "DETERMINISM_TELL";
/// Fewer events tell nothing.
const EVENTS_MIN: u64 = 1000;
/// What begins a child's last line, and a line of its trace.
const DIGEST: &str = "digest: ";
const TRACED: &str = "traced: ";
/// How a time of the day looks.
const SHAPE: &str = "00:00:00.000000";

/// Runs each of the first seeds in two processes, and checks that both trace the same, up to a level, and no
/// two seeds do. `test` is the whole name of the test that calls this: it is what the processes run.
///
/// # Panics
///
/// If a seed is two runs, or two seeds are one.
pub fn check_determinism(test: &str, level: LevelFilter, seeds: u64, run: impl FnOnce(u64)) {
    if let Ok(seed) = std::env::var(SEED_VARIABLE) {
        let seed = seed.parse().expect("a number");
        return trace(level, || run(seed));
    }
    let mut digests = BTreeSet::new();
    for seed in 0..seeds {
        let children = [spawn(test, seed, false), spawn(test, seed, false)];
        let [first, second] = children.map(|child| digest(&output(child)));
        assert!(first == second, "seed {seed} is two runs: {}", first_difference(test, seed));
        digests.insert(first);
    }
    assert_eq!(digests.len() as u64, seeds, "different seeds are different runs");
}

fn spawn(test: &str, seed: u64, tells: bool) -> Child {
    let this = std::env::current_exe().expect("tests know what they are");
    let mut command = Command::new(this);
    command.args(["--exact", test, "--nocapture"]).env(SEED_VARIABLE, seed.to_string());
    if tells {
        command.env(TELL_VARIABLE, "1");
    }
    command.stdout(Stdio::piped()).spawn().expect("a child starts")
}

fn output(child: Child) -> String {
    let output = child.wait_with_output().expect("a child ends");
    assert!(output.status.success(), "a child failed");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The line a child ends with.
fn digest(output: &str) -> String {
    let line = output.lines().find_map(|line| line.split_once(DIGEST));
    line.expect("a child says what it traced").1.to_string()
}

/// Runs a seed twice more, and tells where the two runs part.
fn first_difference(test: &str, seed: u64) -> String {
    let children = [spawn(test, seed, true), spawn(test, seed, true)];
    let [first, second] = children.map(|child| traced(&output(child)));
    let mut lines = first.iter().zip(&second).enumerate();
    match lines.find(|(_, (first, second))| first != second) {
        Some((at, (first, second))) => format!("line {at}\n{first}\n{second}"),
        None => "not so when asked again".to_string(),
    }
}

fn traced(output: &str) -> Vec<String> {
    output.lines().filter_map(|line| line.strip_prefix(TRACED)).map(str::to_string).collect()
}

/// Runs something and prints a digest of everything that was traced.
fn trace(level: LevelFilter, run: impl FnOnce()) {
    let recorder = Recorder::default();
    tracing::subscriber::set_global_default(registry().with(level).with(recorder.clone()))
        .expect("a fresh process has no subscriber");
    run();
    let record = recorder.lock();
    let (hash, events) = (record.hasher.finish(), record.events);
    assert!(events > EVENTS_MIN, "{events} events are too few to tell anything");
    println!("\n{DIGEST}{hash:016x} {events}");
}

/// Hashes what is traced.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Record>>);

struct Record {
    hasher: DefaultHasher,
    events: u64,
    line: Line,
    tells: bool,
}

impl Default for Record {
    fn default() -> Self {
        let tells = std::env::var_os(TELL_VARIABLE).is_some();
        Self { hasher: DefaultHasher::new(), events: 0, line: Line::default(), tells }
    }
}

/// What one event says.
#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).expect("strings grow");
    }
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, kind: &str, metadata: &Metadata<'_>, visit: impl FnOnce(&mut Line)) {
        let mut record = self.lock();
        let mut line = std::mem::take(&mut record.line);
        line.0.clear();
        write!(line.0, "{kind} {} {}", metadata.target(), metadata.name()).expect("strings grow");
        visit(&mut line);
        hide_times(&mut line.0);
        record.hasher.write(line.0.as_bytes());
        record.events += 1;
        if record.tells {
            println!("{TRACED}{}", line.0.escape_debug());
        }
        record.line = line;
    }
}

impl<S: Subscriber> Layer<S> for Recorder {
    fn on_new_span(&self, span: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        self.record("span", span.metadata(), |line| span.record(line));
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.record("event", event.metadata(), |line| event.record(line));
    }
}

/// Blanks what openraft makes of instants: how they are kept, and, with the help of the wall clock, times of
/// the day.
fn hide_times(line: &mut String) {
    for before in ["tv_sec: ", "tv_nsec: "] {
        let mut from = 0;
        while let Some(found) = line[from..].find(before) {
            from += found + before.len();
            let digits = line[from..].bytes().take_while(u8::is_ascii_digit).count();
            line.replace_range(from..from + digits, "");
        }
    }
    // A time of the day is found by its point.
    let mut from = 0;
    while let Some(found) = line[from..].find('.') {
        let start = (from + found).saturating_sub(8);
        from += found + 1;
        let is_time = |text: &[u8]| {
            text.iter().zip(SHAPE.as_bytes()).all(|(found, shape)| match shape {
                b'0' => found.is_ascii_digit(),
                other => found == other,
            })
        };
        if line.as_bytes().get(start..start + SHAPE.len()).is_some_and(is_time) {
            line.replace_range(start..start + SHAPE.len(), SHAPE);
        }
    }
}
