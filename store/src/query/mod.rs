//! The query language, from text to results.
//!
//! 1. `lexer` cuts the text into tokens, each with its place.
//! 2. `parser` builds the tree of `ast`.
//! 3. `compile` binds parameters and names, notes all that is wrong, and makes operations (`op`) of
//!    expressions; what comes out is a `compiled` query.
//! 4. `evaluate` computes operations over rows of `value`s, where undefined is a value like any other,
//!    within the budget of a `run`.
//! 5. `execute` finds one partition's part of a `page`, all of it at one instant; `sinks` pick what
//!    belongs on it. `merge` makes one page of what several partitions found.
//! 6. `select` runs over values at hand, all at once.
//!
//! `docs/QUERY.md` tells the language; the scripts in `store/tests/scripts/query` show it.

mod access;
mod aggregate;
mod anchors;
pub mod ast;
pub mod client_plan;
mod compile;
mod compiled;
mod computed;
mod conditions;
mod depth;
mod digest;
mod entries;
mod error;
mod evaluate;
mod execute;
pub mod functions;
mod joined;
mod lexer;
mod like;
mod merge;
mod names;
mod needed;
mod op;
mod page;
mod parameters;
mod parser;
mod print;
mod run;
mod select;
mod sinks;
mod value;

pub use aggregate::Accumulators;
pub use anchors::{Anchor, Anchored};
pub use compile::{JOINS_MAX, USER_DEFINED_CALLS_MAX};
pub use compiled::{AGGREGATES_MAX, CompiledQuery, SortOrder, Window};
pub use computed::{COMPUTED_PROPERTIES_MAX, ComputedProperties, InvalidComputed};
pub(crate) use digest::of_all as digest_of_all;
pub use error::{QueryError, Span};
pub use evaluate::Row;
pub use execute::{Halt, Question, Signal, Source, run_page};
pub(crate) use functions::spatial::{Region, cells_of};
pub use functions::{Metric, Moment};
pub use merge::{
    Merged, Position, Progress, Walk, distinct_groups as merge_distinct_groups,
    keyed as merge_keyed, rows_wanted, sorted as merge_sorted, unique as merge_unique,
};
pub use needed::Needed;
pub use page::{
    Content, Course, Directions, EntryPlace, Harvest, ItemPlace, Keyed, Page, PageLimits, Place,
    QueryRow, Resume, Scope, SortKey,
};
pub use parameters::Parameters;
pub use parser::parse;
pub use run::{
    BUILT_BYTES_MAX, COMPUTED_BYTES_MAX, COMPUTED_OPERATIONS_MAX, GATHERED_BYTES_MAX,
    OPERATIONS_MAX, Run,
};
pub use select::Selected;
pub use value::{Member, Members, Number, Value};

/// Longest query text, in bytes.
pub const QUERY_BYTES_MAX: usize = 512 << 10;

#[cfg(test)]
mod tests;
