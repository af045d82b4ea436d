//! The query language, from text to results.
//!
//! 1. `lexer` cuts the text into tokens, each with its place.
//! 2. `parser` builds the tree of `ast`.
//! 3. `compile` binds parameters and names, notes all that is wrong, and makes operations (`op`) of
//!    expressions; what comes out is a `compiled` query.
//! 4. `evaluate` computes operations over rows of `value`s, where undefined is a value like any other,
//!    within the budget of a `run`.
//! 5. `execute` walks one partition's items, at one instant, a page at a time; `select` runs over
//!    values at hand.
//!
//! `docs/QUERY.md` tells the language; the scripts in `store/tests/scripts/query` show it.

mod aggregate;
pub mod ast;
mod compile;
mod compiled;
mod computed;
mod error;
mod evaluate;
mod execute;
pub mod functions;
mod lexer;
mod like;
mod needed;
mod op;
mod parameters;
mod parser;
mod run;
mod select;
mod value;

pub use aggregate::Accumulators;
pub use compile::{JOINS_MAX, USER_DEFINED_CALLS_MAX};
pub use compiled::{AGGREGATES_MAX, CompiledQuery, SortOrder, Window};
pub use computed::{COMPUTED_PROPERTIES_MAX, ComputedProperties, InvalidComputed};
pub use error::{QueryError, Span};
pub use evaluate::Row;
pub use execute::{
    Page, PageLimits, Paging, QueryRow, Resume, Scope, SortKey, compare_rows, run_page,
};
pub use needed::Needed;
pub use parameters::Parameters;
pub use parser::parse;
pub use run::{BUILT_BYTES_MAX, GATHERED_BYTES_MAX, OPERATIONS_MAX, Run};
pub use select::Selected;
pub use value::{Number, Value};

/// Longest query text, in bytes.
pub const QUERY_BYTES_MAX: usize = 512 << 10;

#[cfg(test)]
mod tests;
