//! Laws of query results: pages make up the whole, partitions add up to one, indexes change nothing.

mod anchored;
mod laws;
mod paging;
#[path = "../support/query.rs"]
mod support;
mod world;
