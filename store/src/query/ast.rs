//! The tree of a query, as the parser builds it.

use super::error::Span;

/// A whole query, or a subquery.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// `DISTINCT`, with its place.
    pub distinct: Option<Span>,
    /// `TOP n`.
    pub top: Option<Count>,
    /// What to select.
    pub select: Select,
    /// `FROM a JOIN b …`; empty without FROM.
    pub from: Vec<Source>,
    /// `WHERE`.
    pub filter: Option<Expr>,
    /// `GROUP BY`.
    pub group_by: Vec<Expr>,
    /// `ORDER BY`.
    pub order_by: Vec<Sort>,
    /// `ORDER BY RANK`, with its place.
    pub rank: Option<Span>,
    /// `OFFSET n LIMIT m`.
    pub offset_limit: Option<(Count, Count)>,
    /// The place of the whole.
    pub span: Span,
    /// The places of its clauses.
    pub clauses: ClauseSpans,
}

/// Where clauses stand, from their first word to their last; empty for those that are not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClauseSpans {
    /// `TOP n`
    pub top: Span,
    /// `GROUP BY …`
    pub group_by: Span,
    /// `ORDER BY …`
    pub order_by: Span,
    /// `OFFSET n LIMIT m`
    pub offset_limit: Span,
}

/// What a query selects.
#[derive(Clone, Debug, PartialEq)]
pub enum Select {
    /// `*`
    Star(Span),
    /// `VALUE e`
    Value(Expr),
    /// `a, b AS c, …`
    List(Vec<SelectItem>),
}

/// One expression of a select list.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectItem {
    /// What to compute.
    pub expr: Expr,
    /// `AS name`.
    pub alias: Option<String>,
}

/// The count of TOP, OFFSET or LIMIT.
#[derive(Clone, Debug, PartialEq)]
pub struct Count {
    /// A number or a parameter.
    pub value: CountValue,
    /// Its place.
    pub span: Span,
}

/// A count as written.
#[derive(Clone, Debug, PartialEq)]
pub enum CountValue {
    /// Digits.
    Literal(f64),
    /// `@name`
    Parameter(String),
}

/// One source of FROM or JOIN.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Where rows come from.
    pub collection: Collection,
    /// `AS name`, or the name before IN.
    pub alias: Option<String>,
    /// True for `x IN …`.
    pub iterates: bool,
    /// Its place.
    pub span: Span,
}

/// What FROM names.
#[derive(Clone, Debug, PartialEq)]
pub enum Collection {
    /// `c.a.b[0]`
    Path {
        /// The first name.
        root: String,
        /// What follows.
        steps: Vec<PathStep>,
    },
    /// `(SELECT …)`
    Subquery(Box<Query>),
}

/// A step of a path in FROM.
#[derive(Clone, Debug, PartialEq)]
pub enum PathStep {
    /// `.name` or `["name"]`
    Name(String),
    /// `[3]`
    Index(u32),
}

/// One key of ORDER BY.
#[derive(Clone, Debug, PartialEq)]
pub struct Sort {
    /// What to sort by.
    pub expr: Expr,
    /// `DESC`.
    pub descending: bool,
}

/// An expression with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    /// What it is.
    pub kind: ExprKind,
    /// Where it stands.
    pub span: Span,
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub enum ExprKind {
    /// A constant.
    Literal(Literal),
    /// `@name`
    Parameter(String),
    /// A name.
    Name(String),
    /// `e.name`
    Member(Box<Expr>, String),
    /// `e[i]`
    Index(Box<Expr>, Box<Expr>),
    /// `-e`, `NOT e`, …
    Unary(UnaryOp, Box<Expr>),
    /// `a + b`, `a AND b`, …
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// `c ? x : y`
    Conditional(Box<Expr>, Box<Expr>, Box<Expr>),
    /// `e [NOT] BETWEEN a AND b`
    Between {
        /// What is tested.
        value: Box<Expr>,
        /// The lower end.
        low: Box<Expr>,
        /// The upper end.
        high: Box<Expr>,
        /// `NOT`.
        negated: bool,
    },
    /// `e [NOT] IN (…)`
    In {
        /// What is tested.
        value: Box<Expr>,
        /// Against what.
        list: Vec<Expr>,
        /// `NOT`.
        negated: bool,
    },
    /// `e [NOT] LIKE p [ESCAPE 'c']`
    Like {
        /// What is tested.
        value: Box<Expr>,
        /// The pattern.
        pattern: Box<Expr>,
        /// The escape character.
        escape: Option<char>,
        /// `NOT`.
        negated: bool,
    },
    /// `f(…)` or `udf.f(…)`
    Call {
        /// The function.
        name: String,
        /// `udf.`
        user_defined: bool,
        /// The place of the name.
        name_span: Span,
        /// What it is called with.
        args: Vec<Expr>,
    },
    /// `[…]`
    Array(Vec<Expr>),
    /// `{…}`
    Object(Vec<(String, Expr)>),
    /// `(SELECT …)` and its relatives.
    Subquery(SubqueryKind, Box<Query>),
}

/// How a subquery's rows become a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubqueryKind {
    /// The single row.
    Scalar,
    /// `EXISTS(…)`
    Exists,
    /// `ARRAY(…)`
    Array,
    /// `ALL(…)`
    All,
    /// `FIRST(…)`
    First,
    /// `LAST(…)`
    Last,
}

/// A constant.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// `undefined`
    Undefined,
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// An integer token that fits.
    Int(i64),
    /// Any other number, `NaN` and `Infinity` included.
    Float(f64),
    /// Text.
    Text(String),
}

/// An operator before its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnaryOp {
    /// `-`
    Minus,
    /// `+`
    Plus,
    /// `~`
    BitNot,
    /// `NOT`
    Not,
}

/// An operator between its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the operators")]
pub enum BinaryOp {
    Coalesce,
    Or,
    And,
    Concat,
    BitOr,
    BitXor,
    BitAnd,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    ShiftLeft,
    ShiftRight,
    ShiftRightUnsigned,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}
