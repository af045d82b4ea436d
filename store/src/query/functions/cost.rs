//! What calls cost, in operations: told by the arguments alone, before the work is done.

use std::borrow::Cow;

use super::Args;
use crate::query::run::weight_of;
use crate::query::value::Value;

/// Going over each argument once, and not into what lies deeper in it.
pub(super) fn surface(args: &Args<'_>) -> u64 {
    args.iter().map(|arg| weight_of(length(arg))).sum()
}

/// Going over all there is in each argument. Of what an item holds it is no more than its bytes.
pub(super) fn whole(args: &Args<'_>) -> u64 {
    args.iter().map(|arg| weight_of(all(arg))).sum()
}

/// Making keys of all there is in each argument, and looking these up: half an operation for a number.
pub(super) fn keys(args: &Args<'_>) -> u64 {
    args.iter().map(|arg| weight_of(arg.size())).sum()
}

/// Comparing the elements of the first argument with the second, however many more there are.
pub(super) fn one_in_array(args: &Args<'_>) -> u64 {
    each_in_array(&args[..args.len().min(2)])
}

/// Comparing the elements of the first argument with each of the others: texts as a whole, and
/// arrays and objects with all that is in them.
pub(super) fn each_in_array(args: &Args<'_>) -> u64 {
    let Some((array, sought)) = args.split_first() else { return 0 };
    let goes_deep = sought.iter().any(|one| matches!(**one, Value::Array(_) | Value::Object(_)));
    let once = if goes_deep { all(array) } else { with_texts(array) };
    surface(sought) + times(once, sought)
}

/// Looking in the text that is the first argument for each of the others.
pub(super) fn each_in_text(args: &Args<'_>) -> u64 {
    let Some((text, sought)) = args.split_first() else { return 0 };
    surface(sought) + times(length(text), sought)
}

fn times(length: usize, sought: &[Cow<'_, Value>]) -> u64 {
    weight_of(length.saturating_mul(sought.len()))
}

fn length(value: &Value) -> usize {
    match value {
        Value::Undefined | Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::Text(text) => text.len(),
        Value::Array(elements) => elements.len(),
        Value::Object(members) => members.len(),
    }
}

/// The same with all that lies deeper.
fn all(value: &Value) -> usize {
    match value {
        Value::Undefined | Value::Null | Value::Bool(_) | Value::Number(_) => 1,
        Value::Text(text) => 1 + text.len(),
        Value::Array(elements) => 1 + elements.iter().map(all).sum::<usize>(),
        Value::Object(members) => {
            1 + members.iter().map(|(name, value)| 1 + name.len() + all(value)).sum::<usize>()
        }
    }
}

/// The elements of an array, and the texts among them.
fn with_texts(array: &Value) -> usize {
    let Value::Array(elements) = array else { return 0 };
    let text = |element: &Value| if let Value::Text(text) = element { text.len() } else { 0 };
    elements.iter().map(|element| 1 + text(element)).sum()
}
