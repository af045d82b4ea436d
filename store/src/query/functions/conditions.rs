//! Choices between values, and the truth tables of calls with many alternatives.

use super::call::{Whole, call};
use super::{Args, Function, Moment};
use crate::query::value::Value;

pub(super) const FUNCTIONS: &[Function] =
    &[Function::new("IIF", 3, 3, iif), Function::variadic("CHOOSE", 2, choose)];

/// OR over outcomes that may be undefined: one that is true decides.
pub(super) fn any(outcomes: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    decided_by(true, outcomes)
}

/// AND over outcomes that may be undefined: one that is false decides.
pub(super) fn all(outcomes: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    decided_by(false, outcomes)
}

fn decided_by(decisive: bool, outcomes: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    let mut result = Some(!decisive);
    for outcome in outcomes {
        match outcome {
            Some(truth) if truth == decisive => return outcome,
            Some(_) => {}
            None => result = None,
        }
    }
    result
}

/// As `c ? x : y`: the second only if the first is exactly true.
fn iif(args: &Args<'_>, _: &Moment) -> Value {
    let chosen = if args[0].is_true() { &args[1] } else { &args[2] };
    Value::clone(chosen)
}

/// Counts from one; what is not chosen may be undefined.
fn choose(args: &Args<'_>, _: &Moment) -> Value {
    call(&args[..1], |position: Whole| match position.count() {
        0 => Value::Undefined,
        position => args.get(position).map_or(Value::Undefined, |chosen| Value::clone(chosen)),
    })
}
