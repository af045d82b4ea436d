//! The common rule of calls: every argument is there and of its type, or the result is undefined.

use std::borrow::Cow;
use std::slice::Iter;

use super::Args;
use crate::query::value::{Members, Number, Value};

/// Computes with the arguments as the body wants them; undefined if one of them is not so.
pub(super) fn call<'a, P: Argument<'a>, R: Into<Value>>(
    args: &'a Args<'a>,
    body: impl FnOnce(P) -> R,
) -> Value {
    P::take(&mut args.iter()).map_or(Value::Undefined, |parameters| body(parameters).into())
}

/// What a body wants of an argument, or a tuple of them.
pub(super) trait Argument<'a>: Sized {
    /// Takes it from the front of what is left.
    fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self>;
}

/// A whole number. One beyond 64 bits stands at the end of the range: as a position or a count it
/// is past everything anyway.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole(pub(super) i64);

impl Whole {
    /// The number as a count: nothing if it is negative.
    pub(super) fn count(self) -> usize {
        usize::try_from(self.0).unwrap_or(if self.0 < 0 { 0 } else { usize::MAX })
    }
}

/// Any value, as long as it is defined.
impl<'a> Argument<'a> for &'a Value {
    fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self> {
        let value: &Value = rest.next()?;
        value.is_defined().then_some(value)
    }
}

impl<'a> Argument<'a> for bool {
    fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self> {
        let Value::Bool(truth) = **rest.next()? else { return None };
        Some(truth)
    }
}

impl<'a> Argument<'a> for Number {
    fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self> {
        let Value::Number(number) = **rest.next()? else { return None };
        Some(number)
    }
}

impl<'a> Argument<'a> for f64 {
    fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self> {
        Number::take(rest).map(Number::as_f64)
    }
}

/// A whole number that fits.
impl<'a> Argument<'a> for i64 {
    fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self> {
        Number::take(rest)?.as_i64()
    }
}

impl<'a> Argument<'a> for Whole {
    fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self> {
        let number = match Number::take(rest)? {
            Number::Int(number) => return Some(Whole(number)),
            Number::Float(number) => number,
        };
        #[expect(clippy::cast_possible_truncation, reason = "it is whole, and may saturate")]
        (number.fract() == 0.0).then_some(Whole(number as i64))
    }
}

impl<'a> Argument<'a> for &'a str {
    fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self> {
        let Value::Text(text) = &**rest.next()? else { return None };
        Some(text)
    }
}

impl<'a> Argument<'a> for &'a [Value] {
    fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self> {
        let Value::Array(elements) = &**rest.next()? else { return None };
        Some(elements)
    }
}

impl<'a> Argument<'a> for &'a Members {
    fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self> {
        let Value::Object(members) = &**rest.next()? else { return None };
        Some(members)
    }
}

/// An argument that may be left out; one that is there must be of its type.
impl<'a, A: Argument<'a>> Argument<'a> for Option<A> {
    fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self> {
        if rest.len() == 0 { Some(None) } else { A::take(rest).map(Some) }
    }
}

/// All arguments that are left, each of this type.
impl<'a, T: Argument<'a>> Argument<'a> for Vec<T> {
    fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self> {
        let mut all = Vec::with_capacity(rest.len());
        while rest.len() > 0 {
            all.push(T::take(rest)?);
        }
        Some(all)
    }
}

macro_rules! tuple {
    ($($name:ident)+) => {
        impl<'a, $($name: Argument<'a>),+> Argument<'a> for ($($name,)+) {
            fn take(rest: &mut Iter<'a, Cow<'a, Value>>) -> Option<Self> {
                Some(($($name::take(rest)?,)+))
            }
        }
    };
}

tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
tuple!(A B C D E F G);
