//! Values for `@name`s.

use serde::{Deserialize, Serialize};

use super::error::{QueryError, Span};
use super::value::{Value, as_bytes};

/// Values for `@name`s.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Parameters(Vec<Parameter>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Parameter {
    name: String,
    #[serde(with = "as_bytes")]
    value: Value,
}

impl Parameters {
    /// Adds a value; the name starts with `@`.
    pub fn add(&mut self, name: &str, value: Value) -> Result<(), QueryError> {
        let letters = name.strip_prefix('@').filter(|rest| {
            !rest.is_empty() && rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        });
        let Some(letters) = letters else {
            let message = format!(
                "Specified parameter name '{name}' is invalid. Parameter names should start \
                 with '@' followed by a valid identifier."
            );
            return Err(QueryError::at(message, Span::default()));
        };
        self.0.push(Parameter { name: letters.to_string(), value });
        Ok(())
    }

    /// The value of a name without its `@`; the first, if it was given several.
    pub(super) fn get(&self, name: &str, span: Span) -> Result<&Value, QueryError> {
        let found = self.0.iter().find(|parameter| parameter.name == name);
        found.map(|parameter| &parameter.value).ok_or_else(|| {
            QueryError::at(format!("The query parameter '@{name}' has no value."), span)
        })
    }
}
