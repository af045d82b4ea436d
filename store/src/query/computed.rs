//! Computed properties of a container: what their definitions must be, and what they compute.
//!
//! An index may hold what they compute, so that all replicas must come to the same, at any time: only
//! the item counts, and a property has a budget of its own (`Run::compute`).

use std::sync::Arc;

use serde_json::Value as Json;
use thiserror::Error;

use super::aggregate::AggregateKind;
use super::ast::{Collection, Expr, ExprKind, Query, Select};
use super::compile::{Purity, Setting, compile_over_item, tree};
use super::error::QueryError;
use super::evaluate::Row;
use super::functions::{Metric, Moment};
use super::needed::Needed;
use super::op::Op;
use super::parameters::Parameters;
use super::parser::parse;
use super::run::Run;
use super::value::{Member, Value};
use crate::ids::ItemNumber;
use crate::indexing::Step;
use crate::time::Millis;

/// Computed properties of a container.
pub const COMPUTED_PROPERTIES_MAX: usize = 20;
/// Names that stored items have already.
const SYSTEM_NAMES: [&str; 6] = ["id", "_rid", "_self", "_etag", "_attachments", "_ts"];

/// Why a definition was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidComputed {
    /// Not a list of objects with a name and a query.
    #[error(
        "One of the specified inputs is invalid: 'computedProperties' must be an array of objects \
         with a 'name' and a 'query'"
    )]
    Malformed,
    /// Too many of them.
    #[error("a container has at most {COMPUTED_PROPERTIES_MAX} computed properties, not {0}")]
    TooMany(usize),
    /// A name is empty.
    #[error("the name of a computed property must not be empty")]
    Unnamed,
    /// A name belongs to the system.
    #[error("'{0}' is a system property and cannot be the name of a computed property")]
    SystemName(String),
    /// A name is used twice.
    #[error("the computed property '{0}' is defined more than once")]
    Duplicate(String),
    /// A clause or an expression that is not allowed.
    #[error("the query of the computed property '{name}' must not contain {what}")]
    Forbidden {
        /// The property.
        name: String,
        /// What is not allowed.
        what: &'static str,
    },
    /// Something else than one value of the container.
    #[error("the query of the computed property '{0}' must be SELECT VALUE … FROM c")]
    NotAValue(String),
    /// It refers to another one.
    #[error(
        "the query of the computed property '{name}' refers to the computed property '{other}'"
    )]
    RefersTo {
        /// The property.
        name: String,
        /// The one it refers to.
        other: String,
    },
    /// The query is not one.
    #[error("the query of the computed property '{name}' is not valid: {error}")]
    Query {
        /// The property.
        name: String,
        /// What is wrong.
        error: QueryError,
    },
}

/// The computed properties of a container; the default is to have none.
#[derive(Clone, Debug, Default)]
pub struct ComputedProperties(Arc<[ComputedProperty]>);

#[derive(Debug)]
struct ComputedProperty {
    name: String,
    query: String,
    body: Arc<Op>,
}

impl ComputedProperties {
    /// Reads `computedProperties` of a container's definition.
    pub fn parse(definition: Option<&Json>) -> Result<Self, InvalidComputed> {
        let list = match definition {
            None | Some(Json::Null) => return Ok(Self::default()),
            Some(list) => list.as_array().ok_or(InvalidComputed::Malformed)?,
        };
        if list.len() > COMPUTED_PROPERTIES_MAX {
            return Err(InvalidComputed::TooMany(list.len()));
        }
        let text = |one: &Json, member: &str| one[member].as_str().map(str::to_string);
        let pairs: Option<Vec<(String, String)>> =
            list.iter().map(|one| Some((text(one, "name")?, text(one, "query")?))).collect();
        let pairs = pairs.ok_or(InvalidComputed::Malformed)?;
        let names: Vec<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
        check_names(&names)?;
        let properties = pairs.iter().map(|(name, query)| property(name, query, &names));
        Ok(Self(properties.collect::<Result<_, _>>()?))
    }

    /// Those of definitions that were accepted once; one that cannot be used any more is left out.
    pub(crate) fn restore<'d>(definitions: impl IntoIterator<Item = (&'d str, &'d str)>) -> Self {
        let property = |(name, query)| property(name, query, &[]).ok();
        Self(definitions.into_iter().filter_map(property).collect())
    }

    /// Names and queries, in the order of the definition.
    pub fn definitions(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|property| (property.name.as_str(), property.query.as_str()))
    }

    /// The names, in the order of the definition.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.definitions().map(|(name, _)| name)
    }

    /// The query that computes what is at a path from the item; none if that is stored.
    pub(super) fn query_of(&self, path: &[Step]) -> Option<&str> {
        let Some(Step::Member(first)) = path.first() else { return None };
        self.definitions().find(|(name, _)| name == first).map(|(_, query)| query)
    }

    /// What of an item is read to compute them.
    pub(crate) fn needed(&self) -> Needed {
        Needed::of(self.0.iter().map(|property| &*property.body))
    }

    /// Every computed property of an item, in the order of the definition; undefined where it cannot
    /// be computed.
    pub fn of(&self, item: &Value) -> Vec<(&str, Value)> {
        self.compute(item).0
    }

    /// The same, and how many operations it has taken.
    pub(crate) fn compute(&self, item: &Value) -> (Vec<(&str, Value)>, u64) {
        let mut spent = 0;
        let mut value = |property: &ComputedProperty| {
            let run = Run::new(Moment::new(Millis(0), Millis(0), 0));
            let row = Row::of(item, ItemNumber(0));
            let value = run.compute(|| property.body.evaluate(&row, &run)).into_owned();
            spent += run.spent();
            value
        };
        let values = self.0.iter().map(|property| (property.name.as_str(), value(property)));
        (values.collect(), spent)
    }

    /// An item in which the computed properties stand in for stored ones of their names.
    pub(super) fn shown_in(&self, item: Value) -> Value {
        if self.0.is_empty() {
            return item;
        }
        let computed: Vec<Member> =
            self.of(&item).into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        let Value::Object(members) = item else { return item };
        let is_hidden = |stored: &str| computed.iter().any(|(name, _)| name == stored);
        let mut shown: Vec<Member> =
            members.into_iter().filter(|(stored, _)| !is_hidden(stored)).collect();
        shown.extend(computed.into_iter().filter(|(_, value)| value.is_defined()));
        Value::Object(shown.into())
    }

    /// What computes the property of this name.
    pub(super) fn body(&self, name: &str) -> Option<&Arc<Op>> {
        self.0.iter().find(|property| property.name == name).map(|property| &property.body)
    }
}

fn check_names(names: &[&str]) -> Result<(), InvalidComputed> {
    for (at, name) in names.iter().enumerate() {
        if name.is_empty() {
            return Err(InvalidComputed::Unnamed);
        }
        if SYSTEM_NAMES.contains(name) {
            return Err(InvalidComputed::SystemName((*name).to_string()));
        }
        if names[..at].contains(name) {
            return Err(InvalidComputed::Duplicate((*name).to_string()));
        }
    }
    Ok(())
}

fn property(name: &str, text: &str, names: &[&str]) -> Result<ComputedProperty, InvalidComputed> {
    let invalid = |error| InvalidComputed::Query { name: name.to_string(), error };
    let query = parse(text).map_err(invalid)?;
    if let Some(what) = forbidden_clause(&query) {
        return Err(InvalidComputed::Forbidden { name: name.to_string(), what });
    }
    let (Select::Value(expr), Some(alias)) = (&query.select, container_alias(&query)) else {
        return Err(InvalidComputed::NotAValue(name.to_string()));
    };
    check_expression(expr, alias, name, names)?;
    let (parameters, none) = (Parameters::default(), ComputedProperties::default());
    let setting = Setting {
        parameters: &parameters,
        computed: &none,
        purity: Purity::Pure,
        // Functions of space were refused.
        metric: Metric::default(),
    };
    let body = compile_over_item(text, alias, expr, &setting).map_err(invalid)?;
    Ok(ComputedProperty { name: name.to_string(), query: text.to_string(), body: Arc::new(body) })
}

fn forbidden_clause(query: &Query) -> Option<&'static str> {
    let Query { distinct, top, from, filter, group_by, order_by, offset_limit, .. } = query;
    let found = [
        (distinct.is_some(), "DISTINCT"),
        (top.is_some(), "TOP"),
        (from.len() > 1, "JOIN"),
        (filter.is_some(), "WHERE"),
        (!group_by.is_empty(), "GROUP BY"),
        (!order_by.is_empty(), "ORDER BY"),
        (offset_limit.is_some(), "OFFSET LIMIT"),
    ];
    found.into_iter().find(|(found, _)| *found).map(|(_, clause)| clause)
}

/// What the query calls the container, if it selects from the container itself.
fn container_alias(query: &Query) -> Option<&str> {
    let [source] = query.from.as_slice() else { return None };
    match &source.collection {
        Collection::Path { root, steps } if steps.is_empty() && !source.iterates => {
            Some(source.alias.as_deref().unwrap_or(root))
        }
        Collection::Path { .. } | Collection::Subquery(_) => None,
    }
}

/// Refuses what the compiler alone would take.
fn check_expression(
    expr: &Expr,
    alias: &str,
    name: &str,
    names: &[&str],
) -> Result<(), InvalidComputed> {
    let mut refused = Ok(());
    tree::visit(expr, &mut |part| {
        if let Some(what) = forbidden_part(part) {
            refused = Err(InvalidComputed::Forbidden { name: name.to_string(), what });
        } else if let Some((object, member)) = tree::member(part)
            && matches!(&object.kind, ExprKind::Name(found) if found == alias)
            && member != name
            && names.contains(&member)
        {
            let (name, other) = (name.to_string(), member.to_string());
            refused = Err(InvalidComputed::RefersTo { name, other });
        }
        if refused.is_ok() { tree::Then::Descend } else { tree::Then::Skip }
    });
    refused
}

fn forbidden_part(part: &Expr) -> Option<&'static str> {
    match &part.kind {
        ExprKind::Subquery(..) => Some("a subquery"),
        ExprKind::Parameter(_) => Some("a parameter"),
        ExprKind::Call { user_defined: true, .. } => Some("a user-defined function"),
        ExprKind::Call { name, .. } if AggregateKind::named(name).is_some() => Some("an aggregate"),
        ExprKind::Call { name, .. } if name.to_ascii_uppercase().starts_with("ST_") => {
            Some("a spatial function")
        }
        ExprKind::Call { .. }
        | ExprKind::Literal(_)
        | ExprKind::Name(_)
        | ExprKind::Member(..)
        | ExprKind::Index(..)
        | ExprKind::Unary(..)
        | ExprKind::Binary(..)
        | ExprKind::Conditional(..)
        | ExprKind::Between { .. }
        | ExprKind::In { .. }
        | ExprKind::Like { .. }
        | ExprKind::Array(_)
        | ExprKind::Object(_) => None,
    }
}

#[cfg(test)]
mod tests;
