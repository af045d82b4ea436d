//! Turns expressions into operations.

use std::sync::Arc;

use super::super::ast::{BinaryOp, Expr, ExprKind, UnaryOp};
use super::super::error::{QueryError, Span};
use super::super::like::LikePattern;
use super::super::names::{last_of_each, number_word};
use super::super::op::{Computed, Op, Path, ROOT, Step};
use super::super::value::{Number, Value};
use super::{COPIED_BYTES_MAX, Compiler, Purity};

impl<'q> Compiler<'q> {
    pub(super) fn op(&mut self, expr: &'q Expr) -> Op {
        if let Some(slot) = self.grouped_slot(expr) {
            return Op::slot(slot);
        }
        let op = match &expr.kind {
            ExprKind::Literal(literal) => Op::constant(literal.into()),
            ExprKind::Parameter(name) => Op::Constant(self.parameter(name, expr.span)),
            ExprKind::Name(_) | ExprKind::Member(..) | ExprKind::Index(..) => self.path(expr),
            ExprKind::Unary(operator, operand) => Op::Unary(*operator, self.boxed(operand)),
            ExprKind::Binary(..) => return self.chain(expr),
            ExprKind::Conditional(condition, yes, no) => {
                Op::Conditional(self.boxed(condition), self.boxed(yes), self.boxed(no))
            }
            ExprKind::Between { value, low, high, negated } => {
                let between = Op::Between(self.boxed(value), self.boxed(low), self.boxed(high));
                self.negated(*negated, between)
            }
            ExprKind::In { value, list, negated } => {
                let is_in = Op::In(self.boxed(value), self.all(list));
                self.negated(*negated, is_in)
            }
            ExprKind::Like { value, pattern, escape, negated } => {
                let like = self.like(value, pattern, *escape, expr.span);
                self.negated(*negated, like)
            }
            ExprKind::Call { name, user_defined, name_span, args } => {
                self.call(name, *user_defined, *name_span, args, expr.span)
            }
            ExprKind::Array(elements) => Op::Array(self.all(elements)),
            ExprKind::Object(members) => self.object(members),
            ExprKind::Subquery(kind, query) => self.subquery(*kind, query, expr.span),
        };
        self.fold(op)
    }

    pub(super) fn boxed(&mut self, expr: &'q Expr) -> Box<Op> {
        Box::new(self.op(expr))
    }

    pub(super) fn all(&mut self, exprs: &'q [Expr]) -> Vec<Op> {
        exprs.iter().map(|expr| self.op(expr)).collect()
    }

    fn parameter(&mut self, name: &str, span: Span) -> Arc<Value> {
        if let Some(given) = self.parameters.get(name) {
            return given.value.clone();
        }
        // Conditions of patches have none: whoever wrote one would wait in vain for it to hold.
        if matches!(self.purity, Purity::Pure) {
            let message = format!("The query parameter '@{name}' has no value.");
            self.errors.push(QueryError::at(message, span));
        }
        Arc::default()
    }

    /// False, and noted, if texts are copied that are too long together.
    pub(super) fn copies(&mut self, text: &str, span: Span) -> bool {
        if let Some(left) = self.copied_bytes.checked_sub(text.len()) {
            self.copied_bytes = left;
            return true;
        }
        let message = format!(
            "The query uses more than {COPIED_BYTES_MAX} bytes of texts as patterns and names."
        );
        self.errors.push_instead(QueryError::at(message, span));
        false
    }

    fn negated(&mut self, negated: bool, op: Op) -> Op {
        if negated { Op::Unary(UnaryOp::Not, Box::new(self.fold(op))) } else { op }
    }

    fn like(&mut self, value: &'q Expr, pattern: &'q Expr, escape: Option<char>, span: Span) -> Op {
        let (value, pattern) = (self.boxed(value), self.boxed(pattern));
        if let Op::Constant(constant) = pattern.as_ref()
            && let Value::Text(text) = &**constant
            && self.copies(text, span)
        {
            Op::Like(value, Box::new(LikePattern::new(text, escape)))
        } else {
            Op::LikeComputed(value, pattern, escape)
        }
    }

    /// Of members with one name the last wins.
    fn object(&mut self, members: &'q [(String, Expr)]) -> Op {
        let ops = members.iter().map(|(name, value)| (name.clone(), self.op(value)));
        Op::Object(last_of_each(ops.collect()))
    }

    /// Operators in a row, from the first operand on, without going deeper for each.
    fn chain(&mut self, expr: &'q Expr) -> Op {
        let mut links = Vec::new();
        let mut first = expr;
        while let ExprKind::Binary(operator, left, right) = &first.kind
            && (links.is_empty() || self.grouped_slot(first).is_none())
        {
            links.push((*operator, right.as_ref()));
            first = left;
        }
        let mut chain = self.op(first);
        for (operator, right) in links.into_iter().rev() {
            let right = self.op(right);
            chain = self.linked(chain, operator, right);
        }
        chain
    }

    fn linked(&mut self, left: Op, operator: BinaryOp, right: Op) -> Op {
        let linked = match (operator, left) {
            (BinaryOp::And, Op::And(mut operands)) => {
                operands.push(right);
                Op::And(operands)
            }
            (BinaryOp::Or, Op::Or(mut operands)) => {
                operands.push(right);
                Op::Or(operands)
            }
            (BinaryOp::And, left) => Op::And(vec![left, right]),
            (BinaryOp::Or, left) => Op::Or(vec![left, right]),
            (operator, Op::Chain(first, mut rest)) => {
                rest.push((operator, right));
                Op::Chain(first, rest)
            }
            (operator, Op::Binary(before, first, second)) => {
                Op::Chain(first, vec![(before, *second), (operator, right)])
            }
            (operator, left) => Op::Binary(operator, Box::new(left), Box::new(right)),
        };
        self.fold(linked)
    }

    /// A path, followed down to what it starts from.
    fn path(&mut self, expr: &'q Expr) -> Op {
        let mut steps = Vec::new();
        let mut start = expr;
        let base = loop {
            if let Some(slot) = self.grouped_slot(start) {
                break Op::slot(slot);
            }
            match &start.kind {
                ExprKind::Member(inner, name) => {
                    steps.push(Some(Step::Name(name.clone())));
                    start = inner;
                }
                ExprKind::Index(inner, index) => {
                    steps.push(self.indexed_step(index));
                    start = inner;
                }
                ExprKind::Name(name) => break self.named(name, start.span, expr.span),
                ExprKind::Literal(_)
                | ExprKind::Parameter(_)
                | ExprKind::Unary(..)
                | ExprKind::Binary(..)
                | ExprKind::Conditional(..)
                | ExprKind::Between { .. }
                | ExprKind::In { .. }
                | ExprKind::Like { .. }
                | ExprKind::Call { .. }
                | ExprKind::Array(_)
                | ExprKind::Object(_)
                | ExprKind::Subquery(..) => break self.op(start),
            }
        };
        let steps: Option<Vec<Step>> = steps.into_iter().rev().collect();
        steps.map_or(Op::constant(Value::Undefined), |steps| self.below(base, steps))
    }

    /// What lies below a value. A computed property hides a stored one of its name.
    pub(super) fn below(&mut self, base: Op, mut steps: Vec<Step>) -> Op {
        if let (Op::Path(Path { slot: ROOT, steps: none }), Some(Step::Name(name))) =
            (&base, steps.first())
            && none.is_empty()
            && let Some(body) = self.computed.body(name)
        {
            let computed = Computed { name: name.clone(), body: body.clone() };
            steps.remove(0);
            return self.below(Op::Computed(Box::new(computed)), steps);
        }
        if let Op::Path(mut path) = base {
            path.steps.extend(steps);
            return Op::Path(path);
        }
        if steps.is_empty() {
            return base;
        }
        self.fold(Op::Steps(Box::new(base), steps))
    }

    /// The step of `[i]`; none if it leads nowhere.
    fn indexed_step(&mut self, index: &Expr) -> Option<Step> {
        let value = match &index.kind {
            ExprKind::Literal(literal) => Arc::new(literal.into()),
            ExprKind::Parameter(name) => self.parameter(name, index.span),
            ExprKind::Name(_)
            | ExprKind::Member(..)
            | ExprKind::Index(..)
            | ExprKind::Unary(..)
            | ExprKind::Binary(..)
            | ExprKind::Conditional(..)
            | ExprKind::Between { .. }
            | ExprKind::In { .. }
            | ExprKind::Like { .. }
            | ExprKind::Call { .. }
            | ExprKind::Array(_)
            | ExprKind::Object(_)
            | ExprKind::Subquery(..) => {
                let message = "The specified query includes 'member indexer' which is currently \
                               not supported.";
                self.errors.push(QueryError::coded("SC2990", message, index.span));
                return None;
            }
        };
        match &*value {
            Value::Text(name) => self.copies(name, index.span).then(|| Step::Name(name.clone())),
            Value::Number(number) => match number.whole() {
                Number::Int(index) => usize::try_from(index).ok().map(Step::Index),
                Number::Float(_) => None,
            },
            Value::Undefined
            | Value::Null
            | Value::Bool(_)
            | Value::Array(_)
            | Value::Object(_) => None,
        }
    }

    fn named(&mut self, name: &str, span: Span, reference: Span) -> Op {
        if let Some(slot) = self.lookup(name, reference) {
            return Op::slot(slot);
        }
        match number_word(name) {
            Some(number) => Op::constant(Value::float(number)),
            None => self.refuse(QueryError::unresolved(name, span)),
        }
    }
}
