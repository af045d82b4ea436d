//! What is counted of all requests: looked up once, not with every request.

use std::array;
use std::time::Duration;

use axum::http::StatusCode;
use metrics::{Counter, Histogram};

/// The labels of answers.
const STATUS_CLASSES: [&str; 9] = ["2xx", "3xx", "404", "408", "409", "412", "429", "4xx", "5xx"];

/// Counters of answers, and how long they took.
pub(super) struct Counted {
    by_class: [Counter; STATUS_CLASSES.len()],
    seconds: Histogram,
}

impl Default for Counted {
    fn default() -> Self {
        let counter = |class: usize| metrics::counter!("http_requests_total", "status" => STATUS_CLASSES[class]);
        let seconds = metrics::histogram!("http_request_seconds");
        Self { by_class: array::from_fn(counter), seconds }
    }
}

impl Counted {
    /// Counts an answer that took so long.
    pub(super) fn count(&self, status: StatusCode, took: Duration) {
        self.by_class[class_of(status)].increment(1);
        self.seconds.record(took);
    }
}

/// Which of the labels an answer has.
fn class_of(status: StatusCode) -> usize {
    match status.as_u16() {
        200..300 => 0,
        300..400 => 1,
        404 => 2,
        408 => 3,
        409 => 4,
        412 => 5,
        429 => 6,
        400..500 => 7,
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_errors_have_a_label_of_their_own() {
        let label = |code: u16| STATUS_CLASSES[class_of(StatusCode::from_u16(code).unwrap())];
        let codes = [200, 201, 304, 400, 401, 404, 408, 409, 412, 429, 500, 503];
        let labels =
            ["2xx", "2xx", "3xx", "4xx", "4xx", "404", "408", "409", "412", "429", "5xx", "5xx"];
        assert_eq!(codes.map(label), labels);
    }
}
