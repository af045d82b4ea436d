//! One client: a request at a time, through any node, never repeated.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ephemeris_cluster_tests::client::{Answer, Call, Client, Container, Fate, NoAnswer};
use ephemeris_cluster_tests::clock;
use ephemeris_cluster_tests::history::Nanos;
use rand::RngExt as _;
use rand::rngs::SmallRng;

use crate::report::{End, Sample};

/// How long a client waits for an answer: so short that some outcomes are not known.
const PATIENCE_MS: std::ops::Range<u64> = 200..1000;

/// Longer than a node works for a request.
const LONG_PATIENCE: Duration = Duration::from_secs(6);

/// What a node says of a request whose date is not near its own.
const TOO_FAR_OFF: &str = "not valid at the current time";

/// What a node says of a request that finds no request units.
const USED_UP: &str = "Request rate is large";

/// The range whose leader is broken.
const FIRST_RANGE: u32 = 0;

/// The one clock of a run: a date taken once, and what has passed since.
#[derive(Clone, Copy)]
pub(crate) struct Timer {
    date: Nanos,
    begun: Instant,
}

impl Timer {
    pub(crate) fn start() -> Self {
        Self { date: clock::wall_ms() * 1_000_000, begun: clock::monotonic() }
    }

    /// Now, in nanoseconds since 1970.
    pub(crate) fn now(&self) -> Nanos {
        self.date + u64::try_from(self.begun.elapsed().as_nanos()).expect("a run has an end")
    }
}

/// What all clients of a run share.
pub(crate) struct Shared {
    pub(crate) timer: Timer,
    pub(crate) nodes: Vec<(u32, Client)>,
    /// The path of the container whose leaders are broken.
    broken: String,
    samples: Mutex<Vec<Sample>>,
    /// When those requests were sent that nobody has answered yet, by a number of their own.
    under_way: Mutex<BTreeMap<u64, Nanos>>,
    requests: AtomicU64,
    /// Answers nobody should get, and how often each was given.
    unexpected: Mutex<BTreeMap<String, u64>>,
    /// Why requests failed since all was put right, and how often; none before.
    failures: Mutex<Option<BTreeMap<String, u64>>>,
    /// Things that should happen sometimes.
    sometimes: Mutex<BTreeMap<&'static str, u64>>,
}

impl Shared {
    pub(crate) fn new(nodes: Vec<(u32, Client)>, broken: &Container) -> Self {
        Self {
            timer: Timer::start(),
            nodes,
            broken: broken.path(),
            samples: Mutex::default(),
            under_way: Mutex::default(),
            requests: AtomicU64::new(0),
            unexpected: Mutex::default(),
            failures: Mutex::default(),
            sometimes: Mutex::default(),
        }
    }

    /// Counts something that should happen sometimes.
    pub(crate) fn count(&self, what: &'static str) {
        *locked(&self.sometimes).entry(what).or_default() += 1;
    }

    pub(crate) fn sometimes(&self) -> BTreeMap<&'static str, u64> {
        locked(&self.sometimes).clone()
    }

    pub(crate) fn complain(&self, what: String) {
        *locked(&self.unexpected).entry(what).or_default() += 1;
    }

    pub(crate) fn unexpected(&self) -> BTreeMap<String, u64> {
        locked(&self.unexpected).clone()
    }

    /// From now on every request should be answered.
    pub(crate) fn expect_answers(&self) {
        *locked(&self.failures) = Some(BTreeMap::new());
    }

    /// Why some were not.
    pub(crate) fn failures(&self) -> BTreeMap<String, u64> {
        locked(&self.failures).clone().unwrap_or_default()
    }

    fn note_failure(&self, node: u32, call: &Call, reason: &str) {
        if let Some(failures) = &mut *locked(&self.failures) {
            let what = format!("node {node}: {} {}: {reason}", call.method(), call.path());
            *failures.entry(what).or_default() += 1;
        }
    }

    /// Takes all requests that were noted so far.
    pub(crate) fn take_samples(&self) -> Vec<Sample> {
        std::mem::take(&mut *locked(&self.samples))
    }

    /// Requests that were answered as they should be.
    pub(crate) fn done(&self) -> u64 {
        locked(&self.samples).iter().filter(|sample| sample.end == End::Done).count() as u64
    }

    /// When the last request ended that was not answered.
    pub(crate) fn last_failure(&self) -> Option<Nanos> {
        let samples = locked(&self.samples);
        let failed = |one: &&Sample| matches!(one.end, End::Refused | End::Unknown);
        samples.iter().filter(failed).map(|one| one.ret).max()
    }

    /// When the oldest request was sent that is not answered yet.
    pub(crate) fn waits_since(&self) -> Option<Nanos> {
        locked(&self.under_way).values().min().copied()
    }

    /// When the first write, or read, was answered that was sent after an instant to the partition whose
    /// leader is broken.
    pub(crate) fn answered_after(&self, instant: Nanos, is_write: bool) -> Option<Nanos> {
        let samples = locked(&self.samples);
        let later = samples
            .iter()
            .filter(|one| one.is_of_broken && one.call >= instant && one.is_write == is_write);
        later.map(|one| one.ret).min()
    }
}

/// A lock that a panic elsewhere does not spoil.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a request ended.
pub(crate) enum Reply {
    /// It was carried out, or there is a reason why not.
    Answered(Answer),
    /// It was surely not carried out.
    Refused,
    /// Nobody knows.
    Unknown,
}

/// A request and its times.
pub(crate) struct Asked {
    pub(crate) node: u32,
    pub(crate) call: Nanos,
    pub(crate) ret: Nanos,
    pub(crate) reply: Reply,
}

impl Asked {
    /// The range that answered, and the entry it answered as of.
    pub(crate) fn entry(&self) -> Option<(u32, u64)> {
        let Reply::Answered(answer) = &self.reply else { return None };
        let (range, rest) = answer.header("x-ms-session-token")?.split_once(":-1#")?;
        Some((range.parse().ok()?, rest.parse().ok()?))
    }
}

/// A client.
pub(crate) struct Hand {
    pub(crate) number: u32,
    pub(crate) rng: SmallRng,
    pub(crate) shared: Arc<Shared>,
    /// Longest pause between two requests.
    pub(crate) pause: Duration,
}

impl Hand {
    pub(crate) fn now(&self) -> Nanos {
        self.shared.timer.now()
    }

    /// Asks any node, once.
    pub(crate) async fn ask(&mut self, call: &Call) -> Asked {
        let at = self.rng.random_range(0..self.shared.nodes.len());
        // When all is put right, an answer may be late: it must come.
        let patience = if locked(&self.shared.failures).is_some() {
            LONG_PATIENCE
        } else {
            Duration::from_millis(self.rng.random_range(PATIENCE_MS))
        };
        self.ask_node(at, call, patience).await
    }

    async fn ask_node(&mut self, at: usize, call: &Call, patience: Duration) -> Asked {
        let shared = self.shared.clone();
        let (node, client) = &shared.nodes[at];
        let begun = self.now();
        let number = shared.requests.fetch_add(1, Ordering::Relaxed);
        locked(&shared.under_way).insert(number, begun);
        let answer = tokio::time::timeout(patience, client.send(call)).await;
        let ret = self.now();
        locked(&shared.under_way).remove(&number);
        let throttled = answer.as_ref().is_ok_and(is_throttled);
        let reply = match answer.map(Fate::of) {
            Err(_) => {
                shared.note_failure(*node, call, &format!("no answer within {patience:?}"));
                Reply::Unknown
            }
            Ok(Fate::Unknown(reason)) => {
                shared.note_failure(*node, call, &reason);
                Reply::Unknown
            }
            Ok(Fate::NotExecuted(_)) if throttled => Reply::Refused,
            Ok(Fate::NotExecuted(reason)) => {
                shared.count("a request was surely not carried out");
                shared.note_failure(*node, call, &reason);
                Reply::Refused
            }
            Ok(Fate::Done(answer)) => match (answer.status, answer.substatus()) {
                (200..300 | 304 | 409 | 412, _) | (404, 0) => Reply::Answered(answer),
                // The node's wall clock is too far off to trust what a request says of its time.
                (403, _) if answer.describe().contains(TOO_FAR_OFF) => {
                    shared.count("a node with a wrong clock refused a request");
                    shared.note_failure(*node, call, &answer.describe());
                    Reply::Refused
                }
                // No replica has caught up with the session yet.
                (404, 1002) => {
                    shared.count("a session was ahead of every replica");
                    shared.note_failure(*node, call, &answer.describe());
                    Reply::Refused
                }
                _ => {
                    shared.complain(format!("{call:?} was answered by {}", answer.describe()));
                    Reply::Refused
                }
            },
        };
        let asked = Asked { node: *node, call: begun, ret, reply };
        let is_of_broken = call.path().starts_with(&shared.broken)
            && asked.entry().is_some_and(|(range, _)| range == FIRST_RANGE);
        let end = match &asked.reply {
            Reply::Answered(_) => End::Done,
            Reply::Refused if throttled => End::Throttled,
            Reply::Refused => End::Refused,
            Reply::Unknown => End::Unknown,
        };
        let is_write = is_write(call);
        locked(&shared.samples).push(Sample { is_write, is_of_broken, call: begun, ret, end });
        asked
    }

    /// Asks one node after the other until one says something, for so long.
    pub(crate) async fn insist(
        &mut self,
        call: &Call,
        deadline: Duration,
    ) -> anyhow::Result<Asked> {
        let begun = clock::monotonic();
        loop {
            let at = self.rng.random_range(0..self.shared.nodes.len());
            let asked = self.ask_node(at, call, LONG_PATIENCE).await;
            if let Reply::Answered(_) = asked.reply {
                return Ok(asked);
            }
            let unexpected = self.shared.unexpected();
            anyhow::ensure!(
                begun.elapsed() < deadline,
                "nobody answers {call:?}; unexpected answers: {unexpected:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The answer that somebody gives at last.
    pub(crate) async fn insist_answer(
        &mut self,
        call: &Call,
        deadline: Duration,
    ) -> anyhow::Result<Answer> {
        match self.insist(call, deadline).await?.reply {
            Reply::Answered(answer) => Ok(answer),
            Reply::Refused | Reply::Unknown => unreachable!("only answers end it"),
        }
    }

    pub(crate) async fn rest(&mut self) {
        let part = self.rng.random_range(0.0..1.0);
        tokio::time::sleep(self.pause.mul_f64(part)).await;
    }
}

/// Whether the container's request units were used up. Who finds no leader in time gets the same status.
fn is_throttled(attempt: &Result<Answer, NoAnswer>) -> bool {
    attempt.as_ref().is_ok_and(|answer| {
        (answer.status, answer.substatus()) == (429, 3200) && answer.describe().contains(USED_UP)
    })
}

fn is_write(call: &Call) -> bool {
    let is_query = call.header_text("x-ms-documentdb-isquery").is_some();
    !is_query && *call.method() != reqwest::Method::GET
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderMap;

    use super::*;

    fn answer(status: u16, substatus: &'static str, message: &str) -> Answer {
        let mut headers = HeaderMap::new();
        headers.insert("x-ms-substatus", substatus.parse().unwrap());
        let body = format!(r#"{{"code":"TooManyRequests","message":"{message}"}}"#);
        Answer { status, headers, body: body.into() }
    }

    #[test]
    fn who_finds_no_leader_is_not_throttled() {
        let rate =
            "Request rate is large. More Request Units may be needed, so no changes were made.";
        let leader = "The request was not executed: no leader answered in time. Try again.";
        assert!(is_throttled(&Ok(answer(429, "3200", rate))));
        assert!(!is_throttled(&Ok(answer(429, "3200", leader))));
        assert!(!is_throttled(&Ok(answer(503, "0", rate))));
        assert!(!is_throttled(&Err(NoAnswer::NotSent("refused".to_string()))));
    }
}
