//! Draws how long requests took while faults came and went, as a picture that needs nothing else.

use std::fmt;
use std::iter;

use super::timeline::{escaped, float, full_name, nanos_since};
use super::{End, FaultWindow, Sample};

/// A line of more points is no easier to read.
const BUCKETS_MAX: u64 = 300;
/// Shorter ones hold too few requests for a percentile.
const BUCKET_NANOS_MIN: u64 = 100_000_000;
/// Where the axis of latencies begins; each label is ten times the one before.
const LATENCY_NANOS_MIN: u64 = 100_000;
const LATENCY_LABELS: [&str; 6] = ["0.1", "1", "10", "100", "1000", "10000"];
const LATENCY_DECADES: f64 = 5.0;

const LEFT: f64 = 70.0;
const WIDTH: f64 = 860.0;
const LATENCY_TOP: f64 = 40.0;
const LATENCY_HEIGHT: f64 = 300.0;
const RATE_TOP: f64 = 365.0;
const RATE_HEIGHT: f64 = 110.0;
const BOTTOM: f64 = RATE_TOP + RATE_HEIGHT;
/// The name of a fault that is narrower stands in its tooltip alone.
const NAMED_WIDTH_MIN: f64 = 14.0;

const HEAD: &str = r##"<svg xmlns="http://www.w3.org/2000/svg" width="1000" height="520"
 viewBox="0 0 1000 520" font-family="sans-serif" font-size="11" fill="#222">
<rect width="1000" height="520" fill="#fff"/>
"##;
const P50: &str = "#0072b2";
const P99: &str = "#d55e00";
const DONE: &str = "#009e73";
const REFUSED: &str = "#e69f00";
const UNKNOWN: &str = "#cc79a7";
/// Black that shines through, so that overlapping faults are darker.
const FAULT: &str = "#00000020";
const LEGEND: [(&str, &str); 6] = [
    (P50, "p50 of done"),
    (P99, "p99 of done"),
    (DONE, "done"),
    (REFUSED, "refused"),
    (UNKNOWN, "unknown"),
    (FAULT, "fault"),
];

/// Draws latencies by when requests were sent, and below them rates by when they ended.
///
/// A latency that is out of the axis is drawn on its edge. Rates fall at the very end, where a bucket
/// is seldom full.
pub(crate) fn latency_svg(samples: &[Sample], faults: &[FaultWindow]) -> String {
    match Graph::new(samples, faults) {
        Some(graph) => graph.to_string(),
        None => format!("{HEAD}<text x=\"20\" y=\"30\">No requests.</text>\n</svg>\n"),
    }
}

/// What is drawn.
struct Graph<'a> {
    /// When the first request was sent.
    first: u64,
    /// When the last bucket ends.
    end: u64,
    bucket_nanos: u64,
    buckets: Vec<Bucket>,
    faults: &'a [FaultWindow],
}

/// The requests of a while.
#[derive(Default)]
struct Bucket {
    start: u64,
    /// Of what was sent in it and done; in order.
    latency_nanos: Vec<u64>,
    done: u64,
    refused: u64,
    unknown: u64,
}

impl<'a> Graph<'a> {
    /// Sorts requests into buckets; none if there are no requests.
    fn new(samples: &[Sample], faults: &'a [FaultWindow]) -> Option<Self> {
        let first = samples.iter().map(|sample| sample.call).min()?;
        // A clock that was set back makes no request end before it began.
        let ret = |sample: &Sample| sample.ret.max(sample.call);
        let last = samples.iter().map(ret).max()?;
        let bucket_nanos = round_up((last - first) / BUCKETS_MAX + 1).max(BUCKET_NANOS_MIN);
        let starts = steps(first, last, bucket_nanos);
        let mut buckets: Vec<Bucket> =
            starts.map(|start| Bucket { start, ..Bucket::default() }).collect();
        let index = |at: u64| usize::try_from((at - first) / bucket_nanos).unwrap_or(usize::MAX);
        for sample in samples {
            if let Some(bucket) = buckets.get_mut(index(ret(sample))) {
                bucket.count(sample.end);
            }
            if let Some(bucket) = buckets.get_mut(index(sample.call))
                && sample.end == End::Done
            {
                bucket.latency_nanos.push(ret(sample) - sample.call);
            }
        }
        for bucket in &mut buckets {
            bucket.latency_nanos.sort_unstable();
        }
        let end = buckets.last()?.start.saturating_add(bucket_nanos);
        Some(Self { first, end, bucket_nanos, buckets, faults })
    }

    fn x(&self, at: u64) -> f64 {
        let span = float(self.end - self.first).max(1.0);
        LEFT + WIDTH * (nanos_since(self.first, at) / span).clamp(0.0, 1.0)
    }

    fn sides(&self, bucket: &Bucket) -> (f64, f64) {
        (self.x(bucket.start), self.x(bucket.start.saturating_add(self.bucket_nanos)))
    }

    fn write_fault(&self, f: &mut fmt::Formatter<'_>, fault: &FaultWindow) -> fmt::Result {
        let seconds = |at| nanos_since(self.first, at) / 1e9;
        let (start, stop) = (seconds(fault.start), seconds(fault.stop));
        writeln!(f, "<g><title>{}, {start:.3} s to {stop:.3} s</title>", full_name(fault))?;
        let left = self.x(fault.start);
        let width = (self.x(fault.stop) - left).max(1.0);
        let (below, height) = (LATENCY_TOP + LATENCY_HEIGHT, BOTTOM - LATENCY_TOP);
        write_box(f, (left, LATENCY_TOP), (width, height), FAULT)?;
        if width >= NAMED_WIDTH_MIN {
            write_upright(f, (left + 11.0, below - 4.0), "start", &escaped(&fault.mode))?;
        }
        writeln!(f, "</g>")
    }

    fn write_times(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = self.end - self.first;
        for after in steps(0, span, round_up(span / 12 + 1)) {
            let x = self.x(self.first.saturating_add(after));
            write_box(f, (x, LATENCY_TOP), (0.5, BOTTOM - LATENCY_TOP), "#ccc")?;
            let seconds = (float(after) / 1e9).to_string();
            write_text(f, (x, BOTTOM + 15.0), "middle", &seconds)?;
        }
        let below = (LEFT + WIDTH / 2.0, BOTTOM + 33.0);
        write_text(f, below, "middle", "time since the first request (s)")
    }

    fn write_latencies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decades = iter::successors(Some(LATENCY_NANOS_MIN), |nanos| nanos.checked_mul(10));
        for (nanos, label) in decades.zip(LATENCY_LABELS) {
            let y = latency_y(nanos);
            write_box(f, (LEFT, y), (WIDTH, 0.5), "#ccc")?;
            write_text(f, (LEFT - 6.0, y + 4.0), "end", label)?;
        }
        let beside = (20.0, LATENCY_TOP + LATENCY_HEIGHT / 2.0);
        write_upright(f, beside, "middle", "latency (ms, logarithmic)")?;
        for (percent, colour) in [(50, P50), (99, P99)] {
            let y = |bucket: &Bucket| percentile(&bucket.latency_nanos, percent).map(latency_y);
            self.write_line(f, colour, y)?;
        }
        Ok(())
    }

    fn write_rates(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done_max = self.buckets.iter().map(|bucket| bucket.done).max().unwrap_or(0);
        let failed = self.buckets.iter().map(|bucket| bucket.refused + bucket.unknown);
        let failed_max = failed.max().unwrap_or(0);
        let per_second = done_max.saturating_mul(1_000_000_000).div_ceil(self.bucket_nanos);
        let (rate_top, failed_top) = (round_up(per_second), round_up(failed_max));
        for (y, part) in [(BOTTOM, 0), (RATE_TOP, 1)] {
            write_box(f, (LEFT, y), (WIDTH, 0.5), "#ccc")?;
            write_text(f, (LEFT - 6.0, y + 4.0), "end", &(part * rate_top).to_string())?;
            let right = (LEFT + WIDTH + 6.0, y + 4.0);
            write_text(f, right, "start", &(part * failed_top).to_string())?;
        }
        let seconds = float(self.bucket_nanos) / 1e9;
        let middle = RATE_TOP + RATE_HEIGHT / 2.0;
        write_upright(f, (20.0, middle), "middle", "done (per s)")?;
        write_upright(f, (985.0, middle), "middle", &format!("failed (per {seconds} s)"))?;
        for bucket in &self.buckets {
            self.write_bars(f, bucket, RATE_HEIGHT / float(failed_top))?;
        }
        let scale = RATE_HEIGHT / (float(rate_top) * seconds);
        self.write_line(f, DONE, |bucket| Some(BOTTOM - float(bucket.done) * scale))
    }

    /// Stacks what was not done.
    fn write_bars(&self, f: &mut fmt::Formatter<'_>, bucket: &Bucket, scale: f64) -> fmt::Result {
        let (left, right) = self.sides(bucket);
        let mut top = BOTTOM;
        for (count, colour) in [(bucket.refused, REFUSED), (bucket.unknown, UNKNOWN)] {
            if count > 0 {
                // A single one among thousands must be seen.
                let height = (float(count) * scale).max(2.0);
                top -= height;
                write_box(f, (left, top), (right - left, height), colour)?;
            }
        }
        Ok(())
    }

    /// Draws a level for each bucket that has one, and nothing across the others.
    fn write_line(
        &self,
        f: &mut fmt::Formatter<'_>,
        colour: &str,
        y: impl Fn(&Bucket) -> Option<f64>,
    ) -> fmt::Result {
        write!(f, r#"<path fill="none" stroke="{colour}" stroke-width="1.5" d=""#)?;
        let mut pen = 'M';
        for bucket in &self.buckets {
            let Some(y) = y(bucket) else {
                pen = 'M';
                continue;
            };
            let (left, right) = self.sides(bucket);
            write!(f, "{pen}{left:.1} {y:.1}H{right:.1}")?;
            pen = 'L';
        }
        writeln!(f, r#""/>"#)
    }
}

impl fmt::Display for Graph<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEAD)?;
        let is_seen = |fault: &&FaultWindow| fault.stop >= self.first && fault.start <= self.end;
        for fault in self.faults.iter().filter(is_seen) {
            self.write_fault(f, fault)?;
        }
        // What is in front of a fault does not hide its tooltip.
        writeln!(f, r#"<g pointer-events="none">"#)?;
        self.write_times(f)?;
        self.write_rates(f)?;
        self.write_latencies(f)?;
        let mut x = LEFT;
        for (colour, label) in LEGEND {
            write_box(f, (x, 14.0), (14.0, 9.0), colour)?;
            write_text(f, (x + 19.0, 23.0), "start", label)?;
            x += 110.0;
        }
        writeln!(f, "</g>\n</svg>")
    }
}

impl Bucket {
    fn count(&mut self, end: End) {
        match end {
            End::Done => self.done += 1,
            End::Refused | End::Throttled => self.refused += 1,
            End::Unknown => self.unknown += 1,
        }
    }
}

/// What so many of 100 do not exceed; none of none.
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

fn latency_y(nanos: u64) -> f64 {
    let decades = (float(nanos.max(LATENCY_NANOS_MIN)) / float(LATENCY_NANOS_MIN)).log10();
    LATENCY_TOP + LATENCY_HEIGHT * (1.0 - (decades / LATENCY_DECADES).min(1.0))
}

/// The least of 1, 2, 5, 10, 20, … that is not less.
fn round_up(value: u64) -> u64 {
    let powers = iter::successors(Some(1_u64), |power| power.checked_mul(10));
    let mut rounds = powers.flat_map(|power| [1, 2, 5].map(|digit| power.saturating_mul(digit)));
    rounds.find(|round| *round >= value).unwrap_or(u64::MAX)
}

fn steps(first: u64, last: u64, step: u64) -> impl Iterator<Item = u64> {
    iter::successors(Some(first), move |at| at.checked_add(step)).take_while(move |at| *at <= last)
}

type Place = (f64, f64);

fn write_box(f: &mut fmt::Formatter<'_>, at: Place, size: Place, colour: &str) -> fmt::Result {
    let ((x, y), (width, height)) = (at, size);
    let place = format!(r#"x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}""#);
    writeln!(f, r#"<rect {place} fill="{colour}"/>"#)
}

fn write_text(f: &mut fmt::Formatter<'_>, at: Place, anchor: &str, text: &str) -> fmt::Result {
    let (x, y) = at;
    writeln!(f, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#)
}

fn write_upright(f: &mut fmt::Formatter<'_>, at: Place, anchor: &str, text: &str) -> fmt::Result {
    let turn = format!(r#"transform="translate({:.1} {:.1}) rotate(-90)""#, at.0, at.1);
    writeln!(f, r#"<text {turn} text-anchor="{anchor}">{text}</text>"#)
}

#[cfg(test)]
mod tests {
    use super::super::timeline::tests::{assert_well_formed, fault};
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const BASE: u64 = 1_700_000_000 * SECOND;

    fn sample(call: u64, took: u64, end: End) -> Sample {
        let call = BASE + call;
        Sample { is_write: true, is_of_broken: false, call, ret: call + took, end }
    }

    #[test]
    fn a_percentile_is_the_least_value_that_so_many_do_not_exceed() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(percentile(&hundred, 50), Some(50));
        assert_eq!(percentile(&hundred, 99), Some(99));
        assert_eq!(percentile(&[1, 2, 3], 50), Some(2));
        assert_eq!(percentile(&[1, 2, 3], 99), Some(3));
        assert_eq!(percentile(&[], 99), None);
    }

    #[test]
    fn a_request_is_slow_when_it_is_sent_and_counted_when_it_ends() {
        let samples = [
            sample(0, 3 * SECOND, End::Done),
            sample(SECOND, 0, End::Refused),
            sample(SECOND, 2 * SECOND, End::Unknown),
        ];
        let buckets = Graph::new(&samples, &[]).unwrap().buckets;
        assert_eq!(buckets.len(), 31);
        assert_eq!(buckets[0].latency_nanos, [3 * SECOND]);
        let counts = |at: usize| (buckets[at].done, buckets[at].refused, buckets[at].unknown);
        assert_eq!((counts(0), counts(10), counts(30)), ((0, 0, 0), (0, 1, 0), (1, 0, 1)));
        assert!(buckets[1..].iter().all(|bucket| bucket.latency_nanos.is_empty()));
    }

    #[test]
    fn buckets_stay_few_however_long_it_took() {
        for last in [0, 30 * SECOND, 31 * SECOND, 86_400 * SECOND, u64::MAX - BASE] {
            let samples = [sample(0, 0, End::Done), sample(last, 0, End::Done)];
            let graph = Graph::new(&samples, &[]).unwrap();
            assert!(graph.buckets.len() <= 300, "{last}: {}", graph.buckets.len());
            assert!(graph.bucket_nanos >= BUCKET_NANOS_MIN, "{last}: {}", graph.bucket_nanos);
            assert_eq!(graph.buckets.iter().map(|bucket| bucket.done).sum::<u64>(), 2);
            assert_well_formed(&graph.to_string());
        }
    }

    #[test]
    fn latencies_are_placed_by_their_logarithm() {
        let bottom = LATENCY_TOP + LATENCY_HEIGHT;
        for (nanos, y) in [
            (0, bottom),
            (100_000, bottom),
            (1_000_000, bottom - 60.0),
            (10 * SECOND, LATENCY_TOP),
            (u64::MAX, LATENCY_TOP),
        ] {
            assert!((latency_y(nanos) - y).abs() < 1e-6, "{nanos}: {}", latency_y(nanos));
        }
    }

    #[test]
    fn a_line_breaks_where_nothing_was_done() {
        let samples = [0, 1, 5].map(|at| sample(at * BUCKET_NANOS_MIN, 0, End::Done));
        let svg = latency_svg(&samples, &[]);
        let p50 = svg.lines().find(|line| line.contains("<path") && line.contains(P50)).unwrap();
        assert_eq!((p50.matches('M').count(), p50.matches('L').count()), (2, 1), "{p50}");
    }

    #[test]
    fn a_fault_that_outlasts_the_requests_ends_at_the_edge() {
        let samples = [sample(0, 0, End::Done), sample(SECOND, SECOND - 1, End::Done)];
        let faults = [fault(BASE + SECOND, BASE + 90 * SECOND), fault(0, 1), fault(u64::MAX, 0)];
        let svg = latency_svg(&samples, &faults);
        assert_well_formed(&svg);
        let title = "<title>slow &amp; &lt;odd&gt; n1&gt;n3, 1.000 s to 90.000 s</title>";
        assert!(svg.contains(title), "{svg}");
        assert_eq!(svg.matches("<title>").count(), 1, "{svg}");
        assert!(svg.contains(r#"<rect x="500.0" y="40.0" width="430.0""#), "{svg}");
    }

    #[test]
    fn without_requests_the_picture_says_so() {
        let svg = latency_svg(&[], &[fault(0, u64::MAX)]);
        assert_well_formed(&svg);
        assert!(svg.contains("No requests."), "{svg}");
    }
}
