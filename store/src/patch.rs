//! Partial updates: a list of operations on one item, carried out while the write is applied.
//!
//! 1. The gateway parses the request once to refuse what can never succeed or would hold replicas up,
//!    and proposes its text.
//! 2. `apply` parses it again, checks the condition against the stored version, and carries out
//!    the operations in their order; the first that fails refuses the whole patch.
//! 3. What results is read like any other body: `ttl`, size and indexed values come from there.
//!
//! Rules: <https://learn.microsoft.com/azure/cosmos-db/partial-document-update>.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};
use thiserror::Error;

use crate::document::{Document, DocumentRules, IdField, InvalidDocument};
use crate::json::Scalar;
use crate::partition_key::KeyDefinition;
use crate::query::{self, CompiledQuery, Metric, Needed, QueryError};

/// Most operations of one patch.
pub const PATCH_OPERATIONS_MAX: usize = 10;
/// Operations that compiling the conditions of one request may take: every replica does it again, while
/// it applies. That many are some hundredths of a second.
const CONDITION_OPERATIONS_MAX: u64 = 400_000;
/// As many count for a condition that is none: it may have taken long to see that.
const INVALID_OPERATIONS: u64 = CONDITION_OPERATIONS_MAX / 20;
/// Most names and indexes in a path.
const PATH_STEPS_MAX: usize = 128;

/// A patch as it is proposed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchRequest {
    /// The client's `{"operations": […], "condition": "…"}`.
    #[serde(with = "serde_bytes")]
    pub text: Vec<u8>,
    /// How the container reads the body that results.
    pub rules: Arc<DocumentRules>,
}

/// A patch that can be tried.
#[derive(Clone, Debug)]
pub struct Patch {
    operations: Vec<Operation>,
    condition: Option<CompiledQuery>,
}

#[derive(Clone, Debug, PartialEq)]
struct Operation {
    path: Path,
    change: Change,
}

#[derive(Clone, Debug, PartialEq)]
enum Change {
    /// Sets a member, or inserts an element.
    Add(Value),
    /// Sets a member or an element.
    Set(Value),
    /// Sets what is there already.
    Replace(Value),
    /// Takes away what is there.
    Remove,
    /// Adds to a number, starting from nothing.
    Increment(Number),
    /// Takes a value from here, and adds it there.
    Move(Path),
}

/// A JSON pointer: <https://www.rfc-editor.org/rfc/rfc6901>.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Path(Vec<String>);

/// Why a patch was refused without looking at the item.
#[derive(Clone, Debug, Error)]
pub enum InvalidPatch {
    /// Not the JSON that is expected.
    #[error("The patch request is malformed: {0}.")]
    Malformed(String),
    /// Nothing to do.
    #[error("No patch operations were given: at least one is required.")]
    Empty,
    /// Too much to do.
    #[error(
        "The number of patch operations, {0}, exceeds the limit of {PATCH_OPERATIONS_MAX} \
         operations per request."
    )]
    TooMany(usize),
    /// A property that no patch may touch.
    #[error("For operation {operation}: the path '{path}' cannot be patched: {reason}.")]
    Protected {
        /// Counted from 1.
        operation: usize,
        /// The path.
        path: String,
        /// Whose it is.
        reason: &'static str,
    },
    /// The condition is no query.
    #[error("The patch condition is invalid: {0}")]
    Condition(#[from] QueryError),
    /// It takes too long to find out what the condition says.
    #[error(
        "The patch conditions of the request take too long to compile: use fewer or simpler patterns \
         and constants."
    )]
    LongCondition,
    /// The condition may take longer than replicas count.
    #[error(
        "The patch condition is invalid: it may take too long, as the area of a large shape does."
    )]
    UncountedCondition,
}

/// What compiling conditions may still take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConditionBudget(u64);

impl ConditionBudget {
    /// What those of one request may take together.
    pub const REQUEST: Self = Self(CONDITION_OPERATIONS_MAX);

    /// Compiles a condition, unless those before it have used everything up.
    fn compile(&mut self, text: &str, metric: Metric) -> Result<CompiledQuery, InvalidPatch> {
        if self.0 == 0 {
            return Err(InvalidPatch::LongCondition);
        }
        let compiled = CompiledQuery::condition(text, metric);
        let taken = compiled.as_ref().map_or(INVALID_OPERATIONS, |one| one.effort().compiling);
        let fits = taken <= self.0;
        self.0 = self.0.saturating_sub(taken);
        let condition = compiled?;
        if condition.effort().takes_longer {
            return Err(InvalidPatch::UncountedCondition);
        }
        if fits { Ok(condition) } else { Err(InvalidPatch::LongCondition) }
    }
}

/// Why a patch could not be carried out on an item.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum PatchFailure {
    /// The condition does not hold.
    #[error("the patch condition does not hold")]
    Condition,
    /// An operation does not fit the item.
    #[error("For operation {operation}: {reason}")]
    Operation {
        /// Counted from 1.
        operation: u16,
        /// What is wrong.
        reason: String,
    },
    /// The result is larger than an item may be.
    #[error("Request size is too large: {0}")]
    TooLarge(String),
    /// The result is not an item any more.
    #[error("{0}")]
    Result(String),
}

impl PatchRequest {
    /// Carries the patch out on a stored body.
    ///
    /// `shown` gives what the condition needs of the item as clients see it. Judging it takes from the operations that
    /// are left to the transaction; if there are none left then, it may have needed more.
    pub fn carry_out(
        &self,
        body: &[u8],
        shown: impl FnOnce(&Needed) -> query::Value,
        operations: &mut u64,
    ) -> Result<Document, PatchFailure> {
        let patch = Patch::parse(&self.text, &self.rules)
            .map_err(|error| PatchFailure::Result(error.to_string()))?;
        let holds =
            |condition: &CompiledQuery| condition.keeps(&shown(condition.needed()), operations);
        if !patch.condition.as_ref().is_none_or(holds) {
            return Err(PatchFailure::Condition);
        }
        let mut value: Value = serde_json::from_slice(body).expect("a stored body is JSON");
        for (operation, number) in patch.operations.into_iter().zip(1..) {
            operation
                .carry_out(&mut value)
                .map_err(|reason| PatchFailure::Operation { operation: number, reason })?;
        }
        let changed = serde_json::to_vec(&value).expect("a JSON value can be written");
        self.read_result(body, &changed)
    }

    fn read_result(&self, before: &[u8], after: &[u8]) -> Result<Document, PatchFailure> {
        let old = self.rules.parse(before).expect("a stored body was accepted once");
        let new = self.rules.parse(after).map_err(|error| match error {
            InvalidDocument::TooLarge { .. } => PatchFailure::TooLarge(error.to_string()),
            InvalidDocument::Json(_) => PatchFailure::Result(error.to_string()),
        })?;
        let same_id = matches!((&old.id, &new.id), (IdField::Text(a), IdField::Text(b)) if a == b);
        if same_id && old.key == new.key {
            Ok(new.document)
        } else {
            Err(PatchFailure::Result("a patch cannot change the id or partition key".to_string()))
        }
    }
}

impl Patch {
    /// Reads a request that is to be proposed, and refuses, too, what would hold replicas up.
    pub fn check(
        text: &[u8],
        rules: &DocumentRules,
        budget: &mut ConditionBudget,
    ) -> Result<(), InvalidPatch> {
        Self::read(text, rules, |condition, metric| budget.compile(condition, metric)).map(drop)
    }

    /// Reads a request and refuses what could never be carried out.
    fn parse(text: &[u8], rules: &DocumentRules) -> Result<Self, InvalidPatch> {
        Self::read(text, rules, |condition, metric| {
            Ok(CompiledQuery::condition(condition, metric)?)
        })
    }

    fn read(
        text: &[u8],
        rules: &DocumentRules,
        compile: impl FnOnce(&str, Metric) -> Result<CompiledQuery, InvalidPatch>,
    ) -> Result<Self, InvalidPatch> {
        let key = rules.key();
        let request: Value = serde_json::from_slice(text)
            .map_err(|error| InvalidPatch::Malformed(error.to_string()))?;
        let (listed, condition) = match &request {
            // A bare list is the form of RFC 6902.
            Value::Array(listed) => (listed, None),
            Value::Object(request) => match request.get("operations") {
                Some(Value::Array(listed)) => (listed, request.get("condition")),
                _ => return Err(malformed("'operations' must be an array")),
            },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                return Err(malformed("it must be an object with 'operations'"));
            }
        };
        if listed.is_empty() {
            return Err(InvalidPatch::Empty);
        }
        if listed.len() > PATCH_OPERATIONS_MAX {
            return Err(InvalidPatch::TooMany(listed.len()));
        }
        let mut operations = Vec::with_capacity(listed.len());
        for (listed, number) in listed.iter().zip(1..) {
            let operation = Operation::parse(listed)?;
            operation.check_paths(number, key)?;
            operations.push(operation);
        }
        let condition = match condition {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(compile(text, rules.index().metric())?),
            Some(_) => return Err(malformed("'condition' must be a string")),
        };
        Ok(Self { operations, condition })
    }
}

fn malformed(message: &str) -> InvalidPatch {
    InvalidPatch::Malformed(message.to_string())
}

impl Operation {
    fn parse(listed: &Value) -> Result<Self, InvalidPatch> {
        let text = |name: &str| {
            let member = listed.get(name).and_then(Value::as_str);
            member.ok_or_else(|| malformed(&format!("every operation needs a text '{name}'")))
        };
        let value = || {
            let member = listed.get("value").cloned();
            member.ok_or_else(|| malformed("the operation needs a 'value'"))
        };
        let path = Path::parse(text("path")?)?;
        let change = match text("op")?.to_ascii_lowercase().as_str() {
            "add" => Change::Add(value()?),
            "set" => Change::Set(value()?),
            "replace" => Change::Replace(value()?),
            "remove" => Change::Remove,
            "incr" | "increment" => {
                let Value::Number(by) = value()? else {
                    return Err(malformed("'incr' needs a number as 'value'"));
                };
                Change::Increment(by)
            }
            "move" => Change::Move(Path::parse(text("from")?)?),
            other => return Err(malformed(&format!("there is no operation '{other}'"))),
        };
        if let Change::Move(from) = &change
            && path.0.len() > from.0.len()
            && path.0.starts_with(&from.0)
        {
            return Err(malformed("'path' of a move cannot lie inside its 'from'"));
        }
        Ok(Self { path, change })
    }

    /// Refuses paths to what identifies the item.
    fn check_paths(&self, operation: usize, key: &KeyDefinition) -> Result<(), InvalidPatch> {
        let from = match &self.change {
            Change::Move(from) => Some(from),
            Change::Add(_)
            | Change::Set(_)
            | Change::Replace(_)
            | Change::Remove
            | Change::Increment(_) => None,
        };
        for path in [Some(&self.path), from].into_iter().flatten() {
            if let Some(reason) = path.protected_as(key) {
                let path = path.to_string();
                return Err(InvalidPatch::Protected { operation, path, reason });
            }
        }
        Ok(())
    }

    fn carry_out(self, root: &mut Value) -> Result<(), String> {
        let Self { path, change } = self;
        match change {
            Change::Add(value) => path.place(root)?.add(value),
            Change::Set(value) => path.place(root)?.set(value),
            Change::Replace(value) => *path.existing(root)? = value,
            Change::Remove => {
                path.place(root)?.remove().ok_or_else(|| path.missing())?;
            }
            Change::Increment(by) => path.increment(root, &by)?,
            Change::Move(from) => {
                let moved = from.place(root)?.remove().ok_or_else(|| from.missing())?;
                path.place(root)?.add(moved);
            }
        }
        Ok(())
    }
}

/// Where a change takes place: a name in an object, or a position in an array.
enum Place<'v> {
    Member(&'v mut Map<String, Value>, &'v str),
    /// A position that is there.
    Element(&'v mut Vec<Value>, usize),
    /// The position behind the last.
    End(&'v mut Vec<Value>),
}

impl Place<'_> {
    fn add(self, value: Value) {
        match self {
            Place::Member(object, name) => {
                object.insert(name.to_string(), value);
            }
            Place::Element(array, index) => array.insert(index, value),
            Place::End(array) => array.push(value),
        }
    }

    fn set(self, value: Value) {
        match self {
            Place::Element(array, index) => array[index] = value,
            other @ (Place::Member(..) | Place::End(_)) => other.add(value),
        }
    }

    fn remove(self) -> Option<Value> {
        match self {
            Place::Member(object, name) => object.shift_remove(name),
            Place::Element(array, index) => Some(array.remove(index)),
            Place::End(_) => None,
        }
    }
}

impl Path {
    fn parse(text: &str) -> Result<Self, InvalidPatch> {
        let Some(rest) = text.strip_prefix('/').filter(|rest| !rest.is_empty()) else {
            return Err(malformed(&format!(
                "the path '{text}' must start with / and name a value"
            )));
        };
        let steps: Vec<String> =
            rest.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
        if steps.len() > PATH_STEPS_MAX {
            return Err(malformed(&format!("a path has more than {PATH_STEPS_MAX} steps")));
        }
        Ok(Self(steps))
    }

    /// Why the path cannot be patched, if it cannot.
    fn protected_as(&self, key: &KeyDefinition) -> Option<&'static str> {
        let system = ["_rid", "_self", "_etag", "_ts", "_attachments"];
        let first = self.0.first().expect("a path has a step").as_str();
        if first == "id" && self.0.len() == 1 {
            return Some("it is the item's id");
        }
        if system.contains(&first) {
            return Some("it belongs to the system");
        }
        let overlaps = |path: &Vec<String>| path.starts_with(&self.0) || self.0.starts_with(path);
        key.paths.iter().any(overlaps).then_some("it is the partition key or holds it")
    }

    fn missing(&self) -> String {
        format!("there is nothing at the path '{self}'.")
    }

    /// The place the path names, in the object or array that must be there already.
    fn place<'v>(&'v self, root: &'v mut Value) -> Result<Place<'v>, String> {
        let (last, parents) = self.0.split_last().expect("a path has a step");
        let mut parent = root;
        for step in parents {
            parent = child(parent, step).ok_or_else(|| {
                format!(
                    "the path '{self}' leads through '{step}', which is not there: a patch \
                     creates one level at a time."
                )
            })?;
        }
        match parent {
            Value::Object(object) => Ok(Place::Member(object, last)),
            Value::Array(array) => {
                let index = if last == "-" { Some(array.len()) } else { element_index(last) };
                match index {
                    Some(index) if index < array.len() => Ok(Place::Element(array, index)),
                    Some(index) if index == array.len() => Ok(Place::End(array)),
                    Some(_) => Err(format!("the path '{self}' lies behind the end of the array.")),
                    None => Err(format!("the path '{self}' needs an array index, not '{last}'.")),
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                Err(format!("the path '{self}' leads into a value that has no members."))
            }
        }
    }

    fn existing<'v>(&self, root: &'v mut Value) -> Result<&'v mut Value, String> {
        let found = self.0.iter().try_fold(root, |value, step| child(value, step));
        found.ok_or_else(|| self.missing())
    }

    fn increment(&self, root: &mut Value, by: &Number) -> Result<(), String> {
        let place = self.place(root)?;
        let target = match place {
            Place::Member(object, name) => object.entry(name).or_insert_with(|| 0.into()),
            Place::Element(array, index) => &mut array[index],
            Place::End(_) => return Err(self.missing()),
        };
        let Value::Number(number) = target else {
            return Err(format!("the value at '{self}' is not a number."));
        };
        let sum = sum(number, by).ok_or_else(|| format!("the sum at '{self}' is too large."))?;
        *number = sum;
        Ok(())
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|step| write!(f, "/{step}"))
    }
}

fn child<'v>(value: &'v mut Value, step: &str) -> Option<&'v mut Value> {
    match value {
        Value::Object(object) => object.get_mut(step),
        Value::Array(array) => array.get_mut(element_index(step)?),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// An array index as RFC 6901 writes it: digits, no leading zero.
fn element_index(step: &str) -> Option<usize> {
    let digits = step.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = step == "0" || !step.starts_with('0');
    if digits && canonical { step.parse().ok() } else { None }
}

/// Exact between integers of 64 bits, otherwise in doubles; none beyond them.
fn sum(a: &Number, b: &Number) -> Option<Number> {
    if let (Some(a), Some(b)) = (a.as_i64(), b.as_i64())
        && let Some(sum) = a.checked_add(b)
    {
        return Some(sum.into());
    }
    let double = |number: &Number| match (number.as_i64(), number.as_u64(), number.as_f64()) {
        (Some(number), _, _) => Scalar::Int(number).as_f64(),
        (None, Some(number), _) => Scalar::UInt(number).as_f64(),
        (None, None, number) => number,
    };
    Number::from_f64(double(a)? + double(b)?)
}

#[cfg(test)]
mod tests;
