//! Arithmetic on integers of 64 bits. It wraps around; an argument that is no such integer makes the
//! result undefined.

use super::call::call;
use super::{Args, Function, Moment};
use crate::query::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("INTADD", 2, 2, add),
    Function::new("INTSUB", 2, 2, subtract),
    Function::new("INTMUL", 2, 2, multiply),
    Function::new("INTDIV", 2, 2, divide),
    Function::new("INTMOD", 2, 2, remainder),
    Function::new("INTBITAND", 2, 2, and),
    Function::new("INTBITOR", 2, 2, or),
    Function::new("INTBITXOR", 2, 2, xor),
    Function::new("INTBITNOT", 1, 1, not),
    Function::new("INTBITLEFTSHIFT", 2, 2, shift_left),
    Function::new("INTBITRIGHTSHIFT", 2, 2, shift_right),
    // The other spelling.
    Function::new("INTBITWISEAND", 2, 2, and),
    Function::new("INTBITWISEOR", 2, 2, or),
    Function::new("INTBITWISEXOR", 2, 2, xor),
    Function::new("INTBITWISENOT", 1, 1, not),
    Function::new("INTBITWISELEFTSHIFT", 2, 2, shift_left),
    Function::new("INTBITWISERIGHTSHIFT", 2, 2, shift_right),
];

fn add(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(a, b): (i64, i64)| a.wrapping_add(b))
}

fn subtract(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(a, b): (i64, i64)| a.wrapping_sub(b))
}

fn multiply(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(a, b): (i64, i64)| a.wrapping_mul(b))
}

/// Toward zero.
fn divide(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(a, b): (i64, i64)| (b != 0).then(|| a.wrapping_div(b)))
}

/// With the sign of the first.
fn remainder(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(a, b): (i64, i64)| (b != 0).then(|| a.wrapping_rem(b)))
}

fn and(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(a, b): (i64, i64)| a & b)
}

fn or(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(a, b): (i64, i64)| a | b)
}

fn xor(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(a, b): (i64, i64)| a ^ b)
}

fn not(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |a: i64| !a)
}

fn shift_left(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(a, by): (i64, i64)| a << low_six_bits(by))
}

/// Keeps the sign.
fn shift_right(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(a, by): (i64, i64)| a >> low_six_bits(by))
}

/// As processors of 64 bits shift.
fn low_six_bits(by: i64) -> u32 {
    u32::try_from(by & 63).expect("six bits fit")
}
