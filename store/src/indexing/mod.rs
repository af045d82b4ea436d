//! Indexing: what a container indexes, and what the entries of an item are.
//!
//! 1. `policy` checks and completes what clients send, as Cosmos does; `pattern` reads its paths.
//! 2. `rules` says of every place in a document whether it is indexed.
//! 3. `key` encodes values, `path` encodes paths: their order in keys is the order of ORDER BY.
//! 4. `entries` walks an item's body once and gives all its entries.
//! 5. `changes` gathers those that come and go while a log entry is applied.
//! 6. `state` knows which generation of entries serves, and which is being built.
//! 7. `unique` encodes what unique keys are about; their entries have a table of their own.

mod changes;
mod computed;
mod describe;
mod entries;
pub(crate) mod hash;
mod key;
mod path;
mod pattern;
mod policy;
mod range;
mod rules;
mod state;
mod unique;

pub(crate) use changes::{ChangeKind, EntryChanges};
pub use describe::describe_entry;
pub(crate) use key::put_ts;
pub use key::{Component, EncodedRef, EncodedValue, TEXT_BYTES_KEPT};
pub use path::{Decoded, IndexPath, PATH_BYTES_MAX, Step};
pub use pattern::InvalidPath;
pub use policy::{IndexingMode, InvalidPolicy, complete, mode};
pub use range::IndexRange;
pub use rules::{IndexRules, Place, SortSupport};
pub(crate) use state::{Build, BuildProgress};
pub use state::{IndexState, Served};
pub(crate) use unique::UniqueEntry;
pub use unique::{InvalidUniqueKeys, UNIQUE_KEYS_MAX, UNIQUE_PATHS_MAX, UniqueKeys};
