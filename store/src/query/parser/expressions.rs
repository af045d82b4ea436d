//! Expressions, from the loosest operators to the tightest.

use super::{Height, OPERANDS_OPEN_MAX, Parser, Result, Tall, too_deep};
use crate::query::ast::{BinaryOp, Expr, ExprKind, Literal, SubqueryKind, UnaryOp};
use crate::query::error::Span;
use crate::query::lexer::TokenKind;

/// The loosest level of binary operators, behind `c ? x : y`.
const COALESCE: u8 = 2;
/// The level of BETWEEN, IN and LIKE.
const TEST: u8 = 5;

/// Binary operators with their levels; the higher, the tighter.
const OPERATORS: [(&str, BinaryOp, u8); 22] = [
    ("??", BinaryOp::Coalesce, COALESCE),
    ("OR", BinaryOp::Or, 3),
    ("AND", BinaryOp::And, 4),
    ("||", BinaryOp::Concat, 6),
    ("|", BinaryOp::BitOr, 7),
    ("^", BinaryOp::BitXor, 8),
    ("&", BinaryOp::BitAnd, 9),
    ("=", BinaryOp::Equal, 10),
    ("!=", BinaryOp::NotEqual, 10),
    ("<>", BinaryOp::NotEqual, 10),
    ("<", BinaryOp::Less, 11),
    ("<=", BinaryOp::LessOrEqual, 11),
    (">", BinaryOp::Greater, 11),
    (">=", BinaryOp::GreaterOrEqual, 11),
    ("<<", BinaryOp::ShiftLeft, 12),
    (">>", BinaryOp::ShiftRight, 12),
    (">>>", BinaryOp::ShiftRightUnsigned, 12),
    ("+", BinaryOp::Add, 13),
    ("-", BinaryOp::Subtract, 13),
    ("*", BinaryOp::Multiply, 14),
    ("/", BinaryOp::Divide, 14),
    ("%", BinaryOp::Modulo, 14),
];

impl Parser<'_> {
    pub(super) fn expr(&mut self) -> Result<Tall> {
        self.nested(Self::conditional)
    }

    /// Level 1: `c ? x : y`.
    fn conditional(&mut self) -> Result<Tall> {
        let condition = self.operators(COALESCE)?;
        if !self.take_symbol("?") {
            return Ok(condition);
        }
        let mut height = Height::default();
        let start = condition.expr.span;
        let condition = condition.boxed_under(&mut height);
        let yes = self.expr()?.boxed_under(&mut height);
        self.expect_symbol(":")?;
        let no = self.expr()?.boxed_under(&mut height);
        let kind = ExprKind::Conditional(condition, yes, no);
        Tall::above(height, kind, start.to(self.last_span()))
    }

    /// Operands joined by operators of this level or tighter, grouped to the left.
    ///
    /// One function for all levels, not one for each: the stack grows with what is nested only.
    fn operators(&mut self, loosest: u8) -> Result<Tall> {
        if self.operands_open >= OPERANDS_OPEN_MAX {
            return Err(too_deep(self.span()));
        }
        self.operands_open += 1;
        let result = self.joined_operands(loosest);
        self.operands_open -= 1;
        result
    }

    fn joined_operands(&mut self, loosest: u8) -> Result<Tall> {
        let mut left = self.unary()?;
        let mut tightest = u8::MAX;
        loop {
            if loosest <= TEST && TEST <= tightest && self.at_test() {
                left = self.test(left)?;
                tightest = TEST - 1;
                continue;
            }
            let Some((operator, level)) = self.operator() else { return Ok(left) };
            if level < loosest || level > tightest {
                return Ok(left);
            }
            self.next += 1;
            let right = self.operators(level + 1)?;
            let span = left.expr.span.to(right.expr.span);
            let heights = (left.height, right.height);
            let kind = ExprKind::Binary(operator, Box::new(left.expr), Box::new(right.expr));
            left = Tall::linked(heights.0, heights.1, kind, span)?;
        }
    }

    /// The binary operator that comes next, and its level.
    fn operator(&self) -> Option<(BinaryOp, u8)> {
        let (TokenKind::Symbol(found) | TokenKind::Keyword(found)) = self.peek() else {
            return None;
        };
        let known = OPERATORS.iter().find(|(text, ..)| text == found);
        known.map(|(_, operator, level)| (*operator, *level))
    }

    fn at_test(&self) -> bool {
        let is_test =
            |token: &TokenKind| matches!(token, TokenKind::Keyword("BETWEEN" | "IN" | "LIKE"));
        is_test(self.peek()) || (self.at_keyword("NOT") && is_test(self.ahead(1)))
    }

    /// Level 5: BETWEEN, IN and LIKE; they do not chain.
    fn test(&mut self, value: Tall) -> Result<Tall> {
        let negated = self.take_keyword("NOT");
        let mut height = Height::default();
        let start = value.expr.span;
        let value = value.boxed_under(&mut height);
        let kind = if self.take_keyword("BETWEEN") {
            let low = self.operators(TEST + 1)?.boxed_under(&mut height);
            self.expect_keyword("AND")?;
            let high = self.operators(TEST + 1)?.boxed_under(&mut height);
            ExprKind::Between { value, low, high, negated }
        } else if self.take_keyword("IN") {
            self.expect_symbol("(")?;
            let list = self.exprs(&mut height)?;
            self.expect_symbol(")")?;
            ExprKind::In { value, list, negated }
        } else {
            self.expect_keyword("LIKE")?;
            let pattern = self.operators(TEST + 1)?.boxed_under(&mut height);
            let escape = self.escape()?;
            ExprKind::Like { value, pattern, escape, negated }
        };
        Tall::above(height, kind, start.to(self.last_span()))
    }

    /// `ESCAPE 'c'`; without a text behind it ESCAPE is a name.
    fn escape(&mut self) -> Result<Option<char>> {
        if !self.at_word("ESCAPE") {
            return Ok(None);
        }
        let TokenKind::Text(text) = self.ahead(1).clone() else { return Ok(None) };
        self.next += 1;
        let mut chars = text.chars();
        match (chars.next(), chars.next()) {
            (Some(c), None) => {
                self.next += 1;
                Ok(Some(c))
            }
            _ => self.unexpected(),
        }
    }

    fn unary(&mut self) -> Result<Tall> {
        let start = self.span();
        let operator = if self.take_symbol("-") {
            UnaryOp::Minus
        } else if self.take_symbol("+") {
            UnaryOp::Plus
        } else if self.take_symbol("~") {
            UnaryOp::BitNot
        } else if self.take_keyword("NOT") {
            UnaryOp::Not
        } else {
            return self.postfix();
        };
        let mut height = Height::default();
        let operand = self.nested(Self::unary)?.boxed_under(&mut height);
        let kind = ExprKind::Unary(operator, operand);
        Tall::above(height, kind, start.to(self.last_span()))
    }

    fn postfix(&mut self) -> Result<Tall> {
        let mut tall = self.primary()?;
        loop {
            let (start, first) = (tall.expr.span, tall.height);
            let mut others = Height::default();
            let kind = if self.take_symbol(".") {
                ExprKind::Member(Box::new(tall.expr), self.name()?)
            } else if self.take_symbol("[") {
                let index = self.expr()?.boxed_under(&mut others);
                self.expect_symbol("]")?;
                ExprKind::Index(Box::new(tall.expr), index)
            } else {
                return Ok(tall);
            };
            tall = Tall::linked(first, others, kind, start.to(self.last_span()))?;
        }
    }

    fn primary(&mut self) -> Result<Tall> {
        let start = self.span();
        let mut height = Height::default();
        let kind = match self.peek().clone() {
            TokenKind::Int(number) => self.literal(Literal::Int(number)),
            TokenKind::Float(number) => self.literal(Literal::Float(number)),
            TokenKind::Text(text) => self.literal(Literal::Text(text)),
            TokenKind::Parameter(name) => {
                self.next += 1;
                ExprKind::Parameter(name)
            }
            TokenKind::Name(name) => self.name_or_call(name, &mut height)?,
            TokenKind::Keyword(word) => self.keyword_expr(word, &mut height)?,
            TokenKind::Symbol("(") => return self.parenthesis(),
            TokenKind::Symbol("[") => self.array(&mut height)?,
            TokenKind::Symbol("{") => self.object(&mut height)?,
            TokenKind::Symbol(_) | TokenKind::End => return self.unexpected(),
        };
        Tall::above(height, kind, start.to(self.last_span()))
    }

    fn literal(&mut self, literal: Literal) -> ExprKind {
        self.next += 1;
        ExprKind::Literal(literal)
    }

    fn name_or_call(&mut self, name: String, height: &mut Height) -> Result<ExprKind> {
        let opens = *self.ahead(1) == TokenKind::Symbol("(");
        let selects = opens && *self.ahead(2) == TokenKind::Keyword("SELECT");
        if let Some(kind) = subquery_word(&name).filter(|_| selects) {
            return self.subquery_expr(kind, height);
        }
        let name_span = self.span();
        self.next += 1;
        if opens {
            return self.call(name, name_span, false, height);
        }
        Ok(match name.as_str() {
            "true" => ExprKind::Literal(Literal::Bool(true)),
            "false" => ExprKind::Literal(Literal::Bool(false)),
            "null" => ExprKind::Literal(Literal::Null),
            "undefined" => ExprKind::Literal(Literal::Undefined),
            _ => ExprKind::Name(name),
        })
    }

    fn keyword_expr(&mut self, word: &'static str, height: &mut Height) -> Result<ExprKind> {
        let name_span = self.span();
        let opens = *self.ahead(1) == TokenKind::Symbol("(");
        match word {
            "EXISTS" if opens => self.subquery_expr(SubqueryKind::Exists, height),
            "ARRAY" if opens => self.subquery_expr(SubqueryKind::Array, height),
            "LEFT" | "RIGHT" if opens => {
                self.next += 1;
                self.call(word.to_string(), name_span, false, height)
            }
            "UDF" => {
                self.next += 1;
                self.expect_symbol(".")?;
                let name = self.name()?;
                self.call(name, name_span.to(self.last_span()), true, height)
            }
            _ => self.unexpected(),
        }
    }

    fn subquery_expr(&mut self, kind: SubqueryKind, height: &mut Height) -> Result<ExprKind> {
        self.next += 1;
        self.expect_symbol("(")?;
        let query = self.subquery(height)?;
        Ok(ExprKind::Subquery(kind, Box::new(query)))
    }

    fn call(
        &mut self,
        name: String,
        name_span: Span,
        user_defined: bool,
        height: &mut Height,
    ) -> Result<ExprKind> {
        self.expect_symbol("(")?;
        let args = if self.at_symbol(")") { Vec::new() } else { self.exprs(height)? };
        self.expect_symbol(")")?;
        Ok(ExprKind::Call { name, user_defined, name_span, args })
    }

    fn parenthesis(&mut self) -> Result<Tall> {
        let start = self.span();
        self.expect_symbol("(")?;
        if self.at_keyword("SELECT") {
            let mut height = Height::default();
            let query = self.subquery(&mut height)?;
            let kind = ExprKind::Subquery(SubqueryKind::Scalar, Box::new(query));
            return Tall::above(height, kind, start.to(self.last_span()));
        }
        let inner = self.expr()?;
        self.expect_symbol(")")?;
        let expr = Expr { kind: inner.expr.kind, span: start.to(self.last_span()) };
        Ok(Tall { expr, height: inner.height })
    }

    fn array(&mut self, height: &mut Height) -> Result<ExprKind> {
        self.expect_symbol("[")?;
        let elements = if self.at_symbol("]") { Vec::new() } else { self.exprs(height)? };
        self.expect_symbol("]")?;
        Ok(ExprKind::Array(elements))
    }

    fn object(&mut self, height: &mut Height) -> Result<ExprKind> {
        self.expect_symbol("{")?;
        let mut members = Vec::new();
        if !self.at_symbol("}") {
            members = self.comma_list(|parser| parser.object_member(height))?;
        }
        self.expect_symbol("}")?;
        Ok(ExprKind::Object(members))
    }

    fn object_member(&mut self, height: &mut Height) -> Result<(String, Expr)> {
        let name = match self.peek().clone() {
            TokenKind::Text(text) => {
                self.next += 1;
                text
            }
            _ => self.name()?,
        };
        self.expect_symbol(":")?;
        Ok((name, self.expr()?.under(height)))
    }

    fn exprs(&mut self, height: &mut Height) -> Result<Vec<Expr>> {
        self.comma_list(|parser| Ok(parser.expr()?.under(height)))
    }
}

/// Names that introduce a subquery, if one follows.
fn subquery_word(name: &str) -> Option<SubqueryKind> {
    let words =
        [("ALL", SubqueryKind::All), ("FIRST", SubqueryKind::First), ("LAST", SubqueryKind::Last)];
    words.iter().find(|(word, _)| name.eq_ignore_ascii_case(word)).map(|(_, kind)| *kind)
}
