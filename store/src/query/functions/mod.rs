//! The functions of the language: each a line in a table, with a body that computes over values.
//!
//! A body never fails. What it cannot compute is undefined: by the common rule an argument that is
//! undefined or of the wrong type makes the result undefined. It reads no clock and no entropy; both
//! come with the `Moment`, and its digits are the same on every machine: a patch condition is
//! computed while applying. `Function::reproducible` tells the one exception.

mod arrays;
mod call;
mod case;
mod conditions;
mod conversion;
mod cost;
mod date_time;
mod integers;
mod math;
mod objects;
pub mod regex;
mod sets;
pub(crate) mod spatial;
mod strings;
mod types;

use std::borrow::Cow;
use std::cell::Cell;

pub use spatial::Metric;

use super::value::Value;
use crate::time::Millis;

/// Longest text or largest array that one call makes, in bytes: what a page may hold. Beyond it the
/// result is undefined.
const RESULT_BYTES_MAX: usize = 4 << 20;

/// What a function may know beside its arguments.
#[derive(Debug)]
pub struct Moment {
    /// The instant of the page.
    pub now: Millis,
    /// The instant of the query's first page: what the `…Static` functions tell.
    pub first: Millis,
    random: Cell<u64>,
}

impl Moment {
    /// A moment; the seed decides what `RAND` gives.
    pub fn new(now: Millis, first: Millis, seed: u64) -> Self {
        Self { now, first, random: Cell::new(seed) }
    }

    /// A number of `[0, 1)`, another one each time (splitmix64).
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exactly what a double holds")]
    pub fn random(&self) -> f64 {
        let state = self.random.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.random.set(state);
        let mut bits = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (((bits ^ (bits >> 31)) >> 11) as f64) / (1_u64 << 53) as f64
    }
}

/// The arguments of a call, each evaluated.
pub type Args<'a> = [Cow<'a, Value>];

/// What a function does.
pub type Body = fn(&Args<'_>, &Moment) -> Value;

/// What a call costs, in operations beside the one that every expression is. It is paid before the
/// body runs, and depends on nothing but the arguments: replicas must come to the same.
pub type Cost = fn(&Args<'_>) -> u64;

/// How many arguments a function takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arity {
    /// At least so many.
    pub least: usize,
    /// At most so many; none: any number.
    pub most: Option<usize>,
}

/// A function of the language.
#[derive(Debug)]
pub struct Function {
    /// Its name as documented, in capitals.
    pub name: &'static str,
    /// How many arguments it takes.
    pub arity: Arity,
    /// What it does.
    pub body: Body,
    /// What a call costs.
    pub cost: Cost,
    /// What it costs beside, where replicas need not agree (`Tariff::Actual`); none: nothing.
    pub cost_beside: Option<Cost>,
}

impl Function {
    const fn new(name: &'static str, least: usize, most: usize, body: Body) -> Self {
        Self::taking(Arity { least, most: Some(most) }, name, body)
    }

    const fn variadic(name: &'static str, least: usize, body: Body) -> Self {
        Self::taking(Arity { least, most: None }, name, body)
    }

    const fn taking(arity: Arity, name: &'static str, body: Body) -> Self {
        Self { name, arity, body, cost: cost::surface, cost_beside: None }
    }

    /// The same, at another cost than going over each argument once and no deeper.
    const fn at(self, cost: Cost) -> Self {
        Self { cost, ..self }
    }

    /// The same, at a cost beside.
    const fn beside(self, cost_beside: Cost) -> Self {
        Self { cost_beside: Some(cost_beside), ..self }
    }

    /// False where the last digit may differ between processors, so that replicas must not decide
    /// by it while applying.
    pub fn reproducible(&self) -> bool {
        self.name != spatial::DISTANCE
    }
}

/// Every table of functions but those of space.
const TABLES: [&[Function]; 11] = [
    types::FUNCTIONS,
    math::FUNCTIONS,
    integers::FUNCTIONS,
    strings::FUNCTIONS,
    regex::FUNCTIONS,
    conversion::FUNCTIONS,
    arrays::FUNCTIONS,
    sets::FUNCTIONS,
    objects::FUNCTIONS,
    conditions::FUNCTIONS,
    date_time::FUNCTIONS,
];

/// The function of this name, where coordinates mean this; case does not matter.
pub fn find(name: &str, metric: Metric) -> Option<&'static Function> {
    all(metric).find(|function| function.name.eq_ignore_ascii_case(name))
}

fn all(metric: Metric) -> impl Iterator<Item = &'static Function> {
    let of_space = match metric {
        Metric::Geography => spatial::ON_GLOBE,
        Metric::Geometry => spatial::ON_PLANE,
    };
    TABLES.iter().copied().chain([of_space]).flatten()
}

#[cfg(test)]
mod tests;
