//! Errors in a query text, in the three shapes Cosmos clients know.

use serde::{Deserialize, Serialize};
use serde_json::json;
use thiserror::Error;

/// A place in the query text, in characters from 0, end exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

    /// All of a text.
    pub(super) fn whole(text: &str) -> Span {
        Span { start: 0, end: u32::try_from(text.chars().count()).unwrap_or(u32::MAX) }
    }

    /// The same place seen from so many characters before.
    pub(super) fn moved(self, characters: u32) -> Span {
        Span { start: self.start + characters, end: self.end + characters }
    }

    /// What stands there.
    pub(super) fn of(self, text: &str) -> String {
        let (start, end) = (self.start as usize, self.end as usize);
        text.chars().skip(start).take(end.saturating_sub(start)).collect()
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
    /// Several errors of the first two kinds.
    #[error("{}", one_by_line(.0))]
    Several(Vec<QueryError>),
}

fn one_by_line(errors: &[QueryError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl QueryError {
    pub(super) fn syntax(token: &str, span: Span) -> Self {
        Self::coded("SC1001", format!("Syntax error, incorrect syntax near '{token}'."), span)
    }

    pub(super) fn unexpected_end(span: Span) -> Self {
        Self::coded("SC1002", "Syntax error, unexpected end-of-file.", span)
    }

    pub(super) fn invalid_token(token: &str, span: Span) -> Self {
        Self::coded("SC1010", format!("Syntax error, invalid token '{token}'."), span)
    }

    /// `rest` is the text from its quote on.
    pub(super) fn unended_text(rest: &str, span: Span) -> Self {
        let message = format!("Syntax error, invalid string literal token '{rest}'.");
        Self::coded("SC1012", message, span)
    }

    pub(super) fn unresolved(name: &str, span: Span) -> Self {
        Self::coded("SC2001", format!("Identifier '{name}' could not be resolved."), span)
    }

    pub(super) fn unknown_function(name: &str, span: Span) -> Self {
        let message = format!("'{name}' is not a recognized built-in function name.");
        Self::coded("SC2005", message, span)
    }

    pub(super) fn coded(code: &str, message: impl Into<String>, span: Span) -> Self {
        QueryError::At { code: Some(code.into()), message: message.into(), span }
    }

    pub(super) fn at(message: impl Into<String>, span: Span) -> Self {
        QueryError::At { code: None, message: message.into(), span }
    }

    /// For what is parsed but not answered yet.
    pub(super) fn unsupported(what: &str, span: Span) -> Self {
        Self::at(format!("{what} is not supported by this version of Ephemeris."), span)
    }

    /// All that was found wrong, in the order of the text, as one error; none if nothing was.
    ///
    /// Errors of the plain kind have a shape of their own: the first stands alone, and only if
    /// there is no other.
    pub(super) fn all(mut errors: Vec<QueryError>) -> Option<Self> {
        let plain = errors.iter().position(|error| matches!(error, QueryError::Plain(_)));
        if errors.iter().any(|error| !matches!(error, QueryError::Plain(_))) {
            errors.retain(|error| !matches!(error, QueryError::Plain(_)));
        } else if let Some(first) = plain {
            return Some(errors.swap_remove(first));
        }
        errors.sort_by_key(Self::start);
        if errors.len() > 1 { Some(QueryError::Several(errors)) } else { errors.pop() }
    }

    /// Where it starts; behind all others, if it has no place.
    fn start(&self) -> u32 {
        match self {
            QueryError::At { span, .. } => span.start,
            QueryError::Numbered { .. } | QueryError::Plain(_) | QueryError::Several(_) => u32::MAX,
        }
    }

    /// The text that goes into `message` of the error body.
    pub fn to_message(&self) -> String {
        let body = match self {
            QueryError::Plain(message) => json!({ "Errors": [message] }),
            QueryError::Several(errors) => {
                json!({ "errors": errors.iter().map(Self::entry).collect::<Vec<_>>() })
            }
            QueryError::At { .. } | QueryError::Numbered { .. } => {
                json!({ "errors": [self.entry()] })
            }
        };
        format!("Message: {body}")
    }

    /// The error as a member of the list.
    fn entry(&self) -> serde_json::Value {
        match self {
            QueryError::At { code, message, span } => {
                let location = json!({ "start": span.start, "end": span.end });
                let mut error = json!({ "severity": "Error", "location": location });
                if let Some(code) = code {
                    error["code"] = json!(code);
                }
                error["message"] = json!(message);
                error
            }
            QueryError::Numbered { code, message } => {
                json!({ "severity": "Error", "code": code, "message": message })
            }
            QueryError::Plain(_) | QueryError::Several(_) => {
                json!({ "severity": "Error", "message": self.to_string() })
            }
        }
    }
}
