//! What operators make of values.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::number;
use crate::query::ast::{BinaryOp, UnaryOp};
use crate::query::run::{Run, Toll, weight_of};
use crate::query::value::{Number, Value, compare_utf16};

/// The three truths of the language: anything that is no boolean counts as unknown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Truth {
    True,
    False,
    Unknown,
}

impl Truth {
    pub(super) fn of(value: &Value) -> Self {
        match value {
            Value::Bool(truth) => (*truth).into(),
            Value::Undefined
            | Value::Null
            | Value::Number(_)
            | Value::Text(_)
            | Value::Array(_)
            | Value::Object(_) => Truth::Unknown,
        }
    }

    pub(super) fn not(self) -> Self {
        match self {
            Truth::True => Truth::False,
            Truth::False => Truth::True,
            Truth::Unknown => Truth::Unknown,
        }
    }

    pub(super) fn value(self) -> Value {
        match self {
            Truth::True => Value::Bool(true),
            Truth::False => Value::Bool(false),
            Truth::Unknown => Value::Undefined,
        }
    }
}

impl From<bool> for Truth {
    fn from(truth: bool) -> Self {
        if truth { Truth::True } else { Truth::False }
    }
}

pub(super) fn and(a: Truth, b: Truth) -> Truth {
    match (a, b) {
        (Truth::False, _) | (_, Truth::False) => Truth::False,
        (Truth::True, Truth::True) => Truth::True,
        _ => Truth::Unknown,
    }
}

pub(super) fn unary(operator: UnaryOp, operand: &Value) -> Value {
    let on_number =
        |compute: fn(Number) -> Value| number(operand).map_or(Value::Undefined, compute);
    match operator {
        UnaryOp::Not => Truth::of(operand).not().value(),
        UnaryOp::Plus => on_number(Value::Number),
        UnaryOp::Minus => on_number(negate),
        UnaryOp::BitNot => on_number(|number| Value::float(f64::from(!to_int32(number.as_f64())))),
    }
}

fn negate(number: Number) -> Value {
    match number {
        // There is no integer -0.
        Number::Int(0) => Value::float(-0.0),
        Number::Int(number) => match number.checked_neg() {
            Some(negative) => Value::Number(Number::Int(negative)),
            None => Value::float(-Number::Int(number).as_f64()),
        },
        Number::Float(number) => Value::float(-number),
    }
}

/// An operator between two values. `??`, AND and OR choose what to evaluate: they do not come here.
pub(super) fn binary(operator: BinaryOp, a: Cow<'_, Value>, b: &Value, run: &Run) -> Value {
    match operator {
        BinaryOp::Coalesce | BinaryOp::And | BinaryOp::Or => {
            unreachable!("these decide themselves what to evaluate")
        }
        BinaryOp::Equal
        | BinaryOp::NotEqual
        | BinaryOp::Less
        | BinaryOp::LessOrEqual
        | BinaryOp::Greater
        | BinaryOp::GreaterOrEqual => compare(operator, &a, b, run).value(),
        BinaryOp::Concat => concat(a, b, run),
        BinaryOp::Add
        | BinaryOp::Subtract
        | BinaryOp::Multiply
        | BinaryOp::Divide
        | BinaryOp::Modulo
        | BinaryOp::BitOr
        | BinaryOp::BitXor
        | BinaryOp::BitAnd
        | BinaryOp::ShiftLeft
        | BinaryOp::ShiftRight
        | BinaryOp::ShiftRightUnsigned => match (number(&a), number(b)) {
            (Some(a), Some(b)) => Value::Number(
                exact(operator, a, b)
                    .unwrap_or_else(|| Number::Float(arithmetic(operator, a.as_f64(), b.as_f64()))),
            ),
            _ => Value::Undefined,
        },
    }
}

/// In a chain the text so far is ours already: it only grows.
fn concat(a: Cow<'_, Value>, b: &Value, run: &Run) -> Value {
    let Value::Text(b) = b else { return Value::Undefined };
    match a {
        Cow::Owned(Value::Text(mut a)) if run.build(b.len()) => {
            a.push_str(b);
            Value::Text(a)
        }
        Cow::Borrowed(Value::Text(a)) if run.build(a.len() + b.len()) => {
            Value::Text([a.as_str(), b].concat())
        }
        Cow::Borrowed(_) | Cow::Owned(_) => Value::Undefined,
    }
}

/// What integers of 64 bits come to, if that is one, too.
#[expect(clippy::wildcard_enum_match_arm, reason = "the other operators go by doubles")]
fn exact(operator: BinaryOp, a: Number, b: Number) -> Option<Number> {
    let (Number::Int(a), Number::Int(b)) = (a, b) else { return None };
    let result = match operator {
        BinaryOp::Add => a.checked_add(b),
        BinaryOp::Subtract => a.checked_sub(b),
        BinaryOp::Multiply => a.checked_mul(b),
        _ => None,
    };
    result.map(Number::Int)
}

fn arithmetic(operator: BinaryOp, a: f64, b: f64) -> f64 {
    #[expect(clippy::cast_sign_loss, reason = "reinterpreting the bits is what is asked for")]
    let shift = to_int32(b) as u32 & 31;
    match operator {
        BinaryOp::Add => a + b,
        BinaryOp::Subtract => a - b,
        BinaryOp::Multiply => a * b,
        BinaryOp::Divide => a / b,
        BinaryOp::Modulo => a % b,
        BinaryOp::BitOr => f64::from(to_int32(a) | to_int32(b)),
        BinaryOp::BitXor => f64::from(to_int32(a) ^ to_int32(b)),
        BinaryOp::BitAnd => f64::from(to_int32(a) & to_int32(b)),
        BinaryOp::ShiftLeft => f64::from(to_int32(a) << shift),
        BinaryOp::ShiftRight => f64::from(to_int32(a) >> shift),
        BinaryOp::ShiftRightUnsigned => {
            #[expect(clippy::cast_sign_loss, reason = "the shift is on the bits")]
            let bits = to_int32(a) as u32;
            f64::from(bits >> shift)
        }
        BinaryOp::Coalesce
        | BinaryOp::Or
        | BinaryOp::And
        | BinaryOp::Concat
        | BinaryOp::Equal
        | BinaryOp::NotEqual
        | BinaryOp::Less
        | BinaryOp::LessOrEqual
        | BinaryOp::Greater
        | BinaryOp::GreaterOrEqual => unreachable!("only arithmetic comes here"),
    }
}

/// JavaScript's `ToInt32`: the fraction is cut, the rest taken modulo 2^32.
fn to_int32(number: f64) -> i32 {
    if !number.is_finite() {
        return 0;
    }
    let modulo = number.trunc().rem_euclid(4_294_967_296.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 ≤ n < 2^32")]
    let bits = modulo as u32;
    bits.cast_signed()
}

/// Equality is defined between all types, order only within null, booleans, numbers and text.
pub(super) fn compare(operator: BinaryOp, a: &Value, b: &Value, run: &Run) -> Truth {
    if !a.is_defined() || !b.is_defined() {
        return Truth::Unknown;
    }
    let holds: fn(Ordering) -> bool = match operator {
        BinaryOp::Equal => return equal(a, b, run),
        BinaryOp::NotEqual => return equal(a, b, run).not(),
        BinaryOp::Less => Ordering::is_lt,
        BinaryOp::LessOrEqual => Ordering::is_le,
        BinaryOp::Greater => Ordering::is_gt,
        BinaryOp::GreaterOrEqual => Ordering::is_ge,
        BinaryOp::Coalesce
        | BinaryOp::Or
        | BinaryOp::And
        | BinaryOp::Concat
        | BinaryOp::BitOr
        | BinaryOp::BitXor
        | BinaryOp::BitAnd
        | BinaryOp::ShiftLeft
        | BinaryOp::ShiftRight
        | BinaryOp::ShiftRightUnsigned
        | BinaryOp::Add
        | BinaryOp::Subtract
        | BinaryOp::Multiply
        | BinaryOp::Divide
        | BinaryOp::Modulo => unreachable!("only comparisons come here"),
    };
    match (a, b) {
        (Value::Null, Value::Null) => holds(Ordering::Equal).into(),
        (Value::Bool(a), Value::Bool(b)) => holds(a.cmp(b)).into(),
        (Value::Number(a), Value::Number(b)) => a.compare(*b).is_some_and(holds).into(),
        (Value::Text(a), Value::Text(b)) if run.spend(weight_of(a.len().min(b.len()))) => {
            holds(compare_utf16(a, b)).into()
        }
        _ => Truth::Unknown,
    }
}

/// Goes as deep as the values are alike, and pays for that.
fn equal(a: &Value, b: &Value, run: &Run) -> Truth {
    let mut toll = Toll::new(run);
    let equal = a.equals_for(b, &mut |length| toll.pay(length));
    if run.is_over() { Truth::Unknown } else { equal.into() }
}
