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
use super::{Args, Function, Moment};
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

pub(super) const FUNCTIONS: &[Function] = &[Function::new("REGEXMATCH", 2, 3, matches)];

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Regex {
    compiled: ::regex::Regex,
    text_bytes_max: usize,
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
        (text.len() <= self.text_bytes_max).then(|| self.compiled.is_match(text))
    }
}

/// Compiles a pattern with modifiers, any of `i`, `m`, `s` and `x`.
pub fn compile(pattern: &str, modifiers: &str) -> Result<Regex, Why> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(Why::Unsupported);
    }
    let translated = pcre::translate(pattern, pcre::Modes::parse(modifiers)?)?;
    let of_size = |bytes: usize| {
        let mut builder = ::regex::RegexBuilder::new(&translated);
        let compiled = builder.size_limit(bytes).nest_limit(NESTING_MAX).build().ok()?;
        Some(Regex { compiled, text_bytes_max: WORK_MAX / bytes })
    };
    // What the translation lets through is valid: what the engine refuses is too much for it.
    COMPILED_BYTES.into_iter().find_map(of_size).ok_or(Why::Unsupported)
}

fn matches(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(text, pattern, modifiers): (&str, &str, Option<&str>)| {
        cached(pattern, modifiers.unwrap_or(""))?.is_match(text)
    })
}

/// What a thread compiled of late; the latest is the last.
struct Cached {
    pattern: String,
    modifiers: String,
    compiled: Option<Regex>,
}

thread_local! {
    static CACHE: RefCell<Vec<Cached>> = const { RefCell::new(Vec::new()) };
}

fn cached(pattern: &str, modifiers: &str) -> Option<Regex> {
    CACHE.with_borrow_mut(|cache| {
        let known = cache.iter().position(|c| c.pattern == pattern && c.modifiers == modifiers);
        let entry = match known {
            Some(at) => cache.remove(at),
            None => Cached {
                pattern: pattern.to_string(),
                modifiers: modifiers.to_string(),
                compiled: compile(pattern, modifiers).ok(),
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
