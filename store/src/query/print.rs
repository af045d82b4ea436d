//! Prints a tree as query text, with no more parentheses than its grouping needs.
//!
//! Plans for clients are texts: a query is rewritten for the ranges it is sent to. What the parser
//! made of a text is printed so that it reads back as the same tree.
#![expect(clippy::wildcard_enum_match_arm, reason = "asks for one form among many")]

use std::fmt::{self, Display, Formatter};

use super::ast::{
    BinaryOp, Collection, Count, CountValue, Expr, ExprKind, Literal, PathStep, Query, Select,
    SelectItem, Sort, Source, SubqueryKind, UnaryOp,
};
use super::lexer::is_identifier;
use crate::json::write_text;

impl Display for Query {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("SELECT ")?;
        if self.distinct.is_some() {
            f.write_str("DISTINCT ")?;
        }
        if let Some(count) = &self.top {
            write!(f, "TOP {count} ")?;
        }
        write!(f, "{}", self.select)?;
        for (at, source) in self.from.iter().enumerate() {
            let keyword = if at == 0 { "FROM" } else { "JOIN" };
            write!(f, " {keyword} {source}")?;
        }
        if let Some(filter) = &self.filter {
            write!(f, " WHERE {filter}")?;
        }
        if !self.group_by.is_empty() {
            write!(f, " GROUP BY {}", List(&self.group_by))?;
        }
        if !self.order_by.is_empty() {
            let rank = if self.rank.is_some() { "RANK " } else { "" };
            write!(f, " ORDER BY {rank}{}", List(&self.order_by))?;
        }
        if let Some((offset, limit)) = &self.offset_limit {
            write!(f, " OFFSET {offset} LIMIT {limit}")?;
        }
        Ok(())
    }
}

impl Display for Select {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Select::Star(_) => f.write_str("*"),
            Select::Value(expr) => write!(f, "VALUE {expr}"),
            Select::List(items) => write!(f, "{}", List(items)),
        }
    }
}

impl Display for SelectItem {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { expr, alias } = self;
        write!(f, "{expr}")?;
        alias.iter().try_for_each(|alias| write!(f, " AS {alias}"))
    }
}

/// A number that is read as infinity.
const ENDLESS: &str = "1e999";

impl Display for Count {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.value {
            CountValue::Literal(number) if number.is_infinite() => f.write_str(ENDLESS),
            CountValue::Literal(number) => write!(f, "{number}"),
            CountValue::Parameter(name) => write!(f, "@{name}"),
        }
    }
}

impl Display for Source {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { collection, alias, iterates, span: _ } = self;
        match alias {
            Some(alias) if *iterates => write!(f, "{alias} IN {collection}"),
            Some(alias) => write!(f, "{collection} AS {alias}"),
            None => write!(f, "{collection}"),
        }
    }
}

impl Display for Collection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Collection::Path { root, steps } => {
                f.write_str(root)?;
                steps.iter().try_for_each(|step| write!(f, "{step}"))
            }
            Collection::Subquery(query) => write!(f, "({query})"),
        }
    }
}

impl Display for PathStep {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            PathStep::Name(name) => member(f, name),
            PathStep::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl Display for Sort {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.expr, if self.descending { " DESC" } else { "" })
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        bare(f, self)
    }
}

/// Printed with commas between.
pub(super) struct List<'a, T>(pub(super) &'a [T]);

impl<T: Display> Display for List<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (at, one) in self.0.iter().enumerate() {
            write!(f, "{}{one}", if at > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// How tightly an expression binds: the levels of the grammar, loosest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Level(u8);

impl Level {
    const CONDITIONAL: Level = Level(1);
    const COALESCE: Level = Level(2);
    const OR: Level = Level(3);
    const AND: Level = Level(4);
    /// BETWEEN, IN and LIKE, which do not chain.
    const TEST: Level = Level(5);
    const CONCAT: Level = Level(6);
    const BIT_OR: Level = Level(7);
    const BIT_XOR: Level = Level(8);
    const BIT_AND: Level = Level(9);
    const EQUALITY: Level = Level(10);
    const COMPARISON: Level = Level(11);
    const SHIFT: Level = Level(12);
    const SUM: Level = Level(13);
    const PRODUCT: Level = Level(14);
    const UNARY: Level = Level(15);
    const PRIMARY: Level = Level(16);

    fn tighter(self) -> Level {
        Level(self.0 + 1)
    }

    fn of(expr: &Expr) -> Level {
        match &expr.kind {
            ExprKind::Conditional(..) => Level::CONDITIONAL,
            ExprKind::Binary(operator, ..) => Level::of_operator(*operator),
            ExprKind::Between { .. } | ExprKind::In { .. } | ExprKind::Like { .. } => Level::TEST,
            ExprKind::Unary(..) => Level::UNARY,
            ExprKind::Literal(literal) if is_negative(literal) => Level::UNARY,
            ExprKind::Literal(_)
            | ExprKind::Parameter(_)
            | ExprKind::Name(_)
            | ExprKind::Member(..)
            | ExprKind::Index(..)
            | ExprKind::Call { .. }
            | ExprKind::Array(_)
            | ExprKind::Object(_)
            | ExprKind::Subquery(..) => Level::PRIMARY,
        }
    }

    fn of_operator(operator: BinaryOp) -> Level {
        match operator {
            BinaryOp::Coalesce => Level::COALESCE,
            BinaryOp::Or => Level::OR,
            BinaryOp::And => Level::AND,
            BinaryOp::Concat => Level::CONCAT,
            BinaryOp::BitOr => Level::BIT_OR,
            BinaryOp::BitXor => Level::BIT_XOR,
            BinaryOp::BitAnd => Level::BIT_AND,
            BinaryOp::Equal | BinaryOp::NotEqual => Level::EQUALITY,
            BinaryOp::Less
            | BinaryOp::LessOrEqual
            | BinaryOp::Greater
            | BinaryOp::GreaterOrEqual => Level::COMPARISON,
            BinaryOp::ShiftLeft | BinaryOp::ShiftRight | BinaryOp::ShiftRightUnsigned => {
                Level::SHIFT
            }
            BinaryOp::Add | BinaryOp::Subtract => Level::SUM,
            BinaryOp::Multiply | BinaryOp::Divide | BinaryOp::Modulo => Level::PRODUCT,
        }
    }
}

/// An expression where only what binds at least this tightly may stand without parentheses.
struct At<'a>(&'a Expr, Level);

impl Display for At<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let At(expr, least) = self;
        if Level::of(expr) >= *least { bare(f, expr) } else { write!(f, "({expr})") }
    }
}

/// An operand of BETWEEN, IN or LIKE.
fn tested(expr: &Expr) -> At<'_> {
    At(expr, Level::CONCAT)
}

fn bare(f: &mut Formatter<'_>, expr: &Expr) -> fmt::Result {
    match &expr.kind {
        ExprKind::Literal(literal) => write!(f, "{literal}"),
        ExprKind::Parameter(name) => write!(f, "@{name}"),
        ExprKind::Name(name) => f.write_str(name),
        ExprKind::Member(..) | ExprKind::Index(..) => path(f, expr),
        ExprKind::Unary(operator, operand) => unary(f, *operator, operand),
        ExprKind::Binary(..) => chain(f, expr),
        ExprKind::Conditional(condition, yes, no) => {
            write!(f, "{} ? {yes} : {no}", At(condition, Level::COALESCE))
        }
        ExprKind::Between { value, low, high, negated } => {
            let (value, low, high) = (tested(value), tested(low), tested(high));
            write!(f, "{value}{} BETWEEN {low} AND {high}", not(*negated))
        }
        ExprKind::In { value, list, negated } => {
            write!(f, "{}{} IN ({})", tested(value), not(*negated), List(list))
        }
        ExprKind::Like { value, pattern, escape, negated } => {
            write!(f, "{}{} LIKE {}", tested(value), not(*negated), tested(pattern))?;
            escape.iter().try_for_each(|c| write!(f, " ESCAPE {}", Quoted(&c.to_string())))
        }
        ExprKind::Call { name, user_defined, name_span: _, args } => {
            let prefix = if *user_defined { "udf." } else { "" };
            write!(f, "{prefix}{name}({})", List(args))
        }
        ExprKind::Array(elements) => write!(f, "[{}]", List(elements)),
        ExprKind::Object(members) => object(f, members),
        ExprKind::Subquery(kind, query) => write!(f, "{}({query})", keyword(*kind)),
    }
}

/// A chain of operators of one level. It may be long and leans to the left, so that it is walked,
/// not descended into.
fn chain(f: &mut Formatter<'_>, expr: &Expr) -> fmt::Result {
    let level = Level::of(expr);
    let (mut first, mut rest) = (expr, Vec::new());
    while let ExprKind::Binary(operator, left, right) = &first.kind
        && Level::of_operator(*operator) == level
    {
        rest.push((*operator, right));
        first = left;
    }
    write!(f, "{}", At(first, level))?;
    for (operator, right) in rest.into_iter().rev() {
        write!(f, " {} {}", symbol(operator), At(right, level.tighter()))?;
    }
    Ok(())
}

/// A path, walked like a chain.
fn path(f: &mut Formatter<'_>, expr: &Expr) -> fmt::Result {
    let (mut base, mut steps) = (expr, Vec::new());
    loop {
        let (inner, step) = match &base.kind {
            ExprKind::Member(inner, name) => (inner, Step::Member(name)),
            ExprKind::Index(inner, index) => (inner, Step::Index(index)),
            _ => break,
        };
        steps.push(step);
        base = inner;
    }
    match &base.kind {
        // The dot behind a number would belong to the number.
        ExprKind::Literal(Literal::Int(_) | Literal::Float(_)) => write!(f, "({base})")?,
        _ => write!(f, "{}", At(base, Level::PRIMARY))?,
    }
    steps.into_iter().rev().try_for_each(|step| match step {
        Step::Member(name) => member(f, name),
        Step::Index(index) => write!(f, "[{index}]"),
    })
}

enum Step<'a> {
    Member(&'a str),
    Index(&'a Expr),
}

fn unary(f: &mut Formatter<'_>, operator: UnaryOp, operand: &Expr) -> fmt::Result {
    let operand = At(operand, Level::UNARY).to_string();
    match operator {
        // Two signs together would begin a comment.
        UnaryOp::Minus if operand.starts_with('-') => write!(f, "- {operand}"),
        UnaryOp::Minus => write!(f, "-{operand}"),
        UnaryOp::Plus => write!(f, "+{operand}"),
        UnaryOp::BitNot => write!(f, "~{operand}"),
        UnaryOp::Not => write!(f, "NOT {operand}"),
    }
}

fn object(f: &mut Formatter<'_>, members: &[(String, Expr)]) -> fmt::Result {
    f.write_str("{")?;
    for (at, (name, value)) in members.iter().enumerate() {
        write!(f, "{}{}: {value}", if at > 0 { ", " } else { "" }, Quoted(name))?;
    }
    f.write_str("}")
}

fn member(f: &mut Formatter<'_>, name: &str) -> fmt::Result {
    if is_identifier(name) { write!(f, ".{name}") } else { write!(f, "[{}]", Quoted(name)) }
}

fn not(negated: bool) -> &'static str {
    if negated { " NOT" } else { "" }
}

fn keyword(kind: SubqueryKind) -> &'static str {
    match kind {
        SubqueryKind::Scalar => "",
        SubqueryKind::Exists => "EXISTS",
        SubqueryKind::Array => "ARRAY",
        SubqueryKind::All => "ALL",
        SubqueryKind::First => "FIRST",
        SubqueryKind::Last => "LAST",
    }
}

fn symbol(operator: BinaryOp) -> &'static str {
    match operator {
        BinaryOp::Coalesce => "??",
        BinaryOp::Or => "OR",
        BinaryOp::And => "AND",
        BinaryOp::Concat => "||",
        BinaryOp::BitOr => "|",
        BinaryOp::BitXor => "^",
        BinaryOp::BitAnd => "&",
        BinaryOp::Equal => "=",
        BinaryOp::NotEqual => "!=",
        BinaryOp::Less => "<",
        BinaryOp::LessOrEqual => "<=",
        BinaryOp::Greater => ">",
        BinaryOp::GreaterOrEqual => ">=",
        BinaryOp::ShiftLeft => "<<",
        BinaryOp::ShiftRight => ">>",
        BinaryOp::ShiftRightUnsigned => ">>>",
        BinaryOp::Add => "+",
        BinaryOp::Subtract => "-",
        BinaryOp::Multiply => "*",
        BinaryOp::Divide => "/",
        BinaryOp::Modulo => "%",
    }
}

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Literal::Undefined => f.write_str("undefined"),
            Literal::Null => f.write_str("null"),
            Literal::Bool(truth) => write!(f, "{truth}"),
            Literal::Int(number) => write!(f, "{number}"),
            Literal::Float(number) if number.is_nan() => f.write_str("NaN"),
            // A name might be bound to something else; this is a literal again.
            Literal::Float(number) if number.is_infinite() => {
                write!(f, "{}{ENDLESS}", if *number > 0.0 { "" } else { "-" })
            }
            // Always with a fraction or an exponent: never read back as an integer.
            Literal::Float(number) => write!(f, "{number:?}"),
            Literal::Text(text) => write!(f, "{}", Quoted(text)),
        }
    }
}

fn is_negative(literal: &Literal) -> bool {
    match literal {
        Literal::Int(number) => *number < 0,
        Literal::Float(number) => number.is_sign_negative() && !number.is_nan(),
        Literal::Undefined | Literal::Null | Literal::Bool(_) | Literal::Text(_) => false,
    }
}

/// Text in quotes; JSON's escapes are a part of the language's.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut quoted = Vec::with_capacity(self.0.len() + 2);
        write_text(&mut quoted, self.0);
        f.write_str(&String::from_utf8(quoted).expect("escaped text is text"))
    }
}

#[cfg(test)]
mod tests;
