//! One partition's state as plain data: items, expiry, queries, and the cluster's catalog.
//!
//! Nothing here awaits, reads a clock, draws a random number or opens a socket. The way of a write:
//!
//! 1. `document` normalises the body a client sent; `partition_key` finds where it lives.
//! 2. `command` carries it, with the leader's clock reading, to every replica.
//! 3. `partition::Partition::apply` turns it into one engine batch and an `Outcome`.
//! 4. `ttl` decides, everywhere by the same rule, whether an item still exists.

pub mod binary_json;
pub mod catalog;
pub mod change_feed;
pub mod charge;
pub mod codec;
pub mod command;
pub mod document;
pub mod engine;
pub mod ids;
pub mod indexing;
pub mod item;
pub mod json;
pub mod keycode;
pub mod machine;
pub mod partition;
pub mod partition_key;
pub mod patch;
pub mod query;
pub mod snapshot;
pub mod time;
pub mod timeline;
pub mod ttl;
