//! Log lines and metrics.

mod meanings;

use std::io::IsTerminal as _;
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

/// Why log lines or metrics cannot be had.
#[derive(Debug, Error)]
#[error("telemetry cannot be started: {0}")]
pub(crate) struct TelemetryError(String);

/// What is logged unless it is said otherwise. openraft warns of each heartbeat that a dead node does not answer, and
/// calls it an error when a replica is stopped: what matters of that is logged by `ephemeris_raft`.
const FILTER: &str = "info,openraft=off,hyper=warn,h2=warn";

/// The filter of a level, or of `module=level,…`, which leaves other modules as they are.
fn filter_of(wanted: &str) -> Result<EnvFilter, TelemetryError> {
    let refused = |why: &str| TelemetryError(format!("--log {wanted}: {why}"));
    for part in wanted.split(',').map(str::trim) {
        // By itself it would be taken for a module, and be of no effect.
        if !part.contains('=') && part.parse::<LevelFilter>().is_err() {
            return Err(refused(&format!(
                "'{part}' is no level: error, warn, info, debug, trace or off; for one module, \
                 ephemeris_raft=debug"
            )));
        }
    }
    EnvFilter::try_new(format!("{FILTER},{wanted}")).map_err(|error| refused(&error.to_string()))
}

/// Starts logging to standard error. `filter` is a level, or `module=level,…`.
pub(crate) fn start_logging(filter: &str, format: LogFormat) -> Result<(), TelemetryError> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter_of(filter)?)
        .with_writer(std::io::stderr)
        // It would be told to whom nothing can be told, and panic over it: a log that nobody reads any more ends no node.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    let started = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| TelemetryError(error.to_string()))?;
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tracing::error!(%info, "panic");
        default_hook(info);
    }));
    Ok(())
}

/// How often samples are put together, whether somebody reads the metrics or not.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Puts samples together for ever: without it they pile up until the next reading.
pub(crate) async fn keep_up(metrics: PrometheusHandle) {
    loop {
        tokio::time::sleep(UPKEEP_EVERY).await;
        metrics.run_upkeep();
    }
}

/// Starts collecting metrics; the handle renders them for Prometheus.
pub(crate) fn start_metrics() -> Result<PrometheusHandle, TelemetryError> {
    let installed = PrometheusBuilder::new().install_recorder();
    let handle = installed.map_err(|error| TelemetryError(error.to_string()))?;
    meanings::describe();
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_changes_what_it_names_and_nothing_else() {
        let shown = |wanted: &str| {
            let filter = filter_of(wanted).unwrap().to_string();
            let mut parts: Vec<String> = filter.split(',').map(str::to_string).collect();
            parts.sort();
            parts.join(",")
        };
        assert_eq!(shown("debug"), "debug,h2=warn,hyper=warn,openraft=off");
        assert_eq!(
            shown("ephemeris_raft=debug,hyper=trace"),
            "ephemeris_raft=debug,h2=warn,hyper=trace,info,openraft=off"
        );
        let refused = filter_of("warning").unwrap_err().to_string();
        assert!(refused.contains("'warning' is no level"), "{refused}");
        assert!(filter_of("ephemeris_raft").is_err());
        assert!(filter_of("ephemeris_raft=loud").is_err());
    }
}
