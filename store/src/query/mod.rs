//! The query language, from text to rows.
//!
//! 1. `lexer` cuts the text into tokens, each with its place.
//! 2. `parser` builds the tree of `ast`.
//! 3. `compile` binds parameters and names, and refuses what cannot be answered.
//! 4. `evaluate` computes expressions over `value`s, where undefined is a value like any other.
//! 5. `execute` walks one partition's items, at one instant, a page at a time.
//!
//! The whole grammar is parsed. What is compiled so far is the part `docs/COMPATIBILITY.md` lists;
//! the rest is refused with an error that names it.

pub mod ast;
mod compile;
mod error;
mod evaluate;
mod execute;
pub mod functions;
mod lexer;
mod parser;
mod value;

pub use compile::{CompiledQuery, Parameters, Projection, SortOrder};
pub use error::{QueryError, Span};
pub use execute::{Page, PageLimits, QueryRow, Resume, Scope, SortKey, compare_rows, run_page};
pub use parser::parse;
pub use value::{Number, Value};

/// Longest query text, in bytes.
pub const QUERY_BYTES_MAX: usize = 512 << 10;

#[cfg(test)]
mod tests;
