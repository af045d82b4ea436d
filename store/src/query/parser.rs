//! Parses a query by recursive descent, one function a precedence level.
#![expect(clippy::wildcard_enum_match_arm, reason = "asks for one token and refuses all others")]

use super::QUERY_BYTES_MAX;
use super::ast::{
    BinaryOp, Collection, Count, CountValue, Expr, ExprKind, Literal, PathStep, Query, Select,
    SelectItem, Sort, Source, SubqueryKind, UnaryOp,
};
use super::error::{QueryError, Span};
use super::lexer::{Token, TokenKind, tokenize};

/// How deep expressions and subqueries may nest: bounds the stack.
const DEPTH_MAX: u32 = 200;

type Result<T> = std::result::Result<T, QueryError>;

/// Parses one query.
pub fn parse(text: &str) -> Result<Query> {
    if text.len() > QUERY_BYTES_MAX {
        let message = format!("The query text exceeds the maximum of {QUERY_BYTES_MAX} bytes.");
        return Err(QueryError::Plain(message));
    }
    let tokens = tokenize(text)?;
    let mut parser = Parser { tokens, next: 0, depth: 0 };
    let query = parser.query()?;
    parser.expect_end()?;
    Ok(query)
}

struct Parser {
    tokens: Vec<Token>,
    next: usize,
    depth: u32,
}

impl Parser {
    fn peek(&self) -> &TokenKind {
        &self.tokens[self.next].kind
    }

    fn peek_second(&self) -> &TokenKind {
        let second = (self.next + 1).min(self.tokens.len() - 1);
        &self.tokens[second].kind
    }

    fn span(&self) -> Span {
        self.tokens[self.next].span
    }

    /// The place of the token just taken.
    fn last_span(&self) -> Span {
        self.tokens[self.next.saturating_sub(1)].span
    }

    fn take(&mut self) -> Token {
        let token = self.tokens[self.next].clone();
        if token.kind != TokenKind::End {
            self.next += 1;
        }
        token
    }

    fn unexpected<T>(&self) -> Result<T> {
        let Token { kind, span } = &self.tokens[self.next];
        let shown = match kind {
            TokenKind::Keyword(word) => (*word).to_string(),
            TokenKind::Symbol(symbol) => (*symbol).to_string(),
            TokenKind::Name(name) => name.clone(),
            TokenKind::Parameter(name) => format!("@{name}"),
            TokenKind::Int(number) => number.to_string(),
            TokenKind::Float(number) => number.to_string(),
            TokenKind::Text(text) => text.clone(),
            TokenKind::End => "end of query".to_string(),
        };
        Err(QueryError::syntax(&shown, *span))
    }

    fn at_symbol(&self, symbol: &str) -> bool {
        matches!(self.peek(), TokenKind::Symbol(found) if *found == symbol)
    }

    fn at_keyword(&self, keyword: &str) -> bool {
        matches!(self.peek(), TokenKind::Keyword(found) if *found == keyword)
    }

    fn take_symbol(&mut self, symbol: &str) -> bool {
        let found = self.at_symbol(symbol);
        if found {
            self.next += 1;
        }
        found
    }

    fn take_keyword(&mut self, keyword: &str) -> bool {
        let found = self.at_keyword(keyword);
        if found {
            self.next += 1;
        }
        found
    }

    fn expect_symbol(&mut self, symbol: &str) -> Result<()> {
        if self.take_symbol(symbol) { Ok(()) } else { self.unexpected() }
    }

    fn expect_keyword(&mut self, keyword: &str) -> Result<()> {
        if self.take_keyword(keyword) { Ok(()) } else { self.unexpected() }
    }

    fn expect_end(&mut self) -> Result<()> {
        if *self.peek() == TokenKind::End { Ok(()) } else { self.unexpected() }
    }

    /// A name; ALL, FIRST, LAST, RANK and ESCAPE are names too where one is wanted.
    fn name(&mut self) -> Result<String> {
        match self.peek().clone() {
            TokenKind::Name(name) if !is_constant(&name) => {
                self.next += 1;
                Ok(name)
            }
            TokenKind::Keyword(word @ ("ALL" | "FIRST" | "LAST" | "RANK" | "ESCAPE")) => {
                self.next += 1;
                Ok(word.to_string())
            }
            _ => self.unexpected(),
        }
    }

    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= DEPTH_MAX {
            let message = format!("The query is nested more than {DEPTH_MAX} levels deep.");
            return Err(QueryError::at(message, self.span()));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    fn query(&mut self) -> Result<Query> {
        let start = self.span();
        self.expect_keyword("SELECT")?;
        let distinct = self.take_keyword("DISTINCT").then(|| self.last_span());
        let top = if self.take_keyword("TOP") { Some(self.count()?) } else { None };
        let select = self.select()?;
        let from = if self.take_keyword("FROM") { self.from()? } else { Vec::new() };
        let filter = if self.take_keyword("WHERE") { Some(self.expr()?) } else { None };
        let mut group_by = Vec::new();
        if self.take_keyword("GROUP") {
            self.expect_keyword("BY")?;
            group_by = self.comma_list(Self::expr)?;
        }
        let (mut order_by, mut rank) = (Vec::new(), None);
        if self.take_keyword("ORDER") {
            self.expect_keyword("BY")?;
            if self.at_keyword("RANK") && !matches!(self.peek_second(), TokenKind::Symbol(".")) {
                self.next += 1;
                rank = Some(self.last_span());
            }
            order_by = self.comma_list(Self::sort)?;
        }
        let mut offset_limit = None;
        if self.take_keyword("OFFSET") {
            let offset = self.count()?;
            self.expect_keyword("LIMIT")?;
            offset_limit = Some((offset, self.count()?));
        }
        let span = start.to(self.last_span());
        let query = Query {
            distinct,
            top,
            select,
            from,
            filter,
            group_by,
            order_by,
            rank,
            offset_limit,
            span,
        };
        Ok(query)
    }

    fn comma_list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut list = vec![one(self)?];
        while self.take_symbol(",") {
            list.push(one(self)?);
        }
        Ok(list)
    }

    fn count(&mut self) -> Result<Count> {
        let Token { kind, span } = self.tokens[self.next].clone();
        #[expect(clippy::cast_precision_loss, reason = "counts above 2^32 are refused anyway")]
        let value = match kind {
            TokenKind::Int(number) => CountValue::Literal(number as f64),
            TokenKind::Float(number) => CountValue::Literal(number),
            TokenKind::Parameter(name) => CountValue::Parameter(name),
            _ => return self.unexpected(),
        };
        self.next += 1;
        Ok(Count { value, span })
    }

    fn select(&mut self) -> Result<Select> {
        if self.take_symbol("*") {
            return Ok(Select::Star(self.last_span()));
        }
        if self.take_keyword("VALUE") {
            return Ok(Select::Value(self.expr()?));
        }
        self.comma_list(Self::select_item).map(Select::List)
    }

    fn select_item(&mut self) -> Result<SelectItem> {
        let expr = self.expr()?;
        let alias = self.optional_alias()?;
        Ok(SelectItem { expr, alias })
    }

    fn optional_alias(&mut self) -> Result<Option<String>> {
        if self.take_keyword("AS") {
            return self.name().map(Some);
        }
        match self.peek() {
            TokenKind::Name(name) if !is_constant(name) => self.name().map(Some),
            _ => Ok(None),
        }
    }

    fn from(&mut self) -> Result<Vec<Source>> {
        let mut sources = vec![self.source()?];
        while self.take_keyword("JOIN") {
            sources.push(self.source()?);
        }
        Ok(sources)
    }

    fn source(&mut self) -> Result<Source> {
        let start = self.span();
        let iterates = matches!(self.peek_second(), TokenKind::Keyword("IN"));
        let name = if iterates { Some(self.name()?) } else { None };
        if iterates {
            self.expect_keyword("IN")?;
        }
        let collection = self.collection()?;
        let alias = if iterates { name } else { self.optional_alias()? };
        Ok(Source { collection, alias, iterates, span: start.to(self.last_span()) })
    }

    fn collection(&mut self) -> Result<Collection> {
        if self.take_symbol("(") {
            let query = self.nested(Self::query)?;
            self.expect_symbol(")")?;
            return Ok(Collection::Subquery(Box::new(query)));
        }
        let root = self.name()?;
        let mut steps = Vec::new();
        loop {
            if self.take_symbol(".") {
                steps.push(PathStep::Name(self.name()?));
            } else if self.take_symbol("[") {
                let step = match self.take().kind {
                    TokenKind::Text(name) => Some(PathStep::Name(name)),
                    TokenKind::Int(index) => u32::try_from(index).ok().map(PathStep::Index),
                    _ => None,
                };
                let Some(step) = step else {
                    self.next -= 1;
                    return self.unexpected();
                };
                steps.push(step);
                self.expect_symbol("]")?;
            } else {
                return Ok(Collection::Path { root, steps });
            }
        }
    }

    fn sort(&mut self) -> Result<Sort> {
        let expr = self.expr()?;
        let descending = self.take_keyword("DESC");
        if !descending {
            self.take_keyword("ASC");
        }
        Ok(Sort { expr, descending })
    }

    fn expr(&mut self) -> Result<Expr> {
        self.nested(Self::conditional)
    }

    /// Level 1: `c ? x : y`.
    fn conditional(&mut self) -> Result<Expr> {
        let condition = self.coalesce()?;
        if !self.take_symbol("?") {
            return Ok(condition);
        }
        let yes = self.expr()?;
        self.expect_symbol(":")?;
        let no = self.expr()?;
        let span = condition.span.to(no.span);
        let kind = ExprKind::Conditional(Box::new(condition), Box::new(yes), Box::new(no));
        Ok(Expr { kind, span })
    }

    fn coalesce(&mut self) -> Result<Expr> {
        self.binary(&[("??", BinaryOp::Coalesce)], Self::or)
    }

    fn or(&mut self) -> Result<Expr> {
        self.binary(&[("OR", BinaryOp::Or)], Self::and)
    }

    fn and(&mut self) -> Result<Expr> {
        self.binary(&[("AND", BinaryOp::And)], Self::test)
    }

    /// Level 5: BETWEEN, IN and LIKE; they do not chain.
    fn test(&mut self) -> Result<Expr> {
        let value = self.concat()?;
        let negated = self.at_keyword("NOT")
            && matches!(self.peek_second(), TokenKind::Keyword("BETWEEN" | "IN" | "LIKE"));
        if negated {
            self.next += 1;
        }
        let start = value.span;
        let value = Box::new(value);
        let kind = if self.take_keyword("BETWEEN") {
            let low = Box::new(self.concat()?);
            self.expect_keyword("AND")?;
            let high = Box::new(self.concat()?);
            ExprKind::Between { value, low, high, negated }
        } else if self.take_keyword("IN") {
            self.expect_symbol("(")?;
            let list = self.comma_list(Self::expr)?;
            self.expect_symbol(")")?;
            ExprKind::In { value, list, negated }
        } else if self.take_keyword("LIKE") {
            let pattern = Box::new(self.concat()?);
            let escape = if self.take_keyword("ESCAPE") { Some(self.escape_char()?) } else { None };
            ExprKind::Like { value, pattern, escape, negated }
        } else {
            return Ok(*value);
        };
        Ok(Expr { kind, span: start.to(self.last_span()) })
    }

    fn escape_char(&mut self) -> Result<char> {
        let TokenKind::Text(text) = self.peek().clone() else { return self.unexpected() };
        let mut chars = text.chars();
        match (chars.next(), chars.next()) {
            (Some(c), None) => {
                self.next += 1;
                Ok(c)
            }
            _ => self.unexpected(),
        }
    }

    fn concat(&mut self) -> Result<Expr> {
        self.binary(&[("||", BinaryOp::Concat)], Self::bit_or)
    }

    fn bit_or(&mut self) -> Result<Expr> {
        self.binary(&[("|", BinaryOp::BitOr)], Self::bit_xor)
    }

    fn bit_xor(&mut self) -> Result<Expr> {
        self.binary(&[("^", BinaryOp::BitXor)], Self::bit_and)
    }

    fn bit_and(&mut self) -> Result<Expr> {
        self.binary(&[("&", BinaryOp::BitAnd)], Self::equality)
    }

    fn equality(&mut self) -> Result<Expr> {
        let operators =
            [("=", BinaryOp::Equal), ("!=", BinaryOp::NotEqual), ("<>", BinaryOp::NotEqual)];
        self.binary(&operators, Self::comparison)
    }

    fn comparison(&mut self) -> Result<Expr> {
        let operators = [
            ("<", BinaryOp::Less),
            ("<=", BinaryOp::LessOrEqual),
            (">", BinaryOp::Greater),
            (">=", BinaryOp::GreaterOrEqual),
        ];
        self.binary(&operators, Self::shift)
    }

    fn shift(&mut self) -> Result<Expr> {
        let operators = [
            ("<<", BinaryOp::ShiftLeft),
            (">>", BinaryOp::ShiftRight),
            (">>>", BinaryOp::ShiftRightUnsigned),
        ];
        self.binary(&operators, Self::sum)
    }

    fn sum(&mut self) -> Result<Expr> {
        self.binary(&[("+", BinaryOp::Add), ("-", BinaryOp::Subtract)], Self::product)
    }

    fn product(&mut self) -> Result<Expr> {
        let operators =
            [("*", BinaryOp::Multiply), ("/", BinaryOp::Divide), ("%", BinaryOp::Modulo)];
        self.binary(&operators, Self::unary)
    }

    /// A level of binary operators that group to the left.
    fn binary(
        &mut self,
        operators: &[(&str, BinaryOp)],
        operand: fn(&mut Self) -> Result<Expr>,
    ) -> Result<Expr> {
        let mut left = operand(self)?;
        let mut chained = 0;
        while let Some((_, operator)) =
            operators.iter().find(|(text, _)| self.at_symbol(text) || self.at_keyword(text))
        {
            self.next += 1;
            chained += 1;
            // A left-leaning chain nests as deeply as it is long, once it is evaluated or dropped.
            if chained > CHAIN_MAX {
                let message = format!("More than {CHAIN_MAX} operators in a row.");
                return Err(QueryError::at(message, self.last_span()));
            }
            let right = operand(self)?;
            let span = left.span.to(right.span);
            let kind = ExprKind::Binary(*operator, Box::new(left), Box::new(right));
            left = Expr { kind, span };
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expr> {
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
        let operand = self.nested(Self::unary)?;
        let span = start.to(operand.span);
        Ok(Expr { kind: ExprKind::Unary(operator, Box::new(operand)), span })
    }

    fn postfix(&mut self) -> Result<Expr> {
        let mut expr = self.primary()?;
        let mut steps = 0;
        loop {
            let start = expr.span;
            let kind = if self.take_symbol(".") {
                ExprKind::Member(Box::new(expr), self.name()?)
            } else if self.take_symbol("[") {
                let index = self.expr()?;
                self.expect_symbol("]")?;
                ExprKind::Index(Box::new(expr), Box::new(index))
            } else {
                return Ok(expr);
            };
            steps += 1;
            if steps > CHAIN_MAX {
                let message = format!("A path of more than {CHAIN_MAX} steps.");
                return Err(QueryError::at(message, self.last_span()));
            }
            expr = Expr { kind, span: start.to(self.last_span()) };
        }
    }

    fn primary(&mut self) -> Result<Expr> {
        let start = self.span();
        let kind = match self.peek().clone() {
            TokenKind::Int(number) => self.literal(Literal::Int(number)),
            TokenKind::Float(number) => self.literal(Literal::Float(number)),
            TokenKind::Text(text) => self.literal(Literal::Text(text)),
            TokenKind::Parameter(name) => {
                self.next += 1;
                ExprKind::Parameter(name)
            }
            TokenKind::Name(_) => self.name_or_call()?,
            TokenKind::Keyword(word) => self.keyword_expr(word)?,
            TokenKind::Symbol("(") => return self.parenthesis(),
            TokenKind::Symbol("[") => self.array()?,
            TokenKind::Symbol("{") => self.object()?,
            TokenKind::Symbol(_) | TokenKind::End => return self.unexpected(),
        };
        Ok(Expr { kind, span: start.to(self.last_span()) })
    }

    fn literal(&mut self, literal: Literal) -> ExprKind {
        self.next += 1;
        ExprKind::Literal(literal)
    }

    fn name_or_call(&mut self) -> Result<ExprKind> {
        let TokenKind::Name(name) = self.peek().clone() else { return self.unexpected() };
        if matches!(self.peek_second(), TokenKind::Symbol("(")) {
            let name_span = self.span();
            self.next += 1;
            return self.call(name, name_span, false);
        }
        self.next += 1;
        Ok(match name.as_str() {
            "true" => ExprKind::Literal(Literal::Bool(true)),
            "false" => ExprKind::Literal(Literal::Bool(false)),
            "null" => ExprKind::Literal(Literal::Null),
            "undefined" => ExprKind::Literal(Literal::Undefined),
            _ => ExprKind::Name(name),
        })
    }

    fn keyword_expr(&mut self, word: &'static str) -> Result<ExprKind> {
        let name_span = self.span();
        let opens = matches!(self.peek_second(), TokenKind::Symbol("("));
        let third = (self.next + 2).min(self.tokens.len() - 1);
        let selects = self.tokens[third].kind == TokenKind::Keyword("SELECT");
        match word {
            "EXISTS" => self.subquery(SubqueryKind::Exists),
            "ARRAY" => self.subquery(SubqueryKind::Array),
            "ALL" if opens && selects => self.subquery(SubqueryKind::All),
            "FIRST" if opens && selects => self.subquery(SubqueryKind::First),
            "LAST" if opens && selects => self.subquery(SubqueryKind::Last),
            "LEFT" | "RIGHT" | "ALL" | "FIRST" | "LAST" if opens => {
                self.next += 1;
                self.call(word.to_string(), name_span, false)
            }
            "UDF" => {
                self.next += 1;
                self.expect_symbol(".")?;
                let name = self.name()?;
                self.call(name, name_span.to(self.last_span()), true)
            }
            "ALL" | "FIRST" | "LAST" | "RANK" | "ESCAPE" => self.name().map(ExprKind::Name),
            _ => self.unexpected(),
        }
    }

    fn subquery(&mut self, kind: SubqueryKind) -> Result<ExprKind> {
        self.next += 1;
        self.expect_symbol("(")?;
        let query = self.nested(Self::query)?;
        self.expect_symbol(")")?;
        Ok(ExprKind::Subquery(kind, Box::new(query)))
    }

    fn call(&mut self, name: String, name_span: Span, user_defined: bool) -> Result<ExprKind> {
        self.expect_symbol("(")?;
        let mut args = Vec::new();
        if !self.at_symbol(")") {
            args = self.comma_list(Self::expr)?;
        }
        self.expect_symbol(")")?;
        Ok(ExprKind::Call { name, user_defined, name_span, args })
    }

    fn parenthesis(&mut self) -> Result<Expr> {
        let start = self.span();
        self.expect_symbol("(")?;
        if self.at_keyword("SELECT") {
            let query = self.nested(Self::query)?;
            self.expect_symbol(")")?;
            let kind = ExprKind::Subquery(SubqueryKind::Scalar, Box::new(query));
            return Ok(Expr { kind, span: start.to(self.last_span()) });
        }
        let inner = self.expr()?;
        self.expect_symbol(")")?;
        Ok(Expr { kind: inner.kind, span: start.to(self.last_span()) })
    }

    fn array(&mut self) -> Result<ExprKind> {
        self.expect_symbol("[")?;
        let mut elements = Vec::new();
        if !self.at_symbol("]") {
            elements = self.comma_list(Self::expr)?;
        }
        self.expect_symbol("]")?;
        Ok(ExprKind::Array(elements))
    }

    fn object(&mut self) -> Result<ExprKind> {
        self.expect_symbol("{")?;
        let mut members = Vec::new();
        if !self.at_symbol("}") {
            members = self.comma_list(Self::object_member)?;
        }
        self.expect_symbol("}")?;
        Ok(ExprKind::Object(members))
    }

    fn object_member(&mut self) -> Result<(String, Expr)> {
        let name = match self.peek().clone() {
            TokenKind::Text(text) => {
                self.next += 1;
                text
            }
            _ => self.name()?,
        };
        self.expect_symbol(":")?;
        Ok((name, self.expr()?))
    }
}

/// How many operators or path steps may follow each other on one level.
const CHAIN_MAX: u32 = 2_000;

fn is_constant(name: &str) -> bool {
    matches!(name, "true" | "false" | "null" | "undefined")
}
