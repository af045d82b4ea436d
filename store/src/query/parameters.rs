//! Values for `@name`s.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::QueryError;
use super::value::{Value, as_bytes};

/// Values for `@name`s.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    /// As they were given.
    list: Vec<Parameter>,
    /// Where each name is in the list.
    places: HashMap<String, usize>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Parameter {
    name: String,
    given: Given,
}

/// A value that its uses share.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) value: Arc<Value>,
    /// `Value::size`, which takes long to tell of a large one.
    pub(super) size: usize,
}

impl Given {
    fn new(value: Value) -> Self {
        Self { size: value.size(), value: Arc::new(value) }
    }
}

impl Serialize for Given {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        as_bytes::serialize(&self.value, serializer)
    }
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        as_bytes::deserialize(deserializer).map(Self::new)
    }
}

impl Serialize for Parameters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.list.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Parameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut parameters = Self::default();
        for parameter in Vec::<Parameter>::deserialize(deserializer)? {
            parameters.push(parameter);
        }
        Ok(parameters)
    }
}

impl Parameters {
    /// Adds a value; the name starts with `@`. What has none is undefined.
    pub fn add(&mut self, name: &str, value: Value) -> Result<(), QueryError> {
        let letters = name.strip_prefix('@').filter(|rest| {
            !rest.is_empty() && rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        });
        let Some(letters) = letters else {
            return Err(QueryError::Plain(format!(
                "Invalid query. Specified parameter name '{name}' is invalid. Parameter names should be in the \
                 format of symbol '@' followed by a valid identifier. E.g. @param1"
            )));
        };
        if self.places.contains_key(letters) {
            let message = format!("Invalid query. Specified duplicate parameter name '{name}'.");
            return Err(QueryError::Plain(message));
        }
        self.push(Parameter { name: letters.to_string(), given: Given::new(value) });
        Ok(())
    }

    fn push(&mut self, parameter: Parameter) {
        self.places.insert(parameter.name.clone(), self.list.len());
        self.list.push(parameter);
    }

    /// The value of a name without its `@`; none if it was not given, which makes it undefined.
    pub(super) fn get(&self, name: &str) -> Option<&Given> {
        self.places.get(name).map(|place| &self.list[*place].given)
    }
}

#[cfg(test)]
mod tests {
    use super::super::CompiledQuery;
    use super::super::computed::ComputedProperties;
    use super::*;
    use crate::codec;
    use crate::indexing::{self, IndexRules};

    fn compile(text: &str, parameters: &Parameters) -> Result<CompiledQuery, QueryError> {
        let index = IndexRules::new(&indexing::complete(None).unwrap()).unwrap();
        CompiledQuery::new(text, parameters, &index, &ComputedProperties::default())
    }

    fn with(value: &str) -> Parameters {
        let mut parameters = Parameters::default();
        parameters.add("@p", Value::Text(value.to_string())).unwrap();
        parameters
    }

    #[test]
    fn all_uses_of_a_parameter_share_its_value() {
        let parameters = with("a text");
        let uses = vec!["c.a > @p"; 100].join(" OR ");
        let query = compile(&format!("SELECT VALUE {uses} FROM c"), &parameters).unwrap();
        let given = parameters.get("p").unwrap();
        assert_eq!(Arc::strong_count(&given.value), 101);
        drop(query);
        assert_eq!(Arc::strong_count(&given.value), 1);
    }

    #[test]
    fn a_name_has_one_value_also_where_it_was_sent_to() {
        let mut parameters = with("first");
        let refused = parameters.add("@p", Value::Null).unwrap_err().to_string();
        assert!(refused.contains("duplicate parameter name '@p'"), "{refused}");
        parameters.add("@nothing", Value::Undefined).unwrap();
        let again: Parameters = codec::decode(&codec::encode(&parameters)).unwrap();
        for parameters in [parameters, again] {
            let given = parameters.get("p").unwrap();
            assert!(given.value.equals(&Value::from("first")));
            assert!(!parameters.get("nothing").unwrap().value.is_defined());
            assert!(parameters.get("q").is_none());
        }
    }

    #[test]
    fn patterns_and_names_of_parameters_are_copied_up_to_a_limit() {
        let parameters = with(&"x".repeat(10_000));
        for one in ["c.a LIKE @p", "c[@p] = 1", "REGEXMATCH(c.a, @p)"] {
            let uses = |count: usize| {
                let text = format!("SELECT * FROM c WHERE {}", vec![one; count].join(" AND "));
                compile(&text, &parameters)
            };
            uses(100).unwrap_or_else(|error| panic!("{one}: {error}"));
            let refused = uses(1000).unwrap_err().to_string();
            assert!(refused.contains("as patterns and names"), "{one}: {refused}");
        }
    }

    #[test]
    fn what_conditions_would_copy_too_often_is_left_to_the_filter() {
        let parameters = with(&"x".repeat(100_000));
        let uses = |count: usize| {
            let list = vec!["@p"; count].join(", ");
            let text = format!("SELECT * FROM c WHERE c.a IN ({list}) AND c.b = 1");
            compile(&text, &parameters).unwrap().conditions.len()
        };
        assert_eq!(uses(40), 2);
        assert_eq!(uses(50), 1);
    }
}
