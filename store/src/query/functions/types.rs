//! Type tests: always true or false, also of undefined.

use super::{Args, Function, Moment};
use crate::query::value::Value;

pub(super) const FUNCTIONS: &[Function] =
    &[Function::new("IS_DEFINED", 1, 1, is_defined), Function::new("IS_NULL", 1, 1, is_null)];

fn is_defined(args: &Args<'_>, _: &Moment) -> Value {
    Value::Bool(args[0].is_defined())
}

fn is_null(args: &Args<'_>, _: &Moment) -> Value {
    Value::Bool(matches!(*args[0], Value::Null))
}
