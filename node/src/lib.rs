//! The process: gateway, partitions, placement, transport, configuration, metrics.

// Futures of requests lie many deep in one another.
#![recursion_limit = "256"]

mod admin;
pub mod cli;
mod clock;
mod config;
mod connections;
mod consistency;
pub mod faults;
mod front;
mod gateway;
mod identity;
mod node;
mod partition;
mod placement;
mod platform;
mod reload;
mod requests;
mod scheduling;
mod server;
#[cfg(test)]
mod simulation;
mod supervisor;
mod telemetry;
mod tls;
mod transport;
