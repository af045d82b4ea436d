//! Functions of objects.

use super::call::call;
use super::{Args, Function, Moment, RESULT_BYTES_MAX, cost};
use crate::query::value::{Members, Value};

pub(super) const FUNCTIONS: &[Function] =
    &[Function::new("OBJECTTOARRAY", 1, 3, to_array).at(cost::whole)];

/// An object for each member, of its name and its value, in stored order.
fn to_array(args: &Args<'_>, _: &Moment) -> Value {
    call(args, |(object, name, value): (&Members, Option<&str>, Option<&str>)| {
        let (name_key, value_key) = (name.unwrap_or("k"), value.unwrap_or("v"));
        let keys = name_key.len() + value_key.len() + size_of::<Value>();
        let mut bytes = 0_usize;
        let mut pairs = Vec::with_capacity(object.len());
        for (name, value) in object {
            bytes = bytes.saturating_add(keys + name.len() + value.size());
            if bytes > RESULT_BYTES_MAX {
                return None;
            }
            pairs.push(pair(name_key, name, value_key, value));
        }
        Some(pairs)
    })
}

/// If both have one key, the value stays, as the last of repeated names does everywhere.
fn pair(name_key: &str, name: &str, value_key: &str, value: &Value) -> Value {
    let value = (value_key.to_string(), value.clone());
    if name_key == value_key {
        return Value::Object(vec![value].into());
    }
    Value::Object(vec![(name_key.to_string(), name.into()), value].into())
}
