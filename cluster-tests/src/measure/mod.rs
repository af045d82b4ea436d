//! What work costs: time on the clock, processor time, memory, syncs.

mod clock_width;
mod latency;
mod metrics;
mod process;

pub use clock_width::write_lag;
pub use latency::Latencies;
pub use metrics::Metrics;
pub use process::{Usage, machine_cpu};
