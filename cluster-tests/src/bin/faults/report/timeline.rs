//! Shows what clients did to one key, and when, as a page that needs nothing else.

use std::collections::BTreeMap;
use std::fmt;

use ephemeris_cluster_tests::history::{Action, Operation, Outcome, Ttl};

use super::FaultWindow;

/// Browsers draw wider pages slowly, and people lose their way in them.
const WIDTH_MAX: f64 = 20_000.0;
const SPAN_WIDTH_MIN: f64 = 1_200.0;
/// Room for the names of clients.
const LEFT: f64 = 80.0;
/// Room for a text: in the shortest bar, if the page can be so wide, and after the last call.
const TEXT_WIDTH: f64 = 200.0;
const NAME_WIDTH_MIN: f64 = 140.0;
const NAME_HEIGHT: usize = 16;
const BAR_HEIGHT: usize = 24;

const STYLE: &str = "
body { margin: 8px; font: 12px sans-serif; color: #222; background: #fff; }
.chart { position: relative; }
.fault { position: absolute; top: 0; bottom: 0; min-width: 2px; background: #d55e0022; }
.fault span { position: absolute; }
.fault span, .bar span { overflow: hidden; white-space: nowrap; text-overflow: ellipsis; }
.lane { position: relative; border-top: 1px solid #bbb; pointer-events: none; }
.client { position: sticky; left: 0; z-index: 1; display: block; width: 76px; height: 100%;
 background: #fff; }
.bar { position: absolute; box-sizing: border-box; height: 20px; min-width: 3px;
 border: 1px solid #555; border-radius: 3px; pointer-events: auto; }
.bar span { display: block; box-sizing: border-box; padding: 1px 3px; }
.seen { background: #b5d8ee; } .changed { background: #a8dcc8; } .refused { background: #f5d99b; }
.unknown { background: rgba(204, 121, 167, 0.3); border-style: dashed; border-right: none; }
";

/// Shows operations as bars, in a lane for each client, over the faults of that time.
pub(crate) fn timeline_html(key: &str, operations: &[Operation], faults: &[FaultWindow]) -> String {
    Page::new(key, operations, faults).to_string()
}

/// What is shown.
struct Page<'a> {
    key: &'a str,
    /// By client, in the order of their calls.
    lanes: BTreeMap<u32, Vec<&'a Operation>>,
    /// In the order of their starts.
    faults: Vec<&'a FaultWindow>,
    /// When the first operation was called.
    first: u64,
    pixels_per_nano: f64,
    width: f64,
}

impl<'a> Page<'a> {
    fn new(key: &'a str, operations: &'a [Operation], faults: &'a [FaultWindow]) -> Self {
        let mut lanes: BTreeMap<u32, Vec<&Operation>> = BTreeMap::new();
        for one in operations {
            lanes.entry(one.client).or_default().push(one);
        }
        for lane in lanes.values_mut() {
            lane.sort_by_key(|one| one.call);
        }
        let first = operations.iter().map(|one| one.call).min().unwrap_or(0);
        let last = operations.iter().map(|one| one.call.max(one.ret.unwrap_or(0))).max();
        let span_nanos = last.unwrap_or(0).saturating_sub(first).max(1);
        let took = |one: &Operation| returned(one).map(|ret| ret.saturating_sub(one.call));
        let shortest = operations.iter().filter_map(took).min().unwrap_or(span_nanos).max(1);
        let span_width = (float(span_nanos) / float(shortest) * TEXT_WIDTH)
            .clamp(SPAN_WIDTH_MIN, WIDTH_MAX - LEFT - TEXT_WIDTH);
        let pixels_per_nano = span_width / float(span_nanos);
        let width = LEFT + span_width + TEXT_WIDTH;
        let mut faults: Vec<&FaultWindow> = faults.iter().collect();
        faults.sort_by_key(|fault| fault.start);
        let mut page = Self { key, lanes, faults, first, pixels_per_nano, width };
        let is_seen = |fault: &&FaultWindow| fault.stop >= first && page.x(fault.start) < width;
        page.faults = page.faults.iter().copied().filter(is_seen).collect();
        page
    }

    fn x(&self, at: u64) -> f64 {
        let x = LEFT + nanos_since(self.first, at) * self.pixels_per_nano;
        x.clamp(LEFT, self.width)
    }

    fn millis(&self, at: u64) -> f64 {
        nanos_since(self.first, at) / 1e6
    }

    /// Writes the faults from top to bottom, and says how high their names are together.
    fn write_faults(&self, f: &mut fmt::Formatter<'_>) -> Result<usize, fmt::Error> {
        let sides = |fault: &&FaultWindow| (self.x(fault.start), self.x(fault.stop));
        let named = self.faults.iter().map(sides);
        let named = named.map(|(left, right)| (left, right.max(left + NAME_WIDTH_MIN)));
        let places = places(named, self.width);
        for (fault, place) in self.faults.iter().zip(&places) {
            let (left, right) = sides(fault);
            let (width, room) = ((right - left).max(0.0), place.room);
            let (start, stop) = (self.millis(fault.start), self.millis(fault.stop));
            let (name, mode) = (full_name(fault), escaped(&fault.mode));
            let top = NAME_HEIGHT * place.row;
            writeln!(
                f,
                r#"<div class="fault" style="left:{left:.1}px;width:{width:.1}px"
 title="{name}, {start:.6} ms to {stop:.6} ms">
<span style="top:{top}px;width:{room:.1}px">{mode}</span></div>"#
            )?;
        }
        Ok(NAME_HEIGHT * rows(&places))
    }

    fn write_lane(
        &self,
        f: &mut fmt::Formatter<'_>,
        client: u32,
        operations: &[&Operation],
    ) -> fmt::Result {
        let sides = |one: &&Operation| {
            (self.x(one.call), returned(one).map_or(self.width, |ret| self.x(ret)))
        };
        let places = places(operations.iter().map(sides), self.width);
        let height = BAR_HEIGHT * rows(&places);
        writeln!(f, r#"<div class="lane" style="height:{height}px">"#)?;
        writeln!(f, r#"<b class="client">client {client}</b>"#)?;
        for (one, place) in operations.iter().zip(&places) {
            let (left, right) = sides(one);
            let (width, room, top) = ((right - left).max(0.0), place.room, BAR_HEIGHT * place.row);
            let (class, answer) = came(one.outcome);
            let (text, details) = (format!("{} → {answer}", asked(one.action)), self.details(one));
            writeln!(
                f,
                r#"<div class="bar {class}" style="left:{left:.1}px;width:{width:.1}px;top:{top}px"
 title="{text}{details}"><span style="width:{room:.1}px">{text}</span></div>"#
            )?;
        }
        writeln!(f, "</div>")
    }

    fn details(&self, one: &Operation) -> String {
        let call = self.millis(one.call);
        let until = returned(one).map(|ret| format!("to {:.6} ms", self.millis(ret)));
        let until = until.unwrap_or_else(|| "and no answer".to_owned());
        let entry = one.entry.map(|(range, entry)| format!("range {range}, entry {entry}"));
        let entry = entry.unwrap_or_else(|| "no entry".to_owned());
        let stamp = one.written().map(|(_, ts)| ts).or(one.seen().and_then(|(_, ts)| ts));
        let stamp = stamp.map_or_else(String::new, |ts| format!(", _ts {ts}"));
        format!("\n{call:.6} ms {until}\nnode {}, {entry}{stamp}", one.node)
    }
}

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, width) = (escaped(self.key), self.width);
        writeln!(f, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>")?;
        writeln!(f, "<title>{key}</title><style>{STYLE}</style></head><body><h1>{key}</h1>")?;
        if self.lanes.is_empty() {
            return writeln!(f, "<p>No operations.</p></body></html>");
        }
        let (seconds, nanos) = (self.first / 1_000_000_000, self.first % 1_000_000_000);
        writeln!(f, "<p>First call at {seconds}.{nanos:09} s since 1970.</p>")?;
        writeln!(f, r#"<div class="chart" style="width:{width:.1}px">"#)?;
        let head = self.write_faults(f)?;
        writeln!(f, r#"<div style="height:{head}px"></div>"#)?;
        for (client, operations) in &self.lanes {
            self.write_lane(f, *client, operations)?;
        }
        writeln!(f, "</div></body></html>")
    }
}

/// When its answer came, if it tells anything.
fn returned(one: &Operation) -> Option<u64> {
    one.ret.filter(|_| one.outcome != Outcome::Unknown)
}

/// Where something is put among others.
struct Place {
    row: usize,
    /// From its left side to the next thing in its row.
    room: f64,
}

/// Finds rows in which nothing lies over another; takes sides from left to right.
fn places(sides: impl Iterator<Item = (f64, f64)>, width: f64) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    // The last place of each row, and the sides of what is there.
    let mut ends: Vec<(usize, f64, f64)> = Vec::new();
    for (left, right) in sides {
        let row = ends.iter().position(|end| end.2 <= left).unwrap_or(ends.len());
        let end = (places.len(), left, right);
        if let Some(last) = ends.get_mut(row) {
            places[last.0].room = left - last.1;
            *last = end;
        } else {
            ends.push(end);
        }
        places.push(Place { row, room: width - left });
    }
    places
}

fn rows(places: &[Place]) -> usize {
    places.iter().map(|place| place.row + 1).max().unwrap_or(0)
}

fn asked(action: Action) -> String {
    let (verb, ttl) = match action {
        Action::Read { if_none_match } => return format!("read{}", part("if not", if_none_match)),
        Action::Create { ttl, .. } => ("create", ttl),
        Action::Upsert { ttl, .. } => ("upsert", ttl),
        Action::Replace { ttl, .. } => ("replace", ttl),
        Action::Patch { .. } => ("patch", Ttl::Inherit),
        Action::Delete { .. } => ("delete", Ttl::Inherit),
        Action::Policy { policy } => return format!("policy {policy:?}"),
    };
    let serial = action.serial().map_or_else(String::new, |serial| format!(" {serial}"));
    let ttl = match ttl {
        Ttl::Inherit => String::new(),
        Ttl::Never => " ttl -1".to_owned(),
        Ttl::Own(seconds) => format!(" ttl {seconds}"),
    };
    format!("{verb}{serial}{ttl}{}", part("if", action.if_match()))
}

fn part(word: &str, serial: Option<u64>) -> String {
    serial.map_or_else(String::new, |serial| format!(" {word} {serial}"))
}

/// The class of a bar, and the answer in its text.
fn came(outcome: Outcome) -> (&'static str, String) {
    let (class, text) = match outcome {
        Outcome::Unknown => ("unknown", "unknown"),
        Outcome::Found { serial, .. } => return ("seen", format!("200 found {serial}")),
        Outcome::NotModified => ("seen", "304 not modified"),
        Outcome::NotFound => ("seen", "404 not found"),
        Outcome::Created { .. } => ("changed", "201 created"),
        Outcome::Replaced { .. } => ("changed", "200 replaced"),
        Outcome::Deleted => ("changed", "204 deleted"),
        Outcome::PolicyChanged => ("changed", "200 policy changed"),
        Outcome::Conflict => ("refused", "409 conflict"),
        Outcome::PreconditionFailed => ("refused", "412 precondition failed"),
    };
    (class, text.to_owned())
}

/// The mode and the targets, escaped.
pub(super) fn full_name(fault: &FaultWindow) -> String {
    escaped(format!("{} {}", fault.mode, fault.targets.join(" ")).trim_end())
}

/// Text as HTML and XML have it, between tags and between quotes.
pub(super) fn escaped(text: &str) -> String {
    // XML cannot hold most control characters.
    text.replace(char::is_control, "\u{fffd}")
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// How long after the first of two instants the second is; less than 0 if it is before.
pub(super) fn nanos_since(first: u64, at: u64) -> f64 {
    float(at.saturating_sub(first)) - float(first.saturating_sub(at))
}

#[expect(clippy::cast_precision_loss, reason = "places in a picture need no more")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;
    const BASE: u64 = 1_700_000_000_000 * MILLI;
    const READ: Action = Action::Read { if_none_match: None };

    /// Fails unless every tag is closed in order and every `&` begins an entity.
    pub(crate) fn assert_well_formed(markup: &str) {
        let mut open = Vec::new();
        for piece in markup.split('<').skip(1) {
            let (tag, text) = piece.split_once('>').unwrap_or_else(|| panic!("<{piece}"));
            let name = tag.split_whitespace().next().unwrap_or("");
            assert!(tag.matches('"').count() % 2 == 0, "<{tag}>");
            assert!(!text.contains('>'), "{text}");
            if let Some(closed) = name.strip_prefix('/') {
                assert_eq!(open.pop(), Some(closed));
            } else if !tag.ends_with('/') && name != "!DOCTYPE" {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?} stay open");
        for entity in markup.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|known| entity.starts_with(known)));
        }
        assert!(!markup.contains("NaN") && !markup.contains("inf"), "{markup}");
    }

    fn operation(client: u32, call: u64, ret: Option<u64>, outcome: Outcome) -> Operation {
        let (call, ret) = (BASE + call * MILLI, ret.map(|ret| BASE + ret * MILLI));
        let (key, entry) = ("k".to_owned(), ret.map(|_| (3, 77)));
        Operation { client, node: 2, key, action: READ, call, ret, outcome, entry }
    }

    pub(crate) fn fault(start: u64, stop: u64) -> FaultWindow {
        let targets = vec!["n1>n3".to_owned()];
        FaultWindow { targets, ..FaultWindow::example("slow & <odd>", start, stop) }
    }

    #[test]
    fn a_bar_tells_what_was_asked_and_what_came() {
        let mut write = operation(6, 0, Some(20), Outcome::Replaced { ts: 9 });
        write.action = Action::Upsert { serial: 17, ttl: Ttl::Own(5), if_match: Some(4) };
        let read = operation(7, 10, Some(11), Outcome::Found { serial: 17, ts: 9 });
        let html = timeline_html("<k>", &[write, read], &[]);
        assert_well_formed(&html);
        for text in [
            "<h1>&lt;k&gt;</h1>",
            "client 6</b>",
            "upsert 17 ttl 5 if 4 → 200 replaced\n0.000000 ms to 20.000000 ms\n",
            "read → 200 found 17\n10.000000 ms to 11.000000 ms\nnode 2, range 3, entry 77, _ts 9",
            // The shortest bar has room for its text.
            "left:2080.0px;width:200.0px",
        ] {
            assert!(html.contains(text), "{text} is not in {html}");
        }
    }

    #[test]
    fn what_nobody_knows_reaches_the_right_edge_in_a_row_of_its_own() {
        let history = [
            operation(1, 0, Some(9), Outcome::Unknown),
            operation(1, 10, Some(20), Outcome::NotFound),
            operation(1, 20, Some(30), Outcome::Deleted),
        ];
        let html = timeline_html("k", &history, &[]);
        assert_well_formed(&html);
        for text in [
            r#"bar unknown" style="left:80.0px;width:1400.0px;top:0px""#,
            r#"bar seen" style="left:480.0px;width:400.0px;top:24px""#,
            // The text of a bar has room up to the next.
            r#"<span style="width:400.0px">read → 404 not found</span>"#,
            r#"bar changed" style="left:880.0px;width:400.0px;top:24px""#,
            r#"class="lane" style="height:48px""#,
            "0.000000 ms and no answer",
        ] {
            assert!(html.contains(text), "{text} is not in {html}");
        }
    }

    #[test]
    fn a_page_has_a_greatest_width() {
        let history = [(0, 1), (2, 60_000_000)]
            .map(|(call, ret)| operation(1, call, Some(ret), Outcome::NotFound));
        let html = timeline_html("k", &history, &[]);
        assert!(html.contains(r#"class="chart" style="width:20000.0px""#), "{html}");
    }

    #[test]
    fn an_answer_before_its_call_makes_no_bar_less_than_nothing() {
        let calls = [(0, Some(9)), (5, Some(0)), (5, None)];
        let history = calls.map(|(call, ret)| operation(1, call, ret, Outcome::Conflict));
        let html = timeline_html("k", &history, &[]);
        assert_well_formed(&html);
        assert!(!html.contains("width:-"), "{html}");
    }

    #[test]
    fn a_fault_that_outlasts_the_operations_ends_at_the_edge() {
        let history = [operation(1, 0, Some(10), Outcome::NotFound)];
        let faults = [fault(BASE + 5 * MILLI, u64::MAX), fault(0, 1), fault(u64::MAX, 0)];
        let html = timeline_html("k", &history, &faults);
        assert_well_formed(&html);
        assert_eq!(html.matches(r#"class="fault""#).count(), 1, "{html}");
        assert!(html.contains(r#"style="left:680.0px;width:800.0px""#), "{html}");
        assert!(
            html.contains(r#"title="slow &amp; &lt;odd&gt; n1&gt;n3, 5.000000 ms to"#),
            "{html}"
        );
    }

    #[test]
    fn an_empty_history_makes_a_page_that_says_so() {
        let html = timeline_html("k", &[], &[fault(0, u64::MAX)]);
        assert_well_formed(&html);
        assert!(html.contains("No operations."), "{html}");
    }
}
