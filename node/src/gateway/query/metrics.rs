//! What a page tells of how it was made, if the client asks: query metrics and the use of indexes.

use std::fmt::Write as _;
use std::time::Duration;

use axum::http::HeaderName;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ephemeris_store::charge::QueryWork;
use serde_json::json;

use crate::gateway::headers::RequestHeaders;
use crate::gateway::reply::Reply;

const QUERY_METRICS: HeaderName = HeaderName::from_static("x-ms-documentdb-query-metrics");
const INDEX_UTILIZATION: HeaderName = HeaderName::from_static("x-ms-cosmos-index-utilization");

/// How long the latter may get, about, before it is put into base64: clients refuse long headers, and with them the
/// answer. What one index takes there beside its path.
const UTILIZATION_BYTES_MAX: usize = 6 << 10;
const ENTRY_BYTES: usize = 140;

/// What all partitions did for a page, and how long it took.
pub(super) struct PageMetrics<'a> {
    pub(super) work: &'a [QueryWork],
    pub(super) took: Duration,
    /// Bytes and number of the rows that are returned.
    pub(super) rows: (usize, usize),
    /// Index paths that were followed.
    pub(super) followed: &'a [String],
}

impl PageMetrics<'_> {
    /// Adds the headers that the request asks for.
    pub(super) fn tell(&self, headers: &RequestHeaders, mut reply: Reply) -> Reply {
        if headers.flag("x-ms-documentdb-populatequerymetrics") {
            reply = reply.header(QUERY_METRICS, self.query_metrics());
        }
        if headers.flag("x-ms-cosmos-populateindexmetrics") {
            reply = reply.header(INDEX_UTILIZATION, self.index_utilization());
        }
        reply
    }

    /// `name=value` pairs, joined by semicolons. Times that are not measured apart are 0.
    fn query_metrics(&self) -> String {
        let sum = |of: fn(&QueryWork) -> u64| self.work.iter().map(of).sum::<u64>();
        let took_ms = self.took.as_secs_f64() * 1000.0;
        let (bytes, rows) = self.rows;
        let loaded = sum(|work| work.items_loaded);
        #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^52")]
        let ratio = if loaded == 0 { 1.0 } else { (rows as f64 / loaded as f64).min(1.0) };
        let mut text = format!("totalExecutionTimeInMs={took_ms:.2}");
        for name in [
            "queryCompileTimeInMs",
            "queryLogicalPlanBuildTimeInMs",
            "queryPhysicalPlanBuildTimeInMs",
            "queryOptimizationTimeInMs",
            "VMExecutionTimeInMs",
            "indexLookupTimeInMs",
            "instructionCount",
            "documentLoadTimeInMs",
            "systemFunctionExecuteTimeInMs",
            "userFunctionExecuteTimeInMs",
        ] {
            let value = if name == "VMExecutionTimeInMs" { took_ms } else { 0.0 };
            write!(text, ";{name}={value:.2}").expect("text takes every write");
        }
        let retrieved = sum(|work| work.bytes_loaded);
        write!(
            text,
            ";retrievedDocumentCount={loaded};retrievedDocumentSize={retrieved}\
             ;outputDocumentCount={rows};outputDocumentSize={bytes};writeOutputTimeInMs=0.00\
             ;indexUtilizationRatio={ratio:.2}"
        )
        .expect("text takes every write");
        text
    }

    /// JSON in base64: the index paths that were followed. Which others would help is not told.
    fn index_utilization(&self) -> String {
        let single = |path: &&String| path.ends_with("/?");
        let mut bytes = 0;
        let fits = |path: &&String| {
            bytes += path.len() + ENTRY_BYTES;
            bytes <= UTILIZATION_BYTES_MAX
        };
        let told: Vec<&String> = self.followed.iter().take_while(fits).collect();
        let indexes = |composite: bool| -> Vec<_> {
            let of_kind = told.iter().copied().filter(|path| single(path) != composite);
            if composite {
                let specs = of_kind.map(|paths| paths.split(',').collect::<Vec<_>>());
                specs
                    .map(|paths| json!({ "IndexSpecs": paths, "IndexImpactScore": "High" }))
                    .collect()
            } else {
                let spec = |path: &String| {
                    json!({
                        "FilterExpression": "",
                        "IndexSpec": path,
                        "FilterPreciseSet": true,
                        "IndexPreciseSet": true,
                        "IndexImpactScore": "High",
                    })
                };
                of_kind.map(spec).collect()
            }
        };
        let told = json!({
            "UtilizedSingleIndexes": indexes(false),
            "PotentialSingleIndexes": [],
            "UtilizedCompositeIndexes": indexes(true),
            "PotentialCompositeIndexes": [],
        });
        STANDARD.encode(told.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(followed: &[String]) -> PageMetrics<'_> {
        PageMetrics { work: &[], took: Duration::from_millis(3), rows: (10, 2), followed }
    }

    #[test]
    fn metrics_are_pairs() {
        let text = metrics(&[]).query_metrics();
        assert!(text.starts_with("totalExecutionTimeInMs=3.00;"), "{text}");
        assert!(text.split(';').all(|pair| pair.split_once('=').is_some()), "{text}");
        assert!(text.contains(";outputDocumentCount=2;outputDocumentSize=10;"), "{text}");
    }

    #[test]
    fn a_header_is_no_longer_than_clients_take() {
        let followed: Vec<String> = (0..64).map(|n| format!("/{}{n}/?", "p".repeat(900))).collect();
        let header = metrics(&followed).index_utilization();
        assert!((4000..8192).contains(&header.len()), "{}", header.len());
        let short: Vec<String> = (0..64).map(|n| format!("/p{n}/?")).collect();
        assert!(metrics(&short).index_utilization().len() < 10_000);
    }

    #[test]
    fn indexes_that_were_followed_are_told_apart() {
        let followed = ["/a/?", "/\"x,y\"/?", "/b ASC,/c DESC"].map(String::from);
        let json = STANDARD.decode(metrics(&followed).index_utilization()).unwrap();
        let told: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(told["UtilizedSingleIndexes"][0]["IndexSpec"], "/a/?");
        assert_eq!(told["UtilizedSingleIndexes"][1]["IndexSpec"], "/\"x,y\"/?");
        assert_eq!(told["UtilizedCompositeIndexes"][0]["IndexSpecs"], json!(["/b ASC", "/c DESC"]));
    }
}
