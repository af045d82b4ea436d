//! What work costs: time on the clock, processor time, memory, syncs.

mod latency;
mod metrics;
mod process;

pub use latency::Latencies;
pub use metrics::Metrics;
pub use process::{Usage, machine_cpu};
