//! Every function by tables of calls, and all of them together by what no call may do.

mod arrays;
mod conversion;
mod math;
mod strings;
mod totality;
mod types;

use std::borrow::Cow;

use super::*;

pub(super) const METRICS: [Metric; 2] = [Metric::Geography, Metric::Geometry];
/// 2026-11-21T12:34:56.789Z
pub(super) const NOW: Millis = Millis(1_795_264_496_789);

/// Checks calls, one a line: `NAME(arguments) -> result`. Both sides are JSON, and `undefined`,
/// `NaN`, `Infinity`. Lines that begin with `--` are comments.
pub(super) fn laws(table: &str) {
    let lines = table.lines().map(str::trim);
    let mut checked = 0;
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with("--")) {
        let (call, expected) = line.rsplit_once(" -> ").expect("a line has an arrow");
        assert_eq!(shown(&result(call)), shown(&read(expected)), "{line}");
        checked += 1;
    }
    assert!(checked > 0, "a table has calls");
}

/// The result of a call.
pub(super) fn result(call: &str) -> Value {
    let (name, rest) = call.split_once('(').expect("a call has a parenthesis");
    let args = rest.strip_suffix(')').expect("a call ends with a parenthesis");
    let Value::Array(args) = read(&format!("[{args}]")) else { unreachable!("it has brackets") };
    apply(name, &args)
}

pub(super) fn apply(name: &str, args: &[Value]) -> Value {
    apply_in(Metric::Geography, name, args)
}

/// The result where coordinates mean this.
pub(super) fn apply_in(metric: Metric, name: &str, args: &[Value]) -> Value {
    let function = find(name, metric).unwrap_or_else(|| panic!("there is no {name}"));
    let Arity { least, most } = function.arity;
    assert!(args.len() >= least && most.is_none_or(|most| args.len() <= most), "{name}: {args:?}");
    let args: Vec<Cow<'_, Value>> = args.iter().map(Cow::Borrowed).collect();
    (function.body)(&args, &Moment::new(NOW, Millis(NOW.0 - 60_000), 7))
}

/// Words that are no JSON, and texts that stand for them while it is read.
const WORDS: [(&str, &str); 4] = [
    ("undefined", "\\u0001U"),
    ("NaN", "\\u0001N"),
    ("-Infinity", "\\u0001M"),
    ("Infinity", "\\u0001P"),
];

/// Reads JSON with words.
pub(super) fn read(text: &str) -> Value {
    let mut json = String::new();
    let mut rest = text;
    let mut in_text = false;
    while let Some(first) = rest.chars().next() {
        let word = WORDS.iter().find(|(word, _)| !in_text && rest.starts_with(word));
        let taken = match word {
            Some((word, mark)) => {
                json.extend(["\"", mark, "\""]);
                word.len()
            }
            None if in_text && first == '\\' => {
                json.push_str(&rest[..2]);
                2
            }
            None => {
                in_text ^= first == '"';
                json.push(first);
                first.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    let value = Value::from_json(json.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
    unmarked(value)
}

fn unmarked(value: Value) -> Value {
    match value {
        Value::Text(text) => match text.as_str() {
            "\u{1}U" => Value::Undefined,
            "\u{1}N" => Value::float(f64::NAN),
            "\u{1}M" => Value::float(f64::NEG_INFINITY),
            "\u{1}P" => Value::float(f64::INFINITY),
            _ => Value::Text(text),
        },
        Value::Array(elements) => Value::Array(elements.into_iter().map(unmarked).collect()),
        Value::Undefined | Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            value
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Undefined => "undefined".to_string(),
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::Text(_)
        | Value::Array(_)
        | Value::Object(_) => String::from_utf8(value.to_json()).expect("JSON is written as UTF-8"),
    }
}
