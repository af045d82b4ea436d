//! Functions of arrays.

use super::call::{Argument, Whole, call};
use super::{Args, Function, Moment, RESULT_BYTES_MAX, conditions, cost};
use crate::query::value::{Member, Number, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::variadic("ARRAY_CONCAT", 2, concat).at(cost::whole),
    Function::new("ARRAY_LENGTH", 1, 1, length),
    Function::new("ARRAY_SLICE", 2, 3, slice),
    Function::new("ARRAY_CONTAINS", 2, 3, contains).at(cost::one_in_array),
    Function::variadic("ARRAY_CONTAINS_ANY", 2, contains_any).at(cost::each_in_array),
    Function::variadic("ARRAY_CONTAINS_ALL", 2, contains_all).at(cost::each_in_array),
    Function::new("ARRAY_SUM", 1, 1, sum),
    Function::new("ARRAY_AVG", 1, 1, average),
    Function::new("ARRAY_MEDIAN", 1, 1, median),
    Function::new("ARRAY_MIN", 1, 1, min).at(cost::whole),
    Function::new("ARRAY_MAX", 1, 1, max).at(cost::whole),
];

fn concat(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |arrays: Vec<&[Value]>| {
        let bytes = arrays.iter().flat_map(|array| array.iter()).map(Value::size).sum::<usize>();
        (bytes <= RESULT_BYTES_MAX).then(|| arrays.concat())
    })
}

fn length(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |array: &[Value]| array.len())
}

/// A negative start counts from the end.
fn slice(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(array, Whole(start), count): (&[Value], Whole, Option<Whole>)| {
        let start = if start < 0 {
            let back = usize::try_from(start.unsigned_abs()).unwrap_or(usize::MAX);
            array.len().saturating_sub(back)
        } else {
            Whole(start).count()
        };
        let count = count.map_or(usize::MAX, Whole::count);
        array.iter().skip(start).take(count).cloned().collect::<Vec<_>>()
    })
}

/// The third argument, if true, lets an object match that has more than what is sought.
fn contains(args: &Args<'_>, _: &Moment) -> Value {
    let partial = match args.get(2).map(|partial| &**partial) {
        None | Some(Value::Undefined) => false,
        Some(Value::Bool(partial)) => *partial,
        Some(
            Value::Null | Value::Number(_) | Value::Text(_) | Value::Array(_) | Value::Object(_),
        ) => return Value::Undefined,
    };
    call(&args[..2], |(array, sought): (&[Value], &Value)| {
        let matches = if partial { part_matches } else { Value::equals };
        array.iter().any(|element| matches(sought, element))
    })
}

fn contains_any(args: &Args<'_>, _: &Moment) -> Value {
    conditions::any(each_contained(args)).into()
}

fn contains_all(args: &Args<'_>, _: &Moment) -> Value {
    conditions::all(each_contained(args)).into()
}

/// Whether the array contains each of the other arguments; undefined where one is.
fn each_contained<'a>(args: &'a Args<'a>) -> impl Iterator<Item = Option<bool>> {
    let mut rest = args.iter();
    let array = <&[Value]>::take(&mut rest);
    rest.map(move |sought| {
        let array = array.filter(|_| sought.is_defined())?;
        Some(array.iter().any(|element| sought.equals(element)))
    })
}

/// True if all that `sought` has is there: members of objects by name, elements of arrays by place.
fn part_matches(sought: &Value, found: &Value) -> bool {
    match (sought, found) {
        (Value::Object(sought), Value::Object(found)) => {
            let is_part = |(name, part): &Member| {
                found.named(name).is_some_and(|found| part_matches(part, found))
            };
            sought.iter().all(is_part)
        }
        (Value::Array(sought), Value::Array(found)) => {
            sought.len() == found.len()
                && sought.iter().zip(found).all(|(sought, found)| part_matches(sought, found))
        }
        _ => sought.equals(found),
    }
}

fn sum(args: &Args<'_>, _: &Moment) -> Value {
    // The empty sum of doubles is -0.
    numbers(args, |numbers| Some(numbers.iter().sum::<f64>() + 0.0))
}

#[expect(clippy::cast_precision_loss, reason = "an array has far fewer than 2^53 elements")]
fn average(args: &Args<'_>, _: &Moment) -> Value {
    numbers(args, |numbers| {
        (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64)
    })
}

/// Of an even number of numbers the mean of the two in the middle.
fn median(args: &Args<'_>, _: &Moment) -> Value {
    numbers(args, |mut numbers| {
        if numbers.iter().any(|number| number.is_nan()) {
            return Some(f64::NAN);
        }
        numbers.sort_by(f64::total_cmp);
        let middle = numbers.len() / 2;
        let upper = *numbers.get(middle)?;
        let is_even = numbers.len() % 2 == 0;
        Some(if is_even { f64::midpoint(numbers[middle - 1], upper) } else { upper })
    })
}

/// An array of nothing but numbers.
fn numbers(args: &Args<'_>, body: fn(Vec<f64>) -> Option<f64>) -> Value {
    call(args, |array: &[Value]| {
        let numbers = array.iter().map(|element| {
            let Value::Number(number) = element else { return None };
            Some(Number::as_f64(*number))
        });
        body(numbers.collect::<Option<_>>()?)
    })
}

fn min(args: &Args<'_>, _: &Moment) -> Value {
    extreme(args, |elements| elements.min_by(|a, b| a.sort_compare(b)))
}

fn max(args: &Args<'_>, _: &Moment) -> Value {
    extreme(args, |elements| elements.max_by(|a, b| a.sort_compare(b)))
}

/// By the order of types, then of values; arrays and objects have none.
fn extreme(
    args: &Args<'_>,
    pick: for<'v> fn(std::slice::Iter<'v, Value>) -> Option<&'v Value>,
) -> Value {
    call(args, |array: &[Value]| {
        let ordered = |value: &Value| !matches!(value, Value::Array(_) | Value::Object(_));
        if array.iter().all(ordered) { pick(array.iter()).cloned() } else { None }
    })
}
