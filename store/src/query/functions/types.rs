//! Type tests: always true or false, also of undefined.

use super::date_time::DateTime;
use super::{Args, Function, Moment};
use crate::query::value::{Number, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("IS_DEFINED", 1, 1, is_defined),
    Function::new("IS_NULL", 1, 1, is_null),
    Function::new("IS_BOOL", 1, 1, is_bool),
    Function::new("IS_NUMBER", 1, 1, is_number),
    Function::new("IS_STRING", 1, 1, is_string),
    Function::new("IS_ARRAY", 1, 1, is_array),
    Function::new("IS_OBJECT", 1, 1, is_object),
    Function::new("IS_PRIMITIVE", 1, 1, is_primitive),
    Function::new("IS_FINITE_NUMBER", 1, 1, is_finite_number),
    Function::new("IS_INTEGER", 1, 1, is_integer),
    Function::new("IS_DATETIME", 1, 1, is_datetime),
];

fn is_defined(args: &Args<'_>, _: &Moment) -> Value {
    args[0].is_defined().into()
}

fn is_null(args: &Args<'_>, _: &Moment) -> Value {
    matches!(*args[0], Value::Null).into()
}

fn is_bool(args: &Args<'_>, _: &Moment) -> Value {
    matches!(*args[0], Value::Bool(_)).into()
}

fn is_number(args: &Args<'_>, _: &Moment) -> Value {
    number(args).is_some().into()
}

fn is_string(args: &Args<'_>, _: &Moment) -> Value {
    matches!(*args[0], Value::Text(_)).into()
}

fn is_array(args: &Args<'_>, _: &Moment) -> Value {
    matches!(*args[0], Value::Array(_)).into()
}

fn is_object(args: &Args<'_>, _: &Moment) -> Value {
    matches!(*args[0], Value::Object(_)).into()
}

fn is_primitive(args: &Args<'_>, _: &Moment) -> Value {
    match *args[0] {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) => true,
        Value::Undefined | Value::Array(_) | Value::Object(_) => false,
    }
    .into()
}

fn is_finite_number(args: &Args<'_>, _: &Moment) -> Value {
    number(args).is_some_and(|number| number.as_f64().is_finite()).into()
}

fn is_integer(args: &Args<'_>, _: &Moment) -> Value {
    number(args).and_then(Number::as_i64).is_some().into()
}

fn is_datetime(args: &Args<'_>, _: &Moment) -> Value {
    let Value::Text(text) = &*args[0] else { return false.into() };
    DateTime::parse(text).is_some().into()
}

fn number(args: &Args<'_>) -> Option<Number> {
    let Value::Number(number) = *args[0] else { return None };
    Some(number)
}
