//! A peak of expiry: many items that fall due in the same second, while clients go on.
//!
//! 1. Items are stored in batches, each with the `ttl` that takes it from its `_ts` to the due second.
//! 2. Creates run until the due second: the `steady` load. Readers watch random due items through
//!    every node meanwhile, and go on.
//! 3. The same load runs from the due second until no replica stores a due item: the `drain`.
//! 4. All of it again with nobody asking for anything: how fast it is when idle.

mod drain;
mod fill;
mod outcome;
mod readers;
mod round;

pub(crate) use outcome::Expiry;
pub(crate) use round::run;
