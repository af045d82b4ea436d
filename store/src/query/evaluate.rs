//! Computes expressions over one item. Undefined is a value: it flows, it never fails.

use std::cmp::Ordering;

use super::ast::{BinaryOp, UnaryOp};
use super::value::{Number, Value, compare_utf16};

/// A compiled expression.
#[derive(Clone, Debug)]
pub enum Op {
    /// A constant.
    Constant(Value),
    /// The item.
    Item,
    /// A member of an object.
    Member(Box<Op>, String),
    /// An element of an array.
    Element(Box<Op>, Number),
    /// An operator before its operand.
    Unary(UnaryOp, Box<Op>),
    /// An operator between its operands.
    Binary(BinaryOp, Box<Op>, Box<Op>),
    /// All of these.
    And(Vec<Op>),
    /// Any of these.
    Or(Vec<Op>),
    /// `c ? x : y`
    Conditional(Box<Op>, Box<Op>, Box<Op>),
    /// `v BETWEEN a AND b`
    Between(Box<Op>, Box<Op>, Box<Op>),
    /// `v IN (…)`
    In(Box<Op>, Vec<Op>),
    /// `[…]`
    Array(Vec<Op>),
    /// `{…}`
    Object(Vec<(String, Op)>),
}

/// The three truths of the language: anything that is no boolean counts as unknown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Truth {
    True,
    False,
    Unknown,
}

impl Truth {
    fn of(value: &Value) -> Self {
        match value {
            Value::Bool(true) => Truth::True,
            Value::Bool(false) => Truth::False,
            Value::Undefined
            | Value::Null
            | Value::Number(_)
            | Value::Text(_)
            | Value::Array(_)
            | Value::Object(_) => Truth::Unknown,
        }
    }

    fn not(self) -> Self {
        match self {
            Truth::True => Truth::False,
            Truth::False => Truth::True,
            Truth::Unknown => Truth::Unknown,
        }
    }

    fn value(self) -> Value {
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

impl Op {
    /// The value of the expression for an item.
    pub fn evaluate(&self, item: &Value) -> Value {
        match self {
            Op::Constant(value) => value.clone(),
            Op::Item | Op::Member(..) | Op::Element(..) => self.navigate(item),
            Op::Unary(operator, operand) => unary(*operator, &operand.evaluate(item)),
            Op::Binary(operator, left, right) => binary(*operator, left, right, item),
            Op::And(operands) => all(operands, item, Truth::False),
            Op::Or(operands) => all(operands, item, Truth::True),
            Op::Conditional(condition, yes, no) => {
                let chosen = if condition.evaluate(item).is_true() { yes } else { no };
                chosen.evaluate(item)
            }
            Op::Between(value, low, high) => {
                let value = value.evaluate(item);
                let above = compare(BinaryOp::GreaterOrEqual, &value, &low.evaluate(item));
                let below = compare(BinaryOp::LessOrEqual, &value, &high.evaluate(item));
                and(above, below).value()
            }
            Op::In(value, list) => is_in(&value.evaluate(item), list, item),
            Op::Array(elements) => {
                let elements = elements.iter().map(|element| element.evaluate(item));
                Value::Array(elements.filter(Value::is_defined).collect())
            }
            Op::Object(members) => {
                let members =
                    members.iter().map(|(name, member)| (name.clone(), member.evaluate(item)));
                Value::Object(members.filter(|(_, value)| value.is_defined()).collect())
            }
        }
    }

    /// Follows a path without copying what lies on the way.
    fn navigate(&self, item: &Value) -> Value {
        fn walk<'i>(op: &Op, item: &'i Value) -> Result<&'i Value, Value> {
            match op {
                Op::Item => Ok(item),
                Op::Member(inner, name) => match walk(inner, item) {
                    Ok(value) => Ok(value.member(name)),
                    Err(value) => Err(value.member(name).clone()),
                },
                Op::Element(inner, index) => match walk(inner, item) {
                    Ok(value) => Ok(value.element(index)),
                    Err(value) => Err(value.element(index).clone()),
                },
                Op::Constant(_)
                | Op::Unary(..)
                | Op::Binary(..)
                | Op::And(_)
                | Op::Or(_)
                | Op::Conditional(..)
                | Op::Between(..)
                | Op::In(..)
                | Op::Array(_)
                | Op::Object(_) => Err(op.evaluate(item)),
            }
        }
        walk(self, item).map_or_else(|computed| computed, Clone::clone)
    }
}

fn unary(operator: UnaryOp, operand: &Value) -> Value {
    match (operator, operand) {
        (UnaryOp::Not, operand) => Truth::of(operand).not().value(),
        (UnaryOp::Plus, Value::Number(number)) => Value::Number(*number),
        (UnaryOp::Minus, Value::Number(number)) => negate(*number),
        (UnaryOp::BitNot, Value::Number(number)) => {
            Value::float(f64::from(!to_int32(number.as_f64())))
        }
        (UnaryOp::Plus | UnaryOp::Minus | UnaryOp::BitNot, _) => Value::Undefined,
    }
}

fn negate(number: Number) -> Value {
    match number {
        Number::Int(number) => match number.checked_neg() {
            Some(negative) => Value::Number(Number::Int(negative)),
            None => Value::float(-Number::Int(number).as_f64()),
        },
        Number::Float(number) => Value::float(-number),
    }
}

fn binary(operator: BinaryOp, left: &Op, right: &Op, item: &Value) -> Value {
    let a = left.evaluate(item);
    if operator == BinaryOp::Coalesce {
        return if a.is_defined() { a } else { right.evaluate(item) };
    }
    let b = right.evaluate(item);
    match operator {
        BinaryOp::Coalesce | BinaryOp::And | BinaryOp::Or => {
            unreachable!("these have operations of their own")
        }
        BinaryOp::Equal
        | BinaryOp::NotEqual
        | BinaryOp::Less
        | BinaryOp::LessOrEqual
        | BinaryOp::Greater
        | BinaryOp::GreaterOrEqual => compare(operator, &a, &b).value(),
        BinaryOp::Concat => match (a, b) {
            (Value::Text(a), Value::Text(b)) => Value::Text(a + &b),
            _ => Value::Undefined,
        },
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
        | BinaryOp::ShiftRightUnsigned => match (a, b) {
            (Value::Number(a), Value::Number(b)) => {
                Value::float(arithmetic(operator, a.as_f64(), b.as_f64()))
            }
            _ => Value::Undefined,
        },
    }
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
fn compare(operator: BinaryOp, a: &Value, b: &Value) -> Truth {
    if !a.is_defined() || !b.is_defined() {
        return Truth::Unknown;
    }
    let holds: fn(Ordering) -> bool = match operator {
        BinaryOp::Equal => return a.equals(b).into(),
        BinaryOp::NotEqual => return (!a.equals(b)).into(),
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
        (Value::Text(a), Value::Text(b)) => holds(compare_utf16(a, b)).into(),
        _ => Truth::Unknown,
    }
}

fn and(a: Truth, b: Truth) -> Truth {
    match (a, b) {
        (Truth::False, _) | (_, Truth::False) => Truth::False,
        (Truth::True, Truth::True) => Truth::True,
        _ => Truth::Unknown,
    }
}

/// AND and OR alike: one operand that is `decisive` decides; otherwise unknown beats the rest.
fn all(operands: &[Op], item: &Value, decisive: Truth) -> Value {
    let mut result = decisive.not();
    for operand in operands {
        let truth = Truth::of(&operand.evaluate(item));
        if truth == decisive {
            return truth.value();
        }
        if truth == Truth::Unknown {
            result = Truth::Unknown;
        }
    }
    result.value()
}

fn is_in(value: &Value, list: &[Op], item: &Value) -> Value {
    if !value.is_defined() {
        return Value::Undefined;
    }
    let found = list.iter().any(|entry| {
        let entry = entry.evaluate(item);
        entry.is_defined() && value.equals(&entry)
    });
    Value::Bool(found)
}
