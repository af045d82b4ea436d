//! From values to text and back, by JSON.

use super::call::call;
use super::{Args, Function, Moment, cost};
use crate::json::write_f64;
use crate::query::value::{Number, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("TOSTRING", 1, 1, to_string).at(cost::whole),
    Function::new("STRINGTOARRAY", 1, 1, to_array),
    Function::new("STRINGTOOBJECT", 1, 1, to_object),
    Function::new("STRINGTONUMBER", 1, 1, to_number),
    Function::new("STRINGTOBOOLEAN", 1, 1, to_boolean),
    Function::new("STRINGTONULL", 1, 1, to_null),
];

fn to_string(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |value: &Value| match value {
        Value::Text(text) => text.clone(),
        Value::Number(Number::Float(number)) => float_text(*number),
        Value::Undefined
        | Value::Null
        | Value::Bool(_)
        | Value::Number(Number::Int(_))
        | Value::Array(_)
        | Value::Object(_) => utf8(value.to_json()),
    })
}

fn float_text(number: f64) -> String {
    if !number.is_finite() {
        // `NaN` or `inf`, which Cosmos writes out.
        return number.to_string().replace("inf", "Infinity");
    }
    let mut text = Vec::new();
    write_f64(&mut text, number);
    utf8(text)
}

fn utf8(json: Vec<u8>) -> String {
    String::from_utf8(json).expect("JSON is written as UTF-8")
}

fn to_array(args: &Args<'_>, _: &Moment) -> Value {
    parsed(args, |value| matches!(value, Value::Array(_)))
}

fn to_object(args: &Args<'_>, _: &Moment) -> Value {
    parsed(args, |value| matches!(value, Value::Object(_)))
}

fn to_number(args: &Args<'_>, _: &Moment) -> Value {
    parsed(args, |value| matches!(value, Value::Number(_)))
}

fn to_boolean(args: &Args<'_>, _: &Moment) -> Value {
    parsed(args, |value| matches!(value, Value::Bool(_)))
}

fn to_null(args: &Args<'_>, _: &Moment) -> Value {
    parsed(args, |value| matches!(value, Value::Null))
}

/// The value that a text of strict JSON tells, if it is of the wanted type.
fn parsed(args: &Args<'_>, wanted: fn(&Value) -> bool) -> Value {
    call(args, |text: &str| {
        // By way of a tree, in which of repeated names the last wins.
        let tree: serde_json::Value = serde_json::from_str(text).ok()?;
        serde_json::from_value(tree).ok().filter(wanted)
    })
}
