//! Computes expressions over a row. Undefined is a value: it flows, it never fails.
//!
//! Paths and constants are borrowed from where they are; only what is computed is built.

mod block;
mod operators;
mod row;

use std::borrow::Cow;

pub use row::Row;

use super::ast::BinaryOp;
use super::functions::regex::Regex;
use super::functions::{Cost, Function};
use super::like::LikePattern;
use super::op::{Block, Op, Path, RowsTo, Step};
use super::run::{Run, weight_of};
use super::value::{Number, Value};
use operators::{Truth, and, binary, compare, unary};

/// So many steps are taken as one, and names are found at once that are not as long as this: each may be compared
/// with some members' of the same length.
const STEPS_NEAR: usize = 16;
const NAME_BYTES_NEAR: usize = 64;

impl Path {
    fn follow<'v>(&self, row: &Row<'v>) -> &'v Value {
        self.steps.iter().fold(row.slot(self.slot), Value::step)
    }
}

impl Op {
    /// The value of the expression for a row.
    pub(super) fn evaluate<'v>(&'v self, row: &Row<'v>, run: &Run) -> Cow<'v, Value> {
        if !run.spend(1) {
            return Cow::Owned(Value::Undefined);
        }
        match self {
            Op::Constant(value) => Cow::Borrowed(value),
            Op::Path(path) if is_far(&path.steps, run) => Cow::Owned(Value::Undefined),
            Op::Path(path) => Cow::Borrowed(path.follow(row)),
            Op::Computed(computed) => run.compute(|| computed.body.evaluate(row, run)),
            Op::Steps(_, steps) if is_far(steps, run) => Cow::Owned(Value::Undefined),
            Op::Steps(inner, steps) => steps.iter().fold(inner.evaluate(row, run), step_into),
            Op::Unary(operator, operand) => {
                Cow::Owned(unary(*operator, &operand.evaluate(row, run)))
            }
            Op::Binary(operator, left, right) => {
                apply(left.evaluate(row, run), *operator, right, row, run)
            }
            Op::Chain(first, rest) => {
                rest.iter().fold(first.evaluate(row, run), |left, (operator, right)| {
                    apply(left, *operator, right, row, run)
                })
            }
            Op::And(operands) => Cow::Owned(all(operands, row, run, Truth::False)),
            Op::Or(operands) => Cow::Owned(all(operands, row, run, Truth::True)),
            Op::Conditional(condition, yes, no) => {
                let chosen = if condition.evaluate(row, run).is_true() { yes } else { no };
                chosen.evaluate(row, run)
            }
            Op::Between(value, low, high) => Cow::Owned(between([value, low, high], row, run)),
            Op::In(value, list) => Cow::Owned(is_in(&value.evaluate(row, run), list, row, run)),
            Op::Like(text, pattern) => Cow::Owned(like(&text.evaluate(row, run), pattern, run)),
            Op::LikeComputed(text, pattern, escape) => {
                let (text, pattern) = (text.evaluate(row, run), pattern.evaluate(row, run));
                Cow::Owned(like_computed(&text, &pattern, *escape, run))
            }
            Op::Matches(text, regex) => {
                Cow::Owned(regex_matches(&text.evaluate(row, run), regex, run))
            }
            Op::Call(function, args) => Cow::Owned(call(function, args, row, run)),
            Op::DocumentId => Cow::Owned(Value::count(row.number().ordinal())),
            Op::Array(elements) => Cow::Owned(run.placed(array(elements, row, run))),
            Op::Object(members) => Cow::Owned(run.placed(object(members, row, run))),
            Op::Subquery(to, block) => Cow::Owned(subquery(*to, block, row, run)),
        }
    }
}

/// True if a way down is so far that nobody pays for it; what is near costs nothing beside its first step.
fn is_far(steps: &[Step], run: &Run) -> bool {
    let length = |step: &Step| match step {
        Step::Name(name) => name.len() / NAME_BYTES_NEAR,
        Step::Index(_) => 0,
    };
    let more = steps.len() / STEPS_NEAR + steps.iter().map(length).sum::<usize>();
    more > 0 && !run.spend(more as u64)
}

fn step_into<'v>(value: Cow<'v, Value>, step: &Step) -> Cow<'v, Value> {
    match value {
        Cow::Borrowed(value) => Cow::Borrowed(value.step(step)),
        Cow::Owned(value) => Cow::Owned(value.into_step(step)),
    }
}

fn apply<'v>(
    left: Cow<'v, Value>,
    operator: BinaryOp,
    right: &'v Op,
    row: &Row<'v>,
    run: &Run,
) -> Cow<'v, Value> {
    if operator == BinaryOp::Coalesce {
        return if left.is_defined() { left } else { right.evaluate(row, run) };
    }
    Cow::Owned(binary(operator, left, &right.evaluate(row, run), run))
}

/// AND and OR alike: one operand that is `decisive` decides; otherwise unknown beats the rest.
fn all(operands: &[Op], row: &Row<'_>, run: &Run, decisive: Truth) -> Value {
    let mut result = decisive.not();
    for operand in operands {
        let truth = Truth::of(&operand.evaluate(row, run));
        if truth == decisive {
            return truth.value();
        }
        if truth == Truth::Unknown {
            result = Truth::Unknown;
        }
    }
    result.value()
}

fn between([value, low, high]: [&Op; 3], row: &Row<'_>, run: &Run) -> Value {
    let value = value.evaluate(row, run);
    let above = compare(BinaryOp::GreaterOrEqual, &value, &low.evaluate(row, run), run);
    let below = compare(BinaryOp::LessOrEqual, &value, &high.evaluate(row, run), run);
    and(above, below).value()
}

fn is_in(value: &Value, list: &[Op], row: &Row<'_>, run: &Run) -> Value {
    if !value.is_defined() {
        return Value::Undefined;
    }
    let found = list.iter().any(|entry| {
        compare(BinaryOp::Equal, value, &entry.evaluate(row, run), run) == Truth::True
    });
    Value::Bool(found)
}

fn like(text: &Value, pattern: &LikePattern, run: &Run) -> Value {
    let Value::Text(text) = text else { return Value::Undefined };
    if !run.spend(weight_of(text.len())) {
        return Value::Undefined;
    }
    let found = pattern.matches(text, &mut |steps| run.spend(steps));
    found.map_or(Value::Undefined, Value::Bool)
}

fn like_computed(text: &Value, pattern: &Value, escape: Option<char>, run: &Run) -> Value {
    match pattern {
        Value::Text(pattern) if run.spend(weight_of(pattern.len())) => {
            like(text, &LikePattern::new(pattern, escape), run)
        }
        Value::Undefined
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::Text(_)
        | Value::Array(_)
        | Value::Object(_) => Value::Undefined,
    }
}

fn regex_matches(text: &Value, regex: &Regex, run: &Run) -> Value {
    let Value::Text(text) = text else { return Value::Undefined };
    if run.spend(regex.cost(text)) { regex.is_match(text).into() } else { Value::Undefined }
}

/// Most functions take one or two arguments: these need no list of their own.
fn call(function: &'static Function, args: &[Op], row: &Row<'_>, run: &Run) -> Value {
    match args {
        [one] => called(function, &[one.evaluate(row, run)], run),
        [one, two] => called(function, &[one.evaluate(row, run), two.evaluate(row, run)], run),
        args => {
            let args: Vec<_> = args.iter().map(|arg| arg.evaluate(row, run)).collect();
            called(function, &args, run)
        }
    }
}

fn called(function: &'static Function, args: &[Cow<'_, Value>], run: &Run) -> Value {
    let pays_beside = |cost: Cost| run.spend_beside(|| cost(args));
    if !run.spend((function.cost)(args)) || !function.cost_beside.is_none_or(pays_beside) {
        return Value::Undefined;
    }
    let result = (function.body)(args, &run.moment);
    if run.build_value(&result) { result } else { Value::Undefined }
}

fn array(elements: &[Op], row: &Row<'_>, run: &Run) -> Value {
    let elements = elements.iter().map(|element| run.own(element.evaluate(row, run)));
    Value::Array(elements.filter(Value::is_defined).collect())
}

fn object(members: &[(String, Op)], row: &Row<'_>, run: &Run) -> Value {
    let mut object = Vec::with_capacity(members.len());
    for (name, op) in members {
        let value = run.own(op.evaluate(row, run));
        if value.is_defined() && run.build(name.len()) {
            object.push((name.clone(), value));
        }
    }
    Value::Object(object.into())
}

fn subquery(to: RowsTo, block: &Block, row: &Row<'_>, run: &Run) -> Value {
    match to {
        RowsTo::First => block.first(row, run),
        RowsTo::Last => block.last(row, run),
        RowsTo::Array => block.array(row, run),
        RowsTo::Exists => Value::Bool(block.exists(row, run)),
        RowsTo::Absent => Value::Bool(!block.exists(row, run)),
    }
}

/// The number as a double, or none if it is no number.
fn number(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) => Some(*number),
        Value::Undefined
        | Value::Null
        | Value::Bool(_)
        | Value::Text(_)
        | Value::Array(_)
        | Value::Object(_) => None,
    }
}
