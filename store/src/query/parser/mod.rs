//! Parses a query by recursive descent, one function a precedence level.
//!
//! What comes later walks the tree by recursion, so the parser bounds it: `Tall` carries how tall an
//! expression is, in levels and in nodes.
#![expect(clippy::wildcard_enum_match_arm, reason = "asks for one token and refuses all others")]

mod clauses;
mod expressions;

use super::QUERY_BYTES_MAX;
use super::ast::{Expr, ExprKind, Query};
use super::error::{QueryError, Span};
use super::lexer::{Token, TokenKind, tokenize};

/// How deep brackets, operands and subqueries may nest: bounds the stack of whoever walks them.
const LEVELS_MAX: u32 = 200;
/// How many operators or path steps may follow each other: bounds the stack when a tree is dropped.
const CHAIN_MAX: u32 = 2_000;
/// How many right operands may be open while they are read: within one level of brackets each tighter
/// operator opens another. Bounds the parser's own stack.
const OPERANDS_OPEN_MAX: u32 = 600;

type Result<T> = std::result::Result<T, QueryError>;

/// Parses one query.
pub fn parse(text: &str) -> Result<Query> {
    if text.len() > QUERY_BYTES_MAX {
        let message =
            format!("The SQL query text exceeded the maximum limit of {QUERY_BYTES_MAX} bytes.");
        return Err(QueryError::coded("SC3020", message, Span::whole(text)));
    }
    let tokens = tokenize(text)?;
    let mut parser = Parser { text, tokens, next: 0, depth: 0, operands_open: 0 };
    let query = parser.query(&mut Height::default())?;
    if *parser.peek() == TokenKind::End { Ok(query) } else { parser.unexpected() }
}

struct Parser<'t> {
    text: &'t str,
    tokens: Vec<Token>,
    next: usize,
    /// Brackets and operators before operands that are open here.
    depth: u32,
    /// Calls of `operators` that are under way.
    operands_open: u32,
}

/// How tall a tree is.
#[derive(Clone, Copy, Debug, Default)]
struct Height {
    /// Nodes on the longest way down, where a chain of binary operators or path steps is one.
    levels: u32,
    /// All nodes on the longest way down.
    nodes: u32,
}

impl Height {
    fn cover(&mut self, other: Height) {
        self.levels = self.levels.max(other.levels);
        self.nodes = self.nodes.max(other.nodes);
    }
}

/// An expression, and how tall it is.
struct Tall {
    expr: Expr,
    height: Height,
}

impl Tall {
    /// A node above others; `below` is the tallest of them.
    fn above(below: Height, kind: ExprKind, span: Span) -> Result<Tall> {
        let height = Height { levels: below.levels + 1, nodes: below.nodes + 1 };
        Self::checked(kind, span, height)
    }

    /// A link of a chain: its first operand continues the chain, the others hang below it.
    fn linked(first: Height, others: Height, kind: ExprKind, span: Span) -> Result<Tall> {
        let levels = first.levels.max(others.levels + 1);
        let nodes = first.nodes.max(others.nodes) + 1;
        Self::checked(kind, span, Height { levels, nodes })
    }

    fn checked(kind: ExprKind, span: Span, height: Height) -> Result<Tall> {
        if height.levels > LEVELS_MAX {
            return Err(too_deep(span));
        }
        if height.nodes > CHAIN_MAX {
            return Err(too_long(span));
        }
        Ok(Tall { expr: Expr { kind, span }, height })
    }

    /// Gives up the height, after counting it in.
    fn under(self, height: &mut Height) -> Expr {
        height.cover(self.height);
        self.expr
    }

    fn boxed_under(self, height: &mut Height) -> Box<Expr> {
        Box::new(self.under(height))
    }
}

fn too_deep(span: Span) -> QueryError {
    QueryError::at(format!("The query is nested more than {LEVELS_MAX} levels deep."), span)
}

fn too_long(span: Span) -> QueryError {
    QueryError::at(format!("More than {CHAIN_MAX} operators or path steps in a row."), span)
}

impl Parser<'_> {
    fn peek(&self) -> &TokenKind {
        &self.tokens[self.next].kind
    }

    /// The token so many places ahead.
    fn ahead(&self, places: usize) -> &TokenKind {
        &self.tokens[(self.next + places).min(self.tokens.len() - 1)].kind
    }

    fn span(&self) -> Span {
        self.tokens[self.next].span
    }

    /// The place of the token just taken.
    fn last_span(&self) -> Span {
        self.tokens[self.next.saturating_sub(1)].span
    }

    /// Refuses the next token, showing it as it is written.
    fn unexpected<T>(&self) -> Result<T> {
        let Token { kind, span } = &self.tokens[self.next];
        if *kind == TokenKind::End {
            return Err(QueryError::unexpected_end(*span));
        }
        Err(QueryError::syntax(&span.of(self.text), *span))
    }

    fn at_symbol(&self, symbol: &str) -> bool {
        matches!(self.peek(), TokenKind::Symbol(found) if *found == symbol)
    }

    fn at_keyword(&self, keyword: &str) -> bool {
        matches!(self.peek(), TokenKind::Keyword(found) if *found == keyword)
    }

    /// True at a word that means something in this place only, whatever its case.
    fn at_word(&self, word: &str) -> bool {
        matches!(self.peek(), TokenKind::Name(found) if found.eq_ignore_ascii_case(word))
    }

    fn take_symbol(&mut self, symbol: &str) -> bool {
        let found = self.at_symbol(symbol);
        self.next += usize::from(found);
        found
    }

    fn take_keyword(&mut self, keyword: &str) -> bool {
        let found = self.at_keyword(keyword);
        self.next += usize::from(found);
        found
    }

    fn expect_symbol(&mut self, symbol: &str) -> Result<()> {
        if self.take_symbol(symbol) { Ok(()) } else { self.unexpected() }
    }

    fn expect_keyword(&mut self, keyword: &str) -> Result<()> {
        if self.take_keyword(keyword) { Ok(()) } else { self.unexpected() }
    }

    fn name(&mut self) -> Result<String> {
        match self.peek().clone() {
            TokenKind::Name(name) if !is_constant(&name) => {
                self.next += 1;
                Ok(name)
            }
            _ => self.unexpected(),
        }
    }

    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= LEVELS_MAX {
            return Err(too_deep(self.span()));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    fn comma_list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut list = vec![one(self)?];
        while self.take_symbol(",") {
            list.push(one(self)?);
        }
        Ok(list)
    }
}

fn is_constant(name: &str) -> bool {
    matches!(name, "true" | "false" | "null" | "undefined")
}
