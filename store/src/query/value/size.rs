//! How much a value is: as JSON, and in memory.

use super::{Member, Value};

/// What a value counts that has no length.
const SCALAR_SIZE: usize = 8;

impl Value {
    /// About how many bytes the value takes as JSON.
    pub fn size(&self) -> usize {
        match self {
            Value::Undefined | Value::Null | Value::Bool(_) | Value::Number(_) => SCALAR_SIZE,
            Value::Text(text) => text.len(),
            Value::Array(elements) => 2 + elements.iter().map(|one| 1 + one.size()).sum::<usize>(),
            Value::Object(members) => {
                let member = |(name, value): &Member| 4 + name.len() + value.size();
                2 + members.iter().map(member).sum::<usize>()
            }
        }
    }

    /// About how many bytes the value takes in memory, beside the place that it stands in itself.
    pub(in crate::query) fn held(&self) -> usize {
        self.behind().max(SCALAR_SIZE)
    }

    fn behind(&self) -> usize {
        let parts = match self {
            Value::Undefined | Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::Text(text) => text.len(),
            Value::Array(elements) => elements.iter().map(Value::behind).sum(),
            Value::Object(members) => {
                members.iter().map(|(name, value)| name.len() + value.behind()).sum()
            }
        };
        self.places() + parts
    }

    /// Bytes of memory for the places that its elements or members stand in.
    pub(in crate::query) fn places(&self) -> usize {
        match self {
            Value::Undefined | Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) => {
                0
            }
            Value::Array(elements) => elements.len() * size_of::<Value>(),
            Value::Object(members) => members.len() * size_of::<Member>(),
        }
    }
}
