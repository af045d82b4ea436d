//! Mathematics over doubles.
//!
//! Sines, logarithms and powers come from `libm`, not from the system: the system's differ in the
//! last digit from processor to processor. What is exactly rounded anyway (roots, rounding) does not.

use std::f64::consts::PI;

use super::call::{Argument, call};
use super::{Args, Function, Moment};
use crate::query::value::{Number, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("ABS", 1, 1, abs),
    Function::new("SIGN", 1, 1, sign),
    Function::new("SQUARE", 1, 1, square),
    Function::new("SQRT", 1, 1, sqrt),
    Function::new("EXP", 1, 1, exp),
    Function::new("POWER", 2, 2, power),
    Function::new("LOG", 1, 2, log),
    Function::new("LOG10", 1, 1, log10),
    Function::new("PI", 0, 0, pi),
    Function::new("SIN", 1, 1, sin),
    Function::new("COS", 1, 1, cos),
    Function::new("TAN", 1, 1, tan),
    Function::new("COT", 1, 1, cot),
    Function::new("ASIN", 1, 1, asin),
    Function::new("ACOS", 1, 1, acos),
    Function::new("ATAN", 1, 1, atan),
    Function::new("ATN2", 2, 2, atn2),
    Function::new("DEGREES", 1, 1, degrees),
    Function::new("RADIANS", 1, 1, radians),
    Function::new("CEILING", 1, 1, ceiling),
    Function::new("FLOOR", 1, 1, floor),
    Function::new("TRUNC", 1, 1, trunc),
    Function::new("ROUND", 1, 1, round),
    Function::new("RAND", 0, 0, random),
    Function::new("NUMBERBIN", 1, 2, number_bin),
];

/// A function of doubles.
fn double<'a, P: Argument<'a>>(args: &'a Args<'a>, body: impl FnOnce(P) -> f64) -> Value {
    call(args, body)
}

/// A function that leaves integers as they are, all 64 bits.
fn rounded(args: &Args<'_>, body: fn(f64) -> f64) -> Value {
    call(args, |number: Number| match number {
        Number::Int(whole) => Value::from(whole),
        Number::Float(number) => Value::from(body(number)),
    })
}

fn abs(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |number: Number| match number {
        Number::Int(whole) => {
            whole.checked_abs().map_or_else(|| Value::from(number.as_f64().abs()), Value::from)
        }
        Number::Float(number) => Value::from(number.abs()),
    })
}

fn sign(args: &Args<'_>, _: &Moment) -> Value {
    double(args, |n: f64| if n == 0.0 || n.is_nan() { n } else { n.signum() })
}

fn square(args: &Args<'_>, _: &Moment) -> Value {
    double(args, |n: f64| n * n)
}

fn sqrt(args: &Args<'_>, _: &Moment) -> Value {
    double(args, f64::sqrt)
}

fn exp(args: &Args<'_>, _: &Moment) -> Value {
    double(args, libm::exp)
}

fn power(args: &Args<'_>, _: &Moment) -> Value {
    double(args, |(base, exponent): (f64, f64)| libm::pow(base, exponent))
}

fn log(args: &Args<'_>, _: &Moment) -> Value {
    double(args, |(n, base): (f64, Option<f64>)| match base {
        None => libm::log(n),
        Some(base) => libm::log10(n) / libm::log10(base),
    })
}

fn log10(args: &Args<'_>, _: &Moment) -> Value {
    double(args, libm::log10)
}

fn pi(_: &Args<'_>, _: &Moment) -> Value {
    PI.into()
}

fn sin(args: &Args<'_>, _: &Moment) -> Value {
    double(args, libm::sin)
}

fn cos(args: &Args<'_>, _: &Moment) -> Value {
    double(args, libm::cos)
}

fn tan(args: &Args<'_>, _: &Moment) -> Value {
    double(args, libm::tan)
}

fn cot(args: &Args<'_>, _: &Moment) -> Value {
    double(args, |n: f64| 1.0 / libm::tan(n))
}

fn asin(args: &Args<'_>, _: &Moment) -> Value {
    double(args, libm::asin)
}

fn acos(args: &Args<'_>, _: &Moment) -> Value {
    double(args, libm::acos)
}

fn atan(args: &Args<'_>, _: &Moment) -> Value {
    double(args, libm::atan)
}

fn atn2(args: &Args<'_>, _: &Moment) -> Value {
    double(args, |(y, x): (f64, f64)| libm::atan2(y, x))
}

/// In this order of operations, which decides the last digit.
fn degrees(args: &Args<'_>, _: &Moment) -> Value {
    double(args, |n: f64| 180.0 / PI * n)
}

fn radians(args: &Args<'_>, _: &Moment) -> Value {
    double(args, |n: f64| PI * n / 180.0)
}

fn ceiling(args: &Args<'_>, _: &Moment) -> Value {
    rounded(args, f64::ceil)
}

fn floor(args: &Args<'_>, _: &Moment) -> Value {
    rounded(args, f64::floor)
}

fn trunc(args: &Args<'_>, _: &Moment) -> Value {
    rounded(args, f64::trunc)
}

/// Halves go away from zero.
fn round(args: &Args<'_>, _: &Moment) -> Value {
    rounded(args, f64::round)
}

fn random(_: &Args<'_>, moment: &Moment) -> Value {
    moment.random().into()
}

fn number_bin(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(n, size): (f64, Option<f64>)| {
        let size = size.unwrap_or(1.0);
        (size != 0.0).then(|| (n / size).floor() * size)
    })
}
