//! Errors in a query text, in the three shapes Cosmos clients know.

use serde::{Deserialize, Serialize};
use serde_json::json;
use thiserror::Error;

/// A place in the query text, in characters from 0, end exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The first character.
    pub start: u32,
    /// The character after the last.
    pub end: u32,
}

impl Span {
    /// From the start of this one to the end of another.
    #[must_use]
    pub fn to(self, other: Span) -> Span {
        Span { start: self.start, end: other.end }
    }
}

/// Why a query was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueryError {
    /// An error with a place, and with a code where Cosmos has one.
    #[error("{message}")]
    At {
        /// `SC1001` and so on.
        code: Option<String>,
        /// What is wrong.
        message: String,
        /// Where.
        span: Span,
    },
    /// An error with a numeric code and no place.
    #[error("{message}")]
    Numbered {
        /// The code.
        code: u32,
        /// What is wrong.
        message: String,
    },
    /// An error of the plain kind.
    #[error("{0}")]
    Plain(String),
}

impl QueryError {
    pub(super) fn syntax(token: &str, span: Span) -> Self {
        let message = format!("Syntax error, incorrect syntax near '{token}'.");
        QueryError::At { code: Some("SC1001".into()), message, span }
    }

    pub(super) fn unresolved(name: &str, span: Span) -> Self {
        let message = format!("Identifier '{name}' could not be resolved.");
        QueryError::At { code: Some("SC2001".into()), message, span }
    }

    pub(super) fn unknown_function(name: &str, span: Span) -> Self {
        let message = format!("'{name}' is not a recognized built-in function name.");
        QueryError::At { code: Some("SC2005".into()), message, span }
    }

    pub(super) fn at(message: impl Into<String>, span: Span) -> Self {
        QueryError::At { code: None, message: message.into(), span }
    }

    /// For what is parsed but not answered yet.
    pub(super) fn unsupported(what: &str, span: Span) -> Self {
        Self::at(format!("{what} is not supported by this version of Ephemeris."), span)
    }

    /// The text that goes into `message` of the error body.
    pub fn to_message(&self) -> String {
        let body = match self {
            QueryError::At { code, message, span } => {
                let location = json!({ "start": span.start, "end": span.end });
                let mut error = json!({ "severity": "Error", "location": location });
                if let Some(code) = code {
                    error["code"] = json!(code);
                }
                error["message"] = json!(message);
                json!({ "errors": [error] })
            }
            QueryError::Numbered { code, message } => {
                json!({ "errors": [{ "severity": "Error", "code": code, "message": message }] })
            }
            QueryError::Plain(message) => json!({ "Errors": [message] }),
        };
        format!("Message: {body}")
    }
}
