//! What users of the unmodified Rust SDK see: one test for each feature that the SDK offers.
//!
//! The SDK, version 1.0.0, has no calls for these, and so they are not here: listing a feed without
//! a query (databases, containers, items), databases with a throughput, users, permissions and
//! resource tokens, read many, delete by partition key, bulk, patches with a condition, patches in a
//! batch, stored procedures, triggers and functions. Aggregates and GROUP BY it asks of one logical
//! partition alone. Entra ID, vector and full-text search and distributed transactions it has, and
//! Ephemeris has not (docs/COMPATIBILITY.md).

mod batches;
mod change_feeds;
mod containers;
mod databases;
mod expiry;
mod items;
mod keys;
mod patches;
mod queries;
mod sessions;
mod throughput;
