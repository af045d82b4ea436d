//! Log lines and metrics.

mod meanings;

use std::io::IsTerminal as _;
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tracing_subscriber::EnvFilter;

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

/// Starts logging to standard error. `filter` is a level, or `module=level,…`.
pub(crate) fn start_logging(filter: &str, format: LogFormat) -> Result<(), TelemetryError> {
    let quiet = "openraft=warn,hyper=warn,h2=warn";
    let filter = EnvFilter::try_new(format!("{quiet},{filter}"))
        .map_err(|error| TelemetryError(format!("--log {filter}: {error}")))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
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
