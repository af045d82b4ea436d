//! Laws of query results: pages make up the whole, partitions add up to one, indexes change nothing.

mod anchored;
mod computed;
mod laws;
mod paging;
mod signals;
mod spatial;
mod stamped;
#[path = "../support/query.rs"]
mod support;
mod world;
