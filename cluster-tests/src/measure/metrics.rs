//! A node's `/metrics`, as numbers.

use std::collections::BTreeMap;

use crate::client::{Call, Client};

/// Counters and gauges without labels, by name.
#[derive(Clone, Debug, Default)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Asks a node.
    pub async fn of(client: &Client) -> Self {
        Self::try_of(client).await.expect("the node answers")
    }

    /// Asks a node that may not answer, or is starting yet.
    pub async fn try_of(client: &Client) -> Option<Self> {
        let answer = client.send_unsigned(&Call::get("/metrics")).await.ok()?;
        (answer.status == 200).then(|| Self::parse(&String::from_utf8_lossy(&answer.body)))
    }

    fn parse(text: &str) -> Self {
        let sample = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            let plain = !name.starts_with('#') && !name.contains('{');
            plain.then_some((name.to_string(), value.trim().parse().ok()?))
        };
        Self(text.lines().filter_map(sample).collect())
    }

    /// A counter or gauge; 0 if it was never set.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are whole")]
    pub fn count(&self, name: &str) -> u64 {
        self.value(name) as u64
    }

    /// The same, where it may be no whole number.
    pub fn value(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_samples_are_read() {
        let text = "# TYPE log_syncs_total counter\nlog_syncs_total 17\n\n\
                    http_requests_total{status=\"2xx\"} 4\nitems_stored 3\n";
        let metrics = Metrics::parse(text);
        assert_eq!(metrics.count("log_syncs_total"), 17);
        assert_eq!(metrics.count("items_stored"), 3);
        assert_eq!(metrics.count("http_requests_total"), 0);
    }
}
