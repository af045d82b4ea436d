//! Binds parameters and names, and refuses what this version cannot answer.
#![expect(clippy::wildcard_enum_match_arm, reason = "asks for one form and refuses all others")]

use serde::{Deserialize, Serialize};

use super::ast::{
    BinaryOp, Collection, Expr, ExprKind, Literal, Query, Select, SelectItem, SubqueryKind, UnaryOp,
};
use super::error::{QueryError, Span};
use super::evaluate::Op;
use super::parser::parse;
use super::value::{Number, Value, as_text};
use crate::indexing::{IndexRules, SortSupport};
use crate::partition_key::{Component, KeyDefinition, PartitionKey};

type Result<T> = std::result::Result<T, QueryError>;

/// Values for `@name`s.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Parameters(Vec<Parameter>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Parameter {
    name: String,
    #[serde(with = "as_text")]
    value: Value,
}

impl Parameters {
    /// Adds a value; the name starts with `@`.
    pub fn add(&mut self, name: &str, value: Value) -> Result<()> {
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

    fn get(&self, name: &str, span: Span) -> Result<Value> {
        let found = self.0.iter().find(|parameter| parameter.name == name);
        found.map(|parameter| parameter.value.clone()).ok_or_else(|| {
            QueryError::at(format!("The query parameter '@{name}' has no value."), span)
        })
    }
}

/// A query ready to be run.
#[derive(Clone, Debug)]
pub struct CompiledQuery {
    /// What rows look like.
    pub projection: Projection,
    /// What an item must satisfy.
    pub(super) filter: Option<Op>,
    /// How rows are ordered.
    pub order: Option<SortOrder>,
}

/// What a query makes of an item.
#[derive(Clone, Debug)]
pub enum Projection {
    /// The item as it is.
    Star,
    /// One value; undefined removes the row.
    Value(Op),
    /// An object of named values; undefined removes the member.
    List(Vec<(String, Op)>),
    /// `VALUE COUNT(e)`: one number for all items for which `e` is defined.
    Count(Op),
}

/// `ORDER BY` one path.
#[derive(Clone, Debug)]
pub struct SortOrder {
    /// The path.
    pub(super) key: Op,
    /// `DESC`
    pub descending: bool,
    /// True if items without the property are returned too, before everything else.
    pub keeps_undefined: bool,
}

/// Functions that exist in the language; those without an implementation are named as such.
const KNOWN_FUNCTIONS: &str = " ABS ACOS AGO ALL ARRAY_AVG ARRAY_CONCAT ARRAY_CONTAINS \
    ARRAY_CONTAINS_ALL ARRAY_CONTAINS_ANY ARRAY_LENGTH ARRAY_MAX ARRAY_MEDIAN ARRAY_MIN \
    ARRAY_SLICE ARRAY_SUM ASIN ATAN ATN2 AVG CEILING CHOOSE CONCAT CONTAINS CONTAINS_ALL_CI \
    CONTAINS_ALL_CS CONTAINS_ANY_CI CONTAINS_ANY_CS COS COT COUNT COUNTIF DATETIMEADD \
    DATETIMEBIN DATETIMEDIFF DATETIMEFORMAT DATETIMEFROMPARTS DATETIMEPART DATETIMETOTICKS \
    DATETIMETOTIMESTAMP DAY DEGREES DOCUMENTID ENDSWITH EXP FLOOR FULLTEXTCONTAINS \
    FULLTEXTCONTAINSALL FULLTEXTCONTAINSANY FULLTEXTSCORE GETCURRENTDATETIME \
    GETCURRENTDATETIMESTATIC GETCURRENTTICKS GETCURRENTTICKSSTATIC GETCURRENTTIMESTAMP \
    GETCURRENTTIMESTAMPSTATIC IIF INDEX_OF INTADD INTBITAND INTBITLEFTSHIFT INTBITNOT INTBITOR \
    INTBITRIGHTSHIFT INTBITXOR INTDIV INTMOD INTMUL INTSUB IS_ARRAY IS_BOOL IS_DATETIME \
    IS_DEFINED IS_FINITE_NUMBER IS_INTEGER IS_NULL IS_NUMBER IS_OBJECT IS_PRIMITIVE IS_STRING \
    LASTINDEXOF LEFT LENGTH LOG LOG10 LOWER LTRIM MAKELIST MAKESET MAX MIN MONTH NOW NUMBERBIN \
    OBJECTTOARRAY PI POWER RADIANS RAND REGEXMATCH REPLACE REPLICATE REVERSE RIGHT ROUND RRF \
    RTRIM SETDIFFERENCE SETEQUAL SETINTERSECT SETUNION SIGN SIN SQRT SQUARE STARTSWITH \
    STRINGEQUALS STRINGJOIN STRINGSPLIT STRINGTOARRAY STRINGTOBOOLEAN STRINGTONULL \
    STRINGTONUMBER STRINGTOOBJECT ST_AREA ST_DISTANCE ST_INTERSECTS ST_ISVALID \
    ST_ISVALIDDETAILED ST_WITHIN SUBSTRING SUM TAN TICKSTODATETIME TIMESTAMPTODATETIME TOSTRING \
    TRIM TRUNC UPPER VECTORDISTANCE YEAR ";

impl CompiledQuery {
    /// Every item as it is: what a read feed returns.
    pub fn everything() -> Self {
        Self { projection: Projection::Star, filter: None, order: None }
    }

    /// The condition of a patch: a query without its SELECT.
    pub fn condition(text: &str) -> Result<Self> {
        let query = parse(&format!("SELECT * {text}"))?;
        let parameters = Parameters::default();
        let scope = Scope { alias: root_alias(&query)?, parameters: &parameters };
        refuse_clauses(&query)?;
        if let Some(sort) = query.order_by.first() {
            return Err(QueryError::unsupported("ORDER BY in a condition", sort.expr.span));
        }
        let filter = query.filter.as_ref().map(|filter| scope.op(filter)).transpose()?;
        Ok(Self { filter, ..Self::everything() })
    }

    /// The partition key that every item satisfying the filter has, if the filter says so.
    pub fn pinned_key(&self, definition: &KeyDefinition) -> Option<PartitionKey> {
        let conjuncts = match self.filter.as_ref()? {
            Op::And(conjuncts) => conjuncts.as_slice(),
            other => std::slice::from_ref(other),
        };
        let pinned = |path: &Vec<String>| conjuncts.iter().find_map(|op| equality(op, path));
        definition.paths.iter().map(pinned).collect::<Option<Vec<_>>>().map(PartitionKey)
    }

    /// True if an item satisfies the filter.
    pub fn keeps(&self, item: &Value) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.evaluate(item).is_true())
    }

    /// Parses and compiles a query text for a container with these index rules.
    pub fn new(text: &str, parameters: &Parameters, index: &IndexRules) -> Result<Self> {
        let query = parse(text)?;
        let alias = root_alias(&query)?;
        let scope = Scope { alias, parameters };
        refuse_clauses(&query)?;
        let projection = scope.projection(&query.select)?;
        let filter = query.filter.as_ref().map(|filter| scope.op(filter)).transpose()?;
        let order = scope.order(&query, index)?;
        if let (Projection::Count(_), Some(_)) = (&projection, &order) {
            return Err(QueryError::unsupported("ORDER BY with an aggregate", query.span));
        }
        Ok(Self { projection, filter, order })
    }
}

/// The value an item has at a path if it satisfies `op`.
fn equality(op: &Op, path: &[String]) -> Option<Component> {
    let Op::Binary(BinaryOp::Equal, left, right) = op else { return None };
    let value = match (left.as_ref(), right.as_ref()) {
        (Op::Constant(value), member) | (member, Op::Constant(value)) if leads_to(member, path) => {
            value
        }
        _ => return None,
    };
    match value {
        Value::Null => Some(Component::Null),
        Value::Bool(truth) => Some(Component::Bool(*truth)),
        Value::Number(number) => Some(Component::number(number.as_f64())),
        Value::Text(text) => Some(Component::Text(text.clone())),
        Value::Undefined | Value::Array(_) | Value::Object(_) => None,
    }
}

fn leads_to(op: &Op, path: &[String]) -> bool {
    match (op, path) {
        (Op::Item, []) => true,
        (Op::Member(inner, name), [parents @ .., last]) => name == last && leads_to(inner, parents),
        _ => false,
    }
}

/// The name by which the query calls an item.
fn root_alias(query: &Query) -> Result<String> {
    match query.from.as_slice() {
        [] => Err(QueryError::unsupported("A query without FROM", query.span)),
        [source] => match &source.collection {
            _ if source.iterates => Err(QueryError::unsupported("IN in FROM", source.span)),
            Collection::Path { root, steps } if steps.is_empty() => {
                Ok(source.alias.clone().unwrap_or_else(|| root.clone()))
            }
            Collection::Path { .. } => Err(QueryError::unsupported("A path in FROM", source.span)),
            Collection::Subquery(_) => {
                Err(QueryError::unsupported("A subquery in FROM", source.span))
            }
        },
        [_, join, ..] => Err(QueryError::unsupported("JOIN", join.span)),
    }
}

fn refuse_clauses(query: &Query) -> Result<()> {
    if let Some(span) = query.distinct {
        return Err(QueryError::unsupported("DISTINCT", span));
    }
    if let Some(top) = &query.top {
        return Err(QueryError::unsupported("TOP", top.span));
    }
    if let Some(key) = query.group_by.first() {
        return Err(QueryError::unsupported("GROUP BY", key.span));
    }
    if let Some((offset, limit)) = &query.offset_limit {
        return Err(QueryError::unsupported("OFFSET LIMIT", offset.span.to(limit.span)));
    }
    if let Some(span) = query.rank {
        return Err(QueryError::unsupported("ORDER BY RANK", span));
    }
    Ok(())
}

struct Scope<'q> {
    alias: String,
    parameters: &'q Parameters,
}

impl Scope<'_> {
    fn projection(&self, select: &Select) -> Result<Projection> {
        match select {
            Select::Star(_) => Ok(Projection::Star),
            Select::Value(expr) => match count_argument(expr)? {
                Some(argument) => self.op(argument).map(Projection::Count),
                None => self.op(expr).map(Projection::Value),
            },
            Select::List(items) => self.list(items).map(Projection::List),
        }
    }

    fn list(&self, items: &[SelectItem]) -> Result<Vec<(String, Op)>> {
        let mut unnamed = 0;
        let mut list: Vec<(String, Op)> = Vec::with_capacity(items.len());
        for item in items {
            let name = item.alias.clone().or_else(|| implied_name(&item.expr));
            let name = name.unwrap_or_else(|| {
                unnamed += 1;
                format!("${unnamed}")
            });
            let op = self.op(&item.expr)?;
            list.retain(|(known, _)| *known != name);
            list.push((name, op));
        }
        Ok(list)
    }

    fn order(&self, query: &Query, index: &IndexRules) -> Result<Option<SortOrder>> {
        match query.order_by.as_slice() {
            [] => Ok(None),
            [sort] => {
                let Some(path) = self.path(&sort.expr) else {
                    let message = "Unsupported ORDER BY clause. ORDER BY item expression could \
                                   not be mapped to a document path.";
                    return Err(QueryError::Numbered { code: 2206, message: message.into() });
                };
                let key = self.op(&sort.expr)?;
                let keeps_undefined = match index.sort_support(&path) {
                    SortSupport::WithUndefined => true,
                    SortSupport::WithoutUndefined => false,
                    SortSupport::Excluded => {
                        let message = "The index path corresponding to the specified order-by \
                                       item is excluded.";
                        return Err(QueryError::Plain(message.to_string()));
                    }
                };
                let descending = sort.descending;
                Ok(Some(SortOrder { key, descending, keeps_undefined }))
            }
            [_, second, ..] => {
                Err(QueryError::unsupported("ORDER BY several keys", second.expr.span))
            }
        }
    }

    /// The names of a path that starts at the item.
    fn path(&self, expr: &Expr) -> Option<Vec<String>> {
        match &expr.kind {
            ExprKind::Member(inner, name) => {
                let mut path = self.path_or_root(inner)?;
                path.push(name.clone());
                Some(path)
            }
            ExprKind::Index(inner, index) => match &index.kind {
                ExprKind::Literal(Literal::Text(name)) => {
                    let mut path = self.path_or_root(inner)?;
                    path.push(name.clone());
                    Some(path)
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn path_or_root(&self, expr: &Expr) -> Option<Vec<String>> {
        match &expr.kind {
            ExprKind::Name(name) if *name == self.alias => Some(Vec::new()),
            _ => self.path(expr),
        }
    }

    fn op(&self, expr: &Expr) -> Result<Op> {
        Ok(match &expr.kind {
            ExprKind::Literal(literal) => Op::Constant(constant(literal)),
            ExprKind::Parameter(name) => Op::Constant(self.parameters.get(name, expr.span)?),
            ExprKind::Name(name) if *name == self.alias => Op::Item,
            ExprKind::Name(name) => match name.as_str() {
                "NaN" => Op::Constant(Value::float(f64::NAN)),
                "Infinity" => Op::Constant(Value::float(f64::INFINITY)),
                _ => return Err(QueryError::unresolved(name, expr.span)),
            },
            ExprKind::Member(inner, name) => Op::Member(self.boxed(inner)?, name.clone()),
            ExprKind::Index(inner, index) => self.index(inner, index)?,
            ExprKind::Unary(operator, operand) => Op::Unary(*operator, self.boxed(operand)?),
            ExprKind::Binary(operator, left, right) => self.binary(*operator, left, right)?,
            ExprKind::Conditional(condition, yes, no) => {
                Op::Conditional(self.boxed(condition)?, self.boxed(yes)?, self.boxed(no)?)
            }
            ExprKind::Between { value, low, high, negated } => {
                let (low, high) = (self.boxed(low)?, self.boxed(high)?);
                negate(*negated, Op::Between(self.boxed(value)?, low, high))
            }
            ExprKind::In { value, list, negated } => {
                negate(*negated, Op::In(self.boxed(value)?, self.all(list)?))
            }
            ExprKind::Like { .. } => return Err(QueryError::unsupported("LIKE", expr.span)),
            ExprKind::Call { name, user_defined, name_span, .. } => {
                return Err(refuse_call(name, *user_defined, *name_span));
            }
            ExprKind::Array(elements) => Op::Array(self.all(elements)?),
            ExprKind::Object(members) => {
                let mut ops: Vec<(String, Op)> = Vec::with_capacity(members.len());
                for (name, value) in members {
                    let op = self.op(value)?;
                    ops.retain(|(known, _)| known != name);
                    ops.push((name.clone(), op));
                }
                Op::Object(ops)
            }
            ExprKind::Subquery(kind, _) => {
                let what = match kind {
                    SubqueryKind::Scalar => "A scalar subquery",
                    SubqueryKind::Exists => "EXISTS",
                    SubqueryKind::Array => "ARRAY",
                    SubqueryKind::All => "ALL",
                    SubqueryKind::First => "FIRST",
                    SubqueryKind::Last => "LAST",
                };
                return Err(QueryError::unsupported(what, expr.span));
            }
        })
    }

    fn boxed(&self, expr: &Expr) -> Result<Box<Op>> {
        self.op(expr).map(Box::new)
    }

    fn all(&self, exprs: &[Expr]) -> Result<Vec<Op>> {
        exprs.iter().map(|expr| self.op(expr)).collect()
    }

    fn index(&self, inner: &Expr, index: &Expr) -> Result<Op> {
        let inner = self.boxed(inner)?;
        let value = match &index.kind {
            ExprKind::Literal(literal) => constant(literal),
            ExprKind::Parameter(name) => self.parameters.get(name, index.span)?,
            _ => {
                let message = "The specified query includes 'member indexer' which is currently \
                               not supported.";
                let code = Some("SC2990".to_string());
                let span = index.span;
                return Err(QueryError::At { code, message: message.into(), span });
            }
        };
        Ok(match value {
            Value::Text(name) => Op::Member(inner, name),
            Value::Number(index) => Op::Element(inner, index),
            Value::Undefined
            | Value::Null
            | Value::Bool(_)
            | Value::Array(_)
            | Value::Object(_) => Op::Constant(Value::Undefined),
        })
    }

    /// Chains of AND and OR become lists, so that a long one is no deep one.
    fn binary(&self, operator: BinaryOp, left: &Expr, right: &Expr) -> Result<Op> {
        if !matches!(operator, BinaryOp::And | BinaryOp::Or) {
            return Ok(Op::Binary(operator, self.boxed(left)?, self.boxed(right)?));
        }
        let mut operands = vec![self.op(right)?];
        let mut rest = left;
        while let ExprKind::Binary(next, left, right) = &rest.kind
            && *next == operator
        {
            operands.push(self.op(right)?);
            rest = left;
        }
        operands.push(self.op(rest)?);
        operands.reverse();
        Ok(if operator == BinaryOp::And { Op::And(operands) } else { Op::Or(operands) })
    }
}

/// The argument of an expression that is `COUNT(e)` and nothing else.
fn count_argument(expr: &Expr) -> Result<Option<&Expr>> {
    let ExprKind::Call { name, user_defined: false, args, .. } = &expr.kind else {
        return Ok(None);
    };
    if !name.eq_ignore_ascii_case("COUNT") {
        return Ok(None);
    }
    if let [argument] = args.as_slice() {
        return Ok(Some(argument));
    }
    let message = "The COUNT function requires 1 argument(s).".to_string();
    Err(QueryError::At { code: Some("SC2050".into()), message, span: expr.span })
}

fn refuse_call(name: &str, user_defined: bool, span: Span) -> QueryError {
    let upper = name.to_ascii_uppercase();
    if user_defined {
        QueryError::unsupported("A user-defined function", span)
    } else if KNOWN_FUNCTIONS.contains(&format!(" {upper} ")) {
        QueryError::unsupported(&format!("The function {upper}"), span)
    } else {
        QueryError::unknown_function(name, span)
    }
}

fn negate(negated: bool, op: Op) -> Op {
    if negated { Op::Unary(UnaryOp::Not, Box::new(op)) } else { op }
}

fn constant(literal: &Literal) -> Value {
    match literal {
        Literal::Undefined => Value::Undefined,
        Literal::Null => Value::Null,
        Literal::Bool(truth) => Value::Bool(*truth),
        Literal::Int(number) => Value::Number(Number::Int(*number)),
        Literal::Float(number) => Value::float(*number),
        Literal::Text(text) => Value::Text(text.clone()),
    }
}

/// The name an unnamed expression lends to its member of the row.
fn implied_name(expr: &Expr) -> Option<String> {
    match &expr.kind {
        ExprKind::Name(name) | ExprKind::Member(_, name) => Some(name.clone()),
        ExprKind::Index(_, index) => match &index.kind {
            ExprKind::Literal(Literal::Text(name)) => Some(name.clone()),
            _ => None,
        },
        _ => None,
    }
}
