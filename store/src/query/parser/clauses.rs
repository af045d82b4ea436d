//! The clauses of a query, in their order.

use super::{Height, Parser, Result, is_constant};
use crate::query::ast::{
    ClauseSpans, Collection, Count, CountValue, Expr, PathStep, Query, Select, SelectItem, Sort,
    Source,
};
use crate::query::error::Span;
use crate::query::lexer::TokenKind;

impl Parser<'_> {
    /// A query or a subquery; its expressions count into `height`.
    pub(super) fn query(&mut self, height: &mut Height) -> Result<Query> {
        let start = self.span();
        self.expect_keyword("SELECT")?;
        let distinct = self.take_keyword("DISTINCT").then(|| self.last_span());
        let mut clauses = ClauseSpans::default();
        let top = self.clause("TOP", &mut clauses.top, Self::count)?;
        let select = self.select(height)?;
        let from = if self.take_keyword("FROM") { self.from(height)? } else { Vec::new() };
        let filter =
            if self.take_keyword("WHERE") { Some(self.expr()?.under(height)) } else { None };
        let group_by = self.clause("GROUP", &mut clauses.group_by, |parser| {
            parser.expect_keyword("BY")?;
            parser.comma_list(|parser| Ok(parser.expr()?.under(height)))
        })?;
        let ordered = self.clause("ORDER", &mut clauses.order_by, |parser| {
            parser.expect_keyword("BY")?;
            let rank = parser.take_rank();
            Ok((rank, parser.comma_list(|parser| parser.sort(height))?))
        })?;
        let (rank, order_by) = ordered.unwrap_or_default();
        let offset_limit = self.clause("OFFSET", &mut clauses.offset_limit, |parser| {
            let offset = parser.count()?;
            parser.expect_keyword("LIMIT")?;
            Ok((offset, parser.count()?))
        })?;
        let span = start.to(self.last_span());
        let group_by = group_by.unwrap_or_default();
        Ok(Query {
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
            clauses,
        })
    }

    /// What follows a keyword, if it is there, noting where the clause stands.
    fn clause<T>(
        &mut self,
        keyword: &str,
        place: &mut Span,
        rest: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        if !self.take_keyword(keyword) {
            return Ok(None);
        }
        let start = self.last_span();
        let clause = rest(self)?;
        *place = start.to(self.last_span());
        Ok(Some(clause))
    }

    /// RANK is a keyword if another name follows, which can only be a function's.
    fn take_rank(&mut self) -> Option<Span> {
        let found = self.at_word("RANK") && matches!(self.ahead(1), TokenKind::Name(_));
        self.next += usize::from(found);
        found.then(|| self.last_span())
    }

    fn count(&mut self) -> Result<Count> {
        #[expect(clippy::cast_precision_loss, reason = "counts above 2^32 are refused anyway")]
        let value = match self.peek().clone() {
            TokenKind::Int(number) => CountValue::Literal(number as f64),
            TokenKind::Float(number) => CountValue::Literal(number),
            TokenKind::Parameter(name) => CountValue::Parameter(name),
            _ => return self.unexpected(),
        };
        self.next += 1;
        Ok(Count { value, span: self.last_span() })
    }

    fn select(&mut self, height: &mut Height) -> Result<Select> {
        if self.take_symbol("*") {
            return Ok(Select::Star(self.last_span()));
        }
        if self.take_keyword("VALUE") {
            return Ok(Select::Value(self.expr()?.under(height)));
        }
        self.comma_list(|parser| parser.select_item(height)).map(Select::List)
    }

    fn select_item(&mut self, height: &mut Height) -> Result<SelectItem> {
        let expr: Expr = self.expr()?.under(height);
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

    fn from(&mut self, height: &mut Height) -> Result<Vec<Source>> {
        let mut sources = vec![self.source(height)?];
        while self.take_keyword("JOIN") {
            sources.push(self.source(height)?);
        }
        Ok(sources)
    }

    fn source(&mut self, height: &mut Height) -> Result<Source> {
        let start = self.span();
        let iterates = matches!(self.ahead(1), TokenKind::Keyword("IN"));
        let name = if iterates { Some(self.name()?) } else { None };
        if iterates {
            self.expect_keyword("IN")?;
        }
        let collection = self.collection(height)?;
        let alias = if iterates { name } else { self.optional_alias()? };
        Ok(Source { collection, alias, iterates, span: start.to(self.last_span()) })
    }

    fn collection(&mut self, height: &mut Height) -> Result<Collection> {
        if self.take_symbol("(") {
            let query = self.subquery(height)?;
            return Ok(Collection::Subquery(Box::new(query)));
        }
        let start = self.span();
        let root = self.name()?;
        let mut steps = Vec::new();
        loop {
            if steps.len() > super::CHAIN_MAX as usize {
                return Err(super::too_long(start.to(self.last_span())));
            }
            if self.take_symbol(".") {
                steps.push(PathStep::Name(self.name()?));
            } else if self.take_symbol("[") {
                steps.push(self.indexed_step()?);
                self.expect_symbol("]")?;
            } else {
                return Ok(Collection::Path { root, steps });
            }
        }
    }

    fn indexed_step(&mut self) -> Result<PathStep> {
        let step = match self.peek() {
            TokenKind::Text(name) => Some(PathStep::Name(name.clone())),
            TokenKind::Int(index) => u32::try_from(*index).ok().map(PathStep::Index),
            _ => None,
        };
        let Some(step) = step else { return self.unexpected() };
        self.next += 1;
        Ok(step)
    }

    fn sort(&mut self, height: &mut Height) -> Result<Sort> {
        let expr = self.expr()?.under(height);
        let descending = self.take_keyword("DESC");
        if !descending {
            self.take_keyword("ASC");
        }
        Ok(Sort { expr, descending })
    }

    /// A query whose opening parenthesis was taken, one level down.
    pub(super) fn subquery(&mut self, height: &mut Height) -> Result<Query> {
        let mut below = Height::default();
        let query = self.nested(|parser| parser.query(&mut below))?;
        self.expect_symbol(")")?;
        below.levels += 1;
        if below.levels > super::LEVELS_MAX {
            return Err(super::too_deep(query.span));
        }
        height.cover(below);
        Ok(query)
    }
}
