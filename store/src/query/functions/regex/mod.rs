//! Regular expressions: written for PCRE, run by an engine whose time is linear in the text.
//!
//! A pattern is translated, piece by piece, into one of the `regex` crate that matches the same
//! texts. Where there is none (look-around, back references, possessive quantifiers, …) that is
//! said, instead of a wrong answer.

mod class;
mod pcre;

use std::cell::RefCell;

use thiserror::Error;

use super::call::call;
use super::{Args, Function, Moment, cost};
use crate::query::run::weight_of;
use crate::query::value::Value;

/// Longest pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 16 << 10;

/// Sizes of compiled patterns, in bytes. Each is tried, to learn how large a pattern is.
const COMPILED_BYTES: [usize; 4] = [16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// The largest product of the size of a pattern and of a text, in bytes: about a second, at worst.
/// Patterns of the first size are for texts of 2 MiB, those of the last for 32 KiB.
const WORK_MAX: usize = 32 << 30;

/// Deepest nesting of groups, as in PCRE.
const NESTING_MAX: u32 = 250;

/// Compiled patterns that a thread keeps for calls whose pattern is no constant.
const CACHED_PATTERNS_MAX: usize = 8;

/// The one function of patterns.
pub const MATCH: &str = "REGEXMATCH";

pub(super) const FUNCTIONS: &[Function] = &[Function::new(MATCH, 2, 3, matches).at(cost_of_match)];

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Regex {
    compiled: ::regex::Regex,
    /// One of `COMPILED_BYTES`.
    bytes_max: usize,
}

/// What came of compiling a pattern.
#[derive(Clone, Debug)]
pub struct Compilation {
    /// The compiled pattern, or why there is none.
    pub result: Result<Regex, Why>,
    /// What compiling it takes, in operations: also of one that was compiled before, so that replicas
    /// come to the same.
    pub operations: u64,
}

/// Why a pattern was not compiled.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Why {
    /// It is no pattern, or the modifiers are none: the call is undefined.
    #[error("not a valid regular expression")]
    Invalid,
    /// It is valid, and not for an engine of linear time, or too large.
    #[error("a regular expression that is not supported")]
    Unsupported,
}

impl Regex {
    /// True if the pattern matches somewhere in the text; none if the text is too long for it.
    pub fn is_match(&self, text: &str) -> Option<bool> {
        (text.len() <= WORK_MAX / self.bytes_max).then(|| self.compiled.is_match(text))
    }

    /// What it takes to look through a text, in operations: more by a larger pattern.
    pub fn cost(&self, text: &str) -> u64 {
        weight_of(text.len().saturating_mul(self.bytes_max / COMPILED_BYTES[0]))
    }
}

/// Says what is wrong with a pattern, or with its modifiers, any of `i`, `m`, `s` and `x`, as far as the
/// text alone tells.
pub fn check(pattern: &str, modifiers: &str) -> Result<(), Why> {
    translate(pattern, modifiers).map(|_| ())
}

fn translate(pattern: &str, modifiers: &str) -> Result<String, Why> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(Why::Unsupported);
    }
    pcre::translate(pattern, pcre::Modes::parse(modifiers)?)
}

/// Compiles a pattern.
fn compile(pattern: &str, modifiers: &str) -> Compilation {
    // Each character of a pattern takes far longer than one of a text.
    let mut operations = pattern.len() as u64;
    let result = translate(pattern, modifiers).and_then(|translated| {
        let of_size = |bytes: usize| {
            operations += weight_of(bytes);
            let mut builder = ::regex::RegexBuilder::new(&translated);
            let compiled = builder.size_limit(bytes).nest_limit(NESTING_MAX).build().ok()?;
            Some(Regex { compiled, bytes_max: bytes })
        };
        // What the translation lets through is valid: what the engine refuses is too much for it.
        COMPILED_BYTES.into_iter().find_map(of_size).ok_or(Why::Unsupported)
    });
    Compilation { result, operations }
}

type Parameters<'a> = (&'a str, &'a str, Option<&'a str>);

fn matches(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(text, pattern, modifiers): Parameters<'_>| {
        let regex = compiled(pattern, modifiers.unwrap_or("")).result.ok()?;
        regex.is_match(text)
    })
}

/// Whatever a thread may have compiled before, a call pays for compiling its pattern.
fn cost_of_match(args: &Args<'_>) -> u64 {
    let mut operations = 0;
    call(args, |(text, pattern, modifiers): Parameters<'_>| {
        let compiled = compiled(pattern, modifiers.unwrap_or(""));
        operations = compiled.operations + compiled.result.map_or(0, |regex| regex.cost(text));
        Value::Undefined
    });
    cost::surface(args) + operations
}

/// What a thread compiled of late; the latest is the last.
struct Cached {
    pattern: String,
    modifiers: String,
    compiled: Compilation,
}

thread_local! {
    static CACHE: RefCell<Vec<Cached>> = const { RefCell::new(Vec::new()) };
}

/// A pattern with modifiers, compiled.
pub fn compiled(pattern: &str, modifiers: &str) -> Compilation {
    CACHE.with_borrow_mut(|cache| {
        let known = cache.iter().position(|c| c.pattern == pattern && c.modifiers == modifiers);
        let entry = match known {
            Some(at) => cache.remove(at),
            None => Cached {
                pattern: pattern.to_string(),
                modifiers: modifiers.to_string(),
                compiled: compile(pattern, modifiers),
            },
        };
        if cache.len() == CACHED_PATTERNS_MAX {
            cache.remove(0);
        }
        let compiled = entry.compiled.clone();
        cache.push(entry);
        compiled
    })
}

#[cfg(test)]
mod tests;
