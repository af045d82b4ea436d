//! Log lines and metrics.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

/// Starts logging to standard error. `filter` is a level, or `module=level,…`.
pub fn start_logging(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let quiet = "openraft=warn,hyper=warn,h2=warn";
    let filter = EnvFilter::try_new(format!("{quiet},{filter}"))?;
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("logging could not be started: {error}"))?;
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tracing::error!(%info, "panic");
        default_hook(info);
    }));
    Ok(())
}

/// Starts collecting metrics; the handle renders them for Prometheus.
pub fn start_metrics() -> anyhow::Result<PrometheusHandle> {
    Ok(PrometheusBuilder::new().install_recorder()?)
}
