//! What a node answered, or why there is no answer, and what either says about a write's fate.

use bytes::Bytes;
use reqwest::header::HeaderMap;
use serde_json::Value;
use thiserror::Error;

/// An answer, complete.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum NoAnswer {
    /// No connection: the request was surely not sent.
    #[error("no connection: {0}")]
    NotSent(String),
    /// The connection broke, or the answer did not come in time: the request may have arrived.
    #[error("no answer: {0}")]
    Broken(String),
}

/// What a client may believe of a request after one attempt.
#[derive(Debug)]
pub enum Fate {
    /// It was answered.
    Done(Answer),
    /// It was surely not executed: send it again.
    NotExecuted(String),
    /// It may have been executed, or not.
    Unknown(String),
}

impl Answer {
    /// A header's text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The sub-status; 0 if there is none.
    pub fn substatus(&self) -> u32 {
        self.header("x-ms-substatus").and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Where to go on, if this page is not the last.
    pub fn continuation(&self) -> Option<&str> {
        self.header("x-ms-continuation")
    }

    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The resource's `_ts`, in seconds.
    pub fn ts(&self) -> u64 {
        self.json()["_ts"].as_u64().expect("stored resources carry _ts")
    }

    /// Panics unless the answer has this status.
    #[track_caller]
    #[expect(clippy::return_self_not_must_use, reason = "often the status is all that matters")]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.describe());
        self
    }

    /// Status, sub-status and body, for messages.
    pub fn describe(&self) -> String {
        let body = String::from_utf8_lossy(&self.body);
        let shown: String = body.chars().take(300).collect();
        format!("{}/{} {shown}", self.status, self.substatus())
    }
}

impl Fate {
    /// Judges one attempt: 429 and 503 mean surely not executed, 408 and a broken connection that nobody
    /// knows (`docs/COMPATIBILITY.md`, "Statuses").
    pub fn of(attempt: Result<Answer, NoAnswer>) -> Self {
        match attempt {
            Ok(answer) => match answer.status {
                429 | 503 => Fate::NotExecuted(answer.describe()),
                408 | 500 | 502 | 504 => Fate::Unknown(answer.describe()),
                _ => Fate::Done(answer),
            },
            Err(NoAnswer::NotSent(reason)) => Fate::NotExecuted(reason),
            Err(NoAnswer::Broken(reason)) => Fate::Unknown(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fate(status: u16) -> Fate {
        Fate::of(Ok(Answer { status, headers: HeaderMap::new(), body: Bytes::new() }))
    }

    #[test]
    fn only_what_surely_did_not_happen_counts_as_not_executed() {
        for status in [429, 503] {
            assert!(matches!(fate(status), Fate::NotExecuted(_)), "{status}");
        }
        for status in [408, 500, 502, 504] {
            assert!(matches!(fate(status), Fate::Unknown(_)), "{status}");
        }
        for status in [200, 201, 204, 304, 400, 401, 404, 409, 412, 413] {
            assert!(matches!(fate(status), Fate::Done(_)), "{status}");
        }
        assert!(matches!(Fate::of(Err(NoAnswer::NotSent(String::new()))), Fate::NotExecuted(_)));
        assert!(matches!(Fate::of(Err(NoAnswer::Broken(String::new()))), Fate::Unknown(_)));
    }
}
