//! One seed is one run: everything that is traced, by openraft and by us, is the same in every
//! process. What a seed found can be found again.
//!
//! Each seed runs in two fresh processes, whose hash maps have other keys and whose memory lies
//! elsewhere. `SEEDS=1000 cargo nextest run -p ephemeris-raft --test determinism` runs more.

mod common;

use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hasher as _};
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use common::{simulate, world};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber, span};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::{Layer, registry};

/// Seeds run when nothing else is said.
const SEEDS: u64 = 50;
/// Tells a child which seed to run.
const SEED_VARIABLE: &str = "DETERMINISM_SEED";
/// Tells a child where to write what it traced.
const FILE_VARIABLE: &str = "DETERMINISM_FILE";
/// How a time of the day looks.
const SHAPE: &str = "00:00:00.000000";
const TEST: &str = "a_seed_is_the_same_run_in_every_process";

#[test]
fn a_seed_is_the_same_run_in_every_process() {
    if let Ok(seed) = std::env::var(SEED_VARIABLE) {
        return trace(seed.parse().expect("a number"));
    }
    let seeds = std::env::var("SEEDS").map_or(SEEDS, |text| text.parse().expect("a number"));
    let mut digests = std::collections::BTreeSet::new();
    for seed in 0..seeds {
        let children = [spawn(seed, None), spawn(seed, None)];
        let [first, second] = children.map(digest);
        assert!(first == second, "seed {seed} is two runs: {}", first_difference(seed));
        digests.insert(first);
    }
    assert_eq!(digests.len() as u64, seeds, "different seeds are different runs");
}

fn spawn(seed: u64, file: Option<&std::path::Path>) -> Child {
    let this = std::env::current_exe().expect("tests know what they are");
    let mut command = Command::new(this);
    command.args(["--exact", TEST, "--nocapture"]).env(SEED_VARIABLE, seed.to_string());
    if let Some(file) = file {
        command.env(FILE_VARIABLE, file);
    }
    command.stdout(Stdio::piped()).spawn().expect("a child starts")
}

/// The line a child ends with.
fn digest(child: Child) -> String {
    let output = child.wait_with_output().expect("a child ends");
    assert!(output.status.success(), "a child failed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.split_once("digest: "));
    line.expect("a child says what it traced").1.to_string()
}

/// Runs a seed twice more, and tells where the two runs part.
fn first_difference(seed: u64) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let paths = ["first", "second"].map(|name| directory.path().join(name));
    let children = paths.each_ref().map(|path| spawn(seed, Some(path)));
    let _ = children.map(digest);
    let texts = paths.map(|path| std::fs::read_to_string(path).expect("a child wrote it"));
    let mut lines = texts[0].lines().zip(texts[1].lines()).enumerate();
    match lines.find(|(_, (first, second))| first != second) {
        Some((at, (first, second))) => format!("line {at}\n{first}\n{second}"),
        None => "not so when asked again".to_string(),
    }
}

/// Runs one seed and prints a digest of everything that was traced.
fn trace(seed: u64) {
    let recorder = Recorder::default();
    tracing::subscriber::set_global_default(registry().with(recorder.clone()))
        .expect("a fresh process has no subscriber");
    let summary = simulate(seed, world::run(seed));
    let record = recorder.0.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(record.events > 1000, "{} events are too few to tell anything", record.events);
    println!("\ndigest: {:016x} {} {:016x}", record.hasher.finish(), record.events, summary.digest);
}

/// Hashes what is traced.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Record>>);

struct Record {
    hasher: DefaultHasher,
    events: u64,
    line: Line,
    file: Option<std::io::BufWriter<std::fs::File>>,
}

impl Default for Record {
    fn default() -> Self {
        let file = std::env::var_os(FILE_VARIABLE).map(|path| {
            std::io::BufWriter::new(std::fs::File::create(path).expect("the file is writable"))
        });
        Self { hasher: DefaultHasher::new(), events: 0, line: Line::default(), file }
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
    fn record(&self, kind: &str, metadata: &tracing::Metadata<'_>, visit: impl FnOnce(&mut Line)) {
        let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut line = std::mem::take(&mut record.line);
        line.0.clear();
        write!(line.0, "{kind} {} {}", metadata.target(), metadata.name()).expect("strings grow");
        visit(&mut line);
        hide_times(&mut line.0);
        record.hasher.write(line.0.as_bytes());
        record.events += 1;
        if let Some(file) = &mut record.file {
            writeln!(file, "{}", line.0).expect("the disk has room");
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

/// Blanks what openraft makes of instants: how they are kept, and, with the help of the wall clock,
/// times of the day.
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
